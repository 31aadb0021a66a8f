"""Intervals, parts of a claim, and the verdict that they come to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from isolayer.errors import InputError
from research.result import Estimate, Part, Result, certain, estimate, geometric_mean, units_of


def test_the_interval_is_the_t_interval():
    values = np.random.default_rng(0).normal(3, 2, 7)
    found = estimate(values, level=0.9)
    assert (found.lower, found.upper) == pytest.approx(
        stats.t.interval(0.9, 6, values.mean(), values.std(ddof=1) / math.sqrt(7))
    )
    with pytest.raises(InputError, match="expected two or more finite numbers"):
        estimate([1.0])
    with pytest.raises(InputError, match="seeds: expected at least 2, got 1"):
        units_of(["a"], quick=False, seeds=1)


def test_the_geometric_mean_is_that_of_the_logs_and_of_a_reciprocal_the_reciprocal():
    values = np.random.default_rng(1).lognormal(0.3, 0.8, 6)
    found, logs = geometric_mean(values), estimate(np.log(values))
    assert np.log(found[:3]) == pytest.approx(logs[:3])
    assert found.seeds == 6
    value, lower, upper, _ = geometric_mean(1 / values)
    assert (1 / value, 1 / upper, 1 / lower) == pytest.approx(found[:3])
    table = np.stack([values, 3 * values])  # [actions, seeds]
    assert geometric_mean(table) == pytest.approx(geometric_mean(3**0.5 * values))
    with pytest.raises(InputError, match=r"expected numbers above 0, got 0\.0"):
        geometric_mean([1.0, 0.0])


@pytest.mark.parametrize(
    ("lower", "value", "upper", "held"),
    [
        (0.1, 0.5, 0.9, "held"),
        (-0.1, 0.5, 1.1, "held in direction"),
        (-0.9, -0.5, 0.1, "did not hold"),
        (-0.9, -0.5, -0.1, "did not hold"),
    ],
)
def test_a_part_is_judged_by_its_interval(lower, value, upper, held):
    assert Part("it rises", Estimate(value, lower, upper, 5), above=0).held == held
    assert Part("it falls", Estimate(-value, -upper, -lower, 5), below=0).held == held


def test_a_claim_is_as_good_as_its_worst_part_and_says_which():
    good, weak = Part("one", certain(1), above=0), Part("two", Estimate(1, -1, 3, 2), above=0)
    open_, bad = Part("open", Estimate(-1, -3, 1, 2), above=0), Part("three", certain(-1), above=0)
    assert Result((), (good, weak)).held == "held in direction"
    result = Result((), (good, weak, bad), note="Mind this.")
    assert result.held == "mixed"
    assert Result((), (good, weak, open_)).held == "held in part"
    assert Result((), (weak, bad)).held == "did not hold"
    assert Result((), (weak, open_)).held == "undecided"
    assert result.verdict == "1 of 3 parts held. Held in direction: two. Did not hold: three. Mind this."
