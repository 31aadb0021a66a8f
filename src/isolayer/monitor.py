"""Does yesterday's calibrator hold on today's log? Sums in, a verdict with intervals out; nothing is refitted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.metrics import SegmentSums, log_loss, ratio_table

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """What `check` found, one entry a context, the first being all rows together.

    Args:
        context: The context columns, None in the first entry.
        weight: Weight of the rows.
        ratio: Observed over expected; above 1 the calibrator predicts too little.
        lower: Lower end of its interval.
        upper: Upper end.
        p_value: Chance of a ratio this far from 1 were the calibrator still right, its own uncertainty counted.
        drifted: Whether the context drifted: significant among all contexts together, and beyond the tolerance.
        log_loss: Of all rows, before and after calibration.
    """

    context: dict[str, NDArray[Any]]
    weight: Floats
    ratio: Floats
    lower: Floats
    upper: Floats
    p_value: Floats
    drifted: NDArray[np.bool_]
    log_loss: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Whether no context drifted.

        >>> from isolayer.grid import Grid
        >>> log = Histogram.from_arrays([0.0] * 1000, [0, 1] * 500)
        >>> check(Curves.identity(Grid()), log).holds
        True
        """
        return not bool(self.drifted.any())


def check(curves: Curves, histogram: Histogram, *, level: float = 0.05, tolerance: float = 0.05) -> Check:
    """Hold a calibrator against the sums of a new log.

    A context has drifted when its observed over expected is further from 1 than ``tolerance`` and than chance allows:
    the p-value, which counts the sampling of labels and the calibrator's own uncertainty, times the number of contexts
    is below ``level``.

    Args:
        curves: The calibrator in service.
        histogram: Sums of the new log on the grid of the curves, with their context columns.
        level: How often a calibrator that still holds may be called drifted.
        tolerance: Relative error that is of no consequence.

    >>> from isolayer.grid import Grid
    >>> log = Histogram.from_arrays([0.0] * 1000, [0, 1, 1, 1] * 250)
    >>> result = check(Curves.identity(Grid()), log)
    >>> result.ratio.tolist(), result.drifted.tolist()
    ([1.5], [True])
    """
    if (curves.contexts, curves.grid) != (histogram.contexts, histogram.grid):
        raise InputError(
            f"histogram: expected contexts {curves.contexts} on {curves.grid}, got {histogram.contexts} on "
            f"{histogram.grid}; make it with the settings of the curves"
        )
    if histogram.rows == 0:
        raise InputError("histogram: expected at least one row, got none; check the log")
    cells = histogram.folded()
    prob, logit, deviation = _calibrated(curves, cells)
    segments = (
        [np.zeros(len(cells.group), np.int64), cells.group]
        if curves.contexts
        else [np.zeros(len(cells.group), np.int64)]
    )
    tables = [ratio_table(_sums(prob, cells, segment), level=1 - level) for segment in segments]
    ratio, weight = (np.concatenate([getattr(table, name) for table in tables]) for name in ("ratio", "weight"))
    tests = np.concatenate([_p_values(prob, deviation, cells, segment) for segment in segments])
    drifted = (tests * len(tests) < level) & (np.abs(ratio - 1) > tolerance)
    context = {
        name: np.array([None, *key.tolist()], dtype=object)
        for name, key in zip(curves.contexts, cells.keys, strict=True)
    }
    label = np.divide(cells.positive, cells.weight)
    before, after = (log_loss(label, p, cells.weight) for p in (prob_of(logit), prob))
    lower, upper = (np.concatenate([getattr(table, name) for table in tables]) for name in ("lower", "upper"))
    return Check(context, weight, ratio, lower, upper, tests, drifted, (before, after))


def _calibrated(curves: Curves, cells: Histogram) -> tuple[Floats, Floats, Floats]:
    """Calibrated probability, raw logit and the deviation of the calibrated logit, of each cell."""
    context = {name: key[cells.group] for name, key in zip(cells.contexts, cells.keys, strict=True)}
    logit = np.divide(cells.logit, cells.weight)
    row = curves.rows_of(context or None, len(logit))
    return prob_of(curves.evaluate(row, logit)), logit, curves.deviation(row, logit)


def _sums(prob: Floats, cells: Histogram, segment: NDArray[np.int64]) -> SegmentSums:
    return SegmentSums.from_rows(np.divide(cells.positive, cells.weight), prob, segment, cells.weight)


def _p_values(prob: Floats, deviation: Floats, cells: Histogram, segment: NDArray[np.int64]) -> Floats:
    """Two-sided p-value of each segment's excess of events, errors of a curve taken as one."""
    information = prob * (1 - prob)
    excess = np.bincount(segment, cells.positive - cells.weight * prob)
    sampling = np.bincount(segment, cells.weight_squared * information)
    fitted = np.bincount(segment, cells.weight * information * deviation) ** 2
    z = np.abs(excess) / np.sqrt(np.maximum(sampling + fitted, 1e-300))
    return np.array([math.erfc(value / math.sqrt(2)) for value in z.tolist()])
