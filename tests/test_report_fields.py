"""The page of a calibrator with fields: the same figures whether rows, sums or an engine made it, terms in words."""

from __future__ import annotations

import pickle
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss
from test_fields import log_of
from typer.testing import CliRunner

from isolayer import IsotonicCalibrator, report
from isolayer.cli.app import app
from isolayer.report.evidence import gather
from isolayer.report.rows import from_histogram, from_log

FIELDS = ("hour", "age", "when")
SETTINGS = {"contexts": ("device",), "fields": FIELDS}


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    frame, label, _ = log_of(8000)
    return frame[["score", "device", *FIELDS]].assign(label=label)


@pytest.fixture(scope="module")
def fitted(log) -> IsotonicCalibrator:
    return IsotonicCalibrator(**SETTINGS).fit(log.drop(columns="label"), log["label"])


def test_the_sums_of_a_fit_say_what_its_rows_say(log, fitted):
    table = IsotonicCalibrator(**SETTINGS).fit_table(log)
    for model in (fitted, table, pickle.loads(pickle.dumps(fitted))):
        shown = gather(from_histogram(model._corrected, model.curves_), model.curves_)
        exact = gather(from_log(log, model.curves_), model.curves_)
        assert shown.in_sample
        assert shown.weight == 8000
        for one, other in zip(shown.figures, exact.figures, strict=True):
            assert one.before.value == pytest.approx(other.before.value, abs=5e-3), one.name
            assert one.after.value == pytest.approx(other.after.value, abs=5e-3), one.name
        prob = model.predict_proba(log)[:, 1]
        assert shown.figures[0].after.value == pytest.approx(log_loss(log["label"], prob), abs=5e-4)
        for ours, theirs in zip(shown.tables, exact.tables, strict=True):
            assert ours.label(0) == theirs.label(0)
            np.testing.assert_allclose(ours.after.ratio, theirs.after.ratio, rtol=2e-3)
            np.testing.assert_allclose(ours.before.ratio, theirs.before.ratio, rtol=2e-3)


def test_weights_sampled_negatives_and_probabilities_are_counted(log):
    prob = 1 / (1 + np.exp(-log["score"]))
    kept = (log["label"] == 1) | (np.arange(len(log)) % 2 == 0)
    rows = log.assign(score=prob, weight=2.0)[kept].drop(columns=["age", "when"])
    settings = {"contexts": ("device",), "fields": ("hour",), "scale": "prob", "negative_rate": 0.5}
    model, table = (IsotonicCalibrator(**settings) for _ in range(2))
    table.fit_table(rows, weight="weight")
    model.fit(rows.drop(columns=["label", "weight"]), rows["label"], rows["weight"])
    weight = np.where(rows["label"] == 1, 2, 4)
    for one in (model, table):
        shown = gather(from_histogram(one._corrected, one.curves_), one.curves_)
        assert shown.weight == pytest.approx(weight.sum())
        ratio = next(figure for figure in shown.figures if figure.name == "Observed / expected")
        exact = np.sum(weight * rows["label"]) / np.sum(weight * one.predict_proba(rows)[:, 1])
        assert ratio.after.value == pytest.approx(exact, abs=1e-3)


def test_after_more_rows_the_page_is_about_the_latest(log):
    model = IsotonicCalibrator(**SETTINGS).partial_fit(log[:5000].drop(columns="label"), log["label"][:5000])
    model.partial_fit(log[5000:].drop(columns="label"), log["label"][5000:])
    shown = gather(from_histogram(model._corrected, model.curves_), model.curves_)
    assert shown.weight == 3000
    prob = model.predict_proba(log[5000:])[:, 1]
    assert shown.figures[0].after.value == pytest.approx(log_loss(log["label"][5000:], prob), abs=5e-4)


def test_the_page_has_the_curves_and_the_terms_in_words(log, fitted, tmp_path):
    text = unescape(fitted.report(tmp_path / "fit.html").read_text())
    assert 'id="in-sample">The curves were fitted to these very rows' in text
    assert "over all values of hour and age and when" in text
    for segment in fitted.curves_.terms.segments(3):
        assert f"<li>{segment}</li>" in text
    assert '<th scope="row">hour x device</th>' in text or '<th scope="row">device x hour</th>' in text
    plain = IsotonicCalibrator(fields=("device",)).fit(log[["score", "device"]], log["label"])
    assert "What fields correct" in plain.report(tmp_path / "plain.html").read_text()


def test_the_command_writes_the_same_page_on_a_log(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log.to_parquet("log.parquet")
    columns = ("--scale", "logit", "--contexts", "device", "--fields", "hour,age,when", "--holdout", "0.3")
    assert CliRunner().invoke(app, ["fit", "log.parquet", *columns]).exit_code == 0
    assert CliRunner().invoke(app, ["report", "log.parquet", "--held-out"]).exit_code == 0
    held = unescape(Path("report.html").read_text())
    assert "What fields correct" in held
    assert 'id="in-sample"' not in held
    assert CliRunner().invoke(app, ["report", "log.parquet"]).exit_code == 0
    assert 'id="in-sample"' in Path("report.html").read_text()


def test_a_page_on_rows_that_were_fitted_says_so(log, fitted, tmp_path):
    path = report.write(tmp_path / "log.html", log, fitted.curves_)
    assert 'id="in-sample"' in path.read_text()  # by a digest of the rows
