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
number of rows that an advertiser has in the log; and seconds and memory of fitting, those of what a method loads
included.

MCGrad, which is made for many segments, needs too long for a million advertisers. It is asked for the 10,000 largest
where it is installed (extra ``peers``), with its own defaults, on a smaller log: their rows among the first fortieth of
the log. One curve, exact curves and the layer of rank 4 are fitted to that same log, and all are judged in the same way
on the same held-out rows. (At first only exact curves were, and MCGrad was judged on all rows together; this was
changed after that run.) The layer passes once over either log, in the same number of steps: on seeds 500 to 502, which
are not reported, two to sixteen passes over the small one had a higher loss, on average. So our layer was given a
choice that MCGrad was not, and the page says so.

No figure in the table can be below 0, and over three seeds some differ by more than half, so each is a geometric mean
with a t-interval on the log scale; this was changed after a first report. Parts are differences of means.
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
from research import result
from research.charts import records
from research.claim import figure, plain
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

LOADS = ("isolayer.tables.histogram_query",)  # by fit_table
CLAIM = "Curves from high-dimensional embeddings calibrate millions of sub-segments, such as advertisers, in one model."
PAPER = "section 6, future work; no figures"
SEEDS = 3
RAW, ONE, EXACT = "raw score", "one curve", "exact curves"
RANK, HASHED = "layer, rank 4", "layer, rank 4, hashed"
METHODS = (RAW, ONE, EXACT, RANK, HASHED)
OF_SOME = (ONE, EXACT, RANK)  # fitted to the log of some advertisers too
MCGRAD = "MCGrad"
UNSEEN = "unseen"
SIZES = {UNSEEN: 0, "1-10 rows": 1, "11-100 rows": 11, "101-1,000 rows": 101, "more rows": 1001}  # from so many on
CHUNK, BATCH = 1_000_000, 100_000  # rows written at once, and rows predicted at once by the layer
GRID = Grid(lower=-9.0, upper=5.0, step=0.5)
RATE = 3e-2  # of the layer's tables and curves
STEPS = 200  # of the layer, in one pass
SOME, SHARE, HELD = 10_000, 40, 200_000  # advertisers for MCGrad, one row in so many, and held-out rows at most
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
    """Write the logs, fit every method from them, judge all on held-out rows."""
    advertisers, rows, held = (20_000, 400_000, 100_000) if unit.quick else (1_000_000, 20_000_000, 2_000_000)
    rng = np.random.default_rng(unit.seed)
    world = World(rng.normal(0, 0.6, advertisers), np.exp(rng.normal(0, 0.25, advertisers)))
    with tempfile.TemporaryDirectory() as folder:
        path, fewer = Path(folder, "log.parquet"), Path(folder, "some.parquet")
        counts = write(path, world, rows, rng)
        test = world.draw(held, rng)
        unseen = float((counts[test["advertiser"]] == 0).mean())
        numbers: Numbers = {"unseen share": unseen, "median rows": float(np.median(counts))}
        numbers |= judged(METHODS, Log(path, counts), test, unit)
        log, chosen = some(path, fewer, rows // SHARE), np.flatnonzero(test["advertiser"] < SOME)[:HELD]
        asked = {name: column[chosen] for name, column in test.items()}
        peers = [MCGRAD] if find_spec("mcgrad") else []
        return numbers | {of_some(key): one for key, one in judged([*OF_SOME, *peers], log, asked, unit).items()}


class Log(NamedTuple):
    """Where the rows are, and how many each advertiser has."""

    path: Path
    counts: NDArray[np.int64]


def of_some(key: str) -> str:
    """What a number of the log of some advertisers is called.

    >>> of_some("MCGrad all")
    '10,000 advertisers: MCGrad all'
    """
    return f"{SOME:,} advertisers: {key}"


def some(path: Path, fewer: Path, rows: int) -> Log:
    """Write the rows of the largest advertisers among the first of a log."""
    table = pa.Table.from_batches([next(pq.ParquetFile(path).iter_batches(rows))])
    advertiser = table["advertiser"].to_numpy()
    pq.write_table(table.filter(pa.array(advertiser < SOME)), fewer)
    return Log(fewer, np.bincount(advertiser[advertiser < SOME], minlength=SOME))


def judged(methods: Sequence[str], log: Log, test: Columns, unit: Unit) -> Numbers:
    """Excess log loss of every method, in all and by size, and the seconds and memory of fitting it."""
    size = np.searchsorted(list(SIZES.values()), log.counts[test["advertiser"]], side="right") - 1
    numbers: Numbers = {}
    for method in methods:
        fit = Fit(method, log.path, test, len(log.counts), unit.seed)
        found = measured(fit) if unit.quick or method == RAW else alone(fit)
        prob, numbers[f"{method} seconds"], numbers[f"{method} gigabytes"] = found
        numbers |= {f"{method} {key}": value for key, value in excess(prob, test, size).items()}
    return numbers


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
    if method == MCGRAD:
        return with_mcgrad(path)
    hashed = advertisers // 10 if method == HASHED else None
    layer = ContextIsotonicLayer(
        {"advertiser": advertisers}, grid=GRID, rank=4, hash_buckets=hashed, sparse=True, extrapolation="extend"
    )
    return by_gradient(layer, path)


def with_mcgrad(path: Path) -> Callable[[Columns], Floats]:
    """MCGrad with its defaults; it takes probabilities, and all rows at once."""
    pandas, methods = need("pandas"), need("mcgrad.methods")
    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    names = {"categorical_feature_column_names": ["advertiser"]}

    def table(columns: Any) -> Any:
        return pandas.DataFrame({"p": prob_of(columns["score"]), "advertiser": columns["advertiser"].astype(str)})

    rows = pq.read_table(path).to_pandas()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = methods.MCGrad().fit(table(rows).assign(label=rows["label"]), "p", "label", **names)
    return lambda asked: np.asarray(model.predict(table(asked), "p", **names))


def by_gradient(layer: ContextIsotonicLayer, path: Path) -> Callable[[Columns], Floats]:
    """Train the layer in one pass over the log; the rate falls to zero as it goes."""
    optimiser = RowAdam(parameter_groups(layer, RATE / 10))
    size = -(-pq.read_metadata(path).num_rows // STEPS)
    starts = [group["lr"] for group in optimiser.param_groups]
    for step, (score, context, label) in enumerate(batches(path, size)):
        for group, start in zip(optimiser.param_groups, starts, strict=True):
            group["lr"] = start * (1 - step / STEPS)
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


def batches(path: Path, size: int) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]]:
    """Scores, contexts and labels of the log, batch after batch; its rows are in random order already."""
    for batch in pq.ParquetFile(path).iter_batches(size):
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


