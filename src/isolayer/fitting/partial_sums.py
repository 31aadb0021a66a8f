"""Sums from many writers: the parts of one log, each with an id, may come twice, late or in any order.

A cluster sums a log in parts, and repeats a part when a worker is lost or slow. A part is identified by its id, such as
the name of its file, so that the total does not depend on what was repeated or on the order of arrival. A total
remembers the ids of its parts, so that totals can be merged in turn: whatever the tree of merges, every part is counted
once, or the merge is refused, because the sums of two totals that overlap cannot be separated. numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.part_ids import PARTS, listed, without_parts
from isolayer.settings import instance, text


class _Part(NamedTuple):
    """Sums, the id that they were given, and the digest of the rows of each part in them."""

    name: str
    sums: Histogram
    held: Mapping[str, str]


def merge_parts(parts: Iterable[tuple[str, Histogram]]) -> Histogram:
    """The sums of all parts, each counted once.

    The same parts give the same sums to the bit, in any order and however often they come. Totals of this function may
    be given too, under any id: they are recognised by the parts in them. A total whose parts are all given, or are all
    in another total, is left out. The counts of a tree of merges are exact, and its other sums differ from those of one
    merge only by rounding.

    Args:
        parts: Pairs of an id and sums. An id may come again with the same rows; with other rows it is an error.

    Raises:
        InputError: If two totals share some parts, but neither contains the other.

    >>> monday, tuesday = Histogram.from_arrays([0.1], [1]), Histogram.from_arrays([0.2], [0])
    >>> both = merge_parts([("mon", monday), ("tue", tuesday), ("mon", monday)])
    >>> both.rows, parts_of(both), merge_parts([("week", both), ("tue", tuesday)]).rows
    (2.0, ('mon', 'tue'), 2.0)
    """
    known = [_checked(name, part) for name, part in parts]
    if not known:
        raise InputError("parts: expected at least one, got none; check that the writers have written")
    _refuse_changed(known)
    used = sorted(_disjoint(known), key=lambda part: min(part.held))
    total = _summed([replace(part.sums, source=without_parts(part.sums.source)) for part in used])
    held = {name: digest for part in used for name, digest in part.held.items()}
    return replace(total, source={**total.source, PARTS: dict(sorted(held.items()))})


def parts_of(sums: Histogram) -> tuple[str, ...]:
    """The ids of the parts in merged sums, sorted; none if the sums were not merged by id."""
    return tuple(sorted(sums.source.get(PARTS, ())))


def _checked(name: str, part: Histogram) -> _Part:
    text("id", name, advice="name the part, for example by its file")
    instance(f"part {name}", part, Histogram, advice="make it with Histogram.from_arrays or from_table")
    return _Part(name, part, part.source.get(PARTS) or {name: part.fingerprint()})


def _refuse_changed(parts: Sequence[_Part]) -> None:
    """Raise if an id has other rows in one part than in another."""
    first = dict[str, tuple[str, str]]()
    for part in parts:
        for name, digest in part.held.items():
            known, where = first.setdefault(name, (digest, part.name))
            if known != digest:
                raise InputError(
                    f"part {name}: expected the same rows each time, got other rows in {part.name!r} than in "
                    f"{where!r}; give every part its own id"
                )


def _disjoint(parts: Sequence[_Part]) -> list[_Part]:
    """Parts and totals that contain every id once; an error if totals overlap."""
    distinct = _distinct(parts)
    single = {ids[0]: part for ids, part in distinct.items() if len(ids) == 1}
    totals = {ids: part for ids, part in distinct.items() if not part.held.keys() <= single.keys()}
    owner = dict[str, _Part]()
    for ids, total in sorted(totals.items(), key=lambda one: (-len(one[0]), one[0])):
        shared = [name for name in ids if name in owner]
        if len(shared) == len(ids):
            continue
        if shared:
            raise InputError(
                f"overlap: expected totals of different parts, got {owner[shared[0]].name!r} and {total.name!r}, which "
                f"both contain {listed(shared)}; merge the parts themselves, or leave out one of the two"
            )
        owner |= dict.fromkeys(ids, total)
    apart = [part for name, part in single.items() if name not in owner]
    return [*{id(part): part for part in owner.values()}.values(), *apart]


def _distinct(parts: Sequence[_Part]) -> dict[tuple[str, ...], _Part]:
    """Sums by the ids in them. Of sums of the same rows that differ by rounding, the same ones are always taken."""
    found = dict[tuple[str, ...], _Part]()
    for part in parts:
        first = found.setdefault(tuple(sorted(part.held)), part)
        if first.sums is not part.sums and _bits(part.sums) < _bits(first.sums):
            found[tuple(sorted(part.held))] = part
    return found


def _bits(sums: Histogram) -> bytes:
    return b"".join(column.tobytes() for column in (sums.fold, sums.logit, sums.weight, sums.positive))


def _summed(sums: list[Histogram]) -> Histogram:
    while len(sums) > 1:  # in pairs, always the same ones: each row is copied a few times only
        pairs = zip(sums[::2], sums[1::2], strict=False)
        sums = [one.merge(two) for one, two in pairs] + sums[len(sums) // 2 * 2 :]
    return sums[0]
