"""The solver against independent ones: PAVA, scipy's optimisers, and the conditions of optimality."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize
from sklearn.isotonic import IsotonicRegression

from isolayer.fitting.banded import Bands
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.hierarchy import fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.interior import TOLERANCE
from isolayer.fitting.prior import Frame, Prior, Strength
from isolayer.fitting.solver import NotConverged, fit
from isolayer.grid import Grid

GRID = Grid(lower=-2, upper=2, step=0.5)
KNOTS = GRID.knots[1:]
FRAME = Frame.at(KNOTS)
NONE = Prior.of(Strength(0, 0, 0), FRAME)
FREE = -np.inf  # least rise of curves that need not be monotone


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def objective(values, cells, centre, prior):
    """Penalised log loss of one context, by the formula."""
    m = values[cells.left] * (1 - cells.fraction) + values[cells.left + 1] * cells.fraction + cells.offset
    deviation = values - centre
    loss = (cells.weight * np.logaddexp(0, m) - cells.positive * m).sum()
    return loss if prior is None else loss + deviation @ prior.dense() @ deviation / 2


def gradient(values, cells, centre, prior):
    slope, _ = cells.derivatives(values[:, None])
    return slope[:, 0] if prior is None else slope[:, 0] + prior.dense() @ (values - centre)


def on_knots(seed, n=400):
    """Rows whose scores lie on the knots: then the knot values are free, and PAVA is the answer."""
    rng = np.random.default_rng(seed)
    logit = rng.choice(KNOTS, n)
    return logit, (rng.random(n) < sigmoid(1.5 * np.sin(2 * logit) - 0.5)).astype(float), rng.uniform(0.5, 2, n)


@pytest.mark.parametrize("seed", range(5))
def test_without_smoothing_it_is_pava(seed):
    logit, label, weight = on_knots(seed)
    cells = BinnedRows.of(Histogram.from_arrays(logit, label, weight=weight, grid=GRID))
    ours = sigmoid(fit(cells, KNOTS[:, None], NONE, least=0.0).values[:, 0])
    pava = IsotonicRegression().fit(logit, label, sample_weight=weight).predict(KNOTS)
    np.testing.assert_allclose(ours, pava, atol=1e-4)


def test_pava_with_a_pure_class_at_either_end():
    logit, label = np.repeat(KNOTS, 20), np.repeat(np.linspace(-0.2, 1.2, len(KNOTS)).clip(0, 1), 20)
    cells = BinnedRows.of(Histogram.from_arrays(logit, label, grid=GRID))
    ours = sigmoid(fit(cells, KNOTS[:, None], NONE, least=0.0).values[:, 0])
    np.testing.assert_allclose(ours, label[::20], atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strength", [Strength(1, 1, 1), Strength(0.01, 0.1, 0), Strength(50, 0, 3)])
def test_the_free_optimum_is_that_of_lbfgs(seed, strength):
    rng = np.random.default_rng(seed)
    logit = rng.normal(size=300)
    cells = BinnedRows.of(Histogram.from_arrays(logit, rng.random(300) < sigmoid(2 * logit), grid=GRID))
    prior = Prior.of(strength, FRAME)
    ours = fit(cells, KNOTS[:, None], prior, least=FREE).values[:, 0]
    theirs = minimize(objective, KNOTS, (cells, KNOTS, prior), jac=gradient, method="L-BFGS-B", tol=1e-14)
    np.testing.assert_allclose(ours, theirs.x, rtol=1e-3, atol=2e-4)
    assert objective(ours, cells, KNOTS, prior) <= theirs.fun + 1e-7


@pytest.mark.parametrize("strength", [Strength(1, 1, 1), Strength(2, 0.01, 30), Strength(1e-3, 40, 0)])
@pytest.mark.parametrize("centre", [-3.0, 0.0, 9.0])
def test_knots_without_rows_are_where_the_prior_wants_them(strength, centre):
    """Knots that no row reads are left out of the solving; gradient and variance are still those of the whole."""
    rng, wide = np.random.default_rng(1), Grid(lower=-6, upper=6, step=0.5)
    knots = wide.knots[1:]
    logit, context = rng.normal(centre, 0.6, 400), rng.integers(0, 3, 400)
    cells = BinnedRows.of(Histogram.from_arrays(logit, rng.random(400) < 0.3, {"c": context}, grid=wide))
    prior = Prior.of(strength, Frame.at(knots + 4.5))
    result = fit(cells, knots[:, None], prior, least=FREE)
    slope, hessian = cells.derivatives(result.values)
    np.testing.assert_allclose(slope + prior.dense() @ (result.values - knots[:, None]), 0, atol=1e-3)
    for one in range(3):
        whole = Bands(hessian.diagonal[:, [one]], hessian.first[:, [one]], hessian.second).dense() + prior.dense()
        np.testing.assert_allclose(result.variance[:, one], np.diag(np.linalg.inv(whole)), rtol=1e-4)


def test_cells_of_one_spot_stand_in_one_column():
    rows = Histogram.from_arrays(
        [0.05, 0.2, 0.3, 0.45, 1.2, 0.1], [0, 1, 1, 0, 1, 1], {"c": [0, 0, 0, 0, 0, 1]}, grid=GRID
    )
    cells = BinnedRows.of(rows)
    assert cells.context.tolist() == [0, 0, 1]
    assert cells.weight.sum() == 6
    np.testing.assert_allclose(cells.total, [5, 1])
    np.testing.assert_allclose(cells.spread(cells.weight).sum(0), [5, 1])
    at = KNOTS[cells.left] + GRID.step * cells.fraction
    np.testing.assert_allclose(np.sort(at[cells.weight > 0]), [0.05, 0.1, 0.2, 0.3, 0.45, 1.2])
    alone = BinnedRows.sampled(rows, np.array([False, True]))
    np.testing.assert_allclose(alone.spread(alone.positive), cells.spread(cells.positive)[:, 1:])


@pytest.mark.parametrize("seed", range(3))
def test_the_constrained_optimum_is_that_of_trust_constr(seed):
    rng = np.random.default_rng(seed)
    logit = rng.normal(size=200)
    cells = BinnedRows.of(
        Histogram.from_arrays(logit, rng.random(200) < sigmoid(-logit), grid=GRID)
    )  # the wrong way round
    prior, least = Prior.of(Strength(0.5, 0.05, 0.01), FRAME), 0.1 * GRID.step
    ours = fit(cells, KNOTS[:, None], prior, least=least).values[:, 0]
    rises = LinearConstraint(np.diff(np.eye(len(KNOTS)), axis=0), lb=least)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = minimize(
            objective, KNOTS, (cells, KNOTS, prior), jac=gradient, method="trust-constr", constraints=rises, tol=1e-10
        )
    np.testing.assert_allclose(ours, theirs.x, atol=1e-3)
    gap = len(KNOTS) * TOLERANCE * cells.weight.sum()  # what the barrier leaves
    assert objective(ours, cells, KNOTS, prior) <= theirs.fun + gap
    assert np.diff(ours).min() == pytest.approx(least, abs=1e-5)


strengths = st.tuples(*[st.sampled_from([0.0, 1e-3, 0.1, 1.0, 30.0, 1e4])] * 3).map(lambda three: Strength(*three))


@settings(max_examples=60, deadline=None)
@given(strengths, st.integers(0, 10**6), st.integers(1, 300), st.sampled_from([0.0, 1e-3, 0.3]))
def test_every_fit_converges_and_increases(strength, seed, n, floor):
    rng = np.random.default_rng(seed)
    logit, label = rng.normal(size=n) * 4, rng.random(n) < rng.random()
    histogram = Histogram.from_arrays(logit, label, {"c": rng.integers(0, 5, n)}, rng.lognormal(0, 2, n), grid=GRID)
    prior = Prior.of(strength, FRAME)
    result = fit(
        BinnedRows.of(histogram), KNOTS[:, None], prior, least=floor * GRID.step
    )  # a warning would be an error
    assert result.residual.max() <= TOLERANCE < 1e-6
    assert (np.diff(result.values, axis=0) >= floor * GRID.step - 1e-12).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_contexts_together_are_contexts_alone(seed):
    rng = np.random.default_rng(seed)
    histogram = Histogram.from_arrays(
        rng.normal(size=200), rng.random(200) < 0.3, {"c": rng.integers(0, 4, 200)}, grid=GRID
    )
    prior = Prior.of(Strength(1, 0.1, 0.01), FRAME)
    together = fit(BinnedRows.of(histogram), KNOTS[:, None], prior, least=1e-3 * GRID.step).values
    for context in range(4):
        alone = fit(
            BinnedRows.of(histogram, context, context + 1), KNOTS[:, None], prior, least=1e-3 * GRID.step
        ).values
        np.testing.assert_allclose(together[:, context], alone[:, 0], atol=1e-5)


def test_soft_labels_are_shares_of_rows():
    soft = Histogram.from_arrays([0.1, 1.0], [0.25, 0.75], weight=[4, 4], grid=GRID)
    hard = Histogram.from_arrays([0.1] * 4 + [1.0] * 4, [0, 0, 0, 1, 1, 1, 1, 0], grid=GRID)
    prior = Prior.of(Strength(1, 1, 1), FRAME)
    one, two = (fit(BinnedRows.of(rows), KNOTS[:, None], prior, least=0.0).values for rows in (soft, hard))
    np.testing.assert_allclose(one, two, atol=1e-9)


def test_rows_outside_the_grid_read_the_curve_with_slope_one():
    cells = BinnedRows.of(Histogram.from_arrays([-5.0, 6.0], [0, 1], grid=GRID))
    values = np.linspace(0, 8, len(KNOTS))[:, None]
    np.testing.assert_allclose(cells.read(values), [[0 - 3, 8 + 4]])


def test_derivatives_are_those_of_the_loss():
    rng = np.random.default_rng(0)
    cells = BinnedRows.of(Histogram.from_arrays(rng.normal(size=50) * 2, rng.random(50) < 0.4, grid=GRID))
    flat = None
    slope, hessian = cells.derivatives(KNOTS[:, None])
    tiny = 1e-5 * np.eye(len(KNOTS))
    numeric = [
        (objective(KNOTS + e, cells, KNOTS, flat) - objective(KNOTS - e, cells, KNOTS, flat)) / 2e-5 for e in tiny
    ]
    np.testing.assert_allclose(slope[:, 0], numeric, atol=1e-5)
    second = [(gradient(KNOTS + e, cells, KNOTS, flat) - gradient(KNOTS - e, cells, KNOTS, flat)) / 2e-5 for e in tiny]
    np.testing.assert_allclose(hessian.diagonal[:, 0], np.diag(second), atol=1e-6)
    np.testing.assert_allclose(hessian.first[:, 0], np.diag(second, 1), atol=1e-6)


def test_what_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr("isolayer.fitting.solver._STEPS", 1)
    cells = BinnedRows.of(Histogram.from_arrays([0.0, 1.0], [1, 0], grid=GRID))
    with pytest.warns(NotConverged, match="1 of 1 contexts did not converge: the largest residual is"):
        fit(cells, KNOTS[:, None], NONE, least=0.0)


@pytest.mark.parametrize(("rows", "base"), [(100, -3), (10_000, -9), (1_000_000, -13)])
def test_however_rare_the_events_the_curve_is_at_its_optimum(rows, base, monkeypatch):
    rng = np.random.default_rng(0)
    score = rng.normal(base, 1, 10_000)
    positive = rng.binomial(rows, 1 / (1 + np.exp(-score - 0.3 * np.sin(3 * score))))
    weight = np.concatenate([positive, rows - positive]).astype(float)
    kept, label = weight > 0, np.repeat([1, 0], len(score))
    sums = Histogram.from_arrays(np.tile(score, 2)[kept], label[kept], weight=weight[kept])
    found = fit_levels(sums, shrinkage=(1.0, 1.0, 0.1)).table
    for module in ("interior", "solver"):
        monkeypatch.setattr(f"isolayer.fitting.{module}.TOLERANCE", 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)  # rounding keeps some above a tolerance like this
        exact = fit_levels(sums, shrinkage=(1.0, 1.0, 0.1)).table
    off = np.abs(found.values - exact.values) / np.sqrt(exact.variance)
    assert off.max() < 0.01, "in standard deviations"
