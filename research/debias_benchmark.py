"""Debiasing against every baseline: two click models, three loggers, nDCG@10 against the true grade.

Each unit draws a log of 15,000 lists of 10, trains every method on its clicks, and judges the rankings on lists shown
by another policy. Position bias can only harm where the logger ranked by something else than relevance:

    spurious                  by a near-irrelevant feature that is among the features, with chance
    spurious, deterministic   the same, sorted
    informed                  by relevance the features lack: there the naive model gains by the bias

All methods share the network, the optimiser and the number of steps; each has the rate of its bias parameters that
was best on other seeds, see `tune`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer import metrics
from isolayer.debias import (
    DROP_RATES,
    PAL,
    AdditiveTower,
    DualHead,
    DualLearning,
    InversePropensity,
    Naive,
    PositionAsFeature,
    PositionDropout,
    em_propensity,
    harvest,
    post_hoc,
)
from isolayer.debias.diagnose import after_training
from isolayer.nn.rates import parameter_groups
from isolayer.simulate import debias_feed
from research.charts import intervals
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
    units_of,
)

CLAIM = "The isotonic head takes position out of relevance, where position dropout does not."
PAPER = "section 5, tables 3 and 4; no simulation with known relevance"

SETTINGS: dict[str, tuple[Any, Any, bool]] = {
    "PBM, spurious": ("position", "spurious", False),
    "PBM, spurious, deterministic": ("position", "spurious", True),
    "trust, spurious": ("trust", "spurious", False),
    "trust, spurious, deterministic": ("trust", "spurious", True),
    "PBM, informed": ("position", "informed", False),
    "trust, informed": ("trust", "informed", False),
}
SPURIOUS = tuple(name for name in SETTINGS if "spurious" in name)
INFORMED = tuple(name for name in SETTINGS if "informed" in name)
THROUGHPUT = "throughput"

LISTS, QUICK_LISTS, LENGTH = 15_000, 5_000, 10  # traffic is as long as the log, so that the diagnosis has its power
TEST_LISTS = 4_000
CONTEXTS = {"position": LENGTH, "device": 3}
HIDDEN, WIDTH, EMBEDDING = 64, 32, 4
RATE, EPOCHS, BATCH_LISTS = 1e-2, 5, 100
TUNING_SEEDS = (100, 101)
TRIED_RATES = (3, 10, 30, 100, 300)  # times the rate of the backbone
# The best of TRIED_RATES, and with them of DROP_RATES, for each click model, by `tune`.
BIAS_RATE = {
    "PBM": {
        "position as feature": 100,
        "position dropout": 10,
        "additive tower": 100,
        "PAL": 100,
        "DLA": 10,
        "dual head": 10,
    },
    "trust": {
        "position as feature": 100,
        "position dropout": 300,
        "additive tower": 100,
        "PAL": 30,
        "DLA": 10,
        "dual head": 10,
    },
}
DROP = {"PBM": 0.05, "trust": 0.05}
BASELINES = (
    "position as feature",
    "position dropout",
    "additive tower",
    "PAL",
    "IPS, harvested",
    "IPS, EM",
    "DLA",
)
OURS, ADVISED = "dual head", "dual head, advised alpha"


Model = Naive | DualHead
Maker = Callable[[], Model]


class Rows(NamedTuple):
    """A log as tensors, lists one after the other."""

    columns: dict[str, NDArray[Any]]
    features: Tensor  # [rows, features]
    context: dict[str, Tensor]  # position, device, session
    labels: dict[str, Tensor]

    @classmethod
    def of(cls, columns: dict[str, NDArray[Any]], label: str = "click") -> Rows:
        """The simulator's columns as tensors."""
        context = {name: torch.from_numpy(columns[name]).long() for name in (*CONTEXTS, "session")}
        return cls(
            columns, torch.from_numpy(columns["features"]), context, {"click": torch.from_numpy(columns[label]).float()}
        )


