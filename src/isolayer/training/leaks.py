"""Leaks: features that predict a label too well, or that are a context, and a held-out loss that is too low.

A feature that is logged after the event (a dwell time, another label, the true relevance of a simulator) predicts it
better than anything that is known when the item is ranked. A model that reads it learns nothing for serving. How well a
feature predicts is measured by the rate of each of its values, or of each of many bins of them, so that categories and
features that fall as well as rise are judged like others; the rates come from the other half of the rows. A feature
that is a context under another name would take the place of the bias that the context explains.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from isolayer.errors import InputError
from isolayer.training.columns import Batch, Columns

ROWS = 20_000  # rows that are examined
SEPARATES = 0.98  # a feature with a larger area under its ROC curve gives the label away
ALONE = 0.2  # so does one with values that this share of the positives and no negative has
FEWEST = 100  # with fewer positives this could be chance
BINS = 200  # bins of a numeric feature, with equally many rows each,
PER_BIN = 40  # or fewer, with this many rows each
PRIOR = 1.0  # rows of the mean label that are added to each bin
CHANCE = 1e-6  # a value that no negative has is remarkable if chance would give it less often than this
REPEATED = 5  # a copy of a context is recognised if its values occur this often on average
EXPLAINED = 0.9  # a loss below this share of the entropy of the label is implausible


class LeakCheck:
    """Looks for features that give a label away, or copy a context, among the first rows of a log.

    Args:
        columns: The columns of the log.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns, self.batches, self.rows = columns, list[Batch](), 0

    def add(self, batch: Batch) -> None:
        """Collect rows until there are enough."""
        left = ROWS - self.rows
        if left > 0:
            part = batch._replace(
                features=batch.features[:left],
                context={name: ids[:left] for name, ids in batch.context.items()},
                labels={task: label[:left] for task, label in batch.labels.items()},
                mask={task: mask[:left] for task, mask in batch.mask.items()},
            )
            self.batches.append(part)
            self.rows += len(part.features)

    def check(self) -> None:
        """Raise an `InputError` that names the first such feature."""
        features = np.concatenate([batch.features.numpy() for batch in self.batches])
        for name in self.batches[0].context:
            ids = np.concatenate([batch.context[name].numpy() for batch in self.batches])
            for index in (i for i in range(features.shape[1]) if _is_copy(features[:, i], ids)):
                raise InputError(
                    f"features: expected columns that are known at serving, got {self.columns.feature(index)!r}, which "
                    f"is the context {name!r} under another name; leave it out, or allow it by allow_leaks"
                )
        for task in self.columns.tasks:
            label = np.concatenate([_known(batch, task) for batch in self.batches])
            known = ~np.isnan(label)
            for index, why in _leaks(features[known], label[known], self._categories()).items():
                raise InputError(
                    f"features: expected columns that are known before the label, got {self.columns.feature(index)!r}, "
                    f"which gives {task!r} away ({why}); leave it out, or allow it by allow_leaks"
                )

    def _categories(self) -> set[int]:
        """The features whose numbers are ids of values."""
        if isinstance(self.columns.features, str):
            return set()
        return {i for i, name in enumerate(self.columns.features) if name in self.columns.vocabularies}


def _known(batch: Batch, task: str) -> NDArray[np.float32]:
    label, mask = batch.labels[task].numpy(), batch.mask.get(task)
    return label if mask is None else np.where(mask.numpy(), label, np.float32(np.nan))


def _is_copy(feature: NDArray[np.float32], ids: NDArray[np.int64]) -> bool:
    """Whether each value of a feature occurs with one id only, and each id with one value.

    >>> position = np.tile(np.arange(10), 20)
    >>> _is_copy(np.float32(1 / (position + 1)), position), _is_copy(np.float32(position // 2), position)
    (True, False)
    """
    values, code = np.unique(feature, return_inverse=True)
    contexts, of = np.unique(ids, return_inverse=True)
    if len(values) != len(contexts) or len(values) < 2 or len(ids) < REPEATED * len(values):
        return False
    return len(np.unique(code * len(contexts) + of)) == len(values)


def _leaks(
    features: NDArray[np.float32], label: NDArray[np.float32], categories: Collection[int] = ()
) -> dict[int, str]:
    """The features that give the label away, and why.

    >>> label = np.repeat(np.float32([0, 1]), 200)
    >>> _leaks(np.column_stack([np.tile([1, 2], 200), label * 3]).astype(np.float32), label)
    {1: 'area under its ROC curve 1.000'}
    >>> _leaks(np.where(label > 0, 2, np.tile([1, 3], 200)).astype(np.float32)[:, None], label)  # rises and falls
    {0: 'area under the ROC curve of the rates of its values 1.000'}
    """
    positive = label == 1
    some, others = int(positive.sum()), int((label == 0).sum())
    if some < FEWEST or others < FEWEST or some + others < len(label):
        return {}
    found = {}
    for index, column in enumerate(features.T):
        bins = _bins(column, category=index in categories)
        area = _area(_other_half(bins, positive), positive)
        why = "" if index in categories else _separates(column, positive, area)
        why = why or (f"area under the ROC curve of the rates of its values {area:.3f}" if area >= SEPARATES else "")
        if index in categories or len(np.unique(column)) <= BINS:
            why = why or _lonely(_pure(bins, positive), area, positive)
        if why:
            found[index] = why
    return found


