"""Calibrators on real tasks: ``python -m benchmarks real [--choose | --report] [--draws=N] [--minutes=M] [--jobs=N]``.

Tasks are split in two halves by a hash of their names: settings are chosen on one half (``--choose``, the default) and
figures are claimed on the other (``--report``). Every method is fitted to the same rows: all of a task's, draws of 200,
1,000 and 5,000 of them, and scores on other scales. Results go to the console and to ``results/real-<half>.json``;
finished units are kept under ``data/real/units``, so a run that was stopped goes on where it ended. All rows of every
task come first, then draws of 200, 1,000 and 5,000. ``--draws=8`` takes at most eight draws of each size (``--quick``
three), ``--minutes=20`` ends the work after so long and shows what is finished, ``--all`` takes both halves,
``--tasks=flights`` those whose name has this part, ``--docs`` writes the figures into docs/choosing.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import Row, between_marks, progress, quick
from benchmarks.real import tables
from benchmarks.real.draws import SCALES, SIZES
from benchmarks.real.figures import figure_rows
from benchmarks.real.tasks import Half, catalogue, load
from benchmarks.real.units import OURS, Found, methods, run_method, units_of
from isolayer.errors import InputError
from research.datasets import DataAbsent

OPTIONS = "--choose, --report, --all, --quick, --draws=N, --minutes=M, --jobs=N, --docs or --tasks=PART"
QUICK_DRAWS = 3
TARGET = 5e-4  # largest mean loss to Platt at 200 rows on any scale
DOCS = Path("docs/choosing.md")


class Options(NamedTuple):
    """What is asked for: see the module's first lines."""

    half: Half = "choose"
    draws: int | None = None
    minutes: float = float("inf")
    jobs: int = 1
    part: str = ""
    docs: bool = False


def run(options: Sequence[str] = ()) -> list[Row]:
    """Both tables of one half of the tasks, and the figures that have targets."""
    asked = parse(options)
    started = time.monotonic()
    results = measure([name for name in catalogue(asked.half) if asked.part in name], asked)
    print(f"\nmean ranks over {len(results)} tasks ({asked.half}); columns with a number: draws of so many rows")
    print(tables.ranks_text(results, list(SIZES)))
    for size in (0, *SIZES):
        print(f"\nlog loss: every loss to the best peer, {f'{size:,} rows' if size else 'all rows'}")
        print(tables.losses_text(tables.differences(results, "log_loss", size)))
    path = Path(f"results/real-{asked.half}.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(tables.as_json(results, list(SIZES)), indent=1) + "\n")
    rows = [*_rank_rows(results), *_scale_rows(results), *figure_rows(list(results), quick=asked.draws == QUICK_DRAWS)]
    print(f"\nwritten to {path}; {(time.monotonic() - started) / 60:.0f} minutes")
    if asked.docs:
        write_docs(rows, results)
    return rows


def parse(options: Sequence[str]) -> Options:
    """The options, unless one is unknown.

    >>> parse(["--report", "--jobs=2", "--tasks=flights", "--draws=8"])
    Options(half='report', draws=8, minutes=inf, jobs=2, part='flights', docs=False)
    """
    found = Options(draws=QUICK_DRAWS if quick() else None)
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        whole = int(value) if value.isdigit() and int(value) > 0 else None
        if name in get_args(Half):
            found = found._replace(half=cast("Half", name))
        elif name in ("quick", "docs"):
            found = found._replace(**({"draws": QUICK_DRAWS} if name == "quick" else {"docs": True}))
        elif name in ("jobs", "draws", "minutes") and whole:
            found = found._replace(**{name: whole})
        elif name == "tasks":
            found = found._replace(part=value)
        else:
            raise InputError(f"real: expected {OPTIONS}, got {option}; choose one")
    return found


def measure(tasks: Sequence[str], asked: Options) -> dict[str, dict[str, Found]]:
    """Finished units of every task and method, with a progress bar on stderr; tasks without their data are left out.

    A size of a task counts as finished when it is for every method; others are left for the next run.
    """
    there = [task for task in tasks if _there(task)]
    stages = [(size, task) for size in (0, *SIZES) for task in there]
    results: dict[str, dict[str, Found]] = {task: {name: {} for name in methods()} for task in there}
    columns = (TextColumn("{task.description:60.60}"), BarColumn(), MofNCompleteColumn())
    end = time.monotonic() + 60 * asked.minutes
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        line = bar.add_task("starts", total=len(stages))
        for size, task, found in _finished(stages, asked, end):
            bar.update(line, advance=1, description=f"{task}, {f'{size:,}' if size else 'all'} rows")
            for name, one in found.items():
                results[task][name].update(one)
    return {task: found for task, found in results.items() if found[OURS]}


def _there(task: str) -> bool:
    try:
        load(task)
    except DataAbsent as error:
        progress(f"{task} is left out. {error}")
        return False
    return True


def _finished(
    stages: Sequence[tuple[int, str]], asked: Options, end: float
) -> Iterator[tuple[int, str, dict[str, Found]]]:
    """Sizes of tasks as they are finished, until the time is over."""
    if asked.jobs == 1:
        for done, (size, task) in enumerate(stages):
            if time.monotonic() > end:
                progress(f"the time is over: {len(stages) - done} of {len(stages)} are left for the next run")
                return
            yield size, task, run_stage(task, size, asked.draws)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(asked.jobs) as pool:
        waiting: list[tuple[int, str, Future[Any]]] = [
            (size, task, pool.submit(run_stage, task, size, asked.draws)) for size, task in stages
        ]
        for size, task, future in waiting:
            if time.monotonic() > end:
                future.cancel()
            if not future.cancelled():
                yield size, task, future.result()


def run_stage(task: str, size: int, draws: int | None) -> dict[str, Found]:
    """Every method on a task's draws of one size."""
    return {method: run_method(task, method, units_of(method, size, draws)) for method in methods()}


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


def write_docs(rows: Sequence[Row], results: tables.Results, page: Path = DOCS) -> None:
    """Put the figures and the mean ranks between the marks of a page."""
    lines = ["| figure | target | measured |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.target} | {row.measured} |".replace("  ", " ") for row in rows]
    ranks = {metric: tables.mean_ranks(results, metric) for metric in ("log_loss", "ece", "oe")}
    lines += ["", "| mean rank over the reported tasks | log loss | ECE | O/E by segment |", "|---|---|---|---|"]
    best = sorted(ranks["log_loss"], key=lambda name: ranks["log_loss"][name])
    lines += [f"| {name} | " + " | ".join(f"{one[name]:.2f}" for one in ranks.values()) + " |" for name in best]
    between_marks(page, "python -m benchmarks real --report --docs", lines)
