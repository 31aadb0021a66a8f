"""Verdicts of `check`: how often it alarms without cause, and how often it finds a drift, over simulated days.

A calibrator is fitted to twenty days and checked on another of 100,000 rows, without tolerance. Contexts differ in
level and slope. Rows of the clustered runs come from users of 50 rows each, whose logits vary with a standard deviation
of 0.5. Alarms without cause must lie between .02 and .07 at level .05. Power is compared with what people do by hand:
an exact binomial test per context, with Holm's correction, on the same data, the calibrator taken as certain.

Threads 1: ``nice -n 5 python -m benchmarks monitor --runs=500``, about half an hour on a quiet core; 100 by default.
What was run is kept in results/monitor.json, and the same command goes on from there. ``--only=clustered`` runs the
questions whose name has that word. Seeds begin at 50,000; nothing was chosen on these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, erfinv

from benchmarks import Row, progress, quick
from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram, bin_of
from isolayer.grid import Grid
from isolayer.monitor import check

Floats = NDArray[np.float64]

GRID = Grid()
ROWS, DAYS = 100_000, 20
CONTEXTS, RATES = (20, 200, 2000), (0.2, 0.02, 0.002)
POSITIONS = 24  # scores of a context
USER_ROWS, USER_DEVIATION = 50, 0.5
LEVEL = 0.05
CHECKS = 10  # days on which a calibrator is checked: fitting costs more than checking
SEED = 50_000
KEPT = Path("results/monitor.json")
LEAST, MOST = 0.02, 0.07  # alarms without cause


@dataclass(frozen=True, eq=False)
class World:
    """Contexts with their scores and true logits, ``[contexts, positions]``, and how days are drawn from them."""

    score: Floats
    truth: Floats
    clustered: bool

    @classmethod
    def of(cls, contexts: int, rate: float, clustered: bool, random: np.random.Generator) -> World:
        """Contexts drawn at random, with so many events per row."""
        quantiles = (np.arange(POSITIONS) + 0.5) / POSITIONS
        spread = 1.2 * np.sqrt(2) * erfinv(2 * quantiles - 1)
        middle = np.log(rate / (1 - rate)) - (0.5 if rate < 0.1 else 0.0)  # the mean of probabilities is near the rate
        truth = np.broadcast_to(middle + spread, (contexts, POSITIONS))
        level, slope = random.normal(0, 0.3, (contexts, 1)), np.exp(random.normal(0, 0.1, (contexts, 1)))
        return cls(middle + level + slope * (truth - middle), truth, clustered)

    def day(self, rows: int, random: np.random.Generator, drifted: Floats | None = None, folds: int = 126) -> Histogram:
        """The histogram of so many rows, whose labels follow ``drifted`` logits instead of the truth."""
        logit = self.truth if drifted is None else drifted
        if not self.clustered:
            count = np.full(logit.size, rows // logit.size, np.int64)
            count[random.permutation(logit.size)[: rows - count.sum()]] += 1
            return self._histogram(count, random.binomial(count, _prob(logit.reshape(-1))))
        place = random.integers(0, logit.size, rows, dtype=np.int32)
        users = rows // USER_ROWS
        user = random.integers(0, users, rows, dtype=np.int32)
        effect = random.normal(0, USER_DEVIATION, users).astype(np.float32)
        event = random.random(rows, dtype=np.float32) < _prob(
            logit.reshape(-1).astype(np.float32)[place] + effect[user]
        )
        size, cell = folds * logit.size, place.astype(np.int64) * folds + user % folds
        return self._histogram(np.bincount(cell, minlength=size), np.bincount(cell, event, size), folds)

    def _histogram(self, count: NDArray[np.int64], positive: Floats, folds: int = 1) -> Histogram:
        used = np.flatnonzero(count)
        place, fold = np.divmod(used, folds)
        score, context = self.score.reshape(-1)[place], place // POSITIONS
        at = bin_of(score, GRID)
        order = np.lexsort([at, fold, context])
        n = count[used][order].astype(np.float64)
        cells = context[order], fold[order].astype(np.int8), at[order].astype(np.int32)
        sums = np.ones(len(n)), n, n, n, positive[used][order].astype(np.float64), n * score[order]
        return Histogram(GRID, ("context",), (np.arange(len(self.score)),), *cells, *sums)


class Outcome(NamedTuple):
    """What one run found: whether anything drifted, whether all rows together did, and what the test by hand says."""

    alarm: bool
    overall: bool
    by_hand: bool


class Question(NamedTuple):
    """Days of one kind; without a drift the question is how often there is an alarm."""

    name: str
    contexts: int
    rate: float
    clustered: bool
    drift: Callable[[Floats], Floats] | None = None


def run(options: list[str] | None = None) -> list[Row]:
    given = dict(option.removeprefix("--").split("=", 1) for option in options or [] if "=" in option)
    runs = int(given.get("runs", 4 if quick() else 100))
    asked = [question for question in questions() if given.get("only", "") in question.name]
    return [row for question in asked for row in _rows(question, outcomes(question, runs))]


def questions() -> list[Question]:
    """Days without a drift, then with one."""
    found = [
        Question(f"alarms without cause, {contexts} contexts, rate {rate}{kind}", contexts, rate, bool(kind))
        for kind, contexts, rate in product(("", ", clustered"), CONTEXTS, RATES)
    ]
    drifts: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
        "all probabilities x 1.1": (0.1, lambda truth: _times(truth, 1.1)),
        "all probabilities x 1.2": (0.1, lambda truth: _times(truth, 1.2)),
        "all probabilities x 1.1, rate .02": (0.02, lambda truth: _times(truth, 1.1)),
        "one context of 200 x 1.5": (0.1, lambda truth: _first(truth, 1.5)),
        "one context of 200 x 2, rate .02": (0.02, lambda truth: _first(truth, 2.0)),
        "slope x 1.15, O/E 1": (0.1, lambda truth: _steeper(truth, 1.15)),
        "slope x 0.85, O/E 1": (0.1, lambda truth: _steeper(truth, 0.85)),
    }
    return found + [Question(f"drift found, {name}", 200, rate, False, drift) for name, (rate, drift) in drifts.items()]


def _rows(question: Question, found: list[Outcome]) -> list[Row]:
    """The rows of the table about one question."""
    runs, share = len(found), float(np.mean([each.alarm for each in found]))
    if question.drift is None:
        chance = 0.0 if runs >= 500 else 2 * np.sqrt(LEVEL * (1 - LEVEL) / runs)  # two standard errors of few runs
        fine = LEAST - chance <= share <= MOST + chance
        return [_told(Row(question.name, f"{LEAST} to {MOST}", f"{share:.3f} of {runs}", fine))]
    theirs = float(np.mean([each.by_hand for each in found]))
    rows = [_told(Row(question.name, f">= {theirs:.2f}, by hand", f"{share:.2f} of {runs}", share >= theirs))]
    if question.name.endswith("x 1.1"):
        overall = float(np.mean([each.overall for each in found]))
        name = f"the same by the test of all rows, {question.name}"
        rows.append(_told(Row(name, "> .95", f"{overall:.2f}", overall > 0.95)))
    return rows


def outcomes(question: Question, runs: int, kept: Path | None = None) -> list[Outcome]:
    """So many runs of a question, the first of which may have been kept by an earlier call; the same seeds for all."""
    path = KEPT if kept is None else kept
    known = json.loads(path.read_text()) if path.exists() else {}
    found = [Outcome(*each) for each in known.get(question.name, [])]
    while len(found) < runs:
        found += _block(question, SEED + len(found))
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}  # another process may answer other questions
        path.write_text(json.dumps({**known, question.name: found}))
        progress(f"monitor: {question.name}: {len(found)} of {runs}, {sum(each.alarm for each in found)} alarms")
    return found[:runs]


def _block(question: Question, seed: int) -> list[Outcome]:
    """One calibrator, checked on several days."""
    contexts, rate, clustered, drift = question[1:]
    random = np.random.default_rng([seed, contexts, round(1000 * rate), clustered])
    world = World.of(contexts, rate, clustered, random)
    curves = Curves.from_histogram(world.day(ROWS * DAYS, random, folds=1))
    drifted, found = None if drift is None else drift(world.truth), list[Outcome]()
    for _ in range(CHECKS):
        today = world.day(ROWS, random, drifted)
        result = check(curves, today, level=LEVEL, tolerance=0.0, clustered=clustered)
        found.append(Outcome(not result.holds, bool(result.drifted[0]), by_hand(curves, today)))
    return found


def by_hand(curves: Curves, today: Histogram) -> bool:
    """Whether an exact binomial test of any context is significant after Holm's correction."""
    cells = today.folded()
    prob = curves.predict_proba(cells.logit / cells.weight, {"context": cells.keys[0][cells.group]})
    rows, events, expected = (
        np.bincount(cells.group, part) for part in (cells.count, cells.positive, cells.count * prob)
    )
    rate, trials = expected / rows, rows.astype(np.int64)
    upper = np.where(events > 0, bdtrc(events - 1, trials, rate), 1.0)
    p_value = np.minimum(2 * np.minimum(upper, bdtr(events, trials, rate)), 1.0)
    return bool(p_value.min() * len(p_value) <= LEVEL)


def _times(truth: Floats, factor: float) -> Floats:
    """Logits of probabilities times a factor."""
    prob = np.minimum(_prob(truth) * factor, 0.999)
    return np.asarray(np.log(prob / (1 - prob)))


def _first(truth: Floats, factor: float) -> Floats:
    drifted = truth.copy()
    drifted[:1] = _times(truth[:1], factor)
    return drifted


def _steeper(truth: Floats, slope: float) -> Floats:
    """Logits with another slope, moved so that as many events are expected."""
    wanted, low, high = _prob(truth).mean(), -5.0, 5.0
    leaning = slope * (truth - truth.mean()) + truth.mean()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _prob(leaning + middle).mean() < wanted else (low, middle)
    return leaning + low


def _prob(logit: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logit)))


def _told(row: Row) -> Row:
    progress(f"monitor: {row.name}: {row.measured}, target {row.target}")
    return row
