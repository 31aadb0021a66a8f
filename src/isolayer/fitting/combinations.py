"""The settings for combinations of fields: which to add, how many to find by their evidence, and which to leave out.

In text a combination is written with an x between its fields: ``hour x device``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from isolayer.errors import InputError
from isolayer.fitting.field_levels import Field
from isolayer.settings import count, listed, shown

Interactions = Literal["auto"] | int | Sequence[Sequence[str] | int]
Name = str | Sequence[str]  # name of a field, or names of the fields of a combination

_MOST_TERMS = 40  # most combinations that are found
_ORDER = 3  # most fields of a combination
_RULE = "two or three different names of fields in each"
_ADVICE = '0 is none; or "auto"'


class Choice(NamedTuple):
    """Combinations by the indices of their fields: how many to find at most, which to add, and which to leave out.

    >>> Choice(40, never=(frozenset({0, 1}),)).allows([1, 0, 2]), Choice(40).allows([1, 0, 2])
    (False, True)
    """

    most: int
    asked: tuple[tuple[int, ...], ...] = ()
    never: tuple[frozenset[int], ...] = ()

    def allows(self, places: Collection[int]) -> bool:
        """Whether a combination may be found: no part of it is left out, and it is not added already."""
        return not any(gone <= set(places) for gone in self.never) and not any(
            set(one) == set(places) for one in self.asked
        )


def written(name: Name) -> str:
    """The name of a term as text.

    >>> written("hour"), written(("hour", "device"))
    ('hour', 'hour x device')
    """
    return name if isinstance(name, str) else " x ".join(name)


def named(written: str, fields: Collection[str] = ()) -> Name:
    """The inverse of :func:`written`; the name of a known field is never split.

    >>> named("hour x device"), named("hour"), named("2 x 2", ["2 x 2"])
    (('hour', 'device'), 'hour', '2 x 2')
    """
    parts = tuple(part.strip() for part in written.split(" x "))
    return written if written in fields or len(parts) == 1 else parts


def most_terms(interactions: Interactions) -> int:
    """The number of combinations that a fit may find besides those that the setting names.

    >>> most_terms("auto"), most_terms(0), most_terms([("hour", "device")]), most_terms([("hour", "device"), "auto"])
    (40, 0, 0, 40)
    """
    found = [one for one in _entries(interactions) if not _is_combination(one)]
    if len(found) > 1:
        raise InputError(f"interactions: expected one number or 'auto', got {shown(found)}; leave out one")
    if not found:
        return 0
    if _is_auto(found[0]):
        return _MOST_TERMS
    return count("interactions", found[0] if isinstance(found[0], int) else interactions, 0, advice=_ADVICE)


def check_without(without: Any) -> tuple[Name, ...]:
    """What a fit leaves out, checked: names of fields, and tuples of them.

    >>> check_without(["hour", ("hour", "device")])
    ('hour', ('hour', 'device'))
    """
    names = listed(without)
    advice = 'try ["user", ("hour", "device")]'
    if names is None or not all((isinstance(name, str) and name) or listed(name) for name in names):
        raise InputError(f"without: expected names of fields or tuples of them, got {shown(without)}; {advice}")
    for name in names:
        if not isinstance(name, str):
            _check_combination("without", name, advice)
    return names


def check_interactions(interactions: Interactions) -> None:
    """Raise unless a setting is a number of combinations, ``"auto"``, or a list of combinations."""
    most_terms(interactions)
    for one in _entries(interactions):
        if _is_combination(one):
            _check_combination("interactions", one, 'try ("hour", "device")')


def choice_of(interactions: Interactions, without: Sequence[Name], fields: Sequence[Field]) -> Choice:
    """The choice that settings make for some fields; fields that are left out have been removed before."""
    named = [one for one in _entries(interactions) if _is_combination(one)]
    gone = [name for name in without if not isinstance(name, str)]
    asked = tuple(tuple(sorted(_places("interactions", one, fields))) for one in named)
    never = tuple(frozenset(_places("without", one, fields)) for one in gone)
    for one, places in zip(named, asked, strict=True):
        if any(part <= set(places) for part in never):
            raise InputError(f"interactions: expected none that is left out, got {one}; remove it from without")
    return Choice(most_terms(interactions), tuple(dict.fromkeys(asked)), never)


def left(fields: Iterable[Field], without: Sequence[Name]) -> tuple[Field, ...]:
    """The fields without those that are left out by their own name or by that of their column.

    >>> hour, weekday = Field("when", "number", part="hour"), Field("when", "number", part="weekday")
    >>> [one.name for one in left([hour, weekday], ["when.hour"])], left([hour, weekday], ["when"])
    (['when.weekday'], ())
    """
    fields = tuple(fields)
    gone = {name for name in without if isinstance(name, str)}
    for name in sorted(gone - {known for one in fields for known in (one.name, one.column)}):
        raise InputError(f"without: expected names of fields, got {name!r}; {_known(fields)}")
    return tuple(one for one in fields if not gone & {one.name, one.column})


def _entries(interactions: Any) -> list[Any]:
    """The entries of a setting: combinations, and how many others to find."""
    return list(interactions) if isinstance(interactions, list | tuple) else [interactions]


def _is_auto(entry: Any) -> bool:
    return isinstance(entry, str) and entry == "auto"


def _is_combination(entry: Any) -> bool:
    return isinstance(entry, list | tuple)


def _check_combination(setting: str, names: Any, advice: str) -> None:
    found = listed(names) or ()
    if not (all(isinstance(name, str) for name in found) and 2 <= len(set(found)) == len(found) <= _ORDER):
        raise InputError(f"{setting}: expected {_RULE}, got {shown(names)}; {advice}")


def _places(setting: str, names: Sequence[str], fields: Sequence[Field]) -> list[int]:
    place = {one.name: i for i, one in enumerate(fields)}
    for name in names:
        if name not in place:
            raise InputError(f"{setting}: expected names of fields, got {name!r}; {_known(fields)}")
    return [place[name] for name in names]


def _known(fields: Sequence[Field]) -> str:
    return f"the fields are {[one.name for one in fields]}"
