"""Columns of the user that are called as columns of our own are: what they are called changes nothing."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isolayer import IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.monitor import FieldLog, PairedLog, check, compare_on_log
from isolayer.tables.sources import as_table

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
OURS = [f"isolayer_{name}" for name in ("prob", "old", "new", "logit", "label", "weight", "rate", "cluster")]


def log_of(name: str, seed: int = 0, n: int = 2000) -> pd.DataFrame:
    """A log in which a field of some name moves the rate."""
    random = np.random.default_rng(seed)
    score, hour, device = random.normal(-1, 1, n), random.integers(0, 6, n), random.choice(["tv", "web"], n)
    label = (random.random(n) < 1 / (1 + np.exp(-score - (hour > 3) - (device == "tv")))).astype(int)
    user = random.integers(0, 200, n)
    others = dict.fromkeys(set(OURS) - {name}, 0) if name in OURS else {}
    return pd.DataFrame({"score": score, "label": label, "device": device, name: hour, "user": user, **others})


def verdicts(name: str, source) -> list[float]:
    """Figures of a check and of a comparison, by a calibrator with a field of some name."""
    table = source(log_of(name))
    old = IsotonicCalibrator(fields=("device",)).fit_table(table).curves_
    new = IsotonicCalibrator(fields=("device", name)).fit_table(table).curves_
    day = source(log_of(name, 1))
    found = compare_on_log(old, new, PairedLog.from_table(old, new, day, cluster="user"), clustered=True)
    checked = check(new, FieldLog.from_table(new, day))
    return [*found.log_loss, *found.o_over_e, *checked.log_loss, *checked.ratio]


@pytest.mark.parametrize("source", [as_table, duckdb.from_df], ids=["ibis", "relation"])
def test_a_field_may_be_called_as_a_column_of_ours(source):
    wanted = verdicts("hour", source)
    for name in ("isolayer_fold", "isolayer_prob"):
        assert verdicts(name, source) == pytest.approx(wanted, rel=1e-9), name


def test_sums_in_the_engine_take_such_a_field_too():
    predicted = list[np.ndarray]()
    for called in ("hour", "isolayer_logit"):
        frame = log_of(called)
        fields = [name for name in frame if name not in ("score", "label", "user")]
        first = IsotonicCalibrator(fields=fields).fit_table(frame).curves_
        curves = IsotonicCalibrator(fields=fields, structure=first).fit_table(frame).curves_
        predicted.append(curves.predict_proba(frame["score"], frame))
    np.testing.assert_allclose(*predicted, rtol=1e-9)


def run(*words: object) -> dict:
    """What a command prints, as JSON."""
    told = CliRunner().invoke(app, [str(word) for word in words] + ["--json"])
    assert told.stdout, told.exception
    return json.loads(told.stdout)


def test_the_commands_take_such_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = dict[str, list[dict]]()
    for name in ("hour", "isolayer_cluster", "isolayer_held_out", "calibrated_prob"):
        log_of(name).to_parquet("log.parquet")
        log_of(name, 1).to_parquet("day.parquet")
        fit = run("fit", "log.parquet", "--fields", f"device,{name}", "--scale", "logit", "--holdout", 0.2)
        checked = run("check", "day.parquet", "--cluster", "user")
        audited = run("audit", "day.parquet", "--curves", "curves.parquet", "--fields", f"device,{name}")
        told[name] = [json.loads(json.dumps(one["figures"]).replace(name, "hour")) for one in (fit, checked, audited)]
    for name, found in told.items():
        assert found == told["hour"], name
