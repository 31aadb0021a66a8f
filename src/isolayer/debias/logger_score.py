"""The logger's ranking score, as far as the features predict it, and buckets of such scores."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.columns import numbers
from isolayer.metrics.rows import Floats, codes, finite


def logger_score(features: Any, position: Any, session: Any = None) -> Floats:
    """The logger's ranking score as far as the features predict it, ``[n]``: higher is nearer the top.

    A ridge regression of the normal score of each row's rank, in its list or in the whole log, on the features and
    their squares. A logger that ranks by such a function cannot distinguish rows of equal score, so their positions
    depend on their competitors and on chance only: the score balances the features across positions.

    Args:
        features: Shape ``[n, features]``.
        position: Where each row was shown, ``[n]``.
        session: The list that each row belongs to, ``[n]``; by default ranks are those in the whole log.
    """
    place = finite("position", position)
    x = numbers("features", features, len(place), dims=2)
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
