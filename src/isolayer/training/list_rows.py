"""Where the lists of a log are: rows of one list follow one another, and may lie in several row groups of a file.

A list belongs to the row group that it begins in. So row groups can be distributed among processes, and every list is
read whole, by one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isolayer.errors import InputError

Rows = NDArray[np.intp]


class GroupLists(NamedTuple):
    """The lists of one row group.

    Args:
        skip: Number of its first rows, which belong to a list of an earlier row group.
        lengths: Number of rows of each list that begins in it, rows in later row groups included, ``[lists]``.
    """

    skip: int
    lengths: Rows


def group_lists(parts: Iterable[tuple[str, Any]], name: str) -> list[GroupLists]:
    """The lists of every row group of a log; ids are those of a file, so another file may use them again.

    Args:
        parts: For every row group in order, its file and its column of list ids.
        name: The column, for the error.

    >>> ids = {"a": [7, 7, 8], "a, continued": [8, 9], "b": [7]}
    >>> parts = [(file[0], pa.chunked_array([column])) for file, column in ids.items()]
    >>> [(lists.skip, lists.lengths.tolist()) for lists in group_lists(parts, "session")]
    [(0, [2, 2]), (1, [1]), (0, [1])]
    """
    found: list[GroupLists] = []
    file, last, first_ids, owner = "", None, list[Any](), 0
    for path, column in parts:
        if column.null_count:
            raise InputError(f"column {name!r}: expected no nulls, got {column.null_count}; drop those rows")
        if path != file:
            _refuse_scattered(first_ids, name)
            file, last, first_ids = path, None, []
        ids = column.combine_chunks()
        changes = np.flatnonzero(np.asarray(pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False))) + 1
        starts = np.concatenate([[0] if last is None or last != ids[0] else [], changes]).astype(np.intp)
        skip = int(starts[0]) if len(starts) else len(ids)
        found.append(GroupLists(skip, np.diff(starts, append=len(ids))))
        if skip:
            found[owner].lengths[-1] += skip
        if len(starts):
            owner = len(found) - 1
            first_ids.append(ids.take(pa.array(starts)))
        last = ids[-1]
    _refuse_scattered(first_ids, name)
    return found


def _refuse_scattered(first_ids: list[Any], name: str) -> None:
    """Raise if the rows of a list of one file do not follow one another."""
    if not first_ids:
        return
    ids = pa.chunked_array(first_ids)
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids)
        twice = counts.field(0)[int(np.argmax(counts.field(1).to_numpy()))]
        raise InputError(
            f"column {name!r}: expected the rows of a list to follow one another, got list {twice} in several places; "
            "sort the log by this column"
        )


def rows_of_lists(lengths: Rows, lists: Rows) -> Rows:
    """The rows of some lists, in the order of these lists.

    >>> rows_of_lists(np.array([2, 1, 3]), np.array([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    first = np.cumsum(lengths) - lengths
    taken = lengths[lists]
    before = np.cumsum(taken) - taken
    return np.asarray(np.arange(taken.sum()) + np.repeat(first[lists] - before, taken))