def _separates(column: NDArray[np.float32], positive: NDArray[np.bool_], by_rates: float) -> str:
    """Why a number gives the label away by its order; empty if it does not.

    Args:
        column: The feature, ``[rows]``.
        positive: Which rows are positive, ``[rows]``.
        by_rates: Area under the ROC curve of the rates of its values.
    """
    area = _area(column, positive)
    if abs(area - 0.5) >= SEPARATES - 0.5:
        return f"area under its ROC curve {area:.3f}"
    low, high = column[~positive].min(), column[~positive].max()
    outside = (column[positive] < low) | (column[positive] > high)
    return _lonely(float(outside.mean()), max(area, 1 - area, by_rates), positive)


def _pure(bins: NDArray[np.intp], positive: NDArray[np.bool_]) -> float:
    """Share of the positives whose values no negative has, and not by chance.

    Values with too few rows to be remarkable count as one, such as the ids that only clicks have.

    >>> positive = np.repeat([False, True], [300, 100])
    >>> _pure(np.where(positive, np.arange(400), 0), positive)
    1.0
    """
    shown = np.bincount(bins)
    rare = shown * np.log(positive.mean()) >= np.log(CHANCE)
    together = np.where(rare[bins], 0, bins + 1)
    shown, clicked = np.bincount(together), np.bincount(together, positive)
    pure = (clicked == shown) & (shown * np.log(positive.mean()) < np.log(CHANCE))
    return float(clicked[pure].sum() / positive.sum())


def _lonely(share: float, area: float, positive: NDArray[np.bool_]) -> str:
    """Why values that no negative has give the label away; empty if an honest feature of this area could have them.

    If both classes are normal with one variance, a share of the positives lies above all the negatives; twice as many
    are still honest.
    """
    some, others = int(positive.sum()), int((~positive).sum())
    honest = norm.cdf(2**0.5 * norm.ppf(min(area, SEPARATES)) - norm.ppf(1 - 1 / others))
    told = share >= max(ALONE, 2 * honest) and share * some >= FEWEST
    return f"{share:.0%} of the positives have values that no negative has" if told else ""


def _bins(column: NDArray[np.float32], *, category: bool) -> NDArray[np.intp]:
    """The bin of each row: its value, or one of about ``BINS`` bins if a number has more values."""
    values, code = np.unique(column, return_inverse=True)
    if category or len(values) <= BINS:
        return np.asarray(code)
    before, bins = np.cumsum(np.bincount(code)) - 1, min(BINS, -(-len(column) // PER_BIN))
    return np.asarray(before[code] * bins // len(column))


def _other_half(bins: NDArray[np.intp], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each row, the rate of its bin among the rows of the other half, drawn at random, ``[rows]``."""
    half = np.random.default_rng(0).permutation(len(bins)) % 2
    found, size = np.zeros(len(bins)), int(bins.max()) + 1
    for one in (0, 1):
        shown, clicked = (np.bincount(bins[half != one], w, size) for w in (None, positive[half != one]))
        rate = (clicked + PRIOR * positive.mean()) / (shown + PRIOR)
        found[half == one] = rate[bins[half == one]]
    return found


def _area(score: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve of a score."""
    some = int(positive.sum())
    return float((rankdata(score)[positive].sum() - some * (some + 1) / 2) / (some * (len(positive) - some)))


def too_good(loss: float, rates: Mapping[str, float]) -> str:
    """A warning if a held-out loss is too low to be plausible; empty otherwise.

    Args:
        loss: Log loss, averaged over tasks.
        rates: Mean label of each task.

    >>> too_good(0.0012, {"click": 0.1})[:65]
    'the held-out loss 0.0012 is 0% of what the mean label alone gives'
    >>> too_good(0.3, {"click": 0.1})
    ''
    """
    entropy = sum(-r * math.log(r) - (1 - r) * math.log(1 - r) for r in rates.values() if 0 < r < 1) / len(rates)
    if loss >= (1 - EXPLAINED) * entropy:
        return ""
    return (
        f"the held-out loss {loss:.2g} is {loss / entropy:.0%} of what the mean label alone gives, which is too good "
        "to be true: look for features that were logged after the label"
    )
