"""Boosted trees that rank from biased clicks: our curves against what LightGBM and XGBoost have of their own.

The worlds of `debias_benchmark` in which bias harms; `tree_methods` lists what is compared. Under position and trust
bias the true curves are known as well. Each method has the best of its settings on other
seeds (`python -m research debias-tuning`): in worlds of position and trust bias that of the click model, in the others
that of position bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from isolayer import Curves, Grid, Histogram, metrics
from isolayer.simulate import PositionBased, Trust
from research.charts import intervals
from research.debias_benchmark import SETTINGS, Cell, clicks_of, draw
from research.debias_methods import LENGTH, Setting, tuned
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of
from research.tree_methods import LIGHT, METHODS, OURS, TREES, TRIED, TRUE, XGB, ClickLog, rank

CLAIM = "Trees grown through learned curves rank better than the engines' own corrections of position bias."
PAPER = "none: the paper has networks only"
SEEDS = 10
WORLDS = tuple(name for name in SETTINGS if "spurious" in name)
KNOWN = ("PBM", "trust")  # click models whose curves are known
QUICK_WORLDS = ("PBM, spurious", "trust, spurious")
LISTS, QUICK_LISTS = 15_000, 600
ROUNDS, QUICK_ROUNDS = 200, 20


@cache
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


def log_of(cell: Cell) -> ClickLog:
    """The clicks that methods learn from."""
    columns = cell.train.columns
    return ClickLog(columns["features"], columns["click"], {name: columns[name] for name in cell.train.contexts})


def score(
    method: str,
    clicks: str,
    cell: Cell,
    setting: Setting,
    *,
    seed: int,
    quick: bool = False,
    log: ClickLog | None = None,
) -> float:
    """nDCG@10 of a method against the true grade; methods that are given the same log share what it costs."""
    test, log = cell.test.columns, log or log_of(cell)
    rounds, curves = QUICK_ROUNDS if quick else ROUNDS, true_curves(clicks) if method == TRUE else None
    found = rank(method, log, test["features"], setting, rounds=rounds, seed=seed, curves=curves)
    return metrics.ndcg(test["grade"], found, test["session"], k=10)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every world under every seed."""
    names = QUICK_WORLDS if quick else WORLDS
    return units_of(names, quick=quick, seeds=seeds or SEEDS, cost=5.0 if quick else 25.0)


def methods_of(world: str) -> tuple[str, ...]:
    """What is compared in a world.

    >>> methods_of("DBN, spurious")
    ('naive', 'LightGBM position', 'XGBoost unbiased', 'ours, network')
    """
    left_out = (TREES,) if clicks_of(world) in KNOWN else (TREES, TRUE)  # curves by trees are tried by the tuning
    return tuple(one for one in METHODS if one not in left_out)


def run_unit(unit: Unit) -> Numbers:
    """Rank by every method in one world."""
    cell, clicks = draw(unit.setting, unit.seed, QUICK_LISTS if unit.quick else LISTS), clicks_of(unit.setting)
    best, log = tuned().get(f"trees, {clicks if clicks in KNOWN else KNOWN[0]}", {}), log_of(cell)
    return {
        f"ndcg {one}": score(one, clicks, cell, best.get(one, TRIED[0]), seed=unit.seed, quick=unit.quick, log=log)
        for one in methods_of(unit.setting)
    }


def summarise(finished: Sequence[Finished]) -> Result:
    """NDCG of every method, and differences to both engines and to the true curves."""
    present = [name for name in WORLDS if any(one.unit.setting == name for one in finished)]
    found = {
        (world, method): estimate(by_seed(finished, world, f"ndcg {method}"))
        for world in present
        for method in methods_of(world)
    }
    rows = [Row(f"{world}: {method}", "nDCG@10", one, digits=4) for (world, method), one in found.items()]
    parts = list[Part]()
    for world in present:
        ours = by_seed(finished, world, f"ndcg {OURS}")
        for other in (LIGHT, XGB):
            gain = estimate(ours - by_seed(finished, world, f"ndcg {other}"))
            parts.append(Part(f"ours ranks above {other} ({world})", gain, above=0.0))
        if TRUE in methods_of(world):
            behind = estimate(by_seed(finished, world, f"ndcg {TRUE}") - ours)
            parts.append(Part(f"ours is within .005 of the true curves ({world})", behind, below=0.005))
    series = [{"setting": world, "method": method, **one._asdict()} for (world, method), one in found.items()]
    return Result(tuple(rows), tuple(parts), {"ndcg": series})


def chart(series: dict[str, Any]) -> Any:
    """How every method ranks in every world, with intervals over seeds."""
    return intervals(series["ndcg"], y="method", panel="setting", order=METHODS, title="nDCG@10", columns=3, ours=OURS)
