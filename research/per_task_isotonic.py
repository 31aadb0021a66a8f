"""Section 5.3: Platt scaling and twelve isotonic regressions, one per task, against one layer for everything.

Twelve tasks share one model. What a user does is a monotone distortion of relevance, another for every task, position
and device, so a curve per task averages over thirty of them. On held-out rows of the log each method is judged by NE,
by O/E in every (task, position, device), and by the ranking it would serve: nDCG of a value function over the twelve
probabilities against the true value. The layer appears in both its forms: fitted exactly over the model's logits, and
learned inside the model as its isotonic head, of which the inference head is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.debias.baselines import Naive
from isolayer.debias.heads import DualHead
from isolayer.simulate import TASKS, Distortion, Feed, Population, Task
from research.calibrators import PavaCalibrator, PlattCalibrator
from research.charts import intervals, records
from research.loop import WIDTH, Log, as_log, network, prob, train
from research.result import (
    Estimate,
    Finished,
    Numbers,
    Part,
    Result,
    Row,
    Unit,
    by_seed,
    certain,
    estimate,
    units_of,
)

CLAIM = (
    "Platt scaling and 12 per-task isotonic regressions give negative to flat top-line metrics at the price of a "
    "pipeline per task; one layer calibrates every task and context."
)
PAPER = "section 5.3 and appendix B, no figures"
SEEDS = 5
CONTEXTS = {"position": 10, "device": 3}
MORE_TASKS = (
    Task("follow", 0.03),
    Task("save", 0.04),
    Task("profile", 0.06, slope=0.8),
    Task("expand", 0.2, slope=0.9),
    Task("hide", 0.03, slope=-1.0),
    Task("report", 0.01, slope=-0.8),
)
TWELVE = ("click", *(task.name for task in TASKS + MORE_TASKS))
FALLING = ("skip", "hide", "report")
EXACT, HEAD = "layer, exact", "layer, isotonic head"
METHODS = {  # method -> the models somebody must fit, version and serve
    "raw model": 0,
    "Platt, one per task": 12,
    "isotonic, one per task": 12,
    "Platt, one per task and context": 12 * 30,
    "isotonic, one per task and context": 12 * 30,
    EXACT: 1,
    HEAD: 0,
}
PER_TASK = ("Platt, one per task", "isotonic, one per task")
PER_SEGMENT = ("Platt, one per task and context", "isotonic, one per task and context")
FLAT = 0.002  # nDCG: a change below this is flat
Columns = dict[str, NDArray[np.float64]]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One world per seed, all methods in it."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=6.0 if quick else 30.0)


def feed(seed: int) -> Feed:
    """A world whose distortions are drawn anew with the seed."""
    return Feed(population=Population(seed=seed), behaviour=Distortion(seed=seed), tasks=TASKS + MORE_TASKS)


def run_unit(unit: Unit) -> Numbers:
    """Train the models, fit the calibrators on other rows, judge all on a third log."""
    torch.manual_seed(unit.seed)
    world, sessions = feed(unit.seed), 6_000 if unit.quick else 30_000
    fitted, tested = (world.log(size, seed=3 * unit.seed + k) for k, size in ((1, sessions), (2, 20_000)))
    log = as_log(world.log(sessions, seed=3 * unit.seed), TWELVE)
    shape: dict[str, Any] = {"width": WIDTH, "tasks": TWELVE, "decreasing": FALLING}
    naive = train(Naive(network(world.population.features), **shape), log, seed=unit.seed)
    head = DualHead(network(world.population.features), contexts=CONTEXTS, anchor="joint", **shape)
    dual = train(head, log, seed=unit.seed)
    logits, rows = logits_of(naive, as_log(fitted, TWELVE)), as_log(tested, TWELVE)
    test_logits = logits_of(naive, rows)
    with torch.no_grad():
        heads, served = dual(rows.features, rows.context), dual.serving()(rows.features)
    post_hoc = [name for name in METHODS if name != HEAD]
    probs = {name: calibrated(name, (logits, fitted), (test_logits, tested)) for name in post_hoc}
    probs[HEAD] = {task: prob(heads[task].observed_logit) for task in TWELVE}
    numbers: Numbers = {}
    for name, columns in probs.items():
        numbers |= {f"{name} {key}": value for key, value in judged(columns, tested).items()}
    ranked = {**{name: probs[name] for name in ("raw model", *PER_TASK)}, "inference head": served_probs(served)}
    return numbers | {f"{name} ndcg": value_ndcg(columns, tested) for name, columns in ranked.items()}


def logits_of(model: Naive, log: Log) -> Columns:
    """Logit of every event by the model that knows no context."""
    with torch.no_grad():
        heads = model(log.features, log.context)
    return {task: heads[task].observed_logit.double().numpy() for task in TWELVE}


def served_probs(outputs: Mapping[str, torch.Tensor]) -> Columns:
    """Served probability of every event."""
    return {task: outputs[f"{task}_prob"].double().numpy() for task in TWELVE}


def calibrated(
    name: str, fitted: tuple[Columns, Mapping[str, Any]], tested: tuple[Columns, Mapping[str, Any]]
) -> Columns:
    """Probabilities of the test rows by one of the calibrators over the model's logits."""
    if name == "raw model":
        return {task: 1 / (1 + np.exp(-logit)) for task, logit in tested[0].items()}
    contexts = ("position", "device") if name in PER_SEGMENT else ()
    if name == EXACT:
        model = IsotonicCalibrator(("task", *CONTEXTS)).fit(*_stacked(*fitted))
        column = model.predict_proba(_stacked(*tested)[0])[:, 1]
        return dict(zip(TWELVE, np.split(column, len(TWELVE)), strict=True))
    make: Any = PlattCalibrator if name.startswith("Platt") else PavaCalibrator
    out = {}
    for task in TWELVE:
        before, after = (
            {"score": logits[task], **{key: columns[key] for key in contexts}} for logits, columns in (fitted, tested)
        )
        out[task] = make(contexts).fit(before, fitted[1][task]).predict_proba(after)[:, 1]
    return out


