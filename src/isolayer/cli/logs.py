"""The LOG argument: Parquet, CSV or NDJSON, a glob, an address that DuckDB knows, a pipe, or - for standard input."""

from __future__ import annotations

import glob
import gzip
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from isolayer.cli.spelling import Spelled, spelled
from isolayer.errors import InputError

Log = Annotated[
    list[str],
    typer.Argument(
        help="Parquet, CSV or NDJSON, compressed by gzip or not: paths, globs, a folder, an s3:// address, or - for "
        "standard input."
    ),
]
_CSV, _JSON = (".csv", ".tsv"), (".json", ".ndjson", ".jsonl")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def name_of(log: Sequence[str]) -> str:
    """The files of a log as they were typed."""
    return " ".join(log)


def read(log: Sequence[str]) -> Any:
    """The log as a table in DuckDB; no rows are read before they are asked for.

    A path that exists is taken literally, even if it could be read as a glob. Pipes, such as a shell's ``<(zcat
    log.csv.gz)``, are read into memory, as standard input is.

    Args:
        log: What was typed: paths, globs, folders and addresses of one format, or one pipe.

    >>> read(["nowhere.csv"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: log: expected a file at 'nowhere.csv', got none; check the path
    """
    if len(log) == 1 and (stream := _stream(log[0])) is not None:
        with stream as (pipe, name):
            return _in_memory(pipe, name)
    patterns = [_pattern(one) for one in log]
    kinds = {_kind(one.split("?")[0] if "://" in one else one) for one in log}
    if len(kinds) > 1:
        listed = ", ".join(sorted(kind or "a folder" for kind in kinds))
        raise InputError(f"log: expected files of one format, got {listed}; convert them, or give one format at a time")
    kind = kinds.pop()
    table = _table(patterns, kind)
    return _some(table, repr(name_of(log))) if kind in (*_CSV, *_JSON) else table


def read_spelled(log: Sequence[str], typed: Any, used: Sequence[str]) -> Spelled | None:
    """The rows of CSV files with the original text of every column; None if the log is not CSV.

    Args:
        log: The files.
        typed: What :func:`read` made of it.
        used: Columns that are computed with.
    """
    from isolayer.tables.sources import read_text

    if any(_kind(one) not in _CSV for one in log):
        return None
    patterns = [_pattern(one) for one in log]
    return spelled(typed, read_text(patterns, "read_csv", checked=False, all_varchar=True), patterns[0], used)


def _some(table: Any, name: str) -> Any:
    """A table of text; an error if it has no rows, because then the types of its columns are unknown."""
    if not table.limit(1).count().to_pyarrow().as_py():
        raise InputError(f"log: expected rows, got none in {name}; check that it was written")
    return table


def _pattern(one: str) -> str:
    """The pattern that DuckDB is given for one of several files."""
    from isolayer.tables.sources import pattern_of

    if one == "-" or (Path(one).exists() and not Path(one).is_file() and not Path(one).is_dir()):
        raise InputError(f"log: expected only files if there are several, got {one!r}; write it to a file first")
    return pattern_of(one, "log")


def _stream(one: str) -> AbstractContextManager[tuple[BinaryIO, str]] | None:
    """Standard input or a pipe, which can be read once, and its name; None for files."""
    path = Path(one)
    if one == "-":
        return nullcontext((sys.stdin.buffer, "standard input"))
    if "://" in one or not path.exists() or path.is_file() or path.is_dir():
        return None
    if not (path.is_fifo() or path.resolve() == Path("/dev/stdin").resolve()):
        raise InputError(f"log: expected a file, a folder or a pipe, got the device {one!r}; name a file")
    return _opened(path)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    with path.open("rb") as pipe:
        yield pipe, f"the pipe {path}"


def _kind(name: str) -> str:
    """The ending of a name, without that of its compression.

    >>> _kind("logs/Day.CSV.gz"), _kind("day.parquet")
    ('.csv', '.parquet')
    """
    return Path(name.lower().removesuffix(".gz")).suffix


def _table(patterns: list[str], kind: str) -> Any:
    from isolayer.tables.sources import read_parquet, read_text

    if kind in _CSV:
        return read_text(patterns, "read_csv")
    if kind in _JSON:
        return read_text(patterns, "read_json")
    return read_parquet(patterns)


def _unpacked(data: bytes, name: str) -> bytes:
    """The content of a stream; gzip is recognised by its first two bytes."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"log: expected complete gzip on {name}, got an error ({error}); send it again") from error


def _in_memory(stream: BinaryIO, name: str) -> Any:
    """A stream as a table in memory, its format recognised by its first byte."""
    import ibis

    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:  # DuckDB reads files; this one is temporary
        file = _written(stream, name, Path(folder))
        rows = _some(_table([glob.escape(str(file))], file.suffix), name).to_pyarrow()
    return ibis.memtable(rows)


def _written(stream: BinaryIO, name: str, folder: Path) -> Path:
    """The content of a stream as a file whose name says the format."""
    data = _unpacked(stream.read(), name)
    if not data.strip():
        raise InputError(f"log: expected rows on {name}, got nothing; pipe CSV, NDJSON or Parquet into it")
    kind = ".parquet" if data[:4] == b"PAR1" else ".ndjson" if data.lstrip()[:1] in b"{[" else ".csv"
    file = folder / f"stdin{kind}"
    file.write_bytes(data)
    return file


@contextmanager
def as_files(log: Sequence[str]) -> Iterator[list[str]]:
    """The log as files that can be read more than once; a stream is first written to a file."""
    stream = _stream(log[0]) if len(log) == 1 else None
    if stream is None:
        yield list(log)
        return
    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder, stream as (pipe, name):
        file = _written(pipe, name, Path(folder))
        _some(_table([glob.escape(str(file))], file.suffix), name)
        yield [str(file)]
