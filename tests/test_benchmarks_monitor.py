"""The simulated days of the benchmark of verdicts, and the test by hand that it compares with."""

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks import clusters, monitor
from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram, bin_of


@pytest.mark.parametrize("clustered", [False, True])
def test_a_day_has_the_rows_and_the_rate_that_were_asked_for(clustered):
    random = np.random.default_rng(0)
    world = monitor.World.of(20, 0.2, clustered, random)
    day = world.day(50_000, random)
    assert day.rows == 50_000
    assert day.positive.sum() / day.weight.sum() == pytest.approx(0.25, abs=0.05)
    assert (np.diff(day.group) >= 0).all()
    again = Histogram.from_arrays([0.0], [1], grid=monitor.GRID)
    assert again.grid == day.grid
    assert (day.bin == bin_of(day.logit / day.weight, day.grid)).all()
    assert len(np.unique(day.fold)) == (126 if clustered else 1)


def test_clusters_vary_together():
    """The variance of the events of a fold is that of its users' shared levels, not that of independent rows."""
    random = np.random.default_rng(1)
    excess = []
    for clustered in (False, True):
        world = monitor.World.of(5, 0.2, True, random)
        day = monitor.World(world.score, world.truth, clustered).day(100_000, random)
        fold = day.fold if clustered else np.random.default_rng(0).integers(0, 126, len(day.fold))
        rate = day.positive.sum() / day.weight.sum()
        sums = np.bincount(fold, day.positive - rate * day.weight)
        excess.append((sums**2).sum() / (day.weight.sum() * rate * (1 - rate)))
    assert excess[1] > 1.5


def test_drifts_keep_what_they_promise():
    truth = np.linspace(-5, 0, 50)[None]
    steeper = monitor._steeper(truth, 1.3)
    assert monitor._prob(steeper).mean() == pytest.approx(monitor._prob(truth).mean(), rel=1e-6)
    assert np.diff(steeper).mean() == pytest.approx(1.3 * np.diff(truth).mean())
    np.testing.assert_allclose(monitor._prob(monitor._times(truth, 1.2)) / monitor._prob(truth), 1.2)


def test_the_test_by_hand_is_the_exact_binomial_one_with_holms_correction():
    label = np.r_[np.repeat([1, 0], [25, 25]), np.repeat([1, 0], [14, 36])]
    day = Histogram.from_arrays(np.full(100, -1.0), label, {"context": np.repeat([0, 1], 50)})
    curves = Curves.identity(day.grid)
    rate = 1 / (1 + np.exp(1))
    assert 2 * binomtest(25, 50, rate, alternative="greater").pvalue * 2 < 0.05
    assert monitor.by_hand(curves, day)
    calm = Histogram.from_arrays(np.full(100, -1.0), np.arange(100) % 4 == 0, {"context": np.repeat([0, 1], 50)})
    assert not monitor.by_hand(curves, calm)


def test_runs_are_kept_and_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "ROWS", 2000)
    monkeypatch.setattr(monitor, "CHECKS", 2)
    question = monitor.Question("calm", 3, 0.2, True)
    first = monitor.outcomes(question, 2, tmp_path / "kept.json")
    whole = monitor.outcomes(question, 4, tmp_path / "kept.json")
    assert whole[:2] == first
    assert whole == monitor.outcomes(question, 4, tmp_path / "again.json")


def test_intervals_over_days_are_those_of_a_bootstrap_over_days():
    random = np.random.default_rng(0)
    day = np.repeat(np.arange(120), 100)
    logit = random.normal(-1, 1, len(day))
    label = random.random(len(day)) < monitor._prob(logit + random.normal(0.4, 0.8, 120)[day])
    curves = Curves.from_histogram(Histogram.from_arrays(logit, label, {"carrier": np.full(len(day), "AA")}))
    flights = clusters.Flights(logit, label, np.full(len(day), "AA"), day, curves)
    for name in ("log_loss", "o_over_e"):
        low, high = clusters.over_days(flights, name)
        ours, independent = (getattr(clusters._found(flights, clustered=each), name) for each in (True, False))
        assert 0.8 < (ours.upper - ours.lower) / (high - low) < 1.25
        assert independent.upper - independent.lower < 0.7 * (high - low)
    low, high = clusters.over_days(flights, "relative")
    ours, independent = (clusters.reported(flights, clustered=each) for each in (True, False))
    assert 0.8 < (ours.upper - ours.lower) / (high - low) < 1.25
    assert independent.upper - independent.lower < 0.7 * (high - low)
