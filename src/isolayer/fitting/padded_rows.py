"""PaddedRows: the occupied bins of many small contexts of nearly the same size, in padded arrays. numpy only.

Cell i of every context is in row i of arrays ``[depth, contexts]``, so that operations on all cells, and sums over the
cells of a context, run over long rows. :class:`isolayer.fitting.binned_rows.BinnedRows` is for contexts of any size.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import place_of_bins, residual_scale
from isolayer.fitting.histogram import Histogram

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PaddedRows:
    """Occupied bins of some contexts, each with at least one bin, padded with bins of weight 0.

    Tables of functions of the contexts are ``[contexts, knots]``, and stored knot by knot.

    Args:
        part: A histogram without folds.
        starts: First cell of each of its groups, and one past the last cell, shape ``[groups + 1]``.
        contexts: Its groups that are read here, ascending, shape ``[contexts]``.

    Attributes:
        left: Knot at or to the left of the mean logit of each cell, shape ``[depth, contexts]``, like the following.
        fraction: Distance from that knot, in steps.
        offset: What is added to the interpolated value, as in ``BinnedRows``.
        weight: Weight of the cell.
        positive: Weight of its positives.
    """

    def __init__(self, part: Histogram, starts: Ints, contexts: Ints) -> None:
        begin, size = starts[contexts], starts[contexts + 1] - starts[contexts]
        self.contexts, self.knots = len(contexts), part.grid.buckets
        depth = np.arange(int(size.max()))[:, None]
        cells = begin + np.minimum(depth, size - 1)
        weight, self.positive = part.weight.take(cells), part.positive.take(cells)
        mean = part.logit.take(cells)
        mean /= weight
        self.left, self.fraction, self.offset = place_of_bins(mean, part.bin.take(cells), part.grid)
        if part.negative_rate.strides[0] or part.negative_rate[0] != 1:  # a rate that all cells share is stored once
            self.offset -= np.log(part.negative_rate[cells])
        if int(size.min()) < len(depth):
            beyond = depth >= size
            weight[beyond] = self.positive[beyond] = 0.0
        self.weight = weight

    @cached_property
    def span(self) -> tuple[int, int]:
        """First knot that any cell reads, and one past the last."""
        return int(self.left.min()), int(self.left.max()) + 2

    @cached_property
    def scale(self) -> Floats:
        """To what the residuals of each context are relative, shape ``[contexts]``."""
        return residual_scale(self.weight.sum(0), self.positive.sum(0))

    def between(self, tables: Floats) -> Floats:
        """Functions that all contexts share ``[..., knots]``, at the cells: shape ``[..., depth, contexts]``."""
        rise = np.diff(tables, axis=-1).take(self.left, axis=-1)
        rise *= self.fraction
        rise += tables.take(self.left, axis=-1)
        return rise

    def read(self, values: NDArray[Any], first: int = 0) -> Floats:
        """Functions of each context ``[contexts, knots from first on]``, at its cells: shape ``[depth, contexts]``."""
        flat, at = values.T.reshape(-1), self._at
        if first != self.span[0]:
            at = at + (self.span[0] - first) * self.contexts
        below = flat.take(at)
        out = flat[self.contexts :].take(at)
        out -= below
        out = out * self.fraction
        out += below
        return out

    def spread(self, left: Floats, right: Floats | None = None) -> Floats:
        """Amounts of the cells at their left and right knots, shape ``[contexts, knots of the span]``."""
        size = (self.span[1] - self.span[0]) * self.contexts
        at = self._at.reshape(-1)
        out: Floats = np.bincount(at, left.reshape(-1), minlength=size).astype(np.float64, copy=False)
        if right is not None:  # no cell has its left knot in the last column
            out[self.contexts :] += np.bincount(at, right.reshape(-1), minlength=size)[: -self.contexts]
        return out.reshape(-1, self.contexts).T

    def shared(self, amount: Floats) -> Floats:
        """Amounts of the cells, each divided between the two knots around it; see :meth:`spread`."""
        right = amount * self.fraction
        return self.spread(amount - right, right)

    @cached_property
    def _at(self) -> Ints:
        """Index of each cell's left knot in a table of the knots of the span."""
        return np.asarray((self.left - self.span[0]) * self.contexts + np.arange(self.contexts))
