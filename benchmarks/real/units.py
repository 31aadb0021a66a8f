"""Units of work: one method on one draw of one task; finished ones are kept, so that a run resumes where it ended.

What is kept is a JSON file for each task, method and version of the code. The version of our calibrator follows its
sources, that of a peer its own, and both follow the text that builds the task: editing the calibrator runs the
calibrator again and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import isolayer
from benchmarks.real.draws import FEW_TEST_ROWS, SCALES, SIZES, Unit, drawn, possible, scaled
from benchmarks.real.judge import RESAMPLES, Judge
from benchmarks.real.mcgrad import mcgrad
from benchmarks.real.peers import PEERS, Method
from benchmarks.real.tasks import Rows, Task, folder, load, table_of
from isolayer.calibrator import IsotonicCalibrator

OURS = "isolayer"
SCALED_METHODS = (OURS, "Platt", "beta")  # temperature has no shift to give; the others do not see the unit
MCGRAD = "MCGrad"
SLOW = (MCGRAD,)  # on all rows only
_OURS_FROM = ("fitting/*.py", "curves/*.py", "calibrator.py", "grid.py", "storage.py")
_PEER_FROM = {"lines": ("lines.py", "peers.py"), "peers": ("lines.py", "peers.py")}
_SAVE_EVERY = 10  # seconds
_JUDGED_FROM = ("draws.py", "judge.py")
Found = dict[str, dict[str, Any]]


def methods() -> list[str]:
    """Ours first, then the peers; MCGrad where it is installed (``pip install 'isolayer[peers]'``)."""
    return list(METHODS)


def units_of(method: str, size: int, draws: int | None = None) -> list[Unit]:
    """The units of a method with so many rows (0: all), at most so many draws of them."""
    scales = ["", *(SCALES if method in SCALED_METHODS and size in (0, min(SIZES)) else ())]
    if not size:
        return [Unit(scale=scale) for scale in scales]
    most = 0 if method in SLOW else min(draws or SIZES[size], SIZES[size])
    return [Unit(size, draw, scale) for draw in range(most) for scale in scales]


def run_method(task: str, method: str, asked: Sequence[Unit]) -> Found:
    """Metrics of a method on a task for the units asked for; those kept from before are not run.

    What is finished is saved every few seconds, so that a run that is stopped loses little.
    """
    name = f"{task}--{table_of(task).stem[-8:]}--{method}--{version(method)}.json"
    path = folder() / "units" / name.replace(" ", "_")
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    missing = [unit for unit in asked if unit.key not in found]
    saved = time.monotonic()
    for unit in missing:
        loaded, judge = _loaded(task, unit.size > 0)
        known = possible(loaded.fit, unit.size)
        found[unit.key] = _measure(loaded, judge, METHODS[method], unit) if known else {}
        if unit is missing[-1] or time.monotonic() - saved > _SAVE_EVERY:
            save(found, path)
            saved = time.monotonic()
    return {unit.key: found[unit.key] for unit in asked if found[unit.key]}


@cache
def version(method: str) -> str:
    """A hash of the sources that a method's figures depend on, the task's table aside."""
    here, package = Path(__file__).parent, Path(str(isolayer.__file__)).parent
    if method == OURS:
        own = sorted(path for pattern in _OURS_FROM for path in package.glob(pattern))
    else:
        module = METHODS[method].__module__.rsplit(".", 1)[-1]
        own = [here / name for name in _PEER_FROM.get(module, (f"{module}.py",))]
    files = [*own, *(here / name for name in _JUDGED_FROM)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:10]


def _ours(fit: Rows, test: Rows) -> Any:
    model = IsotonicCalibrator(tuple(fit.segments)).fit(fit.frame(), fit.label)
    return model.predict_proba(test.frame())[:, 1]


METHODS: dict[str, Method] = {OURS: _ours, **PEERS, **({MCGRAD: mcgrad} if find_spec("mcgrad") else {})}


@lru_cache(1)
def _loaded(task: str, few: bool) -> tuple[Task, Judge]:
    # test rows are in random order, so the first ones are a sample
    loaded = load(task)
    return loaded, Judge(loaded.test[:FEW_TEST_ROWS], 0) if few else Judge(loaded.test, RESAMPLES)


def _measure(task: Task, judge: Judge, method: Method, unit: Unit) -> dict[str, Any]:
    fit, test = drawn(task, unit), scaled(task.test[: len(judge.label)], unit.scale)
    start = time.perf_counter()
    prob = method(fit, test)
    seconds = time.perf_counter() - start
    return {**judge(prob), "seconds": seconds, "rows": len(fit)}


def save(found: dict[str, Any], path: Path) -> None:
    """Write JSON in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(path)
