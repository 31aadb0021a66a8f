"""Sums of logs for verdicts on curves with fields: by raw score and corrected logit, or by two calibrators.

The SQL statement of the exports applies the terms inside the engine. Only sums leave the engine, and a sample of rows
for the distribution of the fields in each context.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from isolayer.curves.curves import Curves
from isolayer.curves.export.sql import own_name
from isolayer.curves.export.sql_sums import RowColumns
from isolayer.curves.field_log import MOST_BINS, RAW_STEP, FieldLog, PairedLog, raw_name
from isolayer.errors import InputError
from isolayer.fitting.evidence import WeightsAreNotCounts
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.terms import LAST_GRID
from isolayer.settings import instance
from isolayer.tables.field_rows import Usable, labelled_rows
from isolayer.tables.folds import fold_expression
from isolayer.tables.histogram_query import ColumnSpec, OnBadRows, RowsDropped, histogram_of, logit_expression
from isolayer.tables.sources import as_table, collect, double, is_relation, relation_query, schema_of, unbound

GROUPS = 126  # clusters are assigned to this many groups at random; groups are independent if clusters are

_BIN = 0.02  # width of the bins of corrected logits
_SUMMED = ("weight", "positive", "old", "new", "rate", "fold")


def field_log_of(curves: Curves, table: Any, *, on_bad_rows: OnBadRows = "error", **columns: Any) -> FieldLog:
    """A log for :func:`isolayer.monitor.check`.

    Args:
        curves: The calibrator in service.
        table: An Ibis table, a Parquet or CSV path, a DuckDB relation or a frame.
        on_bad_rows: Whether rows that cannot be used are an error or are left out.
        columns: What its columns mean, as in :func:`spec_as_fitted`.

    >>> from isolayer.calibrator import IsotonicCalibrator
    >>> log = {"score": [0.0] * 400, "label": [0, 0, 0, 1] * 100, "device": ["tv", "web"] * 200}
    >>> curves = IsotonicCalibrator(fields=("device",)).fit_table(log).curves_
    >>> field_log_of(curves, log).corrected.rows
    400.0
    """
    spec = spec_as_fitted(curves, curves.contexts, **columns)
    raw, _ = histogram_of(table, spec, on_bad_rows=on_bad_rows)
    return with_corrected(curves, raw, table, spec)


def with_corrected(curves: Curves, raw: Histogram, source: Any, spec: ColumnSpec) -> FieldLog:
    """The sums of a log by raw score, with those of the same rows by their corrected logit."""
    return FieldLog(raw, _corrected(curves, source, spec), labelled_rows(source, spec, curves.fields)[0])


def table_sums(curves: Curves, source: Any, spec: ColumnSpec) -> Histogram:
    """The same as :func:`isolayer.curves.field_log.fitted_sums` of the rows of a table, in its own engine.

    >>> from isolayer.grid import Grid
    >>> log = {"score": [0.5, 0.5, 1.0], "label": [0, 1, 1]}
    >>> sums = table_sums(Curves.identity(Grid()), log, ColumnSpec(()))
    >>> sums.keys[-1].tolist(), sums.weight.tolist()
    ([25, 50], [2.0, 1.0])
    """
    name = raw_name(curves)

    def binned(table: Any) -> Any:
        bins = (logit_expression(table[spec.score], spec.scale)[1] / double(RAW_STEP)).round()
        return table.mutate(**{name: bins.cast("float64").clip(double(-MOST_BINS), double(MOST_BINS))})

    rows = relation_query(source, binned(unbound(source))) if is_relation(source) else binned(as_table(source))
    return _corrected(curves, rows, replace(spec, contexts=(*spec.contexts, name)))


def _corrected(curves: Curves, source: Any, spec: ColumnSpec) -> Histogram:
    """Sums of rows by their corrected logit; rows that were left out have been reported with the raw sums."""
    prob = own_name(schema_of(source), "prob")
    applied = curves.apply_table(source, score=spec.score, prob=prob)
    with warnings.catch_warnings():
        for told in (RowsDropped, WeightsAreNotCounts):
            warnings.simplefilter("ignore", told)
        on_output = replace(spec, score=prob, scale="prob", grid=LAST_GRID)
        return histogram_of(applied, on_output, on_bad_rows="drop")[0]


def paired_log_of(
    old: Curves, new: Curves, table: Any, *, on_bad_rows: OnBadRows = "error", **columns: Any
) -> PairedLog:
    """A log for :func:`isolayer.monitor.compare_on_log`.

    Args:
        old: The calibrator in service; its fit decides the columns that are not named.
        new: The one to release.
        table: As in :func:`field_log_of`.
        on_bad_rows: Whether rows that cannot be used are an error or are left out.
        columns: What its columns mean, as in :func:`spec_as_fitted`.

    >>> from isolayer.calibrator import IsotonicCalibrator
    >>> log = {"score": [0.0] * 400, "label": [0, 0, 0, 1] * 100, "device": ["tv", "web"] * 200}
    >>> curves = IsotonicCalibrator(fields=("device",)).fit_table(log).curves_
    >>> found = paired_log_of(IsotonicCalibrator().fit_table(log).curves_, curves, log)
    >>> found.weight.tolist(), (found.logits[1] > found.logits[0]).tolist()  # two without events, then one with
    ([200.0, 100.0, 100.0], [False, True, True])
    """
    instance("new", new, Curves, advice="load or fit the calibrator")
    spec = spec_as_fitted(old, tuple(dict.fromkeys([*old.contexts, *new.contexts])), **columns)
    histogram_of(table, spec, on_bad_rows=on_bad_rows)
    return paired(old, new, table, spec)


def paired(old: Curves, new: Curves, source: Any, spec: ColumnSpec) -> PairedLog:
    """The cells of a log by two calibrators; the rows were checked when their sums were made."""
    if old.scale != new.scale:
        raise InputError(f"compare: expected one scale of scores, got {old.scale} and {new.scale}; refit one")
    fields = tuple(dict.fromkeys([*old.contexts, *new.contexts, *old.fields, *new.fields]))
    rows, names = _with_fold(as_table(source.to_arrow_table() if is_relation(source) else source), spec, fields)
    told = collect(names.applied(old, new, rows), names.cells)
    columns = {name: np.asarray(told[name].cast(pa.float64()).to_numpy()) for name in _SUMMED}
    weight = columns["weight"]
    kept = replace(spec, contexts=(), folds=None)
    return PairedLog(
        (columns["old"] / weight, columns["new"] / weight),
        weight,
        columns["positive"],
        columns["rate"],
        columns["fold"].astype(np.int64),
        labelled_rows(source, kept, fields)[0],
    )


def spec_as_fitted(
    curves: Curves,
    contexts: tuple[str, ...],
    *,
    label: str | None = None,
    score: str | None = None,
    weight: str | None = None,
    negative_rate: float | str | None = None,
    cluster: str | None = None,
) -> ColumnSpec:
    """The meaning of the columns of a log: as given, or else as in the fit.

    Args:
        curves: The calibrator.
        contexts: The context columns.
        label: The label column.
        score: The score column.
        weight: A column of weights.
        negative_rate: Share of the negatives that was kept: a number or a column.
        cluster: A column of integers or strings whose rows vary together.

    >>> from isolayer.grid import Grid
    >>> spec_as_fitted(Curves.identity(Grid()), (), label="click").label
    'click'
    """
    instance("curves", curves, Curves, advice="load or fit the calibrator")
    source = curves.source
    return ColumnSpec(
        contexts,
        score or curves.score_name or "score",
        label or curves.label_name or "label",
        weight or source.get("weight"),
        curves.scale,
        curves.grid,
        folds=None if cluster is None else (GROUPS, cluster),
        negative_rate=source.get("negative_rate") if negative_rate is None else negative_rate,
        weight_kind=source.get("weight_kind", "frequency"),
    )


class _Names(NamedTuple):
    """Names of generated columns in the rows of a pair; they differ from the user's columns."""

    own: RowColumns
    fold: str
    old: str
    new: str

    def applied(self, old: Curves, new: Curves, rows: Any) -> Any:
        """The rows with the probabilities of both calibrators."""
        once = old.on_logits.apply_table(rows, score=self.own.logit, prob=self.old)
        return new.on_logits.apply_table(once, score=self.own.logit, prob=self.new)

    def cells(self, table: Any) -> Any:
        """Sums by cluster, share of negatives, class and the bins of both corrected logits."""
        old, new = (logit_expression(table[name], "prob")[1] for name in (self.old, self.new))
        label, weight, rate = (table[name] for name in (self.own.label, self.own.weight, self.own.rate))
        rows = table.select(old=old, new=new, label=label, weight=weight, rate=rate, fold=table[self.fold])
        bins = {f"{name}_bin": (rows[name] / double(_BIN)).floor() for name in ("old", "new")}
        rows = rows.mutate(high=rows["label"] > double(0.5), **bins)
        weight = rows["weight"]
        sums = {"positive": rows["label"], "old": rows["old"], "new": rows["new"]}
        return (
            rows.group_by(["fold", "rate", "high", "old_bin", "new_bin"])
            .agg(weight=weight.sum(), **{name: (weight * values).sum() for name, values in sums.items()})
            .order_by(["fold", "rate", "high", "old_bin", "new_bin"])
        )


def _with_fold(table: Any, spec: ColumnSpec, fields: tuple[str, ...]) -> tuple[Any, _Names]:
    """Usable rows with the fold of their cluster (0 without clusters), and the names of the added columns."""
    fold, old, new = (own_name(table.columns, name) for name in ("fold", "old", "new"))
    value = double(0).cast("int64") if spec.folds is None else fold_expression(table, spec.score, spec.folds)
    usable = Usable(replace(spec, contexts=()), (*fields, fold))
    return usable(table.mutate(**{fold: value})), _Names(usable.own, fold, old, new)
