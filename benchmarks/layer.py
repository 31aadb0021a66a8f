"""The layer against the paper's listing and against one sigmoid: time, memory, growth with the buckets, contexts.

One thread, best of many, every ratio from one run: ``python -m benchmarks layer``.
"""

from __future__ import annotations

import json
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import Row, best_time, progress
from isolayer import ContextIsotonicLayer, Grid, IsotonicLayer

listing = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "paper.py"))["listing"]

BATCH, UNITS = 8192, 12
GRIDS = {126: Grid(step=0.2), 501: Grid(step=0.05), 2501: Grid(step=0.01)}


def run() -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        torch.empty(4_000_000)  # freed at once: from here on malloc keeps pages, as in any training process
        x = torch.randn(BATCH, UNITS) * 4 - 4
        return [*against_the_listing(x), memory(x), growth(x), *against_a_sigmoid(x), contexts(x), *leaky_gradients()]
    finally:
        torch.set_num_threads(threads)


def layer_of(buckets: int) -> IsotonicLayer:
    return IsotonicLayer(UNITS, grid=GRIDS[buckets])


def listing_of(layer: IsotonicLayer) -> Callable[[Tensor], Tensor]:
    grid = layer.grid
    return lambda x: listing(x, layer.weight, layer.bias, grid.lower, grid.upper, grid.step)


def both(call: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    """Forward and backward, to the input and the parameters."""
    x = x.detach().clone().requires_grad_()
    return lambda: call(x).sum().backward()


def against_the_listing(x: Tensor) -> list[Row]:
    rows = []
    for buckets, forward, backward in ((126, 200, 100), (501, 600, 300)):
        progress(f"layer: the listing at {buckets} buckets")
        layer = layer_of(buckets)
        theirs = listing_of(layer)
        with torch.no_grad():
            ratio = best_time(lambda: theirs(x), times=5) / best_time(lambda: layer(x), times=500)  # noqa: B023
        rows.append(Row(f"forward, {buckets} buckets", f">= {forward}x", f"{ratio:.0f}x", ratio >= forward))
        ratio = best_time(both(theirs, x), times=3) / best_time(both(layer, x), times=300)
        rows.append(
            Row(f"forward + backward, {buckets} buckets", f">= {backward}x", f"{ratio:.0f}x", ratio >= backward)
        )
    return rows


def peak_bytes(call: Callable[[], object]) -> int:
    """Largest number of bytes that torch held beyond what it held at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = [event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]"]
    first = next(event["args"] for event in events if event.get("name") == "[memory]")
    return int(max(held) - (first["Total Allocated"] - first["Bytes"]))


def memory(x: Tensor) -> Row:
    progress("layer: memory")
    layer = layer_of(501)
    ours, theirs = peak_bytes(both(layer, x)), peak_bytes(both(listing_of(layer), x))
    measured = f"1/{theirs / ours:.0f} ({ours / 1e6:.1f} MB against {theirs / 1e6:.0f} MB)"
    return Row("peak extra memory, forward + backward, 501 buckets", "<= 1/200", measured, theirs / ours >= 200)


def growth(x: Tensor) -> Row:
    few, many = layer_of(126), layer_of(2501)
    with torch.no_grad():
        ratio = best_time(lambda: many(x), times=500) / best_time(lambda: few(x), times=500)
    return Row("forward, 2,501 buckets over 126", "<= 1.5x", f"{ratio:.2f}x", ratio <= 1.5)


def against_a_sigmoid(x: Tensor) -> list[Row]:
    progress("layer: against a sigmoid")
    layer = layer_of(126)
    rows = []
    with torch.no_grad():
        ratio = best_time(lambda: layer(x), times=1000) / best_time(lambda: torch.sigmoid(x), times=1000)
        rows.append(Row("forward over torch.sigmoid, eager", "<= 6x", f"{ratio:.2f}x", ratio <= 6))
        compiled, sigmoid = torch.compile(layer, fullgraph=True), torch.compile(torch.sigmoid)
        compiled(x), sigmoid(x)
        ratio = best_time(lambda: compiled(x), times=1000) / best_time(lambda: sigmoid(x), times=1000)
        rows.append(Row("forward over torch.sigmoid, both compiled", "<= 3x", f"{ratio:.2f}x", ratio <= 3))
    return rows


def contexts(x: Tensor) -> Row:
    progress("layer: contexts")
    plain = layer_of(126)
    layer = ContextIsotonicLayer({"position": 10, "device": 3}, units=UNITS)
    context = {"position": torch.randint(0, 10, (BATCH,)), "device": torch.randint(0, 3, (BATCH,))}
    ratio = best_time(both(lambda z: layer(z, context), x), times=300) / best_time(both(plain, x), times=300)
    return Row("30 contexts over none, forward + backward", "<= 2x", f"{ratio:.2f}x", ratio <= 2)


def leaky_gradients() -> list[Row]:
    """Loss above the target's entropy after training from several starts, with and without ``leaky_gradient``."""
    progress("layer: leaky gradients")
    x = torch.linspace(-3, 3, 400)
    target = torch.sigmoid(2 * x)
    entropy = torch.nn.functional.binary_cross_entropy(target, target).item()
    rows = []
    for start in (-0.5, 0.1, 1.0):
        excess = {
            leaky_gradient: trained_loss(x, target, start, leaky_gradient) - entropy for leaky_gradient in (False, True)
        }
        measured = f"{excess[True]:.1e} against {excess[False]:.1e}"
        name = f"excess loss from init={start}, leaky_gradient on against off"
        rows.append(Row(name, "on no worse", measured, excess[True] <= excess[False] + 1e-5))
    return rows


def trained_loss(x: Tensor, target: Tensor, start: float, leaky_gradient: bool) -> float:
    layer = IsotonicLayer(grid=Grid(-3, 3, 0.5), init=start, leaky_gradient=leaky_gradient)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(500):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(x)[:, 0], target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()
