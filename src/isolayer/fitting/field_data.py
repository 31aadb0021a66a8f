"""Rows with the levels of their fields, to which terms are fitted, and the sums that a scan of the rows gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Block, Rows, Sums, by_level, chunks, grouped
from isolayer.fitting.field_solver import Scan

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to fit.

    Args:
        rows: Labels, weights, and positions of the base logits.
        base: Calibrated logit of the base curve, shape ``[n]``.
        shift: What the sampling of negatives added to each logit, ``[n]``: minus the log of the kept share.
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

    def scan(self, blocks: Sequence[Block], offset: Floats, values: Sequence[Floats]) -> Scan:
        """Sums of all blocks at some values, and the loss.

        Args:
            blocks: The blocks, with the level of every row.
            offset: Logit without the blocks, shape ``[n]``.
            values: Values of each block.
        """
        sums = [Sums(np.zeros(value.shape), np.zeros((*value.shape, value.shape[1]))) for value in values]
        loss = 0.0
        for part in chunks(len(self)):
            some, logit = self.rows.only(part), offset[part].copy()
            for block, value in zip(blocks, values, strict=True):
                logit += block.correction(value, self.rows.tilt, part)
            loss += float(losses(some, logit).sum())
            told = some.residual(logit)
            for block, (gradient, hessian) in zip(blocks, sums, strict=True):
                tilt = some.tilt if gradient.shape[1] == 2 else None
                found = grouped(block.level[part], len(gradient), *told, tilt)
                gradient += found.gradient
                hessian += found.hessian
        return Scan(sums, loss)

    def tally(self, level: Levels, size: int) -> Tally:
        """Weight of the rows of each level, observed events, and those that the base curve expects."""
        weight = self.rows.weight
        prob = 1 / (1 + np.exp(-np.clip(self.base + self.shift, -40, 40)))
        return Tally(*(by_level(level, column, size) for column in (weight, weight * self.rows.label, weight * prob)))


@dataclass(frozen=True, eq=False)
class Tally:
    """Of each level: weight of its rows, observed events, and events that the base curve expects, ``[levels]``."""

    count: Floats
    observed: Floats
    expected: Floats


def losses(rows: Rows, logit: Floats) -> Floats:
    """Weighted log loss of each row."""
    return np.asarray(rows.weight * (np.logaddexp(0, logit) - rows.label * logit))
