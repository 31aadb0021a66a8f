"""Rows with the levels of their fields: what the terms of fields are fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Rows

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to fit.

    Args:
        rows: Labels, weights, and places of the base logits.
        base: Calibrated logit of the base curve, shape ``[n]``.
        shift: What sampling added to the logit of each row, ``[n]``: minus the log of the kept share of negatives.
        levels: Level of every field, one array ``[n]`` per field.
    """

    rows: Rows
    base: Floats
    shift: Floats
    levels: list[Levels]

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Data:
        """Some of the rows."""
        return Data(self.rows.only(kept), self.base[kept], self.shift[kept], [level[kept] for level in self.levels])

    def __len__(self) -> int:
        return len(self.base)
