"""IsotonicCalibrator: scikit-learn's contract, labels, frames, weights, forgetting."""

from datetime import timedelta

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.errors import InputError
from isolayer.fitting.frames import Rows
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

GRID = Grid(lower=-6, upper=4, step=0.5)
FRAMES = [dict, pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table, lambda rows: duckdb.from_arrow(pa.table(rows))]


class OfAnyWidth(IsotonicCalibrator):
    """The calibrator behind a fixed sum of columns, because most of scikit-learn's checks bring several features."""

    def _rows_to_fit(self, X, score, *, first):
        return self._sum_of_columns(X, reset=first)

    def _rows(self, X):
        return self._sum_of_columns(X, reset=False)

    def _sum_of_columns(self, X, *, reset):
        X = validate_data(self, X, reset=reset, dtype=np.float64)
        return Rows(X @ np.resize([1.0, -1.0], X.shape[1]), {}, {})

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


@parametrize_with_checks([OfAnyWidth()])  # scikit-learn tests nothing of an estimator of one column, its own included
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def rows_of(seed, n=2000):
    rng = np.random.default_rng(seed)
    device, slot = rng.choice(["tv", "web"], n), rng.integers(0, 3, n)
    score = rng.normal(-1, 1.5, n)
    label = (rng.random(n) < prob_of(0.8 * score + np.where(device == "tv", 0.5, -0.5) - 0.2 * slot)).astype(int)
    return {"score": score, "device": device, "slot": slot, "day": np.arange(n) // 100}, label


def columns(frame, *names):
    return {name: frame[name] for name in ("score", *names)}


def make(*contexts, **settings):
    return IsotonicCalibrator(contexts, grid=GRID, **settings)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.__name__)
def test_every_frame_gives_the_same_probabilities(frame):
    rows, label = rows_of(0)
    rows = columns(rows, "device", "slot")
    expected = make("device", "slot").fit(rows, label).predict_proba(rows)
    calibrator = make("device", "slot").fit(frame(rows), label)
    np.testing.assert_array_equal(calibrator.predict_proba(frame(rows)), expected)
    assert calibrator.feature_names_in_.tolist() == ["score", "device", "slot"]
    assert calibrator.n_features_in_ == 3


def test_the_score_column_that_was_fitted_is_read_again():
    rows, label = rows_of(0)
    frame = {"raw": rows["score"], "score": np.zeros(2000), "device": rows["device"]}
    fitted = make("device").fit(frame, label, score="raw")
    expected = make("device").fit(columns(rows, "device"), label)
    assert fitted.score_name_ == "raw"
    np.testing.assert_array_equal(fitted.predict_proba(frame), expected.predict_proba(columns(rows, "device")))
    with pytest.raises(
        InputError, match=r"column raw: expected it in the frame, got only \['score', 'device'\]; add it"
    ):
        fitted.predict_proba(columns(rows, "device"))
    halves = [{name: column[part] for name, column in frame.items()} for part in (slice(1000), slice(1000, None))]
    parts = make("device").partial_fit(halves[0], label[:1000], score="raw").partial_fit(halves[1], label[1000:])
    np.testing.assert_allclose(parts.predict_proba(frame), fitted.predict_proba(frame), atol=1e-7)
    table = make("device").fit_table(frame | {"label": label}, score="raw")
    np.testing.assert_allclose(table.predict_proba(frame), fitted.predict_proba(frame), atol=1e-7)
    applied = table.apply_table(frame).to_pyarrow()["calibrated_prob"].to_numpy()
    np.testing.assert_allclose(np.sort(applied), np.sort(fitted.predict_proba(frame)[:, 1]), atol=1e-7)