def _stacked(logits: Columns, columns: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    # all tasks one below the other, as a frame and its labels
    rows = len(columns["position"])
    frame = {
        "score": np.concatenate([logits[task] for task in TWELVE]),
        "task": np.repeat(np.array(TWELVE), rows),
        **{key: np.tile(columns[key], len(TWELVE)) for key in CONTEXTS},
    }
    return frame, np.concatenate([columns[task] for task in TWELVE])


def judged(probs: Columns, columns: Mapping[str, Any]) -> Numbers:
    """Mean NE over tasks, and mean abs(expected/observed rate - 1) over every (task, position, device).

    The expected rate is compared with the true one, so that a rare event's chance is no part of the error.
    """
    code = columns["position"] * CONTEXTS["device"] + columns["device"]
    entropy, errors = [], []
    for task in TWELVE:
        entropy.append(metrics.normalised_entropy(columns[task], probs[task]))
        true, expected = (np.bincount(code, column) for column in (columns[f"prob_{task}"], probs[task]))
        errors.append(np.abs(true / expected - 1))
    return {"ne": float(np.mean(entropy)), "oe": float(np.mean(errors))}


def value_ndcg(probs: Columns, columns: Mapping[str, Any]) -> float:
    """How the value function ranks: nDCG over the twelve probabilities, against the same over the true relevances."""
    score, truth = (
        sum((-1.0 if task in FALLING else 1.0) * one[task] for task in TWELVE)
        for one in (probs, {task: columns[f"relevance_{task}"] for task in TWELVE})
    )
    gain = np.asarray(truth) - float(np.min(truth))
    return metrics.ndcg(gain, np.asarray(score), columns["session"], gain="linear")


def summarise(finished: Sequence[Finished]) -> Result:
    """Calibration and ranking of every method, differences paired by seed."""
    rows = [
        Row(name, what, estimate(by_seed(finished, "all", f"{name} {key}")), digits=4)
        for name in METHODS
        for key, what in (("ne", "mean NE of 12 tasks"), ("oe", "mean abs(O/E - 1) by task, position, device"))
    ]
    rows += [
        Row(
            name, "nDCG@10 of the value function, true value", estimate(by_seed(finished, "all", f"{name} ndcg")), "", 4
        )
        for name in ("raw model", *PER_TASK, "inference head")
    ]
    rows += [Row(name, "models beside the ranker", certain(count), digits=0) for name, count in METHODS.items()]
    return Result(tuple(rows), _parts(finished), _series(finished), _note(finished))


def _minus(finished: Sequence[Finished], one: str, other: str, key: str) -> Estimate:
    return estimate(by_seed(finished, "all", f"{one} {key}") - by_seed(finished, "all", f"{other} {key}"))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    flat = [
        Part(f"{name} is flat or worse in ranking", _minus(finished, name, "raw model", "ndcg"), below=FLAT)
        for name in PER_TASK
    ]
    better = [
        Part(f"the {ours} has lower {what} than {name}", _minus(finished, ours, name, key), below=0)
        for ours in (EXACT, HEAD)
        for name in (*PER_TASK, *PER_SEGMENT)
        for key, what in (("ne", "NE"), ("oe", "O/E error"))
    ]
    ranks = Part("the inference head ranks better", _minus(finished, "inference head", "raw model", "ndcg"), above=0)
    return (*flat, *better, ranks)


def _note(finished: Sequence[Finished]) -> str:
    def gaps(ours: str) -> str:
        found = {name: _minus(finished, ours, name, "ne") for name in PER_SEGMENT}
        return ", ".join(
            f"{gap.value:+.4f} [{gap.lower:+.4f}, {gap.upper:+.4f}] from {name}" for name, gap in found.items()
        )

    return (
        f"Of one calibrator per task and context there are 360. The exact layer's NE is {gaps(EXACT)}. That of the "
        "isotonic head, which is learned inside the model and sums the effects of position and device, is "
        f"{gaps(HEAD)}."
    )


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    found = {
        (name, key): estimate(by_seed(finished, "all", f"{name} {key}")) for name in METHODS for key in ("ne", "oe")
    }
    return {
        "method": [name for name, _ in found],
        "metric": ["NE" if key == "ne" else "abs(O/E - 1)" for _, key in found],
        **{key: [getattr(one, key) for one in found.values()] for key in ("value", "lower", "upper")},
    }


def chart(series: dict[str, Any]) -> Any:
    """NE and O/E error of every method with intervals."""
    return intervals(records(series), y="method", panel="metric", order=list(METHODS), ours=EXACT)
