"""Verdicts on curves with fields: check, compare and update, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isolayer import Curves, IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.curves.comparison import compare_on_rows
from isolayer.curves.export.onnx import predict, session
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.metrics import log_loss
from isolayer.monitor import FieldLog, PairedLog, check, compare_on_log
from isolayer.monitor.groups import LogRows, groupings_of
from isolayer.monitor.term_errors import term_errors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FIELDS = ("device", "hour")


def day(seed: int, n: int = 8000, shift: float = 0.0) -> pd.DataFrame:
    """A day whose devices depend on the surface; a shift moves the surface home only."""
    random = np.random.default_rng(seed)
    surface = random.choice(["home", "search"], n)
    device = np.where(random.random(n) < np.where(surface == "home", 0.8, 0.2), "tv", random.choice(["web", "app"], n))
    score, hour = random.normal(-1, 1, n), random.integers(0, 24, n)
    logit = score + np.select([device == "tv", device == "web"], [0.5, -0.5], 0) + 0.5 * np.sin(hour / 4)
    logit = logit + shift * (surface == "home")
    label = (random.random(n) < 1 / (1 + np.exp(-logit))).astype(int)
    user = random.integers(0, 500, n)
    columns = {"surface": surface, "device": device, "hour": hour, "user": user}
    return pd.DataFrame({"prob": 1 / (1 + np.exp(-score)), "click": label, **columns})


def fitted(frame: pd.DataFrame, fields: tuple[str, ...] = FIELDS, **settings) -> Curves:
    model = IsotonicCalibrator(("surface",), fields=fields, scale="prob", **settings)
    return model.fit_table(frame, "prob", "click").curves_


@pytest.fixture(scope="module")
def curves() -> Curves:
    return fitted(day(0))


def test_terms_of_nothing_are_judged_as_no_terms(curves):
    """Sums by the corrected logit, and the errors of terms, change nothing where terms correct nothing."""
    frame = day(1, shift=0.2)
    nothing = curves.terms.kept(0.0)
    nothing = replace(
        nothing, last=None, terms=tuple(replace(t, covariance=np.zeros_like(t.covariance)) for t in nothing.terms)
    )
    empty, base = replace(curves, terms=nothing), replace(curves, terms=None)
    log = FieldLog.from_table(empty, frame, label="click", score="prob")
    with_terms, without = check(empty, log), check(base, log.raw)
    np.testing.assert_allclose(with_terms.ratio, without.ratio, rtol=1e-3)
    np.testing.assert_allclose(with_terms.slope, without.slope, rtol=0.02)
    np.testing.assert_allclose(with_terms.lower, without.lower, rtol=0.01)
    assert with_terms.log_loss == pytest.approx(without.log_loss, abs=1e-4)


def test_a_calm_day_holds_and_a_shift_of_one_context_is_found(curves):
    calm = check(curves, FieldLog.from_table(curves, day(2)))
    assert calm.holds
    assert calm.log_loss[1] < calm.log_loss[0] - 0.01
    moved = check(curves, FieldLog.from_table(curves, day(2, shift=0.5)))
    assert dict(zip(moved.context["surface"], moved.status, strict=True)) == {
        None: "level",
        "home": "level",
        "search": "holds",
    }
    clustered = check(curves, FieldLog.from_table(curves, day(2), cluster="user"), clustered=True)
    assert clustered.clusters == 126
    assert clustered.holds


def test_the_errors_of_terms_are_those_that_repeated_fits_make():
    """Variance of the mean logit of groups that lie elsewhere than the fit: a device, the evening."""
    log = day(99, 4000)
    groups = {"tv": log["device"] == "tv", "evening": log["hour"] >= 18, "all": log["hour"] >= 0}
    found, stated = {name: [] for name in groups}, {name: [] for name in groups}
    for seed in range(12):
        model = IsotonicCalibrator(fields=FIELDS, scale="prob", interactions=0)
        curves = model.fit_table(day(seed, 3000), "prob", "click").curves_
        for name, inside in groups.items():
            part = log[inside]
            prob = curves.predict_proba(part["prob"].to_numpy(), part)
            found[name].append(prob.mean())
            rows = LabelledRows(np.log(part["prob"] / (1 - part["prob"])).to_numpy(), part["click"].to_numpy(), part)
            sums = Histogram.from_arrays(rows.logit, rows.label, grid=curves.grid)
            groupings = groupings_of(curves, LogRows.of(curves, sums))
            more = term_errors(curves, curves.terms, rows, groupings)[0]
            pull = (prob * (1 - prob)).mean()
            stated[name].append((float(more.level[0]) + 1 / (3000 * pull)) * pull**2)
    ratios = {name: np.var(found[name], ddof=1) / np.mean(stated[name]) for name in groups}
    assert all(0.3 < ratio < 3 for ratio in ratios.values()), ratios  # the standard error of each is 40%
    assert np.mean(stated["evening"]) > 2 * np.mean(stated["all"])


def test_a_check_of_sums_alone_says_what_to_give(curves):
    sums = Histogram.from_arrays([0.0], [1], {"surface": ["home"]}, grid=curves.grid)
    with pytest.raises(InputError, match=r"check: expected rows with the fields device, hour, got sums .*FieldLog"):
        check(curves, sums)
    with pytest.raises(InputError, match=r"compare: expected rows with the fields .*PairedLog"):
        compare_on_log(curves, curves, sums)
    with pytest.raises(InputError, match=r"compare: expected rows with the fields .*--log"):
        curves.compare(curves)


@pytest.mark.parametrize("kind", ["frame", "relation"])
def test_two_releases_are_compared_as_their_rows_say(curves, kind):
    new, frame = fitted(day(3), ("device",)), day(4)
    table = frame if kind == "frame" else duckdb.from_df(frame)
    release = compare_on_log(curves, new, PairedLog.from_table(curves, new, table))
    probs = [one.predict_proba(frame["prob"].to_numpy(), frame) for one in (curves, new)]
    label = frame["click"].to_numpy()
    losses = [-np.where(label == 1, np.log(prob), np.log1p(-prob)) for prob in probs]
    difference = losses[1] - losses[0]
    assert release.log_loss.old == pytest.approx(log_loss(label, probs[0]), abs=2e-5)
    assert release.log_loss.change == pytest.approx(difference.mean(), abs=2e-5)
    half = 1.96 * difference.std() / np.sqrt(len(label))
    assert release.log_loss.upper - release.log_loss.change == pytest.approx(half, rel=0.02)
    assert release.o_over_e.new == pytest.approx(label.sum() / probs[1].sum(), abs=1e-4)
    assert release.verdict == "worse"
    clustered = compare_on_log(curves, new, PairedLog.from_table(curves, new, frame, cluster="user"), clustered=True)
    assert clustered.clusters == 126
    assert clustered.log_loss.change == pytest.approx(release.log_loss.change, rel=1e-3)


def test_sampled_negatives_weigh_what_they_stand_for(curves):
    frame = day(5, 20_000)
    kept = frame[(frame["click"] == 1) | (np.arange(len(frame)) % 4 == 0)]
    new = fitted(day(6), ("device",))
    whole = compare_on_log(curves, new, PairedLog.from_table(curves, new, frame))
    part = compare_on_log(curves, new, PairedLog.from_table(curves, new, kept, negative_rate=0.25))
    assert part.o_over_e.old == pytest.approx(whole.o_over_e.old, rel=0.03)
    assert part.log_loss.change == pytest.approx(whole.log_loss.change, rel=0.25)
    assert check(curves, FieldLog.from_table(curves, kept, negative_rate=0.25)).holds


def test_changes_of_rows_are_certain_beyond_both_bands(curves):
    frame = day(7)
    rows = PairedLog.from_table(curves, curves, frame).rows
    same = compare_on_rows(curves, curves, rows)
    assert same["largest"].tolist() == [0.0, 0.0, 0.0]
    assert same["surface"].tolist() == [None, "home", "search"]
    assert same["weight"][0] == 8000
    quiet = compare_on_rows(curves, fitted(day(8)), rows)
    assert quiet["largest"][0] > 0.01
    assert quiet["certain"].tolist() == [0.0, 0.0, 0.0]
    moved = compare_on_rows(curves, fitted(day(8, shift=1.5)), rows)
    certain = dict(zip(moved["surface"], moved["certain"], strict=True))
    assert certain["home"] > 0.1
    assert certain["search"] < 0.1


def test_contexts_hold_where_a_field_is_unevenly_spread_over_them():
    """The curve of a context has the effect of its fields in it, which must not count twice."""
    frame, log = day(10, 30_000), day(11, 60_000)
    curves = fitted(frame)
    prob = curves.predict_proba(log["prob"].to_numpy(), log)
    home, search = (
        log["click"][log["surface"] == name].sum() / prob[log["surface"] == name].sum() for name in ("home", "search")
    )
    assert home == pytest.approx(search, abs=0.025)  # 0.16 apart if the device counted twice
    assert curves.fields == FIELDS
    assert "surface" in curves.terms.names


def test_a_context_with_a_term_is_one_input_of_every_export(tmp_path):
    """Text, whole numbers and booleans, missing ones too."""
    frame = day(12, 4000)
    frame["place"] = frame["hour"] % 5
    frame["member"] = frame["user"] % 2 == 0
    frame.loc[frame["user"] < 20, "surface"] = None
    contexts = ("surface", "place", "member")
    model = IsotonicCalibrator(contexts, fields=("device",), scale="prob", missing="own").fit_table(
        frame, "prob", "click"
    )
    curves = model.curves_
    assert {*contexts, "device"} <= set(curves.terms.columns)
    expected = curves.predict_proba(frame["prob"].to_numpy(), frame)
    curves.to_onnx(tmp_path / "curves.onnx")
    ours = session(tmp_path / "curves.onnx")
    assert {given.name for given in ours.get_inputs()} == {"score", *contexts, "surface_missing", "device"}
    columns = {name: frame[name].to_numpy(object) for name in (*contexts, "device")}
    columns["surface"] = np.array([word if isinstance(word, str) else None for word in columns["surface"]], object)
    np.testing.assert_allclose(predict(ours, frame["prob"].to_numpy(), columns), expected, atol=1e-9)
    applied = curves.apply_table(frame, score="prob", prob="out").to_pandas()
    again = curves.predict_proba(applied["prob"].to_numpy(), applied)
    np.testing.assert_allclose(applied["out"], again, atol=1e-9)
    scorer, row = curves.scorer(), {name: values[0] for name, values in columns.items()}
    assert scorer(frame["prob"][0], row) == pytest.approx(expected[0], abs=1e-12)


def test_two_calibrators_with_fields_can_be_applied_to_one_table(curves):
    other, frame = fitted(day(8), ("hour",)), day(9, 50)
    twice = other.apply_table(curves.apply_table(frame, score="prob", prob="one"), score="prob", prob="two")
    thrice = curves.apply_table(twice, score="prob", prob="three").to_pandas()
    for name, one in (("one", curves), ("two", other), ("three", curves)):
        np.testing.assert_allclose(thrice[name], one.predict_proba(thrice["prob"].to_numpy(), thrice), atol=1e-12)


# The command line.


def run(*words: object, code: int = 0) -> dict:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    if code == 2:
        assert isinstance(result.exception, InputError), result.output
        return {"error": str(result.exception)}
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_commands_judge_a_calibrator_with_fields(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        day(number, 5000, shift=0.6 * (number == 3)).to_csv(f"day{number}.csv", index=False)
    columns = ("--score", "prob", "--label", "click", "--contexts", "surface")
    told = run("fit", "day0.csv", *columns, "--fields", "device,hour", "--sums", "sums.parquet")
    curves = Curves.load("curves.parquet")
    frame = day(0, 5000)
    assert told["figures"]["log_loss_after"] == pytest.approx(
        log_loss(frame["click"], curves.predict_proba(frame["prob"].to_numpy(), frame)), abs=3e-4
    )
    assert run("check", "day1.csv")["verdict"] == "holds"
    assert run("check", "day0.csv")["verdict"] == "in sample"
    drifted = run("check", "day3.csv", code=1)
    assert "isolayer audit day3.csv --curves curves.parquet" in drifted["notes"][-1]
    refitted = run("fit", "day1.csv", "--structure", "curves.parquet", "--out", "new.parquet")
    assert refitted["settings"] is not None
    assert Curves.load("new.parquet").terms.names == curves.terms.names
    assert Curves.load("new.parquet").contexts == ("surface",)
    assert "--log: expected a log" in run("compare", "curves.parquet", "new.parquet", code=2)["error"]
    assert run("compare", "curves.parquet", "new.parquet", "--log", "day2.csv", "--most", "0.02")["holds"]
    run("fit", "day1.csv", *columns, "--out", "plain.parquet")
    worse = run("compare", "curves.parquet", "plain.parquet", "--log", "day2.csv", "--cluster", "user", code=1)
    assert worse["verdict"] == "worse"
    held = run("fit", "day0.csv", *columns, "--fields", "device,hour", "--holdout", "0.3", "--out", "held.parquet")
    assert held["figures"]["held_out_verdict"] == "calibration helps"
    assert run("check", "day0.csv", "--curves", "held.parquet", "--held-out")["verdict"] == "holds"


def test_a_day_is_added_to_a_calibrator_with_fields(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        day(number, 5000).to_csv(f"day{number}.csv", index=False)
    columns = ("--score", "prob", "--label", "click", "--fields", "device,hour", "--sums", "sums.parquet")
    run("fit", "day0.csv", *columns)
    before = Curves.load("curves.parquet")
    told = run("update", "sums.parquet", "day1.csv", "--id", "tuesday", "--replace")
    after, frame = Curves.load("curves.parquet"), day(2, 5000)
    losses = [log_loss(frame["click"], one.predict_proba(frame["prob"].to_numpy(), frame)) for one in (before, after)]
    assert losses[1] < losses[0]
    assert after.terms.names == before.terms.names
    assert told["figures"]["rows"] == 10_000
    assert 0 < told["figures"]["largest_change"] < 0.2
    assert "was added before" in run("update", "sums.parquet", "day1.csv", "--id", "tuesday", code=2)["error"]
    before = Path("curves.parquet").read_bytes()
    run("update", "sums.parquet", "day1.csv", "--id", "tuesday", "--replace")  # the job ran twice
    assert Path("curves.parquet").read_bytes() == before
    for option in ("--replace", "--remove"):
        error = run("update", "sums.parquet", "day2.csv", "--id", "tuesday", option, code=2)["error"]
        assert "isolayer fit LOGS --structure curves.parquet" in error
    for wrong, words in (
        (("--structure", "none.parquet"), "--structure: expected a calibrator at"),
        (("--structure", "curves.parquet", "--fields", "hour"), "--structure: expected no --fields"),
    ):
        assert words in run("fit", "day0.csv", *wrong, code=2)["error"]
    run("fit", "day0.csv", "--score", "prob", "--label", "click", "--out", "plain.parquet")
    error = run("fit", "day0.csv", "--structure", "plain.parquet", code=2)["error"]
    assert "--structure: expected a calibrator with fields" in error
