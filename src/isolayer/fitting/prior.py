r"""The prior of a curve: how it is expected to deviate from the curve it is centred on. numpy only.

A deviation is a line plus a curve, each with its own strengths:

.. math:: d(z) = \alpha + \beta (z - \bar z) + c(z), \qquad
    \alpha \sim N(\mu_0, 1/\lambda_0),\quad \beta \sim N(\mu_1, 1/\lambda_1),\quad
    -2 \log p(c) = \lambda_2 \int (c^2 + c'^2 + \ell^2 c''^2) + \text{const}.

Far from the rows c returns to 0, so the curve continues along its line; a priori c has the same size everywhere.
Lengths are measured in z, the score after the line that calibrates all rows best: a unit of z is one logit, so no
strength depends on the unit of the score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands, Factor, factorise, gram, inverse_bands, solve

Floats = NDArray[np.float64]

LEAST, MOST = 1e-4, 1e6  # range of a strength: below, no penalty; above, a hard constraint
_SMOOTHEST = 1e4  # largest weight of second differences of the knots relative to first ones
_MOST_PER_KNOT = 1e7  # above this, precision is lost
LENGTH = 0.35  # distance over which the slope of a curve hardly changes, in units of calibrated logit


class Strength(NamedTuple):
    """Precisions of a deviation, per unit of calibrated logit.

    Args:
        level: Precision of the line's level at the anchor.
        slope: Precision of the line's slope.
        curve: Precision of the curve and of its slope, everywhere; for its second derivative ``LENGTH**2`` times this.
    """

    level: float
    slope: float
    curve: float


class Frame(NamedTuple):
    """The knots in units of calibrated logit.

    Args:
        z: Position of the knots relative to the anchor, shape ``[knots]``.
        anchor: The knot nearest to the anchor.
    """

    z: Floats
    anchor: int

    @classmethod
    def at(cls, z: Floats) -> Frame:
        """The frame of knots at these positions."""
        return cls(z, int(np.abs(z).argmin()))

    @property
    def step(self) -> float:
        """Distance of the knots."""
        return float(self.z[1] - self.z[0])

    @property
    def basis(self) -> Floats:
        """A level and a slope, shape ``[knots, 2]``."""
        return np.stack([np.ones_like(self.z), self.z], axis=1)


class Prior(NamedTuple):
    """The prior in the form that the solver uses.

    Args:
        basis: The line's level and slope at the knots, shape ``[knots, 2]``.
        line: Their precisions, shape ``[2]``.
        mean: Their means, shape ``[2]``.
        curve: Precision of the curve, a batch of one.
        strength: The curve's strength.
    """

    basis: Floats
    line: Floats
    mean: Floats
    curve: Bands
    strength: float

    @classmethod
    def of(cls, strength: Strength, frame: Frame, mean: Floats | None = None) -> Prior:
        """The prior of some strengths.

        >>> prior = Prior.of(Strength(1.0, 1.0, 1.0), Frame(np.array([-1.0, 0.0, 1.0]), 1))
        >>> prior.curve.diagonal[:, 0].round(3).tolist()
        [2.122, 3.49, 2.122]
        """
        line = np.clip(np.array(strength[:2]), LEAST, MOST)
        curve = float(np.clip(strength.curve, LEAST, min(MOST, _MOST_PER_KNOT * frame.step)))
        return cls(frame.basis, line, np.zeros(2) if mean is None else mean, curve_term(frame).times(curve), curve)

    def between(self, first: int, last: int, curve: Bands) -> Prior:
        """The same line on the knots ``first .. last - 1``, with the curve's precision given."""
        return self._replace(basis=self.basis[first:last], curve=curve)

    def pull(self, deviation: Deviation, slope: Floats) -> Deviation:
        """Gradient of loss plus penalty, given that of the loss at the knots, ``[knots, contexts]``."""
        line = self.basis.T @ slope + self.line[:, None] * (deviation.line - self.mean[:, None])
        return Deviation(line, slope + self.curve.apply(deviation.curve))

    def dense(self) -> Floats:
        """Precision of the deviation at the knots, shape ``[knots, knots]``."""
        line = (self.basis / self.line) @ self.basis.T
        return np.asarray(np.linalg.inv(line + np.linalg.inv(self.curve.dense())))

    def variance(self) -> Floats:
        """Variance of the deviation at each knot, shape ``[knots, 1]``."""
        line = (self.basis**2 / self.line).sum(1)
        return np.asarray(line[:, None] + inverse_bands(factorise(self.curve)).diagonal)


