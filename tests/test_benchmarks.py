"""The runner of benchmarks: what it finds, prints and writes. What is measured is not tested here."""

from __future__ import annotations

import json

import pytest

from benchmarks import Row, best_time, plain_table, quick
from benchmarks.__main__ import main, names_of, save, write_readme


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
    assert "expected names among audit, calibration" in capsys.readouterr().err


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


def test_the_readme_gets_the_figures_of_the_last_run_and_nothing_else_changes(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "bench.json"
    marker = "<!-- figures: written by `python -m benchmarks --readme` -->\n"
    readme.write_text(f"before\n{marker}old\n<!-- /figures -->\nafter\n")
    rows = [{"name": "onnxruntime, 1 row, p50", "target": "", "measured": "14 us", "ok": True}]
    rows += [{"name": "something else", "target": "", "measured": "9", "ok": None}]
    results.write_text(json.dumps({"machine": {"cores": 2}, "rows": {"tables": rows}}))
    for _ in range(2):
        write_readme(readme, results)
    text = readme.read_text()
    table = "| measured on 2 cores | |\n|---|---|\n| one row in onnxruntime | 14 us |\n"
    assert text.startswith(f"before\n{marker}{table}")
    assert text.endswith("<!-- /figures -->\nafter\n")
    assert "old" not in text
    assert "something else" not in text
