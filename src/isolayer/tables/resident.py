"""Small tables inside an engine: created once for the same content, and dropped when no expression needs them.

What the tables mean is handled by :mod:`isolayer.tables.apply`.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import ibis
import ibis.expr.operations as ops
import pyarrow as pa

from isolayer.tables.sources import Table

_IDLE = 8  # this many unneeded tables stay on a connection, because the same curves are often used again
_WHERE = ops.Namespace(catalog="temp", database="main")

# Tables that some expression still needs, by connection and name. An expression keeps its table's operation alive.
_needed: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()


def resident(backend: Any, part: pa.Table) -> Table:
    """A small table inside an engine, as an Ibis table.

    On DuckDB it is a temporary table, for which DuckDB knows the range of the keys and joins by lookup. It exists as
    long as an expression needs it. After that, a later call on the same connection drops it; only then is it certain
    that no result is being fetched there.
    """
    if backend.name != "duckdb":
        return ibis.memtable(part)
    name = name_of(part)
    operation = _needed.get((id(backend.con), name))
    if operation is None:
        schema = ibis.Schema.from_pyarrow(part.schema)
        operation = ops.DatabaseTable(name=name, schema=schema, source=backend, namespace=_WHERE)
        _needed[id(backend.con), name] = operation
    _drop_idle(backend.con)
    backend.con.register(f"{name}_arrow", part)
    backend.con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {name} AS SELECT * FROM {name}_arrow")
    backend.con.unregister(f"{name}_arrow")
    return operation.to_expr()


def name_of(part: pa.Table) -> str:
    """A name for a table in an engine: a digest of its columns' names, types and values, so that it is made once.

    >>> one, two = pa.table({"viewer": [1], "author": [2]}), pa.table({"author": [1], "viewer": [2]})
    >>> name_of(one) == name_of(two)
    False
    """
    digest = hashlib.sha1(part.schema.serialize(), usedforsecurity=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as stream:
        stream.write_table(part)
    digest.update(sink.getvalue())
    return f"isolayer_{digest.hexdigest()[:24]}"


def _drop_idle(connection: Any) -> None:
    """Drop the tables that no expression needs, except the newest."""
    ours = (
        "SELECT table_name FROM duckdb_tables() WHERE temporary AND regexp_full_match(table_name, ?) ORDER BY table_oid"
    )
    names = [name for (name,) in connection.execute(ours, ["isolayer_[0-9a-f]{24}"]).fetchall()]
    idle = [name for name in names if (id(connection), name) not in _needed]
    for name in idle[:-_IDLE]:
        connection.execute(f"DROP TABLE temp.main.{name}")
