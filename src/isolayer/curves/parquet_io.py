"""Curves and histograms on disk: one Parquet file each, readable by any engine, written whole, verified when read.

A file of curves has one row per curve: the context columns (NULL below their depth), ``depth`` (how many of them pick
the curve), ``count``, and lists ``values``, ``variance`` and ``knot_weight`` at the knots. A file of a histogram has
one row per cell: the context columns, ``fold``, ``bin``, ``negative_rate`` and the sums. All else is in the facts
of :mod:`isolayer.curves.verified_file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.invariants import check_curves, check_histogram
from isolayer.curves.terms_io import COLUMNS, arrays_of, columns_of, facts_of, terms_of
from isolayer.curves.verified_file import Facts, digest_of, read_verified, write_verified
from isolayer.errors import InputError
from isolayer.fitting.categories import combine, encode, present_codes
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.terms import Terms
from isolayer.grid import Grid

_FACTS = ("scale", "extrapolation", "kind", "monotone", "score_name", "label_name", "source", "settings")
_LISTS = ("values", "variance", "knot_weight")
_PLACE, _SUMS = ("fold", "bin", "negative_rate"), ("count", "weight", "weight_squared", "positive", "logit")


def save_curves(curves: Curves, path: str | PathLike[str]) -> None:
    """Write curves as one Parquet file, in one step: whoever reads meanwhile sees the old file or the new one.

    Args:
        curves: The curves.
        path: Where to.
    """
    terms = curves.terms
    _refuse_names(curves.contexts, ("depth", "count", *_LISTS, *(COLUMNS if terms else ())))
    check_curves(curves)
    sizes = np.diff(curves.starts)
    columns: dict[str, Any] = {
        name: pa.array(
            [value for level in curves.keys for value in _at_depth(level, place)], _type_of(curves.keys[-1][place])
        )
        for place, name in enumerate(curves.contexts)
    }
    columns |= {"depth": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), "count": curves.count}
    columns |= {name: _lists(getattr(curves, name)) for name in _LISTS}
    facts = {**_shared_facts(curves.contexts, curves.grid), **{name: getattr(curves, name) for name in _FACTS}}
    facts |= {"source": dict(curves.source), "settings": dict(curves.settings), "knots": curves.grid.buckets}
    if terms is not None:
        columns, told = _with_terms(columns, terms), {"terms": facts_of(terms), "curves": len(curves.values)}
        facts |= told
    write_verified(_table(columns, curves.contexts), facts, "curves", _digest_of_curves(curves), path)


def load_curves(path: str | PathLike[str]) -> Curves:
    """Read what :func:`save_curves` wrote; every number is the same to the bit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_curves(Curves.identity(Grid()), f"{folder}/curves.parquet")
    ...     load_curves(f"{folder}/curves.parquet").predict_proba([0.0]).tolist()
    [0.5]
    """
    with read_verified(path, "curves") as (table, facts):
        contexts, grid = _contexts(facts), Grid(**facts["grid"])
        terms, table = _split_terms(table, facts)
        depth = table["depth"].to_numpy()
        if not len(table) or (np.diff(depth) < 0).any() or depth[0] != 0 or depth[-1] > len(contexts):
            raise InputError("depth: expected it in order from 0, got another; write it again")
        keys = tuple(
            tuple(_keys(table[name].filter(pa.array(depth == own)), name) for name in contexts[:own])
            for own in range(len(contexts) + 1)
        )
        values, variance, knot_weight = (_matrix(table[name], grid.buckets) for name in _LISTS)
        told = {name: facts[name] for name in _FACTS}
        curves = Curves(
            grid, contexts, keys, values, variance, knot_weight, table["count"].to_numpy(), **told, terms=terms
        )
        _refuse_unless_same(_digest_of_curves(curves), facts)
        check_curves(curves)
    return curves


def save_histogram(histogram: Histogram, path: str | PathLike[str]) -> None:
    """Write a histogram as one Parquet file, in one step. Groups without a cell are not kept."""
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


def _digest_of_curves(curves: Curves) -> str:
    told = {name: getattr(curves, name) for name in _FACTS} | {"source": dict(curves.source)}
    facts = {**_shared_facts(curves.contexts, curves.grid), **told, "settings": dict(curves.settings)}
    keys = [key for level in curves.keys for key in level]
    arrays = [getattr(curves, name) for name in (*_LISTS, "count")]
    if curves.terms is not None:
        facts["terms"] = facts_of(curves.terms)
        arrays += arrays_of(curves.terms)
    return digest_of(facts, keys, arrays)


def _digest_of_histogram(histogram: Histogram) -> str:
    facts = {**_shared_facts(histogram.contexts, histogram.grid), "source": dict(histogram.source)}
    return digest_of(facts, histogram.keys, [getattr(histogram, name) for name in ("group", *_PLACE, *_SUMS)])


def _with_terms(columns: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    """Columns of curves and, below them, of terms: each has nothing in the columns of the other."""
    own = columns_of(terms)
    curves, rows = len(columns["depth"]), len(own["term"])
    below: dict[str, Any] = {"depth": np.zeros(rows, np.int32), "count": own["count"]}
    out = dict[str, Any]()
    for name, column in columns.items():
        array = column if isinstance(column, pa.Array) else pa.array(column)
        more = pa.array(below[name]) if name in below else pa.array([[] if name in _LISTS else None] * rows, array.type)
        out[name] = pa.concat_arrays([array, more])
    above: dict[str, Any] = {name: np.zeros(curves, own[name].dtype) for name in COLUMNS if name != "level"}
    above["level"] = np.full(curves, "", dtype=object)
    kinds = {"level": pa.string()}
    return out | {name: pa.array([*above[name], *own[name]], kinds.get(name)) for name in COLUMNS}


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
        if name.casefold() in taken:  # most engines do not tell upper case from lower
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


def _at_depth(keys: tuple[NDArray[Any], ...], place: int) -> list[Any]:
    """Values of a context in the curves of a depth; None where the depth is above it."""
    return keys[place].tolist() if place < len(keys) else [None] * (len(keys[0]) if keys else 1)


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
        raise InputError(f"lists: expected {knots} knots in each, got another number; write it again")
    return np.asarray(lists.flatten().to_numpy()).reshape(-1, knots)
