"""Curves and histograms on disk: one Parquet file each, readable by any engine, and verified when it is read.

A file of curves has one row per curve: the context columns (NULL below their depth), ``depth`` (how many of them the
curve depends on), ``count``, and lists ``values``, ``variance`` and ``knot_weight`` at the knots. A file of a histogram
has one row per cell: the context columns, ``fold``, ``bin``, ``negative_rate`` and the sums. Everything else is in the
facts of :mod:`isolayer.curves.verified_file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.invariants import check_curves, check_histogram
from isolayer.curves.packed_io import LATER, TAKEN, is_packed, packed_arrays, packed_columns, packed_tables
from isolayer.curves.terms_io import COLUMNS, arrays_of, columns_of, facts_of, terms_of
from isolayer.curves.verified_file import Facts, Opened, digest_of, open_verified, read_verified, write_verified
from isolayer.errors import InputError
from isolayer.fitting.categories import combine, encode, present_codes
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.terms import Terms
from isolayer.grid import Grid

_FACTS = ("scale", "extrapolation", "kind", "monotone", "score_name", "label_name", "source", "settings")
_LISTS = ("values", "variance", "knot_weight")
_PLACE, _SUMS = ("fold", "bin", "negative_rate"), ("count", "weight", "weight_squared", "positive", "logit")


def save_curves(curves: Curves, path: str | PathLike[str]) -> None:
    """Write curves as one Parquet file, in one step: concurrent readers see the old file or the new one.

    Args:
        curves: The curves.
        path: Where to.
    """
    terms = curves.terms
    _refuse_names(curves.contexts, ("depth", "count", *_LISTS, *TAKEN, *(COLUMNS if terms else ())))
    check_curves(curves)
    sizes = np.diff(curves.starts)
    columns: dict[str, Any] = {name: _key_column(curves, place) for place, name in enumerate(curves.contexts)}
    columns |= {"depth": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), "count": curves.count}
    packed = is_packed(curves)
    tables, told = (
        packed_columns(curves) if packed else ({name: _lists(np.asarray(getattr(curves, name))) for name in _LISTS}, {})
    )
    columns |= tables
    facts = {**_shared_facts(curves.contexts, curves.grid), **{name: getattr(curves, name) for name in _FACTS}}
    facts |= {"source": dict(curves.source), "settings": dict(curves.settings), "knots": curves.grid.buckets}
    facts |= told
    if terms is not None:
        columns = _with_terms(columns, terms, curves.contexts)
        facts |= {"terms": facts_of(terms), "curves": len(curves.values)}
    write_verified(_table(columns, curves.contexts), facts, "curves", _digest_of_curves(curves, told), path)


def load_curves(path: str | PathLike[str]) -> Curves:
    """Read what :func:`save_curves` wrote; every number is the same to the bit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_curves(Curves.identity(Grid()), f"{folder}/curves.parquet")
    ...     load_curves(f"{folder}/curves.parquet").predict_proba([0.0]).tolist()
    [0.5]
    """
    with open_verified(path, "curves") as opened:
        facts = opened.facts
        contexts, grid = _contexts(facts), Grid(**facts["grid"])
        now = None if "packed" not in facts else [name for name in facts["columns"] if not name.startswith(LATER)]
        terms, table = _split_terms(opened.read(now), facts)
        depth = table["depth"].to_numpy()
        if not len(table) or (np.diff(depth) < 0).any() or depth[0] != 0 or depth[-1] > len(contexts):
            raise InputError("depth: expected it in order from 0, got another; write it again")
        bounds = np.searchsorted(depth, np.arange(len(contexts) + 2))
        keys = tuple(
            tuple(_keys(table[name].slice(first, last - first), name) for name in contexts[:own])
            for own, (first, last) in enumerate(pairwise(bounds.tolist()))
        )
        told = {name: facts[name] for name in _FACTS}
        nothing, counts = np.empty((0, grid.buckets)), table["count"].to_numpy()
        curves = Curves(grid, contexts, keys, nothing, nothing, nothing, counts, **told, terms=terms)
        curves = _with_tables(curves, table, opened)
        _refuse_unless_same(_digest_of_curves(curves, facts), facts)
        check_curves(curves)
    return curves


def _with_tables(curves: Curves, table: pa.Table, opened: Opened) -> Curves:
    """Curves with their values, variance and weights of knots."""
    facts, knots = opened.facts, curves.grid.buckets
    if "packed" not in facts:
        values, variance, knot_weight = (_matrix(table[name], knots) for name in _LISTS)
        return replace(curves, values=values, variance=variance, knot_weight=knot_weight)
    if int(facts["knots"]) != knots:
        raise InputError("grid: expected the knots of its facts, got something else; write it again")

    parents = [np.zeros(1, np.int64)]
    for depth, keys in enumerate(curves.keys[1:], start=1):
        above = dict(zip(curves.contexts, keys, strict=False))
        parents.append(
            curves.rows_of(above, len(keys[0]), depth=depth - 1) if depth > 1 else np.zeros(len(keys[0]), int)
        )
    return replace(curves, **packed_tables(table, opened, parents))


def save_histogram(histogram: Histogram, path: str | PathLike[str]) -> None:
    """Write a histogram as one Parquet file, in one step. Groups without a cell are not written."""
    _refuse_names(histogram.contexts, (*_PLACE, *_SUMS))
    check_histogram(histogram)
    histogram = _without_empty_groups(histogram)
    columns: dict[str, Any] = {
        name: pa.array(key.tolist(), _type_of(key)).take(pa.array(histogram.group))
        for name, key in zip(histogram.contexts, histogram.keys, strict=True)
    }
    columns |= {name: getattr(histogram, name) for name in (*_PLACE, *_SUMS)}
    facts = {**_shared_facts(histogram.contexts, histogram.grid), "source": dict(histogram.source)}
    write_verified(_table(columns, histogram.contexts), facts, "histogram", _digest_of_histogram(histogram), path)


def load_histogram(path: str | PathLike[str]) -> Histogram:
    """Read what :func:`save_histogram` wrote; every number is the same to the bit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_histogram(Histogram.from_arrays([0.1], [1], {"device": ["tv"]}), f"{folder}/day.parquet")
    ...     load_histogram(f"{folder}/day.parquet").keys[0].tolist()
    ['tv']
    """
    with read_verified(path, "histogram") as (table, facts):
        contexts = _contexts(facts)
        coded = [encode(table[name], name) for name in contexts]
        parts, group = combine([codes for _, codes in coded], [len(words) for words, _ in coded], len(table))
        keys = tuple(words[part] for (words, _), part in zip(coded, parts, strict=True))
        columns = {name: table[name].to_numpy() for name in (*_PLACE, *_SUMS)}
        histogram = Histogram(Grid(**facts["grid"]), contexts, keys, group, **columns, source=facts["source"])
        _refuse_unless_same(_digest_of_histogram(histogram), facts)
        check_histogram(histogram)
    return histogram


def _digest_of_curves(curves: Curves, told: Mapping[str, Any]) -> str:
    if is_packed(curves):
        return _digest_of_packed(curves, told["digests"])
    facts = _facts_of_curves(curves)
    keys = [key for level in curves.keys for key in level]
    arrays = [np.asarray(getattr(curves, name)) for name in (*_LISTS, "count")]
    if curves.terms is not None:
        facts["terms"] = facts_of(curves.terms)
        arrays += arrays_of(curves.terms)
    return digest_of(facts, keys, arrays)


def _facts_of_curves(curves: Curves) -> Facts:
    told = {name: getattr(curves, name) for name in _FACTS} | {"source": dict(curves.source)}
    return {**_shared_facts(curves.contexts, curves.grid), **told, "settings": dict(curves.settings)}


def _digest_of_packed(curves: Curves, digests: Mapping[str, str]) -> str:
    """The digest of packed curves. Columns that are read later have their own digests; keys are hashed as bytes."""
    facts = {**_facts_of_curves(curves), "digests": dict(digests)}
    keys = [key for level in curves.keys for key in level]
    plain = [key for key in keys if key.dtype != object]
    arrays = [
        *packed_arrays(curves),
        curves.count,
        *(np.char.encode(key, "utf-8") if key.dtype.kind == "U" else key for key in plain),
    ]
    if curves.terms is not None:
        facts["terms"] = facts_of(curves.terms)
        arrays += arrays_of(curves.terms)
    return digest_of(facts, [key for key in keys if key.dtype == object], arrays)


def _digest_of_histogram(histogram: Histogram) -> str:
    facts = {**_shared_facts(histogram.contexts, histogram.grid), "source": dict(histogram.source)}
    return digest_of(facts, histogram.keys, [getattr(histogram, name) for name in ("group", *_PLACE, *_SUMS)])


def _with_terms(columns: Mapping[str, Any], terms: Terms, contexts: Sequence[str]) -> dict[str, Any]:
    """Rows of curves followed by rows of terms; each is empty in the columns of the other."""
    own = columns_of(terms)
    curves, rows = len(columns["depth"]), len(own["term"])
    below: dict[str, Any] = {"depth": np.zeros(rows, np.int32), "count": own["count"]}
    out = dict[str, Any]()
    for name, column in columns.items():
        array = column if isinstance(column, pa.Array) else pa.array(column)
        more = pa.array(below[name]) if name in below else _nothing(array.type, rows, name in contexts)
        out[name] = pa.concat_arrays([array, more])
    above: dict[str, Any] = {name: np.zeros(curves, own[name].dtype) for name in COLUMNS if name != "level"}
    above["level"] = np.full(curves, "", dtype=object)
    kinds = {"level": pa.string()}
    return out | {name: pa.array([*above[name], *own[name]], kinds.get(name)) for name in COLUMNS}


def _nothing(kind: pa.DataType, rows: int, is_context: bool) -> pa.Array:
    if is_context:
        return pa.nulls(rows, kind)
    filler: Any = [] if pa.types.is_list(kind) else bytes(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else 0
    return pa.array([filler] * rows, kind)


def _split_terms(table: pa.Table, facts: Mapping[str, Any]) -> tuple[Terms | None, pa.Table]:
    """The terms of a file, if it has any, and the table of its curves."""
    if "terms" not in facts:
        return None, table
    curves = int(facts["curves"])
    columns = {name: table[name].slice(curves).to_numpy() for name in (*COLUMNS, "count") if name != "level"}
    return terms_of(facts["terms"], columns), table.slice(0, curves)


def _shared_facts(contexts: Sequence[str], grid: Grid) -> Facts:
    return {"contexts": list(contexts), "grid": {"lower": grid.lower, "upper": grid.upper, "step": grid.step}}


def _contexts(facts: Mapping[str, Any]) -> tuple[str, ...]:
    contexts = tuple(facts["contexts"])
    if not all(isinstance(name, str) for name in contexts):
        raise InputError(f"contexts: expected names, got {contexts}; write it again")
    return contexts


def _refuse_unless_same(digest: str, facts: Mapping[str, Any]) -> None:
    if digest != facts["digest"]:
        raise InputError("content: expected the digest of what was saved, got another; write it again")


def _refuse_names(contexts: Sequence[str], taken: Sequence[str]) -> None:
    for name in contexts:
        if name.casefold() in taken:  # most engines ignore the case of names
            raise InputError(f"context {name}: expected a name other than {', '.join(taken)}, got {name!r}; rename it")


def _table(columns: Mapping[str, Any], contexts: Sequence[str]) -> pa.Table:
    """A table in which only context columns may be NULL."""
    arrays = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    fields = [pa.field(name, array.type, nullable=name in contexts) for name, array in arrays.items()]
    return pa.Table.from_arrays([*arrays.values()], schema=pa.schema(fields))


def _without_empty_groups(histogram: Histogram) -> Histogram:
    present, group = present_codes(histogram.group, histogram.groups)
    if not histogram.keys or len(present) == histogram.groups:
        return histogram
    return replace(histogram, keys=tuple(key[present] for key in histogram.keys), group=group)


def _key_column(curves: Curves, place: int) -> pa.Array:
    """A context column; NULL in the rows of smaller depths."""
    kind = _type_of(curves.keys[-1][place])
    above = curves.starts[place + 1]
    below = [
        pa.array(keys[place].tolist() if keys[place].dtype == object else keys[place], kind)
        for keys in curves.keys[place + 1 :]
    ]
    return pa.concat_arrays([pa.nulls(above, kind), *below])


def _type_of(key: NDArray[Any]) -> pa.DataType:
    values = [value for value in key.tolist() if value is not None]
    kind = np.asarray(values).dtype.kind if values else "U"
    return {"i": pa.int64(), "b": pa.bool_()}.get(kind, pa.string())


def _keys(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    words, codes = encode(column, name)
    return words[codes]


def _lists(matrix: NDArray[Any]) -> pa.ListArray:
    rows, knots = matrix.shape
    if matrix.size >= 2**31:
        raise InputError(f"curves: expected fewer than 2**31 values in a file, got {matrix.size}; use a coarser grid")
    flat = pa.array(np.ascontiguousarray(matrix).reshape(-1))
    kind = pa.list_(pa.field("element", flat.type, nullable=False))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * knots), flat, type=kind)


def _matrix(column: pa.ChunkedArray, knots: int) -> NDArray[Any]:
    lists = column.combine_chunks()
    if (np.diff(lists.offsets.to_numpy()) != knots).any():
        raise InputError(f"lists: expected {knots} knots in each, got a different number; write it again")
    return np.asarray(lists.flatten().to_numpy()).reshape(-1, knots)
