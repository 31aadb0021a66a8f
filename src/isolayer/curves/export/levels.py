"""Which curve serves which context, for engines that look it up level by level.

A context (device, position) starts at the global curve. Level 1 leads from it and the device to the curve of that
device, level 2 from that curve and the position to the curve of the pair. If a level does not have the value, the curve
found so far is used. Every export (SQL, Ibis, ONNX) uses these tables to find the curve.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves

Kind = Literal["i", "b", "U"]  # integers, booleans, strings


class Level(NamedTuple):
    """The curves of one level.

    Args:
        context: Name of the context column.
        kind: Type of its values; None if all are missing.
        parent: Row of the parent of each curve, shape ``[n]``.
        keys: Value of the context of each curve, ``[n]``; None is missing.
        rows: Row of each curve, shape ``[n]``.
    """

    context: str
    kind: Kind | None
    parent: NDArray[np.int64]
    keys: list[Any]
    rows: NDArray[np.int64]

    @property
    def has_missing(self) -> bool:
        """Whether a missing value has a curve of its own."""
        return None in self.keys

    @property
    def words(self) -> list[Any]:
        """Distinct values, sorted, without the missing one."""
        return sorted({key for key in self.keys if key is not None})


def levels(curves: Curves) -> list[Level]:
    """The levels of curves below the global one, coarse to fine, up to the last that has any curve.

    >>> from isolayer import Grid, Histogram
    >>> histogram = Histogram.from_arrays([0.0, 1.0], [0, 1], {"device": ["tv", "web"]}, grid=Grid())
    >>> [level.keys for level in levels(Curves.from_histogram(histogram))]
    [['tv', 'web']]
    """
    found = list[Level]()
    for depth, (context, keys) in enumerate(zip(curves.contexts, curves.keys[1:], strict=True), start=1):
        rows = np.arange(curves.starts[depth], curves.starts[depth + 1])
        if not len(rows):
            break
        above = dict(zip(curves.contexts, keys, strict=False))
        parent = curves.rows_of(above, len(rows), depth=depth - 1)
        values = keys[-1].tolist()
        found.append(Level(context, _kind(values), parent, values, rows))
    return found


def _kind(values: list[Any]) -> Kind | None:
    """Type of the values that are not missing."""
    first = next((value for value in values if value is not None), None)
    if first is None:
        return None
    return "b" if isinstance(first, bool) else "i" if isinstance(first, int) else "U"
