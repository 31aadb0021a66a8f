"""Sources of rows, and how an expression is run in the engine of a source.

A *source* is an Ibis table of any backend, a Parquet path, glob or folder, a DuckDB relation, or a frame (pandas,
polars, pyarrow, a dict of columns). Paths, frames and Ibis's memtables have no engine of their own: an embedded DuckDB
reads them. The meaning of columns does not belong here.
"""

from __future__ import annotations

import glob
import math
import os
import re
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal

import ibis
import ibis.expr.operations as ops
import pyarrow as pa

from isolayer.errors import InputError, need
from isolayer.tables.files import mixed_columns
from isolayer.tables.unclear_dates import as_written

Table = Any  # an Ibis table; Ibis has no types to check against
Value = Any  # an Ibis column or scalar

ROWS = "isolayer_rows_of_this_relation"  # name of a relation in statements; in DuckDB 1 no table may have it

_CASE_SENSITIVE = ("postgres", "snowflake", "polars")  # backends that distinguish column names by case


_MEMORY = 350  # megabytes per core for grouping rows in the embedded DuckDB; beyond this it uses the disk
_SPILLED = str(Path(tempfile.gettempdir()) / f"isolayer-{os.getpid()}")  # DuckDB creates and removes this folder

_CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


class _PerThread(threading.local):
    """The embedded DuckDB of a thread, and the counters of its scans."""

    backend: Any = None
    scans: Scans | None = None


_embedded = _PerThread()
_reading = threading.Lock()


def engine() -> Any:
    """The embedded DuckDB as an Ibis backend: one database, and a connection of its own for every thread.

    A connection of DuckDB serves one call at a time and refuses a second one. Ibis's default backend is one connection
    for all threads; it is also still open when the interpreter exits, and DuckDB then prints long warnings.

    >>> engine() is engine()
    True
    """
    if _embedded.backend is None:
        import duckdb

        settings: dict[str, Any] = {"temp_directory": _SPILLED}
        _embedded.backend = ibis.duckdb.from_connection(duckdb.connect(":memory:isolayer", config=settings))
    return _embedded.backend


def backend_of(table: Table) -> Any:
    """The backend that an Ibis table belongs to; the embedded DuckDB for a table in memory, which belongs to none.

    >>> backend_of(ibis.memtable(pa.table({"a": [1]}))) is engine()
    True
    """
    found = table.op().find((ops.DatabaseTable, ops.SQLQueryResult))
    return found[0].source if found else engine()


def as_table(source: Any) -> Table:
    """The Ibis table of a source that is not a DuckDB relation.

    >>> as_table(pa.table({"ctx": [1], "CTX": [2]}))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: columns: expected names that differ in more than case, which duckdb ignores, got 'ctx'
    and 'CTX'; rename one
    """
    if isinstance(source, str | Path):
        return _csv(str(source)) if str(source).lower().endswith(_CSV) else _parquet(str(source))
    try:
        table = source if isinstance(source, ibis.Table) else ibis.memtable(_arrow(source))
    except (TypeError, ValueError, pa.ArrowException, ibis.common.exceptions.IbisError) as error:
        raise InputError(
            "table: expected an Ibis table, a Parquet path, a DuckDB relation or a frame, got "
            f"{type(source).__name__} ({error}); convert it"
        ) from error
    refuse_twins(table.columns, backend_of(table).name)
    return table


def _parquet(path: str) -> Table:
    """The table of Parquet files."""
    try:
        return read_parquet(pattern_of(path))
    except need("duckdb").Error as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"table: expected Parquet at {path!r}, got an error ({reason}); convert the file") from error


def _csv(path: str) -> Table:
    """The table of CSV files."""
    try:
        return read_text([pattern_of(path)], "read_csv")
    except need("duckdb").Error as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"table: expected CSV at {path!r}, got an error ({reason}); convert the file") from error


def refuse_twins(columns: Iterable[str], backend: str) -> None:
    """Raise if the names of two columns differ only in case, in an engine that ignores case."""
    seen = dict[str, str]()
    for name in () if backend in _CASE_SENSITIVE else columns:
        twin = seen.get(name.casefold())
        if twin is not None:
            raise InputError(
                f"columns: expected names that differ in more than case, which {backend} ignores, got {twin!r} "
                f"and {name!r}; rename one"
            )
        seen[name.casefold()] = name


