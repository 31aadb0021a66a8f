"""BinnedRows: the occupied bins of a histogram in the layout of the solver, for many contexts at once. numpy only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands
from isolayer.fitting.histogram import BINS_PER_STEP, Histogram
from isolayer.grid import Grid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROWS_PER_EVENT, _FEW_ROWS = 20, 100  # see `residual_scale`


@dataclass(frozen=True)
class BinnedRows:
    """Occupied bins of some contexts; the logit of each is ``v[left] (1 - f) + v[left + 1] f + offset``.

    Bins are grouped by (context, left knot), one column per group, and padded with bins of weight 0 to arrays of shape
    ``[depth, spots]``, so that summing over axis 0 adds up the bins of each group, here called a spot.

    Args:
        context: Context of each spot, shape ``[spots]``, in ``0 .. contexts - 1``, in order.
        left: Knot at or left of the mean logits of its cells, in ``0 .. knots - 2``, in order within a context.
        fraction: Distance from that knot in steps, in [0, 1].
        offset: What is added to the interpolated value: the distance of rows outside the grid, where curves have slope
            1, and minus the logarithm of the share of negatives that was kept.
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
    def of(cls, histogram: Histogram, first: int = 0, last: int | None = None) -> BinnedRows:
        """BinnedRows of the groups ``first .. last - 1`` of a histogram without folds."""
        last = histogram.groups if last is None else last
        a, b = np.searchsorted(histogram.group, [first, last])
        return cls._some(histogram, slice(a, b), histogram.group[a:b] - first, last - first)

    @classmethod
    def sampled(cls, histogram: Histogram, kept: NDArray[np.bool_]) -> BinnedRows:
        """BinnedRows of the groups that are kept, ``[groups]``, renumbered."""
        cells = np.flatnonzero(kept[histogram.group])
        return cls._some(histogram, cells, (np.cumsum(kept) - 1)[histogram.group[cells]], int(kept.sum()))

    @classmethod
    def picked(cls, histogram: Histogram, starts: Ints, groups: Ints) -> BinnedRows:
        """BinnedRows of some groups, ascending, of a histogram whose cells begin at ``starts``, ``[groups + 1]``."""
        size = starts[groups + 1] - starts[groups]
        context = np.repeat(np.arange(len(groups)), size)
        return cls._some(histogram, ranges(starts[groups], size), context, len(groups))

    @classmethod
    def _some(cls, histogram: Histogram, cells: slice | Ints, context: Ints, contexts: int) -> BinnedRows:
        weight, grid = histogram.weight[cells], histogram.grid
        left, fraction, offset = place_of_bins(histogram.logit[cells] / weight, histogram.bin[cells], grid)
        offset -= np.log(histogram.negative_rate[cells])
        return cls._packed(context, left, (fraction, offset, weight, histogram.positive[cells]), contexts, grid.buckets)

    @classmethod
    def _packed(cls, context: Ints, left: Ints, columns: tuple[Floats, ...], contexts: int, knots: int) -> BinnedRows:
        """Bins in a flat list, sorted by context and left knot, arranged into spots."""
        key = context * knots + left
        new = np.diff(key, prepend=-1) != 0
        starts = np.flatnonzero(new)
        spot = np.cumsum(new) - 1
        rank = np.arange(len(key)) - starts[spot] if len(key) else key
        place = rank * len(starts) + spot
        depth = int(rank.max(initial=0)) + 1
        packed = np.zeros((len(columns), depth * len(starts)))
        for row, column in zip(packed, columns, strict=True):
            row[place] = column
        fraction, offset, weight, positive = packed.reshape(len(columns), depth, -1)
        return cls(context[starts], left[starts], fraction, offset, weight, positive, contexts, knots)

    def only(self, kept: NDArray[np.bool_]) -> BinnedRows:
        """BinnedRows of some contexts, renumbered."""
        inside = kept[self.context]
        return BinnedRows(
            context=(np.cumsum(kept) - 1)[self.context[inside]],
            left=self.left[inside],
            fraction=self.fraction[:, inside],
            offset=self.offset[:, inside],
            weight=self.weight[:, inside],
            positive=self.positive[:, inside],
            contexts=int(kept.sum()),
            knots=self.knots,
        )

    def thinned(self, stride: int) -> tuple[int, BinnedRows]:
        """The same data on every ``stride``-th knot, only where there are rows, and the first knot that is kept."""
        first, last = int(self.left.min()), int(self.left.max()) + 1
        knots = max(-(-(last - first) // stride) + 1, 4)
        place = ((self.left - first + self.fraction) / stride).T  # [spots, depth]: the order of context and left knot
        left = np.minimum(place.astype(np.int64), knots - 2)
        real = self.weight.T > 0
        columns = (place - left, *(column.T for column in (self.offset, self.weight, self.positive)))
        context = np.broadcast_to(self.context[:, None], real.shape)
        kept = tuple(column[real] for column in columns)
        return first, self._packed(context[real], left[real], kept, self.contexts, knots)

    def span(self) -> tuple[int, int]:
        """First knot that any cell reads, and one past the last; at least four."""
        first = int(self.left.min(initial=self.knots - 2))
        last = max(int(self.left.max(initial=0)) + 2, first + 4)
        return max(min(first, self.knots - 4), 0), min(last, self.knots)

    def within(self, first: int, last: int) -> BinnedRows:
        """The same cells on the knots ``first .. last - 1``, which must be all that they read."""
        return replace(self, left=self.left - first, knots=last - first)

    def spread(self, amount: Floats) -> Floats:
        """Amounts of the cells, divided between the two knots around each: shape ``[knots, contexts]``."""
        right = (amount * self.fraction).sum(0)
        out, beyond = self._at_left(amount.sum(0) - right), self._at_left(right)
        out[1:] += beyond[:-1]
        return out

    def _at_left(self, amount: Floats) -> Floats:
        """Amounts of the spots ``[spots]`` at their left knots, shape ``[knots, contexts]``."""
        out = np.zeros(self.knots * self.contexts)
        out[self._at] = amount
        return out.reshape(self.knots, self.contexts)

    @cached_property
    def total(self) -> Floats:
        """Weight of each context, shape ``[contexts]``."""
        return self.by_context(self.weight)

    @cached_property
    def scale(self) -> Floats:
        """To what the residuals of each context are relative, shape ``[contexts]``: see :func:`residual_scale`."""
        return residual_scale(self.total, self.by_context(self.positive))

    def by_context(self, amount: Floats) -> Floats:
        """Amounts of the cells ``[depth, spots]``, added up by context: shape ``[contexts]``."""
        return np.bincount(self.context, amount.sum(0), minlength=self.contexts).astype(np.float64, copy=False)

    @cached_property
    def touched(self) -> Floats:
        """1 if a cell depends on the knot, otherwise 0: shape ``[knots, contexts]``."""
        return (self.spread((self.weight > 0).astype(np.float64)) > 0).astype(np.float64)

    @cached_property
    def _at(self) -> Ints:
        return self.left * self.contexts + self.context

    def read(self, values: Floats) -> Floats:
        """Logit of each cell under knot values ``[knots, contexts]``: shape ``[depth, spots]``."""
        flat, at = values.reshape(-1), self._at
        below = flat.take(at)
        out = self.fraction * (flat.take(at + self.contexts) - below)
        out += below
        out += self.offset
        return out

    def derivatives(self, values: Floats) -> tuple[Floats, Bands]:
        """Gradient ``[knots, contexts]`` and Hessian of the log loss at knot values ``[knots, contexts]``."""
        prob = 1 / (1 + np.exp(-np.clip(self.read(values), -700, 700)))
        bend = self.weight * prob
        slope = bend - self.positive
        bend *= 1 - prob
        beyond = bend * self.fraction
        right, squares = beyond.sum(0), (beyond * self.fraction).sum(0)
        cross = self._at_left(right - squares)  # sums of f (1 - f)
        diagonal = self._at_left(bend.sum(0) - 2 * right + squares)  # of (1 - f)^2
        diagonal[1:] += self._at_left(squares)[:-1]  # and of f^2, one knot on
        return self.spread(slope), Bands(diagonal, cross[:-1], np.zeros((self.knots - 2, 1)))


def residual_scale(weight: Floats, positive: Floats) -> Floats:
    """To what the residuals of contexts with these weights are relative, so that no curve is far from its optimum.

    A residual moves a curve by itself times the curve's variance. The variance falls with the events, the positives or
    the negatives, whichever are fewer, and not with the rows; and where a context has few of its rows, in the tails, it
    does not fall with all rows at all. So a row counts only up to a number of rows per event, and many rows as a root.

    >>> residual_scale(np.array([0.5, 50.0, 1e6, 1e6]), np.array([0.1, 20.0, 5e5, 1.0])).tolist()
    [1.0, 50.0, 10000.0, 20.0]
    """
    events = np.minimum(positive, weight - positive)
    counted = np.maximum(np.minimum(weight, _ROWS_PER_EVENT * events), 1.0)
    return np.asarray(np.minimum(counted, np.sqrt(_FEW_ROWS * counted)))


def place_of_bins(mean: Floats, at: NDArray[np.int32], grid: Grid) -> tuple[Ints, Floats, Floats]:
    """Left knot, fraction and offset of bins with given mean logits."""
    bucket = np.clip((at.astype(np.int64) - 1) // BINS_PER_STEP, 0, grid.buckets - 2)
    inside = np.clip(mean, grid.lower, grid.upper)
    fraction = np.clip((inside - grid.lower) / grid.step - bucket, 0.0, 1.0)
    return bucket, fraction, mean - inside


def ranges(begin: Ints, size: Ints) -> Ints | slice:
    """The concatenated numbers of some ranges; a slice if there are no gaps.

    >>> ranges(np.array([2, 7]), np.array([2, 1])).tolist(), ranges(np.array([2, 4]), np.array([2, 1]))
    ([2, 3, 7], slice(2, 5, None))
    """
    total = int(size.sum())
    if len(begin) and begin[-1] + size[-1] - begin[0] == total:
        return slice(int(begin[0]), int(begin[0]) + total)
    return np.asarray(np.repeat(begin - np.cumsum(size) + size, size) + np.arange(total))
