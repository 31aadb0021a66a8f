"""The line that calibrates all rows: the likelihood's with many rows, the prior's with few, in any unit."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.line import LinePrior, shrunk_line
from isolayer.grid import Grid, Spread


def line_of(score, label, precision=None):
    grid = Grid.covering(Spread.of(score))
    rows = BinnedRows.of(Histogram.from_arrays(score, label, grid=grid))
    return shrunk_line(rows, grid.knots[1:], precision)


def rows_of(seed, n, level=-2.0, slope=1.0):
    rng = np.random.default_rng(seed)
    score = rng.normal(-2, 1.3, n)
    return score, (rng.random(n) < 1 / (1 + np.exp(-(level + slope * (score + 2))))).astype(float)


@pytest.mark.parametrize(("times", "plus"), [(1.0, 0.0), (3.0, -1.0), (0.05, 0.0), (1.0, 20.0), (1e3, -7e4)])
def test_with_many_rows_it_is_platt_scaling_in_any_unit(times, plus):
    score, label = rows_of(0, 100_000, level=-3.0, slope=0.7)
    line = line_of(times * score + plus, label)
    platt = LogisticRegression(C=np.inf).fit(score[:, None], label)
    np.testing.assert_allclose(line.slope * times, platt.coef_[0, 0], rtol=0.01)
    at = np.array([-5.0, 0.0])
    np.testing.assert_allclose(line.at(times * at + plus), platt.decision_function(at[:, None]), atol=0.02)


def test_with_few_rows_calibrated_scores_are_left_nearly_alone():
    slopes, ours = [], []
    for seed in range(30):
        score, label = rows_of(seed, 60)
        if 0 < label.sum() < 60:
            slopes.append(LogisticRegression(C=np.inf).fit(score[:, None], label).coef_[0, 0])
            ours.append(line_of(score, label).slope)
    assert np.std(np.log(ours)) < 0.25
    assert np.std(slopes) > 2 * np.std(ours)


def test_given_precisions_hold_the_line_to_the_identity():
    score, label = rows_of(1, 5000, level=0.0, slope=0.5)
    held, free = (line_of(score, label, np.full(2, precision)) for precision in (1e9, 0.0))
    np.testing.assert_allclose([held.slope, held.level], [1.0, held.anchor], atol=1e-3)
    assert abs(free.slope - 0.5) < 0.1


def test_the_priors_derivatives_are_those_of_its_density():
    prior, at, tiny = LinePrior.any_unit(-1.0, 2.0), np.array([-0.6, 0.3]), 1e-6 * np.eye(2)
    numeric = [(prior.penalty(at + step) - prior.penalty(at - step)) / 2e-6 for step in tiny]
    np.testing.assert_allclose(prior.derivatives(at)[0], numeric, rtol=1e-6)


def test_scores_that_are_all_equal_have_a_line():
    line = line_of(np.full(50, 3.0), np.arange(50) % 2.0)
    assert np.isfinite([line.level, line.slope]).all()
    assert abs(line.level) < 1.5


def test_scores_that_would_be_unusual_logits_are_not_taken_for_logits():
    """Eight positives among 200 rows, nearly separated: with a mean of -18 the identity fits them, and little else."""
    rng = np.random.default_rng(0)
    score = np.concatenate([rng.normal(-19, 8, 192), rng.normal(-2, 3, 8)])
    line = line_of(score, np.repeat([0.0, 1.0], [192, 8]))
    assert line.slope < 0.6
    assert line.level > -12
