"""What a curve is, everywhere: inputs and the values that every backend must give, worked out by hand.

The statement in words is in ``docs/how-it-works.md``. Each backend's tests run all of ``CASES``: numpy in
``test_curves.py``, torch, SQL and ONNX in theirs. Values agree to 1e-9 in double precision and 1e-5 in single.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.grid import Grid

GRID = Grid(lower=-2, upper=2, step=1)
Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Case:
    """One curve.

    Args:
        name: What is peculiar about it.
        values: Values at the knots from ``lower`` to ``upper``.
        extrapolation: What it does beyond the grid.
        forward: Raw logits, each with its calibrated logit.
        inverse: Calibrated logits, each with the smallest raw logit that reaches it.
        grid: Where the knots are.
    """

    name: str
    values: tuple[float, ...]
    extrapolation: Literal["extend", "clip"]
    forward: Pairs
    inverse: Pairs
    grid: Grid = GRID

    def curves(self) -> Curves:
        """The curve as a table of one row, which reads logits."""
        values = np.array([self.values], np.float64)
        nothing = np.zeros_like(values)
        return Curves(self.grid, (), ((),), values, nothing, nothing, np.zeros(1), extrapolation=self.extrapolation)


_EVERYWHERE = (-1e6, -5.0, -2.0, -1.0, -0.75, -0.0, 0.0, 0.25, 1.0, 2.0, 20.0, 1e6)
_STEEP = (-3.0, -1.0, 0.0, 4.0, 5.0)
_STEEP_INSIDE = (
    (-2.0, -3.0),
    (-1.5, -2.0),
    (-1.0, -1.0),
    (-0.5, -0.5),
    (0.0, 0.0),
    (0.25, 1.0),
    (0.75, 3.0),
    (2.0, 5.0),
)
_FLAT_MIDDLE = (0.0, 1.0, 1.0, 1.0, 3.0)
_FLAT_ENDS = (1.0, 1.0, 2.0, 3.0, 3.0)


def _swapped(pairs: Pairs) -> Pairs:
    return tuple((y, x) for x, y in pairs)


CASES = (
    Case(
        "identity, extended",
        (-2.0, -1.0, 0.0, 1.0, 2.0),
        "extend",
        tuple((x, x) for x in _EVERYWHERE),
        tuple((x, x) for x in _EVERYWHERE),
    ),
    Case(
        "identity, clipped",
        (-2.0, -1.0, 0.0, 1.0, 2.0),
        "clip",
        tuple((x, min(max(x, -2.0), 2.0)) for x in _EVERYWHERE),
        tuple((x, min(max(x, -2.0), 2.0)) for x in _EVERYWHERE),
    ),
    Case(
        "several slopes, extended",
        _STEEP,
        "extend",
        (*_STEEP_INSIDE, (-4.0, -5.0), (3.0, 6.0)),
        _swapped((*_STEEP_INSIDE, (-4.0, -5.0), (3.0, 6.0))),
    ),
    Case(
        "several slopes, clipped",
        _STEEP,
        "clip",
        (*_STEEP_INSIDE, (-4.0, -3.0), (3.0, 5.0)),
        (*_swapped(_STEEP_INSIDE), (-9.0, -2.0), (9.0, 2.0)),
    ),
    Case(
        "flat in the middle, extended",
        _FLAT_MIDDLE,
        "extend",
        (
            (-3.0, -1.0),
            (-2.0, 0.0),
            (-1.5, 0.5),
            (-1.0, 1.0),
            (0.3, 1.0),
            (1.0, 1.0),
            (1.5, 2.0),
            (2.0, 3.0),
            (4.0, 5.0),
        ),
        ((-1.0, -3.0), (0.0, -2.0), (0.5, -1.5), (1.0, -1.0), (2.0, 1.5), (3.0, 2.0), (5.0, 4.0)),
    ),
    Case(
        "flat in the middle, clipped",
        _FLAT_MIDDLE,
        "clip",
        ((-3.0, 0.0), (-1.0, 1.0), (0.3, 1.0), (1.0, 1.0), (1.5, 2.0), (4.0, 3.0)),
        ((-1.0, -2.0), (0.0, -2.0), (0.5, -1.5), (1.0, -1.0), (2.0, 1.5), (3.0, 2.0), (5.0, 2.0)),
    ),
    Case(
        "flat at both ends, extended",
        _FLAT_ENDS,
        "extend",
        (
            (-4.0, -1.0),
            (-2.0, 1.0),
            (-1.5, 1.0),
            (-1.0, 1.0),
            (-0.5, 1.5),
            (1.0, 3.0),
            (1.5, 3.0),
            (2.0, 3.0),
            (3.0, 4.0),
        ),
        ((0.0, -3.0), (1.0, -2.0), (1.5, -0.5), (2.0, 0.0), (3.0, 1.0), (4.0, 3.0)),
    ),
    Case(
        "flat at both ends, clipped",
        _FLAT_ENDS,
        "clip",
        ((-4.0, 1.0), (-2.0, 1.0), (-0.5, 1.5), (1.5, 3.0), (3.0, 3.0)),
        ((0.0, -2.0), (1.0, -2.0), (1.5, -0.5), (3.0, 1.0), (4.0, 2.0)),
    ),
    Case(
        "constant, extended",
        (0.5,) * 5,
        "extend",
        ((-3.0, -0.5), (-2.0, 0.5), (0.0, 0.5), (2.0, 0.5), (3.0, 1.5)),
        ((0.0, -2.5), (0.5, -2.0), (1.0, 2.5)),
    ),
    Case(
        "constant, clipped",
        (0.5,) * 5,
        "clip",
        ((-3.0, 0.5), (-2.0, 0.5), (0.0, 0.5), (3.0, 0.5)),
        ((0.0, -2.0), (0.5, -2.0), (1.0, 2.0)),
    ),
    Case(
        "nearly flat, extended",
        (0.0, 0.001, 0.002, 0.003, 0.004),
        "extend",
        ((-2.0, 0.0), (-0.5, 0.0015), (2.0, 0.004), (-3.0, -1.0), (3.0, 1.004)),
        ((0.0, -2.0), (0.0015, -0.5), (0.004, 2.0), (-1.0, -3.0), (1.004, 3.0)),
    ),
    Case(
        "two knots, extended",
        (-1.0, 1.0),
        "extend",
        ((-1.0, -2.0), (0.0, -1.0), (0.25, -0.5), (1.0, 1.0), (2.0, 2.0)),
        ((-2.0, -1.0), (-1.0, 0.0), (-0.5, 0.25), (1.0, 1.0), (2.0, 2.0)),
        Grid(lower=0, upper=1, step=1),
    ),
    Case(
        "the default grid, clipped",
        tuple(Grid().knots[1:]),
        "clip",
        ((-40.0, -17.0), (-17.0, -17.0), (0.1, 0.1), (7.95, 7.95), (8.0, 8.0), (20.0, 8.0)),
        ((-40.0, -17.0), (0.1, 0.1), (8.0, 8.0), (20.0, 8.0)),
        Grid(),
    ),
    Case(
        "the default grid, extended",
        tuple(Grid().knots[1:]),
        "extend",
        ((-40.0, -40.0), (-17.0, -17.0), (0.1, 0.1), (7.95, 7.95), (8.0, 8.0), (20.0, 20.0)),
        ((-40.0, -40.0), (0.1, 0.1), (8.0, 8.0), (20.0, 20.0)),
        Grid(),
    ),
)
