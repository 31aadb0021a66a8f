"""Position Action Prediction: which probability fits traffic, when the position is not known yet?

One dual head is trained on a log, and a tower beside it predicts where an item would be shown. What is served, without
a position, is judged on more traffic of the same logger: by its log loss, its calibration over all rows (ECE), and its
calibration by the feature that the logger ranked by, which tells where items are shown.

    served curve                  one monotone curve over relevance
    probabilities, P(c | x)       the probability at each position, averaged by the predicted positions
    embeddings, P(c | x)          the curve of the average embedding of positions
    probabilities, P(c | r)       the same two, with positions predicted from relevance alone, as the paper writes it
    embeddings, P(c | r)
    network, no position          a network of the features, trained on the clicks: it is never told a position

What is served knows the features, and traffic is that of the same logger, so the last of these learns what the others
go a long way round for: a chance averaged over where the logger would show an item. It was added after a first report,
since the others could only be compared with a curve that does not see the features; the seeds reported now are others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from isolayer import metrics
from isolayer.debias import DualHead, Naive, PositionPredictor
from isolayer.simulate import debias_feed
from research.charts import intervals
from research.loop import WIDTH, as_log, network, train
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "Predicting the position, and soft-attention pooling over position embeddings, bridges the exposure gap between "
    "training and inference."
)
PAPER = "section 6, future work; no figures"
SEEDS = 6
SEEN = 100  # seeds that were reported before the network without positions was there
WORLDS: dict[str, tuple[Any, bool]] = {
    f"{name}{', deterministic' * sorted_}": (bias, sorted_)
    for name, bias in {"position bias": "position", "trust bias": "trust"}.items()
    for sorted_ in (False, True)
}
CONTEXTS = {"position": 10, "device": 3}
CURVE, PAPERS, DEFAULT = "served curve", "embeddings, P(c | r)", "probabilities, P(c | x)"
EMBEDDINGS_X, PROBABILITIES_R = "embeddings, P(c | x)", "probabilities, P(c | r)"
NO_POSITION = "network, no position"
METHODS = (CURVE, DEFAULT, EMBEDDINGS_X, PROBABILITIES_R, PAPERS, NO_POSITION)
POOLED = {
    EMBEDDINGS_X: "pooling embeddings by positions predicted from the features",
    DEFAULT: "averaging probabilities by these",
    PAPERS: "pooling embeddings by positions predicted from relevance alone, as the paper writes it,",
    PROBABILITIES_R: "averaging probabilities by those",
}
_FROM_X = "by positions from the features have a lower log loss than"
PARTS = (  # what is said, by which figure, and of which two methods the first has the lower one
    ("the paper's pooling has a lower log loss than the served curve", "loss", PAPERS, CURVE),
    ("the paper's pooling is closer by the logger's feature than the served curve", "by feature", PAPERS, CURVE),
    (f"embeddings pooled {_FROM_X} the served curve", "loss", EMBEDDINGS_X, CURVE),
    (f"embeddings pooled {_FROM_X} by those from relevance", "loss", EMBEDDINGS_X, PAPERS),
    (f"probabilities averaged {_FROM_X} by those from relevance", "loss", DEFAULT, PROBABILITIES_R),
    ("averaged probabilities are closer by the logger's feature than the served curve", "by feature", DEFAULT, CURVE),
    (f"embeddings pooled {_FROM_X} a network without positions", "loss", EMBEDDINGS_X, NO_POSITION),
    (f"probabilities averaged {_FROM_X} a network without positions", "loss", DEFAULT, NO_POSITION),
    (
        "averaged probabilities are closer by the logger's feature than a network without positions",
        "by feature",
        DEFAULT,
        NO_POSITION,
    ),
)
DIFFERENCES = {"loss": "log loss", "by feature": "error by the logger's feature"}  # that parts are about
METRICS = {"loss": "log loss", "ece": "ECE", "by feature": "field-level calibration error by the logger's feature"}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every world under every seed."""
    return units_of(tuple(WORLDS), quick=quick, seeds=seeds or SEEDS, cost=1.5 if quick else 22, seen=SEEN)


