r"""How strongly curves are shrunk towards their parent: chosen from the histogram by empirical Bayes.

Deviations of the contexts of a level are treated as draws from one prior (:mod:`isolayer.fitting.prior`). Its strengths
maximise the evidence (the probability of the data, by the Laplace approximation) times a hyperprior: log strengths have
a logistic distribution around usual values, as was found over many real tasks, so a few contexts cannot push them to
zero or infinity. The evidence can have two modes, with weak and with strong shrinkage. So the search starts from weak
shrinkage, then again from strong shrinkage if the data say little about a strength, and keeps the higher evidence. If
the data prefer no deviation at all by odds of twenty to one, there is none. The centre of the prior is the parent's
curve plus the deviation that all contexts of the level share, because a curve of pooled rows is flatter than the curves
of its parts. No second pass over the rows is needed, and no folds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands, factorise, inverse_bands, solve
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.interior import Problem
from isolayer.fitting.prior import (
    LEAST,
    MOST,
    Deviation,
    Frame,
    Posterior,
    Prior,
    Strength,
    curve_term,
    newton,
)

Floats = NDArray[np.float64]

USUAL = Strength(level=6.0, slope=64.0, curve=25.0)  # medians of the hyperprior: for contexts of the first level ...
USUAL_BELOW = USUAL._replace(level=25.0)  # ... and for contexts within contexts, which differ less
FLEXIBLE, STIFF = Strength(1.0, 4.0, 1.0), Strength(100.0, 400.0, 400.0)  # where searches start

_SHAPE = 2.0  # of the hyperprior: 1 is a half-Cauchy deviation, 2 a logistic log strength with a deviation of 1.8
_ROUNDS = 200  # Newton steps, each with a new choice of strengths; a few dozen are usual
_SETTLED = 0.01  # the search has converged if the log evidence gains less in a round
_STILL = 0.01  # smaller steps of the shared deviation are not taken
_MUCH = 0.3  # change of a log strength after which second derivatives are computed again
_LONGER, _FARTHEST = 8.0, 2.5  # longest step, in steps of the fixed-point iteration and of a log strength
_STRIDE, _KNOTS = 2, 128  # strengths are chosen on every second knot, and on at most this many
_NODES = 4  # knots between two nodes of the shared deviation
_TOLD = 8.0  # with more information about each log strength one start is enough: a standard error of a third
_SURE = np.log(20.0)  # above these log odds there is no deviation


class Choice(NamedTuple):
    """The choice for a level.

    Args:
        strength: The strengths of its prior.
        shared: The deviation that its contexts share, shape ``[knots]``.
        wide: Strengths for the bands: lower if the data say little about them, higher if there is likely no deviation.
        converged: Whether the search converged.
    """

    strength: Strength
    shared: Floats
    wide: Strength
    converged: bool = True


class Level(NamedTuple):
    """The contexts of a level, or a sample of them, from which strengths are chosen.

    Args:
        rows: Their rows.
        parent: Their parents' curves, shape ``[knots, contexts]``.
        frame: The knots in units of calibrated logit.
        mean: Mean of the prior's line, shape ``[2]``.
        known: Strengths that are known, shape ``[3]``; NaN for those to be chosen.
    """

    rows: BinnedRows
    parent: Floats
    frame: Frame
    mean: Floats
    known: Floats

    def thinned(self) -> tuple[Level, NDArray[np.int64]]:
        """The same on fewer knots, only where there are rows, and the indices of these knots (some beyond the grid)."""
        rows, frame = self.rows, self.frame
        stride = max(_STRIDE, -(-(int(rows.left.max()) - int(rows.left.min())) // _KNOTS))
        first, thin = rows.thinned(stride)
        at = np.arange(first, first + stride * thin.knots, stride)
        inside = np.minimum(at, rows.knots - 1)
        parent = self.parent[inside] + frame.step * (at - inside)[:, None]
        return self._replace(rows=thin, parent=parent, frame=Frame.at(frame.z[0] + frame.step * at)), at

    def loss(self, values: Floats) -> Floats:
        """Log loss of knot values ``[knots, contexts]``, shape ``[contexts]``."""
        logit, rows = self.rows.read(values), self.rows
        return rows.by_context(rows.weight * np.logaddexp(0, logit) - rows.positive * logit)


def choose(level: Level, usual: Strength, *, share: bool) -> Choice:
    """Choose the strengths of a level, and the deviation that its contexts share.

    Args:
        level: The contexts.
        usual: The medians of the strengths' hyperprior.
        share: Whether to look for a deviation that all contexts share.
    """
    thin, at = level.thinned()
    search = _Search.of(thin, usual)
    found = search.run(FLEXIBLE, share=share)
    untold = found.information < _TOLD
    if untold.any():
        stiff = search.run(Strength(*np.where(untold, STIFF, found.strength).tolist()), share=share, after=found)
        found = max(found, stiff, key=lambda one: one.evidence)
    odds = search.odds_of_none(found)
    if odds > _SURE:
        none = Strength(*np.where(np.isnan(thin.known), MOST, thin.known).tolist())
        return Choice(none, np.zeros(level.rows.knots), none, found.converged)
    shared = np.interp(np.arange(level.rows.knots), at, found.shared)
    wide = found.strength / np.where(np.isnan(thin.known), _widening(found.information, odds), 1.0)
    return Choice(Strength(*found.strength.tolist()), shared, Strength(*wide.tolist()), found.converged)


def _widening(information: Floats, odds: float) -> Floats:
    """Factor of the variance of the bands relative to the best strengths, shape ``[3]``.

    Strengths about which the data say little may be lower, and with some probability there is no deviation at all.
    """
    return np.asarray(np.exp(0.5 / (information + 0.25)) / (1 + np.exp(odds)))


class _Found(NamedTuple):
    """The result of a search; ``information`` is that of the data about each log strength, shape ``[3]``."""

    strength: Floats
    shared: Floats
    deviation: Deviation
    evidence: float
    information: Floats
    converged: bool


class _Search(NamedTuple):
    """A search for the strengths with the highest evidence, on few knots.

    Args:
        level: The contexts.
        usual: The medians of the strengths' hyperprior.
        term: Matrix of the curve's energy.
        log_det: Log determinant of the curve's precision of strength 1.
    """

    level: Level
    usual: Strength
    term: Bands
    log_det: float

    @classmethod
    def of(cls, level: Level, usual: Strength) -> _Search:
        """A search among the contexts of a level."""
        term = curve_term(level.frame)
        log_det = float(np.log(factorise(term).pivot).sum())
        return cls(level, usual, term, log_det)

    def run(self, start: Strength, *, share: bool, after: _Found | None = None) -> _Found:
        r"""Alternate Newton steps with updates of the strengths, from a start, until the evidence converges.

        The update is that of Wood and Fasiolo (2017) with the hyperprior: for a term :math:`\lambda S` of the precision
        P over contexts with posterior covariances V it balances
        :math:`\lambda [n\,\mathrm{tr}(P^{-1} S) - \sum \mathrm{tr}(V S)] + 1` and
        :math:`\lambda \sum d^\top S d + 2 r / (1 + r)` with :math:`r = \lambda / \lambda_0`.

        Args:
            start: The strengths to start from.
            share: Whether to look for a deviation that all contexts share.
            after: An earlier result; the search starts from its deviations.
        """
        level, known = self.level, self.level.known
        strength, common = np.where(np.isnan(known), start, known), _Shared(_hats(len(level.parent)))
        shared = np.zeros((len(level.parent), 1)) if after is None else after.shared[:, None]
        deviation = Deviation.none(*level.parent.shape) if after is None else after.deviation
        pace, quiet, moving = _Pace.start(strength), 0, 1.0 if share else 0.0
        for turn in range(_ROUNDS):
            prior = Prior.of(Strength(*strength.tolist()), level.frame, level.mean)
            problem = Problem(level.rows, level.parent + shared, prior)
            slope, hessian = problem.derivatives(deviation)
            move, posterior = newton(prior, hessian, prior.pull(deviation, slope))
            moved = move.at_knots(prior.basis)
            deviation = deviation.moved(move, problem.shortening(moved))
            if np.abs(moved * level.rows.touched).max(initial=0) > 1.0:
                continue  # too far from the optimum for a meaningful evidence
            if moving > _STILL and (turn % 3 == 2 or quiet):
                pressed = slope + hessian.apply(moved)
                shift, follow = common.step(prior, pressed, hessian, posterior, shared)
                shared, deviation, moving = shared + shift, deviation.moved(follow), float(np.abs(shift).max())
            rising, falling = self._balance(strength, prior, deviation, posterior)
            step = np.where(np.isnan(known), np.log(rising / falling), 0.0)
            gain = np.abs((rising - falling) * step) / 2  # gain of the log evidence if the step is taken
            quiet = quiet + 1 if gain.max() < _SETTLED else 0
            if quiet >= 2 and moving <= _STILL:
                break
            strength, pace = pace.next(strength, step)
        evidence = self._evidence(prior, deviation, shared, posterior) + self._log_hyperprior(strength)
        information = np.where(np.isnan(known), self._information(strength, prior, posterior), np.inf)
        return _Found(strength, shared[:, 0], deviation, evidence, information, quiet >= 2 and moving <= _STILL)

    def odds_of_none(self, found: _Found) -> float:
        """Log odds that there is no deviation, against deviations of any strength; a bound if that is negative.

        The evidence for deviations is integrated over the log strengths around the best ones.
        """
        chosen = np.isnan(self.level.known)
        ratio = (found.strength / np.array(self.usual))[chosen]
        density = _SHAPE * (np.log(ratio) / 2 - np.log1p(ratio))  # of the hyperprior, over log strengths
        around = np.log(2 * np.pi / (found.information[chosen] + 0.25)) / 2
        some = found.evidence - self._log_hyperprior(found.strength) + float((density + around).sum())
        stiff = np.where(chosen, MOST, self.level.known)
        most = self._most_evidence(Strength(*stiff.tolist())) - some
        if most < -5:
            return most
        return self._replace(level=self.level._replace(known=stiff)).run(STIFF, share=False).evidence - some

    def _most_evidence(self, strength: Strength) -> float:
        """An upper bound of the evidence without a shared deviation: log loss lies above its tangent."""
        level, prior = self.level, Prior.of(strength, self.level.frame, self.level.mean)
        slope, _ = level.rows.derivatives(level.parent)
        line, curve = prior.pull(Deviation.none(*level.parent.shape), slope)
        gain = (line**2 / prior.line[:, None]).sum() + (curve * solve(factorise(prior.curve), curve)).sum()
        penalty = level.rows.contexts * float((prior.line * prior.mean**2).sum())
        return float(gain - penalty) / 2 - float(level.loss(level.parent).sum())

    def _log_hyperprior(self, strength: Floats) -> float:
        """Log density of the log strengths, up to a constant."""
        own = _SHAPE * (np.log(strength) / 2 - np.log1p(strength / np.array(self.usual)))
        return float(own[np.isnan(self.level.known)].sum())

    def _evidence(self, prior: Prior, deviation: Deviation, shared: Floats, posterior: Posterior) -> float:
        """Log probability of the data under the prior, by the Laplace approximation."""
        loss = self.level.loss(self.level.parent + shared + deviation.at_knots(prior.basis))
        line = (prior.line[:, None] * (deviation.line - prior.mean[:, None]) ** 2).sum(0)
        curve = (deviation.curve * prior.curve.apply(deviation.curve)).sum(0)
        bent = len(self.term.diagonal) * np.log(prior.strength)
        own = float(np.log(prior.line).sum() + bent) + self.log_det
        return float((own / 2 - loss - (line + curve) / 2 - posterior.log_det).sum())

    def _balance(
        self, strength: Floats, prior: Prior, deviation: Deviation, posterior: Posterior
    ) -> tuple[Floats, Floats]:
        """The two sides of the optimality condition of each log strength; equal at the optimum, shape ``[3]`` each."""
        learned = [float((1 / prior.line[k] - posterior.line[k, k]).sum()) for k in range(2)]
        learned.append(float(_curve_learned(self.term, prior, posterior).sum()))
        energy = ((deviation.line - prior.mean[:, None]) ** 2).sum(1).tolist()
        energy.append(float((deviation.curve * self.term.apply(deviation.curve)).sum()))
        ratio = strength / np.maximum(np.array(self.usual), LEAST)
        rising = strength * np.maximum(learned, 0.0) + _SHAPE
        falling = strength * np.array(energy) + 2 * _SHAPE * ratio / (1 + ratio)
        return rising, np.maximum(falling, 1e-12)

    def _information(self, strength: Floats, prior: Prior, posterior: Posterior) -> Floats:
        """Fisher information of the data about each log strength, shape ``[3]``."""
        learned = [1 - prior.line[k] * posterior.line[k, k] for k in range(2)]
        curve = np.maximum(strength[2] * _curve_learned(self.term, prior, posterior), 0.0)
        learned.append(curve / np.sqrt(curve + 2))
        return np.array([float((one**2).sum()) / 2 for one in learned])


class _Pace(NamedTuple):
    """Steps of a fixed-point iteration, extrapolated if the last steps shrank slowly (Aitken's method)."""

    at: Floats
    step: Floats

    @classmethod
    def start(cls, strength: Floats) -> _Pace:
        return cls(np.full_like(strength, np.nan), np.zeros_like(strength))

    def next(self, strength: Floats, step: Floats) -> tuple[Floats, _Pace]:
        at = np.log(strength)
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = (at - self.at) / (self.step - step)
        factor = np.where(np.isfinite(secant) & (secant > 0), np.clip(secant, 0.5, _LONGER), 1.0)
        new = at + np.clip(factor * step, -_FARTHEST, _FARTHEST)
        return np.exp(np.clip(new, np.log(LEAST), np.log(MOST))), _Pace(at, step)


def _curve_learned(term: Bands, prior: Prior, posterior: Posterior) -> Floats:
    """Share of the curve's prior variance that the data removed, shape ``[contexts]``."""
    free = len(term.diagonal) / prior.strength  # trace of term times prior covariance
    pressed = np.einsum("nic,ijc->njc", posterior.answer, posterior.line)
    answer = posterior.answer
    parts = [np.einsum("nic,nic->nc", pressed[: len(answer) - k], answer[k:]) for k in range(3)]
    return np.asarray(free - term.inner(inverse_bands(posterior.curve).plus(Bands(*parts))))


def _hats(knots: int) -> Floats:
    """Hat functions on every ``_NODES``-th knot, shape ``[knots, nodes]``: the shared deviation is a sum of these."""
    nodes = np.unique(np.arange(0, knots + _NODES - 1, _NODES).clip(max=knots - 1))
    return np.stack([np.interp(np.arange(knots), nodes, row) for row in np.eye(len(nodes))], axis=1)


@dataclass
class _Shared:
    """Newton steps of the deviation that contexts share; the deviation of every context responds to it.

    Args:
        basis: Functions that it is a sum of, shape ``[knots, nodes]``.
        matrix: Its second derivatives, ``[nodes, nodes]``: reused from step to step while strengths hardly change.
        strength: Log strengths at which they were computed, shape ``[3]``.
    """

    basis: Floats
    matrix: Floats | None = None
    strength: Floats | None = None

    def step(
        self, prior: Prior, slope: Floats, hessian: Bands, posterior: Posterior, shared: Floats
    ) -> tuple[Floats, Deviation]:
        """A step, shape ``[knots, 1]``, and the response of the deviations.

        Args:
            prior: The prior of the contexts.
            slope: Gradient of the log loss after the contexts' own step, ``[knots, contexts]``.
            hessian: Its second derivatives.
            posterior: The covariance of the contexts.
            shared: The current shared deviation, ``[knots, 1]``.
        """
        basis, precision = self.basis, prior.dense()
        strength = np.log([*prior.line, prior.strength])
        if self.matrix is None or np.abs(strength - self.strength).max() > _MUCH:
            self.matrix = basis.T @ precision @ basis + _pressure(hessian, posterior, basis, prior)
            self.strength = strength
        weights = -np.linalg.solve(self.matrix, basis.T @ (slope.sum(1) + precision @ shared[:, 0]))
        weights *= min(1.0, 1.0 / max(float(np.abs(basis @ weights).max()), 1e-12))
        push = hessian.apply((basis @ weights)[:, None])
        return (basis @ weights)[:, None], posterior.step(Deviation(prior.basis.T @ push, push))


def _pressure(hessian: Bands, posterior: Posterior, basis: Floats, prior: Prior) -> Floats:
    """Second derivatives of the loss along a basis, while the contexts' deviations respond: ``[nodes, nodes]``."""
    wide = Bands(*(band[:, None] for band in hessian))
    shape = (*basis.shape, posterior.line.shape[-1])
    pressed = wide.apply(np.broadcast_to(basis[:, :, None], shape))  # [knots, nodes, contexts]
    answer = posterior.solve(pressed, prior.basis)
    nodes = basis.shape[1]
    first, second = (np.moveaxis(part, 1, 0).reshape(nodes, -1) for part in (pressed, answer))
    return np.asarray(basis.T @ pressed.sum(2) - first @ second.T)
