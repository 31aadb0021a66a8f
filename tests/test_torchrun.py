"""`isolayer train` under torchrun: its options, an interrupted run, and mistakes that one process meets."""

import os
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
import typer.main
from torch.distributed.run import get_args_parser

from isolayer.cli.app import app

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "isolayer"]


def torchrun(*arguments):
    command = [*TORCHRUN, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    command = [sys.executable, "-m", "isolayer", "simulate", "--sessions", "200", "--out", str(folder / "log.parquet")]
    subprocess.run(command, check=True, timeout=200, capture_output=True)
    assert pq.read_metadata(folder / "log.parquet").num_rows == 2_000
    return folder / "log.parquet"


def options(command):
    return [
        name
        for one in typer.main.get_command(app).commands[command].params
        for name in (*one.opts, *one.secondary_opts)
    ]


@pytest.mark.parametrize("command", ["train", "tune", "score"])
def test_no_option_is_an_abbreviation_of_one_of_torchrun(command):
    """torchrun looks for abbreviations of its own options among all arguments, those after the command too."""
    parser = get_args_parser()
    theirs = [name for action in parser._actions for name in action.option_strings if name != "--help"]
    ours = [name for name in options(command) if name.startswith("--")]
    assert "--out" in ours
    assert [name for name in ours if any(one.startswith(name) for one in theirs)] == []
    for name in ours:
        found = parser.parse_args(["-m", "isolayer", command, name, "value"])
        assert found.training_script_args == [command, name, "value"]


def test_an_interrupted_run_resumes(log, tmp_path):
    arguments = ("train", log, "--features", "feature_*", "--contexts", "position:10,device:3", "--hidden", "8")
    for epochs in (1, 2):
        done = torchrun(*arguments, "--out", tmp_path / "model", "--epochs", epochs, "--start-from", "resume")
        assert done.returncode == 0, done.stderr
        saved = torch.load(tmp_path / "model" / "last.ckpt", weights_only=True)
        assert (saved["epoch"], saved["global_step"]) == (epochs - 1, epochs)
    assert "version_1" in {path.name for path in (tmp_path / "model" / "csv").iterdir()}


def test_a_folder_that_cannot_be_written_is_told_once(log):
    out = log / "model"  # the log is no folder
    done = torchrun("train", log, "--features", "feature_*", "--contexts", "position:10,device:3", "--out", out)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "isolayer: " in line]
    assert len(said) == 1, done.stderr
    assert re.search(r"isolayer: .*Not a directory: .*; check the path and its permissions", said[0])
    assert "[rank" not in done.stderr
    assert "Connection" not in done.stderr
    assert set(re.findall(r"exitcode *: (-?\d+)", done.stderr)) == {"2"}


TOLD = """
import os, signal, sys
import torch
from isolayer.debias import DualHead
from isolayer.training.backbone import TableBackbone
from isolayer.training.train import Fit, train

class Told(DualHead):
    '''The first process is told to stop in the middle of its second step, before gradients are exchanged.'''
    steps = 0
    def loss(self, *given):
        self.steps += 1
        if self.steps == 2 and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)
        return super().loss(*given)

features = [f"feature_{place}" for place in range(12)]
model = Told(TableBackbone(len(features), [8]), width=8, tasks=("click",), contexts={"position": 10, "device": 3})
fit = Fit(epochs=50, batch_size=64, progress=False, allow_leaks=True)
columns = {"features": features, "tasks": ["click"], "contexts": ["position", "device"]}
train(model, sys.argv[1], **columns, folder=sys.argv[2], fit=fit)
"""


def test_a_process_that_is_told_to_stop_does_not_leave_the_other_waiting(log, tmp_path):
    (tmp_path / "told.py").write_text(TOLD)
    command = [*TORCHRUN[:-2], str(tmp_path / "told.py"), str(log), str(tmp_path / "model")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode != 0
    assert "SIGTERM" in done.stderr or "Connection closed" in done.stderr, done.stderr[-2000:]
