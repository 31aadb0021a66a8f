r"""Compressed tables of very many curves: most curves are their parent plus a weighted sum of a few shared shapes.

A million curves at 126 knots take a gigabyte, although most were fitted to twenty rows and are hardly more than a line.
In a packed table the curve in row r is

.. math:: v_r = v_{\mathrm{parent}(r)} + \bar d + u \sum_k n_{rk}\,s_k

with the mean deviation :math:`\bar d` and the shapes :math:`s_k` of its level (principal components of deviations) and
integers :math:`n_{rk}`, of which only those that its rows determine are not 0. A curve that the shapes do not represent
well enough, or that would no longer be monotone, is stored whole. :class:`Packed` and :class:`Quantised` are read like
arrays ``[curves, knots]``: by rows, by rows and knots, or as a whole. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.mixtures import ShapesByKnot
from isolayer.fitting.quantised import item_of, whole_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Matrix = Any  # an array ``[curves, knots]``, or an object that is read like one: `Packed`, `Quantised`

TOLERANCE = 2.5e-5  # largest error of the deviation of a packed curve, in logits; with its ancestors below 1e-4
UNIT = 2.0**-17  # unit of the weights of shapes
MOST_SHAPES = 48
_STEPS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48)  # numbers of shapes of a curve
_ENOUGH = 0.98  # share of the sample that the shapes of a level must represent
MOST_UNPACKED = 1 << 24  # tables with up to this many knot values are unpacked when first read: 134 MB
_RISING = 1e-12  # least rise of a packed monotone curve, larger than rounding errors
_DOUBTFUL = 1e-4  # rises above this are certain in single precision
_CHUNK = 1 << 13  # curves decoded together


class Shapes(NamedTuple):
    """What the curves of a level have in common.

    Args:
        mean: Their mean deviation, shape ``[knots]``.
        shapes: Orthonormal shapes, the most common first, shape ``[shapes, knots]``.
    """

    mean: Floats
    shapes: Floats

    @classmethod
    def of(cls, sample: Floats, tolerance: float = TOLERANCE, also: Floats | None = None) -> Shapes:
        """Shapes for curves such as those of a sample, shape ``[curves, knots]``: enough for nearly all of them.

        Args:
            sample: The curves.
            tolerance: Largest error of a value.
            also: Other curves from which shapes are learned, which need not be represented.

        >>> line = np.outer(np.arange(3.0), np.ones(4))
        >>> Shapes.of(line).shapes.round(2).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
        """
        every = sample if also is None else np.concatenate([sample, also])
        mean = every.mean(0)
        centred = every - mean
        _, vectors = np.linalg.eigh(centred.T @ centred)
        shapes = np.ascontiguousarray(vectors[:, ::-1][:, :MOST_SHAPES].T)
        shapes *= np.where(shapes.sum(1) < 0, -1.0, 1.0)[:, None]
        found = cls(mean, shapes)
        for most in _STEPS:
            some = cls(mean, shapes[:most])
            if most >= len(shapes) or np.mean(some.pack(sample, tolerance)[1]) >= _ENOUGH:
                return some
        return found

    def unpack(self, weights: NDArray[np.int32]) -> Floats:
        """Deviations of weights ``[n, shapes]``: shape ``[n, knots]``."""
        return np.asarray(self.mean + (weights * UNIT) @ self.shapes)

    def pack(
        self, deviation: Floats, tolerance: float = TOLERANCE, parent: Floats | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The fewest weights that represent each curve within the tolerance, and whether there are any.

        Args:
            deviation: Deviation from the parent, shape ``[n, knots]``.
            tolerance: Largest error of a value.
            parent: If given, curves must rise after this is added, shape ``[n, knots]`` or ``[1, knots]``.

        Returns:
            Weights ``[n, shapes]``, and whether they are good, ``[n]``.
        """
        rest = deviation - self.mean
        exact = np.rint(rest @ self.shapes.T / UNIT)
        weights = np.clip(exact, -(2**31) + 1, 2**31 - 1).astype(np.int32)
        out, left = np.zeros_like(weights), np.arange(len(rest))
        good = np.zeros(len(rest), bool)
        for most in _STEPS[: np.searchsorted(_STEPS, len(self.shapes)) + 1]:
            some = weights[left, :most]
            near = (some * UNIT) @ self.shapes[:most]
            fits = np.abs(rest[left] - near).max(1, initial=0.0) <= tolerance
            if parent is not None and fits.any():
                near += self.mean + (parent if len(parent) == 1 else parent[left])
                fits &= (np.diff(near, axis=1) >= _RISING).all(1)
            out[left[fits], :most] = some[fits]
            good[left[fits]] = True
            left = left[~fits]
            if not len(left):
                break
        return out, good

    def rounded(self, weights: Floats, most: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The fewest integer weights that change no curve by more than allowed, and whether there are any.

        The change is bounded by the Cauchy-Schwarz inequality, and computed only if the bound is too large.

        Args:
            weights: Weights as real numbers, shape ``[n, shapes]``.
            most: Largest allowed change of a value of each curve, shape ``[n]``.

        >>> Shapes(np.zeros(2), np.eye(2)).rounded(np.array([[1.0, 1e-9]]), np.array([1e-5]))[0].tolist()
        [[131072, 0]]
        """
        exact = np.clip(np.rint(weights / UNIT), -(2**31) + 1, 2**31 - 1)
        lost, dropped = np.cumsum((weights - exact * UNIT) ** 2, axis=1), np.cumsum(weights[:, ::-1] ** 2, axis=1)
        peaks = np.sqrt(np.cumsum(self.shapes[::-1] ** 2, axis=0).max(1))[::-1]  # of the shapes from the k-th on
        used, left = np.full(len(weights), -1), np.arange(len(weights))
        count = len(self.shapes)
        for few in [few for few in _STEPS if few < count] + [count]:
            change = peaks[0] * np.sqrt(lost[left, few - 1])
            if few < count:
                change += peaks[few] * np.sqrt(dropped[left, count - few - 1])
            fits = change <= most[left]
            used[left[fits]] = few
            left = left[~fits]
        change = np.abs((weights[left] - exact[left] * UNIT) @ self.shapes).max(1, initial=0.0)
        used[left[change <= most[left]]] = count
        exact[np.arange(count) >= used[:, None]] = 0
        return exact.astype(np.int32), used > 0

    def rises(self, weights: NDArray[np.int32], curves: Matrix, parents: Ints) -> NDArray[np.bool_]:
        """Whether each curve with these weights and this parent among some curves certainly rises, shape ``[n]``."""
        above = np.asarray(curves[parents]) + self.mean
        rise = weights.astype(np.float32) @ (np.diff(self.shapes, axis=1) * UNIT).astype(np.float32)
        rise += np.diff(above, axis=1).astype(np.float32)
        good = np.asarray(rise.min(1) > _DOUBTFUL)
        doubtful = np.flatnonzero(~good)
        near = (weights[doubtful] * UNIT) @ self.shapes + (above if len(above) == 1 else above[doubtful])
        good[doubtful] = (np.diff(near, axis=1) >= _RISING).all(1)
        return good


def one_or_all(numbers: Ints) -> Ints:
    """Only the first of some numbers, if all are the same.

    >>> one_or_all(np.array([3, 3])).tolist(), one_or_all(np.array([3, 4])).tolist()
    ([3], [3, 4])
    """
    return numbers[:1] if (numbers == numbers[:1]).all() else numbers


class PackedLevel(NamedTuple):
    """The curves of one level.

    Args:
        first: Row of the first of them in the table.
        shapes: Their mean deviation and shapes.
        weights: Weight of each shape in each curve, in units of ``UNIT``, shape ``[n, shapes]``.
        parent: Row of the curve that each is added to, shape ``[n]``; None without parents.
    """

    first: int
    shapes: Shapes
    weights: NDArray[np.int32]
    parent: NDArray[np.int32] | None

    @property
    def last(self) -> int:
        """One past the row of the last."""
        return self.first + len(self.weights)


class Flat(NamedTuple):
    r"""Packed curves for engines: at a fraction f of bucket j, the root's value plus
    :math:`\sum_k n_{rk} (s_{jk} + f t_{jk})`.

    Args:
        root: Index of the whole curve that each curve is added to, shape ``[curves]``.
        weights: Weights of shapes, shape ``[curves, shapes]``.
        start: Shapes at the left knots of the buckets, shape ``[knots - 1, shapes]``.
        rise: Their rises within the buckets.
    """

    root: NDArray[np.int32]
    weights: NDArray[np.int32]
    start: Floats
    rise: Floats


@dataclass(frozen=True, eq=False)
class Packed:
    """A compressed table of curves that is read like an array ``[curves, knots]``.

    Args:
        shape: Number of curves and of knots.
        levels: Packed levels, coarse to fine.
        rows: Rows of the curves that are stored whole, ascending, including those of levels that are not packed.
        whole: Their values, shape ``[len(rows), knots]``.
        log: Whether logarithms are packed; reading then returns the numbers themselves.

    >>> packed = Packed((1, 2), (), np.array([0]), np.array([[1.0, 2.0]]))
    >>> packed[0].tolist(), packed.read(np.array([0]), np.array([0]), np.array([0.5])).tolist()
    ([1.0, 2.0], [1.5])
    """

    shape: tuple[int, int]
    levels: tuple[PackedLevel, ...]
    rows: Ints
    whole: Floats
    log: bool = False

    dtype = np.dtype(np.float64)
    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        sizes = (level.weights.nbytes + level.shapes.shapes.nbytes for level in self.levels)
        return self.whole.nbytes + 4 * self.shape[0] + sum(sizes)

    @cached_property
    def _place(self) -> NDArray[np.int32]:
        """Index of each row among the whole ones, -1 if it is packed; after the last, the index of a row of zeros."""
        place = np.full(self.shape[0] + 1, -1, np.int32)
        place[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        place[-1] = len(self.rows)
        return place

    @cached_property
    def _is_whole(self) -> NDArray[np.bool_]:
        """Whether each row is stored whole: a quarter of the memory of `_place`, and so faster to read."""
        return np.asarray(self._place >= 0)

    @cached_property
    def _padded(self) -> Floats:
        return np.concatenate([self.whole, np.zeros((1, self.shape[1]))])

    def decode(self, rows: Ints) -> Floats:
        """Whole curves of some rows, shape ``[n, knots]``."""
        out, at = np.zeros((len(rows), self.shape[1])), rows.astype(np.int64)
        for level in reversed(self.levels):
            mine = self._of(level, at)
            own = at[mine] - level.first
            out[mine] += level.shapes.unpack(level.weights.take(own, axis=0))
            at[mine] = self._above(level, own)
        out += self._padded[self._place[at]]
        return np.exp(out) if self.log else out

    def read(self, rows: Ints, left: Ints, fraction: Floats) -> Floats:
        """Value of each curve at a fraction of the way from one knot to the next, all of shape ``[n]``."""
        if self.shape[0] * self.shape[1] <= MOST_UNPACKED:
            flat, place = self._unpacked.reshape(-1), rows * np.int64(self.shape[1]) + left
            start = flat.take(place)
            return np.asarray(start + fraction * (flat.take(place + 1) - start))
        if self.log:
            every, each = self.decode(rows), np.arange(len(left))
            below, above = every[each, left], every[each, left + 1]
            return np.asarray(below + fraction * (above - below))
        out, at = np.zeros(len(rows)), rows.astype(np.int64)
        for level, (shapes, alone) in zip(reversed(self.levels), self._by_knot, strict=True):
            inside = (at >= level.first) & (at < level.last)
            mine: Any = slice(None) if inside.all() else np.flatnonzero(inside)
            rows, before = at[mine], out[mine]
            found = shapes.read(level.weights, rows - level.first, left[mine], fraction[mine])
            found += before
            whole = np.flatnonzero(self._is_whole.take(rows))  # few rows, so removing them first would cost more
            found[whole] = before[whole]
            if alone and len(rows) == len(at):  # only the whole curves have yet to be read
                found[whole] += self._read_whole(rows[whole], left[whole], fraction[whole])
                return found
            over = np.full_like(rows, self.shape[0]) if alone else self._above(level, rows - level.first)
            over[whole] = rows[whole]
            out[mine], at[mine] = found, over
        rest: Any = np.flatnonzero(at < self.shape[0])
        rest = slice(None) if len(rest) == len(at) else rest
        out[rest] += self._read_whole(at[rest], left[rest], fraction[rest])
        return out

    def _read_whole(self, rows: Ints, left: Ints, fraction: Floats) -> Floats:
        """The same for curves that are stored whole."""
        flat, place = self.whole.reshape(-1), self._place.take(rows).astype(np.int64) * self.shape[1] + left
        start = flat.take(place)
        return np.asarray(start + fraction * (flat.take(place + 1) - start))

    def _of(self, level: PackedLevel, rows: Ints) -> Any:
        """Indices of the rows that are packed in a level, or all of them."""
        mine = (rows >= level.first) & (rows < level.last) & (self._place.take(rows) < 0)
        return slice(None) if mine.all() else np.flatnonzero(mine)

    def _above(self, level: PackedLevel, own: Ints) -> Ints:
        """Row of the curve that each of some curves of a level is added to; one past the last if there is none."""
        if level.parent is None:
            return np.full(len(own), self.shape[0])
        return level.parent.take(own).astype(np.int64)

    @cached_property
    def _unpacked(self) -> Floats:
        """All curves, unpacked, for tables that are small enough."""
        return np.asarray(whole_of(self, np.float64))

    @cached_property
    def _by_knot(self) -> tuple[tuple[ShapesByKnot, bool], ...]:
        """Shapes of the levels, fine to coarse, by knot, and whether their mean already includes the parent's curve.

        It does if all curves of the level have one parent, which is stored whole.
        """
        found = list[tuple[ShapesByKnot, bool]]()
        for level in reversed(self.levels):
            mean, above = level.shapes.mean, np.zeros(0, np.int64)
            if level.parent is not None:
                above = one_or_all(level.parent.astype(np.int64))
            alone = len(above) == 1 and bool(self._place[above[0]] >= 0)
            if alone:
                mean = mean + self.whole[self._place[above[0]]]
            found.append((ShapesByKnot.of(level.shapes.shapes, mean, UNIT), alone))
        return tuple(found)

    def __getitem__(self, index: Any) -> Any:
        return item_of(self, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return whole_of(self, dtype)

    def flat(self) -> Flat:
        """The same table without levels: every curve is a whole curve plus shapes of all levels.

        >>> packed = Packed((1, 2), (), np.array([0]), np.array([[1.0, 2.0]]))
        >>> packed.flat().root.tolist(), packed.flat().weights.shape
        ([0], (1, 0))
        """
        at, tables = np.arange(self.shape[0]), list[Floats]()
        weights = list[NDArray[np.int32]]()
        for level in reversed(self.levels):
            mine = self._of(level, at)
            own = at[mine] - level.first
            columns = np.zeros((self.shape[0], len(level.shapes.shapes) + 1), np.int32)
            columns[mine, :-1], columns[mine, -1] = level.weights.take(own, axis=0), 1
            weights.append(columns)  # the last is the mean, of which there is one
            tables.append(np.concatenate([level.shapes.shapes * UNIT, level.shapes.mean[None]]).T)
            at[mine] = self._above(level, own)
        table = np.concatenate([np.empty((self.shape[1], 0)), *tables], axis=1)
        return Flat(
            self._place[at],
            np.concatenate([np.empty((self.shape[0], 0), np.int32), *weights], axis=1),
            table[:-1],
            np.diff(table, axis=0),
        )

    def check(self, monotone: bool) -> NDArray[np.bool_]:
        """Whether each curve is finite and, if ``monotone``, never falls; shape ``[curves]``.

        Rises are computed in single precision, which is fast, and again in double precision if the result is uncertain.
        """
        parts = [self.whole, *(part for level in self.levels for part in level.shapes)]
        if not all(np.isfinite(part).all() for part in parts):
            return np.zeros(self.shape[0], bool)
        good = np.ones(self.shape[0], bool)
        if not monotone:
            return good
        for level in self.levels:
            rises = np.diff(level.shapes.shapes, axis=1).astype(np.float32) * np.float32(UNIT)
            above = np.diff(self._padded + (level.shapes.mean), axis=1).astype(np.float32)
            for first in range(0, len(level.weights), _CHUNK):
                some = level.weights[first : first + _CHUNK]
                rise = some.astype(np.float32) @ rises
                parents = np.full(1, self.shape[0]) if level.parent is None else level.parent[first : first + _CHUNK]
                known = self._place[parents]
                if (known >= 0).all() and (known == known[0]).all():
                    rise += above[known[0]]
                    at = level.first + first
                    good[at : at + len(some)] = rise.min(1) > _DOUBTFUL
                else:
                    good[level.first + first : level.first + first + len(some)] = False
        good[self.rows] = False
        doubtful = np.flatnonzero(~good)
        for first in range(0, len(doubtful), _CHUNK):
            rows = doubtful[first : first + _CHUNK]
            good[rows] = (np.diff(self.decode(rows), axis=1) >= 0).all(1)
        return good

    def plus(self, shift: float) -> Packed:
        """The same curves, all shifted; packed curves follow their root."""
        return replace(self, whole=self.whole + shift)
