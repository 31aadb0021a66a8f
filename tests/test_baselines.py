"""Baselines against scikit-learn and formulas, and the contract they share: contexts, fallback, weights, errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.isotonic import IsotonicRegression

from isolayer.errors import InputError
from research.calibrators import (
    MonotoneNetworkCalibrator,
    PavaCalibrator,
    PlattCalibrator,
    SmoothedPavaCalibrator,
    TemperatureCalibrator,
)

EXACT = [PlattCalibrator, TemperatureCalibrator, PavaCalibrator, SmoothedPavaCalibrator]
ALL = [*EXACT, MonotoneNetworkCalibrator]


def rows(seed: int, count: int = 2000, segments: int = 3) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Scores, segments with a shift and a slope each, labels and weights."""
    rng = np.random.default_rng(seed)
    logit, segment = rng.normal(-1, 1.5, count), rng.integers(0, segments, count)
    true = -0.5 + 0.7 * segment + (0.6 + 0.3 * segment) * logit
    label = (rng.random(count) < 1 / (1 + np.exp(-true))).astype(int)
    return pd.DataFrame({"score": logit, "segment": segment}), label, rng.integers(1, 4, count).astype(float)


def platt_loss(line, z, target, weight):
    logit = line[0] + line[1] * z
    return np.sum(weight * (np.logaddexp(0, logit) - target * logit))


def test_platt_per_context_is_the_optimum_of_its_loss():
    X, y, weight = rows(0)
    fitted = PlattCalibrator(("segment",)).fit(X, y, weight)
    for segment in range(3):
        inside = (X["segment"] == segment).to_numpy()
        z, label, w = X["score"].to_numpy()[inside], y[inside], weight[inside]
        positive, negative = w @ label, w @ (1 - label)
        target = np.where(label == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
        best = minimize(platt_loss, [0, 1], (z, target, w), method="BFGS", options={"gtol": 1e-6})
        mine = fitted.decision_function(pd.DataFrame({"score": [0.0, 1.0], "segment": segment}))
        np.testing.assert_allclose(mine, [best.x[0], best.x.sum()], atol=1e-4)


def test_temperature_is_the_optimum_over_one_slope():
    X, y, weight = rows(1)
    slopes = np.linspace(0.05, 3, 20_001)
    z = X["score"].to_numpy()
    loss = [platt_loss((0.0, slope), z, y, weight) for slope in slopes[::20]]
    near = slopes[::20][int(np.argmin(loss))]
    fitted = TemperatureCalibrator().fit(X[["score"]], y, weight)
    assert fitted.decision_function([1.0])[0] == pytest.approx(near, abs=0.01)
    assert fitted.decision_function([0.0])[0] == 0


def test_isotonic_per_context_equals_scikit_learn_in_each():
    X, y, weight = rows(2)
    fitted = PavaCalibrator(("segment",)).fit(X, y, weight)
    prob = fitted.predict_proba(X)[:, 1]
    for segment in range(3):
        inside = (X["segment"] == segment).to_numpy()
        z = X["score"].to_numpy()[inside]
        expected = IsotonicRegression().fit(z, y[inside], weight[inside]).predict(z)
        np.testing.assert_allclose(prob[inside], expected.clip(1e-6, 1 - 1e-6), atol=1e-9)


def test_smoothed_blocks_are_those_of_isotonic_regression_with_half_an_event_more():
    z = np.arange(12.0)
    y = np.array([0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1])  # blocks of rates 0 of 6, 2 of 4 and 2 of 2
    prob = SmoothedPavaCalibrator().fit(z, y).predict_proba(z)[:, 1]
    logits = np.log(prob / (1 - prob))
    smooth = np.repeat([0.5 / 6.5, 2.5 / 2.5, 2.5 / 0.5], [6, 4, 2])  # chances
    np.testing.assert_allclose(logits - logits[0], np.log(smooth / smooth[0]))  # but for the shift
    falling = SmoothedPavaCalibrator().fit(np.arange(101.0), np.arange(101) == 1).predict_proba(np.arange(101.0))[:, 1]
    assert (np.diff(falling) >= 0).all()  # 0 of 1 would be above 1 of 100


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.9])
def test_smoothed_blocks_expect_as_many_events_as_there_are(rate):
    rng = np.random.default_rng(3)
    z, weight = rng.normal(size=3000), rng.integers(1, 4, 3000).astype(float)
    y = (rng.random(3000) < rate).astype(int)
    prob = SmoothedPavaCalibrator().fit(z, y, weight).predict_proba(z)[:, 1]
    assert (weight * prob).sum() == pytest.approx((weight * y).sum())


