"""Evidence: every number a report shows, with its interval. No plotting and no sentences.

Sums and metrics are those of :mod:`isolayer.metrics`; a row of weight 2 counts as two rows. Intervals count
clusters of rows where they are known (:mod:`isolayer.report.intervals`), and assume independent rows otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.fitting.categories import Codes
from isolayer.metrics import (
    BinSums,
    Multicalibration,
    ObservedOverExpected,
    SegmentSums,
    Sums,
    multicalibration_error,
)
from isolayer.metrics.clusters import quantile
from isolayer.metrics.rows import summed
from isolayer.metrics.segments import widened
from isolayer.metrics.sums import logit_loss, over
from isolayer.report.intervals import (
    LEVEL,
    Estimate,
    mean_estimate,
    ne_estimate,
    rates,
    ratio_estimate,
    ratios,
)
from isolayer.report.rows import Rows
from isolayer.report.words import readable, readables

Floats = NDArray[np.float64]

BINS = 20  # bins of equal weight in the reliability diagram
ECE_BINS = 15  # bins of ECE, as in metrics.ece
TABLE_ROWS = 10_000  # most contexts listed, the worst first
LEAST_ROWS = 30  # contexts with fewer rows are listed but not tested
HEAT_VALUES = 40  # most values on a side of the heat map
DOTS, DOT_WEIGHT = 6, 100.0  # observed rates shown with a curve: how many at most, and the least weight of each
_Z = quantile(LEVEL)
_DENSITY_BINS = 48


class Figure(NamedTuple):
    """A headline figure before and after; ``change`` is relative, in percent, with a paired interval, or None."""

    name: str
    before: Estimate
    after: Estimate
    change: Estimate | None


class Reliability(NamedTuple):
    """Bins of equal weight, columns ``[bins]``: mean probability, observed rate with its interval, weight."""

    prob: Floats
    rate: Floats
    lower: Floats
    upper: Floats
    weight: Floats


class Density(NamedTuple):
    """Share of the weight in bins of equal width in logit: ``edge [bins + 1]``, ``before`` and ``after`` ``[bins]``."""

    edge: Floats
    before: Floats
    after: Floats


@dataclass(frozen=True, eq=False)
class ContextTable:
    """O/E by context before and after, worst first after calibration, columns ``[contexts]``.

    A context is tested if it has at least ``LEAST_ROWS`` rows. It is off beyond chance if its interval excludes 1.
    Intervals are adjusted for the number of contexts tested: with perfect predictions, only one table in twenty has a
    context that is off beyond chance.

    Args:
        names: The context columns.
        keys: Their values in each context.
        before: O/E of the raw score.
        after: O/E of the calibrated score.
        curve: The curve that serves the context; -1 if several do.
        total: Number of contexts in the log; a long table leaves out the best ones.
        off: Relative distance of that interval from 1 after calibration: 0 if the context is not off beyond chance.
        judged: How many contexts are tested.
        outside: How many of them are off beyond chance: before, after.
    """

    names: tuple[str, ...]
    keys: tuple[NDArray[Any], ...]
    before: ObservedOverExpected
    after: ObservedOverExpected
    curve: Codes
    total: int
    off: Floats
    judged: int
    outside: tuple[int, int]

    def label(self, row: int) -> str:
        """The context as text, such as ``position 3, device tv``."""
        values = (readable(key[row : row + 1].tolist()[0]) for key in self.keys)
        return ", ".join(f"{readable(name)} {value}" for name, value in zip(self.names, values, strict=True))


class Dots(NamedTuple):
    """Observed rate along the score of each context of a table: ``start [contexts + 1]``, then columns ``[dots]``."""

    start: Codes
    prob: Floats
    rate: Floats


class Daily(NamedTuple):
    """By day, columns ``[days]``: weight, mean scores, label rate and its interval, O/E after with its interval."""

    day: NDArray[Any]
    weight: Floats
    before: Floats
    after: Floats
    rate: Floats
    lower: Floats
    upper: Floats
    ratio: ObservedOverExpected


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that a report shows about rows and curves.

    Args:
        rows: Number of rows (of histogram cells, for a fitted calibrator).
        weight: Sum of their weights.
        rate: Mean label.
        in_sample: Whether the curves were fitted to the same rows.
        clusters: Name and number of the clusters that intervals count, or None if rows count as independent.
        figures: Headline figures, in order of display.
        ece_floor: ECE that perfect probabilities would show on as many rows: before, after.
        worst_group: Multicalibration error over the values of all contexts, before and after; None without contexts.
        reliability: Before and after.
        density: Of the scores.
        tables: O/E by context: all columns combined, then each alone.
        dots: Observed rates by score for the contexts of the first table.
        heat: O/E by two context columns with few values.
        daily: By day, if there is a date.
        unseen: Share of the weight in contexts without a curve of their own.
        beyond: Share of the weight with a score outside the grid of the curves.
    """

    rows: int
    weight: float
    rate: float
    in_sample: bool
    clusters: tuple[str, int] | None
    figures: tuple[Figure, ...]
    ece_floor: tuple[float, float]
    worst_group: tuple[Multicalibration, Multicalibration] | None
    reliability: tuple[Reliability, Reliability]
    density: Density
    tables: tuple[ContextTable, ...]
    dots: Dots
    heat: ContextTable | None
    daily: Daily | None
    unseen: float
    beyond: float


