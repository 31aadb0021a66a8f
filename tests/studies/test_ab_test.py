"""The A/B test: verdicts either way, its tests against scipy's, and simulated traffic."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import lost, outcome
from scipy import stats

from research import ab_test, notifications
from research.result import Finished, Unit, estimate

GOOD = {"p_value": 0.01, "error": 0.1, "again": 0.0, "Dropout": -0.1, "per task": -0.1, "lift": 1.0}


def _little(name, metric):
    return f"{name}: lift of {metric} minus a quarter of the inference head's"


def test_ab_verdict_is_for_lifts_and_against_their_absence():
    assert outcome(ab_test, GOOD).held == "held"
    flat = lost(outcome(ab_test, GOOD | {"lift": -1.0}))
    assert sum(says.startswith("inference head lifts") for says in flat) == 2 * len(ab_test.METRICS)  # every one
    one_rate = {"p_value": 0.01, "error": 0.1, "Dropout 0.05": 2.0} | GOOD
    assert sorted(lost(outcome(ab_test, one_rate))) == sorted(
        [
            *(f"inference head lifts {metric} more than every rate of dropout" for metric in ab_test.METRICS),
            *(_little("Position Dropout 0.05", metric) for metric in ab_test.LIVE),
        ]
    )
    post_hoc = {"p_value": 0.01, "error": 0.1, "Platt per task": 0.26} | GOOD
    assert lost(outcome(ab_test, post_hoc)) == [_little("Platt per task", metric) for metric in ab_test.LIVE]


def test_every_lift_that_should_be_none_is_judged_once():
    parts = [part.says for part in outcome(ab_test, GOOD).parts]
    judged = [says for says in parts if says.startswith(ab_test.NONE)]
    assert judged == [_little(arm, metric) for arm in ab_test.NONE for metric in ab_test.LIVE]


def test_lifts_of_dropout_are_judged_beside_that_of_the_head_and_told_where_they_are_beyond_chance():
    small = outcome(ab_test, GOOD | {"Dropout": 0.2})
    assert lost(small) == []
    assert "18 of the 18 lifts of Position Dropout (six rates, three metrics) are above 0 beyond chance" in small.note
    large = outcome(ab_test, GOOD | {"Dropout": 1.1, "lift": 4.0})
    assert lost(large) == [_little(arm, metric) for arm in ab_test.DROPOUT for metric in ab_test.LIVE]
    assert all(part.refuted for part in large.parts if part.held == "did not hold")
    assert lost(outcome(ab_test, GOOD | {"Dropout": 0.9, "lift": 4.0})) == []


def test_the_control_against_itself_is_told_and_no_part_of_the_claim():
    """Both rank alike, so what is seen is chance: it speaks neither for the paper nor against it."""
    for lift in (-2.0, 2.0):
        found = outcome(ab_test, GOOD | {"again": lift, "Dropout": -3.0, "per task": -3.0, "lift": 9.0})
        assert found.held == "held"
        assert not [part for part in found.parts if ab_test.AGAIN in part.says or "itself" in part.says]
        rows = [row.ours.value for row in found.rows if row.name == ab_test.AGAIN and row.metric.endswith(", lift")]
        assert rows == pytest.approx([lift] * len(ab_test.METRICS), abs=1e-3)
        assert f"The control against itself, an A/A test, differs by {lift:+.2f}% [" in found.note


def test_single_tests_are_counted_by_their_own_metric():
    """A rise of one metric is one of three, and true relevance, which no live test sees, is none."""
    numbers = {
        metric: (1.0, 0.01) if metric in ("clicks", "true relevance") else (1.0, 0.5) for metric in ab_test.METRICS
    }
    numbers["likes"] = (-1.0, 0.01)  # a fall beyond chance is no rise
    keys = {
        f"x {metric} {key}": value
        for metric, pair in numbers.items()
        for key, value in zip(("lift", "p_value"), pair, strict=True)
    }
    found = ab_test.significant([Finished(Unit(seed), keys) for seed in (0, 1)], "x")
    assert found.tolist() == [[True, True], [False, False], [False, False]]
    keys = {
        f"worth {notifications.LAYER} {metric} {key}": value
        for metric, lift in zip(notifications.PAPER_LIFTS, (-1.0, 1.0, 1.0), strict=True)
        for key, value in (("lift", lift), ("p_value", 0.01))
    }
    found = notifications.significant([Finished(Unit(seed), keys) for seed in (0, 1)], "worth")
    assert found.tolist() == [[False, False], [True, True], [True, True]]


def test_lifts_are_over_the_mean_of_both_controls():
    """With arms at 103 and controls at 100 and 106, the lift is none, and that of the second control 6%."""
    keys = {"x clicks lift": 3.0, f"{ab_test.AGAIN} clicks lift": 6.0}
    done = [Finished(Unit(0), keys)]
    assert ab_test.lift_of(done, "x", "clicks").tolist() == pytest.approx([0.0])
    assert ab_test.lift_of(done, ab_test.AGAIN, "clicks").tolist() == pytest.approx([6.0])


def test_least_lift_of_all_seeds_is_that_of_their_error():
    lifts = {(arm, metric): estimate([1.0, 2.0, 3.0]) for arm in ab_test.ARMS for metric in ab_test.METRICS}
    least = ab_test.least_together(lifts)[0].ours.value
    assert least == pytest.approx(ab_test.detectable(1 / np.sqrt(3)))


def test_welch_is_scipys():
    rng = np.random.default_rng(0)
    one, other = rng.gamma(2, 1.1, 500), rng.gamma(2, 1, 900)
    found = ab_test.welch(one, other)
    assert found.p_value == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue)
    assert found.lift == pytest.approx(100 * (one.mean() / other.mean() - 1))


def test_power_and_least_lift_agree_with_simulated_tests():
    rng = np.random.default_rng(1)
    error = 100 * np.sqrt(2 / 400) / 10
    lift = ab_test.detectable(error)
    tests = [
        ab_test.welch(rng.normal(10 * (1 + lift / 100), 1, 400), rng.normal(10, 1, 400)).p_value for _ in range(2000)
    ]
    assert np.mean(np.array(tests) < 0.05) == pytest.approx(0.8, abs=0.03)
    assert ab_test.power(lift, error) == pytest.approx(0.8, abs=1e-6)


def test_an_ab_test_runs():
    numbers = ab_test.run_unit(Unit(0, quick=True))
    assert all(0 <= numbers[f"{arm} clicks p_value"] <= 1 for arm in ab_test.ARMS)
    assert all(np.isfinite(value) for value in numbers.values())
