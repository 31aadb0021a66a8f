"""Corrections of fields applied to the calibrated logits of curves: the corrected logit, its band and its inverse.

The order is: base curve, terms, last curve. These are pure functions; which curve is the base of a row is handled by
:mod:`isolayer.curves.curves`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isolayer.curves.evaluation import Floats, evaluate, invert
from isolayer.fitting.columns import same_length
from isolayer.fitting.frames import columns
from isolayer.fitting.terms import LAST_GRID, Terms, Totals, Variance


def corrected(terms: Terms, base: Floats, context: Any) -> Floats:
    """Logits after the terms and the last curve.

    Args:
        terms: The terms.
        base: Calibrated logits of the base curve, shape ``[n]``.
        context: Columns by name, those of the fields among them.
    """
    return _last(terms, terms.correct(base, _totals(terms, context, len(base))))


def corrected_band(terms: Terms, base: Floats, deviation: Floats, context: Any, width: float) -> tuple[Floats, Floats]:
    """Logits a number of standard deviations below and above the corrected ones; ``deviation`` is that of the base."""
    totals = _totals(terms, context, len(base), variance="error")
    middle, spread = terms.correct(base, totals), terms.deviation(base, deviation, totals) * width
    return _last(terms, middle - spread), _last(terms, middle + spread)


def uncorrected(terms: Terms, logit: Floats, context: Any) -> Floats:
    """The smallest base logit whose correction reaches each logit: the inverse of :func:`corrected`."""
    if terms.last is not None:
        logit = invert(terms.last[None], np.zeros(len(logit), np.int64), logit, LAST_GRID)
    return terms.base_of(logit, _totals(terms, context, len(logit)))


def _totals(terms: Terms, context: Any, rows: int, *, variance: Variance | None = None) -> Totals:
    given = columns(context, terms.columns)
    for name, values in given.items():
        same_length(f"field {name}", len(values), rows)
    return terms.totals(given, rows, variance=variance)


def _last(terms: Terms, logit: Floats) -> Floats:
    if terms.last is None:
        return logit
    return evaluate(terms.last[None], np.zeros(len(logit), np.int64), logit, LAST_GRID)
