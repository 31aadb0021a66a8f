r"""How likely a position is looked at, from the log alone: the propensities that inverse weighting needs. numpy only.

Both estimators assume the position-based model, :math:`P(click) = e_k\, r`, and give examination relative to position
0: the scale of :math:`e` and :math:`r` cannot be told apart. Under trust bias the model is wrong, and so are they.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import numbers, some, whole
from isolayer.metrics import rows

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
_ROUNDS = 2000  # of the fixed point over position pairs: each costs microseconds
_NEAR = 1e-12
_SETTLED = 1e-4  # relative change of the examination in a round after which EM stops
_RIDGE = 1.0  # of the relevance regression, in rows: keeps a constant or rare feature from running away


@dataclass(frozen=True)
class Harvest:
    """Examination harvested from items that were shown at several positions.

    Args:
        examination: Relative to position 0, ``[positions]``; NaN where no chain of shared items leads to position 0.
        exposure: Matched impressions of each pair of positions, ``[positions, positions]``; the evidence.
    """

    examination: Floats
    exposure: Floats

    @property
    def connected(self) -> bool:
        """Whether every position is estimable."""
        return bool(np.isfinite(self.examination).all())


def harvest_propensity(
    item: ArrayLike, position: ArrayLike, label: ArrayLike, *, positions: int, weight: ArrayLike | None = None
) -> Harvest:
    r"""Intervention harvesting: compare each item with itself at other positions (Agarwal et al. 2019, all pairs).

    For positions k and l, an item with n_k and n_l impressions counts :math:`m = n_k n_l / (n_k + n_l)` in both, so
    what is compared has the same items in the same shares. With matched clicks :math:`A_{kl} = \sum m\, \bar c_k`, the
    examination maximises the Poisson likelihood of :math:`A_{kl} \sim e_k r_{kl}`, :math:`r` symmetric. A randomised
    swap of two positions is the same with ``item`` the number of the experiment.

    Args:
        item: What was shown, any integer or string key, ``[n]``.
        position: Where, 0-based, ``[n]``.
        label: 0 or 1, ``[n]``.
        positions: Number of positions.
        weight: Of each row, ``[n]``.

    >>> harvest = harvest_propensity([7] * 8, [0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 1, 0, 0, 0], positions=2)
    >>> harvest.examination.round(3).tolist()
    [1.0, 0.5]
    """
    key, where, clicked, weights = _columns(item, position, label, weight, positions)
    items = int(key.max()) + 1
    shown = np.bincount(key * positions + where, weights, items * positions).reshape(items, positions)
    clicks = np.bincount(key * positions + where, weights * clicked, items * positions).reshape(items, positions)
    several = (shown > 0).sum(1) > 1
    shown, clicks = shown[several], clicks[several]
    rate = clicks / np.where(shown > 0, shown, 1.0)
    matched, exposure = np.zeros((positions, positions)), np.zeros((positions, positions))
    for k in range(positions):
        both = shown[:, [k]] + shown
        share = shown[:, [k]] * shown / np.where(both > 0, both, 1.0)  # [items, positions]
        share[:, k] = 0.0
        exposure[k] = share.sum(0)
        matched[k] = (share * rate[:, [k]]).sum(0)
    examination = _fixed_point(matched, exposure)
    examination[~_reachable(exposure > 0)] = np.nan
    return Harvest(examination, exposure)


def _fixed_point(matched: Floats, exposure: Floats) -> Floats:
    examination = np.ones(len(matched))
    pairs = matched + matched.T  # both orders of a pair share one relevance
    for _ in range(_ROUNDS):
        relevance = pairs / (examination[:, None] + examination)
        relevance[exposure == 0] = 0.0
        before, expected = examination, relevance.sum(1)
        examination = np.where(expected > 0, matched.sum(1) / np.maximum(expected, _NEAR), before)
        examination = np.maximum(examination / max(examination[0], _NEAR), _NEAR)
        if np.abs(examination - before).max() < 1e-10:
            break
    return examination


def _reachable(joined: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which positions a chain of pairs joins to position 0."""
    reached: NDArray[np.bool_] = np.arange(len(joined)) == 0
    for _ in range(len(joined)):
        reached = reached | joined[reached].any(0)
    return reached


def em_propensity(
    features: ArrayLike,
    position: ArrayLike,
    label: ArrayLike,
    *,
    positions: int,
    weight: ArrayLike | None = None,
    rounds: int = 100,
) -> Floats:
    r"""Regression EM for the position-based model (Wang et al. 2018): no item need be shown twice.

    Relevance is a logistic regression :math:`r(x) = \sigma(b + w \cdot x)`. A row without a click was looked at with
    chance :math:`e (1 - r)/(1 - e r)` and relevant with chance :math:`r (1 - e)/(1 - e r)`; examination becomes the
    mean of the first at each position, the regression takes one Newton step towards the second.

    Args:
        features: What relevance may depend on, ``[n, columns]``.
        position: Where, 0-based, ``[n]``.
        label: 0 or 1, ``[n]``.
        positions: Number of positions.
        weight: Of each row, ``[n]``.
        rounds: Of expectation and maximisation, at most.

    Returns:
        Examination relative to position 0, ``[positions]``.

    >>> rng = np.random.default_rng(0)
    >>> x, position = rng.standard_normal((40_000, 1)), rng.integers(0, 2, 40_000)
    >>> click = rng.random(40_000) < np.array([0.8, 0.4])[position] / (1 + np.exp(-2 * x[:, 0]))
    >>> em_propensity(x, position, click, positions=2).round(1).tolist()
    [1.0, 0.5]
    """
    table = numbers("features", features, dims=2)
    _, where, clicked, weights = _columns(np.zeros(len(table)), position, label, weight, positions)
    table = np.column_stack([np.ones(len(table)), table])
    coefficients = np.zeros(table.shape[1])
    shown = np.maximum(np.bincount(where, weights, positions), _NEAR)
    examination = np.full(positions, 0.5)
    for _ in range(rounds):
        relevance = 1 / (1 + np.exp(-table @ coefficients))
        seen = examination[where]
        neither = np.maximum(1 - seen * relevance, _NEAR)
        looked = np.where(clicked > 0, 1.0, seen * (1 - relevance) / neither)
        relevant = np.where(clicked > 0, 1.0, relevance * (1 - seen) / neither)
        before = examination
        examination = np.clip(np.bincount(where, weights * looked, positions) / shown, _NEAR, 1 - 1e-6)
        slope = weights * relevance * (1 - relevance)
        hessian = (table * slope[:, None]).T @ table + _RIDGE * np.eye(len(coefficients))
        gradient = table.T @ (weights * (relevant - relevance)) - _RIDGE * coefficients
        coefficients = coefficients + np.linalg.solve(hessian, gradient)
        if np.abs(examination / before - 1).max() < _SETTLED:
            break
    return np.asarray(examination / examination[0])


def _columns(
    item: ArrayLike, position: ArrayLike, label: ArrayLike, weight: ArrayLike | None, positions: int
) -> tuple[Ids, Ids, Floats, Floats]:
    """Item codes, positions, labels and weights, each ``[n]``, checked."""
    where = some("position", whole("position", position, positions))
    key, _ = rows.codes("item", item, len(where))
    clicked = rows.labels(label, len(where))
    if not np.isin(clicked, (0.0, 1.0)).all():
        raise InputError("label: expected 0 or 1, got soft labels; a propensity is estimated from events")
    return key.astype(np.int64), where, clicked, rows.weights(weight, len(where))
