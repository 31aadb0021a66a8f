"""Millions of segments: one calibrated curve per advertiser, end to end, from a Parquet log to held-out rows.

The design, stated before any run. The paper leaves curves for millions of sub-segments to future work. A million
advertisers share 20 million impressions by Zipf's law: the largest has more than a million, half have three or so.
Each advertiser shifts and bends the score in a way of its own, and the score is too steep for all of them. The log is
written to Parquet and read in batches, never as a whole; held-out rows, whose true probability is known, are drawn from
the same law. Each method is fitted in a process of its own, so that its memory is its own:

    raw score               as it is
    one curve               exact, for all advertisers together
    exact curves            `IsotonicCalibrator(("advertiser",)).fit_table`: the sums are made in DuckDB
    layer, rank 4           `ContextIsotonicLayer` with four numbers per advertiser over shared directions, sparse
                            gradients, one pass
    layer, rank 4, hashed   the same with ids hashed into 100,000 rows, so that about ten advertisers share one

Judged is the excess log loss, that of a prediction minus that of the true probability, on all held-out rows and by the
number of rows that an advertiser has in the log; and seconds and memory of fitting. MCGrad, which is made for many
segments, is asked for 10,000 advertisers where it is installed (extra ``peers``), against exact curves of these rows.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.errors import need
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.rates import RowAdam, parameter_groups
from research.charts import records
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

LOADS = ("isolayer.tables.histogram_query",)  # by fit_table
CLAIM = "Curves from high-dimensional embeddings calibrate millions of sub-segments, such as advertisers, in one model."
PAPER = "section 6, future work; no figures"
SEEDS = 3
RAW, ONE, EXACT = "raw score", "one curve", "exact curves"
RANK, HASHED = "layer, rank 4", "layer, rank 4, hashed"
METHODS = (RAW, ONE, EXACT, RANK, HASHED)
MCGRAD, EXACT_SOME = "MCGrad, 10,000 advertisers", "exact curves, 10,000 advertisers"
SIZES = {"unseen": 0, "1-10 rows": 1, "11-100 rows": 11, "101-1,000 rows": 101, "more rows": 1001}  # from so many on
CHUNK, BATCH = 1_000_000, 100_000
GRID = Grid(lower=-9.0, upper=5.0, step=0.5)
RATE = 3e-2  # of the layer's tables and curves
SOME = 10_000
Columns = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]


class World(NamedTuple):
    """How each advertiser distorts the score."""

    shift: Floats
    slope: Floats

    def draw(self, rows: int, rng: np.random.Generator) -> Columns:
        """Impressions: advertiser by Zipf's law, score, label and true probability."""
        count = len(self.shift)
        advertiser = (np.exp(rng.random(rows) * np.log(count + 1)) - 1).astype(np.int32).clip(0, count - 1)
        score = rng.normal(-2.5, 1.2, rows)
        prob = prob_of(0.8 * self.slope[advertiser] * (score + 2.5) - 2.2 + self.shift[advertiser])
        label = (rng.random(rows) < prob).astype(np.int8)
        return {"advertiser": advertiser, "score": score, "label": label, "prob": prob}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One log per seed, all methods on it."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=3.0 if quick else 55.0)


