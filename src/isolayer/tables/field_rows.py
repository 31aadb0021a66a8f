"""Rows with their fields, out of the engine that holds them: all of them, or a sample where they are very many.

Base curves need sums only, which :mod:`isolayer.tables.histogram_query` makes of all rows. The terms of fields are
fitted to rows: two more scans, one that counts and one that samples, and at most ``MOST_ROWS`` rows leave the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ibis
import numpy as np
import pyarrow as pa

from isolayer.curves.fielded import LabelledRows, field_names
from isolayer.errors import InputError
from isolayer.fitting.histogram import LEAST_WEIGHT, MOST_WEIGHT
from isolayer.tables.histogram_query import ColumnSpec, logit_expression
from isolayer.tables.sources import Table, Value, as_table, collect, double, is_relation, unbound, within

MOST_ROWS = 1_000_000
_OWN = "isolayer_"  # what our columns are called, beside those of the table


def field_columns(source: Any, spec: ColumnSpec, fields: Sequence[str] | str) -> tuple[str, ...]:
    """The field columns of a table, each of which it must have.

    >>> field_columns({"score": [0.1], "label": [1], "hour": [2]}, ColumnSpec(()), "all")
    ('hour',)
    """
    table = unbound(source) if is_relation(source) else as_table(source)
    rate, life = spec.negative_rate, spec.half_life
    used = [spec.score, spec.label, spec.weight, rate if isinstance(rate, str) else None, life[0] if life else None]
    names = field_names(fields, table.columns, [name for name in (*used, *spec.contexts) if name])
    for name in names:
        if name not in table.columns:
            raise InputError(f"column {name}: expected it in the table, got {list(table.columns)}; name another")
    return names


def labelled_rows(
    source: Any, spec: ColumnSpec, fields: Sequence[str], *, most: int = MOST_ROWS
) -> tuple[LabelledRows, int]:
    """Rows that can be used, and how many the table has.

    Args:
        source: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
        spec: What its columns mean.
        fields: Names of the field columns.
        most: How many rows to take at most, about; more are sampled.

    >>> rows, total = labelled_rows({"score": [0.1, None], "label": [1, 0], "hour": [2, 3]}, ColumnSpec(()), ["hour"])
    >>> rows.logit.tolist(), rows.columns["hour"].to_pylist(), total
    ([0.1], [2], 2)
    """
    if spec.half_life is not None:
        raise InputError(f"half_life: expected None with fields in a table, got {spec.half_life}; use fit")
    total = int(collect(source, lambda table: table.aggregate(rows=table.count()))["rows"][0].as_py())
    found = collect(source, lambda table: _usable(_sampled(table, total, most), spec, fields))
    columns = {name: found[name] for name in dict.fromkeys([*spec.contexts, *fields])}
    own = {name: found[f"{_OWN}{name}"].cast(pa.float64()) for name in ("logit", "label", "weight", "rate")}
    numbers = {name: np.array(values.to_numpy()) for name, values in own.items()}
    weight = None if spec.weight is None else numbers["weight"]
    if weight is not None and spec.weight_kind == "importance":
        weight = weight * (weight.sum() / (weight**2).sum())
    return LabelledRows(numbers["logit"], numbers["label"], columns, weight, numbers["rate"]), total


def _sampled(table: Table, total: int, most: int) -> Table:
    return table if total <= most else table.sample(most / total, seed=0)


def _usable(table: Table, spec: ColumnSpec, fields: Sequence[str]) -> Table:
    """Columns of rows that can be used."""
    good, logit = logit_expression(table[spec.score], spec.scale)
    label, weight, rate = table[spec.label].cast("float64"), _number(table, spec.weight), _rate(table, spec)
    good &= within(label, 0, 1) & within(weight, LEAST_WEIGHT, MOST_WEIGHT) & (rate > double(0))
    if spec.missing == "error":
        for name in spec.contexts:
            good &= table[name].notnull()
    own = {"logit": logit, "label": label, "weight": weight, "rate": rate}
    named = {f"{_OWN}{name}": value for name, value in own.items()}
    return table.filter(good).select(*dict.fromkeys([*spec.contexts, *fields]), **named)


def _number(table: Table, name: str | None) -> Value:
    return ibis.literal(1.0, "float64") if name is None else table[name].cast("float64")


def _rate(table: Table, spec: ColumnSpec) -> Value:
    rate = 1.0 if spec.negative_rate is None else spec.negative_rate
    return table[rate].cast("float64") if isinstance(rate, str) else double(rate)
