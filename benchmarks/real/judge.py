"""The five metrics of a method on a task's test rows, on all of them and on resampled clusters.

Every method of a task is judged on the same resamples, so that differences between methods are paired.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.tasks import Rows

METRICS = ("log_loss", "ne", "brier", "ece", "oe")
RESAMPLES = 200
BINS = 15
LEAST_EVENTS = 20  # events, and non-events, of a segment in the test rows whose O/E counts
EDGE = 1e-9
Column = NDArray[np.float64]


class Judge:
    """Metrics of probabilities on given rows.

    Args:
        rows: The test rows.
        resamples: How many times clusters (users, days, rows) are drawn again; 0 for the rows themselves only.

    ``log_loss``, ``ne`` (log loss over the entropy of the mean rate), ``brier``, ``ece`` (15 bins of equal mass, equal
    probabilities together) and ``oe`` (mean of ``abs(observed / expected - 1)`` over segments with 20 events and 20
    non-events or more; over all rows together where no segment has as many).
    """

    def __init__(self, rows: Rows, resamples: int = RESAMPLES) -> None:
        self.label = rows.label.astype(np.float32)
        counts = np.random.default_rng(0).poisson(1.0, (resamples, rows.cluster.max() + 1)).astype(np.float32)
        self.weight = np.concatenate([np.ones((1, len(rows)), np.float32), counts[:, rows.cluster]])  # [draws, rows]
        self.total = self.weight.sum(1)
        self.rate = (self.weight @ self.label) / self.total
        self.segment = _large(rows)
        self.observed = self._by(self.segment, self.label)

    def __call__(self, prob: Column) -> dict[str, list[float]]:
        """Each metric on all rows, then on every resample."""
        kept = prob.clip(EDGE, 1 - EDGE)
        loss = np.where(self.label == 1, -np.log(kept), -np.log1p(-kept)).astype(np.float32)
        log_loss = (self.weight @ loss) / self.total
        rate = self.rate.clip(EDGE, 1 - EDGE)
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        expected = self._by(self.segment, prob.astype(np.float32))
        ratio = np.abs(self.observed / np.maximum(expected, EDGE) - 1)
        gap = self._by(_equal_mass(prob), (self.label - prob).astype(np.float32))
        found = {
            "log_loss": log_loss,
            "ne": log_loss / entropy,
            "brier": (self.weight @ (self.label - prob).astype(np.float32) ** 2) / self.total,
            "ece": np.abs(gap).sum(1) / self.total,
            "oe": ratio.mean(1),
        }
        return {name: found[name].astype(float).tolist() for name in METRICS}

    def _by(self, group: NDArray[np.int64], column: NDArray[np.float32]) -> NDArray[np.float32]:
        # weighted sums of a column by group, [draws, groups]; rows of group -1 are left out
        order = np.argsort(group, kind="stable")
        order = order[np.searchsorted(group[order], 0) :]
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        return np.add.reduceat(self.weight[:, order] * column[order], starts, axis=1)


def _large(rows: Rows) -> NDArray[np.int64]:
    # the segments whose O/E counts, renumbered; -1 for the others
    events = np.bincount(rows.segment, rows.label)
    others = np.bincount(rows.segment, 1 - rows.label)
    kept = np.minimum(events, others) >= LEAST_EVENTS
    return np.where(kept, np.cumsum(kept) - 1, -1)[rows.segment] if kept.any() else np.zeros(len(rows), np.int64)


def _equal_mass(prob: Column) -> NDArray[np.int64]:
    edges = np.unique(np.quantile(prob, np.arange(1, BINS) / BINS, method="higher"))
    return np.unique(np.searchsorted(edges, prob, side="left"), return_inverse=True)[1]
