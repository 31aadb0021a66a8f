"""Figures of our calibrator alone: down-sampled negatives and KuaiRand by tab; coverage of bands is a benchmark itself.

Each is kept by the version of the calibrator's sources, as the units are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row, progress
from benchmarks.coverage import coverage_rows
from benchmarks.real.draws import Unit
from benchmarks.real.negatives import MOST_EVENTS, negative_rows, negatives
from benchmarks.real.tasks import catalogue, folder, load
from benchmarks.real.units import OURS, run_method, save, version

Column = NDArray[np.float64]


def figure_rows(tasks: Sequence[str], *, quick: bool = False) -> Iterator[Row]:
    """Every figure, with its target."""
    yield from coverage_rows(quick=quick, kept=_kept)
    yield from _negative_rows(tasks)
    yield from _tab_rows(tasks)


def _negative_rows(tasks: Sequence[str]) -> Iterator[Row]:
    sampled = [task for task in tasks if load(task).fit.label.mean() <= MOST_EVENTS]
    yield from negative_rows({task: _kept(f"negatives {task}", lambda t=task: negatives(t)) for task in sampled})


def _tab_rows(tasks: Sequence[str]) -> Iterator[Row]:
    # all eight tasks on reporting, those of the choosing half while choosing
    eight = [task for task in catalogue() if task.startswith("kuairand") and task.endswith("by tab")]
    eight = [task for task in eight if task in tasks] if set(tasks) <= set(catalogue("choose")) else eight
    if not eight:
        return
    gaps = {}
    for task in eight:
        ours, platt = (run_method(task, name, [Unit()])[Unit().key] for name in (OURS, "Platt per segment"))
        gaps[task] = ours["ne"][0] - platt["ne"][0]
    each = ", ".join(f"{task.split()[1]} {gap * 1e4:+.1f}" for task, gap in gaps.items())
    mean = float(np.mean(list(gaps.values())))
    name = f"KuaiRand by tab, {len(eight)} tasks: NE minus Platt by tab"
    yield Row(name, "<= 0 in the mean", f"{mean * 1e4:+.1f}e-4 ({each})", mean <= 0)


def _kept(key: str, make: Callable[[], Any]) -> Any:
    path = folder() / "units" / f"figures--{version(OURS)}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if key not in found:
        progress(key)
        found[key] = make()
        save(found, path)
    return found[key]
