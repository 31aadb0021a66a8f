"""Is a new release better on a log? Paired differences of log loss and O/E between two calibrators, from sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.curves.field_log import PairedLog, refuse_sums
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.sampling import real_traffic
from isolayer.metrics.clusters import count_of, quantile, standard_error
from isolayer.metrics.sums import logit_loss

Floats = NDArray[np.float64]

_ROUNDING = 1e-9  # least difference of log loss that counts; fits of the same rows in another order differ by less


class Difference(NamedTuple):
    """A figure of the calibrator in service and of the new one, and new minus old with its paired interval."""

    old: float
    new: float
    change: float
    lower: float
    upper: float


class Release(NamedTuple):
    """What :func:`compare_on_log` found.

    Attributes:
        rows: Weight of the rows.
        log_loss: Mean log loss; a negative change is an improvement.
        o_over_e: Observed over expected events.
        clusters: How many clusters the rows are from; None if rows count as independent.
    """

    rows: float
    log_loss: Difference
    o_over_e: Difference
    clusters: int | None

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` if the log loss of the new calibrator differs beyond chance."""
        if self.log_loss.upper < -_ROUNDING:
            return "better"
        return "worse" if self.log_loss.lower > _ROUNDING else "no clear difference"


def compare_on_log(
    old: Curves, new: Curves, histogram: Histogram | PairedLog, *, level: float = 0.95, clustered: bool = False
) -> Release:
    """Compare two calibrators on the sums of one log, which neither should have been fitted on.

    Args:
        old: The calibrator in service.
        new: The one to release.
        histogram: Sums of the log by the context columns of both; each score is represented by the mean of its bin.
            With fields, a :class:`~isolayer.curves.field_log.PairedLog`.
        level: Confidence level of the intervals.
        clustered: Whether the folds of the histogram are clusters of rows that vary together.

    >>> from isolayer.grid import Grid
    >>> log = Histogram.from_arrays([0.0] * 100, [0, 1, 1, 1] * 25)
    >>> same = compare_on_log(Curves.identity(Grid()), Curves.identity(Grid()), log)
    >>> same.verdict, same.log_loss.change, same.o_over_e.new
    ('no clear difference', 0.0, 1.5)
    """
    cells = histogram if isinstance(histogram, PairedLog) else _paired(old, new, histogram, clustered)
    if not len(cells.weight):
        raise InputError("histogram: expected at least one row, got none; check the log")
    # Every cell represents its events and its rows without one; weights are [2, cells].
    weight = np.concatenate(cells.traffic)
    label = np.repeat([1.0, 0.0], len(cells.weight))
    clusters = count_of(cells.fold) if clustered else None
    cluster, reach = np.tile(cells.fold, 2) if clustered else None, quantile(level, clusters)
    losses = [logit_loss(label, np.tile(logit, 2)) for logit in cells.logits]
    probs = [prob_of(np.tile(logit, 2)) for logit in cells.logits]
    return Release(
        float(weight.sum()),
        _difference([_mean(loss, weight) for loss in losses], weight, cluster, reach),
        _difference([_ratio(label, prob, weight) for prob in probs], weight, cluster, reach),
        clusters,
    )


def _paired(old: Curves, new: Curves, histogram: Histogram, clustered: bool) -> PairedLog:
    """The cells of a histogram by two calibrators without fields."""
    cells = real_traffic(histogram if clustered else histogram.folded())
    nothing = LabelledRows(np.empty(0), np.empty(0), {})
    logits = _calibrated(old, cells), _calibrated(new, cells)
    return PairedLog(logits, cells.weight, cells.positive, cells.negative_rate, cells.fold, nothing)


def _calibrated(curves: Curves, cells: Histogram) -> Floats:
    refuse_sums(curves, "compare", "give PairedLog.from_table(old, new, table), or run `isolayer compare --log`")
    keys = dict(zip(cells.contexts, cells.keys, strict=True))
    context = {name: keys[name][cells.group] for name in curves.contexts}
    return curves.evaluate(curves.rows_of(context or None, len(cells.group)), np.divide(cells.logit, cells.weight))


def _mean(values: Floats, weight: Floats) -> tuple[float, Floats]:
    """A mean, and the influence of each row on it."""
    mean = float(values @ weight / weight.sum())
    return mean, (values - mean) / weight.sum()


def _ratio(label: Floats, prob: Floats, weight: Floats) -> tuple[float, Floats]:
    """Observed over expected, and the influence of each row on it."""
    expected = float(prob @ weight)
    ratio = float(label @ weight) / expected
    return ratio, (label - ratio * prob) / expected


def _difference(
    parts: list[tuple[float, Floats]], weight: Floats, cluster: NDArray[np.int8] | None, reach: float
) -> Difference:
    (old, before), (new, after) = parts
    half = reach * standard_error(after - before, weight, cluster)
    return Difference(old, new, new - old, new - old - half, new - old + half)
