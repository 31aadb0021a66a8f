"""Section 5.7: the CPU that the isotonic head costs at inference, and what distilling it into a shallow network loses.

Twelve task heads of 126 buckets (the paper: about 125) over networks of three sizes, in batches of 1,024 on one
thread; CPU time of this process, so that a busy machine does not count. Ways to keep the head:

    as trained      curves put together from their embeddings at every call
    frozen          curves of all 30 contexts looked up in one table (`isolayer.nn.frozen.FrozenCurves`)
    as listed       the paper's appendix C: an activation of [batch, tasks, buckets], as we read it
    distilled       the shallow network, told of position and device, or of their combination

These are called by themselves, beside the network. The frozen head is measured inside a graph as well, compiled and in
onnxruntime: what a chain of 21 heads takes more than one head, for each of the 20, over the time of the same eager
network. The target for the frozen head is 1% of the network.

What is distilled is a head of as many buckets with a curve of its own for each of the 30 contexts. The paper does not
say what its shallow network is told of the context, so there are two: one whose hidden units are shifted by position
and by device, and one that has a shift for every combination. Distilling does not depend on the ranker: the head is
over a small network, trained on a simulated feed. AUC is that of the isotonic head's probabilities of clicks and eleven
more tasks on held-out rows.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isolayer import metrics
from isolayer.debias.distill import ShallowHead, distill
from isolayer.debias.heads import DualHead
from isolayer.errors import need
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.isotonic import IsotonicLayer
from research.charts import records
from research.loop import WIDTH, Log, as_log, network, train
from research.per_task_isotonic import CONTEXTS, FALLING, TWELVE, feed
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "Keeping the isotonic head at inference costs about 5% of CPU with 12 task heads of 125 buckets; distilled into a "
    "shallow network it loses less than 0.1% of AUC."
)
PAPER = "section 5.7: about 5% CPU; AUC loss below 0.1%"
SEEDS = 5
BATCH = 1024
NETWORKS = {"small": (12, 64, 32), "medium": (256, 512, 256, 128), "large": (1024, 2048, 1024, 512)}
TARGET = 1.0  # percent of the network that the frozen head may cost
GRID = Grid(step=0.2)  # of the head that is distilled: as many buckets as the heads that are timed
COMPILED, ONNX = "frozen, compiled", "frozen, ONNX"
DISTILLED = "distillation"
BY_FEATURE, BY_COMBINATION = "shifts by position and device", "a shift per combination"
WAYS = (
    "as trained",
    "frozen",
    COMPILED,
    ONNX,
    "as listed",
    *(f"distilled, {name}" for name in (BY_FEATURE, BY_COMBINATION)),
)
STUDENTS = {BY_FEATURE: CONTEXTS, BY_COMBINATION: {"combination": CONTEXTS["position"] * CONTEXTS["device"]}}
LONG = 21  # heads in a chain
LOSS = 0.1  # percent of AUC: the paper says that distilling loses less


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """The three sizes and the distillation under every seed."""
    return units_of([*NETWORKS, DISTILLED], quick=quick, seeds=seeds or SEEDS, cost=4.0 if quick else 15.0)


def run_unit(unit: Unit) -> Numbers:
    """Measure one size of network, or distil one head."""
    torch.manual_seed(unit.seed)
    if unit.setting == DISTILLED:
        return distilled(unit.seed, quick=unit.quick)
    return overheads(NETWORKS[unit.setting], seconds=0.5 if unit.quick else 2.0)


class ListedHead(nn.Module):
    """The head as the paper lists it, the weights of each row's context looked up: ``[batch, units, buckets]`` twice.

    >>> layer = ContextIsotonicLayer(CONTEXTS, units=2)
    >>> context = {"position": torch.tensor([3]), "device": torch.tensor([1])}
    >>> ListedHead(layer)(torch.ones(1, 2), context).round(decimals=3)
    tensor([[1., 1.]])
    """

    def __init__(self, layer: ContextIsotonicLayer) -> None:
        super().__init__()
        self.base: IsotonicLayer = layer.base
        self.tables = nn.ModuleList(nn.Embedding(size, layer.units * layer.grid.buckets) for size in CONTEXTS.values())
        for table in self.tables:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]
        self.requires_grad_(False)

    def forward(self, logit: Tensor, context: dict[str, Tensor]) -> Tensor:
        """Logits ``[batch, units]`` in each row's context."""
        grid = self.base.grid
        x = logit.clamp(grid.lower, grid.upper) - grid.lower + grid.step
        index = (x / grid.step).long().clamp(0, grid.buckets - 1).unsqueeze(2)
        activation = torch.where(torch.arange(grid.buckets) < index, grid.step, 0.0)  # [batch, units, buckets]
        activation.scatter_(2, index, x.unsqueeze(2) - index * grid.step)
        ids = (context[name] for name in CONTEXTS)
        moved = sum(table(key) for table, key in zip(self.tables, ids, strict=True)).view(activation.shape)
        out: Tensor = (activation * torch.relu(self.base.weight + moved)).sum(2) + grid.lower - grid.step
        return out if self.base.bias is None else out + self.base.bias


