r"""The fit of very many small contexts: in the few directions in which their rows can move a curve, then once in all.

With K the prior's covariance of the deviation and H the Hessian of the log loss, the optimum is
:math:`d = -K\,g(d)`, g being the gradient of the log loss at the knots. A context of twenty rows moves along one or two
of the eigenvectors of H K, the *modes*; along the others g hardly depends on d. So d is found in two steps: Newton's
method for a few coefficients of modes, and :math:`d = -K\,g` for all the rest, which is exact to second order. The same
split gives the posterior variance. What is left of the optimality conditions is measured at the end, and whoever calls
this fits the contexts for which it is too large, or whose curve would fall, by :mod:`isolayer.fitting.solver`.
numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands
from isolayer.fitting.flat_rows import FlatRows
from isolayer.fitting.interior import TOLERANCE
from isolayer.fitting.prior import Prior

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

SIZES = (2, 4, 8)  # numbers of modes: the first for nearly all contexts, the others for larger ones
SMALL = 3e-3  # most information beyond the modes, times prior variance: its square is the error of a variance
_STEPS = 8  # Newton steps for the modes alone
_ROUNDS, _FEW = 3, 0.004  # times that all directions are looked at, and share of the contexts for which it is not done
_NEAR = 1e-2  # length of a step after which the rest is looked at
_LONGEST = 1.5  # as in isolayer.fitting.interior


class Modes(NamedTuple):
    """A prior covariance, split into its part along some modes and the rest.

    Args:
        modes: Modes, uncorrelated under the prior and of variance 1, shape ``[modes, knots]``.
        covariance: The whole covariance, shape ``[knots, knots]``.
        rest: What the modes leave of it.
        beyond: Information times variance in the most informed direction of the rest, per unit of weight.
    """

    modes: Floats
    covariance: Floats
    rest: Floats
    beyond: float

    @classmethod
    def of(cls, prior: Prior, hessian: Bands, count: int) -> Modes:
        """The modes of a prior in which rows with this Hessian, a batch of one, tell most.

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
        deviation: From the centre, shape ``[contexts, knots]``.
        variance: Its posterior variance.
        residual: Largest violation of the optimality conditions, as in :class:`isolayer.fitting.solver.Fit`.
    """

    deviation: Floats
    variance: Singles
    residual: Floats


def fit_reduced(rows: FlatRows, centre: Floats, own: Modes, wide: Modes) -> Reduced:
    """Fit contexts without constraints.

    Args:
        rows: The data.
        centre: Where each cell's prior is centred, on the logit scale, shape ``[cells]``.
        own: The prior.
        wide: The prior under which the variance is computed.
    """
    along, (first, last) = rows.between(own.modes), rows.span
    weights, rest = _along_modes(rows, centre, along, own)
    for _ in range(_ROUNDS):
        slope, _ = _derivatives(rows, centre + _mixed(rows, weights, along) + rest)
        deviation = -_knots(rows, slope) @ own.covariance[first:last]
        there = rows.read(deviation)
        after, bend = _derivatives(rows, centre + there)
        residual = rows.sums(np.abs(after - slope)) / rows.scale
        if np.count_nonzero(residual > TOLERANCE) <= _FEW * rows.contexts:
            break
        weights = -_inner(rows, slope, along)
        rest = there - _mixed(rows, weights, along)
        weights = weights - _newton(rows, after, bend, along, weights)
    return Reduced(deviation, _variance(rows, bend, wide), residual)


def _derivatives(rows: FlatRows, logit: Floats) -> tuple[Floats, Floats]:
    """First and second derivative of the log loss by the logit of each cell, which is overwritten."""
    np.clip(logit, -700, 700, out=logit)
    np.exp(np.negative(logit, out=logit), out=logit)
    logit += 1
    prob = np.reciprocal(logit, out=logit)
    bend = rows.weight * prob
    slope = bend - rows.positive
    bend *= np.subtract(1, prob, out=prob)
    return slope, bend


def _mixed(rows: FlatRows, weights: Floats, along: Floats) -> Floats:
    """Modes times the weights that the contexts give them, at the cells."""
    out = rows.each(weights[0])
    out *= along[0]
    for weight, mode in zip(weights[1:], along[1:], strict=True):
        part = rows.each(weight)
        part *= mode
        out += part
    return out


def _knots(rows: FlatRows, amount: Floats) -> Floats:
    """Amounts of the cells, shared between the two knots around each, shape ``[contexts, knots of the span]``."""
    right = amount * rows.fraction
    return rows.spread(amount - right, right)


def _along_modes(rows: FlatRows, centre: Floats, along: Floats, own: Modes) -> tuple[Floats, Floats]:
    """Weights of the modes, shape ``[modes, contexts]``, and the rest of the deviation at the cells."""
    first, last = rows.span
    beyond = own.rest[first:last, first:last]
    weights, rest, near = np.zeros((len(along), rows.contexts)), np.zeros_like(centre), False
    for step in range(_STEPS):
        some = slice(1 if step < 2 else None)  # most of the way is along the first
        slope, bend = _derivatives(rows, centre + _mixed(rows, weights[some], along[some]) + rest)
        move = _newton(rows, slope, bend, along[some], weights[some])
        moved = _mixed(rows, move, along[some])
        farthest = rows.largest(np.abs(moved, out=moved))
        weights[some] -= move * (_LONGEST / np.maximum(farthest, _LONGEST))
        if near:
            break
        near = step >= 2 and float(farthest.max()) < _NEAR
        if near:
            rest = rows.read(-_knots(rows, slope) @ beyond, first)
    return weights, rest


def _inner(rows: FlatRows, amount: Floats, along: Floats) -> Floats:
    """Products of amounts of the cells with the modes, shape ``[modes, contexts]``."""
    return np.stack([rows.sums(amount * mode) for mode in along])


def _newton(rows: FlatRows, slope: Floats, bend: Floats, along: Floats, weights: Floats) -> Floats:
    """By how much Newton's method lowers the weights of the modes."""
    pairs = _Pairs.of(len(along))
    hessian = np.stack([rows.sums(bend * along[i] * along[j]) for i, j in pairs.places])
    return pairs.inverse_times(hessian, (_inner(rows, slope, along) + weights)[:, None])[:, 0]


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


