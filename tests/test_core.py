"""The core without any extra: what works, and what each thing that does not work says is missing.

Each test runs Python with some packages hidden, as if they were not installed. ``make smoke`` does the same in clean
environments into which the built wheel is installed.
"""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isolayer
from isolayer.errors import EXTRA_OF

ROOT = Path(__file__).parents[1]
INSTALL = "in a clone of isolayer, pip install '.[%s]'"

HIDE = """
import sys

class Hidden:
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden(%r))
"""

# Rows, curves and a calibrator to try things on.
SETUP = """
import json
import tempfile
from pathlib import Path
import numpy as np
import isolayer
from isolayer import Curves, Grid, Histogram, IsotonicCalibrator, metrics

folder = Path(tempfile.mkdtemp())
score = np.linspace(-2, 2, 200)
rows = {"score": score, "device": np.resize(["tv", "web"], 200), "prob": 1 / (1 + np.exp(-score))}
label = (np.arange(200) * 7 % 10 < 5 + 2 * score).astype(int)
calibrator = IsotonicCalibrator(contexts=("device",)).fit({k: rows[k] for k in ("score", "device")}, label)
curves = calibrator.curves_
log = rows | {"label": label}
"""

# What asks for an extra, and the package it names first.
ASKS = {
    **dict.fromkeys(("ContextIsotonicLayer", "DualHead", "IsotonicEmbedding", "IsotonicLayer"), "torch"),
    **dict.fromkeys(("MonotoneLattice", "calibrate", "parameter_groups", "piecewise_linear", "debias"), "torch"),
    **dict.fromkeys(("RowAdam", "train_curves"), "torch"),
    "curves.to_layer()": "torch",
    "Curves.from_layer(None)": "torch",
    "curves.apply_table(log)": "ibis",
    "calibrator.apply_table(log)": "ibis",
    "IsotonicCalibrator().fit_table(log)": "ibis",
    "Histogram.from_table(log)": "ibis",
    "metrics.Sums.from_table(log)": "ibis",
    "metrics.BinSums.from_table(log)": "ibis",
    "metrics.SegmentSums.from_table(log, segment='device')": "ibis",
    "curves.to_onnx(folder / 'curves.onnx')": "onnx",
    "curves.plot()": "altair",
    "calibrator.report(folder / 'report.html')": "altair",
}


