"""Columns of frames: read by name from pandas, polars, pyarrow or a mapping, and checked.

Frames are told apart by what they can do, so none of those libraries is imported. What the columns mean is not known
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.categories import encode

Floats = NDArray[np.float64]


def column_names(frame: Any) -> list[str] | None:
    """Names of a frame's columns; None for what is not a frame.

    >>> column_names({"score": [1.0]}), column_names(np.zeros(3))
    (['score'], None)
    """
    if isinstance(frame, Mapping):
        return list(frame)
    names = getattr(frame, "column_names", None)  # pyarrow
    names = getattr(frame, "columns", None) if names is None else names
    return None if names is None or not hasattr(frame, "shape") else list(names)


def column(frame: Any, name: str) -> Any:
    """A column of a frame, as the frame gives it.

    >>> column({"score": [1.0]}, "device")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: column device: expected it in the frame, got only ['score']; add it
    """
    present = column_names(frame)
    if present is None or name not in present:
        raise InputError(f"column {name}: expected it in the frame, got only {present}; add it")
    return frame[name]


def numbers(name: str, values: Any) -> Floats:
    """A column as doubles, all of them finite.

    >>> numbers("score", [1, 2]).tolist()
    [1.0, 2.0]
    """
    try:
        out = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected a column of numbers, got {error}; convert it") from error
    bad = np.flatnonzero(~np.isfinite(out))
    if len(bad):
        got = f"{out[bad[0]]} in row {bad[0]}"
        raise InputError(f"{name}: expected finite numbers, got {got}; drop or repair those rows")
    return out


def shares(name: str, values: Floats) -> Floats:
    """Numbers in (0, 1], or an error that says the range found.

    >>> shares("negative_rate", np.array([0.1, 1.0])).tolist()
    [0.1, 1.0]
    """
    if not ((values > 0) & (values <= 1)).all():
        got = f"{values.min()} to {values.max()}"
        raise InputError(f"{name}: expected shares in (0, 1], got {got}; give the kept share of negatives")
    return values


def times(frame: Any, name: str, half_life: float | timedelta) -> tuple[Floats, float]:
    """A time column as numbers, and a half-life in the same unit: seconds for datetimes.

    >>> times({"day": [1, 2]}, "day", 7)
    (array([1., 2.]), 7.0)
    """
    values = np.asarray(column(frame, name))
    if values.dtype.kind == "M":
        if not isinstance(half_life, timedelta):
            raise InputError(f"half_life: expected a timedelta for the datetimes of {name}, got {half_life}; give one")
        seconds = (values - np.datetime64("1970-01-01", "us")) / np.timedelta64(1, "s")
        return numbers(name, seconds), half_life.total_seconds()
    if isinstance(half_life, timedelta):
        raise InputError(f"half_life: expected a number in the units of {name}, got {half_life}; give a number")
    return numbers(name, values), float(half_life)


def refuse_missing(context: Mapping[str, Any]) -> None:
    """Raise when a context column has a missing value.

    >>> refuse_missing({"device": ["tv", None]})
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: context device: expected no missing values, got 1 of 2 rows; fill them, or use
    missing="own" to give them a curve of their own
    """
    for name, values in context.items():
        vocabulary, codes = encode(values, name)
        if vocabulary.dtype == object and len(vocabulary) and vocabulary[-1] is None:
            rows = int((codes == len(vocabulary) - 1).sum())
            raise InputError(
                f"context {name}: expected no missing values, got {rows} of {len(codes)} rows; fill them, or use "
                'missing="own" to give them a curve of their own'
            )
