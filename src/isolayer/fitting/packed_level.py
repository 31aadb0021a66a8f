"""The fit of a level of very many contexts, whose curves are compressed while they are fitted. numpy only.

Chunks are fitted as in :mod:`isolayer.fitting.level` and immediately projected onto shapes that were learned from a
sample of the contexts. When all are fitted they are balanced, which is linear in the weights of the shapes, and the
weights are rounded. Packing is explained in :mod:`isolayer.fitting.packed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import BinnedRows, place_of_bins
from isolayer.fitting.chunk import Chunk, Place
from isolayer.fitting.level import LevelFit, Table, balancing_shift, keep_rising, workers
from isolayer.fitting.memory import give_back
from isolayer.fitting.packed import TOLERANCE, Packed, PackedLevel, Shapes, one_or_all
from isolayer.fitting.quantised import Quantised

Floats = NDArray[np.float64]

PACKED_FROM = 1 << 22  # tables with more knot values are packed: 70 MB with variances and weights
_LEVEL_FROM = 4096  # levels with fewer curves are stored whole
_SAMPLE = 2048  # contexts from which the shapes are learned
_SPREAD = 0.01  # largest error of the logarithm of a variance: half a percent of a standard deviation
_LEFT = 0.02  # usual shift of contexts when all are fitted
_MOST_WHOLE = 0.05  # largest share of the curves that must be stored whole after a shift
_SLIGHT = 1e-3  # variances are computed again if squares of shifts change by more
_TINY, _LEAST = 1e-300, 1e-37  # least variances, in double and in single precision


def is_large(curves: int, knots: int) -> bool:
    """Whether a table with this many curves is packed.

    >>> is_large(1000, 126), is_large(1_000_000, 126)
    (False, True)
    """
    return curves * knots > PACKED_FROM


class Column(NamedTuple):
    """One packed column of a level: its shapes, weights ``[n, shapes]``, and the curves that are stored whole."""

    shapes: Shapes
    weights: NDArray[np.int32]
    rows: NDArray[np.int64]
    whole: Floats


class Parts(NamedTuple):
    """Levels that are fitted one after the other, coarse to fine, and the table that they form.

    Args:
        shape: Number of curves and of knots of all levels together.
        packed: Packed columns of levels, values and variances, with their first rows and the parents of their curves.
        dense: Levels that are stored whole, with their first rows.
        weight: Weights of the knots of all levels.
    """

    shape: tuple[int, int]
    packed: list[tuple[int, Column, Column, NDArray[np.int32]]]
    dense: list[tuple[int, Table]]
    weight: Quantised

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Parts:
        """No levels yet, for a table with this many curves and knots."""
        return cls(shape, [], [], Quantised(np.zeros(shape, np.uint8), np.zeros(shape[0], np.float32)))

    def table(self) -> Table:
        """The levels so far as one table; rows of later ones must not be read."""
        values = self._joined(1, np.float64)
        variance = self._joined(2, np.float64)
        for first, table in self.dense:
            part, at = Quantised.of(table.knot_weight), slice(first, first + len(table.knot_weight))
            self.weight.steps[at], self.weight.largest[at] = part.steps, part.largest
        return Table(values, variance, self.weight)

    def _joined(self, column: int, dtype: Any) -> Packed:
        log = column == 2
        levels = list[PackedLevel]()
        rows, whole = list[NDArray[np.int64]](), list[Floats]()
        for first, table in self.dense:
            own = np.asarray(table[column - 1], dtype)
            rows.append(first + np.arange(len(own)))
            whole.append(np.log(np.maximum(own, _TINY)) if log else own)
        for one in self.packed:
            part: Column = one[column]  # type: ignore[assignment]  # place 1 or 2
            levels.append(PackedLevel(one[0], part.shapes, part.weights, None if log else one[3]))
            rows.append(one[0] + part.rows)
            whole.append(part.whole)
        places = np.concatenate(rows)
        order = np.argsort(places)
        return Packed(self.shape, tuple(levels), places[order], np.concatenate(whole)[order], log)

    def add(self, first: int, level: LevelFit) -> float:
        """Fit one more level, whose first row is ``first``. Returns the largest residual."""
        fitted = _Fitted.of(level, np.zeros(int(level.above.parent.max(initial=0)) + 1))
        give_back()
        residual, shift = level.each_chunk(fitted.keep), fitted.shift()
        if not fitted.suits(shift):
            fitted = _Fitted.of(level, shift)
            level.each_chunk(fitted.keep)
        give_back()
        values, variance = fitted.balanced(shift)
        del fitted
        give_back()
        self.packed.append((first, values, variance, level.above.parent.astype(np.int32)))
        mine = slice(first, first + level.part.groups)
        _count_weights(level, Quantised(self.weight.steps[mine], self.weight.largest[mine]))
        give_back()
        return residual


def packs(curves: int) -> bool:
    """Whether a level with this many curves is packed, if the table is."""
    return curves >= _LEVEL_FROM


class _Fitted(NamedTuple):
    """Fitted contexts of a level, stored until all are fitted and the shifts that balance them are known.

    A shift is linear in the curves, so it is enough to store the weights of shapes of each curve, and of the share of
    its parent in it.

    Args:
        level: The level.
        guess: Shift of the contexts of each parent before they were stored, shape ``[parents]``.
        values: Deviations from the parents' curves.
        remains: Share of the parents in the curves, in the same shapes.
        variance: Logarithms of variances.
        sums: See :func:`balancing_shift`.
    """

    level: LevelFit
    guess: Floats
    values: _Kept
    remains: _Kept
    variance: _Kept
    sums: Floats

    @classmethod
    def of(cls, level: LevelFit, guess: Floats) -> _Fitted:
        """A level before its fit, with shapes that are learned from a sample of its contexts."""
        part, above = level.part, level.above
        weight = np.bincount(part.group, part.weight, minlength=part.groups)
        some = np.zeros(part.groups, bool)
        some[_sample(part.groups, weight)] = True
        parents = above.parent[some]
        sample = level.prepared()(BinnedRows.sampled(part, some), parents)
        curve, spread = _shifted(sample, guess[parents], level.least)
        deviation = curve - above.curves[parents]
        shapes = Shapes.of(deviation, also=_spanned(deviation, sample.remains))
        values, variance = (_Kept.of(one, part.groups) for one in (shapes, Shapes.of(spread, _SPREAD)))
        remains = _Kept.of(shapes._replace(mean=np.zeros(part.grid.buckets)), part.groups)
        return cls(level, guess, values, remains, variance, np.zeros((4, part.groups)))

    def keep(self, at: Place, chunk: Chunk) -> None:
        """Store a fitted chunk."""
        above = self.level.above
        parents = above.parent[at]
        curve, spread = _shifted(chunk, self.guess[parents], self.level.least)
        curve -= above.curves[one_or_all(parents)]
        self.values.keep(at, curve)
        self.remains.keep(at, chunk.remains)
        self.variance.keep(at, spread)
        self.sums[:, at] = chunk.sums

    def shift(self) -> Floats:
        """The total shift of the contexts of each parent, shape ``[parents]``."""
        return balancing_shift(self.sums, self.level.above.parent, self.level.choice.strength.level)

    def suits(self, shift: Floats) -> bool:
        """Whether nearly all contexts can still be shifted by this much."""
        far = np.abs(shift - self.guess)[self.level.above.parent]
        lost = self.values.error + far * self.remains.error > TOLERANCE
        return bool(lost.mean() <= _MOST_WHOLE and np.abs(shift**2 - self.guess**2).max(initial=0.0) <= _SLIGHT)

    def balanced(self, shift: Floats) -> tuple[Column, Column]:
        """Packed values and variances after the contexts of each parent have been balanced."""
        groups, more = self.level.part.groups, shift - self.guess
        whole = np.zeros((2, groups), bool)  # which curves and variances are not packed

        def one(first: int) -> None:
            at = slice(first, min(first + self.level.starts.step, groups))
            whole[0, at] = ~self._pack_curves(at, more[self.level.above.parent[at]])
            whole[1, at] = ~self.variance.pack(at, _SPREAD - self.variance.error[at])

        with workers(groups) as pool:
            list(pool.map(one, self.level.starts))
        self.remains.weights.resize((0, 0), refcheck=False)  # returns their memory: they are part of the curves now
        return self._columns(shift, whole)

    def _pack_curves(self, at: slice, more: Floats) -> NDArray[np.bool_]:
        """Shift and pack some curves. Returns which could be packed."""
        kept, above = self.values, self.level.above
        kept.weights[at] += more.astype(np.float32)[:, None] * self.remains.weights[at]
        good = kept.pack(at, TOLERANCE - kept.error[at] - np.abs(more) * self.remains.error[at])
        if self.level.least >= 0:
            good &= kept.shapes.rises(kept.weights[at].view(np.int32), above.curves, one_or_all(above.parent[at]))
        return good

    def _columns(self, shift: Floats, whole: NDArray[np.bool_]) -> tuple[Column, Column]:
        """The packed columns; curves that are stored whole in either are fitted again."""
        rows = np.flatnonzero(whole.any(0))
        found = np.empty((2, len(rows), self.level.part.grid.buckets))

        def keep(at: Place, chunk: Chunk) -> None:
            numbers = np.arange(self.level.part.groups)[at]
            place = np.searchsorted(rows, numbers)
            found[:, place] = _shifted(chunk, shift[self.level.above.parent[numbers]], self.level.least)

        self.level.each_chunk(keep, rows)
        values, variance = (
            Column(kept.shapes, kept.weights.view(np.int32), rows[mine], table[mine])
            for kept, mine, table in zip((self.values, self.variance), whole[:, rows], found, strict=True)
        )
        return values, variance


def _count_weights(level: LevelFit, out: Quantised) -> None:
    """Count the weight of the rows around each knot of all contexts of a level."""
    part, knots = level.part, level.part.grid.buckets
    starts = np.searchsorted(part.group, np.arange(part.groups + 1))

    def one(first: int) -> None:
        last = min(first + level.starts.step, part.groups)
        cells, size = slice(starts[first], starts[last]), last - first
        weight = part.weight[cells]
        left, fraction, _ = place_of_bins(part.logit[cells] / weight, part.bin[cells], part.grid)
        at, right = left * size + (part.group[cells] - first), weight * fraction
        sums = np.bincount(at, weight - right, minlength=knots * size)  # [knots, contexts]
        sums[size:] += np.bincount(at, right, minlength=knots * size)[:-size]
        found = Quantised.of(sums.reshape(knots, size).T.astype(np.float32))
        out.steps[first:last], out.largest[first:last] = found.steps, found.largest

    with workers(part.groups) as pool:
        list(pool.map(one, level.starts))


class _Kept(NamedTuple):
    """A column while the contexts of a level are fitted.

    Args:
        shapes: The mean and shapes of its rows.
        weights: Weight of each shape in each row, shape ``[rows, shapes]``; at the end integers in the same memory.
        error: Largest error of shapes and weights for each row, shape ``[rows]``.
    """

    shapes: Shapes
    weights: NDArray[np.float32]
    error: NDArray[np.float32]

    @classmethod
    def of(cls, shapes: Shapes, rows: int) -> _Kept:
        """An empty column with this many rows."""
        return cls(shapes, np.empty((rows, len(shapes.shapes)), np.float32), np.empty(rows, np.float32))

    def keep(self, at: Place, column: NDArray[Any]) -> None:
        """Store some rows."""
        shapes, mean = self.shapes.shapes.astype(np.float32), self.shapes.mean[:, None]
        if column.dtype == np.float32:
            rest = column.T - mean.astype(np.float32)  # [knots, rows], as columns are in memory
        else:
            rest = (column.T - mean).astype(np.float32)
        weights = shapes @ rest
        rest -= shapes.T @ weights
        self.weights[at], self.error[at] = weights.T, np.abs(rest, out=rest).max(0)

    def pack(self, at: slice, most: NDArray[Any]) -> NDArray[np.bool_]:
        """Round the weights of some rows. Returns whether each changes by at most ``most``."""
        packed, good = self.shapes.rounded(self.weights[at].astype(np.float64), most)
        self.weights[at].view(np.int32)[:] = packed
        return good


def _shifted(chunk: Chunk, shift: Floats, least: float) -> tuple[Floats, NDArray[Any]]:
    """Shifted curves, one per context, with the least rise restored, and logarithms of their variances."""
    if not shift.any():
        spread = np.maximum(chunk.variance, np.asarray(_LEAST, chunk.variance.dtype))
        return chunk.values.copy("K"), np.log(spread, out=spread)
    shifts = shift[:, None].astype(chunk.remains.dtype) * chunk.remains
    curve = chunk.values + shifts
    if np.isfinite(least):
        low = np.flatnonzero(np.diff(curve, axis=1).min(1) < least)
        raised = curve[low]
        keep_rising(raised, least)
        curve[low] = raised
    shifts **= 2
    shifts += chunk.variance
    return curve, np.log(np.maximum(shifts, _LEAST, out=shifts), out=shifts)


def _spanned(deviation: Floats, remains: Floats) -> Floats:
    """Shares of the parents, scaled to the size of the remaining shift, around the mean of the deviations."""
    return np.asarray(deviation.mean(0) + _LEFT * (remains - remains.mean(0)))


def _sample(groups: int, weight: NDArray[Any]) -> NDArray[np.int64]:
    """Contexts of every size: evenly spread over all contexts in the order of their weights."""
    order = np.argsort(weight, kind="stable")
    return np.sort(order[np.linspace(0, groups - 1, min(_SAMPLE, groups)).astype(np.int64)])