def python(code, hidden, *arguments):
    """Run code with packages hidden; the result with its output."""
    command = [sys.executable, "-c", HIDE % (sorted(hidden),) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def output(code, hidden):
    result = python(code, hidden)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def messages():
    """What each of ASKS says in an environment with the core alone."""
    code = """
asked = {}
for words in %r:
    try:
        exec(f"from isolayer import {words}" if words.isidentifier() else words)
        asked[words] = "nothing"
    except isolayer.MissingExtra as error:
        asked[words] = str(error)
print(json.dumps(asked))
"""
    return json.loads(output(SETUP + code % (list(ASKS),), EXTRA_OF))


@pytest.mark.parametrize("words", ASKS)
def test_what_needs_an_extra_names_it(words, messages):
    package = ASKS[words]
    assert messages[words] == f"this needs {package}: {INSTALL % EXTRA_OF[package]}"


def test_every_public_name_is_of_the_core_or_listed_above():
    code = "print(*[name for name in isolayer.__all__ if name not in %r and getattr(isolayer, name)])"
    found = output(SETUP + code % (list(ASKS),), EXTRA_OF).split()
    assert {*found, *ASKS} >= set(isolayer.__all__)


def test_the_core_fits_predicts_saves_loads_and_measures():
    code = """
path = folder / "curves.parquet"
curves.save(path)
again = Curves.load(path)
calibrator.histogram_.save(folder / "sums.parquet")
summed = IsotonicCalibrator(("device",)).fit_histogram(Histogram.load(folder / "sums.parquet"))
frame = {k: rows[k] for k in ("score", "device")}
probs = [calibrator.predict_proba(frame)[:, 1], again.predict_proba(score, rows), summed.predict_proba(frame)[:, 1]]
assert (probs[0] == probs[1]).all() and (probs[0] == probs[2]).all()
assert metrics.log_loss(label, probs[0]) < metrics.log_loss(label, rows["prob"])
assert set(metrics.SegmentSums.from_rows(label, probs[0], rows["device"]).key) == {"tv", "web"}
assert isolayer.policy.snipw(label, np.ones(200)).value == label.mean()
assert isolayer.simulate.Feed().log(20)["click"].shape
print(sorted({name.partition(".")[0] for name in sys.modules} & {*%r, "pandas", "polars"}))
"""
    assert output(SETUP + code % (list(EXTRA_OF),), {*EXTRA_OF, "pandas", "polars"}) == "[]\n"


def test_the_first_snippet_of_the_readme_runs_on_the_core():
    first = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert output(first, {*EXTRA_OF, "pandas", "polars"}).strip() == first.rpartition("# ")[2].strip()


def test_importing_the_calibrator_imports_no_extra():
    """Nor pandas or polars, which scikit-learn and narwhals look for by themselves, and here do not find."""
    code = "import isolayer; isolayer.IsotonicCalibrator; print(sorted({n.partition('.')[0] for n in sys.modules}))"
    found = output(code, {"pandas", "polars"})
    assert "sklearn" in found
    assert not set(EXTRA_OF) & set(eval(found))


def run(commands, hidden):
    """Run commands one after the other with packages hidden: the exit code and the words of each."""
    code = """
import contextlib, io, json
from isolayer.cli import run
results = []
for arguments in %r:
    sys.argv, out, err = ["isolayer", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run()
    results.append([status, err.getvalue() if status else out.getvalue()])
print(json.dumps(results))
"""
    return json.loads(output(code % (commands,), hidden))


def test_the_command_line_names_its_extra():
    assert run([["fit", "log.parquet"]], EXTRA_OF) == [[2, f"isolayer: this needs typer: {INSTALL % 'cli'}\n"]]


# By the extra whose packages are hidden: commands, and the package that each names first.
COMMANDS = {
    "data": {
        ("fit", "log.parquet"): "ibis",
        ("update", "sums.parquet", "log.parquet"): "ibis",
        ("apply", "log.parquet"): "ibis",
        ("check", "log.parquet"): "ibis",
        ("diagnose", "log.parquet"): "ibis",
        ("audit", "log.parquet"): "ibis",
        ("example",): "ibis",
    },
    "report": {("report", "log.parquet"): "altair"},
    "onnx": {
        ("export", "curves.parquet", "--out", "curves.onnx"): "onnx",
        ("score", "log.parquet", "--features", "score", "--model", "model.onnx"): "onnxruntime",
    },
    "torch": {
        ("train", "log.parquet", "--features", "score"): "torch",
        ("tune", "log.parquet", "--features", "score"): "torch",
        ("demo",): "torch",
    },
    "train": {
        ("train", "log.parquet", "--features", "score"): "lightning",
        ("tune", "log.parquet", "--features", "score"): "lightning",
        ("demo",): "lightning",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("commands")
    pq.write_table(pa.table({"score": [0.0, 1.0], "label": [0, 1]}), path / "log.parquet")
    calibrator = isolayer.IsotonicCalibrator().fit([0.0, 1.0], [0, 1])
    calibrator.histogram_.save(path / "sums.parquet")
    calibrator.curves_.save(path / "curves.parquet")
    (path / "model.onnx").touch()
    return path


@pytest.mark.parametrize("extra", COMMANDS)
def test_each_command_names_the_extra_it_needs(extra, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    hidden = [name for name, brought_by in EXTRA_OF.items() if brought_by == extra]
    expected = [[2, f"isolayer: this needs {package}: {INSTALL % extra}\n"] for package in COMMANDS[extra].values()]
    assert run(list(COMMANDS[extra]), hidden) == expected
    assert sorted(folder.iterdir()) == before


def test_other_commands_need_no_more_than_their_own_extra(folder, monkeypatch):
    monkeypatch.chdir(folder)
    alone = [["compare", "curves.parquet", "curves.parquet"], ["simulate", "--sessions", "9", "--out", "feed.parquet"]]
    alone += [["show", "curves.parquet"], ["show", "sums.parquet"], ["merge", "sums.parquet", "--out", "all.parquet"]]
    results = run([["--help"], *alone], [name for name, extra in EXTRA_OF.items() if extra != "cli"])
    assert [status for status, _ in results] == [0] * 6
    tried = {arguments[0] for commands in COMMANDS.values() for arguments in commands} | {one[0] for one in alone}
    assert tried == {command.__name__ for command in import_module("isolayer.cli.app").COMMANDS}
    assert all(name in results[0][1] for name in tried)
