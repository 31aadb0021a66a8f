"""One pass over a log before training, so that unusable columns are named before hours are spent on them.

Logs that would otherwise train without an error, such as with a task whose labels are all null, are refused here. The
means of the features are a by-product that is stored with the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.training.columns import Batch, Columns
from isolayer.training.leaks import ROWS, LeakCheck
from isolayer.training.parquet_batches import ParquetLogs

Floats = NDArray[np.float64]

_DIGITS = 8  # steps of single precision that a standard deviation must have
_EXTREME = 20  # times as wide as half of the rows: a standard deviation that a few extreme values determine
_FAR = 50  # standard deviations from the mean: a value of which a log has a few


@dataclass(frozen=True)
class LogSummary:
    """What a log contains.

    Args:
        rows: Number of rows.
        mean: Mean of each feature, ``[features]``.
        std: Standard deviation of each feature, ``[features]``.
        rates: Mean label of each task.
        unseen: References that occur in no row, of those that were asked for.
        labelled: Whether every row has a label of every task.
        hidden: Sentences about features of which a network would see little.
    """

    rows: int
    mean: Floats
    std: Floats
    rates: dict[str, float] = field(default_factory=dict)
    unseen: tuple[Mapping[str, int], ...] = ()
    labelled: bool = False
    hidden: tuple[str, ...] = ()

    def doubts(self) -> list[str]:
        """Sentences about what the model expects of the log, and the log does not contain or hides."""
        listed = [", ".join(f"{name} {key}" for name, key in reference.items()) for reference in self.unseen]
        return [
            f"reference: expected ids that occur in the log, got {ids}, which does not; relevance has no scale then: "
            "give ids that occur, or declare only those"
            for ids in listed
        ] + list(self.hidden)


def check_log(
    logs: ParquetLogs,
    sizes: Mapping[str, int] | None = None,
    *,
    references: Sequence[Mapping[str, int]] = (),
    allow_leaks: bool = False,
    rank: int = 0,
    world: int = 1,
) -> LogSummary:
    """Read every row once, and raise an `InputError` about the first column that no model can be trained on.

    Several processes read their share of the row groups each, and all of them get the same summary, or the same error.

    Args:
        logs: The log.
        sizes: Number of ids of each context column, as far as the model declares it.
        references: Ids that some row should have, see `LogSummary.unseen`.
        allow_leaks: Whether a feature may give a label away, see `leaks`.
        rank: Rank of this process.
        world: Number of processes; their process group is initialised.
    """
    try:
        found: _Seen | InputError = _seen(logs, sizes or {}, references, rank, world, allow_leaks=allow_leaks)
    except InputError as error:
        if world == 1:
            raise
        found = error
    parts = [found]
    if world > 1:
        parts = [found for _ in range(world)]
        torch.distributed.all_gather_object(parts, found)
    whole = _Seen(logs.columns, references)
    for part in parts:
        if isinstance(part, InputError):
            raise part
        whole.merge(part, logs.columns)
    if not allow_leaks:
        whole.check_leaks(logs.columns)
    return whole.summary(logs)


def _seen(
    logs: ParquetLogs,
    sizes: Mapping[str, int],
    references: Sequence[Mapping[str, int]],
    rank: int,
    world: int,
    *,
    allow_leaks: bool,
) -> _Seen:
    """The sums of the row groups of one process."""
    seen = _Seen(logs.columns, references)
    before = [0, *accumulate(group.rows for group in logs.row_groups)]
    for group in logs.whole_groups(rank, world):
        batch = logs.columns.batch(logs.read(group))
        if not len(batch.features):  # all of its rows belong to a list of an earlier row group
            continue
        if before[group.number] < ROWS:
            some = min(ROWS - before[group.number], len(batch.features))
            seen.first[group.number] = batch.rows(torch.arange(some))  # a copy, so that a message with them is small
        seen.moments.add(batch.features.numpy(), logs.columns)
        _check_contexts(batch, sizes)
        seen.unseen = [reference for reference in seen.unseen if not _occurs(reference, batch)]
        seen.weight += _checked_weight(batch, logs.columns)
        parts = {part: logs.rows_of(group, train=part == "train") for part in ("train", "held out")}
        for labels in seen.labels:
            labels.add(batch, parts)
    return seen


class _Seen:
    """Sums over rows, which can be added up over processes."""

    def __init__(self, columns: Columns, references: Sequence[Mapping[str, int]]) -> None:
        self.moments, self.labels = _Moments(), [_Labels(task) for task in columns.tasks]
        self.weight = 0.0
        self.unseen = list(references)
        self.first = dict[int, Batch]()  # the first rows of the log by row group, in which leaks and extremes are found

    def merge(self, other: _Seen, columns: Columns) -> None:
        self.moments.merge(other.moments, columns)
        self.weight += other.weight
        self.first |= other.first
        self.unseen = [reference for reference in self.unseen if reference in other.unseen]
        for mine, theirs in zip(self.labels, other.labels, strict=True):
            mine.merge(theirs)

    def check_leaks(self, columns: Columns) -> None:
        """Raise if a feature gives a label away among the first rows, whichever process read them."""
        leaks = LeakCheck(columns)
        for batch in self._first_batches():
            leaks.add(batch)
        if leaks.rows:
            leaks.check()

    def _first_batches(self) -> list[Batch]:
        return [self.first[number] for number in sorted(self.first)]

    def summary(self, logs: ParquetLogs) -> LogSummary:
        if logs.columns.weight is not None and not self.weight > 0:
            raise InputError(f"column {logs.columns.weight!r}: expected a positive weight, got zeros only; check it")
        for seen in self.labels:
            seen.check(held_out=logs.held_out > 0)
        rates = {seen.task: seen.total / sum(seen.count.values()) for seen in self.labels}
        labelled = all(sum(seen.count.values()) == self.moments.rows for seen in self.labels)
        found = replace(self.moments.summary(rates), unseen=tuple(self.unseen), labelled=labelled)
        first = np.concatenate([batch.features.numpy() for batch in self._first_batches()])
        farthest = np.maximum(self.moments.most - found.mean, found.mean - self.moments.least)
        return replace(found, hidden=tuple(_hidden(logs.columns, found, farthest, first)))


class _Moments:
    """Sums of features and of their squares, measured from the first row to keep precision."""

    def __init__(self) -> None:
        self.rows = 0
        self.origin = self.total = self.squares = self.least = self.most = np.zeros(0)

    def add(self, features: NDArray[np.float32], columns: Columns) -> None:
        if not self.rows:
            self.origin = features[0].astype(np.float64)
            self.total, self.squares = np.zeros_like(self.origin), np.zeros_like(self.origin)
            self.least = self.most = self.origin
        self._check_width(features.shape[1], columns)
        shifted = features - self.origin
        self.least, self.most = np.minimum(self.least, features.min(0)), np.maximum(self.most, features.max(0))
        self.rows += len(features)
        self.total, self.squares = self.total + shifted.sum(0), self.squares + (shifted**2).sum(0)

    def merge(self, other: _Moments, columns: Columns) -> None:
        if not other.rows:
            return
        if not self.rows:
            self.rows, self.origin, self.total, self.squares = other.rows, other.origin, other.total, other.squares
            self.least, self.most = other.least, other.most
            return
        self._check_width(len(other.origin), columns)
        self.least, self.most = np.minimum(self.least, other.least), np.maximum(self.most, other.most)
        shift = other.origin - self.origin
        self.squares = self.squares + other.squares + 2 * shift * other.total + other.rows * shift**2
        self.total = self.total + other.total + other.rows * shift
        self.rows += other.rows

    def _check_width(self, width: int, columns: Columns) -> None:
        if width != len(self.origin):
            raise InputError(
                f"column {columns.features!r}: expected lists of one length, got {len(self.origin)} and {width}; "
                "pad or split the column"
            )

    def summary(self, rates: dict[str, float]) -> LogSummary:
        shift = self.total / self.rows
        std = np.sqrt(np.maximum(self.squares / self.rows - shift**2, 0))
        return LogSummary(self.rows, self.origin + shift, std, rates)


@dataclass
class _Labels:
    """Labels of one task, counted separately for training and for held-out rows."""

    task: str
    count: dict[str, int] = field(default_factory=lambda: {"train": 0, "held out": 0})
    lowest: float = np.inf
    highest: float = -np.inf
    total: float = 0.0

    def add(self, batch: Batch, parts: Mapping[str, NDArray[np.intp]]) -> None:
        label, mask = batch.labels[self.task].numpy(), batch.mask.get(self.task)
        known = np.ones(len(label), np.bool_) if mask is None else mask.numpy()
        wrong = known & ~((label >= 0) & (label <= 1))
        if wrong.any():
            raise InputError(
                f"column {self.task!r}: expected labels in [0, 1], got {label[wrong][0]:g}; use null for none"
            )
        for part, rows in parts.items():
            self.count[part] += int(known[rows].sum())
        self.total += float(label[known].sum())
        if known.any():
            self.lowest = min(self.lowest, float(label[known].min()))
            self.highest = max(self.highest, float(label[known].max()))

    def merge(self, other: _Labels) -> None:
        self.count = {part: rows + other.count[part] for part, rows in self.count.items()}
        self.total += other.total
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)

    def check(self, *, held_out: bool) -> None:
        if not sum(self.count.values()):
            raise InputError(f"column {self.task!r}: expected labels, got nulls only; check what wrote the column")
        for part in ("train", *(["held out"] if held_out else [])):
            if not self.count[part]:
                raise InputError(
                    f"column {self.task!r}: expected labels in the training rows and in the held-out rows, got none in "
                    "one; use more rows"
                )
        if self.lowest == self.highest and self.lowest in (0, 1):
            raise InputError(
                f"column {self.task!r}: expected both labels 0 and 1, got {self.lowest:g} in every row; use more rows"
            )


def _hidden(columns: Columns, summary: LogSummary, farthest: Floats, first: NDArray[np.float32]) -> Iterator[str]:
    """Sentences about features of which standardising, or single precision, would leave little.

    Args:
        columns: The columns.
        summary: Means and deviations in the log.
        farthest: Largest distance of a value from the mean, ``[features]``.
        first: Features of the first rows, ``[rows, features]``. Those of a log in the order of time may be alike.
    """
    low, high = np.quantile(first.astype(np.float64), [0.25, 0.75], axis=0)
    near = np.where(farthest > _FAR * summary.std, summary.std, first.std(0, dtype=np.float64))
    for index, (mean, std) in enumerate(zip(summary.mean.tolist(), summary.std.tolist(), strict=True)):
        name, usual = columns.feature(index), float(high[index] - low[index])
        if name in columns.vocabularies or not std:
            continue
        digit = abs(mean) * float(np.finfo(np.float32).eps)
        if std < _DIGITS * digit:
            yield (
                f"feature {name!r}: expected numbers that single precision distinguishes, got a mean of {mean:.6g} and "
                f"a standard deviation of {std:.3g}; subtract a constant from the column"
            )
        elif 0 < _EXTREME * usual < near[index]:
            yield (
                f"feature {name!r}: expected values without extremes, got a standard deviation of {std:.3g}, while "
                f"half of the rows are within {usual:.3g}; replace codes such as -999999, or take logarithms: "
                "otherwise the network hardly sees the other rows"
            )


def _occurs(reference: Mapping[str, int], batch: Batch) -> bool:
    """Whether a row has these ids; an unknown one, -1, has the same curve."""
    ids = [torch.isin(batch.context[name], torch.tensor([key, -1])) for name, key in reference.items()]
    return bool(torch.stack(ids).all(0).any())


def _check_contexts(batch: Batch, sizes: Mapping[str, int]) -> None:
    for name, ids in batch.context.items():
        low, high = int(ids.min()), int(ids.max())
        if low < -1 or high >= sizes.get(name, high + 1):
            raise InputError(
                f"column {name!r}: expected ids from -1 (unknown) to {sizes.get(name, high + 1) - 1}, got "
                f"{low if low < -1 else high}; count ids from 0, or give a vocabulary"
            )


def _checked_weight(batch: Batch, columns: Columns) -> float:
    """The sum of the weights."""
    if batch.weight is None:
        return 0.0
    weight = batch.weight.numpy()
    usable = np.isfinite(weight) & (weight >= 0)
    if not usable.all():
        raise InputError(
            f"column {columns.weight!r}: expected finite weights >= 0, got {weight[~usable][0]:g}; check the column"
        )
    return float(weight.sum())