def _variance(rows: FlatRows, bend: Floats, wide: Modes) -> Singles:
    r"""Posterior variance at all knots, ``[contexts, knots]``, by eliminating the rest, which is known to first order.

    With modes :math:`\Psi`, rest R and Hessian H, the rest answers the modes by :math:`B = \Psi^\top H R`, and

    .. math:: \operatorname{diag}(R - R H R) + (\Psi - B)^\top (I + \Psi^\top H \Psi - B H \Psi)^{-1} (\Psi - B).
    """
    first, last = rows.span
    modes, rest = wide.modes[:, first:last].astype(np.float32), wide.rest[first:last].astype(np.float32)
    diagonal, beside = _bands(rows, bend)
    pressed = diagonal * modes[:, None]  # H times modes, [modes, contexts, knots of the span]
    pressed[:, :, :-1] += beside * modes[:, None, 1:]
    pressed[:, :, 1:] += beside * modes[:, None, :-1]
    answer = pressed @ rest
    pairs = _Pairs.of(len(modes))
    near = np.subtract(modes[:, None], answer[:, :, first:last])
    hessian = np.stack([np.einsum("cn,cn->c", pressed[i], near[j]) for i, j in pairs.places])
    unit = np.broadcast_to(np.eye(len(modes))[:, :, None], (len(modes), len(modes), rows.contexts))
    covariance = pairs.inverse_times(hessian, unit).astype(np.float32)
    left = np.subtract(wide.modes[:, None].astype(np.float32), answer, out=answer)
    out = np.diag(wide.rest).astype(np.float32) - diagonal @ rest**2
    out -= beside @ (2 * rest[:-1] * rest[1:])
    for i, j in pairs.places:
        part = left[i] * left[j]
        part *= (covariance[i, j] * (1 if i == j else 2))[:, None]
        out += part
    return out


def _bands(rows: FlatRows, bend: Floats) -> tuple[Singles, Singles]:
    """Diagonal and first band of the Hessian of each context, ``[contexts, knots of the span]`` and one less."""
    right = bend * rows.fraction
    both = right * rows.fraction
    beside = rows.spread(right - both)  # sums of f (1 - f)
    diagonal = rows.spread(bend - 2 * right + both, both)  # of (1 - f)^2, and of f^2 one knot on
    return diagonal.astype(np.float32), beside[:, :-1].astype(np.float32)
