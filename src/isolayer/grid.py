"""The grid: the only place that knows where a curve's knots are and in which bucket a value falls.

A grid has no parameters and no learned state; it works on numpy arrays and torch tensors alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.settings import instance, number, shown

MOST_BUCKETS = 1 << 16  # SQL, ONNX and the report contain every knot, so curves with more could not be served
PASSES = 4  # how often outliers are searched for
LARGEST = 1e150  # largest score whose square is finite; larger scores count as this one
OUTLIERS = 6.0  # scores more standard deviations from the mean are ignored when a grid is placed
_KNOTS_PER_DEVIATION = 8
_NARROWEST = 1e-9  # standard deviation, relative to the mean, below which scores count as equal
_WHOLE = 1e-6  # how far (upper - lower) / step may be from a whole number, in steps


class Spread(NamedTuple):
    """The distribution of scores without outliers, as far as it is needed to place a grid.

    Args:
        mean: Their mean.
        deviation: Their standard deviation.
        least: The smallest of them.
        most: The largest of them.
    """

    mean: float
    deviation: float
    least: float
    most: float

    @classmethod
    def of(cls, score: NDArray[np.float64], weight: NDArray[np.float64] | None = None) -> Spread:
        """The spread of weighted scores ``[n]``; scores more than ``OUTLIERS`` deviations from the mean are ignored.

        >>> Spread.of(np.array([1.0, 3.0] * 50 + [-999.0]))
        Spread(mean=2.0, deviation=1.0, least=1.0, most=3.0)
        """
        if weight is not None:
            score, weight = score[weight > 0], weight[weight > 0]
        score, found = np.clip(score, -LARGEST, LARGEST), cls.empty()
        for _ in range(PASSES):
            if len(score) == 0:
                break
            mean = float(np.average(score, weights=weight))
            deviation = float(np.sqrt(np.average((score - mean) ** 2, weights=weight)))
            found = cls(mean, deviation, float(score.min()), float(score.max()))
            if not found.has_outliers:
                break
            near = np.abs(score - mean) <= OUTLIERS * deviation
            score, weight = score[near], None if weight is None else weight[near]
        return found

    @classmethod
    def empty(cls) -> Spread:
        """The spread of no scores."""
        return cls(0.0, 0.0, 0.0, 0.0)

    @property
    def has_outliers(self) -> bool:
        """Whether some scores are more than ``OUTLIERS`` standard deviations from the mean."""
        return max(self.most - self.mean, self.mean - self.least) > OUTLIERS * self.deviation > 0


@dataclass(frozen=True)
class Grid:
    r"""Evenly spaced knots on ``[lower, upper]``, and one more knot a step below.

    There are :math:`N = (U - L)/\Delta + 1` buckets (eq. 2). Bucket 0 lies below ``lower``, where no clipped input
    falls: it is always full and acts as a second bias. So there are ``buckets + 1`` knots, from ``lower - step``.

    Args:
        lower: Smallest input on the grid; code that uses the grid clips smaller inputs or extends the curve to them.
        upper: Largest input on the grid.
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
            value = number(f"grid {name}", getattr(self, name), advice="give a float")
            object.__setattr__(self, name, value)
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

    @classmethod
    def covering(cls, spread: Spread) -> Grid:
        """A grid for scores with a given spread: round numbers, about eight knots to a standard deviation.

        It reaches two standard deviations beyond the scores, but no farther than ten from their mean.

        >>> Grid.covering(Spread(mean=-3.0, deviation=1.5, least=-9.0, most=2.0))
        Grid(lower=-12.0, upper=5.0, step=0.2)
        >>> Grid.covering(Spread(mean=20.0, deviation=0.1, least=19.8, most=20.3))
        Grid(lower=19.6, upper=20.5, step=0.01)
        """
        mean, deviation, least, most = instance("spread", spread, Spread, advice="use Spread.of")
        if not deviation > _NARROWEST * max(abs(mean), 1e-290):
            if -16 <= mean <= 7:
                return cls()
            deviation = max(1.6, 1e-3 * abs(mean))
        step = _round(deviation / _KNOTS_PER_DEVIATION)
        lower = math.floor((max(least, mean - 8 * deviation) - 2 * deviation) / step)
        upper = math.ceil((min(most, mean + 8 * deviation) + 2 * deviation) / step)
        digits = max(0, -math.floor(math.log10(step)))
        return cls(round(lower * step, digits), round(upper * step, digits), step)

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
        _check_floats(x)
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
        return place.int().clamp_(1, self.buckets - 1), place.frac_()  # the clamp is for NaN


def _round(value: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, by ratio.

    >>> [_round(value) for value in (0.19, 3.4, 0.0072)]
    [0.2, 5.0, 0.01]
    """
    power = 10.0 ** math.floor(math.log10(value))
    nearest = min((1.0, 2.0, 5.0, 10.0), key=lambda digit: abs(math.log(value / power / digit)))
    return float(f"{nearest * power:.0e}")


def grid_or(grid: Grid | None, default: Grid | None = None) -> Grid:
    """The grid that was given, or the default for None.

    >>> grid_or(None).buckets
    126
    >>> grid_or(0.2)
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: grid: expected a Grid, got 0.2; use Grid(lower=..., upper=..., step=...)
    """
    if grid is None:
        return Grid() if default is None else default
    return instance("grid", grid, Grid, advice="use Grid(lower=..., upper=..., step=...)")


def _check_floats(x: Any) -> None:
    """Raise unless this is an array or a tensor of floats: integers would be rounded to whole steps."""
    tensor = hasattr(x, "is_floating_point")
    floating = x.is_floating_point() if tensor else isinstance(x, np.ndarray) and x.dtype.kind == "f"
    if not floating:
        got = f"{x.dtype} values" if hasattr(x, "dtype") else shown(x)
        raise InputError(f"x: expected an array or a tensor of floats, got {got}; convert it to floats")
