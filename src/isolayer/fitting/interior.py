"""The constrained fit: a primal-dual interior-point method over non-decreasing knot values, for many contexts at once.

This module has the problem (log loss of binned rows plus the prior of the deviation) and its constrained solution. The
unconstrained solution, and the choice between the two, are in :mod:`isolayer.fitting.solver`. numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.prior import Deviation, Prior, newton

Floats = NDArray[np.float64]

TOLERANCE = 1e-7  # largest KKT residual of a finished context, relative to `binned_rows.residual_scale`
_LONGEST = 1.5  # longest move of a knot with rows in one step: up to 1.79, Newton's direction lowers log loss
_INSIDE = 0.99  # largest share of the way to a constraint that an interior-point step may take
_PACE = 1e-6  # smallest target of force times slack, per unit of unbalanced force
_FAR = 2.0  # largest initial deviation from the centre; further away log loss is too flat to recover
_HALVINGS = 12  # most halvings of a step that does not improve


class Problem(NamedTuple):
    """The objective: log loss of the rows minus the log prior of the deviation from the centre."""

    rows: BinnedRows
    centre: Floats
    prior: Prior

    def derivatives(self, deviation: Deviation) -> tuple[Floats, Bands]:
        """Gradient and Hessian of the log loss by the knot values."""
        return self.rows.derivatives(self.centre + deviation.at_knots(self.prior.basis))

    def only(self, kept: NDArray[np.bool_]) -> Problem:
        """The same for some contexts."""
        return Problem(self.rows.only(kept), self.centre[:, kept], self.prior)

    def residual(self, gradient: Deviation) -> Floats:
        """Largest part of a gradient, relative to the scale of the rows, shape ``[contexts]``."""
        line = np.abs(gradient.line).max(0) / np.abs(self.prior.basis).max()
        return np.asarray(np.maximum(line, np.abs(gradient.curve).max(0)) / self.rows.scale)

    def shortening(self, move: Floats) -> Floats:
        """Factor in (0, 1] for each context that keeps a move of the knots within ``_LONGEST`` where there are rows."""
        return np.asarray(_LONGEST / np.maximum(np.abs(move * self.rows.touched).max(0), _LONGEST))


class Point(NamedTuple):
    """An iterate of the interior-point method.

    Args:
        deviation: Deviation from the centre.
        slack: Each rise minus the least rise, ``[knots - 1, contexts]``; kept positive.
        force: Multiplier of each constraint, ``[knots - 1, contexts]``; kept positive.
    """

    deviation: Deviation
    slack: Floats
    force: Floats

    def moved(self, along: Point, length: Floats) -> Point:
        """The point a length ``[contexts]`` along a direction."""
        slack, force = self.slack + length * along.slack, self.force + length * along.force
        return Point(self.deviation.moved(along.deviation, length), slack, force)

    def only(self, kept: NDArray[np.bool_]) -> Point:
        """The same for some contexts."""
        return Point(self.deviation.only(kept), self.slack[:, kept], self.force[:, kept])

    def gradient(self, prior: Prior, slope: Floats) -> Deviation:
        """Gradient of the Lagrangian, given that of the log loss."""
        return prior.pull(self.deviation, slope - _pull(self.force))

    def distance(self, gradient: Deviation, target: Floats) -> Floats:
        """Distance from the central path at ``force * slack = target``, shape ``[contexts]``."""
        central = self.force * self.slack - target
        squares = (gradient.line**2).sum(0) + (gradient.curve**2).sum(0) + (central**2).sum(0)
        return np.asarray(np.sqrt(squares))


def interior(
    problem: Problem, start: Deviation, *, least: float, slack: float, steps: int
) -> tuple[Deviation, Floats, int]:
    """Deviations at the constrained optimum, residuals, and steps taken.

    Args:
        problem: What is minimised.
        start: Where to start; rises that are too small are raised.
        least: Least rise from knot to knot.
        slack: Initial slack of every rise.
        steps: Most Newton steps.
    """
    contexts = problem.rows.contexts
    out, residual = Deviation(*(np.array(part) for part in start)), np.full(contexts, np.inf)
    active, point = np.arange(contexts), _start(problem, start, least=least, slack=slack)
    for step in range(steps):
        slope, hessian = problem.derivatives(point.deviation)
        gradient = point.gradient(problem.prior, slope)
        error = np.maximum(problem.residual(gradient), (point.force * point.slack).max(0) / problem.rows.scale)
        residual[active], out.line[:, active], out.curve[:, active] = error, *point.deviation
        unfinished = error > TOLERANCE
        if not unfinished.any():
            return out, residual, step
        if not unfinished.all():  # finished contexts must stop, since further steps would run into the constraints
            active, problem, point = active[unfinished], problem.only(unfinished), point.only(unfinished)
            slope, gradient, hessian = slope[:, unfinished], gradient.only(unfinished), hessian.only(unfinished)
        point = _move(problem, point, slope, gradient, hessian)
    return out, residual, steps


def _start(problem: Problem, start: Deviation, *, least: float, slack: float) -> Point:
    """A point well inside the constraints, close to a given one: rises are increased, the mean of the curve is kept."""
    basis = problem.prior.basis
    values = problem.centre + np.clip(start.at_knots(basis), -_FAR, _FAR)
    rises = np.maximum(np.diff(values, axis=0), least + slack)
    raised = np.concatenate([np.zeros_like(values[:1]), np.cumsum(rises, axis=0)])
    raised += (values - raised).mean(0)
    curve = raised - problem.centre - basis @ start.line
    return Point(Deviation(start.line, curve), rises - least, 0.01 / (rises - least))


def _pull(force: Floats) -> Floats:
    """Transposed differences: the forces on the rises as forces on the knots."""
    out = np.zeros((len(force) + 1, *force.shape[1:]))
    out[1:] += force
    out[:-1] -= force
    return out


def _move(problem: Problem, point: Point, slope: Floats, gradient: Deviation, hessian: Bands) -> Point:
    """One primal-dual Newton step towards a lower ``force * slack``, shortened to stay inside and to improve."""
    prior, scale = problem.prior, problem.rows.scale
    behind = problem.residual(gradient) * scale  # the target falls no faster than the forces become balanced
    target = np.maximum(0.1 * (point.force * point.slack).mean(0), np.maximum(_PACE * behind, 0.1 * TOLERANCE * scale))
    stiffness = point.force / point.slack
    matrix = Bands(np.array(hessian.diagonal), hessian.first - stiffness, hessian.second)
    matrix.diagonal[:-1] += stiffness
    matrix.diagonal[1:] += stiffness
    move, _ = newton(prior, matrix, prior.pull(point.deviation, slope - _pull(target / point.slack)))
    moved = move.at_knots(prior.basis)
    rise = np.diff(moved, axis=0)
    along = Point(move, rise, target / point.slack - point.force - stiffness * rise)
    nearest = np.maximum((-along.slack / point.slack).max(0), (-along.force / point.force).max(0))
    length = np.minimum(_INSIDE / np.maximum(nearest, _INSIDE), problem.shortening(moved))
    before = point.distance(gradient, target)
    for _ in range(_HALVINGS):
        new = point.moved(along, length)
        far = new.distance(new.gradient(prior, problem.derivatives(new.deviation)[0]), target)
        worse = far > (1 - 0.01 * length) * before
        if not worse.any():
            break
        length = np.where(worse, length / 2, length)
    return point.moved(along, length)
