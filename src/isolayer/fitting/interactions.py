r"""Combinations of fields whose rows are off together: candidates, and the evidence for each.

A candidate is two or three *views*, each a field at some resolution. For the cells of a candidate, with sums G of
residuals and H of Newton weights, the evidence that their offsets have variance :math:`\tau^2` rather than 0 is

.. math:: \max_{\tau^2} \sum_{cells} \frac{G^2}{2 (H + 1/\tau^2)} - \frac12 \log(1 + H \tau^2)

in nats. It includes a penalty for the number of free cells, so no rows need to be held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.field_levels import Field

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]

RESOLUTIONS = (8, 32)  # bins of a number in an interaction
_FEW = 64  # a number with up to this many levels may also keep them all
_PAIR_CELLS, _MORE_CELLS = 20_000, 100_000
_VARIANCES = (0.003, 0.01, 0.03, 0.1, 0.3)


class View(NamedTuple):
    """A field at some resolution: ``level[i]`` is the coarser level of the field's level ``i``; -1 stays -1."""

    field: int
    level: Levels
    size: int

    def of(self, levels: Levels) -> Levels:
        """Levels of rows at this resolution, from those of the field."""
        return np.append(self.level, np.intp(-1)).take(levels)


Candidate = tuple[View, ...]


def views(fields: Sequence[Field], counts: Sequence[Floats]) -> list[View]:
    """Every resolution of every field.

    Args:
        fields: The fields.
        counts: Weight of the rows at each level of each field.
    """
    found = list[View]()
    for i, (one, count) in enumerate(zip(fields, counts, strict=True)):
        whole = View(i, np.arange(one.size, dtype=np.intp), one.size)
        if one.kind == "category":
            found.append(whole)
            continue
        bins = one.size - 1
        found += [coarser(i, one, count, size) for size in RESOLUTIONS if size < bins]
        if bins <= _FEW:
            found.append(whole)
    return found


def coarser(place: int, one: Field, count: Floats, bins: int) -> View:
    """A number with fewer bins of about equal weight; missing stays a level of its own.

    >>> age = Field("age", "number", edges=np.arange(3.0))
    >>> coarser(0, age, np.array([1.0, 1.0, 1.0, 1.0, 0.0]), 2).level.tolist()
    [0, 0, 1, 1, 2]
    """
    mass = count[:-1]
    middle = (np.cumsum(mass) - mass / 2) / max(mass.sum(), 1e-300)
    target = np.minimum((middle * bins).astype(np.int64), bins - 1)
    _, level = np.unique(target, return_inverse=True)
    size = int(level.max(initial=0)) + 1
    return View(place, np.append(level, size).astype(np.intp), size + 1)


def pairs(found: Sequence[View], rows: int) -> list[Candidate]:
    """All pairs of views of different fields with few enough cells, and at most as many cells as rows."""
    both, most = combinations(found, 2), min(_PAIR_CELLS, rows)
    return [(a, b) for a, b in both if a.field != b.field and a.size * b.size <= most]


def extended(chosen: Candidate, found: Sequence[View], order: int, rows: int) -> list[Candidate]:
    """A chosen candidate with every possible further field, up to an order and to a number of cells."""
    if len(chosen) >= order:
        return []
    used = {view.field for view in chosen}
    cells = int(np.prod([view.size for view in chosen]))
    more = [view for view in found if view.field not in used and view.size * cells <= min(_MORE_CELLS, rows)]
    return [tuple(sorted([*chosen, view], key=lambda one: (one.field, one.size))) for view in more]


def name_of(candidate: Candidate) -> tuple[tuple[int, int], ...]:
    """The identity of a candidate."""
    return tuple((view.field, view.size) for view in candidate)


def cells_of(candidate: Candidate, levels: Sequence[Levels]) -> NDArray[np.int64]:
    """Cell of each row, with the last view varying fastest; -1 if a field has no level."""
    cell = candidate[0].of(levels[candidate[0].field]).astype(np.int64)
    bad = cell < 0
    for view in candidate[1:]:
        level = view.of(levels[view.field])
        bad |= level < 0
        cell = cell * view.size + level
    cell[bad] = -1
    return cell


def evidence(gradient: Floats, hessian: Floats) -> float:
    """Evidence for offsets of cells with these sums; at least 0.

    >>> evidence(np.zeros(3), np.ones(3)), evidence(np.array([30.0, -30.0]), np.array([100.0, 100.0])) > 5
    (0.0, True)
    """
    some = hessian > 0
    squares, hessian = gradient[some] ** 2, hessian[some]
    gains = [float(np.sum(squares / (hessian + 1 / v)) - np.sum(np.log1p(hessian * v))) / 2 for v in _VARIANCES]
    return max(0.0, *gains)
