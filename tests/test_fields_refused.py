"""Fields that cannot be fitted or read: every way in refuses them alike, in words, and before the work is done."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isolayer import Curves, IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.errors import InputError
from isolayer.fitting import fields as fitting_fields
from isolayer.fitting.field_levels import Field, fields_of
from isolayer.tables.field_fit import fit_table_fields
from isolayer.tables.histogram_query import ColumnSpec

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LOG = ("--scale", "logit", "--sums", "sums.parquet")


def log_of(seed: int = 0, n: int = 1500) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    score, hour, device = random.normal(-1, 1, n), random.integers(0, 6, n) + 0.0, random.choice(["tv", "web"], n)
    label = (random.random(n) < 1 / (1 + np.exp(-score - 2 * (hour > 3) - (device == "tv")))).astype(int)
    return pd.DataFrame({"score": score, "label": label, "device": device, "hour": hour})


@pytest.fixture(scope="module")
def curves() -> Curves:
    return IsotonicCalibrator(fields=("device", "hour")).fit_table(log_of()).curves_


@pytest.fixture
def folder(curves, tmp_path, monkeypatch) -> Path:
    """A folder in which a calibrator was fitted to day 0."""
    monkeypatch.chdir(tmp_path)
    log_of().to_parquet("day0.parquet")
    run("fit", "day0.parquet", *LOG, "--fields", "device,hour")
    return tmp_path


def run(*words: object, pipe: bytes | None = None) -> str:
    """What a command prints, or the error that it ends with."""
    found = CliRunner().invoke(app, [*map(str, words)], input=pipe)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        assert isinstance(found.exception, InputError), found.exception
        return str(found.exception)
    return found.stdout


def test_infinite_values_are_counted_where_a_field_is_fitted(curves):
    frame = log_of()
    frame.loc[[1, 5], "hour"] = [np.inf, -np.inf]
    frame.loc[7, "hour"] = np.nan
    words = "field hour: expected finite numbers, got 2 infinite ones"
    fields = ("device", "hour")
    with pytest.raises(InputError, match=words):
        IsotonicCalibrator(fields=fields).fit(frame[["score", *fields]], frame["label"])
    for source in (frame, duckdb.from_df(frame)):
        for asked in ({}, {"structure": curves}):
            with pytest.raises(InputError, match=words):
                IsotonicCalibrator(fields=fields, **asked).fit_table(source)
    with pytest.raises(InputError, match=words):  # though a sample of the rows may have none
        fit_table_fields(curves, frame, ColumnSpec(()), fields, most=300)


def test_served_infinite_values_fall_into_the_first_and_the_last_level(curves):
    ends = {"device": ["tv", "tv"], "hour": [-np.inf, np.inf]}
    inner = {"device": ["tv", "tv"], "hour": [-5.0, 99.0]}
    wanted = curves.predict_proba([0.0, 0.0], inner)
    assert curves.predict_proba([0.0, 0.0], ends).tolist() == wanted.tolist()
    told = curves.apply_table(pd.DataFrame({"score": [0.0, 0.0], **ends})).to_pandas().sort_values("hour")
    np.testing.assert_allclose(told["calibrated_prob"], wanted, rtol=1e-9)


def test_another_type_is_refused_alike_by_every_way_in(curves, folder):
    log_of(1).assign(hour="nine").to_parquet("text.parquet")
    words = "field hour: expected numbers as when fitted, got category; convert the column"
    for command in (
        ("fit", "text.parquet", "--structure", "curves.parquet", "--out", "new.parquet"),
        ("check", "text.parquet"),
        ("update", "sums.parquet", "text.parquet"),
        ("apply", "text.parquet"),
    ):
        assert run(*command) == words, command
    table = pd.read_parquet("text.parquet")
    for refused in (
        lambda: curves.apply_table(table),
        lambda: curves.apply_table(duckdb.from_df(table)),
        lambda: curves.predict_proba(table["score"], table),
    ):
        with pytest.raises(InputError, match=words):
            refused()


@pytest.mark.parametrize("kind", ["object", "string", "float64", "bool"])
@pytest.mark.parametrize("field", ["hour", "device"])
def test_a_column_without_any_value_is_missing_whatever_its_type(curves, field, kind):
    import pyarrow as pa

    types = {"object": pa.null(), "string": pa.string(), "float64": pa.float64(), "bool": pa.bool_()}
    frame = log_of(1)
    wanted = curves.predict_proba(frame["score"], frame.assign(**{field: None}))
    table = pa.Table.from_pandas(frame.drop(columns=field))
    table = table.append_column(field, pa.nulls(len(frame), types[kind]))
    assert curves.predict_proba(frame["score"], table).tolist() == wanted.tolist()
    for source in (table, duckdb.from_arrow(table)):
        told = curves.apply_table(source)
        told = (told.to_arrow_table() if source is not table else told.to_pyarrow()).to_pandas()
        by_score = dict(zip(frame["score"], wanted, strict=True))
        np.testing.assert_allclose(told["calibrated_prob"], told["score"].map(by_score), rtol=1e-9)


@pytest.mark.parametrize(("log", "empty"), [("empty.parquet", "hour"), ("empty.csv", "device")])
def test_a_day_without_values_of_a_field_is_a_day(folder, log, empty):
    frame = log_of(1, 500).assign(**{empty: None})
    frame.to_parquet(log) if log.endswith("parquet") else frame.to_csv(log, index=False)
    assert "written" in run("fit", log, "--structure", "curves.parquet", "--out", "new.parquet")
    assert json.loads(run("check", log, "--json"))["verdict"] in ("holds", "drifted")
    assert "written" in run("update", "sums.parquet", log)


def test_a_repeated_day_is_told_what_works_with_fields(folder):
    error = run("update", "sums.parquet", "day0.parquet")
    assert "which was added before; continue with the next day, or fit the days that should count again" in error
    assert "isolayer fit LOGS --structure curves.parquet --out curves.parquet --sums sums.parquet" in error
    assert "--replace" not in error


def test_a_column_called_as_a_part_of_a_date_is_refused_before_the_fit(folder, monkeypatch):
    days = pd.date_range("2026-01-01", periods=30)
    columns = {"day": days[:2], "day.weekday": [1, 2]}
    words = "fields: expected different names, got the column 'day.weekday' and the date 'day', whose weekday has"
    with pytest.raises(InputError, match=words):
        fields_of(columns)
    monkeypatch.setattr(fitting_fields, "_fit", None)  # nothing is fitted
    log_of().assign(**{"day": np.resize(days, 1500), "day.weekday": np.resize([1, 2], 1500)}).to_parquet("log.parquet")
    assert words in run("fit", "log.parquet", *LOG, "--fields", "all")


def test_a_column_cannot_both_correct_and_be_left_for_audits(folder, monkeypatch):
    from isolayer.cli import calibration

    monkeypatch.setattr(calibration, "histogram_of_log", None)  # not even the log is summed
    words = "--audit-only: expected columns that do not correct the score, got 'hour', which does"
    for asked in (("--fields", "device,hour"), ("--contexts", "hour"), ("--structure", "curves.parquet")):
        assert words in run("fit", "day0.parquet", "--scale", "logit", *asked, "--audit-only", "hour")


def test_standard_input_may_be_compressed(folder):
    text = log_of(1, 50).to_csv(index=False).encode()
    plain, packed = (run("apply", "-", "--out", "-", pipe=pipe) for pipe in (text, gzip.compress(text)))
    assert packed == plain
    assert plain.count("\n") == 51
    assert "log: expected complete gzip on standard input" in run("apply", "-", pipe=gzip.compress(text)[:-20])


def test_only_what_a_field_takes_is_read():
    assert Field("day", "number", part="hour").takes("date")
    assert not Field("day", "number", part="hour").takes("number")
