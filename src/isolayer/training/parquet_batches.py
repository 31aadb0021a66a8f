"""Parquet logs as a stream of batches for a training loop; no log is ever held in memory as a whole.

Rows are shuffled twice: row groups change their order each epoch, and rows are drawn from a buffer of several row
groups. Which rows are held out depends on the seed alone, so every epoch, process and resumed run agrees on it. Where
the columns name the list of each row, all of this is done with whole lists instead of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from isolayer.errors import InputError
from isolayer.training.columns import Batch, Columns
from isolayer.training.list_rows import GroupLists, group_lists, rows_of_lists

Rows = NDArray[np.intp]


class RowGroup(NamedTuple):
    """A part of a file that is read at once."""

    path: str
    place: int  # index within its file
    rows: int
    number: int  # index among all row groups of the log


@dataclass(frozen=True)
class ParquetLogs:
    """One or more Parquet files as one log, a share of whose rows is held out.

    Args:
        paths: A file, a folder of files, or several of either.
        columns: Which columns are what.
        held_out: Share of the rows that is held out from training, of every row group to one row.
        seed: Seed of the held-out rows and of the order.
        buffer: Number of rows from which the next batch is drawn.
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
        groups: list[RowGroup] = []
        for path in self.files:
            with _opened(path) as file:
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

    @cached_property
    def lists(self) -> list[GroupLists] | None:
        """The lists of every row group, or None where rows belong to none."""
        name = self.columns.list_id
        if name is None:
            return None
        return group_lists(((group.path, _column(group, name)) for group in self.row_groups), name)

    def units(self) -> int:
        """Number of lists, or of rows where they belong to none."""
        return self.rows if self.lists is None else sum(len(lists.lengths) for lists in self.lists)

    def share(self, *, train: bool, rank: int = 0, world: int = 1) -> list[tuple[RowGroup, Rows]]:
        """The row groups that a process reads, and which rows of each.

        All processes get the same number of rows, or of lists, to one. Row groups are distributed whole as far as that
        allows; of one that several processes read, each takes other rows, drawn at random.
        """
        found = list[tuple[RowGroup, Rows]]()
        for group, part in self._parts(train=train, world=world)[rank]:
            found.append((group, self._rows(group, np.sort(self._units_of(group, train=train)[part]))))
        return found

    def whole_groups(self, rank: int, world: int) -> list[RowGroup]:
        """The row groups that a process reads completely, each by one process, with about equally many rows."""
        rows, mine = [0] * world, list[RowGroup]()
        for group in self.row_groups:
            reader = rows.index(min(rows))
            rows[reader] += group.rows
            mine += [group] if reader == rank else []
        return mine

    def _parts(self, *, train: bool, world: int) -> list[list[tuple[RowGroup, slice]]]:
        """For every process, the row groups it reads and which of their units; the units themselves are not drawn.

        Each row group is given to the process that needs most rows, and what it does not need to the next.
        """
        counts = [self._counts(group)[0 if train else 1] for group in self.row_groups]
        total = sum(counts)
        lacks = [total * (rank + 1) // world - total * rank // world for rank in range(world)]
        found: list[list[tuple[RowGroup, slice]]] = [[] for _ in range(world)]
        for group, count in zip(self.row_groups, counts, strict=True):
            given = 0
            while given < count:
                rank = lacks.index(max(lacks))
                some = min(count - given, lacks[rank])
                found[rank].append((group, slice(given, given + some)))
                lacks[rank] -= some
                given += some
        return found

    def _counts(self, group: RowGroup) -> tuple[int, int]:
        """Number of rows, or lists, of a row group that are for training, and that are held out."""
        held_out = self._held_out_counts[group.number]
        return self._count(group) - held_out, held_out

    @cached_property
    def _held_out_counts(self) -> list[int]:
        """Number of rows, or lists, of each row group that are held out.

        Sums over row groups are rounded, not each number, so that very small row groups hold out their share together.
        The row groups are added up in a random order; in that of the log, those that hold one out would be regular.
        """
        order = np.random.default_rng([self.seed, 2, 1]).permutation(len(self.row_groups))
        units = np.array([self._count(group) for group in self.row_groups])[order]
        counts = np.empty(len(order), np.int64)
        counts[order] = np.diff(np.rint(np.cumsum(units) * self.held_out), prepend=0)
        return [int(count) for count in counts]

    def _units_of(self, group: RowGroup, *, train: bool) -> Rows:
        """Which rows, or lists, of a row group are for training, or held out, in a fixed random order."""
        order = np.random.default_rng([self.seed, group.number]).permutation(self._count(group))
        held_out = self._counts(group)[1]
        return order[held_out:] if train else order[:held_out]

    def _count(self, group: RowGroup) -> int:
        return group.rows if self.lists is None else len(self.lists[group.number].lengths)

    def _rows(self, group: RowGroup, units: Rows) -> Rows:
        return units if self.lists is None else rows_of_lists(self.lists[group.number].lengths, units)

    def rows_of(self, group: RowGroup, *, train: bool) -> Rows:
        """Which rows of a row group are for training, or held out."""
        return self._rows(group, np.sort(self._units_of(group, train=train)))

    def lengths_of(self, group: RowGroup, rows: Rows) -> Rows:
        """Number of rows of each list among these, which are of whole lists; ones where rows belong to no list."""
        if self.lists is None:
            return np.ones(len(rows), np.intp)
        lengths = self.lists[group.number].lengths
        return lengths[np.unique(np.searchsorted(np.cumsum(lengths), rows, side="right"))]

    def units_per_batch(self, batch_size: int) -> int:
        """Number of rows, or of lists of mean length, that make a batch of about this many rows."""
        return batch_size if self.lists is None else max(1, round(batch_size * self.units() / self.rows))

    def batches(self, *, batch_size: int, train: bool, world: int = 1) -> int:
        """Number of batches that every process reads in an epoch: as many as the process with the fewest rows has."""
        fewest, size = self._fewest(train=train, world=world), self.units_per_batch(batch_size)
        whole = fewest // size if train else -(-fewest // size)
        return max(whole, 1 if fewest else 0)

    def equal_rows(self, *, batch_size: int, world: int) -> bool:
        """Whether at every step of training all processes have equally many rows: lists may have other lengths."""
        return self.lists is None and self._fewest(train=True, world=world) >= batch_size

    def _fewest(self, *, train: bool, world: int) -> int:
        """Number of rows, or lists, of the process that has fewest."""
        return sum(self._counts(group)[0 if train else 1] for group in self.row_groups) // world

    def read(self, group: RowGroup, rows: Rows | None = None) -> Any:
        """The given rows of a row group, by default all of them, as a pyarrow table.

        Where rows belong to lists, those of a row group are the rows of the lists that begin in it.
        """
        table = _read(group, self.columns.names)
        if self.lists is not None:
            table = pyarrow.concat_tables([table.slice(self.lists[group.number].skip), *self._continued(group)])
        return table if rows is None else table.take(rows)

    def _continued(self, group: RowGroup) -> Iterator[Any]:
        """The rows of later row groups that belong to the last list of this one."""
        assert self.lists is not None
        if not len(self.lists[group.number].lengths):
            return
        for later, lists in zip(self.row_groups[group.number + 1 :], self.lists[group.number + 1 :], strict=True):
            if later.path != group.path or not lists.skip:
                return
            yield _read(later, self.columns.names).slice(0, lists.skip)
            if len(lists.lengths):
                return


def _read(group: RowGroup, columns: list[str]) -> Any:
    with _opened(group.path) as file:
        try:
            return file.read_row_group(group.place, columns=columns)
        except (OSError, pyarrow.ArrowException) as error:
            raise InputError(_unreadable(group.path, error)) from error


def _column(group: RowGroup, name: str) -> Any:
    return _read(group, [name])[name]


def _opened(path: str) -> Any:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(_unreadable(path, error)) from error


def _unreadable(path: str, error: Exception) -> str:
    cause = str(error).partition("\n")[0]
    return f"logs: expected a Parquet file at {path!r}, got one that cannot be read ({cause}); write it again"


class LogBatches(IterableDataset[Batch]):
    """The batches that one process reads in an epoch: shuffled for training, in order for held-out rows.

    A batch of a log with lists has whole lists, as many as make about ``batch_size`` rows.

    Args:
        logs: The log.
        batch_size: Rows per batch and process.
        train: Whether to read the training rows or the held-out rows.
        epoch: Returns the number of the epoch, on which the order depends.
        place: Returns the rank of this process and the number of processes.
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
        left, units = len(self), self.logs.units_per_batch(self.batch_size)
        listed = self.logs.lists is not None
        for block, lengths in self._blocks(units):
            ends = np.concatenate([[0], np.cumsum(lengths)])
            for start in range(0, len(lengths), units):
                if not left:
                    return
                some = lengths[start : start + units]
                rows = block.rows(slice(int(ends[start]), int(ends[start + len(some)])))
                yield rows._replace(lists=list_numbers(some)) if listed else rows
                left -= 1

    def _blocks(self, units: int) -> Iterator[tuple[Batch, Rows]]:
        """Rows of whole batches, except the last, and the length of each unit; shuffled within, for training."""
        rank, world = self.place()
        share = self.logs.share(train=self.train, rank=rank, world=world)
        rng = np.random.default_rng([self.logs.seed, 1, self.epoch(), rank])
        if self.train:
            share = [share[index] for index in rng.permutation(len(share))]
        waiting, wanted, lengths = list[Batch](), list[Rows](), np.zeros(0, np.intp)
        for number, (group, some) in enumerate(share):
            before = sum(len(part.features) for part in waiting)
            block = self.logs.columns.batch(self.logs.read(group))
            lengths = np.concatenate([lengths, self.logs.lengths_of(group, some)])
            if 2 * len(some) < len(block.features):  # few of many rows: the others are not kept
                block, some = block.rows(torch.from_numpy(some)), np.arange(len(some))
            waiting.append(block)
            wanted.append(before + some)
            last = number + 1 == len(share)
            if not last and (lengths.sum() < self.logs.buffer or len(lengths) < units):
                continue
            rows = np.concatenate(wanted)
            if self.train:
                order = rng.permutation(len(lengths))
                rows, lengths = rows[rows_of_lists(lengths, order)], lengths[order]
            block = Batch.joined(waiting).rows(torch.from_numpy(rows))
            whole = len(lengths) if last else len(lengths) // units * units
            end = int(lengths[:whole].sum())
            yield block, lengths[:whole]
            left = block.rows(slice(end, None))
            waiting, wanted, lengths = [left], [np.arange(len(left.features))], lengths[whole:]


def list_numbers(lengths: Rows) -> Tensor:
    """The number of each row's list, from 0.

    >>> list_numbers(np.array([2, 1, 3]))
    tensor([0, 0, 1, 2, 2, 2])
    """
    return torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
