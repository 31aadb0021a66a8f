"""What a curve is as a function: its value everywhere, its inverse, and the two scales. Pure functions of numpy arrays.

The contract that every backend follows (numpy here, torch, SQL, ONNX) is stated in ``docs/how-it-works.md`` under "What
a curve is, everywhere". Which curve belongs to which context is handled by :mod:`isolayer.curves.curves`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.categories import Codes
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.packed import Matrix, Packed
from isolayer.grid import Grid

Floats = NDArray[np.float64]
Scale = Literal["logit", "prob"]
Extrapolation = Literal["extend", "clip"]

NEAR = 1e-15  # probabilities are clipped to be at least this far from 0 and 1
_CHUNK = 1 << 15  # rows evaluated together, so that gathered values stay in cache
_PACKED_CHUNK = 1 << 16  # the same for packed curves: rows between the same two knots are evaluated together


def logit_of(prob: Floats) -> Floats:
    """Logit of a probability; 0 and 1 count as ``NEAR`` and ``1 - NEAR``.

    >>> logit_of(np.array([0.5, 0.0])).round(2).tolist()
    [0.0, -34.54]
    """
    inside = np.clip(prob, NEAR, 1 - NEAR)
    return np.asarray(np.log(inside / (1 - inside)))


def prob_of(logit: Floats) -> Floats:
    """Probability of a logit, always inside (0, 1): logits below -700 and above 36 count as those.

    >>> prob_of(np.array([0.0, 1e9])).tolist()
    [0.5, 0.9999999999999998]
    """
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -700.0, 36.0))))


def evaluate(values: Matrix, row: Codes, logit: Floats, grid: Grid, extrapolation: Extrapolation = "extend") -> Floats:
    r"""Curve ``values[row]`` at each logit: :math:`v_j + f (v_{j+1} - v_j)` on the grid.

    Args:
        values: Knot values at ``grid.knots[1:]``, shape ``[curves, grid.buckets]``.
        row: Which curve, shape ``[n]``.
        logit: Where, shape ``[n]``.
        grid: Where the knots are.
        extrapolation: Beyond the grid, ``"extend"`` continues with slope 1 and ``"clip"`` keeps the end value.

    >>> curve, first, grid = np.array([[0.0, 2.0]]), np.array([0, 0]), Grid(lower=0, upper=1, step=1)
    >>> evaluate(curve, first, np.array([0.5, 3.0]), grid), evaluate(curve, first, np.array([0.5, 3.0]), grid, "clip")
    (array([1., 4.]), array([1., 2.]))
    """
    out = np.empty(len(logit))
    size = _CHUNK if isinstance(values, np.ndarray) else _CHUNK // 8 if values.log else _PACKED_CHUNK
    for start in range(0, len(logit), size):
        part = slice(start, start + size)
        x = logit[part]
        inside = np.clip(x, grid.lower, grid.upper)
        place = (inside - grid.lower) * (1 / grid.step)
        left = np.minimum(place.astype(np.int64), grid.buckets - 2)
        out[part] = _between(values, row[part], left, place - left)
        if extrapolation == "extend":
            out[part] += x - inside
    return out


def _between(values: Matrix, row: Codes, left: Codes, fraction: Floats) -> Floats:
    if not isinstance(values, np.ndarray):
        return np.asarray(values.read(row, left, fraction))
    flat, at = values.reshape(-1), row * values.shape[1] + left
    below, above = flat.take(at), flat.take(at + 1)
    return np.asarray(below + fraction * (above - below))


def invert(values: Matrix, row: Codes, logit: Floats, grid: Grid, extrapolation: Extrapolation = "extend") -> Floats:
    r"""The smallest logit at which curve ``values[row]`` reaches each value: :math:`\inf\{x : z(x) \ge v\}`.

    So a score is at or above the inverse exactly if its calibrated value is at or above the value asked about. On a
    flat piece this is its left end. With ``"clip"`` only logits on the grid are considered: values below the curve are
    reached at ``lower``, and values above it, which are never reached, give ``upper``.

    Args:
        values: Non-decreasing knot values, shape ``[curves, grid.buckets]``.
        row: Which curve, shape ``[n]``.
        logit: Calibrated logits, shape ``[n]``.
        grid: Where the knots are.
        extrapolation: As in :func:`evaluate`.

    >>> curve, grid = np.array([[0.0, 2.0, 2.0]]), Grid(lower=0, upper=2, step=1)
    >>> invert(curve, np.zeros(3, np.int64), np.array([1.0, 2.0, 4.0]), grid)
    array([0.5, 1. , 4. ])
    """
    if isinstance(values, Packed):
        parts = [slice(start, start + _CHUNK // 8) for start in range(0, len(logit), _CHUNK // 8)]
        each = [
            invert(values.decode(row[part]), np.arange(len(row[part])), logit[part], grid, extrapolation)
            for part in parts
        ]
        return np.concatenate([np.empty(0), *each])
    flat, knots = values.reshape(-1), grid.buckets
    first, low, high = row * knots, np.zeros(len(logit), np.int64), np.full(len(logit), knots - 1)
    for _ in range(int(knots).bit_length()):  # bisection for the first knot at or above, in all rows at once
        middle = (low + high) // 2
        reached = flat.take(first + middle) >= logit
        low, high = np.where(reached, low, np.minimum(middle + 1, high)), np.where(reached, middle, high)
    left = np.maximum(high - 1, 0)
    below, above = flat.take(first + left), flat.take(first + high)
    rise = np.where(above > below, above - below, np.inf)
    fraction = np.where(logit > above, 1.0, np.clip((logit - below) / rise, 0, 1))
    x = grid.lower + (left + fraction) * grid.step
    if extrapolation == "extend":
        x += np.minimum(logit - flat.take(first), 0) + np.maximum(logit - flat.take(first + knots - 1), 0)
    return np.asarray(x)


def prob_of_cells(values: Floats, histogram: Histogram) -> Floats:
    """Probability of the event in each cell of a histogram by one curve, among the rows as sampled."""
    logit = histogram.logit / histogram.weight
    first = np.zeros(len(logit), np.int64)
    return prob_of(evaluate(values[None], first, logit, histogram.grid) - np.log(histogram.negative_rate))
