"""Checks of the rows that every metric takes: one-dimensional float64 columns. No metric belongs here.

A probability of exactly 0 or 1 is a valid prediction. Where a logarithm is taken it counts as ``PROB_FLOOR`` or
``1 - PROB_FLOOR`` (the machine epsilon of float64, the rule of scikit-learn), so one row costs at most 36.04.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting import columns
from isolayer.fitting.label_words import read_words

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

PROB_FLOOR = float(np.finfo(np.float64).eps)


def finite(name: str, values: Any, rows: int | None = None, *, booleans: bool = False) -> Floats:
    """The column as finite doubles, shape ``[n]`` with ``n >= 1``.

    >>> finite("score", []).tolist()
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: score: expected at least one row, got 0; check the filter that made this table
    """
    return columns.some(name, columns.numbers(name, values, rows, booleans=booleans))


def probs(values: Any, name: str = "prob") -> Floats:
    """Probabilities, 0 and 1 included."""
    return columns.some(name, columns.probs(name, values))


def labels(values: Any, rows: int | None = None, name: str = "label") -> Floats:
    """Labels in ``[0, 1]``; a fraction counts as that share of a positive row and the rest of a negative."""
    return columns.some(name, columns.labels(name, values, rows))


def weights(values: Any | None, rows: int) -> Floats:
    """Frequency weights: 2 means the row twice. By default all 1.

    >>> weights(None, 2).tolist()
    [1.0, 1.0]
    """
    if values is None:
        return np.ones(rows)
    column = columns.weights("weight", values, rows)
    if column.sum() <= 0:
        raise InputError("weight: expected a positive sum, got 0.0; give some row a weight")
    return column


def prob_rows(label: Any, prob: Any, weight: Any | None) -> tuple[Floats, Floats, Floats]:
    """Labels, probabilities and weights of the same rows, each checked, ``[n]``."""
    return scored_rows(label, probs(prob), weight, name="prob")


def scored_rows(label: Any, score: Floats, weight: Any | None, *, name: str = "score") -> tuple[Floats, Floats, Floats]:
    """Labels, scores (checked before) and weights of the same rows, each ``[n]``."""
    refuse_swapped("label", label, name, score)
    return labels(label, len(score)), score, weights(weight, len(score))


def refuse_swapped(label_name: str, label: Any, score_name: str, score: Floats, *, largest: int = 1) -> None:
    """Refuse scores that look like labels beside labels that look like scores.

    Scores look like labels when all are whole numbers from 0 to ``largest``, 0 and another among them; labels look like
    scores when one of them is a fraction. A constant prediction beside soft labels is legitimate and passes.

    >>> refuse_swapped("label", [0.5, 0.25], "prob", np.array([0.0, 1.0]))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: label: expected labels, got 0.5 at row 0 while prob has only whole numbers; ...
    """
    if score.min() != 0 or not 0 < score.max() <= largest or (score != np.round(score)).any():
        return
    column = finite(label_name, read_words(label_name, columns.array_of(label_name, label)), booleans=True)
    fraction = column != np.round(column)
    if fraction.any():
        row = int(np.argmax(fraction))
        raise InputError(
            f"{label_name}: expected labels, got {column[row]} at row {row} while {score_name} has only whole numbers; "
            f"the two look swapped: pass {label_name} first"
        )


def same_length(name: str, column: NDArray[Any], rows: int) -> None:
    """Refuse a column whose length is not that of the other columns."""
    columns.same_length(name, column.shape[0], rows)


def codes(name: str, values: Any, rows: int) -> tuple[Codes, NDArray[Any]]:
    """Segment of each row as ``0 .. segments - 1``, and the value each stands for, sorted.

    >>> code, keys = codes("device", ["web", "ios", "web"], 3)
    >>> code.tolist(), keys.tolist()
    ([1, 0, 1], ['ios', 'web'])
    """
    column = columns.shaped(name, columns.array_of(name, values))
    same_length(name, column, rows)
    if column.dtype.kind in "cV":
        raise InputError(f"{name}: expected strings, numbers or dates, got {column.dtype}; convert the column")
    # NaN and NaT differ from themselves; None does not.
    missing = (
        np.array([value is None or value != value for value in column]) if column.dtype == object else column != column
    )
    if missing.any():
        row = int(np.argmax(missing))
        raise InputError(
            f"{name}: expected no nulls, got {column[row]} in row {row}; replace missing values by a value of their own"
        )
    if column.dtype.kind in "iu" and column.size and column.min() >= 0 and column.max() < max(1024, rows):
        return _small_codes(column)
    try:
        keys, code = np.unique(column, return_inverse=True)
    except TypeError as error:
        raise InputError(f"{name}: expected values of one type, got a mixture; cast the column to strings") from error
    return code, keys


def _small_codes(column: NDArray[Any]) -> tuple[Codes, NDArray[Any]]:
    # Small non-negative integers need no sort: count them and number those that occur.
    present = np.bincount(column) > 0
    code = (np.cumsum(present) - 1)[column]
    return code, np.flatnonzero(present).astype(column.dtype)


def summed(code: Codes, column: Floats, segments: int) -> Floats:
    """Sum of the column over the rows of each segment, ``[segments]``.

    >>> summed(np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0]), 3).tolist()
    [4.0, 0.0, 2.0]
    """
    return np.asarray(np.bincount(code, column, segments), dtype=np.float64)


def both_classes(positive: float, weight: float, metric: str) -> None:
    """Refuse labels of one class where the metric compares the two."""
    if not 0 < positive < weight:
        only = 0 if positive <= 0 else 1
        raise InputError(f"label: expected both classes for {metric}, got only {only}; use more rows")
