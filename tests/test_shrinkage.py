"""Strengths chosen by empirical Bayes: near those that made the data, near the best on held-out rows."""

import numpy as np
import pytest

from benchmarks.coverage import coverage
from isolayer.fitting import shrinkage
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.hierarchy import fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.prior import Frame, Prior, Strength
from isolayer.fitting.shrinkage import USUAL, Level, choose
from isolayer.grid import Grid

GRID = Grid(lower=-6, upper=4, step=0.2)
KNOTS = GRID.knots[1:]
FRAME = Frame.at(KNOTS + 1.0)
TRUE = Strength(4.0, 30.0, 5.0)
STIFFEST = Strength(1e6, 1e6, 1e6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def draw(seed, *, contexts=60, rows=2000, strength=TRUE):
    """Rows of contexts whose curves are the identity plus a draw from the prior, cut to be increasing."""
    rng = np.random.default_rng(seed)
    covariance = np.linalg.inv(Prior.of(strength, FRAME).dense())
    curves = rng.multivariate_normal(np.zeros(len(KNOTS)), (covariance + covariance.T) / 2, contexts)
    context = np.repeat(np.arange(contexts), rows)
    logit = rng.normal(-1, 1.5, len(context)).clip(GRID.lower, GRID.upper - 1e-9)
    truth = logit + np.array([np.interp(x, KNOTS, curves[c]) for x, c in zip(logit, context, strict=True)])
    return logit, (rng.random(len(logit)) < sigmoid(truth)).astype(float), context, truth


def level_of(logit, label, context):
    rows = BinnedRows.of(Histogram.from_arrays(logit, label, {"c": context}, grid=GRID))
    return Level(rows, np.repeat(KNOTS[:, None], rows.contexts, axis=1), FRAME, np.zeros(2), np.full(3, np.nan))


def choice(seed, *, share=False, **kinds):
    return choose(level_of(*draw(seed, **kinds)[:3]), USUAL, share=share)


@pytest.mark.parametrize("strength", [TRUE, Strength(1.0, 100.0, 20.0), Strength(40.0, 20.0, 5.0)])
def test_the_strengths_that_made_the_data_are_found(strength):
    found = choice(0, strength=strength)
    assert found.converged
    assert 0.5 < found.strength.level / strength.level < 2
    assert 0.4 < found.strength.curve / strength.curve < 2.5


def test_no_deviation_is_little_freedom():
    found = choice(1, strength=Strength(1e6, 1e6, 1e6)).strength
    assert found.level > 60
    assert found.curve > 60


@pytest.mark.parametrize("contexts", [1, 3, 8])
@pytest.mark.parametrize("rate", [0.2, 1e-3])
def test_few_contexts_or_events_never_collapse_the_strengths(contexts, rate):
    """Without a hyperprior, 58 positives pinned a level at strength 1e6 and left its curve nearly free."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        context = rng.integers(0, contexts, 30_000)
        context[:contexts] = np.arange(contexts)
        logit = rng.normal(np.log(rate) - 0.5, 1.0, 30_000).clip(-12)
        own = rng.choice([-0.7, 0.7], contexts)[context]
        label = (rng.random(30_000) < sigmoid(logit + own)).astype(float)
        found = choose(level_of(logit, label, context), USUAL, share=False)
        assert found.converged
        assert 0.5 < found.strength.level < 2e3
        assert 0.5 < found.strength.curve < 2e4


def test_strengths_that_the_data_say_little_about_widen_the_bands():
    known, unknown = choice(3), choice(3, contexts=3, rows=200)
    assert known.wide.level > 0.9 * known.strength.level
    assert unknown.wide.level < 0.75 * unknown.strength.level


def test_a_search_that_is_cut_short_says_so(monkeypatch):
    monkeypatch.setattr(shrinkage, "_ROUNDS", 3)
    assert not choice(0).converged


def test_the_higher_of_the_two_modes_is_kept(monkeypatch):
    """Whatever the order of the starts, the choice is the same, and it is that of one of them."""
    both = choice(5, contexts=6, rows=300).strength
    monkeypatch.setattr(shrinkage, "FLEXIBLE", shrinkage.STIFF)
    stiff = choice(5, contexts=6, rows=300).strength
    monkeypatch.undo()
    monkeypatch.setattr(shrinkage, "STIFF", shrinkage.FLEXIBLE)
    flexible = choice(5, contexts=6, rows=300).strength
    apart = [np.abs(np.log(both) - np.log(one)).max() for one in (stiff, flexible)]
    assert min(apart) < 0.1


def test_what_contexts_share_is_found():
    logit, _, context, truth = draw(2, strength=Strength(20.0, 60.0, 20.0))
    rng = np.random.default_rng(5)
    shared = 0.8 * np.tanh(logit + 1)
    label = (rng.random(len(logit)) < sigmoid(truth + shared)).astype(float)
    found = choose(level_of(logit, label, context), USUAL, share=True).shared
    inside = (KNOTS > -3.5) & (KNOTS < 1.5)
    assert np.abs(found - 0.8 * np.tanh(KNOTS + 1))[inside].max() < 0.25


def test_the_choice_is_near_the_best_on_held_out_rows():
    logit, label, context, truth = draw(3, contexts=100, rows=400)
    histogram = Histogram.from_arrays(logit, label, {"c": context}, grid=GRID)
    rng = np.random.default_rng(9)
    held = rng.integers(0, len(logit), 20_000)

    def loss(strengths):
        curves = fit_levels(histogram, shrinkage=strengths).table.values[1 + context[held]]
        at = (logit[held] - GRID.lower) / GRID.step
        left = np.minimum(at.astype(int), GRID.buckets - 2)
        rows = np.arange(len(held))
        value = curves[rows, left] + (at - left) * (curves[rows, left + 1] - curves[rows, left])
        prob = sigmoid(truth[held])
        return float(np.mean(np.logaddexp(0, value) - prob * value))

    chosen = np.array(fit_levels(histogram).strengths)
    ours = loss(chosen)
    for factor in (0.1, 10):
        assert ours < loss(chosen * [[1, 1, 1], [factor] * 3])


def test_where_no_context_deviates_none_does():
    """Most of the time: the odds that are asked for are twenty to one."""
    none = [choice(seed, strength=Strength(1e6, 1e6, 1e6)).strength.level == 1e6 for seed in range(6)]
    assert np.mean(none) > 0.4
    assert all(choice(seed).strength.level < 1e3 for seed in range(3))


def test_the_bound_of_the_evidence_of_no_deviation_holds():
    """It stands in for the evidence where deviations are beyond doubt, so it may never be lower."""
    for seed, kinds in ((1, {"contexts": 5, "rows": 200}), (2, {"strength": Strength(1e6, 1e6, 1e6)}), (3, {})):
        level = level_of(*draw(seed, **kinds)[:3])._replace(mean=np.array([0.1, -0.05]))
        search = shrinkage._Search.of(level, USUAL)
        for strength in (STIFFEST, Strength(30.0, 1e6, 1e6)):
            known = search._replace(level=level._replace(known=np.array(strength)))
            evidence = known.run(strength, share=False).evidence
            assert evidence <= search._most_evidence(strength) + 1e-6


@pytest.mark.parametrize("strength", [0.3, 5.0, 200.0])
def test_the_curves_prior_in_closed_form(strength):
    search = shrinkage._Search.of(level_of(*draw(0, contexts=2, rows=50)[:3]), USUAL)
    precision = Prior.of(Strength(1.0, 1.0, strength), FRAME).curve.dense()
    closed = search.log_det + len(KNOTS) * np.log(strength)
    assert np.isclose(np.linalg.slogdet(precision)[1], closed)
    free = strength * np.trace(np.linalg.inv(precision) @ search.term.dense())
    assert np.isclose(free, len(KNOTS))


def test_one_start_is_enough_where_the_data_tell_every_strength(monkeypatch):
    runs = []
    plain = shrinkage._Search.run
    monkeypatch.setattr(shrinkage._Search, "run", lambda *a, **k: runs.append(a[1]) or plain(*a, **k))
    told = choice(0, strength=Strength(2.0, 4.0, 2.0), contexts=90)
    assert len(runs) == 1
    monkeypatch.setattr(shrinkage, "_TOLD", np.inf)
    again = choice(0, strength=Strength(2.0, 4.0, 2.0), contexts=90)
    assert len(runs) == 3
    assert np.allclose(np.log(told.strength), np.log(again.strength), atol=0.1)


def test_what_contexts_share_has_settled_where_the_search_ends(monkeypatch):
    """Few contexts with rare events and little deviation but in level: from free strengths to stiff ones is far."""
    logit, _, context, _ = draw(2, contexts=12, rows=3000)
    rng = np.random.default_rng(3)
    own = rng.normal(0, 0.9, 12)[context]
    label = (rng.random(len(logit)) < sigmoid(1.3 * (logit + 1) - 4 + own)).astype(float)
    level = level_of(logit, label, context)
    found = choose(level, USUAL, share=True)
    monkeypatch.setattr(shrinkage, "_STILL", 1e-5)
    strict = choose(level, USUAL, share=True)
    assert found.converged
    assert strict.converged
    assert np.abs(found.shared).max() > 0.3
    assert np.abs(found.shared - strict.shared).max() < 0.03


def test_bands_cover_contexts_that_bend_each_in_its_own_place():
    """The curve of a deviation may be as large at the mean score as elsewhere; pinned there, coverage was .91."""
    assert 0.93 < np.mean([coverage(0.05, 1_000, "bend", seed) for seed in range(3)]) < 0.97


def test_bands_are_no_wider_than_the_doubt_where_all_contexts_are_the_same():
    """Averaged over whether there is a deviation at all; without that the mean of these was .99."""
    shares = [coverage(0.2, contexts, "same", seed) for contexts in (8, 100) for seed in range(12)]
    assert 0.9 < np.mean(shares) < 0.98