class Deviation(NamedTuple):
    """Deviations of many contexts: the line's level and slope ``[2, contexts]``, the curve ``[knots, contexts]``."""

    line: Floats
    curve: Floats

    @classmethod
    def none(cls, knots: int, contexts: int) -> Deviation:
        """No deviation."""
        return cls(np.zeros((2, contexts)), np.zeros((knots, contexts)))

    def at_knots(self, basis: Floats) -> Floats:
        """Line plus curve, shape ``[knots, contexts]``."""
        return np.asarray(basis @ self.line + self.curve)

    def moved(self, along: Deviation, length: Floats | float = 1.0) -> Deviation:
        """The deviation after a step of some length along a direction."""
        return Deviation(self.line + length * along.line, self.curve + length * along.curve)

    def only(self, kept: NDArray[np.bool_]) -> Deviation:
        """The deviations of some contexts."""
        return Deviation(self.line[:, kept], self.curve[:, kept])


class Posterior(NamedTuple):
    r"""The Hessian H of the loss plus the prior's precision, factorised: curve first, then the line.

    With P the curve's precision and U the basis, the curve responds to a line by :math:`-G`,
    :math:`G = (H + P)^{-1} H U`; the remainder of a line is :math:`R = U - G`, with precision
    :math:`S = \Lambda + U^\top H R`.

    Args:
        curve: Factors of H + P.
        answer: G, shape ``[knots, 2, contexts]``.
        line: The covariance of the line, the inverse of S, shape ``[2, 2, contexts]``.
        log_det: Half the log determinant of the whole, shape ``[contexts]``.
    """

    curve: Factor
    answer: Floats
    line: Floats
    log_det: Floats

    def left(self, basis: Floats) -> Floats:
        """R, shape ``[knots, 2, contexts]``."""
        return np.asarray(basis[:, :, None] - self.answer)

    def variance(self, basis: Floats) -> Floats:
        """Variance of the deviation at each knot, shape ``[knots, contexts]``."""
        left = self.left(basis)
        line = np.einsum("nic,ijc,njc->nc", left, self.line, left, optimize=True)
        return np.asarray(inverse_bands(self.curve).diagonal + line)

    def step(self, gradient: Deviation) -> Deviation:
        """The Newton step at a point with this gradient."""
        moved = solve(self.curve, gradient.curve)
        rest = gradient.line - np.einsum("nic,nc->ic", self.answer, gradient.curve)
        line = -np.einsum("ijc,jc->ic", self.line, rest)
        return Deviation(line, -moved - np.einsum("nic,ic->nc", self.answer, line))

    def solve(self, right: Floats, basis: Floats) -> Floats:
        """The covariance of the knot values times ``right [knots, k, contexts]``."""
        left = self.left(basis)
        line = np.einsum("ijc,jkc->ikc", self.line, np.einsum("njc,nkc->jkc", left, right))
        return np.asarray(solve(self.curve, right) + np.einsum("nic,ikc->nkc", left, line))


def newton(prior: Prior, hessian: Bands, gradient: Deviation) -> tuple[Deviation, Posterior]:
    """The step to the optimum of a quadratic, and its covariance.

    Args:
        prior: The prior.
        hessian: Second derivatives of the loss by the knot values.
        gradient: As :meth:`Prior.pull` gives it.
    """
    factor = factorise(hessian.plus(prior.curve))
    pressed = np.stack([hessian.apply(column[:, None]) for column in prior.basis.T], axis=1)  # H U
    right = np.concatenate([gradient.curve[:, None], pressed], axis=1)
    answers = solve(factor, right)
    moved, answer = answers[:, 0], answers[:, 1:]
    left = prior.basis[:, :, None] - answer
    a, b, c = (np.einsum("nc,nc->c", pressed[:, i], left[:, j]) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, c = a + prior.line[0], c + prior.line[1]
    determinant = np.maximum(a * c - b * b, 1e-12 * a * c)
    covariance = np.array([[c, -b], [-b, a]]) / determinant
    rest = gradient.line - np.einsum("nic,nc->ic", pressed, moved)
    line = -np.einsum("ijc,jc->ic", covariance, rest)
    log_det = np.log(factor.pivot).sum(0) + np.log(determinant)
    step = Deviation(line, -moved - np.einsum("nic,ic->nc", answer, line))
    return step, Posterior(factor, answer, covariance, log_det / 2)


def curve_term(frame: Frame) -> Bands:
    """Matrix of the integral of squares of a curve, of its slope, and of ``LENGTH`` times its second derivative."""
    knots, step = len(frame.z), frame.step
    bent = min(LENGTH**2 / step**3, _SMOOTHEST / step)
    out = gram(1, knots).times(1 / step).plus(gram(2, knots).times(bent))
    out.diagonal[:] += step
    return out
