"""Off-policy evaluation: verdicts either way, coverage, and true propensities that are unbiased."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import done, lost

from research import off_policy


def test_off_policy_verdict_goes_either_way():
    def good(setting, key):
        return 0.97 if key.endswith("covered") else 0.01 if "curves, learned" in key else 0.2

    full = done(off_policy, good, units=off_policy.units(False))  # a share of few logs decides nothing
    assert off_policy.summarise(full).held == "held"
    assert off_policy.summarise(done(off_policy, good)).held == "held in direction"
    narrow = off_policy.summarise(done(off_policy, lambda s, k: 0.5 if k.endswith("covered") else good(s, k)))
    assert len(lost(narrow)) == 4
    assert all("cover" in says for says in lost(narrow))
    by_position = lost(off_policy.summarise(done(off_policy, lambda s, k: 0.001 if "by position" in k else good(s, k))))
    assert any("weights by position alone" in says for says in by_position)
    for better in (off_policy.BY_POSITION, off_policy.BY_EM):  # the rival is the better of the two
        key = f"{better} error"
        rival = lost(off_policy.summarise(done(off_policy, lambda s, k, key=key: 0.001 if key in k else good(s, k))))
        assert len(rival) == 4
        assert all(says.endswith(f"; the better of two: {better.removeprefix('by position, ')})") for says in rival)


def test_coverage_is_a_share_of_logs_and_not_above_one():
    full = done(off_policy, lambda setting, key: 0.99, units=off_policy.units(False))
    covered = [part.estimate for part in off_policy.summarise(full).parts if "cover the truth" in part.says]
    assert all(one.upper <= 1 and one.seeds == off_policy.SEEDS * off_policy.LOGS for one in covered)


def test_the_note_says_how_often_right_intervals_pass_the_bar():
    def number(setting, key):
        covered = 0.99 if off_policy.TRUE in key and "better" in key else 0.93
        return covered if key.endswith("covered") else 0.01

    rng = np.random.default_rng(0)
    hits = rng.binomial(100, 0.95, 1_000)
    shares = [off_policy.proportion([1.0] * hit + [0.0] * (100 - hit)).lower > off_policy.COVER for hit in hits]
    assert off_policy.passing(100) == pytest.approx(np.mean(shares), abs=0.05)
    assert off_policy.passing(2) == 0
    note = off_policy.summarise(done(off_policy, number, units=off_policy.units(False))).note
    assert (
        "A part on coverage holds when the lower end of the exact interval over 100 logs is above 90%: intervals that "
        "cover in 95% of logs pass this in 44% of such studies, and those of the true propensities pass it in 2 of 4 "
        "cases here (they cover in 99%, 93%, 99%, 93%)."
    ) in note


def test_the_note_on_off_policy_tells_bias_from_noise_where_curves_miss():
    def biased(setting, key):
        if setting == "trust bias" and key == "worse curves, learned error":
            return 0.07
        if key.endswith("bias"):
            return -0.06 if "curves, learned" in key else -5e-7 if "true" in key else 0.2
        return 0.97 if key.endswith("covered") else 0.01

    def noisy(setting, key):
        return -5e-7 if key.endswith("bias") else biased(setting, key)  # of two seeds, on average 0

    note = off_policy.summarise(done(off_policy, biased)).note
    assert note.count("Learned curves miss 5%") == 1
    assert "miss 5% under trust bias for the worse ranking: they err by 7.0% and are biased (-6.0% [" in note
    assert "the true propensities err by 1.0% and are not biased beyond chance (" in note
    assert "they err by 7.0% and are not biased beyond chance (" in off_policy.summarise(done(off_policy, noisy)).note
    assert "miss" not in off_policy.summarise(done(off_policy, lambda s, k: 0.01)).note


def test_true_propensities_value_a_ranking_without_bias():
    world = off_policy.debias_feed("position", seed=3)
    log = world.log(8_000, seed=1)
    direction = off_policy._direction(log, "better")
    truth = off_policy._true_value(world, direction, 20_000, seed=2)
    new = off_policy.ranked_positions(log["features"] @ direction, log["session"])
    chance = off_policy.true_chances(log)
    weight = chance[log["grade"], new] / chance[log["grade"], log["position"]]
    value, error = off_policy.weighted(log, weight)
    assert abs(value - truth) < 3 * error
    logged, _ = off_policy.weighted(log, np.ones(len(new)))
    assert abs(logged - truth) > 3 * error  # the ranking matters
