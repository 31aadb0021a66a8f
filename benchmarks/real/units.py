"""Units of work: one method on one draw of one task; finished ones are kept, so that a run resumes where it ended.

What is kept is a JSON file for each task, method and version of the code. The version of our calibrator follows its
sources, that of a peer the sources of the peers: editing the calibrator runs the calibrator again and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import isolayer
from benchmarks.real.judge import RESAMPLES, Judge
from benchmarks.real.peers import PEERS, Method
from benchmarks.real.tasks import Rows, Task, folder, load
from isolayer.calibrator import IsotonicCalibrator

OURS = "isolayer"
FULL = "full"
SIZES = {200: 40, 1_000: 20, 5_000: 8}  # rows to fit, and how many draws of them
SCALES = {"x 3 - 1": (3.0, -1.0), "x 0.05": (0.05, 0.0), "+ 20": (1.0, 20.0)}
SCALED_METHODS = (OURS, "Platt", "beta", "temperature", "hierarchical Platt")  # the others do not see the unit
SLOW = ("MCGrad",)  # on all rows only
FEW_TEST_ROWS = 20_000  # to judge draws of few rows on
LEAST_EVENTS = 5  # expected events (and non-events) of a draw; sizes below are left out
_OURS_FROM = ("fitting/*.py", "curves/*.py", "calibrator.py", "grid.py", "storage.py")
_PEERS_FROM = ("lines.py", "peers.py", "trees.py")
_ALL_FROM = ("judge.py", "units.py")
Found = dict[str, dict[str, Any]]


@dataclass(frozen=True, order=True)
class Unit:
    """A draw of a task: how many rows (0: all), which draw, and the scale of the score (empty: as it is)."""

    size: int = 0
    draw: int = 0
    scale: str = ""

    @property
    def key(self) -> str:
        """Its name in the file of finished units."""
        return f"{self.size}/{self.draw}/{self.scale}"


def methods() -> list[str]:
    """Ours first, then the peers."""
    return [OURS, *PEERS]


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


def run_method(task: str, method: str, *, quick: bool = False) -> Found:
    """Metrics of every unit of a method on a task, as far as they are not kept from before."""
    path = folder() / "units" / f"{task.replace(' ', '_')}--{method.replace(' ', '_')}--{version(method)}.json"
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    asked = list(units(method, quick=quick))
    missing = [unit for unit in asked if unit.key not in found]
    if missing:
        loaded, judges = _loaded(task)
        for unit in missing:
            known = possible(loaded.fit, unit.size)
            found[unit.key] = _measure(loaded, judges[unit.size > 0], METHODS[method], unit) if known else {}
        _save(found, path)
    return {unit.key: found[unit.key] for unit in asked if found[unit.key]}


def possible(rows: Rows, size: int) -> bool:
    """Whether draws of so many rows are smaller than the task and have events enough of both kinds."""
    rate = rows.label.mean()
    return not size or (size < len(rows) and size * min(rate, 1 - rate) >= LEAST_EVENTS)


def drawn(task: Task, unit: Unit) -> Rows:
    """The unit's rows to fit, in the unit's scale: the same for every method, with two rows of each class or more."""
    rng = np.random.default_rng([zlib.crc32(task.name.encode()), unit.size, unit.draw])
    rows = np.arange(len(task.fit))
    while unit.size:
        rows = rng.choice(len(task.fit), unit.size, replace=False)
        if 2 <= task.fit.label[rows].sum() <= unit.size - 2:
            break
    return scaled(task.fit[rows], unit.scale)


def scaled(rows: Rows, scale: str) -> Rows:
    """Rows with their scores on another scale."""
    factor, shift = SCALES.get(scale, (1.0, 0.0))
    return Rows(rows.score * factor + shift, rows.label, rows.segments, rows.segment, rows.cluster)


@cache
def version(method: str) -> str:
    """A hash of the sources that a method's figures depend on."""
    here, package = Path(__file__).parent, Path(str(isolayer.__file__)).parent
    names = [here / name for name in (*_ALL_FROM, "tasks.py", "kuairand.py", "flights.py")]
    own = [package.glob(p) for p in _OURS_FROM] if method == OURS else [here.glob(p) for p in _PEERS_FROM]
    files = [*names, *sorted(path for found in own for path in found)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:10]


def _ours(fit: Rows, test: Rows) -> Any:
    model = IsotonicCalibrator(tuple(fit.segments)).fit(fit.frame(), fit.label)
    return model.predict_proba(test.frame())[:, 1]


METHODS: dict[str, Method] = {OURS: _ours, **PEERS}


@lru_cache(1)
def _loaded(task: str) -> tuple[Task, tuple[Judge, Judge]]:
    # test rows are in random order, so the first ones are a sample
    loaded = load(task)
    return loaded, (Judge(loaded.test, RESAMPLES), Judge(loaded.test[:FEW_TEST_ROWS], 0))


def _measure(task: Task, judge: Judge, method: Method, unit: Unit) -> dict[str, Any]:
    fit, test = drawn(task, unit), scaled(task.test[: len(judge.label)], unit.scale)
    start = time.perf_counter()
    prob = method(fit, test)
    return {**judge(prob), "seconds": time.perf_counter() - start, "rows": len(fit)}


def _save(found: Found, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(path)
