r"""Clustered rows: how much the labels of a day, a user or a query vary together.

Rows of a cluster share an error of their logits, so the excess of events r of a cluster in a context has the variance
:math:`v + \sigma^2 h^2`, where v is the variance of independent labels and h the change of the expected events with the
mean logit. The method of moments over all clusters of all contexts of a depth gives :math:`\sigma^2`. A mean shift of a
context is not clustering, and is subtracted first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from isolayer.errors import InputError
from isolayer.metrics.rows import Codes, Floats, summed


def count_of(cluster: NDArray[Any]) -> int:
    """The number of clusters; an error if there is only one."""
    count = len(np.unique(cluster))
    if count < 2:
        raise InputError(
            f"cluster: expected at least two clusters, got {count}; name a column with more, or leave it out"
        )
    return count


def design_effect(
    excess: Floats, force: Floats, sampling: Floats, group: Codes, groups: int, cluster: NDArray[Any]
) -> Floats:
    """Factor, at least 1, by which clusters increase the variance of each group's excess, shape ``[groups]``.

    Args:
        excess: Observed minus expected events of each bin, shape ``[bins]``.
        force: Change of its expected events with the mean logit.
        sampling: Variance of its events if rows are independent.
        group: Group of each bin.
        groups: Number of groups.
        cluster: Cluster of each bin.

    >>> ones, group = np.ones(4), np.zeros(4, np.int64)
    >>> clusters = np.array([0, 0, 1, 1], np.int8)
    >>> design_effect(np.array([4.0, 4.0, -4.0, -4.0]), ones, ones, group, 1, clusters).round(2).tolist()
    [64.0]
    """
    size = int(cluster.max(initial=0)) + 1
    key = group * size + cluster
    places, at = np.unique(key, return_inverse=True)
    owner = places // size
    r, h, v = (summed(at, column, len(places)) for column in (excess, force, sampling))
    total_r, total_h, total_v = (summed(owner, column, groups) for column in (r, h, v))
    shift = _ratio(total_r, total_h)[owner]
    part = _ratio(h, total_h[owner])
    squares = summed(owner, h**2, groups)
    # Expected squares of r - h shift after a group's mean is subtracted: from labels, and per unit of sigma^2.
    labels = v - 2 * part * v + part**2 * total_v[owner]
    clusters = h**2 - 2 * part * h**2 + part**2 * squares[owner]
    unexplained = float(((r - h * shift) ** 2 - labels).sum())
    common = max(unexplained / float(clusters.sum()), 0.0) if clusters.sum() > 0 else 0.0
    return np.asarray(1 + common * _ratio(squares, total_v))


def standard_error(influence: Floats, weight: Floats, cluster: NDArray[Any] | None = None) -> float:
    r"""Standard error of a sum of the influences of rows, :math:`\sum w \psi`, of mean 0.

    Args:
        influence: What each row adds, shape ``[n]``.
        weight: Frequency weights: a row of weight 2 counts as two rows.
        cluster: Cluster of each row; None if rows are independent.

    >>> standard_error(np.array([1.0, -1.0]), np.ones(2)).__round__(3)
    1.414
    >>> standard_error(np.array([1.0, 1.0, -1.0, -1.0]), np.ones(4), np.array([0, 0, 1, 1]))
    4.0
    """
    largest = float(np.abs(influence).max(initial=0.0)) or 1.0
    scaled = influence / largest  # scaled so that no square overflows
    if cluster is None:
        return largest * float(np.sqrt(scaled**2 @ weight))
    _, code = np.unique(cluster, return_inverse=True)
    sums = np.bincount(code, scaled * weight)
    return largest * float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1)))


def quantile(level: float, clusters: int | None = None) -> float:
    """Half the width of an interval in standard errors; Student's t distribution is used if there are clusters.

    >>> round(quantile(0.95), 3), round(quantile(0.95, clusters=8), 3)
    (1.96, 2.365)
    """
    return float(ndtri(0.5 + level / 2) if clusters is None else stdtrit(clusters - 1, 0.5 + level / 2))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(bottom), where=bottom > 0)
