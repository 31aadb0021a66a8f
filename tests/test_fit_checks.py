"""Mistakes that a fit sees in its own rows: probabilities taken for logits, and curves worse than a constant."""

import warnings

import numpy as np
import pytest

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves import fit_checks
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.curves.fit_checks import ScoresLookLikeProbs, refuse_worse_than_constant
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

GRID = Grid(lower=-17, upper=8, step=0.2)


def rows_of(seed=0, n=4000):
    rng = np.random.default_rng(seed)
    score = rng.normal(-1, 1.5, n)
    return score, (rng.random(n) < prob_of(score)).astype(int)


def test_probabilities_taken_for_logits_are_warned_of():
    score, label = rows_of()
    prob, message = (
        prob_of(score),
        r'scores: expected logits under scale="logit", got numbers from .*scale="prob"',
    )
    with pytest.warns(ScoresLookLikeProbs, match=message):
        IsotonicCalibrator().fit(prob, label)
    with pytest.warns(ScoresLookLikeProbs, match=message):
        IsotonicCalibrator().fit_table({"score": prob, "label": label})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IsotonicCalibrator(scale="prob").fit(prob, label)
        IsotonicCalibrator().fit(score, label)
        IsotonicCalibrator().fit(prob[:50], label[:50])  # so few may be there by chance


def test_scores_beyond_the_grid_are_an_error_in_words():
    rng = np.random.default_rng(0)
    score = rng.normal(20, 3, 4000)
    label = (rng.random(4000) < prob_of(0.1 * score - 3)).astype(int)
    message = r"scores: expected most of them on the grid from -17 to 8, got 100% beyond it, around 20; use grid=.auto"
    with pytest.raises(InputError, match=message):
        IsotonicCalibrator(grid=GRID).fit(score, label)
    with pytest.raises(InputError, match=message):
        IsotonicCalibrator(grid=GRID).fit_table({"score": score, "label": label})
    IsotonicCalibrator(grid=Grid(lower=5, upper=35, step=0.5)).fit(score, label)


def test_curves_of_other_rows_are_worse_than_a_constant():
    score, label = rows_of()
    curves = Curves.from_histogram(Histogram.from_arrays(score, label, grid=GRID))
    with pytest.raises(InputError, match=r"got a log loss of .* against .*; check that labels belong"):
        refuse_worse_than_constant(curves, Histogram.from_arrays(score, 1 - label, grid=GRID))


def test_a_part_of_the_contexts_is_checked_by_their_own_curves(monkeypatch):
    monkeypatch.setattr(fit_checks, "_CELLS", 300)
    rng = np.random.default_rng(0)
    context = np.arange(8000) % 40
    label = rng.random(8000) < np.where(context < 20, 0.95, 0.05)  # curves of others may be far off
    score = rng.normal(0, 1, 8000)
    sums = Histogram.from_arrays(score, label, {"c": context}, grid=GRID)
    curves = Curves.from_histogram(sums)
    refuse_worse_than_constant(curves, sums)
    refuse_worse_than_constant(curves, sums.cells_where(sums.group % 5 != 3))  # other contexts, so not in their order
    others = Histogram.from_arrays(score, label, {"c": (context + 20) % 40}, grid=GRID)
    with pytest.raises(InputError, match="got a log loss of"):
        refuse_worse_than_constant(curves, others)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("n", [4, 20, 200, 5000])
def test_scores_that_say_nothing_are_no_error(n, rate):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        label = rng.random(n) < 0.3
        label[:2] = [False, True]
        calibrator = IsotonicCalibrator(("c",), negative_rate=rate)
        calibrator.fit({"score": rng.normal(0, 2, n), "c": rng.integers(0, 5, n)}, label)


def test_a_strength_that_was_asked_for_is_no_error():
    score, label = rows_of()
    assert IsotonicCalibrator(shrinkage=1e6).fit(-score, label).predict_proba([5.0])[0, 1] > 0.9
