r"""Curves applied to a table inside its engine, as an Ibis expression.

Small tables bring the curves into the engine. Those of :func:`isolayer.curves.export.levels.levels` are joined once
per level, coarse to fine, so that an unseen context has the curve of its deepest known ancestor. The *cells* contain
the value at the start of every few buckets and the rise in each bucket. They are found by one join on an integer, which
is much faster in engines than adding an array of all knots to every row. At t buckets into a cell with value v and
rises r, the result is the same as in :mod:`isolayer.curves.curves`:

.. math:: p = \sigma(v + \sum_k \mathrm{clip}(t - k, 0, 1)\,r_k + (x - \mathrm{clip}(x, L, U)))

without the last term if curves are clipped beyond the grid.

The same as one statement in plain text is :mod:`isolayer.curves.export.sql`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ibis
import numpy as np
import pyarrow as pa

from isolayer.curves.curves import Curves
from isolayer.curves.export.levels import Level, levels
from isolayer.curves.export.sql import cells_of, own_prefix
from isolayer.errors import InputError
from isolayer.fitting.categories import KINDS
from isolayer.fitting.packed import Packed
from isolayer.settings import text
from isolayer.tables.apply_fields import apply_fields
from isolayer.tables.histogram_query import logit_expression
from isolayer.tables.resident import name_of, resident
from isolayer.tables.sources import (
    ROWS,
    Table,
    Value,
    as_table,
    backend_of,
    double,
    finite,
    infinite,
    is_nothing,
    is_relation,
    unbound,
)

_DENSE = 1_000_000  # with up to this many cells DuckDB joins by a table lookup instead of hashing
_PACKS = (1, 2, 4, 8)  # buckets per cell
_ARROW_TYPES = {"i": pa.int64(), "b": pa.bool_(), "U": pa.string(), None: pa.bool_()}
_IBIS_TYPES = {"i": "int64", "b": "boolean", "U": "string"}
_FILLERS = {"i": 0, "b": False, "U": "", None: False}  # placeholders for a missing key, which also has a flag
_FLOATS = {"float16": 11, "float32": 24, "float64": 53}  # powers of two below which floats are exact for integers


class Lookup(NamedTuple):
    """Curves as the tables that an engine joins with.

    Args:
        levels: One table per level: ``base``, the first cell of the curve; ``parent``, that of its parent, from level 2
            on; ``key``, the context's value; and, if any value is missing, ``gap``, which is 1 for a missing value.
        cells: ``at``, the number of the cell; ``v``, the value at its start; ``r0`` to ``r<pack - 1>``, the rises of
            its buckets.
        width: Cells per curve.
        pack: Buckets per cell.
        packed: For packed curves two further tables, otherwise none: the weights of the shapes of each curve by its
            ``row``, with the first cell of its ``root``; and the shapes by ``bucket``.
    """

    levels: list[pa.Table]
    cells: pa.Table
    width: int
    pack: int
    packed: tuple[pa.Table, ...] = ()


def apply_table(curves: Curves, source: Any, *, score: str = "score", prob: str = "calibrated_prob") -> Any:
    """A table with one more column, the calibrated probability; NULL if the score cannot be used.

    Nothing runs until the result is fetched, and then it runs in the table's own engine. The curves are passed as small
    tables: temporary tables on a DuckDB connection, which are dropped some time after the last expression that needs
    them, and in-memory tables of Ibis elsewhere.

    Args:
        curves: The fitted curves.
        source: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
        score: Its score column, on the scale of the curves.
        prob: Name of the new column.

    Returns:
        A lazy Ibis table; for a DuckDB relation, a relation on the same connection.

    >>> from isolayer.grid import Grid
    >>> table = apply_table(Curves.identity(Grid()), {"id": [1, 2], "score": [0.0, None]})
    >>> table.order_by("id").to_pyarrow()["calibrated_prob"].to_pylist()
    [0.5, None]
    """
    for name, column in {"score": score, "prob": prob}.items():
        text(name, column, advice="name a column")
    if curves.terms is not None:
        return apply_fields(curves, source, score=score, prob=prob)
    table = unbound(source) if is_relation(source) else as_table(source)
    walk = levels(curves)
    _check_columns(table, curves, walk, score, prob)
    own = own_prefix([*table.columns, prob])
    lookup = lookup_tables(curves, walk)
    parts = [_as_in(part, table.schema()[level.context]) for part, level in zip(lookup.levels, walk, strict=True)]
    parts = [
        part.rename_columns([f"{own}_{name}" for name in part.column_names])
        for part in (*parts, *lookup.packed, lookup.cells)
    ]
    if is_relation(source):
        named = {name_of(part): part for part in parts}
        tables = [ibis.table(ibis.Schema.from_pyarrow(part.schema), name=name) for name, part in named.items()]
    else:
        backend = backend_of(table)
        tables = [resident(backend, part) for part in parts]
    calibrated = _Expression(curves, walk, lookup, own, tables).calibrated(table, score, prob)
    return _on_relation(source, calibrated, named) if is_relation(source) else calibrated


def lookup_tables(curves: Curves, walk: list[Level], *, pack: int | None = None) -> Lookup:
    """Curves as the tables that an engine joins with.

    >>> from isolayer.grid import Grid
    >>> lookup_tables(Curves.identity(Grid(lower=0, upper=3, step=1)), []).cells.to_pydict()
    {'at': [0, 1, 2], 'v': [0.0, 1.0, 2.0], 'r0': [1.0, 1.0, 1.0]}
    """
    if isinstance(curves.values, Packed):
        return _packed_lookup(curves.values, walk)
    rows, knots = curves.values.shape
    if pack is None:
        fitting = [pack for pack in _PACKS if rows * -(-(knots - 1) // pack) <= _DENSE]
        pack = fitting[0] if fitting else 1
    start, rise = cells_of(curves.values, pack)
    width = len(start) // rows
    whole = np.int32 if len(start) < 2**31 else np.int64
    cells = {"at": np.arange(len(start), dtype=whole), "v": start} | {f"r{k}": rise[:, k].copy() for k in range(pack)}
    return Lookup(_level_tables(walk, width, whole), pa.table(cells), width, pack)


def _level_tables(walk: list[Level], width: int, whole: Any) -> list[pa.Table]:
    """Tables that map a context to a curve; the number of a curve is that of the first of its ``width`` cells."""
    parts = list[pa.Table]()
    for depth, level in enumerate(walk, start=1):
        columns: dict[str, Any] = {f"base_{depth}": (level.rows * width).astype(whole)}
        if depth > 1:
            columns[f"parent_{depth}"] = (level.parent * width).astype(whole)
        keys = [_FILLERS[level.kind] if key is None else key for key in level.keys]
        columns[f"key_{depth}"] = pa.array(keys, _ARROW_TYPES[level.kind])
        if level.has_missing:
            columns[f"gap_{depth}"] = np.array([key is None for key in level.keys], np.int8)
        parts.append(pa.table(columns))
    return parts


def _packed_lookup(values: Packed, walk: list[Level]) -> Lookup:
    """Packed curves as tables: cells of the whole curves only, and a few numbers for every other curve."""
    flat, (start, rise) = values.flat(), cells_of(values.whole, 1)
    width = values.shape[1] - 1
    cells = {"at": np.arange(len(start), dtype=np.int32), "v": start, "r0": rise[:, 0].copy()}
    weights = {f"w{k}": column.copy() for k, column in enumerate(flat.weights.T)}
    curves = {"row": np.arange(len(values), dtype=np.int32), "root": (flat.root * width).astype(np.int32), **weights}
    shapes: dict[str, Any] = {"bucket": np.arange(width, dtype=np.int32)}
    for k in range(flat.weights.shape[1]):
        shapes |= {f"s{k}": flat.start[:, k].copy(), f"t{k}": flat.rise[:, k].copy()}
    packed = pa.table(curves), pa.table(shapes)
    return Lookup(_level_tables(walk, 1, np.int32), pa.table(cells), width, 1, packed)


class _Expression(NamedTuple):
    """The whole expression: find the curve, find the cell, interpolate. Its tables are those of a `Lookup`, in Ibis."""

    curves: Curves
    walk: list[Level]
    lookup: Lookup
    own: str
    tables: list[Table]

    def column(self, table: Table, name: str) -> Value:
        return table[f"{self.own}_{name}"]

    def named(self, **values: Value) -> dict[str, Value]:
        return {f"{self.own}_{name}": value for name, value in values.items()}

    def calibrated(self, table: Table, score: str, prob: str) -> Table:
        rows = self.with_base(self.placed(table, score))
        cells, pack = self.tables[-1], self.lookup.pack
        # Every row has a cell, so an inner join loses no row; DuckDB joins by lookup only for inner joins.
        joined = rows.inner_join(cells, self.column(rows, "cell") == self.column(cells, "at"))
        value, into = self.column(joined, "v"), self.column(joined, "into")
        for k in range(len(self.lookup.packed and self.lookup.packed[1].column_names) // 2):
            shape = self.column(joined, f"s{k}") + into * self.column(joined, f"t{k}")
            value += self.column(joined, f"w{k}").cast("float64") * shape
        for k in range(pack):
            into = self.column(joined, "into")
            into = into if k == 0 else ibis.greatest(into - double(k), double(0))
            value += (into if k == pack - 1 else ibis.least(into, double(1))) * self.column(joined, f"r{k}")
        clipped = ibis.least(ibis.greatest(value + self.column(joined, "outside"), double(-700)), double(36))
        sigmoid = double(1) / (double(1) + (-clipped).exp())
        good, _ = logit_expression(joined[score], self.curves.scale)
        return joined.select(*table.columns, **{prob: ibis.ifelse(good, sigmoid, ibis.null("float64"))})

    def placed(self, table: Table, score: str) -> Table:
        """Rows with the cell that their score is in, the position in it, and the distance outside the grid."""
        grid, (width, pack) = self.curves.grid, self.lookup[2:4]
        good, logit = logit_expression(table[score], self.curves.scale)
        logit = ibis.ifelse(good, logit, double(0))  # from here on there is neither NULL nor NaN
        inside = ibis.least(ibis.greatest(logit, double(grid.lower)), double(grid.upper))
        place = (inside - double(grid.lower)) * double(1 / grid.step)
        group = ibis.least(place * double(1 / pack), double(width - 0.5)).floor().cast("int32")
        outside = logit - inside if self.curves.extrapolation == "extend" else double(0)
        rows = table.mutate(**self.named(group=group, into=place, outside=outside))
        return rows.mutate(**self.named(into=self.column(rows, "into") - self.column(rows, "group") * pack))

    def with_base(self, rows: Table) -> Table:
        """Rows with the cell of the deepest curve that their context has."""
        found = list[Value]()
        for depth, (level, part) in enumerate(zip(self.walk, self.tables, strict=False), start=1):
            context = rows[level.context]
            same = [] if level.kind is None else [_key(context, level) == self.column(part, f"key_{depth}")]
            if level.has_missing:
                same.append(_gap(context) == self.column(part, f"gap_{depth}"))
            if depth > 1:
                same.append(self.column(rows, f"base_{depth - 1}") == self.column(part, f"parent_{depth}"))
            rows = rows.left_join(part, same).select(*rows.columns, f"{self.own}_base_{depth}")
            found.insert(0, f"base_{depth}")
        zero = ibis.literal(0, self.column(self.tables[-1], "at").type())
        base = ibis.coalesce(*(self.column(rows, name) for name in found), zero)
        if not self.lookup.packed:
            return rows.mutate(**self.named(cell=base + self.column(rows, "group")))
        curves, shapes = self.tables[-3:-1]
        rows = rows.mutate(**self.named(curve=base))
        rows = rows.inner_join(curves, self.column(rows, "curve") == self.column(curves, "row"))
        rows = rows.inner_join(shapes, self.column(rows, "group") == self.column(shapes, "bucket"))
        return rows.mutate(**self.named(cell=self.column(rows, "root") + self.column(rows, "group")))


def _key(context: Value, level: Level) -> Value:
    """A context's value as it is compared with keys; a missing value matches by its flag alone."""
    kind = context.type()
    value = context
    if is_nothing(kind) or kind.is_floating():
        value = context.cast("float64" if kind.is_floating() else _IBIS_TYPES[level.kind or "b"])
    elif kind.is_decimal():
        value = _whole(context, level)
    if not level.has_missing:
        return value
    filler = ibis.literal(_FILLERS[level.kind], value.type())
    return ibis.ifelse(_gap(context) == 1, filler, value)