def test_soft_labels_are_that_much_of_either_class():
    rows, label = rows_of(1)
    soft = np.where(label == 1, 0.75, 0.125)
    twice = {name: np.concatenate([column, column]) for name, column in columns(rows, "device").items()}
    frame = columns(rows, "device")
    fitted = make("device", shrinkage=1.0).fit(frame, soft)
    split = make("device", shrinkage=1.0).fit(
        twice, np.repeat([1, 0], 2000), sample_weight=np.concatenate([soft, 1 - soft])
    )
    assert fitted.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(fitted.decision_function(frame), split.decision_function(frame), atol=1e-6)
    table = make("device", shrinkage=1.0).fit_table(frame | {"label": soft})
    np.testing.assert_allclose(table.decision_function(frame), fitted.decision_function(frame), atol=1e-6)
    more = make("device", shrinkage=1.0).partial_fit(frame, label).partial_fit(frame, soft)
    assert more.histogram_.positive.sum() == pytest.approx(label.sum() + soft.sum())
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        make().fit(rows["score"], soft + 1)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        make().fit(rows["score"], np.where(label, "yes", "no")).partial_fit(rows["score"], soft)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_arrays_of_scores(shape):
    rows, label = rows_of(0)
    calibrator = make().fit(rows["score"].reshape(shape), label)
    expected = make().fit(columns(rows), label).predict_proba(columns(rows))
    np.testing.assert_array_equal(calibrator.predict_proba(rows["score"].reshape(shape)), expected)


@pytest.mark.parametrize(
    "labels",
    [np.array([0, 1]), np.array([False, True]), np.array(["no", "yes"]), np.array([-1, 1]), np.array([0.0, 1.0])],
)
def test_labels_of_every_kind(labels):
    rows, label = rows_of(0)
    calibrator = make().fit(rows["score"], labels[label])
    assert calibrator.classes_.tolist() == labels.tolist()
    assert set(calibrator.predict(rows["score"])) <= set(labels)
    np.testing.assert_array_equal(
        calibrator.predict_proba(rows["score"]), make().fit(rows["score"], label).predict_proba(rows["score"])
    )


@pytest.mark.parametrize("values", [["a", "b"], [1, 2], [True, False], [10**12, -5]])
def test_contexts_of_every_kind(values):
    rows, label = rows_of(0)
    place = (rows["device"] == "tv").astype(int)
    coded = (
        make("c").fit({"score": rows["score"], "c": place}, label).predict_proba({"score": rows["score"], "c": place})
    )
    frame = {"score": rows["score"], "c": np.array(values)[place]}
    np.testing.assert_allclose(make("c").fit(frame, label).predict_proba(frame), coded, atol=1e-7)


def test_missing_contexts_are_refused_or_have_their_own_curve():
    rows, label = rows_of(0)
    device = np.where(rows["device"] == "tv", None, rows["device"])
    frame = {"score": rows["score"], "device": device}
    with pytest.raises(
        InputError, match=r"context device: expected no missing values, got .* of 2000 rows; fill them, or use"
    ):
        make("device").fit(frame, label)
    own = make("device", missing="own").fit(frame, label)
    named = make("device").fit(columns(rows, "device"), label)
    np.testing.assert_allclose(own.predict_proba(frame), named.predict_proba(columns(rows, "device")), atol=1e-7)
    with pytest.raises(InputError, match="context device: expected no missing values, got 1 of 1 rows"):
        named.predict_proba({"score": [0.0], "device": [None]})
    unseen = make("device", missing="own").fit(columns(rows, "device"), label)
    np.testing.assert_array_equal(
        unseen.predict_proba({"score": [0.0], "device": [None]}),
        unseen.predict_proba({"score": [0.0], "device": ["radio"]}),
    )


def test_probabilities_are_logits_on_another_scale():
    rows, label = rows_of(0)
    of_prob = make(scale="prob").fit(prob_of(rows["score"]), label)
    of_logit = make().fit(rows["score"], label)
    x = np.linspace(-8, 8, 50)
    np.testing.assert_allclose(of_prob.predict_proba(prob_of(x)), of_logit.predict_proba(x), atol=1e-6)
    np.testing.assert_allclose(of_prob.band(prob_of(x)), of_logit.band(x), atol=1e-6)
    assert of_prob.curves_.scale == "prob"
    assert ((of_prob.predict_proba([0.0, 1.0]) > 0) & (of_prob.predict_proba([0.0, 1.0]) < 1)).all()


