"""Peers: functions of the rows to fit and the test rows to test probabilities.

``raw`` is the score's own probability; *per segment* means the finest combination of the segment columns, where it has
200 rows or more of both classes, and the fit of all rows together elsewhere. :mod:`~benchmarks.real.lines` has Platt
scaling and its hierarchical form, :mod:`~benchmarks.real.trees` LightGBM and MCGrad.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from benchmarks.real.lines import hierarchical_platt, platt, prob_of
from benchmarks.real.tasks import Rows
from benchmarks.real.trees import lightgbm_free, lightgbm_monotone

Column = NDArray[np.float64]
Method = Callable[[Rows, Rows], Column]
LEAST_ROWS = 200


def raw(fit: Rows, test: Rows) -> Column:
    """The score, read as a logit."""
    return prob_of(test.score)


def temperature(fit: Rows, test: Rows) -> Column:
    """The score times one positive factor, by maximum likelihood."""
    model = LogisticRegression(C=np.inf, fit_intercept=False).fit(fit.score[:, None] / _unit(fit), fit.label)
    return prob_of(max(float(model.coef_[0, 0]), 0.0) * test.score / _unit(fit))


def beta(fit: Rows, test: Rows) -> Column:
    """Beta calibration (Kull et al. 2017): logit = c + a log p - b log(1 - p) with a, b >= 0.

    As its authors do, a negative coefficient is set to zero and the other fitted again.
    """
    kept = [0, 1]
    model = None
    while kept:
        model = LogisticRegression(C=np.inf, max_iter=500).fit(_beta_features(fit)[:, kept], fit.label)
        negative = [k for k, value in zip(kept, model.coef_[0], strict=True) if value < 0]
        if not negative:
            return np.asarray(model.predict_proba(_beta_features(test)[:, kept])[:, 1])
        kept.remove(min(negative, key=lambda k: model.coef_[0][kept.index(k)]))
    return np.full(len(test), fit.label.mean())


def isotonic(fit: Rows, test: Rows) -> Column:
    """Isotonic regression, kept away from 0 and 1 by half a row."""
    edge = 0.5 / len(fit)
    model = IsotonicRegression(out_of_bounds="clip").fit(fit.score, fit.label)
    return np.asarray(model.predict(test.score).clip(edge, 1 - edge))


def per_segment(method: Method) -> Method:
    """A method for each segment that has rows enough, and for all rows together elsewhere."""

    def by_segment(fit: Rows, test: Rows) -> Column:
        prob = method(fit, test)
        events, rows = (np.bincount(fit.segment, column) for column in (fit.label, np.ones(len(fit))))
        for segment in np.flatnonzero((rows >= LEAST_ROWS) & (events > 0) & (events < rows)):
            asked = test.segment == segment
            if asked.any():
                prob[asked] = method(fit[fit.segment == segment], test[asked])
        return prob

    return by_segment


PEERS: dict[str, Method] = {
    "raw": raw,
    "temperature": temperature,
    "Platt": platt,
    "beta": beta,
    "isotonic": isotonic,
    "Platt per segment": per_segment(platt),
    "isotonic per segment": per_segment(isotonic),
    "hierarchical Platt": hierarchical_platt,
    "LightGBM": lightgbm_free,
    "LightGBM, monotone": lightgbm_monotone,
}


def _unit(fit: Rows) -> float:
    # so that the optimiser meets numbers of ordinary size whatever the unit of the score
    return float(max(np.abs(fit.score).max(), 1e-12))


def _beta_features(rows: Rows) -> Column:
    return np.stack([-np.logaddexp(0, -rows.score), np.logaddexp(0, rows.score)], axis=1)
