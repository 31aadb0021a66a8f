"""Settings of every method of the debiasing benchmark and of the study of trees, chosen on seeds that neither reports.

A unit trains one method with each of its six settings in the worlds of one click model, both with the stochastic and
the sorted logger, and on one seed. The best over seeds by nDCG@10 against the true grade is what `debias_benchmark`
and `boosted_trees` use, once the result is among the reproduced ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from research import boosted_trees, tree_methods
from research.charts import intervals
from research.debias_benchmark import LISTS, QUICK_LISTS, SETTINGS, Cell, clicks_of, draw
from research.debias_methods import METHODS, Setting, ndcg, trained
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, certain, estimate

CLAIM = "Every method of the debiasing benchmark is tuned alike."
PAPER = "none: the paper does not say how its baselines were tuned"
FIRST, SEEDS = 100, 1  # seeds that the benchmark does not report
CLICKS = tuple(dict.fromkeys(clicks_of(name) for name in SETTINGS if "spurious" in name))
FIXED = "dual head"  # has its defaults everywhere
TUNED = tuple(method for method in METHODS if method != FIXED)
QUICK = (("PBM", "PAL"), ("trees, PBM", tree_methods.NAIVE))


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every method in every click model under every tuning seed."""
    networks = tuple((clicks, method) for clicks in CLICKS for method in TUNED)
    trees = tuple((f"trees, {clicks}", method) for clicks in boosted_trees.KNOWN for method in tree_methods.METHODS)
    pairs = QUICK if quick else networks + trees
    first = 0 if quick else FIRST
    numbers = range(first, first + (seeds or SEEDS))
    return [
        Unit(seed, f"{clicks}: {method}", quick, 2.0 if quick else 30.0) for seed in numbers for clicks, method in pairs
    ]


def run_unit(unit: Unit) -> Numbers:
    """Mean nDCG of each setting of a method over the loggers of a click model."""
    torch.set_num_threads(1)
    family, method = unit.setting.split(": ")
    clicks = family.removeprefix("trees, ")
    worlds = [name for name in SETTINGS if clicks_of(name) == clicks and "spurious" in name]
    cells = [draw(name, unit.seed, QUICK_LISTS if unit.quick else LISTS) for name in worlds]
    tried = METHODS[method].tried if family == clicks else tree_methods.TRIED

    def score(cell: Cell, setting: Setting) -> float:
        if family == clicks:
            return ndcg(trained(method, cell.train, seed=unit.seed, setting=setting), cell.test)
        return boosted_trees.score(method, clicks, cell, setting, seed=unit.seed, quick=unit.quick)

    return {json.dumps(setting): float(np.mean([score(cell, setting) for cell in cells])) for setting in tried}


def summarise(finished: Sequence[Finished]) -> Result:
    """The best setting of every method in every click model, and how much it gained over the default."""
    best: dict[str, dict[str, Setting]] = {}
    rows, counts, series = list[Row](), list[int](), list[dict[str, Any]]()
    for name in dict.fromkeys(one.unit.setting for one in finished):
        clicks, method = name.split(": ")
        scores = [one.numbers for one in finished if one.unit.setting == name]
        means = {key: float(np.mean([score[key] for score in scores])) for key in scores[0]}
        chosen = max(means, key=lambda key: means[key])
        best.setdefault(clicks, {})[method] = json.loads(chosen)
        counts.append(len(means))
        gains = [score[chosen] - score[next(iter(means))] for score in scores]
        gain = estimate(gains) if len(gains) > 1 else certain(gains[0])
        series.append({"clicks": clicks, "method": method, **gain._asdict()})
        rows.append(Row(name, f"nDCG@10 gained by {chosen}", gain, digits=4))
    least, most = min(counts), max(counts)
    alike = Estimate(least / most, least / most, least / most, len(counts))
    return Result(
        tuple(rows),
        (Part("every method has as many settings", alike, above=0.999),),
        {"best": best, "gain": series},
        "Seeds of tuning are none of those reported.",
    )


def chart(series: dict[str, Any]) -> Any:
    """What the best setting gains over the default, with intervals over the seeds of tuning."""
    order = list(dict.fromkeys(row["method"] for row in series["gain"]))
    title = "nDCG@10 over the default"
    return intervals(series["gain"], y="method", panel="clicks", order=order, title=title, columns=3, zero=True)


def settings_tried() -> dict[str, Any]:
    """Number of settings of each method that is tuned.

    >>> set(settings_tried().values())
    {6}
    """
    return {name: len(METHODS[name].tried) for name in TUNED}