class Cell(NamedTuple):
    """What one unit learns from and is judged on."""

    train: Rows
    test: Rows  # shown in random order
    traffic: Rows  # more of what the logger showed


def draw(setting: str, seed: int, lists: int = LISTS) -> Cell:
    """The logs of one setting."""
    bias, logger, deterministic = SETTINGS[setting]
    feed = debias_feed(bias, logger, deterministic=deterministic, seed=seed)
    rng = np.random.default_rng([seed, 1])
    columns = feed.log(lists, seed=3 * seed)
    columns["unbiased"] = rng.random(len(columns["click"])) < columns["relevance_click"]
    test = feed.log(TEST_LISTS, seed=3 * seed + 1, policy=lambda x: rng.random(len(x)))
    return Cell(Rows.of(columns), Rows.of(test), Rows.of(feed.log(lists, seed=3 * seed + 2)))


def network(inputs: int) -> nn.Sequential:
    """The backbone of every method, to ``[batch, WIDTH]``."""
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.ReLU())


def fit(model: Model, rows: Rows, *, seed: int, bias_rate: float = 10) -> Model:
    """Train in place: Adam, one rise and fall of the rate, batches of whole lists; in evaluation mode at the end."""
    generator = torch.Generator().manual_seed(seed)
    groups = parameter_groups(model, RATE, curve_lr=bias_rate)
    optimiser = torch.optim.Adam(groups)
    lists = len(rows.features) // LENGTH
    steps = EPOCHS * (lists // BATCH_LISTS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, [group["lr"] for group in groups], total_steps=steps, pct_start=0.1
    )
    place = torch.arange(LENGTH)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(lists, generator=generator)[: lists - lists % BATCH_LISTS].split(BATCH_LISTS):
            row = (chosen.unsqueeze(1) * LENGTH + place).view(-1)
            context = {name: ids.index_select(0, row) for name, ids in rows.context.items()}
            outputs = model(rows.features.index_select(0, row), context)
            loss = model.loss(outputs, {"click": rows.labels["click"].index_select(0, row)})
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def dual_head(inputs: int, *, alpha: float = 0.25, anchor: Any = "detached", wiring: Any = "curve") -> DualHead:
    """The paper's model as we wire it; beta is what alpha leaves."""
    return DualHead(
        network(inputs),
        width=WIDTH,
        tasks=("click",),
        contexts=CONTEXTS,
        alpha=alpha,
        beta=1 - alpha,
        anchor=anchor,
        wiring=wiring,
    )


def makers(train: Rows, *, drop: float = 0.15) -> dict[str, Maker]:
    """Every method but those that need another trained first, by name."""
    inputs = train.features.shape[1]
    wide = inputs + EMBEDDING * len(CONTEXTS)
    item, position, click = (train.columns[name] for name in ("item", "position", "click"))

    def weighted(estimated: Callable[[], NDArray[np.float64]]) -> Model:
        return InversePropensity(network(inputs), width=WIDTH, propensity=estimated().tolist())

    def harvested() -> NDArray[np.float64]:
        return harvest(item, position, click).examination(LENGTH)

    def by_em() -> NDArray[np.float64]:
        return em_propensity(train.columns["features"], position, click, positions=LENGTH)

    return {
        "naive": lambda: Naive(network(inputs), width=WIDTH),
        "position as feature": lambda: PositionAsFeature(network(wide), width=WIDTH, contexts=CONTEXTS, dim=EMBEDDING),
        "position dropout": lambda: PositionDropout(
            network(wide), width=WIDTH, contexts=CONTEXTS, dim=EMBEDDING, drop=drop
        ),
        "additive tower": lambda: AdditiveTower(network(inputs), width=WIDTH, contexts=CONTEXTS),
        "PAL": lambda: PAL(network(inputs), width=WIDTH, contexts=CONTEXTS),
        "IPS, harvested": partial(weighted, harvested),
        "IPS, EM": partial(weighted, by_em),
        "DLA": lambda: DualLearning(network(inputs), width=WIDTH, contexts=CONTEXTS),
        "dual head": lambda: dual_head(inputs),
        "dual head, joint alpha .25": lambda: dual_head(inputs, anchor="joint"),
        "two parallel heads": lambda: dual_head(inputs, anchor="joint", wiring="parallel"),
    }


