"""Fields that know the label, scores that are reversed, and threads that are in each other's way."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from isolayer import InputError, IsotonicCalibrator
from isolayer.curves.fit_checks import ScoresLookReversed
from isolayer.fitting.field_leaks import FieldKnowsLabel

ROWS = 3000


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    score = rng.normal(-1, 1, ROWS)
    label = (rng.random(ROWS) < 1 / (1 + np.exp(-score))).astype(int)
    return {"score": score, "device": rng.choice(["tv", "web"], ROWS), "label": label}


@pytest.mark.parametrize("frame_of", [dict, pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("told", [lambda label: label, lambda label: np.where(label == 1, "Yes", "No")])
def test_the_label_left_in_the_frame_is_refused(frame, frame_of, told):
    with pytest.raises(InputError, match=r"field label: .* reveals the label; leave it out"):
        IsotonicCalibrator(fields="all").fit(frame_of({**frame, "label": told(frame["label"])}), frame["label"])


def test_a_field_that_predicts_far_better_than_the_score_is_warned_of_and_used(frame):
    rng = np.random.default_rng(1)
    after = np.where(rng.random(ROWS) < 0.05, 1 - frame["label"], frame["label"])
    with pytest.warns(FieldKnowsLabel, match="field dwell alone predicts the label better than the score does"):
        IsotonicCalibrator(fields=("dwell",)).fit({"score": frame["score"], "dwell": after}, frame["label"])


def test_ids_and_honest_fields_are_not_suspected(frame):
    rng = np.random.default_rng(2)
    late = rng.random(ROWS) < 0.3
    label = rng.random(ROWS) < 1 / (1 + np.exp(-frame["score"] - 2 * late))
    rows = {"score": frame["score"], "late": late, "user": [f"u{i}" for i in range(ROWS)]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IsotonicCalibrator(fields="all").fit(rows, label)


def test_a_score_of_the_other_class_is_warned_of(frame):
    with pytest.warns(ScoresLookReversed, match="check the sign of the score"):
        IsotonicCalibrator().fit(-frame["score"], frame["label"])
    rng = np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IsotonicCalibrator().fit(frame["score"], frame["label"])
        for _ in range(20):  # scores that say nothing
            IsotonicCalibrator().fit(rng.normal(size=500), rng.random(500) < 0.3)


def test_terms_are_fitted_with_one_thread_of_linear_algebra(frame, monkeypatch):
    """Thousands of small matrices: with two threads they took ten times the processor time."""
    seen, invert = [], np.linalg.inv

    def watched(matrix):
        seen.append(max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"))
        return invert(matrix)

    monkeypatch.setattr(np.linalg, "inv", watched)
    rows = {name: values[:400] for name, values in frame.items()}
    with threadpool_limits(limits=2, user_api="blas"):
        calibrator = IsotonicCalibrator(fields=("device",)).fit(rows, rows["label"])
        calibrator.partial_fit(rows, rows["label"])
        assert max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas") == 2
    assert set(seen) == {1}
