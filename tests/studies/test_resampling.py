"""Intervals over resampled users and seeds: they cover the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from isolayer.errors import InputError
from research import resampling


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        user = np.repeat(np.arange(150), 3)
        rows = rng.normal(1, 1, 150)[user] + rng.normal(0, 0.3, len(user))
        weight = resampling.draws(user, 60, seed=trial)
        seeds = rng.normal(0, 0.05, 3)  # what training again changes
        resampled = (weight @ rows) / weight.sum(1)
        found = resampling.pooled(rows.mean() + seeds, resampled[None] + seeds[:, None])
        covered += found.lower < 1 < found.upper
    assert 0.89 < covered / 200 < 0.99


def test_both_kinds_of_chance_widen_an_interval():
    one, two, more = (stats.t.ppf(0.975, degrees) for degrees in (1, 9 / 5, 99))
    assert resampling.pooled([1.0, 3.0], [[1.0, 1.0], [3.0, 3.0]]).upper == pytest.approx(2 + one)
    draws = [[0.0, 2.0], [0.0, 2.0]]
    assert resampling.pooled([1.0, 1.0], draws).upper == pytest.approx(1 + one * np.sqrt(2))
    assert resampling.pooled([0.0, 2.0], draws).upper == pytest.approx(1 + two * np.sqrt(3))
    many = np.tile([0.0, 2.0], 50)
    found = resampling.pooled([1.0, 1.0], [many, many])
    assert found.upper == pytest.approx(1 + more * many.std(ddof=1))


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_few_seeds_give_wide_intervals_where_seeds_matter(seeds):
    rng, covered = np.random.default_rng(seeds), 0
    for _ in range(400):
        values = rng.normal(0, 1, seeds)
        found = resampling.pooled(values, values[:, None] + rng.normal(0, 0.01, 50))
        covered += found.lower < 0 < found.upper
    assert covered / 400 > 0.92


def test_too_few_seeds_or_draws_are_refused():
    with pytest.raises(InputError, match=r"resampled: expected \[1, 2 or more\] and two seeds or more"):
        resampling.pooled([1.0], [[1.0, 2.0]])
