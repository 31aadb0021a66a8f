"""A log of scores that are calibrated over all rows but wrong on every surface, as in a real product."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.settings import count
from isolayer.settings import seed as checked_seed

# Share of the rows, click rate as a logit, and how the model's logit departs from the truth: slope, shift.
SURFACES = {
    "feed": (0.55, -2.7, 0.75, 0.40),
    "search": (0.27, -1.5, 1.25, -0.55),
    "email": (0.13, -3.2, 1.0, 0.70),
    "push": (0.05, -2.6, 0.6, 1.1),
}
DEVICES = {"phone": (0.7, 0.0), "web": (0.25, 0.15), "tv": (0.05, -0.3)}
FIRST_DAY = np.datetime64("2026-10-19")  # a Monday
_USER_SPREAD, _ITEM_SPREAD, _WEEKEND = 0.5, 0.9, 0.15


def scored_log(rows: int = 40_000, days: int = 14, *, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Impressions with the click probability that a model predicted, and the clicks that followed.

    Over all rows the model is calibrated: it expects exactly as many clicks as the truth does. On each surface it is
    wrong, with a different offset and slope. All rows of a user share that user's habits, some users have many rows,
    and people click a little more at weekends, so the rows of a user or a day are not independent.

    Args:
        rows: Number of impressions.
        days: Number of days, from a Monday on.
        seed: Seed of everything random.

    Returns:
        The columns ``day``, ``user``, ``surface``, ``device``, ``prob`` and ``click``, sorted by day.

    >>> log = scored_log(20_000)
    >>> on_search = log["surface"] == "search"
    >>> float(round(log["click"].sum() / log["prob"].sum(), 1))  # observed over expected, of all rows
    1.0
    >>> float(round(log["click"][on_search].sum() / log["prob"][on_search].sum(), 1))  # and on one surface
    1.4
    """
    rows, days = count("rows", rows), count("days", days, most=3650)
    random = np.random.default_rng(checked_seed("seed", seed))
    day = np.sort(random.integers(0, days, rows))
    users = max(1, rows // 12)
    user = (users * random.beta(0.8, 1.6, rows)).astype(np.int64)  # a few users have many rows
    surface = random.choice(len(SURFACES), rows, p=_column(SURFACES, 0))
    device = random.choice(len(DEVICES), rows, p=_column(DEVICES, 0))
    rate = _column(SURFACES, 1)[surface] + _column(DEVICES, 1)[device]
    known = random.normal(0, _ITEM_SPREAD, rows) + _USER_SPREAD * random.normal(size=users)[user]
    truth = rate + known + np.where(day % 7 >= 5, _WEEKEND, 0.0)
    logit = rate + _column(SURFACES, 2)[surface] * known + _column(SURFACES, 3)[surface]
    logit += _balance(logit, float(_sigmoid(truth).sum()))
    return {
        "day": (FIRST_DAY + day).astype("datetime64[D]"),
        "user": user,
        "surface": np.array(list(SURFACES))[surface],
        "device": np.array(list(DEVICES))[device],
        "prob": _sigmoid(logit).round(6),
        "click": (random.random(rows) < _sigmoid(truth)).astype(np.int8),
    }


def _column(table: dict[str, Any], place: int) -> NDArray[np.float64]:
    return np.array([values[place] for values in table.values()])


def _sigmoid(logit: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-logit))


def _balance(logit: NDArray[np.float64], total: float) -> float:
    """The shift of all logits at which their probabilities sum to a total, by bisection."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(logit + middle).sum() < total else (low, middle)
    return (low + high) / 2