def summarise(finished: Sequence[Finished]) -> Result:
    """Excess log loss of every method by size, its time and its memory, for all advertisers and for some."""
    some_of = [*OF_SOME, *([MCGRAD] if f"{of_some(MCGRAD)} all" in finished[0].numbers else [])]
    names = [of_some(method) for method in some_of]
    sizes = _sizes(finished, RAW)
    rows = [
        Row(method, f"excess log loss x 1e4, {size}", _found(finished, f"{method} {size}", 1e4), digits=1)
        for methods in (METHODS, names)
        for size in ("all", *_sizes(finished, methods[0]))
        for method in methods
    ]
    rows += [
        Row(method, what, _found(finished, f"{method} {key}"), digits=digits)
        for key, what, digits in (("seconds", "CPU seconds of fitting", 1), ("gigabytes", "GB beyond the start", 2))
        for method in (*METHODS[1:], *names)
    ]
    series = {
        "method": [method for method in METHODS for _ in sizes],
        "size": [size for _ in METHODS for size in sizes],
        "excess": [_found(finished, f"{method} {size}", 1e4).value for method in METHODS for size in sizes],
    }
    peers = MCGRAD in some_of
    parts = _of_all(finished, sizes) + _of_some(finished, peers=peers)
    return Result(tuple(rows), parts, series, _note(finished, parts, peers=peers))


