"""The fit of a level of very many contexts, of which no more is kept than what tells them apart. numpy only.

Chunks are fitted as in :mod:`isolayer.fitting.level` and packed at once, by shapes that a sample of the contexts has
taught. When all are fitted they are balanced: unpacked, shifted, and packed for good. What packing means is said in
:mod:`isolayer.fitting.packed`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.level import THREADS, Chunk, LevelFit, Table, balancing_shift, keep_rising
from isolayer.fitting.packed import MOST_SHAPES, TOLERANCE, Packed, PackedLevel, Shapes
from isolayer.fitting.quantised import Quantised

Floats = NDArray[np.float64]

PACKED_FROM = 1 << 22  # knot values of all curves from which a table is packed: 70 MB with variances and weights
_LEVEL_FROM = 4096  # curves of a level below which it is kept whole
_SAMPLE = 2048  # contexts that teach the shapes
_SPREAD = 0.01  # most by which the logarithm of a variance may differ: half a percent of a standard deviation
_EXACT = 5e-6  # most by which what is kept until all are balanced may differ, in logits
_TINY = 1e-300


def is_large(curves: int, knots: int) -> bool:
    """Whether a table of so many curves is packed.

    >>> is_large(1000, 126), is_large(1_000_000, 126)
    (False, True)
    """
    return curves * knots > PACKED_FROM


class Column(NamedTuple):
    """One packed column of a level: its shapes, weights ``[n, shapes]``, and the curves that are whole."""

    shapes: Shapes
    weights: NDArray[np.int32]
    rows: NDArray[np.int64]
    whole: Floats


class Parts(NamedTuple):
    """Levels that are fitted one after the other, coarse to fine, and the table that they make up.

    Args:
        shape: Number of curves and of knots of all levels together.
        values: Packed columns of levels, with their first rows and the parents of their curves.
        dense: Levels that are whole, with their first rows.
    """

    shape: tuple[int, int]
    packed: list[tuple[int, Column, Column, NDArray[np.int32], Quantised]]
    dense: list[tuple[int, Table]]

    def table(self) -> Table:
        """The levels so far as one table; rows of later ones must not be read."""
        values = self._joined(1, np.float64)
        variance = self._joined(2, np.float64)
        largest = np.zeros(self.shape[0], np.float32)
        steps = np.zeros(self.shape, np.uint8)
        parts = [(first, Quantised.of(table.knot_weight)) for first, table in self.dense]
        for first, part in [*parts, *((one[0], one[4]) for one in self.packed)]:
            steps[first : first + len(part)], largest[first : first + len(part)] = part.steps, part.largest
        return Table(values, variance, Quantised(steps, largest))

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
        """Fit one more level, which begins at a row; returns the largest residual."""
        fitted = _Fitted.of(level)
        parent = level.above.parent.astype(np.int32)
        values, variance = fitted.balanced()
        self.packed.append((first, values, variance, parent, Quantised(fitted.steps, fitted.largest)))
        return fitted.residual[0]


def packs(curves: int) -> bool:
    """Whether a level of so many curves is packed, where the table is."""
    return curves >= _LEVEL_FROM


class _Fitted(NamedTuple):
    """Contexts of a level as they are kept until all are fitted: weights of shapes as floats, ``[n, shapes]`` each."""

    level: LevelFit
    sample: tuple[NDArray[np.int64], Chunk]
    shapes: tuple[Shapes, Shapes, Shapes]  # of deviations, and of logarithms of variances and of what remains
    kept: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
    exceptions: dict[int, Floats]  # deviations that the shapes do not give, by context
    steps: NDArray[np.uint8]
    largest: NDArray[np.float32]
    sums: Floats
    residual: list[float]

    @classmethod
    def of(cls, level: LevelFit) -> _Fitted:
        part = level.part
        some = _sample(part.groups, np.bincount(part.group, part.weight, minlength=part.groups))
        kept = np.zeros(part.groups, bool)
        kept[some] = True
        sample = level.prepared()(BinnedRows.sampled(part, kept), level.above.parent[some])
        logs = (np.log(np.maximum(column, _TINY)) for column in (sample.variance, sample.remains))
        deviation = sample.values - level.above.curves[level.above.parent[some]]
        shapes = (_most(deviation), *(_most(column, 12) for column in logs))
        empty = tuple(np.empty((part.groups, len(one.shapes)), np.float32) for one in shapes)
        steps, largest = np.empty((part.groups, part.grid.buckets), np.uint8), np.empty(part.groups, np.float32)
        fitted = cls(level, (some, sample), shapes, empty, {}, steps, largest, np.zeros((4, part.groups)), [])  # type: ignore[arg-type]  # three each
        fitted.residual.append(level.each_chunk(fitted.keep))
        return fitted

    def keep(self, at: slice, chunk: Chunk) -> None:
        """Project a chunk on the shapes."""
        deviation = chunk.values - self.level.above.curves[self.level.above.parent[at]]
        columns = deviation, np.log(np.maximum(chunk.variance, _TINY)), np.log(np.maximum(chunk.remains, _TINY))
        for shapes, out, column in zip(self.shapes, self.kept, columns, strict=True):
            out[at] = (column - shapes.mean) @ shapes.shapes.T
        worst = np.abs(deviation - self.deviation(at)).max(1)
        for place in np.flatnonzero(~(worst <= _EXACT)).tolist():
            self.exceptions[at.start + place] = deviation[place].copy()
        weight = Quantised.of(chunk.knot_weight)
        self.steps[at], self.largest[at], self.sums[:, at] = weight.steps, weight.largest, chunk.sums

    def deviation(self, at: slice) -> Floats:
        """Deviations of a chunk, but for the exceptions."""
        return np.asarray(self.shapes[0].mean + self.kept[0][at].astype(np.float64) @ self.shapes[0].shapes)

    def logs(self, column: int, at: slice) -> Floats:
        """Logarithms of variances (1) or of what remains of the parent (2)."""
        return np.asarray(
            self.shapes[column].mean + self.kept[column][at].astype(np.float64) @ self.shapes[column].shapes
        )

    def balanced(self) -> tuple[Column, Column]:
        """Values and variances after the contexts of each parent have been balanced, packed for good."""
        above = self.level.above
        shift = balancing_shift(self.sums, above.parent, self.level.choice.strength.level)
        some, sample = self.sample
        sampled = self.shifted(sample.values, sample.variance, sample.remains, shift[above.parent[some]])
        values = Packing.of(sampled[0] - above.curves[above.parent[some]], len(self.steps))
        variance = Packing.of(np.log(np.maximum(sampled[1], _TINY)), len(self.steps), _SPREAD)

        def one(first: int) -> None:
            at = slice(first, min(first + self.level.starts.step, len(self.steps)))
            parent, deviation = above.curves[above.parent[at]], self.deviation(at)
            for place in self.exceptions.keys() & range(at.start, at.stop):
                deviation[place - first] = self.exceptions[place]
            before = parent + deviation, np.exp(self.logs(1, at)), np.minimum(np.exp(self.logs(2, at)), 1.0)
            curve, spread = self.shifted(*before, shift[above.parent[at]])
            values.add(first, curve - parent, parent if self.level.least >= 0 else None, curve)
            variance.add(first, np.log(np.maximum(spread, _TINY)), None, np.log(np.maximum(spread, _TINY)))

        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            list(pool.map(one, self.level.starts))
        return values.column(), variance.column()

    def shifted(self, values: Floats, variance: Floats, remains: Floats, shift: Floats) -> tuple[Floats, Floats]:
        """Curves and variances after a shift, one per context."""
        shifts = shift[:, None] * remains
        curve = np.array(values + shifts)
        keep_rising(curve, self.level.least)
        return curve, variance + shifts**2


class Packing(NamedTuple):
    """A column that is packed chunk by chunk."""

    shapes: Shapes
    weights: NDArray[np.int32]
    tolerance: float
    whole: dict[int, Floats]

    @classmethod
    def of(cls, sample: Floats, rows: int, tolerance: float = TOLERANCE) -> Packing:
        """A column of so many rows that are such as those of the sample."""
        shapes = Shapes.of(sample, tolerance)
        return cls(shapes, np.empty((rows, len(shapes.shapes)), np.int32), tolerance, {})

    def add(self, first: int, deviation: Floats, parent: Floats | None, whole: Floats) -> None:
        """Pack some rows; those that cannot be are kept whole."""
        weights, good = self.shapes.pack(deviation, self.tolerance, parent)
        self.weights[first : first + len(weights)] = weights
        for place in np.flatnonzero(~good).tolist():
            self.whole[first + place] = whole[place].copy()

    def column(self) -> Column:
        """The whole column."""
        rows = np.array(sorted(self.whole), np.int64)
        knots = self.shapes.shapes.shape[1]
        whole = np.stack([self.whole[row] for row in rows.tolist()]) if len(rows) else np.empty((0, knots))
        return Column(self.shapes, self.weights, rows, whole)


def _most(sample: Floats, most: int = MOST_SHAPES) -> Shapes:
    shapes = Shapes.of(sample, 0.0)
    return shapes._replace(shapes=shapes.shapes[:most])


def _sample(groups: int, weight: NDArray[Any]) -> NDArray[np.int64]:
    """Contexts of every size: evenly spread over all contexts in the order of their weights."""
    order = np.argsort(weight, kind="stable")
    return np.sort(order[np.linspace(0, groups - 1, min(_SAMPLE, groups)).astype(np.int64)])
