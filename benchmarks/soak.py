"""Soak: scoring with ONNX and with numpy on two cores for ten minutes; memory stays flat, and how slow the slowest are.

``python -m benchmarks soak``; each of the two runs in a process of its own, so that they share nothing but the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import Row, progress, quick

CONTEXTS, BATCH = 1000, 256


def resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def soaked(ask, seconds: float) -> dict[str, float]:
    """Call for some time: latencies in a fixed histogram, and memory after a tenth of the time and at the end."""
    edges = np.geomspace(1e-6, 10, 2000)
    counts, calls = np.zeros(len(edges) + 1, np.int64), 0
    start = time.perf_counter()
    warm, begun = None, start
    while begun - start < seconds:
        ask(calls)
        now = time.perf_counter()
        counts[np.searchsorted(edges, now - begun)] += 1
        begun, calls = now, calls + 1
        if warm is None and now - start > seconds / 10:
            warm = resident()
    late = edges[min(int(np.searchsorted(np.cumsum(counts), 0.99 * calls)), len(edges) - 1)]
    return {"calls": calls, "p99": float(late), "growth": resident() - (warm or 0.0), "megabytes": resident()}


def prepared(folder: Path) -> None:
    from isolayer import Curves, Histogram

    rng = np.random.default_rng(0)
    shop, score = rng.integers(0, CONTEXTS, 100_000), rng.normal(-2, 1.5, 100_000)
    label = rng.random(100_000) < 1 / (1 + np.exp(-score - np.sin(shop)))
    curves = Curves.from_histogram(Histogram.from_arrays(score, label, {"shop": shop}))
    curves.save(folder / "curves.parquet")
    curves.to_onnx(folder / "curves.onnx")


def asking(kind: str, folder: Path):
    """A function that scores one of several batches."""
    rng = np.random.default_rng(1)
    batches = [(rng.normal(-2, 1.5, BATCH), rng.integers(0, CONTEXTS + 9, BATCH)) for _ in range(16)]
    if kind == "onnx":
        from isolayer.curves.export.onnx import session

        model = session(folder / "curves.onnx")
        feeds = [{"score": score, "shop": shop} for score, shop in batches]
        return lambda call: model.run(None, feeds[call % 16])
    from isolayer import Curves

    curves = Curves.load(folder / "curves.parquet")
    return lambda call: curves.predict_proba(batches[call % 16][0], {"shop": batches[call % 16][1]})


def run(seconds: float | None = None) -> list[Row]:
    seconds = seconds or (5.0 if quick() else 600.0)
    with tempfile.TemporaryDirectory() as folder:
        prepared(Path(folder))
        progress(f"soak: {seconds:g} s on two cores")
        command = [sys.executable, "-m", "benchmarks.soak"]
        jobs = [
            subprocess.Popen([*command, kind, folder, str(seconds)], stdout=subprocess.PIPE, text=True)
            for kind in ("onnx", "numpy")
        ]
        found = [json.loads(job.communicate()[0].splitlines()[-1]) for job in jobs]
    rows = list[Row]()
    for kind, one in zip(("onnxruntime", "numpy"), found, strict=True):
        memory = f"{one['growth']:+.1f} MB of {one['megabytes']:.0f}"
        rows.append(Row(f"soak, {kind}, memory after warming up", "<= +5 MB", memory, one["growth"] <= 5))
        late = f"{one['p99'] * 1e6:.0f} us, {one['calls']:,} calls"
        rows.append(Row(f"soak, {kind}, {BATCH} rows, p99", "", late))
    return rows


if __name__ == "__main__":
    print(json.dumps(soaked(asking(sys.argv[1], Path(sys.argv[2])), float(sys.argv[3]))))
