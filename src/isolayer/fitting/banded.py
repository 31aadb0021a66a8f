"""Batches of symmetric matrices with two bands on either side of the diagonal: factorise, solve, invert on the bands.

A batch is three arrays, ``[n, batch]``, ``[n - 1, batch]`` and ``[n - 2, batch]``: the diagonal and the bands next to
it; if ``batch`` is 1, numpy's broadcasting applies. Loops run over n: each step is one operation on the whole batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Bands(NamedTuple):
    """Diagonal, first and second band of a batch of symmetric matrices."""

    diagonal: Floats
    first: Floats
    second: Floats

    def plus(self, other: Bands) -> Bands:
        """Sum of two batches."""
        return Bands(self.diagonal + other.diagonal, self.first + other.first, self.second + other.second)

    def only(self, kept: NDArray[np.bool_]) -> Bands:
        """Some matrices of the batch; bands that all matrices share are kept."""
        return Bands(*(band if band.shape[1] == 1 else band[:, kept] for band in self))

    def between(self, first: int, last: int) -> Bands:
        """The rows and columns ``first .. last - 1``."""
        return Bands(*(band[first : max(last - k, first)] for k, band in enumerate(self)))

    def dense(self) -> Floats:
        """The matrix of a batch of one, ``[n, n]``."""
        lower = np.diag(self.first[:, 0], -1) + np.diag(self.second[:, 0], -2)
        return np.asarray(np.diag(self.diagonal[:, 0]) + lower + lower.T)

    def times(self, factor: Floats | float) -> Bands:
        """Every matrix times a number."""
        return Bands(self.diagonal * factor, self.first * factor, self.second * factor)

    def apply(self, vector: Floats) -> Floats:
        """Each matrix times its vector, ``[n, batch]``."""
        out = self.diagonal * vector
        out[:-1] += self.first * vector[1:]
        out[1:] += self.first * vector[:-1]
        out[:-2] += self.second * vector[2:]
        out[2:] += self.second * vector[:-2]
        return np.asarray(out)

    def inner(self, other: Bands) -> Floats:
        """Trace of each product of two matrices, which depends only on the bands of both, shape ``[batch]``."""
        sides = (self.first * other.first).sum(0) + (self.second * other.second).sum(0)
        return np.asarray((self.diagonal * other.diagonal).sum(0) + 2 * sides)


def gram(differences: int, size: int) -> Bands:
    """The matrix of the sum of squared differences of a given order (1 or 2), as a batch of one.

    >>> gram(1, 3).diagonal[:, 0].tolist(), gram(1, 3).first[:, 0].tolist()
    ([1.0, 2.0, 1.0], [-1.0, -1.0])
    """
    row = np.diff(np.eye(differences + 1), n=differences, axis=0)[0]  # such as [1, -2, 1]
    out = Bands(*(np.zeros((max(size - k, 0), 1)) for k in range(3)))
    for band, offset in zip(out, range(3), strict=True):
        for i in range(len(row) - offset):
            band[i : i + size - differences] += row[i] * row[i + offset]
    return out


class Factor(NamedTuple):
    """A batch of LDL' factors: D, ``[n, batch]``, and the entries below L's unit diagonal, ``[n - 1, 2, batch]``.

    The two entries of a column of L are stored next to each other, so that a step of a solution is one operation on
    both; the second entry of the last column is 0.
    """

    pivot: Floats
    lower: Floats


def factorise(bands: Bands) -> Factor:
    """Factorise positive definite matrices.

    >>> bands = Bands(np.full((3, 1), 4.0), np.ones((2, 1)), np.ones((1, 1)))
    >>> solve(factorise(bands), np.full((3, 1), 6.0)).round(12).tolist()
    [[1.0], [1.0], [1.0]]
    """
    batch = np.broadcast_shapes(*(band.shape[1:] for band in bands))
    n = len(bands.diagonal)
    pivot, first = (np.array(np.broadcast_to(band, (len(band), *batch))) for band in bands[:2])
    lower, scratch = np.empty((n - 1, 2, *batch)), np.empty(batch)
    one, two = lower[:, 0], lower[:, 1]
    for j in range(n - 2):
        np.divide(first[j], pivot[j], out=one[j])
        np.divide(bands.second[j], pivot[j], out=two[j])
        pivot[j + 1] -= np.multiply(one[j], first[j], out=scratch)
        first[j + 1] -= np.multiply(two[j], first[j], out=scratch)
        pivot[j + 2] -= np.multiply(two[j], bands.second[j], out=scratch)
    if n > 1:
        one[-1], two[-1] = first[-1] / pivot[-2], 0.0
        pivot[-1] -= one[-1] * first[-1]
    return Factor(pivot, lower)


def solve(factor: Factor, right: Floats) -> Floats:
    """Solve with one right-hand side per matrix ``[n, batch]``, or several ``[n, k, batch]``."""
    pivot, lower = factor if right.ndim == 2 else (factor.pivot[:, None], factor.lower[:, :, None])
    n = len(pivot)
    out = np.zeros((n + 1, *np.broadcast_shapes(right.shape, pivot.shape)[1:]))
    out[:n] = right
    scratch = np.empty((2, *out.shape[1:]))
    for j in range(n - 1):  # the row beyond the last is padding
        out[j + 1 : j + 3] -= np.multiply(lower[j], out[j], out=scratch)
    out[:n] /= pivot
    for j in range(n - 2, -1, -1):
        np.multiply(lower[j], out[j + 1 : j + 3], out=scratch)
        here = out[j]
        here -= scratch[0]
        here -= scratch[1]
    return out[:n]


def inverse_bands(factor: Factor) -> Bands:
    """The inverse's own three bands, in O(n).

    >>> bands = inverse_bands(factorise(Bands(np.full((3, 1), 2.0), np.ones((2, 1)), np.zeros((1, 1)))))
    >>> [band[:, 0].round(4).tolist() for band in bands]
    [[0.75, 1.0, 0.75], [-0.5, -0.5], [0.25]]
    """
    one, two = factor.lower[:, 0], factor.lower[:, 1]
    out = Bands(1 / factor.pivot, np.empty_like(one), np.empty_like(one[1:]))
    diagonal, first, second = out
    if len(diagonal) > 1:
        first[-1] = -one[-1] * diagonal[-1]
        diagonal[-2] -= one[-1] * first[-1]
    for j in range(len(diagonal) - 3, -1, -1):
        second[j] = -one[j] * first[j + 1] - two[j] * diagonal[j + 2]
        first[j] = -one[j] * diagonal[j + 1] - two[j] * first[j + 1]
        diagonal[j] -= one[j] * first[j] + two[j] * second[j]
    return out
