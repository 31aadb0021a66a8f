"""A million contexts: the size of the artefact, the time to the first prediction, and memory and time of the fit.

The rows are spread over the contexts as ``(u^2)`` of a uniform u, so that most have a dozen or two; they are written to
a temporary Parquet file. Fitting, DuckDB's own GROUP BY of the same keys and bins, and loading each run in a process of
their own, so that the peak memory is theirs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import Row, best_time, peak_gigabytes, progress, quick

CHUNK = 1_000_000


def write_rows(path: Path, rows: int, contexts: int) -> None:
    rng = np.random.default_rng(0)
    shift = rng.normal(0, 0.5, contexts)
    schema = pa.schema({"segment": pa.int32(), "score": pa.float64(), "label": pa.int8()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            size = min(CHUNK, rows - start)
            segment = (contexts * rng.random(size) ** 2).astype(np.int32)
            score = rng.normal(-3, 1.5, size)
            label = rng.random(size) < 1 / (1 + np.exp(-0.8 * score - shift[segment]))
            writer.write_table(pa.table([segment, score, label.astype(np.int8)], schema=schema))


def fit(path: str) -> dict[str, float]:
    from isolayer import Grid
    from isolayer.calibrator import IsotonicCalibrator

    start = time.perf_counter()
    curves = IsotonicCalibrator(("segment",), grid=Grid()).fit_table(path).curves_
    seconds = time.perf_counter() - start
    folder = Path(path).parent
    curves.save(folder / "curves.parquet")
    peak = peak_gigabytes()
    curves.to_onnx(folder / "curves.onnx")
    return {"seconds": seconds, "gigabytes": peak}


def group(path: str) -> dict[str, float]:
    from benchmarks.tables import group as group_by

    start = time.perf_counter()
    group_by(path)
    return {"seconds": time.perf_counter() - start}


def load(path: str) -> dict[str, float]:
    """Seconds to the first prediction, of packed curves against the same as a whole table, and of single rows."""
    from isolayer import Curves

    rng = np.random.default_rng(1)
    start = time.perf_counter()
    curves = Curves.load(Path(path).parent / "curves.parquet")
    curves.predict_proba([-1.0], {"segment": [7]})
    seconds = time.perf_counter() - start
    rows = 100_000
    score, segment = rng.normal(-3, 1.5, rows), rng.choice(curves.keys[1][0], rows)
    place = curves.rows_of({"segment": segment}, rows)
    light = best_time(lambda: curves.predict_proba(score, {"segment": segment}), times=10)
    read = best_time(lambda: curves.evaluate(place, score), times=10)
    from dataclasses import replace

    whole = replace(curves, values=np.asarray(curves.values))
    dense = best_time(lambda: whole.predict_proba(score, {"segment": segment}), times=10)
    ids = segment[:1000].tolist()
    return {"seconds": seconds, "light": light, "read": read, "dense": dense, **single_rows(curves, ids)}


def single_rows(curves, ids: list[int]) -> dict[str, float]:
    """Seconds per call with one row: of ``predict_proba`` with arrays of length 1, and of a scorer."""
    scorer = curves.scorer()
    arrays = best_time(lambda: [curves.predict_proba([-1.0], {"segment": [one]}) for one in ids], times=5)
    plain = best_time(lambda: [scorer(-1.0, {"segment": one}) for one in ids], times=5)
    return {"one_row": arrays / len(ids), "scorer": plain / len(ids)}


TASKS = {task.__name__: task for task in (fit, group, load)}


def alone(task: str, path: Path) -> dict[str, float]:
    progress(f"million: {task}")
    command = [sys.executable, "-m", "benchmarks.million", task, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run() -> list[Row]:
    rows, contexts = (1_000_000, 50_000) if quick() else (20_000_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_rows(path, rows, contexts)
        fitted, own, loaded = alone("fit", path), alone("group", path), alone("load", path)
        size, onnx = ((Path(folder) / name).stat().st_size / 1e6 for name in ("curves.parquet", "curves.onnx"))
    scale, name = contexts / 1e6, f"{contexts:,} contexts"
    ratio, slower = fitted["seconds"] / own["seconds"], loaded["light"] / loaded["dense"]
    times = f"{ratio:.2f}x ({fitted['seconds']:.3g} s, {own['seconds']:.3g} s)"
    return [
        Row(f"artefact, {name}", f"<= {120 * scale:g} MB", f"{size:.0f} MB", size <= 120 * scale),
        Row(f"ONNX model, {name}", f"<= {120 * scale:g} MB", f"{onnx:.0f} MB", onnx <= 120 * scale),
        Row(f"load and predict once, {name}", "<= 2 s", f"{loaded['seconds']:.2f} s", loaded["seconds"] <= 2),
        Row("fit_table, peak memory", "<= 1.5 GB", f"{fitted['gigabytes']:.2f} GB", fitted["gigabytes"] <= 1.5),
        Row(f"fit_table, {rows // 1_000_000}M rows, {name}", "<= 2x DuckDB's own GROUP BY", times, ratio <= 2),
        Row("predict, packed against whole", "<= 1x", f"{slower:.2f}x", slower <= 1),
        Row(f"1 row, predict_proba against a scorer, {name}", "", _single(loaded["one_row"], loaded["scorer"])),
    ]


def _single(arrays: float, scorer: float) -> str:
    """Two times per call in words.

    >>> _single(80e-6, 4e-6)
    '20x (80.0 us, 4.0 us)'
    """
    return f"{arrays / scorer:.0f}x ({arrays * 1e6:.1f} us, {scorer * 1e6:.1f} us)"


if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](sys.argv[2])))
