"""Which columns of a log are features, labels, contexts, weights and lists, and rows of those columns as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from isolayer.errors import InputError
from isolayer.fitting.label_words import read_words
from isolayer.vocabularies import Vocabulary

LARGEST_FEATURE = 1e18  # squares of larger values, and so variances, overflow float32


class Batch(NamedTuple):
    """Rows of a log as a debiasing model takes them."""

    features: Tensor  # [batch, features]
    context: dict[str, Tensor]  # {name: ids [batch]}
    labels: dict[str, Tensor]  # {task: [batch]}
    mask: dict[str, Tensor]  # {task: whether the row has a label [batch]}, for tasks with nulls
    weight: Tensor | None  # [batch]
    lists: Tensor | None = None  # the number of each row's list within the batch, [batch]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """The rows of several batches without lists, one after the other."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        context = {name: torch.cat([part.context[name] for part in parts]) for name in first.context}
        labels = {task: torch.cat([part.labels[task] for part in parts]) for task in first.labels}
        masked = {task for part in parts for task in part.mask}
        mask = {task: torch.cat([part.known(task) for part in parts]) for task in first.labels if task in masked}
        weights = [part.weight for part in parts if part.weight is not None]
        features = torch.cat([part.features for part in parts])
        return cls(features, context, labels, mask, torch.cat(weights) if weights else None)

    def known(self, task: str) -> Tensor:
        """Whether each row has a label of a task."""
        everywhere = torch.ones(len(self.features), dtype=torch.bool, device=self.features.device)
        return self.mask.get(task, everywhere)

    def rows(self, which: slice | Tensor) -> Batch:
        """Some of the rows: a slice, which shares memory with this batch, or an index, which is copied."""

        def of(column: Tensor) -> Tensor:
            return column[which] if isinstance(which, slice) else column.index_select(0, which)

        parts = (self.context, self.labels, self.mask)
        context, labels, mask = ({name: of(one) for name, one in part.items()} for part in parts)
        weight, lists = (None if one is None else of(one) for one in (self.weight, self.lists))
        return Batch(of(self.features), context, labels, mask, weight, lists)


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a log.

    Args:
        features: Numeric columns, or the name of one column of lists of equal length.
        tasks: Label columns in [0, 1]; a null means that the row has no label.
        contexts: Columns of context ids: integers from 0, or whatever the vocabulary of the column has.
        weight: A column of row weights.
        list_id: The column of the list that each row belongs to; the rows of a list follow one another.
        vocabularies: The values of columns whose ids are not given as integers. A context's unseen value is unknown,
            id -1. A feature becomes the id of its value, from 1, and 0 if it was not seen.
    """

    features: str | Sequence[str]
    tasks: Sequence[str]
    contexts: Sequence[str]
    weight: str | None = None
    list_id: str | None = None
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hidden = {*self.tasks, *self.contexts, self.weight, self.list_id}
        leaks = [name for name in self._feature_columns if name in hidden]
        if leaks:
            raise InputError(
                f"features: expected no labels, contexts, weights or lists among them, got {leaks}; leave them out, "
                "since they are not known at serving"
            )

    @property
    def _feature_columns(self) -> list[str]:
        return [self.features] if isinstance(self.features, str) else list(self.features)

    @property
    def names(self) -> list[str]:
        """Every column that is read, once.

        >>> Columns("features", ["click"], ["position"]).names
        ['features', 'click', 'position']
        """
        more = [name for name in (self.weight, self.list_id) if name is not None]
        return list(dict.fromkeys([*self._feature_columns, *self.tasks, *self.contexts, *more]))

    def feature(self, index: int) -> str:
        """Name of one feature, as an error says it.

        >>> Columns("vector", [], []).feature(3), Columns(["age", "price"], [], []).feature(1)
        ('vector[3]', 'price')
        """
        return f"{self.features}[{index}]" if isinstance(self.features, str) else self.features[index]

    def batch(self, table: Any) -> Batch:
        """Tensors of a pyarrow table's rows, checked."""
        labels, mask = {}, {}
        for task in self.tasks:
            column = _label_numbers(table[task], task)
            if column.null_count:
                mask[task] = torch.from_numpy(column.is_valid().to_numpy().copy())
                column = column.fill_null(0)
            labels[task] = torch.from_numpy(_numbers(column, task, np.float32))
        context = {name: torch.from_numpy(self._ids(table[name], name)) for name in self.contexts}
        weight = None if self.weight is None else torch.from_numpy(_numbers(table[self.weight], self.weight))
        return Batch(torch.from_numpy(self.matrix(table)), context, labels, mask, weight)

    def _ids(self, column: Any, name: str) -> NDArray[np.int64]:
        vocabulary = self.vocabularies.get(name)
        return _numbers(column, name, np.int64) if vocabulary is None else vocabulary.ids(column, name)

    def matrix(self, table: Any) -> NDArray[np.float32]:
        """Features of a pyarrow table's rows, ``[rows, features]``."""
        if isinstance(self.features, str):
            columns = list(_list_column(table[self.features], self.features).T)
        else:
            columns = [self._feature(table[name], name) for name in self.features]
        matrix = np.empty((table.num_rows, len(columns)), np.float32)
        for index, column in enumerate(columns):
            with np.errstate(over="ignore"):  # refused below
                matrix[:, index] = column
        if not np.abs(matrix).max(initial=0.0) <= LARGEST_FEATURE:  # NaN included
            wide = [np.asarray(column, np.float64) for column in columns]
            bad = [column[~(np.abs(column) <= LARGEST_FEATURE)] for column in wide]
            index = next(index for index, some in enumerate(bad) if len(some))
            raise InputError(
                f"features: expected finite numbers up to {LARGEST_FEATURE:g}, got {bad[index][0]:g} in "
                f"{self.feature(index)!r}; repair the rows, or rescale the column"
            )
        return matrix

    def _feature(self, column: Any, name: str) -> NDArray[Any]:
        if name in self.vocabularies:
            return self.vocabularies[name].ids(column, name) + 1
        return _numbers(column, name, np.float64, copy=False)


