"""The runner of benchmarks: what it finds, prints and writes. What is measured is not tested here."""

from __future__ import annotations

import json

import pytest

from benchmarks import Row, best_time, plain_table, quick
from benchmarks.__main__ import main, names_of, save


def test_table_lines_up_and_says_ok_or_miss():
    rows = [Row("fit", "<= 2 s", "1.2 s", True), Row("predict", "<= 1 s", "3 s", False), Row("raw", "", "7")]
    assert plain_table(rows).splitlines() == [
        "name    | target | measured |",
        "fit     | <= 2 s | 1.2 s    | ok",
        "predict | <= 1 s | 3 s      | miss",
        "raw     |        | 7        |",
    ]


def test_modules_with_a_run_are_found_and_others_refused(capsys):
    assert "calibration" in names_of()
    assert "task" not in names_of()
    assert main(["nothing"]) == 2
    assert "expected names among calibration" in capsys.readouterr().err


def test_results_are_written_with_the_machine_and_leave_no_part(tmp_path):
    save({"calibration": [Row("fit", "<= 2 s", "1.2 s", True)]}, tmp_path / "results" / "bench.json")
    written = json.loads((tmp_path / "results" / "bench.json").read_text())
    assert written["rows"]["calibration"] == [{"name": "fit", "target": "<= 2 s", "measured": "1.2 s", "ok": True}]
    assert {"cores", "threads", "python"} <= written["machine"].keys()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["bench.json"]


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_quick_is_asked_for_by_the_environment(monkeypatch, value, expected):
    monkeypatch.setenv("ISOLAYER_BENCH_QUICK", value)
    assert quick() is expected


def test_best_time_calls_as_often_as_told():
    calls = []
    assert best_time(lambda: calls.append(1), times=4) >= 0
    assert len(calls) == 4
