"""Families of tests: how the error level is shared between them, and which hypotheses are rejected in each.

One verdict asks several questions: all rows together, each depth of the hierarchy, each context, and the shape of the
curves as well as their level. Each family gets a share of the level, so that a calibrator that holds is called drifted
with at most that probability in all. Within a family the procedure of Benjamini and Hochberg (1995) controls the share
of false discoveries; where nothing has drifted, that is the probability of any.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, pdtr, pdtrc, xlogy

Floats = NDArray[np.float64]

# All rows together need little: their power is large. Contexts need most: there are many, and each has few rows.
_OVERALL, _BETWEEN, _CONTEXTS = 2.5, 1.0, 15.0
_SHAPE, _SHAPES = 1.5, 1.0
_MANY, _LEAST = 25.0, 1e-12  # expected events: with more, possible p-values are dense; with less, there are none
_COUNTS = 110  # of which the tails are added up; further ones have p-values below 1e-25
_SPENT = 0.9  # of the level: p-values of few events count half of what was observed, and may exceed theirs a little


def shares(depths: int) -> tuple[list[float], list[float]]:
    """Shares of the level, which sum to 0.9: for the O/E of each depth, and for the slope of each depth.

    >>> [[round(share, 2) for share in family] for family in shares(1)]
    [[0.56], [0.34]]
    >>> [[round(share, 2) for share in family] for family in shares(2)]
    [[0.11, 0.68], [0.07, 0.04]]
    """
    ratio = [_OVERALL, *[_BETWEEN] * (depths - 2), _CONTEXTS][:depths]
    slope = [_SHAPE, *[_SHAPES / 2] * (depths - 2), _SHAPES][:depths]
    total = sum(ratio) + sum(slope)
    return [_SPENT * each / total for each in ratio], [_SPENT * each / total for each in slope]


class Reach:
    """How many tests of a family reach a p-value, on average, where every hypothesis is true.

    As many as the p-value times their number, were p-values continuous. The number of events is not: a context that
    expects a tenth of an event has few possible p-values, and below the smallest of them it cannot reach any. Families
    of such contexts would hardly ever alarm if each counted as a full test (Tarone 1990; Heyse 2011).

    Args:
        expected: Events that each test expects, shape ``[tests]``; infinite where p-values are continuous.

    >>> continuous = Reach(np.full(3, np.inf))
    >>> continuous(np.array([0.01])).tolist()
    [0.03]
    >>> rare = Reach(np.full(1000, 0.01))  # two events of one have a mid-p-value of 2.5e-5, three of 8e-8
    >>> f"{float(rare(np.array([2e-5]))[0]):.0e}, not {1000 * 2e-5:.0e}"
    '2e-04, not 2e-02'
    """

    def __init__(self, expected: Floats) -> None:
        few = expected < _MANY
        self.continuous = int((~few).sum())
        # Contexts that expect the same to 2 digits share their possible outcomes.
        rounded = np.exp(np.round(np.log(np.maximum(expected[few], _LEAST)), 2))
        each, counts = np.unique(rounded, return_counts=True)
        p_value, chance = _outcomes(each)
        order = np.argsort(p_value.reshape(-1))
        self.p_value = p_value.reshape(-1)[order]
        self.reached = np.concatenate([[0.0], np.cumsum((chance * counts[:, None]).reshape(-1)[order])])

    def __call__(self, p_value: Floats) -> Floats:
        """The number of tests, shape of ``p_value``."""
        at = np.searchsorted(self.p_value, p_value * (1 + 1e-9), side="right")
        return np.asarray(self.reached[at] + self.continuous * p_value)

    def threshold(self, most: float) -> float:
        """The largest p-value that at most so many tests reach."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self(np.array([middle]))[0] <= most else (low, middle)
        return low


def _outcomes(expected: Floats) -> tuple[Floats, Floats]:
    """Two-sided mid-p-values of Poisson counts and the probabilities of these, shape ``[tests, counts]`` each."""
    count = np.arange(_COUNTS)
    chance = np.exp(xlogy(count, expected[:, None]) - expected[:, None] - gammaln(count + 1))
    lower = pdtr(count, expected[:, None])
    upper = np.concatenate([np.ones((len(expected), 1)), pdtrc(count[:-1], expected[:, None])], 1)
    smaller = np.minimum(upper, lower) - chance / 2
    one_sided = (upper <= lower) & (chance[:, :1] / 2 > smaller)  # as in the p-value of a Statistic
    return np.clip(np.where(one_sided, smaller, 2 * smaller), 0.0, 1.0), chance


class Family(NamedTuple):
    """Decisions of one family, shape ``[tests]``.

    Args:
        adjusted: Adjusted p-values: a hypothesis is rejected where this is at most the level.
        threshold: The p-value at or below which hypotheses were rejected; an interval at this level excludes the
            hypothesis exactly where it is rejected.
    """

    adjusted: Floats
    threshold: float


def decide(p_value: Floats, level: float, share: float, expected: Floats | None = None) -> Family:
    """Benjamini and Hochberg's step-up procedure at ``share`` of the level; NaN is no test.

    Args:
        p_value: Of each test.
        level: The error level of the verdict.
        share: How much of it the family has.
        expected: Events that each test expects, where p-values are those of counts; by default they are continuous.

    >>> family = decide(np.array([0.001, 0.04, 0.3, np.nan]), level=0.05, share=1.0)
    >>> family.adjusted.round(3).tolist(), round(family.threshold, 4)
    ([0.003, 0.06, 0.3, nan], 0.0167)
    """
    tested = ~np.isnan(p_value)
    tests = int(tested.sum())
    adjusted = np.full(len(p_value), np.nan)
    if tests == 0:
        return Family(adjusted, level * share)
    p = p_value[tested]
    reach = Reach(np.full(tests, np.inf) if expected is None else expected[tested])
    order = np.argsort(p)
    raised = reach(p[order]) / np.arange(1, tests + 1)
    lowest = np.minimum.accumulate(raised[::-1])[::-1]
    back = np.empty(tests)
    back[order] = np.minimum(lowest / share, 1.0)
    adjusted[tested] = back
    rejected = int((back <= level).sum())
    return Family(adjusted, reach.threshold(level * share * max(rejected, 1)))
