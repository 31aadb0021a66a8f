"""Sums over very many contexts of Parquet files: the embedded DuckDB reads and bins rows, and they are sorted here.

A GROUP BY is faster if it results in few rows. The first rows show whether it would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.fitting.histogram import Histogram
from isolayer.fitting.level import THREADS
from isolayer.fitting.memory import give_back
from isolayer.fitting.runs import Run, histogram_of_run, joined
from isolayer.grid import Grid
from isolayer.tables.engine_answer import context_column
from isolayer.tables.sources import Table, as_table, engine, note_scan

FROM = 1 << 22  # with fewer rows, the engine always groups them
_FIRST, _BLOCK = 1 << 17, 1 << 19  # rows that are examined first, and rows that are sorted together
_MOST = 1 << 25  # rows that are kept before they are summed
_TEXT = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson"}  # counting their rows means reading them
_SHARE = 0.75  # with more cells per row among the first rows, sorting is faster

_setting = threading.Lock()

Found = tuple[Histogram, NDArray[np.int64], NDArray[np.float64]]


class _Unsuited(Exception):
    """Raised if the engine should group these rows."""


def sums_of_rows(
    source: Any, prepare: Callable[[Table], Table], contexts: tuple[str, ...], grid: Grid, rate: float
) -> Found | None:
    """A histogram, and bins and counts of rows that cannot be used; None if the engine should group the rows.

    Args:
        source: Any source; only Parquet files are read here.
        prepare: An expression of rows with columns ``context_0`` and so on, ``bin``, ``label`` and ``logit``.
        contexts: Names of the context columns.
        grid: Where the knots, and so the bins, are.
        rate: Share of the negatives that was kept.
    """
    if not isinstance(source, str | Path) or not contexts or _TEXT & set(Path(source).suffixes):
        return None
    rows = prepare(as_table(source))
    kinds = [rows[context_column(place)].type() for place in range(len(contexts))]
    if not all(kind.is_integer() and kind != ibis.dtype("uint64") for kind in kinds):
        return None
    connection, query = engine().con, ibis.to_sql(rows, dialect="duckdb")
    if connection.sql(f"SELECT count(*) FROM ({query})").fetchall()[0][0] < FROM:
        return None
    try:
        with ThreadPoolExecutor(THREADS) as pool, closing(connection.sql(query).to_arrow_reader(_FIRST)) as reader:
            found = histogram_of_run(_summed(_blocks(reader), len(contexts), grid, pool), contexts, grid, rate, pool)
    except (_Unsuited, OverflowError, OSError, pa.ArrowException):  # the engine will raise it when it groups
        return None
    note_scan()
    _end_threads(connection)
    give_back()
    return found


def _end_threads(connection: Any) -> None:
    """End the engine's threads and start new ones: a thread keeps up to 50 MB of what it has read."""
    with _setting:  # another fit would take the 1 for what it was before
        ((threads,),) = connection.sql("SELECT current_setting('threads')").fetchall()
        connection.execute("SET threads = 1")
        connection.execute(f"SET threads = {int(threads)}")


def _blocks(reader: pa.RecordBatchReader) -> Iterator[list[pa.RecordBatch]]:
    """Record batches in blocks: a first block to examine, then blocks of rows that are sorted together."""
    block, enough = list[pa.RecordBatch](), _FIRST
    for batch in reader:
        block.append(batch)
        if sum(map(len, block)) >= enough:
            yield block
            block, enough = [], _BLOCK
    if sum(map(len, block)):
        yield block


def _summed(blocks: Iterator[list[pa.RecordBatch]], contexts: int, grid: Grid, pool: ThreadPoolExecutor) -> Run:
    """The sums of all rows; blocks are sorted while others are read."""
    runs, waiting = list[Run](), list[Future[Run]]()
    for block in blocks:
        waiting.append(pool.submit(_run, block, contexts, grid))
        if not runs:
            runs.append(waiting.pop().result())
            if runs[0].distinct < _SHARE * len(runs[0].key):
                raise _Unsuited
        elif len(waiting) >= THREADS:
            runs.append(waiting.pop(0).result())
        if sum(len(run.key) for run in runs) > max(_MOST, 2 * len(runs[0].key)):
            runs = [joined([*runs, *(one.result() for one in waiting)], pool)]
            waiting = []
    runs += [one.result() for one in waiting]
    if not runs:
        raise _Unsuited
    return joined(runs, pool)


def _run(block: list[pa.RecordBatch], contexts: int, grid: Grid) -> Run:
    """The rows of a block, sorted."""
    columns = {name: [batch[name] for batch in block] for name in block[0].schema.names}
    keys = [context_column(place) for place in range(contexts)]
    if any(part.null_count for name in keys for part in columns[name]):
        raise _Unsuited  # a missing value is a context of its own, after all others
    whole = {name: np.concatenate([_numbers(part) for part in parts]) for name, parts in columns.items()}
    return Run.of([whole[name] for name in keys], whole["bin"], whole["label"], whole["logit"], grid)


def _numbers(part: pa.Array) -> NDArray[Any]:
    """Numbers; 0 for NULL, because such rows have separate bins."""
    return np.asarray((part.fill_null(0) if part.null_count else part).to_numpy(zero_copy_only=False))
