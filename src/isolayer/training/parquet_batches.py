"""Parquet logs in batches of tensors, without ever holding a whole log: what a training loop reads.

Rows are shuffled twice: row groups change their order each epoch, and rows are drawn from a buffer of several row
groups. Which rows are held out is decided by the seed alone, so every epoch, process and resumed run agrees on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from isolayer.errors import InputError, need


class Batch(NamedTuple):
    """Rows of a log as a debiasing model takes them."""

    features: Tensor  # [batch, features]
    context: dict[str, Tensor]  # {name: ids [batch]}
    labels: dict[str, Tensor]  # {task: [batch]}
    mask: dict[str, Tensor]  # {task: whether the row has a label [batch]}, for tasks with nulls
    weight: Tensor | None  # [batch]


@dataclass(frozen=True)
class Columns:
    """Which columns of a log are what.

    Args:
        features: Numeric columns, or the name of one column of lists of equal length.
        tasks: Label columns in [0, 1]; a null has no label.
        contexts: Integer columns of context ids.
        weight: A column of row weights.
    """

    features: str | Sequence[str]
    tasks: Sequence[str]
    contexts: Sequence[str]
    weight: str | None = None

    @property
    def names(self) -> list[str]:
        """Every column that is read, once.

        >>> Columns("features", ["click"], ["position"]).names
        ['features', 'click', 'position']
        """
        features = [self.features] if isinstance(self.features, str) else list(self.features)
        weight = [] if self.weight is None else [self.weight]
        return list(dict.fromkeys([*features, *self.tasks, *self.contexts, *weight]))

    def batch(self, table: Any) -> Batch:
        """Tensors of a pyarrow table's rows."""
        if isinstance(self.features, str):
            features = _list_column(table, self.features)
        else:
            features = np.column_stack([_numbers(table, name, np.float32) for name in self.features])
        if not np.isfinite(features).all():
            raise InputError(f"features: expected finite values, got NaN or infinity in {self.features!r}; repair it")
        labels, mask = {}, {}
        for task in self.tasks:
            if table[task].null_count:
                mask[task] = torch.from_numpy(table[task].is_valid().to_numpy().copy())
                table = table.set_column(table.schema.get_field_index(task), task, table[task].fill_null(0))
            labels[task] = torch.from_numpy(_numbers(table, task, np.float32))
        context = {name: torch.from_numpy(_numbers(table, name, np.int64)) for name in self.contexts}
        weight = None if self.weight is None else torch.from_numpy(_numbers(table, self.weight, np.float32))
        return Batch(torch.from_numpy(features), context, labels, mask, weight)


