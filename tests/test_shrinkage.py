"""Strengths chosen by empirical Bayes: near those that made the data, and near the best on held-out rows."""

import numpy as np
import pytest

from isolayer.fitting.banded import factorise, gram, inverse_bands
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.hierarchy import fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.shrinkage import FIRST_GUESS, Strength, choose, penalty, terms
from isolayer.grid import Grid

GRID = Grid(lower=-6, upper=4, step=0.2)
KNOTS = GRID.knots[1:]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def draw(seed, *, contexts=60, rows=2000, level=4.0, slope=5.0):
    """Rows of contexts whose curves are the identity plus a draw from the prior, cut to be increasing."""
    rng = np.random.default_rng(seed)
    knots, anchor = GRID.buckets, GRID.buckets // 2
    walk = rng.normal(size=(contexts, knots - 1)) * np.sqrt(GRID.step / slope)
    curves = np.concatenate([np.zeros((contexts, 1)), np.cumsum(walk, axis=1)], axis=1)
    curves += rng.normal(size=(contexts, 1)) / np.sqrt(level) - curves[:, [anchor]]
    context = np.repeat(np.arange(contexts), rows)
    logit = rng.normal(-1, 1.5, len(context)).clip(GRID.lower, GRID.upper - 1e-9)
    truth = logit + np.array([np.interp(x, KNOTS, curves[c]) for x, c in zip(logit, context, strict=True)])
    return logit, (rng.random(len(logit)) < sigmoid(truth)).astype(float), context, truth


def choice(seed, *, share=False, **kinds):
    logit, label, context, _ = draw(seed, **kinds)
    cells = BinnedRows.of(Histogram.from_arrays(logit, label, {"c": context}, grid=GRID))
    parent = np.repeat(KNOTS[:, None], cells.contexts, axis=1)
    return choose(cells, parent, anchor=GRID.buckets // 2, step=GRID.step, share=share)


@pytest.mark.parametrize(("level", "slope"), [(4.0, 5.0), (1.0, 20.0), (40.0, 5.0)])
def test_the_strengths_that_made_the_data_are_found(level, slope):
    found = choice(0, level=level, slope=slope).strength
    assert 0.5 < found.level / level < 2
    assert 0.4 < found.slope / slope < 2.5


def test_no_deviation_is_no_freedom():
    found = choice(1, level=1e8, slope=1e8).strength
    assert found.level > 100
    assert found.slope > 100


def test_what_contexts_share_is_found():
    logit, _, context, truth = draw(2, level=20.0, slope=20.0)
    rng = np.random.default_rng(5)
    shared = 0.8 * np.tanh(logit + 1)
    label = (rng.random(len(logit)) < sigmoid(truth + shared)).astype(float)
    cells = BinnedRows.of(Histogram.from_arrays(logit, label, {"c": context}, grid=GRID))
    found = choose(cells, np.repeat(KNOTS[:, None], 60, 1), anchor=GRID.buckets // 2, step=GRID.step, share=True).shared
    inside = (KNOTS > -3.5) & (KNOTS < 1.5)
    assert np.abs(found - 0.8 * np.tanh(KNOTS + 1))[inside].max() < 0.25


def test_the_choice_is_near_the_best_on_held_out_rows():
    logit, label, context, truth = draw(3, contexts=100, rows=400)
    histogram = Histogram.from_arrays(logit, label, {"c": context}, grid=GRID)
    rng = np.random.default_rng(9)
    held = rng.integers(0, len(logit), 20_000)

    def loss(shrinkage):
        levels = fit_levels(histogram, shrinkage=shrinkage)
        curves = levels.values[1 + context[held]]
        at = (logit[held] - GRID.lower) / GRID.step
        left = np.minimum(at.astype(int), GRID.buckets - 2)
        rows = np.arange(len(held))
        value = curves[rows, left] + (at - left) * (curves[rows, left + 1] - curves[rows, left])
        prob = sigmoid(truth[held])
        return float(np.mean(np.logaddexp(0, value) - prob * value))

    chosen = np.array(fit_levels(histogram).strengths)
    ours = loss("auto")
    for factor in (0.1, 10):
        assert ours < loss(chosen * [[1, 1, 1], [factor] * 3])


def test_strengths_do_not_depend_on_the_step():
    fine = Strength(2.0, 3.0, 0.5)
    coarse = fine.per_knot(0.4) / fine.per_knot(0.2)
    np.testing.assert_allclose(coarse, [1, 1 / 2, 1 / 8])
    np.testing.assert_allclose(Strength.from_knots(fine.per_knot(0.2), 0.2), fine)


def test_the_penalty_is_the_sum_of_its_terms():
    x = np.random.default_rng(0).normal(size=(GRID.buckets, 1))
    energy = float((x * penalty(FIRST_GUESS, 7, GRID).apply(x)).sum())
    level, slope, bend = FIRST_GUESS.per_knot(GRID.step)
    squares = level * x[7] ** 2 + slope * (np.diff(x, axis=0) ** 2).sum() + bend * (np.diff(x, n=2, axis=0) ** 2).sum()
    assert energy == pytest.approx(float(squares[0]))
    assert len(terms(7, GRID.buckets)) == 3


def test_prior_variance_grows_away_from_the_anchor():
    variance = inverse_bands(factorise(penalty(Strength(4.0, 5.0, 0.0), 10, GRID))).diagonal[:, 0]
    assert variance.argmin() == 10
    np.testing.assert_allclose(variance[10:], 1 / 4 + np.arange(len(variance) - 10) * GRID.step / 5, rtol=2e-2)
    assert gram(1, 5).inner(gram(1, 5))[0] > 0
