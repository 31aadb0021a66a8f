"""Counterfactual evaluation against exact expectations and against what simulated users do under the new ranking."""

import warnings

import numpy as np
import pytest

from isolayer.curves.curves import Curves
from isolayer.debias import EstimatesDisagree
from isolayer.debias.evaluation import click_probs, evaluate
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.policy import placement_prob, ranked_positions
from isolayer.simulate import debias_feed

BY_CHANCE = pytest.mark.filterwarnings("ignore::isolayer.debias.EstimatesDisagree")  # in a few logs of a hundred


def known_curves(positions=4):
    """Curves under which the click rate falls with position more for relevant items: trust, not examination."""
    logit = np.repeat(np.linspace(-3, 3, 40), positions * 200)
    position = np.tile(np.arange(positions), 40 * 200)
    label = 1 / (1 + np.exp(position * (1 + 0.2 * logit) - logit))
    return Curves.from_histogram(Histogram.from_arrays(logit, label, {"position": position}))


def world(lists=400, positions=4, seed=0):
    rng = np.random.default_rng(seed)
    session, relevance = np.repeat(np.arange(lists), positions), rng.normal(0, 1, lists * positions)
    return {"session": session, "relevance": relevance, "position": np.tile(np.arange(positions), lists)}


def test_expected_clicks_give_exactly_the_expected_clicks_of_the_new_ranking():
    curves, log = known_curves(), world()
    prob = click_probs(curves, log["relevance"], log, len(log["session"]))
    rows, new = np.arange(len(prob)), ranked_positions(log["relevance"], log["session"])
    log["click"] = prob[rows, log["position"]]  # soft labels: expectations, no noise
    found = evaluate(log, log["position"], new, curves=curves)
    assert found.value == pytest.approx(prob[rows, new].sum() / 400) == found.modelled
    assert evaluate(log, log["position"], log["position"], curves=curves).value == pytest.approx(found.logged)


@BY_CHANCE
def test_placement_probabilities_are_averaged_over_and_weigh_less():
    curves, log = known_curves(), world()
    prob = click_probs(curves, log["relevance"], log, len(log["session"]))
    rng, rows = np.random.default_rng(1), np.arange(len(prob))
    utility = rng.normal(0, 1, (400, 4))
    old = placement_prob(utility, 4).reshape(-1, 4)
    new = ranked_positions(log["relevance"], log["session"])
    total = []
    for _ in range(60):  # lists drawn by the old policy, expectations of their clicks
        drawn = ranked_positions((utility + rng.gumbel(size=utility.shape)).ravel(), log["session"])
        total.append(evaluate({**log, "click": prob[rows, drawn]}, old, new, curves=curves))
    truth = prob[rows, new].sum() / 400
    values = [one.value for one in total]
    assert abs(np.mean(values) - truth) < 4 * np.std(values) / np.sqrt(60)
    by_position = evaluate({**log, "position": drawn, "click": prob[rows, drawn]}, drawn, new, curves=curves)
    assert total[-1].effective_rows > by_position.effective_rows


@BY_CHANCE
def test_intervals_cover_the_truth_when_curves_are_known():
    curves, log, hits = known_curves(), world(), 0
    prob = click_probs(curves, log["relevance"], log, len(log["session"]))
    rows, new = np.arange(len(prob)), ranked_positions(log["relevance"], log["session"])
    truth, chance = prob[rows, new].sum() / 400, prob[rows, log["position"]]
    for seed in range(200):
        click = np.random.default_rng(seed).random(len(rows)) < chance
        low, high = evaluate({**log, "click": click}, log["position"], new, curves=curves).interval(0.9)
        hits += low <= truth <= high
    assert 0.85 < hits / 200 <= 0.99  # lists differ, which widens the interval beyond the noise of clicks


@pytest.mark.parametrize("bias", ["position", "trust"])
def test_a_new_ranking_is_valued_within_five_percent_of_what_users_do(bias):
    feed = debias_feed(bias, seed=7)
    log = feed.log(10_000, seed=1)
    x = log["features"]
    direction = np.linalg.lstsq(x, log["relevance_click"] - log["relevance_click"].mean(), rcond=None)[0]
    truth = feed.log(10_000, seed=2, policy=lambda x: x @ direction)["prob_click"].sum() / 10_000
    new = ranked_positions(x @ direction, log["session"])
    found = evaluate(log, log["position"], new, contexts=("position", "device"))
    assert found.value == pytest.approx(truth, rel=0.05)
    low, high = found.interval(0.99)
    assert low < truth < high
    assert "effective of" in str(found)


def test_a_ranking_that_knows_more_than_the_features_is_warned_of():
    log = debias_feed("trust", seed=1).log(4_000, seed=2)
    new = ranked_positions(log["relevance_click"], log["session"])  # true relevance
    with pytest.warns(EstimatesDisagree, match=r"expect \d\.\d+ clicks per list, which is outside .* A/B test"):
        found = evaluate(log, log["position"], new, contexts=("position", "device"))
    low, high = found.interval()
    assert not low <= found.modelled <= high


