r"""The fit of very many small contexts: first in the few directions that their rows determine, then once in all.

With K the prior's covariance of the deviation and H the Hessian of the log loss, the optimum is
:math:`d = -K\,g(d)`, g being the gradient of the log loss at the knots. A context of twenty rows moves along one or two
of the eigenvectors of H K, the *modes*; along the others g hardly depends on d. So d is found in two steps: Newton's
method for a few coefficients of modes, and :math:`d = -K\,g` for all the rest, which is exact to second order. The same
split gives the posterior variance. The residual of the optimality conditions and the error of the variance are measured
at the end. The caller fits contexts in which either is too large, or whose curve would fall, by
:mod:`isolayer.fitting.solver`. numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands
from isolayer.fitting.interior import TOLERANCE
from isolayer.fitting.padded_rows import PaddedRows
from isolayer.fitting.prior import Prior

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

SIZES = (2, 4, 8)  # numbers of modes: the first for nearly all contexts, the others for larger ones
SMALL = 3e-3  # largest information beyond the modes, times prior variance, of contexts whose rows are like all others
DOUBT = 1e-3  # largest relative error of a variance, estimated for each context with its own rows
_STEPS = 6  # most Newton steps for the modes alone
_BLIND, _ROUNDS = 2, 3  # corrections of all directions before the residual is checked, and after
_FEW = 0.004  # largest share of contexts with a too large residual
_NEAR = 0.1  # after steps shorter than this, all directions are corrected
_LONGEST = 1.5  # as in isolayer.fitting.interior
_TINY = np.float32(1e-30)  # smaller variances count as this, so that they can be divided by


class Modes(NamedTuple):
    """A prior covariance, split into its part along some modes and the rest.

    Args:
        modes: Modes, uncorrelated under the prior and of variance 1, shape ``[modes, knots]``.
        covariance: The whole covariance, shape ``[knots, knots]``.
        rest: The covariance without the part of the modes.
        beyond: Information times variance in the most informed direction of the rest, per unit of weight.
    """

    modes: Floats
    covariance: Floats
    rest: Floats
    beyond: float

    @classmethod
    def of(cls, prior: Prior, hessian: Bands, count: int) -> Modes:
        """The modes of a prior about which rows with this Hessian, a batch of one, have most information.

        Args:
            prior: The prior.
            hessian: Information of the rows per unit of weight.
            count: Number of modes.
        """
        covariance = (prior.basis / prior.line) @ prior.basis.T + np.linalg.inv(prior.curve.dense())
        half = np.linalg.cholesky(covariance)
        information, vectors = np.linalg.eigh(half.T @ hessian.dense() @ half)
        modes = np.ascontiguousarray((half @ vectors[:, ::-1][:, :count]).T)
        beyond = float(information[::-1][count]) if count < len(information) else 0.0
        return cls(modes, covariance, covariance - modes.T @ modes, max(beyond, 0.0))


class Reduced(NamedTuple):
    """Fitted contexts.

    Args:
        deviation: Deviation from the centre, shape ``[contexts, knots]``, stored knot by knot.
        variance: Its posterior variance.
        residual: Largest violation of the optimality conditions, as in :class:`isolayer.fitting.solver.Fit`.
        doubt: Largest relative error of the variance, estimated, shape ``[contexts]``.
    """

    deviation: Floats
    variance: Singles
    residual: Floats
    doubt: Singles


def fit_reduced(rows: PaddedRows, centre: Floats, own: Modes, wide: Modes) -> Reduced:
    """Fit contexts without constraints.

    Args:
        rows: The data.
        centre: Where each cell's prior is centred, on the logit scale, shape ``[depth, contexts]``.
        own: The prior.
        wide: The prior under which the variance is computed.
    """
    along, (first, last) = rows.between(own.modes), rows.span
    there = _along_modes(rows, centre, along)  # deviation at the cells
    inner = own.covariance[first:last, first:last]
    for _ in range(_BLIND):
        slope, bend = _derivatives(rows, centre + there)
        there += _corrected(rows.read(_pulled(rows, slope, inner), first) - there, bend, along)
    for _ in range(_ROUNDS):
        slope, before = _derivatives(rows, centre + there)
        deviation = _pulled(rows, slope, own.covariance[first:last])
        moved = rows.read(deviation)
        after, bend = _derivatives(rows, centre + moved)
        residual = np.abs(np.subtract(after, slope, out=after), out=after).sum(0) / rows.scale
        if np.count_nonzero(residual > TOLERANCE) <= _FEW * rows.contexts:
            break
        there += _corrected(np.subtract(moved, there, out=moved), before, along)
    variance, doubt = _variance(rows, bend, wide)
    return Reduced(deviation, variance, residual, doubt)


def _pulled(rows: PaddedRows, slope: Floats, covariance: Floats) -> Floats:
    """Deviation :math:`-K g` from the slopes of the cells, shape ``[contexts, knots]``, stored knot by knot."""
    return ((-covariance.T) @ rows.shared(slope).T).T


def _derivatives(rows: PaddedRows, logit: Floats) -> tuple[Floats, Floats]:
    """First and second derivative of the log loss by the logit of each cell, which is overwritten."""
    np.clip(logit, -700, 700, out=logit)
    np.exp(np.negative(logit, out=logit), out=logit)
    logit += 1
    prob = np.reciprocal(logit, out=logit)
    bend = rows.weight * prob
    slope = bend - rows.positive
    bend *= np.subtract(1, prob, out=prob)
    return slope, bend


def _along_modes(rows: PaddedRows, centre: Floats, along: Floats) -> Floats:
    """Deviation at the cells that Newton's method finds along the modes, shape ``[depth, contexts]``."""
    weights, there = np.zeros((len(along), rows.contexts)), np.zeros_like(centre)
    for step in range(_STEPS):
        some = slice(1 if step < 2 else None)  # most of the way is along the first
        slope, bend = _derivatives(rows, centre + there)
        pairs, gradient = _Pairs.of(len(along[some])), np.stack([(slope * mode).sum(0) for mode in along[some]])
        move = pairs.inverse_times(_hessian(pairs, bend, along), (gradient + weights[some])[:, None])[:, 0]
        moved = _mixed(move, along)
        farthest = np.abs(moved).max(0)
        shorter = _LONGEST / np.maximum(farthest, _LONGEST)
        weights[some] -= move * shorter
        there -= np.multiply(moved, shorter, out=moved)
        if step > 0 and float(farthest.max()) < _NEAR:
            break
    return there