def test_no_ties_and_no_inversions_anywhere():
    rows, label = rows_of(0, 300)
    x = np.linspace(-30, 30, 5001)
    for shrinkage in ("auto", 0.0):
        calibrator = make("device", shrinkage=shrinkage).fit(columns(rows, "device"), label)
        for device in ("tv", "web", "radio"):
            frame = {"score": x, "device": np.full(len(x), device)}
            assert (np.diff(calibrator.decision_function(frame)) > 0).all()


def test_unseen_contexts_have_the_global_curve_exactly():
    rows, label = rows_of(0)
    with_devices = make("device").fit(columns(rows, "device"), label)
    alone = make().fit(columns(rows), label)
    radio = {"score": rows["score"], "device": np.full(2000, "radio")}
    np.testing.assert_array_equal(
        with_devices.decision_function(radio), with_devices.curves_.decision_function(rows["score"])
    )
    np.testing.assert_allclose(with_devices.predict_proba(radio), alone.predict_proba(columns(rows)), atol=1e-9)


def sampled_rows(rate, n=200_000):
    """Rows of a calibrated score by device, of whose negatives only some were kept, and the rate of each."""
    rng = np.random.default_rng(0)
    score = rng.normal(-2, 1, n)
    label = (rng.random(n) < prob_of(score)).astype(int)
    share = np.where(score < -2, *rate) if isinstance(rate, tuple) else np.full(n, rate)
    kept = (label == 1) | (rng.random(n) < share)
    frame = {"score": score[kept], "rate": share[kept], "device": rng.choice(["tv", "web"], n)[kept]}
    return frame, label[kept]


def test_a_negative_rate_moves_the_fit_of_the_kept_rows_by_its_logarithm():
    frame, label = sampled_rows(0.1, 20_000)
    plain = make("device").fit({name: frame[name] for name in ("score", "device")}, label)
    asked = {"score": np.linspace(-6, 3, 50), "device": ["tv", "web"] * 25}
    for rate in (0.1, "rate"):
        moved = make("device", negative_rate=rate).fit(frame, label, score="score")
        difference = moved.decision_function(asked) - plain.decision_function(asked)
        np.testing.assert_allclose(difference, np.log(0.1), atol=1e-12)
        for one, two in zip(moved.band(asked), plain.band(asked), strict=True):
            np.testing.assert_allclose(logit_of(one) - logit_of(two), np.log(0.1), atol=1e-9)


@pytest.mark.parametrize("rate", [0.1, (0.1, 0.3), (0.02, 1.0)])
def test_a_down_sampled_log_comes_out_calibrated_to_all_traffic(rate):
    frame, label = sampled_rows(rate)
    fitted = make("device", negative_rate="rate").fit(frame, label, score="score")
    asked = {"score": np.linspace(-4, 0, 9), "device": ["tv"] * 9}
    assert np.abs(fitted.decision_function(asked) - asked["score"]).max() < 0.25
    lower, upper = fitted.band(asked)
    assert ((lower < prob_of(asked["score"])) & (prob_of(asked["score"]) < upper)).mean() > 0.5
    plain = make().fit(frame["score"], label)
    assert np.abs(plain.decision_function(asked["score"]) - asked["score"]).max() > 0.5
    table = make("device", negative_rate="rate").fit_table({**frame, "label": label})
    np.testing.assert_allclose(table.decision_function(asked), fitted.decision_function(asked), atol=1e-9)


