"""Negative rates: the share of the negatives that was kept when a log was sampled. numpy only.

Keeping a share r of the negatives multiplies the odds of the event by 1 / r, whatever the score. So the fit uses the
kept rows with an offset of -log(r), and curves of real traffic are those of the sample plus log(r). Weighting negatives
by 1 / r instead would count each of them as that many rows of evidence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import numbers, refuse
from isolayer.settings import number

Floats = NDArray[np.float64]

MOST_RATES = 100  # most distinct rates; rows of each are in separate cells


def checked_rates(rate: Any, rows: int) -> Floats | float:
    """One rate, or one per row, each in (0, 1].

    >>> checked_rates(0.1, 2), checked_rates([0.1, 1.0], 2).tolist()
    (0.1, [0.1, 1.0])
    """
    advice = "give the share of the negatives that was kept"
    if isinstance(rate, int | float | np.number):
        return number("negative_rate", rate, 0, 1, ends="(]", advice=advice)
    values = numbers("negative_rate", rate, rows)
    inside = (values > 0) & (values <= 1)
    if not inside.all():
        refuse("negative_rate", values, inside, "numbers in (0, 1]", advice)
    return values


def distinct_rates(rate: Floats | float) -> tuple[Floats, NDArray[np.int64] | int]:
    """Distinct rates, in order, and which of them each entry has; 0 if all are the same.

    >>> distinct_rates(np.array([1.0, 0.1, 1.0]))[0].tolist(), distinct_rates(0.5)[0].tolist()
    ([0.1, 1.0], [0.5])
    """
    if isinstance(rate, float):
        return np.array([rate]), 0
    if (rate == rate[:1]).all():  # nearly always
        return np.append(rate[:1], 1.0)[:1], 0
    rates, code = np.unique(rate, return_inverse=True)
    refuse_many(len(rates))
    return rates, code


def refuse_many(rates: int) -> None:
    """Raise if there are too many distinct rates.

    >>> refuse_many(2)
    """
    if rates > MOST_RATES:
        raise InputError(
            f"negative_rate: expected at most {MOST_RATES} distinct rates, got {rates}; round them, for example to two "
            "significant digits"
        )
