"""Parquet logs as a stream of batches for a training loop; no log is ever held in memory as a whole.

Rows are shuffled twice: row groups change their order each epoch, and rows are drawn from a buffer of several row
groups. Which rows are held out depends on the seed alone, so every epoch, process and resumed run agrees on it.
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
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from isolayer.errors import InputError
from isolayer.training.columns import Batch, Columns


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
        held_out: Share of the rows of every row group that is held out from training.
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

    def share(self, *, train: bool, rank: int = 0, world: int = 1) -> list[tuple[RowGroup, NDArray[np.intp]]]:
        """The row groups that a process reads, and which rows of each.

        Row groups are distributed whole; if there are few, every process reads all and takes every ``world``-th row.
        """
        whole = len(self.row_groups) >= 4 * world
        mine = self.row_groups[rank::world] if whole else self.row_groups
        pairs = ((group, self.rows_of(group, train=train)) for group in mine)
        return [(group, rows if whole else rows[rank::world]) for group, rows in pairs]

    def rows_of(self, group: RowGroup, *, train: bool) -> NDArray[np.intp]:
        """Which rows of a row group are for training, or held out."""
        order = np.random.default_rng([self.seed, group.number]).permutation(group.rows)
        kept_back = round(group.rows * self.held_out)
        return np.sort(order[kept_back:] if train else order[:kept_back])

    def batches(self, *, batch_size: int, train: bool, world: int = 1) -> int:
        """Number of batches that every process reads in an epoch: as many as the process with the fewest rows has."""
        rows = [sum(len(rows) for _, rows in self.share(train=train, rank=rank, world=world)) for rank in range(world)]
        whole = min(rows) // batch_size if train else -(-min(rows) // batch_size)
        return max(whole, 1 if min(rows) else 0)

    def read(self, group: RowGroup, rows: NDArray[np.intp] | None = None) -> Any:
        """The given rows of a row group, by default all of them, as a pyarrow table."""
        with _opened(group.path) as file:
            try:
                table = file.read_row_group(group.place, columns=self.columns.names)
            except (OSError, pyarrow.ArrowException) as error:
                raise InputError(_unreadable(group.path, error)) from error
        return table if rows is None else table.take(rows)


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
        left = len(self)
        for table in self._blocks():
            for start in range(0, table.num_rows, self.batch_size):
                if not left:
                    return
                yield self.logs.columns.batch(table.slice(start, self.batch_size))
                left -= 1

    def _blocks(self) -> Iterator[Any]:
        """Tables of whole batches, except the last; for training, rows are shuffled within each."""
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
