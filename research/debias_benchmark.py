"""Debiasing against every method of the field: six click models, four loggers, nDCG@10 against the true grade.

Each unit draws a log of 15,000 lists of 10, trains every method on its clicks, and judges the rankings on lists shown
by another policy. Position bias can only harm where the logger ranked by something else than relevance:

    spurious                  by a near-irrelevant feature that is among the features, with chance
    spurious, deterministic   the same, sorted
    popular                   by popularity, which is half relevance
    informed                  by relevance the features lack: there the naive model gains by the bias

The dual head has its defaults in every world. Every other method has, for each click model, the best of six settings on
other seeds: `python -m research debias-tuning`. Variants of the dual head are in `debias_variants`.

What is served is judged by its ECE on further traffic of the logger, as a ratio to that of the naive model after the
same refit: both are fitted to the training rows once more, the naive model by isotonic regression of its scores. The
ratio to the naive model without a refit is among the rows. Ratios are averaged over seeds on the log scale: since an
ECE is noisy, the mean of ratios of two errors that are alike would be above 1, whichever of them is divided by the
other. This was changed after a first report.

Shares of logs have the exact interval of as many trials: six that all agree are the fewest that leave out a half.
The rate of training steps is timed with the paper's joint anchor, three tasks and a wider network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from isolayer import metrics
from isolayer.debias import DualHead, Naive, post_hoc
from isolayer.debias.diagnose import after_training
from isolayer.nn.rates import parameter_groups
from isolayer.simulate import Feed, debias_feed
from isolayer.simulate.session_behaviours import Contextual
from research import result
from research.charts import intervals
from research.debias_methods import (
    CONTEXTS,
    DECAY,
    METHODS,
    QUERY,
    Model,
    Rows,
    dual_head,
    fit,
    ndcg,
    setting_of,
    trained,
)
from research.result import (
    Estimate,
    Finished,
    Numbers,
    Part,
    Result,
    Row,
    Unit,
    by_seed,
    estimate,
    first_seed,
    units_of,
)

NOTE = (
    "Platt scaling is a monotone map of one score, which changes no order within a list; so is isotonic regression, "
    "except that its steps give some items the same score. The ECE of bins is above 0 for true probabilities too, "
    "which draws the ratios towards 1; how much of it that is here, we have not measured. Ratios of ECE are geometric "
    "means over seeds with intervals on the log scale."
)
CLAIM = "The isotonic head takes position out of relevance, where position dropout does not."
PAPER = "section 5, tables 3 and 4; no simulation with known relevance"

CLICKS = {"PBM": "position", "trust": "trust", "DBN": "cascade", "DCM": "dependent", "contextual": "contextual"}
SETTINGS: dict[str, tuple[Any, Any, bool]] = {
    f"{clicks}, spurious{', deterministic' * sorted_}": (bias, "spurious", sorted_)
    for clicks, bias in CLICKS.items()
    for sorted_ in (False, True)
}
MAIN = tuple(SETTINGS)  # run under all seeds, the others under fewer
SETTINGS |= {
    "mixture, spurious": ("mixture", "spurious", False),
    "PBM, popular": ("position", "popular", False),
    "PBM, informed": ("position", "informed", False),
    "trust, informed": ("trust", "informed", False),
}
QUICK_SETTINGS = ("PBM, spurious", "DBN, spurious", "trust, informed")
THROUGHPUT = "throughput"
SEEDS, FEWER_SEEDS = 10, 6

LISTS, QUICK_LISTS = 15_000, 1_000  # traffic is as long as the log, so that the diagnosis has its power
TEST_LISTS = 4_000
OURS, UNBIASED = "dual head", "unbiased labels"
BEHIND = 0.002  # as much as a joint loss may be behind a detached anchor in `debias_variants`
REFITTED = "isotonic"  # the naive model with isotonic regression, fitted to the rows that ours is refitted to
HALF = 0.5  # of the logs: a warning that fires in more of them than this, or a false one in fewer
OTHERS = tuple(method for method in METHODS if not method.startswith(OURS))


class Cell(NamedTuple):
    """What one unit learns from and is judged on."""

    train: Rows
    test: Rows  # shown in random order
    traffic: Rows  # more of what the logger showed


def draw(setting: str, seed: int, lists: int = LISTS) -> Cell:
    """The logs of one setting."""
    bias, logger, deterministic = SETTINGS[setting]
    return drawn(debias_feed(bias, logger, deterministic=deterministic, seed=seed), seed, lists)


def drawn(feed: Feed, seed: int, lists: int = LISTS) -> Cell:
    """The logs of a feed."""
    contexts = CONTEXTS | (QUERY if isinstance(feed.behaviour, Contextual) else {})
    rng = np.random.default_rng([seed, 1])
    columns = feed.log(lists, seed=3 * seed)
    columns["unbiased"] = rng.random(len(columns["click"])) < columns["relevance_click"]
    test = feed.log(TEST_LISTS, seed=3 * seed + 1, policy=lambda x: rng.random(len(x)))
    logs = (columns, test, feed.log(lists, seed=3 * seed + 2))
    return Cell(*(Rows.of(log, contexts) for log in logs))


def clicks_of(setting: str) -> str:
    """The click model of a setting, by which methods are tuned.

    >>> clicks_of("PBM, spurious, deterministic")
    'PBM'
    """
    return setting.split(",")[0]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every setting under every seed, and a measure of speed; informed and popular loggers and mixtures under fewer."""
    names = (*(QUICK_SETTINGS if quick else SETTINGS), THROUGHPUT)
    costs = (5.0, 8.0) if quick else (5.0, 45.0)
    every = units_of(names, quick=quick, seeds=seeds or SEEDS, cost=lambda name: costs[name != THROUGHPUT])
    fewer = first_seed(quick=quick) + FEWER_SEEDS
    return [unit for unit in every if unit.seed < fewer or unit.setting in MAIN]