def _corrected(off: Floats, bend: Floats, along: Floats) -> Floats:
    r"""The Newton step for deviations whose distance from :math:`-K g` is ``off``, at the cells.

    The step is :math:`(I + K H)^{-1}` times that; K is taken to be :math:`\Psi\Psi^\top`, of the modes alone.
    """
    pairs, pressed = _Pairs.of(len(along)), off * bend
    right = np.stack([(pressed * mode).sum(0) for mode in along])
    off -= _mixed(pairs.inverse_times(_hessian(pairs, bend, along), right[:, None])[:, 0], along)
    return off


def _mixed(weights: Floats, along: Floats) -> Floats:
    """Modes times their weights in each context, at the cells."""
    out = weights[0] * along[0]
    for weight, mode in zip(weights[1:], along[1:], strict=False):
        out += weight * mode
    return np.asarray(out)


def _hessian(pairs: _Pairs, bend: Floats, along: Floats) -> Floats:
    """Second derivatives of the log loss by the weights of the modes, shape ``[pairs, contexts]``."""
    pressed = [bend * mode for mode in along[: pairs.size]]
    return np.stack([(pressed[i] * along[j]).sum(0) for i, j in pairs.places])


class _Pairs(NamedTuple):
    """Symmetric matrices of which the pairs ``i <= j`` are given, one matrix per context."""

    size: int
    places: list[tuple[int, int]]

    @classmethod
    def of(cls, size: int) -> _Pairs:
        return cls(size, [(i, j) for i in range(size) for j in range(i, size)])

    def inverse_times(self, pairs: Floats, right: Floats) -> Floats:
        """Inverse of identity plus the matrices ``[pairs, contexts]``, times ``[size, k, contexts]``."""
        matrix, out = np.empty((self.size, self.size, pairs.shape[1])), np.array(right)
        for (i, j), pair in zip(self.places, pairs, strict=True):
            matrix[i, j] = matrix[j, i] = pair
        for i in range(self.size):
            matrix[i, i] += 1
        for i in range(self.size):
            factor = matrix[i, i + 1 :] / matrix[i, i]
            matrix[i + 1 :, i + 1 :] -= factor[:, None] * matrix[i, i + 1 :]
            out[i + 1 :] -= factor[:, None] * out[i]
        for i in reversed(range(self.size)):
            out[i] -= np.einsum("jc,jkc->kc", matrix[i, i + 1 :], out[i + 1 :])
            out[i] /= matrix[i, i]
        return out


