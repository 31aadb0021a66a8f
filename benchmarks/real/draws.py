"""Draws of a task: all rows, a few of them, and scores on another scale; the same for every method."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from benchmarks.real.tasks import Rows, Task

SIZES = {200: 40, 1_000: 20, 5_000: 8}  # rows to fit, and how many draws of them
SCALES = {"x 3 - 1": (3.0, -1.0), "x 0.05": (0.05, 0.0), "+ 20": (1.0, 20.0)}
FEW_TEST_ROWS = 20_000  # to judge draws of few rows on
LEAST_EVENTS = 5  # expected events (and non-events) of a draw; sizes below are left out


@dataclass(frozen=True, order=True)
class Unit:
    """A draw of a task: how many rows (0: all), which draw, and the scale of the score (empty: as it is)."""

    size: int = 0
    draw: int = 0
    scale: str = ""

    @property
    def key(self) -> str:
        """Its name in the file of finished units."""
        return f"{self.size}/{self.draw}/{self.scale}"


def possible(rows: Rows, size: int) -> bool:
    """Whether draws of so many rows are smaller than the task and have events enough of both kinds."""
    rate = rows.label.mean()
    return not size or (size < len(rows) and size * min(rate, 1 - rate) >= LEAST_EVENTS)


def drawn(task: Task, unit: Unit) -> Rows:
    """The unit's rows to fit, in the unit's scale: the same for every method, with two rows of each class or more."""
    rng = np.random.default_rng([zlib.crc32(task.name.encode()), unit.size, unit.draw])
    rows = np.arange(len(task.fit))
    while unit.size:
        rows = rng.choice(len(task.fit), unit.size, replace=False)
        if 2 <= task.fit.label[rows].sum() <= unit.size - 2:
            break
    return scaled(task.fit[rows], unit.scale)


def scaled(rows: Rows, scale: str) -> Rows:
    """Rows with their scores on another scale."""
    factor, shift = SCALES.get(scale, (1.0, 0.0))
    return Rows(rows.score * factor + shift, rows.label, rows.segments, rows.segment, rows.cluster)
