"""Very many small contexts, fitted in a few directions: the same as the exact solver, whatever the rows."""

import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from isolayer.fitting import level
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.chunk import Above
from isolayer.fitting.hierarchy import FLOOR, fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.level import LevelFit
from isolayer.fitting.padded_rows import PaddedRows
from isolayer.fitting.prior import Frame, Strength
from isolayer.fitting.reduced import fit_reduced
from isolayer.fitting.shrinkage import Choice
from isolayer.fitting.small_contexts import SmallContexts
from isolayer.fitting.solver import NotConverged, fit
from isolayer.grid import Grid

GRID = Grid(lower=-6, upper=4, step=0.25)
STRONG, LOOSE = Strength(4.0, 200.0, 150.0), Strength(2.0, 30.0, 20.0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rows_of(seed, contexts=300, n=8000):
    """Contexts of very different sizes, some rows beyond the grid, some negatives sampled."""
    rng = np.random.default_rng(seed)
    shop = (contexts * rng.random(n) ** 3).astype(int)
    logit = rng.normal(-1, 2.2, n)
    label = rng.random(n) < sigmoid(0.8 * logit + np.sin(shop))
    return Histogram.from_arrays(logit, label, {"shop": shop}, negative_rate=np.where(shop % 3, 1.0, 0.5), grid=GRID)


def level_of(part, strength=STRONG, *, parents=1, least=FLOOR):
    knots = GRID.knots[1:]
    curves = 0.8 * knots[None] + 0.3 * np.arange(parents)[:, None]
    above = Above(curves, np.full(curves.shape, 0.01), np.arange(part.groups) % parents)
    shared, wide = 0.1 * np.sin(knots), Strength(*(0.7 * number for number in strength))
    choice = Choice(strength, shared, wide)
    return LevelFit(part, above, choice, Frame.at(0.8 * (knots + 1)), np.zeros(2), least)


def both(fitted):
    """Small contexts by both ways, and which of them hold."""
    starts = np.searchsorted(fitted.part.group, np.arange(fitted.part.groups + 1))
    small = SmallContexts.of(fitted.part, starts, fitted.above, fitted.choice.shared, fitted._priors, fitted.least)
    exact = fitted.prepared()
    by_modes = [*enumerate(small.by_modes(np.arange(fitted.part.groups)))]
    for modes, contexts in [(modes, contexts) for modes, contexts in by_modes if len(contexts)]:
        chunk, good = small.fitted(contexts, modes)
        rows = BinnedRows.picked(fitted.part, starts, contexts)
        yield chunk, exact(rows, fitted.above.parent[contexts]), good


@pytest.mark.parametrize("parents", [1, 3])
@pytest.mark.parametrize("strength", [STRONG, LOOSE])
def test_the_same_curves_variances_and_sums_as_the_exact_solver(strength, parents, monkeypatch):
    monkeypatch.setattr("isolayer.fitting.interior.TOLERANCE", 1e-11)  # the exact one stops at its tolerance
    monkeypatch.setattr("isolayer.fitting.solver.TOLERANCE", 1e-11)
    found = list(both(level_of(rows_of(0), strength, parents=parents)))
    assert sum(len(good) for _, _, good in found) > 100
    for small, exact, good in found:
        assert good.mean() > 0.95
        np.testing.assert_allclose(small.values[good], exact.values[good], atol=1e-5)
        np.testing.assert_allclose(small.variance[good], exact.variance[good], rtol=1e-4)
        np.testing.assert_allclose(small.remains[good], exact.remains[good], rtol=1e-4)
        np.testing.assert_allclose(small.weigh()[good], exact.weigh()[good], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(small.sums[:, good], exact.sums[:, good], rtol=1e-4)


@pytest.mark.parametrize("strength", [STRONG, LOOSE])
def test_the_optimum_is_that_of_the_exact_solver_to_1e_9(strength, monkeypatch):
    for module in ("interior", "solver", "reduced"):
        monkeypatch.setattr(f"isolayer.fitting.{module}.TOLERANCE", 1e-13)
    monkeypatch.setattr("isolayer.fitting.reduced._ROUNDS", 8)
    monkeypatch.setattr("isolayer.fitting.reduced._FEW", 0)
    fitted, some = level_of(rows_of(6), strength), np.arange(40, 300, 3)
    part, starts = fitted.part, np.searchsorted(fitted.part.group, np.arange(fitted.part.groups + 1))
    small = SmallContexts.of(part, starts, fitted.above, fitted.choice.shared, fitted._priors, fitted.least)
    centre = fitted.above.curves[0] + fitted.choice.shared
    rows, (prior, wide) = PaddedRows(part, starts, some), fitted._priors
    found = fit_reduced(rows, rows.between(centre) + rows.offset, *small.modes[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)  # rounding keeps it above a tolerance like this
        exact = fit(BinnedRows.picked(part, starts, some), centre[:, None], prior, least=-np.inf, wide=wide)
    np.testing.assert_allclose(found.deviation, exact.values.T - centre, atol=1e-9)
    np.testing.assert_allclose(found.variance, exact.variance.T, rtol=1e-4)


def test_curves_that_would_fall_and_fits_that_do_not_settle_are_handed_back():
    steep, handed_back = level_of(rows_of(1), LOOSE, least=0.95), 0
    for small, exact, good in both(steep):
        assert np.isfinite(small.values).all()
        np.testing.assert_allclose(small.values[good], exact.values[good], atol=1e-5)
        handed_back += np.count_nonzero(~good)
    assert handed_back > 50


def test_every_context_is_fitted_once_whichever_way(monkeypatch):
    monkeypatch.setattr(level, "MANY", 0)
    monkeypatch.setattr(level, "_CHUNK", 64)
    fitted = level_of(rows_of(2), LOOSE)
    seen = np.zeros(fitted.part.groups)
    values = np.empty((fitted.part.groups, GRID.buckets))

    def use(at, chunk):
        seen[at] += 1
        values[at] = chunk.values

    assert fitted.each_chunk(use) <= 1e-7
    assert (seen == 1).all()
    some, before = np.array([3, 5, 6, 200]), values.copy()
    fitted.each_chunk(use, some)
    assert np.flatnonzero(seen == 2).tolist() == some.tolist()
    np.testing.assert_allclose(values, before, atol=1e-5)


def test_threads_that_fit_start_no_threads_of_linear_algebra(monkeypatch):
    monkeypatch.setattr(level, "MANY", 0)
    seen = set()

    def use(at, chunk):
        seen.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")

    with threadpool_limits(2, user_api="blas"):
        level_of(rows_of(7)).each_chunk(use)
        after = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    assert seen == {1}
    assert after == {2}


def test_levels_of_many_contexts_are_as_before(monkeypatch):
    part = rows_of(3)
    before = fit_levels(part)
    monkeypatch.setattr(level, "MANY", 0)
    after = fit_levels(part)
    assert not np.array_equal(after.table.values, before.table.values), "fitted in another way"
    np.testing.assert_allclose(after.table.values, before.table.values, atol=1e-5)
    np.testing.assert_allclose(after.table.variance, before.table.variance, rtol=1e-3)
    assert np.diff(after.table.values, axis=1).min() > 0


def test_contexts_without_rows_are_left_to_the_exact_solver():
    part = rows_of(4)
    empty = part.only_cells(part.group != 7)
    starts = np.searchsorted(empty.group, np.arange(empty.groups + 1))
    fitted = level_of(empty)
    small = SmallContexts.of(empty, starts, fitted.above, fitted.choice.shared, fitted._priors, fitted.least)
    assert 7 not in np.concatenate(small.by_modes(np.arange(empty.groups)))


def test_padded_rows_add_up_and_read_as_binned_rows_do():
    part = rows_of(5)
    starts, some = np.searchsorted(part.group, np.arange(part.groups + 1)), np.array([0, 4, 5, 90])
    padded, binned = PaddedRows(part, starts, some), BinnedRows.picked(part, starts, some)
    curves = np.random.default_rng(0).normal(size=(4, GRID.buckets))
    logit = padded.read(curves) + padded.offset
    np.testing.assert_allclose(np.sort(logit[padded.weight > 0]), np.sort(binned.read(curves.T)[binned.weight > 0]))
    weight = np.zeros((4, GRID.buckets))
    weight[:, slice(*padded.span)] = padded.spread(
        padded.weight * (1 - padded.fraction), padded.weight * padded.fraction
    )
    np.testing.assert_allclose(weight, binned.spread(binned.weight).T)
    np.testing.assert_allclose(padded.weight.sum(0), binned.total)
    shared = curves[:1]
    np.testing.assert_allclose(padded.between(shared[0]), padded.read(np.repeat(shared, 4, axis=0)))


def test_contexts_with_a_far_higher_rate_than_the_others_keep_their_variances(monkeypatch):
    rng, contexts = np.random.default_rng(0), 3000
    group = np.repeat(np.arange(contexts), 20)
    score = rng.normal(-9, 1, len(group))
    rate = 1 / (1 + np.exp(-score - rng.normal(0, 2, contexts)[group]))
    positive = np.minimum(rng.poisson(1000 * rate), 1000)
    weight = np.concatenate([positive, 1000 - positive]).astype(float)
    kept = weight > 0
    label, columns = np.repeat([1, 0], len(group))[kept], {"segment": np.tile(group, 2)[kept]}
    grid = Grid(-16, 2, 0.2)
    sums = Histogram.from_arrays(np.tile(score, 2)[kept], label, columns, weight=weight[kept], grid=grid)
    quick = fit_levels(sums).table
    monkeypatch.setattr(level, "MANY", 1 << 60)
    exact = fit_levels(sums).table
    assert quick.variance.min() > 0
    np.testing.assert_allclose(np.sqrt(quick.variance), np.sqrt(exact.variance), rtol=0.01)
    seen = exact.knot_weight > 0  # elsewhere both continue what they have there, many knots away
    np.testing.assert_allclose(quick.values[seen], exact.values[seen], atol=1e-4)
