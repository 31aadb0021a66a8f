"""Boosted trees through bias curves: gradients against differences, curves against the truth, files, both engines."""

from functools import cache

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer import metrics
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.debias.boosters import Trees
from isolayer.debias.boosting import BoostedRanker, through
from isolayer.debias.curve_learners import centred, network_relevance, out_of_fold_curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.simulate import debias_feed

CONTEXTS = {"position": 10, "device": 3}


@pytest.fixture(scope="module")
def feed():
    return debias_feed("trust", seed=3)


@pytest.fixture(scope="module")
def log(feed):
    return feed.log(2500, seed=1)


@pytest.fixture(scope="module")
def test(feed):
    return feed.log(1500, seed=2, policy=lambda x: np.random.default_rng(0).random(len(x)))


def context_of(log):
    return {name: log[name] for name in CONTEXTS}


def ndcg(ranker, test):
    return metrics.ndcg(test["grade"], ranker.predict(test["features"]), test["session"], k=10)


@cache
def some_curves(rows=3000):
    rng = np.random.default_rng(0)
    logit, position = rng.normal(0, 2, rows), rng.integers(0, 3, rows)
    label = rng.random(rows) < prob_of(logit) * np.array([1.0, 0.5, 0.2])[position]
    return Curves.from_histogram(Histogram.from_arrays(logit, label, {"position": position})), label.astype(float)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_the_gradient_is_that_of_the_log_loss_through_the_curves(seed):
    curves, _ = some_curves()
    rng = np.random.default_rng(seed)
    at, raw, label = rng.integers(0, 4, 50), rng.normal(0, 2, 50), rng.integers(0, 2, 50).astype(float)
    weight = rng.uniform(0.5, 2, 50)

    def loss(r):
        p = prob_of(curves.evaluate(at, r))
        return -weight * (label * np.log(p) + (1 - label) * np.log1p(-p))

    gradient, hessian = through(curves, at, label, weight)(raw)
    step = 0.05
    slope = (curves.evaluate(at, raw + step) - curves.evaluate(at, raw - step)) / (2 * step)
    inside = (slope > 0.1) & (slope < 4)
    np.testing.assert_allclose(
        gradient[inside], ((loss(raw + step) - loss(raw - step)) / (2 * step))[inside], atol=0.05
    )
    assert (hessian > 0).all()


def test_centred_curves_are_the_same_curves_and_expect_the_mean_label_at_zero():
    curves, label = some_curves()
    rows = np.random.default_rng(1).integers(1, 4, len(label))
    moved = centred(curves, rows, label, np.ones(len(label)))
    assert prob_of(moved.evaluate(rows, np.zeros(len(rows)))).mean() == pytest.approx(label.mean(), abs=1e-9)
    shift = curves.grid.lower - moved.grid.lower
    x = np.linspace(-3, 3, len(rows))
    np.testing.assert_allclose(moved.evaluate(rows, x - shift), curves.evaluate(rows, x), atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"curves": "trees"}, {"engine": "xgboost"}], ids=str)
def test_relevance_is_ranked_better_than_by_trees_on_clicks(options, log, test):
    ranker = BoostedRanker(CONTEXTS, rounds=50, l2=30, **options)
    ranker.fit(log["features"], log["click"], context_of(log), lists=log["session"])
    naive = lightgbm.LGBMClassifier(n_estimators=50, num_leaves=15, verbose=-1).fit(log["features"], log["click"])
    clicks = metrics.ndcg(test["grade"], naive.predict_proba(test["features"])[:, 1], test["session"], k=10)
    assert ndcg(ranker, test) > clicks + 0.08
    served = ranker.predict_proba(log["features"])
    np.testing.assert_allclose(served.sum(1), 1)
    assert served[:, 1].mean() == pytest.approx(log["click"].mean(), abs=0.01)


def test_trees_follow_their_teacher_as_far_as_they_are_told(log):
    # Relevance that the network has never seen in the labels would be noise to it: with the teacher alone, trees fit
    # the network's smooth estimate much better than they fit clicks.
    def spread(teacher):
        ranker = BoostedRanker(CONTEXTS, rounds=100, l2=1, teacher=teacher)
        ranker.fit(log["features"], log["click"], context_of(log))
        _, relevance = network_relevance(
            log["features"].astype(float),
            log["click"].astype(float),
            {name: ids.astype(np.int64) for name, ids in context_of(log).items()},
            CONTEXTS,
            np.ones(len(log["click"])),
            seed=0,
        )
        return np.corrcoef(ranker.predict(log["features"]), relevance)[0, 1]

    none, half, whole = (spread(teacher) for teacher in (0.0, 0.5, 1.0))
    assert none < half < whole
    assert whole > 0.9