def _label_numbers(column: Any, task: str) -> Any:
    """Labels of an Arrow column, in which words are numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        return column.cast(pa.float32())
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(test(column.type) for test in tests):
        return column
    words = read_words(f"column {task!r}", np.array(column.to_pylist(), dtype=object))
    return pa.chunked_array([pa.array(words.tolist(), pa.float32(), from_pandas=True)])


def _numbers(column: Any, name: str, dtype: type[np.generic] = np.float32, *, copy: bool = True) -> NDArray[Any]:
    """The numbers of an Arrow column; without ``copy`` they may be those of arrow's memory, which is read-only."""
    if column.null_count:
        raise InputError(
            f"column {name!r}: expected no nulls, got {column.null_count}; fill them, and unknown ids with -1"
        )
    values = column.to_numpy()
    if values.dtype.kind not in "biuf" or (values.dtype.kind == "f" and np.issubdtype(dtype, np.integer)):
        raise InputError(f"column {name!r}: expected {np.dtype(dtype).name}, got {column.type}; cast the column")
    return np.array(values, dtype=dtype) if copy else np.asarray(values)


def _list_column(column: Any, name: str) -> NDArray[np.float64]:
    lists = column.combine_chunks()
    if not hasattr(lists, "flatten") or lists.null_count:
        raise InputError(f"column {name!r}: expected lists of numbers, got {lists.type}; convert it")
    lengths = np.unique(pc.list_value_length(lists).to_numpy()).tolist()
    if len(lengths) > 1:
        raise InputError(
            f"column {name!r}: expected lists of one length, got {lengths[0]} and {lengths[1]}; pad or split the column"
        )
    return _numbers(lists.flatten(), name, np.float64).reshape(len(lists), -1)
