r"""Examination of positions by regression EM: propensities for inverse weighting when no item was shown twice.

The position-based model, :math:`P(click) = e_k\, r`, is assumed, and examination is relative to position 0, because the
scales of :math:`e` and :math:`r` are not identified. Under trust bias the model is wrong, and so is the estimate. Where
items were shown at several positions, `intervention_harvesting` needs no features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import numbers, some, whole
from isolayer.metrics import rows
from isolayer.settings import count

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
_NEAR = 1e-12
_SETTLED = 1e-4  # EM stops when the examination changes by less than this share
_RIDGE = 1.0  # ridge penalty of the relevance regression, in rows; bounds coefficients of constant or rare features
_BLOCK = 4096  # rows whose products are added up at once


def em_propensity(
    features: ArrayLike,
    position: ArrayLike,
    label: ArrayLike,
    *,
    positions: int,
    weight: ArrayLike | None = None,
    rounds: int = 100,
) -> Floats:
    r"""Regression EM for the position-based model (Wang et al. 2018); no item has to be shown twice.

    Relevance is a logistic regression :math:`r(x) = \sigma(b + w \cdot x)`. A row without a click was examined with
    probability :math:`e (1 - r)/(1 - e r)` and relevant with probability :math:`r (1 - e)/(1 - e r)`. Examination
    becomes the mean of the former at each position, and the regression takes one Newton step towards the latter.

    Args:
        features: What relevance may depend on, ``[n, columns]``.
        position: Where each row was shown, 0-based, ``[n]``.
        label: 0 or 1, ``[n]``.
        positions: Number of positions.
        weight: Weight of each row, ``[n]``.
        rounds: Maximal number of rounds of expectation and maximisation.

    Returns:
        Examination relative to position 0, ``[positions]``.

    >>> rng = np.random.default_rng(0)
    >>> x, position = rng.standard_normal((40_000, 1)), rng.integers(0, 2, 40_000)
    >>> click = rng.random(40_000) < np.array([0.8, 0.4])[position] / (1 + np.exp(-2 * x[:, 0]))
    >>> em_propensity(x, position, click, positions=2).round(1).tolist()
    [1.0, 0.5]
    """
    table = numbers("features", features, dims=2)
    positions, rounds = count("positions", positions), count("rounds", rounds, advice="100 is usual")
    where, clicked, weights = _columns(position, label, weight, positions)
    if len(table) != len(where):
        raise InputError(f"features: expected {len(where)} rows, as position has, got {len(table)}; align them")
    across = np.ascontiguousarray(np.column_stack([np.ones(len(table)), table]).T)  # [1 + columns, n]
    coefficients = np.zeros(len(across))
    shown = np.maximum(np.bincount(where, weights, positions), _NEAR)
    examination = np.full(positions, 0.5)
    for _ in range(rounds):
        relevance = 1 / (1 + np.exp(-coefficients @ across))
        seen = examination[where]
        neither = np.maximum(1 - seen * relevance, _NEAR)
        looked = np.where(clicked > 0, 1.0, seen * (1 - relevance) / neither)
        relevant = np.where(clicked > 0, 1.0, relevance * (1 - seen) / neither)
        before = examination
        examination = np.clip(np.bincount(where, weights * looked, positions) / shown, _NEAR, 1 - 1e-6)
        if np.abs(examination / before - 1).max() < _SETTLED:
            break
        hessian = _gram(across, weights * relevance * (1 - relevance)) + _RIDGE * np.eye(len(coefficients))
        gradient = across @ (weights * (relevant - relevance)) - _RIDGE * coefficients
        coefficients = coefficients + np.linalg.solve(hessian, gradient)
    return np.asarray(examination / examination[0])


def _gram(across: Floats, weights: Floats) -> Floats:
    """Weighted sums of the products of two columns, from a table ``[columns, n]``; in blocks that fit the cache."""
    found = np.zeros((len(across), len(across)))
    for first in range(0, len(weights), _BLOCK):
        block = across[:, first : first + _BLOCK]
        found += (block * weights[first : first + _BLOCK]) @ block.T
    return found


def _columns(
    position: ArrayLike, label: ArrayLike, weight: ArrayLike | None, positions: int
) -> tuple[Ids, Floats, Floats]:
    """Positions, labels and weights, each ``[n]``, checked."""
    where = some("position", whole("position", position, positions))
    clicked = rows.labels(label, len(where))
    if not np.isin(clicked, (0.0, 1.0)).all():
        raise InputError("label: expected 0 or 1, got soft labels; a propensity is estimated from events")
    return where, clicked, rows.weights(weight, len(where))
