"""Uses of rows that were not fitted: to choose how much of the terms to keep, and for the last curve over their sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.field_data import Data, losses
from isolayer.fitting.hierarchy import fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.sampling import sampled_as_one
from isolayer.fitting.terms import LAST_GRID, Terms

Floats = NDArray[np.float64]

_FOLDS = 5
LEAST_LEFT = 0.2  # lower bound of one minus the leverage of a row
_SAME = 1e-3  # a last curve this close to the identity is left out


def guard(data: Data, outline: Terms, fit: Callable[[Data], Terms]) -> float:
    """How much of the terms to keep: the share with the least loss on rows that were not fitted.

    Args:
        data: The rows.
        outline: The fields and the range of the terms.
        fit: Fits terms to some of the rows.
    """
    fold = np.random.default_rng(0).permutation(len(data)) % _FOLDS
    step = np.zeros(len(data))
    for held in range(_FOLDS):
        asked = data.only(fold == held)
        totals = fit(data.only(fold != held)).totals_of_levels(asked.levels, len(asked))
        step[fold == held] = outline.correct(asked.base, totals) - asked.base
    logit, shares = data.base + data.shift, np.linspace(0, 1, 21)
    before = losses(data.rows, logit)
    bounds = [_bound(losses(data.rows, logit + share * step) - before) for share in shares]
    return float(shares[int(np.argmin(bounds))])


def left_out(data: Data, terms: Terms, rate: Floats | float) -> Histogram:
    """Rows by approximate leave-one-out corrected logits: one Newton step back (Rad and Maleki 2020)."""
    totals = terms.totals_of_levels(data.levels, len(data), variance="posterior")
    logit = terms.correct(data.base, totals)
    leverage = terms.share * terms.deviation(data.base, np.zeros(len(data)), totals) ** 2
    residual, information = data.rows._replace(weight=np.ones(len(data))).residual(logit + data.shift)
    logit = logit - residual * leverage / np.maximum(1 - information * leverage, LEAST_LEFT)
    return Histogram.from_arrays(logit, data.rows.label, None, data.rows.weight, negative_rate=rate, grid=LAST_GRID)


def last_curve(rows: Histogram) -> Floats | None:
    """The overall curve over corrected logits of rows that were not fitted; None if it would change nothing."""
    histogram, shift = sampled_as_one(rows)
    values = fit_levels(histogram).table.values[0] + shift
    used = _used(rows)
    return values if np.abs(values - LAST_GRID.knots[1:])[used].max(initial=0) > _SAME else None


def _used(rows: Histogram) -> NDArray[np.bool_]:
    """Knots near which there are rows."""
    mean = rows.logit / rows.weight
    knots, step = LAST_GRID.knots[1:], LAST_GRID.step
    return np.asarray((knots > mean.min() - step) & (knots < mean.max() + step))


def _bound(change: Floats) -> float:
    """Upper bound of a summed change of loss: one standard error above it."""
    return float(change.sum() + np.sqrt(np.sum((change - change.mean()) ** 2)))