def run_unit(unit: Unit) -> Numbers:
    """Rank by every method, calibration of what is served, and the diagnosis, in one setting; or the speed."""
    torch.set_num_threads(1)
    if unit.setting == THROUGHPUT:
        return {"ratio": throughput(unit.seed)}
    seed, clicks = unit.seed, clicks_of(unit.setting)
    cell = draw(unit.setting, seed, QUICK_LISTS if unit.quick else LISTS)
    models = {name: trained(name, cell.train, seed=seed, setting=setting_of(clicks, name)) for name in METHODS}
    unbiased = cell.train._replace(labels={"click": torch.from_numpy(cell.train.columns["unbiased"]).float()})
    models[UNBIASED] = trained("naive", unbiased, seed=seed, setting=setting_of(clicks, "naive") | {"decay": DECAY})
    advice = advised(models[OURS], cell.traffic)
    numbers: Numbers = {f"ndcg {name}": ndcg(model, cell.test) for name, model in models.items()}
    return numbers | {"advised alpha": advice} | calibration(models, cell, seed, compare=unit.first)


def advised(model: Model, rows: Rows) -> float:
    """The joint alpha that the diagnosis of a trained model advises; 0 is no warning."""
    with torch.no_grad():
        heads = model(rows.features, rows.context)["click"]
    context = {name: rows.columns[name] for name in rows.contexts}
    diagnosis = after_training(
        rows.columns["click"],
        torch.sigmoid(heads.observed_logit.double()).numpy(),
        heads.relevance_logit.double().numpy(),
        context,
        session=rows.columns["session"],
        features=rows.columns["features"],
    )
    return diagnosis.alpha


def calibration(models: Mapping[str, Model], cell: Cell, seed: int, *, compare: bool) -> Numbers:
    """ECE on logged traffic of what is served, and whether the detached anchor left every relevance bit as it was.

    For the last, which ``compare`` asks for, the dual head is trained once more without the anchor.
    """
    naive, ours = models["naive"], models[OURS]
    assert isinstance(naive, Naive)
    assert isinstance(ours, DualHead)
    served = {"naive": naive.serving(), "dual head, by gradient": ours.serving()}
    served[OURS] = ours.refit_served(cell.train.features, cell.train.labels).serving()
    methods: tuple[Literal["platt", "isotonic"], ...] = ("platt", "isotonic")
    for method in methods:
        served[method] = post_hoc(naive, cell.train.features, cell.train.labels, method=method)
    outputs = {name: model(cell.traffic.features) for name, model in served.items()}
    click = cell.traffic.columns["click"]
    probs = {name: output["click_prob"].double().numpy() for name, output in outputs.items()}
    numbers: Numbers = {f"ece {name}": metrics.ece(click, prob) for name, prob in probs.items()}
    numbers |= {f"smooth ece {name}": metrics.smooth_ece(click, prob) for name, prob in probs.items()}
    if compare:
        bare = dual_head(cell.train)
        bare.alpha = {"click": 0.0}
        torch.manual_seed(seed)
        bare.load_state_dict(dual_head(cell.train).state_dict())
        again = fit(bare, cell.train, seed=seed).serving()(cell.traffic.features)["click"]
        numbers["same order"] = float(torch.equal(again, outputs[OURS]["click"]))
    return numbers