def trained(make: Maker, rows: Rows, *, seed: int, bias_rate: float = 10) -> Model:
    """Make a model from the seed and train it."""
    torch.manual_seed(seed)
    return fit(make(), rows, seed=seed, bias_rate=bias_rate)


def ndcg(model: Model, rows: Rows) -> float:
    """nDCG@10 of what would be served against the true grade."""
    logit = model.serving()(rows.features)["click"].numpy()
    return metrics.ndcg(rows.columns["grade"], logit, rows.columns["session"], k=10)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every setting under every seed, and a measure of speed."""
    names = (*SETTINGS, THROUGHPUT)
    costs = (5.0, 8.0) if quick else (5.0, 25.0)
    return units_of(names, quick=quick, seeds=seeds or 10, cost=lambda name: costs[name != THROUGHPUT])


def run_unit(unit: Unit) -> Numbers:
    """Rank by every method, calibration of what is served, and the advice, in one setting; or the speed."""
    torch.set_num_threads(1)
    if unit.setting == THROUGHPUT:
        return {"ratio": throughput(unit.seed)}
    seed, clicks = unit.seed, unit.setting.split(",")[0]
    cell = draw(unit.setting, seed, QUICK_LISTS if unit.quick else LISTS)
    models = {
        name: trained(make, cell.train, seed=seed, bias_rate=BIAS_RATE[clicks].get(name, 10))
        for name, make in makers(cell.train, drop=DROP[clicks]).items()
    }
    unbiased = cell.train._replace(labels={"click": torch.from_numpy(cell.train.columns["unbiased"]).float()})
    models["unbiased labels"] = trained(makers(unbiased)["naive"], unbiased, seed=seed)
    advice = advised(models[OURS], cell.traffic)
    models[ADVISED] = models[OURS]
    if advice > 0:
        make = partial(dual_head, cell.train.features.shape[1], alpha=advice, anchor="joint")
        models[ADVISED] = trained(make, cell.train, seed=seed)
    numbers: Numbers = {f"ndcg {name}": ndcg(model, cell.test) for name, model in models.items()}
    return numbers | {"advised alpha": advice} | calibration(models, cell, seed, compare=unit.first)


def advised(model: Model, rows: Rows) -> float:
    """The joint alpha that the diagnosis of a trained model advises; 0 is no warning."""
    with torch.no_grad():
        heads = model(rows.features, rows.context)["click"]
    context = {name: rows.columns[name] for name in CONTEXTS}
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
        bare = dual_head(cell.train.features.shape[1])
        bare.alpha = {"click": 0.0}
        torch.manual_seed(seed)
        bare.load_state_dict(dual_head(cell.train.features.shape[1]).state_dict())
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
    """Shares of the gap closed, differences to every baseline, calibration, advice and speed, over seeds."""
    methods = [key.removeprefix("ndcg ") for key in finished[0].numbers if key.startswith("ndcg ")]
    means = {
        (name, method): estimate(by_seed(finished, name, f"ndcg {method}")) for name in SETTINGS for method in methods
    }
    rows = [Row(f"{name}: {method}", "nDCG@10", mean, digits=4) for (name, method), mean in means.items()]
    parts = []
    for name in SPURIOUS:
        shares = {method: estimate(closed(finished, name, method)) for method in methods}
        rows += [Row(f"{name}: {method}", "share of the gap closed", share) for method, share in shares.items()]
        parts.append(Part(f"the dual head closes at least 90% of the gap ({name})", shares[OURS], above=0.9))
        parts += [_beats(finished, name, baseline) for baseline in BASELINES]
        parts.append(Part(f"no warning ({name})", _share(finished, name, fires=False), above=0.999))
    for name in INFORMED:
        loss = by_seed(finished, name, "ndcg naive") - by_seed(finished, name, f"ndcg {ADVISED}")
        parts.append(Part(f"the advised alpha costs less than .005 nDCG ({name})", estimate(loss), below=0.005))
        parts.append(Part(f"the warning fires ({name})", _share(finished, name, fires=True), above=0.999))
    for name in SETTINGS:
        ratio = by_seed(finished, name, f"ece {OURS}") / by_seed(finished, name, "ece naive")
        rows.append(Row(name, "ECE of what is served over that of naive", estimate(ratio)))
        for method in ("naive", OURS, "dual head, by gradient", "platt", "isotonic"):
            for metric in ("ece", "smooth ece"):
                value = estimate(by_seed(finished, name, f"{metric} {method}"))
                rows.append(Row(f"{name}: {method}", metric.replace("ece", "ECE"), value, digits=4))
        parts.append(Part(f"what is served is calibrated like naive ({name})", estimate(ratio), below=1.2))
    same = [one.numbers["same order"] for one in finished if "same order" in one.numbers]
    parts.append(Part("the anchor leaves the ranking as it is, to the bit", _all(same), above=0.999))
    speed = estimate(by_seed(finished, THROUGHPUT, "ratio"))
    rows.append(Row("512-256-128 backbone", "training rows per second over naive", speed))
    parts.append(Part("training is at most 15% slower than naive", speed, above=0.85))
    series = [{"setting": name, "method": method, **mean._asdict()} for (name, method), mean in means.items()]
    return Result(tuple(rows), tuple(parts), {"ndcg": series}, note="Platt and isotonic regression rank like naive.")


def chart(series: dict[str, Any]) -> Any:
    """How every method ranks in every setting, with intervals over seeds."""
    rows = series["ndcg"]
    order = list(dict.fromkeys(row["method"] for row in rows))
    return intervals(rows, y="method", panel="setting", order=order, title="nDCG@10, true grade", columns=3, ours=OURS)


def closed(finished: Sequence[Finished], setting: str, method: str) -> NDArray[np.float64]:
    """Share of the way from naive to unbiased labels that a method goes, ``[seeds]``."""
    naive, best, ours = (by_seed(finished, setting, f"ndcg {name}") for name in ("naive", "unbiased labels", method))
    return np.asarray((ours - naive) / (best - naive))


def _beats(finished: Sequence[Finished], setting: str, baseline: str) -> Part:
    gain = by_seed(finished, setting, f"ndcg {OURS}") - by_seed(finished, setting, f"ndcg {baseline}")
    return Part(f"above {baseline} ({setting})", estimate(gain), above=0.0)


def _share(finished: Sequence[Finished], setting: str, *, fires: bool) -> Estimate:
    return _all([float((alpha > 0) == fires) for alpha in by_seed(finished, setting, "advised alpha")])


def _all(outcomes: Sequence[float]) -> Estimate:
    mean = float(np.mean(outcomes))
    return Estimate(mean, mean, mean, len(outcomes))


def tune(clicks: str) -> dict[str, float]:
    """Mean nDCG of every method at every tried rate of its bias parameters, and of position dropout at every drop rate.

    ``BIAS_RATE`` and ``DROP`` are the best for a click model over both of its spurious loggers and ``TUNING_SEEDS``,
    which are none of those reported.
    """
    cells = [(seed, draw(name, seed)) for name in SPURIOUS if name.startswith(clicks) for seed in TUNING_SEEDS]
    found = dict[str, float]()
    for method in BIAS_RATE[clicks]:
        for rate, drop in product(TRIED_RATES, DROP_RATES if method == "position dropout" else (0.15,)):
            scores = [
                ndcg(trained(makers(cell.train, drop=drop)[method], cell.train, seed=seed, bias_rate=rate), cell.test)
                for seed, cell in cells
            ]
            found[f"{method}, rate {rate}" + f", drop {drop}" * (method == "position dropout")] = float(np.mean(scores))
    return found
