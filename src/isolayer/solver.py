r"""The exact fit: penalised log loss over non-decreasing knot values, for many contexts at once. numpy only.

With deviation :math:`d = v - \text{centre}` from where its prior is centred, the curve v of a context minimises

.. math:: \sum_i w_i\,\ell(y_i, v(x_i)) + \tfrac12 d^\top P d
          \quad\text{subject to}\quad v_{j+1} - v_j \ge \text{floor}.

A binned row touches two neighbouring knots and P penalises first and second differences, so every second derivative
has two bands beside the diagonal. A Newton step costs O(knots) and runs over all contexts together: arrays are
``[knots, contexts]`` and loops are over knots. Contexts whose free optimum breaks a constraint are finished by a
primal-dual interior-point method. How strong P should be is decided elsewhere.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.banded import Bands, Factor, factorise, inverse_bands, solve
from isolayer.grid import Grid
from isolayer.histogram import BINS_PER_STEP, Histogram

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLERANCE = 1e-7  # largest KKT residual of a finished context, per unit of its weight (per 1 if it weighs less)
_STEPS = 300  # Newton steps after which a context counts as not converged; a handful is usual
_LONGEST = 1.5  # no knot that rows read moves farther in a step: up to 1.79, Newton's direction lowers log loss
_INSIDE = 0.99  # how much of the way to a constraint an interior-point step may go
_PACE = 1e-6  # least product of force and slack aimed at, per unit of unbalanced force
_FAR = 2.0  # largest deviation from the centre at the start: farther out log loss is too flat to come back from
_HALVINGS = 12  # of a step that does not come nearer
_SLACK = 0.05  # the least slack, in steps of the grid, from which the interior-point method starts


class NotConverged(RuntimeWarning):
    """Some contexts did not reach the tolerance; the best values found are returned."""


@dataclass(frozen=True)
class Cells:
    """Occupied bins of some contexts; each reads the curve at ``v[left] (1 - f) + v[left + 1] f + offset``.

    Args:
        context: Context of each cell, shape ``[cells]``, in ``0 .. contexts - 1``.
        left: Knot at or left of the cell's mean logit, in ``0 .. knots - 2``.
        fraction: How far beyond it, in steps; in [0, 1].
        offset: What to add to the interpolated value: only for rows outside the grid, where curves have slope 1.
        weight: Weight of the cell.
        positive: Weight of its positives.
        contexts: Number of contexts.
        knots: Number of knots.
    """

    context: Ints
    left: Ints
    fraction: Floats
    offset: Floats
    weight: Floats
    positive: Floats
    contexts: int
    knots: int

    @classmethod
    def of(cls, histogram: Histogram, first: int = 0, last: int | None = None) -> Cells:
        """Cells of the groups ``first .. last - 1`` of a histogram without folds."""
        last = histogram.groups if last is None else last
        a, b = np.searchsorted(histogram.group, [first, last])
        weight, grid = histogram.weight[a:b], histogram.grid
        left, fraction, offset = _place(histogram.logit[a:b] / weight, histogram.bin[a:b], grid)
        context = histogram.group[a:b] - first
        return cls(context, left, fraction, offset, weight, histogram.positive[a:b], last - first, grid.buckets)

    def only(self, kept: NDArray[np.bool_]) -> Cells:
        """Cells of some contexts, renumbered."""
        inside = kept[self.context]
        return Cells(
            context=(np.cumsum(kept) - 1)[self.context[inside]],
            left=self.left[inside],
            fraction=self.fraction[inside],
            offset=self.offset[inside],
            weight=self.weight[inside],
            positive=self.positive[inside],
            contexts=int(kept.sum()),
            knots=self.knots,
        )

    def spread(self, amount: Floats) -> Floats:
        """Amounts of the cells, shared between the two knots around each: shape ``[knots, contexts]``."""
        right = amount * self.fraction
        out, beyond = self._sum(amount - right), self._sum(right)
        out[1:] += beyond[:-1]
        return out

    def _sum(self, amount: Floats) -> Floats:
        """Amounts of the cells, added up at their left knots: shape ``[knots, contexts]``."""
        flat = np.bincount(self._at, amount, minlength=self.knots * self.contexts)
        return flat.astype(np.float64, copy=False).reshape(self.knots, self.contexts)

    @cached_property
    def scale(self) -> Floats:
        """Weight of each context, at least 1: what residuals are measured by."""
        return np.maximum(np.bincount(self.context, self.weight, minlength=self.contexts), 1.0)

    @cached_property
    def touched(self) -> Floats:
        """1 where a knot is read by a cell, else 0: shape ``[knots, contexts]``."""
        return (self.spread(np.ones(len(self.context))) > 0).astype(np.float64)

    @cached_property
    def _at(self) -> Ints:
        return self.left * self.contexts + self.context

    def read(self, values: Floats) -> Floats:
        """Logit of each cell under knot values ``[knots, contexts]``: shape ``[cells]``."""
        flat, at = values.reshape(-1), self._at
        below = flat.take(at)
        return below + self.fraction * (flat.take(at + self.contexts) - below) + self.offset

    def derivatives(self, values: Floats) -> tuple[Floats, Bands]:
        """Gradient ``[knots, contexts]`` and Hessian of the log loss at knot values ``[knots, contexts]``."""
        prob = 1 / (1 + np.exp(-np.clip(self.read(values), -700, 700)))
        slope, bend = self.weight * prob - self.positive, self.weight * prob * (1 - prob)
        beyond = bend * self.fraction
        right, cross = self._sum(beyond), self._sum(beyond * (1 - self.fraction))
        diagonal = self._sum(bend) - right - cross  # sums of (1 - f)^2
        diagonal[1:] += (right - cross)[:-1]  # and of f^2, one knot on
        return self.spread(slope), Bands(diagonal, cross[:-1], np.zeros((self.knots - 2, 1)))


def _place(mean: Floats, at: NDArray[np.int16], grid: Grid) -> tuple[Ints, Floats, Floats]:
    """Left knot, fraction and offset of bins with given mean logits."""
    bucket = np.clip((at.astype(np.int64) - 1) // BINS_PER_STEP, 0, grid.buckets - 2)
    inside = np.clip(mean, grid.lower, grid.upper)
    fraction = np.clip((inside - grid.lower) / grid.step - bucket, 0.0, 1.0)
    return bucket, fraction, mean - inside


class Fit(NamedTuple):
    """What :func:`fit` returns.

    Args:
        values: Knot values, shape ``[knots, contexts]``.
        covariance: Bands of the posterior covariance of the values, were they free: the inverse of the Hessian.
        residual: Largest violation of the optimality conditions of each context, per unit of its weight.
        steps: Newton steps that were taken.
    """

    values: Floats
    covariance: Bands
    residual: Floats
    steps: int


def fit(cells: Cells, centre: Floats, penalty: Bands, *, floor: float, step: float) -> Fit:
    """Fit every context.

    Args:
        cells: The data.
        centre: Where each context's prior is centred, shape ``[knots, contexts]`` or ``[knots, 1]``.
        penalty: Precision of the prior around it, a batch of one.
        floor: Least slope of a curve.
        step: Distance of the knots.

    Returns:
        Knot values and what is known of them; warns :class:`NotConverged` if any context is not at its optimum.
    """
    centre = np.broadcast_to(centre, (cells.knots, cells.contexts))
    deviation, residual, steps = _free(cells, centre, penalty)
    least = floor * step
    tight = np.asarray((np.diff(centre + deviation, axis=0) < least).any(0))
    if tight.any():
        part, start = cells.only(tight), centre[:, tight]
        inside = _interior(part, start, deviation[:, tight], penalty, least=least, slack=_SLACK * step)
        deviation[:, tight], residual[tight] = inside[0], inside[1]
        steps += inside[2]
    if not residual.max(initial=0) <= TOLERANCE:
        warnings.warn(
            f"{int((~(residual <= TOLERANCE)).sum())} of {cells.contexts} contexts did not converge: the largest "
            f"residual is {residual.max():.1e}, the tolerance {TOLERANCE:.0e}",
            NotConverged,
            stacklevel=2,
        )
    values = centre + deviation
    _, hessian = cells.derivatives(values)
    return Fit(values, inverse_bands(factorise(hessian.plus(penalty))), residual, steps)


def newton(cells: Cells, centre: Floats, deviation: Floats, penalty: Bands) -> tuple[Floats, Floats, Factor]:
    """One Newton step of the free problem: the new deviation, the gradient it started from, the factorised Hessian."""
    slope, hessian = cells.derivatives(centre + deviation)
    gradient = slope + penalty.apply(deviation)
    factor = factorise(hessian.plus(penalty))
    move = solve(factor, -gradient)
    return deviation + move * _shortening(cells, move), gradient, factor


def _shortening(cells: Cells, move: Floats) -> Floats:
    """Factor in (0, 1] for each context that keeps a move within ``_LONGEST`` wherever there are rows."""
    return np.asarray(_LONGEST / np.maximum(np.abs(move * cells.touched).max(0), _LONGEST))


def _free(cells: Cells, centre: Floats, penalty: Bands) -> tuple[Floats, Floats, int]:
    """Deviations at the optimum without constraints, residuals, and steps taken."""
    deviation, residual = np.zeros((cells.knots, cells.contexts)), np.full(cells.contexts, np.inf)
    active, left, part = np.arange(cells.contexts), cells, deviation.copy()
    for step in range(_STEPS):
        moved, gradient, _ = newton(left, centre[:, active], part, penalty)
        residual[active] = np.abs(gradient).max(0) / left.scale
        deviation[:, active] = part  # the residual is that of the point before the step
        open_ = residual[active] > TOLERANCE
        if not open_.any():
            return deviation, residual, step
        part = moved
        if open_.sum() < 0.7 * len(active):
            left, active, part = left.only(open_), active[open_], part[:, open_]
    return deviation, residual, _STEPS


def _interior(
    cells: Cells, centre: Floats, start: Floats, penalty: Bands, *, least: float, slack: float
) -> tuple[Floats, Floats, int]:
    """Deviations at the constrained optimum, residuals, and steps taken, by a primal-dual interior-point method."""
    out, residual = np.array(start), np.full(cells.contexts, np.inf)
    active, problem = np.arange(cells.contexts), Problem(cells, centre, penalty)
    point = _start(centre + np.clip(start, -_FAR, _FAR), centre, least=least, slack=slack)
    for step in range(_STEPS):
        gradient, hessian = problem.derivatives(point.deviation)
        error = np.abs(gradient - _pull(point.force)).max(0)
        error = np.maximum(error, (point.force * point.slack).max(0)) / problem.cells.scale
        residual[active], out[:, active] = error, point.deviation
        open_ = error > TOLERANCE
        if not open_.any():
            return out, residual, step
        if not open_.all():  # a finished context that went on would run into its constraints
            active, problem = active[open_], problem.only(open_)
            point, gradient = Point(*(part[:, open_] for part in point)), gradient[:, open_]
            hessian = Bands(hessian.diagonal[:, open_], hessian.first[:, open_], hessian.second)
        point = _move(problem, point, gradient, hessian)
    return out, residual, _STEPS


class Problem(NamedTuple):
    """What is minimised: log loss of the cells plus the penalty of the deviation from the centre."""

    cells: Cells
    centre: Floats
    penalty: Bands

    def derivatives(self, deviation: Floats) -> tuple[Floats, Bands]:
        """Gradient and Hessian."""
        slope, hessian = self.cells.derivatives(self.centre + deviation)
        return slope + self.penalty.apply(deviation), hessian.plus(self.penalty)

    def only(self, kept: NDArray[np.bool_]) -> Problem:
        """The same for some contexts."""
        return Problem(self.cells.only(kept), self.centre[:, kept], self.penalty)


class Point(NamedTuple):
    """Where the interior-point method stands.

    Args:
        deviation: From the centre, ``[knots, contexts]``.
        slack: How far each rise is above the least one, ``[knots - 1, contexts]``; kept positive.
        force: Multiplier of each constraint, ``[knots - 1, contexts]``; kept positive.
    """

    deviation: Floats
    slack: Floats
    force: Floats

    def moved(self, along: Point, length: Floats) -> Point:
        """The point a length ``[contexts]`` along a direction."""
        return Point(*(part + length * move for part, move in zip(self, along, strict=True)))

    def distance(self, gradient: Floats, target: Floats) -> Floats:
        """How far from the point on the central path where ``force * slack`` is ``target``, shape ``[contexts]``."""
        stationary, central = gradient - _pull(self.force), self.force * self.slack - target
        return np.asarray(np.sqrt((stationary**2).sum(0) + (central**2).sum(0)))


def _start(values: Floats, centre: Floats, *, least: float, slack: float) -> Point:
    """A point well inside the constraints, near given values: rises are raised, the mean of the curve stays."""
    rises = np.maximum(np.diff(values, axis=0), least + slack)
    raised = np.concatenate([np.zeros_like(values[:1]), np.cumsum(rises, axis=0)])
    raised += (values - raised).mean(0)
    return Point(raised - centre, rises - least, 0.01 / (rises - least))


def _pull(force: Floats) -> Floats:
    """Transposed differences: what forces on the rises amount to at the knots."""
    out = np.zeros((len(force) + 1, *force.shape[1:]))
    out[1:] += force
    out[:-1] -= force
    return out


def _move(problem: Problem, point: Point, gradient: Floats, hessian: Bands) -> Point:
    """One primal-dual Newton step to a lower ``force * slack``, as long as it stays inside and comes nearer."""
    behind = np.abs(gradient - _pull(point.force)).max(0)  # the path is followed no faster than forces balance
    least = 0.1 * TOLERANCE * problem.cells.scale
    target = np.maximum(np.maximum(0.1 * (point.force * point.slack).mean(0), _PACE * behind), least)
    stiffness = point.force / point.slack
    matrix = Bands(np.array(hessian.diagonal), hessian.first - stiffness, hessian.second)
    matrix.diagonal[:-1] += stiffness
    matrix.diagonal[1:] += stiffness
    move = solve(factorise(matrix), _pull(target / point.slack) - gradient)
    rise = np.diff(move, axis=0)
    along = Point(move, rise, target / point.slack - point.force - stiffness * rise)
    nearest = np.maximum((-along.slack / point.slack).max(0), (-along.force / point.force).max(0))
    length = np.minimum(_INSIDE / np.maximum(nearest, _INSIDE), _shortening(problem.cells, move))
    before = point.distance(gradient, target)
    for _ in range(_HALVINGS):
        new = point.moved(along, length)
        far = new.distance(problem.derivatives(new.deviation)[0], target) > (1 - 0.01 * length) * before
        if not far.any():
            break
        length = np.where(far, length / 2, length)
    return point.moved(along, length)
