r"""Intervention harvesting: the effect of position, estimated from units that were shown at several positions.

A unit is an item, or a cell of rows that the logger could not distinguish by their features. Where a unit was shown
at two positions, its labels there compare the positions and not the units: the log contains its own
interventions (Agarwal et al. 2019). Pure functions of numpy columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.columns import whole
from isolayer.metrics.clusters import count_of, quantile, standard_error
from isolayer.metrics.rows import Floats, codes, labels, summed, weights
from isolayer.settings import confidence, count

_STEPS = 50  # at most; Newton's method needs about six


@dataclass(frozen=True)
class Harvested:
    """Label rate of each position over that of the first, other things being equal; columns ``[positions]``.

    Args:
        position: The positions, in order.
        ratio: Rate over that of the first position; NaN where it is not identified.
        log_error: Standard error of the logarithm of the ratio; infinite where it is not identified.
        clusters: Number of clusters that the errors account for; None if rows are taken as independent.
    """

    position: NDArray[Any]
    ratio: Floats
    log_error: Floats
    clusters: int | None = None

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper ends of a confidence interval of the ratio, ``[positions]``."""
        width = quantile(confidence(level), self.clusters) * np.where(np.isfinite(self.ratio), self.log_error, np.nan)
        return np.asarray(self.ratio * np.exp(-width)), np.asarray(self.ratio * np.exp(width))

    @property
    def connected(self) -> bool:
        """Whether the ratio of every position is identified."""
        return bool(np.isfinite(self.ratio).all())

    def examination(self, positions: int) -> Floats:
        """The ratios by 0-based position, ``[positions]``, as `InversePropensity` takes them; NaN where not identified.

        >>> harvest(["a", "a"] * 20, [0, 2] * 20, [1, 1, 1, 0] * 10).examination(4).round(2).tolist()
        [1.0, nan, 0.5, nan]
        """
        place = whole("position", self.position, count("positions", positions))
        found = np.full(positions, np.nan)
        found[place] = self.ratio
        return found


def harvest(unit: Any, position: Any, label: Any, *, weight: Any = None, cluster: Any = None) -> Harvested:
    r"""Effect of position by conditional likelihood, in which the rate of each unit cancels.

    With :math:`n_{uk}` rows of unit u at position k and rates :math:`a_u e_k`, the :math:`Y_u` events of a unit fall on
    its positions with probabilities :math:`\pi_{uk} \propto n_{uk} e_k`, free of :math:`a_u`. The log likelihood
    :math:`\sum_{uk} y_{uk} \log e_k - \sum_u Y_u \log \sum_k n_{uk} e_k` is concave in :math:`\log e`, and Newton's
    method maximises it. A randomised swap of two positions is the same with the number of the swap as the unit. Under
    the position-based model the ratios are those of examination; under trust bias they are averages over relevance.

    Args:
        unit: Which rows are comparable, ``[n]``.
        position: Where each was shown, ``[n]``.
        label: 0 or 1, ``[n]``.
        weight: How many times each row counts, ``[n]``.
        cluster: What rows that vary together share, such as a user or a day, ``[n]``; by default rows are independent.

    >>> harvest(["a", "a", "b", "b"] * 50, [0, 1, 1, 2] * 50, [1, 1, 1, 1, 1, 0, 1, 0] * 25).ratio.round(3).tolist()
    [1.0, 0.5, 0.25]
    """
    shown, events, keys = unit_table(unit, position, label, weight)
    found = harvest_table(shown, events, keys)
    if cluster is None:
        return found
    y = labels(label)
    owner, _ = codes("unit", unit, len(y))
    place, _ = codes("position", position, len(y))
    own, clusters = codes("cluster", cluster, len(y))
    several = count_of(clusters)
    factor = _widened(found, shown, events, _Labelled(owner, place, y, weights(weight, len(y)), own))
    return replace(found, log_error=found.log_error * factor, clusters=several)


class _Labelled(NamedTuple):
    """Rows: unit, place of the position, label, weight and cluster of each."""

    unit: NDArray[np.intp]
    place: NDArray[np.intp]
    label: Floats
    weight: Floats
    cluster: NDArray[np.intp]


