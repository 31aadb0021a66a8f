"""The history of checks: a few figures per day in one Parquet file, to which every check adds its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isolayer.errors import InputError
from isolayer.storage import finish_interrupted, locked, whole_file

_NUMBERS = ("rows", "o_over_e", "o_over_e_from", "o_over_e_to", "slope", "log_loss_before", "log_loss_after")
_COUNTS = ("contexts", "drifted_contexts", "new_contexts")
SCHEMA = pa.schema(
    [
        pa.field("day", pa.string()),
        pa.field("log", pa.string()),
        *(pa.field(name, pa.float64()) for name in _NUMBERS),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        pa.field("verdict", pa.string()),
        pa.field("version", pa.string()),
        pa.field("in_sample", pa.bool_()),
    ]
)
_OLDER = pa.schema(list(SCHEMA)[:-1])  # of older histories, where only the verdict says what is in sample


def append_check(path: str | PathLike[str], row: Mapping[str, Any]) -> pa.Table:
    """Add the figures of a check to a history, in one step; the same day of the same log is replaced.

    A check of rows that were already fitted never replaces an earlier check from before they were fitted.

    Args:
        path: The history; it is created if it does not exist.
        row: A value for each column of :data:`SCHEMA`.

    Returns:
        The whole history, sorted by day.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     row = dict.fromkeys(SCHEMA.names) | {"day": "2026-11-16", "log": "x", "verdict": "holds", "rows": 10.0}
    ...     for _ in range(2):
    ...         history = append_check(f"{folder}/history.parquet", row)
    >>> history["day"].to_pylist(), history["verdict"].to_pylist()
    (['2026-11-16'], ['holds'])
    """
    with locked(path):
        known = read_history(path).to_pylist() if Path(path).exists() else []
        same = [each for each in known if (each["day"], each["log"]) == (row["day"], row["log"])]
        if row["in_sample"] and any(not each["in_sample"] for each in same):
            return pa.Table.from_pylist(known, schema=SCHEMA)
        kept = [each for each in known if each not in same]
        rows = sorted([*kept, {name: row[name] for name in SCHEMA.names}], key=lambda each: _order(each["day"]))
        history = pa.Table.from_pylist(rows, schema=SCHEMA)
        with whole_file(path) as part:
            pq.write_table(history, part)
    return history


def read_history(path: str | PathLike[str]) -> pa.Table:
    """Read what :func:`append_check` wrote."""
    finish_interrupted(path)
    try:
        history = pq.read_table(path, use_threads=False, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"history: expected a history of checks at {str(path)!r}, got {error}; name another"
        ) from error
    if history.schema.equals(_OLDER):
        seen = [verdict == "in sample" for verdict in history["verdict"].to_pylist()]
        history = history.append_column(SCHEMA.field("in_sample"), [pa.array(seen, pa.bool_())])
    if not history.schema.equals(SCHEMA):
        raise InputError(
            f"history: expected the columns of a history of checks, got {history.column_names} in {str(path)!r}; name "
            "another file"
        )
    return history


def _order(day: str) -> tuple[Decimal, str]:
    """A sort key: numbers by value, dates and other text alphabetically."""
    return (Decimal(day), "") if re.fullmatch(r"-?\d+(\.\d+)?", day) else (Decimal(0), day)
