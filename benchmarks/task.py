"""The synthetic calibration task: many segments, each with its own strictly increasing distortion of the true logit.

Only the data and the two figures read from it belong here; methods are in their own files. The spread of shifts,
slopes and wiggles is set so that known methods land where they are known to: with a million rows and a thousand
segments the raw score is about 800e-4 above the oracle, one isotonic curve for all 70e-4, Platt per segment 18e-4,
isotonic per segment (200 rows or more, both classes; else global) 90e-4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

LARGE = 1_500  # held-out rows from which a segment counts in `segment_error`: below, its observed rate is all noise
CLIP = 1e-6  # how near 0 and 1 a probability may come in `log_loss`: isotonic regression predicts both


def task(rows: int, segments: int, seed: int, part: int = 0) -> dict[str, NDArray[np.generic]]:
    r"""Scored rows of a task; the same seed gives the same segments, another part gives other rows of them.

    With true logit :math:`z = \mu + t`, the score is
    :math:`\mu + a_s + b_s (t + c_s \sin(1.5\,t + \phi_s) / 1.5)`, which increases strictly because :math:`c_s < 1`.

    Args:
        rows: How many rows.
        segments: How many segments; sizes fall as rank to the power 1.1.
        seed: Picks the segments' distortions.
        part: Picks the rows: 0 to fit, 1 held out, and so on.

    Returns:
        Columns ``score_logit``, ``segment``, ``label`` and ``true_prob``, each of length ``rows``.

    >>> columns = task(rows=1000, segments=10, seed=0)
    >>> sorted(columns), columns["score_logit"].shape
    (['label', 'score_logit', 'segment', 'true_prob'], (1000,))
    """
    rng = np.random.default_rng([seed, 0])
    shift = 1.25 + 0.5 * rng.standard_normal(segments)
    slope = 1.2 * np.exp(0.25 * rng.standard_normal(segments))
    wiggle = rng.uniform(0, 0.85, segments)
    phase = rng.uniform(0, 2 * np.pi, segments)
    share = np.arange(1, segments + 1) ** -1.1

    rng = np.random.default_rng([seed, 1 + part])
    segment = rng.choice(segments, size=rows, p=share / share.sum())
    middle, t = -4.15, 1.7 * rng.standard_normal(rows)
    true_prob = 1 / (1 + np.exp(-(middle + t)))
    bent = t + wiggle[segment] * np.sin(1.5 * t + phase[segment]) / 1.5
    return {
        "score_logit": middle + shift[segment] + slope[segment] * bent,
        "segment": segment,
        "label": (rng.random(rows) < true_prob).astype(np.int64),
        "true_prob": true_prob,
    }


def log_loss(label: NDArray[np.generic], prob: Column) -> float:
    """Mean log loss, probabilities clipped to ``[CLIP, 1 - CLIP]``.

    >>> round(log_loss(np.array([0, 1]), np.array([0.5, 0.5])), 4)
    0.6931
    """
    prob = np.clip(prob, CLIP, 1 - CLIP)
    return float(-np.mean(np.where(label == 1, np.log(prob), np.log1p(-prob))))


def above_oracle(prob: Column, columns: dict[str, NDArray[np.generic]]) -> float:
    """Log loss of ``prob`` minus that of the true probability, on the same labels."""
    return log_loss(columns["label"], prob) - log_loss(columns["label"], np.asarray(columns["true_prob"], float))


def segment_error(prob: Column, columns: dict[str, NDArray[np.generic]], *, large: int = LARGE) -> float:
    """Mean of abs(observed / expected - 1) over the segments with at least ``large`` rows."""
    segment = np.asarray(columns["segment"], np.int64)
    observed = np.bincount(segment, np.asarray(columns["label"], float))
    expected = np.bincount(segment, prob)
    kept = np.bincount(segment) >= large
    return float(np.mean(np.abs(observed[kept] / expected[kept] - 1)))
