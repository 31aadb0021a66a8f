"""Settings of boosted trees that rank from clicks, chosen on seeds that no study reports.

A unit trains one method of `tree_methods` with each of its six settings in the worlds of one click model, with the
stochastic and the sorted logger, and on one seed. The best over seeds by nDCG@10 against the true grade is what
`boosted_trees` and `mslr_clicks` use, once the result is among the reproduced ones; worlds of click models other than
these have that of position bias.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from research import choices
from research.boosted_trees import log_of, score
from research.debias_benchmark import LISTS, QUICK_LISTS, SETTINGS, clicks_of, draw
from research.result import Finished, Numbers, Result, Unit
from research.tree_methods import KNOWN, METHODS, NAIVE, TRIED

CLAIM = (
    "Each method of the study of boosted trees has the best of six settings, and none is at the edge of those tried."
)
PAPER = "none: the paper has networks only"
FIRST, SEEDS = 100, 1  # a seed that no study reports


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every method in every click model under every tuning seed."""
    pairs = ((KNOWN[0], NAIVE),) if quick else tuple((clicks, method) for clicks in KNOWN for method in METHODS)
    first = 0 if quick else FIRST
    return [
        Unit(seed, f"{clicks}: {method}", quick, 3.0 if quick else 90.0)
        for seed in range(first, first + (seeds or SEEDS))
        for clicks, method in pairs
    ]


def run_unit(unit: Unit) -> Numbers:
    """Mean nDCG of each setting of a method over the loggers of a click model."""
    torch.set_num_threads(1)
    clicks, method = unit.setting.split(": ")
    worlds = [name for name in SETTINGS if clicks_of(name) == clicks and "spurious" in name]
    found: dict[str, list[float]] = {json.dumps(setting): [] for setting in TRIED[method]}
    for world in worlds:
        cell = draw(world, unit.seed, QUICK_LISTS if unit.quick else LISTS)
        log = log_of(cell)
        for setting in TRIED[method]:
            scored = score(method, clicks, cell, setting, seed=unit.seed, quick=unit.quick, log=log)
            found[json.dumps(setting)].append(scored)
    return {setting: float(np.mean(scores)) for setting, scores in found.items()}


def summarise(finished: Sequence[Finished]) -> Result:
    """The best setting of every method in each click model, and how many are at the edge of those tried."""
    best, rows, gain = choices.choices(finished)
    seeds = len({one.unit.seed for one in finished})
    note = (
        f"Chosen on {f'{seeds} seeds, none of them' if seeds > 1 else 'one seed, which is not'} reported, so the gains "
        "are those of the seeds that chose. "
        f"{choices.said_of_edges(best, TRIED)} {choices.said_of_same(best)} Worlds of other click models use what was "
        f"chosen in {KNOWN[0]}."
    )
    return Result(rows, (choices.no_edge(best, TRIED),), {"best": best, "gain": gain}, note)


def chart(series: dict[str, Any]) -> Any:
    """What the best setting gains over the default, with intervals over the seeds of tuning."""
    return choices.chart(series)