def gather(rows: Rows, curves: Curves) -> Evidence:
    """The evidence about rows that curves have scored.

    >>> from isolayer.grid import Grid
    >>> from isolayer.report.rows import from_log
    >>> curves = Curves.identity(Grid())
    >>> log = {"score": [-1.0, 0.0, 1.0, 2.0], "label": [0, 0, 1, 1], "device": ["tv", "tv", "web", "web"]}
    >>> evidence = gather(from_log(log, curves, contexts=["device"]), curves)
    >>> [figure.name for figure in evidence.figures], evidence.tables[0].label(0)
    (['Log loss', 'Normalised entropy', 'ECE', 'Observed / expected'], 'device tv')
    """
    before, after, w = rows.before, rows.after, rows.weight
    bins = [BinSums.of_distinct(rows.label, prob, w) for prob in (before, after)]
    effects = [bin_effect(rows, prob) for prob in (before, after)]
    names = list(rows.keys)
    crossed = [names, *([name] for name in names if len(names) > 1)] if names else []
    tables = tuple(context_table(rows, part, curves) for part in crossed)
    few = [name for name in names if len(rows.keys[name][0]) <= HEAT_VALUES][:2]
    total = float(w.sum())
    inside = (rows.logit >= curves.grid.lower) & (rows.logit <= curves.grid.upper)
    return Evidence(
        rows=len(w),
        weight=total,
        rate=float(rows.label @ w) / total,
        in_sample=rows.in_sample,
        clusters=None if rows.cluster is None else (str(rows.cluster_name), len(np.unique(rows.cluster))),
        figures=figures(rows, bins, effects),
        ece_floor=(ece_floor(bins[0], effects[0]), ece_floor(bins[1], effects[1])),
        worst_group=_worst_groups(rows, before, after) if names else None,
        reliability=(reliability(bins[0], effect=effects[0]), reliability(bins[1], effect=effects[1])),
        density=density(rows),
        tables=tables,
        dots=dots(rows, tables[0]) if tables else Dots(np.zeros(1, np.int64), np.zeros(0), np.zeros(0)),
        heat=context_table(rows, few, curves) if len(few) == 2 else None,
        daily=None if rows.day is None else daily(rows),
        unseen=float(w[rows.curve < curves.starts[-2]].sum()) / total if curves.contexts else 0.0,
        beyond=float(w[~inside].sum()) / total,
    )


def figures(rows: Rows, bins: Sequence[BinSums], effects: Sequence[float] = (1.0, 1.0)) -> tuple[Figure, ...]:
    """Log loss, normalised entropy, ECE and O/E, before and after; ``effects`` widen the interval of ECE."""
    w, y, c = rows.weight, rows.label, rows.cluster
    losses = [logit_loss(y, logit) for logit in (rows.logit, rows.calibrated)]
    sums = [Sums.from_logits(y, logit, w) for logit in (rows.logit, rows.calibrated)]
    change = ratio_estimate(losses[1], losses[0], w, c)
    percent = Estimate(*(100 * (part - 1) for part in change))
    raw, calibrated = losses
    found = [Figure("Log loss", mean_estimate(raw, w, c), mean_estimate(calibrated, w, c), percent)]
    if 0 < sums[0].positive < sums[0].weight:
        one, two = (ne_estimate(loss, y, w, c) for loss in losses)
        found.append(Figure("Normalised entropy", one, two, percent))
    one, two = (ece_estimate(part, effect) for part, effect in zip(bins, effects, strict=True))
    found.append(Figure("ECE", one, two, None))
    found.append(Figure("Observed / expected", *_total_ratios(rows), None))
    return tuple(found)


def _total_ratios(rows: Rows) -> tuple[Estimate, Estimate]:
    """O/E of all rows, before and after."""
    everything = np.zeros(len(rows.label), np.int64)
    tables = (ratios(rows.label, prob, rows.weight, everything, rows.cluster) for prob in (rows.before, rows.after))
    before, after = (Estimate(*(float(part[0]) for part in (t.ratio, t.lower, t.upper))) for t in tables)
    return before, after


