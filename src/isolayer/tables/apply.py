r"""Curves in SQL: applied to a table where it lives, or written as one statement.

Two small tables carry the curves into the engine. ``isolayer_keys`` has the number of each context's curve and is
joined once a level, coarse to fine, so that an unseen context has the curve of its deepest known ancestor.
``isolayer_cells`` has the value at the start of every few buckets and the rises of these, found by one join on an
integer: engines are far better at that than at carrying an array of all knots along every row. With t buckets into a
cell of value v and rises r, the answer is that of :mod:`isolayer.curves.curves`:

.. math:: p = \sigma(v + \sum_k \mathrm{clip}(t - k, 0, 1)\,r_k + (x - \mathrm{clip}(x, L, U)))
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import ibis
import numpy as np
import pyarrow as pa
import sqlglot
from sqlglot import exp

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.tables.histogram_query import logit_expression
from isolayer.tables.sources import ROWS, Table, Value, as_table, double, finite, is_relation, unbound

DIALECTS = ("duckdb", "spark", "bigquery", "snowflake", "trino", "postgres")

_KEYS, _CELLS = "isolayer_keys", "isolayer_cells"
_DENSE = 1_000_000  # up to so many cells DuckDB joins by a table lookup instead of hashing
_PACKS = (1, 2, 4, 8)  # buckets a cell
_WRITTEN = 5  # buckets a cell in a written statement, where each end costs twenty characters
_BASE, _LEVEL, _GROUP, _INTO, _OUTSIDE = (f"isolayer_{n}" for n in ("base", "level", "group", "into", "outside"))
_AT, _START, _RISE = (f"isolayer_{n}" for n in ("at", "v", "r"))
_BIGQUERY_TYPES = {"int32": "INT64", "int64": "INT64", "double": "FLOAT64", "string": "STRING", "bool": "BOOL"}
_ARROW_TYPES = {"i": pa.int64(), "b": pa.bool_(), "U": pa.string()}
_KINDS = {"i": "integers", "b": "booleans", "U": "strings"}


class Lookup(NamedTuple):
    """Curves as two tables, and how many buckets a cell has.

    Args:
        keys: Context columns, the level, and the first cell: one row a curve below the global one.
        cells: ``isolayer_at``, the number of the cell, the value at its start, ``isolayer_v``, and the rises of its
            buckets, ``isolayer_r0`` to ``isolayer_r<pack - 1>``: names that no column of a user has.
        pack: Buckets a cell.
    """

    keys: pa.Table
    cells: pa.Table
    pack: int


def apply_table(curves: Curves, source: Any, *, score: str = "score", prob: str = "calibrated_prob") -> Any:
    """A table with one more column, the calibrated probability; NULL where the score cannot be used.

    Nothing runs until the answer is asked for, and then in the table's own engine. The curves go there as two small
    tables: temporary ones on a DuckDB connection, in-memory ones of Ibis elsewhere.

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
    table = unbound(source) if is_relation(source) else as_table(source)
    _check_columns(table, curves, score, prob)
    lookup = lookup_tables(curves)
    lookup = lookup._replace(keys=_as_in(lookup.keys, table))
    if is_relation(source):
        sql = ibis.to_sql(_calibrated(curves, table, _unbound(lookup), score=score, prob=prob), dialect="duckdb")
        return _on_relation(source, sql, lookup.keys, lookup.cells)
    backend = ibis.get_backend(table)
    inside = lookup._replace(keys=_resident(backend, lookup.keys), cells=_resident(backend, lookup.cells))
    return _calibrated(curves, table, inside, score=score, prob=prob)


