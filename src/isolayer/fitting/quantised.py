"""Weights of knots in 256 steps, and array-like access to tables that are decoded row by row. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_CHUNK = 1 << 13  # curves decoded together


@dataclass(frozen=True, eq=False)
class Quantised:
    """Weights of knots, for each curve in 256 steps up to its largest; read like an array ``[curves, knots]``.

    Args:
        steps: From 0 to 255, shape ``[curves, knots]``.
        largest: The largest weight of each curve, shape ``[curves]``.

    >>> Quantised.of(np.array([[0.0, 0.5, 2.0]]))[0].round(1).tolist()
    [0.0, 0.5, 2.0]
    """

    steps: NDArray[np.uint8]
    largest: NDArray[np.float32]

    dtype = np.dtype(np.float32)
    ndim = 2
    log = False

    @classmethod
    def of(cls, weight: NDArray[np.floating[Any]]) -> Quantised:
        """Quantise weights ``[curves, knots]``; a positive weight never becomes 0."""
        largest = weight.max(1).astype(np.float32)
        steps = weight * (255 / np.where(largest > 0, largest, 1))[:, None]
        steps -= 0.5
        np.maximum(np.ceil(steps, out=steps), weight > 0, out=steps)
        return cls(np.minimum(steps, 255, out=steps).astype(np.uint8), largest)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of curves and of knots."""
        return self.steps.shape[0], self.steps.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.steps.nbytes + self.largest.nbytes

    def __len__(self) -> int:
        return len(self.steps)

    def decode(self, rows: Ints) -> NDArray[np.float32]:
        """Whole curves of some rows, shape ``[n, knots]``."""
        return self.steps[rows] * (self.largest[rows] / np.float32(255))[:, None]

    def __getitem__(self, index: Any) -> Any:
        return item_of(self, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return whole_of(self, dtype)


def item_of(table: Any, index: Any) -> Any:
    """Rows of a table that can decode them, or values at their knots, with the indexing of an array."""
    rows, knots = index if isinstance(index, tuple) else (index, slice(None))
    if isinstance(rows, slice):
        rows = np.arange(*rows.indices(len(table)))
    number = rows if isinstance(rows, np.ndarray) and rows.dtype.kind == "i" else np.arange(len(table))[rows]
    if number.ndim == 0:
        return table.decode(number[None])[0][knots]
    if isinstance(knots, np.ndarray) and knots.shape == number.shape and knots.dtype != bool:
        return table.decode(number)[np.arange(len(number)), knots]
    return table.decode(number)[:, knots]


def whole_of(table: Any, dtype: Any) -> NDArray[Any]:
    """A table that can decode rows, as an array."""
    out = np.empty(table.shape, table.dtype if dtype is None else dtype)
    for first in range(0, len(table), _CHUNK):
        rows = np.arange(first, min(first + _CHUNK, len(table)))
        out[rows] = table.decode(rows)
    return out
