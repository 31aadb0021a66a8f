"""Sums from many writers: the parts of one log, each with an id, may come twice, late or in any order.

A cluster sums a log in parts, and repeats a part when a worker is lost or slow. A part is identified by its id, such as
the name of its file, so that the total does not depend on what was repeated or on the order of arrival: merging is
associative, commutative and idempotent, to the bit. numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable

from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.settings import instance, text


def merge_parts(parts: Iterable[tuple[str, Histogram]]) -> Histogram:
    """The sums of all parts, each counted once.

    Args:
        parts: Pairs of an id and sums. An id may come again with the same rows; with other rows it is an error.

    >>> monday, tuesday = Histogram.from_arrays([0.1], [1]), Histogram.from_arrays([0.2], [0])
    >>> merge_parts([("mon", monday), ("tue", tuesday), ("mon", monday)]).rows
    2.0
    """
    known = dict[str, Histogram]()
    for name, part in parts:
        text("id", name, advice="name the part, for example by its file")
        instance(f"part {name}", part, Histogram, advice="make it with Histogram.from_arrays or from_table")
        if name in known and known[name].fingerprint() != part.fingerprint():
            raise InputError(
                f"part {name}: expected the same rows each time, got {known[name].rows:g}, then {part.rows:g} others; "
                "give every part its own id"
            )
        known.setdefault(name, part)
    if not known:
        raise InputError("parts: expected at least one, got none; check that the writers have written")
    ordered = [known[name] for name in sorted(known)]
    while len(ordered) > 1:  # in pairs, always the same ones: each row is copied a few times only
        pairs = zip(ordered[::2], ordered[1::2], strict=False)
        ordered = [one.merge(two) for one, two in pairs] + ordered[len(ordered) // 2 * 2 :]
    return ordered[0]
