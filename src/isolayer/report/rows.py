"""The rows of a report: read from a log or from a fitted histogram, and scored by the curves.

Sums over rows belong to :mod:`isolayer.report.evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.curves.field_log import RAW_STEP, raw_name, refuse_sums
from isolayer.errors import InputError, need
from isolayer.fitting.categories import Codes, combine, encode
from isolayer.fitting.columns import numbers
from isolayer.fitting.frames import column, column_names
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.sampling import real_traffic
from isolayer.metrics.rows import PROB_FLOOR, labels, same_length, weights

Floats = NDArray[np.float64]
_FURTHEST = float(np.log1p(-PROB_FLOOR) - np.log(PROB_FLOOR))  # logit, 36.04: the rule of the metrics
Keys = tuple[NDArray[Any], Codes]  # the distinct values, and the index of each row's value among them


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with their scores before and after, every column ``[n]``; rows of weight 0 are left out.

    Args:
        logit: Raw score as a logit, clipped to a wide range.
        calibrated: The same after its curve.
        label: What happened, in [0, 1].
        weight: Frequency weights.
        keys: For each context column its distinct values and the code of each row.
        curve: The curve that serves each row.
        day: Dates or whole numbers, or None.
        cluster: Cluster of each row as a code, or None if rows count as independent.
        cluster_name: Name of the column of clusters.
        in_sample: Whether the curves were fitted to the same rows.
    """

    logit: Floats
    calibrated: Floats
    label: Floats
    weight: Floats
    keys: dict[str, Keys]
    curve: Codes
    day: NDArray[Any] | None = None
    in_sample: bool = False
    cluster: Codes | None = None
    cluster_name: str | None = None

    @property
    def before(self) -> Floats:
        """Raw probability."""
        return prob_of(self.logit)

    @property
    def after(self) -> Floats:
        """Calibrated probability."""
        return prob_of(self.calibrated)

    def groups(self, names: Sequence[str]) -> tuple[list[NDArray[Any]], Codes]:
        """The combinations of some context columns that occur, as columns, and the combination of each row."""
        chosen = [self.keys[name] for name in names]
        parts, group = combine([codes for _, codes in chosen], [len(words) for words, _ in chosen], len(self.logit))
        return [words[part] for (words, _), part in zip(chosen, parts, strict=True)], group


def from_log(
    log: Any,
    curves: Curves,
    *,
    score: str = "score",
    label: str = "label",
    contexts: Sequence[str] | None = None,
    weight: str | None = None,
    date: str | None = None,
    cluster: str | None = None,
) -> Rows:
    """Read the named columns of a log and score them.

    Args:
        log: A dict of columns, a frame (pandas, polars, pyarrow), a Parquet path or glob, an Ibis table or a DuckDB
            relation.
        curves: The curves to score with.
        score: Column of raw scores, on the scale of the curves.
        label: Column of labels in [0, 1].
        contexts: Columns to report by; by default the contexts of the curves. Curves of several tasks take the task
            from the name of the label when the log has no column ``task``.
        weight: Column of frequency weights.
        date: Column of dates, or of whole numbers of days.
        cluster: Column whose rows vary together, such as a user or a query; by default the day, if there are several.

    >>> from isolayer.grid import Grid
    >>> from_log({"score": [0.0], "label": [1], "device": ["tv"]}, Curves.identity(Grid()), contexts=["device"]).before
    array([0.5])
    """
    names = [score, label, weight, date, cluster, *(contexts or ()), *curves.contexts, *curves.fields]
    log = _read(log, [name for name in names if name])
    given = [name for name in curves.contexts if name in names_of(log) or name != "task"]
    wanted = given if contexts is None else _listed(contexts)
    scores = numbers(score, column(log, score))
    if len(scores) == 0:
        raise InputError("log: expected at least one row, got none; check the filter that made this table")
    context = {name: column(log, name) for name in given}
    if len(given) < len(curves.contexts):
        context["task"] = np.full(len(scores), _task_of(curves, label))
    fields = {name: column(log, name) for name in curves.fields}
    y = labels(column(log, label), len(scores), label)
    w = weights(None if weight is None else column(log, weight), len(scores))
    rows = Rows(
        _bounded(scores if curves.scale == "logit" else logit_of(scores), curves),
        _bounded(curves.decision_function(scores, {**context, **fields})),
        y,
        w,
        {name: _encoded(column(log, name), name, len(scores)) for name in wanted},
        curves.rows_of(context, len(scores)),
        None if date is None else days(date, column(log, date), len(scores)),
    )
    raw = scores if curves.scale == "logit" else logit_of(scores)
    rows = replace(rows, in_sample=_were_fitted(curves, raw, y, context, w))
    rows = replace(rows, cluster=None if cluster is None else _encoded(column(log, cluster), cluster, len(scores))[1])
    return _clustered(rows if w.all() else _kept(rows, w > 0), date if cluster is None else cluster)


