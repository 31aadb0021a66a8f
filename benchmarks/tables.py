"""Logs where they live: fitting and applying curves in DuckDB against DuckDB by itself, and ONNX against numpy.

The rows are Zipf(1.1) over 10,000 contexts, written to a temporary Parquet file. What is compared runs in turns in one
process of its own with all cores; peak memory is that of another, which only fits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import Row, best_time, peak_gigabytes, progress, quick

CONTEXTS = 10_000
CHUNK = 1_000_000
TURNS = 3


def write_rows(path: Path, rows: int, *, seed: int = 0) -> None:
    """A log of scores, each context's distorted in its own way."""
    rng = np.random.default_rng(seed)
    share = np.cumsum(np.arange(1, CONTEXTS + 1) ** -1.1)
    name, shift = rng.permutation(CONTEXTS).astype(np.int32), rng.normal(0, 0.5, CONTEXTS)
    schema = pa.schema({"segment": pa.int32(), "score": pa.float64(), "label": pa.int8()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            size = min(CHUNK, rows - start)
            segment = name[np.searchsorted(share / share[-1], rng.random(size))]
            score = rng.normal(-3, 1.5, size)
            label = rng.random(size) < 1 / (1 + np.exp(-0.8 * score - shift[segment]))
            columns = [segment, score, label.astype(np.int8)]
            writer.write_table(pa.table(columns, schema=schema))


def fit(path: str) -> object:
    from isolayer.calibrator import IsotonicCalibrator

    return IsotonicCalibrator(("segment",)).fit_table(path).curves_


def group(path: str) -> object:
    """DuckDB's own GROUP BY of the same bins, fetched as the fit fetches it."""
    import duckdb

    return duckdb.connect().sql(f"""
        SELECT segment, CAST(floor(least(greatest((score + 17.0) * 20.0, -1.0), 500.0)) AS INTEGER) + 1 AS bin,
               count(*) AS count, sum(label) AS positive, sum(score) AS logit
        FROM '{path}' GROUP BY ALL""").to_arrow_table()  # fmt: skip


def apply(path: str) -> object:
    from isolayer.curves.curves import Curves
    from isolayer.tables.apply import apply_table

    folder = Path(path).parent
    return apply_table(Curves.load(folder / "curves.parquet"), path).to_parquet(folder / "applied.parquet")


def copy(path: str) -> object:
    import duckdb

    return duckdb.connect().execute(f"COPY (SELECT * FROM '{path}') TO '{path}.copy' (FORMAT parquet)").fetchall()


def in_turns(path: str, *calls: Callable[[str], object]) -> list[float]:
    """Seconds of the quickest of several turns of each call."""
    seconds = [[] for _ in calls]
    for _ in range(TURNS):
        for call, some in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call(path)
            some.append(time.perf_counter() - start)
    return [min(some) for some in seconds]


def alone(task: str, path: Path) -> dict[str, float]:
    """Run a task of `TASKS` in a process of its own."""
    progress(f"tables: {task}")
    command = [sys.executable, "-m", "benchmarks.tables", task, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def fit_and_group(path: str) -> dict[str, float]:
    seconds, own = in_turns(path, fit, group)
    return {"seconds": seconds, "own": own}


def apply_and_copy(path: str) -> dict[str, float]:
    seconds, own = in_turns(path, apply, copy)
    return {"seconds": seconds, "own": own}


def fit_once(path: str) -> dict[str, float]:
    fit(path).save(Path(path).parent / "curves.parquet")
    return {"gigabytes": peak_gigabytes()}


TASKS = {task.__name__: task for task in (fit_once, fit_and_group, apply_and_copy)}


def equal_fits(path: Path) -> float:
    """Largest difference in probability between fits of the same rows from the table and from arrays."""
    from isolayer.calibrator import IsotonicCalibrator
    from isolayer.curves.evaluation import prob_of

    rows = pq.read_table(path).slice(0, 500_000)
    there = IsotonicCalibrator(("segment",)).fit_table(rows).curves_
    here = IsotonicCalibrator(("segment",)).fit(rows.drop_columns("label"), rows["label"].to_numpy()).curves_
    return float(np.abs(prob_of(there.values) - prob_of(here.values)).max())


def serving(path: Path) -> tuple[float, float, float]:
    """Median seconds of onnxruntime for one row, and the best of it and of numpy for 8192 rows."""
    from isolayer.curves.curves import Curves
    from isolayer.curves.export.onnx import session

    curves = Curves.load(path.parent / "curves.parquet")
    curves.to_onnx(path.parent / "curves.onnx")
    model = session(path.parent / "curves.onnx")
    rows = pq.read_table(path).slice(0, 8192)
    feed = {"score": rows["score"].to_numpy(), "segment": rows["segment"].to_numpy().astype(np.int64)}
    one = {name: column[:1] for name, column in feed.items()}
    times = []
    for _ in range(3000):
        start = time.perf_counter()
        model.run(None, one)
        times.append(time.perf_counter() - start)
    batch = best_time(lambda: model.run(None, feed), times=100)
    numpy = best_time(lambda: curves.predict_proba(feed["score"], {"segment": feed["segment"]}), times=100)
    return float(np.median(times)), batch, numpy


def run() -> list[Row]:
    rows = 2_000_000 if quick() else 20_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        progress(f"tables: writes {rows:,} rows")
        write_rows(path, rows)
        memory = alone("fit_once", path)["gigabytes"]
        fitted, applied = alone("fit_and_group", path), alone("apply_and_copy", path)
        progress("tables: equal fits, ONNX")
        difference, (one, batch, numpy) = equal_fits(path), serving(path)
    size = f"{rows // 1_000_000}M rows, {CONTEXTS:,} contexts"
    return [
        _against(f"fit_table, {size}", "DuckDB's own GROUP BY", fitted, 1.5),
        Row("fit_table, peak memory", "< 4 GB", f"{memory:.2f} GB", memory < 4),
        _against(f"apply_table to Parquet, {size}", "DuckDB copying it", applied, 3.0),
        Row("fit_table against fit, probability", "<= 1e-9", f"{difference:.1e}", difference <= 1e-9),
        Row("onnxruntime, 1 row, p50", "< 100 us", f"{one * 1e6:.0f} us", one < 1e-4),
        _against("onnxruntime, 8192 rows", "numpy predict", {"seconds": batch, "own": numpy}, 2.0),
    ]


def _against(name: str, other: str, found: dict[str, float], most: float) -> Row:
    ratio = found["seconds"] / found["own"]
    measured = f"{ratio:.2f}x ({found['seconds']:.3g} s, {found['own']:.3g} s)"
    return Row(name, f"<= {most:g}x {other}", measured, ratio <= most)


if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](sys.argv[2])))
