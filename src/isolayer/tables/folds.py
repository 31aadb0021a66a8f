"""Folds of rows for cross-validation: a hash of the score, in arithmetic that gives the same result in every engine.

The engines' own hash functions are not used for scores, so that numpy and SQL compute the same fold.
"""

from __future__ import annotations

from typing import Any

import ibis
import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.tables.sources import Table, Value, double, finite

_PRIME = 2**31 - 1


def fold_of(score: NDArray[np.float64], folds: int) -> NDArray[np.int64]:
    """The fold of a score, as engines compute it too: a hash of its value, rounded to 2**-40.

    >>> fold_of(np.array([0.1, 0.3, 0.1]), 5).tolist()
    [2, 4, 2]
    """
    whole = np.floor((np.clip(score, -4096.0, 4096.0) + 4096.0) * 2.0**40).astype(np.int64)
    return np.asarray(_mix(whole) % folds)


def fold_expression(table: Table, score: str, folds: int | tuple[int, str]) -> Value:
    """The fold of each row of a table.

    Args:
        table: The table.
        score: Its score column.
        folds: Number of folds, where rows with equal scores are in one fold; or a pair of that and a column whose equal
            values stay together: integers, or strings, which are hashed by the engine's own function.
    """
    if not isinstance(folds, tuple):
        number = table[score].cast("float64")
        inside = ibis.least(ibis.greatest(number, double(-4096)), double(4096))
        whole = ((inside + double(4096)) * double(2.0**40)).floor().cast("int64")
        return ibis.ifelse(finite(number), _mix(whole) % folds, 0).cast("int64")
    count, name = folds
    column = table[name]
    if column.type().is_integer():
        return (_mix(column.cast("int64") % _PRIME + _PRIME) % count).fill_null(0).cast("int64")
    if not column.type().is_string():
        raise InputError(f"folds: expected integers or strings in {name}, got {column.type()}; convert it")
    return ((column.hash() % count + count) % count).fill_null(0).cast("int64")


def _mix(whole: Any) -> Any:
    """Integers in ``0 .. 2**53`` hashed to ``0 .. 2**31 - 2``: arithmetic modulo a prime that never overflows."""
    low = whole % _PRIME
    rest = whole - low  # a multiple of the prime, so that even the division of doubles is exact
    high = rest // _PRIME if isinstance(whole, np.ndarray) else (rest / _PRIME).cast("int64")
    once = (low * 48271 + high * 69621 + 12345) % _PRIME
    return (once * once + once) % _PRIME