def to_sql(
    curves: Curves,
    dialect: str = "duckdb",
    *,
    table: str = "scores",
    score: str = "score",
    prob: str = "calibrated_prob",
    keep: Sequence[str] = (),
) -> str:
    """One statement that calibrates a table, with the curves written inside it.

    Its length grows by about 2 kB a curve; for very many curves use :func:`apply_table`.

    Args:
        curves: The fitted curves.
        dialect: ``"duckdb"``, ``"spark"``, ``"bigquery"``, ``"snowflake"``, ``"trino"`` or ``"postgres"``.
        table: The table to read, as it is written in a FROM clause.
        score: Its score column. Column names are quoted exactly as they are given.
        prob: Name of the new column.
        keep: Further columns to hand on, besides the score and the contexts.

    >>> from isolayer.grid import Grid
    >>> print(to_sql(Curves.identity(Grid(lower=0, upper=1, step=1)), "postgres")[:63])
    WITH "isolayer_cells" AS (SELECT * FROM (VALUES
    (0,0.0E0,1.0E0)
    """
    if dialect not in DIALECTS:
        raise InputError(f"dialect: expected one of {', '.join(DIALECTS)}, got {dialect!r}; choose one")
    lookup = lookup_tables(curves, pack=min(_WRITTEN, curves.grid.buckets - 1))
    columns = dict.fromkeys(keep, "string") | {score: "float64"}
    columns |= {name: _unbound(lookup).keys.schema()[name] for name in curves.contexts}
    expression = _calibrated(curves, ibis.table(columns, name=ROWS), _unbound(lookup), score=score, prob=prob)
    statement = str(ibis.to_sql(expression, dialect="duckdb"))
    tree = sqlglot.parse_one(statement, read="duckdb")
    if tree.find(exp.CTE):  # these stand in a query of their own, below the tables that are written out
        tree = sqlglot.select("*").from_(exp.Subquery(this=tree, alias=exp.to_identifier("calibrated")))
    for node in list(tree.find_all(exp.Table)):
        if node.name == ROWS:
            named = exp.to_table(table, dialect=dialect)
            alias = exp.to_identifier(node.alias, quoted=True)  # as it is where columns are named by it
            node.replace(exp.alias_(named, alias, table=True))
    parts = {_KEYS: lookup.keys, _CELLS: lookup.cells} if curves.contexts else {_CELLS: lookup.cells}
    written = ", ".join(f"{_quoted(name, dialect)} AS ({_values(part, dialect)})" for name, part in parts.items())
    return f"WITH {written}\n{tree.sql(dialect, pretty=True)}"


def lookup_tables(curves: Curves, *, pack: int | None = None) -> Lookup:
    """Curves as the two tables that an engine joins with.

    >>> from isolayer.grid import Grid
    >>> lookup_tables(Curves.identity(Grid(lower=0, upper=3, step=1))).cells.to_pydict()
    {'isolayer_at': [0, 1, 2], 'isolayer_v': [0.0, 1.0, 2.0], 'isolayer_r0': [1.0, 1.0, 1.0]}
    """
    rows, knots = curves.values.shape
    if pack is None:
        fitting = [pack for pack in _PACKS if rows * _cells(knots, pack) <= _DENSE]
        pack = fitting[0] if fitting else 1
    width = _cells(knots, pack)
    whole = np.int32 if rows * width < 2**31 else np.int64
    rise = np.zeros((rows, width * pack))  # beyond the last knot there is nothing to rise
    rise[:, : knots - 1] = np.diff(curves.values)
    cells = {_AT: np.arange(rows * width, dtype=whole), _START: curves.values[:, : knots - 1 : pack].reshape(-1)}
    cells |= {f"{_RISE}{k}": rise[:, k::pack].reshape(-1) for k in range(pack)}
    sizes = np.diff(curves.starts)
    keys = {name: _key_column(curves, name) for name in curves.contexts}
    keys |= {_LEVEL: np.repeat(np.arange(len(sizes)), sizes)[1:], _BASE: width * np.arange(1, rows, dtype=whole)}
    return Lookup(pa.table(keys), pa.table(cells), pack)


def _key_column(curves: Curves, name: str) -> pa.Array:
    """Values of a context of all curves but the global one; NULL for those of levels above it."""
    place, kind = curves.contexts.index(name), _kind(curves, name)
    values = [keys[place].tolist() if place < len(keys) else [None] * len(keys[0]) for keys in curves.keys[1:]]
    return pa.array([value for level in values for value in level], _ARROW_TYPES[kind])


