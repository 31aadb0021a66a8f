"""From finished units to the two tables: mean ranks of the methods, and every loss of ours to the best peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata, t

from benchmarks.real.draws import Unit
from benchmarks.real.judge import METRICS
from benchmarks.real.units import OURS, Found

Results = Mapping[str, Mapping[str, Found]]  # by task, then by method


@dataclass(frozen=True)
class Difference:
    """Ours minus a peer, with the ends of its 95% interval."""

    task: str
    rows: int
    metric: str
    peer: str
    ours: float
    peer_value: float
    difference: float
    lower: float
    upper: float

    @property
    def lost(self) -> bool:
        """Whether the peer is better by an interval that excludes 0."""
        return self.lower > 0


def point(found: Found, metric: str, size: int = 0, scale: str = "") -> list[float]:
    """The metric on all test rows, one number per draw."""
    kept = sorted(key for key in found if _matches(key, size, scale))
    return [found[key][metric][0] for key in kept]


def mean_ranks(results: Results, metric: str, size: int = 0) -> dict[str, float]:
    """Mean over tasks of each method's rank by the metric (1 is best); draws of a task are averaged first.

    >>> unit = lambda value: {"0/0/": {"ece": [value]}}
    >>> mean_ranks({"a": {"one": unit(0.1), "two": unit(0.2)}}, "ece")
    {'one': 1.0, 'two': 2.0}
    """
    names: list[str] = []
    ranks = []
    for by_method in results.values():
        means = {name: np.mean(values) for name, found in by_method.items() if (values := point(found, metric, size))}
        if means:
            names = list(means)
            ranks.append(rankdata([round(float(value), 9) for value in means.values()]))
    return dict(zip(names, np.mean(ranks, axis=0).tolist(), strict=True)) if ranks else {}


def against(results: Results, task: str, peer: str, metric: str, size: int = 0, scale: str = "") -> Difference:
    """Ours minus a peer: on all rows paired by resample of the test rows, on draws paired by draw."""
    ours, other = (results[task][name] for name in (OURS, peer))
    a, b = (np.array(point(found, metric, size, scale)) for found in (ours, other))
    gap = a - b
    if size:
        half = float(t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / len(gap) ** 0.5)
    else:
        key = Unit(0, 0, scale).key
        resampled = np.array(ours[key][metric][1:]) - other[key][metric][1:]
        half = float(1.96 * resampled.std(ddof=1))
    mean = float(gap.mean())
    return Difference(task, size, metric, peer, float(a.mean()), float(b.mean()), mean, mean - half, mean + half)


def best_peer(results: Results, task: str, metric: str, size: int = 0) -> str | None:
    """The peer with the lowest mean of the metric on the test rows themselves."""
    means = {
        name: float(np.mean(values))
        for name, found in results[task].items()
        if name != OURS and (values := point(found, metric, size))
    }
    return min(means, key=lambda name: means[name]) if means else None


def differences(results: Results, metric: str, size: int = 0) -> list[Difference]:
    """Ours minus the best peer of every task, the worst first."""
    pairs = [(task, best_peer(results, task, metric, size)) for task in results]
    found = [against(results, task, peer, metric, size) for task, peer in pairs if peer]
    return sorted(found, key=lambda one: -one.difference)


def seconds(results: Results) -> dict[str, float]:
    """Mean seconds of fit and predict on all rows, by method."""
    taken: dict[str, list[float]] = {}
    for by_method in results.values():
        for name, found in by_method.items():
            taken.setdefault(name, []).append(found[Unit().key]["seconds"])
    return {name: float(np.mean(values)) for name, values in taken.items()}


def ranks_text(results: Results, sizes: Sequence[int]) -> str:
    """Mean ranks by method: every metric on all rows, log loss and O/E on draws of few rows."""
    columns = [(metric, 0) for metric in METRICS] + [(m, size) for size in sizes for m in ("log_loss", "oe")]
    ranks = [mean_ranks(results, *column) for column in columns]
    time = seconds(results)
    head = ["method", *(metric + (f" {size:,}" if size else "") for metric, size in columns), "seconds"]
    order = sorted(ranks[0], key=lambda name: ranks[0][name])
    body = [[n, *(f"{r[n]:.2f}" if n in r else "" for r in ranks), f"{time[n]:.2f}"] for n in order]
    return aligned([head, *body])


def losses_text(found: Sequence[Difference]) -> str:
    """One line per task where ours is behind the best peer; ``*`` where the interval excludes 0."""
    head = ["task", "metric", "ours", "best peer", "", "ours - peer, x1e-4", "95%"]
    body = [
        [
            one.task + (f", {one.rows:,} rows" if one.rows else ""),
            one.metric,
            f"{one.ours:.5f}",
            one.peer,
            f"{one.peer_value:.5f}",
            f"{one.difference * 1e4:+.2f}" + (" *" if one.lost else ""),
            f"{one.lower * 1e4:+.2f} to {one.upper * 1e4:+.2f}",
        ]
        for one in found
        if one.difference > 0
    ]
    return aligned([head, *body])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns.

    >>> print(aligned([["a", "bb"], ["ccc", "d"]]))
    a   | bb
    ccc | d
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(" | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def as_json(results: Results, sizes: Sequence[int]) -> dict[str, Any]:
    """Ranks, every difference to the best peer and every mean, for other programs."""
    every = (0, *sizes)
    return {
        "ranks": {f"{metric} {size}": mean_ranks(results, metric, size) for metric in METRICS for size in every},
        "differences": [
            {**asdict(one), "lost": one.lost}
            for metric in METRICS
            for size in every
            for one in differences(results, metric, size)
        ],
        "means": {
            task: {name: {m: point(found, m)[0] for m in METRICS} for name, found in by_method.items()}
            for task, by_method in results.items()
        },
        "seconds": seconds(results),
    }


def _matches(key: str, size: int, scale: str) -> bool:
    own_size, _, own_scale = key.split("/", 2)
    return own_size == str(size) and own_scale == scale
