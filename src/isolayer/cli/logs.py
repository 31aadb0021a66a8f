"""The LOG argument: Parquet, CSV or NDJSON, a glob, an address that DuckDB knows, a pipe, or - for standard input."""

from __future__ import annotations

import glob
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from isolayer.errors import InputError

Log = Annotated[
    str, typer.Argument(help="Parquet, CSV or NDJSON: a path, a glob, an s3:// address, or - for standard input.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read(log: str) -> Any:
    """The log as a table in DuckDB; no rows are read before they are asked for.

    A path that exists is taken literally, even if it could be read as a glob. Pipes, such as a shell's ``<(zcat
    log.csv.gz)``, are read into memory, as standard input is.

    >>> read("nowhere.csv")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: log: expected a file at 'nowhere.csv', got none; check the path
    """
    from isolayer.tables.sources import pattern_of

    if log == "-":
        return _in_memory(sys.stdin.buffer, "standard input")
    if "://" in log:
        return _table(log, _kind(log.split("?")[0]))
    path = Path(log)
    if path.exists() and not path.is_file() and not path.is_dir():
        if not (path.is_fifo() or path.resolve() == Path("/dev/stdin").resolve()):
            raise InputError(f"log: expected a file, a folder or a pipe, got the device {log!r}; name a file")
        with path.open("rb") as pipe:
            return _in_memory(pipe, f"the pipe {log}")
    return _table(pattern_of(log, "log"), _kind(log))


def _kind(name: str) -> str:
    """How a name ends, compression aside.

    >>> _kind("logs/Day.CSV.gz"), _kind("day.parquet")
    ('.csv', '.parquet')
    """
    return Path(name.lower().removesuffix(".gz")).suffix


def _table(pattern: str, kind: str) -> Any:
    from isolayer.tables.sources import engine, read_parquet

    if kind in (".csv", ".tsv"):
        return engine().read_csv(pattern)
    if kind in (".json", ".ndjson", ".jsonl"):
        return engine().read_json(pattern)
    return read_parquet(pattern)


def _in_memory(stream: BinaryIO, name: str) -> Any:
    """A stream as a table in memory, its format recognised by its first byte."""
    import ibis

    data = stream.read()
    if not data.strip():
        raise InputError(f"log: expected rows on {name}, got nothing; pipe CSV, NDJSON or Parquet into it")
    kind = ".parquet" if data[:4] == b"PAR1" else ".ndjson" if data.lstrip()[:1] in b"{[" else ".csv"
    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:  # DuckDB reads files; this one must not stay
        file = Path(folder) / f"stdin{kind}"
        file.write_bytes(data)
        rows = _table(glob.escape(str(file)), kind).to_pyarrow()
    return ibis.memtable(rows)
