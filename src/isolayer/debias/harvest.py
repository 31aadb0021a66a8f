r"""The effect of position from the log alone, by units that were shown at several positions. Pure functions of columns.

A unit is an item, or a cell of rows that the logger could not tell apart by their features. Where a unit has stood at
two positions, its labels there compare the positions and not the units: the log holds its own interventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.metrics.rows import Floats, codes, finite, labels, same_length, summed

_STEPS = 50  # Newton's method needs about six


@dataclass(frozen=True)
class Harvested:
    """Label rate of each position over that of the first, other things equal; columns ``[positions]``.

    Args:
        position: The positions, in order.
        ratio: Rate over that of the first position; NaN where the log does not tell.
        log_error: Standard error of the logarithm of the ratio; infinite where the log does not tell.
    """

    position: NDArray[Any]
    ratio: Floats
    log_error: Floats

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper ends of the ratio, ``[positions]``."""
        width = NormalDist().inv_cdf(0.5 + level / 2) * np.where(np.isfinite(self.ratio), self.log_error, np.nan)
        return np.asarray(self.ratio * np.exp(-width)), np.asarray(self.ratio * np.exp(width))


def harvest(unit: Any, position: Any, label: Any) -> Harvested:
    r"""Position effect by conditional likelihood, so that whatever is a unit's own cancels.

    With :math:`n_{uk}` rows of unit u at position k and rates :math:`a_u e_k`, the :math:`Y_u` events of a unit fall on
    its positions with chances :math:`\pi_{uk} \propto n_{uk} e_k`, free of :math:`a_u`. The log likelihood
    :math:`\sum_{uk} y_{uk} \log e_k - \sum_u Y_u \log \sum_k n_{uk} e_k` is concave in :math:`\log e`: Newton's method.

    Args:
        unit: Which rows are comparable, ``[n]``.
        position: Where each was shown, ``[n]``.
        label: 0 or 1, ``[n]``.

    >>> harvest(["a", "a", "b", "b"] * 50, [0, 1, 1, 2] * 50, [1, 1, 1, 1, 1, 0, 1, 0] * 25).ratio.round(3).tolist()
    [1.0, 0.5, 0.25]
    """
    shown, events, keys = unit_table(unit, position, label)
    return harvest_table(shown, events, keys)


def unit_table(unit: Any, position: Any, label: Any) -> tuple[Floats, Floats, NDArray[Any]]:
    """Rows and events of every unit at every position, ``[units, positions]``, and the positions."""
    y = labels(label)
    place, keys = codes("position", position, len(y))
    owner, units = codes("unit", unit, len(y))
    at, size = owner * len(keys) + place, len(units) * len(keys)
    shown = summed(at, np.ones(len(y)), size).reshape(len(units), -1)
    events = summed(at, y, size).reshape(len(units), -1)
    return shown, events, keys


def harvest_table(shown: Floats, events: Floats, keys: NDArray[Any]) -> Harvested:
    """`harvest` from rows and events ``[units, positions]``."""
    used = ((shown > 0).sum(1) > 1) & (events.sum(1) > 0)
    shown, events = shown[used], events[used]
    positions = shown.shape[1]
    known = np.asarray(events.sum(0) > 0) & (components(shown) == 0)  # tied to the first position, and ever labelled
    known[0] = True
    ratio, error = np.full(positions, np.nan), np.full(positions, np.inf)
    ratio[0], error[0] = 1.0, 0.0
    rest = np.flatnonzero(known)[1:]
    if len(rest) and events[:, 0].sum() > 0:
        keep = np.r_[0, rest]
        log_rate, information = _newton(shown[:, keep], events[:, keep])
        ratio[rest] = np.exp(log_rate[1:])
        variance = np.diag(np.linalg.pinv(information))
        error[rest] = np.sqrt(np.where(variance > 0, variance, np.inf))  # rounding leaves what is not told below zero
    return Harvested(keys, ratio, error)


