"""The rows of a log as an audit reads them: scores, labels and the levels of every field, corrected step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import prob_of
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.categories import Column
from isolayer.fitting.field_levels import Field, fields_of, kind_of, levels_of, number_of, whole_seconds

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Levels = NDArray[np.intp]
Span = tuple[float, float]

BINS = 64  # bins of a number, which its ranges are made of


@dataclass(frozen=True, eq=False)
class AuditRows:
    """Rows to audit, one entry per row, shape ``[n]`` each.

    Args:
        raw: Logit of the score.
        label: Labels in [0, 1].
        weight: How often each row counts.
        rate: Share of the negatives that was kept when rows were sampled.
        fields: The fields.
        levels: Level of every field, one array per field.
        spans: Least and greatest value of each numeric field.
        cluster: Cluster of each row; None if rows are independent.
    """

    raw: Floats
    label: Floats
    weight: Floats
    rate: Floats
    fields: tuple[Field, ...]
    levels: list[Levels]
    spans: tuple[Span | None, ...]
    cluster: Codes | None = None

    @classmethod
    def of(cls, given: LabelledRows, names: Sequence[str], cluster: str | None = None) -> AuditRows:
        """Rows of a log, of which some columns are fields, and one may be a cluster."""
        columns = {name: given.columns[name] for name in names}
        fields = fields_of(columns, given.weight, bins=BINS)
        n = len(given.logit)
        return cls(
            raw=given.logit,
            label=given.label,
            weight=np.ones(n) if given.weight is None else given.weight,
            rate=np.broadcast_to(np.asarray(given.rate, np.float64), (n,)),
            fields=fields,
            levels=levels_of(fields, columns),
            spans=tuple(_span(one, columns) for one in fields),
            cluster=None if cluster is None else codes_of(given.columns[cluster]),
        )

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def traffic(self) -> Floats:
        """How many rows of real traffic each row stands for: a negative counts 1 / rate."""
        return np.asarray(self.weight * (self.label + (1 - self.label) / self.rate))

    @property
    def shift(self) -> Floats:
        """What the sampling of negatives added to the logit of each row."""
        return -np.log(self.rate)


@dataclass(eq=False)
class State:
    """The corrected logit of each row as sampled. Each segment that is found changes it."""

    logit: Floats
    expected: Floats
    variance: Floats
    weight: Floats

    @classmethod
    def of(cls, rows: AuditRows) -> State:
        """Before any segment is corrected."""
        state = cls(rows.raw + rows.shift, np.empty(len(rows)), np.empty(len(rows)), rows.weight)
        state._weigh(slice(None))
        return state

    def move(self, some: NDArray[np.int64], offset: float | Floats) -> None:
        """Correct the logits of some rows."""
        self.logit[some] += offset
        self._weigh(some)

    def _weigh(self, some: Any) -> None:
        prob = prob_of(self.logit[some])
        self.expected[some] = self.weight[some] * prob
        self.variance[some] = self.weight[some] * prob * (1 - prob)


def usable(columns: Mapping[str, Column]) -> tuple[list[str], list[str]]:
    """Names of the columns that can be fields, and of those whose type cannot.

    >>> usable({"device": ["tv"], "tags": [["a", "b"]]})
    (['device'], ['tags'])
    """
    good, bad = list[str](), list[str]()
    for name, values in columns.items():
        try:
            kind_of(name, values)
        except InputError:
            bad.append(name)
        else:
            good.append(name)
    return good, bad


def codes_of(values: Any) -> Codes:
    """Codes of the values of a column. Missing is a value of its own; times are reduced to their day.

    >>> codes_of(["b", None, "a", "b"]).tolist()
    [0, 1, 2, 0]
    """
    import pyarrow as pa

    column = values if isinstance(values, pa.ChunkedArray | pa.Array) else pa.array(values, from_pandas=True)
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(whole.type):
        whole = whole.cast(whole.type.value_type)
    if pa.types.is_timestamp(whole.type):
        whole = whole_seconds(whole).cast(pa.date32(), safe=False)
    return np.asarray(whole.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False), np.int64)


def _span(one: Field, columns: Mapping[str, Column]) -> Span | None:
    """Least and greatest value of a number."""
    if one.kind == "category":
        return None
    numbers = number_of(one.column, columns[one.column], one.part)
    known = numbers[~np.isnan(numbers)]
    return (float(known.min()), float(known.max())) if len(known) else None
