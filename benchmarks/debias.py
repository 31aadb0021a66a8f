"""Debiasing at training and at serving: what the head costs, kept or distilled.

Run alone: ``python -m benchmarks debias``. Times are of one thread unless ``OMP_NUM_THREADS`` says otherwise, with the
calls that are compared taking turns. The ranking figures of debiasing are those of ``python -m research
debias-benchmark``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import Row, progress, quick
from isolayer import ContextIsotonicLayer, IsotonicLayer, RowAdam, parameter_groups, simulate
from isolayer.debias import DualHead
from isolayer.debias.baselines import Naive
from isolayer.debias.distill import ShallowHead, distill
from isolayer.metrics import auc
from isolayer.nn.frozen import FrozenCurves

BATCH, WIDTH, TASKS = 256, 512, 12
CONTEXTS = {"position": 20, "device": 3}
FEED_CONTEXTS = {"position": 10, "device": 3}
TIMES = 300


def run() -> list[Row]:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    progress(f"threads {torch.get_num_threads()}")
    return [*_distillation(), *_serving(), *_training(), *_many_ids()]


def backbone(features: int = WIDTH) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((features, 512), (512, 256), (256, 128)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _distillation() -> list[Row]:
    """A head trained on a simulated log, distilled on it, its AUC measured on the labels of another log."""
    rows = []
    for bias in ("position", "trust"):
        feed = simulate.debias_feed(bias)
        log, test = feed.log(3_000 if quick() else 15_000, seed=1), feed.log(15_000, seed=2)
        model = _fitted(log)
        logit, context = _relevance(model, log), _context(log)
        student = distill(model.context_curves, FEED_CONTEXTS, logit, context).student
        fresh, where = _relevance(model, test), _context(test)
        with torch.no_grad():
            said = {
                "teacher": model.context_curves(fresh, where)[:, 0].numpy(),
                "student": student(fresh, where)[:, 0].numpy(),
            }
        area = {name: auc(test["click"], score) for name, score in said.items()}
        lost = 100 * (1 - area["student"] / area["teacher"])
        progress(f"distilled, {bias}: AUC {area['teacher']:.5f} to {area['student']:.5f}")
        rows.append(Row(f"AUC lost by distilling the head, {bias} bias", "< 0.1%", f"{lost:+.4f}%", lost < 0.1))
    return rows


def _fitted(log: dict[str, Any]) -> DualHead:
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    model = DualHead(net, width=32, tasks=("click",), contexts=FEED_CONTEXTS, alpha=0, beta=1)
    features, click, context = torch.from_numpy(log["features"]), torch.from_numpy(log["click"]).float(), _context(log)
    optimiser = torch.optim.Adam(parameter_groups(model, 2e-3))
    for _ in range(3):
        for rows in torch.randperm(len(click)).split(1024):
            outputs = model(features[rows], {name: ids[rows] for name, ids in context.items()})
            optimiser.zero_grad()
            model.loss(outputs, {"click": click[rows]}).backward()
            optimiser.step()
    return model


@torch.no_grad()
def _relevance(model: DualHead, log: dict[str, Any]) -> Tensor:
    return model.relevance(model.backbone(torch.from_numpy(log["features"])))


def _context(log: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(log[name]).long() for name in FEED_CONTEXTS}


def _serving() -> list[Row]:
    """Time of the head beside that of its backbone, in every form in which one might keep it."""
    net, x = backbone().eval(), torch.randn(BATCH, WIDTH)
    context = {name: torch.randint(0, size, (BATCH,)) for name, size in CONTEXTS.items()}
    relevance = nn.Linear(128, TASKS)
    plain = IsotonicLayer(TASKS)
    table = ContextIsotonicLayer(CONTEXTS, units=TASKS)
    for embedding in table.tables:
        nn.init.normal_(embedding.rows.weight, std=0.2)
    kept, kept_in_context = FrozenCurves.from_layer(plain), FrozenCurves.from_layer(table)
    student = ShallowHead(CONTEXTS, units=TASKS)
    with torch.inference_mode():
        logit = relevance(net(x))
        once, often = (_chain(kept, times, logit) for times in (1, 21))
        seconds = _alone(
            {
                "backbone": lambda: net(x),
                "the paper's listing, a curve per task": lambda: listing(logit, plain.weight, plain.grid),
                "layer as trained, a curve per task": lambda: plain(logit),
                "kept, a curve per task": lambda: kept(logit),
                "layer as trained, 60 contexts": lambda: table(logit, context),
                "kept, 60 contexts": lambda: kept_in_context(logit, context),
                "distilled, 60 contexts": lambda: student(logit, context),
                "once": once,
                "often": often,
            }
        )
    whole = seconds.pop("backbone")
    seconds["kept, a curve per task, within a compiled graph"] = (seconds.pop("often") - seconds.pop("once")) / 20
    judged = ("kept, a curve per task", "kept, a curve per task, within a compiled graph")
    progress(f"backbone {whole * 1e6:.0f} us")
    return [
        Row(
            f"head over backbone at serving: {name}",
            "<= 1% (paper 5%)" if name in judged else "shown",
            f"{100 * time_ / whole:.2f}% ({time_ * 1e6:.0f} of {whole * 1e6:.0f} us)",
            time_ <= 0.01 * whole if name in judged else None,
        )
        for name, time_ in seconds.items()
    ]


def listing(logit: Tensor, weight: Tensor, grid: Any) -> Tensor:
    """The paper's own form: an activation for every bucket of every input, [batch, units, buckets]."""
    left = torch.as_tensor(grid.knots[:-1], dtype=logit.dtype)
    activation = ((logit.clamp(grid.lower, grid.upper).unsqueeze(2) - left) / grid.step).clamp(0, 1)
    return (activation * torch.relu(weight)).sum(2) * grid.step + grid.lower - grid.step


