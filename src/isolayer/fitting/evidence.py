"""The effective number of rows of weighted rows, according to the meaning of the weights. numpy only.

*Frequency* weights are counts: a weight of 2 is the row twice, as in a log that was aggregated beforehand. *Importance*
weights say how much a row should represent, not how often it was seen; the rows of a context then count as
(sum w)^2 / sum w^2 rows, and multiplying all weights by a constant changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.histogram import Histogram
from isolayer.settings import choice

Floats = NDArray[np.float64]
WeightKind = Literal["frequency", "importance"]

_KINDS: dict[str, WeightKind] = {"frequency": "frequency", "importance": "importance"}
_LEAST_MEAN = 0.5  # weights with a lower mean cannot be counts, which are at least 1
_WHOLE = 1e-6  # a sum of weights this close to 1 is called normalised, a weight this close to a whole number a count
_FEW = 0.05  # a smaller share of fractions among weights may be a slip
_TOO_MANY = 2.0  # fractions must not count for more than this many times the effective number of their rows


class WeightsAreNotCounts(UserWarning):
    """Weights that count rows were expected, and these cannot be counts."""


def checked_kind(kind: str) -> WeightKind:
    """The kind, unless it is unknown.

    >>> checked_kind("importance")
    'importance'
    """
    return _KINDS[choice("weight_kind", kind, list(_KINDS))]


def evidence(histogram: Histogram) -> Histogram:
    """The sums with weights for a fit: the weight of a context is its effective number of rows.

    >>> day = Histogram.from_arrays([0.1, 0.1], [0, 1], weight=[1.0, 3.0])
    >>> evidence(day).weight.tolist()
    [4.0]
    >>> evidence(replace(day, source={"weight_kind": "importance"})).weight.tolist()  # (1 + 3)^2 / (1 + 9)
    [1.6]
    """
    if histogram.weight is histogram.weight_squared:  # nothing is weighted
        return histogram
    if histogram.source.get("weight_kind", "frequency") == "frequency":
        return replace(histogram, weight_squared=histogram.weight)
    weight, squares = (
        np.bincount(histogram.group, column, minlength=histogram.groups)
        for column in (histogram.weight, histogram.weight_squared)
    )
    factor = np.divide(weight, squares, out=np.zeros_like(weight), where=squares > 0)[histogram.group]
    sums = {name: getattr(histogram, name) * factor for name in ("weight", "positive", "logit")}
    return replace(histogram, **sums, weight_squared=sums["weight"])


def doubtful_counts(weight: Floats, squares: Floats, rows: float) -> str | None:
    """Why weights cannot be counts of rows; None if they can.

    Fractions are doubted only if they are so large or so unequal that the rows would count for far more than they do.

    Args:
        weight: Weights of rows, or sums of them, shape ``[n]``.
        squares: Squares of weights, or sums of squares.
        rows: Number of rows.

    >>> doubtful_counts(np.full(200, 0.005), np.full(200, 0.005**2), 200)
    'weights: expected counts of rows, got weights that sum to 1; use weight_kind="importance", under which their scale
    does not matter'
    >>> doubtful_counts(np.array([0.3, 60.0]), np.array([0.09, 3600.0]), 2)
    'weights: expected counts of rows, got fractions such as 0.3, by which 2 rows count as 60, and their effective
    number is 1; use weight_kind="importance", unless each row does stand for that many'
    >>> doubtful_counts(np.array([1.0, 60.0]), np.array([1.0, 3600.0]), 2) is None
    True
    """
    total = float(weight.sum())
    if rows < 2:
        return None
    if total < _LEAST_MEAN * rows or abs(total - 1) <= _WHOLE:
        got = "that sum to 1" if abs(total - 1) <= _WHOLE else f"with a mean of {total / rows:.3g}"
        return (
            f'weights: expected counts of rows, got weights {got}; use weight_kind="importance", under which their '
            "scale does not matter"
        )
    fractions = weight[np.abs(weight - np.rint(weight)) > _WHOLE * np.maximum(weight, 1)]
    effective = total**2 / float(squares.sum())
    if len(fractions) < _FEW * len(weight) or not len(fractions) or total <= _TOO_MANY * effective:
        return None
    return (
        f"weights: expected counts of rows, got fractions such as {fractions[0]:.3g}, by which {rows:,.0f} rows count "
        f'as {total:,.0f}, and their effective number is {effective:,.0f}; use weight_kind="importance", unless each '
        "row does stand for that many"
    )
