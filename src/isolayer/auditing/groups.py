"""The groups that the multicalibration error is taken over, as MCGrad defines them (Guy et al. 2025).

Every field is reduced to at most three values: a category to its two most frequent values and all others, a number to
its thirds; a missing number is a further value. Every combination of values of up to three fields is a group, and so
are all rows together. There are about a thousand groups at most; combinations of few fields come first. Groups of fewer
than ten rows are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.categories import Column
from isolayer.fitting.field_levels import Field, number_of

Codes = NDArray[np.int64]

LEAST_ROWS = 10
_VALUES, _DEPTH, _GROUPS = 3, 3, 1000


def mcgrad_groups(fields: Sequence[Field], columns: Mapping[str, Column]) -> dict[str, Codes]:
    """Columns of codes, one per combination of fields: each code of each column is a group.

    >>> device = {"device": ["tv", "web", "tv", "app", "car"]}
    >>> mcgrad_groups([Field.of("device", device["device"])], device)["device"].tolist()
    [0, 2, 0, 1, 2]
    """
    coded = {one.name: _codes(one, columns[one.column]) for one in sorted(fields, key=lambda one: one.kind)}
    found, groups = dict[str, Codes](), 1
    for depth in range(1, _DEPTH + 1):
        for names in combinations(coded, depth):
            code = np.zeros(len(coded[names[0]]), np.int64)
            for name in names:
                code = code * (_VALUES + 1) + coded[name]
            rows = np.bincount(code)
            groups += int((rows >= LEAST_ROWS).sum())
            if groups > _GROUPS:
                return found
            found[" and ".join(names)] = code
    return found


def _codes(one: Field, values: Column) -> Codes:
    if one.kind == "category":
        code = one.levels_of(values)
        order = np.argsort(-np.bincount(code, minlength=one.size), kind="stable")
        own = one.size if one.size <= _VALUES else _VALUES - 1  # categories that keep a value of their own
        place = np.full(one.size, own)
        place[order[:own]] = np.arange(own)
        return place[code]
    numbers = number_of(one.column, values, one.part)
    known = ~np.isnan(numbers)
    distinct = np.unique(numbers[known])
    if len(distinct) <= _VALUES:
        edges = distinct[:-1]
    else:
        edges = np.unique(np.quantile(numbers[known], np.arange(1, _VALUES) / _VALUES))
    return np.where(known, np.searchsorted(edges, np.where(known, numbers, 0.0), side="left"), _VALUES)