def from_histogram(histogram: Histogram, curves: Curves) -> Rows:
    """The rows of a histogram, each at the mean logit of its bin: what a fitted calibrator keeps of its rows.

    With fields it has sums by raw and corrected logit, see :func:`isolayer.curves.field_log.fitted_sums`.

    >>> histogram = Histogram.from_arrays([0.0, 0.0, 1.0], [0, 1, 1], {"device": ["tv", "tv", "web"]})
    >>> rows = from_histogram(histogram, Curves.from_histogram(histogram))
    >>> rows.label.tolist(), rows.weight.tolist(), rows.in_sample
    ([1.0, 1.0, 0.0], [1.0, 1.0, 1.0], True)
    """
    if histogram.contexts[-1:] != (raw_name(curves),):
        refuse_sums(curves, "report", "use IsotonicCalibrator.report, or isolayer.report.write with a log")
    histogram = real_traffic(histogram)
    mean = histogram.logit / histogram.weight
    cells = np.arange(len(mean))
    cell, label = np.concatenate([cells, cells]), np.repeat([1.0, 0.0], len(mean))
    weight = np.concatenate([histogram.positive, histogram.weight - histogram.positive])
    group = histogram.group[cell]
    context = {name: key[group] for name, key in zip(histogram.contexts, histogram.keys, strict=True)}
    raw = mean[cell] if curves.terms is None else context.pop(raw_name(curves)).astype(np.float64) * RAW_STEP
    curve = curves.rows_of(context if context else None, len(cell))
    keys = {name: encode(values, name) for name, values in context.items()}
    calibrated = curves.evaluate(curve, raw) if curves.terms is None else mean[cell]
    rows = Rows(_bounded(raw, curves), _bounded(calibrated), label, weight, keys, curve, in_sample=True)
    return _kept(rows, weight > 1e-9 * float(weight.max(initial=0)))


def days(name: str, values: Any, rows: int) -> NDArray[Any]:
    """A column as whole days: dates (from datetimes, dates or ISO text), or whole numbers unchanged.

    >>> days("when", ["2026-03-01T12:30", "2026-03-02"], 2).astype(str).tolist()
    ['2026-03-01', '2026-03-02']
    """
    found = np.asarray(values)
    same_length(name, found, rows)
    if found.dtype.kind in "iu":
        return found
    remedy = "give dates, ISO text or day numbers"
    try:
        when = found.astype("datetime64[D]")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected dates, got {found[0]!r}; {remedy}") from error
    if found.dtype.kind == "f" or np.isnat(when).any():
        raise InputError(f"{name}: expected dates, got {found.dtype} with missing values; {remedy}")
    return when


def _bounded(logit: Floats, curves: Curves | None = None) -> Floats:
    """Logits clipped so that losses, squares and sums are finite: probabilities lie in [PROB_FLOOR, 1 - PROB_FLOOR].

    >>> _bounded(np.array([-1e308, 0.0, 1e308])).round(2).tolist()
    [-36.04, 0.0, 36.04]
    """
    lower, upper = (-_FURTHEST, _FURTHEST)
    if curves is not None:  # a raw score beyond the grid stays beyond it
        lower, upper = min(lower, curves.grid.lower - 1), max(upper, curves.grid.upper + 1)
    return np.clip(logit, lower, upper)


def _kept(rows: Rows, keep: NDArray[np.bool_]) -> Rows:
    keys = {name: (words, codes[keep]) for name, (words, codes) in rows.keys.items()}
    columns = (rows.logit[keep], rows.calibrated[keep], rows.label[keep], rows.weight[keep])
    day = None if rows.day is None else rows.day[keep]
    cluster = None if rows.cluster is None else rows.cluster[keep]
    return Rows(*columns, keys, rows.curve[keep], day, rows.in_sample, cluster, rows.cluster_name)


def _clustered(rows: Rows, name: str | None) -> Rows:
    """The rows with their clusters named; without clusters, days are the clusters if there are at least two."""
    codes = rows.cluster
    if codes is None and rows.day is not None:
        codes = np.unique(rows.day, return_inverse=True)[1]
    several = codes is not None and len(np.unique(codes)) > 1
    return replace(rows, cluster=codes if several else None, cluster_name=name if several else None)


def _were_fitted(curves: Curves, logit: Floats, label: Floats, context: dict[str, Any], weight: Floats) -> bool:
    """Whether these are the rows that the curves were fitted to, by the digest of their sums that the curves store."""
    data = curves.source.get("data")
    if data is None or curves.source.get("rows") != len(logit):
        return False
    columns = {name: context[name] for name in curves.contexts}
    sums = Histogram.from_arrays(logit, label, columns, weight, grid=curves.grid)
    return bool(sums.fingerprint() == data)


def names_of(log: Any) -> list[str]:
    """Columns of a log that was read; an error if it is not a frame."""
    names = column_names(log)
    if names is None:
        raise InputError(
            f"log: expected a frame, a dict of columns, a table or a Parquet path, got {type(log).__name__}; give one"
        )
    return names


def _task_of(curves: Curves, label: str) -> str:
    """The task of a label, for a log without a task column."""
    tasks = curves.keys[1][0].tolist()
    if label not in tasks:
        raise InputError(f"label: expected a task of the curves, {tasks}, got {label!r}; rename it or add column task")
    return label


def _listed(contexts: Sequence[str]) -> list[str]:
    if isinstance(contexts, str):
        raise InputError(f"contexts: expected names in a list, got {contexts!r}; use [{contexts!r}]")
    return list(contexts)


def _read(log: Any, names: list[str]) -> Any:
    """A frame as it is; from a table in an engine, only those of the named columns that it has."""
    if not isinstance(log, str | Path) and type(log).__module__.split(".")[0] not in ("ibis", "duckdb", "_duckdb"):
        return log
    need("ibis")
    from isolayer.tables.sources import collect

    return collect(log, lambda table: table.select([name for name in dict.fromkeys(names) if name in table.columns]))


def _encoded(values: Any, name: str, rows: int) -> Keys:
    words, codes = encode(values, name)
    same_length(name, codes, rows)
    return words, codes
