"""Multicalibration error: the largest error over groups, its p-value, and the smallest error that could be detected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.metrics.rows import Codes, Floats, codes, prob_rows, summed
from isolayer.metrics.sums import over
from isolayer.settings import confidence, count

_TERMS = 12  # terms of the alternating series; the 12th is below 1e-30 where it is used


@dataclass(frozen=True)
class Multicalibration:
    r"""Result of :func:`multicalibration_error`.

    Args:
        error: :math:`\max_g (E_g / \sigma_g) \cdot \sigma`, a probability, with :math:`\sigma` that of all rows.
        p_value: Probability of such an error or a larger one in some group of a calibrated model (Bonferroni).
        minimum_detectable_error: The error that would just have been significant at the confidence ``level``.
        field: The field of each group, ``[groups]``; ``"all"`` is every row.
        group: The value of each group, ``[groups]``, as text.
        weight: Weight of each group.
        group_error: Cumulative calibration error :math:`E_g` of each group.
        group_sigma: :math:`E_g / \sigma_g`.
        group_p_value: Its p-value, each group alone.
    """

    error: float
    p_value: float
    minimum_detectable_error: float
    field: NDArray[np.str_]
    group: NDArray[np.str_]
    weight: Floats
    group_error: Floats
    group_sigma: Floats
    group_p_value: Floats


def multicalibration_error(
    label: Any, prob: Any, groups: Any, weight: Any = None, *, level: float = 0.95, min_rows: int = 1
) -> Multicalibration:
    r"""Multicalibration error over groups (Guy et al. 2025), the worst cumulative error (Arrieta-Ibarra et al. 2022).

    With the rows of group g in order of p, :math:`C_g(t) = \sum_{i \in g, p_i \le t} w_i (y_i - p_i) / W_g` and
    :math:`E_g = \max_t C_g - \min_t C_g`, 0 included. If the model is calibrated, :math:`E_g / \sigma_g` with
    :math:`\sigma_g^2 = \sum_g w p (1 - p) / W_g^2` is approximately the range of a Brownian motion, which gives the
    p-values. Weights are frequencies, so the variance has w, not its square; rows of equal probability are one step.
    For merged tables pass one row per (group, bin): mean label, mean probability, and the count as weight.

    Args:
        label: What happened, ``[n]``: 0 or 1, or a fraction between them.
        prob: Predicted probabilities, ``[n]``.
        groups: A column ``[n]``, or a mapping of columns: every value of every column is a group, and so are all rows.
        weight: Frequency weights, ``[n]``.
        level: Confidence level at which ``minimum_detectable_error`` is stated.
        min_rows: Groups with fewer rows are left out.

    >>> result = multicalibration_error([0, 1] * 100 + [1, 1] * 100, [0.5] * 400, [0] * 200 + [1] * 200)
    >>> result.group[np.argmax(result.group_sigma)].item(), result.p_value < 0.001
    ('1', True)
    """
    level, min_rows = confidence(level), count("min_rows", min_rows, advice="count from 1")
    y, p, w = prob_rows(label, prob, weight)
    order = np.argsort(p, kind="stable")
    p, y, w = p[order], y[order], w[order]
    columns = groups if isinstance(groups, Mapping) else {"group": groups}
    parts = [_of_field("all", np.zeros(len(p), dtype=np.intp), np.array(["all"]), p, y, w)]
    for name, values in columns.items():
        code, key = codes(name, values, len(p))
        parts.append(_of_field(name, code[order], key, p, y, w))
    rows, field, group, size, error, spread = (np.concatenate(column) for column in zip(*parts, strict=True))
    large = (rows >= min_rows) | (np.arange(len(rows)) == 0)
    field, group, size, error, spread = field[large], group[large], size[large], error[large], spread[large]
    sigma = _sigmas(error, spread)
    tail = brownian_range_tail(sigma)
    critical = brownian_range_quantile((1 - level) / len(sigma))
    scale = float(spread[0])
    worst = float(sigma.max())
    return Multicalibration(
        error=worst * scale if math.isfinite(worst) else float(error.max()),
        p_value=min(1.0, len(sigma) * float(tail.min())),
        minimum_detectable_error=critical * scale,
        field=field,
        group=group,
        weight=size,
        group_error=error,
        group_sigma=sigma,
        group_p_value=tail,
    )


def _of_field(
    name: str, code: Codes, key: NDArray[Any], p: Floats, y: Floats, w: Floats
) -> tuple[Codes, NDArray[np.str_], NDArray[np.str_], Floats, Floats, Floats]:
    # Rows, name, value, weight, cumulative error and its standard deviation of each group; rows are in order of p.
    groups = len(key)
    size = summed(code, w, groups)
    spread = over(np.sqrt(summed(code, w * p * (1 - p), groups)), size)
    order = np.argsort(code.astype(np.int16) if groups < 1 << 15 else code, kind="stable")  # short ones sort by radix
    code, p = code[order], p[order]
    last = np.r_[(code[1:] != code[:-1]) | (p[1:] != p[:-1]), True]  # a path counts only at the end of ties
    path = np.cumsum(w[order] * (y[order] - p))
    end = np.flatnonzero(np.r_[code[1:] != code[:-1], True])
    before = np.r_[0.0, path[end[:-1]]]  # where each group's path begins
    path, owner = (path - before[np.searchsorted(code[end], code)])[last], code[last]
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    high, low = np.maximum.reduceat(path, first), np.minimum.reduceat(path, first)
    error = over(np.maximum(high, 0) - np.minimum(low, 0), size)
    return (
        np.bincount(code, minlength=groups),
        np.repeat(np.array([name], dtype=np.str_), groups),
        key.astype(np.str_),
        size,
        np.nan_to_num(error),
        np.nan_to_num(spread),
    )


def _sigmas(error: Floats, spread: Floats) -> Floats:
    # An error without any variance (p is 0 or 1 in every row) cannot be chance: infinitely many standard deviations.
    certain = np.where(error > 1e-12, np.inf, 0.0)
    return np.divide(error, spread, out=certain, where=spread > 0)


def brownian_range_tail(x: Floats) -> Floats:
    r"""Probability that the range of a Brownian motion on ``[0, 1]`` exceeds ``x`` (Feller 1951).

    :math:`4 \sum_{k \ge 1} (-1)^{k-1} k\, \mathrm{erfc}(k x / \sqrt 2)`; below 0.8 it is 1 to within 1e-6.

    >>> brownian_range_tail(np.array([0.0, 2.4977, 40.0])).round(4).tolist()
    [1.0, 0.05, 0.0]
    """
    k = np.arange(1, _TERMS + 1)
    scaled = np.outer(np.maximum(x, 0.8), k) / math.sqrt(2)  # [n, terms]
    terms = np.asarray(np.frompyfunc(math.erfc, 1, 1)(scaled), dtype=np.float64)
    tail = 4 * terms @ (k * (-1.0) ** (k - 1))
    return np.where(x < 0.8, 1.0, np.clip(tail, 0.0, 1.0))


def brownian_range_quantile(tail: float) -> float:
    """The range that a Brownian motion exceeds with probability ``tail``, by bisection.

    >>> round(brownian_range_quantile(0.05), 3)
    2.498
    """
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if brownian_range_tail(np.array([middle]))[0] > tail else (low, middle)
    return high