def run_unit(unit: Unit) -> Numbers:
    """Write the log, fit every method from it, judge all on held-out rows."""
    advertisers, rows, held = (20_000, 400_000, 100_000) if unit.quick else (1_000_000, 20_000_000, 2_000_000)
    rng = np.random.default_rng(unit.seed)
    world = World(rng.normal(0, 0.6, advertisers), np.exp(rng.normal(0, 0.25, advertisers)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        counts = write(path, world, rows, rng)
        test = world.draw(held, rng)
        size = np.searchsorted(list(SIZES.values()), counts[test["advertiser"]], side="right") - 1
        numbers: Numbers = {"unseen share": float(np.mean(size == 0)), "median rows": float(np.median(counts))}
        for method in METHODS:
            fit = Fit(method, path, test, advertisers, unit.seed)
            found = measured(fit) if unit.quick or method == RAW else alone(fit)
            prob, numbers[f"{method} seconds"], numbers[f"{method} gigabytes"] = found
            numbers |= {f"{method} {key}": value for key, value in excess(prob, test, size).items()}
        return numbers | _with_mcgrad(path, test)


def write(path: Path, world: World, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Write a log in pieces, and count the rows of every advertiser."""
    counts = np.zeros(len(world.shift), np.int64)
    schema = pa.schema({"advertiser": pa.int32(), "score": pa.float64(), "label": pa.int8()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            columns = world.draw(min(CHUNK, rows - start), rng)
            counts += np.bincount(columns["advertiser"], minlength=len(counts))
            writer.write_table(pa.table([columns[name] for name in schema.names], schema=schema))
    return counts


class Fit(NamedTuple):
    """What a process of its own is asked for."""

    method: str
    path: Path
    test: Columns
    advertisers: int
    seed: int


def alone(asked: Fit) -> tuple[Floats, float, float]:
    """`measured` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, asked).result()


def measured(asked: Fit) -> tuple[Floats, float, float]:
    """Probabilities of the test rows, CPU seconds of fitting, and gigabytes that it took beyond what was in use."""
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    start, before = time.process_time(), memory("VmRSS")
    predict = fitted(asked.method, asked.path, asked.advertisers)
    seconds, peak = time.process_time() - start, memory("VmHWM")
    return predict(asked.test), seconds, max(peak - before, 0.0)


def memory(name: str) -> float:
    """Gigabytes of this process, in use (``VmRSS``) or at the peak (``VmHWM``); 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((float(line.split()[1]) / 1e6 for line in lines if line.startswith(name)), 0.0)


def fitted(method: str, path: Path, advertisers: int) -> Callable[[Columns], Floats]:
    """What a method learns from the log, as a function of held-out rows."""
    if method == RAW:
        return lambda rows: prob_of(rows["score"])
    if method in (ONE, EXACT):
        contexts = ("advertiser",) if method == EXACT else ()
        calibrator = IsotonicCalibrator(contexts).fit_table(str(path))
        names = ("score", *contexts)
        return lambda rows: np.asarray(calibrator.predict_proba({name: rows[name] for name in names})[:, 1])
    hashed = advertisers // 10 if method == HASHED else None
    layer = ContextIsotonicLayer(
        {"advertiser": advertisers}, grid=GRID, rank=4, hash_buckets=hashed, sparse=True, extrapolation="extend"
    )
    return by_gradient(layer, path)


def by_gradient(layer: ContextIsotonicLayer, path: Path) -> Callable[[Columns], Floats]:
    """Train the layer in one pass over the log; the rate falls to zero as it goes."""
    optimiser = RowAdam(parameter_groups(layer, RATE / 10))
    steps = -(-pq.read_metadata(path).num_rows // BATCH)
    starts = [group["lr"] for group in optimiser.param_groups]
    for step, (score, context, label) in enumerate(batches(path)):
        for group, start in zip(optimiser.param_groups, starts, strict=True):
            group["lr"] = start * (1 - step / steps)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(score, context)[:, 0], label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    layer.eval()

    def predict(rows: Columns) -> Floats:
        parts = []
        for chosen in np.array_split(np.arange(len(rows["score"])), max(1, len(rows["score"]) // BATCH)):
            score = torch.from_numpy(rows["score"][chosen]).float()
            ids = torch.from_numpy(rows["advertiser"][chosen]).long()
            with torch.no_grad():
                parts.append(layer.prob(score, {"advertiser": ids})[:, 0].double().numpy())
        return np.concatenate(parts)

    return predict


def batches(path: Path) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]]:
    """Scores, contexts and labels of the log, batch after batch; its rows are in random order already."""
    for batch in pq.ParquetFile(path).iter_batches(BATCH):
        column = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        score = torch.tensor(column["score"], dtype=torch.float32)
        label = torch.tensor(column["label"], dtype=torch.float32)
        yield score, {"advertiser": torch.tensor(column["advertiser"], dtype=torch.long)}, label


def excess(prob: Floats, test: Columns, size: NDArray[np.int64]) -> Numbers:
    """Expected log loss above that of the true probability, on all rows and by the size of the advertiser."""
    true, told = test["prob"], prob.clip(1e-9, 1 - 1e-9)
    loss = true * np.log(true / told) + (1 - true) * np.log((1 - true) / (1 - told))
    by_size = {name: float(loss[size == at].mean()) for at, name in enumerate(SIZES) if (size == at).any()}
    return {"all": float(loss.mean()), **by_size}


def _with_mcgrad(path: Path, test: Columns) -> Numbers:
    """MCGrad and exact curves on the rows of the 10,000 largest advertisers in the first batches."""
    if find_spec("mcgrad") is None:
        return {}
    pandas, methods = need("pandas"), need("mcgrad.methods")
    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    first = next(pq.ParquetFile(path).iter_batches(5 * BATCH)).to_pandas()
    fit = first[first["advertiser"] < SOME]
    chosen = np.flatnonzero(test["advertiser"] < SOME)[:200_000]
    asked = {name: column[chosen] for name, column in test.items()}
    names = {"categorical_feature_column_names": ["advertiser"]}

    def table(columns: Any) -> Any:
        return pandas.DataFrame({"p": prob_of(columns["score"]), "advertiser": columns["advertiser"].astype(str)})

    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = methods.MCGrad().fit(table(fit).assign(label=fit["label"]), "p", "label", **names)
        prob = np.asarray(model.predict(table(asked), "p", **names))
    numbers: Numbers = {f"{MCGRAD} seconds": time.process_time() - start}
    start = time.process_time()
    exact = IsotonicCalibrator(("advertiser",)).fit(fit[["score", "advertiser"]], fit["label"])
    curves = exact.predict_proba({name: asked[name] for name in ("score", "advertiser")})[:, 1]
    numbers[f"{EXACT_SOME} seconds"] = time.process_time() - start
    none = np.full(len(chosen), len(SIZES) - 1)
    numbers[f"{MCGRAD} all"] = excess(prob, asked, none)["all"]
    numbers[f"{EXACT_SOME} all"] = excess(curves, asked, none)["all"]
    return numbers


def summarise(finished: Sequence[Finished]) -> Result:
    """Excess log loss of every method by size, its time and its memory."""
    numbers = finished[0].numbers
    others = [name for name in (MCGRAD, EXACT_SOME) if f"{name} all" in numbers]
    sizes = [size for size in SIZES if all(f"{RAW} {size}" in one.numbers for one in finished)]
    rows = [
        Row(method, f"excess log loss x 1e4, {size}", _found(finished, f"{method} {size}", 1e4), digits=1)
        for size in ("all", *sizes)
        for method in METHODS
    ]
    rows += [Row(name, "excess log loss x 1e4", _found(finished, f"{name} all", 1e4), digits=1) for name in others]
    rows += [
        Row(method, what, _found(finished, f"{method} {key}"), digits=digits)
        for key, what, digits in (("seconds", "CPU seconds of fitting", 1), ("gigabytes", "GB beyond the start", 2))
        for method in METHODS[1:]
    ]
    rows += [Row(name, "CPU seconds of fitting", _found(finished, f"{name} seconds"), digits=1) for name in others]
    series = {
        "method": [method for method in METHODS for _ in sizes],
        "size": [size for _ in METHODS for size in sizes],
        "excess": [_found(finished, f"{method} {size}", 1e4).value for method in METHODS for size in sizes],
    }
    return Result(tuple(rows), _parts(finished, sizes, others), series, _note(finished, others))


def _found(finished: Sequence[Finished], key: str, scale: float = 1.0) -> Estimate:
    return estimate(scale * by_seed(finished, "all", key))


def _minus(finished: Sequence[Finished], one: str, other: str) -> Estimate:
    return estimate(1e4 * (by_seed(finished, "all", one) - by_seed(finished, "all", other)))


def _parts(finished: Sequence[Finished], sizes: Sequence[str], others: Sequence[str]) -> tuple[Part, ...]:
    parts = [
        Part(
            f"{method}: lower log loss than one curve, all rows",
            _minus(finished, f"{method} all", f"{ONE} all"),
            below=0,
        )
        for method in (EXACT, RANK, HASHED)
    ]
    parts += [
        Part(
            f"{method}: no worse than one curve ({size})",
            _minus(finished, f"{method} {size}", f"{ONE} {size}"),
            below=1,
        )
        for method in (EXACT, RANK, HASHED)
        for size in sizes
    ]
    parts.append(
        Part(
            "the layer of rank 4 is as good as exact curves (within 1e-4)",
            _minus(finished, f"{RANK} all", f"{EXACT} all"),
            below=1,
        )
    )
    if others:
        parts.append(
            Part(
                "exact curves beat MCGrad on 10,000 advertisers",
                _minus(finished, f"{EXACT_SOME} all", f"{MCGRAD} all"),
                below=0,
            )
        )
    return tuple(parts)


def _note(finished: Sequence[Finished], others: Sequence[str]) -> str:
    median, unseen = (float(by_seed(finished, "all", key).mean()) for key in ("median rows", "unseen share"))
    told = "" if others else " MCGrad was not installed, so it is not compared."
    return (
        f"Excess log loss over the truth, in units of 1e-4, of a log by Zipf's law (median {median:.0f} rows per "
        f"advertiser, {unseen:.1%} of held-out rows of advertisers without any).{told}"
    )


def chart(series: dict[str, Any]) -> Any:
    """Excess log loss by the size of the advertiser; the raw score is left out."""
    alt = need("altair")
    rows = [row for row in records(series) if row["method"] != RAW]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("size:O", title="rows of the advertiser in the log", sort=list(SIZES), axis=alt.Axis(labelAngle=0)),
            y=alt.Y("excess:Q", title="excess log loss, x 1e-4", scale=alt.Scale(type="log")),
            color=alt.Color("method:N", title=None, sort=list(METHODS)),
        )
        .properties(width=420, height=260)
    )
