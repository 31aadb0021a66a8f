"""FlatRows: the occupied bins of many small contexts, one after the other. numpy only.

:class:`isolayer.fitting.binned_rows.BinnedRows` pads contexts to a common depth, which suits a few with many bins; here
nothing is padded, and sums run over the bins of each context.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import place_of_bins, ranges
from isolayer.fitting.histogram import Histogram

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class FlatRows:
    """Occupied bins of some contexts, each of which has at least one, in the order of contexts and knots.

    Args:
        part: A histogram without folds.
        starts: First cell of each of its groups, and one past the last cell, shape ``[groups + 1]``.
        contexts: Its groups that are read here, ascending, shape ``[contexts]``.

    Attributes:
        left: Knot at or left of the mean logit of each cell, shape ``[cells]``.
        fraction: How far beyond it, in steps.
        offset: What to add to the interpolated value, as in ``BinnedRows``.
        weight: Weight of the cell.
        positive: Weight of its positives.
    """

    def __init__(self, part: Histogram, starts: Ints, contexts: Ints) -> None:
        begin = starts[contexts]
        self.size = starts[contexts + 1] - begin
        self.first = np.cumsum(self.size) - self.size
        self.contexts, self.knots = len(contexts), part.grid.buckets
        cells = ranges(begin, self.size)
        self.weight, self.positive = part.weight[cells], part.positive[cells]
        place = place_of_bins(part.logit[cells] / self.weight, part.bin[cells], part.grid)
        self.left, self.fraction, self.offset = place
        rate = part.negative_rate[cells]
        if (rate != 1).any():
            self.offset = self.offset - np.log(rate)

    @cached_property
    def span(self) -> tuple[int, int]:
        """First knot that any cell reads, and one past the last."""
        return int(self.left.min()), int(self.left.max()) + 2

    @cached_property
    def scale(self) -> Floats:
        """Weight of each context, at least 1: what residuals are measured by."""
        return np.asarray(np.maximum(self.sums(self.weight), 1.0))

    def sums(self, amount: NDArray[Any]) -> NDArray[Any]:
        """Amounts of the cells ``[..., cells]``, added up by context: shape ``[..., contexts]``."""
        return np.asarray(np.add.reduceat(amount, self.first, axis=-1))

    def largest(self, amount: Floats) -> Floats:
        """The largest amount of the cells of each context, shape ``[contexts]``."""
        return np.asarray(np.maximum.reduceat(amount, self.first))

    def each(self, amount: NDArray[Any]) -> NDArray[Any]:
        """Amounts of contexts ``[..., contexts]`` at their cells: shape ``[..., cells]``."""
        return np.repeat(amount, self.size, axis=-1)

    def between(self, tables: Floats) -> Floats:
        """Functions that all contexts share ``[..., knots]``, at the cells: shape ``[..., cells]``."""
        rise = np.diff(tables, axis=-1).take(self.left, axis=-1)
        rise *= self.fraction
        rise += tables.take(self.left, axis=-1)
        return rise

    def read(self, values: NDArray[Any], first: int = 0) -> Floats:
        """Functions of each context ``[contexts, knots from first on]``, at its cells: shape ``[cells]``."""
        at = self._spot_of(values.shape[1], first)
        flat = values.reshape(-1)
        below = flat.take(at)
        out = flat.take(at + 1)
        out -= below
        out = out * self.fraction
        out += below
        return out

    def spread(self, left: Floats, right: Floats | None = None) -> Floats:
        """Amounts of the cells at their left and right knots, shape ``[contexts, knots of the span]``."""
        first, last = self.span
        width = last - first
        starts, spots = self._spots
        out = np.zeros(self.contexts * width)
        out[spots] = np.add.reduceat(left, starts)
        if right is not None:
            beyond = np.zeros_like(out)
            beyond[spots] = np.add.reduceat(right, starts)
            out[1:] += beyond[:-1]  # no cell has its left knot in the last column
        return out.reshape(self.contexts, width)

    def _spot_of(self, width: int, first: int) -> Ints:
        """Place of each cell's left knot in a flat table of so many columns, of which the first is a knot."""
        return np.asarray(self.each(np.arange(self.contexts) * width - first) + self.left)

    @cached_property
    def _spots(self) -> tuple[Ints, Ints]:
        """First cell of each run of cells with the same context and left knot, and the run's place in the span."""
        first, last = self.span
        at = self._spot_of(last - first, first)
        starts = np.flatnonzero(np.diff(at, prepend=-1))
        return starts, at[starts]
