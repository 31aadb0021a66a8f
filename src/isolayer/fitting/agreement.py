"""Checks that two histograms can be merged. numpy only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.categories import typed
from isolayer.fitting.part_ids import PARTS, parts_of_both, parts_of_rest, without_parts

if TYPE_CHECKING:
    from isolayer.fitting.histogram import Histogram


def agreed(first: Histogram, second: Histogram, sign: float) -> dict[str, Any]:
    """The facts about the rows of two histograms together, or of their difference; an error if they contradict."""
    one, two = without_parts(first.source), without_parts(second.source)
    for name in sorted(one.keys() & two.keys()):
        both_sampled = name == "negative_rate" and None not in (one[name], two[name])  # each row has its own
        if one[name] != two[name] and not both_sampled:
            raise InputError(
                f"histograms: expected rows read in the same way, got {name} {one[name]!r} and {two[name]!r}; "
                f"read both with the same {name}"
            )
    parts = parts_of_both(first, second) if sign > 0 else parts_of_rest(first, second)
    return {**two, **one, **({PARTS: parts} if parts else {})}


def joined_keys(one: NDArray[Any], two: NDArray[Any], name: str) -> NDArray[Any]:
    """The concatenated keys of two histograms; an error if their types differ."""
    kinds = {typed(key)[0].dtype.kind for key in (one, two) if len(typed(key)[0])}
    if len(kinds) > 1:
        raise InputError(f"context {name}: expected keys of one type in both histograms, got {kinds}; convert one")
    if object in (one.dtype, two.dtype):
        return np.array([*one.tolist(), *two.tolist()], dtype=object)
    return np.concatenate([one, two])
