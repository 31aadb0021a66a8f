r"""Additive corrections of a logit, fitted block by block: penalised Newton steps from grouped sums.

The model is

.. math:: \mathrm{logit}(p) = y + \sum_k \bigl(a_k[\ell_k] + b_k[\ell_k]\, t(y)\bigr)

with y the calibrated logit of the base curve, t(y) in [-1/2, 1/2] its position between two quantiles (constant beyond
them), and for every block k a table of offsets a and tilts b by level. One step of a block only needs the sums of
residuals and of their weights by level, which a GROUP BY can compute. Its strengths are the precisions of a and b and
of their differences between neighbouring levels. They are chosen by empirical Bayes with a weak gamma hyperprior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]

_HYPER = 0.1  # weight of the hyperprior, in observations of a strength
_OFFSET, _TILT, _LINK = 1 / 0.5**2, 1 / 0.3**2, 10.0  # strengths to start from, and the hyperprior's means
_CELL = 1 / 0.3**2  # initial strength of the offsets of an interaction
LEAST, _MOST = 1e-4, 1e6  # below, no penalty; above, a hard constraint
_LONGEST = 2.0  # largest Newton step
LEAST_WEIGHT = 1e-4  # lower bound of p (1 - p), so that rows with extreme logits still count
_CHUNK = 1 << 15  # rows summed together, so that intermediate results stay in cache


_ALL = slice(None)


def chunks(rows: int) -> Iterator[slice]:
    """Parts of the rows that fit into cache."""
    return (slice(start, start + _CHUNK) for start in range(0, rows, _CHUNK))


def by_level(level: Levels, values: Floats, size: int) -> Floats:
    """Sums of values by level, shape ``[size]``; rows at level ``size`` have none.

    >>> by_level(np.array([0, 2, 0]), np.array([1.0, 5.0, 2.0]), 2).tolist()
    [3.0, 0.0]
    """
    return np.bincount(level, values, size)[:size].astype(np.float64, copy=False)


class Rows(NamedTuple):
    """What is fitted, one entry per row, shape ``[n]``.

    Args:
        label: Labels in [0, 1].
        weight: How often each row counts.
        tilt: Position of the base logit between two quantiles, in [-1/2, 1/2].
    """

    label: Floats
    weight: Floats
    tilt: Floats

    def only(self, kept: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        return Rows(self.label[kept], self.weight[kept], self.tilt[kept])

    def residual(self, logit: Floats) -> tuple[Floats, Floats]:
        """Weighted residuals and Newton weights at some logits."""
        prob = 1 / (1 + np.exp(-np.clip(logit, -40, 40)))
        return self.weight * (self.label - prob), self.weight * np.maximum(prob * (1 - prob), LEAST_WEIGHT)


class Sums(NamedTuple):
    """Sums by level: gradient ``[levels, columns]`` and Hessian ``[levels, columns, columns]``."""

    gradient: Floats
    hessian: Floats


def grouped(level: Levels, size: int, residual: Floats, weight: Floats, tilt: Floats | None) -> Sums:
    """Sums of residuals and weights by level, with the tilt as a second column unless it is None.

    >>> sums = grouped(np.array([0, 1, 1]), 2, np.array([1.0, 2.0, 3.0]), np.ones(3), None)
    >>> sums.gradient.tolist(), sums.hessian.tolist()
    ([[1.0], [5.0]], [[[1.0]], [[2.0]]])
    """

    def summed(values: Floats) -> Floats:
        return by_level(level, values, size)

    if tilt is None:
        return Sums(summed(residual)[:, None], summed(weight)[:, None, None])
    gradient = np.stack([summed(residual), summed(residual * tilt)], axis=1)
    leaning = weight * tilt
    cross = summed(leaning)
    hessian = np.stack([summed(weight), cross, cross, summed(leaning * tilt)], axis=1)
    return Sums(gradient, hessian.reshape(size, 2, 2))


@dataclass
class Block:
    """One table of corrections while it is fitted.

    Args:
        level: Level of each row, shape ``[n]``; the number of levels where a row has none.
        values: Offsets, and tilts if it has any, shape ``[levels, columns]``.
        linked: Which neighbouring levels should be similar, ``[levels - 1]``; None if levels have no order.
        strengths: Strength of each column, then of the differences of each column if levels are linked.
        centres: Means of the hyperprior of the strengths.
        covariance: Posterior covariance of each level's values, ``[levels, columns, columns]``.
        fixed: Whether the strengths are fixed.
        centred: Whether the mean over all levels is moved into the shared block.
    """

    level: Levels
    values: Floats
    linked: NDArray[np.bool_] | None
    strengths: Floats
    centres: Floats
    covariance: Floats
    fixed: bool = False
    centred: bool = False

    @classmethod
    def of(cls, level: Levels, size: int, *, tilts: bool, linked: NDArray[np.bool_] | None = None) -> Block:
        """A block of a field, all zero."""
        columns = 2 if tilts else 1
        strengths = [_OFFSET, _TILT][:columns]
        if linked is not None:
            strengths = [strengths[0] / 4, *strengths[1:], *[_LINK] * columns]
        start = np.array(strengths)
        block = cls(level, np.zeros((size, columns)), linked, start, start.copy(), np.zeros((size, columns, columns)))
        block.centred = tilts and linked is None
        return block

    @classmethod
    def cells(cls, level: Levels, size: int) -> Block:
        """A block of an interaction: offsets only, no order."""
        start = np.array([_CELL])
        return cls(level, np.zeros((size, 1)), None, start, start.copy(), np.zeros((size, 1, 1)))

    def correction(self, change: Floats, tilt: Floats, part: slice = _ALL) -> Floats:
        """What values by level add to the logit of each row of a part."""
        level = self.level[part]
        offset, *tilts = (np.append(column, 0.0) for column in change.T)  # 0 where a row has no level
        out = offset.take(level)
        return out + tilts[0].take(level) * tilt[part] if tilts else out

    def sums(self, rows: Rows, logit: Floats) -> Sums:
        """Gradient and Hessian of the log likelihood by level."""
        size, columns = self.values.shape
        gradient, hessian = np.zeros((size, columns)), np.zeros((size, columns, columns))
        for part in chunks(len(logit)):
            some = rows.only(part)
            tilt = some.tilt if columns == 2 else None
            found = grouped(self.level[part], size, *some.residual(logit[part]), tilt)
            gradient += found.gradient
            hessian += found.hessian
        return Sums(gradient, hessian)

    def step(self, sums: Sums, *, choose: bool) -> Floats:
        """One Newton step from these sums, with new strengths if ``choose``. Returns the change of the values."""
        inverse = self.inverted(sums.hessian)
        change = self.times(inverse, sums.gradient - self.pull(self.values))
        if choose and not self.fixed:
            self._choose(*(self._learned if self.linked is None else self._learned_linked)(inverse, change))
        change *= min(1.0, _LONGEST / max(float(np.abs(change).max(initial=0)), 1e-9))
        return change

    def pull(self, values: Floats) -> Floats:
        """Gradient of half the penalty of some values."""
        columns = values.shape[1]
        out = np.asarray(values * self.strengths[:columns])
        if self.linked is not None:
            rise = np.diff(values, axis=0) * self.linked[:, None] * self.strengths[columns:]
            out[1:] += rise
            out[:-1] -= rise
        return out

    def inverted(self, hessian: Floats) -> Floats:
        """Inverse of the Hessian plus the penalty; its diagonal blocks are stored as the covariance of each level.

        Levels without order are one small system each, ``[levels, columns, columns]``; ordered levels are one system,
        ``[columns, levels, columns, levels]``.
        """
        size, columns = self.values.shape
        if self.linked is None:
            self.covariance = np.asarray(np.linalg.inv(hessian + np.diag(self.strengths)), np.float64)
            return self.covariance
        place, matrix = np.arange(size), np.zeros((columns, size, columns, size))
        for i in range(columns):
            for j in range(columns):
                matrix[i, place, j, place] = hessian[:, i, j]
            matrix[i, :, i, :] += self._prior(i)
        inverse = np.linalg.inv(matrix.reshape(columns * size, -1)).reshape(matrix.shape)
        self.covariance = np.asarray(inverse[:, place, :, place], np.float64)
        return np.asarray(inverse)

    def times(self, inverse: Floats, gradient: Floats) -> Floats:
        """An inverse of :meth:`inverted` times a gradient ``[levels, columns]``."""
        if self.linked is None:
            return np.asarray(np.einsum("lij,lj->li", inverse, gradient))
        return np.ascontiguousarray(np.tensordot(inverse, gradient.T, axes=([2, 3], [0, 1])).T)

    @property
    def _difference(self) -> Floats:
        """Differences of linked neighbours, ``[links, levels]``."""
        return np.diff(np.eye(len(self.values)), axis=0)[self.linked]

    def _prior(self, column: int) -> Floats:
        """Penalty of one column of ordered levels, ``[levels, levels]``."""
        size, columns = self.values.shape
        difference = self._difference
        return np.asarray(
            self.strengths[column] * np.eye(size) + self.strengths[columns + column] * (difference.T @ difference)
        )

    def _learned(self, inverse: Floats, change: Floats) -> tuple[Floats, Floats]:
        """Degrees of freedom that the rows determine, and the penalised sum of squares, of each strength."""
        after = self.values + change
        return len(after) / self.strengths - np.einsum("lii->i", inverse), (after**2).sum(0)

    def _learned_linked(self, inverse: Floats, change: Floats) -> tuple[Floats, Floats]:
        columns, after, difference = self.values.shape[1], self.values + change, self._difference
        roughness = difference.T @ difference
        gained = [np.linalg.inv(self._prior(j)) - inverse[j, :, j, :] for j in range(columns)]
        learned = [*(np.trace(one) for one in gained), *(np.sum(one * roughness) for one in gained)]
        return np.array(learned), np.concatenate([(after**2).sum(0), ((difference @ after) ** 2).sum(0)])

    def _choose(self, learned: Floats, energy: Floats) -> None:
        """Update the strengths so that the current values become more probable (Wood and Fasiolo 2017)."""
        wanted = (self.strengths * np.maximum(learned, 0) + _HYPER) / (energy + _HYPER / self.centres)
        ratio = np.clip(wanted / self.strengths, 0.2, 5.0)
        self.strengths = np.clip(self.strengths * ratio, LEAST, _MOST)


def shared_block(rows: int) -> Block:
    """The offset and tilt that all rows share, as a block of one level with a very weak penalty."""
    block = Block.of(np.zeros(rows, np.intp), 1, tilts=True)
    block.strengths, block.fixed, block.centred = np.full(2, LEAST), True, False
    return block


class Backfit:
    """Blocks fitted together to rows: the current logit of every row, and steps of one block at a time."""

    def __init__(self, rows: Rows, base: Floats) -> None:
        self.rows, self.logit = rows, base.copy()
        self.blocks = list[Block]()
        self.shared = shared_block(len(base))

    def update(self, block: Block, *, choose: bool = True) -> float:
        """One step of a block; the largest change of a value."""
        change = block.step(block.sums(self.rows, self.logit), choose=choose)
        block.values = block.values + change
        for part in chunks(len(self.logit)):
            self.logit[part] += block.correction(change, self.rows.tilt, part)
        if block.centred:
            common = block.values.mean(0)
            block.values = block.values - common
            self.shared.values = self.shared.values + common
        return float(np.abs(change).max(initial=0))

    def sweep(self, *, choose: bool = True) -> float:
        """One step of every block; the largest change of a value."""
        return max([self.update(block, choose=choose) for block in (self.shared, *self.blocks)])

    def start_from(self, other: Backfit) -> None:
        """Start from the values and strengths of the same blocks, fitted to other rows."""
        for own, theirs in zip((self.shared, *self.blocks), (other.shared, *other.blocks), strict=True):
            own.values, own.strengths = theirs.values, theirs.strengths
            for part in chunks(len(self.logit)):
                self.logit[part] += own.correction(own.values, self.rows.tilt, part)
