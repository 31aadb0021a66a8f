"""Sums of rows by cell: the one grouping with which every histogram is made. numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.float64]
Codes = NDArray[np.int64]

_PART = 1 << 18  # rows that are processed together
_DENSE = 1 << 22  # with up to this many cells a table is faster than sorting, even for few rows


def add_up(cell: Codes, size: int, sums: list[Sums | None]) -> tuple[Codes, list[Sums]]:
    """Distinct cells, sorted, and the total of each column over the rows of each cell.

    Args:
        cell: Cell of each row, in ``0 .. size - 1``, shape ``[n]``.
        size: Number of possible cells.
        sums: Columns ``[n]`` to sum. A column that is None has the totals of the previous one; if it is the first, the
            number of rows.

    >>> cells, (count, total) = add_up(np.array([7, 2, 7]), 10, [None, np.array([1.0, 2.0, 3.0])])
    >>> cells.tolist(), count.tolist(), total.tolist()
    ([2, 7], [1.0, 2.0], [2.0, 4.0])
    """
    if size <= max(_DENSE, 2 * len(cell)):
        rows = np.bincount(cell, minlength=size)
        cells = np.flatnonzero(rows)
        totals = [rows[cells].astype(np.float64)]
        for column in sums:
            totals.append(totals[-1] if column is None else _table(cell, column, size)[cells])
        return cells, totals[1:]
    order = np.argsort(cell, kind="stable")
    ordered = cell[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    totals = [np.diff(starts, append=len(cell)).astype(np.float64)]
    for column in sums:
        totals.append(totals[-1] if column is None else np.add.reduceat(column[order], starts))
    return ordered[starts], totals[1:]


def sort_cells(cell: Codes, size: int) -> Codes:
    """Sort cells in place, and return the order that sorts them.

    Args:
        cell: Cell of each row, in ``0 .. size - 1``, shape ``[n]``.
        size: Number of possible cells.

    >>> cell = np.array([7, 2, 7])
    >>> sort_cells(cell, 10).tolist(), cell.tolist()
    ([1, 0, 2], [2, 7, 7])
    """
    bits = len(cell).bit_length()
    if size.bit_length() + bits < 64:  # several times as fast as an argsort
        cell <<= bits
        cell |= np.arange(len(cell))
        cell.sort()
        order = cell & ((1 << bits) - 1)
        cell >>= bits
    else:
        order = np.argsort(cell, kind="stable")
        cell[:] = cell[order]
    return order


def rounded_sums(place: NDArray[Any], places: int, columns: Iterable[Sums]) -> Iterator[bytes]:
    """Rounded sums of columns by place, for a digest.

    Engines add in different orders, so the last digits are rounded away.

    >>> [len(one) for one in rounded_sums(np.array([0, 2]), 3, [np.array([1.0, 2.0])])]
    [24]
    """
    last, sums = None, b""
    for column in columns:
        sums = sums if column is last else np.round(sums_by_place(place, places, column), 6).tobytes()
        last = column
        yield sums


def sums_by_place(place: NDArray[Any], places: int, column: Sums) -> Sums:
    """Sums of a column by place, computed in parts of the rows, so that the column is never copied as a whole.

    >>> sums_by_place(np.array([0, 2, 2]), 4, np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.0, 5.0, 0.0]
    """
    out = np.zeros(places)
    for first in range(0, len(place), _PART):
        some = place[first : first + _PART]
        low = int(some.min())
        sums = np.bincount(some - low, column[first : first + _PART])
        out[low : low + len(sums)] += sums
    return out


def _table(cell: Codes, column: Sums, size: int) -> Sums:
    return np.bincount(cell, column, minlength=size).astype(np.float64, copy=False)