def test_days_sampled_at_different_rates_add_up():
    frame, label = sampled_rows((0.1, 0.3), 20_000)
    whole = make(negative_rate="rate").fit({name: frame[name] for name in ("score", "rate")}, label)
    low = frame["score"] < -2
    days = Histogram.from_arrays(frame["score"][low], label[low], negative_rate=0.1, grid=GRID)
    days = days.merge(Histogram.from_arrays(frame["score"][~low], label[~low], negative_rate=0.3, grid=GRID))
    x = np.linspace(-5, 2, 20)
    np.testing.assert_allclose(
        make().fit_histogram(days).decision_function(x), whole.decision_function({"score": x}), atol=1e-9
    )


def test_rates_of_positives_are_those_of_the_negatives_around_them():
    frame, label = sampled_rows(0.1, 2_000)
    own = {"score": frame["score"], "rate": np.where(label, 1.0, 0.1)}
    with pytest.raises(
        InputError, match="negative_rate: expected the share of negatives that was kept, for positive rows too"
    ):
        make(negative_rate="rate").fit(own, label)


decays = st.sampled_from([{}, {"half_life": 300.0}, {"half_life": ("day", 3)}])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 600), max_size=4), decays)
def test_any_batches_are_the_fit_in_one_go(cuts, decay):
    rows, label = rows_of(1, 600)
    rows = columns(rows, "device", "day") if isinstance(decay.get("half_life"), tuple) else columns(rows, "device")
    whole = make("device", **decay).fit(rows, label)
    parts = make("device", **decay)
    for part in np.split(np.arange(600), sorted(cuts)):
        if len(part):
            batch = {name: column[part] for name, column in rows.items()}
            parts.partial_fit(batch, label[part], classes=[0, 1])
    for name in ("weight", "positive", "logit"):
        np.testing.assert_allclose(
            getattr(parts.histogram_, name), getattr(whole.histogram_, name), rtol=1e-9, atol=1e-9
        )
    np.testing.assert_allclose(parts.decision_function(rows), whole.decision_function(rows), atol=1e-6)


def test_batches_by_time_may_come_in_any_order():
    rows, label = rows_of(2, 600)
    rows = columns(rows, "day")
    whole = make(half_life=("day", 2)).fit(rows, label)
    parts = make(half_life=("day", 2))
    for part in (np.arange(300, 600), np.arange(300)):
        parts.partial_fit({name: column[part] for name, column in rows.items()}, label[part])
    np.testing.assert_allclose(parts.decision_function(rows), whole.decision_function(rows), atol=1e-6)


def test_half_lives_in_days_and_as_timedelta_agree():
    rows, label = rows_of(2, 600)
    stamps = {"score": rows["score"], "at": np.datetime64("2024-01-01", "s") + rows["day"] * np.timedelta64(86400, "s")}
    by_number = make(half_life=("day", 2)).fit(columns(rows, "day"), label)
    by_date = make(half_life=("at", timedelta(days=2))).fit(stamps, label)
    np.testing.assert_allclose(
        by_date.decision_function(stamps), by_number.decision_function(columns(rows, "day")), atol=1e-6
    )


def test_half_life_halves_the_weight_of_a_row_that_old():
    rows, label = rows_of(3, 101)
    weight = make(half_life=100).fit(rows["score"], label).histogram_.weight.sum()
    assert weight == pytest.approx((0.5 ** (np.arange(101) / 100)).sum())


def test_what_was_long_ago_is_forgotten():
    rng = np.random.default_rng(0)
    score = rng.normal(size=4000)
    label = np.where(np.arange(4000) < 2000, rng.random(4000) < 0.9, rng.random(4000) < prob_of(score)).astype(int)
    remembers, forgets = make().fit(score, label), make(half_life=200).fit(score, label)
    assert remembers.predict_proba([0.0])[0, 1] > 0.6
    assert abs(forgets.predict_proba([0.0])[0, 1] - 0.5) < 0.15


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000))
def test_weight_two_is_the_row_twice(seed):
    rows, label = rows_of(seed, 200)
    weight = np.random.default_rng(seed).integers(0, 3, 200)
    again = np.repeat(np.arange(200), weight)
    weighted = make("device").fit(columns(rows, "device"), label, sample_weight=weight)
    twice = {name: column[again] for name, column in columns(rows, "device").items()}
    repeated = make("device").fit(twice, label[again])
    frame = columns(rows, "device")
    np.testing.assert_allclose(weighted.decision_function(frame), repeated.decision_function(frame), atol=1e-6)


