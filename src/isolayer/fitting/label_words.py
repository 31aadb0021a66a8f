"""Labels that are words: yes and no, true and false, their first letters, or 1 and 0 as text, in any case.

All code that reads labels accepts the same words: tables in an engine (:mod:`isolayer.tables.label_query`), columns of
numbers (:func:`isolayer.fitting.columns.labels`), the classes of an estimator (:mod:`isolayer.fitting.labels`), and
the rows that a network is trained on (:mod:`isolayer.training.columns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError

YES, NO = ("yes", "y", "true", "t", "1", "1.0"), ("no", "n", "false", "f", "0", "0.0")
SPELLED = "0 and 1, true and false, yes and no, or t, f, y and n"
_VALUES = dict.fromkeys(YES, 1.0) | dict.fromkeys(NO, 0.0)
_SHOWN = 5  # values that an error names


def value_of(word: object) -> float | None:
    """The label of a word: 1, 0, or None if it is not a label.

    >>> value_of(" Yes"), value_of("f"), value_of("maybe"), value_of(1)
    (1.0, 0.0, None, None)
    """
    return _VALUES.get(word.strip().lower()) if isinstance(word, str) else None


def read_words(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """A column of labels with words converted to numbers; an error names the words that are not labels.

    >>> read_words("bought", np.array(["Yes", "no"])).tolist(), read_words("bought", np.array([1, 0])).tolist()
    ([1.0, 0.0], [1, 0])
    >>> read_words("loan", np.array(["good", "bad"]))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: loan: expected labels (0 and 1, true and false, yes and no, or t, f, y and n), got
    'bad', 'good'; write 1 for the event and 0 for the rest
    """
    if column.dtype.kind not in "UOT":
        return column
    words = {value for value in column.flat if isinstance(value, str)}
    if not words:
        return column
    values = {word: value_of(word) for word in words}
    refuse_words(name, [word for word, value in values.items() if value is None])
    numbers = [values.get(value, value) if isinstance(value, str) else value for value in column.flat]
    return np.array(numbers, dtype=object).reshape(column.shape)


def refuse_words(name: str, words: Iterable[str]) -> None:
    """Raise if there are words that are not labels."""
    others = sorted(words)
    if others:
        listed = ", ".join(repr(str(word))[:60] for word in others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        raise InputError(f"{name}: expected labels ({SPELLED}), got {listed}; write 1 for the event and 0 for the rest")
