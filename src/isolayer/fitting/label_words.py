"""Labels that are words: yes and no, true and false, or their first letters, in any case."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError

YES, NO = ("yes", "y", "true", "t"), ("no", "n", "false", "f")
SPELLED = "0 and 1, true and false, yes and no, or t, f, y and n"
_VALUES = dict.fromkeys(YES, 1.0) | dict.fromkeys(NO, 0.0)
_SHOWN = 5  # values that an error names


def read_words(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """A column of labels, in which words are numbers; an error names the words that are no labels.

    >>> read_words("bought", np.array(["Yes", "no"])).tolist(), read_words("bought", np.array([1, 0])).tolist()
    ([1.0, 0.0], [1, 0])
    >>> read_words("loan", np.array(["good", "bad"]))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: loan: expected labels (0 and 1, true and false, yes and no, or t, f, y and n), got
    'bad', 'good'; convert them
    """
    if column.dtype.kind not in "UOT" or not any(isinstance(value, str) for value in column.flat):
        return column
    values = [_VALUES.get(value.strip().lower(), value) if isinstance(value, str) else value for value in column.flat]
    refuse_words(name, {value for value in values if isinstance(value, str)})
    return np.array(values, dtype=object).reshape(column.shape)


def refuse_words(name: str, words: set[str]) -> None:
    """Raise if there are words that are no labels."""
    if words:
        listed = ", ".join(repr(word)[:60] for word in sorted(words)[:_SHOWN]) + (
            ", ..." if len(words) > _SHOWN else ""
        )
        raise InputError(f"{name}: expected labels ({SPELLED}), got {listed}; convert them")
