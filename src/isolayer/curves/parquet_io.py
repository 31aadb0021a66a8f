"""Curves and histograms on disk: one Parquet file each, readable by any engine, written whole or not at all.

A file of curves has one row per curve: the context columns (NULL below their depth), ``level``, ``count``, and lists
``values``, ``variance`` and ``knot_weight`` at the knots. A file of a histogram has one row per cell. Everything else
is JSON under the key ``isolayer`` of the file's metadata. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.categories import combine, encode
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid
from isolayer.storage import whole_file

SCHEMA = 1  # raised when a reader of the number before could not make sense of the file

_META = b"isolayer"
_MAGIC = b"PAR1"
_LISTS = ("values", "variance", "knot_weight")
_FACTS = ("scale", "extrapolation", "kind", "score_name", "label_name")
_CELLS = ("fold", "bin", "count", "weight", "weight_squared", "positive", "logit")


def save_curves(curves: Curves, path: str | PathLike[str]) -> None:
    """Write curves as one Parquet file, in one step: whoever reads meanwhile sees the old file or the new one.

    Args:
        curves: The curves.
        path: Where to.
    """
    _refuse_names(curves.contexts, ("level", "count", *_LISTS))
    sizes = np.diff(curves.starts)
    columns: dict[str, Any] = {
        name: pa.array(
            [value for level in curves.keys for value in _at_level(level, place)], _type_of(curves.keys[-1][place])
        )
        for place, name in enumerate(curves.contexts)
    }
    columns |= {"level": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), "count": curves.count}
    columns |= {name: _lists(getattr(curves, name)) for name in _LISTS}
    facts = {name: getattr(curves, name) for name in _FACTS} | {"source": dict(curves.source)}
    facts |= {"settings": dict(curves.settings)}
    _write(pa.table(columns), path, "curves", curves.contexts, curves.grid, facts)


def load_curves(path: str | PathLike[str]) -> Curves:
    """Read what :func:`save_curves` wrote; every number is the same to the bit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_curves(Curves.identity(Grid()), f"{folder}/curves.parquet")
    ...     load_curves(f"{folder}/curves.parquet").predict_proba([0.0]).tolist()
    [0.5]
    """
    table, facts = _read(path, "curves")
    contexts, grid = tuple(facts["contexts"]), Grid(**facts["grid"])
    level = table["level"].to_numpy()
    if not len(table) or (np.diff(level) < 0).any() or level[0] != 0 or level[-1] > len(contexts):
        raise _corrupt(path, "its levels are not in order")
    keys = tuple(
        tuple(_keys(table[name].filter(pa.array(level == depth))) for name in contexts[:depth])
        for depth in range(len(contexts) + 1)
    )
    values, variance, knot_weight = (_matrix(table[name], grid.buckets, path) for name in _LISTS)
    told = {name: facts[name] for name in (*_FACTS, "source", "settings")}
    return Curves(grid, contexts, keys, values, variance, knot_weight, table["count"].to_numpy(), **told)


def save_histogram(histogram: Histogram, path: str | PathLike[str]) -> None:
    """Write a histogram as one Parquet file, in one step."""
    _refuse_names(histogram.contexts, _CELLS)
    columns: dict[str, Any] = {
        name: pa.array(key.tolist(), _type_of(key)).dictionary_encode().take(pa.array(histogram.group))
        for name, key in zip(histogram.contexts, histogram.keys, strict=True)
    }
    columns |= {name: getattr(histogram, name) for name in _CELLS}
    _write(pa.table(columns), path, "histogram", histogram.contexts, histogram.grid, {"source": dict(histogram.source)})


def load_histogram(path: str | PathLike[str]) -> Histogram:
    """Read what :func:`save_histogram` wrote.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_histogram(Histogram.from_arrays([0.1], [1], {"device": ["tv"]}), f"{folder}/day.parquet")
    ...     load_histogram(f"{folder}/day.parquet").keys[0].tolist()
    ['tv']
    """
    table, facts = _read(path, "histogram")
    contexts = tuple(facts["contexts"])
    coded = [encode(table[name], name) for name in contexts]
    parts, group = combine([codes for _, codes in coded], [len(words) for words, _ in coded], len(table))
    keys = tuple(words[part] for (words, _), part in zip(coded, parts, strict=True))
    fold, at, *sums = (table[name].to_numpy() for name in _CELLS)
    return Histogram._gather(
        Grid(**facts["grid"]),
        contexts,
        keys,
        (group, fold.astype(np.int64), at.astype(np.int64)),
        sums,
        facts["source"],
    )


def _write(
    table: pa.Table, path: str | PathLike[str], kind: str, contexts: Sequence[str], grid: Grid, facts: Mapping[str, Any]
) -> None:
    where = {"lower": grid.lower, "upper": grid.upper, "step": grid.step}
    meta = {
        "content": kind,
        "schema": SCHEMA,
        "library": _version(),
        "contexts": list(contexts),
        "grid": where,
        **facts,
    }
    table = table.replace_schema_metadata({_META: json.dumps(meta).encode()})
    with whole_file(path) as part:
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)


def _read(path: str | PathLike[str], kind: str) -> tuple[pa.Table, dict[str, Any]]:
    """The table of a file and its facts, or an InputError that says what is wrong with the file."""
    source = Path(path)
    if not source.is_file():
        raise InputError(f"file: expected {kind} at {str(path)!r}, got no file; check the path")
    _refuse_broken(source)
    try:
        table = pq.read_table(source, partitioning=None, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise _corrupt(path, str(error)) from error
    facts = _facts(table, path)
    if facts["schema"] > SCHEMA:
        raise InputError(
            f"file: expected schema {SCHEMA} or older, got the newer schema {facts['schema']} of isolayer "
            f"{facts.get('library')} in {str(path)!r}; upgrade isolayer"
        )
    if facts["content"] != kind:
        raise InputError(f"file: expected {kind}, got {facts['content']} in {str(path)!r}; load it as what it is")
    return table, facts


def _refuse_broken(path: Path) -> None:
    """Raise unless the file starts and ends as Parquet does."""
    with path.open("rb") as file:
        start = file.read(4)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 4, 0))
        end = file.read(4)
    if start != _MAGIC:
        raise _corrupt(path, "it does not start as Parquet does")
    if end != _MAGIC or size < 12:
        raise InputError(f"file: expected a whole file, got {str(path)!r}, which is truncated; write it again")


def _facts(table: pa.Table, path: str | PathLike[str]) -> dict[str, Any]:
    try:
        facts = json.loads((table.schema.metadata or {})[_META])
    except (KeyError, ValueError) as error:
        raise InputError(
            f"file: expected one that isolayer wrote, got {str(path)!r} without its metadata; save it by isolayer"
        ) from error
    return dict(facts)


def _corrupt(path: str | PathLike[str], why: str) -> InputError:
    return InputError(f"file: expected a sound file, got {str(path)!r}, which is corrupt ({why}); write it again")


def _refuse_names(contexts: Sequence[str], taken: Sequence[str]) -> None:
    for name in set(contexts) & set(taken):
        raise InputError(f"context {name}: expected a name other than {', '.join(taken)}, got {name!r}; rename it")


def _at_level(keys: tuple[NDArray[Any], ...], place: int) -> list[Any]:
    """Values of a context in the curves of a level; None in levels above it."""
    return keys[place].tolist() if place < len(keys) else [None] * (len(keys[0]) if keys else 1)


def _type_of(key: NDArray[Any]) -> pa.DataType:
    values = [value for value in key.tolist() if value is not None]
    kind = np.asarray(values).dtype.kind if values else "U"
    return {"i": pa.int64(), "b": pa.bool_()}.get(kind, pa.string())


def _keys(column: pa.ChunkedArray) -> NDArray[Any]:
    values = column.to_pylist()
    return np.array(values, dtype=object) if None in values else np.array(values)


def _lists(matrix: NDArray[Any]) -> pa.ListArray:
    rows, knots = matrix.shape
    flat = pa.array(np.ascontiguousarray(matrix).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * knots), flat)


def _matrix(column: pa.ChunkedArray, knots: int, path: str | PathLike[str]) -> NDArray[Any]:
    flat = column.combine_chunks().flatten().to_numpy()
    if len(flat) != len(column) * knots:
        raise _corrupt(path, f"its curves do not have {knots} knots")
    return np.asarray(flat).reshape(-1, knots)


def _version() -> str:
    try:
        return version("isolayer")
    except PackageNotFoundError:
        return "unknown"