@pytest.mark.parametrize("curves", ["trees", "known"])
def test_a_teacher_is_refused_where_there_is_none(curves):
    curves = some_curves()[0] if curves == "known" else curves
    with pytest.raises(InputError, match=r"^teacher: expected curves='network', .* got 0.3; leave it out"):
        BoostedRanker({"position": 3}, curves=curves, teacher=0.3)
    assert BoostedRanker({"position": 3}, curves=curves, teacher=0).teacher == 0  # which is what happens
    assert BoostedRanker({"position": 3}, curves=curves).teacher == 0


def test_the_network_measures_relevance_from_a_context_that_occurs(log):
    rows = log["position"] != 4  # the middle one
    ids = {"position": log["position"][rows].astype(np.int64)}
    x, y = log["features"][rows].astype(float), log["click"][rows].astype(float)
    curves, _ = network_relevance(x, y, ids, {"position": 10}, np.ones(len(y)), seed=0)
    at = np.linspace(-2, 2, 50)
    task = np.full(50, "click")
    found = [curves.decision_function(at, {"position": np.full(50, place), "task": task}) for place in range(10)]
    assert [place for place in range(10) if np.allclose(found[place], at)] == [4, 5]  # 4 has learned nothing


def test_curves_out_of_fold_fall_with_position(log):
    trees = Trees(60, 0.1, 15, 30.0, 0)
    ids = {"position": log["position"].astype(np.int64)}
    lists = log["session"].astype(np.int64)
    weight = np.ones(len(lists))
    curves = out_of_fold_curves(
        log["features"].astype(float), log["click"].astype(float), ids, weight, lists, "lightgbm", trees
    )
    prob = curves.predict_proba(np.zeros(10), {"position": np.arange(10)})
    assert prob[0] > 2 * prob[2] > 3 * prob[8]


def test_curves_that_are_known_are_used_as_they_are(log):
    curves, _ = some_curves()
    rows = log["position"] < 3
    context = {"position": log["position"][rows]}
    ranker = BoostedRanker({"position": 3}, curves=curves, rounds=3)
    ranker.fit(log["features"][rows], log["click"][rows], context)
    np.testing.assert_array_equal(ranker.curves().values, curves.values)


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
def test_a_saved_ranker_predicts_the_same_to_the_bit(engine, log, tmp_path):
    ranker = BoostedRanker(CONTEXTS, engine=engine, rounds=5).fit(log["features"], log["click"], context_of(log))
    ranker.save(tmp_path / "ranker")
    loaded = BoostedRanker.load(tmp_path / "ranker")
    np.testing.assert_array_equal(loaded.predict_proba(log["features"]), ranker.predict_proba(log["features"]))
    assert loaded.contexts == CONTEXTS
    np.testing.assert_array_equal(loaded.curves().values, ranker.curves().values)


def test_a_row_of_weight_two_is_the_row_twice(log):
    some, few = np.arange(2000), {"position": 10}
    x, y, position = log["features"][some], log["click"][some], log["position"][some]
    weight = np.where(some < 500, 2.0, 1.0)
    curves = BoostedRanker(few, rounds=3, curves="trees").fit(x, y, {"position": position}).curves()
    known = BoostedRanker(few, rounds=10, curves=curves)
    weighted = known.fit(x, y, {"position": position}, weight=weight).curves()
    twice = np.concatenate([some, some[:500]])
    again = known.fit(x[twice], y[twice], {"position": position[twice]}).curves()
    assert weighted.grid.lower == pytest.approx(again.grid.lower)


def test_the_same_seed_gives_the_same_ranker_and_no_seed_of_the_caller_changes(log):
    import torch

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    some = {name: column[:3000] for name, column in log.items()}
    one, two = (
        BoostedRanker(CONTEXTS, rounds=3, seed=4).fit(some["features"], some["click"], context_of(some))
        for _ in range(2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(one.predict(log["features"]), two.predict(log["features"]))


def test_what_cannot_be_ranked_is_refused_in_words(log):
    ranker = BoostedRanker(CONTEXTS, rounds=2)
    with pytest.raises(InputError, match="ranker: expected a fitted one"):
        ranker.predict(log["features"])
    ranker.fit(log["features"], log["click"], context_of(log))
    with pytest.raises(InputError, match="features: expected 12 columns, as in fit, got 3"):
        ranker.predict(log["features"][:, :3])
    curves, _ = some_curves()
    with pytest.raises(InputError, match="curves: expected contexts among"):
        BoostedRanker({"device": 3}, curves=curves).fit(log["features"], log["click"], context_of(log))