def _numbers(table: Any, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    column = table[name]
    if column.null_count:
        raise InputError(f"column {name!r}: expected no nulls, got {column.null_count}; fill them, unknown ids with -1")
    values = column.to_numpy()
    if values.dtype.kind not in "biuf" or (values.dtype.kind == "f" and np.issubdtype(dtype, np.integer)):
        raise InputError(f"column {name!r}: expected {np.dtype(dtype).name}, got {column.type}; cast the column")
    return np.array(values, dtype=dtype)  # a copy: arrow's memory is read-only


def _list_column(table: Any, name: str) -> NDArray[np.float32]:
    column = table[name].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if column.null_count or len(flat) % max(len(column), 1):
        raise InputError(f"column {name!r}: expected lists of one length, got {column.type}; pad or split the column")
    return np.array(flat, dtype=np.float32).reshape(len(column), -1)


class RowGroup(NamedTuple):
    """A piece of a file that is read at once."""

    path: str
    place: int  # in its file
    rows: int
    number: int  # among all row groups of the log


@dataclass(frozen=True)
class ParquetLogs:
    """One or more Parquet files as a log of rows, some of them held out.

    Args:
        paths: A file, a folder of files, or several of either.
        columns: Which columns are what.
        held_out: Share of the rows of every row group that is kept from training.
        seed: Of the rows held out and of the order.
        buffer: Rows among which the next batch is drawn.
    """

    paths: str | Path | Sequence[str | Path]
    columns: Columns
    held_out: float = 0.1
    seed: int = 0
    buffer: int = 65_536

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out: expected a share from 0 to below 1, got {self.held_out}; try 0.1")
        if self.buffer < 1:
            raise InputError(f"buffer: expected at least 1 row, got {self.buffer}; try 65536")

    @cached_property
    def files(self) -> list[str]:
        """Files of the log, in order."""
        paths = [self.paths] if isinstance(self.paths, (str, Path)) else self.paths
        files: list[str] = []
        for path in map(Path, paths):
            found = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path] if path.is_file() else []
            if not found:
                raise InputError(
                    f"logs: expected a Parquet file or a folder of them, got {str(path)!r}; check the path"
                )
            files += map(str, found)
        return files

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """Row groups of the log, from the files' footers alone."""
        parquet = need("pyarrow.parquet")
        groups: list[RowGroup] = []
        for path in self.files:
            with parquet.ParquetFile(path) as file:
                missing = [name for name in self.columns.names if name not in file.schema_arrow.names]
                if missing:
                    raise InputError(f"logs: expected columns {missing}, got {file.schema_arrow.names}; rename them")
                for index in range(file.num_row_groups):
                    rows = file.metadata.row_group(index).num_rows
                    if rows:
                        groups.append(RowGroup(path, index, rows, len(groups)))
        if not groups:
            raise InputError(f"logs: expected at least one row, got empty files {self.files}; check what wrote them")
        return groups

    @property
    def rows(self) -> int:
        """Rows of the log."""
        return sum(group.rows for group in self.row_groups)

    def share(self, *, train: bool, rank: int = 0, world: int = 1) -> list[tuple[RowGroup, NDArray[np.intp]]]:
        """Row groups that a process reads, and which of their rows.

        Row groups are dealt out whole; where they are few, every process reads all and takes every ``world``-th row.
        """
        whole = len(self.row_groups) >= 4 * world
        mine = self.row_groups[rank::world] if whole else self.row_groups
        pairs = ((group, self._rows(group, train=train)) for group in mine)
        return [(group, rows if whole else rows[rank::world]) for group, rows in pairs]

    def _rows(self, group: RowGroup, *, train: bool) -> NDArray[np.intp]:
        order = np.random.default_rng([self.seed, group.number]).permutation(group.rows)
        kept_back = round(group.rows * self.held_out)
        return np.sort(order[kept_back:] if train else order[:kept_back])

    def batches(self, *, batch_size: int, train: bool, world: int = 1) -> int:
        """Batches that every process reads in an epoch: as many as the one with the fewest rows has."""
        rows = [sum(len(rows) for _, rows in self.share(train=train, rank=rank, world=world)) for rank in range(world)]
        whole = min(rows) // batch_size if train else -(-min(rows) // batch_size)
        return max(whole, 1 if min(rows) else 0)

    def read(self, group: RowGroup, rows: NDArray[np.intp]) -> Any:
        """The given rows of a row group, as a pyarrow table."""
        parquet = need("pyarrow.parquet")
        with parquet.ParquetFile(group.path) as file:
            return file.read_row_group(group.place, columns=self.columns.names).take(rows)


class LogBatches(IterableDataset[Batch]):
    """An epoch of batches of one process: shuffled for training, in order for the rows held out.

    Args:
        logs: The log.
        batch_size: Rows a batch, of one process.
        train: Whether the rows to train on, or those held out.
        epoch: Gives the number of the epoch, on which the order depends.
        place: Gives the rank of this process and the number of processes.
    """

    def __init__(
        self,
        logs: ParquetLogs,
        *,
        batch_size: int,
        train: bool,
        epoch: Callable[[], int] = lambda: 0,
        place: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}; try 1024")
        self.logs, self.batch_size, self.train, self.epoch, self.place = logs, batch_size, train, epoch, place

    def __len__(self) -> int:
        return self.logs.batches(batch_size=self.batch_size, train=self.train, world=self.place()[1])

    def __iter__(self) -> Iterator[Batch]:
        left = len(self)
        for table in self._blocks():
            for start in range(0, table.num_rows, self.batch_size):
                if not left:
                    return
                yield self.logs.columns.batch(table.slice(start, self.batch_size))
                left -= 1

    def _blocks(self) -> Iterator[Any]:
        """Tables of whole batches, but for the last, rows shuffled within each if training."""
        pyarrow = need("pyarrow")
        rank, world = self.place()
        share = self.logs.share(train=self.train, rank=rank, world=world)
        rng = np.random.default_rng([self.logs.seed, 1, self.epoch(), rank])
        if self.train:
            share = [share[index] for index in rng.permutation(len(share))]
        waiting, rows = [], 0
        for number, (group, wanted) in enumerate(share):
            waiting.append(self.logs.read(group, wanted))
            rows += len(wanted)
            last = number + 1 == len(share)
            if rows < max(self.logs.buffer, self.batch_size) and not last:
                continue
            block = pyarrow.concat_tables(waiting)
            block = block.take(rng.permutation(rows)) if self.train else block
            whole = rows if last else rows // self.batch_size * self.batch_size
            yield block.slice(0, whole)
            waiting, rows = [block.slice(whole)], rows - whole
