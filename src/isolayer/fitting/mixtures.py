"""Weighted sums of shapes at single points: how packed curves are evaluated row by row. numpy only.

A row needs a curve between two knots, which is two sums over the shapes. Rows between the same two knots share the
values of the shapes there, so their sums are one matrix product; only the weights of the curves are gathered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MANY = 2048  # with at least this many rows, they are sorted by their knots


class ShapesByKnot(NamedTuple):
    """Shapes at the left knots of the buckets, and their rises within the buckets.

    Args:
        shapes: Start and rise of each shape, in units of its weights, shape ``[knots - 1, shapes, 2]``.
        mean: Start and rise of the mean, which every curve has once, shape ``[knots - 1, 2]``.
    """

    shapes: Floats
    mean: Floats

    @classmethod
    def of(cls, shapes: Floats, mean: Floats, unit: float) -> ShapesByKnot:
        """From values at the knots.

        Args:
            shapes: Shape ``[shapes, knots]``.
            mean: Shape ``[knots]``.
            unit: What weights are multiples of.

        >>> ShapesByKnot.of(np.array([[0.0, 2.0]]), np.array([1.0, 1.5]), 0.5).shapes.tolist()
        [[[0.0, 1.0]]]
        """
        each = np.stack([shapes[:, :-1], np.diff(shapes, axis=1)], axis=2) * unit
        both = np.stack([mean[:-1], np.diff(mean)], axis=1)
        return cls(np.ascontiguousarray(each.transpose(1, 0, 2)), both)

    def read(self, weights: NDArray[np.int32], curves: Ints, left: Ints, fraction: Floats) -> Floats:
        """Value of some curves at a fraction of the way from one knot to the next, all of shape ``[n]``.

        Args:
            weights: How much of each shape each curve has, shape ``[all curves, shapes]``.
            curves: Which curves are read.
            left: Knot at or to the left of the point.
            fraction: Distance from that knot, in steps.

        >>> some = ShapesByKnot.of(np.array([[0.0, 2.0]]), np.array([1.0, 1.5]), 0.5)
        >>> some.read(np.array([[3]], np.int32), np.array([0]), np.array([0]), np.array([0.5])).tolist()
        [2.75]
        """
        if len(curves) >= _MANY:
            return self._read_by_knot(weights, curves, left, fraction)
        own: NDArray[Any] = weights.take(curves, axis=0).astype(np.float64)
        sums = np.einsum("nk,nkp->np", own, self.shapes.take(left, axis=0))
        sums += self.mean.take(left, axis=0)
        return np.asarray(sums[:, 0] + fraction * sums[:, 1])

    def _read_by_knot(self, weights: NDArray[np.int32], curves: Ints, left: Ints, fraction: Floats) -> Floats:
        """The same for many rows: one product of matrices for all rows between the same two knots."""
        knots = len(self.shapes)
        narrow = np.uint8 if knots <= 256 else np.uint16 if knots <= 1 << 16 else np.int64
        key: NDArray[np.integer[Any]] = left.astype(narrow)
        order = np.argsort(key, kind="stable")  # a counting sort for small integers
        own, sums = weights.take(curves.take(order), axis=0), np.empty((len(left), 2))
        last, first = np.cumsum(np.bincount(left, minlength=knots)).tolist(), 0
        for shapes, end in zip(self.shapes, last, strict=True):
            if end > first:
                np.matmul(own[first:end].astype(np.float64), shapes, out=sums[first:end])
                first = end
        sums += self.mean.take(key.take(order), axis=0)
        found, out = sums[:, 1] * fraction.take(order), np.empty(len(left))
        found += sums[:, 0]
        out[order] = found
        return out
