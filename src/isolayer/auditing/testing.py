"""The test of one segment: are there as many events as expected? It is exact for few events and allows for clusters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isolayer.auditing.rows import AuditRows, State
from isolayer.curves.evaluation import prob_of
from isolayer.fitting.interactions import evidence
from isolayer.metrics.clusters import count_of, design_effect
from isolayer.metrics.tails import RatioTest, Statistic, Trials

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

_STEP = 0.02  # width of the bins of logits, within which probabilities hardly differ
_FARTHEST = 8.0  # largest correction of a segment, in logits; without events it would be infinite
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Clustering:
    """Clusters of the rows, and by how much the logits of a cluster vary together.

    Args:
        cluster: Cluster of each row, shape ``[n]``.
        variance: Variance of the logit that the rows of a cluster share.
        count: Number of clusters.
    """

    cluster: Codes
    variance: float
    count: int

    @classmethod
    def of(cls, rows: AuditRows, state: State) -> Clustering | None:
        """The clustering as estimated from all rows; None if rows are independent."""
        if rows.cluster is None:
            return None
        found = cls(rows.cluster, 0.0, count_of(rows.cluster))
        everything = np.arange(len(rows))
        return cls(rows.cluster, found._own_variance(rows, state, everything), found.count)

    def effect(self, rows: AuditRows, state: State, some: Codes) -> float:
        """Design effect: the factor, at least 1, by which clusters increase the variance of the events of some rows."""
        variance = max(self.variance, self._own_variance(rows, state, some))
        return 1 + variance * self._squares(state, some) / max(float(state.variance[some].sum()), 1e-300)

    def _own_variance(self, rows: AuditRows, state: State, some: Codes) -> float:
        _, cluster = np.unique(self.cluster[some], return_inverse=True)
        excess = rows.weight[some] * rows.label[some] - state.expected[some]
        force, group = state.variance[some], np.zeros(len(some), np.int64)
        (effect,) = design_effect(excess, force, force, group, 1, cluster)
        return float((effect - 1) * force.sum() / max(self._squares(state, some), 1e-300))

    def _squares(self, state: State, some: Codes) -> float:
        return float((np.bincount(self.cluster[some], state.variance[some]) ** 2).sum())


@dataclass(frozen=True, eq=False)
class Judged:
    """The test of some rows.

    Args:
        rows: Indices of the rows.
        statistic: The number of events among the rows as sampled, with its distribution.
        traffic: The same trials in terms of real traffic.
        predicted: Weight of the events that the score predicts, in real traffic.
        effect: Factor by which clusters increase the variance.
    """

    rows: Codes
    statistic: Statistic
    traffic: Trials
    predicted: float
    effect: float

    @classmethod
    def of(cls, rows: AuditRows, state: State, some: Codes, clusters: Clustering | None) -> Judged:
        """Test some rows against the logits as corrected so far."""
        logit, weight, label = state.logit[some], rows.weight[some], rows.label[some]
        effect = 1.0 if clusters is None else clusters.effect(rows, state, some)
        spread = np.sqrt((effect - 1) / max(float(state.variance[some].sum()), 1e-300))
        freedom = np.inf if clusters is None else clusters.count - 1.0
        place, count, mean = _binned(logit, weight)
        trials = Trials(mean, count, np.zeros(len(count), np.int64), 1)
        statistic = Statistic(trials, np.array([weight @ label]), np.full(1, spread), freedom)
        stands_for, shift = rows.traffic[some], np.log(rows.rate[some])
        moved = np.bincount(place, stands_for * (logit + shift)) / np.bincount(place, stands_for)
        real = Trials(moved, np.bincount(place, stands_for).astype(np.float64), trials.group, 1)
        predicted = float(stands_for @ prob_of(rows.raw[some]))
        return cls(some, statistic, real, predicted, effect)

    @cached_property
    def p_value(self) -> float:
        """Probability of a number of events at least this far from expected if the corrected score is right."""
        return float(self.statistic.p_value(np.zeros(1))[0])

    @property
    def observed(self) -> float:
        """Weight of the events."""
        return float(self.statistic.observed[0])

    @cached_property
    def expected(self) -> float:
        """Weight of the events of real traffic that the corrected score expects."""
        return float(self.traffic.mean(np.zeros(1))[0])

    @property
    def count(self) -> float:
        """Weight of the rows of real traffic."""
        return float(self.traffic.count.sum())

    @cached_property
    def evidence(self) -> float:
        """Evidence for a correction of these rows, in nats."""
        trials, none = self.statistic.trials, np.zeros(1)
        excess, variance = self.statistic.observed - trials.mean(none), trials.moment(none, 2)
        return evidence(excess / self.effect, variance / self.effect)

    @property
    def offset(self) -> float:
        """The correction of the logit that makes the expected number of events equal to the observed one."""
        return float(np.clip(self.statistic.estimate[0], -_FARTHEST, _FARTHEST))

    def interval(self, threshold: float) -> tuple[float, float]:
        """Interval of observed over expected; it excludes 1 exactly if the p-value is at most the threshold."""
        lower, upper = RatioTest(self.statistic, threshold, self.traffic).interval(np.ones(1, bool))
        return float(lower[0]), float(upper[0])


def saved(rows: AuditRows, state: State, some: Codes, clusters: Clustering | None) -> float:
    """Log loss that a correction of some rows saves, summed over rows that it was not fitted to.

    Rows, or clusters of them, are divided into five folds; the rows of each fold are corrected by an offset that is
    fitted to the others.
    """
    logit, label, weight = state.logit[some], rows.label[some], rows.weight[some]
    unit = some if clusters is None else clusters.cluster[some]
    fold = (unit * 2654435761 % (1 << 32)) * FOLDS >> 32
    total = 0.0
    for k in range(FOLDS):
        inside = fold == k
        step = _shrunk_offset(logit[~inside], label[~inside], weight[~inside])
        before, after = (log_losses(logit[inside] + move, label[inside]) for move in (0.0, step))
        total += float(weight[inside] @ (before - after))
    return total


def _shrunk_offset(logit: Floats, label: Floats, weight: Floats) -> float:
    """The offset with the largest posterior density under a standard normal prior, by Newton's method."""
    offset = 0.0
    for _ in range(20):
        prob = prob_of(logit + offset)
        step = (float(weight @ (label - prob)) - offset) / (float(weight @ (prob * (1 - prob))) + 1)
        offset += float(np.clip(step, -1.0, 1.0))
        if abs(step) < 1e-6:
            break
    return offset


def _binned(logit: Floats, weight: Floats) -> tuple[Codes, Floats, Floats]:
    """Bin of each row, and weight and mean logit of the bins that have rows."""
    step = np.round(logit / _STEP).astype(np.int64)
    found, place = np.unique(step, return_inverse=True) if len(step) else (step, step)
    count = np.bincount(place, weight, len(found)).astype(np.float64)
    return place, count, np.bincount(place, weight * logit, len(found)) / np.maximum(count, 1e-300)


def log_losses(logit: Floats, label: Floats) -> Floats:
    """Log loss of each row, from logits."""
    return np.asarray(np.logaddexp(0.0, logit) - label * logit)
