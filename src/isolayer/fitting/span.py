"""Span: the knots that rows depend on, and the knots beyond them, which only the prior determines.

Solving for the span alone is exact and cheaper: the curve on the knots beyond it is a fixed linear combination of its
two nearest values on the span. numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands, factorise, inverse_bands, solve
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.prior import Deviation, Posterior, Prior

Floats = NDArray[np.float64]


class Tail(NamedTuple):
    """Knots beyond all cells, which only the prior determines.

    Args:
        follow: Their deviations are this matrix, ``[knots, 2]``, times those of the two nearest knots of the span.
        own: Their variance given those two, ``[knots, 1]``.
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
        link = np.zeros((size, 2))  # how the penalty links the tail to the two nearest knots, in ascending order
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
    """The knots that rows depend on.

    Args:
        first: The first of them.
        last: One past the last.
        prior: The prior on them, after minimising over the knots beyond.
        below: The knots before them.
        above: The knots after them.
    """

    first: int
    last: int
    prior: Prior
    below: Tail
    above: Tail

    @classmethod
    def of(cls, rows: BinnedRows, prior: Prior) -> Span:
        """The span of some rows under a prior."""
        first, last = rows.span()
        penalty = prior.curve
        below, press_below = Tail.of(penalty.between(0, first), penalty, first, -1)
        above, press_above = Tail.of(penalty.between(last, rows.knots), penalty, last - 1, 1)
        inside = Bands(*(band.copy() for band in penalty.between(first, last)))
        for at, press in ((0, press_below), (last - first - 2, press_above)):
            inside.diagonal[at : at + 2, 0] += np.diag(press)
            inside.first[at] += press[0, 1]
        return cls(first, last, prior.between(first, last, inside), below, above)

    def extended(self, deviation: Deviation) -> Deviation:
        """Deviations at all knots from those on the span."""
        return Deviation(deviation.line, self._beyond(deviation.curve))

    def variance(self, posterior: Posterior, prior: Prior) -> Floats:
        """Variances at all knots, ``[knots, contexts]``, from the posterior on the span."""
        diagonal, beside, _ = inverse_bands(posterior.curve)
        below = self.below.variance(diagonal[0], beside[0], diagonal[1])
        above = self.above.variance(diagonal[-2], beside[-1], diagonal[-1])
        left = prior.basis[:, :, None] - self._beyond(posterior.answer)
        line = np.einsum("nic,ijc,njc->nc", left, posterior.line, left, optimize=True)
        return np.asarray(np.concatenate([below, diagonal, above]) + line)

    def _beyond(self, curve: Floats) -> Floats:
        """Values at all knots from those on the span, ``[knots, ...]``."""
        below, above = (
            np.tensordot(tail.follow, at, 1) for tail, at in zip(self[3:], (curve[:2], curve[-2:]), strict=True)
        )
        return np.concatenate([below, curve, above])