def overheads(sizes: Sequence[int], *, seconds: float) -> Numbers:
    """CPU milliseconds of the network with its 12 logits alone and with each head, and the overhead in percent."""
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    ranker = nn.Sequential(*layers, nn.Linear(sizes[-1], len(TWELVE)))
    curves = ContextIsotonicLayer(CONTEXTS, units=len(TWELVE))
    heads: dict[str, nn.Module] = {
        "as trained": curves,
        "frozen": FrozenCurves.from_layer(curves),
        "as listed": ListedHead(curves),
        **{f"distilled, {name}": ShallowHead(told, units=len(TWELVE)) for name, told in STUDENTS.items()},
    }
    features = torch.randn(BATCH, sizes[0])
    context = combined({name: torch.randint(0, size, (BATCH,)) for name, size in CONTEXTS.items()})
    with torch.inference_mode():  # as models are served
        logit = ranker(features)
        alone = cpu_ms(lambda: torch.sigmoid(ranker(features)), seconds=seconds)
        added = {way: cpu_ms(partial(head, logit, context), seconds=seconds) for way, head in heads.items()}
        added |= in_graphs(heads["frozen"], logit, context, seconds=seconds)
    numbers: Numbers = {"alone ms": alone}
    for way, ms in added.items():
        numbers |= {f"{way} ms": ms, f"{way} %": 100 * ms / alone}
    return numbers


class Chain(nn.Module):
    """A head applied several times, each to what the one before it says."""

    def __init__(self, head: nn.Module, times: int) -> None:
        super().__init__()
        self.head, self.times = head, times

    def forward(self, logit: Tensor, position: Tensor, device: Tensor) -> Tensor:
        """Logits ``[batch, units]``."""
        for _ in range(self.times):
            logit = self.head(logit, {"position": position, "device": device})
        return logit


def in_graphs(head: nn.Module, logit: Tensor, context: dict[str, Tensor], *, seconds: float) -> dict[str, float]:
    """CPU milliseconds that the head adds to a graph, by kind of graph."""
    given = (logit, context["position"], context["device"])
    chains = [Chain(head, times).eval() for times in (1, LONG)]
    once, long = (partial(torch.compile(chain), *given) for chain in chains)
    once_exported, long_exported = (onnx_call(chain, given) for chain in chains)
    return {
        COMPILED: added_ms(once, long, seconds=seconds),
        ONNX: added_ms(once_exported, long_exported, seconds=seconds),
    }


