r"""The uncertainty of the level (mean logit) and the slope of fitted curves, one by one and summed over a hierarchy.

It is computed from what every :class:`~isolayer.curves.curves.Curves` stores: the pointwise variance and the weight of
the rows around each knot. With the information :math:`I = \text{weight} \cdot p(1-p)` at the knots, a curve has
:math:`\sum I\,\text{variance}` effective degrees of freedom. The first of them is its level, which has the variance
:math:`1 / \sum I`; the second is its slope. The others oscillate along the curve, and matter only if the scores of the
new rows are distributed differently from those of the fit. Given the error of their parent, the errors of contexts are
independent; a context shares the parent's error as far as it was shrunk towards the parent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

_CHUNK = 2048  # groups whose knots are kept in memory at the same time


class Placed(NamedTuple):
    """Bins on a grid, shape ``[bins]`` each: group, left knot, and fraction of the way to the next knot, in [0, 1]."""

    group: Codes
    left: Codes
    fraction: Floats

    @classmethod
    def of(cls, curves: Curves, logit: Floats, group: Codes) -> Placed:
        """Place raw logits; bins must be sorted by group."""
        grid = curves.grid
        place = (np.clip(logit, grid.lower, grid.upper) - grid.lower) / grid.step
        left = np.minimum(place.astype(np.int64), grid.buckets - 2)
        return cls(group, left, place - left)

    def spread(self, values: Floats, first: int, last: int, knots: int) -> Floats:
        """Values of the bins of groups ``first .. last - 1``, divided between their two knots, ``[groups, knots]``."""
        a, b = np.searchsorted(self.group, [first, last])
        cell = (self.group[a:b] - first) * knots + self.left[a:b]
        size, high = (last - first) * knots, values[a:b] * self.fraction[a:b]
        flat = total(cell, values[a:b] - high, size) + total(cell + 1, high, size)
        return flat.reshape(-1, knots)


class Errors(NamedTuple):
    """Variances of the error of each group's curve, shape ``[groups]`` each.

    Args:
        level: Variance of its level, averaged over the rows of the group.
        slope: Variance of its slope, relative to 1.
        information: Information of the fitted rows about the level, the inverse of a variance; 0 without rows.
    """

    level: Floats
    slope: Floats
    information: Floats


def errors_of(curves: Curves, row: Codes, placed: Placed, pull: Floats) -> Errors:
    """Variances of the level and the slope of the curve of each group.

    Args:
        curves: The curves.
        row: Curve of each group, shape ``[groups]``.
        placed: Where the rows of the groups are.
        pull: Change of each bin's expected events with its logit, weight times p (1 - p), shape ``[bins]``.
    """
    parts = [_errors(curves, row, placed, pull, first) for first in range(0, len(row), _CHUNK)]
    return Errors(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _errors(curves: Curves, row: Codes, placed: Placed, pull: Floats, first: int) -> Errors:
    last = min(first + _CHUNK, len(row))
    rows = row[first:last]
    force = placed.spread(pull, first, last, curves.grid.buckets)  # [groups, knots]
    values, variance = curves.values[rows], curves.variance[rows].astype(np.float64)
    prob = prob_of(values - _sampling(curves))
    information = curves.knot_weight[rows] * prob * (1 - prob)
    known = information.sum(1)
    freedom = (information * variance).sum(1)
    # How far the level follows its own rows rather than its parent: entirely for the global curve, without a parent.
    level = np.where(rows == 0, 1.0, np.minimum(freedom, 1.0))
    slope = np.minimum(1.0, np.maximum(freedom - level, freedom / 2))
    middle = ratio((information * values).sum(1), known)
    lean = values - middle[:, None]
    leverage = (information * lean**2).sum(1)
    level_variance, slope_variance = ratio(level, known), ratio(slope, leverage)
    sum_force, sum_lean = force.sum(1), (force * lean).sum(1)
    rest = force - information * (ratio(sum_force, known)[:, None] + lean * ratio(sum_lean, leverage)[:, None])
    found = sum_force**2 * level_variance + sum_lean**2 * slope_variance + _oscillation(rest, information, variance)
    unknown = np.abs(force) @ np.ones(force.shape[1]), (np.abs(force) * np.sqrt(variance)).sum(1)
    level_variance = np.where(known > 0, ratio(found, sum_force**2), ratio(unknown[1], unknown[0]) ** 2)
    return Errors(level_variance, slope_variance, known)


def _sampling(curves: Curves) -> float:
    """Logarithm of the share of negatives that was kept in the fit, if it was one number; sampling raised the rates."""
    rate = curves.source.get("negative_rate")
    return float(np.log(rate)) if isinstance(rate, float | int) else 0.0


def _oscillation(rest: Floats, information: Floats, variance: Floats) -> Floats:
    r"""Variance of :math:`\sum \text{rest}\,e` for errors e that are nearly independent one degree of freedom apart.

    Their correlation is :math:`e^{-2 d}` at a distance of d degrees of freedom. Two recursions over the knots give it.
    """
    scaled, step = rest * np.sqrt(variance), information * variance
    keep = np.exp(-(step[:, 1:] + step[:, :-1]))
    carried, squares = np.zeros(len(rest)), (scaled**2).sum(1)
    for knot in range(1, rest.shape[1]):
        carried = (carried + scaled[:, knot - 1]) * keep[:, knot - 1]
        squares = squares + 2 * carried * scaled[:, knot]
    return np.asarray(np.maximum(squares, 0.0))


class Shares(NamedTuple):
    """What the error of a context is made of, shape ``[contexts]`` each.

    Args:
        own: Variance of its level given its parent's error.
        parent: Share of its parent's error that it inherits, in [0, 1].
    """

    own: Floats
    parent: Floats


def shares_of(child: Errors, parent_level: Floats) -> Shares:
    r"""Split the variance T of a level into its own part and the part inherited from its parent, whose variance is U.

    A level with information I from its own rows, shrunk towards its parent with precision :math:`\lambda`, has the own
    variance :math:`1 / (I + \lambda)` and inherits the share :math:`x = \lambda / (I + \lambda)` of its parent's error.
    So :math:`T = (1 - x) / I + x^2 U`, which is solved for x.
    """
    a, b = child.information * parent_level, child.information * child.level
    root = np.sqrt(np.maximum(1 - 4 * a + 4 * a * b, 0.0))
    # The share s = 1 - x of own rows is the larger root of a s^2 + (1 - 2 a) s + (a - b) = 0, without cancellation.
    down = 1 - 2 * a
    steep = np.where(a > 0, (root - down) / np.where(a > 0, 2 * a, 1.0), 0.0)
    share = np.where(down > 0, 2 * (b - a) / np.maximum(down + root, 1e-12), steep)
    share = np.where(b >= 1, 1.0, np.clip(share, 0.0, 1.0))
    parent = 1 - share
    return Shares(np.maximum(child.level - parent**2 * parent_level, 0.0), parent)


class Level(NamedTuple):
    """The error of the expected events of the groups of a depth, as it is summed up towards the root.

    Args:
        force: Change of the expected events with the level, shape ``[groups]``.
        own: Variance of the expected events given the error of the groups' own curve.
        repeated: How much of that curve's error they inherit, times the force.
    """

    force: Floats
    own: Floats
    repeated: Floats

    def variance(self, level: Floats) -> Floats:
        """Variance of the expected events, where ``level`` is that of the curve of each group.

        A parent is fitted to the rows of its children, so their errors are correlated with its own. With this formula,
        children that have the proportions of the fit are together exactly as uncertain as their parent.
        """
        return np.asarray(self.own + self.force * self.repeated * level)


def summed(children: Level, shares: Shares, parent: Codes, groups: int) -> Level:
    """The same for the parents: sums of the children's own errors and of what they inherit from the parent's curve."""
    force = total(parent, children.force, groups)
    own = total(parent, children.own + children.force * children.repeated * shares.own, groups)
    repeated = np.sqrt(np.maximum(children.force * children.repeated, 0.0)) * shares.parent
    return Level(force, own, total(parent, repeated, groups))


def ratio(top: Floats, bottom: Floats) -> Floats:
    """Elementwise ratio; 0 where the denominator is 0.

    >>> ratio(np.array([1.0, 1.0]), np.array([2.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    return np.divide(top, bottom, out=np.zeros_like(bottom), where=bottom > 0)


def total(group: Codes, values: Floats, groups: int) -> Floats:
    """Sum of values over each group, shape ``[groups]``.

    >>> total(np.array([0, 1, 1]), np.array([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 5.0]
    """
    return np.bincount(group, values, groups).astype(np.float64, copy=False)
