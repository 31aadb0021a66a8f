"""Run experiments: units on every core, each saved when done, then a summary, a table and a picture.

    out/<name>.json        numbers with intervals, verdict, seeds, command, seconds
    out/<name>.md          the same for people
    out/<name>.png         the picture, where there is one
    out/<name>/*.json      the finished units, from which an interrupted run goes on
    out/run.json           how long the last run of everything took, if it was not interrupted

A quick run writes the same under ``out/quick``. A unit is used again only if the code that it can run is that which
wrote it (see `research.fingerprint`); what is edited elsewhere, between two parts of a run, does not void it.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from isolayer.errors import MissingExtra, need
from research.datasets import DataAbsent
from research.fingerprint import code_version
from research.page import RUN, table
from research.registry import Experiment, find
from research.result import QUICK_SEEDS, Finished, Result, Unit

Document = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Args:
        experiment: Of the unit that has just finished; empty at the start.
        done: Units finished, those of an earlier run included.
        total: All units.
        seconds_left: At the pace so far; None while nothing has finished.
        failed: Units that ended in an error.
    """

    experiment: str
    done: int
    total: int
    seconds_left: float | None
    failed: int = 0


@dataclass(frozen=True)
class _Job:
    experiment: Experiment
    unit: Unit
    path: Path
    code: str  # fingerprint of what it can run

    def saved(self) -> Document | None:
        """What an earlier run of the same code left."""
        if not self.path.exists():
            return None
        saved: Document = json.loads(self.path.read_text())
        return saved if saved["code"] == self.code else None


class UnitsFailed(RuntimeError):
    """Some units raised an error; the text has their tracebacks. What the others came to is written."""


class _Ended(NamedTuple):
    """How a unit ended; a traceback travels as text, since not every error can be sent between processes."""

    missing: str = ""  # why its data or an extra is not there
    failed: str = ""  # the traceback


def reproduce(
    names: Sequence[str],
    *,
    quick: bool = False,
    seeds: int | None = None,
    out: str | Path = "results",
    progress: Callable[[Progress], None] | None = None,
    processes: int = 2,
    fresh: bool = False,
) -> dict[str, Document]:
    """Run the named experiments, or ``["all"]``, and return what was written of each.

    An experiment whose data or extra is missing is left out: its document says ``not run`` and why, and nothing of it
    is written; of one with several data sets, those that are there are used. After an interruption the same call goes
    on where it stopped. A unit that fails stops no other study: all others are summarised, and then what failed is
    raised, each error with its unit.

    Args:
        names: Of experiments, see ``registry.EXPERIMENTS``.
        quick: Small sizes and two seeds: the same code, not the same figures.
        seeds: How many seeds; by default each experiment's own number.
        out: Folder of the results.
        progress: Called after every unit.
        processes: Units that run at once; 1 runs them in this process.
        fresh: Forget units that were finished before.
    """
    start, chosen, folder = time.perf_counter(), find(names), Path(out) / "quick" if quick else Path(out)
    for module in ("altair", "vl_convert"):
        need(module)  # rather now than after the work
    jobs = [job for experiment in chosen for job in _jobs(experiment, folder, quick=quick, seeds=seeds)]
    waiting = [job for job in jobs if fresh or job.saved() is None]
    missing, failed = _run(waiting, len(jobs), processes, progress or (lambda _: None))
    command = " --quick" * quick + (f" --seeds {seeds}" if seeds else "")
    documents = {}
    for experiment in chosen:
        own = [job for job in jobs if job.experiment is experiment]
        if any(job.path in failed for job in own):
            continue
        done = [job for job in own if job.path not in missing]
        if done:
            documents[experiment.name] = _summarise(
                experiment, done, folder, f"python -m research {experiment.name}{command}"
            )
        else:
            why = missing[own[0].path]
            documents[experiment.name] = {"name": experiment.name, "held": "not run", "verdict": why}
    if "all" in names and len(waiting) == len(jobs):
        minutes = round((time.perf_counter() - start) / 60, 1)
        run = {"minutes": minutes, "processes": processes, "units": len(jobs), "failed": len(failed)}
        save(folder / RUN, json.dumps(run) + "\n")
    if failed:
        told = "\n".join(failed.values())
        raise UnitsFailed(f"{told}\nunits: {len(failed)} failed, see above; all others are kept, so call it again")
    return documents


def _jobs(experiment: Experiment, folder: Path, *, quick: bool, seeds: int | None) -> list[_Job]:
    code = code_version(f"research.{experiment.module}")
    units = experiment.load().units(quick, seeds if seeds else QUICK_SEEDS if quick else None)
    return [_Job(experiment, unit, folder / experiment.name / f"{_slug(unit)}.json", code) for unit in units]


