"""Tests whether the logger knew more than the features, from the competitors of each item in the logged lists.

If it did, position carries information about relevance: a naive model gains from it, and removing the effect of
position does harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.debias.logger_score import logger_score, quantile_buckets
from isolayer.errors import InputError
from isolayer.fitting.columns import numbers
from isolayer.metrics.rows import Floats, codes, finite, labels, probs, same_length, summed
from isolayer.metrics.sums import over

FIRES = 3.0  # the statistic is standard normal if the logger knows nothing more: one false alarm in 741 logs
INFORMED_ALPHA = 0.1  # more brings too much bias back where the logger also ranked by something irrelevant
_CELL_ROWS = 25  # rows that a cell of (position, logger's score, relevance) should have
_MOST_BUCKETS = 20
_SMALLEST_FAILURE = 0.05  # lower bound of 1 - p, so that no row counts more than 20-fold for being almost certain


@dataclass(frozen=True)
class LoggerTest:
    """Whether the logger was better informed than the features.

    Args:
        statistic: Standard normal if it was not; large if it was.
        effect: Relative change of the label rate for one standard deviation of surprise.
        smallest: The smallest effect that this log would have shown.
    """

    statistic: float
    effect: float
    smallest: float

    @property
    def fires(self) -> bool:
        """Whether to warn."""
        return self.statistic > FIRES

    @property
    def p_value(self) -> float:
        """Probability of a statistic at least as large if the logger knew nothing more."""
        return 1 - NormalDist().cdf(self.statistic)

    @property
    def alpha(self) -> float:
        """The joint alpha to try: 0 where debiasing is safe."""
        return INFORMED_ALPHA if self.fires else 0.0

    def __str__(self) -> str:
        numbers = f"statistic {self.statistic:.1f}, fires above {FIRES:.0f}; effect {self.effect:+.1%}"
        if self.fires:
            return (
                f"Warning: items ranked higher than their features explain earn more labels than the model expects at "
                f"their position ({numbers}). The logger used information that the features lack, and removing the "
                f"effect of position removes that information too. Add it to the features, or try anchor='joint' with "
                f"alpha={self.alpha}, beta={1 - self.alpha}; if the logger also ranked by something irrelevant, that "
                "brings part of its bias back, so compare both."
            )
        return (
            f"No sign that the logger used information that the features lack ({numbers}; an effect of "
            f"{self.smallest:.1%} would have been detected): use alpha=0, or anchor='detached'."
        )


def logger_test(
    label: Any,
    observed_prob: Any,
    relevance_logit: Any,
    position: Any,
    session: Any,
    *,
    features: Any = None,
    cluster: Any = None,
) -> LoggerTest:
    r"""Test whether the logged position still predicts labels beyond relevance and the effect of position.

    One curve per position can explain any effect of position, including that of a better-informed logger, so labels by
    position alone say nothing. But an item's position also depends on what it was ranked against. If the logger ranked
    by the features and chance, then of two items with the same features and position, the one with stronger competitors
    is as good as the other; if the logger knew more, the one that held its position against them is better.

    The surprise of a row is the score of a Plackett-Luce model of its list,
    :math:`1 - e^{s_i} \sum_{j \le rank_i} 1 / \sum_{l: rank_l \ge j} e^{s_l}`, where s is the logger's ranking as
    predicted by features and relevance. Label residuals are regressed on it, within cells of (position, s, relevance)
    and adjusted linearly for both, with errors clustered by list. The test is one-sided: users who stop reading once
    they are satisfied give the opposite sign, so among them a better-informed logger may go unnoticed.

    Args:
        label: 0 or 1, ``[n]``.
        observed_prob: The model's probability of the label in the context it was shown in, ``[n]``.
        relevance_logit: The logit that the model ranks by, ``[n]``.
        position: Where each row was shown, ``[n]``; smaller is higher.
        session: The list that each row belongs to, ``[n]``.
        features: The model's features, ``[n, features]``; by default the relevance logit alone.
        cluster: What lists that vary together share, such as a user or a day, ``[n]``; by default lists are
            independent.
    """
    prob = probs(observed_prob, "observed_prob")
    rows = len(prob)
    y, relevance, place = labels(label, rows), finite("relevance_logit", relevance_logit), finite("position", position)
    for name, column in (("relevance_logit", relevance), ("position", place)):
        same_length(name, column, rows)
    list_, sessions = codes("session", session, rows)
    at, positions = codes("position", place, rows)
    if rows - len(sessions) < 100:
        raise InputError(
            f"session: expected lists of several items, {rows - len(sessions)} rows share one; use more rows"
        )
    given = relevance[:, None]
    if features is not None:
        given = np.column_stack([numbers("features", features, rows, dims=2), relevance])
    score = logger_score(given, place, list_)
    buckets = int(np.clip(math.sqrt(rows / (_CELL_ROWS * len(positions))), 1, _MOST_BUCKETS))
    cell = (at * buckets + quantile_buckets(score, buckets)) * buckets + quantile_buckets(relevance, buckets)
    linear = np.column_stack([score, relevance])
    error = _partial(y - prob, linear, cell, at)
    surprise = _partial(_surprise(score, place, list_), linear, cell, at)
    clusters = [list_] if cluster is None else [list_, codes("cluster", cluster, rows)[0]]
    return _relative_effect(error, surprise, prob, clusters)


def _relative_effect(error: Floats, surprise: Floats, prob: Floats, by: Sequence[NDArray[np.intp]]) -> LoggerTest:
    """Regression of relative errors on surprise, weighted by the inverse variance of a label.

    Its standard error is the largest of those clustered by each of ``by``.
    """
    failure = np.maximum(1 - prob, _SMALLEST_FAILURE)
    gain = error * surprise / failure
    information = float((surprise**2 * prob / failure).sum())
    deviation = max(float(np.sqrt((summed(one, gain, int(one.max()) + 1) ** 2).sum())) for one in by)
    if not (information > 0 and deviation > 0):
        return LoggerTest(0.0, 0.0, math.inf)
    total, spread = float(gain.sum()), float(surprise.std())
    return LoggerTest(total / deviation, total / information * spread, FIRES * deviation / information * spread)


def _surprise(score: Floats, place: Floats, list_: NDArray[np.intp]) -> Floats:
    """Plackett-Luce score residuals, at the maximum likelihood scale of the scores."""
    order = np.lexsort((place, list_))
    size = np.bincount(list_)
    at = np.empty(len(score), dtype=np.intp)
    at[order] = np.arange(len(score)) - (np.cumsum(size) - size)[list_[order]]
    table = np.full(
        (len(size), int(size.max())), -np.inf
    )  # one list per row, from the top; -inf where there is no item
    table[list_, at] = score
    table -= table.max(1, keepdims=True)
    present = np.isfinite(table)

    def residual(scale: float) -> Floats:
        strength = np.exp(scale * table)
        left = np.cumsum(strength[:, ::-1], axis=1)[:, ::-1]  # strength of the items not yet ranked
        hazard = np.cumsum(1 / np.where(present, left, np.inf), axis=1)
        return np.asarray(1 - strength * hazard)

    finite_score = np.where(present, table, 0.0)
    low, high = 0.0, 20.0 / max(float(-finite_score.min()), 1e-12)
    for _ in range(20):  # the likelihood is concave in the scale: its slope changes sign once
        middle = (low + high) / 2
        low, high = (middle, high) if float((finite_score * residual(middle)).sum()) > 0 else (low, middle)
    return np.asarray(residual((low + high) / 2)[list_, at])


def _partial(values: Floats, linear: Floats, cell: NDArray[np.intp], at: NDArray[np.intp]) -> Floats:
    """Residuals of ``values`` on the means of the cells and, at each position, on the linear columns."""
    cells = int(cell.max()) + 1
    count = np.bincount(cell, minlength=cells).astype(np.float64)

    def centred(column: Floats) -> Floats:
        return np.asarray(column - over(summed(cell, column, cells), count)[cell])

    left = centred(values)
    columns = np.column_stack([centred(column) for column in linear.T])
    for position in range(int(at.max()) + 1):
        rows = at == position
        left[rows] -= columns[rows] @ np.linalg.lstsq(columns[rows], left[rows], rcond=None)[0]
    return left
