"""Two real processes, gloo, started by torchrun: the gradients of the layers, and a whole training from Parquet."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
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
del parallel  # it holds the process group, whose threads abort a process that ends before them

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

LOSSES = """
from torch import nn
from isolayer.debias import DualHead
from isolayer.debias.click_models import Cascade
from isolayer.debias.confounding import GradientReversal
from isolayer.debias.in_turns import PairwiseDebiasing, RegressionEM
from isolayer.debias.pap import PositionPredictor
from isolayer.debias.ranking_loss import LOSSES
from isolayer.debias.weighting import DualLearning, InversePropensity
from isolayer.nn.whole_batch import whole_batch

torch.manual_seed(0)
session = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3])
position = torch.cat([torch.arange(int(n)) for n in session.bincount()])
features, weight = torch.randn(18, 3), torch.rand(18).double()
labels = {task: torch.rand(18).round() for task in ("click", "like")}
mask = {"like": session > 1}  # the first process has no likes
cut = slice(0, 6) if rank == 0 else slice(6, 18)  # whole lists, but not as many rows
contexts, tasks = {"position": 8}, ("click", "like")
options = {"width": 4, "tasks": tasks}
makers = {
    "regression": lambda: RegressionEM(nn.Linear(3, 4), positions=8, **options).eval(),  # draws nothing
    "running": lambda: RegressionEM(nn.Linear(3, 4), positions=8, **options),
    "pairwise": lambda: PairwiseDebiasing(nn.Linear(3, 4), positions=8, **options),
    "dual": lambda: DualLearning(nn.Linear(3, 4), contexts=contexts, **options),
    "ipw": lambda: InversePropensity(nn.Linear(3, 4), propensity=[1 / k for k in range(1, 9)], **options),
    "cascade": lambda: Cascade(nn.Linear(3, 4), positions=8, **options),
    "reversal": lambda: GradientReversal(nn.Linear(3, 4), contexts=contexts, **options),
    "predictor": lambda: PositionPredictor(makers["pointwise"](), nn.Linear(3, 2), width=2),
}
for kind in LOSSES:
    makers[kind] = lambda kind=kind: DualHead(nn.Linear(3, 4), contexts=contexts, loss=kind, **options)

def of_rows(model, rows):
    context = {"position": position[rows], "session": session[rows]}
    given = {task: label[rows] for task, label in labels.items()}
    outputs = model(features[rows].double(), context)
    return model.loss(outputs, given, {"like": mask["like"][rows]}, weight[rows])

