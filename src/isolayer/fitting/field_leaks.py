"""Fields that reveal the label: the label itself left in a frame, or something that is logged after the event.

Such a field predicts better than anything that is known when a score is served, and a calibrator that uses it is
useless in serving.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.field_data import Data, losses
from isolayer.fitting.field_levels import Field

Floats = NDArray[np.float64]

TELLS = 0.02  # a field whose own log loss is below this share of that of the mean label reveals the label
BETTER = 0.85  # a field whose own log loss is below this share of that of the score is suspect
SAYS_SOMETHING = 0.95  # scores with a log loss above this share of that of the mean label are not compared with
FEWEST = 100  # with fewer rows of a class, this could be chance
_PRIOR = 2.0  # prior rows at the mean label in every level


class FieldKnowsLabel(UserWarning):
    """A field by itself predicts the label far better than the score does."""


def check_leaks(data: Data, fields: Sequence[Field]) -> None:
    """Refuse fields that reveal the label, and warn of those that predict it far better than the score."""
    label, weight = data.rows.label, data.rows.weight
    positive = float(weight @ label)
    total = float(weight.sum())
    if min(positive, total - positive) < FEWEST:
        return
    rate = positive / total
    mean = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
    score = float(losses(data.rows, data.base + data.shift).sum()) / total
    for one, level in zip(fields, data.levels, strict=True):
        alone = loss_alone(level, label, weight)
        if alone < TELLS * mean:
            raise InputError(
                f"field {one.column}: expected a column that is known when a score is served, got one that reveals the "
                "label; leave it out"
            )
        if score < SAYS_SOMETHING * mean and alone < BETTER * score:
            warnings.warn(
                f"field {one.column} alone predicts the label better than the score does (log loss {alone:.3g} against "
                f"{score:.3g}): if it is not known when a score is served, leave it out",
                FieldKnowsLabel,
                stacklevel=2,
            )


def loss_alone(level: NDArray[np.int64], label: Floats, weight: Floats) -> float:
    """Mean log loss if each row is predicted by the rate of the other rows of its level; -1 is a level too.

    >>> label = np.tile([0.0, 1.0], 200)
    >>> [round(loss_alone(level, label, np.ones(400)), 3) for level in (label.astype(int), np.arange(400))]
    [0.005, 0.693]
    """
    positive = np.bincount(level + 1, weight * label)
    negative = np.bincount(level + 1, weight * (1 - label))
    rate = positive.sum() / weight.sum()
    rows = np.maximum(positive + negative - 1, 0) + _PRIOR
    of_positive = (np.maximum(positive - 1, 0) + _PRIOR * rate) / rows
    of_negative = (np.maximum(negative - 1, 0) + _PRIOR * (1 - rate)) / rows
    told = positive * np.log(of_positive) + negative * np.log(of_negative)
    return -float(told.sum()) / float(weight.sum())