def _widened(found: Harvested, shown: Floats, events: Floats, rows: _Labelled) -> Floats:
    r"""Factor, at least 1, by which clusters increase the error of each position, ``[positions]``.

    A row moves the logarithms of the rates by :math:`I^{-1} (y - \mu) (e_k - \pi_u)`, with :math:`\mu` its expected
    label. The factor is the standard error of the sum of these over clusters, over that of independent rows.
    """
    factor = np.ones(len(found.ratio))
    known = np.isfinite(found.ratio)
    used = ((shown > 0).sum(1) > 1) & (events.sum(1) > 0)
    strength = shown[:, known] * found.ratio[known]
    total = np.maximum(strength.sum(1), np.finfo(np.float64).tiny)
    event, share = events[:, known].sum(1), strength / total[:, None]
    kept = used[rows.unit] & known[rows.place]
    if len(np.unique(rows.cluster[kept])) < 2:
        return factor
    unit, at = rows.unit[kept], (np.cumsum(known) - 1)[rows.place[kept]]
    residual = rows.label[kept] - (event / total)[unit] * found.ratio[rows.place[kept]]
    some, by_event = share[used], event[used][:, None]
    information = np.diag((by_event * some).sum(0)) - (by_event * some).T @ some
    inverse = np.zeros_like(information)
    inverse[1:, 1:] = np.linalg.pinv(information[1:, 1:])
    for column, k in enumerate(np.flatnonzero(known)[1:], start=1):
        influence = residual * (inverse[at, column] - (share @ inverse[:, column])[unit])
        errors = [standard_error(influence, rows.weight[kept], own) for own in (rows.cluster[kept], None)]
        factor[k] = max(1.0, errors[0] / errors[1]) if errors[1] > 0 else 1.0
    return factor


def unit_table(
    unit: Any, position: Any, label: Any, weight: Any = None, *, name: str = "unit"
) -> tuple[Floats, Floats, NDArray[Any]]:
    """Rows and events of every unit at every position, ``[units, positions]``, and the positions."""
    y = labels(label)
    place, keys = codes("position", position, len(y))
    owner, units = codes(name, unit, len(y))
    at, size = owner * len(keys) + place, len(units) * len(keys)
    count = weights(weight, len(y))
    shown = summed(at, count, size).reshape(len(units), -1)
    events = summed(at, count * y, size).reshape(len(units), -1)
    return shown, events, keys


def harvest_table(shown: Floats, events: Floats, keys: NDArray[Any]) -> Harvested:
    """`harvest` from rows and events ``[units, positions]``."""
    used = ((shown > 0).sum(1) > 1) & (events.sum(1) > 0)
    shown, events = shown[used], events[used]
    positions = shown.shape[1]
    known = np.asarray(events.sum(0) > 0) & (components(shown) == 0)  # connected to the first, and with events
    known[0] = True
    ratio, error = np.full(positions, np.nan), np.full(positions, np.inf)
    ratio[0], error[0] = 1.0, 0.0
    rest = np.flatnonzero(known)[1:]
    if len(rest) and events[:, 0].sum() > 0:
        keep = np.r_[0, rest]
        log_rate, information = _newton(shown[:, keep], events[:, keep])
        ratio[rest] = np.exp(log_rate[1:])
        variance = np.diag(np.linalg.pinv(information))
        error[rest] = np.sqrt(np.where(variance > 0, variance, np.inf))  # not identified: zero up to rounding
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
        step *= min(1.0, 2.0 / max(np.abs(step).max(), 1e-300))  # far from the optimum a full step may overshoot
        log_rate[1:] += step
        if np.abs(step).max() < 1e-9:
            break
    return log_rate, information


def components(shown: Floats) -> NDArray[np.intp]:
    """Connected component of each position, where positions are connected if one unit was shown at both.

    >>> components(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])).tolist()
    [0, 0, 1]
    """
    present = (shown > 0).astype(np.float64)
    joined = (present.T @ present > 0) | np.eye(shown.shape[1], dtype=np.bool_)
    for _ in range(int(shown.shape[1]).bit_length()):  # paths of twice the length each time
        joined = joined.astype(np.float64) @ joined.astype(np.float64) > 0
    first = joined.argmax(1)
    return np.unique(first, return_inverse=True)[1]


def effective_rows(shown: Floats) -> Floats:
    r"""Number of comparisons of each position, :math:`\sum_u n_{uk} (n_u - n_{uk}) / n_u`, ``[positions]``.

    A unit shown at one position only adds nothing; one shown equally often at two adds half of its rows there.

    >>> effective_rows(np.array([[4.0, 4.0, 0.0], [0.0, 0.0, 9.0]])).tolist()
    [2.0, 2.0, 0.0]
    """
    total = shown.sum(1, keepdims=True)
    return np.asarray((shown * (total - shown) / np.maximum(total, 1.0)).sum(0))
