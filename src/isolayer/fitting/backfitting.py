r"""Additive corrections of a logit, fitted block by block: penalised Newton steps from grouped sums.

The model is

.. math:: \mathrm{logit}(p) = y + \sum_k \bigl(a_k[\ell_k] + b_k[\ell_k]\, t(y)\bigr)

with y the calibrated logit of the base curve, t(y) in [-1/2, 1/2] its place between two quantiles (constant beyond
them), and for every block k a table of offsets a and tilts b by level. One step of a block needs the sums of residuals
and of their weights by level, and nothing else: a GROUP BY. Its strengths, the precisions of a and b and of their
differences between neighbouring levels, are chosen by empirical Bayes under a weak gamma hyperprior.
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
_CELL = 1 / 0.3**2  # of the offsets of an interaction
_LEAST, _MOST = 1e-4, 1e6  # below, no penalty; above, a hard constraint
_LONGEST = 2.0  # of a Newton step
_LEAST_WEIGHT = 1e-4  # of p (1 - p), so that a row far out still counts
_CHUNK = 1 << 15  # rows summed together, so that what is computed of them stays in cache


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
        tilt: Place of the base logit between two quantiles, in [-1/2, 1/2].
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
        return self.weight * (self.label - prob), self.weight * np.maximum(prob * (1 - prob), _LEAST_WEIGHT)


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
        linked: Which neighbouring levels are alike, ``[levels - 1]``; None if levels have no order.
        strengths: Of each column, then of the differences of each column if levels are linked.
        centres: Means of the hyperprior of the strengths.
        covariance: Posterior covariance of each level's values, ``[levels, columns, columns]``.
        fixed: Whether the strengths stay as they are.
        centred: Whether what all levels share moves into the shared block.
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
        """What some values by level add to the logit of each row of a part."""
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
        """One Newton step from these sums, and a new choice of strengths if asked for; the change of the values."""
        change = self._linked_step(sums, choose) if self.linked is not None else self._free_step(sums, choose)
        change *= min(1.0, _LONGEST / max(float(np.abs(change).max(initial=0)), 1e-9))
        return change

    def _free_step(self, sums: Sums, choose: bool) -> Floats:
        """Levels without order: one small system per level."""
        prior = np.diag(self.strengths)
        self.covariance = np.asarray(np.linalg.inv(sums.hessian + prior), np.float64)
        change = np.einsum("lij,lj->li", self.covariance, sums.gradient - self.values * self.strengths)
        if choose and not self.fixed:
            after = self.values + change
            known = np.einsum("lii->i", self.covariance)
            self._choose(len(after) / self.strengths - known, (after**2).sum(0))
        return np.asarray(change)

    def _linked_step(self, sums: Sums, choose: bool) -> Floats:
        """Ordered levels: one system, offsets of all levels before tilts of all levels."""
        size, columns = self.values.shape
        difference = np.diff(np.eye(size), axis=0)[self.linked]
        roughness = difference.T @ difference
        priors = [self.strengths[j] * np.eye(size) + self.strengths[columns + j] * roughness for j in range(columns)]
        matrix = np.zeros((columns, size, columns, size))
        place = np.arange(size)
        for i in range(columns):
            for j in range(columns):
                matrix[i, place, j, place] = sums.hessian[:, i, j]
            matrix[i, :, i, :] += priors[i]
        inverse = np.linalg.inv(matrix.reshape(columns * size, -1)).reshape(matrix.shape)
        pull = np.stack([prior @ self.values[:, j] for j, prior in enumerate(priors)])
        gradient = sums.gradient.T - pull
        change = np.tensordot(inverse, gradient, axes=([2, 3], [0, 1])).T
        self.covariance = np.asarray(inverse[:, place, :, place], np.float64)  # [size, columns, columns]
        if choose and not self.fixed:
            after = self.values + change
            free = [np.linalg.inv(prior) for prior in priors]
            own = [np.trace(free[j]) - np.trace(inverse[j, :, j, :]) for j in range(columns)]
            rough = [np.sum((free[j] - inverse[j, :, j, :]) * roughness) for j in range(columns)]
            energy = [(after**2).sum(0), ((difference @ after) ** 2).sum(0)]
            self._choose(np.array([*own, *rough]), np.concatenate(energy))
        return np.ascontiguousarray(change)

    def _choose(self, learned: Floats, energy: Floats) -> None:
        """Strengths under which the values at hand are more probable (Wood and Fasiolo 2017), with a hyperprior."""
        wanted = (self.strengths * np.maximum(learned, 0) + _HYPER) / (energy + _HYPER / self.centres)
        ratio = np.clip(wanted / self.strengths, 0.2, 5.0)
        self.strengths = np.clip(self.strengths * ratio, _LEAST, _MOST)


class Backfit:
    """Blocks fitted together to rows: the current logit of every row, and steps of one block at a time."""

    def __init__(self, rows: Rows, base: Floats) -> None:
        self.rows, self.logit = rows, base.copy()
        self.blocks = list[Block]()
        self.shared = Block.of(np.zeros(len(base), np.intp), 1, tilts=True)
        self.shared.strengths = np.full(2, _LEAST)
        self.shared.fixed, self.shared.centred = True, False

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
        """Take the values and strengths of the same blocks, fitted to other rows."""
        for own, theirs in zip((self.shared, *self.blocks), (other.shared, *other.blocks), strict=True):
            own.values, own.strengths = theirs.values, theirs.strengths
            for part in chunks(len(self.logit)):
                self.logit[part] += own.correction(own.values, self.rows.tilt, part)
