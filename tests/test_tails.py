"""Tail probabilities, decisions over many tests, the uncertainty of curves: against exact answers and simulations."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isolayer import Curves, Histogram
from isolayer.metrics.clusters import design_effect, standard_error
from isolayer.metrics.families import decide, shares
from isolayer.metrics.tails import Statistic, Trials
from isolayer.monitor.uncertainty import Placed, errors_of


def outcomes(prob):
    """Exact distribution of a sum of trials, by convolution."""
    found = np.ones(1)
    for each in prob:
        found = np.convolve(found, [1 - each, each])
    return found


def statistic(logit, observed, spread=0.0, **more):
    trials = Trials(np.asarray(logit, float), np.ones(len(logit)), np.zeros(len(logit), np.int64), 1)
    return Statistic(trials, np.array([float(observed)]), np.array([spread]), **more)


logits = st.lists(st.floats(-7, 3), min_size=1, max_size=60)


@settings(deadline=None)
@given(logits, st.data())
def test_tails_are_those_of_the_exact_distribution(logit, data):
    observed = data.draw(st.integers(0, len(logit)))
    exact = outcomes(1 / (1 + np.exp(-np.array(logit))))
    upper, lower, none = (float(part[0]) for part in statistic(logit, observed).tails(np.zeros(1)))
    assert none == pytest.approx(exact[0], rel=1e-9)
    for found, true in ((upper, exact[observed:].sum()), (lower, exact[: observed + 1].sum())):
        assert abs(found - true) < 0.02
        if 1e-12 < true < 0.1:
            assert 0.7 < found / true < 1.4


@settings(deadline=None, max_examples=30)
@given(logits, st.data(), st.floats(0, 1), st.floats(0.001, 0.5))
def test_an_interval_excludes_no_shift_exactly_if_it_is_rejected(logit, data, spread, level):
    test = statistic(logit, data.draw(st.integers(0, len(logit))), spread)
    (lower,), (upper,) = test.interval(np.array([level]))
    assert lower < upper
    assert (lower > 0 or upper < 0) == (test.p_value(np.zeros(1))[0] <= level)


def test_an_interval_excludes_no_shift_whose_p_value_is_the_level():
    test = statistic([0.0], 0, 0.0)  # no event in a trial of one half
    assert test.p_value(np.zeros(1)).tolist() == [0.5]
    assert test.interval(np.array([0.5]))[1] < 0 < test.interval(np.array([0.49]))[1]


@pytest.mark.parametrize("freedom", [np.inf, 6.0])
def test_an_uncertain_prediction_is_averaged_over(freedom):
    """A p-value of 40 trials with a random shift, against the shares of 400,000 simulated ones."""
    random = np.random.default_rng(0)
    shift = 0.5 * (random.normal(size=400_000) if np.isinf(freedom) else random.standard_t(freedom, 400_000))
    drawn = random.binomial(40, 1 / (1 + np.exp(2 - shift)))
    for observed in (0, 5, 12):
        upper, lower, _ = statistic(np.full(40, -2.0), observed, 0.5, freedom=freedom).tails(np.zeros(1))
        assert upper[0] == pytest.approx((drawn >= observed).mean(), rel=0.04)
        assert lower[0] == pytest.approx((drawn <= observed).mean(), rel=0.04)


def test_a_sum_along_a_direction_has_the_tails_of_its_simulation():
    random = np.random.default_rng(1)
    logit, lean = random.normal(-2, 1, 60), random.normal(0, 1, 60)
    drawn = (random.random((200_000, 60)) < 1 / (1 + np.exp(-logit))) @ lean
    trials = Trials(logit, np.ones(60), np.zeros(60, np.int64), 1, lean)
    for share in (0.001, 0.1, 0.6, 0.99):
        value = np.quantile(drawn, share)
        upper, lower, _ = Statistic(trials, np.array([value]), np.zeros(1)).tails(np.zeros(1))
        assert lower[0] == pytest.approx(share, rel=0.15)
        assert upper[0] + lower[0] == pytest.approx(1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 0.5), st.floats(0.1, 1))
def test_decisions_are_those_of_benjamini_and_hochberg(p, level, share):
    values = np.array(p)
    ordered, bounds = np.sort(values), level * share * np.arange(1, len(p) + 1) / len(p)
    assume(not np.isclose(ordered, bounds, rtol=1e-9, atol=0).any())  # on the edge, rounding decides
    family = decide(values, level, share)
    passing = np.flatnonzero(ordered <= bounds)
    expected = 0 if len(passing) == 0 else passing[-1] + 1
    assert (family.adjusted <= level).sum() == expected
    assert ((values <= family.threshold).sum() == expected) or expected == 0


@pytest.mark.parametrize("depths", [1, 2, 3, 5])
def test_the_level_is_shared_out(depths):
    ratio, slope = shares(depths)
    assert len(ratio) == len(slope) == depths
    assert sum(ratio) + sum(slope) == pytest.approx(0.9)


def test_a_design_effect_is_that_of_the_clusters_drawn():
    """Clusters of 200 rows whose logits vary by 0.3, and not at all."""
    random = np.random.default_rng(2)
    for deviation in (0.0, 0.3):
        found = []
        for _ in range(40):
            effect = random.normal(0, deviation, 100)
            events = random.binomial(200, 1 / (1 + np.exp(1 - effect)))
            prob = np.full(100, events.sum() / 20_000)
            weight = 200 * prob * (1 - prob)
            found.append(design_effect(events - 200 * prob, weight, weight, np.zeros(100, int), 1, np.arange(100))[0])
        assert np.mean(found) == pytest.approx(1 + 200 * 0.196 * deviation**2, rel=0.12)


@pytest.mark.parametrize("spread", [1.0, 0.3])
def test_the_level_of_a_curve_is_as_uncertain_as_refits_show(spread):
    """Refitted 40 times, the mean calibrated logit of the same rows varies as the stated variance says."""
    random = np.random.default_rng(3)
    levels, stated = [], []
    for _ in range(40):
        logit = random.normal(-1, spread, 4000)
        label = random.random(4000) < 1 / (1 + np.exp(-(logit + 1) / 2))
        fitted = Curves.from_histogram(Histogram.from_arrays(logit, label))
        at = np.linspace(-1 - 2 * spread, -1 + 2 * spread, 41)
        pull = np.exp(-0.5 * ((at + 1) / spread) ** 2) / (2 + np.exp(at) + np.exp(-at))
        group = np.zeros(41, np.int64)
        errors = errors_of(fitted, np.zeros(1, np.int64), Placed.of(fitted, at, group), pull)
        levels.append(float(pull @ fitted.decision_function(at) / pull.sum()))
        stated.append(float(errors.level[0]))
    assert 0.6 < np.mean(stated) / np.var(levels) < 2


def test_a_standard_error_of_huge_influences_is_a_number():
    assert standard_error(np.array([1e200, -1e200]), np.ones(2)) == pytest.approx(2**0.5 * 1e200)
