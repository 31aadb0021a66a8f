"""The contexts of a level that are small enough for :mod:`isolayer.fitting.reduced`, and their served curves.

The results are those of :mod:`isolayer.fitting.solver`, for a tenth of the work; contexts for which they would differ
are left to that solver. numpy only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.chunk import Above, Chunk
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.interior import TOLERANCE
from isolayer.fitting.packed import one_or_all
from isolayer.fitting.padded_rows import PaddedRows
from isolayer.fitting.prior import Prior
from isolayer.fitting.reduced import DOUBT, SIZES, SMALL, Modes, fit_reduced

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SAMPLE = 512  # contexts from whose mean information the modes are chosen


class SmallContexts(NamedTuple):
    """What the fits of small contexts have in common.

    Args:
        part: The rows of the level.
        starts: First cell of each context, and one past the last, shape ``[contexts + 1]``.
        above: The level above.
        shared: The deviation that contexts share, shape ``[knots]``.
        least: Least rise from one knot to the next.
        free: Variance of the wide prior at each knot, shape ``[knots]``.
        modes: For each number of modes, the prior and the wide one.
    """

    part: Histogram
    starts: Ints
    above: Above
    shared: Floats
    least: float
    free: Floats
    modes: tuple[tuple[Modes, Modes], ...]

    @classmethod
    def of(
        cls,
        part: Histogram,
        starts: Ints,
        above: Above,
        shared: Floats,
        priors: tuple[Prior, Prior],
        least: float,
    ) -> SmallContexts:
        """Choose the modes from a sample of the contexts of a level."""
        some = np.unique(np.linspace(0, part.groups - 1, _SAMPLE).astype(np.int64))
        rows = BinnedRows.picked(part, starts, some)
        _, hessian = rows.derivatives(np.ascontiguousarray((above.curves[above.parent[some]] + shared).T))
        total = max(float(rows.total.sum()), 1e-300)
        mean = Bands(*(band.sum(1, keepdims=True) / total for band in hessian))
        sizes = [size for size in SIZES if size < part.grid.buckets]
        modes = tuple((Modes.of(priors[0], mean, size), Modes.of(priors[1], mean, size)) for size in sizes)
        return cls(part, starts, above, shared, least, priors[1].variance()[:, 0], modes)

    def by_modes(self, contexts: Ints) -> list[Ints]:
        """Which of some contexts are small enough for each number of modes; larger contexts are left out."""
        weight = np.bincount(self.part.group, self.part.weight, minlength=self.part.groups)[contexts]
        left, out = np.diff(self.starts)[contexts] > 0, list[Ints]()
        for own, wide in self.modes:
            some = left & (weight * max(own.beyond, wide.beyond) <= SMALL)
            out.append(contexts[some])
            left &= ~some
        return out

    def fitted(self, contexts: Ints, modes: int) -> tuple[Chunk, NDArray[np.bool_]]:
        """Fit some contexts. Also returns for which of them the fit is valid, shape ``[contexts]``.

        Args:
            contexts: Ascending, each with rows.
            modes: Index of the number of modes.
        """
        rows, parents = PaddedRows(self.part, self.starts, contexts), self.above.parent[contexts]
        parents = one_or_all(parents)
        parent = np.asarray(self.above.curves[parents])
        before = (rows.between(parent[0]) if len(parent) == 1 else rows.read(parent)) + rows.offset
        own, wide = self.modes[modes]
        values, variance, residual, doubt = fit_reduced(rows, before + rows.between(self.shared), own, wide)
        values += parent + self.shared
        good = (residual <= TOLERANCE) & (doubt <= DOUBT)
        if np.isfinite(self.least):
            good &= np.diff(values, axis=1).min(1) >= self.least
        left: NDArray[Any] = variance / self.free.astype(np.float32)
        np.minimum(left, 1.0, out=left)
        squares = left * left
        moved = squares * self.shared.astype(np.float32)
        values -= moved  # to second order, the mean of the posterior's rates
        squares *= np.asarray(self.above.variance[parents], np.float32)
        variance += squares
        variance += np.multiply(moved, moved, out=moved)
        sums = _expected(rows, before, values, left)
        worst = float(residual[good].max(initial=0.0))
        return Chunk(values, variance, lambda: _knot_weight(rows), left, sums, worst), good


def _knot_weight(rows: PaddedRows) -> NDArray[np.float32]:
    """Weight of the rows around each knot, shape ``[contexts, knots]``."""
    out = np.zeros((rows.knots, rows.contexts), np.float32).T
    out[:, slice(*rows.span)] = rows.shared(rows.weight)
    return out


def _expected(rows: PaddedRows, before: Floats, served: Floats, left: NDArray[Any]) -> Floats:
    """Sums by context, shape ``[4, contexts]``: see :func:`isolayer.fitting.level.balancing_shift`."""
    parents, prob = (1 / (1 + np.exp(-np.clip(x, -700, 700))) for x in (before, rows.read(served) + rows.offset))
    now = rows.weight * prob
    information = now * (1 - prob)
    rise = information * rows.read(left)
    return np.stack([amount.sum(0) for amount in (rows.weight * parents, now, rise, information)])