def _whole(decimal: Value, level: Level) -> Value:
    """A decimal as a 64-bit integer: its value if it is whole, otherwise an integer that is not a key."""
    kind, whole = decimal.type(), decimal.floor()
    good = decimal == whole
    if kind.precision is None or kind.precision - (kind.scale or 0) > 18:
        good &= whole.between(ibis.literal(-(2**63), "int64"), ibis.literal(2**63 - 1, "int64"))
    words = set(level.words)
    unseen = next(number for number in range(len(words) + 1) if number not in words)
    return ibis.ifelse(good, whole, ibis.literal(unseen, kind)).cast("int64")


def _gap(context: Value) -> Value:
    """1 if a context is missing, otherwise 0: NaN is missing, infinity is not.

    Neither ``isnan`` (see `finite`) nor ``isinf`` (see `infinite`) is reliable in all engines.
    """
    gap = context.isnull()
    if context.type().is_floating():
        gap |= ~(finite(context) | infinite(context)).fill_null(False)
    return ibis.ifelse(gap, ibis.literal(1, "int8"), ibis.literal(0, "int8"))


def _check_columns(table: Table, curves: Curves, walk: list[Level], score: str, prob: str) -> None:
    columns = table.schema()
    for name in (score, *curves.contexts):
        if name not in columns:
            raise InputError(f"column {name}: expected it in the table, got {list(columns)}; name another")
    if not (columns[score].is_numeric() or is_nothing(columns[score])):
        raise InputError(f"column {score}: expected numbers, got {columns[score]}; convert it")
    if prob.casefold() in [name.casefold() for name in columns]:
        raise InputError(f"prob: expected a name that no column has, got {prob!r}; choose another")
    for level in walk:
        _check_context(columns[level.context], level)


