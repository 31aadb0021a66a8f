"""Runs: rows that arrive in blocks are sorted block by block, and at the end summed by context and bin in parallel.

If nearly every row has its own cell, as with a million contexts, summing with a hash table is slow: every row is a
cache miss. Sorting integers that contain the cell and the index of a row is several times as fast, first block by block
as they arrive, then by ranges of cells. numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.adding import sort_cells
from isolayer.fitting.histogram import Histogram, bins
from isolayer.grid import Grid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_KINDS = 8  # bins from -8 on are negative, for rows that cannot be used
_MOST_KEYS = 1 << 62
_PART = 1 << 18  # approximate number of rows that are sorted together at the end
_SAMPLED = 1 << 10  # every this many keys are sampled to find ranges of about that many rows


class Packing(NamedTuple):
    """Packs the values of several integer columns into one integer, in the same order.

    Args:
        low: The least value of each column.
        size: How many values each may have.

    >>> packing = Packing.of([np.array([3, 5]), np.array([7, 6])])
    >>> packing.pack([np.array([3, 5]), np.array([7, 6])]).tolist()
    [1, 4]
    >>> [column.tolist() for column in packing.unpack(np.array([1, 4]))]
    [[3, 5], [7, 6]]
    """

    low: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def of(cls, columns: Sequence[NDArray[Any]]) -> Packing:
        """The packing for the values of some columns, none of them empty."""
        low = tuple(int(column.min()) for column in columns)
        return cls(low, tuple(int(column.max()) - least + 1 for column, least in zip(columns, low, strict=True)))

    def joined(self, other: Packing) -> Packing:
        """The packing for the values of both."""
        low = tuple(map(min, self.low, other.low))
        ends = (map(sum, zip(one.low, one.size, strict=True)) for one in (self, other))
        return Packing(low, tuple(max(two) - least for least, *two in zip(low, *ends, strict=True)))

    @property
    def keys(self) -> int:
        """Number of possible packed values."""
        return math.prod(self.size)

    def pack(self, columns: Sequence[NDArray[Any]]) -> Ints:
        """One number per row."""
        out = np.zeros(len(columns[0]), np.int64)
        for column, low, size in zip(columns, self.low, self.size, strict=True):
            out *= size
            out += column
            out -= low
        return out

    def unpack(self, key: Ints) -> list[Ints]:
        """The values of the columns."""
        out = list[Ints]()
        for low, size in zip(reversed(self.low), reversed(self.size), strict=True):
            key, rest = np.divmod(key, size)
            out.insert(0, rest + low)
        return out


class Run(NamedTuple):
    """Rows of a block, or sums of rows, sorted by their contexts and bins.

    Args:
        packing: The packing of contexts and bins into keys.
        key: Keys, ascending, shape ``[n]``.
        rows: Number of rows of each entry; None if each is one row.
        positive: Labels, or their sums.
        logit: Logits, or their sums.
    """

    packing: Packing
    key: NDArray[np.integer[Any]]
    rows: Floats | None
    positive: NDArray[Any]
    logit: Floats

    @classmethod
    def of(cls, contexts: Sequence[NDArray[Any]], at: NDArray[Any], label: Floats, logit: Floats, grid: Grid) -> Run:
        """Sort the rows of a block, at least one.

        Args:
            contexts: Columns of whole numbers.
            at: Bin of each row; negative if it cannot be used.
            label: Its label.
            logit: Its logit.
            grid: Where the knots, and so the bins, are.
        """
        packing = Packing.of(contexts)
        packing = Packing((*packing.low, -_KINDS), (*packing.size, bins(grid) + _KINDS))
        if packing.keys > _MOST_KEYS:
            raise OverflowError("keys of more than 62 bits")
        key = packing.pack([*contexts, at])
        order = sort_cells(key, packing.keys)
        key = key.astype(np.uint32) if packing.keys <= 1 << 32 else key
        return cls(packing, key, None, _narrow(label).take(order), logit.take(order))

    @property
    def distinct(self) -> int:
        """Number of cells."""
        return int(np.count_nonzero(self.key[1:] != self.key[:-1])) + 1

    def under(self, packing: Packing) -> Run:
        """The same run with the keys of another packing."""
        if packing == self.packing:
            return self
        key = packing.pack(self.packing.unpack(self.key.astype(np.int64, copy=False)))
        return self._replace(packing=packing, key=key.astype(np.uint32) if packing.keys <= 1 << 32 else key)


def _narrow(label: Floats) -> NDArray[Any]:
    """Labels as bytes, if they are 0 and 1."""
    with np.errstate(invalid="ignore"):  # labels that cannot be used may be anything
        narrow = label.astype(np.int8)
    return narrow if (narrow == label).all() else label


class _Sums(NamedTuple):
    """Sums of all cells, in arrays with an entry for every row: part by part, with gaps."""

    key: Ints
    rows: Floats
    positive: Floats
    logit: Floats


def joined(runs: list[Run], pool: Executor) -> Run:
    """All rows of some runs, summed by their contexts and bins.

    Args:
        runs: Runs; they are removed from the list.
        pool: Threads.
    """
    packing = runs[0].packing
    for run in runs:
        packing = packing.joined(run.packing)
    if packing.keys > _MOST_KEYS:
        raise OverflowError("keys of more than 62 bits")
    runs[:] = pool.map(lambda run: run.under(packing), runs)
    ends = _ranges(runs, packing)
    first = np.append(0, np.cumsum(np.diff(ends, axis=1).sum(0)))
    sums = _Sums(np.empty(first[-1], np.int64), *(np.empty(first[-1]) for _ in range(3)))
    cells = list(
        pool.map(lambda part: _add_up(runs, ends[:, part : part + 2], sums, int(first[part])), range(len(first) - 1))
    )
    runs.clear()
    places = list(zip(first.tolist(), cells, strict=False))
    key, count, positive, logit = pool.map(lambda column: _without_gaps(column, places), sums)
    return Run(packing, key, count, positive, logit)


def _ranges(runs: Sequence[Run], packing: Packing) -> Ints:
    """Where ranges of keys begin and end in each run, shape ``[runs, ranges + 1]``; no context is in two of them."""
    some = np.sort(np.concatenate([run.key[::_SAMPLED] for run in runs]))
    cuts = some.astype(np.int64)[:: max(_PART // _SAMPLED, 1)][1:]
    cuts = np.unique(cuts - cuts % packing.size[-1])
    return np.stack(
        [np.concatenate([[0], np.searchsorted(run.key, cuts.astype(run.key.dtype)), [len(run.key)]]) for run in runs]
    )


def _add_up(runs: Sequence[Run], ends: Ints, sums: _Sums, first: int) -> int:
    """Sum one range of all runs into the entries from ``first`` on. Returns the number of cells."""
    parts = [(run, slice(a, b)) for run, (a, b) in zip(runs, ends.tolist(), strict=True) if a < b]
    if not parts:
        return 0
    key = np.concatenate([run.key[at] for run, at in parts]).astype(np.int64, copy=False)
    key -= (low := int(key.min()))
    order = sort_cells(key, int(key.max()) + 1)
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    to = slice(first, first + len(starts))
    np.add(key[starts], low, out=sums.key[to])
    for name in ("positive", "logit"):
        column = np.concatenate([getattr(run, name)[at] for run, at in parts]).take(order)
        np.add.reduceat(column.astype(np.float64, copy=False), starts, out=getattr(sums, name)[to])
    if all(run.rows is None for run, _ in parts):
        sums.rows[to] = np.diff(starts, append=len(key))
    else:
        ones = [np.ones(at.stop - at.start) if run.rows is None else run.rows[at] for run, at in parts]
        np.add.reduceat(np.concatenate(ones).take(order), starts, out=sums.rows[to])
    return len(starts)


def _without_gaps(column: NDArray[Any], places: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """A column with only some ranges of entries, each given by its first index and its length."""
    at = 0
    for first, number in places:
        column[at : at + number] = column[first : first + number]
        at += number
    column.resize(at, refcheck=False)  # returns the memory at its end
    return column


def histogram_of_run(
    run: Run, contexts: tuple[str, ...], grid: Grid, rate: float, pool: Executor
) -> tuple[Histogram, Ints, Floats]:
    """The histogram of summed rows, and bins and counts of rows that cannot be used, which are not in it.

    Args:
        run: What :func:`joined` made.
        contexts: Names of the context columns.
        grid: Where the knots, and so the bins, are.
        rate: Share of the negatives that was kept.
        pool: Threads.
    """
    size, key = run.packing.size[-1], run.key.astype(np.int64, copy=False)
    at = np.empty(len(key), np.int32)
    starts = np.zeros(len(key), bool)

    def split(part: slice) -> None:
        group = key[part] // size
        np.subtract(key[part], group * size, out=at[part], casting="unsafe")
        key[part] = group

    in_parts(split, len(key), pool)
    at -= _KINDS
    bad = np.flatnonzero(at < 0)
    kinds, number = at[bad].astype(np.int64), run.rows[bad] if run.rows is not None else np.ones(len(bad))
    sums = [
        np.ones(len(key)) if run.rows is None else run.rows,
        run.positive.astype(np.float64, copy=False),
        run.logit,
    ]
    if len(bad):
        good = at >= 0
        key, at, starts = key[good], at[good], starts[good]
        sums = [column[good] for column in sums]
    starts[:1] = True
    np.not_equal(key[1:], key[:-1], out=starts[1:])
    places = Packing(run.packing.low[:-1], run.packing.size[:-1]).unpack(key[starts])
    group = _numbered(starts, key, pool)
    fold, rates = np.broadcast_to(np.zeros(1, np.int8), len(key)), np.broadcast_to(np.full(1, rate), len(key))
    count, positive, logit = sums
    keys = tuple(places)
    return Histogram(grid, contexts, keys, group, fold, at, rates, count, count, count, positive, logit), kinds, number


def _numbered(starts: NDArray[np.bool_], out: Ints, pool: Executor) -> Ints:
    """Number of the group of each entry, given where groups start, in parts, because numpy would convert them all."""
    before = np.cumsum([np.count_nonzero(starts[first : first + _PART]) for first in range(0, len(starts), _PART)])

    def number(part: slice) -> None:
        np.cumsum(starts[part], out=out[part])
        out[part] += before[part.start // _PART] - out[part][-1] - 1

    in_parts(number, len(starts), pool)
    return out


def in_parts(use: Callable[[slice], None], rows: int, pool: Executor) -> None:
    """Call ``use`` for every part of ``rows`` rows, in threads."""
    list(pool.map(lambda first: use(slice(first, first + _PART)), range(0, rows, _PART)))
