"""Label leaks: features that predict too well before training, and a held-out loss that is too low after it.

A feature that is logged after the event (a dwell time, another label, the true relevance of a simulator) predicts it
better than anything that is known when the item is ranked. A model that reads it learns nothing for serving.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from isolayer.errors import InputError
from isolayer.training.columns import Batch, Columns

ROWS = 20_000  # rows that are examined
SEPARATES = 0.98  # a feature with a larger area under its ROC curve gives the label away
ALONE = 0.2  # so does one with values that this share of the positives and no negative has
FEWEST = 100  # with fewer positives this could be chance
EXPLAINED = 0.9  # a loss below this share of the entropy of the label is implausible


class LeakCheck:
    """Looks for features that give a label away, among the first rows of a log.

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
                labels={task: label[:left] for task, label in batch.labels.items()},
                mask={task: mask[:left] for task, mask in batch.mask.items()},
            )
            self.batches.append(part)
            self.rows += len(part.features)

    def check(self) -> None:
        """Raise an `InputError` that names the first such feature."""
        features = np.concatenate([batch.features.numpy() for batch in self.batches])
        for task in self.columns.tasks:
            label = np.concatenate([_known(batch, task) for batch in self.batches])
            for index, why in _leaks(features[~np.isnan(label)], label[~np.isnan(label)]).items():
                raise InputError(
                    f"features: expected columns that are known before the label, got {self.columns.feature(index)!r}, "
                    f"which gives {task!r} away ({why}); leave it out, or allow it by allow_leaks"
                )


def _known(batch: Batch, task: str) -> NDArray[np.float32]:
    label, mask = batch.labels[task].numpy(), batch.mask.get(task)
    return label if mask is None else np.where(mask.numpy(), label, np.float32(np.nan))


def _leaks(features: NDArray[np.float32], label: NDArray[np.float32]) -> dict[int, str]:
    """The features that give the label away, and why.

    >>> label = np.repeat(np.float32([0, 1]), 200)
    >>> _leaks(np.column_stack([np.tile([1, 2], 200), label * 3]).astype(np.float32), label)
    {1: 'area under its ROC curve 1.000'}
    """
    positive = label == 1
    some, others = int(positive.sum()), int((label == 0).sum())
    if some < FEWEST or others < FEWEST or some + others < len(label):
        return {}
    ranks = rankdata(features, axis=0)[positive].sum(0)
    area = (ranks - some * (some + 1) / 2) / (some * others)
    low, high = features[~positive].min(0), features[~positive].max(0)
    alone = ((features[positive] < low) | (features[positive] > high)).mean(0)
    found = {
        int(i): f"area under its ROC curve {area[i]:.3f}" for i in np.flatnonzero(np.abs(area - 0.5) >= SEPARATES - 0.5)
    }
    only = np.flatnonzero((alone >= ALONE) & (alone * some >= FEWEST))
    return {int(i): f"{alone[i]:.0%} of the positives have values that no negative has" for i in only} | found


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
