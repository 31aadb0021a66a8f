"""The tests of one depth: are there as many events as expected, and do labels rise with predictions as they should?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import prob_of
from isolayer.metrics import families
from isolayer.metrics.clusters import design_effect
from isolayer.metrics.sums import over
from isolayer.metrics.tails import RatioTest, Statistic, Trials
from isolayer.monitor.groups import Grouping, LogRows
from isolayer.monitor.uncertainty import Errors, ratio, total

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

LEAST_EVENTS = 10.0  # with fewer events, or fewer rows without one, the slope of a group is not tested
LEAST_SPREAD = 1e-3  # nor is it tested if its predicted logits have a smaller standard deviation


def judge(
    logs: tuple[LogRows, LogRows | None],
    grouping: Grouping,
    error: Errors,
    variance: Floats,
    level: float,
    shares: tuple[float, float],
) -> tuple[dict[str, Any], RatioTest]:
    """The columns of :class:`isolayer.monitor.Check` for one depth, and its test.

    Args:
        logs: The log, and the same by cluster where rows are clustered.
        grouping: The groups of the depth.
        error: Errors of the curve of each group.
        variance: Variance of the expected events of each group.
        level: The error level of the verdict.
        shares: Shares of it for the ratios and for the slopes of this depth.
    """
    part, fine = _Part.of(logs[0], grouping), None if logs[1] is None else _Part.of(logs[1], grouping)
    effect = _design_effect(part, fine)
    uncertain = variance * effect + (effect - 1) * part.total(part.sampling)
    spread = np.sqrt(ratio(uncertain, part.force**2))
    statistic = Statistic(part.trials, part.events, spread, _freedom(fine))
    tested = ~grouping.new & (part.force > 0)
    p_value = np.where(tested, statistic.p_value(np.zeros(part.groups)), np.nan)
    family = families.decide(p_value, level, shares[0], _rarer(part))
    traffic = Trials(part.logit + part.shift, part.traffic, part.group, part.groups)
    slope, slope_p_value = _slopes(part, fine, error, ~grouping.new)
    found = {
        "weight": part.total(part.traffic),
        "ratio": over(part.total(part.positive), traffic.mean(np.zeros(part.groups))),
        "p_value": family.adjusted,
        "slope": slope,
        "slope_p_value": families.decide(slope_p_value, level, shares[1]).adjusted,
        "new": grouping.new,
    }
    return found, RatioTest(statistic, family.threshold, traffic)


_COLUMNS = ("logit", "weight", "squares", "positive", "traffic", "shift", "cluster")


@dataclass(frozen=True, eq=False)
class _Part:
    """The cells that the groups of a depth are made of, shape ``[cells]``."""

    group: Codes
    groups: int
    logit: Floats
    weight: Floats
    squares: Floats
    positive: Floats
    traffic: Floats
    shift: Floats
    cluster: NDArray[np.int8]

    @classmethod
    def of(cls, rows: LogRows, grouping: Grouping) -> _Part:
        cells = np.flatnonzero(grouping.used[rows.group])
        columns = {name: getattr(rows, name)[cells] for name in _COLUMNS}
        return cls(grouping.of[rows.group[cells]], grouping.groups, **columns)

    @cached_property
    def prob(self) -> Floats:
        return prob_of(self.logit)

    @cached_property
    def pull(self) -> Floats:
        """Change of the expected events of a cell with its logit."""
        return np.asarray(self.weight * self.prob * (1 - self.prob))

    @cached_property
    def sampling(self) -> Floats:
        """Variance of the events of a cell if rows are independent."""
        return np.asarray(self.squares * self.prob * (1 - self.prob))

    @cached_property
    def force(self) -> Floats:
        return self.total(self.pull)

    @cached_property
    def unit(self) -> Floats:
        """Weight of an effective row of each group: 1 where nothing is weighted."""
        return np.where(self.force > 0, ratio(self.total(self.sampling), self.force), 1.0)

    @cached_property
    def trials(self) -> Trials:
        return Trials(self.logit, self.weight / self.unit[self.group], self.group, self.groups)

    @cached_property
    def events(self) -> Floats:
        """Effective number of events of each group."""
        return np.asarray(self.total(self.positive) / self.unit)

    def total(self, values: Floats) -> Floats:
        return total(self.group, values, self.groups)

    def only(self, kept: NDArray[np.bool_]) -> _Part:
        inside = kept[self.group]
        columns = {name: getattr(self, name)[inside] for name in _COLUMNS}
        return _Part((np.cumsum(kept) - 1)[self.group[inside]], int(kept.sum()), **columns)


def _rarer(part: _Part) -> Floats:
    """Expected events of each group, or expected rows without an event if those are fewer."""
    expected = part.trials.mean(np.zeros(part.groups))
    return np.asarray(np.minimum(expected, part.trials.total(part.trials.count) - expected))


def _freedom(fine: _Part | None) -> float:
    return np.inf if fine is None else max(len(np.unique(fine.cluster)) - 1.0, 1.0)


def _design_effect(part: _Part, fine: _Part | None) -> Floats:
    """Factor by which clusters increase the variance of the events of each group."""
    if fine is None:
        return np.ones(part.groups)
    excess = fine.positive - fine.weight * fine.prob
    return design_effect(excess, fine.pull, fine.sampling, fine.group, fine.groups, fine.cluster)


def _slopes(part: _Part, fine: _Part | None, error: Errors, known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Slope of the labels over the predictions of each group, with a free intercept, and its p-value."""
    slope, p_value = np.full(part.groups, np.nan), np.full(part.groups, np.nan)
    most, mean = part.trials.total(part.trials.count), ratio(part.total(part.pull * part.logit), part.force)
    varied = part.total(part.pull * (part.logit - mean[part.group]) ** 2) > LEAST_SPREAD**2 * part.force
    tested = known & varied & (np.minimum(part.events, most - part.events) >= LEAST_EVENTS)
    if tested.any():
        few = None if fine is None else fine.only(tested)
        slope[tested], p_value[tested] = _slope_test(part.only(tested), few, error.slope[tested])
    return slope, p_value


def _slope_test(part: _Part, fine: _Part | None, variance: Floats) -> tuple[Floats, Floats]:
    trials = part.trials
    level = Statistic(trials, part.events, np.zeros(part.groups)).estimate
    logit = trials.shifted(level)
    pull = trials.count * prob_of(logit) * (1 - prob_of(logit))
    middle = part.total(pull * part.logit) / part.total(pull)
    lean = part.logit - middle[part.group]
    leverage = part.total(pull * lean**2)
    effect = np.ones(part.groups) if fine is None else _slope_effect(fine, level, middle)
    spread = np.sqrt(variance * effect + (effect - 1) / leverage)
    leaning = Trials(logit, trials.count, part.group, part.groups, lean)
    test = Statistic(leaning, part.total(lean * part.positive) / part.unit, spread, _freedom(fine))
    return 1 + test.estimate, test.p_value(np.zeros(part.groups))


def _slope_effect(fine: _Part, level: Floats, middle: Floats) -> Floats:
    """Factor by which clusters increase the variance of the slope of each group."""
    prob, lean = prob_of(fine.logit + level[fine.group]), fine.logit - middle[fine.group]
    leverage = fine.weight * prob * (1 - prob) * lean**2
    excess = (fine.positive - fine.weight * prob) * lean
    return design_effect(excess, leverage, leverage * fine.unit[fine.group], fine.group, fine.groups, fine.cluster)
