"""The audit: does it find planted segments, how often does it accuse a clean log, and how long does it take?

Planted: two fields of 100 levels, whose frequencies fall as 1 / rank, 300,000 rows, a mean rate of about 0.25; three of
the 10,000 pairs are off by x1.3, drawn among pairs with at least 1,500 rows. (A pair of 30 rows, the mean, cannot be
found by anybody: x1.3 is one standard deviation there. Power by size is shown.) Clean: the labels are drawn from the
score. Compared with MCGrad's multicalibration error on the same rows, whose p-value is not adjusted for its groups.

Seeds 0 to 9 were used to choose; figures are of seeds from 1000 on. Options: ``--runs=100`` clean logs of each kind;
``--part=planted``, ``clean``, ``rare``, ``users`` or ``time`` for one of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row, best_time, progress, quick
from isolayer.auditing import Audit, audit
from isolayer.auditing.groups import LEAST_ROWS, mcgrad_groups
from isolayer.fitting.field_levels import fields_of
from isolayer.metrics import multicalibration_error

Floats = NDArray[np.float64]
Log = dict[str, NDArray[Any]]

FIRST_SEED = 1000
LEVELS, RATIO, PLANTED = 100, 1.3, 3
LEAST = 1500  # rows of a planted pair
KINDS: dict[str, dict[str, Any]] = {
    "clean": {"rows": 20_000, "rate": 0.1},
    "rare": {"rows": 40_000, "rate": 1e-3},
    "users": {"rows": 12_000, "rate": 0.1, "users": 400},
}
PARTS = ("planted", *KINDS, "time")
SIZES = ((300, 600), (600, 1000), (1000, 1500))  # rows of pairs whose power is shown


def planted(seed: int, rows: int = 300_000, sizes: tuple[int, float] = (LEAST, np.inf)) -> tuple[Log, list[str]]:
    """A log with planted pairs of some sizes, and their names."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, LEVELS + 1)
    one, two = (rng.choice(LEVELS, rows, p=share / share.sum()) for _ in range(2))
    pair = one * LEVELS + two
    count = np.bincount(pair, minlength=LEVELS**2)
    large = np.flatnonzero((count >= sizes[0]) & (count < sizes[1]))
    chosen = rng.choice(large, PLANTED, replace=False)
    logit = rng.normal(-1.2, 0.8, rows)
    prob = 1 / (1 + np.exp(-logit))
    truth = np.minimum(prob * np.where(np.isin(pair, chosen), RATIO, 1.0), 0.999)
    names = np.array([f"v{level}" for level in range(LEVELS)])
    log = {"score": logit, "label": (rng.random(rows) < truth).astype(np.int64), "one": names[one], "two": names[two]}
    return log, [f"one v{each // LEVELS} and two v{each % LEVELS}" for each in chosen.tolist()]