def test_estimates_that_agree_are_not_warned_of():
    """With known curves, only by chance: value and model differ by the noise of the clicks alone."""
    curves, log, warned = known_curves(), world(), 0
    prob = click_probs(curves, log["relevance"], log, len(log["session"]))
    rows, new = np.arange(len(prob)), ranked_positions(log["relevance"], log["session"])
    for seed in range(100):
        click = np.random.default_rng(seed).random(len(rows)) < prob[rows, log["position"]]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EstimatesDisagree)
            evaluate({**log, "click": click}, log["position"], new, curves=curves)
        warned += len(caught)
    assert warned <= 10  # 5 are expected; more than 10 have a chance of 1%


def test_missing_overlap_and_unknown_positions_are_refused_in_words():
    curves, log = known_curves(), world()
    log["relevance"] = np.tile([-9.0, -9.0, -9.0, 3.0], 400)
    log["click"] = np.tile([1, 0, 0, 0], 400)
    reverse = 3 - log["position"]
    with pytest.raises(InputError, match=r"overlap: expected enough effective rows .*, got .* rows, less than"):
        evaluate(log, log["position"], reverse, curves=curves, least_share=0.9)
    with pytest.raises(InputError, match="new: expected integers from 0 to 3"):
        evaluate(log, log["position"], reverse + 1, curves=curves)
    with pytest.raises(InputError, match="new: expected probabilities of 4 positions that add up to 1"):
        evaluate(log, log["position"], np.full((1600, 4), 0.5), curves=curves)
    with pytest.raises(InputError, match="curves: expected a context 'position'"):
        evaluate(log, log["position"], reverse, curves=Curves.identity(curves.grid))
    with pytest.raises(InputError, match="log: expected a column 'features'"):
        evaluate(log, log["position"], reverse)


def test_a_log_that_teaches_nothing_is_refused_in_words():
    log = debias_feed("position").log(120, seed=1)
    position, new = log["position"], ranked_positions(log["features"][:, 11], log["session"])
    with pytest.raises(InputError, match="click: expected some clicks, got none"):
        evaluate({**log, "click": np.zeros(len(position))}, position, new)
    some = log["session"] < np.unique(log["session"])[40]
    with pytest.raises(InputError, match="log: expected at least 100 lists, got 40"):
        evaluate({name: log[name][some] for name in ("features", "click", "session", "position")}, position, new)
    gap = {name: log[name][position != 2] for name in ("features", "click", "session", "position")}
    with pytest.raises(InputError, match="new: expected positions of logged rows, got 2, at which none was logged"):
        evaluate(gap, gap["position"], new[position != 2], least_share=0)


def test_old_positions_that_are_not_those_of_the_log_and_wild_ones_are_refused():
    log = debias_feed("position").log(120, seed=1)
    position, new = log["position"], ranked_positions(log["features"][:, 11], log["session"])
    with pytest.raises(InputError, match="old: expected the positions of the log, got others; give log"):
        evaluate(log, new, position)
    wild = np.where(np.arange(len(position)) == 5, 99_999, position)
    with pytest.raises(InputError, match="position: expected at most 1000 positions, got 99999; number them from 0"):
        evaluate({**log, "position": wild}, wild, new)


@BY_CHANCE
def test_the_value_from_a_very_short_log_is_not_several_times_the_truth():
    errors, covered = [], 0
    for seed in range(4):
        feed = debias_feed("position", seed=100 + seed)
        log = feed.log(300, seed=2 * seed)
        x = log["features"]
        direction = np.linalg.lstsq(x, log["relevance_click"] - log["relevance_click"].mean(), rcond=None)[0]
        truth = feed.log(5_000, seed=777, policy=lambda x, by=direction: x @ by)["prob_click"].sum() / 5_000
        found = evaluate(log, log["position"], ranked_positions(x @ direction, log["session"]))
        low, high = found.interval()
        errors.append(found.value / truth - 1)
        covered += low < truth < high
    assert np.mean(np.abs(errors)) < 0.2
    assert covered >= 3


def test_positions_by_score_equal_the_obvious_loop():
    rng = np.random.default_rng(0)
    session, score = rng.integers(0, 20, 200), rng.integers(0, 5, 200)
    expected = [
        sum(
            session[other] == session[row]
            and (score[other] > score[row] or (score[other] == score[row] and other < row))
            for other in range(200)
        )
        for row in range(200)
    ]
    assert ranked_positions(score, session).tolist() == expected


@BY_CHANCE
def test_a_short_log_values_a_new_ranking_within_five_percent_on_average():
    errors = []
    for seed in (11, 12, 13, 14):
        feed = debias_feed("trust", seed=seed)
        log = feed.log(4_000, seed=2 * seed)
        x = log["features"]
        direction = np.linalg.lstsq(x, log["relevance_click"] - log["relevance_click"].mean(), rcond=None)[0]
        truth = feed.log(10_000, seed=2 * seed + 1, policy=lambda x, by=direction: x @ by)["prob_click"].sum() / 10_000
        new = ranked_positions(x @ direction, log["session"])
        errors.append(evaluate(log, log["position"], new, contexts=("position", "device")).value / truth - 1)
    assert np.mean(np.abs(errors)) < 0.05
