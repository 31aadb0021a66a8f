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

Floats = NDArray[np.float64]

# All rows together need little: their power is large. Contexts need most: there are many, and each has few rows.
_OVERALL, _BETWEEN, _CONTEXTS = 2.5, 1.0, 15.0
_SHAPE, _SHAPES = 1.5, 1.0
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


class Family(NamedTuple):
    """Decisions of one family, shape ``[tests]``.

    Args:
        adjusted: Adjusted p-values: a hypothesis is rejected where this is at most the level.
        threshold: The p-value at or below which hypotheses were rejected; an interval at this level excludes the
            hypothesis exactly where it is rejected.
    """

    adjusted: Floats
    threshold: float


def decide(p_value: Floats, level: float, share: float) -> Family:
    """Benjamini and Hochberg's step-up procedure at ``share`` of the level; NaN is no test.

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
    order = np.argsort(p)
    raised = p[order] * tests / np.arange(1, tests + 1)
    lowest = np.minimum.accumulate(raised[::-1])[::-1]
    back = np.empty(tests)
    back[order] = np.minimum(lowest / share, 1.0)
    adjusted[tested] = back
    rejected = int((back <= level).sum())
    return Family(adjusted, level * share * max(rejected, 1) / tests)