@pytest.mark.parametrize(
    "setting",
    [
        {"shrinkage": 50.0},
        {"strict": False, "shrinkage": 0.0},
        {"negative_rate": 0.5},
        {"half_life": 100},
        {"monotone": False, "shrinkage": 0.0},
        {"scale": "prob"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:scores. expected logits")  # probabilities are logits too, for all but one setting
@pytest.mark.filterwarnings("ignore:scores. expected the label to become more frequent")
def test_every_setting_changes_the_result(setting):
    rows, label = rows_of(4)
    score = prob_of(rows["score"])
    if "strict" in setting:
        label = 1 - label  # the wrong way round: only then is the floor of the slope felt
    base = make(**({"shrinkage": 0.0} if "strict" in setting else {})).fit(score, label)
    changed = make(**setting).fit(score, label)
    assert np.abs(changed.decision_function(score) - base.decision_function(score)).max() > 1e-5


def test_a_histogram_made_elsewhere_and_soft_labels():
    rows, label = rows_of(5)
    histogram = Histogram.from_arrays(rows["score"], label, {"device": rows["device"]}, grid=GRID)
    frame = columns(rows, "device")
    np.testing.assert_array_equal(
        make("device").fit_histogram(histogram).predict_proba(frame),
        make("device").fit(frame, label).predict_proba(frame),
    )
    soft = make("device").fit_histogram(
        Histogram.from_arrays(rows["score"], prob_of(rows["score"]), {"device": rows["device"]}, grid=GRID),
        ["no", "yes"],
    )
    assert soft.classes_.tolist() == ["no", "yes"]
    assert np.abs(soft.decision_function(frame) - rows["score"])[np.abs(rows["score"]) < 2].max() < 0.1
    with pytest.raises(InputError, match=r"histogram: expected contexts \(\) on Grid"):
        make().fit_histogram(histogram)


def test_cloning_pipelines_frozen_estimators_and_outputs():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3000, 4))
    label = (rng.random(3000) < prob_of(features @ [1.0, -1, 0.5, 0] - 1)).astype(int)
    model = LogisticRegression(C=0.001).fit(features[:1000], label[:1000])
    pipeline = make_pipeline(FunctionTransformer(model.decision_function), make())
    assert cross_val_score(pipeline, features[1000:], label[1000:], scoring="neg_log_loss").mean() > -0.6
    fitted = pipeline.fit(features[1000:], label[1000:])
    frozen = FrozenEstimator(fitted[-1])
    score = model.decision_function(features)
    np.testing.assert_array_equal(frozen.fit(score, label).predict_proba(score), pipeline.predict_proba(features))
    calibrator = make("device", shrinkage=2.0)
    assert clone(calibrator).get_params() == calibrator.get_params()
    wide = make().set_output(transform="pandas").fit(score, label)
    assert wide.transform(score).columns.tolist() == ["calibrated_prob"]
    assert make().fit(score, label).transform(score).shape == (3000, 1)


@pytest.mark.parametrize(
    ("calibrator", "X", "message"),
    [
        (make("device"), [0.0, 1.0], r"X: expected a frame with the columns \['device'\], got an array; give a frame"),
        (
            make("device"),
            {"score": [0.0, 1.0]},
            r"column device: expected it in the frame, got only \['score'\]; add it",
        ),
        (
            make(),
            {"a": [0.0, 1.0], "b": [0.0, 1.0]},
            r"X: expected one column besides \[\], or one called 'score', got",
        ),
        (
            make(),
            [[0.0, 1.0], [1.0, 2.0]],
            r"X: expected scores of shape \[n\] or \[n, 1\], got \(2, 2\); give one column",
        ),
        (
            make(),
            {"score": [0.0, np.nan]},
            "score: expected finite numbers, got nan in row 1; drop or repair those rows",
        ),
        (
            make(scale="prob"),
            [0.5, 1.5],
            r"score: expected probabilities in \[0, 1\], got 1.5 in row 1; for logits use",
        ),
        (make(scale="odds"), [0.5, 1.5], "scale: expected 'logit' or 'prob', got 'odds'; choose one"),
        (make(missing="drop"), [0.5, 1.5], "missing: expected 'error' or 'own', got 'drop'; choose one"),
        (make(negative_rate=0), [0.5, 1.5], r"negative_rate: expected a number in \(0, 1\], got 0; give the share"),
        (make(half_life=-1), [0.5, 1.5], "half_life: expected a positive number, got -1; None forgets nothing"),
        (
            IsotonicCalibrator("device"),
            [0.5, 1.5],
            r"contexts: expected names in a tuple, got 'device'; use \('device',\)",
        ),
    ],
)
def test_rows_and_settings_that_will_not_do(calibrator, X, message):
    with pytest.raises(InputError, match=message):
        calibrator.fit(X, [0, 1])


def test_labels_that_will_not_do():
    with pytest.raises(InputError, match=r"y: expected two classes, got one class only: \[1\]; collect rows of both"):
        make().fit([0.0, 1.0], [1, 1])
    with pytest.raises(InputError, match=r"y: expected two classes, got 3: \[0, 1, 2\]; fit one calibrator per class"):
        make().fit([0.0, 1.0, 2.0], [0, 1, 2])
    with pytest.raises(InputError, match=r"y: expected the classes \[0, 1\], got \['a', 'b'\]; call fit for others"):
        make().fit([0.0, 1.0], [0, 1]).partial_fit([0.0, 1.0], ["a", "b"])
    with pytest.raises(
        InputError, match="y: expected both classes among the rows whose weight is not zero, got one only"
    ):
        make().fit([0.0, 1.0], [0, 1], sample_weight=[0, 1])


def test_what_is_a_thousand_half_lives_old_is_gone():
    parts = make("device", half_life=("t", 1.0))
    for day in (0, 1000, 2000):
        rows, label = rows_of(day, 300)
        parts.partial_fit(columns(rows, "device") | {"t": np.full(300, day)}, label, classes=[0, 1])
    frame = columns(rows, "device") | {"t": np.full(300, 2000)}
    alone = make("device", half_life=("t", 1.0)).fit(frame, label)
    np.testing.assert_allclose(parts.decision_function(frame), alone.decision_function(frame), atol=1e-9)


def test_a_time_that_is_missing_is_refused():
    rows, label = rows_of(6, 300)
    frame = columns(rows) | {"t": np.where(np.arange(300) == 7, np.nan, 1.0)}
    with pytest.raises(InputError, match="t: expected finite numbers, got nan in row 7; drop or repair those rows"):
        make(half_life=("t", 1.0)).fit(frame, label)
    with pytest.raises(InputError, match="got 1 times that are NULL, NaN or infinite in 300 rows"):
        make(half_life=("t", 1.0)).fit_table(frame | {"label": label})


def test_a_context_named_twice_is_refused():
    rows, label = rows_of(6, 300)
    message = r"contexts: expected every name once, got \('device', 'device'\); name each column once"
    with pytest.raises(InputError, match=message):
        make("device", "device").fit(columns(rows, "device"), label)
    with pytest.raises(InputError, match=message):
        make("device", "device").fit_table(columns(rows, "device") | {"label": label})
