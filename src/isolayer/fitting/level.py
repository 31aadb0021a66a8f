"""The fit of the contexts of one level, many at a time, and what is served of it.

What is served is not the most probable curve: a context of which little is known has its parent's curve, and the
contexts of a parent together expect as many positives as their parent does. numpy only.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.prior import Frame, Prior
from isolayer.fitting.shrinkage import Choice
from isolayer.fitting.solver import fit

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

_CHUNK = 1024  # contexts fitted together: enough to keep numpy busy, few enough to stay in cache
_CHUNK_VALUES = 1 << 20  # and at most so many knot values, where the grid is very fine
_THREADS = min(8, os.cpu_count() or 1)
_FARTHEST = 0.5  # most by which contexts of which little is known are shifted together


class Table(NamedTuple):
    """Fitted curves, one per row: ``[curves, knots]`` each.

    Args:
        values: Knot values.
        variance: Their posterior variance.
        knot_weight: Weight of the rows around each knot.
    """

    values: Floats
    variance: Singles
    knot_weight: Singles

    @classmethod
    def empty(cls, curves: int, knots: int) -> Table:
        """A table to be filled."""
        shape = (curves, knots)
        return cls(np.empty(shape), np.empty(shape, np.float32), np.empty(shape, np.float32))

    def rows(self, first: int, last: int) -> Table:
        """Some rows, not copied."""
        return Table(self.values[first:last], self.variance[first:last], self.knot_weight[first:last])


class Above(NamedTuple):
    """The level above: its curves and their variances ``[curves, knots]``, and the parent of each context below."""

    curves: Floats
    variance: NDArray[np.floating[Any]]
    parent: NDArray[np.int64]


def fit_level(
    part: Histogram, above: Above, choice: Choice, frame: Frame, mean: Floats, floor: float, out: Table
) -> float:
    """Fit the contexts of a level into ``out``; returns the largest residual.

    Args:
        part: Their rows.
        above: The level above.
        choice: Their prior.
        frame: The knots in units of calibrated logit.
        mean: Mean of the line's level and slope, shape ``[2]``.
        floor: Least slope of a curve, in units of calibrated logit.
        out: Where the curves go.
    """
    prior, wide = (Prior.of(strength, frame, mean) for strength in (choice.strength, choice.wide))
    free, least = wide.variance(), floor * frame.step
    size = min(_CHUNK, max(_CHUNK_VALUES // part.grid.buckets, 1))
    remains = np.empty(out.values.shape, np.float32)  # how much of the parent is still in a curve, from 0 to 1
    sums = np.zeros((4, part.groups))

    def fit_chunk(first: int) -> float:
        last = min(first + size, part.groups)
        rows, at = BinnedRows.of(part, first, last), slice(first, last)
        parent = np.ascontiguousarray(above.curves[above.parent[at]].T)
        result = fit(rows, parent + choice.shared[:, None], prior, least=least, wide=wide)
        left = np.minimum(result.variance / free, 1.0)
        served = result.values - choice.shared[:, None] * left**2  # to second order, the mean of the posterior's rates
        sums[:, at] = _expected(rows, parent, served, left)
        remains[at], out.values[at] = left.T, served.T
        spread = result.variance + (served - result.values) ** 2
        out.variance[at] = (spread + left**2 * above.variance[above.parent[at]].T).T
        out.knot_weight[at] = rows.spread(rows.weight).T
        return float(result.residual.max(initial=0))

    # Chunks write to rows of their own, and numpy lets go of the interpreter while it works.
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        residuals = list(pool.map(fit_chunk, range(0, part.groups, size)))
    if part.contexts:
        _balance(out, remains, sums, above.parent, choice.strength.level)
    _keep_rising(out.values, least)
    return float(np.max(residuals, initial=0.0))  # NaN where one is


def _expected(rows: BinnedRows, parent: Floats, served: Floats, left: Floats) -> Floats:
    """Sums by context, shape ``[4, contexts]``: see :func:`_balance`."""
    before, prob = (1 / (1 + np.exp(-np.clip(rows.read(values), -700, 700))) for values in (parent, served))
    information = prob * (1 - prob)
    rise = information * (rows.read(left) - rows.offset)
    return np.stack([rows.by_context(rows.weight * amount) for amount in (before, prob, rise, information)])


def _balance(out: Table, remains: Singles, sums: Floats, parent: NDArray[np.int64], strength: float) -> None:
    """Shift curves, the less is known of them the more, so that contexts together expect what their parent does.

    Args:
        out: The curves.
        remains: How much of its parent is still in each curve.
        sums: By context, the positives that the parent expects, those that its own curve expects, how the latter rise
            with the shift, and the information about it; shape ``[4, contexts]``.
        parent: The parent of each context.
        strength: Precision of the shift's prior.
    """
    before, now, rise, information = (np.bincount(parent, column) for column in sums)
    held = strength * information / np.maximum(rise, 1e-12 * information + 1e-300)  # the noise of the two sums
    shift = np.clip((before - now) / (rise + held), -_FARTHEST, _FARTHEST)[parent][:, None] * remains
    out.values[:] += shift
    out.variance[:] += shift**2


def _keep_rising(values: Floats, least: float) -> None:
    """Raise what a shift has made to rise by less than ``least`` from knot to knot."""
    if np.isfinite(least):
        steps = least * np.arange(values.shape[1])
        values -= steps
        np.maximum.accumulate(values, axis=1, out=values)
        values += steps
