"""Does a calibrator hold on a new log? From the sums of the log to a verdict with intervals; nothing is refitted.

The tests are about all rows together, the groups of each depth of the hierarchy, and each context. Each is tested for
the number of events (observed over expected) and for the shape of the curve (its slope). Tail probabilities are in
:mod:`isolayer.metrics.tails`, the calibrator's own uncertainty in :mod:`isolayer.monitor.uncertainty`, clusters in
:mod:`isolayer.metrics.clusters`, decisions in :mod:`isolayer.metrics.families`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.curves.field_log import FieldLog, refuse_sums
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.sampling import real_traffic
from isolayer.metrics import families, log_loss
from isolayer.metrics.clusters import count_of
from isolayer.metrics.tails import RatioTest
from isolayer.monitor.groups import Grouping, LogRows, context_columns, curve_of, errors_by_depth, groupings_of
from isolayer.monitor.judging import judge
from isolayer.monitor.term_errors import term_errors, with_terms
from isolayer.monitor.uncertainty import Errors

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Check:
    """What :func:`check` found: one entry for all rows, then one per group of each depth, the contexts last.

    Contexts that were not in the fit are new: they have entries of their own, are not tested, and are not part of any
    other entry.

    Args:
        depth: How many context columns the entry is about; 0 for all rows.
        context: The context columns, None beyond the depth of the entry.
        weight: Weight of the rows.
        ratio: Observed over expected; above 1 the calibrator predicts too little.
        p_value: Probability of a ratio this far from 1 if the calibrator is right, taking its uncertainty into account,
            adjusted for all tests of the verdict: it is significant if at most ``level``. NaN for new contexts.
        slope: Slope of the labels' logit over the calibrated one; below 1 predictions are too extreme. NaN if untested.
        slope_p_value: The same for the distance of the slope from 1.
        new: Whether the context was not in the fit.
        level: How often a calibrator that holds may be called drifted.
        tolerance: Relative error that is too small to matter.
        log_loss: Of all rows, before and after calibration.
        clusters: How many clusters the rows are from; None if rows count as independent.
    """

    depth: Codes
    context: dict[str, NDArray[Any]]
    weight: Floats
    ratio: Floats
    p_value: Floats
    slope: Floats
    slope_p_value: Floats
    new: NDArray[np.bool_]
    level: float
    tolerance: float
    log_loss: tuple[float, float]
    clusters: int | None
    tests: tuple[RatioTest, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing drifted, and at least one context was in the fit.

        >>> from isolayer.grid import Grid
        >>> log = Histogram.from_arrays([0.0] * 1000, [0, 1] * 500)
        >>> check(Curves.identity(Grid()), log).holds
        True
        """
        return not bool(self.drifted.any()) and not bool(self.new[1:].all() if len(self.new) > 1 else False)

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Whether the number of events of each entry is off significantly, and by more than the tolerance."""
        return self._beyond(self.p_value, self.ratio)

    @cached_property
    def bent(self) -> NDArray[np.bool_]:
        """Whether the slope of each entry is off significantly, and by more than the tolerance."""
        return self._beyond(self.slope_p_value, self.slope)

    @property
    def drifted(self) -> NDArray[np.bool_]:
        """Whether an entry drifted, in events or in slope."""
        return self.moved | self.bent

    @cached_property
    def status(self) -> NDArray[Any]:
        """One word per entry: ``holds``; ``level`` or ``slope`` for what drifted; or ``new``."""
        return np.where(self.new, "new", np.where(self.moved, "level", np.where(self.bent, "slope", "holds")))

    @cached_property
    def lower(self) -> Floats:
        """Lower ends of the intervals of the ratio, which exclude 1 exactly where the ratio is significant."""
        return self.interval(np.arange(len(self.ratio)))[0]

    @cached_property
    def upper(self) -> Floats:
        """Upper ends of the intervals of the ratio."""
        return self.interval(np.arange(len(self.ratio)))[1]

    def interval(self, entries: Codes) -> tuple[Floats, Floats]:
        """Intervals of the ratio of some entries, at the level that their test was decided at."""
        ends = np.full((2, len(self.ratio)), np.nan)
        start, wanted = 0, np.zeros(len(self.ratio), bool)
        wanted[entries] = True
        for test in self.tests:
            part = slice(start, start + test.statistic.trials.groups)
            chosen = wanted[part]
            if chosen.any():
                ends[:, part][:, chosen] = test.interval(chosen)
            start = part.stop
        return ends[0][entries], ends[1][entries]

    def _beyond(self, p_value: Floats, value: Floats) -> NDArray[np.bool_]:
        significant = np.where(np.isnan(p_value), 1.0, p_value) <= self.level
        return np.asarray(significant & (np.abs(np.where(np.isnan(value), 1.0, value) - 1) > self.tolerance))


def check(
    curves: Curves,
    histogram: Histogram | FieldLog,
    *,
    level: float = 0.05,
    tolerance: float = 0.05,
    clustered: bool = False,
) -> Check:
    """Test whether a calibrator still holds, given the sums of a new log.

    A group of rows has drifted when its observed over expected, or the slope of its labels over its predictions, is
    further from 1 than ``tolerance`` and than chance allows. Chance includes the sampling of the labels, computed
    exactly for few events, and the calibrator's own uncertainty. P-values are adjusted for the number of tests.

    Args:
        curves: The calibrator in service.
        histogram: Sums of the new log on the grid of the curves, with their context columns; of curves with fields, a
            :class:`~isolayer.curves.field_log.FieldLog`, which has both sums and fields.
        level: How often a calibrator that holds may be called drifted.
        tolerance: Relative error that is too small to matter.
        clustered: Whether the folds of the histogram are clusters of rows, such as days or groups of users, whose
            labels vary together; otherwise rows count as independent.

    >>> from isolayer.grid import Grid
    >>> log = Histogram.from_arrays([0.0] * 1000, [0, 1, 1, 1] * 250)
    >>> result = check(Curves.identity(Grid()), log)
    >>> result.ratio.tolist(), result.drifted.tolist()
    ([1.5], [True])
    """
    log = _read(curves, histogram, clustered)
    groupings, shares = groupings_of(curves, log.rows), families.shares(len(curves.contexts) + 1)
    columns = list[dict[str, Any]]()
    tests = list[RatioTest]()
    for depth, (grouping, (error, variance)) in enumerate(zip(groupings, log.errors(curves, groupings), strict=True)):
        found, test = judge(
            (log.rows, log.fine), grouping, error, variance, level, (shares[0][depth], shares[1][depth])
        )
        columns.append({**found, "depth": np.full(grouping.groups, depth)})
        tests.append(test)
    merged = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    return Check(
        context=context_columns(curves, log.rows, groupings),
        level=level,
        tolerance=tolerance,
        log_loss=log_losses(curves, histogram),
        clusters=None if log.fine is None else count_of(log.fine.cluster),
        tests=tuple(tests),
        **merged,
    )


class _Log(NamedTuple):
    """A log as it is tested.

    Args:
        rows: Its cells, at their calibrated logits.
        fine: The same by cluster, if rows are clustered.
        base: Its cells by raw score.
        fields: Its rows with their fields, if there are any.
    """

    rows: LogRows
    fine: LogRows | None
    base: LogRows
    fields: LabelledRows | None = None

    def errors(self, curves: Curves, groupings: list[Grouping]) -> list[tuple[Errors, Floats]]:
        """Errors of the calibrator for the groups of each depth, and the variance of their expected events."""
        found = errors_by_depth(curves, self.base, groupings)
        if curves.terms is None or self.fields is None:
            return found
        added = term_errors(curves, curves.terms, self.fields, groupings)
        return [with_terms(*pair, more) for pair, more in zip(found, added, strict=True)]


def _read(curves: Curves, log: Histogram | FieldLog, clustered: bool) -> _Log:
    fielded = isinstance(log, FieldLog)
    raw, cells = (log.raw, log.corrected) if isinstance(log, FieldLog) else (log, log)
    if not fielded:
        refuse_sums(curves, "check", "give FieldLog.from_table(curves, table), or run `isolayer check` on the log")
    _refuse_others(curves, raw)
    base = LogRows.of(curves, raw.folded())
    rows = LogRows.of(curves, cells.folded(), calibrated=True) if fielded else base
    fine = LogRows.of(curves, cells, calibrated=fielded) if clustered else None
    return _Log(rows, fine, base, log.rows if isinstance(log, FieldLog) else None)


def log_losses(curves: Curves, histogram: Histogram | FieldLog) -> tuple[float, float]:
    """Log loss of the rows of a log, before and after calibration.

    >>> from isolayer.grid import Grid
    >>> [round(loss, 3) for loss in log_losses(Curves.identity(Grid()), Histogram.from_arrays([0.0], [1]))]
    [0.693, 0.693]
    """
    raw = real_traffic((histogram.raw if isinstance(histogram, FieldLog) else histogram).folded())
    before = np.divide(raw.logit, raw.weight)
    if isinstance(histogram, FieldLog):
        cells = real_traffic(histogram.corrected.folded())
        return _loss(raw, before), _loss(cells, np.divide(cells.logit, cells.weight))
    return _loss(raw, before), _loss(raw, curves.evaluate(curve_of(curves, raw), before))


def _loss(cells: Histogram, logit: Floats) -> float:
    return log_loss(np.divide(cells.positive, cells.weight), prob_of(logit), cells.weight)


def _refuse_others(curves: Curves, histogram: Histogram) -> None:
    if (curves.contexts, curves.grid) != (histogram.contexts, histogram.grid):
        raise InputError(
            f"histogram: expected contexts {curves.contexts} on {curves.grid}, got {histogram.contexts} on "
            f"{histogram.grid}; make it with the settings of the curves"
        )
    if histogram.rows == 0:
        raise InputError("histogram: expected at least one row, got none; check the log")
