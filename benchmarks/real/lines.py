r"""Lines on the logit scale: Platt scaling, and hierarchical Platt scaling with a line for every segment.

With :math:`z` the standardised score, the calibrated logit of segment s is :math:`a + \alpha_s + (b + \beta_s) z` under
the penalty :math:`(\lambda_a \alpha_s^2 + \lambda_b \beta_s^2) / 2`. Newton steps are exact: segments touch only the
global line, so the Hessian is an arrow, solved by its Schur complement.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.tasks import Rows

Column = NDArray[np.float64]
Codes = NDArray[np.int64]
RIDGES = (1.0, 5.0, 25.0, 125.0, 1e3, 1e5)
FOLDS = 4
_NO_SEGMENTS = (1e12, 1e12)  # ridges that leave only the global line
_GLOBAL_RIDGE = 1e-4


@dataclass(frozen=True)
class Lines:
    """Global line ``[2]`` (offset, slope) and each segment's deviation from it, ``[segments, 2]``."""

    line: Column
    own: Column

    def logit(self, z: Column, segment: Codes) -> Column:
        """Calibrated logits; a segment beyond the table has the global line."""
        known = segment < len(self.own)
        own = np.where(known[:, None], self.own[np.where(known, segment, 0)], 0.0)
        return np.asarray(self.line[0] + own[:, 0] + (self.line[1] + own[:, 1]) * z)


def platt(fit: Rows, test: Rows) -> Column:
    """Platt scaling of all rows together, with Platt's smoothed labels."""
    shift, scale = _spread(fit.score)
    lines = fit_lines((fit.score - shift) / scale, smoothed(fit.label), np.zeros(len(fit), np.int64), _NO_SEGMENTS)
    return prob_of(lines.logit((test.score - shift) / scale, np.zeros(len(test), np.int64)))


def hierarchical_platt(fit: Rows, test: Rows) -> Column:
    """A line for every segment, drawn to the global line by two ridges that cross-validation chooses in turn, twice."""
    shift, scale = _spread(fit.score)
    z, label = (fit.score - shift) / scale, fit.label.astype(float)
    fold = np.random.default_rng(0).permutation(len(fit)) % FOLDS

    @cache
    def held_out(level: float, slope: float) -> float:
        return sum(_held_out(z, label, fit.segment, fold == one, (level, slope)) for one in range(FOLDS))

    level, slope = RIDGES[2], RIDGES[3]
    for _ in range(2):
        level = min(RIDGES, key=lambda ridge: held_out(ridge, slope))
        slope = min(RIDGES, key=lambda ridge: held_out(level, ridge))
    lines = fit_lines(z, label, fit.segment, (level, slope))
    return prob_of(lines.logit((test.score - shift) / scale, test.segment))


def _held_out(z: Column, label: Column, segment: Codes, held: NDArray[np.bool_], ridges: tuple[float, float]) -> float:
    lines = fit_lines(z[~held], label[~held], segment[~held], ridges, tolerance=1e-3)
    logit = lines.logit(z[held], segment[held])
    return float((np.logaddexp(0, logit) - label[held] * logit).sum())


def smoothed(label: NDArray[np.int64]) -> Column:
    """Platt's targets: (positives + 1) / (positives + 2) and 1 / (negatives + 2)."""
    positive = label.sum()
    return np.where(label == 1, (positive + 1) / (positive + 2), 1 / (len(label) - positive + 2))


def prob_of(logit: Column) -> Column:
    """The logistic function."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -700, 700))))


def fit_lines(
    z: Column,
    label: Column,
    segment: Codes,
    ridges: tuple[float, float],
    *,
    tolerance: float = 1e-7,
) -> Lines:
    """Minimise the penalised log loss by Newton steps, halved while the loss rises."""
    segments = int(segment.max()) + 1
    ridge = np.array(ridges)
    state = Lines(np.zeros(2), np.zeros((segments, 2)))
    lowest = _loss(state, z, label, segment, ridge)
    for _ in range(50):
        step = _step(state, z, label, segment, ridge)
        size = 1.0
        while True:
            new = Lines(state.line + size * step.line, state.own + size * step.own)
            loss = _loss(new, z, label, segment, ridge)
            if loss <= lowest + 1e-9 or size < 1e-6:
                break
            size /= 2
        state, lowest = new, loss
        if max(np.abs(step.line).max(), np.abs(step.own).max()) * size < tolerance:
            break
    return state


def _loss(lines: Lines, z: Column, label: Column, segment: Codes, ridge: Column) -> float:
    logit = lines.logit(z, segment)
    fit = (np.logaddexp(0, logit) - label * logit).sum()
    return float(fit + (ridge * lines.own**2).sum() / 2 + _GLOBAL_RIDGE * (lines.line**2).sum() / 2)


def _step(lines: Lines, z: Column, label: Column, segment: Codes, ridge: Column) -> Lines:
    prob = prob_of(lines.logit(z, segment))
    slack, curve = label - prob, prob * (1 - prob)
    count = len(lines.own)
    g = np.stack([np.bincount(segment, slack * z**k, count) for k in range(2)], axis=1)  # [segments, 2]
    s0, s1, s2 = (np.bincount(segment, curve * z**k, count) for k in range(3))
    b = np.stack([s0, s1, s1, s2], axis=1).reshape(-1, 2, 2)  # [segments, 2, 2]
    inverse = np.linalg.inv(b + np.diag(ridge))
    own = g - ridge * lines.own
    through = b @ inverse  # symmetric blocks: B D^-1
    head = (b - through @ b).sum(0) + _GLOBAL_RIDGE * np.eye(2)
    line = np.linalg.solve(head, (g - (through @ own[..., None])[..., 0]).sum(0) - _GLOBAL_RIDGE * lines.line)
    return Lines(line, (inverse @ (own - b @ line)[..., None])[..., 0])


def _spread(score: Column) -> tuple[float, float]:
    return float(score.mean()), float(max(score.std(), 1e-12))
