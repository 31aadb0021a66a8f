r"""The exact fit: penalised log loss over non-decreasing knot values, for many contexts at once. numpy only.

The curve :math:`v = \text{centre} + d` of a context minimises

.. math:: \sum_i w_i\,\ell(y_i, v(x_i)) - \log p(d)
          \quad\text{subject to}\quad v_{j+1} - v_j \ge \text{least rise},

with the prior of :mod:`isolayer.fitting.prior`, a line plus a curve. A binned row depends on two neighbouring knots and
the curve's prior has two bands, so a Newton step costs O(knots) and runs over all contexts together: arrays are
``[knots, contexts]`` and loops are over knots. Contexts whose unconstrained optimum violates a constraint are finished
by the interior-point method of :mod:`isolayer.fitting.interior`. :mod:`isolayer.fitting.shrinkage` chooses the strength
of the prior.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.interior import TOLERANCE, Problem, interior
from isolayer.fitting.prior import Deviation, Prior, newton
from isolayer.fitting.span import Span

Floats = NDArray[np.float64]

_SLACK = 0.05  # least slack, in steps of the grid, from which the interior-point method starts
_STEPS = 300  # Newton steps after which a context counts as not converged; a few are usual


class NotConverged(RuntimeWarning):
    """Some contexts did not reach the tolerance; the best values found are returned."""


class Fit(NamedTuple):
    """What :func:`fit` returns.

    Args:
        values: Knot values, shape ``[knots, contexts]``.
        variance: Posterior variance of the values without the constraint: the diagonal of the Hessian's inverse.
        residual: Largest violation of the optimality conditions of each context, relative to the scale of its rows.
        steps: Newton steps that were taken.
    """

    values: Floats
    variance: Floats
    residual: Floats
    steps: int


def fit(rows: BinnedRows, centre: Floats, prior: Prior, *, least: float, wide: Prior | None = None) -> Fit:
    """Fit every context.

    Args:
        rows: The data.
        centre: Where each context's prior is centred, shape ``[knots, contexts]`` or ``[knots, 1]``.
        prior: The prior of the deviation from it.
        least: Least rise from one knot to the next; minus infinity for curves that need not be monotone.
        wide: The prior under which the variance is computed; by default the same.

    Returns:
        Knot values with their variances; warns :class:`NotConverged` if any context is not at its optimum.
    """
    centre = np.broadcast_to(centre, (rows.knots, rows.contexts))
    span = Span.of(rows, prior)
    inner = Problem(rows.within(span.first, span.last), centre[span.first : span.last], span.prior)
    free, residual, steps = _free(inner)
    deviation = span.extended(free)
    values = centre + deviation.at_knots(prior.basis)
    tight = np.asarray((np.diff(values, axis=0) < least).any(0))
    if tight.any():
        problem = Problem(rows.only(tight), centre[:, tight], prior)
        slack = _SLACK * float(prior.basis[1, 1] - prior.basis[0, 1])
        inside = interior(problem, deviation.only(tight), least=least, slack=slack, steps=_STEPS)
        values[:, tight] = problem.centre + inside[0].at_knots(prior.basis)
        residual[tight] = inside[1]
        steps += inside[2]
    _warn(residual)
    slope, hessian = inner.rows.derivatives(values[span.first : span.last])
    wide = prior if wide is None else wide
    span = Span.of(rows, wide)
    _, posterior = newton(span.prior, hessian, Deviation(np.zeros((2, rows.contexts)), slope))
    return Fit(values, span.variance(posterior, wide), residual, steps)


def _warn(residual: Floats) -> None:
    if not residual.max(initial=0) <= TOLERANCE:
        warnings.warn(
            f"{int((~(residual <= TOLERANCE)).sum())} of {len(residual)} contexts did not converge: the largest "
            f"residual is {residual.max():.1e}, the tolerance {TOLERANCE:.0e}",
            NotConverged,
            stacklevel=3,
        )


def _free(problem: Problem) -> tuple[Deviation, Floats, int]:
    """Deviations at the optimum without constraints, residuals, and steps taken."""
    rows = problem.rows
    out, residual = Deviation.none(rows.knots, rows.contexts), np.full(rows.contexts, np.inf)
    active, part = np.arange(rows.contexts), out
    for step in range(_STEPS):
        slope, hessian = problem.derivatives(part)
        gradient = problem.prior.pull(part, slope)
        error = problem.residual(gradient)
        unfinished = error > TOLERANCE
        if not unfinished.any() or step == _STEPS - 1:
            break
        if unfinished.sum() < 0.7 * len(active):
            out.line[:, active], out.curve[:, active], residual[active] = *part, error
            active, problem, part = active[unfinished], problem.only(unfinished), part.only(unfinished)
            gradient, hessian = gradient.only(unfinished), hessian.only(unfinished)
        move, _ = newton(problem.prior, hessian, gradient)
        part = part.moved(move, problem.shortening(move.at_knots(problem.prior.basis)))
    out.line[:, active], out.curve[:, active], residual[active] = *part, error
    return out, residual, step
