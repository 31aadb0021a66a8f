"""Calibrators given every field: ``python -m benchmarks fields [--tasks=PART] [--quick]``.

Log loss, ECE and multicalibration error against MCGrad and LightGBM on tasks with many fields, on KuaiRand also for
users that no row to fit has; draws of 1,000 and 4,000 rows against the global curve; inversions in the score. Results
go to the console and to ``results/fields.json``; finished units are kept under ``data/real/units``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import Row, progress, quick
from benchmarks.fields import peers
from benchmarks.fields.peers import METHODS, has_fields
from benchmarks.fields.scale import FIELDS, ROWS, measured
from benchmarks.fields.tasks import NAMES, FieldTask, Part, categorical, load, table_of
from benchmarks.real import tables
from benchmarks.real.draws import Unit
from benchmarks.real.judge import RESAMPLES, Judge
from benchmarks.real.tasks import folder
from benchmarks.real.units import OURS, Found, save, version
from isolayer.errors import InputError
from isolayer.metrics import multicalibration_error
from research.datasets import DataAbsent

SIZES = {1_000: 20, 4_000: 20}
SMALL_METHODS = (OURS, "isolayer, score only")
FEW_TEST_ROWS = 20_000
BINS = 10  # of a numeric field, as groups of the multicalibration error
INVERSION_ROWS, INVERSION_SCORES = 500, 41
GUARD = 2e-4


def run(options: Sequence[str] = ()) -> list[Row]:
    """Every figure that can be measured with the calibrator as it is."""
    part, small = _parse(options)
    if not has_fields():
        progress("the calibrator does not take fields yet: peers only")
    results: dict[str, dict[str, Found]] = {}
    for task in (name for name in NAMES if part in name):
        try:
            results[task] = {name: _run(task, name, small) for name in METHODS}
        except DataAbsent as error:
            progress(f"{task} is left out. {error}")
    print(_table(results))
    path = Path("results/fields.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    if not has_fields():
        return []
    rows = [*_peer_rows(results), *_mean_rows(results), *_small_rows(results)]
    return [*rows, *_inversion_rows(list(results)), *_scale_rows()]


def _parse(options: Sequence[str]) -> tuple[str, bool]:
    part, small = "", quick()
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name not in ("tasks", "quick"):
            raise InputError(f"fields: expected --tasks=PART or --quick, got {option}; choose one")
        part, small = (value, small) if name == "tasks" else (part, True)
    return part, small


def inversions(prob: Any) -> int:
    """How often probabilities fall along the last axis.

    >>> inversions(np.array([[0.1, 0.2, 0.15], [0.1, 0.1, 0.3]]))
    1
    """
    return int((np.diff(prob, axis=-1) < -1e-12).sum())


def groups(frame: pd.DataFrame) -> dict[str, Any]:
    """Every field as groups: text by value, numbers by ten bins of equal mass, missing values together."""
    text = categorical(frame)
    binned = {
        name: pd.qcut(frame[name], BINS, labels=False, duplicates="drop").fillna(-1).astype(int).astype(str)
        for name in frame
        if name not in text
    }
    return {
        **{name: frame[name].astype(object).where(frame[name].notna(), "missing").to_numpy(str) for name in text},
        **{name: column.to_numpy(str) for name, column in binned.items()},
    }


def _run(task: str, method: str, small: bool) -> Found:
    here = Path(__file__).parent
    text = b"".join((here / name).read_bytes() for name in ("__init__.py", "peers.py"))
    own = version(OURS) if method.startswith(OURS) else ""
    name = f"{table_of(task).stem}--{method}--{hashlib.sha256(text + own.encode()).hexdigest()[:10]}.json"
    path = folder() / "units" / name.replace(" ", "_")
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    asked = [Unit()]
    if method in SMALL_METHODS:
        asked += [Unit(size, draw) for size, draws in SIZES.items() for draw in range(3 if small else draws)]
    missing = [unit for unit in asked if unit.key not in found]
    if missing:
        progress(f"{task}: {method}")
    for unit in missing:
        found[unit.key] = _measure(*_loaded(task), method, unit)
        save(found, path)
    return {unit.key: found[unit.key] for unit in asked}


@lru_cache(1)
def _loaded(task: str) -> tuple[FieldTask, Judge, Judge]:
    loaded = load(task)
    few = loaded.test[np.arange(min(FEW_TEST_ROWS, len(loaded.test)))]
    return loaded, Judge(loaded.test.rows, RESAMPLES), Judge(few.rows, 0)


def _measure(task: FieldTask, judge: Judge, few: Judge, method: str, unit: Unit) -> dict[str, Any]:
    fit, test, judge = task.fit, task.test, few if unit.size else judge
    if unit.size:
        rng = np.random.default_rng([unit.size, unit.draw])
        fit = fit[rng.choice(len(fit), unit.size, replace=False)]
        test = test[np.arange(len(few.label))]
    start = time.perf_counter()
    prob = METHODS[method](fit, test)
    found: dict[str, Any] = {"seconds": time.perf_counter() - start, **judge(prob)}
    if not unit.size:
        found["mce"] = [multicalibration_error(label=test.rows.label, prob=prob, groups=groups(test.frame)).error]
    return found


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
    for peer in ("LightGBM, init score, monotone", "MCGrad"):
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
        loaded, _, _ = _loaded(task)
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