def _sizes(finished: Sequence[Finished], method: str) -> list[str]:
    return [size for size in SIZES if all(f"{method} {size}" in one.numbers for one in finished)]


def _found(finished: Sequence[Finished], key: str, scale: float = 1.0) -> Estimate:
    return positive(scale * by_seed(finished, "all", key))


def positive(values: Floats) -> Estimate:
    """The geometric mean with a t-interval on the log scale; where a figure is 0, the mean with its t-interval.

    >>> value, lower, upper, _ = positive(np.array([1.0, 10.0, 100.0]))
    >>> round(value, 6), 0 < lower < 1, upper > 100
    (10.0, True, True)
    """
    if not (values > 0).all():  # such as memory that a system does not tell
        return estimate(values)
    return result.geometric_mean(values)


def _against(finished: Sequence[Finished], says: str, one: str, other: str, below: float = 0) -> Part:
    """A part that says that one excess loss is below another one, or above it by less than is allowed, in 1e-4."""
    minus = estimate(1e4 * (by_seed(finished, "all", one) - by_seed(finished, "all", other)))
    return Part(says, minus, below=below, unit=" x1e-4")


def _of_all(finished: Sequence[Finished], sizes: Sequence[str]) -> tuple[Part, ...]:
    learned = (EXACT, RANK, HASHED)
    return (
        *(
            _against(finished, f"{method}: lower log loss than one curve, all rows", f"{method} all", f"{ONE} all")
            for method in learned
        ),
        *(
            _against(finished, f"{method}: no worse than one curve ({size})", f"{method} {size}", f"{ONE} {size}", 1)
            for method in learned
            for size in sizes
            if (method, size) != (EXACT, UNSEEN)  # the same predictions
        ),
        _against(
            finished, "the layer of rank 4 is as good as exact curves (within 1e-4)", f"{RANK} all", f"{EXACT} all", 1
        ),
    )


def _of_some(finished: Sequence[Finished], *, peers: bool) -> tuple[Part, ...]:
    others = {"one curve": ONE, **({MCGRAD: MCGRAD} if peers else {})}
    return tuple(
        _against(finished, f"{says} {other} on {SOME:,} advertisers", of_some(f"{one} all"), of_some(f"{rival} all"))
        for one, says in ((EXACT, "exact curves beat"), (RANK, "the layer of rank 4 beats"))
        for other, rival in others.items()
    )


def _note(finished: Sequence[Finished], parts: Sequence[Part], *, peers: bool) -> str:
    median, unseen = (float(by_seed(finished, "all", key).mean()) for key in ("median rows", "unseen share"))
    told = (
        "MCGrad has its default settings; the number of passes of our layer was compared on seeds 500 to 502, which "
        "are not reported, so the layer was given a choice that MCGrad was not."
    )
    return (
        f"Excess log loss over the truth, in units of 1e-4, of a log by Zipf's law (median {median:.0f} rows per "
        f"advertiser, {unseen:.1%} of held-out rows of advertisers without any). To those without any, exact curves "
        "give the one curve of all by construction. Figures in the table are geometric means over seeds with intervals "
        "on the log scale; parts are differences of means. "
        + (told if peers else "MCGrad was not installed, so it is not compared.")
        + _open(parts)
    )


def _open(parts: Sequence[Part]) -> str:
    """The comparisons with MCGrad that these seeds do not decide."""
    undecided = [one for one in parts if MCGRAD in one.says and one.held != "held" and not one.refuted]
    found = [f"{one.says} ({figure(plain(one))})" for one in undecided]
    return f" Not decided, since the interval is on both sides of 0: {'; '.join(found)}." if found else ""


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
