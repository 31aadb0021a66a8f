"""A log of many fields by simulation: time and memory of a fit with every field, and segments planted for an audit.

``python -m benchmarks.fields.scale`` prints the figures of one fit, measured in this process and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import peak_gigabytes
from benchmarks.real.lines import prob_of
from isolayer.calibrator import IsotonicCalibrator

ROWS, FIELDS = 400_000, 15
PLANTED_ROWS, PLANTED_FIELDS, PLANTED_VALUES, PLANTED_FACTOR = 300_000, 15, 10, 1.3


def simulated(rows: int = ROWS, fields: int = FIELDS, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    """A frame of a score and fields, a third of them numeric, and labels that depend on some fields and one pair.

    >>> frame, label = simulated(1000, 6)
    >>> frame.shape, sorted(set(label.tolist()))
    ((1000, 7), [0, 1])
    """
    rng = np.random.default_rng(seed)
    score = rng.normal(-2, 1.2, rows)
    columns: dict[str, Any] = {}
    effect = np.zeros(rows)
    for i in range(fields):
        if i % 3 == 0:
            columns[f"number_{i}"] = rng.normal(0, 1, rows)
            effect += 0.2 * np.sin(columns[f"number_{i}"] * i)
        else:
            levels = int(10 ** rng.uniform(0.5, 2.5))
            code = rng.integers(0, levels, rows)
            columns[f"text_{i}"] = np.array([f"v{k}" for k in range(levels)])[code]
            effect += (0.2 * rng.standard_normal(levels))[code]
    label = (rng.random(rows) < prob_of(0.9 * score + effect)).astype(np.int64)
    return pd.DataFrame({**columns, "score": score}), label


def planted(
    seed: int = 0, *, off: int = 3, factor: float = PLANTED_FACTOR
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """A calibrated log but for a few pairs of values whose odds are off by a factor, and those pairs.

    Of 15 fields of ten values each there are 10,500 pairs of values. ``off=0`` is a clean log.

    >>> frame, pairs = planted(off=3)
    >>> len(frame), len(pairs), sorted(frame)[-2:]
    (300000, 3, ['label', 'score'])
    """
    rng = np.random.default_rng([seed, off])
    code = rng.integers(0, PLANTED_VALUES, (PLANTED_ROWS, PLANTED_FIELDS))
    score = rng.normal(-2, 1, PLANTED_ROWS)
    logit = score.copy()
    pairs = []
    for _ in range(off):
        fields, values = rng.choice(PLANTED_FIELDS, 2, replace=False), rng.integers(0, PLANTED_VALUES, 2)
        logit[(code[:, fields] == values).all(1)] += np.log(factor)
        pairs.append({f"field_{f}": f"v{v}" for f, v in zip(fields, values, strict=True)})
    names = np.array([f"v{value}" for value in range(PLANTED_VALUES)])
    frame = pd.DataFrame({f"field_{i}": names[code[:, i]] for i in range(PLANTED_FIELDS)})
    label = (rng.random(PLANTED_ROWS) < prob_of(logit)).astype(np.int64)
    return frame.assign(score=score, label=label), pairs


def measured() -> dict[str, float]:
    """Seconds of the fit, microseconds of a predicted row and peak gigabytes, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fields.scale"]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def _one_fit() -> dict[str, float]:
    frame, label = simulated()
    settings: dict[str, Any] = {"fields": "all"}
    start = time.perf_counter()
    model = IsotonicCalibrator(**settings).fit(frame, label)
    fitted = time.perf_counter()
    model.predict_proba(frame)
    microseconds = (time.perf_counter() - fitted) / len(frame) * 1e6
    gigabytes = peak_gigabytes()
    return {"seconds": fitted - start, "microseconds": microseconds, "gigabytes": gigabytes}


if __name__ == "__main__":
    print(json.dumps(_one_fit()))