def test_the_constant_at_the_edges_decides_the_loss_of_plain_isotonic_regression_alone(monkeypatch):
    X, y, _ = rows(9, 6000)
    y = np.where(X["score"] < 0, 0, y)
    y[4500:4503], X.loc[4500:4502, "score"] = 1, -6.0  # events below the lowest one of the fit
    fit, test = X[["score"]][:3000], X[["score"]][3000:]

    def losses(method):
        found = []
        for edge in (1e-6, 1e-12):
            monkeypatch.setattr("research.calibrators._EDGE", edge)
            prob = method().fit(fit, y[:3000]).predict_proba(test)[:, 1]
            found.append(-np.log(np.where(y[3000:] == 1, prob, 1 - prob)).sum())
        return found

    plain, smoothed = losses(PavaCalibrator), losses(SmoothedPavaCalibrator)
    assert plain[1] - plain[0] > 40
    assert smoothed[1] == smoothed[0] < plain[0]


@pytest.mark.parametrize("method", EXACT)
def test_a_context_alone_gives_the_fit_of_its_rows_alone(method):
    X, y, _ = rows(3)
    inside = (X["segment"] == 1).to_numpy()
    together = method(("segment",)).fit(X, y).predict_proba(X[inside])
    alone = method().fit(X.loc[inside, ["score"]], y[inside]).predict_proba(X.loc[inside, ["score"]])
    np.testing.assert_allclose(together, alone, atol=1e-7)


@pytest.mark.parametrize("method", EXACT)
def test_a_context_that_is_new_small_or_of_one_class_gets_the_fit_of_all(method):
    X, y, _ = rows(4)
    y = np.where(X["segment"] == 2, 0, y)
    X.loc[:20, "segment"], X.loc[1000:1300, "segment"] = 7, 8
    y[1000:1301] = 1
    fitted, everything = method(("segment",)).fit(X, y), method().fit(X[["score"]], y)
    score = np.linspace(-4, 3, 30)
    for segment in (7, 2, 8, 99):
        mine = fitted.predict_proba(pd.DataFrame({"score": score, "segment": segment}))
        np.testing.assert_array_equal(mine, everything.predict_proba(score))
    one = fitted.predict_proba(pd.DataFrame({"score": score, "segment": 1}))
    assert np.abs(one - everything.predict_proba(score)).max() > 1e-4
    smaller = method(("segment",), minimum=5).fit(X, y)
    seven = pd.DataFrame({"score": score, "segment": 7})
    assert np.abs(smaller.predict_proba(seven) - everything.predict_proba(score)).max() > 1e-4


@pytest.mark.parametrize("method", EXACT)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_weight_two_is_the_row_twice(method, seed):
    X, y, weight = rows(seed, 400, 2)
    repeat = np.repeat(np.arange(len(y)), weight.astype(int))
    weighted = method(("segment",)).fit(X, y, weight).predict_proba(X)
    repeated = method(("segment",)).fit(X.iloc[repeat], y[repeat]).predict_proba(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-6)


@pytest.mark.parametrize("method", EXACT)
def test_two_columns_make_one_context_for_each_pair(method):
    X, y, _ = rows(5, 4000)
    X["device"] = np.where(np.arange(4000) % 2, "tv", "web")
    X["pair"] = X["segment"].astype(str) + X["device"]
    two = method(("segment", "device")).fit(X, y).predict_proba(X)
    one = method(("pair",)).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(two, one)

    kept = ~((X["segment"] == 1) & (X["device"] == "tv")).to_numpy()
    missing = method(("segment", "device")).fit(X[kept], y[kept])
    everything = method().fit(X.loc[kept, ["score"]], y[kept])
    pair = X[~kept]  # both values are known, together they are new
    np.testing.assert_array_equal(missing.predict_proba(pair), everything.predict_proba(pair[["score"]]))


@pytest.mark.parametrize("method", ALL)
def test_contract(method):
    X, y, _ = rows(6)
    model = clone(method(("segment",), scale="prob"))
    X["score"] = 1 / (1 + np.exp(-X["score"]))
    model.fit(X, np.where(y == 1, "yes", "no"))
    prob = model.predict_proba(X)
    assert prob.shape == (2000, 2)
    np.testing.assert_allclose(prob.sum(1), 1)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) <= {"no", "yes"}
    np.testing.assert_allclose(1 / (1 + np.exp(-model.decision_function(X))), prob[:, 1])
    assert np.mean(prob[:, 1]) == pytest.approx(y.mean(), abs=0.05 if method is not TemperatureCalibrator else 0.3)


