r"""Curves in SQL: applied to a table where it lives, or written as one statement.

Two small tables carry the curves into the engine. ``isolayer_keys`` has the number of each context's curve and is
joined once a level, coarse to fine, so that an unseen context has the curve of its deepest known ancestor.
``isolayer_cells`` has the values at the ends of every few buckets, found by one join on an integer: engines are far
better at that than at carrying an array of all knots along every row. Then, as in :mod:`isolayer.curves`,

.. math:: p = \sigma(v_j + f (v_{j+1} - v_j) + (x - \mathrm{clip}(x, L, U)))
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

from isolayer.curves import Curves
from isolayer.errors import InputError
from isolayer.sources import ROWS, Table, Value, as_table, double, is_relation, unbound
from isolayer.tables import logit_expression

DIALECTS = ("duckdb", "spark", "bigquery", "snowflake", "trino", "postgres")

_KEYS, _CELLS = "isolayer_keys", "isolayer_cells"
_DENSE = 1_000_000  # up to so many cells DuckDB joins by a table lookup instead of hashing
_PACKS = (1, 2, 4, 8)  # buckets a cell
_WRITTEN = 5  # buckets a cell in a written statement, where each end costs twenty characters
_CURVE, _PLACE, _LEFT, _OUTSIDE = "isolayer_curve", "isolayer_place", "isolayer_left", "isolayer_outside"
_BIGQUERY_TYPES = {"int64": "INT64", "double": "FLOAT64", "string": "STRING", "bool": "BOOL"}
_KINDS = {"i": "integers", "b": "booleans", "U": "strings"}


class Lookup(NamedTuple):
    """Curves as two tables, and how many buckets a cell has.

    Args:
        keys: Context columns, ``level`` and ``curve``: one row a curve below the global one.
        cells: ``cell`` and values ``v0 .. v<pack>`` at the ends of its buckets.
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
    if is_relation(source):
        keys, cells = (_unbound(part, name) for part, name in ((lookup.keys, _KEYS), (lookup.cells, _CELLS)))
        sql = ibis.to_sql(_calibrated(curves, table, keys, cells, lookup.pack, score, prob), dialect="duckdb")
        return _on_relation(source, sql, lookup.keys, lookup.cells)
    backend = ibis.get_backend(table)
    keys, cells = _resident(backend, lookup.keys), _resident(backend, lookup.cells)
    return _calibrated(curves, table, keys, cells, lookup.pack, score, prob)


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
    columns |= {name: _ibis_type(lookup.keys, name) for name in curves.contexts}
    rows = ibis.table(columns, name=ROWS)
    keys, cells = _unbound(lookup.keys, _KEYS), _unbound(lookup.cells, _CELLS)
    statement = str(ibis.to_sql(_calibrated(curves, rows, keys, cells, lookup.pack, score, prob), dialect="duckdb"))
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
    {'cell': [0, 1, 2], 'v0': [0.0, 1.0, 2.0], 'v1': [1.0, 2.0, 3.0]}
    """
    rows, knots = curves.values.shape
    if pack is None:
        fitting = [pack for pack in _PACKS if rows * _cells(knots, pack) <= _DENSE]
        pack = fitting[0] if fitting else 1
    width = _cells(knots, pack)
    last = np.repeat(curves.values[:, -1:], width * pack + 1 - knots, axis=1)
    padded = np.concatenate([curves.values, last], axis=1)
    ends = {f"v{k}": padded[:, k : k + pack * (width - 1) + 1 : pack].reshape(-1) for k in range(pack + 1)}
    columns = dict[str, Any]()
    for place, name in enumerate(curves.contexts):
        below = [keys[place].tolist() if place < len(keys) else [None] * len(keys[0]) for keys in curves.keys[1:]]
        kind = _kind(curves, name)
        columns[name] = pa.array(
            [value for level in below for value in level], {"i": pa.int64(), "b": pa.bool_()}.get(kind, pa.string())
        )
    sizes = np.diff(curves.starts)
    columns["isolayer_level"] = np.repeat(np.arange(len(sizes)), sizes)[1:]
    columns[_CURVE] = np.arange(1, rows)
    return Lookup(pa.table(columns), pa.table({"cell": np.arange(rows * width), **ends}), pack)


def _cells(knots: int, pack: int) -> int:
    """Cells a curve has: its buckets, a few at a time."""
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
        fits = {"i": given.is_integer(), "b": given.is_boolean(), "U": given.is_string()}[kind]
        if not fits:
            raise InputError(f"context {name}: expected {_KINDS[kind]} as when fitted, got {given}; convert the column")


def _calibrated(curves: Curves, table: Table, keys: Table, cells: Table, pack: int, score: str, prob: str) -> Table:
    """The whole expression: find the curve, find the cell, interpolate."""
    grid, names = curves.grid, list(table.columns)
    good, logit = logit_expression(table[score], curves.scale)
    inside = ibis.least(ibis.greatest(logit, double(grid.lower)), double(grid.upper))
    place = (inside - double(grid.lower)) * double(1 / grid.step)
    left = ibis.least(place, double(grid.buckets - 2)).floor()
    rows = table.mutate(
        **{
            _PLACE: ibis.ifelse(good, place, ibis.null("float64")),
            _LEFT: ibis.ifelse(good, left, 0).cast("int32"),
            _OUTSIDE: logit - inside,
        }
    )
    rows, curve = _with_curve(curves, rows, keys)
    group = rows[_LEFT] if pack == 1 else (rows[_LEFT] - rows[_LEFT] % pack) / pack
    cell = curve * _cells(grid.buckets, pack) + group.cast("int64")
    # Every row has a cell, so an inner join loses none; DuckDB joins by lookup only when it is one.
    rows = rows.mutate(isolayer_cell=cell)
    joined = rows.inner_join(cells, rows["isolayer_cell"] == cells["cell"])
    within = joined[_LEFT] % pack
    below, above = (_pick(within, [joined[f"v{k + end}"] for k in range(pack)]) for end in (0, 1))
    value = below + (joined[_PLACE] - joined[_LEFT]) * (above - below) + joined[_OUTSIDE]
    clipped = ibis.least(ibis.greatest(value, double(-700)), double(36))
    calibrated = ibis.ifelse(joined[_PLACE].notnull(), double(1) / (double(1) + (-clipped).exp()), ibis.null("float64"))
    return joined.select(*names, **{prob: calibrated})


def _with_curve(curves: Curves, rows: Table, keys: Table) -> tuple[Table, Value]:
    """Join the keys of every level; the number of the deepest curve that was found."""
    found = list[str]()
    for level in range(1, len(curves.contexts) + 1):
        name, some = f"{_CURVE}_{level}", keys.filter(keys["isolayer_level"] == level)
        key_of = {context: f"isolayer_key_{place}" for place, context in enumerate(curves.contexts[:level])}
        some = some.select(**{key: some[context] for context, key in key_of.items()}, **{name: some[_CURVE]})
        same = [
            rows[context].identical_to(some[key]) if _has_missing(curves, context) else rows[context] == some[key]
            for context, key in key_of.items()
        ]
        rows = rows.left_join(some, same).select(*rows.columns, name)
        found.insert(0, name)
    return rows, ibis.coalesce(*(rows[name] for name in found), ibis.literal(0, "int64"))


def _has_missing(curves: Curves, name: str) -> bool:
    """Whether a missing value of a context has a curve of its own: only then must a join find NULL."""
    place = curves.contexts.index(name)
    return any(None in keys[place].tolist() for keys in curves.keys[place + 1 :])


def _pick(number: Value, values: list[Value]) -> Value:
    """``values[number]`` of each row."""
    if len(values) == 1:
        return values[0]
    return ibis.cases(*((number == k, value) for k, value in enumerate(values[:-1])), else_=values[-1])


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


def _unbound(part: pa.Table, name: str) -> Table:
    return ibis.table(ibis.Schema.from_pyarrow(part.schema), name=name)


def _ibis_type(part: pa.Table, name: str) -> str:
    return str(ibis.Schema.from_pyarrow(part.schema)[name])


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
