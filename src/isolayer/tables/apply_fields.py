"""Curves with fields applied to a table in its own engine: the statement of the exports, run where the rows are.

Curves without fields have an expression of their own, with small tables that are made once; see
:mod:`isolayer.tables.apply`.
"""

from __future__ import annotations

from typing import Any

import ibis
import ibis.expr.operations as ops

from isolayer.curves.curves import Curves
from isolayer.curves.export.dialects import DIALECTS
from isolayer.curves.export.sql import own_prefix, to_sql
from isolayer.errors import InputError
from isolayer.tables.resident import resident
from isolayer.tables.sources import ROWS, Table, as_table, backend_of, is_relation

_BACKENDS = {"pyspark": "spark"}  # dialects that Ibis calls otherwise


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
        return source.query(ROWS, to_sql(curves, "duckdb", table=ROWS, score=score, prob=prob, keep=columns))
    table: Table = as_table(source)
    _check(curves, list(table.columns), score, prob)
    backend = backend_of(table)
    if table.op().find(ops.InMemoryTable):  # a statement in text cannot name what has no name
        table = resident(backend, table.to_pyarrow())
    dialect, name = dialect_of(backend), _name(table)
    statement = to_sql(curves, dialect, table=name, score=score, prob=prob, keep=list(table.columns))
    schema = ibis.schema({**table.schema(), prob: "float64"})
    return ops.SQLStringView(parent=table.alias(name), query=statement, schema=schema).to_expr()


def _name(table: Table) -> str:
    """What to call the rows of a table: another name for every statement that it has in it already.

    The parts of a statement begin otherwise than its table (see :func:`own_prefix`), so that
    names within names differ in all of them.
    """
    name = ROWS
    for _ in table.op().find(ops.SQLStringView):
        name = f"{own_prefix(table.columns, name)}_{name}"
    return name


def dialect_of(backend: Any) -> str:
    """The dialect that an Ibis backend speaks, if it is one that statements are written in."""
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
