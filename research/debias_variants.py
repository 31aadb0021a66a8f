"""Variants of the dual head: losses over lists, a curve per combination, weights, and the paper's own loss and wiring.

The worlds and seeds are those of `debias_benchmark`; every variant has its defaults, and so has the dual head itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from research.charts import intervals
from research.debias_benchmark import LISTS, OURS, QUICK_LISTS, clicks_of, draw
from research.debias_methods import VARIANTS, ndcg, setting_of, trained
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = "Two parallel heads and a joint loss, as the paper describes them, debias."
PAPER = "sections 5.1 and 5.2; no simulation with known relevance"
SEEDS = 5
WORLDS = tuple(f"{clicks}, spurious" for clicks in ("PBM", "trust", "DBN", "contextual"))
NAIVE = "naive"
METHODS = (NAIVE, OURS, *VARIANTS)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every world under every seed."""
    return units_of(WORLDS[:1] if quick else WORLDS, quick=quick, seeds=seeds or SEEDS, cost=4.0 if quick else 25.0)


def run_unit(unit: Unit) -> Numbers:
    """Rank by every variant in one world."""
    torch.set_num_threads(1)
    cell, clicks = draw(unit.setting, unit.seed, QUICK_LISTS if unit.quick else LISTS), clicks_of(unit.setting)
    return {
        f"ndcg {name}": ndcg(trained(name, cell.train, seed=unit.seed, setting=setting_of(clicks, name)), cell.test)
        for name in METHODS
    }


def summarise(finished: Sequence[Finished]) -> Result:
    """NDCG of every variant, and what the paper's two choices gain over the naive model."""
    present = [name for name in WORLDS if any(one.unit.setting == name for one in finished)]
    found = {
        (world, method): estimate(by_seed(finished, world, f"ndcg {method}")) for world in present for method in METHODS
    }
    rows = [Row(f"{world}: {method}", "nDCG@10", one, digits=4) for (world, method), one in found.items()]
    parts = list[Part]()
    for world in present:
        naive = by_seed(finished, world, f"ndcg {NAIVE}")
        ours = by_seed(finished, world, f"ndcg {OURS}")
        for method, says in (
            ("dual head, joint alpha .25", "a joint loss ranks better than naive"),
            ("two parallel heads", "two parallel heads rank better than naive"),
        ):
            gain = estimate(by_seed(finished, world, f"ndcg {method}") - naive)
            parts.append(Part(f"{says} ({world})", gain, above=0.0))
        joint = estimate(by_seed(finished, world, "ndcg dual head, joint alpha .25") - ours)
        parts.append(Part(f"a joint loss ranks as well as a detached anchor ({world})", joint, above=-0.002))
    series = [{"setting": world, "method": method, **one._asdict()} for (world, method), one in found.items()]
    per_seed = {f"{world}: {name}": by_seed(finished, world, f"ndcg {name}").tolist() for world, name in found}
    return Result(tuple(rows), tuple(parts), {"ndcg": series, "by seed": per_seed})


def chart(series: dict[str, Any]) -> Any:
    """How every variant ranks in every world, with intervals over seeds."""
    return intervals(series["ndcg"], y="method", panel="setting", order=METHODS, title="nDCG@10", ours=OURS)