for name, make in makers.items():
    torch.manual_seed(1)
    model = make().double()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1 * torch.randn_like(one))
    whole = copy.deepcopy(model)
    with together() as waiting, whole_batch():
        loss = of_rows(model, cut)
    loss.backward()
    average_gradients(list(model.parameters()), waiting=waiting)
    of_rows(whole, slice(None)).backward()
    for (what, mine), one in zip(model.named_parameters(), whole.parameters(), strict=True):
        if name != "running":  # it draws labels
            assert (mine.grad is None) == (one.grad is None), (name, what)
            if one.grad is not None:
                torch.testing.assert_close(mine.grad, one.grad, atol=1e-12, rtol=0, msg=f"{name} {what}")
    for (what, mine), one in zip(model.named_buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(mine, one, atol=1e-12, rtol=0, msg=f"{name} {what}")

halves = slice(9 * rank, 9 * rank + 9)  # equally many rows without weights or masks: what is known needs no message
def plain(model, rows):
    context = {"position": position[rows], "session": session[rows]}
    return model.loss(model(features[rows].double(), context), {task: label[rows] for task, label in labels.items()})

for name in ("pointwise", "ipw", "regression", "reversal", "predictor"):
    torch.manual_seed(1)
    model = makers[name]().double()
    whole = copy.deepcopy(model)
    with together() as waiting, whole_batch(equal_rows=True):
        loss = plain(model, halves)
    loss.backward()
    average_gradients(list(model.parameters()), waiting=waiting)
    plain(whole, slice(None)).backward()
    for (what, mine), one in zip(model.named_parameters(), whole.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(mine.grad, one.grad, atol=1e-12, rtol=0, msg=f"{name} {what}")
open(f"{__file__}.{rank}.losses", "w").close()
"""

TRAINING = """
import sys, warnings
import torch
from torch import nn
from isolayer.debias import DualHead
from isolayer.training.backbone import TableBackbone
from isolayer.training.train import Fit, train

def trained(log, folder, tasks=("click",), weight=None):
    '''A model in double precision, so that only what processes do differently is left, not the order of sums.'''
    torch.manual_seed(0)
    backbone = TableBackbone(4, [8])  # as the command line builds it
    model = DualHead(backbone, width=8, tasks=tasks, contexts={"position": 4, "device": 3}).double()
    fit = Fit(epochs=2, patience=9, batch_size=128, lr=1e-2, weight=weight, progress=False)
    columns = {"features": "features", "tasks": list(tasks), "contexts": ["position", "device"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, log, **columns, folder=folder, fit=fit)
"""

MAIN = """
sent, send = [], torch.distributed.all_reduce
torch.distributed.all_reduce = lambda message, *rest, **more: (sent.append(1), send(message, *rest, **more))[1]
told, tell = [], torch.distributed.broadcast
torch.distributed.broadcast = lambda message, *rest, **more: (told.append(1), tell(message, *rest, **more))[1]
trained(sys.argv[1], sys.argv[2])
open(f"{__file__}.{rank}.messages", "w").write(f"{len(sent)} {len(told)}")
trained(sys.argv[1], sys.argv[2] + "-weighted", ("click", "like"), "weight")
"""


class Both(IterableDataset):
    """The batches of two processes as one batch each."""

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts[0])

    def __iter__(self):
        for pair in zip(*self.parts, strict=True):
            masks = set(pair[0].mask) | set(pair[1].mask)  # of tasks that lack labels in one of them
            pair = [one._replace(mask={task: one.known(task) for task in masks}) for one in pair]
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
    columns["click"] = (rng.random(1600) < rate).astype(np.float32)
    group = np.arange(1600) // 200
    columns["weight"] = (0.2 + group % 3 + rng.random(1600)).astype(np.float32)
    liked = (rng.random(1600) < rate / 2).astype(np.float32)
    columns["like"] = pa.array(liked, mask=np.isin(group, [0, 3, 4, 7]))  # row groups go whole to a process
    log = pa.table(columns)
    pq.write_table(log, folder / "log.parquet", row_group_size=200)
    script = folder / "job.py"
    script.write_text(SCRIPT + LOSSES + TRAINING + MAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    command += [str(folder / "log.parquet"), str(folder / "two")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


def test_two_processes_agree_with_one(job):
    assert sorted(path.name for path in job.glob("*.done")) == ["job.py.0.done", "job.py.1.done"]


def test_every_loss_of_two_processes_is_that_of_all_their_rows(job):
    assert sorted(path.name for path in job.glob("*.losses")) == ["job.py.0.losses", "job.py.1.losses"]


def test_a_step_of_equally_many_rows_is_one_message(job):
    """Besides, the held-out loss of each pass is one, and parameters and buffers are told at the start."""
    for rank in range(2):
        sent, told = map(int, (job / f"job.py.{rank}.messages").read_text().split())
        assert 22 < sent < 2 * 22
        assert told < 22 + 20  # Lightning would tell every step


@pytest.mark.parametrize("run", ["", "-weighted"])
def test_two_processes_train_the_curves_of_one_on_the_same_global_batches(job, monkeypatch, run):
    monkeypatch.setattr("isolayer.training.train.LogData", GlobalBatches)
    own: dict[str, object] = {}
    exec(compile(TRAINING, "training", "exec"), own)
    folders = [job / f"{name}{run}" for name in ("one", "two")]
    own["trained"](job / "log.parquet", folders[0], *((("click", "like"), "weight") if run else ()))
    last = [torch.load(folder / "last.ckpt", weights_only=True) for folder in folders]
    assert [checkpoint["global_step"] for checkpoint in last] == [22, 22]
    one, two = (load_file(folder / WEIGHTS) for folder in folders)
    for name in one:  # the served curve is fitted afterwards, as exactly as its solver is
        torch.testing.assert_close(two[name], one[name], atol=1e-6 if "served" in name else 1e-12, rtol=0)
    curves = [Curves.load(folder / "curves.parquet") for folder in folders]
    np.testing.assert_allclose(curves[1].values, curves[0].values, rtol=0, atol=1e-6)
    assert np.ptp(curves[0].values - curves[0].values[0]) > 0.1  # something was learned
    losses = [pyarrow.csv.read_csv(folder / "csv/version_0/metrics.csv")["held_out_loss"] for folder in folders]
    np.testing.assert_allclose(losses[1].drop_null(), losses[0].drop_null(), rtol=1e-6)
