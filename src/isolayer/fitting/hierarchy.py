"""From a histogram to the curves of every level: all rows first, then each level drawn to the frozen one above it.

The global curve is drawn to the identity. The curve of a context is drawn to its parent's, plus what the contexts of
its level share in proportion to how much is known of it: a context without rows has its parent's curve exactly.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.banded import factorise, inverse_bands
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.shrinkage import Choice, Strength, choose, penalty
from isolayer.fitting.solver import fit

Floats = NDArray[np.float64]
Shrinkage = Literal["auto"] | float | Sequence[float] | Sequence[Sequence[float]]

FLOOR = 1e-3  # least slope of a strictly increasing curve
_CHUNK = 1024  # contexts fitted together: enough to keep numpy busy, few enough to stay in cache
_CHUNK_VALUES = 1 << 20  # and at most so many knot values, where the grid is very fine
_MOST_VALUES = 1 << 28  # knot values of all curves together: 4 GB with their variances and weights
_THREADS = min(8, os.cpu_count() or 1)
_SAMPLE, _SAMPLE_ROWS = (256, 1024), 200_000  # contexts from which strengths are chosen: enough to have so much weight


class Levels(NamedTuple):
    """Fitted curves of all levels, global first, then those of each level in the order of its keys.

    Args:
        keys: For each level one array a context column, shape ``[curves of the level]``.
        values: Knot values, shape ``[curves, knots]``.
        variance: Their posterior variance, single precision.
        mass: Weight of the rows around each knot, single precision.
        rows: Number of rows of each curve.
        strengths: The strengths used, one a level.
        residual: The largest KKT residual of all.
    """

    keys: tuple[tuple[NDArray[Any], ...], ...]
    values: Floats
    variance: NDArray[np.float32]
    mass: NDArray[np.float32]
    rows: Floats
    strengths: tuple[Strength, ...]
    residual: float


def fit_levels(histogram: Histogram, *, shrinkage: Shrinkage = "auto", floor: float = FLOOR) -> Levels:
    """Fit the curves of every level.

    Args:
        histogram: The rows; folds are ignored.
        shrinkage: ``"auto"``, or the strengths: one number for level, slope and bend of all levels, or those three (see
            :class:`isolayer.fitting.shrinkage.Strength`), or three for each level, global first. 0 is none.
        floor: Least slope of a curve.

    >>> histogram = Histogram.from_arrays([-1.0, 0.0, 1.0], [0, 0, 1], {"device": ["tv", "tv", "web"]})
    >>> fit_levels(histogram).values.shape
    (3, 126)
    """
    depths = range(len(histogram.contexts) + 1)
    given = strengths_of(shrinkage, len(depths))
    parts = [histogram.level(depth).folded() for depth in depths]
    total, knots = sum(part.groups for part in parts), histogram.grid.buckets
    _refuse_size(total, knots)
    values, variance = np.empty((total, knots)), np.empty((total, knots), np.float32)
    mass, count = np.empty((total, knots), np.float32), np.empty(total)
    identity = histogram.grid.knots[None, 1:]
    above: Floats = identity
    above_variance: NDArray[np.floating[Any]] = np.zeros_like(identity)
    anchor, start, used, worst = _anchor(parts[0]), 0, list[Strength](), 0.0
    for depth, part in enumerate(parts):
        rows = slice(start, start + part.groups)
        parent = np.zeros(1, np.int64) if depth == 0 else part.parents(depth - 1)[0]
        choice = _choice(part, above, parent, given[depth], anchor)
        out = (values[rows], variance[rows], mass[rows])
        residual = _fit_level(part, (above, above_variance, parent), choice, anchor, floor, out)
        _refuse_overflow(part, residual, *out)
        worst = max(worst, residual)
        count[rows] = np.bincount(part.group, part.count, minlength=part.groups)
        used.append(choice.strength)
        above, above_variance, start = values[rows], variance[rows], rows.stop
    return Levels(tuple(part.keys for part in parts), values, variance, mass, count, tuple(used), worst)


def _refuse_size(curves: int, knots: int) -> None:
    if curves * knots > _MOST_VALUES:
        raise InputError(
            f"curves: expected at most {_MOST_VALUES:,} knot values, got {curves:,} curves of {knots:,} knots each; "
            "use a grid with a larger step or fewer contexts"
        )


def strengths_of(shrinkage: Shrinkage, levels: int) -> list[Strength | None]:
    """The strengths that a setting stands for, one a level; None where they are to be chosen.

    >>> strengths_of([1, 2, 3], 2)
    [Strength(level=1.0, slope=2.0, bend=3.0), Strength(level=1.0, slope=2.0, bend=3.0)]
    """
    if isinstance(shrinkage, str):
        if shrinkage == "auto":
            return [None] * levels
        raise _bad_shrinkage(shrinkage, levels)
    given = np.asarray(shrinkage, np.float64)
    if given.shape not in ((), (3,), (levels, 3)) or not (np.isfinite(given).all() and (given >= 0).all()):
        raise _bad_shrinkage(shrinkage, levels)
    return [Strength(*row) for row in np.broadcast_to(given, (levels, 3)).tolist()]


def _bad_shrinkage(shrinkage: object, levels: int) -> InputError:
    return InputError(
        f'shrinkage: expected "auto", a number >= 0, three of them or {levels} times three, got {shrinkage!r}; '
        'use "auto"'
    )


def _anchor(everything: Histogram) -> int:
    """The knot in the middle of all rows."""
    cells = BinnedRows.of(everything)
    mass = np.cumsum(cells.spread(cells.weight)[:, 0])
    return int(np.searchsorted(mass, mass[-1] / 2))


def _choice(part: Histogram, above: Floats, parent: NDArray[np.int64], given: Strength | None, anchor: int) -> Choice:
    grid = part.grid
    if given is not None:
        return Choice(given, np.zeros(grid.buckets))
    kept = _sample(part)
    curves = np.ascontiguousarray(above[parent[kept]].T)
    return choose(BinnedRows.sampled(part, kept), curves, anchor=anchor, step=grid.step, share=bool(part.contexts))


def _sample(part: Histogram) -> NDArray[np.bool_]:
    """Which contexts the strengths are chosen from: all, or half the largest and half spread evenly over the rest."""
    weight = np.bincount(part.group, part.weight, minlength=part.groups)
    size = int(np.clip(_SAMPLE_ROWS * part.groups / max(weight.sum(), 1.0), *_SAMPLE))
    kept = np.ones(part.groups, bool)
    if size < part.groups:
        order = np.argsort(-weight, kind="stable")
        kept[order[size // 2 :]] = False
        kept[order[np.linspace(size // 2, part.groups - 1, size // 2).astype(np.int64)]] = True
    return kept


def _fit_level(
    part: Histogram,
    above: tuple[Floats, NDArray[np.floating[Any]], NDArray[np.int64]],
    choice: Choice,
    anchor: int,
    floor: float,
    out: tuple[Floats, NDArray[np.float32], NDArray[np.float32]],
) -> float:
    """Fit the contexts of a level, a chunk at a time, into ``out``; the largest residual."""
    curves, variances, parent = above
    prior = penalty(choice.strength, anchor, part.grid)
    free = inverse_bands(factorise(prior)).diagonal  # [knots, 1]

    size = min(_CHUNK, max(_CHUNK_VALUES // part.grid.buckets, 1))

    def fit_chunk(first: int) -> float:
        last = min(first + size, part.groups)
        cells, rows = BinnedRows.of(part, first, last), slice(first, last)
        centre = np.ascontiguousarray(curves[parent[rows]].T)
        centre += choice.shared[:, None] * _known(cells, centre)
        result = fit(cells, centre, prior, floor=floor, step=part.grid.step)
        remains = np.minimum(result.variance / free, 1.0)  # how much of the parent is still in the curve
        spread = result.variance * _design_effect(part, first, last)
        out[0][rows] = result.values.T
        out[1][rows] = (spread + remains**2 * variances[parent[rows]].T).T
        out[2][rows] = cells.spread(cells.weight).T
        return float(result.residual.max(initial=0))

    # Chunks write to rows of their own, and numpy lets go of the interpreter while it works.
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        residuals = list(pool.map(fit_chunk, range(0, part.groups, size)))
    return float(np.max(residuals, initial=0.0))  # NaN where one is


def _refuse_overflow(part: Histogram, residual: float, *curves: NDArray[np.floating[Any]]) -> None:
    if not (np.isfinite(residual) and all(np.isfinite(column).all() for column in curves)):
        lightest, heaviest = part.weight.min(initial=np.inf), part.weight.max(initial=0.0)
        raise InputError(
            f"weight: expected weights that curves can be computed from, got sums from {lightest:g} to {heaviest:g} in "
            "a bin, too large or too small; scale them to about 1"
        )


def _known(cells: BinnedRows, centre: Floats) -> Floats:
    """How much the rows of a context say of its level: information / (1 + information), shape ``[contexts]``."""
    prob = 1 / (1 + np.exp(-np.clip(cells.read(centre), -700, 700)))
    information = cells.by_context(cells.weight * prob * (1 - prob))
    return np.asarray(information / (1 + information))


def _design_effect(part: Histogram, first: int, last: int) -> Floats:
    """Sum of squared weights over sum of weights: by how much weighting widens an interval, shape ``[contexts]``."""
    a, b = np.searchsorted(part.group, [first, last])
    group = part.group[a:b] - first
    weight = np.bincount(group, part.weight[a:b], minlength=last - first)
    squares = np.bincount(group, part.weight_squared[a:b], minlength=last - first)
    return np.where(weight > 0, squares / np.where(weight > 0, weight, 1.0), 1.0)
