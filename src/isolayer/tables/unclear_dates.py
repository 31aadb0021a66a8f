"""Dates of text files that can be read in two ways, which DuckDB guesses at. They are left as text.

``25/09/26`` may be of 2026 or of 2025; ``05/11/2026`` may be of May or of November, unless another value in the same
file has a day beyond 12 in one of the two places.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

Ask = Callable[[str, list[Any]], Any]  # the method ``execute`` of a connection
Reader = Literal["read_csv", "read_json"]

_YEAR_FIRST = re.compile(r"\d{4}-|$")  # or no date


def as_written(ask: Ask, reader: Reader, patterns: Sequence[str], dates: Sequence[str]) -> dict[str, Any]:
    """What DuckDB must be told to leave unclear dates as text; nothing if there are none.

    Args:
        ask: Runs a statement.
        reader: How the files are read.
        patterns: The files.
        dates: Columns that DuckDB takes for dates or times. All values of a file that it takes so are written alike.
    """
    found = [file for pattern in patterns if dates for (file,) in ask("SELECT file FROM glob(?)", [pattern]).fetchall()]
    files = [file if "://" in file else glob.escape(file) for file in found]
    unclear = [name for name in dates if any(_is_unclear(ask, reader, file, name) for file in files)]
    if not unclear:
        return {}
    if reader == "read_csv":
        return {"types": dict.fromkeys(unclear, "string")}
    described = ask("DESCRIBE SELECT * FROM read_json_auto(?, union_by_name = true)", [list(patterns)]).fetchall()
    # If types are given, dates of JSON are read in one format only.
    left = {name for name in dates if not all(_YEAR_FIRST.match(_first(ask, reader, file, name)) for file in files)}
    return {"columns": {name: "VARCHAR" if name in left else kind for name, kind, *_ in described}}


def _is_unclear(ask: Ask, reader: Reader, file: str, name: str) -> bool:
    """Whether the dates of a file can be read in two ways."""
    day = re.split("[ T]", _first(ask, reader, file, name))[0]
    if not day or re.match(r"\d{4}", day):
        return False
    told = f"SELECT 1 FROM {reader}(?) WHERE day({_quoted(name)}) > 12 LIMIT 1"
    return not re.search(r"\d{4}", day) or not ask(told, [file]).fetchall()


def _first(ask: Ask, reader: Reader, file: str, name: str) -> str:
    """The first value of a column as the file has it."""
    column = _quoted(name)
    options = "all_varchar = true, header = true" if reader == "read_csv" else f"columns = {{{column}: 'VARCHAR'}}"
    asked = f"SELECT trim({column}) FROM {reader}(?, {options}) WHERE trim({column}) <> '' LIMIT 1"
    found = ask(asked, [file]).fetchall()
    return str(found[0][0]) if found else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
