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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands, Factor, factorise, inverse_bands, solve
from isolayer.fitting.binned_rows import BinnedRows

Floats = NDArray[np.float64]

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


class Fit(NamedTuple):
    """What :func:`fit` returns.

    Args:
        values: Knot values, shape ``[knots, contexts]``.
        variance: Posterior variance of the values, were they free: the diagonal of the Hessian's inverse.
        residual: Largest violation of the optimality conditions of each context, per unit of its weight.
        steps: Newton steps that were taken.
    """

    values: Floats
    variance: Floats
    residual: Floats
    steps: int


def fit(cells: BinnedRows, centre: Floats, penalty: Bands, *, floor: float, step: float) -> Fit:
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
    span = Span.of(cells, penalty)
    read, within = cells.within(span.first, span.last), centre[span.first : span.last]
    inner, residual, steps = _free(read, within, span.penalty)
    deviation, least = span.extended(inner), floor * step
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
    _, hessian = read.derivatives(values[span.first : span.last])
    return Fit(values, span.variance(inverse_bands(factorise(hessian.plus(span.penalty)))), residual, steps)


class Tail(NamedTuple):
    """Knots beyond all cells, where the prior alone decides.

    Args:
        follow: Their deviations are this, ``[knots, 2]``, times those of the two nearest knots that are read.
        own: Their variance when those two are known, ``[knots, 1]``.
    """

    follow: Floats
    own: Floats

    @classmethod
    def of(cls, block: Bands, penalty: Bands, edge: int, side: int) -> tuple[Tail, Floats]:
        """The knots of a block of the penalty beyond the knot ``edge``, below it (side -1) or above (1).

        Returns:
            The tail, and what it adds to the penalty of the two nearest knots, ``[2, 2]``.
        """
        size = len(block.diagonal)
        if size == 0:
            return cls(np.zeros((0, 2)), np.zeros((0, 1))), np.zeros((2, 2))
        link = np.zeros((size, 2))  # how the penalty ties the tail to the two nearest knots, in ascending order
        near, order = (size - 1, [0, 1]) if side < 0 else (0, [1, 0])
        link[near, order] = penalty.first[min(edge, edge + side), 0], penalty.second[edge - 1, 0]
        if size > 1:
            link[near + side, order[0]] = penalty.second[min(edge, edge + 2 * side), 0]
        factor = factorise(block)
        follow = -solve(factor, link[:, :, None])[:, :, 0]
        return cls(follow, inverse_bands(factor).diagonal), link.T @ follow

    def variance(self, left: Floats, both: Floats, right: Floats) -> Floats:
        """Variance ``[knots, contexts]`` from the variances ``[contexts]`` and covariance of those two knots."""
        one, two = self.follow[:, :1], self.follow[:, 1:]
        return self.own + one**2 * left + 2 * one * two * both + two**2 * right


class Span(NamedTuple):
    """The knots that cells read, and what follows from them: exact, and cheaper than solving for knots without rows.

    Args:
        first: The first of them.
        last: One past the last.
        penalty: The prior's precision on them, the knots beyond having been minimised out.
        below: The knots before them.
        above: The knots after them.
    """

    first: int
    last: int
    penalty: Bands
    below: Tail
    above: Tail

    @classmethod
    def of(cls, cells: BinnedRows, penalty: Bands) -> Span:
        """The span of some cells under a penalty that is a batch of one."""
        first, last = cells.span()
        below, press_below = Tail.of(penalty.between(0, first), penalty, first, -1)
        above, press_above = Tail.of(penalty.between(last, cells.knots), penalty, last - 1, 1)
        inside = Bands(*(band.copy() for band in penalty.between(first, last)))
        for at, press in ((0, press_below), (last - first - 2, press_above)):
            inside.diagonal[at : at + 2, 0] += np.diag(press)
            inside.first[at] += press[0, 1]
        return cls(first, last, inside, below, above)

    def extended(self, deviation: Floats) -> Floats:
        """Deviations at all knots from those within."""
        return np.concatenate([self.below.follow @ deviation[:2], deviation, self.above.follow @ deviation[-2:]])

    def variance(self, covariance: Bands) -> Floats:
        """Variances at all knots from the covariance of those within."""
        diagonal, beside, _ = covariance
        below = self.below.variance(diagonal[0], beside[0], diagonal[1])
        above = self.above.variance(diagonal[-2], beside[-1], diagonal[-1])
        return np.concatenate([below, diagonal, above])


def newton(cells: BinnedRows, centre: Floats, deviation: Floats, penalty: Bands) -> tuple[Floats, Floats, Factor]:
    """One Newton step of the free problem: the new deviation, the gradient it started from, the factorised Hessian."""
    slope, hessian = cells.derivatives(centre + deviation)
    gradient = slope + penalty.apply(deviation)
    factor = factorise(hessian.plus(penalty))
    move = solve(factor, -gradient)
    return deviation + move * _shortening(cells, move), gradient, factor


def _shortening(cells: BinnedRows, move: Floats) -> Floats:
    """Factor in (0, 1] for each context that keeps a move within ``_LONGEST`` wherever there are rows."""
    return np.asarray(_LONGEST / np.maximum(np.abs(move * cells.touched).max(0), _LONGEST))


def _free(cells: BinnedRows, centre: Floats, penalty: Bands) -> tuple[Floats, Floats, int]:
    """Deviations at the optimum without constraints, residuals, and steps taken."""
    out, residual = np.zeros((cells.knots, cells.contexts)), np.full(cells.contexts, np.inf)
    active, problem, part = np.arange(cells.contexts), Problem(cells, centre, penalty), out
    for step in range(_STEPS):
        gradient, hessian = problem.derivatives(part)
        error = np.abs(gradient).max(0) / problem.cells.scale
        open_ = error > TOLERANCE
        if not open_.any() or step == _STEPS - 1:
            break
        if open_.sum() < 0.7 * len(active):
            out[:, active], residual[active] = part, error
            active, problem, part = active[open_], problem.only(open_), part[:, open_]
            gradient, hessian = gradient[:, open_], hessian.only(open_)
        move = solve(factorise(hessian), -gradient)
        move *= _shortening(problem.cells, move)
        part = part + move
    out[:, active], residual[active] = part, error
    return out, residual, step


def _interior(
    cells: BinnedRows, centre: Floats, start: Floats, penalty: Bands, *, least: float, slack: float
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
            hessian = hessian.only(open_)
        point = _move(problem, point, gradient, hessian)
    return out, residual, _STEPS


class Problem(NamedTuple):
    """What is minimised: log loss of the cells plus the penalty of the deviation from the centre."""

    cells: BinnedRows
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
