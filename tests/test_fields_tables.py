"""Fields of tables and on the command line: the same terms as those of rows in memory."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import pytest
from test_fields import log_of
from typer.testing import CliRunner

from isolayer import Curves, IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.errors import InputError
from isolayer.tables.field_rows import labelled_rows
from isolayer.tables.histogram_query import ColumnSpec


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> tuple[pd.DataFrame, object]:
    frame, label, _ = log_of(8000)
    frame = frame.assign(label=label, user=[f"u{i}" for i in range(8000)])
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    frame.to_parquet(path)
    return frame, path


def test_a_table_gives_the_terms_of_its_rows(log):
    frame, path = log
    names = ("device", "age", "hour", "when", "member")
    rows = IsotonicCalibrator(("country",), fields=names).fit(frame, frame["label"], score="score")
    relation = duckdb.connect().read_parquet(str(path))
    for table in (path, relation, frame):
        found = IsotonicCalibrator(("country",), fields=names).fit_table(table)
        assert found.fields_ == names
        assert found.curves_.terms.names == rows.curves_.terms.names
        np.testing.assert_allclose(found.decision_function(frame), rows.decision_function(frame), atol=1e-4)


def test_all_fields_of_a_table_are_those_without_another_meaning(log):
    _, path = log
    found = IsotonicCalibrator(("country",), fields="all", interactions=0).fit_table(path)
    assert found.fields_ == ("device", "hour", "age", "member", "when", "user")
    with pytest.raises(InputError, match="column nowhere: expected it in the table"):
        IsotonicCalibrator(fields=("nowhere",)).fit_table(path)


def test_a_large_table_is_sampled(log):
    _, path = log
    rows, total = labelled_rows(path, ColumnSpec(()), ["device"], most=2000)
    assert total == 8000
    assert 1500 < len(rows.logit) < 2500


def test_rows_that_cannot_be_used_are_left_out(log):
    frame, _ = log
    broken = frame.head(200).assign(weight=1.0)
    broken.loc[:9, "score"], broken.loc[10:19, "weight"] = np.nan, 0.0
    rows, total = labelled_rows(broken, ColumnSpec((), weight="weight"), ["device"])
    assert (len(rows.logit), total) == (180, 200)


def test_the_command_line_fits_applies_and_exports_fields(log, tmp_path, monkeypatch):
    frame, path = log
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def run(*words):
        result = runner.invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    told = run("fit", path, "--scale", "logit", "--fields", "all", "--exclude", "user", "--json")
    curves = Curves.load("curves.parquet")
    assert curves.fields == ("device", "country", "hour", "age", "member", "when")
    assert "device tv: predicted" in told.output
    run("apply", path, "--score", "score", "--out", "out.parquet")
    found = pd.read_parquet("out.parquet")["calibrated_prob"].to_numpy()
    np.testing.assert_allclose(np.sort(found), np.sort(curves.predict_proba(frame["score"], frame)), atol=1e-9)
    run("export", "curves.parquet", "--out", "curves.sql")
    run("export", "curves.parquet", "--out", "curves.onnx")
    run("fit", path, "--scale", "logit", "--fields", "device,hour")
    assert Curves.load("curves.parquet").fields == ("device", "hour")
    for wrong, words in (
        (["--fields", "nowhere"], "--fields: expected a column of the log, got 'nowhere'"),
        (["--fields", "device", "--exclude", "user"], "--exclude: expected --fields all with it"),
    ):
        result = runner.invoke(app, ["fit", str(path), "--scale", "logit", *wrong])
        assert result.exit_code != 0
        assert words in result.output + str(result.exception)
