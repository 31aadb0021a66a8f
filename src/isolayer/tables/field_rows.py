"""Rows with their fields, fetched from an engine: all rows, or a sample if there are very many.

Base curves need only sums, which :mod:`isolayer.tables.histogram_query` computes from all rows. The terms of fields are
chosen on rows: two further scans, one to count and one to sample, and about ``MOST_ROWS`` rows at most leave the
engine. The values of the terms are again fitted to sums over all rows, see :mod:`isolayer.tables.field_fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ibis
import numpy as np
import pyarrow as pa

from isolayer.curves.export.sql import own_name
from isolayer.curves.export.sql_sums import RowColumns
from isolayer.curves.fielded import LabelledRows, field_names
from isolayer.errors import InputError
from isolayer.fitting.histogram import LEAST_WEIGHT, MOST_WEIGHT
from isolayer.tables.histogram_query import ColumnSpec, latest, logit_expression, weight_expression
from isolayer.tables.label_query import label_numbers
from isolayer.tables.sources import Table, Value, as_table, collect, double, is_relation, unbound, within

MOST_ROWS = 300_000


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
        most: Approximate largest number of rows; if there are more, they are sampled.

    >>> rows, total = labelled_rows({"score": [0.1, None], "label": [1, 0], "hour": [2, 3]}, ColumnSpec(()), ["hour"])
    >>> rows.logit.tolist(), rows.columns["hour"].to_pylist(), total
    ([0.1], [2], 2)
    """
    total = int(collect(source, lambda table: table.aggregate(rows=table.count()))["rows"][0].as_py())
    usable = Usable(spec, fields, latest(source, spec))
    found = collect(source, lambda table: usable(_sampled(table, total, most)))
    columns = {name: found[name] for name in dict.fromkeys([*spec.contexts, *fields])}
    numbers = [np.array(found[name].cast(pa.float64()).to_numpy()) for name in usable.own]
    logit, label, weight, rate = numbers
    if spec.weight_kind == "importance" and usable.weighted:
        weight = weight * (weight.sum() / (weight**2).sum())
    return LabelledRows(logit, label, columns, weight if usable.weighted else None, rate), total


def _sampled(table: Table, total: int, most: int) -> Table:
    return table if total <= most else table.sample(most / total, seed=0)


class Usable(NamedTuple):
    """The rows of a table that can be used: contexts, fields, and the columns that ``own`` names.

    Args:
        spec: What the columns of the table mean.
        fields: Names of the field columns.
        newest: The newest time, if old rows are forgotten.
        factor: Factor of every weight.
    """

    spec: ColumnSpec
    fields: Sequence[str]
    newest: float | None = None
    factor: float = 1.0

    @property
    def weighted(self) -> bool:
        """Whether rows can have weights other than 1."""
        return self.spec.weight is not None or self.spec.half_life is not None

    @property
    def own(self) -> RowColumns:
        """Names of generated columns; they differ from all contexts and fields."""
        taken = [*self.spec.contexts, *self.fields]
        return RowColumns(*(own_name(taken, name) for name in RowColumns._fields))

    def __call__(self, table: Table) -> Table:
        """Columns of the rows of a table that can be used."""
        good, columns = self._read(table)
        own = dict(zip(self.own, columns, strict=True))
        return table.filter(good).select(*dict.fromkeys([*self.spec.contexts, *self.fields]), **own)

    def _read(self, table: Table) -> tuple[Value, tuple[Value, ...]]:
        """Whether rows can be used, and the generated columns."""
        spec = self.spec
        good, logit = logit_expression(table[spec.score], spec.scale)
        label, rate = label_numbers(table[spec.label]).cast("float64"), _rate(table, spec)
        weight = weight_expression(table, spec, self.newest)
        weight = ibis.literal(1.0, "float64") if weight is None else weight
        good &= within(label, 0, 1) & within(weight, LEAST_WEIGHT, MOST_WEIGHT) & (rate > double(0))
        if spec.missing == "error":
            for name in spec.contexts:
                good &= table[name].notnull()
        weight = weight if self.factor == 1 else weight * double(self.factor)
        return good, (logit, label, weight, rate)

    def kept(self, table: Table) -> Table:
        """The rows of a table that can be used, with all their columns."""
        return table.filter(self._read(table)[0])


def _rate(table: Table, spec: ColumnSpec) -> Value:
    rate = 1.0 if spec.negative_rate is None else spec.negative_rate
    return table[rate].cast("float64") if isinstance(rate, str) else double(rate)
