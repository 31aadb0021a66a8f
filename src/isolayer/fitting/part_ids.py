"""Which parts of a log sums consist of: the ids of the parts, each with a digest of its rows.

They are stored under ``parts`` in the source of a histogram, so that they are saved and loaded with it. Sums that were
never merged by id have none. Adding, subtracting and scaling histograms keeps them true. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isolayer.errors import InputError

if TYPE_CHECKING:
    from isolayer.fitting.histogram import Histogram

PARTS = "parts"


def without_parts(source: Mapping[str, Any]) -> dict[str, Any]:
    """The source of a histogram without the ids of its parts, for example for some of its rows."""
    return {name: value for name, value in source.items() if name != PARTS}


def parts_of_both(one: Histogram, two: Histogram) -> dict[str, str]:
    """The parts of two histograms that are added; an error if they share some.

    If only one of them has ids, the rows of the other become a part that is known by its rows.
    """
    mine, theirs = (dict(each.source.get(PARTS, {})) for each in (one, two))
    shared = sorted(mine.keys() & theirs.keys())
    if shared:
        raise InputError(
            f"merge: expected sums of different parts, got {listed(shared)} in both; merge the parts themselves by "
            "merge_parts, which counts each once, or leave out one of the two"
        )
    if bool(mine) == bool(theirs):
        return mine | theirs
    known, other = (mine, two) if mine else (theirs, one)
    return known | _unnamed(other, known)


def parts_of_rest(whole: Histogram, part: Histogram) -> dict[str, str]:
    """The parts of a histogram from which another one is subtracted; an error if it is known not to contain it.

    Rows that are not exactly a part leave every part in doubt: its digest then differs from that of its rows.
    """
    mine, theirs = (dict(each.source.get(PARTS, {})) for each in (whole, part))
    if not mine:
        return {}
    strange = sorted(name for name, digest in theirs.items() if mine.get(name) != digest)
    if strange:
        raise InputError(
            f"subtract: expected parts that these sums contain, got {listed(strange)}, or other rows of the same id; "
            "subtract what was merged"
        )
    rows = part.fingerprint()
    gone = set(theirs) or {next((name for name, digest in mine.items() if digest == rows), "")}
    if gone & mine.keys():
        return {name: digest for name, digest in mine.items() if name not in gone}
    return {name: f"{digest} less {rows[:12]}" for name, digest in mine.items()}


def scaled_parts(source: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """The source of a histogram whose weights are multiplied by a factor: its parts no longer have the same rows.

    >>> scaled_parts(scaled_parts({"parts": {"mon": "c0ffee"}}, 0.5), 0.5)
    {'parts': {'mon': 'c0ffee times 0.25'}}
    """
    if PARTS not in source:
        return dict(source)
    apart = {name: digest.partition(" times ") for name, digest in source[PARTS].items()}
    return {
        **source,
        PARTS: {name: f"{rows} times {float(by or 1) * factor!r}" for name, (rows, _, by) in apart.items()},
    }


def listed(ids: list[str], most: int = 3) -> str:
    """Ids in words, the first few of them.

    >>> listed(["a", "b", "c", "d", "e"])
    "'a', 'b', 'c' and 2 more"
    """
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(repr, ids[:most])) + more


def _unnamed(sums: Histogram, known: Mapping[str, str]) -> dict[str, str]:
    """Rows without an id as a part of their own; rows that come again are another part."""
    if not sums.rows:
        return {}
    rows = sums.fingerprint()
    name, times = f"unnamed {rows[:12]}", 1
    while name in known:
        times += 1
        name = f"unnamed {rows[:12]} ({times})"
    return {name: rows}
