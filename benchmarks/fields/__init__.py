"""Calibrators given every field: ``python -m benchmarks fields [--tasks=PART] [--quick] [--docs]``.

Log loss, ECE and multicalibration error against MCGrad and LightGBM on tasks with many fields, on KuaiRand also for
users that no row to fit has; draws of 1,000 and 4,000 rows against the global curve; inversions in the score. Results
go to the console and to ``results/fields.json``, with ``--docs`` also to docs/choosing.md; finished units are kept
under ``data/real/units``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row, between_marks, progress, quick
from benchmarks.fields import peers
from benchmarks.fields.peers import METHODS
from benchmarks.fields.scale import FIELDS, ROWS, measured
from benchmarks.fields.tasks import NAMES, Part
from benchmarks.fields.units import SIZES, loaded_task, run_method
from benchmarks.real import tables
from benchmarks.real.units import OURS, Found
from isolayer.errors import InputError
from research.datasets import DataAbsent

INVERSION_ROWS, INVERSION_SCORES = 500, 41
GUARD = 2e-4
DOCS = Path("docs/choosing.md")
_PEERS = ("LightGBM, init score, monotone", "MCGrad")


def run(options: Sequence[str] = ()) -> list[Row]:
    """Every figure that can be measured with the calibrator as it is."""
    part, small, docs = _parse(options)
    results: dict[str, dict[str, Found]] = {}
    for task in (name for name in NAMES if part in name):
        try:
            results[task] = {name: run_method(task, name, small) for name in METHODS}
        except DataAbsent as error:
            progress(f"{task} is left out. {error}")
    print(_table(results))
    path = Path("results/fields.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    rows = [*_peer_rows(results), *_mean_rows(results), *_small_rows(results)]
    rows += [*_inversion_rows(list(results)), *_scale_rows()]
    if docs:
        between_marks(DOCS, "python -m benchmarks fields --docs", _docs(results, rows))
    return rows


def _parse(options: Sequence[str]) -> tuple[str, bool, bool]:
    part, small, docs = "", quick(), False
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name not in ("tasks", "quick", "docs"):
            raise InputError(f"fields: expected --tasks=PART, --quick or --docs, got {option}; choose one")
        part, small, docs = value if name == "tasks" else part, small or name == "quick", docs or name == "docs"
    return part, small, docs


def _docs(results: tables.Results, rows: Sequence[Row]) -> list[str]:
    """Log loss of every task beside the peers', and the other figures, as Markdown."""
    lines = [f"| log loss | one curve | {' | '.join(_PEERS)} | every field | minus {' | minus '.join(_PEERS)} |"]
    lines.append("|---" * 7 + "|")
    for task, found in results.items():
        levels = (f"{found[name]['0/0/']['log_loss'][0]:.4f}" for name in ("isolayer, score only", *_PEERS, OURS))
        gaps = (tables.against(results, task, peer, "log_loss") for peer in _PEERS)
        told = (f"{gap.difference:+.4f} +- {gap.upper - gap.difference:.4f}" for gap in gaps)
        lines.append(f"| {task} | {' | '.join([*levels, *told])} |")
    lines += ["", "| figure | target | measured |", "|---|---|---|"]
    return lines + [f"| {row.name} | {row.target} | {row.measured} |" for row in rows if "log loss" not in row.name]


def inversions(prob: Any) -> int:
    """How often probabilities fall along the last axis.

    >>> inversions(np.array([[0.1, 0.2, 0.15], [0.1, 0.1, 0.3]]))
    1
    """
    return int((np.diff(prob, axis=-1) < -1e-12).sum())


def _table(results: tables.Results) -> str:
    metrics = ("log_loss", "ece", "oe", "mce")
    head = ["task", "method", *metrics, "seconds"]
    body = [
        [task, name, *(f"{found['0/0/'][m][0]:.5f}" for m in metrics), f"{found['0/0/']['seconds']:.1f}"]
        for task, by_method in results.items()
        for name, found in by_method.items()
    ]
    return tables.aligned([head, *body])


def _peer_rows(results: tables.Results) -> Iterator[Row]:
    for peer in _PEERS:
        found = [tables.against(results, task, peer, "log_loss") for task in results if peer in results[task]]
        if found:
            each = (
                f"{one.task} {one.difference * 1e5:+.0f} +-{(one.upper - one.difference) * 1e5:.0f}" for one in found
            )
            ok = not any(one.lost for one in found)
            yield Row(f"log loss minus {peer}, x1e-5", "<= 0 on every task", "; ".join(each), ok)


def _mean_rows(results: tables.Results) -> Iterator[Row]:
    known = [task for task in results if "MCGrad" in results[task]]
    for metric in ("ece", "mce"):
        own, other = (np.mean([results[t][name]["0/0/"][metric][0] for t in known]) for name in (OURS, "MCGrad"))
        yield Row(f"mean {metric} over tasks", "<= MCGrad's", f"{own:.5f} against {other:.5f}", bool(own <= other))


def _small_rows(results: tables.Results) -> Iterator[Row]:
    for size in SIZES:
        found = [tables.against(results, task, "isolayer, score only", "log_loss", size) for task in results]
        worst = max(found, key=lambda one: one.difference)
        measured = f"{worst.difference * 1e4:+.1f}e-4 +-{(worst.upper - worst.difference) * 1e4:.1f}e-4 ({worst.task})"
        yield Row(f"{size:,} rows: worst minus the global curve", "<= 2e-4", measured, worst.difference <= GUARD)


def _inversion_rows(tasks: Sequence[str]) -> Iterator[Row]:
    fallen = 0
    for task in tasks:
        loaded, _, _ = loaded_task(task)
        some = loaded.test[np.repeat(np.arange(min(INVERSION_ROWS, len(loaded.test))), INVERSION_SCORES)]
        ends = loaded.fit.rows.score.min() - 1, loaded.fit.rows.score.max() + 1
        score = np.tile(np.linspace(*ends, INVERSION_SCORES), len(some) // INVERSION_SCORES)
        rows = type(some.rows)(score, some.rows.label, some.rows.segments, some.rows.segment, some.rows.cluster)
        prob = peers.ours(loaded.fit, Part(rows, some.frame))
        fallen += inversions(prob.reshape(-1, INVERSION_SCORES))
    yield Row("inversions in the score at fixed fields", "0", str(fallen), fallen == 0)


def _scale_rows() -> Iterator[Row]:
    found = measured()
    task = f"{ROWS:,} rows x {FIELDS} fields"
    for name, key, most in (("fit, seconds", "seconds", 8), ("predict, us a row", "microseconds", 5)):
        yield Row(f"{task}: {name}", f"<= {most}", f"{found[key]:.2f}", found[key] <= most)
    yield Row(f"{task}: peak memory", "<= 1 GB", f"{found['gigabytes']:.2f} GB", found["gigabytes"] <= 1)
