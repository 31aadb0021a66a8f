"""The demonstration, whole: what it prints, and everything that it writes."""

import re
import shlex
import subprocess
import sys

import duckdb
import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch

from isolayer import Curves
from isolayer.cli.rankers import use_cores
from isolayer.curves.export.onnx import predict, session


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "isolayer", "demo", "--quick", "--out", "demo"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "demo", done


def test_it_runs_to_its_end(demo):
    _, done = demo
    assert "Traceback" not in done.stderr
    for step in range(1, 6):
        assert f"[{step}/5]" in done.stderr
        assert f"\n{step}. " in done.stdout
    ndcg = {
        name: float(value)
        for name, value in re.findall(r"^(naive|position dropout|dual head) +(\d\.\d+) *$", done.stdout, re.M)
    }
    assert ndcg["dual head"] > ndcg["naive"]
    before, after = map(float, re.search(r"mean error of O/E (\S+) -> (\S+)\.\n", done.stdout).groups())
    assert after < before


def test_it_ends_with_three_commands_that_work(demo):
    folder, done = demo
    commands = done.stdout.rpartition("To try next:\n")[2].strip().splitlines()
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "isolayer"
        tried = subprocess.run([sys.executable, "-m", *words], cwd=folder.parent, capture_output=True, check=False)
        assert tried.returncode == 0, tried.stderr


def test_contexts_have_names_and_lines_are_not_wrapped(demo):
    folder, done = demo
    contexts = Curves.load(folder / "curves.parquet").keys[-1]
    assert "phone" in contexts[0].tolist()
    assert "position 04" in contexts[1].tolist()
    assert all(len(line) < 200 for line in done.stderr.splitlines())
    for advert in ("GPU available", "litlogger", "Trainer", "LightningModule"):
        assert advert not in done.stderr + done.stdout


@pytest.mark.parametrize("model", ["naive", "position-dropout", "dual-head"])
def test_every_ranker_is_served_for_any_number_of_rows(demo, model):
    folder, _ = demo
    serving = onnxruntime.InferenceSession(folder / "models" / model / "serving.onnx")
    (features,) = serving.get_inputs()
    names = [name for name in pq.read_schema(folder / "log.parquet").names if name.startswith("feature_")]
    log = pq.read_table(folder / "log.parquet", columns=names).slice(0, 50)
    rows = np.column_stack([log[name].to_numpy() for name in names]).astype(np.float32)
    outputs = [output.name for output in serving.get_outputs()]
    whole = serving.run(outputs, {features.name: rows})
    for size in (1, 7):
        for part, all_rows in zip(serving.run(outputs, {features.name: rows[:size]}), whole, strict=True):
            np.testing.assert_allclose(part, all_rows[:size], rtol=1e-5, atol=1e-6)


def test_the_curves_are_the_same_in_every_form(demo):
    folder, _ = demo
    curves, rows = Curves.load(folder / "curves.parquet"), pq.read_table(folder / "scored.parquet").slice(0, 200)
    context = {name: rows[name].to_numpy(zero_copy_only=False) for name in ("device", "position")}
    want = curves.predict_proba(rows["prob"].to_numpy(), context)
    answer = predict(session(folder / "curves.onnx"), rows["prob"].to_numpy(), context)
    np.testing.assert_allclose(answer, want, rtol=0, atol=1e-6)
    with duckdb.connect() as connection:
        connection.register("scores", rows.rename_columns({"prob": "score"}))
        answer = connection.sql((folder / "curves.sql").read_text()).to_arrow_table()["calibrated_prob"]
    np.testing.assert_allclose(np.sort(answer.to_numpy()), np.sort(want), rtol=0, atol=1e-9)
    assert "A calibrated feed" in (folder / "report.html").read_text()


def test_a_small_model_uses_one_thread_unless_told_otherwise(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert use_cores(most=1) == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert use_cores(most=1) == 2
    torch.set_num_threads(before)
