"""Families of tests: how the error level is divided between them, and which hypotheses are rejected in each.

One verdict combines several tests: of all rows together, of each depth of the hierarchy and of each context, for the
number of events and for the slope. Each family gets a share of the level, so that in total a calibrator that holds is
called drifted with at most that probability. Within a family the procedure of Benjamini and Hochberg (1995) controls
the share of false discoveries; if nothing has drifted, this is the probability of any false discovery.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, pdtr, pdtrc, xlogy

Floats = NDArray[np.float64]

# All rows together need a small share, since their test is powerful. Contexts need most: they are many, with few rows.
_OVERALL, _BETWEEN, _CONTEXTS = 2.5, 1.0, 15.0
_SHAPE, _SHAPES = 1.5, 1.0
_MANY, _LEAST = 25.0, 1e-12  # expected events: above, p-values are nearly continuous; below, no event occurs
_COUNTS = 110  # counts of events whose tails are summed; larger ones have p-values below 1e-25
_SPENT = 0.9  # share of the level that is used; mid-p-values of few events may slightly exceed their level


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
    """The expected number of tests of a family whose p-value is at most a given one, if every hypothesis is true.

    For continuous p-values this is the p-value times the number of tests. But the number of events is discrete: a
    context that expects a tenth of an event has few possible p-values, and never one below the smallest of them.
    Families of such contexts would hardly ever raise an alarm if each counted as a full test (Tarone 1990; Heyse 2011).

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
        """The largest p-value that at most ``most`` tests reach on average."""
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
    """Benjamini and Hochberg's step-up procedure at ``share`` of the level; NaN means no test.

    Args:
        p_value: P-value of each test.
        level: The error level of the verdict.
        share: Share of the level that the family has.
        expected: Expected events of each test, if p-values are those of counts; by default p-values are continuous.

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
