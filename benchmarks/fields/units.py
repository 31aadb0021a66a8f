"""Units of the bench with fields: one method on one draw of one task; finished ones are kept, so that a run resumes.

What a unit depends on is this file, the methods, the judge and, for ours, the library. How figures are printed is not.
"""

from __future__ import annotations

import hashlib
import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import progress
from benchmarks.fields.peers import METHODS
from benchmarks.fields.tasks import FieldTask, categorical, load, table_of
from benchmarks.real import judge as judging
from benchmarks.real.draws import Unit
from benchmarks.real.judge import RESAMPLES, Judge
from benchmarks.real.tasks import folder
from benchmarks.real.units import OURS, Found, save, version
from isolayer.metrics import multicalibration_error

SIZES = {1_000: 20, 4_000: 20}
SMALL_METHODS = (OURS, "isolayer, score only")
FEW_TEST_ROWS = 20_000
BINS = 10  # of a numeric field, as groups of the multicalibration error


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


def run_method(task: str, method: str, small: bool) -> Found:
    """Metrics of a method on a task, on all rows and, for ours, on draws of few; those kept from before are not run."""
    sources = Path(__file__), Path(__file__).with_name("peers.py"), Path(str(judging.__file__))
    text = b"".join(path.read_bytes() for path in sources)
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
        found[unit.key] = _measure(*loaded_task(task), method, unit)
        save(found, path)
    return {unit.key: found[unit.key] for unit in asked}


@lru_cache(1)
def loaded_task(task: str) -> tuple[FieldTask, Judge, Judge]:
    """A task, its judge, and the judge of draws of few rows."""
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