def bin_effect(rows: Rows, prob: Floats) -> float:
    """Design effect of clusters within bins of a score, averaged over the bins; 1 if rows are independent."""
    if rows.cluster is None:
        return 1.0
    words, code = np.unique(prob, return_inverse=True)
    mass = summed(code, rows.weight, len(words))
    place = ((np.cumsum(mass) - mass / 2) / mass.sum() * BINS).astype(np.int64)  # equal scores stay in one bin
    return float(np.mean(widened(rows.label, prob, place[code], rows.weight, rows.cluster)))


def ece_estimate(bins: BinSums, effect: float = 1.0) -> Estimate:
    """``metrics.ece`` with a normal interval from the standard error of each bin's rate."""
    share, deviation = _bin_spread(bins, effect)
    value, half = bins.ece(bins=ECE_BINS), _Z * float(np.sqrt((share * deviation) ** 2 @ np.ones(len(share))))
    return Estimate(value, max(0.0, value - half), value + half)


def ece_floor(bins: BinSums, effect: float = 1.0) -> float:
    """Expected ECE of perfect probabilities: the gap of each bin is then a folded normal about 0."""
    share, deviation = _bin_spread(bins, effect)
    return float(share @ deviation) * float(np.sqrt(2 / np.pi))


def _bin_spread(bins: BinSums, effect: float) -> tuple[Floats, Floats]:
    grouped = bins.grouped(ECE_BINS, "mass")
    used = grouped.weight > 0
    weight = grouped.weight[used]
    rate = grouped.positive[used] / weight
    return weight / weight.sum(), np.sqrt(effect * rate * (1 - rate) / weight)


def _worst_groups(rows: Rows, before: Floats, after: Floats) -> tuple[Multicalibration, Multicalibration]:
    """Multicalibration error over every value of every context column."""
    groups = {name: codes for name, (_, codes) in rows.keys.items()}
    words = [
        "all",
        *(word for vocabulary, _ in rows.keys.values() for word in readables(vocabulary)),
    ]  # codes are in order
    found = [multicalibration_error(rows.label, prob, groups, rows.weight) for prob in (before, after)]
    present = np.concatenate(
        [[True], *(np.bincount(codes, minlength=len(keys)) > 0 for keys, codes in rows.keys.values())]
    )
    one, two = (replace(part, group=np.array(words)[present]) for part in found)
    return one, two


def reliability(bins: BinSums, count: int = BINS, *, effect: float = 1.0) -> Reliability:
    """The reliability diagram of sums by distinct probability; a design effect widens its intervals."""
    grouped = bins.grouped(count, "mass")
    used = grouped.weight > 0
    weight, positive = grouped.weight[used], grouped.positive[used]
    return Reliability(grouped.expected[used] / weight, *rates(weight / effect, positive / effect), weight)


def density(rows: Rows) -> Density:
    """Distribution of the scores before and after, over the middle 99.8% of each."""
    ends = [_middle(logit, rows.weight) for logit in (rows.logit, rows.calibrated)]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    edge = np.linspace(low, max(high, low + 0.1), _DENSITY_BINS + 1)
    total = rows.weight.sum()
    shares = (np.histogram(logit, edge, weights=rows.weight)[0] / total for logit in (rows.logit, rows.calibrated))
    return Density(edge, *shares)


