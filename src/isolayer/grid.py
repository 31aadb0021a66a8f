"""The grid: the only place that knows where a curve's knots are and in which bucket a value falls.

A grid has no parameters and no learned state; it works on numpy arrays and torch tensors alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError

MOST_BUCKETS = 1 << 16  # a curve with more cannot be served: SQL, ONNX and a page of curves all carry every knot
_WHOLE = 1e-6  # how far (upper - lower) / step may be from a whole number, in steps


@dataclass(frozen=True)
class Grid:
    r"""Evenly spaced knots on ``[lower, upper]``, and one more a step below.

    There are :math:`N = (U - L)/\Delta + 1` buckets (eq. 2). Bucket 0 lies below ``lower``, where no clipped input
    falls: it is always full and acts as a second bias. So there are ``buckets + 1`` knots, from ``lower - step``.

    Args:
        lower: Smallest input told apart; smaller ones are clipped (or extended) by whoever uses the grid.
        upper: Largest input told apart.
        step: Width of a bucket; ``upper - lower`` must be a whole number of steps.

    >>> grid = Grid(lower=0, upper=2, step=1)
    >>> grid.buckets, grid.knots.tolist()
    (3, [-1.0, 0.0, 1.0, 2.0])
    >>> bucket, fraction = grid.locate(np.array([-9.0, 0.25, 2.0]))
    >>> bucket.tolist(), fraction.round(9).tolist()
    ([1, 1, 2], [0.0, 0.25, 1.0])
    """

    lower: float = -17.0
    upper: float = 8.0
    step: float = 0.2

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InputError(f"grid {name}: expected a finite number, got {value!r}; give a float")
            object.__setattr__(self, name, float(value))
        if self.lower >= self.upper:
            raise InputError(
                f"grid bounds: expected lower < upper, got lower={self.lower} and upper={self.upper}; swap them"
            )
        if self.step <= 0:
            raise InputError(f"grid step: expected a positive number, got {self.step}; try 0.2")
        steps = (self.upper - self.lower) / self.step
        if not steps < MOST_BUCKETS:
            raise InputError(
                f"grid: expected at most {MOST_BUCKETS:,} buckets, got {steps:,.0f} steps of {self.step}; use "
                f"step={(self.upper - self.lower) / 1000:.3g} or larger"
            )
        if abs(steps - round(steps)) > _WHOLE * max(1.0, steps) or round(steps) < 1:
            fewer, more = max(1, math.floor(steps)), math.ceil(steps)
            nearest = " or ".join(f"upper={self.lower + n * self.step:.6g}" for n in dict.fromkeys((fewer, more)))
            width = (self.upper - self.lower) / max(1, round(steps))
            raise InputError(
                f"grid: expected upper - lower to be a whole number of steps, got {steps:.6g} steps of {self.step}; "
                f"use {nearest}, or step={width:.6g}"
            )

    @property
    def buckets(self) -> int:
        """Number of bucket weights, ``(upper - lower) / step + 1``.

        >>> Grid().buckets
        126
        """
        return round((self.upper - self.lower) / self.step) + 1

    @property
    def knots(self) -> NDArray[np.float64]:
        """Where the knots are: ``lower - step, lower, ..., upper``, shape ``[buckets + 1]``.

        >>> Grid(lower=-1, upper=1, step=0.5).knots.tolist()
        [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0]
        """
        inside = np.linspace(self.lower, self.upper, self.buckets)
        return np.concatenate([[self.lower - self.step], inside])

    def place(self, x: Any) -> Any:
        """Distance of each value from the lowest knot in steps, clipped to ``[1, buckets)``; NaN stays NaN.

        >>> Grid(lower=0, upper=2, step=1).place(np.array([-5.0, 0.5])).tolist()
        [1.0, 1.5]
        """
        scale, shift, end = 1 / self.step, 1 - self.lower / self.step, float(self.buckets)
        if isinstance(x, np.ndarray):
            place = x * x.dtype.type(scale)
            place += x.dtype.type(shift)
            return np.clip(place, 1, np.nextafter(place.dtype.type(end), place.dtype.type(0)), out=place)
        place = x.new_full((), shift).add(x, alpha=scale)  # one pass where x * scale + shift takes two
        return place.clamp_(1.0, end * (1 - (2.0**-23 if x.dtype.itemsize == 4 else 2.0**-52)))

    def locate(self, x: Any) -> tuple[Any, Any]:
        """Bucket of each value (eq. 3) and how far into it the value is, in steps.

        Args:
            x: A numpy array or a torch tensor of floats, any shape, clipped to the grid. The upper bound falls at the
                very end of the last bucket. NaN falls in bucket 1 with fraction NaN.

        Returns:
            Buckets in ``1 .. buckets - 1`` (32-bit integers) and fractions in ``[0, 1)``, of the shape of ``x``.

        >>> import torch
        >>> Grid(lower=0, upper=2, step=1).locate(torch.tensor([1.5]))
        (tensor([2], dtype=torch.int32), tensor([0.5000]))
        """
        place = self.place(x)
        if isinstance(x, np.ndarray):
            fraction, bucket = np.modf(place)
            return np.nan_to_num(bucket, copy=False, nan=1.0).astype(np.int32), fraction
        return place.int().clamp_(1, self.buckets - 1), place.frac_()  # this clamp is for NaN, which has no integer
