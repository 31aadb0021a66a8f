"""From the answer of an engine, one row per cell, to a histogram; `isolayer.tables.histogram_query` asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.fitting.categories import combine, encode
from isolayer.fitting.histogram import Histogram, bins
from isolayer.fitting.negative_rates import distinct_rates
from isolayer.grid import Grid

_DENSE = 1 << 22  # up to so many cells a table beats sorting, however few there are


def context_column(place: int) -> str:
    """What a context column is called in the answer of an engine.

    >>> context_column(0)
    'context_0'
    """
    return f"context_{place}"


def histogram_of_cells(cells: pa.Table, contexts: tuple[str, ...], grid: Grid, rate: NDArray[np.float64]) -> Histogram:
    """Number the groups of an engine's answer, and put its cells in order.

    Args:
        cells: The answer: contexts, ``bin``, sums, and ``fold`` if there are any.
        contexts: Names of the context columns.
        grid: Where the knots, and so the bins, are.
        rate: Negative rate of each cell, shape ``[cells]``.
    """
    coded = [encode(cells[context_column(place)], name) for place, name in enumerate(contexts)]
    sizes = [len(vocabulary) for vocabulary, _ in coded]
    parts, group = combine([codes for _, codes in coded], sizes, len(cells))
    keys = tuple(vocabulary[part] for (vocabulary, _), part in zip(coded, parts, strict=True))
    fold = cells["fold"].to_numpy().astype(np.int8) if "fold" in cells.column_names else np.zeros(len(cells), np.int8)
    at = cells["bin"].to_numpy().astype(np.int32)
    names = ("count", "weight", "weight_squared", "positive", "logit")
    present = {name: cells[name].to_numpy() for name in names if name in cells.column_names}
    groups, folds = len(keys[0]) if keys else 1, int(fold.max(initial=0)) + 1
    rates, code = distinct_rates(rate)
    cell = ((group * folds + fold) * bins(grid) + at) * len(rates) + code
    order = _order(cell, groups * folds * bins(grid) * len(rates))
    if order is None:
        place, sums = (group, fold, at, rate), {name: column.astype(np.float64) for name, column in present.items()}
        counts = sums["count"]  # where nothing is weighted, weights are counts
        return Histogram._gather(grid, contexts, keys, place, [sums.get(name, counts) for name in names])
    totals = {name: column[order].astype(np.float64, copy=False) for name, column in present.items()}
    place = group[order], fold[order], at[order], rate[order]
    return Histogram(grid, contexts, keys, *place, *(totals.get(name, totals["count"]) for name in names))


def _order(cell: NDArray[np.int64], size: int) -> NDArray[np.int64] | None:
    """The order that sorts cells of an engine, which has added them up; None if one occurs twice after all."""
    if size > max(_DENSE, 16 * len(cell)):
        order = np.argsort(cell)
        return order if (np.diff(cell[order]) > 0).all() else None
    place: NDArray[Any] = np.full(size, -1, np.int32 if len(cell) < 2**31 else np.int64)
    place[cell] = np.arange(len(cell), dtype=place.dtype)
    order = place[place >= 0].astype(np.int64)
    return order if len(order) == len(cell) else None