def _slug(unit: Unit) -> str:
    plain = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in unit.setting)
    return f"{plain}-seed{unit.seed}"


def _run(
    jobs: list[_Job], total: int, processes: int, progress: Callable[[Progress], None]
) -> tuple[dict[Path, str], dict[Path, str]]:
    # Runs the jobs; by path, why the data or extra of one is missing, and the traceback of one that failed.
    missing, failed = dict[Path, str](), dict[Path, str]()
    todo, spent, start = sum(job.unit.cost for job in jobs), 0.0, time.perf_counter()
    progress(Progress("", total - len(jobs), total, None if jobs else 0.0))
    for done, (job, ended) in enumerate(_outcomes(jobs, processes), start=total - len(jobs) + 1):
        spent += job.unit.cost
        if ended.missing:
            missing[job.path] = ended.missing
        if ended.failed:
            failed[job.path] = f"{job.experiment.name}, {job.unit}:\n{ended.failed}"
        left = (time.perf_counter() - start) * (todo - spent) / spent
        progress(Progress(job.experiment.name, done, total, left, len(failed)))
    return missing, failed


def _outcomes(jobs: list[_Job], processes: int) -> Iterator[tuple[_Job, _Ended]]:
    # Each job with how it ended, as it does.
    if processes == 1 or len(jobs) < 2:
        with _one_thread():
            for job in jobs:
                yield job, _work(job)
        return
    # Spawned, since forking a process that has used torch's threads can hang. Each has one thread in every library:
    # LightGBM's would wait for each other by spinning, since all cores are taken.
    with _environment("OMP_NUM_THREADS", "1"):
        pool = ProcessPoolExecutor(
            min(processes, len(jobs)), mp_context=get_context("spawn"), initializer=_start_worker
        )
        try:
            of: dict[Future[_Ended], _Job] = {pool.submit(_work, job): job for job in jobs}
            for future in as_completed(of):
                yield of[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a word; finished units are saved, this one is not
    torch.set_num_threads(1)


def _work(job: _Job) -> _Ended:
    # Runs a unit and saves its numbers.
    start, cpu = time.perf_counter(), _cpu_seconds()
    try:
        numbers = job.experiment.load().run_unit(job.unit)
    except (DataAbsent, MissingExtra) as error:
        return _Ended(missing=str(error))
    except Exception:  # of any kind: hours of other units are not lost for it
        return _Ended(failed=traceback.format_exc())
    document = {
        "unit": asdict(job.unit),
        "numbers": numbers,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(_cpu_seconds() - cpu, 2),
        "code": job.code,
    }
    save(job.path, json.dumps(document) + "\n")
    return _Ended()


def _cpu_seconds() -> float:
    return sum(os.times()[:4])  # of this process and of those that it waited for


def save(path: Path, text: str) -> None:
    """Write a file in one step: an interrupted run leaves the old one whole, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _summarise(experiment: Experiment, jobs: list[_Job], folder: Path, command: str) -> Document:
    saved = [json.loads(job.path.read_text()) for job in jobs]
    finished = [Finished(job.unit, one["numbers"]) for job, one in zip(jobs, saved, strict=True)]
    result = experiment.load().summarise(finished)
    document = {
        "name": experiment.name,
        "title": experiment.title,
        "claim": experiment.claim,
        "paper": experiment.paper,
        **_plain(result),
        "command": command,
        "seeds": sorted({job.unit.seed for job in jobs}),
        "seconds": round(sum(one["seconds"] for one in saved), 1),
        "cpu_seconds": round(sum(one["cpu_seconds"] for one in saved), 1),
        "version": version("isolayer"),
        "picture": None,
    }
    picture = experiment.chart(result.series)
    if picture is not None:
        document["picture"] = f"{experiment.name}.png"
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / str(document["picture"]), scale_factor=2)
    save(folder / f"{experiment.name}.json", json.dumps(document, indent=1) + "\n")
    save(folder / f"{experiment.name}.md", table(document) + "\n")
    return document


def _plain(result: Result) -> Document:
    rows = [{**asdict(row), "ours": row.ours._asdict()} for row in result.rows]
    parts = [
        {"says": part.says, "must": part.must, "held": part.held, **part.estimate._asdict(), "unit": part.unit}
        for part in result.parts
    ]
    series = dict(result.series)
    said = {"held": result.held, "verdict": result.verdict, "note": result.note}
    return {**said, "rows": rows, "parts": parts, "series": series}
