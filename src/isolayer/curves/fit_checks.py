"""Checks of fitted rows: scores that look like probabilities, a wrong grid, and a fit worse than a constant."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.summary import falling
from isolayer.errors import InputError
from isolayer.fitting.binned_rows import ranges
from isolayer.fitting.categories import Codes
from isolayer.fitting.evidence import evidence
from isolayer.fitting.histogram import Histogram, bins
from isolayer.fitting.negative_rates import distinct_rates

Floats = NDArray[np.float64]

_ROWS = 100  # fewer rows may be in [0, 1] by chance
_CELLS = 1 << 19  # most cells of a fit that are checked
_BEYOND = 0.5  # larger shares of rows beyond the grid are an error
_WORSE = (20.0, 0.02)  # an error if log loss exceeds that of a constant by more: in total, and relative to it


_REVERSED = 1e-3  # how often an uninformative score may be called reversed
_FLAT = 0.05  # a curve that rises by fewer logits is uninformative


class ScoresLookReversed(UserWarning):
    """The label becomes rarer as the score rises, so that a monotone curve is constant."""


class ScoresLookLikeProbs(UserWarning):
    """Scores that should be logits are all in [0, 1]."""


def warn_of_probs(histogram: Histogram, *, stacklevel: int = 2) -> None:
    """Warn when scores that should be logits are all in [0, 1].

    >>> warn_of_probs(Histogram.from_arrays([-1.0, 0.5], [0, 1]))
    """
    if histogram.rows < _ROWS or histogram.logit.min() < 0:
        return
    mean = histogram.logit / histogram.weight
    if mean.max() <= 1 and mean.max() - mean.min() > histogram.grid.step:
        warnings.warn(
            f'scores: expected logits under scale="logit", got numbers from {mean.min():.3g} to {mean.max():.3g}; '
            'if they are probabilities, use scale="prob"',
            ScoresLookLikeProbs,
            stacklevel=stacklevel + 1,
        )


def warn_of_reversal(curves: Curves, *, stacklevel: int = 2) -> None:
    """Warn when the label becomes rarer as the score rises, so clearly that the curve of all rows is constant.

    >>> warn_of_reversal(Curves.from_histogram(Histogram.from_arrays([-1.0, 0.5], [0, 1])))
    """
    fall = falling(curves, level=_REVERSED)
    if fall is not None and curves.monotone and np.ptp(curves.values[0][curves.knot_weight[0] > 0]) < _FLAT:
        warnings.warn(
            f"scores: expected the label to become more frequent as the score rises, got the opposite, so all rows get "
            f"about the same probability; check the sign of the score and which label is the positive one. {fall}",
            ScoresLookReversed,
            stacklevel=stacklevel + 1,
        )


def refuse_worse_than_constant(curves: Curves, histogram: Histogram) -> None:
    """Raise when curves predict their own rows clearly worse than one probability for all would.

    If there is nothing to learn, shrinkage makes a fit slightly worse than a constant; that is not an error.

    >>> day = Histogram.from_arrays([-1.0, 0.0, 1.0], [0, 0, 1])
    >>> refuse_worse_than_constant(Curves.from_histogram(day), day)
    """
    whole = histogram.folded()
    part, chosen = _some_contexts(whole)
    sums, rows = evidence(part), _rows_of(curves, whole, chosen)
    logit = curves.evaluate(rows.take(sums.group), sums.logit / sums.weight)
    ours = _log_loss(logit - np.log(sums.negative_rate), sums.weight, sums.positive)
    constant = _loss_of_constant(sums)
    if ours - constant > max(_WORSE[0], _WORSE[1] * constant):
        total = sums.weight.sum()
        counted = part.source.get("weight_kind", "frequency") == "frequency" and not np.array_equal(
            part.weight, part.count
        )
        counts = ', and that weights are counts of rows, or use weight_kind="importance"' if counted else ""
        raise InputError(
            f"fit: expected curves that predict their own rows better than a constant, got a log loss of "
            f"{ours / total:.3g} against {constant / total:.3g}; check that labels belong to these scores{counts}"
        )


def _rows_of(curves: Curves, histogram: Histogram, chosen: Codes) -> Codes:
    """Row of the curve of each of some contexts; curves that were fitted to this histogram have its order."""
    if curves.contexts == histogram.contexts and all(map(np.array_equal, curves.keys[-1], histogram.keys)):
        return np.asarray(curves.starts[-2] + chosen)
    context = {name: key[chosen] for name, key in zip(histogram.contexts, histogram.keys, strict=True)}
    return curves.rows_of(context or None, len(chosen))


def _some_contexts(histogram: Histogram) -> tuple[Histogram, Codes]:
    """All contexts, or as many as are needed to have enough cells for the check, and which they are."""
    every = len(histogram.group) // _CELLS + 1
    if every == 1:
        return histogram, np.arange(histogram.groups)
    starts = np.searchsorted(histogram.group, np.arange(histogram.groups + 1))
    chosen = np.arange(0, histogram.groups, every)
    chosen = chosen[starts[chosen + 1] > starts[chosen]]
    size = starts[chosen + 1] - starts[chosen]
    part = histogram.only_cells(ranges(starts[chosen], size))
    keys = tuple(key[chosen] for key in histogram.keys)
    return replace(part, keys=keys, group=np.repeat(np.arange(len(chosen)), size)), chosen


def refuse_beyond_grid(histogram: Histogram) -> None:
    """Raise when most scores lie beyond the grid: only their mean is known, so no curve can be fitted.

    >>> refuse_beyond_grid(Histogram.from_arrays([-1.0, 0.5], [0, 1]))
    """
    grid = histogram.grid
    beyond = (histogram.bin == 0) | (histogram.bin == bins(grid) - 1)
    share = histogram.weight[beyond].sum() / histogram.weight.sum()
    if share > _BEYOND:
        middle = histogram.logit[beyond].sum() / histogram.weight[beyond].sum()
        raise InputError(
            f"scores: expected most of them on the grid from {grid.lower:g} to {grid.upper:g}, got {share:.0%} beyond "
            f'it, around {middle:.3g}; use grid="auto", which follows the scores'
        )


def _loss_of_constant(sums: Histogram) -> float:
    """Log loss of the best constant probability, for rows with any rates of sampling, by Newton's method."""
    rates = distinct_rates(sums.negative_rate)[0]
    place = np.searchsorted(rates, sums.negative_rate)
    sizes = (np.bincount(place, column).astype(np.float64) for column in (sums.weight, sums.positive))
    weight, positive = sizes
    logit = -np.log(rates)
    for _ in range(100):
        prob = 1 / (1 + np.exp(-np.clip(logit, -700, 700)))
        move = float((positive - weight * prob).sum() / (weight * prob * (1 - prob)).sum())
        logit += min(max(move, -1.5), 1.5)
        if abs(move) < 1e-9:
            break
    return _log_loss(logit, weight, positive)


def _log_loss(logit: Floats, weight: Floats, positive: Floats) -> float:
    return float((weight * np.logaddexp(0, logit) - positive * logit).sum())
