"""Estimators against exact expectations in enumerated worlds, intervals against coverage, propensities likewise."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.policy import (
    Estimate,
    curve_examination,
    dm,
    dr,
    dros,
    effective_sample_size,
    estimates,
    expected_reward,
    exposure,
    importance_weight,
    ipw,
    item_position,
    placement_prob,
    position_based,
    ranking_propensity,
    snipw,
    softmax_propensity,
    switch_dr,
)

seeds = st.integers(0, 2**32 - 1)


class World:
    """Contexts, actions and binary rewards small enough to enumerate: every outcome with its probability."""

    def __init__(self, seed: int, contexts: int = 3, actions: int = 4):
        rng = np.random.default_rng(seed)
        self.context_prob = rng.dirichlet(np.full(contexts, 5.0))
        self.logging = rng.dirichlet(np.full(actions, 2.0), contexts) * 0.9 + 0.1 / actions
        self.target = rng.dirichlet(np.full(actions, 2.0), contexts)
        self.reward = rng.uniform(0.05, 0.95, (contexts, actions))
        self.wrong_model = rng.uniform(0, 1, (contexts, actions))
        self.value = float(self.context_prob @ (self.target * self.reward).sum(1))

    def columns(self, x, a, model):
        weight = importance_weight(self.target[x, a], self.logging[x, a])
        return weight, model[x, a], expected_reward(self.target[x], model[x])

    def outcomes(self):
        x, a, r = np.array(list(product(range(3), range(4), (0, 1)))).T
        chance = self.context_prob[x] * self.logging[x, a] * np.where(r, self.reward[x, a], 1 - self.reward[x, a])
        return x, a, r, chance

    def log(self, rows: int, seed: int):
        rng = np.random.default_rng(seed)
        x = rng.choice(len(self.context_prob), rows, p=self.context_prob)
        a = (rng.random((rows, 1)) > self.logging.cumsum(1)[x]).sum(1).clip(0, self.logging.shape[1] - 1)
        return x, a, (rng.random(rows) < self.reward[x, a]).astype(float)


@given(seeds)
def test_ipw_and_dr_are_unbiased_with_any_model_and_dm_with_the_true_one(seed):
    world = World(seed)
    x, a, r, chance = world.outcomes()
    weight, logged_hat, target_hat = world.columns(x, a, world.wrong_model)
    np.testing.assert_allclose(chance @ ipw(r, weight).gain, world.value, atol=1e-12)
    np.testing.assert_allclose(chance @ dr(r, weight, logged_hat, target_hat).gain, world.value, atol=1e-12)
    _, _, true_hat = world.columns(x, a, world.reward)
    np.testing.assert_allclose(chance @ dm(true_hat).gain, world.value, atol=1e-12)


@given(seeds)
def test_dr_needs_no_right_weights_when_the_model_is_right(seed):
    world = World(seed)
    x, a, r, chance = world.outcomes()
    weight, logged_hat, target_hat = world.columns(x, a, world.reward)
    wrong = weight * np.random.default_rng(seed).uniform(0.2, 3, (3, 4))[x, a]
    np.testing.assert_allclose(chance @ dr(r, wrong, logged_hat, target_hat).gain, world.value, atol=1e-12)
    assert abs(chance @ ipw(r, wrong).gain - world.value) > 1e-6


def test_dr_with_the_true_model_is_less_noisy_than_ipw_and_snipw_tends_to_the_value():
    world = World(7)
    x, a, r = world.log(200_000, 1)
    weight, logged_hat, target_hat = world.columns(x, a, world.reward)
    estimate = estimates(r, weight, logged_hat, target_hat)
    assert estimate["dr"].standard_error < 0.9 * estimate["ipw"].standard_error
    for name, one in estimate.items():
        error = max(one.standard_error, estimate["dr"].standard_error)
        assert abs(one.value - world.value) < 4 * error, name


@pytest.mark.parametrize("name", ["ipw", "snipw", "dr"])
def test_intervals_cover_the_value_as_often_as_they_say(name):
    world, hits, values = World(3), {"normal": 0, "bootstrap": 0}, []
    for seed in range(400):
        x, a, r = world.log(400, seed)
        estimate = estimates(r, *world.columns(x, a, world.wrong_model))[name]
        values.append(estimate.value)
        lower, upper = estimate.normal(0.9)
        hits["normal"] += lower <= world.value <= upper
        lower, upper = estimate.bootstrap(0.9, resamples=200, seed=seed)
        hits["bootstrap"] += lower <= world.value <= upper
    assert abs(np.mean(values) - world.value) < 4 * np.std(values) / 20
    for share in hits.values():  # 400 trials at 0.9: one standard deviation is 0.015
        assert 0.85 < share / 400 < 0.95


@given(seeds)
def test_switch_and_shrinkage_run_from_the_direct_method_to_doubly_robust(seed):
    world = World(seed)
    x, a, r = world.log(50, seed)
    columns = (r, *world.columns(x, a, world.wrong_model))
    for estimator, option in ((switch_dr, "threshold"), (dros, "shrinkage")):
        assert estimator(*columns, **{option: 0.0}).value == pytest.approx(dm(columns[3]).value)
        assert estimator(*columns, **{option: 1e12}).value == pytest.approx(dr(*columns).value)
    between = dros(*columns, shrinkage=1.0)
    shrunk = columns[1] / (columns[1] ** 2 + 1.0)
    np.testing.assert_allclose(between.gain, columns[3] + shrunk * (r - columns[2]))


def test_automatic_choice_lowers_the_error_when_weights_are_heavy():
    errors = {"dr": [], "dros": [], "switch_dr": []}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        logging = np.where(rng.random(300) < 0.02, 0.002, 0.5)
        reward = (rng.random(300) < 0.3).astype(float)
        weight = importance_weight(np.where(logging < 0.1, 0.4, 0.5), logging)
        made = estimates(reward, weight, np.full(300, 0.31), np.full(300, 0.31))
        for name, squares in errors.items():
            squares.append((made[name].value - 0.3) ** 2)
    assert np.mean(errors["dros"]) < 0.5 * np.mean(errors["dr"])
    assert np.mean(errors["switch_dr"]) < 0.5 * np.mean(errors["dr"])


def test_automatic_choice_keeps_the_correction_when_the_model_is_wrong():
    rng = np.random.default_rng(0)
    logging = rng.uniform(0.2, 0.8, 50_000)
    reward = (rng.random(50_000) < 0.3).astype(float)
    made = estimates(
        reward, importance_weight(np.full(50_000, 0.5), logging), np.full(50_000, 0.6), np.full(50_000, 0.6)
    )
    for name in ("dros", "switch_dr"):  # dm says 0.6
        assert made[name].value == pytest.approx(made["dr"].value, abs=0.01)


@given(seeds)
def test_self_normalised_value_is_a_weighted_mean_of_rewards(seed):
    rng = np.random.default_rng(seed)
    reward, weight = rng.random(20), rng.exponential(3, 20)
    assert snipw(reward, weight).value == pytest.approx(np.average(reward, weights=weight))


def test_temperature_divides_utilities():
    assert softmax_propensity([math.log(4), 0.0], temperature=2).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert ranking_propensity([[math.log(4), 0.0]], [[0, 1]], temperature=2) == pytest.approx([2 / 3])
    assert placement_prob([[math.log(4), 0.0]], 1, temperature=2).ravel() == pytest.approx([2 / 3, 1 / 3])


def test_effective_sample_size_and_clipping():
    assert effective_sample_size(np.full(10, 3.0)) == 10
    assert effective_sample_size([2, 1, 1]) == pytest.approx(16 / 6)
    assert effective_sample_size([0, 0]) == 0
    assert importance_weight([1.0], [0.1], clip=4).tolist() == [4]


def test_rows_twice_leave_the_value_and_narrow_the_interval():
    estimate = snipw([1, 0, 1, 0], [2, 1, 0.5, 3])
    twice = Estimate(np.tile(estimate.gain, 2), np.tile(estimate.mass, 2))
    assert twice.value == pytest.approx(estimate.value)
    assert twice.standard_error < estimate.standard_error
    estimate = ipw(np.arange(50.0), np.ones(50))
    assert estimate.bootstrap(seed=1) == estimate.bootstrap(seed=1) != estimate.bootstrap(seed=2)


@settings(max_examples=25)
@given(arrays(np.float64, (2, 4), elements=st.floats(-4, 4)), st.floats(0.3, 3))
def test_placement_equals_the_sum_over_all_rankings(utility, temperature):
    orders = np.array(list(permutations(range(4), 3)))
    expected = np.zeros((2, 4, 3))
    for order in orders:
        prob = ranking_propensity(utility, np.tile(order, (2, 1)), temperature=temperature)
        for k, item in enumerate(order):
            expected[:, item, k] += prob
    placement = placement_prob(utility, 3, temperature=temperature)
    np.testing.assert_allclose(placement, expected, atol=1e-9)
    np.testing.assert_allclose(placement[..., 0], softmax_propensity(utility, temperature=temperature), atol=1e-9)


def test_placement_of_many_slates_equals_one_by_one_and_fills_every_position():
    utility = np.random.default_rng(0).normal(0, 2, (300, 20))
    placement = placement_prob(utility, 10)
    np.testing.assert_allclose(placement.sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(placement[17], placement_prob(utility[17:18], 10)[0], atol=1e-9)


@settings(max_examples=50)
@given(arrays(np.float64, (3, 5), elements=st.floats(-300, 300)), st.integers(1, 5))
def test_placements_are_probabilities_that_the_estimator_takes(utility, positions):
    placement = placement_prob(utility, positions)
    assert 0 <= placement.min() <= placement.max() <= 1
    np.testing.assert_allclose(placement.sum(1), 1, atol=1e-12)
    shown = np.maximum(placement[:, :positions, :].diagonal(axis1=1, axis2=2), 1e-300)
    assert item_position(np.ones((3, positions)), shown, shown).value == pytest.approx(positions)


@given(arrays(np.float64, (2, 4), elements=st.floats(-1e6, 1e6)), st.permutations(range(4)))
def test_rankings_have_a_probability_whatever_the_utilities(utility, order):
    prob = ranking_propensity(utility, np.tile(order, (2, 1)))
    assert np.isfinite(prob).all()
    assert (prob >= 0).all()
    assert (prob <= 1).all()
    total = sum(ranking_propensity(utility, np.tile(one, (2, 1))) for one in permutations(range(4)))
    np.testing.assert_allclose(total, 1)


@given(seeds)
def test_exposure_equals_the_obvious_loop_for_examination_by_position_item_and_slate(seed):
    rng = np.random.default_rng(seed)
    placement = rng.random((2, 3, 3))
    for shape in ((3,), (3, 3), (2, 3, 3)):
        examination = rng.random(shape)
        at = np.broadcast_to(examination, placement.shape)
        expected = [[sum(placement[s, i, k] * at[s, i, k] for k in range(3)) for i in range(3)] for s in range(2)]
        np.testing.assert_allclose(exposure(placement, examination), expected)


@given(seeds)
def test_position_based_is_exact_when_examination_depends_on_the_item(seed):
    shown, chance, _, target, logging, _, _ = slate_world(seed)
    rng = np.random.default_rng(seed)
    examination, relevance = np.sort(rng.uniform(0.1, 1, (4, 3)))[:, ::-1], rng.uniform(0.1, 0.9, 4)
    click = examination[shown, np.arange(3)] * relevance[shown]
    estimate = position_based(click, exposure(target, examination)[shown], exposure(logging, examination)[shown])
    value = float((target * examination * relevance[:, None]).sum())
    assert chance @ estimate.gain == pytest.approx(value, abs=1e-9)


def slate_world(seed: int):
    """Every ranking of 3 of 4 items with its chance, clicks by examination x relevance, and the target's true value."""
    rng = np.random.default_rng(seed)
    utility, examination, relevance = rng.normal(0, 1, 4), np.array([1.0, 0.5, 0.2]), rng.uniform(0.1, 0.9, 4)
    target = placement_prob([utility[::-1] * 1.5], 3)[0]
    logging = placement_prob([utility], 3)[0]
    shown = np.array(list(permutations(range(4), 3)))
    chance = ranking_propensity(np.tile(utility, (len(shown), 1)), shown)
    value = float(((target @ examination) * relevance).sum())
    return shown, chance, examination * relevance[shown], target, logging, examination, value


