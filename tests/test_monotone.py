"""Rates that do not rise with the score: how they are found, and what an unconstrained fit makes of them."""

from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import torch

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.monotone_test import clearest_fall, looked_at

DRAWS = 200


def rows_of(truth, seed, n=4000, contexts=5, middle=-2.0):
    """Scores, contexts and labels; ``truth`` says the true logit."""
    rng = np.random.default_rng(seed)
    context = rng.integers(0, contexts, n)
    score = rng.normal(0, 1.5, n) + (0.6 * context if truth == "contexts" else 0.0)
    logit = {
        "flat": 0.0 * score,
        "steps": np.floor(score),
        "contexts": 0.1 * score - 0.8 * context,  # rises within each, falls in all together
        "falls": score - 2 * np.maximum(score - 0.5, 0),
    }[truth]
    return score, context, (rng.random(n) < prob_of(middle + logit)).astype(int)


def p_value(truth, seed, **options):
    score, context, label = rows_of(truth, seed, **options)
    sums = Histogram.from_arrays(score, label, {"c": context})
    fall = clearest_fall(sums, prob_of(-2 + 0.5 * sums.logit / sums.weight))
    return 1.0 if fall is None else fall.p_value


@pytest.mark.parametrize("truth", ["flat", "steps", "contexts"])
@pytest.mark.parametrize("options", [{}, {"middle": -5.0}, {"n": 300, "contexts": 1}, {"contexts": 100}], ids=str)
def test_a_rate_that_never_falls_is_called_falling_at_most_as_often_as_stated(truth, options):
    called = np.mean([p_value(truth, seed, **options) < 0.05 for seed in range(DRAWS)])
    assert called <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / DRAWS)  # beyond that in 1 of 200 tests whose level is exact


def test_a_rate_that_falls_is_found():
    assert np.mean([p_value("falls", seed) < 0.05 for seed in range(40)]) > 0.9


def fitted(truth="falls", **options):
    score, context, label = rows_of(truth, 0, n=40_000)
    return IsotonicCalibrator(("c",), **options).fit({"score": score, "c": context}, label)


def test_the_summary_says_where_the_model_is_wrong():
    text = fitted().summary().splitlines()[-1]
    assert text.startswith("Above 0.")
    assert "the event becomes rarer as the score rises" in text
    assert "the model, not its calibration, is wrong there. No monotone curve can correct this" in text
    assert "becomes rarer" not in fitted("steps").summary()
    assert "becomes rarer" not in fitted("contexts").summary()
    assert fitted(monotone=False).summary().splitlines()[-1].endswith("it is better to retrain the model.")


def test_the_summary_speaks_of_scores_as_users_know_them():
    score, _, label = rows_of("falls", 0, n=40_000)
    text = IsotonicCalibrator(scale="prob").fit(prob_of(score), label).summary().splitlines()[-1]
    assert prob_of(-0.5) < float(text.split()[1]) < prob_of(1.5)


def test_sampled_negatives_do_not_look_like_a_fall():
    rng = np.random.default_rng(0)
    score, _, label = rows_of("steps", 0, n=100_000)
    rate = np.where(score > 0, 1.0, 0.05)  # more negatives are kept where scores are high
    kept = (label == 1) | (rng.random(len(score)) < rate)
    frame = {"score": score[kept], "rate": rate[kept]}
    told = IsotonicCalibrator(negative_rate="rate").fit(frame, label[kept], score="score")
    assert "becomes rarer" not in told.summary()
    assert "becomes rarer" in IsotonicCalibrator().fit(score[kept], label[kept]).summary()


def test_without_the_constraint_curves_follow_the_rate():
    x = np.linspace(-2, 3, 50)
    truth = -2 + x - 2 * np.maximum(x - 0.5, 0)
    free, bound = (fitted(monotone=monotone).curves_ for monotone in (False, True))
    asked = {"c": np.zeros(50, int)}
    assert np.abs(free.decision_function(x, asked) - truth).max() < 0.6
    assert np.abs(bound.decision_function(x, asked) - truth).max() > 1
    assert (np.diff(bound.decision_function(x, asked)) > 0).all()
    np.testing.assert_allclose(
        fitted("steps", monotone=False).curves_.values[0, 75:90], fitted("steps").curves_.values[0, 75:90], atol=0.3
    )


def test_curves_that_decrease_are_served_everywhere_and_have_no_inverse(tmp_path):
    curves = fitted(monotone=False).curves_
    with pytest.raises(InputError, match="inverse: expected monotone curves, got curves that may decrease; fit with"):
        curves.inverse([0.5])
    with pytest.raises(InputError, match="values: expected it never decreasing, or monotone=False, got"):
        replace(curves, monotone=True).save(tmp_path / "no.parquet")
    curves.save(tmp_path / "curves.parquet")
    again = Curves.load(tmp_path / "curves.parquet")
    assert again.monotone is False
    x, c = np.linspace(-4, 4, 101), np.arange(101) % 6
    expected = curves.predict_proba(x, {"c": c})
    np.testing.assert_array_equal(again.predict_proba(x, {"c": c}), expected)
    engine = duckdb.connect()
    engine.register("scores", pa.table({"score": x, "c": c}))
    answer = engine.sql(curves.to_sql("duckdb", table="scores") + " ORDER BY score").fetchnumpy()["calibrated_prob"]
    np.testing.assert_allclose(answer, expected, atol=1e-12)
    layer = curves.to_layer()
    logit = layer(torch.tensor(x), {"curve": torch.tensor(curves.rows_of({"c": c}, 101))})[:, 0].detach().numpy()
    np.testing.assert_allclose(prob_of(logit), expected, atol=1e-9)
    back = Curves.from_layer(layer, like=curves)
    assert back.monotone is False
    np.testing.assert_allclose(back.values, curves.values, atol=1e-9)
    curves.to_onnx(tmp_path / "curves.onnx")  # compared before it is kept


def test_a_table_fits_the_same():
    score, context, label = rows_of("falls", 0)
    calibrators = [IsotonicCalibrator(("c",), monotone=False) for _ in range(2)]
    calibrators[0].fit({"score": score, "c": context}, label)
    calibrators[1].fit_table({"score": score, "c": context, "label": label})
    np.testing.assert_allclose(calibrators[0].curves_.values, calibrators[1].curves_.values, atol=1e-6)


def test_the_report_says_it_too(tmp_path):
    text = fitted().report(tmp_path / "report.html").read_text()
    assert "the model, not its calibration, is wrong there" in text
    assert "becomes rarer" not in fitted("steps").report(tmp_path / "report.html").read_text()


def test_contexts_of_equal_size_are_not_all_looked_at():
    """With ties at the least size, the test of a million equal contexts took a quarter of their fit."""
    shop = np.repeat(np.arange(5_000), 3)
    sums = Histogram.from_arrays(np.tile([-1.0, 0.0, 1.0], 5_000), shop % 2, {"shop": shop})
    assert len(np.unique(sums.group[looked_at(sums)])) == 2_000
    larger = Histogram.from_arrays(
        np.r_[np.zeros(9), sums.logit], np.r_[np.ones(9), sums.positive], {"shop": np.r_[[4_999] * 9, shop]}
    )
    assert 4_999 in larger.group[looked_at(larger)]