def _chain(head: nn.Module, times: int, logit: Tensor) -> Callable[[], Tensor]:
    """The head several times in a row in one compiled graph: the difference is its time without that of a call."""

    class Chain(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            for _ in range(times):
                z = head(z)
            return z

    compiled = torch.compile(Chain())
    compiled(logit)
    return lambda: compiled(logit)


def _alone(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Processor seconds of the quickest call of each, in rounds in which each is called a few times."""
    seconds = dict.fromkeys(calls, np.inf)
    for _ in range(20 if quick() else TIMES):
        for name, call in calls.items():
            for _ in range(5):  # the first of these finds cold caches, the least of them does not
                start = time.thread_time()
                call()
                seconds[name] = min(seconds[name], time.thread_time() - start)
    return seconds


def _training() -> list[Row]:
    """Rows a second of a DualHead and of a naive model on one backbone, steps taking turns."""
    batch, tasks = 1024, ("click", "skip", "long_dwell")
    x = torch.randn(batch, WIDTH)
    context = {name: torch.randint(0, size, (batch,)) for name, size in CONTEXTS.items()}
    labels = {task: torch.randint(0, 2, (batch,)).float() for task in tasks}
    steps: dict[str, Callable[[], None]] = {}
    for anchor in ("joint", "detached"):
        model = DualHead(backbone(), width=128, tasks=tasks, contexts=CONTEXTS, anchor=anchor)
        steps[anchor] = _step(model, x, context, labels)
    steps["naive"] = _step(Naive(backbone(), width=128, tasks=tasks), x, context, labels)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(5 if quick() else 40):
        for name, step in steps.items():
            start = time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
            step()
            end = time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
            seconds[name].append(end - start)
    median = {name: float(np.median(some)) for name, some in seconds.items()}
    return [
        Row(
            f"training rows/s, DualHead over naive, anchor {anchor}",
            ">= 0.85",
            f"{median['naive'] / median[anchor]:.3f} ({batch / median[anchor]:,.0f} of {batch / median['naive']:,.0f})",
            median["naive"] / median[anchor] >= 0.85,
        )
        for anchor in ("joint", "detached")
    ]


def _step(model: nn.Module, x: Tensor, context: dict[str, Tensor], labels: dict[str, Tensor]) -> Callable[[], None]:
    optimiser = torch.optim.Adam(parameter_groups(model, 1e-3))

    def step() -> None:
        optimiser.zero_grad()
        model.loss(model(x, context), labels).backward()
        optimiser.step()

    step()
    return step


def _many_ids() -> list[Row]:
    """Time of a training step with a million advertisers over that with a thousand, by kind of table."""
    kinds: dict[str, dict[str, Any]] = {
        "dense tables, Adam": {},
        "sparse tables": {"sparse": True},
        "sparse tables of rank 4": {"sparse": True, "rank": 4},
        "hashed into 100,000": {"sparse": True, "hash_buckets": 100_000},
    }
    rows = []
    for kind, options in kinds.items():
        some = {ids: _advertiser_step(ids, options) for ids in (1_000, 1_000_000)}
        seconds = dict.fromkeys(some, np.inf)
        for _ in range(3 if quick() else 20):
            for ids, step in some.items():
                start = time.thread_time()
                step()
                seconds[ids] = min(seconds[ids], time.thread_time() - start)
        few, many = seconds.values()
        judged = kind != "dense tables, Adam"
        rows.append(
            Row(
                f"training step, 1,000,000 ids over 1,000: {kind}",
                "<= 1.3" if judged else "shown",
                f"{many / few:.2f} ({many * 1e3:.1f} of {few * 1e3:.1f} ms)",
                many <= 1.3 * few if judged else None,
            )
        )
    return rows


def _advertiser_step(ids: int, options: dict[str, Any]) -> Callable[[], None]:
    """A step of a small backbone, with other advertisers in every batch."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    model = DualHead(net, width=64, tasks=("click",), contexts={"position": 20, "advertiser": ids}, **options)
    groups = parameter_groups(model, 1e-3)
    optimiser = RowAdam(groups) if options else torch.optim.Adam(groups)
    x, labels = torch.randn(1024, 64), {"click": torch.randint(0, 2, (1024,)).float()}

    def step() -> None:
        context = {"position": torch.randint(0, 20, (1024,)), "advertiser": torch.randint(0, ids, (1024,))}
        optimiser.zero_grad()
        model.loss(model(x, context), labels).backward()
        optimiser.step()

    step()
    return step
