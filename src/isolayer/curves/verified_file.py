"""A Parquet file that can be trusted: its size is checked before it is read, and its content is verified by a digest.

A file contains one table and *facts*, JSON under the key ``isolayer`` of its metadata, which other engines ignore. The
facts contain the number of rows and the columns, so that a file whose metadata disagree is refused before it is read.
They also contain a digest of the content, so that what is loaded is exactly what was saved, to the bit.

Before the footer there is a *seal*, a digest of all other bytes, which other engines skip. It is verified before Arrow
reads anything, since a damaged footer can crash Arrow and the process. Nothing is pickled. The tables of curves and
sums are described in :mod:`isolayer.curves.parquet_io`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.storage import open_once, whole_file

SCHEMA = 4  # increased when readers of the previous schema could not read the file
_LARGE = 1_000_000  # files with more values are read by several threads
_PLAIN = 3  # schema of files without packed curves, and the oldest that can be read

_META, _MAGIC, _SEAL = b"isolayer", b"PAR1", b"isolayer seal: "
_SEALED = len(_SEAL) + 32  # bytes before the footer
_BLOCK = 1 << 20  # bytes hashed at once
_FREE = 1 << 26  # bytes that a table may always take in memory, whatever the size of its file
_EXPANSION = 64  # beyond that, the most bytes in memory per byte of the file; the writer compresses less if needed
_FOOTER = 1 << 24  # bytes that a string, and entries that a list of the footer may have

# Errors that damaged bytes can cause in Arrow, in JSON and in numbers.
_BROKEN = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

Facts = dict[str, Any]


def write_verified(table: pa.Table, facts: Mapping[str, Any], content: str, digest: str, path: Any) -> None:
    """Write a table and its facts as one Parquet file, in one step.

    Args:
        table: The table.
        facts: Plain values to keep with it.
        content: What the table is, such as ``"curves"``.
        digest: The digest of the content, by :func:`digest_of`.
        path: Where to.
    """
    own = {
        "content": content,
        "schema": SCHEMA if "packed" in facts else _PLAIN,
        "library": library_version(),
        "rows": len(table),
        "columns": _types(table),
    }
    meta = {**facts, **own, "digest": digest}
    table = table.replace_schema_metadata({_META: _json(meta).encode()})
    text = [field.name for field in table.schema if pa.types.is_string(field.type)]  # which repeats, unlike numbers
    split = {name: "BYTE_STREAM_SPLIT" for name in ("deviation", "spread") if "packed" in facts}
    with whole_file(path) as part:
        pq.write_table(
            table,
            part,
            compression="zstd",
            use_dictionary=text,
            write_page_checksum=True,
            column_encoding=split or None,
        )
        if _memory(table.schema, len(table), facts) > _allowed(part.stat().st_size):
            pq.write_table(table, part, compression="none", use_dictionary=False, write_page_checksum=True)
        seal(part)


def seal(path: Path) -> None:
    """Insert the digest of a Parquet file before its footer, where other readers ignore it."""
    with path.open("r+b") as file:
        start = _footer(file)
        file.seek(start)
        footer = file.read()
        digest = _digest_of_bytes(file, start, start)
        file.seek(start)
        file.write(_SEAL + digest + footer)


@contextmanager
def read_verified(path: str | PathLike[str], content: str | None) -> Iterator[tuple[pa.Table, Facts]]:
    """The table of a file and its facts; any failure in the block becomes an InputError that names the file.

    Args:
        path: The file.
        content: What it must contain; None for anything.
    """
    with open_verified(path, content) as opened:
        yield opened.read(), opened.facts


class Opened(NamedTuple):
    """A file whose bytes and metadata have been verified.

    Args:
        facts: Its facts.
        reader: Reads its columns.
        path: Where it was.
    """

    facts: Facts
    reader: pq.ParquetFile
    path: str

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Some columns, by default all.

        Small files are read by one thread, because a process that exits while Arrow's threads are stopping may abort.
        """
        large = self.reader.metadata.num_rows * self.reader.metadata.num_columns > _LARGE
        return self.reader.read(columns=None if columns is None else list(columns), use_threads=large)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Turn any failure in the block into an InputError that names the file."""
        with _named(self.path):
            yield


@contextmanager
def open_verified(path: str | PathLike[str], content: str | None) -> Iterator[Opened]:
    """A file whose columns can be read; any failure in the block becomes an InputError that names the file."""
    with open_once(path, content or "curves or sums") as file, _named(path):
        yield _opened(file, content, path)


@contextmanager
def _named(path: str | PathLike[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        if str(error).startswith("file: "):
            raise
        raise _corrupt(path, str(error).rpartition("; ")[0]) from error
    except _BROKEN as error:
        raise _corrupt(path, error) from error


def digest_of(facts: Mapping[str, Any], keys: Sequence[NDArray[Any]], arrays: Sequence[NDArray[Any]]) -> str:
    """A digest of content that does not depend on how it is stored in a file.

    Args:
        facts: Plain values.
        keys: Columns of strings, integers or booleans, with None for missing values.
        arrays: Columns of numbers of any shape.

    >>> digest_of({}, [np.array(["tv"])], [np.zeros(2)]) == digest_of({}, [np.array(["tv"])], [-np.zeros(2)])
    False
    """
    digest = sha256(_json([facts, [key.tolist() for key in keys]]).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _opened(file: BinaryIO, content: str | None, path: str | PathLike[str]) -> Opened:
    size = _refuse_broken(file, path)
    _refuse_unsealed(file, path)
    limits = {"thrift_string_size_limit": _FOOTER, "thrift_container_size_limit": _FOOTER}
    footer = pq.ParquetFile(file, **limits)
    facts = _facts(footer.metadata.metadata, content, path)
    _refuse_unbounded(footer.metadata, footer.schema_arrow, facts, size)
    text = [field.name for field in footer.schema_arrow if pa.types.is_string(field.type)]
    source: Any = file
    if "packed" in facts:  # some columns are read later, when the file may be closed or replaced, so keep its bytes
        file.seek(0)
        source = pa.BufferReader(file.read())
    reader = pq.ParquetFile(
        source, metadata=footer.metadata, page_checksum_verification=True, read_dictionary=text, **limits
    )
    return Opened(facts, reader, str(path))


def _refuse_broken(file: BinaryIO, path: str | PathLike[str]) -> int:
    """The size of a file that starts and ends as Parquet does."""
    start = file.read(4)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 4, 0))
    end = file.read(4)
    file.seek(0)
    if start != _MAGIC:
        raise _corrupt(path, "it does not start as Parquet does")
    if end != _MAGIC or size < 12:
        raise InputError(f"file: expected a complete file, got {str(path)!r}, which is truncated; write it again")
    return size


def _refuse_unsealed(file: BinaryIO, path: str | PathLike[str]) -> None:
    """Raise unless every byte is as it was written."""
    end = _footer(file)
    file.seek(max(end - _SEALED, 0))
    found = file.read(_SEALED)
    if end < _SEALED or not found.startswith(_SEAL):
        raise InputError(
            f"file: expected one that isolayer wrote, got {str(path)!r} without its seal; save it by isolayer"
        )
    if _digest_of_bytes(file, end - _SEALED, end) != found.removeprefix(_SEAL):
        raise _corrupt(path, "its bytes are not those that were written")
    file.seek(0)


def _footer(file: BinaryIO) -> int:
    """Where the footer of a Parquet file starts; its length is stored before the last four bytes."""
    end = file.seek(-8, os.SEEK_END)
    return max(end - int.from_bytes(file.read(4), "little"), 0)


def _digest_of_bytes(file: BinaryIO, end: int, start: int) -> bytes:
    """Digest of the bytes before ``end`` and of those from ``start`` on."""
    digest = sha256()
    file.seek(0)
    while (left := end - file.tell()) > 0 and (block := file.read(min(left, _BLOCK))):
        digest.update(block)
    file.seek(start)
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.digest()


def _facts(metadata: Mapping[bytes, bytes] | None, content: str | None, path: str | PathLike[str]) -> Facts:
    """The facts of a file; an error unless it has a readable schema and the expected content."""
    text = (metadata or {}).get(_META)
    if text is None:
        raise InputError(
            f"file: expected one that isolayer wrote, got {str(path)!r} without its metadata; save it by isolayer"
        )
    facts = dict(json.loads(text))
    schema = int(facts["schema"])
    if schema > SCHEMA:
        raise InputError(
            f"file: expected schema {SCHEMA} or older, got the newer schema {schema} of isolayer "
            f"{facts.get('library')} in {str(path)!r}; upgrade isolayer"
        )
    if schema < _PLAIN:
        raise InputError(
            f"file: expected schema {_PLAIN} or newer, got the older schema {schema} in {str(path)!r}; "
            "write it again by this isolayer"
        )
    if content is not None and facts["content"] != content:
        raise InputError(f"file: expected {content}, got {facts['content']} in {str(path)!r}; load it as what it is")
    return facts


def _refuse_unbounded(metadata: Any, schema: pa.Schema, facts: Facts, size: int) -> None:
    """Raise if the metadata disagree with the columns and rows of the facts, or claim more than the file can hold."""
    groups = [metadata.row_group(place) for place in range(min(metadata.num_row_groups, _FOOTER))]
    rows, found = facts["rows"], {field.name: str(field.type) for field in schema}
    if metadata.num_rows != rows or sum(group.num_rows for group in groups) != rows:
        raise InputError(f"rows: expected {rows} as its facts say, got {metadata.num_rows}; write it again")
    if found != facts["columns"]:
        raise InputError(f"columns: expected those of its facts, {facts['columns']}, got {found}; write it again")
    memory = max(
        _memory(schema, rows, facts),
        sum(group.column(place).total_uncompressed_size for group in groups for place in range(group.num_columns)),
    )
    if memory > _allowed(size):
        raise InputError(f"size: expected at most {_allowed(size)} bytes of content, got {memory}; write it again")
    first = 0
    for group in groups:
        for place in range(group.num_columns):
            column = group.column(place)
            is_list = "." in column.path_in_schema
            if is_list and "packed" in facts:
                continue  # any of the curves may be whole; their number is checked below
            values = _entries(facts, rows, first, group.num_rows) if is_list else group.num_rows
            if column.num_values != values:
                raise InputError(f"values: expected {values}, got {column.num_values}; write it again")
        first += group.num_rows
    for name, whole in dict(facts.get("whole", {})).items():
        _refuse_other_lists(groups, name, int(whole), rows, _knots(facts))


def _refuse_other_lists(groups: Sequence[Any], name: str, whole: int, rows: int, knots: int) -> None:
    """Raise unless a column has the stated number of whole curves and is empty in every other row."""
    every = [group.column(place) for group in groups for place in range(group.num_columns)]
    found = sum(column.num_values for column in every if column.path_in_schema.startswith(f"{name}."))
    if found != whole * knots + rows - whole:
        raise InputError(f"values: expected {whole} whole curves, got {found} entries; write it again")


def _entries(facts: Mapping[str, Any], rows: int, first: int, size: int) -> int:
    """Entries of a column of lists in some rows: the knots of every curve, and one for each row of terms."""
    curves = min(max(int(facts.get("curves", rows)) - first, 0), size)
    return curves * _knots(facts) + size - curves


def _memory(schema: pa.Schema, rows: int, facts: Mapping[str, Any]) -> int:
    """Bytes that the numbers of a table take in memory."""
    widths = [_width(field.type, facts) for field in schema]
    return rows * sum(widths)


def _width(kind: pa.DataType, facts: Mapping[str, Any]) -> int:
    if pa.types.is_list(kind):
        return _knots(facts) * _width(kind.value_type, facts)
    fixed = (pa.types.is_integer, pa.types.is_floating, pa.types.is_fixed_size_binary)
    return kind.byte_width if any(test(kind) for test in fixed) else 1


def _knots(facts: Mapping[str, Any]) -> int:
    return int(facts.get("knots", 1))


def _allowed(size: int) -> int:
    return _FREE + _EXPANSION * size


def _types(table: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise InputError(f"settings: expected plain values, got {type(value).__name__}; convert it")


def _corrupt(path: str | PathLike[str], why: object) -> InputError:
    """The error for a corrupt file, as one line."""
    why = " ".join(str(why).split())
    return InputError(f"file: expected an intact file, got {str(path)!r}, which is corrupt ({why}); write it again")


def library_version() -> str:
    """The version of isolayer that is running; "unknown" if it is not installed."""
    try:
        return version("isolayer")
    except PackageNotFoundError:
        return "unknown"