def throughput(seed: int, *, rows: int = 4096, steps: int = 30) -> float:
    """Training rows per second of the dual head over those of the naive model: 3 tasks, a 512-256-128 backbone."""
    torch.manual_seed(seed)
    tasks = ("click", "skip", "long_dwell")
    features = torch.randn(rows, 64)
    context = {"position": torch.randint(0, 20, (rows,)), "device": torch.randint(0, 3, (rows,))}
    labels = {task: (torch.rand(rows) < 0.1).float() for task in tasks}

    def backbone() -> nn.Sequential:
        sizes = (64, 512, 256, 128)
        layers = [(nn.Linear(one, two), nn.ReLU()) for one, two in pairwise(sizes)]
        return nn.Sequential(*(layer for pair in layers for layer in pair))

    models: list[Model] = [
        Naive(backbone(), width=128, tasks=tasks),
        DualHead(backbone(), width=128, tasks=tasks, anchor="joint"),
    ]
    optimisers = [torch.optim.Adam(parameter_groups(model, 1e-3)) for model in models]
    seconds = np.zeros((steps, 2))
    for step in range(steps):  # in turns, so that whatever else the machine does falls on both
        for number, (model, optimiser) in enumerate(zip(models, optimisers, strict=True)):
            start = time.perf_counter()
            optimiser.zero_grad(set_to_none=True)
            model.loss(model(features, context), labels).backward()
            optimiser.step()
            seconds[step, number] = time.perf_counter() - start
    naive, dual = np.median(seconds[5:], axis=0)
    return float(naive / dual)


def summarise(finished: Sequence[Finished]) -> Result:
    """Shares of the gap closed, differences to other methods, calibration, warnings and speed, over seeds."""
    present = [name for name in SETTINGS if any(one.unit.setting == name for one in finished)]
    methods = [*METHODS, UNBIASED]
    means = {
        (name, method): estimate(by_seed(finished, name, f"ndcg {method}")) for name in present for method in methods
    }
    rows = [Row(f"{name}: {method}", "nDCG@10", mean, digits=4) for (name, method), mean in means.items()]
    parts = list[Part]()
    for name in present:
        more, said = _ranking(finished, name, methods) if "spurious" in name else _informed(finished, name)
        more_of_errors, alike = _calibrated(finished, name)
        rows += [*more, *more_of_errors]
        parts += [*said, alike]
    parts.append(_to_the_bit(finished))
    speed = estimate(by_seed(finished, THROUGHPUT, "ratio"))
    rows.append(Row("512-256-128 backbone, joint anchor", "training rows per second over naive", speed))
    parts.append(Part("training with the joint anchor is at most 15% slower than naive", speed, above=0.85))
    series = [{"setting": name, "method": method, **mean._asdict()} for (name, method), mean in means.items()]
    per_seed = {
        f"{name}: {method}": by_seed(finished, name, f"ndcg {method}").tolist()
        for name in present
        for method in methods
    }
    return Result(tuple(rows), tuple(parts), {"ndcg": series, "by seed": per_seed}, NOTE)


