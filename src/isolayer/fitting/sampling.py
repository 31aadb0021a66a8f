"""Histograms with sampled negatives: how they are fitted, and their sums in terms of real traffic. numpy only."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram


def sampled_as_one(histogram: Histogram) -> tuple[Histogram, float]:
    """The histogram with its rates relative to one of them, and the shift from curves at that rate to real traffic.

    This rate is the weighted median of the rates. If all rows have the same rate, the returned histogram is that of
    rows that were not sampled, and the shift is the logarithm of the rate: the fit is exactly the plain fit, shifted.

    >>> plain, shift = sampled_as_one(Histogram.from_arrays([0.1, 0.2], [0, 1], negative_rate=0.5))
    >>> plain.negative_rate.tolist(), round(shift, 4)
    ([1.0, 1.0], -0.6931)
    """
    rates = histogram.negative_rate
    if (rates == 1).all():
        return histogram, 0.0
    _refuse_rates_by_label(histogram)
    order = np.argsort(rates, kind="stable")
    below = np.cumsum(histogram.weight[order])
    middle = float(rates[order[int(np.searchsorted(below, below[-1] / 2))]])
    return replace(histogram, negative_rate=rates / middle), math.log(middle)


def real_traffic(histogram: Histogram) -> Histogram:
    """The sums in terms of real traffic: every negative has weight 1 / rate. For ratios and losses, not for a fit.

    >>> real_traffic(Histogram.from_arrays([0.1, 0.1, 0.1], [0, 0, 1], negative_rate=0.5)).weight.tolist()
    [5.0]
    """
    if (histogram.negative_rate == 1).all():
        return histogram
    rate, share = histogram.negative_rate, histogram.positive / histogram.weight
    factor, square = share + (1 - share) / rate, share + (1 - share) / rate**2
    whole = replace(
        histogram,
        negative_rate=np.ones_like(rate),
        weight=histogram.weight * factor,
        weight_squared=histogram.weight_squared * square,
        logit=histogram.logit * factor,  # positives and negatives of a bin have nearly the same mean logit
    )
    return whole.merged_cells()


def _refuse_rates_by_label(histogram: Histogram) -> None:
    """Raise if positives and negatives have no rate in common: then the rates are not those of the negatives."""
    positive, negative = histogram.positive > 0, histogram.positive < histogram.weight
    ours, theirs = (np.unique(histogram.negative_rate[kept]) for kept in (positive, negative))
    if len(ours) and len(theirs) and not np.isin(ours, theirs).any():
        raise InputError(
            "negative_rate: expected the share of negatives that was kept, for positive rows too, got "
            f"{_listed(ours)} for positives only and {_listed(theirs)} for negatives only; give positives the rate "
            "at which a negative in their place would have been kept"
        )


def _listed(rates: NDArray[np.float64]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates[:3].tolist()) + (" ..." if len(rates) > 3 else "")