@given(seeds)
def test_slate_estimators_are_exact_under_the_position_based_model(seed):
    shown, chance, click, target, logging, examination, value = slate_world(seed)
    at = np.arange(3)
    by_item = item_position(click, target[shown, at], logging[shown, at])
    by_model = position_based(click, exposure(target, examination)[shown], exposure(logging, examination)[shown])
    assert chance @ by_item.gain == pytest.approx(value, abs=1e-9)
    assert chance @ by_model.gain == pytest.approx(value, abs=1e-9)
    # exposure ratios average the placement ratios, so by Jensen their squares are no larger
    model_weight = (exposure(target, examination) / exposure(logging, examination))[shown]
    item_weight = target[shown, at] / logging[shown, at]
    assert chance @ (click * model_weight**2).sum(1) <= chance @ (click * item_weight**2).sum(1) + 1e-9


def test_examination_read_off_fitted_curves_is_that_of_the_clicks():
    rng = np.random.default_rng(0)
    logit, position = rng.normal(0, 1, 200_000), rng.integers(0, 3, 200_000)
    examination = np.array([1.0, 0.5, 0.2])
    click = rng.random(200_000) < examination[position] / (1 + np.exp(-logit))
    curves = Curves.from_histogram(Histogram.from_arrays(logit, click.astype(float), {"position": position}))
    asked = np.tile(np.linspace(-1, 1.5, 20), 3)
    shown, top = np.repeat([0, 1, 2], 20), np.zeros(60, np.int64)
    ratio = curve_examination(curves, asked, {"position": shown}, {"position": top})
    np.testing.assert_array_equal(ratio[:20], 1)
    np.testing.assert_allclose(ratio, examination[shown], rtol=0.15)
    assert ratio[20:40].mean() == pytest.approx(0.5, abs=0.02)
    assert ratio[40:].mean() == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ipw([1, 0], [1.0]), "weight: expected 2 rows like the other columns, got 1; align the columns"),
        (lambda: ipw([], []), "reward: expected at least one row, got 0"),
        (lambda: item_position([[math.nan]], [[1.0]], [[1.0]]), "click: expected finite numbers, got nan"),
        (lambda: position_based([[1.0]], [[-1.0]], [[1.0]]), "target_exposure: expected numbers >= 0, got -1"),
        (lambda: ipw([math.nan], [1.0]), "reward: expected finite numbers, got nan in row 0; drop or repair"),
        (lambda: ipw([1.0], [-1.0]), "weight: expected numbers >= 0, got -1.0 in row 0; drop those rows"),
        (lambda: snipw([1.0], [0.0]), "weight: expected a positive number, got zeros only"),
        (lambda: importance_weight([0.5], [0.0]), "logging_prob: expected probabilities in (0, 1], got 0; drop rows"),
        (lambda: importance_weight([0.5], [1.5]), "logging_prob: expected probabilities in (0, 1], got 1.5"),
        (lambda: importance_weight([-0.5], [0.5]), "target_prob: expected probabilities in [0, 1], got -0.5"),
        (lambda: importance_weight([1.5], [0.5]), "target_prob: expected probabilities in [0, 1], got 1.5"),
        (
            lambda: placement_prob([[0.0, 1.0]], 3),
            "positions: expected an integer from 1 to 2, got 3; show at most all items",
        ),
        (
            lambda: placement_prob([[0.0, 800.0]], 1),
            "utility_logit: expected utilities within 700 of each other, got 800; raise the temperature",
        ),
        (lambda: ranking_propensity([[0.0, 1.0]], [[0, 0]]), "ranking: expected different items, got one twice"),
        (
            lambda: ranking_propensity([[0.0, 1.0]], [[0, -1]]),
            "ranking: expected integers from 0 to 1, got -1 at [0, 1]",
        ),
        (lambda: ranking_propensity([[0.0, 1.0]], [[0, 2]]), "ranking: expected integers from 0 to 1, got 2 at [0, 1]"),
        (lambda: ranking_propensity([[0.0, 1.0]], [[0], [1]]), "ranking: expected one for each of the 1 slates, got 2"),
        (
            lambda: exposure(np.ones((2, 3, 3)), np.ones(2)),
            "examination: expected shape [3] or [3, 3] or [2, 3, 3], got [2]; give one number per position",
        ),
        (lambda: exposure(np.ones((2, 2)), [1.0, math.nan]), "examination: expected finite numbers, got nan in row 1"),
        (lambda: exposure([[0.5, -0.1]], [1.0, 1.0]), "placement: expected numbers >= 0, got -0.1"),
        (
            lambda: expected_reward([[0.5, 0.5]], [[1.0]]),
            "reward_hat: expected the shape of target_prob, [1, 2], got [1, 1]; give [n, actions] twice",
        ),
        (lambda: softmax_propensity([0.0], temperature=0), "temperature: expected a positive number, got 0"),
        (lambda: softmax_propensity([math.inf]), "utility_logit: expected finite numbers, got inf in row 0"),
        (lambda: position_based([[1.0]], [[1.0]], [[0.0]]), "logging_exposure: expected positive numbers, got 0"),
        (lambda: position_based([[1.0, 0]], [[1.0]], [[1.0]]), "weights: expected one for each of the 2 clicks, got 1"),
    ],
)
def test_unusable_input_is_named(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
