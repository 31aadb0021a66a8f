"""One setting: a count, a number, a choice, a flag, a name or an object, checked when it is given.

Constructors and functions of every package check their settings with these functions, so that the same mistake gives
the same error everywhere: an InputError that names the setting, the rule and what was given. Columns are read in
:mod:`isolayer.fitting.columns`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from isolayer.errors import InputError

Kind = TypeVar("Kind")

MOST = 2**31 - 1  # the largest count: sizes of tensors and arrays beyond it cannot be allocated
_MOST_SEED = 2**63 - 1
_LONGEST = 60  # characters of a value in an error


def count(name: str, value: Any, least: int = 1, most: int = MOST, *, advice: str = "count from 1") -> int:
    """A whole number from ``least`` to ``most``; neither a boolean nor a float.

    >>> count("units", 3)
    3
    >>> count("units", 2.5)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: units: expected a positive integer, got 2.5; count from 1
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _refused(name, _count_rule(least, most), value, advice)
    if not least <= value <= most:
        bounded = _count_rule(least, most) if value < least or most < MOST else f"an integer from {least} to {most}"
        raise _refused(name, bounded, value, advice)
    return int(value)


def seed(name: str, value: Any) -> int:
    """The seed of a random generator.

    >>> seed("seed", None)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: seed: expected an integer >= 0, got None; give any such integer
    """
    return count(name, value, 0, _MOST_SEED, advice="give any such integer")


def number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, ends: str = "()", advice: str
) -> float:
    """A number in an interval; infinity only if the interval is closed there, NaN never.

    Args:
        name: What to call the setting in an error.
        value: What was given.
        low: Lower end of the interval.
        high: Upper end.
        ends: Whether each end is excluded, ``(`` or ``)``, or included, ``[`` or ``]``.
        advice: What to do instead.

    >>> number("level", 0.9, 0, 1, advice="try 0.95")
    0.9
    >>> number("level", 1, 0, 1, advice="try 0.95")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: level: expected a number in (0, 1), got 1; try 0.95
    """
    found = math.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:  # an integer beyond the range of doubles
            found = math.nan
    above = found > low or (ends[0] == "[" and found == low)
    below = found < high or (ends[1] == "]" and found == high)
    if not (above and below):
        raise _refused(name, _number_rule(low, high, ends), value, advice)
    return found


def confidence(value: Any) -> float:
    """A confidence level, between 0 and 1.

    >>> confidence(95)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: level: expected a number in (0, 1), got 95; try 0.95
    """
    return number("level", value, 0, 1, advice="try 0.95")


def choice(name: str, value: Kind, options: Collection[object], *, advice: str = "choose one") -> Kind:
    """One of a few strings, or None where that is an option.

    >>> choice("mode", "product", ("sum", "cross"))
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: mode: expected 'sum' or 'cross', got 'product'; choose one
    """
    if not (value is None or isinstance(value, str)) or value not in options:
        raise _refused(name, _either([repr(option) for option in options]), value, advice)
    return value


def flag(name: str, value: Any) -> bool:
    """True or False; other values that Python treats as true or false are refused.

    >>> flag("strict", "no")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: strict: expected True or False, got 'no'; choose one
    """
    if not isinstance(value, bool | np.bool_):
        raise _refused(name, "True or False", value, "choose one")
    return bool(value)


def text(name: str, value: Any, *, advice: str) -> str:
    """A string that is not empty, such as the name of a column.

    >>> text("group", 3, advice="name a column")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: group: expected a name, got 3; name a column
    """
    if not isinstance(value, str) or not value:
        raise _refused(name, "a name", value, advice)
    return value


def names(name: str, value: Any, among: Iterable[str] | None = None, *, advice: str) -> tuple[str, ...]:
    """Distinct names, as a list or a tuple.

    >>> names("decreasing", ["skip"], ["click", "skip"], advice="name tasks only")
    ('skip',)
    >>> names("decreasing", ["like"], ["click", "skip"], advice="name tasks only")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: decreasing: expected distinct names among ['click', 'skip'], got ['like']; name tasks
    only
    """
    known = None if among is None else list(among)
    read = listed(value)
    distinct = read is not None and all(isinstance(one, str) and one for one in read) and len(set(read)) == len(read)
    if read is None or not distinct or (known is not None and not set(read) <= set(known)):
        rule = "distinct names" if known is None else f"distinct names among {known}"
        raise _refused(name, rule, value, advice)
    return tuple(str(one) for one in read)


def listed(value: Any) -> tuple[Any, ...] | None:
    """The entries of a list, a tuple, a set or an array; None for anything else, such as a string or a frame.

    >>> listed(["a", "b"]), listed("ab")
    (('a', 'b'), None)
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | Set | np.ndarray):
        return None
    return None if isinstance(value, np.ndarray) and value.ndim != 1 else tuple(value)


def path(name: str, value: Any) -> str | PathLike[str]:
    """A path, as text or as a path object.

    >>> path("path", 3)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: path: expected a path, got 3; name a file
    """
    if not isinstance(value, str | PathLike):
        raise _refused(name, "a path", value, "name a file")
    return value


def instance(name: str, value: Any, kind: type[Kind], *, advice: str) -> Kind:
    """An object of a class or of a subclass.

    >>> instance("model", None, dict, advice="build one first")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: model: expected a dict, got None; build one first
    """
    if not isinstance(value, kind):
        raise _refused(name, _a(kind.__name__), value, advice)
    return value


def mapping(name: str, value: Any, *, advice: str) -> Mapping[str, Any]:
    """A mapping whose keys are names.

    >>> mapping("contexts", ["position"], advice="give the size of each")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: contexts: expected a mapping from names, got ['position']; give the size of each
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise _refused(name, "a mapping from names", value, advice)
    return value


def function(name: str, value: Any, *, advice: str) -> Callable[..., Any]:
    """Something that can be called.

    >>> function("policy", 0.5, advice="give a function of the features")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: policy: expected a function, got 0.5; give a function of the features
    """
    if not callable(value):
        raise _refused(name, "a function", value, advice)
    found: Callable[..., Any] = value
    return found


def shown(value: Any) -> str:
    """A value as an error shows it: the value itself if it is short, otherwise its type and shape.

    >>> shown([1.5]), shown(np.zeros((3, 2))), shown(10**400)
    ('[1.5]', 'a ndarray of shape (3, 2)', 'an integer of 1329 bits')
    """
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(
        value, str | bytes | int | float | complex | np.generic | list | tuple | set | Mapping
    ):
        written = repr(value)
        if len(written) <= _LONGEST and "\n" not in written:
            return written
    shape = f" of shape {tuple(value.shape)}" if isinstance(getattr(value, "shape", None), tuple) else ""
    return _a(type(value).__name__) + shape


def _refused(name: str, rule: str, value: Any, advice: str) -> InputError:
    return InputError(f"{name}: expected {rule}, got {shown(value)}; {advice}")


def _count_rule(least: int, most: int) -> str:
    if most < MOST:
        return f"an integer from {least} to {most}"
    return "a positive integer" if least == 1 else f"an integer >= {least}"


def _number_rule(low: float, high: float, ends: str) -> str:
    if math.isinf(low) and math.isinf(high):
        return "a finite number"
    if math.isinf(high):
        if low == 0 and ends[0] == "(":
            return "a positive number"
        return f"a number {'>' if ends[0] == '(' else '>='} {low:g}"
    return f"a number in {ends[0]}{low:g}, {high:g}{ends[1]}"


def _either(options: list[str]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]]) if len(options) > 1 else options[0]


def _a(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
