"""Segments: which ones an audit tests, chosen before it sees any label, and the sums of each.

A *table* is a combination of one to three fields, each at some resolution, with sums by cell. Its segments are the
cells and, along a number, every range of neighbouring bins. Which segments exist depends on the columns and the scores,
never on labels, so that the number of tests is known beforehand and p-values can be adjusted for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.auditing.rows import AuditRows, State
from isolayer.fitting.backfitting import by_level
from isolayer.fitting.field_levels import Field
from isolayer.fitting.interactions import Candidate, View, cells_of, coarser

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

LEAST_VARIANCE = 3.0  # least variance of the events of a segment; with less it can hardly ever be significant
_WHOLE, _BINS = 24, 8  # in a combination, a number with up to 24 bins keeps them all; others get 8
_CATEGORIES = (300, 50)  # how many of the most frequent categories are used in pairs and in triples
_CELLS = 200_000  # most cells of a table
_COUNTED = 20_000  # rows on which the tests of tables that are not built are counted
_NONE: Floats = np.empty(0)
_CLEAR = 2.5  # segments that are off by fewer standard deviations are not tested exactly


class Axis(NamedTuple):
    """One field of a table: how its levels make ranges.

    Args:
        view: The field at its resolution.
        first: First level of each range, ``[ranges]``.
        last: Last level of each range, ``[ranges]``.
    """

    view: View
    first: Codes
    last: Codes

    def summed(self, sums: Floats, at: int) -> Floats:
        """Sums over every range along dimension ``at``."""
        if len(self.first) == self.view.size and (self.first == self.last).all():
            return sums
        before = np.concatenate([np.zeros_like(sums.take([0], at)), np.cumsum(sums, at)], at)
        return np.asarray(before.take(self.last + 1, at) - before.take(self.first, at))


class Segment(NamedTuple):
    """A range of levels of each of one to three views."""

    views: Candidate
    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def fields(self) -> tuple[int, ...]:
        """Indices of its fields."""
        return tuple(view.field for view in self.views)

    @property
    def parents(self) -> list[Segment]:
        """The segments that contain it, each with one field fewer."""
        places = range(len(self.views))
        return [self.only([i for i in places if i != gone]) for gone in places if len(self.views) > 1]

    def only(self, places: Sequence[int]) -> Segment:
        """The segment restricted to some of its fields."""
        return Segment(
            tuple(self.views[i] for i in places),
            tuple(self.first[i] for i in places),
            tuple(self.last[i] for i in places),
        )

    def rows(self, rows: AuditRows) -> Codes:
        """Indices of the rows that belong to it."""
        inside = np.ones(len(rows), bool)
        for view, first, last in zip(self.views, self.first, self.last, strict=True):
            level = view.of(rows.levels[view.field])
            inside &= (level >= first) & (level <= last)
        return np.flatnonzero(inside)

    def words(self, rows: AuditRows) -> str:
        """The segment in words, such as ``device tv and hour 22-23``."""
        parts = list[str]()
        for view, first, last in zip(self.views, self.first, self.last, strict=True):
            own = np.flatnonzero((view.level >= first) & (view.level <= last))
            one = rows.fields[view.field]
            parts.append(f"{one.name} {one.word(int(own[0]), int(own[-1]), span=rows.spans[view.field])}")
        return " and ".join(parts)


@dataclass(eq=False)
class Table:
    """Sums by cell of one combination of views.

    Args:
        axes: Its fields.
        observed: Weight of the events of each cell, in the shape of the views' sizes.
        count: Weight of the rows.
        expected: Expected events, as corrected so far.
        variance: Variance of the number of events.
        tests: How many of its segments are large enough to be tested.
    """

    axes: tuple[Axis, ...]
    observed: Floats
    count: Floats
    expected: Floats
    variance: Floats
    tests: int = 0

    @classmethod
    def of(cls, axes: tuple[Axis, ...], rows: AuditRows, state: State) -> Table:
        """The sums of all rows."""
        table = cls(axes, _NONE, _NONE, _NONE, _NONE)
        cell = table._cells(rows, None)
        event = rows.weight * rows.label
        table.observed, table.count, table.expected, table.variance = (
            table._summed(cell, values) for values in (event, rows.weight, state.expected, state.variance)
        )
        table.tests = int((table._ranged(table.variance) >= LEAST_VARIANCE).sum())
        return table

    @property
    def views(self) -> Candidate:
        """Its fields, each at its resolution."""
        return tuple(axis.view for axis in self.axes)

    def change(self, rows: AuditRows, some: Codes, expected: Floats, variance: Floats) -> None:
        """Add changes of some rows to the sums."""
        cell = self._cells(rows, some)
        self.expected += self._summed(cell, expected)
        self.variance += self._summed(cell, variance)

    def clearest(self, most: int) -> list[tuple[float, Segment]]:
        """Segments that are furthest off, each with the approximate logarithm of its likelihood ratio."""
        excess, variance = (self._ranged(values).ravel() for values in (self.observed - self.expected, self.variance))
        clear = np.flatnonzero((variance >= LEAST_VARIANCE) & (excess**2 > _CLEAR**2 * variance))
        if not len(clear):
            return []
        expected, count = (self._ranged(values).ravel()[clear] for values in (self.expected, self.count))
        depth = _depth(expected + excess[clear], expected, count, variance[clear])
        best = np.argsort(-depth, kind="stable")[:most]
        return [(float(depth[i]), self.segment(int(clear[i]))) for i in best]

    def segment(self, place: int) -> Segment:
        """A segment by its index among all combinations of ranges."""
        at = np.unravel_index(place, [len(axis.first) for axis in self.axes])
        ends = zip(self.axes, at, strict=True)
        first, last = zip(*((int(axis.first[i]), int(axis.last[i])) for axis, i in ends), strict=True)
        return Segment(self.views, first, last)

    def _cells(self, rows: AuditRows, some: Codes | None) -> Codes:
        levels = rows.levels if some is None else [level[some] for level in rows.levels]
        cell = cells_of(self.views, levels)
        cell[cell < 0] = self._span
        return cell

    @property
    def _span(self) -> int:
        return int(np.prod([axis.view.size for axis in self.axes]))

    def _summed(self, cell: Codes, values: Floats) -> Floats:
        return by_level(cell, values, self._span).reshape([axis.view.size for axis in self.axes])

    def _ranged(self, sums: Floats) -> Floats:
        for at, axis in enumerate(self.axes):
            sums = axis.summed(sums, at)
        return sums


def _depth(observed: Floats, expected: Floats, count: Floats, variance: Floats) -> Floats:
    """Half the deviance of the number of events; trials of unequal probability vary less than equal ones."""
    observed = np.clip(observed, 0.0, count)
    other, unexpected = count - observed, np.maximum(count - expected, 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(observed > 0, observed * np.log(observed / expected), 0.0)
        terms += np.where(other > 0, other * np.log(other / unexpected), 0.0)
    return np.asarray(terms * expected * unexpected / count / np.maximum(variance, 1e-300))


def tables(rows: AuditRows, state: State, depth: int) -> list[list[Table]]:
    """Tables of single fields and of pairs, by depth; tables of triples are only built where pairs are off."""
    found = [[Table.of((_axis(one, _single(i, one)),), rows, state) for i, one in enumerate(rows.fields)]]
    if depth > 1:
        axes = axes_of(rows, 2)
        found.append([Table.of(pair, rows, state) for pair in combinations(axes, 2) if size_of(pair) <= _CELLS])
    return found


def triples(rows: AuditRows, state: State, pairs: Sequence[Table], most: int) -> tuple[list[Table], int]:
    """Tables of three fields that extend some pairs, and how many tests all triples of fields would need.

    Which triples are built depends on the labels, so the adjustment of p-values must count the tests of all triples.
    The tests of those that are not built are counted on a sample of the rows.
    """
    every = [triple for triple in combinations(axes_of(rows, 3), 3) if size_of(triple) <= _CELLS]
    asked = [{view.field for view in pair.views} for pair in pairs]
    chosen = [triple for triple in every if any(pair <= {axis.view.field for axis in triple} for pair in asked)][:most]
    found = [Table.of(triple, rows, state) for triple in chosen]
    built = {id(triple) for triple in chosen}
    some = np.arange(0, len(rows), max(1, len(rows) // _COUNTED))
    unseen = sum(_tests(triple, rows, state, some) for triple in every if id(triple) not in built)
    return found, sum(table.tests for table in found) + unseen


def _tests(axes: tuple[Axis, ...], rows: AuditRows, state: State, some: Codes) -> int:
    """How many segments of a table are large enough to be tested, by a sample of the rows."""
    table = Table(axes, _NONE, _NONE, _NONE, _NONE)
    sums = table._summed(table._cells(rows, some), state.variance[some]) * (len(rows) / len(some))
    return int((table._ranged(sums) >= LEAST_VARIANCE).sum())


def axes_of(rows: AuditRows, depth: int) -> list[Axis]:
    """Every field at the resolution that it has in a combination of ``depth`` fields."""
    found = list[Axis]()
    for i, (one, level) in enumerate(zip(rows.fields, rows.levels, strict=True)):
        count = np.bincount(np.where(level < 0, one.size, level), rows.weight, one.size + 1)[: one.size].astype(
            np.float64
        )
        whole = _WHOLE if depth == 2 else _BINS
        if one.kind == "number":
            view = _single(i, one) if one.size - 1 <= whole else coarser(i, one, count, _BINS)
        else:
            view = _frequent(i, one, count, _CATEGORIES[depth - 2])
        found.append(_axis(one, view))
    return found


def size_of(axes: Sequence[Axis]) -> int:
    """Number of cells of a table."""
    return int(np.prod([axis.view.size for axis in axes]))


def _single(place: int, one: Field) -> View:
    return View(place, np.arange(one.size, dtype=np.intp), one.size)


def _frequent(place: int, one: Field, count: Floats, most: int) -> View:
    """A view of the most frequent categories; all other categories have no level."""
    if one.size <= most:
        return _single(place, one)
    kept = np.sort(np.argsort(-count, kind="stable")[:most])
    level = np.full(one.size, -1, np.intp)
    level[kept] = np.arange(most)
    return View(place, level, most)


def _axis(one: Field, view: View) -> Axis:
    """A view with its ranges: for a number, all ranges except the whole one, and missing values by themselves."""
    if one.kind == "category":
        place = np.arange(view.size)
        return Axis(view, place, place)
    bins = view.size - 1
    first, last = np.triu_indices(bins)
    partial = last - first + 1 < bins
    return Axis(view, np.append(first[partial], bins), np.append(last[partial], bins))
