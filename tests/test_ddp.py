"""Two real processes, gloo, started by torchrun: the gradients of the layers, and a whole training from Parquet."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, IterableDataset

from isolayer import Curves
from isolayer.training.columns import Batch
from isolayer.training.lightning_module import LogData
from isolayer.training.model_folder import WEIGHTS
from isolayer.training.parquet_batches import LogBatches

SCRIPT = """
import torch, torch.distributed as dist
from isolayer import ContextIsotonicLayer, IsotonicLayer

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.shared = torch.nn.Linear(3, 2), IsotonicLayer(2)
        self.curves = ContextIsotonicLayer({"position": 4}, units=2)
    def forward(self, x, position):
        return self.curves(self.shared(self.net(x)), {"position": position})

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model, alone = Model(), None
import copy
alone = copy.deepcopy(model)
parallel = torch.nn.parallel.DistributedDataParallel(model)
x, position = torch.randn(8, 3), torch.randint(0, 4, (8,))
half = slice(4 * rank, 4 * rank + 4)
parallel(x[half], position[half]).square().mean().backward()
alone(x, position).square().mean().backward()
for mine, whole in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(mine.grad, whole.grad, atol=1e-6, rtol=1e-5)

from isolayer.nn.gate import together
from isolayer.training.processes import average_gradients

def gradients(layer, rows):
    with together() as waiting:
        out = layer(x[rows, 0], {"advertiser": advertiser[rows]})
    (out * sign[rows]).mean().backward()
    sparse = list(layer.tables.parameters()) if layer.sparse else []
    average_gradients([one for one in layer.parameters() if not any(one is other for other in sparse)], sparse, waiting)
    return [one.grad.to_dense() for one in layer.parameters()]

x, sign = 4 * torch.randn(64, 3), torch.randn(64, 1)
for size, sparse in ((9, False), (9, True), (9_000, False), (9_000, True)):  # all curves, or those of the batch
    advertiser = torch.randint(0, size, (64,)) // (size // 9) * (size // 9)
    layer = ContextIsotonicLayer({"advertiser": size}, sparse=sparse)
    with torch.no_grad():
        layer.base.weight.normal_()  # half of the weights are negative
    whole = copy.deepcopy(layer)
    parts = gradients(layer, slice(32 * rank, 32 * rank + 32))
    (whole(x[:, 0], {"advertiser": advertiser}) * sign).mean().backward()
    for part, one in zip(parts, whole.parameters(), strict=True):
        torch.testing.assert_close(part, one.grad.to_dense(), atol=1e-5, rtol=1e-5)
x = torch.randn(8, 3)
alone = Model()
alone.unused = torch.nn.Linear(2, 2)
alone.table = torch.nn.Embedding(5, 2, sparse=True)
dense = [one for name, one in alone.named_parameters() if name != "table.weight"]
if rank == 0:  # one process has gradients of the net and of a row, the other of neither
    (alone.net(x).sum() + alone.table(torch.tensor([3])).sum()).backward()
mine = [None if one.grad is None else one.grad.clone() for one in dense]
average_gradients(dense, [alone.table.weight])
both = [None, None]
dist.all_gather_object(both, mine)
for place, one in enumerate(dense):
    if both[0][place] is None:
        assert one.grad is None
    else:
        torch.testing.assert_close(one.grad, both[0][place] / 2)
assert torch.equal(alone.table.weight.grad.to_dense()[:, 0], torch.tensor([0, 0, 0, 0.5, 0]))
open(f"{__file__}.{rank}.done", "w").close()
"""

TRAINING = """
import sys, warnings
import torch
from torch import nn
from isolayer.debias import DualHead
from isolayer.training.train import Fit, train

class Double(nn.Module):
    def forward(self, features):
        return features.double()

def trained(log, folder):
    '''A model in double precision, so that only what processes do differently is left, not the order of sums.'''
    torch.manual_seed(0)
    backbone = nn.Sequential(Double(), nn.Linear(4, 8), nn.ReLU())
    model = DualHead(backbone, width=8, tasks=("click",), contexts={"position": 4, "device": 3}).double()
    fit = Fit(epochs=2, patience=9, batch_size=128, lr=1e-2, progress=False)
    columns = {"features": "features", "tasks": ["click"], "contexts": ["position", "device"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, log, **columns, folder=folder, fit=fit)
"""

MAIN = """
trained(sys.argv[1], sys.argv[2])
"""


class Both(IterableDataset):
    """The batches of two processes as one batch each."""

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts[0])

    def __iter__(self):
        for pair in zip(*self.parts, strict=True):
            yield Batch(*(_joined(*columns) for columns in zip(*pair, strict=True)))


def _joined(one, two):
    if isinstance(one, dict):
        return {name: torch.cat([one[name], two[name]]) for name in one}
    return one if one is None else torch.cat([one, two])


class GlobalBatches(LogData):
    """What two processes read, read by one."""

    def _loader(self, *, train):
        size = self.batch_size // 2
        places = [lambda rank=rank: (rank, 2) for rank in range(2)]
        options = {"batch_size": size, "train": train, "epoch": self._epoch}
        return DataLoader(Both([LogBatches(self.logs, place=place, **options) for place in places]), batch_size=None)


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """What two processes of torchrun left: the gradients compared, then a model trained."""
    folder = tmp_path_factory.mktemp("job")
    rng = np.random.default_rng(0)
    features, position, device = rng.normal(0, 1, (1600, 4)), rng.integers(0, 4, 1600), rng.integers(0, 3, 1600)
    rate = 1 / (1 + np.exp(-features[:, 0] + 0.5 * position + 0.2 * device))
    columns = {"features": list(features.astype(np.float32)), "position": position, "device": device}
    log = pa.table(columns | {"click": (rng.random(1600) < rate).astype(np.float32)})
    pq.write_table(log, folder / "log.parquet", row_group_size=200)
    script = folder / "job.py"
    script.write_text(SCRIPT + TRAINING + MAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    command += [str(folder / "log.parquet"), str(folder / "two")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


def test_two_processes_agree_with_one(job):
    assert sorted(path.name for path in job.glob("*.done")) == ["job.py.0.done", "job.py.1.done"]


def test_two_processes_train_the_curves_of_one_on_the_same_global_batches(job, monkeypatch):
    monkeypatch.setattr("isolayer.training.train.LogData", GlobalBatches)
    own: dict[str, object] = {}
    exec(compile(TRAINING, "training", "exec"), own)
    own["trained"](job / "log.parquet", job / "one")
    last = [torch.load(job / name / "last.ckpt", weights_only=True) for name in ("one", "two")]
    assert [checkpoint["global_step"] for checkpoint in last] == [22, 22]
    one, two = (load_file(job / name / WEIGHTS) for name in ("one", "two"))
    for name in one:  # the served curve is fitted afterwards, as exactly as its solver is
        torch.testing.assert_close(two[name], one[name], atol=1e-6 if "served" in name else 1e-12, rtol=0)
    curves = [Curves.load(job / name / "curves.parquet") for name in ("one", "two")]
    np.testing.assert_allclose(curves[1].values, curves[0].values, rtol=0, atol=1e-6)
    assert np.ptp(curves[0].values - curves[0].values[0]) > 0.1  # something was learned
