"""Rows that a command writes: the name of the file says the format, and DuckDB writes it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from isolayer.cli.files import check_output
from isolayer.errors import InputError
from isolayer.storage import whole_file

# Endings of file names, and the options with which DuckDB writes such a file.
_FORMATS = {
    ".parquet": "FORMAT parquet",
    ".csv": "FORMAT csv, HEADER",
    ".csv.gz": "FORMAT csv, HEADER, COMPRESSION gzip",
    ".ndjson": "FORMAT json",
}


def check_format(out: Path) -> str:
    """The options with which DuckDB writes a file of this name; an error if the name has no known ending.

    >>> check_format(Path("rows.CSV.gz"))
    'FORMAT csv, HEADER, COMPRESSION gzip'
    """
    name = out.name.lower()
    for ending, options in _FORMATS.items():
        if name.endswith(ending):
            return options
    endings = ", ".join(_FORMATS)
    raise InputError(f"--out: expected a name ending in one of {endings}, got {str(out)!r}; rename it")


def check_rows_output(out: Path, as_json: bool, *inputs: str | Path) -> None:
    """Raise unless rows can be written there: to a file of a known format, or to standard output without --json."""
    if str(out) != "-":
        check_output(out, "--out", *inputs)
        check_format(out)
    elif as_json:
        raise InputError("--json: expected a file in --out, since - prints the rows, got both; choose one")


def counts(rows: Any, column: str) -> tuple[int, int]:
    """Number of rows of a table, and of those that have no number in a column."""
    missing = rows[column].isnull() | rows[column].isnan()
    found = rows.aggregate(rows=rows.count(), missing=missing.sum()).to_pyarrow().to_pylist()[0]
    return found["rows"], found["missing"] or 0


def write(rows: Any, out: Path) -> None:
    """Write a table of the embedded DuckDB to a file, completely or not at all, or as CSV to standard output."""
    from isolayer.tables.sources import backend_of

    backend = backend_of(rows)
    if str(out) == "-":
        with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:
            write(rows, Path(folder) / "rows.csv")
            with (Path(folder) / "rows.csv").open("rb") as file:
                sys.stdout.flush()
                shutil.copyfileobj(file, sys.stdout.buffer)
        return
    options = check_format(out)
    backend.to_pyarrow(rows.limit(0))  # compiling gives rows in memory, such as those of a pipe, a name in the engine
    with whole_file(out) as part:
        name = str(part).replace("'", "''")
        backend.raw_sql(f"COPY (SELECT {_exact(rows)} FROM ({backend.compile(rows)})) TO '{name}' ({options})")


def _exact(rows: Any) -> str:
    """All columns for a statement. Very large integers become decimals, because DuckDB writes a HUGEINT as a double."""
    wide = [name for name, kind in rows.schema().items() if kind.is_decimal() and kind.scale == 0]
    quoted = ['"' + name.replace('"', '""') + '"' for name in wide]
    replaced = ", ".join(f"CAST({name} AS DECIMAL(38, 0)) AS {name}" for name in quoted)
    return f"* REPLACE ({replaced})" if replaced else "*"
