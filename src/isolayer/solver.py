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

TOLERANCE = 1e-8  # largest KKT residual of a finished context, per unit of its weight (per 1 if it weighs less)
_STEPS = 100  # Newton steps after which a context counts as not converged; a handful is usual
_LONGEST = 1.5  # no knot moves farther in a Newton step: up to 1.79 a step along Newton's direction lowers log loss
_INSIDE = 0.99  # how much of the way to a constraint an interior-point step may go
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
    longest = np.maximum(np.abs(move).max(0), _LONGEST)
    return deviation + move * (_LONGEST / longest), gradient, factor


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
    active, left = np.arange(cells.contexts), cells
    point = _start(centre, start, least=least, slack=slack)
    for step in range(_STEPS):
        middle = centre[:, active]
        slope, hessian = left.derivatives(middle + point.deviation)
        gradient = slope + penalty.apply(point.deviation)
        error = np.maximum(np.abs(gradient - _pull(point.force)).max(0), (point.force * point.slack).max(0, initial=0))
        residual[active], out[:, active] = error / left.scale, point.deviation
        open_ = residual[active] > TOLERANCE
        if not open_.any():
            return out, residual, step
        point = _move(point, gradient, hessian.plus(penalty))
        if open_.sum() < 0.7 * len(active):
            left, active = left.only(open_), active[open_]
            point = Point(*(part[..., open_] for part in point))
    return out, residual, _STEPS


class Point(NamedTuple):
    """Where the interior-point method stands; all of shape ``[.., contexts]``.

    Args:
        deviation: From the centre, ``[knots, contexts]``.
        slack: How far each rise is above the least one, ``[knots - 1, contexts]``; kept positive.
        force: Multiplier of each constraint; kept positive.
        target: What ``force * slack`` is steered to, ``[contexts]``.
    """

    deviation: Floats
    slack: Floats
    force: Floats
    target: Floats


def _start(centre: Floats, deviation: Floats, *, least: float, slack: float) -> Point:
    """A point well inside the constraints, near a given one: rises are raised, the middle of the curve stays."""
    values = centre + deviation
    rises = np.maximum(np.diff(values, axis=0), least + slack)
    raised = np.concatenate([np.zeros_like(values[:1]), np.cumsum(rises, axis=0)])
    raised += (values - raised).mean(0)
    target = np.full(values.shape[1], 0.1)
    room = rises - least
    return Point(raised - centre, room, target / room, target)


def _pull(force: Floats) -> Floats:
    """Transposed differences: what forces on the rises amount to at the knots."""
    out = np.zeros((len(force) + 1, *force.shape[1:]))
    out[1:] += force
    out[:-1] -= force
    return out


def _move(point: Point, gradient: Floats, hessian: Bands) -> Point:
    """One primal-dual Newton step, kept inside the constraints; then a lower target if the step was nearly whole."""
    stiffness = point.force / point.slack
    diagonal = np.array(hessian.diagonal)
    diagonal[:-1] += stiffness
    diagonal[1:] += stiffness
    matrix = Bands(diagonal, hessian.first - stiffness, hessian.second)
    move = solve(factorise(matrix), _pull(point.target / point.slack) - gradient)
    rise = np.diff(move, axis=0)
    push = point.target / point.slack - point.force - stiffness * rise
    primal = np.minimum(_INSIDE / np.maximum((-rise / point.slack).max(0), _INSIDE), 1.0)
    primal *= _LONGEST / np.maximum(np.abs(move).max(0) * primal, _LONGEST)
    dual = np.minimum(_INSIDE / np.maximum((-push / point.force).max(0), _INSIDE), 1.0)
    slack, force = point.slack + primal * rise, point.force + dual * push
    reached = (slack * force).mean(0)
    share = np.where(np.minimum(primal, dual) > 0.9, 0.05, np.where(np.minimum(primal, dual) > 0.5, 0.2, 0.8))
    return Point(point.deviation + primal * move, slack, force, share * reached)
