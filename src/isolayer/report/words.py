"""Values of a log as text that can be read: nothing invisible, nothing endless, nothing that reorders its neighbours.

Context values, column names and titles come from anywhere. What a page or a chart shows of them goes through
:func:`readable`, and nothing but what it returns is shown.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

LONGEST = 80  # characters of a value that are shown; of longer ones the middle is left out
_JOINERS = "\u200c\u200d"  # zero-width, but part of words and of emoji
_ISOLATE, _END = "\u2068", "\u2069"  # a first-strong isolate: right-to-left text keeps its order to itself


def readable(value: Any, longest: int = LONGEST) -> str:
    r"""One value as text: control characters as escapes, the middle of long text left out, None and "" by name.

    >>> readable("web"), readable(3), readable(None), readable("")
    ('web', '3', '(missing)', '(empty)')
    >>> readable("a\nb\x1b[31m\u2028")
    'a\\nb\\x1b[31m\\u2028'
    """
    if value is None:
        return "(missing)"
    text = str(value)
    if not text.strip():
        return f"({'blank' if text else 'empty'})"
    text = "".join(map(_visible, _shortened(text, longest)))
    return f"{_ISOLATE}{text}{_END}" if _right_to_left(text) else text


def joined(names: Iterable[Any], between: str = " × ") -> str:
    """Names of columns in one line.

    >>> joined(["device", "position"])
    'device × position'
    """
    return between.join(map(readable, names))


def readables(values: Any) -> list[str]:
    """:func:`readable` of each value of a column, ``[n]``.

    >>> readables(np.array([3, None], dtype=object))
    ['3', '(missing)']
    """
    return [readable(value) for value in np.asarray(values).tolist()]


def _visible(letter: str) -> str:
    """A letter, or its escape where it is a control, a line separator, half a surrogate pair or a bidi override."""
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _JOINERS
    return letter.encode("unicode_escape").decode("ascii") if hidden else letter


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 40]}…{text[-39:]}"


def _right_to_left(text: str) -> bool:
    return any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text)