def read_parquet(pattern: str | list[str]) -> Table:
    """Parquet files as a table; an error if DuckDB renames columns that differ only in case, such as to ``CTX_1``."""
    # Ibis calls a function that DuckDB 2 deprecates; the warning cannot be filtered here, since filters are global.
    with _reading, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fetch_arrow_table", DeprecationWarning)
        mixed_columns(engine().con.execute, "read_parquet", [pattern] if isinstance(pattern, str) else pattern)
        table = engine().read_parquet(pattern, union_by_name=True)
    stems = {name: re.sub(r"_[0-9]+$", "", name) for name in table.columns}
    others = {name.casefold() for name in table.columns}
    if any(stem != name and stem.casefold() in others for name, stem in stems.items()):
        written = _names_in_first_file(pattern)
        renamed = {name for name, stem in stems.items() if name not in written and written[stem] > (stem in stems)}
        refuse_twins([stem if name in renamed else name for name, stem in stems.items()], "duckdb")
    return table


def read_text(
    patterns: list[str], reader: Literal["read_csv", "read_json"], *, checked: bool = True, **options: Any
) -> Table:
    """CSV or NDJSON files as a table; ``options`` are DuckDB's, such as ``all_varchar``.

    Dates that can be read in two ways stay text: with a year of two digits, or if no day tells it from the month. So do
    columns of several CSV files that are written in other ways in each, such as numbers in one and dates in another.
    """
    with _reading, warnings.catch_warnings():  # as in read_parquet
        warnings.filterwarnings("ignore", "fetch_arrow_table", DeprecationWarning)
        ask, read = engine().con.execute, partial(getattr(engine(), reader), patterns, union_by_name=True, **options)
        mixed = dict.fromkeys(mixed_columns(ask, reader, patterns) if checked else (), "string")
        table = read(types=mixed) if mixed else read()
        dates = [name for name, kind in table.schema().items() if kind.is_date() or kind.is_timestamp()]
        more = as_written(ask, reader, patterns, dates)
        if "types" in more:
            more["types"] |= mixed
        return read(**more) if more else table


def _names_in_first_file(pattern: str | list[str]) -> Counter[str]:
    """How often each name occurs in the first file, which determines the columns; names inside structs count."""
    ask = engine().con.execute
    (first,) = ask("SELECT file FROM glob(?) LIMIT 1", [pattern if isinstance(pattern, str) else pattern[0]]).fetchone()
    literal = first if "://" in first else glob.escape(first)
    return Counter(name for (name,) in ask("SELECT name FROM parquet_schema(?)", [literal]).fetchall())


class Scans:
    """A context manager that counts queries of sources; each is one scan of a table.

    >>> with Scans() as scans:
    ...     answer = collect({"a": [1, 2]}, lambda table: table.agg(total=table.a.sum()))
    >>> scans.count
    1
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Scans:
        self._outer, _embedded.scans = _embedded.scans, self
        return self

    def __exit__(self, *_: object) -> None:
        _embedded.scans = self._outer
        if self._outer is not None:
            self._outer.count += self.count


def note_scan() -> None:
    """Count one scan."""
    if _embedded.scans is not None:
        _embedded.scans.count += 1


def collect(source: Any, ask: Callable[[Table], Table]) -> pa.Table:
    """Run an expression over a source in its own engine, and fetch the result.

    >>> collect({"a": [1, 2]}, lambda table: table.agg(total=table.a.sum())).to_pylist()
    [{'total': 3}]
    """
    note_scan()
    if is_relation(source):
        return relation_query(source, ask(unbound(source))).to_arrow_table()
    expression = ask(as_table(source))
    return backend_of(expression).to_pyarrow(expression)


def collect_sparingly(source: Any, ask: Callable[[Table], Table]) -> pa.Table:
    """As :func:`collect`, but the embedded DuckDB uses little memory, and the disk for the rest.

    >>> collect_sparingly({"a": [1, 2]}, lambda table: table.agg(total=table.a.sum())).to_pylist()
    [{'total': 3}]
    """
    if is_relation(source) or (isinstance(source, ibis.Table) and backend_of(source) is not engine()):
        return collect(source, ask)
    execute = engine().con.execute
    try:
        execute(f"SET memory_limit = '{_MEMORY * (os.cpu_count() or 1)}MB'")
        return collect(source, ask)
    except need("duckdb").OutOfMemoryException:  # something that cannot be moved to disk
        execute("RESET memory_limit")
        return collect(source, ask)
    finally:
        execute("RESET memory_limit")


def is_relation(source: Any) -> bool:
    """Whether a source is a DuckDB relation; DuckDB is not imported for this.

    >>> is_relation({"score": [0.1]})
    False
    """
    return type(source).__name__ == "DuckDBPyRelation"


def schema_of(source: Any) -> Any:
    """The columns of a source: their types, in Ibis, by their names.

    >>> list(schema_of({"score": [0.1], "label": [1]}))
    ['score', 'label']
    """
    return (unbound(source) if is_relation(source) else as_table(source)).schema()


def within(column: Value, low: float, high: float) -> Value:
    """Whether numbers lie between two others; false for NaN."""
    inside = column.cast("float64").between(double(low), double(high))
    return inside & finite(column) if column.type().is_floating() else inside


def finite(column: Value) -> Value:
    """Whether numbers are neither NaN nor infinite; NULL for NULL.

    DuckDB 2 evaluates ``BETWEEN`` and ``isnan`` from the minimum and maximum that a Parquet file stores, which do not
    include NaN. A difference must be computed; for NaN or infinity it is NaN, which equals 0 in no engine.
    """
    value = column.cast("float64")
    return value - value == double(0)


def infinite(column: Value) -> Value:
    """Whether numbers are infinite; NULL for NULL. Ibis's ``isinf`` is always false for Spark."""
    return column.cast("float64").abs() == ibis.literal(math.inf, "float64")