def test_network_is_monotone_seeded_weighted_and_learns_contexts():
    X, y, _ = rows(7, 6000)
    options = {"batch": 256, "epochs": 4}
    fitted = MonotoneNetworkCalibrator(("segment",), **options).fit(X, y)
    score = np.linspace(-12, 12, 200)
    for segment in (0, 1, 2, 99):
        curve = fitted.decision_function(pd.DataFrame({"score": score, "segment": segment}))
        assert (np.diff(curve) > 0).all()
    again = MonotoneNetworkCalibrator(("segment",), **options).fit(X, y)
    np.testing.assert_array_equal(fitted.decision_function(X), again.decision_function(X))
    other = MonotoneNetworkCalibrator(("segment",), **options, random_state=1).fit(X, y)
    assert np.abs(fitted.decision_function(X) - other.decision_function(X)).max() > 1e-4

    true = -0.5 + 0.7 * X["segment"] + (0.6 + 0.3 * X["segment"]) * X["score"]
    inside = np.abs(X["score"] + 1) < 2
    assert np.abs(fitted.predict_proba(X)[:, 1] - 1 / (1 + np.exp(-true)))[inside].mean() < 0.03

    unseen = X.assign(segment=99)  # what all rows together say, not the untrained curve
    everything = PlattCalibrator().fit(X[["score"]], y).predict_proba(X[["score"]])
    assert np.abs(fitted.predict_proba(unseen) - everything).mean() < 0.03

    wrong = np.concatenate([y, 1 - y])  # every row again with the other label and no weight
    both = pd.concat([X, X], ignore_index=True)
    weight = np.repeat([1.0, 0.0], len(y))
    ignoring = MonotoneNetworkCalibrator(("segment",), **options).fit(both, wrong, weight)
    assert np.abs(ignoring.predict_proba(X) - fitted.predict_proba(X)).mean() < 0.03


@pytest.mark.parametrize("method", EXACT)
def test_frames_of_every_kind_and_arrays_agree(method):
    X, y, _ = rows(8)
    columns = {"raw": X["score"].to_numpy(), "segment": X["segment"].to_numpy()}
    expected = method(("segment",)).fit(X, y).predict_proba(X)
    for make in (dict, pa.table, pl.DataFrame):
        np.testing.assert_array_equal(method(("segment",)).fit(make(columns), y).predict_proba(make(columns)), expected)
    alone = method().fit(X[["score"]], y).predict_proba(columns["raw"])
    np.testing.assert_array_equal(method().fit(columns["raw"][:, None], y).predict_proba(columns["raw"]), alone)


def test_a_frame_without_a_plain_score_is_refused():
    X, y, _ = rows(9)
    with pytest.raises(InputError, match=r"expected a frame with the columns \['segment'\], got an array"):
        PlattCalibrator(("segment",)).fit(X["score"].to_numpy(), y)
    with pytest.raises(InputError, match=r"or one called 'score', got \['one', 'two'\]; name it with score="):
        PlattCalibrator(("segment",)).fit(X.rename(columns={"score": "one"}).assign(two=1.0), y)
    with pytest.raises(InputError, match=r"expected scores of shape \[n\] or \[n, 1\], got \(2, 3\)"):
        PlattCalibrator().fit(np.zeros((2, 3)), [0, 1])
    with pytest.raises(
        InputError, match=r'score: expected probabilities in \[0, 1\], got 1.5 in row 1; for logits use scale="logit"'
    ):
        PlattCalibrator(scale="prob").fit([0.5, 1.5], [0, 1])
    with pytest.raises(InputError, match="score: expected finite numbers, got nan in row 0"):
        PlattCalibrator().fit([np.nan, 1.0], [0, 1])


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(
    ("y", "weight", "message"),
    [
        ([1, 1], None, "y: expected 2 labels of two classes, got 2 of 1; calibration needs both outcomes"),
        ([1, 0, 1], None, "y: expected 2 labels of two classes, got 3 of 2"),
        ([1, 0], [1.0, -1.0], "sample_weight: expected 2 finite numbers >= 0"),
        ([1, 0], [1.0], "sample_weight: expected 2 finite numbers >= 0"),
    ],
)
def test_unusable_input_is_named(method, y, weight, message):
    with pytest.raises(InputError) as caught:
        method().fit([0.1, 0.2], y, weight)
    assert message in str(caught.value)
