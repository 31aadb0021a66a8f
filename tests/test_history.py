"""The history of checks: one row per day and log, kept whole, drawn by the report."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isolayer import InputError
from isolayer.cli.app import app
from isolayer.metrics.history import SCHEMA, append_check, read_history
from isolayer.report.history import loss_chart, ratio_chart

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def write_day(day, shift=0.0, rows=3000):
    random = np.random.default_rng(day)
    truth = random.normal(-1, 1, rows)
    click = random.random(rows) < 1 / (1 + np.exp(-truth - shift))
    when = np.full(rows, np.datetime64("2026-11-01") + day)
    pq.write_table(pa.table({"prob": 1 / (1 + np.exp(-truth - 1)), "click": click, "when": when}), f"day{day}.parquet")


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_checks_are_kept_by_day_and_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for day in range(4):
        write_day(day, shift=1.0 if day == 3 else 0.0)
    run("fit", "day0.parquet")
    arguments = ("--history", "history.parquet", "--date", "when", "--json")
    documents = [json.loads(run("check", f"day{day}.parquet", *arguments, code=day == 3).stdout) for day in (2, 1, 3)]
    run("check", "day1.parquet", *arguments)  # again: the day is replaced, not added
    history = read_history("history.parquet")
    assert history["day"].to_pylist() == ["2026-11-02", "2026-11-03", "2026-11-04"]
    assert history["verdict"].to_pylist() == ["holds", "holds", "drifted"]
    assert history["o_over_e"].to_pylist()[1] == documents[0]["figures"]["o_over_e"]
    assert history["log_loss_after"].to_pylist()[2] == documents[2]["figures"]["log_loss_after"]
    run("report", "day2.parquet", "--history", "history.parquet")
    page = Path("report.html").read_text()
    assert "3 checks, 1 of which found a drift" in page
    assert "2026-11-04" in page
    assert {"history-ratio", "history-loss"} <= set(re.findall(r'"id":"([a-z-]+)"', page))
    run("report", "day2.parquet")
    assert "Past checks" not in Path("report.html").read_text()


def test_a_day_that_was_fitted_by_now_does_not_replace_its_honest_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for day in range(4):
        write_day(day, shift=1.0 if day == 3 else 0.0)
    run("fit", "day0.parquet", "--sums", "sums.parquet")
    arguments = ("--history", "history.parquet", "--date", "when")
    run("check", "day1.parquet", *arguments)
    honest = read_history("history.parquet").to_pylist()[0]
    run("update", "sums.parquet", "day1.parquet")
    again = run("check", "day1.parquet", *arguments)
    assert "the history keeps the check of 2026-11-02 from before its rows were fitted" in again.stderr
    run("check", "day0.parquet", *arguments)  # never checked before: kept, and told as in sample
    first, second = read_history("history.parquet").to_pylist()
    assert (first["in_sample"], first["verdict"], second) == (True, "in sample", honest)
    run("update", "sums.parquet", "day3.parquet")
    told = run("check", "day3.parquet", *arguments, code=1)
    assert "cannot judge it" in told.stderr
    run("report", "day2.parquet", "--history", "history.parquet")
    page = Path("report.html").read_text()
    assert "In 2, drawn in grey, the rows had been fitted before" in page
    assert "drifted, in sample" in page


def test_a_history_of_an_earlier_version_is_read(tmp_path):
    history = append_check(tmp_path / "history.parquet", row(1, verdict="in sample", in_sample=True))
    pq.write_table(history.drop_columns(["in_sample"]), tmp_path / "older.parquet")
    assert read_history(tmp_path / "older.parquet")["in_sample"].to_pylist() == [True]
    assert append_check(tmp_path / "older.parquet", row(2))["in_sample"].to_pylist() == [True, None]


def row(day, **more):
    return dict.fromkeys(SCHEMA.names) | {"day": str(day), "log": "x", "verdict": "holds", "o_over_e": 1.0} | more


def test_days_that_are_numbers_are_sorted_as_numbers(tmp_path):
    for day in (10, 9, 2):
        history = append_check(tmp_path / "history.parquet", row(day))
    assert history["day"].to_pylist() == ["2", "9", "10"]


def test_checks_at_the_same_time_are_all_kept(tmp_path):
    """Real processes, which wait for each other."""
    code = (
        "import sys; from isolayer.metrics.history import SCHEMA, append_check\n"
        "for n in range(3): append_check(sys.argv[1], dict.fromkeys(SCHEMA.names) | "
        "{'day': f'{sys.argv[2]}-{n}', 'log': 'x', 'verdict': 'holds'})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "history.parquet")]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(read_history(tmp_path / "history.parquet")) == 9


def test_another_file_is_no_history(tmp_path):
    pq.write_table(pa.table({"day": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="history: expected the columns of a history of checks, got"):
        append_check(tmp_path / "other.parquet", row(1))
    (tmp_path / "text.parquet").write_text("day")
    with pytest.raises(InputError, match="history: expected a history of checks at"):
        read_history(tmp_path / "text.parquet")


def test_the_charts_are_valid_and_mark_the_alarms():
    figures = {name: 1.0 for name in SCHEMA.names if pa.types.is_floating(SCHEMA.field(name).type)}
    rows = [row(day, **figures | {"verdict": "drifted" if day == 2 else "holds"}) for day in (1, 2, 3)]
    history = pa.Table.from_pylist(rows, schema=SCHEMA)
    sets = ratio_chart(history).to_dict()["datasets"].values()
    marks = next(values for values in sets if "ratio" in values[0])
    assert [mark["series"] for mark in marks] == [0, 1, 0]
    seen = history.set_column(history.column_names.index("in_sample"), "in_sample", [[True, False, False]])
    sets = ratio_chart(seen).to_dict()["datasets"].values()
    assert [mark["series"] for mark in next(values for values in sets if "ratio" in values[0])] == [2, 1, 0]
    (losses,) = loss_chart(history).to_dict()["datasets"].values()
    assert len(losses) == 6
