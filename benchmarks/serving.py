"""Online scoring from Python: one row at a time, alone and from sixteen threads, and an HTTP server on loopback."""

from __future__ import annotations

import contextlib
import io
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import Row, progress, quick

CONTEXTS = 1000


def scorer_and_rows():
    from isolayer import Curves, Histogram

    rng = np.random.default_rng(0)
    shop, score = rng.integers(0, CONTEXTS, 100_000), rng.normal(-2, 1.5, 100_000)
    label = rng.random(100_000) < 1 / (1 + np.exp(-score - np.sin(shop)))
    curves = Curves.from_histogram(Histogram.from_arrays(score, label, {"shop": shop}))
    rows = [(one, {"shop": other}) for one, other in zip(score[:4096].tolist(), shop[:4096].tolist(), strict=True)]
    return curves, curves.scorer(), rows


def times_of(scorer, rows, calls: int) -> np.ndarray:
    """Seconds of single calls."""
    found, clock = np.empty(calls), time.perf_counter
    for call in range(calls):
        score, context = rows[call % len(rows)]
        start = clock()
        scorer(score, context)
        found[call] = clock() - start
    return found


def run() -> list[Row]:
    calls = 5_000 if quick() else 50_000
    curves, scorer, rows = scorer_and_rows()
    progress("serving: one row at a time")
    turns = [times_of(scorer, rows, calls) for _ in range(5)]
    p50, p99 = (min(float(np.quantile(turn, q)) for turn in turns) for q in (0.5, 0.99))
    with ThreadPoolExecutor(16) as pool:
        start = time.perf_counter()
        list(pool.map(lambda _: times_of(scorer, rows, calls // 16), range(16)))
        rate = calls // 16 * 16 / (time.perf_counter() - start)
    answers = curves.predict_proba([row[0] for row in rows], {"shop": [row[1]["shop"] for row in rows]})
    worst = float(np.abs(np.array([scorer(*row) for row in rows]) - answers).max())
    progress("serving: HTTP")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(Path(__file__).parents[1] / "examples" / "serve_http.py"))
    heard = said.getvalue().strip()
    return [
        Row("scorer, 1 row, p50", "<= 10 us", f"{p50 * 1e6:.1f} us", p50 <= 10e-6),
        Row("scorer, 1 row, p99", "<= 50 us", f"{p99 * 1e6:.1f} us", p99 <= 50e-6),
        Row("scorer, 16 threads", "", f"{rate:,.0f} rows per second"),
        Row("scorer against predict_proba", "<= 2.3e-16", f"{worst:.1e}", worst <= 2.3e-16),
        Row("HTTP on loopback, artefact replaced meanwhile", "0 dropped", heard, " 0 dropped" in heard),
    ]