def _middle(values: Floats, weight: Floats) -> tuple[float, float]:
    """The values below and above which 0.1% of the weight lies."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = np.searchsorted(share, [0.001, 0.999]).clip(max=len(values) - 1)
    return float(values[order[low]]), float(values[order[high]])


def context_table(rows: Rows, names: Sequence[str], curves: Curves) -> ContextTable:
    """O/E of every combination of some context columns, worst first."""
    keys, group = rows.groups(names)
    tables = [ratios(rows.label, prob, rows.weight, group, rows.cluster) for prob in (rows.before, rows.after)]
    judged = tables[1].weight >= LEAST_ROWS
    level = 1 - (1 - LEVEL) / max(int(judged.sum()), 1)
    offs = [
        np.where(judged, off_beyond(ratios(rows.label, prob, rows.weight, group, rows.cluster, level=level)), 0.0)
        for prob in (rows.before, rows.after)
    ]
    order = np.lexsort([-tables[1].weight, -np.abs(np.log1p(offs[1]))])
    kept = order[:TABLE_ROWS]
    outside = tuple(int((off != 0).sum()) for off in offs)
    before, after = (ObservedOverExpected(*(np.asarray(column)[kept] for column in table)) for table in tables)
    curve = _curve_of(rows, names, keys, group, curves)[kept]
    kept_keys = tuple(key[kept] for key in keys)
    counts = offs[1][kept], int(judged.sum()), (outside[0], outside[1])
    return ContextTable(tuple(names), kept_keys, before, after, curve, len(order), *counts)


def off_beyond(table: ObservedOverExpected) -> Floats:
    """Relative distance of the interval of O/E from 1: 0.1 if it begins at 1.1, -0.1 if it ends at 0.9, 0 if it has 1.

    >>> label, prob = np.ones(40), np.full(40, 0.5)
    >>> off_beyond(ratios(label, prob, np.ones(40), np.arange(40) // 20)).round(2).tolist()
    [0.68, 0.68]
    """
    return np.where(table.lower > 1, table.lower - 1, np.where(table.upper < 1, table.upper - 1, 0.0))


def certain_distance(table: ObservedOverExpected) -> Floats:
    r"""Distance of the interval of O/E from 1, on the log scale: :math:`\max(0, \log lower, -\log upper)`.

    >>> label, group = np.array([1.0, 1, 0, 1, 0, 1]), np.array([0, 0, 1, 1, 1, 1])
    >>> certain_distance(ratios(label, np.full(6, 0.5), np.ones(6), group)).tolist()
    [0.0, 0.0]
    """
    with np.errstate(divide="ignore"):
        return np.maximum(np.maximum(np.log(table.lower), -np.log(table.upper)), 0.0)


def _curve_of(rows: Rows, names: Sequence[str], keys: list[NDArray[Any]], group: Codes, curves: Curves) -> Codes:
    """The curve that serves each context, or -1 if several do; leading context columns have curves of their own."""
    if len(names) < len(curves.contexts) and tuple(names) == curves.contexts[: len(names)]:
        return curves.rows_of(dict(zip(names, keys, strict=True)), len(keys[0]), depth=len(names))
    curve = np.zeros(len(keys[0]), np.int64)
    curve[group] = rows.curve
    mixed = np.zeros(len(curve), bool)
    mixed[group[curve[group] != rows.curve]] = True
    return np.where(mixed, -1, curve)


def dots(rows: Rows, table: ContextTable) -> Dots:
    """Observed rates along the raw score, in bins of equal weight within each context of the table."""
    _, group = rows.groups(table.names)
    place = np.full(int(group.max()) + 1, -1)
    place[np.asarray(table.after.context)] = np.arange(len(table.curve))
    owner = place[group]
    order = np.lexsort([rows.logit, owner])
    order = order[owner[order] >= 0]
    owner, logit, w = owner[order], rows.logit[order], rows.weight[order]
    run = np.cumsum(np.r_[False, (owner[1:] != owner[:-1]) | (logit[1:] != logit[:-1])])  # equal scores stay in one bin
    owner, size = owner[np.flatnonzero(np.diff(run, prepend=-1))], np.bincount(run, w)
    weight = table.after.weight
    many = np.clip(weight // DOT_WEIGHT, 1, DOTS).astype(np.int64)
    middle = np.cumsum(size) - 0.5 * size - (np.cumsum(weight) - weight)[owner]
    part = np.clip((middle / weight[owner] * many[owner]).astype(np.int64), 0, many[owner] - 1)
    start = np.concatenate([[0], np.cumsum(many)])
    cell = (start[owner] + part)[run]
    columns = (w, w * rows.before[order], w * rows.label[order])
    mass, prob, positive = (summed(cell, column, int(start[-1])) for column in columns)
    return Dots(start, over(prob, mass), over(positive, mass))


def daily(rows: Rows) -> Daily:
    """Mean scores beside the label rate, by day."""
    sums = [SegmentSums.from_rows(rows.label, prob, rows.day, rows.weight) for prob in (rows.before, rows.after)]
    _, when = np.unique(np.asarray(rows.day), return_inverse=True)
    # If days are the clusters, a day is a single cluster: its interval treats its own rows as independent.
    cluster = None if rows.cluster is None or len(np.unique(rows.cluster)) <= len(sums[1].key) else rows.cluster
    ratio = ratios(rows.label, rows.after, rows.weight, when, cluster)._replace(context=sums[1].key)
    effect = 1.0 if cluster is None else widened(rows.label, rows.after, when, rows.weight, cluster)
    interval = rates(sums[1].weight / effect, sums[1].positive / effect)
    return Daily(sums[1].key, sums[1].weight, sums[0].mean_prob, sums[1].mean_prob, *interval, ratio)
