"""The commands as a user types them: real files, real engines, exit codes, what is on which stream."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isolayer import Curves
from isolayer.cli import main
from isolayer.cli.app import COMMANDS, app
from isolayer.cli.reference import page
from isolayer.errors import InputError

ROOT = Path(__file__).parents[1]
runner = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def log(seed=0, rows=6000, shift=0.0):
    random = np.random.default_rng(seed)
    truth = random.normal(-1, 1, rows)
    device = random.choice(["app", "tv", "web"], rows)
    click = random.random(rows) < 1 / (1 + np.exp(-truth - shift * (device == "tv")))
    wrong = truth + np.select([device == "tv", device == "web"], [1.0, -0.5], 0.0)
    day = random.integers(0, 3, rows)
    return pa.table({"prob": 1 / (1 + np.exp(-wrong)), "click": click.astype(np.int8), "device": device, "day": day})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(log(), "day1.parquet")
    pq.write_table(log(1), "day2.parquet")
    return tmp_path


def run(*arguments, code=0, data=None):
    result = runner.invoke(app, [str(argument) for argument in arguments], input=data)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def fit(*more):
    return run("fit", "day1.parquet", "--contexts", "device", "--sums", "sums.parquet", *more)


def test_fit_prints_its_guesses_on_stderr_and_its_result_on_stdout(folder):
    result = fit("--json")
    numbers = json.loads(result.stdout)
    assert numbers["rows"] == 6000
    assert numbers["contexts"] == 3
    assert numbers["log_loss_after"] < numbers["log_loss_before"]
    assert "guessed: --score prob" in result.stderr
    assert "guessed: --scale prob" in result.stderr
    assert "guessed: --label click" in result.stderr
    assert Curves.load("curves.parquet").contexts == ("device",)


def test_csv_ndjson_parquet_and_stdin_give_the_same_curves(folder):
    table = pq.read_table("day1.parquet")
    pa.csv.write_csv(table, "day1.csv")
    Path("day1.ndjson").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    fit()
    expected = Curves.load("curves.parquet")
    sources = [("day1.csv", None), ("day1.ndjson", None), ("day*1.parquet", None), ("-", buffer.getvalue())]
    sources += [("-", Path("day1.csv").read_bytes()), ("-", Path("day1.ndjson").read_bytes())]
    for source, data in sources:
        run("fit", source, "--contexts", "device", "--out", "other.parquet", data=data)
        np.testing.assert_allclose(Curves.load("other.parquet").values, expected.values, atol=1e-6)


def test_apply_adds_the_column_the_curves_give(folder):
    fit()
    run("apply", "day2.parquet", "--out", "out.parquet", "--column", "p")
    out = pq.read_table("out.parquet")
    expected = Curves.load("curves.parquet").predict(out["prob"].to_numpy(), {"device": out["device"].to_pylist()})
    np.testing.assert_allclose(out["p"].to_numpy(), expected, atol=1e-9)
    assert out.num_rows == 6000
    assert not Path("out.parquet.part").exists()


def test_update_is_the_fit_of_both_days_and_can_be_taken_back(folder):
    fit()
    first = Curves.load("curves.parquet")
    run("update", "sums.parquet", "day2.parquet")
    both = Curves.load("curves.parquet")
    run("fit", "day[12].parquet", "--contexts", "device", "--out", "whole.parquet")
    np.testing.assert_allclose(both.values, Curves.load("whole.parquet").values, atol=1e-6)
    run("update", "sums.parquet", "day2.parquet", "--remove")
    np.testing.assert_allclose(Curves.load("curves.parquet").values, first.values, atol=1e-6)


def test_check_ends_with_one_when_a_context_drifted(folder):
    fit()
    result = run("check", "day2.parquet")
    assert "the calibrator holds" in result.stderr
    pq.write_table(log(2, shift=1.0), "day3.parquet")
    result = run("check", "day3.parquet", "--json", code=1)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["device"] for row in rows if row["drifted"] and row["device"] != "(all)"] == ["tv"]
    assert "drifted: 1 of 3 contexts" in result.stderr


def test_compare_gates_a_release(folder):
    fit()
    run("fit", "day2.parquet", "--contexts", "device", "--out", "new.parquet")
    assert "largest change" in run("compare", "curves.parquet", "new.parquet").stderr
    run("compare", "curves.parquet", "curves.parquet", "--most", "0.0001")
    assert "beyond --most" in run("compare", "curves.parquet", "new.parquet", "--most", "1e-6", code=1).stderr


def test_export_writes_sql_onnx_and_parquet(folder):
    import onnxruntime

    fit()
    assert run("export", "curves.parquet").stdout.startswith("WITH")
    run("export", "curves.parquet", "--out", "curves.onnx")
    assert onnxruntime.InferenceSession("curves.onnx").get_inputs()
    run("export", "curves.parquet", "--out", "curves.sql", "--dialect", "spark")
    run("export", "curves.parquet", "--out", "copy.parquet")
    assert np.array_equal(Curves.load("copy.parquet").values, Curves.load("curves.parquet").values)
    with pytest.raises(InputError, match=r"--out: expected a name ending in .onnx, .sql or .parquet, got 'curves.doc'"):
        run("export", "curves.parquet", "--out", "curves.doc")


def test_report_writes_a_page(folder):
    fit()
    run("report", "day2.parquet", "--out", "page.html", "--date", "day", "--title", "Tuesday")
    html = Path("page.html").read_text()
    assert "Tuesday" in html
    assert len(html) < 3_000_000


def test_simulate_diagnose_and_train(folder):
    numbers = json.loads(run("simulate", "--sessions", "600", "--out", "log.parquet", "--json").stdout)
    assert numbers["rows"] == 6000
    assert "grade" not in pq.read_schema("log.parquet").names
    run("simulate", "--sessions", "10", "--truth", "--out", "truth.parquet")
    assert "grade" in pq.read_schema("truth.parquet").names
    assert "stood at more than one position" in run("diagnose", "log.parquet", "--label", "click").stdout
    run("diagnose", "log.parquet", "--label", "click", "--features", "feature_*", "--json")
    numbers = json.loads(
        run(
            *("train", "log.parquet", "--features", "feature_*", "--contexts", "position:10,device:3"),
            *("--epochs", "1", "--hidden", "8", "--out", "model", "--json"),
        ).stdout.splitlines()[-1]
    )
    assert numbers["held_out_loss"] > 0
    assert Path(numbers["serving"]).exists()
    assert Curves.load("model/curves.parquet").contexts[0] == "task"


def test_reproduce_lists_what_there_is():
    assert "offline-debiasing" in run("reproduce", "--list").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "nothing.parquet"], "log: expected a file at 'nothing.parquet', got none; check the path"),
        (["fit", "day1.parquet", "--label", "nope"], "--label: expected a column of the log, got 'nope'; it has"),
        (
            ["fit", "day1.parquet", "--score", "day"],
            "--scale: expected logit or prob for the column 'day', got nothing",
        ),
        (["check", "day1.parquet"], "--curves: expected a calibrator at 'curves.parquet', got none; make one with"),
        (["reproduce", "nothing"], "experiment: expected one of all,"),
        (["bench"], "bench: expected the folder benchmarks here, got none; run it in a checkout of the source"),
        (["simulate", "--clicks", "magic"], "--clicks: expected position or trust, got 'magic'; choose one"),
    ],
)
def test_a_mistake_is_one_line_and_code_two(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["isolayer", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith(f"isolayer: {message}")


def test_the_installed_command_answers():
    result = subprocess.run([sys.executable, "-m", "isolayer", "--help"], capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert command.__name__ in result.stdout


def test_nothing_but_the_result_is_printed_at_the_end(folder):
    command = [sys.executable, "-m", "isolayer", "fit", "day1.parquet", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["rows"] == 6000
    assert all(line.startswith("guessed: ") for line in result.stderr.splitlines()), result.stderr


def test_help_has_an_example_of_every_command():
    for command in COMMANDS:
        assert f"Example: isolayer {command.__name__}" in (command.__doc__ or "")


def test_the_reference_is_the_generated_one():
    assert (ROOT / "docs" / "cli.md").read_text() == page(), "run: python -m isolayer.cli.reference > docs/cli.md"
