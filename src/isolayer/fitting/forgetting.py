"""How old rows are forgotten: their age in half-lives, by their number or by a time column. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.frames import times
from isolayer.fitting.histogram import LEAST_WEIGHT
from isolayer.settings import number

Floats = NDArray[np.float64]
HalfLife = float | tuple[str, float | timedelta]  # a number of rows, or a time column and a length in its units


def check_half_life(half_life: Any) -> None:
    """Raise unless this is a half-life, or None.

    >>> check_half_life(("day", timedelta(days=7)))
    """
    if isinstance(half_life, tuple) and (len(half_life) != 2 or not isinstance(half_life[0], str)):
        raise InputError(f"half_life: expected a number or (column, length), got {half_life!r}; None forgets nothing")
    length = half_life[1] if isinstance(half_life, tuple) else half_life
    if isinstance(half_life, tuple) and isinstance(length, timedelta):
        length = length.total_seconds()
    if length is not None:
        number("half_life", length, 0, advice="None forgets nothing")


def ages(
    half_life: HalfLife, columns: Mapping[str, Any], rows: int, latest: float | None
) -> tuple[Floats, float | None]:
    """Age of each new row in half-lives, and the latest time seen so far (None when age counts rows).

    Args:
        half_life: The half-life.
        columns: Columns by name, the time column among them if there is one.
        rows: How many new rows there are; the last is the newest where age counts rows.
        latest: The latest time seen before.

    >>> ages(2.0, {}, 3, None)[0].tolist()
    [1.0, 0.5, 0.0]
    """
    if not isinstance(half_life, tuple):
        return np.arange(rows - 1, -1, -1) / half_life, None
    when, length = times(half_life[0], columns[half_life[0]], half_life[1])
    newest = max(float(when.max(initial=-np.inf)), -np.inf if latest is None else latest)
    return (newest - when) / length, newest


def kept_share(
    half_life: HalfLife, columns: Mapping[str, Any], rows: int, before: float | None, latest: float | None
) -> float:
    """The factor of the weight of all earlier rows when new rows arrive.

    Args:
        half_life: The half-life.
        columns: Columns of the new rows.
        rows: How many new rows there are.
        before: The latest time before them.
        latest: The latest time with them.

    >>> kept_share(100.0, {}, 100, None, None)
    0.5
    """
    if isinstance(half_life, tuple):
        _, length = times(half_life[0], columns[half_life[0]], half_life[1])
        age = 0.0 if before is None or latest is None else (latest - before) / length
    else:
        age = rows / half_life
    return max(float(np.exp2(-age)), LEAST_WEIGHT)