def _newton(shown: Floats, events: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the rates, the first 0, and the information about the others."""
    total, by_position = events.sum(1), events.sum(0)
    log_rate = np.zeros(shown.shape[1])
    information = np.zeros((len(log_rate) - 1, len(log_rate) - 1))
    for _ in range(_STEPS):
        share = shown * np.exp(log_rate)
        share /= np.maximum(share.sum(1, keepdims=True), np.finfo(np.float64).tiny)
        expected = total @ share
        information = (np.diag(expected) - (share * total[:, None]).T @ share)[1:, 1:]
        step = np.linalg.pinv(information) @ (by_position - expected)[1:]
        step *= min(1.0, 2.0 / max(np.abs(step).max(), 1e-300))  # far from the optimum, do not jump
        log_rate[1:] += step
        if np.abs(step).max() < 1e-9:
            break
    return log_rate, information


def components(shown: Floats) -> NDArray[np.intp]:
    """Part of the graph each position is in, positions being tied when one unit was shown at both.

    >>> components(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])).tolist()
    [0, 0, 1]
    """
    present = (shown > 0).astype(np.float64)
    tied = (present.T @ present > 0) | np.eye(shown.shape[1], dtype=np.bool_)
    for _ in range(int(shown.shape[1]).bit_length()):  # paths of twice the length each time
        tied = tied.astype(np.float64) @ tied.astype(np.float64) > 0
    first = tied.argmax(1)
    return np.unique(first, return_inverse=True)[1]


def effective_rows(shown: Floats) -> Floats:
    r"""How many comparisons each position takes part in: :math:`\sum_u n_{uk} (n_u - n_{uk}) / n_u`, ``[positions]``.

    A unit that only ever stood at one position adds nothing, one that stood equally at two adds half its rows there.

    >>> effective_rows(np.array([[4.0, 4.0, 0.0], [0.0, 0.0, 9.0]])).tolist()
    [2.0, 2.0, 0.0]
    """
    total = shown.sum(1, keepdims=True)
    return np.asarray((shown * (total - shown) / np.maximum(total, 1.0)).sum(0))


def logger_score(features: Any, position: Any, session: Any = None) -> Floats:
    """What the features tell of the logger's ranking, ``[n]``: higher is nearer the top.

    A ridge regression of the normal score of each row's rank, in its list or in the whole log, on the features and
    their squares. Rows of one score were alike to a logger that ranks by such a function, so where each of them stood
    was the doing of its competitors and of chance: the score balances the features across positions.

    Args:
        features: Shape ``[n, features]``.
        position: Where each row was shown, ``[n]``.
        session: The list each row is of, ``[n]``; by default ranks are those in the whole log.
    """
    x = np.asarray(features, dtype=np.float64)
    place = finite("position", position)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InputError(f"features: expected finite numbers of shape [n, features], got {x.shape}; repair the columns")
    same_length("features", x, len(place))
    list_, _ = codes("session", np.zeros(len(place)) if session is None else session, len(place))
    order = np.lexsort((place, list_))
    size = np.bincount(list_)
    rank = np.empty(len(place))
    rank[order] = np.arange(len(place)) - (np.cumsum(size) - size)[list_[order]]
    top = 1 - (rank + 0.5) / size[list_] if session is not None else 1 - (_mid_rank(place) + 0.5) / len(place)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
    x = np.concatenate([x, x**2 - 1], axis=1)
    target = _normal_quantile(top)
    gram = x.T @ x + 1e-6 * len(x) * np.eye(x.shape[1])
    return np.asarray(x @ np.linalg.solve(gram, x.T @ (target - target.mean())))


def _mid_rank(values: Floats) -> Floats:
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - count + (count - 1) / 2)[code])


def _normal_quantile(prob: Floats) -> Floats:
    """Standard normal quantiles; each distinct probability is inverted once."""
    values, code = np.unique(prob, return_inverse=True)
    return np.array([NormalDist().inv_cdf(float(value)) for value in values])[code]


def quantile_buckets(values: Floats, count: int) -> NDArray[np.intp]:
    """Bucket ``0 .. count - 1`` of each value, about equally many rows in each; ties stay together.

    >>> quantile_buckets(np.array([3.0, 1.0, 2.0, 4.0]), 2).tolist()
    [1, 0, 0, 1]
    """
    edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
    return np.searchsorted(edges, values, side="left")
