"""Rows that a command writes: the format is what the name of the file says, and DuckDB writes it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from isolayer.cli.files import check_output
from isolayer.errors import InputError
from isolayer.storage import whole_file

# How names end, and how DuckDB is told to write such a file.
_FORMATS = {
    ".parquet": "FORMAT parquet",
    ".csv": "FORMAT csv, HEADER",
    ".csv.gz": "FORMAT csv, HEADER, COMPRESSION gzip",
    ".ndjson": "FORMAT json",
}


def check_format(out: Path) -> str:
    """How DuckDB is told to write a file of this name; an error if the name says no format.

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
    """Raise unless rows can be written there: to a file of a known format, or to standard output by itself."""
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
    """Write a table of the embedded DuckDB to a file, whole or not at all, or as CSV to standard output."""
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
    backend.to_pyarrow(rows.limit(0))  # rows in memory, such as those of a pipe, have a name in the engine from now on
    with whole_file(out) as part:
        name = str(part).replace("'", "''")
        backend.raw_sql(f"COPY (SELECT {_exact(rows)} FROM ({backend.compile(rows)})) TO '{name}' ({options})")


def _exact(rows: Any) -> str:
    """All columns for a statement. Whole numbers of many digits are decimals: DuckDB writes a HUGEINT as a double."""
    wide = [name for name, kind in rows.schema().items() if kind.is_decimal() and kind.scale == 0]
    quoted = ['"' + name.replace('"', '""') + '"' for name in wide]
    replaced = ", ".join(f"CAST({name} AS DECIMAL(38, 0)) AS {name}" for name in quoted)
    return f"* REPLACE ({replaced})" if replaced else "*"
