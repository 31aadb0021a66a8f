"""Verdicts of `check`: how often it alarms without cause, and how often it finds a drift, over simulated days.

A calibrator is fitted to twenty days and checked on another of 100,000 rows, without tolerance. Contexts differ in
level and slope. Rows of the clustered runs come from users of 50 rows each, whose logits vary with a standard deviation
of 0.5. Alarms without cause must lie between .02 and .07 at level .05. Power is compared with what people do by hand:
an exact binomial test per context, with Holm's correction, on the same data, the calibrator taken as certain.

Threads 1: ``nice -n 5 python -m benchmarks monitor --runs=500``, about half an hour; 100 runs by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, erfinv

from benchmarks import Row, progress, quick
from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram, bin_of
from isolayer.grid import Grid
from isolayer.monitor import Check, check

Floats = NDArray[np.float64]

GRID = Grid()
ROWS, DAYS = 100_000, 20
CONTEXTS, RATES = (20, 200, 2000), (0.2, 0.02, 0.002)
POSITIONS = 24  # scores of a context
USER_ROWS, USER_DEVIATION = 50, 0.5
LEVEL = 0.05
CHECKS = 5  # days on which a calibrator is checked: fitting costs more than checking
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

    def day(self, rows: int, random: np.random.Generator, drifted: Floats | None = None) -> Histogram:
        """The histogram of so many rows, whose labels follow ``drifted`` logits instead of the truth."""
        logit = self.truth if drifted is None else drifted
        if not self.clustered:
            count = np.full(logit.size, rows // logit.size, np.int64)
            count[random.permutation(logit.size)[: rows - count.sum()]] += 1
            return self._histogram(count, random.binomial(count, _prob(logit.reshape(-1))))
        place = random.integers(0, logit.size, rows)
        users = rows // USER_ROWS
        user = random.integers(0, users, rows)
        effect = random.normal(0, USER_DEVIATION, users)
        event = random.random(rows) < _prob(logit.reshape(-1)[place] + effect[user])
        folds, size = 126, 126 * logit.size
        cell = place * folds + user % folds
        count, positive = np.bincount(cell, minlength=size), np.bincount(cell, event, size)
        return self._histogram(count, positive, folds)

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


def run(options: list[str] | None = None) -> list[Row]:
    given = [int(option.removeprefix("--runs=")) for option in options or [] if option.startswith("--runs=")]
    runs = given[0] if given else 4 if quick() else 100
    return [*false_alarms(runs), *powers(runs)]


def false_alarms(runs: int) -> list[Row]:
    rows = []
    for clustered, contexts, rate in product((False, True), CONTEXTS, RATES):
        name = f"alarms without cause, {contexts} contexts, rate {rate}{', clustered' if clustered else ''}"
        alarms = [not result.holds for result, _ in _runs(runs, contexts, rate, clustered)]
        share = float(np.mean(alarms))
        chance = 2 * np.sqrt(LEVEL * (1 - LEVEL) / runs)  # of the simulation itself, two standard errors
        fine = LEAST - (chance if runs < 500 else 0) <= share <= MOST + (chance if runs < 500 else 0)
        rows.append(_told(Row(name, f"{LEAST} to {MOST}", f"{share:.3f} of {runs}", fine)))
    return rows


def powers(runs: int) -> list[Row]:
    drifts: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
        "all probabilities x 1.1": (0.1, lambda truth: _times(truth, 1.1)),
        "all probabilities x 1.2": (0.1, lambda truth: _times(truth, 1.2)),
        "all probabilities x 1.1, rate .02": (0.02, lambda truth: _times(truth, 1.1)),
        "one context of 200 x 1.5": (0.1, lambda truth: _first(truth, 1.5)),
        "one context of 200 x 2, rate .02": (0.02, lambda truth: _first(truth, 2.0)),
        "slope x 1.15, O/E 1": (0.1, lambda truth: _steeper(truth, 1.15)),
        "slope x 0.85, O/E 1": (0.1, lambda truth: _steeper(truth, 0.85)),
    }
    rows = []
    for name, (rate, drift) in drifts.items():
        found = [(result, by_hand) for result, by_hand in _runs(runs, 200, rate, False, drift)]
        ours, theirs = (float(np.mean(part)) for part in ([not r.holds for r, _ in found], [b for _, b in found]))
        target, measured = f">= {theirs:.2f}, by hand", f"{ours:.2f} of {runs}"
        rows.append(_told(Row(f"drift found, {name}", target, measured, ours >= theirs)))
        if name == "all probabilities x 1.1":
            overall = float(np.mean([bool(result.drifted[0]) for result, _ in found]))
            rows.append(
                _told(Row(f"the same by the test of all rows, {name}", "> .95", f"{overall:.2f}", overall > 0.95))
            )
    return rows


def _runs(
    runs: int, contexts: int, rate: float, clustered: bool, drift: Callable[[Floats], Floats] | None = None
) -> Iterator[tuple[Check, bool]]:
    """Verdicts of so many runs, and whether the test by hand alarms; the same seeds for every question."""
    for seed in range(runs):
        if seed % CHECKS == 0:
            random = np.random.default_rng([seed, contexts, round(1000 * rate), clustered])
            world = World.of(contexts, rate, clustered, random)
            curves = Curves.from_histogram(world.day(ROWS * DAYS, random).folded())
        today = world.day(ROWS, random, None if drift is None else drift(world.truth))
        yield check(curves, today, level=LEVEL, tolerance=0.0, clustered=clustered), by_hand(curves, today)


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
