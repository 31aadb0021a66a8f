r"""How strongly curves are drawn to their parent: chosen from the histogram by empirical Bayes.

Deviations of the contexts of a level are taken as draws from one prior (:mod:`isolayer.fitting.prior`). Its strengths
maximise the evidence (the probability of the data, by the Laplace approximation) times a hyperprior: the standard
deviation :math:`\lambda^{-1/2}` that a strength stands for is half-Cauchy, so a few contexts cannot push it to zero or
infinity. The evidence can have two modes, free deviations and stiff ones, so the search starts from both and keeps the
higher one. Where the data prefer no deviation at all by odds of twenty to one, there is none. The centre of the prior
is the parent's curve plus what all contexts of the level share, because a curve of pooled rows is flatter than the
curves of its parts. No second pass over the rows is needed, and no folds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands, factorise, inverse_bands
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.interior import Problem
from isolayer.fitting.prior import LEAST, MOST, Deviation, Frame, Posterior, Prior, Strength, curve_term, newton

Floats = NDArray[np.float64]

USUAL = Strength(level=12.0, slope=64.0, curve=64.0)  # medians of the hyperprior: of contexts ...
USUAL_CURVE = 60.0  # ... and of the curve of all rows
FLEXIBLE, STIFF = Strength(1.0, 4.0, 1.0), Strength(100.0, 400.0, 400.0)  # where searches start

_ROUNDS = 200  # Newton steps, each with a new choice of strengths; a few dozen are usual
_SETTLED = 0.01  # gain of the log evidence in a round below which it counts as settled
_STILL = 0.01  # move of the shared deviation below which it stays
_LONGER, _FARTHEST = 8.0, 2.5  # longest step, in steps of the fixed-point iteration and of a log strength
_STRIDE, _KNOTS = 2, 128  # strengths are chosen on every second knot, and on at most this many
_NODES = 4  # of those knots between two nodes of the shared deviation
_FEW = 96  # contexts from which the better of the two starts is chosen
_SURE = np.log(20.0)  # log odds from which there is no deviation
_WIDEST = 3.0  # largest factor by which uncertain strengths are lowered for the bands


class Choice(NamedTuple):
    """What is chosen for a level.

    Args:
        strength: The strengths of its prior.
        shared: The deviation that its contexts share, shape ``[knots]``.
        wide: Strengths for the bands: lower where the data say little about them.
        converged: Whether the search settled.
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
        """The same on fewer knots, as far as there are rows; and which knots these are (some beyond the grid)."""
        rows, frame = self.rows, self.frame
        stride = max(_STRIDE, -(-(int(rows.left.max()) - int(rows.left.min())) // _KNOTS))
        first, thin = rows.thinned(stride)
        at = np.arange(first, first + stride * thin.knots, stride)
        inside = np.minimum(at, rows.knots - 1)
        parent = self.parent[inside] + frame.step * (at - inside)[:, None]
        return self._replace(rows=thin, parent=parent, frame=Frame.at(frame.z[0] + frame.step * at)), at

    def some(self, most: int) -> Level:
        """At most so many of the contexts, evenly spaced."""
        kept = np.zeros(self.rows.contexts, bool)
        kept[np.linspace(0, self.rows.contexts - 1, most).astype(np.int64)] = True
        return self._replace(rows=self.rows.only(kept), parent=self.parent[:, kept])


def choose(level: Level, usual: Strength, *, share: bool) -> Choice:
    """Choose the strengths of a level, and what its contexts share.

    Args:
        level: The contexts.
        usual: The medians of the strengths' hyperprior.
        share: Whether to look for a deviation that all contexts share.
    """
    thin, at = level.thinned()
    starts = [FLEXIBLE, STIFF]
    if thin.rows.contexts > _FEW:
        first = max((_Search(thin.some(_FEW), usual).run(start, share=share) for start in starts), key=_evidence)
        starts = [Strength(*first.strength.tolist())]
    search = _Search(thin, usual)
    found = max((search.run(start, share=share) for start in starts), key=_evidence)
    if search.odds_of_none(found) > _SURE:
        none = Strength(*np.where(np.isnan(thin.known), MOST, thin.known).tolist())
        return Choice(none, np.zeros(level.rows.knots), none, found.converged)
    shared = np.interp(np.arange(level.rows.knots), at, found.shared)
    wide = found.strength / np.minimum(np.exp(0.5 / (found.information + 0.25)), _WIDEST)
    return Choice(Strength(*found.strength.tolist()), shared, Strength(*wide.tolist()), found.converged)


class _Found(NamedTuple):
    """The result of a search; ``information`` is what the data say about each log strength, shape ``[3]``."""

    strength: Floats
    shared: Floats
    evidence: float
    information: Floats
    converged: bool


def _evidence(found: _Found) -> float:
    return found.evidence


class _Search(NamedTuple):
    """A search for the strengths of the highest evidence, on few knots."""

    level: Level
    usual: Strength

    def run(self, start: Strength, *, share: bool) -> _Found:
        r"""Alternate Newton steps with updates of the strengths, from a start, until the evidence settles.

        The update is that of Wood and Fasiolo (2017) with the hyperprior: for a term :math:`\lambda S` of the precision
        P over contexts with posterior covariances V it balances
        :math:`\lambda [n\,\mathrm{tr}(P^{-1} S) - \sum \mathrm{tr}(V S)] + 1` and
        :math:`\lambda \sum d^\top S d + 2 r / (1 + r)` with :math:`r = \lambda / \lambda_0`.
        """
        level, known = self.level, self.level.known
        strength, shared = np.where(np.isnan(known), start, known), np.zeros((len(level.parent), 1))
        deviation, basis = Deviation.none(*level.parent.shape), _hats(len(level.parent))
        pace, quiet, shift = _Pace.start(strength), 0, np.ones(1)
        for turn in range(_ROUNDS):
            prior = Prior.of(Strength(*strength.tolist()), level.frame, level.mean)
            problem = Problem(level.rows, level.parent + shared, prior)
            slope, hessian = problem.derivatives(deviation)
            move, posterior = newton(prior, hessian, prior.pull(deviation, slope))
            moved = move.at_knots(prior.basis)
            deviation = deviation.moved(move, problem.shortening(moved))
            if np.abs(moved * level.rows.touched).max(initial=0) > 1.0:
                continue  # too far from the optimum for its evidence to mean anything
            if share and turn % 3 == 2 and np.abs(shift).max() > _STILL:
                shift, deviation = _share(problem, deviation, shared, basis)
                shared = shared + shift
            rising, falling = self._balance(strength, prior, deviation, posterior)
            step = np.where(np.isnan(known), np.log(rising / falling), 0.0)
            gain = np.abs((rising - falling) * step) / 2  # of the log evidence, were the step taken
            quiet = quiet + 1 if gain.max() < _SETTLED else 0
            if quiet >= 2:
                break
            strength, pace = pace.next(strength, step)
        evidence = self._evidence(prior, deviation, shared, posterior) + self._log_hyperprior(strength)
        information = np.where(np.isnan(known), self._information(strength, prior, posterior), np.inf)
        return _Found(strength, shared[:, 0], evidence, information, quiet >= 2)

    def odds_of_none(self, found: _Found) -> float:
        """Log odds that there is no deviation, against deviations of any strength.

        The evidence of the latter is integrated over the log strengths around the best ones.
        """
        stiff = np.where(np.isnan(self.level.known), MOST, self.level.known)
        none = _Search(self.level._replace(known=stiff), self.usual).run(STIFF, share=False).evidence
        chosen = np.isnan(self.level.known)
        ratio = (found.strength / np.array(self.usual))[chosen]
        density = np.log(ratio) / 2 - np.log1p(ratio) - np.log(np.pi)  # of the hyperprior, over log strengths
        around = np.log(2 * np.pi / (found.information[chosen] + 0.25)) / 2
        return none - (found.evidence - self._log_hyperprior(found.strength) + float((density + around).sum()))

    def _log_hyperprior(self, strength: Floats) -> float:
        """Log density of the log strengths, up to a constant."""
        own = np.log(strength) / 2 - np.log1p(strength / np.array(self.usual))
        return float(own[np.isnan(self.level.known)].sum())

    def _evidence(self, prior: Prior, deviation: Deviation, shared: Floats, posterior: Posterior) -> float:
        """Log probability of the data under the prior, by the Laplace approximation."""
        rows = self.level.rows
        logit = rows.read(self.level.parent + shared + deviation.at_knots(prior.basis))
        loss = rows.by_context(rows.weight * np.logaddexp(0, logit) - rows.positive * logit)
        line = (prior.line[:, None] * (deviation.line - prior.mean[:, None]) ** 2).sum(0)
        curve = (deviation.curve * prior.curve.apply(deviation.curve)).sum(0)
        own = float(np.log(prior.line).sum() + np.log(factorise(prior.curve).pivot).sum())
        return float((own / 2 - loss - (line + curve) / 2 - posterior.log_det).sum())

    def _balance(
        self, strength: Floats, prior: Prior, deviation: Deviation, posterior: Posterior
    ) -> tuple[Floats, Floats]:
        """What the log strengths gain by rising and by falling; equal at the optimum, shape ``[3]`` each."""
        term = curve_term(self.level.frame)
        learned = [float((1 / prior.line[k] - posterior.line[k, k]).sum()) for k in range(2)]
        learned.append(float(_curve_learned(term, prior, posterior).sum()))
        energy = ((deviation.line - prior.mean[:, None]) ** 2).sum(1).tolist()
        energy.append(float((deviation.curve * term.apply(deviation.curve)).sum()))
        ratio = strength / np.maximum(np.array(self.usual), LEAST)
        rising = strength * np.maximum(learned, 0.0) + 1.0
        falling = strength * np.array(energy) + 2 * ratio / (1 + ratio)
        return rising, np.maximum(falling, 1e-12)

    def _information(self, strength: Floats, prior: Prior, posterior: Posterior) -> Floats:
        """Fisher information of the data about each log strength, shape ``[3]``."""
        learned = [1 - prior.line[k] * posterior.line[k, k] for k in range(2)]
        curve = np.maximum(strength[2] * _curve_learned(curve_term(self.level.frame), prior, posterior), 0.0)
        learned.append(curve / np.sqrt(curve + 2))
        return np.array([float((one**2).sum()) / 2 for one in learned])


class _Pace(NamedTuple):
    """Steps of a fixed-point iteration, made longer where the last ones shrank slowly (Aitken's method)."""

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
    """How much of the curve's prior variance the data have removed, shape ``[contexts]``."""
    free = inverse_bands(factorise(prior.curve))
    pressed = np.einsum("nic,ijc->njc", posterior.answer, posterior.line)
    answer = posterior.answer
    parts = [np.einsum("nic,nic->nc", pressed[: len(answer) - k], answer[k:]) for k in range(3)]
    return np.asarray(term.inner(free)[0] - term.inner(inverse_bands(posterior.curve).plus(Bands(*parts))))


def _hats(knots: int) -> Floats:
    """Hat functions on every ``_NODES``-th knot, shape ``[knots, nodes]``: the shared deviation is a sum of these."""
    nodes = np.unique(np.arange(0, knots + _NODES - 1, _NODES).clip(max=knots - 1))
    return np.stack([np.interp(np.arange(knots), nodes, row) for row in np.eye(len(nodes))], axis=1)


def _share(problem: Problem, deviation: Deviation, shared: Floats, basis: Floats) -> tuple[Floats, Deviation]:
    """A Newton step of the shared deviation, every context's own following; itself a draw from the same prior.

    Returns:
        The step, shape ``[knots, 1]``, and the deviations after it.
    """
    prior, contexts = problem.prior, problem.rows.contexts
    slope, hessian = problem.derivatives(deviation)
    own, posterior = newton(prior, hessian, prior.pull(deviation, slope))
    wide = Bands(*(band[:, None] for band in hessian))
    pressed = wide.apply(np.broadcast_to(basis[:, :, None], (*basis.shape, contexts)))  # [knots, nodes, contexts]
    answer = posterior.solve(pressed, prior.basis)
    precision = prior.dense()
    matrix = basis.T @ (pressed.sum(2) + precision @ basis) - np.einsum("kic,kjc->ij", pressed, answer, optimize=True)
    right = basis.T @ (slope.sum(1) + precision @ shared[:, 0])
    right += np.einsum("kic,kc->i", pressed, own.at_knots(prior.basis), optimize=True)
    weights = -np.linalg.solve(matrix, right)
    weights *= min(1.0, 1.0 / max(float(np.abs(basis @ weights).max()), 1e-12))
    push = np.einsum("kic,i->kc", pressed, weights)
    follow = posterior.step(Deviation(prior.basis.T @ push, push))
    return (basis @ weights)[:, None], deviation.moved(own).moved(follow)