def _ranking(finished: Sequence[Finished], name: str, methods: Sequence[str]) -> tuple[list[Row], list[Part]]:
    """How far every method closes the gap in a world where bias harms, and what is said of ours."""
    shares = {method: estimate(closed(finished, name, method)) for method in methods}
    rows = [Row(f"{name}: {method}", "share of the gap closed", share) for method, share in shares.items()]
    best = max(OTHERS, key=lambda method: shares[method].value)
    behind = estimate(by_seed(finished, name, f"ndcg {OURS}") - by_seed(finished, name, f"ndcg {best}"))
    rows.append(Row(f"{name}: {OURS}", f"nDCG@10 above the best other method, {best}", behind, digits=4))
    parts = [
        Part(f"the dual head closes at least 92% of the gap ({name})", shares[OURS], above=0.92),
        Part(f"it is at most {BEHIND} nDCG behind the best other method ({name})", behind, above=-BEHIND),
        Part(f"a false warning comes in fewer than half of the logs ({name})", _warned(finished, name), below=HALF),
    ]
    return rows, parts + [_beats(finished, name, baseline) for baseline in OTHERS]


def _informed(finished: Sequence[Finished], name: str) -> tuple[list[Row], list[Part]]:
    """What debiasing comes to where the logger knew something of relevance; `advised_alpha` judges the advice."""
    naive = by_seed(finished, name, "ndcg naive")
    gain = estimate(by_seed(finished, name, f"ndcg {OURS}") - naive)
    parts = [
        Part(f"the dual head ranks no worse than naive ({name})", gain, above=0.0),
    ]
    if "informed" in name:
        says = f"the warning fires in more than half of the logs ({name})"
        parts.append(Part(says, _warned(finished, name), above=HALF))
    return [], parts


def _calibrated(finished: Sequence[Finished], name: str) -> tuple[list[Row], Part]:
    """ECE of what is served against that of the naive model, refitted alike and as it was trained."""
    ours, *others = (by_seed(finished, name, f"ece {model}") for model in (OURS, REFITTED, "naive"))
    alike, plain = (result.geometric_mean(ours / other) for other in others)
    rows = [
        Row(name, "ECE of what is served over that of naive with the same refit", alike),
        Row(name, "ECE of what is served over that of naive without a refit", plain),
        *_errors(finished, name),
    ]
    says = f"what is served is calibrated like naive with the same refit ({name})"
    return rows, Part(says, alike, below=1.2)


def _to_the_bit(finished: Sequence[Finished]) -> Part:
    """In how many of the logs that were checked the anchor changed a bit of what is ranked by; a count, no estimate."""
    same = [one.numbers["same order"] for one in finished if "same order" in one.numbers]
    says = f"the anchor leaves the ranking as it is, to the bit (in how many of {len(same)} logs it does not)"
    return Part(says, result.certain(len(same) - sum(same)), below=1)


def _errors(finished: Sequence[Finished], name: str) -> list[Row]:
    """Errors of calibration of what is served."""
    return [
        Row(
            f"{name}: {method}",
            metric.replace("ece", "ECE"),
            estimate(by_seed(finished, name, f"{metric} {method}")),
            digits=4,
        )
        for method in ("naive", OURS, "dual head, by gradient", "platt", "isotonic")
        for metric in ("ece", "smooth ece")
    ]


def chart(series: dict[str, Any]) -> Any:
    """How every method ranks in every setting, with intervals over seeds."""
    rows = series["ndcg"]
    order = list(dict.fromkeys(row["method"] for row in rows))
    return intervals(rows, y="method", panel="setting", order=order, title="nDCG@10, true grade", columns=3, ours=OURS)


def closed(finished: Sequence[Finished], setting: str, method: str) -> NDArray[np.float64]:
    """Share of the way from naive to unbiased labels that a method goes, ``[seeds]``."""
    naive, best, ours = (by_seed(finished, setting, f"ndcg {name}") for name in ("naive", UNBIASED, method))
    return np.asarray((ours - naive) / (best - naive))


def _beats(finished: Sequence[Finished], setting: str, baseline: str) -> Part:
    gain = by_seed(finished, setting, f"ndcg {OURS}") - by_seed(finished, setting, f"ndcg {baseline}")
    return Part(f"above {baseline} ({setting})", estimate(gain), above=0.0)


def _warned(finished: Sequence[Finished], setting: str) -> Estimate:
    """In what share of the logs of a setting the diagnosis warns."""
    return result.proportion(by_seed(finished, setting, "advised alpha") > 0)
