r"""How strongly curves are drawn to their parent: chosen from the histogram by empirical Bayes.

Deviations d of the contexts of a level from their centre are taken as draws from one Gaussian with precision

.. math:: P = \lambda_0 e_a e_a^\top + \lambda_1 D_1^\top D_1 + \lambda_2 D_2^\top D_2

(the level at an anchor a, differences, second differences). The strengths are those under which the data are most
probable, by the Laplace approximation. Beyond its rows a curve so comes back to its parent's slope. The centre is the
parent's curve plus what all contexts of the level share: the curve of pooled rows is flatter than its parts. No second
pass over rows is needed, and no folds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.banded import Bands, Factor, factorise, gram, inverse_bands, solve
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.solver import newton
from isolayer.grid import Grid

Floats = NDArray[np.float64]

_ROUNDS = 30  # Newton steps, each with a new choice of strengths; about ten are usual
_SETTLED = 0.05  # change of a log strength below which it counts as settled
_LEAST, _MOST = 1e-5, 1e6  # of a strength per knot: so weak, so strong that it is as good as absent, as good as exact
_STRIDE, _KNOTS = 2, 128  # strengths are chosen on every second knot, and on at most so many: they hardly differ
_NODES = 4  # of those knots between two nodes of the shared deviation


class Strength(NamedTuple):
    """Precision of a deviation: of its level, of its slope and of its bend, per unit of logit.

    The penalty is half of ``level * d(anchor)**2 + slope * integral of d'**2 + bend * integral of d''**2``.
    """

    level: float
    slope: float
    bend: float

    def per_knot(self, step: float) -> Floats:
        """The same for values at knots: factors of the squared level, differences and second differences."""
        return np.asarray(np.clip(np.array(self) / [1.0, step, step**3], _LEAST, _MOST))

    @classmethod
    def from_knots(cls, factors: Floats, step: float) -> Strength:
        """The inverse of :meth:`per_knot`."""
        return cls(*(factors * [1.0, step, step**3]).tolist())


FIRST_GUESS = Strength(level=4.0, slope=1.0, bend=0.25)


class Choice(NamedTuple):
    """Strengths chosen for a level, and the deviation ``[knots]`` that its contexts share."""

    strength: Strength
    shared: Floats


def terms(anchor: int, knots: int) -> tuple[Bands, Bands, Bands]:
    """The three matrices whose weighted sum is the penalty."""
    level = Bands(np.zeros((knots, 1)), np.zeros((knots - 1, 1)), np.zeros((knots - 2, 1)))
    level.diagonal[anchor] = 1.0
    return level, gram(1, knots), gram(2, knots)


def penalty(strength: Strength, anchor: int, grid: Grid) -> Bands:
    """The penalty of a strength, as a batch of one.

    >>> penalty(Strength(1.0, 2.0, 0.0), 0, Grid(lower=0, upper=2, step=1)).diagonal[:, 0].round(3).tolist()
    [3.0, 4.0, 2.0]
    """
    return _weighted(terms(anchor, grid.buckets), strength.per_knot(grid.step))


def choose(cells: BinnedRows, parent: Floats, *, anchor: int, step: float, share: bool) -> Choice:
    r"""Choose the strengths of a level, and what its contexts share.

    Alternates Newton steps with the update of Wood and Fasiolo (2017), which raises the evidence. For the term
    :math:`\lambda_k S_k` of the penalty, over n contexts with posterior covariances V, it is
    :math:`\lambda_k \leftarrow \lambda_k
    [n\,\mathrm{tr}(P^{-1} S_k) - \sum_c \mathrm{tr}(V_c S_k)] / \sum_c d_c^\top S_k d_c`.

    Args:
        cells: The data of the level's contexts, or of a sample of them.
        parent: Their parents' curves, shape ``[knots, contexts]``.
        anchor: The knot at which the level of a deviation is penalised.
        step: Distance of the knots.
        share: Whether to look for a deviation that all contexts share.
    """
    stride = max(_STRIDE, -(-(int(cells.left.max()) - int(cells.left.min())) // _KNOTS))
    first, thin = cells.thinned(stride)
    at = np.arange(first, first + stride * thin.knots, stride)  # knots that are kept; some may be beyond the grid
    inside = np.minimum(at, cells.knots - 1)
    beyond = (at - inside)[:, None] * step
    nearest = int(np.abs(at - anchor).argmin())
    strength, deviation = _evidence(thin, parent[inside] + beyond, nearest, stride * step, share)
    shared = np.interp(np.arange(cells.knots), at, deviation)
    return Choice(strength, shared)


def _evidence(cells: BinnedRows, parent: Floats, anchor: int, step: float, share: bool) -> tuple[Strength, Floats]:
    """Strengths under which the cells are most probable, and the shared deviation ``[knots]``."""
    parts, factors = terms(anchor, cells.knots), FIRST_GUESS.per_knot(step)
    deviation, shared = np.zeros((cells.knots, cells.contexts)), np.zeros((cells.knots, 1))
    basis = _hats(cells.knots)
    for turn in range(_ROUNDS):
        prior = _weighted(parts, factors)
        before = deviation
        deviation, _, factor = newton(cells, parent + shared, deviation, prior)
        if np.abs(deviation - before).max(initial=0) > 1.0:
            continue  # too far from the optimum for its evidence to mean anything
        if share and turn % 3 == 2:
            shift, deviation = _share(cells, parent + shared, deviation, shared, prior, basis)
            shared = shared + shift
        update = _update(parts, factors, deviation, prior, factor)
        change, factors = np.abs(np.log(update / factors)), update
        if turn > 5 and (change < [_SETTLED, _SETTLED, 4 * _SETTLED]).all():  # the bend matters least
            break
    return Strength.from_knots(factors, step), shared[:, 0]


def _weighted(parts: tuple[Bands, Bands, Bands], factors: Floats) -> Bands:
    level, slope, bend = (part.times(factor) for part, factor in zip(parts, factors.tolist(), strict=True))
    return level.plus(slope).plus(bend)


def _update(parts: tuple[Bands, ...], factors: Floats, deviation: Floats, prior: Bands, factor: Factor) -> Floats:
    """Strengths under which the deviations at hand are more probable."""
    free, known = inverse_bands(factorise(prior)), inverse_bands(factor)  # by one algorithm: they may be nearly equal
    contexts, new = deviation.shape[1], np.empty(len(parts))
    for k, part in enumerate(parts):
        learned = max(float(contexts * part.inner(free)[0] - part.inner(known).sum()), 0.0)
        energy = float((deviation * part.apply(deviation)).sum())
        new[k] = factors[k] * np.clip(learned / max(energy, 1e-300), 0.2, 5.0)
    return np.clip(new, _LEAST, _MOST)


def _hats(knots: int) -> Floats:
    """Hat functions on every ``_NODES``-th knot, shape ``[knots, nodes]``: the shared deviation is a sum of these."""
    nodes = np.unique(np.arange(0, knots + _NODES - 1, _NODES).clip(max=knots - 1))
    return np.stack([np.interp(np.arange(knots), nodes, row) for row in np.eye(len(nodes))], axis=1)


def _share(
    cells: BinnedRows, centre: Floats, deviation: Floats, shared: Floats, prior: Bands, basis: Floats
) -> tuple[Floats, Floats]:
    """A Newton step of the shared deviation, every context's own following; itself a draw from the same prior.

    Returns:
        The step, shape ``[knots, 1]``, and the deviations after it.
    """
    slope, hessian = cells.derivatives(centre + deviation)
    factor = factorise(hessian.plus(prior))
    wide = Bands(*(band[:, None] for band in hessian))
    pressed = wide.apply(np.broadcast_to(basis[:, :, None], (*basis.shape, cells.contexts)))  # [knots, nodes, contexts]
    answer = solve(factor, pressed)
    own = slope + prior.apply(deviation)
    matrix = basis.T @ pressed.sum(2) - np.einsum("kic,kjc->ij", pressed, answer, optimize=True)
    matrix += basis.T @ prior.apply(basis)
    right = -(basis.T @ (slope.sum(1) + prior.apply(shared)[:, 0]) - np.einsum("kic,kc->i", answer, own, optimize=True))
    weights = np.linalg.solve(matrix, right)
    weights *= min(1.0, 1.0 / max(float(np.abs(basis @ weights).max()), 1e-12))
    follow = solve(factor, -own) - np.einsum("kic,i->kc", answer, weights, optimize=True)
    return (basis @ weights)[:, None], deviation + follow
