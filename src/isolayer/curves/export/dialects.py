"""The differences between six dialects of SQL: names, strings, numbers, tables of values, types of columns.

What the statements compute does not belong here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

INTEGER_LIMIT = 2**63


@dataclass(frozen=True)
class Dialect:
    """How one dialect is written.

    Args:
        types: The types of doubles, integers, strings and booleans, by ``d``, ``i``, ``U`` and ``b``.
        quote: The character around a name.
        backslash: Whether a backslash in a string escapes, so that it must be doubled.
        variables: Whether ``${name}`` is replaced even inside strings, so that a dollar must be escaped.
        folds: Whether columns whose names differ only in case are the same.
        renames: Whether such columns of a file can be read, the later ones under other names.
        is_nan: Whether the double ``{}`` is NaN.
        type_of: The name of the type of ``{}``; empty if the engine itself refuses to compare strings with numbers.
        matches: Whether the first ``{}`` matches the regular expression in the second.
        refuse: A value that raises the message ``{}``.
        accepted: Accepted types of columns, as regular expressions, for numbers ``n`` and keys ``i``, ``U`` and ``b``.
        floats: Names of the types of single and double precision, which are exact for keys up to 2**24 and 2**53.
        rounds: Whether a decimal is rounded when it is compared with an integer.
        structs: Whether rows are written as an array of structs.
        moment: The date or time ``{}``, with or without a time zone, as a time in UTC without one, in any session.
        weekday: The weekday of ``{}``, from 0 for Monday.
        most: Largest number of rows in one list of values; 0 for no limit.
    """

    types: Mapping[str, str]
    quote: Literal['"', "`"] = '"'
    backslash: bool = False
    variables: bool = False
    folds: bool = True
    renames: bool = False
    is_nan: str = "is_nan({})"
    type_of: str = ""
    matches: str = ""
    refuse: str = ""
    accepted: Mapping[str, str] = field(default_factory=dict)
    floats: tuple[str, str] = ("", "")
    rounds: bool = False
    structs: bool = False
    moment: str = "CAST({} AS TIMESTAMP)"
    weekday: str = "EXTRACT(ISODOW FROM {}) - 1"
    most: int = 0

    def name(self, name: str) -> str:
        """A quoted name.

        >>> print(DIALECTS["duckdb"].name('a"b'), DIALECTS["spark"].name("a`b"))
        "a""b" `a``b`
        """
        if self.structs:  # BigQuery
            inside = name.replace("\\", "\\\\").replace("`", "\\`")
        else:
            inside = name.replace(self.quote, self.quote * 2)
        return f"{self.quote}{inside}{self.quote}"

    def literal(self, value: Any) -> str:
        """A string, a boolean, an integer or a double as a literal of the right type.

        >>> print(*(DIALECTS["postgres"].literal(value) for value in ("it's", True, -7, 0.1)))
        'it''s' TRUE -7 0.1E0
        """
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, int):  # the smallest integer would be read as minus an integer that is too large
            return str(value) if value > -INTEGER_LIMIT else f"({value + 1} - 1)"
        return double(value)

    def _string(self, value: str) -> str:
        if not self.backslash:
            return "'" + value.replace("'", "''") + "'"
        escapes: dict[str, str | int | None] = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r"}
        if self.variables:
            escapes["$"] = "\\u0024"
        return "'" + value.translate(str.maketrans(escapes)) + "'"

    def nan(self, value: str) -> str:
        """Whether a number of any type is NaN."""
        return self.is_nan.format(f"CAST({value} AS {self.types['d']})")

    def source(self, table: str, columns: Sequence[str]) -> str:
        r"""A table to read columns from. If the engine ignores case, only columns with exactly these names are read.

        DuckDB reads the columns ``ctx`` and ``CTX`` of a file as ``ctx`` and ``CTX_1``, and then ``"CTX"`` refers to
        the first of them. If columns are selected by their exact names, it finds no ``CTX`` and raises an error.

        >>> print(DIALECTS["duckdb"].source("logs", ["CTX", "a.b"]))
        (SELECT COLUMNS('^(?:CTX|a\.b)$') FROM logs)
        """
        if not self.renames:
            return table
        names = "|".join(re.escape(name) for name in columns)
        return f"(SELECT COLUMNS({self._string(f'^(?:{names})$')}) FROM {table})"

    def part_of(self, column: str, part: str) -> str:
        """The hour, the weekday (Monday is 0) or the month of a column of dates or times in UTC, as a double.

        >>> DIALECTS["trino"].part_of("t", "hour")
        "CAST(EXTRACT(HOUR FROM from_unixtime(FLOOR(to_unixtime(t)), 'UTC')) AS DOUBLE)"
        """
        moment = self.moment.format(column)
        found = self.weekday.format(moment) if part == "weekday" else f"EXTRACT({part.upper()} FROM {moment})"
        return f"CAST({found} AS {self.types['d']})"

    def checked(self, column: str, kind: str, rule: str, remedy: str, largest: int = 0) -> str:
        """A column, or a clear error if it has another type; the plain column if the engine checks types itself.

        Args:
            column: The column.
            kind: ``n`` for numbers, or the kind of keys that it is compared with.
            rule: What was expected.
            remedy: What to do.
            largest: The largest key, which may be too large for floats to represent exactly.
        """
        if kind not in self.accepted:
            return column
        fits = [name for name, bits in zip(self.floats, (24, 53), strict=True) if largest < 2**bits]
        accepted = "|".join([self.accepted[kind], *(fits if kind in "ni" else [])])
        given = self.type_of.format(column)
        message = f"{self._string(f'{rule}, got ')} || {given} || {self._string(f'; {remedy}')}"
        good = self.matches.format(given, self._string(f"^({accepted})$"))
        return f"CASE WHEN {good} THEN {column} ELSE {self.refuse.format(message)} END"

    def table(self, columns: Mapping[str, tuple[str, Sequence[Any]]]) -> str:
        """A query that returns rows of values.

        Args:
            columns: Type and values of each column by its name, which is not quoted.
        """
        rows = list(zip(*([self.literal(value) for value in values] for _, values in columns.values()), strict=True))
        return "\nUNION ALL ".join(self._rows(columns, some) for some in _chunks(rows, self.most))

    def _rows(self, columns: Mapping[str, tuple[str, Sequence[Any]]], rows: Sequence[Sequence[str]]) -> str:
        # The first row determines the types.
        kinds = [self.types[kind] for kind, _ in columns.values()]
        first = [f"CAST({value} AS {kind})" for value, kind in zip(rows[0], kinds, strict=True)]
        rest = "".join(f",\n({','.join(row)})" for row in rows[1:])
        if self.structs:
            fields = ", ".join(f"{value} AS {name}" for value, name in zip(first, columns, strict=True))
            return f"SELECT * FROM UNNEST([STRUCT({fields}){rest}])"
        return f"SELECT * FROM (VALUES\n({','.join(first)}){rest}\n) AS t({', '.join(columns)})"


def double(value: float) -> str:
    """A number that every engine reads as exactly this double; the exponent prevents reading it as a decimal.

    >>> double(-17), double(1e-15)
    ('-17.0E0', '1e-15')
    """
    text = repr(float(value))
    return text if "e" in text else f"{text}E0"


def _chunks(rows: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    size = most or len(rows)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _types(double: str, integer: str, string: str, boolean: str = "BOOLEAN") -> dict[str, str]:
    return {"d": double, "i": integer, "U": string, "b": boolean}


_DUCKDB_NUMBERS = 'U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL.*|"NULL"'
_SPARK_NUMBERS = "tinyint|smallint|int|bigint|decimal.*|void"

# COALESCE with a date gives a column that has only NULL a type. For nanoseconds, epoch_us rounds to the nearest
# microsecond, which may be in the next hour.
_DUCKDB_MOMENT = (
    "make_timestamp(epoch_us({0}) - CASE typeof({0}) WHEN 'TIMESTAMP_NS' "
    "THEN CAST(1000 * epoch_us({0}) > epoch_ns({0}) AS BIGINT) ELSE 0 END)"
).replace("{0}", "COALESCE({0}, CAST(NULL AS DATE))")
# A TIMESTAMP is converted to the time zone of the session; a TIMESTAMP_NTZ or a DATE is not.
_SPARK_MOMENT = (
    "CASE typeof({0}) WHEN 'timestamp' THEN TIMESTAMP_NTZ '1970-01-01 00:00:00' "
    "+ make_dt_interval(0, 0, 0, unix_seconds(CAST({0} AS TIMESTAMP))) ELSE CAST({0} AS TIMESTAMP_NTZ) END"
)

DIALECTS = {
    "duckdb": Dialect(
        _types("DOUBLE", "BIGINT", "VARCHAR"),
        renames=True,
        # DuckDB 2 answers isnan from the least and largest value that a Parquet file notes, which leave NaN out.
        is_nan="NOT ({0} - {0} = 0E0 OR isinf({0}))",
        type_of="typeof({})",
        matches="regexp_full_match({}, {})",
        refuse="error({})",
        accepted={
            "n": _DUCKDB_NUMBERS,
            "i": _DUCKDB_NUMBERS,
            "U": 'VARCHAR|ENUM.*|"NULL"',
            "b": 'BOOLEAN|"NULL"',
        },
        floats=("FLOAT", "DOUBLE"),
        moment=_DUCKDB_MOMENT,
    ),
    "spark": Dialect(
        _types("DOUBLE", "BIGINT", "STRING"),
        quote="`",
        backslash=True,
        variables=True,
        is_nan="isnan({})",
        type_of="typeof({})",
        matches="{} RLIKE {}",
        refuse="raise_error({})",
        accepted={"n": _SPARK_NUMBERS, "i": _SPARK_NUMBERS, "U": "string|(var)?char.*|void", "b": "boolean|void"},
        floats=("float", "double"),
        rounds=True,
        moment=_SPARK_MOMENT,
        weekday="weekday({})",
    ),
    "bigquery": Dialect(
        _types("FLOAT64", "INT64", "STRING", "BOOL"),
        quote="`",
        backslash=True,
        is_nan="IS_NAN({})",
        structs=True,
        moment="CAST({} AS TIMESTAMP /* right where the time zone of the session is UTC, as it is by default */)",
        weekday="MOD(EXTRACT(DAYOFWEEK FROM {}) + 5, 7)",
    ),
    "snowflake": Dialect(
        _types("DOUBLE", "BIGINT", "VARCHAR"),
        backslash=True,
        folds=False,
        is_nan="{} = CAST('NaN' AS DOUBLE)",
        most=10_000,
        moment="TO_TIMESTAMP_NTZ(DATE_PART(EPOCH_MICROSECOND, {}), 6)",
        weekday="DAYOFWEEKISO({}) - 1",
    ),
    "trino": Dialect(
        _types("DOUBLE", "BIGINT", "VARCHAR"),
        rounds=True,
        moment="from_unixtime(FLOOR(to_unixtime({})), 'UTC')",
        weekday="day_of_week({}) - 1",
    ),
    "postgres": Dialect(
        _types("DOUBLE PRECISION", "BIGINT", "TEXT"),
        folds=False,
        is_nan="{} = CAST('NaN' AS DOUBLE PRECISION)",
        type_of="CAST(pg_typeof({}) AS TEXT)",
        matches="{} ~ {}",
        refuse="CAST({} AS BIGINT)",
        accepted={"i": "smallint|integer|bigint|numeric"},
        floats=("real", "double precision"),
        # COALESCE refuses times of day and intervals, which have seconds too.
        moment="(to_timestamp(FLOOR(EXTRACT(EPOCH FROM COALESCE({}, CAST(NULL AS DATE))))) AT TIME ZONE 'UTC')",
    ),
}