def _cells(knots: int, pack: int) -> int:
    """BinnedRows a curve has: its buckets, a few at a time."""
    return -(-(knots - 1) // pack)


def _kind(curves: Curves, name: str) -> str:
    """Type of a context's values: ``i``, ``b`` or ``U``."""
    place = curves.contexts.index(name)
    values = [value for value in curves.keys[place + 1][place].tolist() if value is not None]
    return np.asarray(values).dtype.kind if values else "U"


def _check_columns(table: Table, curves: Curves, score: str, prob: str) -> None:
    columns = table.schema()
    for name in (score, *curves.contexts):
        if name not in columns:
            raise InputError(f"column {name}: expected it in the table, got {list(columns)}; name another")
    if not columns[score].is_numeric():
        raise InputError(f"column {score}: expected numbers, got {columns[score]}; convert it")
    if prob in columns:
        raise InputError(f"prob: expected a name that no column has, got {prob!r}; choose another")
    for name in curves.contexts:
        given, kind = columns[name], _kind(curves, name)
        whole = given.is_integer() or given.is_floating()  # integers with gaps come as floats
        fits = {"i": whole, "b": given.is_boolean(), "U": given.is_string()}[kind]
        if not fits:
            raise InputError(f"context {name}: expected {_KINDS[kind]} as when fitted, got {given}; convert the column")


def _calibrated(curves: Curves, table: Table, lookup: Lookup, *, score: str, prob: str) -> Table:
    """The whole expression: find the curve, find the cell, interpolate. The lookup's tables are Ibis tables here."""
    rows = _with_base(curves, _placed(curves, table, lookup.pack, score), lookup.keys)
    # Every row has a cell, so an inner join loses none; DuckDB joins by lookup only when it is one.
    joined = rows.inner_join(lookup.cells, rows["isolayer_cell"] == lookup.cells[_AT])
    value = joined[_START]
    for k in range(lookup.pack):
        into = joined[_INTO] if k == 0 else ibis.greatest(joined[_INTO] - double(k), double(0))
        value += (into if k == lookup.pack - 1 else ibis.least(into, double(1))) * joined[f"{_RISE}{k}"]
    clipped = ibis.least(ibis.greatest(value + joined[_OUTSIDE], double(-700)), double(36))
    sigmoid = double(1) / (double(1) + (-clipped).exp())
    good, _ = logit_expression(joined[score], curves.scale)
    return joined.select(*table.columns, **{prob: ibis.ifelse(good, sigmoid, ibis.null("float64"))})


def _placed(curves: Curves, table: Table, pack: int, score: str) -> Table:
    """Rows with the group of buckets their score falls into, how far into it, and how far outside the grid."""
    grid, width = curves.grid, _cells(curves.grid.buckets, pack)
    good, logit = logit_expression(table[score], curves.scale)
    inside = ibis.least(ibis.greatest(logit, double(grid.lower)), double(grid.upper))
    place = (inside - double(grid.lower)) * double(1 / grid.step)
    group = ibis.least(place * double(1 / pack), double(width - 0.5)).floor()
    group = ibis.ifelse(good, group, 0).cast("int32")  # in some engines NaN stays NaN so far, which has no integer
    rows = table.mutate(**{_GROUP: group, _INTO: place, _OUTSIDE: logit - inside})
    return rows.mutate(**{_INTO: rows[_INTO] - rows[_GROUP] * pack})


def _with_base(curves: Curves, rows: Table, keys: Table) -> Table:
    """Rows with the cell of the deepest curve that their context has."""
    found = list[str]()
    for level in range(1, len(curves.contexts) + 1):
        name, some = f"{_BASE}_{level}", keys.filter(keys[_LEVEL] == level)
        key_of = {context: f"isolayer_key_{place}" for place, context in enumerate(curves.contexts[:level])}
        some = some.select(**{key: some[context] for context, key in key_of.items()}, **{name: some[_BASE]})
        same = [
            _value(rows[context]).identical_to(some[key])
            if _has_missing(curves, context)
            else rows[context] == some[key]
            for context, key in key_of.items()
        ]
        rows = rows.left_join(some, same).select(*rows.columns, name)
        found.insert(0, name)
    base = ibis.coalesce(*(rows[name] for name in found), ibis.literal(0, keys[_BASE].type()))
    return rows.mutate(isolayer_cell=base + rows[_GROUP])


def _value(context: Value) -> Value:
    """A context as joins find it: NaN is missing."""
    if not context.type().is_floating():
        return context
    return ibis.ifelse(finite(context), context, ibis.null(context.type()))


def _has_missing(curves: Curves, name: str) -> bool:
    """Whether a missing value of a context has a curve of its own: only then must a join find NULL."""
    place = curves.contexts.index(name)
    return any(None in keys[place].tolist() for keys in curves.keys[place + 1 :])


def _resident(backend: Any, part: pa.Table) -> Table:
    """A small table inside an engine.

    On DuckDB it is a temporary table, named by its content so that it is made once: of such DuckDB knows the range of
    the keys, and joins by lookup.
    """
    if backend.name != "duckdb":
        return ibis.memtable(part)
    digest = hashlib.sha1(usedforsecurity=False)
    for column in part.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                digest.update(buffer or b"-")
    name = f"isolayer_{digest.hexdigest()[:16]}"
    backend.con.register(f"{name}_arrow", part)
    backend.con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {name} AS SELECT * FROM {name}_arrow")
    backend.con.unregister(f"{name}_arrow")
    with warnings.catch_warnings():  # Ibis asks DuckDB by a name that DuckDB 2 deprecates: nobody's to repair here
        warnings.filterwarnings("ignore", "fetch_arrow_table", DeprecationWarning)
        return backend.table(name, database=("temp", "main"))


def _on_relation(relation: Any, sql: str, isolayer_keys: pa.Table, isolayer_cells: pa.Table) -> Any:
    """Run a statement on a relation's connection, where DuckDB finds the two tables by the names they have here."""
    return relation.query(ROWS, sql)


def _as_in(keys: pa.Table, table: Table) -> pa.Table:
    """Keys with integers as narrow as the table's, where they fit, so that no engine has to widen every row."""
    columns = table.schema()
    for place, field in enumerate(keys.schema):
        kind = columns.get(field.name)
        if kind is None or not (kind.is_integer() or kind.is_floating()):
            continue
        to = kind.to_pyarrow() if kind.is_integer() else pa.float64()
        try:
            keys = keys.set_column(place, field.name, keys[field.name].cast(to))
        except pa.ArrowInvalid as error:  # a key that the table cannot hold
            if kind.is_floating():
                raise InputError(
                    f"context {field.name}: expected integers, since some keys are beyond 2**53, got {kind}; convert "
                    "the column"
                ) from error
    return keys


def _unbound(lookup: Lookup) -> Lookup:
    """The lookup's tables as names, for a statement."""
    keys, cells = (ibis.Schema.from_pyarrow(part.schema) for part in (lookup.keys, lookup.cells))
    return Lookup(ibis.table(keys, name=_KEYS), ibis.table(cells, name=_CELLS), lookup.pack)


def _quoted(name: str, dialect: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(dialect)


def _values(part: pa.Table, dialect: str) -> str:
    """A table written as a query."""
    names = [_quoted(name, dialect) for name in part.column_names]
    columns = [[_literal(value, dialect) for value in column.to_pylist()] for column in part.columns]
    rows = zip(*columns, strict=True)
    if dialect != "bigquery":
        body = ",\n".join(f"({','.join(row)})" for row in rows)
        return f"SELECT * FROM (VALUES\n{body}\n) AS t({', '.join(names)})"
    # The first row gives the names and the types of the others, so a NULL in it needs one.
    kinds = [_BIGQUERY_TYPES[str(field.type)] for field in part.schema]
    first = [f"CAST({value} AS {kind}) AS {name}" for value, kind, name in zip(next(rows), kinds, names, strict=True)]
    rest = "".join(f",\n({','.join(row)})" for row in rows)
    return f"SELECT * FROM UNNEST([STRUCT({', '.join(first)}){rest}])"


def _literal(value: Any, dialect: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        text = repr(value)
        return text if "e" in text else f"{text}E0"  # with an exponent it is a double everywhere, not a decimal
    return str(value) if isinstance(value, int) else exp.Literal.string(value).sql(dialect)