def onnx_call(model: nn.Module, given: tuple[Tensor, ...]) -> Callable[[], Any]:
    """A call of the model in onnxruntime, on one thread."""
    runtime = need("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names packages that it could export as well
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.onnx.export(model, given, dynamo=True, verbose=False)
    assert program is not None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    content = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    columns = {one.name: array.numpy() for one, array in zip(session.get_inputs(), given, strict=True)}
    return partial(session.run, None, columns)


def added_ms(once: Callable[[], Any], long: Callable[[], Any], *, seconds: float) -> float:
    """Least CPU milliseconds of one link of a chain; the two calls take turns, so that both meet the same machine."""
    found = [[cpu_ms(call, seconds=seconds / 10) for call in (once, long)] for _ in range(5)]
    one, many = np.min(found, axis=0)
    return float(many - one) / (LONG - 1)


def cpu_ms(call: Callable[[], Any], *, seconds: float) -> float:
    """Least CPU milliseconds of a call among those that fit into so many CPU seconds, after one to warm up.

    >>> 0 <= cpu_ms(lambda: sum(range(100)), seconds=0.01) < 10
    True
    """
    call()
    found: list[float] = []
    start = time.process_time()
    while time.process_time() - start < seconds or len(found) < 3:
        before = time.process_time_ns()
        call()
        found.append((time.process_time_ns() - before) / 1e6)
    return float(np.min(found))


def distilled(seed: int, *, quick: bool) -> Numbers:
    """Train a head on one log, distil it there, compare both on another."""
    world, sessions = feed(seed), 6_000 if quick else 30_000
    log, test = (as_log(world.log(size, seed=2 * seed + k), TWELVE) for k, size in ((0, sessions), (1, 20_000)))
    model = DualHead(
        network(world.population.features),
        width=WIDTH,
        tasks=TWELVE,
        contexts=CONTEXTS,
        anchor="joint",
        decreasing=FALLING,
        mode="cross",
        grid=GRID,
    )
    train(model, log, seed=seed)
    curves = model.context_curves
    with torch.no_grad():
        read, read_test = (model.relevance(model.backbone(rows.features)) * model.sign for rows in (log, test))
        teacher = _auc(curves(read_test, test.context), test)
    numbers: Numbers = {"auc": teacher[0]}
    for name, sizes in STUDENTS.items():
        steps = 600 if quick else 1500
        head = partial(_of_combination, curves) if name == BY_COMBINATION else curves
        student = distill(head, sizes, read, combined(log.context), steps=steps, seed=seed).student
        with torch.no_grad():
            found = _auc(student(read_test, combined(test.context)), test)
        losses = [100 * (1 - after / before) for before, after in zip(teacher, found, strict=True)]
        numbers |= {f"mean loss, {name}": float(np.mean(losses)), f"worst loss, {name}": float(max(losses))}
    return numbers


def combined(context: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A context with one id more, that of the combination.

    >>> combined({"position": torch.tensor([2]), "device": torch.tensor([1])})["combination"]
    tensor([7])
    """
    return {**context, "combination": context["position"] * CONTEXTS["device"] + context["device"]}


def _of_combination(curves: nn.Module, logit: Tensor, context: Mapping[str, Tensor]) -> Tensor:
    # the curves, asked by the id of the combination
    devices = CONTEXTS["device"]
    ids = context["combination"]
    out: Tensor = curves(logit, {"position": ids // devices, "device": ids % devices})
    return out


def _auc(logit: Tensor, rows: Log) -> list[float]:
    columns = zip(TWELVE, logit.T.numpy(), strict=True)
    return [metrics.auc(rows.labels[task].numpy(), column) for task, column in columns]


def summarise(finished: Sequence[Finished]) -> Result:
    """Overheads by size and way, and the AUC lost by distilling."""
    rows = [
        Row(
            f"{size} network, head {way}",
            "CPU overhead, % of the network",
            _overhead(finished, size, way),
            _said(way),
            2,
        )
        for size in NETWORKS
        for way in WAYS
    ]
    rows += [
        Row(f"{size} network", f"CPU ms for {BATCH} rows", estimate(by_seed(finished, size, "alone ms")), digits=2)
        for size in NETWORKS
    ]
    rows += [
        Row(
            f"distilled head, {name}",
            f"AUC lost, {which} of 12 tasks",
            _lost(finished, which, name),
            f"below {LOSS:g}%",
            3,
            "%",
        )
        for name in STUDENTS
        for which in ("mean", "worst")
    ]
    parts = (
        *(_listed(finished, size) for size in NETWORKS),
        *(
            Part(
                f"the frozen head costs less than {TARGET:g}% of CPU ({size} network)",
                _overhead(finished, size, "frozen"),
                below=TARGET,
                unit="%",
            )
            for size in NETWORKS
        ),
        *(
            Part(
                f"distilling loses less than {LOSS:g}% AUC {said} ({name})",
                _lost(finished, which, name),
                below=LOSS,
                unit="%",
            )
            for name in STUDENTS
            for which, said in (("mean", "on average"), ("worst", "on the worst task"))
        ),
    )
    return Result(tuple(rows), parts, _series(finished), _note(finished))


def _listed(finished: Sequence[Finished], size: str) -> Part:
    says = f"the head as the paper lists it costs about 5% of CPU ({size} network)"
    return Part(says, _overhead(finished, size, "as listed"), above=2.5, below=7.5, unit="%")


def _said(way: str) -> str:
    return "about 5%" if way == "as listed" else ""


def _overhead(finished: Sequence[Finished], size: str, way: str) -> Estimate:
    return estimate(by_seed(finished, size, f"{way} %"))


def _lost(finished: Sequence[Finished], which: str, student: str) -> Estimate:
    return estimate(by_seed(finished, DISTILLED, f"{which} loss, {student}"))


def _note(finished: Sequence[Finished]) -> str:
    taken = float(np.mean([by_seed(finished, size, "as listed ms") for size in NETWORKS]))
    largest = estimate(by_seed(finished, "large", "alone ms")).value

    def beside(way: str) -> str:
        return ", ".join(f"{_percent(_overhead(finished, size, way).value)} ({size})" for size in NETWORKS)

    sizes = ", ".join(f"{size} {' - '.join(map(str, widths))}" for size, widths in NETWORKS.items())
    about = [size for size in NETWORKS if _listed(finished, size).held == "held"]
    return (
        f"The paper does not say how large its ranker is, so three sizes are shown ({sizes}): its head takes "
        f"{taken:.1f} ms for {BATCH} rows here, which is 5% of a ranker of {taken / 0.05:.0f} ms, and our large one "
        f"takes {largest:.0f}. The head as listed adds {beside('as listed')}, so about 5% beside "
        f"{' and '.join(about) or 'none'}. {_LISTING} The head frozen adds {beside('frozen')}. In a graph it is judged "
        "by the added cost of one head in a chain of heads over the time of the eager network: compiled, "
        f"{beside(COMPILED)}; in ONNX, {beside(ONNX)}. Networks in such graphs may be faster themselves; that is not "
        f"measured. {_students(finished, beside)}"
    )


_LISTING = (
    "The paper's listing does not parse as printed (in the assignment of `delta` a bracket closes one line too early), "
    "so what is timed is our reading of it."
)


def _students(finished: Sequence[Finished], beside: Callable[[str], str]) -> str:
    """What distilling costs and loses with each student, and which of them keeps AUC."""
    told, kept = [], []
    for name in STUDENTS:
        mean, worst = (_lost(finished, which, name) for which in ("mean", "worst"))
        told.append(
            f"Distilled into a student with {name}, the head adds {beside(f'distilled, {name}')} and loses "
            f"{_percent(mean.value)} of AUC on average and {_percent(worst.value)} on the worst task."
        )
        if max(mean.upper, worst.upper) < LOSS:
            kept.append(name)
    by = {0: "neither student", 1: f"the student with {''.join(kept)} alone", 2: "both students"}[len(kept)]
    return f"{' '.join(told)} AUC is kept, with less than {LOSS:g}% lost on average and on the worst task, by {by}."


def _percent(value: float) -> str:
    """A percentage, with decimals where it is small.

    >>> _percent(3743.7), _percent(4.48), _percent(0.05)
    ('3744%', '4.5%', '0.05%')
    """
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{digits}f}%"


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    found = {(size, way): _overhead(finished, size, way) for size in NETWORKS for way in WAYS}
    return {
        "network": [size for size, _ in found],
        "head": [way for _, way in found],
        "overhead": [one.value for one in found.values()],
    }


def chart(series: dict[str, Any]) -> Any:
    """Overhead of each way to keep the head, by size of the network."""
    alt = need("altair")
    bar = alt.Chart(alt.Data(values=records(series))).mark_point(filled=True, size=90)
    return bar.encode(
        x=alt.X("overhead:Q", title="CPU overhead, % of the network", scale=alt.Scale(type="log")),
        y=alt.Y("head:N", title=None, sort=list(WAYS), axis=alt.Axis(labelLimit=320)),
        color=alt.Color("network:N", title="network", sort=list(NETWORKS)),
    ).properties(width=380, height=18 * len(WAYS))
