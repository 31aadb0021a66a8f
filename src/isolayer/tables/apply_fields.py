"""Curves with fields applied to a table in its own engine, by running the SQL statement of the exports.

Curves without fields use an Ibis expression with small tables instead; see :mod:`isolayer.tables.apply`.
"""

from __future__ import annotations

from typing import Any

import ibis
import ibis.expr.operations as ops
import numpy as np

from isolayer.curves.curves import Curves
from isolayer.curves.export.dialects import DIALECTS
from isolayer.curves.export.sql import own_prefix, to_sql
from isolayer.errors import InputError
from isolayer.fitting.field_levels import Field, Holds
from isolayer.fitting.terms import Terms
from isolayer.tables.resident import resident
from isolayer.tables.sources import (
    ROWS,
    Table,
    as_table,
    backend_of,
    collect,
    finite,
    infinite,
    is_nothing,
    is_relation,
    relation_query,
    schema_of,
    unbound,
)

_BACKENDS = {"pyspark": "spark"}  # dialects that have another name in Ibis


def apply_fields(curves: Curves, source: Any, *, score: str, prob: str) -> Any:
    """A table with one more column, the calibrated probability; see :func:`isolayer.tables.apply.apply_table`.

    >>> import numpy as np
    >>> from isolayer.curves.fielded import LabelledRows, with_fields
    >>> from isolayer.grid import Grid
    >>> rows = LabelledRows(np.zeros(400), np.tile([0.0, 0.0, 0.0, 1.0], 100), {"device": ["tv", "web"] * 200})
    >>> curves = with_fields(Curves.identity(Grid()), rows, ["device"])
    >>> table = apply_fields(curves, {"score": [0.0], "device": ["web"]}, score="score", prob="prob")
    >>> table.to_pyarrow()["prob"].to_pylist()[0] > 0.4
    True
    """
    if is_relation(source):
        columns = list(source.columns)
        _check(curves, columns, score, prob)
        source = as_fitted(source, curves.terms)
        return source.query(ROWS, to_sql(curves, "duckdb", table=ROWS, score=score, prob=prob, keep=columns))
    table: Table = as_table(source)
    _check(curves, list(table.columns), score, prob)
    table = as_fitted(table, curves.terms)
    backend = backend_of(table)
    if table.op().find(ops.InMemoryTable):  # a statement in text can only use tables that have a name
        table = resident(backend, table.to_pyarrow())
    dialect, name = dialect_of(backend), _name(table)
    statement = to_sql(curves, dialect, table=name, score=score, prob=prob, keep=list(table.columns))
    schema = ibis.schema({**table.schema(), prob: "float64"})
    return ops.SQLStringView(parent=table.alias(name), query=statement, schema=schema).to_expr()


def as_fitted(source: Any, terms: Terms | None) -> Any:
    """The source with the field columns in the types of the fit; a column with only NULL fits any type.

    >>> from isolayer.fitting.field_levels import Field
    >>> as_fitted({"hour": ["9"]}, Terms((Field("hour", "number"),), (), -1.0, 1.0))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: field hour: expected numbers as when fitted, got category; convert the column
    """
    kinds = schema_of(source)
    gone = dict[str, str]()
    for one in terms.fields if terms else ():
        kind = kinds[one.column]
        found, flags = _holds(kind), kind.is_boolean() and _words(one) == "string"
        if found is None or (one.takes(found) and not flags):
            continue
        if not _all_missing(source, one.column):
            if one.takes(found):
                continue  # the statement distinguishes text and booleans
            one.refuse(found)
        gone[one.column] = "timestamp" if one.part else "float64" if one.kind == "number" else _words(one)
    if not gone:
        return source
    if is_relation(source):
        table = unbound(source)
        return relation_query(source, table.mutate(**{name: ibis.null(kind) for name, kind in gone.items()}))
    return as_table(source).mutate(**{name: ibis.null(kind) for name, kind in gone.items()})


def _all_missing(source: Any, name: str) -> bool:
    """Whether a column has only NULL and NaN."""

    def known(table: Table) -> Table:
        column = table[name]
        there = finite(column) | infinite(column) if column.type().is_floating() else column.notnull()
        return table.aggregate(known=there.sum())

    return not collect(source, known)["known"][0].as_py()


def _holds(kind: Any) -> Holds | None:
    """The kind of values of a column with an Ibis type; None if the engine must decide."""
    if is_nothing(kind):
        return "nothing"
    if kind.is_numeric():
        return "number"
    if kind.is_timestamp() or kind.is_date():
        return "date"
    return "category" if kind.is_string() or kind.is_boolean() else None


def _words(one: Field) -> str:
    """The Ibis type of the values of a category."""
    return "boolean" if len(one.words) and isinstance(one.words[0], bool | np.bool_) else "string"


def _name(table: Table) -> str:
    """A name for the rows of a table that is different in nested statements.

    The parts of a statement have another prefix than its table (see :func:`own_prefix`), so that all names of nested
    statements differ.
    """
    name = ROWS
    for _ in table.op().find(ops.SQLStringView):
        name = f"{own_prefix(table.columns, name)}_{name}"
    return name


def dialect_of(backend: Any) -> str:
    """The SQL dialect of an Ibis backend; an error if statements cannot be written in it."""
    dialect = _BACKENDS.get(backend.name, backend.name)
    if dialect not in DIALECTS:
        raise InputError(f"table: expected an engine among {', '.join(DIALECTS)}, got {backend.name}; export the SQL")
    return str(dialect)


def _check(curves: Curves, columns: list[str], score: str, prob: str) -> None:
    for name in (score, *curves.contexts, *curves.fields):
        if name not in columns:
            raise InputError(f"column {name}: expected it in the table, got {columns}; name another")
    if prob.casefold() in [name.casefold() for name in columns]:
        raise InputError(f"prob: expected a name that no column has, got {prob!r}; choose another")
