"""The simulator against its formulas: attention, clicks, tasks, logging policies, drift and the closed loop."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind, ttest_rel
from sklearn.linear_model import LogisticRegression

from isolayer import InputError, metrics
from isolayer.simulate import (
    GRADE_SHARES,
    QUERY_LENGTHS,
    TASKS,
    ULTRA_EXAMINATION,
    Contextual,
    DependentClick,
    Distortion,
    Drift,
    DynamicBayesian,
    Feed,
    Logger,
    Mixture,
    Population,
    PositionBased,
    Task,
    Trust,
    closed_loop,
    debias_feed,
    self_test,
)
from isolayer.simulate.behaviours import GAIN
from isolayer.simulate.feed import Candidates

BEHAVIOURS = {
    "position": PositionBased(),
    "power": PositionBased(examination=None, eta=0.5),
    "trust": Trust(),
    "dbn": DynamicBayesian(),
    "dcm": DependentClick(),
    "distortion": Distortion(),
}
SMALL = Population(users=500, items=2_000)
BY_NOISE = Logger(relevance=0, spurious=0, noise=1)


def correlation(one, two):
    return float(np.corrcoef(one, two)[0, 1])


def test_columns_of_a_log():
    log = Feed(population=SMALL, days=3).log(50, seed=4)
    labels = ["click", "skip", "like", "share", "comment", "long_dwell"]
    labels += ["downstream_like", "downstream_share", "downstream_comment"]
    ids = ["session", "user", "item", "position", "device", "platform", "day", "query_length"]
    truth = [
        "grade",
        "examination",
        "logging_score",
        *(f"{kind}_{t}" for t in labels for kind in ("relevance", "prob")),
    ]
    assert set(log) == {"features", *ids, *labels, *truth}
    assert log["features"].shape == (500, 12)
    assert log["features"].dtype == np.float32
    assert all(len(column) == 500 for column in log.values())
    assert all(log[name].dtype == np.int32 for name in ids)
    assert all(set(np.unique(log[name])) <= {0, 1} for name in labels)
    assert all((log[f"prob_{name}"] >= 0).all() and (log[f"prob_{name}"] <= 1).all() for name in labels)
    np.testing.assert_array_equal(log["position"], np.tile(np.arange(10), 50))
    np.testing.assert_array_equal(log["session"], np.repeat(np.arange(50), 10))
    assert sorted(set(log["day"])) == [0, 1, 2]
    assert (np.diff(log["day"]) >= 0).all()


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_seed_is_a_log(name):
    feed = Feed(population=SMALL, behaviour=BEHAVIOURS[name], logger=Logger(noise=0.1, temperature=0.5))
    one, same, other = feed.log(40, seed=1), feed.log(40, seed=1), feed.log(40, seed=2)
    for column in one:
        np.testing.assert_array_equal(one[column], same[column])
    assert (one["item"] != other["item"]).any()
    assert (one["click"] != other["click"]).any()


def test_batches_are_the_log_in_pieces():
    feed = Feed(population=SMALL, tasks=(), days=4)
    batches = list(feed.batches(9000, seed=3))
    log = feed.log(9000, seed=3)
    assert len(batches) > 1
    for name, column in log.items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in batches]), column)


@given(items=st.integers(20, 60), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_items_of_a_list_are_distinct(items, seed):
    log = Feed(population=Population(users=3, items=items), tasks=()).log(50, seed=seed)
    lists = np.sort(log["item"].reshape(50, 10), axis=1)
    assert (np.diff(lists, axis=1) > 0).all()
    assert lists.min() >= 0
    assert lists.max() < items


def test_the_logger_shows_its_highest_scores_first():
    log = Feed(population=SMALL, logger=Logger(noise=0.3, temperature=0.2)).log(100)
    assert (np.diff(log["logging_score"].reshape(100, 10), axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("logger", "low", "high"),
    [
        (Logger(relevance=1, spurious=0), -0.9, -0.6),
        (Logger(relevance=0, spurious=0, grade=1, noise=0.01), -0.95, -0.75),
        (Logger(relevance=0, spurious=0, informed=1), -0.35, -0.15),
        (Logger(relevance=0, spurious=1), -0.15, -0.03),
        (BY_NOISE, -0.015, 0.015),
        (Logger(relevance=1, spurious=0, temperature=1), -0.6, -0.3),
    ],
)
def test_relevance_falls_with_position_as_far_as_the_logger_knows_it(logger, low, high):
    log = Feed(logger=logger, tasks=()).log(10_000)
    assert low < correlation(log["grade"], log["position"]) < high


def test_plackett_luce_shows_first_by_softmax():
    shape = (200_000, 3)
    score = np.broadcast_to(np.array([0.0, 0.5, 1.0], dtype=np.float32), shape)
    blank = np.zeros(shape[0], dtype=np.int32)
    grade = np.zeros(shape, dtype=np.int8)
    sessions = Candidates(
        blank, blank, blank, blank, blank, np.zeros(shape, np.int32), score, score, score, score, grade, score
    )
    for temperature in (0.5, 2.0):
        logger = Logger(relevance=1, spurious=0, temperature=temperature)
        first = np.argmax(logger.score(sessions, np.random.default_rng(0)), axis=1)
        softmax = np.exp(np.array([0.0, 0.5, 1.0]) / temperature)
        np.testing.assert_allclose(np.bincount(first) / shape[0], softmax / softmax.sum(), atol=0.005)


@pytest.mark.parametrize("hidden", [0.3, 0.8])
def test_grades_have_their_shares(hidden):
    log = Feed(population=Population(hidden=hidden), logger=BY_NOISE, tasks=()).log(30_000)
    np.testing.assert_allclose(np.bincount(log["grade"]) / 300_000, GRADE_SHARES, atol=0.02)


def test_features_lack_the_hidden_part_of_relevance():
    explained = []
    for hidden in (0.0, 0.5, 0.9):
        log = Feed(population=Population(hidden=hidden), logger=BY_NOISE, tasks=()).log(5_000)
        x = np.c_[log["features"], log["features"][:, :4] * log["features"][:, 4:8]]
        fit = x @ np.linalg.lstsq(x, log["grade"] - log["grade"].mean(), rcond=None)[0]
        explained.append(correlation(fit, log["grade"]) ** 2)
    assert explained[0] > 0.75
    assert explained[0] > explained[1] + 0.1 > explained[2] + 0.2


def test_the_spurious_feature_is_the_last_and_hardly_matters():
    log = Feed(logger=Logger(relevance=0, spurious=1), tasks=()).log(5_000)
    lists = log["features"][:, -1].reshape(5_000, 10)
    assert (np.diff(lists, axis=1) <= 0).all()
    random = Feed(logger=BY_NOISE, tasks=()).log(10_000)
    assert correlation(random["features"][:, -1], random["grade"]) == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 2.0])
def test_examination_curves_are_the_published_ones(eta):
    log = Feed(population=SMALL, behaviour=PositionBased(eta=eta), positions=12, tasks=()).log(5)
    table = np.array([*ULTRA_EXAMINATION, 0.06, 0.06]) ** eta
    np.testing.assert_allclose(log["examination"][:12], table, rtol=1e-5)
    for behaviour in (PositionBased(examination=None, eta=eta), Trust(eta=eta)):
        log = Feed(population=SMALL, behaviour=behaviour, tasks=()).log(5)
        np.testing.assert_allclose(log["examination"][:10], (1 / np.arange(1, 11)) ** eta, rtol=1e-5)


def test_chances_of_clicks_are_the_published_ones():
    pbm = Feed(population=SMALL, tasks=()).log(300)
    gamma = (2.0 ** pbm["grade"] - 1) / 15
    np.testing.assert_allclose(pbm["relevance_click"], gamma, rtol=1e-6)
    np.testing.assert_allclose(pbm["prob_click"], pbm["examination"] * (0.1 + 0.9 * gamma), rtol=1e-5)
    quiet = Feed(population=SMALL, tasks=(), behaviour=PositionBased(noise=0)).log(300)
    np.testing.assert_allclose(quiet["prob_click"], quiet["examination"] * quiet["relevance_click"], rtol=1e-5)
    trust = Feed(population=SMALL, behaviour=Trust(), positions=25, tasks=()).log(300)
    rank, gamma = trust["position"] + 1, trust["relevance_click"]
    true_positive, false_positive = 1 - (np.minimum(rank, 20) + 1) / 100, 0.65 / np.minimum(rank, 10)
    chance = (true_positive * gamma + false_positive * (1 - gamma)) / rank
    np.testing.assert_allclose(trust["prob_click"], chance, rtol=1e-5)


def enumerate_cascade(attraction, after_click, after_none):
    """Chance to see each item, by walking through every pattern of clicks."""
    seen = np.zeros(len(attraction))
    seen[0] = 1
    for k in range(1, len(attraction)):
        for clicks in itertools.product([0, 1], repeat=k):
            chance = 1.0
            for j, click in enumerate(clicks):
                chance *= attraction[j] * after_click[j] if click else (1 - attraction[j]) * after_none[j]
            seen[k] += chance
    return seen


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_cascades_are_every_walk_down_the_list(eta):
    for behaviour in (DynamicBayesian(eta=eta), DependentClick(eta=eta)):
        log = Feed(population=SMALL, behaviour=behaviour, positions=5, tasks=()).log(30)
        rank = np.arange(1, 6)
        for start in range(0, 150, 5):
            grade = log["grade"][start : start + 5].astype(float)
            if isinstance(behaviour, DynamicBayesian):
                attraction, go_on = np.maximum(grade / 4, 0.1), np.full(5, 0.8**eta)
                after_click = go_on * (1 - grade / 8)
            else:
                attraction, go_on = 0.1 + 0.9 * (2**grade - 1) / 15, np.ones(5)
                after_click = 0.6 * rank**-eta
            seen = enumerate_cascade(attraction, after_click, go_on)
            np.testing.assert_allclose(log["examination"][start : start + 5], seen, rtol=1e-5)
            np.testing.assert_allclose(log["prob_click"][start : start + 5], seen * attraction, rtol=1e-5)


def test_dcm_noise_and_beta_change_it():
    base, other, steep = (
        Feed(population=SMALL, behaviour=behaviour, tasks=()).log(200)["prob_click"].mean()
        for behaviour in (DependentClick(), DependentClick(noise=0.3), DependentClick(beta=0.1))
    )
    assert other > base > steep


@given(seed=st.integers(0, 50), task=st.sampled_from(["click", "skip", "like"]))
@settings(max_examples=20, deadline=None)
def test_distortions_are_monotone_and_differ_everywhere(seed, task):
    distortion = Distortion(seed=seed)
    logit = np.broadcast_to(np.linspace(-6, 6, 100, dtype=np.float32)[:, None], (100, 4))
    level = np.zeros((100, 4), dtype=np.float32)
    one, two = (distortion.map(task, logit, np.full(100, device, np.int32), level) for device in (0, 1))
    assert (np.diff(one, axis=0) > 0).all()
    assert (np.abs(one - two).max(axis=0) > 1e-3).all()
    assert (np.abs(np.diff(one, axis=1)).max(axis=0) > 1e-3).all()
    assert np.abs(one - Distortion(seed=seed + 1).map(task, logit, np.zeros(100, np.int32), level)).max() > 1e-3


def test_a_distortion_does_not_depend_on_who_else_is_in_the_batch():
    distortion = Distortion()
    logit, level = np.zeros((1, 10), dtype=np.float32), np.zeros((1, 10), dtype=np.float32)
    alone = distortion.map("like", logit, np.array([0], np.int32), level)
    beside = distortion.map("like", np.repeat(logit, 2, 0), np.array([0, 2], np.int32), np.repeat(level, 2, 0))
    np.testing.assert_array_equal(alone[0], beside[0])


def test_skips_fall_with_relevance_and_rise_with_depth_where_clicks_do_the_reverse():
    for behaviour in (PositionBased(), Trust(), DynamicBayesian(), Distortion()):
        log = Feed(logger=BY_NOISE, behaviour=behaviour).log(20_000)
        for task, sign in (("skip", -1), ("click", 1), ("like", 1), ("long_dwell", 1)):
            assert sign * correlation(log[f"relevance_{task}"], log["grade"]) > 0.3
            assert sign * correlation(log[task], log["grade"]) > 0
            assert sign * correlation(log[task], -log["position"]) > 0


def test_tasks_follow_attention():
    log = Feed(population=SMALL).log(100)
    np.testing.assert_allclose(log["prob_like"], log["examination"] * log["relevance_like"], rtol=1e-5)
    np.testing.assert_allclose(log["prob_skip"], 1 - log["examination"] * (1 - log["relevance_skip"]), rtol=1e-5)


def test_conversions_are_rare_and_follow_their_action():
    log = Feed().log(100_000)
    for action in ("like", "share", "comment"):
        label, acted = log[f"downstream_{action}"], log[action] == 1
        assert not label[~acted].any()
        assert 0 < label.mean() < 0.004
        assert label[acted].mean() == pytest.approx(log[f"relevance_downstream_{action}"][acted].mean(), abs=0.02)


def test_platforms_shift_every_task_but_click():
    log = Feed(logger=BY_NOISE).log(20_000)
    logit = np.log(log["relevance_like"] / (1 - log["relevance_like"]))
    means = [logit[log["platform"] == platform].mean() for platform in range(3)]
    np.testing.assert_allclose(np.diff(means), [0.3, -0.6], atol=0.03)
    assert (log["platform"][log["device"] == 1] == 2).all()
    np.testing.assert_allclose(np.bincount(log["device"]) / 200_000, [0.6, 0.3, 0.1], atol=0.02)


def test_bias_drifts_over_days_and_differs_by_device():
    behaviour = PositionBased(eta=(0.5, 1.0, 2.0))
    log = Feed(population=SMALL, behaviour=behaviour, days=4, drift=Drift(position_bias=0.1), tasks=()).log(2000)
    eta = np.array([0.5, 1.0, 2.0])[log["device"]] * np.exp(0.1 * log["day"])
    np.testing.assert_allclose(log["examination"], np.array(ULTRA_EXAMINATION)[log["position"]] ** eta, rtol=1e-4)


def test_relevance_drifts_over_days():
    feed = Feed(logger=BY_NOISE, days=3, drift=Drift(relevance=math.pi / 4), tasks=())
    log = feed.log(30_000)
    appeal, novelty = feed.population.appeal[log["item"]], feed.population.novelty[log["item"]]
    on = [log["day"] == day for day in range(3)]
    known = [correlation(appeal[day], log["grade"][day]) for day in on]
    new = [correlation(novelty[day], log["grade"][day]) for day in on]
    assert known[0] > known[1] > known[2]
    assert new[2] > 0.8 > new[1] > new[0]


def test_rates_drift_over_days():
    log = Feed(logger=BY_NOISE, days=2, drift=Drift(rate=0.5)).log(20_000)
    logit = np.log(log["relevance_like"] / (1 - log["relevance_like"]))
    assert logit[log["day"] == 1].mean() - logit[log["day"] == 0].mean() == pytest.approx(0.5, abs=0.05)


def test_task_options_change_the_task():
    base = Task("like", 0.05)
    variants = [base, replace(base, rate=0.2), replace(base, slope=3.0), replace(base, own=0.9)]
    seen = [Feed(population=SMALL, logger=BY_NOISE, tasks=(task,)).log(2000) for task in variants]
    rates = [log["relevance_like"].mean() for log in seen]
    assert rates[1] > 2 * rates[0]
    assert np.std(seen[2]["relevance_like"]) > np.std(seen[0]["relevance_like"])
    assert correlation(seen[3]["relevance_like"], seen[3]["grade"]) < correlation(
        seen[0]["relevance_like"], seen[0]["grade"]
    )


def test_any_policy_can_write_a_log():
    feed = Feed(population=SMALL, tasks=())
    log = feed.log(50, policy=lambda x: -x[:, 5])
    assert (np.diff(log["features"][:, 5].reshape(50, 10), axis=1) >= 0).all()
    np.testing.assert_allclose(log["logging_score"], -log["features"][:, 5])


@pytest.mark.parametrize(
    "feed",
    [
        Feed(),
        Feed(
            behaviour=PositionBased(eta=(0.5, 1, 2)), days=3, drift=Drift(0.1, 0.2, 0.1), logger=Logger(temperature=1)
        ),
        Feed(population=Population(users=2_000, items=50_000), behaviour=Distortion(seed=3), positions=4, tasks=TASKS),
    ],
    ids=["default", "drift", "distortion"],
)
def test_self_test_holds(feed):
    assert [check for check in self_test(feed, sessions=5_000, seed=1) if not check.holds] == []


def test_self_test_sees_positions_taken_from_argsort(monkeypatch):
    right = Candidates.ranked
    monkeypatch.setattr(Candidates, "ranked", lambda self, order: right(self, np.argsort(order, axis=1)))
    wrong = [check.name for check in self_test(sessions=2_000) if not check.holds]
    assert "corr(grade, position), ideal logger" in wrong


def test_self_test_sees_users_who_do_not_follow_the_curve():
    class Distracted(PositionBased):
        def act(self, shown):
            outcome = super().act(shown)
            outcome.label["click"] &= shown.draw["click"] > 0.05
            return outcome

    wrong = [check.name for check in self_test(Feed(behaviour=Distracted()), sessions=2_000) if not check.holds]
    assert any(name.startswith("Distracted: rate of click") for name in wrong)


def test_relevance_wins_the_closed_loop():
    feed = Feed(population=SMALL)
    appeal = np.linalg.lstsq(SMALL.item_traits, SMALL.appeal, rcond=None)[0]
    policies = {"relevance": lambda x: x[:, 4:] @ appeal, "spurious": lambda x: x[:, -1]}
    arms = closed_loop(feed, policies, sessions=20_000, seed=3)
    assert not set(arms["relevance"].user) & set(arms["spurious"].user)
    assert len(arms["relevance"].user) == len(arms["spurious"].user) == 250
    for metric, better in (("click", 1), ("dcg", 1), ("like", 1), ("skip", -1)):
        test = ttest_ind(*(arms[name].per_session(metric) for name in policies))
        assert better * test.statistic > 3


def test_an_a_a_test_finds_nothing():
    feed = Feed(population=Population(users=2_000, items=5_000), tasks=())
    p_values = []
    for seed in range(20):
        arms = closed_loop(feed, {"a": lambda x: x[:, 5], "b": lambda x: x[:, 5]}, sessions=5_000, seed=seed)
        p_values.append(ttest_ind(arms["a"].per_session("click"), arms["b"].per_session("click")).pvalue)
    assert 0.2 < np.mean(p_values) < 0.8
    assert min(p_values) > 0.0005


def test_common_random_numbers_leave_only_the_order():
    feed = Feed(population=SMALL, tasks=())
    policies = {"a": lambda x: x[:, 5], "same": lambda x: 2 * x[:, 5], "near": lambda x: x[:, 5] + 0.1 * x[:, 6]}
    arms = closed_loop(feed, policies, sessions=5_000, common_random_numbers=True)
    np.testing.assert_array_equal(arms["a"].per_session("click"), arms["same"].per_session("click"))
    a, near = arms["a"].per_session("click"), arms["near"].per_session("click")
    assert (a != near).any()
    assert np.std(near - a) < 0.6 * np.std(near - np.roll(a, 1))
    assert ttest_rel(near, a).pvalue > 1e-6
    assert arms["a"].sessions.sum() == 5_000


def test_with_common_random_numbers_taste_stays_with_the_item():
    feed = Feed(population=SMALL, behaviour=PositionBased(eta=0.0))  # all is seen, so order can change nothing
    policies = {"up": lambda x: x[:, 5], "down": lambda x: -x[:, 5]}
    arms = closed_loop(feed, policies, sessions=2_000, common_random_numbers=True)
    for task in feed.task_names:
        np.testing.assert_array_equal(arms["up"].totals[task], arms["down"].totals[task])


def test_a_seed_is_a_test():
    feed = Feed(population=SMALL, tasks=())
    one, same, other = (closed_loop(feed, {"a": lambda x: x[:, 5]}, 500, seed=seed)["a"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.totals["click"], same.totals["click"])
    assert (one.totals["click"] != other.totals["click"]).any()


def test_true_clicks_of_the_loop_are_those_of_a_log_under_the_policy():
    feed = Feed(population=SMALL)
    arm = closed_loop(feed, {"a": lambda x: x[:, 5]}, sessions=20_000)["a"]
    log = feed.log(20_000, seed=9, policy=lambda x: x[:, 5])
    for task in ("click", "like", "skip"):
        assert arm.totals[task].sum() / 200_000 == pytest.approx(log[f"prob_{task}"].mean(), abs=0.006)


def ndcg_of(train, label, test):
    model = LogisticRegression(C=1.0).fit(train["features"], label)
    return metrics.ndcg(test["grade"], model.decision_function(test["features"]), test["session"])


@pytest.mark.parametrize("bias", ["position", "trust"])
def test_naive_training_is_harmed_by_a_spurious_logger_and_not_by_an_informed_one(bias):
    gap = {}
    for name, logger, deterministic in (
        ("spur", "spurious", False),
        ("det", "spurious", True),
        ("w", "informed", False),
    ):
        feed = debias_feed(bias, logger, deterministic=deterministic)
        train, test = feed.log(4_000, seed=1), feed.log(1_000, seed=2)
        rng = np.random.default_rng(3)
        unbiased = rng.random(len(train["grade"])) < 0.1 + 0.9 * GAIN[train["grade"]]
        gap[name] = ndcg_of(train, unbiased, test) - ndcg_of(train, train["click"], test)
    assert gap["spur"] > 0.04
    assert gap["det"] > gap["spur"]
    assert gap["w"] < 0.01


ERRORS = {
    "users: expected a positive integer, got 0; raise it": lambda: Population(users=0),
    "features: expected an integer >= 6, got 3; raise it": lambda: Population(features=3),
    "hidden: expected a number in [0, 1], got 2; give a share": lambda: Population(hidden=2),
    "positions: expected an integer from 1 to 10, got 30; list at most half the items, or add items": (
        lambda: Feed(population=Population(items=20), positions=30)
    ),
    "days: expected a positive integer, got 0; raise it": lambda: Feed(days=0),
    "sessions: expected a positive integer, got 0; simulate several logs with other seeds": (lambda: Feed().log(0)),
    "tasks: expected distinct names other than click, got 'click' again; rename it": (
        lambda: Feed(tasks=(Task("click", 0.1),))
    ),
    "tasks: expected 'buy' before 'refund', got it nowhere; add that task": (
        lambda: Feed(tasks=(Task("refund", 0.1, after="buy"),))
    ),
    "rate: expected a number in (0, 1), got 1; give a probability": lambda: Task("like", 1),
    "eta: expected one number, or 3 (one per device), got 2; fix the count": (
        lambda: Feed(behaviour=PositionBased(eta=(1, 2)))
    ),
    "policies: expected at least one, got none; name a function of the features": lambda: closed_loop(Feed(), {}, 5),
    "scores of the policy: expected one dimension, got shape (50, 12); give one column, shape [n]": (
        lambda: closed_loop(Feed(), {"a": lambda x: x}, 5)
    ),
    "scores of the policy: expected finite numbers, got nan in row 0 and 49 more; drop or repair those rows": (
        lambda: closed_loop(Feed(), {"a": lambda x: x[:, 0] * np.nan}, 5)
    ),
    "users: expected at least 2, one per arm, got 1; raise it": (
        lambda: closed_loop(Feed(population=Population(users=1)), {"a": len, "b": len}, 5)
    ),
    "metric: expected 'click' or 'dcg', got 'buy'; choose one": (
        lambda: closed_loop(Feed(tasks=()), {"a": lambda x: x[:, 0]}, 5)["a"].per_session("buy")
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_a_mistake_is_answered_with_the_rule_the_value_and_what_to_do(message):
    with pytest.raises(InputError) as caught:
        ERRORS[message]()
    assert str(caught.value) == message


def test_contextual_examination_is_the_table_to_the_power_of_device_and_query_length():
    behaviour = Contextual(eta=(1.4, 0.8, 1.0), query=(1.5, 1.0, 0.5))
    log = Feed(population=SMALL, behaviour=behaviour, tasks=()).log(2000, seed=1)
    power = np.array([1.4, 0.8, 1.0])[log["device"]] * np.array([1.5, 1.0, 0.5])[log["query_length"]]
    examination = np.array(ULTRA_EXAMINATION)[log["position"]] ** power
    np.testing.assert_allclose(log["examination"], examination, rtol=1e-5)
    np.testing.assert_allclose(log["prob_click"], examination * (0.1 + 0.9 * log["relevance_click"]), rtol=1e-5)
    shares = np.bincount(log["query_length"][::10]) / 2000
    np.testing.assert_allclose(shares, QUERY_LENGTHS, atol=0.04)


def test_a_mixture_is_each_behaviour_in_its_own_sessions():
    kinds = (PositionBased(), Trust(), DynamicBayesian())
    mixture = Mixture(kinds, shares=(0.5, 0.3, 0.2))
    feed = Feed(population=SMALL, behaviour=mixture, tasks=())
    log = feed.log(2000, seed=1)
    kind = mixture.kind(log["session"])
    np.testing.assert_allclose(np.bincount(kind) / len(kind), [0.5, 0.3, 0.2], atol=0.04)
    for number, behaviour in enumerate(kinds):
        alone = replace(feed, behaviour=behaviour).log(2000, seed=1)
        for name in ("examination", "prob_click", "click"):
            np.testing.assert_array_equal(log[name][kind == number], alone[name][kind == number])


def test_a_popular_logger_ranks_by_popularity_which_is_half_relevance():
    feed = debias_feed("position", "popular", deterministic=True, seed=1)
    log = feed.log(500, seed=1)
    popularity = feed.population.popularity[log["item"]].reshape(-1, 10)
    assert (np.diff(popularity, axis=1) <= 0).all()
    assert np.corrcoef(feed.population.popularity, feed.population.appeal)[0, 1] == pytest.approx(0.71, abs=0.02)
    assert feed.population.popularity.std() == pytest.approx(1, abs=0.02)
