r"""The line that calibrates all rows best: the centre of the global curve. numpy only.

The calibrated logit is :math:`a + e^s (x - \bar x)`. The prior of (a, s) is a mixture of two parts. Either the score is
already a logit, up to a small shift and stretch, or it is a number in any unit, whose calibrated logits have an
ordinary level and spread:

.. math:: p(a, s) \propto \pi N(a; \bar x, \sigma_a) N(s; 0, \sigma_s) + N(a; m, \tau_a) N(s; t, \tau_s).

So with few rows, scores that are nearly calibrated hardly change, and scores in another unit are not shrunk towards the
identity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.binned_rows import BinnedRows

Floats = NDArray[np.float64]

NEAR = np.array([0.5, 0.35])  # standard deviations of level and log slope around the identity, for scores in logits
ANY_LEVEL, ANY_SPREAD = (-2.0, 3.0), (-0.4, 0.7)  # mean and standard deviation of level and log spread, for any score
_UNUSUAL = 1.0  # standard deviation of the log spread of scores that are logits, around the mean of ANY_SPREAD
_LEAST = 1e-9  # precisions below this count as no prior
_STEPS = 100
_SETTLED = 1e-9  # tolerance of the gradient at the optimum, per unit of weight


class Line(NamedTuple):
    """A line through ``level`` at the score ``anchor``, and its prior there.

    Args:
        anchor: The mean score.
        spread: Standard deviation of the scores.
        level: The calibrated logit of the mean score.
        slope: Calibrated logits per unit of score.
        mean: Mean of the prior of the level and of the log slope, relative to the line, shape ``[2]``.
        precision: Their precision, shape ``[2]``.
    """

    anchor: float
    spread: float
    level: float
    slope: float
    mean: Floats
    precision: Floats

    def at(self, x: Floats) -> Floats:
        """The calibrated logit of scores."""
        return np.asarray(self.level + self.slope * (x - self.anchor))


class LinePrior(NamedTuple):
    """A mixture of Gaussians over (level, log slope).

    Args:
        mean: Mean of each part, shape ``[parts, 2]``.
        deviation: Standard deviations, shape ``[parts, 2]``.
        log_share: Log shares of the parts, up to a constant, shape ``[parts]``.
    """

    mean: Floats
    deviation: Floats
    log_share: Floats

    @classmethod
    def any_unit(cls, anchor: float, spread: float) -> LinePrior:
        """The prior of scores with this mean and standard deviation in an unknown unit."""
        ordinary = ANY_SPREAD[0] - np.log(spread)
        mean = np.array([[anchor, 0.0], [ANY_LEVEL[0], ordinary]])
        deviation = np.array([NEAR, [ANY_LEVEL[1], ANY_SPREAD[1]]])
        unusual = np.array([(anchor - ANY_LEVEL[0]) / ANY_LEVEL[1], ordinary / _UNUSUAL])  # if the scores are logits
        return cls(mean, deviation, np.array([-(unusual**2).sum() / 2, 0.0]))

    @classmethod
    def identity(cls, anchor: float, precision: Floats) -> LinePrior:
        """A prior around the identity with given precisions of the level and of the log slope, shape ``[2]``."""
        return cls(np.array([[anchor, 0.0]]), 1 / np.sqrt(np.maximum(precision, _LEAST))[None], np.zeros(1))

    def log_parts(self, at: Floats) -> Floats:
        """Log densities of the parts, shape ``[parts]``."""
        away = (at - self.mean) / self.deviation
        return np.asarray(self.log_share - (away**2).sum(1) / 2 - np.log(self.deviation).sum(1))

    def penalty(self, at: Floats) -> float:
        """Minus the log density."""
        return -float(np.logaddexp.reduce(self.log_parts(at)))

    def derivatives(self, at: Floats) -> tuple[Floats, Floats]:
        """Gradient of the penalty and a positive diagonal approximation of its Hessian, shape ``[2]`` each."""
        parts = self.log_parts(at)
        share = np.exp(parts - np.logaddexp.reduce(parts))
        return share @ ((at - self.mean) / self.deviation**2), share @ self.deviation**-2


class _Scores(NamedTuple):
    """Scores relative to the anchor, what to add to their logits, their weights, and the weights of the positives."""

    x: Floats
    offset: Floats
    weight: Floats
    positive: Floats

    def loss(self, at: Floats) -> float:
        """Log loss of a line."""
        logit = at[0] + np.exp(at[1]) * self.x + self.offset
        return float((self.weight * np.logaddexp(0, logit) - self.positive * logit).sum())

    def derivatives(self, at: Floats) -> tuple[Floats, Floats]:
        """Gradient ``[2]`` and Fisher information ``[2, 2]`` of a line."""
        rise = np.exp(at[1]) * self.x
        prob = 1 / (1 + np.exp(-np.clip(at[0] + rise + self.offset, -700, 700)))
        columns = np.stack([np.ones_like(self.x), rise])
        return columns @ (self.weight * prob - self.positive), (columns * self.weight * prob * (1 - prob)) @ columns.T


def shrunk_line(rows: BinnedRows, knots: Floats, precision: Floats | None = None) -> Line:
    """The line of all rows together, shrunk towards its prior.

    Args:
        rows: Binned rows of one context.
        knots: Positions of the knots, shape ``[knots]``.
        precision: Precisions of the level and of the log slope around the identity; by default the score may be in any
            unit.
    """
    real, step = rows.weight > 0, float(knots[1] - knots[0])
    x, weight = (knots[rows.left] + rows.fraction * step)[real], rows.weight[real]
    anchor = float(np.average(x, weights=weight))
    spread = max(float(np.sqrt(np.average((x - anchor) ** 2, weights=weight))), 0.01 * step)
    prior = LinePrior.any_unit(anchor, spread) if precision is None else LinePrior.identity(anchor, precision)
    scores = _Scores(x - anchor, rows.offset[real], weight, rows.positive[real])
    found = [_optimum(scores, prior, start) for start in prior.mean]
    at = min(found, key=lambda one: scores.loss(one) + prior.penalty(one))
    gradient, curvature = prior.derivatives(at)
    return Line(anchor, spread, float(at[0]), float(np.exp(at[1])), -gradient / curvature, curvature)


def _optimum(scores: _Scores, prior: LinePrior, start: Floats) -> Floats:
    """Level and log slope at the optimum near a start: Newton steps, halved while the loss rises."""
    at, total = np.array(start), max(float(scores.weight.sum()), 1.0)
    best = scores.loss(at) + prior.penalty(at)
    for _ in range(_STEPS):
        (gradient, information), (pull, curvature) = scores.derivatives(at), prior.derivatives(at)
        gradient = gradient + pull
        if np.abs(gradient).max() <= _SETTLED * total:
            break
        move = -np.linalg.solve(information + np.diag(curvature), gradient)
        move *= min(1.0, 1.5 / max(float(np.abs(move).max()), 1e-12))
        while (new := scores.loss(at + move) + prior.penalty(at + move)) > best and np.abs(move).max() > 1e-12:
            move /= 2
        at, best = at + move, new
    return at
