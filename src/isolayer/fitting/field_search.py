"""Which combinations of fields are added to a fit: those that were asked for, then those with the most evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Backfit, Block, by_level
from isolayer.fitting.combinations import Choice
from isolayer.fitting.field_data import Data
from isolayer.fitting.field_levels import Field
from isolayer.fitting.interactions import Candidate, View, cells_of, evidence, extended, name_of, pairs, views

Floats = NDArray[np.float64]

_AT_ONCE, _ORDER = 4, 3  # interactions added together, and fields of each
_LEAST_EVIDENCE, _SHARE = 2.0, 0.25  # least evidence of a term, in nats and relative to the best one


class Added(NamedTuple):
    """An interaction that was added to a fit: its views, its cells and the evidence for it."""

    views: Candidate
    cells: NDArray[np.int64]
    evidence: float


def search(fit: Backfit, data: Data, fields: Sequence[Field], choice: Choice) -> list[Added]:
    """Add the requested interactions, then others by evidence, a few at a time, until none has enough evidence."""
    found, rows = _views(fit, data, fields), round(float(data.rows.weight.sum()))
    chosen = _add_asked(fit, data, found, choice.asked)
    wider = {name_of(more): more for one in chosen for more in extended(one.views, found, _ORDER, rows)}
    open_ = [one for one in [*pairs(found, rows), *wider.values()] if choice.allows(_fields(one))]
    seen = {name_of(candidate) for candidate in open_}
    most = len(chosen) + choice.most
    while open_ and len(chosen) < most:
        gains = _evidences(fit, data, open_)
        best = _best(open_, gains, min(_AT_ONCE, most - len(chosen)))
        if not best:
            break
        more = list[Candidate]()
        for i in best:
            chosen.append(Added(open_[i], _add(fit, data, open_[i]), float(gains[i])))
            larger = [one for one in extended(open_[i], found, _ORDER, rows) if choice.allows(_fields(one))]
            more += [one for one in larger if name_of(one) not in seen]
            seen |= {name_of(one) for one in more}
        taken = set(best)
        open_ = [one for i, one in enumerate(open_) if i not in taken and gains[i] > 0] + more
        fit.sweep()
    return chosen


def _evidences(fit: Backfit, data: Data, candidates: Sequence[Candidate]) -> Floats:
    """Evidence for each candidate at the current fit."""
    residual, weight = fit.rows.residual(fit.logit)
    out = np.empty(len(candidates))
    for i, candidate in enumerate(candidates):
        cell = cells_of(candidate, data.levels)
        span = int(np.prod([view.size for view in candidate]))
        cell[cell < 0] = span
        out[i] = evidence(by_level(cell, residual, span), by_level(cell, weight, span))
    return out


def _add(fit: Backfit, data: Data, candidate: Candidate) -> NDArray[np.int64]:
    """Add a block for a candidate and fit it by two steps. Returns its cells."""
    cell = cells_of(candidate, data.levels)
    cells, level = np.unique(cell, return_inverse=True)
    if cells[0] < 0:  # rows without a level get the index after the last cell
        cells, level = cells[1:], np.where(level == 0, len(cells) - 1, level - 1)
    block = Block.cells(level.astype(np.intp), len(cells))
    fit.blocks.append(block)
    fit.update(block, choose=False)
    fit.update(block)
    return cells


def _best(candidates: Sequence[Candidate], gains: Floats, most: int) -> list[int]:
    """Indices of the candidates with the most evidence, if it is enough, each combination of fields once."""
    enough, found = max(_LEAST_EVIDENCE, _SHARE * float(gains.max())), dict[tuple[int, ...], int]()
    for i in np.argsort(-gains, kind="stable").tolist():
        if gains[i] <= enough or len(found) == most:
            break
        found.setdefault(_fields(candidates[i]), i)
    return list(found.values())


def _fields(candidate: Candidate) -> tuple[int, ...]:
    return tuple(view.field for view in candidate)


def _add_asked(fit: Backfit, data: Data, found: Sequence[View], asked: Sequence[tuple[int, ...]]) -> list[Added]:
    """Add the interactions of some fields, each at the resolutions with the most evidence."""
    chosen = list[Added]()
    for places in asked:
        own = [[view for view in found if view.field == place] for place in places]
        candidates = list(product(*own))
        gains = _evidences(fit, data, candidates)
        best = int(gains.argmax())
        chosen.append(Added(candidates[best], _add(fit, data, candidates[best]), float(gains[best])))
    return chosen


def _views(fit: Backfit, data: Data, fields: Sequence[Field]) -> list[View]:
    return views(fields, [by_level(b.level, data.rows.weight, len(b.values)) for b in fit.blocks[: len(fields)]])
