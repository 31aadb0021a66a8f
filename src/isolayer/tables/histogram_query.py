"""Histograms from tables: one Ibis expression that an engine runs, so that only sums leave it.

The expression bins, checks and groups in one pass without joins or window functions: rows that cannot be used get a
bin that says why, so counting them costs nothing. :mod:`isolayer.tables.sources` reads tables, and
:mod:`isolayer.tables.apply` applies curves to them.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import ibis
import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import NEAR, Scale
from isolayer.errors import InputError
from isolayer.fitting.categories import context_names
from isolayer.fitting.evidence import WeightKind, WeightsAreNotCounts, checked_kind, doubtful_counts
from isolayer.fitting.histogram import BINS_PER_STEP, LEAST_WEIGHT, MOST_WEIGHT, Histogram, bins
from isolayer.fitting.negative_rates import refuse_many
from isolayer.grid import Grid
from isolayer.settings import choice, count, text
from isolayer.tables.engine_answer import columns_of, context_column, histogram_of_cells, numbers_of, only_rows
from isolayer.tables.folds import fold_expression
from isolayer.tables.grid_query import Scores, grid_for
from isolayer.tables.label_query import can_be_labels, label_numbers, refuse_other_words
from isolayer.tables.row_sums import Found, sums_of_rows
from isolayer.tables.sources import (
    Table,
    Value,
    as_table,
    backend_of,
    collect,
    collect_sparingly,
    double,
    finite,
    from_files,
    is_number,
    is_relation,
    may_be_keys,
    unbound,
    within,
)

OnBadRows = Literal["error", "drop"]

_SOURCE = ("score", "label", "weight", "scale", "negative_rate", "weight_kind")  # stored in histograms
_UNUSED = -1  # bin of rows with weight 0
_KINDS = {  # bins of rows that cannot be used, and how they are reported
    -2: "scores that are NULL, NaN or infinite",
    -3: "labels that are NULL or outside [0, 1]",
    -4: f"weights that are NULL, negative or above {MOST_WEIGHT}",
    -5: "contexts that are NULL or NaN",
    -6: "negative rates that are NULL or outside (0, 1]",
    -7: "times that are NULL, NaN or infinite",
}
_LONGEST_QUERY = 700  # longest query, in characters, that an error quotes
_PROBS = "scores that are NULL or outside [0, 1]"
_SCORE, _LABEL, _WEIGHT, _CONTEXT, _RATE, _TIME = _KINDS


class RowsDropped(UserWarning):
    """Rows that cannot be used were left out, because ``on_bad_rows="drop"`` asked for it."""


@dataclass(frozen=True)
class ColumnSpec:
    """What the columns of a table mean.

    Args:
        contexts: Context columns, coarse to fine.
        score: The score column.
        label: The label column: numbers in [0, 1], booleans, or words such as yes and no.
        weight: A column of weights, or None.
        scale: Whether scores are logits or probabilities.
        grid: Where the knots are; ``"auto"`` places them by the spread of the scores.
        folds: Number of folds, or a pair of that and a column of integers or strings whose equal values stay together
            (by default the score's; strings are hashed by the engine's own function); None for no folds.
        missing: Whether NULL in a context column is refused (``"error"``) or a context of its own.
        negative_rate: Share of negatives that was kept: a number, a column with few distinct values, or None.
        half_life: A time column and the time in which a row's weight halves, or None.
        weight_kind: What weights mean: ``"frequency"`` or ``"importance"``.
    """

    contexts: tuple[str, ...] = ()
    score: str = "score"
    label: str = "label"
    weight: str | None = None
    scale: Scale = "logit"
    grid: Grid | Literal["auto"] = field(default_factory=Grid)
    folds: int | tuple[int, str] | None = None
    missing: str = "own"
    negative_rate: float | str | None = None
    half_life: tuple[str, float | timedelta] | None = None
    weight_kind: WeightKind = "frequency"

    def __post_init__(self) -> None:
        context_names(self.contexts)
        checked_kind(self.weight_kind)
        for name in ("score", "label", "weight"):
            if name != "weight" or self.weight is not None:
                text(name, getattr(self, name), advice="name a column of the table")
        choice("scale", self.scale, ("logit", "prob"))
        if self.folds is not None:
            folds = self.folds[0] if isinstance(self.folds, tuple) and len(self.folds) == 2 else self.folds
            count("folds", folds, 1, 127, advice="try 5, or (5, a column)")


def histogram_of(
    source: Any, spec: ColumnSpec, *, on_bad_rows: OnBadRows = "error"
) -> tuple[Histogram, dict[str, int]]:
    """Sum the rows of a table inside its engine.

    Args:
        source: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
        spec: What its columns mean.
        on_bad_rows: ``"error"`` refuses a table with rows that cannot be used; ``"drop"`` leaves them out and warns.

    Returns:
        The histogram, and how many rows of each kind were left out.

    >>> frame = {"score": [0.1, 0.2, 9.0], "label": [0, 1, 1], "device": ["tv", "tv", "web"]}
    >>> histogram, dropped = histogram_of(frame, ColumnSpec(("device",)))
    >>> histogram.keys[0].tolist(), histogram.positive.tolist(), dropped
    (['tv', 'web'], [0.0, 1.0, 1.0], {})
    """
    choice("on_bad_rows", on_bad_rows, ("error", "drop"))
    refuse_other_words(source, spec.label, on_bad_rows)
    _refuse_many_rates(source, spec)
    newest = latest(source, spec)
    if isinstance(spec.grid, str):
        spec = replace(spec, grid=grid_for(source, lambda table: _scores(table, spec, newest)))
    total, bad, made = _summed(source, spec, newest)
    if bad:
        counts = ", ".join(f"{count} {kind}" for kind, count in bad.items())
        if on_bad_rows == "error":
            query = sample_query(source, spec)
            own = ', give missing contexts a curve of their own by missing="own"' if _KINDS[_CONTEXT] in bad else ""
            percent = ", divide them by 100 if they are percentages" if 2 * bad.get(_PROBS, 0) > total else ""
            sample = f". To see some: {query}" if len(query) <= _LONGEST_QUERY and not percent else ""
            raise InputError(
                f"rows: expected {_rule(spec)}, got {counts} in {total} rows; repair them{percent}{own}, or leave them "
                f'out by on_bad_rows="drop"{sample}'
            )
        warnings.warn(f"left out of {total} rows: {counts}", RowsDropped, stacklevel=3)
    histogram = made()
    if spec.weight is not None and spec.weight_kind == "frequency" and spec.half_life is None:
        why = doubtful_counts(histogram.weight, histogram.weight_squared, histogram.rows)
        if why is not None:
            warnings.warn(why, WeightsAreNotCounts, stacklevel=3)
    return replace(histogram, source={name: getattr(spec, name) for name in _SOURCE}), bad


def _summed(source: Any, spec: ColumnSpec, newest: float | None) -> tuple[int, dict[str, int], Callable[[], Histogram]]:
    """Number of rows, numbers of unusable rows by kind, and a function that makes the histogram of the others."""
    found = _sorted_here(source, spec)
    if found is not None:
        histogram, kind, number = found
        return int(histogram.rows + number.sum()), _bad_rows(kind, number, spec), lambda: histogram
    answer = collect_sparingly(source, lambda table: grouped(table, spec, newest=newest))
    schema, batches = answer.schema, answer.to_batches()
    del answer
    cells = columns_of(schema, batches)
    kind, number = numbers_of(cells["bin"]), numbers_of(cells["count"])

    def made() -> Histogram:
        kept = numbers_of(cells["bin"]) >= 0
        good = cells if kept.all() else only_rows(cells, kept)
        return histogram_of_cells(good, spec.contexts, _grid(spec), _rates(good, spec))

    return int(number.sum()), _bad_rows(kind, number, spec), made


def _sorted_here(source: Any, spec: ColumnSpec) -> Found | None:
    """The sums of rows without weights, folds or rates, if sorting the rows is faster than grouping them."""
    if any(one is not None for one in (spec.weight, spec.half_life, spec.folds)) or isinstance(spec.negative_rate, str):
        return None
    place = spec.contexts, _grid(spec), float(_rates({}, spec))
    return sums_of_rows(source, lambda table: prepared(table, spec), *place)


def histogram_from_table(source: Any, *columns: Any, on_bad_rows: Literal["error", "drop"] = "error") -> Histogram:
    """See :meth:`Histogram.from_table`; ``columns`` are the fields of :class:`ColumnSpec`, in their order."""
    return histogram_of(source, ColumnSpec(*columns), on_bad_rows=on_bad_rows)[0]


def grouped(table: Table, spec: ColumnSpec, *, newest: float | None = None) -> Table:
    """The histogram of a table as one lazy expression: contexts, ``fold`` if there are any, ``bin``, sums.

    Contexts are renamed to ``context_0`` and so on, so that none has the name of a sum.

    >>> rows = ibis.table({"score": "float64", "label": "int8", "bin": "string"}, name="rows")
    >>> grouped(rows, ColumnSpec(("bin",))).columns
    ('context_0', 'bin', 'count', 'positive', 'logit')
    """
    rows = prepared(table, spec, newest=newest)
    label, logit = rows["label"], rows["logit"]
    if "weight" not in rows.columns:
        sums = {"positive": label.sum(), "logit": logit.sum()}
    else:
        weight = rows["weight"]
        sums = {
            "weight": weight.sum(),
            "weight_squared": (weight * weight).sum(),
            "positive": (weight * label).sum(),
            "logit": (weight * logit).sum(),
        }
    keys = [name for name in rows.columns if name not in ("label", "logit", "weight")]
    return rows.group_by(keys).agg(count=rows.count(), **sums)


def prepared(table: Table, spec: ColumnSpec, *, newest: float | None = None) -> Table:
    """The rows of a table as one lazy expression: the columns that :func:`grouped` groups by, then those it sums."""
    _check_columns(table, spec)
    _, logit = _logit(table, spec)
    label, weight = label_numbers(table[spec.label]).cast("float64"), weight_expression(table, spec, newest)
    keys = {context_column(place): table[name] for place, name in enumerate(spec.contexts)}
    if isinstance(spec.negative_rate, str):
        keys["negative_rate"] = table[spec.negative_rate].cast("float64")
    if spec.folds is not None:
        keys["fold"] = fold_expression(table, spec.score, spec.folds)
    return table.select(**keys, bin=_bin(table, spec, weight), label=label, logit=logit, **_named("weight", weight))


def logit_expression(score: Value, scale: Scale) -> tuple[Value, Value]:
    """Whether a score can be used, and its logit, which is NULL if it cannot."""
    number = score.cast("float64")
    if scale == "logit":
        return finite(score), number
    inside = ibis.least(ibis.greatest(number, double(NEAR)), double(1 - NEAR))
    return within(score, 0, 1), (inside / (double(1) - inside)).ln()


def sample_query(source: Any, spec: ColumnSpec) -> str:
    """SQL, on one line, that shows ten rows that cannot be used."""
    table = unbound(source, "relation") if is_relation(source) else as_table(source)
    lasting = isinstance(source, ibis.Table | str | Path)
    table = table if lasting or is_relation(source) else ibis.table(table.schema(), name="frame")
    good = ibis.and_(*(rule for _, rule in _rules(table, spec, _plain_weight(table, spec))))
    bad = table.filter(~good.fill_null(False)).limit(10)
    backend = backend_of(table)
    query = re.sub(r"\s+", " ", str(ibis.to_sql(bad, dialect=backend.name)))
    return from_files(query, backend) if lasting else query


def latest(source: Any, spec: ColumnSpec) -> float | None:
    """The newest time in a table, in the units of the half-life of :class:`ColumnSpec`; None without a half-life."""
    if spec.half_life is None:
        return None
    answer = collect(source, lambda table: table.agg(newest=_time(table, spec).max()))
    newest = answer["newest"][0].as_py()
    return None if newest is None else float(newest)


def _refuse_many_rates(source: Any, spec: ColumnSpec) -> None:
    """Raise when a column of rates has too many distinct values to group by."""
    rate = spec.negative_rate
    if isinstance(rate, str):
        answer = collect(source, lambda table: _checked(table, spec).agg(rates=table[rate].nunique()))
        refuse_many(int(answer["rates"][0].as_py() or 0))


def _checked(table: Table, spec: ColumnSpec) -> Table:
    _check_columns(table, spec)
    return table


def _check_columns(table: Table, spec: ColumnSpec) -> None:
    columns = table.schema()
    rate, life = spec.negative_rate, spec.half_life
    numeric = [spec.score, spec.label, spec.weight, rate if isinstance(rate, str) else None]
    group = spec.folds[1] if isinstance(spec.folds, tuple) else None
    for name in [*spec.contexts, *numeric, group, life and life[0]]:
        if name is not None and name not in columns:
            raise InputError(f"column {name}: expected it in the table, got {list(columns)}; name another")
    for name in numeric:
        good = can_be_labels if name == spec.label else is_number
        if name is not None and not good(columns[name]):
            raise InputError(f"column {name}: expected numbers, got {columns[name]}; convert it")
    for name in spec.contexts:
        if not may_be_keys(columns[name]):
            rule = "expected strings, integers or booleans"
            raise InputError(f"context {name}: {rule}, got {columns[name]}; convert the column")


def _scores(table: Table, spec: ColumnSpec, newest: float | None) -> Scores:
    _check_columns(table, spec)
    weight = weight_expression(table, spec, newest)
    good = ibis.and_(*(rule for _, rule in _rules(table, spec, weight)))
    return Scores(good, _logit(table, spec)[1], weight)


def _logit(table: Table, spec: ColumnSpec) -> tuple[Value, Value]:
    return logit_expression(table[spec.score], spec.scale)


def _plain_weight(table: Table, spec: ColumnSpec) -> Value | None:
    return None if spec.weight is None else table[spec.weight].cast("float64")


def weight_expression(table: Table, spec: ColumnSpec, newest: float | None) -> Value | None:
    """Weight of each row, reduced by its age; None if every row has weight 1."""
    weight = _plain_weight(table, spec)
    if spec.half_life is not None and newest is not None:
        age = (double(newest) - _time(table, spec)) / double(_half_life(table, spec))
        factor = (-age * double(math.log(2))).exp()
        weight = factor if weight is None else factor * weight
    return weight


def _half_life(table: Table, spec: ColumnSpec) -> float:
    name, length = spec.half_life or ("", 0.0)
    is_time = table[name].type().is_timestamp() or table[name].type().is_date()
    if is_time != isinstance(length, timedelta):
        rule = "a timedelta for the datetimes" if is_time else "a number in the units"
        raise InputError(f"half_life: expected {rule} of {name}, got {length}; give one")
    return length.total_seconds() if isinstance(length, timedelta) else float(length)


def _time(table: Table, spec: ColumnSpec) -> Value:
    """Time as a double: seconds for dates and timestamps."""
    column = table[(spec.half_life or ("",))[0]]
    if column.type().is_date():
        column = column.cast("timestamp")
    if column.type().is_timestamp():
        return column.epoch_seconds().cast("float64") + column.microsecond().cast("float64") / double(1e6)
    number = column.cast("float64")
    return ibis.ifelse(finite(number), number, ibis.null("float64"))


def _rules(table: Table, spec: ColumnSpec, weight: Value | None) -> list[tuple[int, Value]]:
    """Conditions that usable rows satisfy, each with the bin of the rows that do not."""
    rules = [(_SCORE, _logit(table, spec)[0]), (_LABEL, within(label_numbers(table[spec.label]), 0, 1))]
    rate, life = spec.negative_rate, spec.half_life
    if isinstance(rate, str):
        share = table[rate].cast("float64")
        rules.append((_RATE, within(table[rate], 0, 1) & (share > double(0))))
    if life is not None:
        rules.append((_TIME, _time(table, spec).notnull()))
    if weight is not None:
        rules.append((_WEIGHT, within(weight, 0, MOST_WEIGHT)))
    if spec.missing == "error":
        rules += [(_CONTEXT, _known(table[name])) for name in spec.contexts]
    return rules


def _known(context: Value) -> Value:
    return finite(context).fill_null(False) if context.type().is_floating() else context.notnull()


def _bin(table: Table, spec: ColumnSpec, weight: Value | None) -> Value:
    """Bin of each row, or a negative number that says why it cannot be used."""
    grid, (_, logit) = _grid(spec), _logit(table, spec)
    place = (logit - double(grid.lower)) * double(BINS_PER_STEP / grid.step)
    clipped = ibis.least(ibis.greatest(place, double(-1)), double(bins(grid) - 2))
    at = clipped.floor().cast("int32") + 1
    rules = _rules(table, spec, weight)
    good = ibis.and_(*(rule for _, rule in rules))
    if weight is not None:
        at = ibis.ifelse(weight >= double(LEAST_WEIGHT), at, _UNUSED)
    # One condition decides for nearly every row; the reason is computed only for rows that fail it.
    why = ibis.cases(*((~rule.fill_null(False), kind) for kind, rule in rules), else_=_SCORE)
    return ibis.ifelse(good, at, why).cast("int32")


def _grid(spec: ColumnSpec) -> Grid:
    return Grid() if isinstance(spec.grid, str) else spec.grid


def _named(name: str, value: Value | None) -> dict[str, Value]:
    return {} if value is None else {name: value}


def _rule(spec: ColumnSpec) -> str:
    score = "finite scores" if spec.scale == "logit" else "scores in [0, 1]"
    weight = "" if spec.weight is None else f", weights from 0 to {MOST_WEIGHT}"
    return f"{score}, labels in [0, 1]{weight}" + (", no missing contexts" if spec.missing == "error" else "")


def _bad_rows(kind: NDArray[Any], count: NDArray[Any], spec: ColumnSpec) -> dict[str, int]:
    """How many rows of each kind cannot be used, by bins and counts of cells."""
    bad = np.flatnonzero(kind < _UNUSED)
    kind, count = kind[bad], count[bad]
    kinds = _KINDS if spec.scale == "logit" else _KINDS | {_SCORE: _PROBS}
    return {text: int(count[kind == code].sum()) for code, text in kinds.items() if (kind == code).any()}


def _rates(cells: dict[str, Any], spec: ColumnSpec) -> NDArray[np.float64] | float:
    """Negative rate of each cell, or of all."""
    if isinstance(spec.negative_rate, str):
        return np.asarray(numbers_of(cells["negative_rate"]), np.float64)
    return 1.0 if spec.negative_rate is None else float(spec.negative_rate)