def is_number(kind: Any) -> bool:
    """Whether a column of this type has numbers or booleans, or no type because it has no values."""
    return bool(kind.is_numeric() or kind.is_boolean() or is_nothing(kind))


def is_nothing(kind: Any) -> bool:
    """Whether a column of this type has only NULL. Ibis does not know the type that DuckDB 2 uses for this."""
    return bool(kind.is_null() or (kind.is_unknown() and "NULL" in str(kind)))


def may_be_keys(kind: Any) -> bool:
    """Whether a column of this type can be a context: strings, booleans, and numbers, which must be whole."""
    return bool(kind.is_string() or is_number(kind))


def unbound(relation: Any, name: str = ROWS) -> Table:
    """An Ibis table with the columns of a DuckDB relation, to build expressions for :func:`relation_query`."""
    schema = relation.limit(0).to_arrow_table().schema
    return ibis.table(ibis.Schema.from_pyarrow(schema), name=name)


def relation_query(relation: Any, expression: Table) -> Any:
    """A DuckDB relation that runs an expression over :func:`unbound` on the relation's own connection."""
    return relation.query(ROWS, ibis.to_sql(expression, dialect="duckdb"))


def from_files(query: str, backend: Any) -> str:
    """A query over files that Ibis has read, with the files in place of Ibis's views."""
    if backend.name == "duckdb":
        views = "SELECT view_name, sql FROM duckdb_views() WHERE view_name LIKE 'ibis_read_%'"
        for name, made in backend.con.execute(views).fetchall():
            query = query.replace(f'"{name}"', f"({made.partition(' AS ')[2].rstrip(';')})")
    return query


def double(value: float) -> Value:
    """A literal that every engine reads as exactly this double.

    Engines read ``0.1`` as a decimal and convert by one division, which is exact for up to 15 digits. Other numbers
    are written as the quotient of two integers below 2**53, the second a power of two.

    >>> ibis.to_sql(double(1 / 3) + 0.5, dialect="duckdb").split()[1:4]
    ['(', 'CAST(6004799503160661', 'AS']
    """
    number = float(value)
    if float(f"{number:.15g}") == number:
        return ibis.literal(number, "float64")
    ratio = Fraction(number)
    if max(abs(ratio.numerator), ratio.denominator) > 2**62:
        return ibis.literal(number, "float64")
    whole, part = (ibis.literal(n, "int64").cast("float64") for n in (ratio.numerator, ratio.denominator))
    return whole / part


def _arrow(frame: Any) -> pa.Table:
    """A frame as an Arrow table; 16-bit floats, which DuckDB does not support, become 32-bit floats."""
    if type(frame).__name__ == "LazyFrame" and hasattr(frame, "collect"):  # a polars LazyFrame has no rows yet
        frame = frame.collect()
    if isinstance(frame, Mapping):
        table = pa.table(dict(frame))
    elif hasattr(frame, "iloc"):  # pandas: its index is not a column
        table = pa.Table.from_pandas(frame, preserve_index=False)
    else:
        table = pa.table(frame)
    kinds = [pa.float32() if pa.types.is_float16(field.type) else field.type for field in table.schema]
    return table if kinds == table.schema.types else table.cast(pa.schema(zip(table.column_names, kinds, strict=True)))


def pattern_of(path: str, what: str = "table") -> str:
    """A path or glob as a pattern for DuckDB: a path that exists is read literally, whatever characters it has.

    A folder means all Parquet files in it. An address with ``://`` is left as it is.
    """
    if "://" in path:
        return path
    where = Path(path)
    if where.is_dir():
        path = str(Path(glob.escape(path)) / "**" / "*.parquet")
    elif where.exists():
        return glob.escape(path)
    if next(Path(where.anchor or ".").glob(path.removeprefix(where.anchor)), None) is None:
        raise InputError(f"{what}: expected a file at {path!r}, got none; check the path")
    return path
