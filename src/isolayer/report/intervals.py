"""Intervals of the figures of a report, from the influence of each row or, if rows are clustered, of each cluster."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.categories import Codes
from isolayer.metrics import ObservedOverExpected, SegmentSums, observed_over_expected, ratio_table
from isolayer.metrics.clusters import quantile, standard_error
from isolayer.metrics.sums import entropy

Floats = NDArray[np.float64]

LEVEL = 0.95


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    lower: float
    upper: float


def half_width(influence: Floats, weight: Floats, cluster: Codes | None = None) -> float:
    """Half the width of the interval of a sum of influences whose mean is 0."""
    clusters = None if cluster is None else len(np.unique(cluster))
    return quantile(LEVEL, clusters) * standard_error(influence, weight, cluster)


def mean_estimate(values: Floats, weight: Floats, cluster: Codes | None = None) -> Estimate:
    """Weighted mean with its normal interval; weights are frequencies.

    >>> mean_estimate(np.array([0.0, 1.0]), np.array([200.0, 200.0])).lower.__round__(3)
    0.451
    """
    total = float(weight.sum())
    mean = float(values @ weight) / total
    half = half_width((values - mean) / total, weight, cluster)
    return Estimate(mean, mean - half, mean + half)


def ratio_estimate(top: Floats, bottom: Floats, weight: Floats, cluster: Codes | None = None) -> Estimate:
    """Ratio of two weighted means over the same rows, with its (paired) delta-method interval."""
    total, ratio = float(bottom @ weight), float(top @ weight) / float(bottom @ weight)
    half = half_width((top - ratio * bottom) / total, weight, cluster)
    return Estimate(ratio, ratio - half, ratio + half)


def ne_estimate(loss: Floats, label: Floats, weight: Floats, cluster: Codes | None = None) -> Estimate:
    r"""Normalised entropy with its delta-method interval.

    With :math:`H` the entropy of the rate :math:`\bar y`, the influence of a row on NE is
    :math:`(\ell - L)/H - L H'(\bar y)(y - \bar y)/H^2`, where :math:`H'(y) = \log((1-y)/y)`.
    """
    total = float(weight.sum())
    mean, rate = float(loss @ weight) / total, float(label @ weight) / total
    h = float(entropy(rate))
    slope = float(np.log((1 - rate) / rate))
    moved = (loss - mean) / h - mean * slope * (label - rate) / h**2
    half = half_width(moved / total, weight, cluster)
    return Estimate(mean / h, mean / h - half, mean / h + half)


def ratios(
    label: Floats, prob: Floats, weight: Floats, group: Codes, cluster: Codes | None = None, *, level: float = LEVEL
) -> ObservedOverExpected:
    """O/E of each group with Wilson's interval, for the effective number of rows if rows are clustered.

    >>> table = ratios(np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.array([200.0, 200.0]), np.zeros(2, np.int64))
    >>> table.ratio.tolist(), table.lower.round(2).tolist()
    ([1.0], [0.9])
    """
    return observed_over_expected(label, prob, group, weight, level=level, cluster=cluster)


def rates(weight: Floats, positive: Floats) -> tuple[Floats, Floats, Floats]:
    """Rate of each cell and Wilson's interval.

    >>> [column.round(3).tolist() for column in rates(np.array([10.0]), np.array([0.0]))]
    [[0.0], [0.0], [0.278]]
    """
    nothing = np.zeros_like(weight)
    table = ratio_table(SegmentSums(np.arange(len(weight)), weight, positive, weight, nothing, nothing), level=LEVEL)
    return table.ratio, table.lower, table.upper
