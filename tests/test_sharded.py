"""Sharded tables of contexts: two processes train what one does, and a checkpoint fits any number of processes.

All jobs are forks of one process that has imported TorchRec, which takes longer than the jobs.
"""

import subprocess
import sys

import pytest

pytest.importorskip("torchrec")

SCRIPT = """
import os, sys, tempfile, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist, torch.multiprocessing as mp
from isolayer import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.sharded import ShardedContextIsotonicLayer, data_parallel

torch.set_num_threads(1)
FOLDER = tempfile.mkdtemp()
SIZES, GRID = {"shop": 5000, "slot": 4}, Grid(lower=-3, upper=3, step=0.5)
torch.manual_seed(0)
BATCHES = [
    (torch.randn(12) * 2, torch.randint(-1, 5000, (12,)), torch.randint(0, 4, (12,)), torch.randint(0, 2, (12, 2)))
    for _ in range(4)
]


def loss_of(layer, batch, part):
    x, shop, slot, label = (column[part] for column in batch)
    logit = layer(x, {"shop": shop, "slot": slot})
    return torch.nn.functional.binary_cross_entropy_with_logits(logit, label.to(logit.dtype))


def train(layer, batches, rank, world):
    parallel = data_parallel(layer)
    dense = torch.optim.SGD(layer.dense_parameters(), lr=0.1)
    for batch in batches:
        size = 12 // world
        dense.zero_grad()
        loss_of(parallel, batch, slice(rank * size, rank * size + size)).backward()
        dense.step()


def answers(layer):
    layer.eval()
    shop = torch.cat([batch[1] for batch in BATCHES])
    slot = torch.cat([batch[2] for batch in BATCHES])
    with torch.no_grad():
        out = layer(torch.linspace(-4, 4, len(shop)), {"shop": shop, "slot": slot})
    layer.train()
    return out


def job(rank, world, how, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    optimiser = "sgd" if how == "sgd" else "rowwise_adagrad"
    layer = ShardedContextIsotonicLayer(SIZES, units=2, grid=GRID, optimiser=optimiser, learning_rate=0.1)
    if how in ("whole", "sgd"):  # all batches at once
        train(layer, BATCHES, rank, world)
    if how == "half":
        train(layer, BATCHES[:2], rank, world)
        layer.save(f"{FOLDER}/half")
    if how == "rest":
        layer.load(f"{FOLDER}/half")
        train(layer, BATCHES[2:], rank, world)
        layer.save(f"{FOLDER}/rest")
    if how == "read":
        layer.load(f"{FOLDER}/rest")
    found = answers(layer)
    if rank == 0:
        torch.save(found, f"{FOLDER}/{how}-{world}")
    dist.destroy_process_group()


def run(world, how, port):
    context = mp.get_context("fork")
    jobs = [context.Process(target=job, args=(rank, world, how, port)) for rank in range(world)]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join()
    assert all(one.exitcode == 0 for one in jobs), (world, how)
    return torch.load(f"{FOLDER}/{how}-{world}")


def plain():
    layer = ContextIsotonicLayer(SIZES, units=2, grid=GRID)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    for batch in BATCHES:
        optimiser.zero_grad()
        loss_of(layer, batch, slice(None)).backward()
        optimiser.step()
    return answers(layer)


port = int(sys.argv[1])
one = run(1, "whole", port)
torch.testing.assert_close(run(2, "sgd", port + 2), plain(), atol=1e-6, rtol=1e-5)
run(2, "half", port + 3)
rest = run(1, "rest", port + 4)
torch.testing.assert_close(rest, one, atol=1e-6, rtol=1e-5)  # the moments came along
torch.testing.assert_close(run(3, "read", port + 5), rest, atol=1e-7, rtol=1e-6)
untrained = torch.linspace(-4, 4, 48).clamp(-3, 3)
assert (one - untrained.unsqueeze(1)).abs().max() > 0.01, "something was learned"
print("all agree")
"""


def test_processes_agree_and_a_checkpoint_fits_any_number_of_them(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    port = 20000 + hash(str(tmp_path)) % 20000
    result = subprocess.run(
        [sys.executable, str(script), str(port)], capture_output=True, text=True, timeout=400, check=False
    )
    assert "all agree" in result.stdout, result.stderr[-3000:]


def test_it_needs_a_job():
    from isolayer import InputError
    from isolayer.nn.sharded import ShardedContextIsotonicLayer

    with pytest.raises(InputError, match="process group: expected one, got none"):
        ShardedContextIsotonicLayer({"shop": 10})
