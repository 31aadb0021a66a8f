"""The rows of a log as a check tests them: cells sorted by context, grouped at each depth of the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.fitting.histogram import Histogram
from isolayer.monitor.uncertainty import Errors, Level, Placed, errors_of, shares_of, summed

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LogRows:
    """The cells of a log, sorted by context: what every test reads.

    Args:
        keys: One array per context column: its value in each context, shape ``[contexts]``.
        leaf: The curve that serves each context.
        group: Context of each cell, shape ``[cells]``.
        raw: Raw logit.
        logit: Calibrated logit of the rows as sampled: that of real traffic, minus the logarithm of the share of
            negatives that was kept.
        weight: Sum of weights.
        squares: Sum of squared weights; for counts, the weights themselves.
        positive: Weight of the positives.
        traffic: Weight of the rows of real traffic that these represent: every negative weighs 1 / rate.
        shift: Calibrated logit of real traffic minus ``logit``.
        cluster: Cluster of each cell.
    """

    keys: tuple[NDArray[Any], ...]
    leaf: Codes
    group: Codes
    raw: Floats
    logit: Floats
    weight: Floats
    squares: Floats
    positive: Floats
    traffic: Floats
    shift: Floats
    cluster: NDArray[np.int8]

    @property
    def groups(self) -> int:
        """Number of contexts."""
        return len(self.leaf)

    @classmethod
    def of(cls, curves: Curves, cells: Histogram, *, calibrated: bool = False) -> LogRows:
        """The cells of a histogram, whose folds are clusters; by raw scores, or by logits that are calibrated."""
        raw = np.divide(cells.logit, cells.weight)
        row = curve_of(curves, cells)
        leaf = np.zeros(cells.groups, np.int64)
        leaf[cells.group] = row
        shift, positive = np.log(cells.negative_rate), np.clip(cells.positive, 0.0, cells.weight)
        counted = cells.source.get("weight_kind", "frequency") == "frequency"
        return cls(
            keys=cells.keys,
            group=cells.group,
            raw=raw,
            logit=(raw if calibrated else curves.evaluate(row, raw)) - shift,
            weight=cells.weight,
            squares=cells.weight if counted else cells.weight_squared,
            positive=positive,
            traffic=positive + (cells.weight - positive) / cells.negative_rate,
            shift=shift,
            cluster=cells.fold,
            leaf=leaf,
        )


class Grouping(NamedTuple):
    """The groups of one depth.

    Args:
        of: Group of each context of the log, shape ``[contexts]``.
        groups: Number of groups.
        row: Curve of each group.
        first: A context of each group, from which its keys are read.
        new: Whether the group is a new context.
        used: Whether a context counts in the groups of this depth. New contexts only count at the last depth.
    """

    of: Codes
    groups: int
    row: Codes
    first: Codes
    new: NDArray[np.bool_]
    used: NDArray[np.bool_]


def groupings_of(curves: Curves, rows: LogRows) -> list[Grouping]:
    """One grouping per depth, all rows first, the contexts last."""
    deepest = len(curves.contexts)
    known = rows.leaf >= curves.starts[deepest]
    return [*(_above(curves, rows, known, depth) for depth in range(deepest)), _contexts(rows, known)]


def _contexts(rows: LogRows, known: NDArray[np.bool_]) -> Grouping:
    each = np.arange(rows.groups)
    return Grouping(each, rows.groups, rows.leaf, each, ~known, np.ones(rows.groups, bool))


def _above(curves: Curves, rows: LogRows, known: NDArray[np.bool_], depth: int) -> Grouping:
    """The groups of a depth above the contexts, as far as they contain a context that was in the fit."""
    starts = np.zeros(rows.groups, bool)
    for key in rows.keys[:depth]:
        starts[1:] |= key[1:] != key[:-1]
    place = np.cumsum(starts)
    present, first = np.unique(place[known], return_index=True)
    if not len(present):  # every context is new: one group of no rows
        nothing = np.zeros(rows.groups, np.int64)
        return Grouping(nothing, 1, nothing[:1], nothing[:1], np.zeros(1, bool), np.zeros(rows.groups, bool))
    first = np.flatnonzero(known)[first]
    of = np.where(known, np.searchsorted(present, place).clip(max=len(present) - 1), 0)
    context = {name: key[first] for name, key in zip(curves.contexts, rows.keys[:depth], strict=False)}
    row = curves.rows_of(context or None, len(first), depth=depth)
    return Grouping(of, len(first), row, first, np.zeros(len(first), bool), known)


def context_columns(curves: Curves, rows: LogRows, groupings: list[Grouping]) -> dict[str, NDArray[Any]]:
    """The context columns of the groups of all depths, None beyond the depth of a group."""
    columns = dict[str, NDArray[Any]]()
    for place, (name, key) in enumerate(zip(curves.contexts, rows.keys, strict=True)):
        words = [
            key[each.first].tolist() if place < depth else [None] * each.groups for depth, each in enumerate(groupings)
        ]
        columns[name] = np.array([None, *(word for part in words for word in part)], dtype=object)[1:]
    return columns


def errors_by_depth(curves: Curves, rows: LogRows, groupings: list[Grouping]) -> list[tuple[Errors, Floats]]:
    """Errors of the curve of each group, and the variance of its expected events, for each depth, all rows first."""
    prob = prob_of(rows.logit)
    pull = rows.weight * prob * (1 - prob)
    leaves = groupings[-1]
    placed = Placed.of(curves, rows.raw, rows.group)
    errors = errors_of(curves, leaves.row, placed, pull)
    force = np.bincount(rows.group, pull, rows.groups).astype(np.float64)
    level = Level(force, np.zeros(rows.groups), force)
    found = [(errors, level.variance(errors.level))]
    child, below = errors, leaves
    for grouping in groupings[-2::-1]:
        inside = grouping.used[below.first]
        at = grouping.of[below.first]
        above = errors_of(curves, grouping.row[at], *_within(curves, rows, below, pull))
        shares = shares_of(child, above.level)
        kept = Level(*(np.where(inside, column, 0.0) for column in level))
        level = summed(kept, shares, at, grouping.groups)
        child = errors_of(curves, grouping.row, *_within(curves, rows, grouping, pull))
        found.append((child, level.variance(child.level)))
        below = grouping
    return found[::-1]


def _within(curves: Curves, rows: LogRows, grouping: Grouping, pull: Floats) -> tuple[Placed, Floats]:
    """The cells of the groups of a depth, placed on the grid in the order of the groups, and the pull of each."""
    cells = np.flatnonzero(grouping.used[rows.group])
    group = grouping.of[rows.group[cells]]
    return Placed.of(curves, rows.raw[cells], group), pull[cells]


def curve_of(curves: Curves, cells: Histogram) -> Codes:
    """The curve that serves each cell."""
    context = {name: key[cells.group] for name, key in zip(cells.contexts, cells.keys, strict=True)}
    return curves.rows_of(context or None, len(cells.group))