def _check_context(given: Any, level: Level) -> None:
    number = given.is_integer() or given.is_floating() or given.is_decimal()
    fits = {"i": number, "b": given.is_boolean(), "U": given.is_string()}
    if not (is_nothing(given) or (any(fits.values()) if level.kind is None else fits[level.kind])):
        rule = "strings, integers or booleans" if level.kind is None else f"{KINDS[level.kind]} as when fitted"
        raise InputError(f"context {level.context}: expected {rule}, got {given}; convert the column")
    bits = _FLOATS.get(str(given).lstrip("!"))
    if level.kind == "i" and bits is not None and max(abs(key) for key in level.words) >= 2**bits:
        raise InputError(
            f"context {level.context}: expected integers, since some keys are beyond 2**{bits}, got "
            f"{str(given).lstrip('!')}; convert the column"
        )


def _on_relation(relation: Any, expression: Table, tables: dict[str, pa.Table]) -> Any:
    """Run an expression on a relation's connection, where DuckDB finds the tables among the variables of the caller."""
    sql = ibis.to_sql(expression, dialect="duckdb")
    return eval("relation.query(rows, sql)", {"relation": relation, "rows": ROWS, "sql": str(sql), **tables})


def _as_in(part: pa.Table, kind: Any) -> pa.Table:
    """Keys in the type of the table's column if they fit, so that the engine does not convert every row."""
    for place, field in enumerate(part.schema):
        if field.name.startswith("key_") and (kind.is_floating() or kind.is_integer()):
            try:
                to = pa.float64() if kind.is_floating() else kind.to_pyarrow()
                return part.set_column(place, field.name, part[field.name].cast(to))
            except pa.ArrowInvalid:  # a key that does not fit into the table's integers
                return part
    return part