def _variance(rows: PaddedRows, bend: Floats, wide: Modes) -> tuple[Singles, Singles]:
    r"""Posterior variance at all knots, ``[contexts, knots]``, by eliminating the rest to first order, and its doubt.

    With modes :math:`\Psi`, rest R and Hessian H, the rest responds to the modes by :math:`B = \Psi^\top H R`, and the
    variance is

    .. math:: \operatorname{diag}(R - R H R) + (\Psi - B)^\top (I + \Psi^\top H \Psi - B H \Psi)^{-1} (\Psi - B).

    The next term, R H R H R, is about as much smaller than R H R as that is than R: its share of the variance is the
    doubt, which is large where a context has far more events than others, or has them elsewhere.
    """
    first, last = rows.span
    modes, rest = wide.modes.astype(np.float32)[:, :, None], wide.rest[first:last].astype(np.float32)
    near = modes[:, first:last]
    both, (diagonal, beside) = _bands(rows, bend)
    pressed = diagonal * near  # H times modes, [modes, knots of the span, contexts]
    pressed[:, :-1] += beside * near[:, 1:]
    pressed[:, 1:] += beside * near[:, :-1]
    left = modes - rest.T @ pressed  # [modes, knots, contexts]
    pairs = _Pairs.of(len(modes))
    hessian = np.stack([np.einsum("nc,nc->c", pressed[i], left[j, first:last]) for i, j in pairs.places])
    unit = np.broadcast_to(np.eye(len(modes))[:, :, None], (len(modes), len(modes), rows.contexts))
    covariance = pairs.inverse_times(hessian, unit).astype(np.float32)
    out = np.concatenate([rest**2, 2 * rest[:-1] * rest[1:]]).T @ both
    every = np.maximum(np.diag(wide.rest), _TINY).astype(np.float32)[:, None]
    next_term = out * out / every
    np.subtract(every, out, out=out)
    for i, one in enumerate(left):  # the product with the covariance, row by row of the upper triangle
        part = covariance[i, i] * one
        for j in range(i + 1, len(left)):
            part += (2 * covariance[i, j]) * left[j]
        part *= one
        out += part
    next_term /= np.maximum(out, _TINY)
    return out.T, next_term.max(0)


def _bands(rows: PaddedRows, bend: Floats) -> tuple[Singles, tuple[Singles, Singles]]:
    """Diagonal and first band of the Hessian of each context, ``[knots of the span, contexts]`` and one less.

    The first array contains both, one after the other.
    """
    right = bend * rows.fraction
    squares = right * rows.fraction
    right -= squares  # of which the sums are those of f (1 - f)
    beside = rows.spread(right).T
    diagonal = rows.spread(bend - 2 * right - squares, squares).T  # of (1 - f)^2, and of f^2 one knot on
    size = len(diagonal)
    both = np.empty((2 * size - 1, rows.contexts), np.float32)
    both[:size], both[size:] = diagonal, beside[:-1]
    return both, (both[:size], both[size:])
