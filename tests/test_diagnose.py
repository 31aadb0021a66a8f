"""diagnose: overlap and harvest against what the simulator knows; the warning fires for informed loggers only."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer import Curves, Grid, InputError, simulate
from isolayer.debias.diagnose import after_training, overlap, position_effect
from isolayer.debias.informed_logger_test import logger_test
from isolayer.debias.intervention_harvesting import components, effective_rows, harvest
from isolayer.debias.logger_score import logger_score, quantile_buckets

SETUPS = [(bias, deterministic) for bias in ("position", "trust") for deterministic in (False, True)]


def fitted(feed, log, buckets=40):
    """What a model without flaw would say: relevance is what the features tell, the rate that of its cell."""
    relevance = feed.population.visible(log["user"], log["item"][:, None])[:, 0]
    cell = log["position"] * buckets + quantile_buckets(relevance, buckets)
    rate = np.bincount(cell, log["click"]) / np.maximum(np.bincount(cell), 1)
    return relevance, rate[cell]


def told(bias, logger, deterministic, seed, sessions=15_000):
    feed = simulate.debias_feed(bias, logger, deterministic=deterministic, seed=seed)
    log = feed.log(sessions, seed=seed)
    relevance, prob = fitted(feed, log)
    return logger_test(log["click"], prob, relevance, log["position"], log["session"], features=log["features"])


@pytest.mark.parametrize(("bias", "deterministic"), SETUPS)
def test_the_warning_fires_when_the_logger_knows_what_the_features_lack(bias, deterministic):
    for seed in (11, 12):
        result = told(bias, "informed", deterministic, seed)
        assert result.fires, result
        assert result.effect > 0
        assert result.alpha == 0.1
        assert "anchor='joint' with alpha=0.1, beta=0.9" in str(result)
        assert result.p_value < 0.002
        assert str(result).startswith("Warning: items ranked higher than their features explain earn more labels")


@pytest.mark.parametrize(("bias", "deterministic"), SETUPS)
def test_it_stays_silent_when_the_logger_ranks_by_the_features(bias, deterministic):
    for seed in (11, 12, 13):
        result = told(bias, "spurious", deterministic, seed)
        assert not result.fires, result
        assert result.alpha == 0
        assert str(result).startswith("No sign that the logger used information that the features lack")


@pytest.mark.parametrize("behaviour", [simulate.PositionBased(eta=(0.5, 1.0, 1.5)), simulate.DynamicBayesian()])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_good_logger_that_knows_only_the_features_is_not_accused(behaviour, temperature):
    logger = simulate.Logger(relevance=1.0, spurious=0.0, temperature=temperature)
    feed = replace(simulate.debias_feed("position", "spurious", seed=4), logger=logger, behaviour=behaviour)
    log = feed.log(10_000, seed=4)
    relevance, prob = fitted(feed, log)
    options = {"features": log["features"]}
    assert not logger_test(log["click"], prob, relevance, log["position"], log["session"], **options).fires


def test_the_statistic_is_standard_normal_when_there_is_nothing_to_find():
    statistics = [told("position", "spurious", False, seed, sessions=2_000).statistic for seed in range(30)]
    assert abs(np.mean(statistics)) < 3 / np.sqrt(30)
    assert 0.6 < np.std(statistics) < 1.5


def test_harvest_finds_the_examination_curve():
    feed = simulate.debias_feed("position", "spurious", seed=3)
    log = feed.log(15_000, seed=3)
    truth = np.asarray(simulate.ULTRA_EXAMINATION)
    for result in (
        overlap(log["position"], log["click"], features=log["features"]),
        overlap(log["position"], log["click"], item=log["item"]),
    ):
        low, high = result.harvested.interval(0.9999)
        assert ((low <= truth / truth[0]) & (truth / truth[0] <= high)).all()
        assert result.connected


def test_intervals_cover_as_they_say():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        unit, position = rng.integers(0, 300, 4000), rng.integers(0, 4, 4000)
        rate = rng.uniform(0.05, 0.3, 300)[unit] * np.array([1, 0.7, 0.5, 0.2])[position]
        low, high = harvest(unit, position, rng.random(4000) < rate).interval(0.9)
        inside.append((low[1:] <= [0.7, 0.5, 0.2]) & (high[1:] >= [0.7, 0.5, 0.2]))
    assert 0.87 < np.mean(inside) < 0.96  # conservative: the model's counts have no upper limit


def clustered_log(seed, days=24, rows=500, spread=0.35):
    """Rows of days on each of which position 1 is looked at more or less; as much as e to the power of the spread."""
    rng = np.random.default_rng(seed)
    day = np.repeat(np.arange(days), rows)
    unit, position = rng.integers(0, 60, len(day)), rng.integers(0, 2, len(day))
    shift = rng.normal(-(spread**2) / 2, spread, days)[day]  # of mean 1
    rate = rng.uniform(0.1, 0.4, 60)[unit] * np.where(position == 1, 0.5 * np.exp(shift), 1.0)
    return unit, position, rng.random(len(day)) < rate, day


def test_intervals_of_clustered_rows_cover_as_they_say():
    inside = {"clusters": [], "rows": []}
    for seed in range(150):
        unit, position, label, day = clustered_log(seed)
        for name, options in (("clusters", {"cluster": day}), ("rows", {})):
            low, high = harvest(unit, position, label, **options).interval(0.9)
            inside[name].append(low[1] <= 0.5 <= high[1])
    assert 0.83 < np.mean(inside["clusters"]) < 0.97
    assert np.mean(inside["rows"]) < 0.75


def test_clusters_of_one_row_change_nothing_and_larger_ones_only_widen():
    unit, position, label, day = clustered_log(0)
    alone, plain = harvest(unit, position, label, cluster=np.arange(len(day))), harvest(unit, position, label)
    np.testing.assert_allclose(alone.log_error, plain.log_error, rtol=1e-3)
    assert harvest(unit, position, label, cluster=day).log_error[1] > 1.2 * plain.log_error[1]
    np.testing.assert_array_equal(harvest(unit, position, label, cluster=day).ratio, plain.ratio)
    only = np.where(unit == unit[0], 0, np.arange(len(day)))  # what is compared may all be of one cluster
    assert np.isfinite(harvest(np.where(only == 0, 0, np.arange(len(day))), position, label, cluster=only).log_error[0])
    twice = harvest(unit, position, label, cluster=day, weight=np.full(len(day), 2.0))
    again = harvest(*(np.r_[column, column] for column in (unit, position, label)), cluster=np.r_[day, day])
    np.testing.assert_allclose(twice.log_error, again.log_error, rtol=1e-9)


def test_every_interval_of_a_diagnosis_counts_clusters():
    unit, position, label, day = clustered_log(1)
    wide, narrow = (overlap(position, label, item=unit, **options) for options in ({"cluster": day}, {}))
    assert wide.harvested.clusters == 24
    assert wide.harvested.log_error[1] > narrow.harvested.log_error[1]
    rng = np.random.default_rng(0)
    level = rng.normal(0, 0.8, 24)[day]
    prob = np.full(len(day), 0.3)
    click = rng.random(len(day)) < 1 / (1 + np.exp(0.85 - level))
    columns = (click, prob, rng.normal(0, 1, len(day)), {"position": position})
    lists = np.arange(len(day)) // 6
    told = [after_training(*columns, session=lists, **options) for options in ({"cluster": day}, {})]
    for table in ("by_context", "by_position"):
        widths = [getattr(one, table).upper - getattr(one, table).lower for one in told]
        assert (widths[0] > 1.5 * widths[1]).all(), table
    np.testing.assert_allclose(told[0].by_position.ratio, told[1].by_position.ratio)
    assert told[0].logger.smallest >= told[1].logger.smallest


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_a_unit_s_own_rate_cancels_and_order_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    unit, position, label = rng.integers(0, 20, 300), rng.integers(0, 3, 300), rng.integers(0, 2, 300)
    one = harvest(unit, position, label)
    order = rng.permutation(300)
    np.testing.assert_allclose(harvest(unit[order], position[order], label[order]).ratio, one.ratio, rtol=1e-6)
    # A unit without events, or at one position only, tells nothing.
    more = harvest(
        np.r_[unit, [97] * 9, [98] * 6], np.r_[position, [0, 1, 2] * 3, [1] * 6], np.r_[label, [0] * 9, [1] * 6]
    )
    np.testing.assert_allclose(more.ratio, one.ratio, rtol=1e-6)
    # Every row twice: the same effect, told better.
    twice = harvest(np.r_[unit, unit], np.r_[position, position], np.r_[label, label])
    np.testing.assert_allclose(twice.ratio, one.ratio, rtol=1e-6)
    np.testing.assert_allclose(twice.log_error[1:], one.log_error[1:] / np.sqrt(2), rtol=1e-4)


def test_positions_that_nothing_ties_are_named():
    result = overlap([0, 1, 2, 2] * 50, [1, 0, 1, 0] * 50, item=["a", "a", "b", "b"] * 50)
    assert not result.connected
    assert not result.estimable
    assert np.isnan(result.harvested.ratio[2])
    assert str(result) == (
        "1 of 2 items were shown at more than one position: 50% of the rows.\n"
        "Position 2 has the fewest comparisons: its 100 rows count as 0.\n"
        "Nothing connects positions 2 to position 0: their effects cannot be compared. Shuffle a share of the traffic, "
        "or give coarser features."
    )


def test_few_rows_are_not_enough():
    rng = np.random.default_rng(1)
    result = overlap(rng.integers(0, 3, 90), rng.integers(0, 2, 90), item=rng.integers(0, 9, 90))
    assert result.connected
    assert not result.estimable
    assert "are above 20%: use more rows." in str(result)


def test_overlap_is_told_where_there_is_some():
    rng = np.random.default_rng(1)
    position = rng.integers(0, 3, 30_000)
    result = overlap(
        position, rng.random(30_000) < np.array([0.4, 0.2, 0.1])[position], item=rng.integers(0, 50, 30_000)
    )
    assert result.estimable
    assert "can be estimated from this log: the rate at position 2 is 0.2" in str(result)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_parts_and_effective_rows_equal_the_obvious_loop(table):
    shown = np.array(table, dtype=float)
    part = list(range(4))
    for _ in range(4):
        for row in table:
            tied = [k for k in range(4) if row[k]]
            for k in tied:
                part[k] = min(part[j] for j in tied)
        part = [part[p] for p in part]
    found = components(shown)
    assert [[found[i] == found[j] for j in range(4)] for i in range(4)] == [
        [part[i] == part[j] for j in range(4)] for i in range(4)
    ]
    expected = [sum(row[k] * (sum(row) - row[k]) / sum(row) for row in table if sum(row)) for k in range(4)]
    np.testing.assert_allclose(effective_rows(shown), expected)


def test_the_logger_s_score_is_found():
    feed = simulate.debias_feed("position", "spurious", deterministic=True, seed=3)
    log = feed.log(2_000, seed=3)
    spurious = feed.population.spurious(log["item"])
    assert np.corrcoef(logger_score(log["features"], log["position"], log["session"]), spurious)[0, 1] > 0.99
    assert np.corrcoef(logger_score(log["features"], log["position"]), spurious)[0, 1] > 0.99


def true_curves():
    """What DualHead.curves() would give, had it learned the examination of each position without error."""
    grid = Grid(step=0.05)
    x, seen = grid.knots[1:], np.asarray(simulate.ULTRA_EXAMINATION)
    chance = np.concatenate([[1.0, 1.0], seen])[:, None] / (1 + np.exp(-x))  # over all, of the task, of each position
    values = np.log(chance / (1 - chance))
    nothing = np.zeros_like(values)
    task, position = np.repeat("click", len(seen)), np.arange(len(seen))
    keys = ((), (task[:1],), (task, position))
    return Curves(grid, ("task", "position"), keys, values, nothing, nothing, np.zeros(len(values)))


def test_after_training_compares_and_says_so():
    feed = simulate.debias_feed("position", "spurious", seed=5)
    log = feed.log(15_000, seed=5)
    relevance, prob = fitted(feed, log)
    context = {"position": log["position"]}
    learned = position_effect(true_curves(), relevance, context)
    np.testing.assert_allclose(learned, np.asarray(simulate.ULTRA_EXAMINATION) / 0.68, rtol=1e-3)
    options = {"session": log["session"], "features": log["features"]}
    good = after_training(log["click"], prob, relevance, context, learned=learned, **options)
    assert not good.miscalibrated.any()
    assert not good.curve_differs.any()
    assert good.alpha == 0
    assert "agrees with the one harvested from the log" in str(good)
    assert "None of 50 contexts and score buckets differs from 1." in str(good)
    flat = np.full(len(prob), prob.mean())
    bad = after_training(log["click"], flat, relevance, context, learned=np.ones(10), **options)
    assert bad.miscalibrated.sum() > 30
    assert bad.curve_differs[2:].all()
    assert "The learned effect of position differs from the harvested one at positions" in str(bad)
    assert "the worst is position" in str(bad)
    alone = after_training(log["click"], prob, relevance, context)
    assert alone.logger is None
    assert str(alone).endswith("No lists were given, so the logger was not tested.")
    more = after_training(log["click"], prob, relevance, context, buckets=8)
    assert len(more.by_context.ratio) == 80


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: overlap([0], [1]),
            "overlap: expected item or features, got both or neither; name one column to compare by",
        ),
        (lambda: overlap([0], [1], features=[[1.0]], cells=0), "cells: expected a positive integer, got 0; try 200"),
        (
            lambda: overlap([0, 1], [1, 0], features=[[np.nan], [1.0]]),
            "features: expected finite numbers, got nan at [0, 0]; drop or repair those rows",
        ),
        (
            lambda: logger_test([0, 1], [0.5, 0.5], [0, 1], [0, 1], [0, 0]),
            "session: expected lists of several items, 1 rows share one; use more rows",
        ),
        (
            lambda: logger_test([0, 2], [0.5, 0.5], [0, 1], [0, 1], [0, 0]),
            "label: expected labels in [0, 1], got 2.0 in row 1; give 0 and 1, or a soft label between them",
        ),
        (
            lambda: after_training([0, 1], [0.5, 0.5], [0, 1], {"device": [0, 1]}),
            "context: expected a column 'position', got ['device']; rename or add it",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message
