"""Calibrators on real tasks: ``python -m benchmarks real [--choose | --report] [--quick] [--jobs=N]``.

Tasks are split in two halves by a hash of their names: settings are chosen on one half (``--choose``, the default) and
figures are claimed on the other (``--report``). Every method is fitted to the same rows: all of a task's, draws of 200,
1,000 and 5,000 of them, and scores on other scales. Results go to the console and to ``results/real-<half>.json``;
finished units are kept under ``data/real/units``. ``--quick`` takes three draws of each size, ``--all`` both halves,
``--tasks=flights`` those whose name has this part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import Row, progress, quick
from benchmarks.real import tables
from benchmarks.real.draws import SCALES, SIZES
from benchmarks.real.figures import figure_rows
from benchmarks.real.tasks import Half, catalogue, load
from benchmarks.real.units import OURS, Found, methods, run_method
from isolayer.errors import InputError
from research.datasets import DataAbsent

OPTIONS = "--choose, --report, --all, --quick, --jobs=N or --tasks=PART"
TARGET = 5e-4  # largest mean loss to Platt at 200 rows on any scale


def run(options: Sequence[str] = ()) -> list[Row]:
    """Both tables of one half of the tasks, and the figures that have targets."""
    half, small, jobs, part = parse(options)
    results = measure([name for name in catalogue(half) if part in name], small, jobs)
    print(f"\nmean ranks over {len(results)} tasks ({half}); columns with a number: draws of so many rows")
    print(tables.ranks_text(results, list(SIZES)))
    for size in (0, *SIZES):
        print(f"\nlog loss: every loss to the best peer, {f'{size:,} rows' if size else 'all rows'}")
        print(tables.losses_text(tables.differences(results, "log_loss", size)))
    path = Path(f"results/real-{half}.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(tables.as_json(results, list(SIZES)), indent=1) + "\n")
    print(f"\nwritten to {path}")
    return [*_rank_rows(results), *_scale_rows(results), *figure_rows(list(results), quick=small)]


def parse(options: Sequence[str]) -> tuple[Half, bool, int, str]:
    """Half, whether quick, number of processes, and a part of the names of the tasks.

    >>> parse(["--report", "--jobs=2", "--tasks=flights"])
    ('report', False, 2, 'flights')
    """
    half: Half = "choose"
    small, jobs, part = quick(), 1, ""
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name in get_args(Half):
            half = name
        elif name == "quick":
            small = True
        elif name == "jobs" and value.isdigit() and int(value) > 0:
            jobs = int(value)
        elif name == "tasks":
            part = value
        else:
            raise InputError(f"real: expected {OPTIONS}, got {option}; choose one")
    return half, small, jobs, part


def measure(tasks: Sequence[str], small: bool = False, jobs: int = 1) -> dict[str, dict[str, Found]]:
    """Finished units of every task and method, with a progress bar on stderr; tasks without their data are left out."""
    results: dict[str, dict[str, Found]] = {task: {} for task in tasks}
    columns = (TextColumn("{task.description:50.50}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True)) as bar:
        line = bar.add_task("prepares", total=len(tasks) * len(methods()))
        for task in tasks:
            bar.update(line, description=f"prepares {task}")
            if not _there(task):
                del results[task]
        for task, method, found in _finished(list(results), small, jobs):
            results[task][method] = found
            bar.update(line, advance=1, description=f"{task}: {method}")
    return results


def _there(task: str) -> bool:
    try:
        load(task)
    except DataAbsent as error:
        progress(f"{task} is left out. {error}")
        return False
    return True


def _finished(tasks: list[str], small: bool, jobs: int) -> Iterator[tuple[str, str, Found]]:
    pairs = [(task, method) for task in tasks for method in methods()]
    if jobs == 1:
        yield from ((task, method, run_method(task, method, quick=small)) for task, method in pairs)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(jobs) as pool:
        waiting: list[tuple[str, str, Future[Any]]] = [
            (task, method, pool.submit(run_method, task, method, quick=small)) for task, method in pairs
        ]
        yield from ((task, method, future.result()) for task, method, future in waiting)


def _rank_rows(results: tables.Results) -> Iterator[Row]:
    for metric in ("log_loss", "ece", "oe"):
        ranks = tables.mean_ranks(results, metric)
        best = min((name for name in ranks if name != OURS), key=lambda name: ranks[name])
        measured = f"{ranks[OURS]:.2f} (best peer {ranks[best]:.2f}, {best})"
        yield Row(f"mean rank by {metric}", "1st or tied", measured, ranks[OURS] <= ranks[best])
    lost = [one for one in tables.differences(results, "log_loss") if one.lost]
    measured = f"{len(lost)} of {len(results)}" + "".join(f"; {one.task}" for one in lost)
    yield Row("tasks lost to the best peer by log loss", "0", measured, not lost)


def _scale_rows(results: tables.Results) -> Iterator[Row]:
    size = min(SIZES)
    for scale in ("", *SCALES):
        drawn = [task for task in results if tables.point(results[task][OURS], "log_loss", size, scale)]
        if not drawn:
            continue
        found = [tables.against(results, task, "Platt", "log_loss", size, scale) for task in drawn]
        worst = max(found, key=lambda one: one.difference)
        half = (worst.upper - worst.lower) / 2
        measured = f"{worst.difference * 1e4:+.1f}e-4 +- {half * 1e4:.1f}e-4 ({worst.task})"
        name = f"{size} rows, score {scale or 'as it is'}: largest loss to Platt"
        yield Row(name, "<= 5e-4", measured, worst.difference <= TARGET)
