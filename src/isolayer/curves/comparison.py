"""The comparison of two releases of curves: by how much the probabilities of each context change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.errors import InputError


def compare(one: Curves, two: Curves) -> dict[str, NDArray[Any]]:
    """How far the second release moves the probabilities of each context.

    Changes are measured at the knots where either release has rows of the context, each release with the curve it would
    serve: a context that only one of them has is served by its ancestor in the other.

    Returns:
        Columns, one entry per context of either: ``depth``, the context columns (None below their depth), ``largest``
        and ``average`` (weighted by rows) change in probability, and ``weight``.

    >>> from isolayer.grid import Grid
    >>> compare(Curves.identity(Grid()), Curves.identity(Grid()))["largest"].tolist()
    [0.0]
    """
    if (one.contexts, one.scale, one.grid) != (two.contexts, two.scale, two.grid):
        raise InputError(
            "compare: expected curves with the same contexts, scale and grid, got "
            f"{one.contexts}, {one.scale}, {one.grid} and {two.contexts}, {two.scale}, {two.grid}; "
            "refit one of them"
        )
    tables = [_at_depth(one, two, depth) for depth in range(len(one.contexts) + 1)]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _at_depth(one: Curves, two: Curves, depth: int) -> dict[str, NDArray[Any]]:
    """The part of :func:`compare` about one depth: every context that either release has there."""
    theirs = dict(zip(two.contexts, two.keys[depth], strict=False))
    rows = two.starts[depth + 1] - two.starts[depth]
    new = one.rows_of(theirs, rows, depth=depth) < one.starts[depth]  # contexts that only the other has
    union = {
        name: np.array([*mine.tolist(), *key[new].tolist()], dtype=object)
        for mine, (name, key) in zip(one.keys[depth], theirs.items(), strict=True)
    }
    rows = one.starts[depth + 1] - one.starts[depth] + int(new.sum())
    rows_one, rows_two = one.rows_of(union, rows, depth=depth), two.rows_of(union, rows, depth=depth)
    own = [np.where(row >= curves.starts[depth], 1.0, 0.0) for curves, row in ((one, rows_one), (two, rows_two))]
    weights = one.knot_weight[rows_one] * own[0][:, None] + two.knot_weight[rows_two] * own[1][:, None]
    change = np.abs(prob_of(one.values[rows_one]) - prob_of(two.values[rows_two]))
    weight = weights.sum(1)
    deeper = {name: np.full(rows, None, dtype=object) for name in one.contexts[depth:]}
    return {
        "depth": np.full(rows, depth),
        **union,
        **deeper,
        "largest": np.where(weights > 0, change, 0.0).max(1),
        "average": (weights * change).sum(1) / np.where(weight > 0, weight, 1.0),
        "weight": weight,
    }
