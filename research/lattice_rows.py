"""The rows that the study of lattices learns from and is tested on: simulated, or of KuaiRand; no learner is here."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import prob_of
from research.data import kuairand_path
from research.datasets import kuairand
from research.kuairand_calibration import TESTED_FROM, past_rate

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Inputs ``[n, inputs]``, the declared ones first, each from 0 to 1, and labels ``[n]``."""

    inputs: Floats
    label: NDArray[np.int64]

    def part(self, chosen: NDArray[Any]) -> Rows:
        """The rows that are chosen."""
        return Rows(self.inputs[chosen], self.label[chosen])


def rows_of(world: str, size: int, seed: int, *, quick: bool) -> tuple[Rows, Rows]:
    """Training rows of a world, and test rows."""
    rng = np.random.default_rng(seed)
    if world == "KuaiRand":
        early, late, _ = _kuairand()
        return early.part(rng.choice(len(early.label), size, replace=False)), late
    count = 10_000 if quick else 50_000
    inputs = rng.random((size + count, 3))
    label = (rng.random(len(inputs)) < prob_of(true_logit(inputs, monotone=world == "simulated"))).astype(np.int64)
    whole = Rows(inputs, label)
    return whole.part(np.arange(size)), whole.part(np.arange(size, size + count))


def true_logit(inputs: Floats, *, monotone: bool) -> Floats:
    """The simulated outcome: rising in quality and in recency, where the dip is left out, and a wave over the hour.

    >>> true_logit(np.array([[0.9, 0.2, 0.5], [0.9, 0.8, 0.5]]), monotone=True).round(2).tolist()
    [-0.53, 1.78]
    """
    quality, recency, hour = inputs.T
    rise = -2.5 + 2 * quality**2 + 3.5 / (1 + np.exp(-12 * (quality - 0.6))) * recency + 0.6 * np.sqrt(recency)
    dip = 0.0 if monotone else -2.0 * np.exp(-(((recency - 0.7) / 0.1) ** 2))
    return np.asarray(rise + dip + 0.7 * np.sin(2 * np.pi * hour) - 0.6)


@cache
def _kuairand() -> tuple[Rows, Rows, NDArray[np.intp]]:
    """April and May: past click rates of user and video, and the video's length, all as shares of the April rows.

    And the user of each row of May, numbered from 0.
    """
    columns = kuairand(kuairand_path())
    late = columns["date"] >= TESTED_FROM
    length = columns["video_duration"].astype(float)
    raw = [past_rate(columns, "user_id"), past_rate(columns, "video_id"), length]
    inputs = np.stack([_share(column, ~late) for column in raw], axis=1)
    whole = Rows(inputs, columns["is_click"].astype(np.int64))
    return whole.part(~late), whole.part(late), np.unique(columns["user_id"][late], return_inverse=True)[1]


def users_of(world: str) -> NDArray[np.intp] | None:
    """Whose rows the test rows are, numbered from 0, where all seeds share these rows; else None."""
    return _kuairand()[2] if world == "KuaiRand" else None


def _share(column: Floats, known: NDArray[np.bool_]) -> Floats:
    """The share of known values that are at most as large: from 0 to 1, in the same order."""
    column = np.nan_to_num(column, nan=float(np.nanmedian(column)))
    ordered = np.sort(column[known])
    return np.asarray(np.searchsorted(ordered, column, side="right") / len(ordered))