def run_unit(unit: Unit) -> Numbers:
    """Train once with each input of the tower, and judge what is served on more traffic."""
    bias, deterministic = WORLDS[unit.setting]
    world = debias_feed(bias, deterministic=deterministic, seed=unit.seed)
    lists = 1_000 if unit.quick else 15_000
    log, traffic = (world.log(lists, seed=3 * unit.seed + place) for place in (0, 1))
    rows, features = as_log(log, ("click",)), torch.from_numpy(traffic["features"])
    segment = np.digitize(world.population.spurious(traffic["item"]), [-1, 0, 1])
    numbers: Numbers = {}
    for given, inputs in (("x", features.shape[1]), ("r", 1)):
        torch.manual_seed(unit.seed)
        dual = DualHead(network(features.shape[1]), width=WIDTH, tasks=("click",), contexts=CONTEXTS)
        read: Any = "features" if given == "x" else "relevance"
        model = PositionPredictor(dual, network(inputs), width=WIDTH, given=read)
        train(model, rows, epochs=2 if unit.quick else 4, seed=unit.seed)
        served: dict[str, Any] = {
            f"{pool}, P(c | {given})": _pooled(model, pool) for pool in ("probabilities", "embeddings")
        }
        if given == "x":
            served[CURVE] = dual.refit_served(rows.features, rows.labels)
            torch.manual_seed(unit.seed)
            plain = Naive(network(inputs), width=WIDTH, tasks=("click",))
            served[NO_POSITION] = train(plain, rows, epochs=2 if unit.quick else 4, seed=unit.seed)
        for name, one in served.items():
            prob = one.serving()(features)["click_prob"].double().numpy()
            numbers[f"loss {name}"] = metrics.log_loss(traffic["click"], prob)
            numbers[f"ece {name}"] = metrics.ece(traffic["click"], prob)
            numbers[f"by feature {name}"] = metrics.f_rce(traffic["click"], prob, segment)
    return numbers


def _pooled(model: PositionPredictor, pool: Any) -> Any:
    """The same trained model with another pooling."""
    other = copy.deepcopy(model)
    other.pool = pool
    return other


def summarise(finished: Sequence[Finished]) -> Result:
    """All three figures of every method in every world, and what pooling gains."""
    found = {
        (world, metric, name): estimate(by_seed(finished, world, f"{metric} {name}"))
        for world in WORLDS
        for metric in METRICS
        for name in METHODS
    }
    rows = [Row(f"{world}: {name}", METRICS[metric], one, digits=4) for (world, metric, name), one in found.items()]
    parts = [
        Part(
            f"{says} ({DIFFERENCES[metric]} of the former minus that of the latter; {world})",
            _gain(finished, world, metric, other, name),
            below=0.0,
        )
        for world in WORLDS
        for says, metric, name, other in PARTS
    ]
    series = [
        {"setting": world, "method": name, **one._asdict()}
        for (world, metric, name), one in found.items()
        if metric == "loss"
    ]
    return Result(tuple(rows), tuple(parts), {"loss": series}, _note(finished))


def _note(finished: Sequence[Finished]) -> str:
    def against(other: str, names: Iterable[str]) -> str:
        gains = {name: [_gain(finished, world, "loss", name, other) for world in WORLDS] for name in names}
        return "; ".join(f"{POOLED[name]} {_changed(found)}" for name, found in gains.items())

    return (
        f"Against the served curve, {against(CURVE, POOLED)}. Against a network of the features that is never told a "
        f"position, {against(NO_POSITION, (EMBEDDINGS_X, DEFAULT, PAPERS))}. Relevance, by which items are ranked, is "
        "learned alike in all but that network: only the probability differs."
    )


def _changed(gains: Sequence[Estimate]) -> str:
    """In how many worlds a gain lowers the log loss, or raises it, and by how much on average.

    >>> _changed([Estimate(0.01, 0.005, 0.015, 6), Estimate(0.02, -0.01, 0.05, 6)])
    'lowers the log loss in 2 of 2 worlds, 1 beyond chance (by 0.0100 to 0.0200)'
    """
    told = []
    for verb, sign in (("lowers", 1), ("raises", -1)):
        here = [one for one in gains if sign * one.value > 0]
        if here:
            sure = sum(min(sign * one.lower, sign * one.upper) > 0 for one in here)
            least, most = (end(abs(one.value) for one in here) for end in (min, max))
            beyond = "all" if sure == len(here) else sure or "none"
            told.append(
                f"{verb} the log loss in {len(here)} of {len(gains)} worlds, {beyond} beyond chance (by {least:.4f} to "
                f"{most:.4f})"
            )
    return " and ".join(told) or "leaves the log loss as it is"


def _gain(finished: Sequence[Finished], world: str, metric: str, name: str, other: str) -> Estimate:
    """How much lower a figure is than another method's."""
    return estimate(by_seed(finished, world, f"{metric} {other}") - by_seed(finished, world, f"{metric} {name}"))


def chart(series: dict[str, Any]) -> Any:
    """Log loss of every method in every world, with intervals over seeds."""
    return intervals(
        series["loss"], y="method", panel="setting", order=METHODS, title="log loss on traffic", ours=DEFAULT
    )
