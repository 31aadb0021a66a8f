"""Boosted trees that rank from biased clicks: our curves against what LightGBM and XGBoost have of their own.

The worlds of `debias_benchmark` with position and trust bias, where the true curves are known as well:

    naive                 LightGBM, log loss of clicks
    LightGBM position     lambdarank with a bias of each position (`position=`)
    XGBoost unbiased      lambdarank with `lambdarank_unbiased`
    ours, network         `BoostedRanker`: curves by a small dual head, frozen
    ours, trees           curves by trees out of fold, frozen
    true curves           `BoostedRanker` through the curves of the simulator

All grow 200 trees at the same rate; each has, for each click model, the best of five settings of leaves and L2 on other
seeds: `python -m research debias-tuning`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer import Curves, Grid, Histogram, metrics
from isolayer.debias import BoostedRanker
from isolayer.errors import need
from isolayer.simulate import PositionBased, Trust
from research.charts import intervals
from research.debias_benchmark import Cell, clicks_of, draw
from research.debias_methods import LENGTH, Setting, tuned
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = "Trees grown through learned curves rank better than the engines' own corrections of position bias."
PAPER = "none: the paper has networks only"
SEEDS = 10
WORLDS = tuple(f"{clicks}, spurious{end}" for clicks in ("PBM", "trust") for end in ("", ", deterministic"))
LISTS, QUICK_LISTS = 15_000, 600
ROUNDS, QUICK_ROUNDS, LEARNING_RATE = 200, 20, 0.1
TRIED: tuple[Setting, ...] = tuple(
    {"leaves": leaves, "l2": l2} for leaves, l2 in ((15, 100), (15, 10), (7, 100), (31, 100), (31, 10))
)
NAIVE, LIGHT, XGB, TRUE = "naive", "LightGBM position", "XGBoost unbiased", "true curves"
OURS, TREES = "ours, network", "ours, trees"
Floats = NDArray[np.float64]


def true_curves(clicks: str) -> Curves:
    """The curves of a click model from the mean over positions of the logit of a click to that at every position.

    Relevance may be measured anywhere; from the mean, no curve is much steeper than another, which trees need. Both
    click models are affine in the gain of an item, so they hold for its expectation given the features too.
    """
    gain = 1 / (1 + np.exp(-np.linspace(-9, 9, 4000)))
    if clicks == "trust":
        high, low = Trust.rates(LENGTH)
        seen = Trust().curve(LENGTH, np.ones(1))[0]
    else:
        model = PositionBased()
        high, low = np.ones(LENGTH), np.full(LENGTH, model.noise)
        seen = model.curve(LENGTH, np.ones(1))[0]
    prob = seen * (low + (high - low) * gain[:, None])  # [gains, positions]
    logit = np.log(prob / (1 - prob)).mean(1)
    position = np.tile(np.arange(LENGTH), len(gain))
    weight = np.full(prob.size, 1e5)
    grid = Grid(lower=float(logit[0]), upper=float(logit[-1]), step=float(logit[-1] - logit[0]) / 200)
    return Curves.from_histogram(
        Histogram.from_arrays(np.repeat(logit, LENGTH), prob.ravel(), {"position": position}, weight, grid=grid)
    )


def _engine(kind: str) -> Callable[[Cell, Setting, int, int], Floats]:
    """Scores of the test rows by an engine's own objective."""

    def lightgbm(cell: Cell, setting: Setting, rounds: int, seed: int) -> Floats:
        package = need("lightgbm")
        given: dict[str, Any] = {
            "num_leaves": int(setting["leaves"]),
            "lambda_l2": setting["l2"],
            "min_child_samples": 100,
        }
        given |= {"learning_rate": LEARNING_RATE, "verbose": -1, "seed": seed, "num_threads": 1}
        given["objective"] = "binary" if kind == NAIVE else "lambdarank"
        columns = cell.train.columns
        lists = {"group": np.full(len(columns["click"]) // LENGTH, LENGTH), "position": columns["position"]}
        data = package.Dataset(columns["features"], columns["click"], **({} if kind == NAIVE else lists))
        booster = package.train(given, data, rounds)
        return np.asarray(booster.predict(cell.test.columns["features"], raw_score=True))

    def xgboost(cell: Cell, setting: Setting, rounds: int, seed: int) -> Floats:
        package, columns = need("xgboost"), cell.train.columns
        given = {"objective": "rank:ndcg", "lambdarank_unbiased": True, "lambdarank_pair_method": "topk", "nthread": 1}
        given |= {"eta": LEARNING_RATE, "grow_policy": "lossguide", "max_depth": 0, "seed": seed}
        given |= {"max_leaves": int(setting["leaves"]), "lambda": setting["l2"] / 10}
        data = package.DMatrix(columns["features"], columns["click"], qid=columns["session"])  # in order of position
        return np.asarray(package.train(given, data, rounds).predict(package.DMatrix(cell.test.columns["features"])))

    return xgboost if kind == XGB else lightgbm


def _ranker(curves: Any) -> Callable[[Cell, Setting, int, int], Floats]:
    """Scores of the test rows by our ranker."""

    def score(cell: Cell, setting: Setting, rounds: int, seed: int) -> Floats:
        columns, contexts = cell.train.columns, cell.train.contexts
        given: Any = curves() if callable(curves) else curves
        contexts = {"position": LENGTH} if callable(curves) else contexts
        ranker = BoostedRanker(
            contexts, curves=given, rounds=rounds, leaves=int(setting["leaves"]), l2=setting["l2"], seed=seed
        )
        context = {name: columns[name] for name in contexts}
        ranker.fit(columns["features"], columns["click"], context, lists=columns["session"])
        return ranker.predict(cell.test.columns["features"])

    return score


def scores(method: str, clicks: str) -> Callable[[Cell, Setting, int, int], Floats]:
    """How a method scores the test rows of a cell."""
    if method in (NAIVE, LIGHT, XGB):
        return _engine(method)
    return _ranker((lambda: true_curves(clicks)) if method == TRUE else method.removeprefix("ours, "))


METHODS = (NAIVE, LIGHT, XGB, OURS, TREES, TRUE)


def score(method: str, clicks: str, cell: Cell, setting: Setting, *, seed: int, quick: bool = False) -> float:
    """nDCG@10 of a method against the true grade."""
    found = scores(method, clicks)(cell, setting, QUICK_ROUNDS if quick else ROUNDS, seed)
    return metrics.ndcg(cell.test.columns["grade"], found, cell.test.columns["session"], k=10)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every world under every seed."""
    names = (WORLDS[0], WORLDS[2]) if quick else WORLDS
    return units_of(names, quick=quick, seeds=seeds or SEEDS, cost=5.0 if quick else 60.0)


def run_unit(unit: Unit) -> Numbers:
    """Rank by every method in one world."""
    cell, clicks = draw(unit.setting, unit.seed, QUICK_LISTS if unit.quick else LISTS), clicks_of(unit.setting)
    best = tuned().get(f"trees, {clicks}", {})
    return {
        f"ndcg {method}": score(method, clicks, cell, best.get(method, TRIED[0]), seed=unit.seed, quick=unit.quick)
        for method in METHODS
    }


def summarise(finished: Sequence[Finished]) -> Result:
    """NDCG of every method, and differences to both engines and to the true curves."""
    present = [name for name in WORLDS if any(one.unit.setting == name for one in finished)]
    found = {
        (world, method): estimate(by_seed(finished, world, f"ndcg {method}")) for world in present for method in METHODS
    }
    rows = [Row(f"{world}: {method}", "nDCG@10", one, digits=4) for (world, method), one in found.items()]
    parts = list[Part]()
    for world in present:
        ours = by_seed(finished, world, f"ndcg {OURS}")
        for other in (LIGHT, XGB):
            gain = estimate(ours - by_seed(finished, world, f"ndcg {other}"))
            parts.append(Part(f"ours ranks above {other} ({world})", gain, above=0.0))
        behind = estimate(by_seed(finished, world, f"ndcg {TRUE}") - ours)
        parts.append(Part(f"ours is within .005 of the true curves ({world})", behind, below=0.005))
    series = [{"setting": world, "method": method, **one._asdict()} for (world, method), one in found.items()]
    return Result(tuple(rows), tuple(parts), {"ndcg": series})


def chart(series: dict[str, Any]) -> Any:
    """How every method ranks in every world, with intervals over seeds."""
    return intervals(series["ndcg"], y="method", panel="setting", order=METHODS, title="nDCG@10", ours=OURS)
