"""The sums of :mod:`isolayer.metrics` from a table: one Ibis expression each, so that only sums leave the engine.

Ranking metrics by query or user (nDCG, GAUC) need whole lists and are not here: run them in batches.
"""

from __future__ import annotations

from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isolayer.errors import InputError
from isolayer.metrics.bins import LOGIT_LIMIT, MOST_BINS, BinSums
from isolayer.metrics.rows import PROB_FLOOR
from isolayer.metrics.sums import SegmentSums, Sums
from isolayer.settings import count, text
from isolayer.tables.label_query import can_be_labels, label_numbers, refuse_other_words
from isolayer.tables.sources import Table, Value, collect, double, is_number, within

_SUMS = ("weight", "positive", "expected", "loss", "squared_error")


def sums_of(source: Any, *, prob: str, label: str, weight: str | None) -> Sums:
    """Sums over all rows; see :meth:`Sums.from_table`.

    >>> rows = {"prob": [0.5, 0.5], "label": [0, 1]}
    >>> sums_of(rows, prob="prob", label="label", weight=None).normalised_entropy
    1.0
    """
    _refuse_words(source, label)
    answer = collect(source, lambda table: _rows(table, prob, label, weight).agg(**_totals(_SUMS)))
    _refuse_bad_rows(answer)
    return Sums(*(float(answer[name][0].as_py()) for name in _SUMS))


def segment_sums_of(source: Any, *, prob: str, label: str, segment: str, weight: str | None) -> SegmentSums:
    """Sums by segment; see :meth:`SegmentSums.from_table`.

    >>> rows = {"prob": [0.5, 0.5], "label": [0, 1], "device": ["web", "ios"]}
    >>> segment_sums_of(rows, prob="prob", label="label", segment="device", weight=None).key.tolist()
    ['ios', 'web']
    """
    _refuse_words(source, label)
    answer = collect(
        source,
        lambda table: (
            _rows(table, prob, label, weight, key=_column(table, segment)).group_by("key").agg(**_totals(_SUMS))
        ),
    )
    _refuse_bad_rows(answer)
    if pc.any(answer["key"].is_null(nan_is_null=True)).as_py():
        raise InputError(f"column {segment}: expected no NULL or NaN segments, got some; name them, or leave them out")
    answer = answer.sort_by("key")
    column = answer["key"]
    key = column.to_numpy() if pa.types.is_temporal(column.type) else np.array(column.to_pylist())
    return SegmentSums(key, *(answer[name].to_numpy().astype(np.float64) for name in _SUMS))


def bin_sums_of(source: Any, *, prob: str, label: str, weight: str | None, bins: int) -> BinSums:
    """Sums by fixed bins of the score; see :meth:`BinSums.from_table`.

    >>> rows = {"prob": [0.1, 0.4, 0.35, 0.8], "label": [0, 0, 1, 1]}
    >>> bin_sums_of(rows, prob="prob", label="label", weight=None, bins=4096).auc
    0.75
    """
    bins = count("bins", bins, 2, MOST_BINS, advice="4096 is usual")
    names = ("weight", "positive", "expected", "squared_error")
    _refuse_words(source, label)
    answer = collect(
        source,
        lambda table: (
            _rows(table, prob, label, weight, key=_bin(table, prob, bins)).group_by("key").agg(**_totals(names))
        ),
    )
    _refuse_bad_rows(answer)
    place = answer["key"].to_numpy()
    columns = np.zeros((len(names), bins))
    for row, name in zip(columns, names, strict=True):
        row[place] = answer[name].to_numpy()
    return BinSums(*columns)


def _rows(table: Table, prob: str, label: str, weight: str | None, key: Value | None = None) -> Table:
    """Weighted quantities of each row; for rows that cannot be used they are NULL, and such rows are flagged."""
    p, y = _numbers(table, prob), _labels(table, label)
    w = double(1) if weight is None else _numbers(table, weight)
    good = within(p, 0, 1) & within(y, 0, 1)
    if weight is not None:
        good &= within(w, 0, 1e300)
    inside = ibis.least(ibis.greatest(p, double(PROB_FLOOR)), double(1 - PROB_FLOOR))
    loss = -(y * inside.ln() + (double(1) - y) * (double(1) - inside).ln())
    quantities = {
        "weight": w,
        "positive": w * y,
        "expected": w * p,
        "loss": w * loss,
        "squared_error": w * (p - y) ** 2,
    }
    bad = ibis.ifelse(good.fill_null(False), 0, 1)
    kept = {name: ibis.ifelse(good, value, ibis.null("float64")) for name, value in quantities.items()}
    return table.select(**({} if key is None else {"key": key}), **kept, bad=bad)


def _totals(names: tuple[str, ...]) -> dict[str, Value]:
    return {name: ibis._[name].sum() for name in names} | {"bad": ibis._["bad"].sum(), "rows": ibis._.count()}


def _bin(table: Table, prob: str, bins: int) -> Value:
    """The bin of :meth:`BinSums.from_rows`."""
    p = _numbers(table, prob)
    inside = ibis.least(ibis.greatest(p, double(PROB_FLOOR)), double(1 - PROB_FLOOR))  # beyond both limits of the bins
    logit = inside.ln() - (double(1) - inside).ln()
    clipped = ibis.least(ibis.greatest(logit, double(-LOGIT_LIMIT)), double(LOGIT_LIMIT))
    place = ((clipped + double(LOGIT_LIMIT)) * double(bins / (2 * LOGIT_LIMIT))).floor()
    return ibis.least(place, double(bins - 1)).cast("int32")


def _column(table: Table, name: str) -> Value:
    if text("column", name, advice="name a column of the table") not in table.columns:
        raise InputError(f"column {name}: expected it in the table, got {list(table.columns)}; name another")
    return table[name]


def _numbers(table: Table, name: str) -> Value:
    column = _column(table, name)
    if not is_number(column.type()):
        raise InputError(f"column {name}: expected numbers, got {column.type()}; convert it")
    return column.cast("float64")


def _refuse_words(source: Any, label: str) -> None:
    refuse_other_words(source, text("column", label, advice="name a column of the table"))


def _labels(table: Table, name: str) -> Value:
    column = _column(table, name)
    if not can_be_labels(column.type()):
        raise InputError(f"column {name}: expected labels, got {column.type()}; convert it")
    return label_numbers(column).cast("float64")


def _refuse_bad_rows(answer: pa.Table) -> None:
    bad, rows = (sum(count or 0 for count in answer[name].to_pylist()) for name in ("bad", "rows"))
    if not rows:
        raise InputError("rows: expected at least one row, got 0; check the filter that made this table")
    if bad:
        raise InputError(
            f"rows: expected probabilities and labels in [0, 1] and finite weights >= 0, got {bad} others in {rows} "
            "rows; repair them, or leave them out"
        )
    if not sum(answer["weight"].to_pylist()):
        raise InputError("weight: expected a positive sum, got 0.0; give some row a weight")
