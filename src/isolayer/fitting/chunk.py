"""The parents of a level, and some fitted contexts of the level. numpy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.packed import Matrix

Floats = NDArray[np.float64]
Place = slice | NDArray[np.int64]  # indices of some contexts in their level


class Above(NamedTuple):
    """The parent level: its curves and their variances ``[curves, knots]``, and the parent of each context."""

    curves: Matrix
    variance: Matrix
    parent: NDArray[np.int64]


class Chunk(NamedTuple):
    """Some fitted contexts, before they are balanced: arrays ``[contexts, knots]``, except the last two.

    Args:
        values: Knot values.
        variance: Their posterior variance.
        weigh: Computes the weight of the rows around each knot, which packed levels do not need.
        remains: Share of the parent in each curve, from 0 to 1.
        sums: See :func:`isolayer.fitting.level.balancing_shift`, shape ``[4, contexts]``.
        residual: The largest residual.
    """

    values: Floats
    variance: NDArray[Any]
    weigh: Callable[[], NDArray[Any]]
    remains: NDArray[Any]
    sums: Floats
    residual: float

    def only(self, kept: NDArray[np.bool_]) -> Chunk:
        """The same for some contexts."""
        values, variance, remains = self.values[kept], self.variance[kept], self.remains[kept]
        return Chunk(values, variance, lambda: self.weigh()[kept], remains, self.sums[:, kept], self.residual)
