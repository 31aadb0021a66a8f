"""Several files read as one table: all must have the same columns, by name, with types that can be combined.

By itself DuckDB takes names and types from the first file: if it has whole numbers, those of later files are rounded.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from typing import Any, Literal

from isolayer.errors import InputError

Reader = Literal["read_parquet", "read_csv", "read_json"]
Ask = Callable[[str, list[Any]], Any]  # the method ``execute`` of a connection

_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "HUGEINT")
_FRACTIONAL = ("FLOAT", "DOUBLE")
_TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_EXACT = 2**53  # larger whole numbers are not exact as doubles


def mixed_columns(ask: Ask, reader: Reader, patterns: Sequence[str]) -> list[str]:
    """Columns of CSV files that only text holds without changing a value; an error for such columns of other files.

    Columns may be in any order, and numbers may be whole in one file and fractions in another. In NDJSON a column may
    also be numbers in one file and text in another; DuckDB then reads it as text.
    """
    files = [file for pattern in patterns for (file,) in ask("SELECT file FROM glob(?)", [pattern]).fetchall()]
    if len(files) < 2:
        return []
    types = {file: _types(ask, reader, file) for file in files}
    first = files[0]
    for file in files[1:]:
        for name in types[first].keys() ^ types[file].keys():
            lacks, has = (first, file) if name in types[file] else (file, first)
            raise InputError(
                f"files: expected the same columns in all files, got {name!r} in {has!r} and not in {lacks!r}; add the "
                "column where it is missing"
            )
    mixed = {name: _unlike(ask, reader, name, {file: types[file][name] for file in files}) for name in types[first]}
    for unlike in mixed.values() if reader != "read_csv" else ():
        if unlike is not None:
            raise InputError(unlike)
    return [name for name, unlike in mixed.items() if unlike is not None]


def _types(ask: Ask, reader: Reader, file: str) -> dict[str, str]:
    """The type of each column of a file, as DuckDB calls it."""
    within = ", hive_partitioning = false" if reader == "read_parquet" else ""
    found = ask(f"SELECT * FROM {reader}(?{within}) LIMIT 0", [_literal(file)]).description
    return {name: str(kind) for name, kind, *_ in found}


def _unlike(ask: Ask, reader: Reader, name: str, types: dict[str, str]) -> str | None:
    """Why no type holds the values of a column in all files; None if one does."""
    kinds = {_kind(kind): file for file, kind in types.items() if kind not in ('"NULL"', "NULL")}
    if len(kinds) > 1 and not (reader == "read_json" and "text" in kinds):
        (one, first), (other, file), *_ = kinds.items()
        return (
            f"files: expected one type of {name!r} in all files, got {one} in {first!r} and {other} in {file!r}; use "
            "the same type in all files"
        )
    whole = [_literal(file) for file, kind in types.items() if kind in _WHOLE]
    if whole and set(types.values()) & {*_FRACTIONAL} and "text" not in kinds:
        column = '"' + name.replace('"', '""') + '"'
        (largest,) = ask(f"SELECT max(abs({column}::HUGEINT)) FROM {reader}(?)", [whole]).fetchone()
        if largest is not None and largest > _EXACT:
            return (
                f"files: expected whole numbers of {name!r} up to 2^53, since other files have fractions, got "
                f"{largest}; use the same type in all files"
            )
    return None


def _kind(kind: str) -> str:
    """The kind of a type; types of the same kind can be combined.

    >>> [_kind(kind) for kind in ("BIGINT", "DECIMAL(10,2)", "ENUM('a', 'b')", "DATE", "BOOLEAN")]
    ['numbers', 'numbers', 'text', 'times', 'BOOLEAN']
    """
    if kind in (*_WHOLE, *_FRACTIONAL) or kind.startswith("DECIMAL"):
        return "numbers"
    if kind == "VARCHAR" or kind.startswith("ENUM"):
        return "text"
    return "times" if kind in _TIMES else kind


def _literal(file: str) -> str:
    return file if "://" in file else glob.escape(file)
