r"""Tail probabilities of sums of independent trials, accurate for few events and for millions.

Each group has trials in bins: ``count`` trials with logit :math:`z`. The statistic is :math:`S = \sum a\,y` over its
trials. Exponential tilting by :math:`\theta` moves every logit to :math:`z + a\theta`, so with
:math:`A(z) = \log(1 + e^z)` the cumulant generating function is :math:`K(\theta) = \sum n\,[A(z + a\theta) - A(z)]`.
The saddle-point formula of Lugannani and Rice (1980), for counts with Daniels' second continuity correction, gives the
tails. An uncertain prediction is a random shift of the same logits; the tails are averaged over it. Shifts and tilts
move the logits in the same way, so the saddle point is found once for all shifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from isolayer.metrics.rows import summed

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

_NODES = 16  # nodes of the quadrature over the shift
_STEPS = 60  # most Newton steps; about six are usual
_LEAST = float(np.finfo(float).tiny)
_HALVINGS = 20  # bisections of the bracket around the end of an interval
_NEAR = 0.02  # distance from the mean, in standard deviations, below which the limit of the formula is used


@dataclass(frozen=True, eq=False)
class Trials:
    """Independent trials of many groups, in bins.

    Args:
        logit: Logit of the trials of each bin, shape ``[bins]``.
        count: Number of trials of each bin; an effective number if rows are weighted.
        group: Group of each bin, in ``0 .. groups - 1``.
        groups: Number of groups.
        direction: What an event adds to the statistic, shape ``[bins]``; None if the statistic counts events.
    """

    logit: Floats
    count: Floats
    group: Codes
    groups: int
    direction: Floats | None = None

    def total(self, values: Floats) -> Floats:
        """Sum over the bins of each group, shape ``[groups]``."""
        return summed(self.group, values, self.groups)

    def only(self, kept: NDArray[np.bool_]) -> Trials:
        """The trials of some groups, ``[groups]``, renumbered."""
        inside = kept[self.group]
        direction = None if self.direction is None else self.direction[inside]
        group = (np.cumsum(kept) - 1)[self.group[inside]]
        return Trials(self.logit[inside], self.count[inside], group, int(kept.sum()), direction)

    def shifted(self, shift: Floats) -> Floats:
        """Logits plus the ``shift`` of their group times the direction, shape ``[bins]``."""
        moved = shift[self.group] if self.direction is None else shift[self.group] * self.direction
        return np.asarray(self.logit + moved)

    def cumulant(self, shift: Floats) -> Floats:
        """Sum of ``count * log(1 + exp(shifted logit))``, shape ``[groups]``."""
        return self.total(self.count * np.log1p(np.exp(np.minimum(self.shifted(shift), 700.0))))

    def mean(self, shift: Floats) -> Floats:
        """Expected statistic after a shift, shape ``[groups]``."""
        return self.moment(shift, 1)

    def moment(self, shift: Floats, order: int) -> Floats:
        """Cumulant of the statistic after a shift: mean (1), variance (2) or third central moment (3)."""
        prob = _sigmoid(self.shifted(shift))
        part = prob if order == 1 else prob * (1 - prob) * (1.0 if order == 2 else 1 - 2 * prob)
        return self.total(self.count * part * (1.0 if self.direction is None else self.direction**order))


class Saddle(NamedTuple):
    """The tilt at which the mean of each group equals a target, and the cumulants there, shape ``[groups]`` each."""

    target: Floats
    tilt: Floats
    cumulant: Floats
    deviation: Floats
    skew: Floats


@dataclass(frozen=True, eq=False)
class Statistic:
    """An observed statistic of each group, and the uncertainty of the predicted logits.

    Args:
        trials: The trials under the prediction.
        observed: The statistic, shape ``[groups]``: the number of events if the trials have no direction.
        spread: Standard deviation of the shift of the predicted logits, along the direction, shape ``[groups]``.
        freedom: Degrees of freedom of that standard deviation; infinite if it is known.

    >>> coins = Trials(np.zeros(1), np.full(1, 10.0), np.zeros(1, np.int64), 1)
    >>> p = Statistic(coins, np.full(1, 9.0), np.zeros(1)).p_value(np.zeros(1))[0]
    >>> f"{p:.3f}"  # exactly: 2 (10 / 2 + 1) / 1024
    '0.012'
    """

    trials: Trials
    observed: Floats
    spread: Floats
    freedom: float = np.inf

    @property
    def counts(self) -> bool:
        """Whether the statistic is a number of events."""
        return self.trials.direction is None

    @cached_property
    def estimate(self) -> Floats:
        """The shift at which the expected statistic equals the observed one; infinite at the end of its range."""
        return self._solve(self.observed)

    def only(self, kept: NDArray[np.bool_]) -> Statistic:
        """The statistic of some groups, renumbered."""
        return Statistic(self.trials.only(kept), self.observed[kept], self.spread[kept], self.freedom)

    def p_value(self, shift: Floats) -> Floats:
        """Two-sided p-value of the hypothesis that the logits are shifted by ``shift``, shape ``[groups]``.

        It is twice the smaller tail, or the smaller tail itself if the other tail has no outcome that is as improbable.
        Only half of the probability of the observed number is counted (mid-p), so that over many contexts with few
        events the tests have their level on average, and are not far below it.
        """
        upper, lower, least = self.tails(shift)
        equal = np.maximum(upper + lower - 1, 0.0) if self.counts else np.zeros_like(upper)
        smaller = np.minimum(upper, lower) - equal / 2
        one_sided = (upper <= lower) & (least / 2 > smaller)
        return np.clip(np.where(one_sided, smaller, 2 * smaller), 0.0, 1.0)

    def tails(self, shift: Floats) -> tuple[Floats, Floats, Floats]:
        """Probabilities of at least, and of at most, the observed statistic, and of no event (0 with a direction)."""
        upper, beyond, least = (np.zeros(self.trials.groups) for _ in range(3))
        for node, weight in self._nodes:
            at = shift + self.spread * node
            cumulant = self.trials.cumulant(at)
            if self.counts:
                none = np.exp(-cumulant)
                least += weight * none
                upper += weight * _above(self._at[0], at, cumulant, none)
                beyond += weight * _above(self._at[1], at, cumulant, none)
            else:
                upper += weight * _above(self._at[0], at, cumulant)
        return upper, 1 - (beyond if self.counts else upper), least

    def interval(self, level: Floats) -> tuple[Floats, Floats]:
        """The interval of shifts whose p-value is above ``level``, found by bisection, shape ``[groups]`` each.

        An interval excludes 0 exactly if the p-value of no shift is at most the level.
        """
        kept = self.p_value(np.zeros(self.trials.groups)) > level
        lower, upper = self._end(level, kept, -1.0), self._end(level, kept, 1.0)
        touched = ~kept & (lower <= 0) & (upper >= 0)  # the p-value of no shift is the level itself
        above = touched & (upper > -lower)
        return np.where(above, _LEAST, lower), np.where(touched & ~above, -_LEAST, upper)

    def _end(self, level: Floats, kept: NDArray[np.bool_], side: float) -> Floats:
        """The end of the interval below (side -1) or above (1) the estimate; ``kept`` is whether the interval has 0."""
        half = 0.5 if self.counts else 0.0
        near = self._solve(self.observed + side * half)  # its p-value is about 1
        endless = ~np.isfinite(near)
        near = np.where(endless, 0.0, near)
        ahead = ~endless & (side * near < 0)  # 0 lies on this side of the estimate
        width = np.sqrt(1 / np.maximum(self.trials.moment(near, 2), 0.05) + self.spread**2)
        far = np.where(ahead & ~kept, 0.0, near + side * (3.0 + 12.0 * width))
        near = np.where(ahead & kept, 0.0, near)
        far = np.where(side * (far - near) > 0, far, near + side * (3.0 + 12.0 * width))
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            inside = self.p_value(middle) > level
            near, far = np.where(inside, middle, near), np.where(inside, far, middle)
        end = np.where(ahead & ~kept & (far == 0), near, far)
        return np.where(endless, side * np.inf, end)

    @cached_property
    def _nodes(self) -> list[tuple[float, float]]:
        """Standardised shifts and their weights, for the quadrature."""
        if not self.spread.any():
            return [(0.0, 1.0)]
        at, weight = np.polynomial.hermite_e.hermegauss(_NODES)
        shift = at if np.isinf(self.freedom) else np.asarray(stdtrit(self.freedom, ndtr(at)))
        return list(zip(shift.tolist(), (weight / weight.sum()).tolist(), strict=True))

    @cached_property
    def _at(self) -> tuple[Saddle, ...]:
        """Saddle points half an event below and above the observed count; with a direction, at the statistic itself."""
        halves = (-0.5, 0.5) if self.counts else (0.0,)
        return tuple(self._saddle(self.observed + half) for half in halves)

    def _saddle(self, target: Floats) -> Saddle:
        tilt = self._solve(target)
        finite = np.where(np.isfinite(tilt), tilt, 0.0)
        deviation = np.sqrt(np.maximum(self.trials.moment(finite, 2), 1e-100))
        skew = self.trials.moment(finite, 3) / deviation**3
        return Saddle(target, tilt, self.trials.cumulant(finite), deviation, skew)

    def _solve(self, target: Floats) -> Floats:
        """The tilt at which the mean equals the target, shape ``[groups]``; infinite if there is none."""
        return _tilt_of_counts(self.trials, target) if self.counts else _tilt(self.trials, target)


class RatioTest(NamedTuple):
    """A test of the ratios of observed to expected events of some groups.

    Args:
        statistic: The statistic of the rows as sampled.
        threshold: The p-value at or below which a ratio differs from 1.
        traffic: The trials in terms of real traffic, in which ratios are expressed.
    """

    statistic: Statistic
    threshold: float
    traffic: Trials

    def interval(self, chosen: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Intervals of the ratios of some groups."""
        trials = self.traffic.only(chosen)
        lower, upper = self.statistic.only(chosen).interval(np.full(trials.groups, self.threshold))
        expected = trials.mean(np.zeros(trials.groups))
        least = np.where(np.isinf(lower), 0.0, trials.mean(np.where(np.isinf(lower), 0.0, lower)))
        most = np.where(np.isinf(upper), trials.total(trials.count), trials.mean(np.where(np.isinf(upper), 0.0, upper)))
        low, high = (
            np.divide(end, expected, out=np.full_like(end, np.nan), where=expected > 0) for end in (least, most)
        )
        return low, high