def clean(seed: int, *, rows: int, rate: float, users: int = 0) -> Log:
    """A log whose score is right: categories, whole and other numbers, missing values."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(np.log(rate / (1 - rate)) - 0.3, 0.8, rows)
    log: Log = {
        "device": rng.choice(["phone", "tv", "web"], rows, p=[0.5, 0.1, 0.4]),
        "country": np.array([f"c{i}" for i in range(40)])[np.minimum(rng.geometric(0.12, rows), 40) - 1],
        "hour": rng.integers(0, 24, rows),
        "age": np.where(rng.random(rows) < 0.1, np.nan, rng.gamma(4, 10, rows).round()),
        "price": np.exp(rng.normal(2, 1, rows)),
    }
    effect: Floats = np.zeros(rows)
    if users:
        user = rng.integers(0, users, rows)
        log |= {"user": user, "plan": np.array(["free", "paid", "trial"])[user % 3], "tenure": user % 50}
        effect = rng.normal(0, 0.5, users)[user]
    # With an effect of their own per user the mean rate at a score would move, so the score is corrected for it.
    truth = 1 / (1 + np.exp(-(logit + effect)))
    marginal = 1 / (1 + np.exp(-logit / np.sqrt(1 + 0.346 * 0.25))) if users else truth
    return {"score": np.log(marginal / (1 - marginal)), "label": (rng.random(rows) < truth).astype(np.int64), **log}


def run(options: Sequence[str] = ()) -> list[Row]:
    """All figures."""
    asked = [int(option.partition("=")[2]) for option in options if option.startswith("--runs=")]
    parts = [option.partition("=")[2] for option in options if option.startswith("--part=")] or list(PARTS)
    runs = 5 if quick() else (asked or [100])[0]
    rows = list[Row]()
    for part in parts:
        if part in KINDS:
            rows.append(_clean(part, runs))
        else:
            rows += _planted(2 if quick() else max(2, runs // 10)) if part == "planted" else [_time()]
    return rows


def _planted(seeds: int) -> list[Row]:
    all_found, first_five, beyond, ours, theirs = 0, 0, 0, 0, 0
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        log, names = planted(seed)
        found = audit(log)
        told = [one.segment for one in found.ranked]
        all_found += sum(name in told for name in names)
        first_five += set(names) <= set(told[:5])
        beyond += sum(name not in names for name in told)
        ours, theirs = ours + (not found.holds), theirs + (_mcgrad(log) <= 0.05)
        progress(f"audit: planted, seed {seed}: {told[:5]}")
    rows = [
        Row("planted: all three in the first five", "every log", f"{first_five} of {seeds} logs", first_five == seeds),
        Row("planted: segments found", "", f"{all_found} of {PLANTED * seeds}, and {beyond} others"),
        Row("planted: called off, audit | MCE, p <= .05", "", f"{ours} | {theirs} of {seeds}"),
    ]
    for low, high in SIZES:
        power = noticed = 0
        for seed in range(FIRST_SEED, FIRST_SEED + max(2, seeds // 2)):
            log, names = planted(seed, sizes=(low, high))
            told = [one.segment for one in audit(log).findings]
            power, noticed = power + sum(name in told for name in names), noticed + (_mcgrad(log) <= 0.05)
        tries = max(2, seeds // 2)
        measured = f"{power} of {PLANTED * tries} found; MCE noticed {noticed} of {tries} logs"
        rows.append(Row(f"planted in pairs of {low} to {high} rows", "", measured))
    return rows


def _mcgrad(log: Log) -> float:
    """MCGrad's p-value: the smallest over its groups, not adjusted for their number."""
    given = {name: log[name] for name in log if name not in ("score", "label")}
    prob = 1 / (1 + np.exp(-log["score"]))
    groups = mcgrad_groups(fields_of(given), given)
    return float(multicalibration_error(log["label"], prob, groups, min_rows=LEAST_ROWS).group_p_value.min())


def _clean(kind: str, runs: int) -> Row:
    settings, alarms, segments, unadjusted = KINDS[kind], 0, 0, 0
    clustered = "users" in settings
    for seed in range(FIRST_SEED, FIRST_SEED + runs):
        log = clean(seed, **settings)
        found = audit(log, cluster="user" if clustered else None)
        alarms, segments = alarms + (not found.holds), segments + bool(found.findings)
        unadjusted += not clustered and _mcgrad(log) <= 0.05
    progress(f"audit: {kind}: {alarms} of {runs} called off, {segments} with a segment")
    other = "" if clustered else f"; MCGrad's p <= .05 in {unadjusted}"
    measured = f"{segments} with a segment, {alarms} called off{other}"
    name = f"false discoveries, {kind}: {settings['rows']:,} rows, rate {settings['rate']:g}"
    return Row(name, f"<= 5% of {runs} logs", measured, max(alarms, segments) <= 0.05 * runs)


def _time() -> Row:
    """Seconds of 300,000 rows and 15 fields."""
    rng = np.random.default_rng(FIRST_SEED)
    log, _ = planted(FIRST_SEED, 30_000 if quick() else 300_000)
    n = len(log["score"])
    for i in range(13):
        log[f"field{i}"] = rng.normal(size=n) if i % 2 else rng.integers(0, 12, n)
    found: list[Audit] = []
    seconds = best_time(lambda: found.append(audit(log)), times=1 if quick() else 2)
    load = f", load {os.getloadavg()[0]:.1f}"
    return Row(f"{n:,} rows x 15 fields", "", f"{seconds:.1f} s, {found[0].tests:,} segments{load}")
