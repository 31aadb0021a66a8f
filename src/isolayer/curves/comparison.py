"""Comparison of two releases of curves: by how much the probabilities of each context change."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Floats, evaluate, prob_of
from isolayer.curves.field_log import refuse_sums
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.categories import Codes, combine, encode
from isolayer.grid import Grid

LEVEL = 0.05  # how often some context of a depth may show a certain change although nothing changed


def compare(one: Curves, two: Curves) -> dict[str, NDArray[Any]]:
    """How far the second release moves the probabilities of each context.

    Changes are measured at the knots where either release has rows of the context. Each release uses the curve that it
    would serve: a context that only one of them has is served by its ancestor in the other. A change is certain where
    the bands of the two releases do not overlap. The bands are adjusted for the number of comparisons: if nothing has
    changed, some context of a depth shows a certain change with probability at most ``LEVEL``.

    Returns:
        Columns, one entry per context of either: ``depth``, the context columns (None below their depth), ``largest``
        change in probability, ``certain``, the largest that is certain (0 if none is), ``average`` change and
        ``shift``, the average with its sign (both weighted by rows), and ``weight``.

    >>> from isolayer.grid import Grid
    >>> compare(Curves.identity(Grid()), Curves.identity(Grid()))["largest"].tolist()
    [0.0]
    """
    for curves in (one, two):
        refuse_sums(curves, "compare", "use isolayer.monitor.compare_on_log, or `isolayer compare --log`")
    if (one.contexts, one.scale) != (two.contexts, two.scale):
        raise InputError(
            "compare: expected curves with the same contexts and scale, got "
            f"{one.contexts}, {one.scale} and {two.contexts}, {two.scale}; refit one of them"
        )
    two = on_grid(two, one.grid)
    tables = [_at_depth(one, two, depth) for depth in range(len(one.contexts) + 1)]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def compare_on_rows(one: Curves, two: Curves, rows: LabelledRows) -> dict[str, NDArray[Any]]:
    """How far the second release moves the probabilities of rows, which may have fields.

    A change is certain where the bands of the two releases do not overlap. The bands are adjusted for the number of
    comparisons: if nothing has changed, some row shows a certain change with probability at most ``LEVEL``.

    Args:
        one: The release in service.
        two: The other one.
        rows: Rows with the context and field columns of both; their labels are not used.

    Returns:
        Columns as those of :func:`compare`, for all rows, and by context if both releases have the same contexts.
    """
    level = 1 - LEVEL / max(len(rows.logit), 1)
    before, after = (curves.on_logits.predict_proba(rows.logit, rows.columns) for curves in (one, two))
    (low, high), (low_two, high_two) = (c.on_logits.band(rows.logit, rows.columns, level=level) for c in (one, two))
    signed, apart = after - before, (low > high_two) | (low_two > high)
    weight = np.ones(len(signed)) if rows.weight is None else rows.weight
    contexts = one.contexts if one.contexts == two.contexts else ()
    codes = [encode(rows.columns[name], name) for name in contexts]
    tables = list[dict[str, NDArray[Any]]]()
    for depth in range(len(contexts) + 1):
        parts, group = combine([c for _, c in codes[:depth]], [len(w) for w, _ in codes[:depth]], len(signed))
        size = int(group.max(initial=0)) + 1
        keys = {
            name: words[part].astype(object) for name, (words, _), part in zip(contexts, codes, parts, strict=False)
        }
        keys |= {name: np.full(size, None, dtype=object) for name in contexts[depth:]}
        tables.append({"depth": np.full(size, depth), **keys, **_changes(signed, apart, weight, group, size)})
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _changes(
    signed: Floats, apart: NDArray[np.bool_], weight: Floats, group: Codes, groups: int
) -> dict[str, NDArray[Any]]:
    """Changes of probability by group: the largest, the largest that is certain, and means."""
    change, total = np.abs(signed), np.bincount(group, weight, groups)
    safe = np.where(total > 0, total, 1.0)
    largest, certain = np.zeros(groups), np.zeros(groups)
    np.maximum.at(largest, group, change)
    np.maximum.at(certain, group, np.where(apart, change, 0.0))
    return {
        "largest": largest,
        "certain": certain,
        "average": np.bincount(group, weight * change, groups) / safe,
        "shift": np.bincount(group, weight * signed, groups) / safe,
        "weight": total,
    }


def on_grid(curves: Curves, grid: Grid) -> Curves:
    """The curves evaluated at the knots of another grid; the weight of each knot is divided between the two nearest."""
    if curves.grid == grid:
        return curves
    rows, knots = np.arange(len(curves.values))[:, None], grid.knots[1:]
    shape = (len(rows), len(knots))
    row, at = np.broadcast_to(rows, shape).ravel(), np.broadcast_to(knots, shape).ravel()
    variance = evaluate(curves.variance, row, at, curves.grid, "clip").reshape(shape)
    place = np.clip((curves.grid.knots[1:] - grid.lower) / grid.step, 0, len(knots) - 1)
    left = np.minimum(place.astype(np.int64), len(knots) - 2)
    spread = np.zeros((len(place), len(knots)))
    spread[np.arange(len(place)), left] = 1 - (place - left)
    spread[np.arange(len(place)), left + 1] += place - left
    values = curves.evaluate(row, at).reshape(shape)
    return replace(curves, grid=grid, values=values, variance=variance, knot_weight=curves.knot_weight @ spread)


def _at_depth(one: Curves, two: Curves, depth: int) -> dict[str, NDArray[Any]]:
    """The part of :func:`compare` about one depth: every context that either release has there."""
    theirs = dict(zip(two.contexts, two.keys[depth], strict=False))
    rows = two.starts[depth + 1] - two.starts[depth]
    new = one.rows_of(theirs, rows, depth=depth) < one.starts[depth]  # contexts that only the other release has
    union = {
        name: np.array([*mine.tolist(), *key[new].tolist()], dtype=object)
        for mine, (name, key) in zip(one.keys[depth], theirs.items(), strict=True)
    }
    rows = one.starts[depth + 1] - one.starts[depth] + int(new.sum())
    rows_one, rows_two = one.rows_of(union, rows, depth=depth), two.rows_of(union, rows, depth=depth)
    own = [np.where(row >= curves.starts[depth], 1.0, 0.0) for curves, row in ((one, rows_one), (two, rows_two))]
    weights = one.knot_weight[rows_one] * own[0][:, None] + two.knot_weight[rows_two] * own[1][:, None]
    signed = prob_of(two.values[rows_two]) - prob_of(one.values[rows_one])
    change, weight = np.abs(signed), weights.sum(1)
    occupied = weights > np.minimum(0.5, 1e-3 * weight)[:, None]  # a row gives at least half its weight to one knot
    width = NormalDist().inv_cdf(1 - LEVEL / 2 / max(int((weight > 0).sum()), 1))
    reach = [
        width * np.sqrt(curves.variance[row].astype(np.float64)) for curves, row in ((one, rows_one), (two, rows_two))
    ]
    apart = np.abs(two.values[rows_two] - one.values[rows_one]) > reach[0] + reach[1]
    safe = np.where(weight > 0, weight, 1.0)
    deeper = {name: np.full(rows, None, dtype=object) for name in one.contexts[depth:]}
    return {
        "depth": np.full(rows, depth),
        **union,
        **deeper,
        "largest": np.where(occupied, change, 0.0).max(1),
        "certain": np.where(occupied & apart, change, 0.0).max(1),
        "average": (weights * change).sum(1) / safe,
        "shift": (weights * signed).sum(1) / safe,
        "weight": weight,
    }
