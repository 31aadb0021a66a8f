"""Turns the result of an engine, one row per cell, into a histogram; the query is `isolayer.tables.histogram_query`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.fitting.adding import add_up, sort_cells
from isolayer.fitting.categories import combine, encode
from isolayer.fitting.histogram import Histogram, bins
from isolayer.fitting.negative_rates import distinct_rates
from isolayer.grid import Grid

_SUMS = ("count", "weight", "weight_squared", "positive", "logit")


def context_column(place: int) -> str:
    """The name of a context column in the result of an engine.

    >>> context_column(0)
    'context_0'
    """
    return f"context_{place}"


def columns_of(schema: pa.Schema, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """The columns of a result: numbers as numpy arrays, others as Arrow arrays.

    The batches are removed from the list one by one, so that numbers are never in memory twice.

    >>> answer = pa.table({"bin": [3, 4], "context_0": ["tv", None]})
    >>> columns = columns_of(answer.schema, answer.to_batches())
    >>> columns["bin"].tolist(), columns["context_0"].to_pylist()
    ([3, 4], ['tv', None])
    """
    rows = sum(len(batch) for batch in batches)
    numbers, others = dict[str, NDArray[Any]](), dict[str, list[pa.Array]]()
    for name, kind in zip(schema.names, schema.types, strict=True):
        plain = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if plain and not any(batch[name].null_count for batch in batches):
            numbers[name] = np.empty(rows, kind.to_pandas_dtype())
        else:
            others[name] = []
    last = rows
    while batches:
        batch = batches.pop()
        for name, column in numbers.items():
            column[last - len(batch) : last] = batch[name].to_numpy()
        for name, parts in others.items():
            parts.insert(0, batch[name])
        last -= len(batch)
    return numbers | {name: pa.chunked_array(parts, schema.field(name).type) for name, parts in others.items()}


def only_rows(columns: dict[str, Any], kept: NDArray[np.bool_]) -> dict[str, Any]:
    """Some rows of a result."""
    mask = pa.array(kept)
    return {name: col[kept] if isinstance(col, np.ndarray) else col.filter(mask) for name, col in columns.items()}


def numbers_of(column: Any) -> NDArray[Any]:
    """A column of a result as a numpy array."""
    return column if isinstance(column, np.ndarray) else np.asarray(column.to_numpy())


def histogram_of_cells(
    cells: dict[str, Any], contexts: tuple[str, ...], grid: Grid, rate: NDArray[np.float64] | float
) -> Histogram:
    """Number the groups of an engine's result, and sort its cells.

    Args:
        cells: The columns of the result: contexts, ``bin``, sums, and ``fold`` if there are folds. They are removed.
        contexts: Names of the context columns.
        grid: Positions of the knots, and so of the bins.
        rate: Negative rate of each cell, shape ``[cells]``, or of all.
    """
    keys, cell = _groups(cells, contexts)
    fold = numbers_of(cells.pop("fold", np.zeros(1, np.int8)))
    rates, code = distinct_rates(rate)
    sizes = (len(keys[0]) if keys else 1, int(fold.max(initial=0)) + 1, bins(grid), len(rates))
    for size, part in zip(sizes[1:], (fold, numbers_of(cells.pop("bin")), code), strict=True):
        cell *= size  # in place, here and below, because allocating memory is slow
        cell += part
    order = sort_cells(cell, math.prod(sizes))
    sums = {
        name: numbers_of(cells.pop(name)).take(order).astype(np.float64, copy=False) for name in _SUMS if name in cells
    }
    del order
    if not (cell[1:] > cell[:-1]).all():
        cell, totals = add_up(cell, math.prod(sizes), [*sums.values()])
        sums = dict(zip(sums, totals, strict=True))
    whole = [sums.get(name, sums["count"]) for name in _SUMS]  # without weights, weights are counts
    return Histogram(grid, contexts, keys, *_places(cell, sizes, rates), *whole)


def _groups(cells: dict[str, Any], contexts: tuple[str, ...]) -> tuple[tuple[NDArray[Any], ...], NDArray[np.int64]]:
    """Keys of the groups, and the group of each cell; the columns of contexts are removed."""
    coded = [encode(cells.pop(context_column(place)), name) for place, name in enumerate(contexts)]
    if len(coded) == 1:
        return (coded[0][0],), coded[0][1]
    parts, group = combine([codes for _, codes in coded], [len(words) for words, _ in coded], len(cells["bin"]))
    return tuple(words[part] for (words, _), part in zip(coded, parts, strict=True)), group


def _places(cell: NDArray[np.int64], sizes: tuple[int, ...], rates: NDArray[np.float64]) -> tuple[Any, ...]:
    """Group, fold, bin and negative rate of cells; a value that all cells share is stored once."""
    code, fold = np.zeros(1, np.int64), np.zeros(1, np.int8)
    if sizes[3] > 1:
        code = cell % sizes[3]
        cell //= sizes[3]
    at = (cell % sizes[2]).astype(np.int32)
    cell //= sizes[2]
    if sizes[1] > 1:
        fold = (cell % sizes[1]).astype(np.int8)
        cell //= sizes[1]
    return cell, np.broadcast_to(fold, cell.shape), at, np.broadcast_to(rates[code], cell.shape)
