r"""The values of known terms: one convex problem for all blocks together, solved from sums by level alone.

With the strengths of all blocks fixed, the penalised loss

.. math:: F(\theta) = \sum_{rows} w\,\ell(y, z(\theta)) + \tfrac12 \sum_k \theta_k' P_k \theta_k

has one minimum. It is found by L-BFGS, each block scaled by the inverse of its own Hessian and penalty. One *scan*
gives all that an iteration needs: for each block the sums of residuals and of Newton weights by level, and the loss.
The solver does not depend on whether rows in memory or a table in an engine are scanned, so both give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Block, Sums

Floats = NDArray[np.float64]

STILL = 2e-3  # tolerance in logits: the search ends when no block alone would move a value by more
MOST_SCANS = 60
_REMEMBERED = 30  # how many earlier steps the curvature is estimated from
_SUFFICIENT = 1e-4  # least share of the predicted decrease that a step must achieve
_SHORTEST = 1e-3  # shortest step, relative to the full one


class Scan(NamedTuple):
    """The result of one scan of all rows at some values: sums of each block, and the total loss."""

    sums: list[Sums]
    loss: float


class Solved(NamedTuple):
    """Values of each block, the last scan, the number of scans, and how far a block would still move."""

    values: list[Floats]
    last: Scan
    scans: int
    move: float


_ROUNDING = 1e-14  # relative difference of two objectives that is only rounding
Scanner = Callable[[list[Floats]], Scan]


def solve(blocks: Sequence[Block], scan: Scanner, *, most: int = MOST_SCANS, still: float = STILL) -> Solved:
    """Solve for the values of all blocks, from those that they have; the blocks take the values and covariances.

    Args:
        blocks: The blocks, with their strengths.
        scan: Sums of all blocks at some values.
        most: Largest number of scans.
        still: Tolerance: no block alone would still move a value by more than this.

    >>> block = Block.cells(np.empty(0, np.intp), 1)
    >>> def scan(values):  # one row in ten positive, of 1,000
    ...     prob = 1 / (1 + np.exp(-values[0][0, 0]))
    ...     sums = Sums(np.array([[100 - 1000 * prob]]), np.array([[[1000 * prob * (1 - prob)]]]))
    ...     return Scan([sums], -100 * np.log(prob) - 900 * np.log(1 - prob))
    >>> round(float(solve([block], scan).values[0][0, 0]), 2)
    -1.97
    """
    found = _Descent(blocks, scan)
    while found.scans < most and found.move > still and found.step(most):
        pass
    return Solved(found.values(found.point), found.at, found.scans, found.move)


class _Descent:
    """The state of a descent: its current point and its last steps."""

    def __init__(self, blocks: Sequence[Block], scan: Scanner) -> None:
        self.blocks, self._scan = blocks, scan
        self.cuts = np.cumsum([block.values.size for block in blocks])[:-1]
        self.scans = 0
        self.steps, self.turns = list[Floats](), list[Floats]()
        self.point = self._flat([block.values for block in blocks])
        self.at, self.height, self.slope = self._look(self.point)
        self._scale()

    def values(self, point: Floats) -> list[Floats]:
        """A point as values of each block."""
        parts = np.split(point, self.cuts)
        return [part.reshape(block.values.shape) for part, block in zip(parts, self.blocks, strict=True)]

    def step(self, most: int) -> bool:
        """One step, shortened until it lowers the objective. Returns whether there was such a step."""
        direction = self._direction()
        promised, share = float(direction @ self.slope), 1.0 if self.steps else 1 / len(self.blocks)
        while self.scans < most and share > _SHORTEST:
            point = self.point + share * direction
            at, height, slope = self._look(point)
            level = abs(height - self.height) <= _ROUNDING * abs(self.height)  # then only gradients are precise
            if height <= self.height + _SUFFICIENT * share * promised or (
                level and abs(float(direction @ slope)) < abs(promised)
            ):
                self._remember(point - self.point, slope - self.slope)
                self.point, self.at, self.height, self.slope = point, at, height, slope
                self._scale()
                return True
            share /= 4
        return False

    def _look(self, point: Floats) -> tuple[Scan, float, Floats]:
        """The scan at a point, the objective and its gradient."""
        values = self.values(point)
        at = self._scan(values)
        self.scans += 1
        pulls = [block.pull(value) for block, value in zip(self.blocks, values, strict=True)]
        penalty = sum(float(np.sum(pull * value)) for pull, value in zip(pulls, values, strict=True)) / 2
        slope = self._flat([pull - sums.gradient for pull, sums in zip(pulls, at.sums, strict=True)])
        return at, at.loss + penalty, slope

    def _scale(self) -> None:
        """The inverse of each block at the last scan, and how far blocks alone would move."""
        self.inverses = [block.inverted(sums.hessian) for block, sums in zip(self.blocks, self.at.sums, strict=True)]
        self.move = float(np.abs(self._scaled(self.slope)).max(initial=0))

    def _scaled(self, slope: Floats) -> Floats:
        parts = zip(self.blocks, self.inverses, self.values(slope), strict=True)
        return self._flat([block.times(inverse, part) for block, inverse, part in parts])

    def _direction(self) -> Floats:
        """Minus the gradient times the inverse Hessian that the last steps suggest (Nocedal 1980)."""
        out, weights = -self.slope, list[float]()
        pairs = list(zip(self.steps, self.turns, strict=True))
        for step, turn in reversed(pairs):
            weights.append(float(step @ out) / float(step @ turn))
            out = out - weights[-1] * turn
        out = self._scaled(out)
        if pairs:
            step, turn = pairs[-1]
            out *= float(step @ turn) / float(turn @ self._scaled(turn))
        for (step, turn), weight in zip(pairs, reversed(weights), strict=True):
            out = out + (weight - float(turn @ out) / float(step @ turn)) * step
        return out

    def _remember(self, step: Floats, turn: Floats) -> None:
        if float(step @ turn) > 0:
            self.steps, self.turns = [*self.steps, step][-_REMEMBERED:], [*self.turns, turn][-_REMEMBERED:]

    def _flat(self, parts: Sequence[Floats]) -> Floats:
        return np.concatenate([part.reshape(-1) for part in parts])
