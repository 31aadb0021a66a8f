"""Settings of the rivals of the dual head in the debiasing benchmark, chosen on a seed that it does not report.

A unit trains one method with each of its six settings in the worlds of one click model, both with the stochastic and
the sorted logger, and on one seed. The best by nDCG@10 against the true grade is what `debias_benchmark` uses in all
worlds of that click model, once the result is among the reproduced ones. The dual head is not tuned here: it has its
defaults, which were chosen while it was developed, on seeds that are not reported either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from research import choices
from research.debias_benchmark import LISTS, QUICK_LISTS, SETTINGS, Cell, clicks_of, draw
from research.debias_methods import METHODS, Setting, ndcg, trained
from research.result import Finished, Numbers, Part, Result, Unit

CLAIM = "Every rival of the dual head has the best of six settings, and none is at the edge of those tried."
PAPER = "none: the paper does not say how its baselines were tuned"
FIRST, SEEDS = 100, 1  # a seed that the benchmark does not report
CLICKS = tuple(dict.fromkeys(clicks_of(name) for name in SETTINGS if "spurious" in name))
FIXED = "dual head"  # has its defaults everywhere
TUNED = tuple(method for method in METHODS if method != FIXED)
TRIED = {method: METHODS[method].tried for method in TUNED}
RATES = {"rate", "lr"}  # of the bias parameters and of the network
QUICK = (("PBM", "PAL"),)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every method in every click model under every tuning seed."""
    pairs = QUICK if quick else tuple((clicks, method) for clicks in CLICKS for method in TUNED)
    first = 0 if quick else FIRST
    numbers = range(first, first + (seeds or SEEDS))
    return [
        Unit(seed, f"{clicks}: {method}", quick, 2.0 if quick else 30.0) for seed in numbers for clicks, method in pairs
    ]


def run_unit(unit: Unit) -> Numbers:
    """Mean nDCG of each setting of a method over the loggers of a click model."""
    torch.set_num_threads(1)
    clicks, method = unit.setting.split(": ")
    worlds = [name for name in SETTINGS if clicks_of(name) == clicks and "spurious" in name]
    cells = [draw(name, unit.seed, QUICK_LISTS if unit.quick else LISTS) for name in worlds]

    def score(cell: Cell, setting: Setting) -> float:
        return ndcg(trained(method, cell.train, seed=unit.seed, setting=setting), cell.test)

    tried = METHODS[method].tried
    return {json.dumps(setting): float(np.mean([score(cell, setting) for cell in cells])) for setting in tried}


def summarise(finished: Sequence[Finished]) -> Result:
    """The best setting of every method in every click model, and how much it gained over the default."""
    best, rows, gain = choices.choices(finished)
    parts, note = judged(best, seeds=len({one.unit.seed for one in finished}))
    return Result(rows, parts, {"best": best, "gain": gain}, note)


def judged(best: choices.Best, *, seeds: int) -> tuple[tuple[Part, ...], str]:
    """What is said of the choices, which takes nothing but the choices."""
    of_rates = sum(set().union(*TRIED[method]) <= RATES for method in TUNED)
    note = (
        f"Chosen on {seeds} seed{'s' * (seeds > 1)} that no figure is reported on, so the gains are those of what "
        f"chose. {choices.said_of_edges(best, TRIED)} {of_rates} of {len(TUNED)} methods search only the learning "
        f"rates of the network and of their bias parameters. {choices.said_of_same(best)} All worlds of a click model "
        f"share its choices, whatever the logger. The {FIXED} is not tuned here: its defaults were chosen while it was "
        "developed, on other seeds than those reported."
    )
    return (choices.no_edge(best, TRIED),), note


def chart(series: dict[str, Any]) -> Any:
    """What the best setting gains over the default, with intervals over the seeds of tuning."""
    return choices.chart(series)
