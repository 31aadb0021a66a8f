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
from collections.abc import Iterator, Sequence
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
_JUDGED_FROM = ("draws.py", "judge.py")
Found = dict[str, dict[str, Any]]


def methods() -> list[str]:
    """Ours first, then the peers; MCGrad where it is installed (``pip install 'isolayer[peers]'``)."""
    return list(METHODS)


def units(method: str, *, quick: bool = False) -> Iterator[Unit]:
    """Every unit of a method, all rows first."""
    yield Unit()
    if method in SLOW:
        return
    scales = ["", *(SCALES if method in SCALED_METHODS else ())]
    yield from (Unit(scale=scale) for scale in scales[1:])
    for size, draws in SIZES.items():
        for draw in range(3 if quick else draws):
            yield from (Unit(size, draw, scale) for scale in (scales if size == min(SIZES) else [""]))


def run_method(task: str, method: str, *, quick: bool = False, asked: Sequence[Unit] | None = None) -> Found:
    """Metrics of a method on a task for the units asked for (by default all); those kept from before are not run."""
    name = f"{task}--{table_of(task).stem[-8:]}--{method}--{version(method)}.json"
    path = folder() / "units" / name.replace(" ", "_")
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    asked = list(asked or units(method, quick=quick))
    missing = [unit for unit in asked if unit.key not in found]
    if missing:
        loaded, judges = _loaded(task)
        for unit in missing:
            known = possible(loaded.fit, unit.size)
            found[unit.key] = _measure(loaded, judges[unit.size > 0], METHODS[method], unit) if known else {}
        save(found, path)
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
def _loaded(task: str) -> tuple[Task, tuple[Judge, Judge]]:
    # test rows are in random order, so the first ones are a sample
    loaded = load(task)
    return loaded, (Judge(loaded.test, RESAMPLES), Judge(loaded.test[:FEW_TEST_ROWS], 0))


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