def _above(saddle: Saddle, shift: Floats, cumulant: Floats, none: Floats | None = None) -> Floats:
    """Probability that the statistic is above a target; ``none`` is the probability of no event, for counts."""
    tilt = saddle.tilt
    away = np.where(np.isfinite(tilt), tilt - shift, 1.0)
    depth = np.maximum(away * saddle.target - saddle.cumulant + cumulant, 0.0)
    w = np.sign(away) * np.sqrt(2 * depth)
    scale = away if none is None else 2 * np.sinh(np.clip(away, -1400, 1400) / 2)
    near = np.abs(w) < _NEAR
    correction = 1 / (np.where(near, 1.0, scale) * saddle.deviation) - 1 / np.where(near, 1.0, w)
    density = np.exp(-np.minimum(depth, 700.0)) / np.sqrt(2 * np.pi)
    tail = np.clip(ndtr(-w) + density * np.where(near, -saddle.skew / 6, correction), 0.0, 1.0)
    tail = np.where(np.isfinite(tilt), tail, np.where(tilt < 0, 1.0, 0.0))
    return tail if none is None else np.where((saddle.target > 0) & (saddle.target <= 0.5), 1 - none, tail)


def _tilt_of_counts(trials: Trials, target: Floats) -> Floats:
    """Newton's method on the log odds of the mean, which are nearly linear in the tilt."""
    most = trials.total(trials.count)
    inside = (target > 0) & (target < most)
    goal = np.where(inside, target, most / 2)
    want, tilt = _log_odds(goal, most), np.zeros(trials.groups)
    for _ in range(_STEPS):
        mean, variance = trials.mean(tilt), trials.moment(tilt, 2)
        slope = variance * most / np.maximum(mean * (most - mean), 1e-300)
        step = np.clip((want - _log_odds(mean, most)) / np.maximum(slope, 1e-6), -20.0, 20.0)
        tilt = tilt + np.where(most > 0, step, 0.0)
        if np.abs(step[most > 0]).max(initial=0.0) < 1e-9:
            break
    return np.where(inside, tilt, np.where(target <= 0, -np.inf, np.inf))


def _tilt(trials: Trials, target: Floats) -> Floats:
    """Newton's method on the mean, with steps of at most one logit; infinite if it does not converge."""
    assert trials.direction is not None
    reach = np.zeros(trials.groups)
    np.maximum.at(reach, trials.group, np.abs(trials.direction))
    tilt = np.zeros(trials.groups)
    for _ in range(_STEPS):
        gap, variance = target - trials.mean(tilt), np.maximum(trials.moment(tilt, 2), 1e-300)
        longest = 1 / np.maximum(reach, 1e-12)
        step = np.clip(gap / variance, -longest, longest)
        tilt = tilt + step
        if (np.abs(step) < 1e-9 * longest).all():
            break
    missed = np.abs(target - trials.mean(tilt)) > 1e-6 * np.sqrt(np.maximum(trials.moment(np.zeros_like(tilt), 2), 0))
    return np.where(missed, np.where(tilt < 0, -np.inf, np.inf), tilt)


def _log_odds(mean: Floats, most: Floats) -> Floats:
    inside = np.clip(mean, 1e-290, None)
    return np.asarray(np.log(inside) - np.log(np.maximum(most - mean, 1e-290)))


def _sigmoid(logit: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -700.0, 700.0))))
