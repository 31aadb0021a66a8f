"""Levels: each drawn to the one above, none changing it; where nothing is known, nothing is changed."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.errors import InputError
from isolayer.fitting import hierarchy, level
from isolayer.fitting.hierarchy import FLOOR, fit_levels, strengths_of
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.prior import Strength
from isolayer.grid import Grid

GRID = Grid(lower=-6, upper=4, step=0.4)
KNOTS = GRID.knots[1:]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rows_of(seed, n=20_000):
    rng = np.random.default_rng(seed)
    platform, slot = rng.integers(0, 3, n), rng.integers(0, 5, n)
    logit = rng.normal(-2, 1.5, n)
    truth = 0.8 * logit + 0.5 * platform - 0.3 * slot
    return logit, (rng.random(n) < sigmoid(truth)).astype(float), {"platform": platform, "slot": slot}


def test_every_level_has_its_contexts_and_converges():
    levels = fit_levels(Histogram.from_arrays(*rows_of(0), grid=GRID))
    assert [len(keys[0]) if keys else 1 for keys in levels.keys] == [1, 3, 15]
    assert (
        levels.table.values.shape == levels.table.variance.shape == levels.table.knot_weight.shape == (19, GRID.buckets)
    )
    assert levels.residual < 1e-6
    assert np.diff(levels.table.values, axis=1).min() >= FLOOR * GRID.step * (1 - 1e-9)
    np.testing.assert_allclose(levels.table.knot_weight.sum(1), levels.rows, rtol=1e-5)
    assert levels.rows[0] == levels.rows[1:4].sum() == levels.rows[4:].sum() == 20_000


def test_deeper_levels_leave_those_above_as_they_were():
    logit, label, context = rows_of(1)
    deep = fit_levels(Histogram.from_arrays(logit, label, context, grid=GRID))
    for depth, rows in ((0, 1), (1, 4)):
        shallow = {name: context[name] for name in list(context)[:depth]}
        alone = fit_levels(Histogram.from_arrays(logit, label, shallow, grid=GRID))
        np.testing.assert_allclose(deep.table.values[:rows], alone.table.values, atol=1e-9)


def test_beyond_its_rows_a_curve_follows_its_line():
    rng = np.random.default_rng(2)
    logit, label, context = rows_of(2)
    narrow = rng.uniform(-1.4, -0.6, 4000)  # one more platform, seen between -1.4 and -0.6 only, with another slope
    logit, context = (
        np.concatenate([logit, narrow]),
        {"platform": np.concatenate([context["platform"], np.full(4000, 9)])},
    )
    label = np.concatenate([label, rng.random(4000) < sigmoid(3 * narrow + 3)])
    wide = Grid(lower=GRID.lower, upper=10.0, step=GRID.step)
    levels = fit_levels(Histogram.from_arrays(logit, label, context, grid=wide), shrinkage=(1.0, 1.0, 0.1))
    deviation, at = np.diff(levels.table.values[-1] - levels.table.values[0]) / wide.step, wide.knots[1:-1]
    far, near = np.abs(deviation[(at > 5) & (at < 8)]), np.abs(deviation[(at > -1.5) & (at < -0.5)])
    assert near.max() > 0.5
    assert np.ptp(far) < 0.02  # a line,
    assert far.max() < 0.5 * near.max()  # and a shrunk one


def test_a_context_with_next_to_no_rows_has_its_parents_curve():
    logit, label, context = rows_of(3)
    context = {"platform": np.append(context["platform"], 9)}
    histogram = Histogram.from_arrays(
        np.append(logit, -2.0), np.append(label, 1.0), context, np.append(np.ones(len(logit)), 1e-6), grid=GRID
    )
    levels = fit_levels(histogram)
    np.testing.assert_allclose(levels.table.values[-1], levels.table.values[0], atol=0.01)


def test_scores_already_calibrated_are_left_alone():
    """Over 20 seeds the excess over raw is less than a third of that of a free level per segment, 1 / (2 rows)."""
    excess = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logit, segment = rng.normal(-2, 1.5, 4000), rng.integers(0, 20, 4000)
        label = (rng.random(4000) < sigmoid(logit)).astype(float)
        levels = fit_levels(Histogram.from_arrays(logit, label, {"segment": segment}, grid=GRID))
        x = rng.normal(-2, 1.5, 5000).clip(GRID.lower, GRID.upper)
        prob = sigmoid(x)
        for row in range(21):
            value = np.interp(x, KNOTS, levels.table.values[row])
            excess.append(np.mean(np.logaddexp(0, value) - prob * value) - np.mean(np.logaddexp(0, x) - prob * x))
    assert np.mean(excess) < 1 / (3 * 2 * 200)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 200))
def test_weight_two_is_the_row_twice(seed, n):
    rng = np.random.default_rng(seed)
    logit, label, context = rng.normal(size=n), (rng.random(n) < 0.4).astype(float), rng.integers(0, 3, n)
    weight = rng.integers(1, 4, n)
    again = np.repeat(np.arange(n), weight)
    weighted = fit_levels(Histogram.from_arrays(logit, label, {"c": context}, weight, grid=GRID))
    repeated = fit_levels(Histogram.from_arrays(logit[again], label[again], {"c": context[again]}, grid=GRID))
    np.testing.assert_allclose(weighted.table.values, repeated.table.values, atol=1e-6)


def test_chunks_make_no_difference(monkeypatch):
    histogram = Histogram.from_arrays(*rows_of(4), grid=GRID)
    whole = fit_levels(histogram)
    monkeypatch.setattr(level, "_CHUNK", 4)
    np.testing.assert_allclose(fit_levels(histogram).table.values, whole.table.values, atol=1e-6)


def test_memory_is_linear_in_the_knots():
    """A dense matrix of 3,001 knots would take 72 MB."""
    logit, label, _ = rows_of(4, 200)
    fine = Histogram.from_arrays(logit, label, grid=Grid(lower=-6, upper=6, step=0.004))
    tracemalloc.start()
    values = fit_levels(fine, shrinkage=1.0).table.values
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values.shape == (1, 3001)
    assert peak < 20e6


def test_more_knot_values_than_can_be_served_are_refused(monkeypatch):
    monkeypatch.setattr(hierarchy, "_MOST_VALUES", 18 * GRID.buckets)
    with pytest.raises(InputError) as error:
        fit_levels(Histogram.from_arrays(*rows_of(4), grid=GRID))
    assert str(error.value) == (
        "curves: expected at most 468 knot values, got 19 curves of 26 knots each; use a grid with a larger step or "
        "fewer contexts"
    )


def test_a_sample_of_contexts_serves_to_choose(monkeypatch):
    rng = np.random.default_rng(0)
    shift, segment = rng.normal(size=400) * 0.5, rng.integers(0, 400, 80_000)
    logit = rng.normal(-1, 1.5, 80_000)
    label = (rng.random(80_000) < sigmoid(logit + shift[segment])).astype(float)
    histogram = Histogram.from_arrays(logit, label, {"segment": segment}, grid=GRID)
    every = fit_levels(histogram).strengths[1]
    monkeypatch.setattr(hierarchy, "_SAMPLE", (100, 100))
    assert hierarchy._sample(histogram).sum() == 100
    some = fit_levels(histogram).strengths[1]
    assert 0.6 < some.level / every.level < 1.7


def test_bands_hold_the_truth_as_often_as_they_say():
    """Coverage at 95% within 3 points, averaged over rows of contexts with 500 rows or more."""
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        level, slope = rng.normal(size=60) * 0.5, np.exp(rng.normal(size=60) * 0.15)
        segment, logit = rng.integers(0, 60, 60_000), rng.normal(-2, 1.5, 60_000).clip(GRID.lower, GRID.upper)
        truth = level[segment] + slope[segment] * logit + 0.2 * np.sin(2 * logit + 9 * level[segment])
        label = (rng.random(60_000) < sigmoid(truth)).astype(float)
        levels = fit_levels(Histogram.from_arrays(logit, label, {"segment": segment}, grid=GRID))
        for row in range(60):
            x = logit[segment == row]
            assert len(x) >= 500
            value = np.interp(x, KNOTS, levels.table.values[1 + row])
            spread = np.sqrt(np.interp(x, KNOTS, levels.table.variance[1 + row]))
            inside.append(np.mean(np.abs(value - truth[segment == row]) < 1.96 * spread))
    assert abs(np.mean(inside) - 0.95) < 0.03


def test_strengths_given_are_strengths_used():
    histogram = Histogram.from_arrays(*rows_of(6), grid=GRID)
    assert fit_levels(histogram, shrinkage=2.0).strengths == (Strength(2, 2, 2),) * 3
    per_level = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert fit_levels(histogram, shrinkage=per_level).strengths == tuple(Strength(*row) for row in per_level)
    stiff, loose = fit_levels(histogram, shrinkage=1e7).table.values, fit_levels(histogram, shrinkage=0.0).table.values
    np.testing.assert_allclose(stiff, np.broadcast_to(KNOTS, stiff.shape), atol=0.15)
    assert np.abs(loose - KNOTS).max() > 0.5


@pytest.mark.parametrize("shrinkage", ["best", -1.0, [1, 2], [[1, 2, 3]], float("nan")])
def test_shrinkage_that_means_nothing(shrinkage):
    with pytest.raises(
        InputError, match='shrinkage: expected "auto", a number >= 0, three of them or 2 times three, got'
    ):
        strengths_of(shrinkage, 2)


def test_a_curve_held_to_its_parent_is_as_uncertain_as_its_parent():
    histogram = Histogram.from_arrays(*rows_of(7, 2000), grid=GRID)
    levels = fit_levels(histogram, shrinkage=[[1, 1, 1], [1e6, 1e6, 1e6], [1e6, 1e6, 1e6]])
    np.testing.assert_allclose(
        levels.table.variance[1:], np.broadcast_to(levels.table.variance[0], (18, GRID.buckets)), rtol=0.05
    )


@pytest.mark.filterwarnings("ignore")  # numpy and the solver warn on the way
@pytest.mark.parametrize("shrinkage", ["auto", 1.0])
def test_weights_beyond_what_can_be_computed_are_refused(shrinkage):
    logit, label, context = rows_of(8, 300)
    histogram = Histogram.from_arrays(logit, label, context, np.full(300, 1e90), grid=GRID)
    with pytest.raises(InputError, match=r"weight: expected weights that do not overflow the solver, got sums from"):
        fit_levels(histogram, shrinkage=shrinkage)
    light = Histogram.from_arrays(logit, label, context, np.full(300, 1e-90), grid=GRID)
    np.testing.assert_allclose(fit_levels(light, shrinkage=shrinkage).table.values, np.tile(KNOTS, (19, 1)), atol=0.1)
