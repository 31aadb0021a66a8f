"""Gates of a release: quiet days pass, an injected shift does not, and a log says which of two is better."""

import numpy as np
import pytest

from isolayer import Curves, Grid, Histogram, InputError, metrics
from isolayer.monitor import compare_on_log


def rows(seed, size=30_000, shift=0.0, contexts=100):
    random = np.random.default_rng(seed)
    place = np.minimum(random.exponential(15, size).astype(int), contexts - 1)  # a few large, many small
    truth = random.normal(-2, 1, size)
    label = random.random(size) < 1 / (1 + np.exp(-truth - shift))
    return truth + np.linspace(-0.5, 0.5, contexts)[place], label, {"place": place}


def day(seed, **more):
    return Histogram.from_arrays(*rows(seed, **more))


def test_quiet_days_pass_the_gate_and_an_injected_shift_does_not():
    sums = day(0).merge(day(1))
    before, noisy = Curves.from_histogram(sums), 0.0
    for seed in (2, 3, 4):
        sums = sums.merge(day(seed))
        after = Curves.from_histogram(sums)
        change = before.compare(after)
        noisy = max(noisy, change["largest"].max())
        assert change["certain"].max() <= 0.02
        before = after
    assert noisy > 0.02  # the largest change alone would have stopped a quiet day
    shifted = Curves.from_histogram(day(5, shift=0.7).merge(day(6, shift=0.7)))
    change = before.compare(shifted)
    assert change["certain"].max() > 0.02
    assert change["shift"][0] > 0.02
    assert -before.compare(shifted)["shift"][0] == pytest.approx(shifted.compare(before)["shift"][0])


def test_changes_where_neither_has_rows_do_not_count():
    grid = Grid(-4, 4, 0.5)
    one, two = (Curves.identity(grid) for _ in range(2))
    weight = np.where(np.arange(grid.buckets) < 8, 10.0, 0.01)[None]
    values = two.values + np.where(np.arange(grid.buckets) < 8, 0.0, 2.0)
    one, two = (Curves(grid, (), ((),), v, np.zeros_like(v), weight, np.array([80.0])) for v in (one.values, values))
    change = one.compare(two)
    assert change["largest"].tolist() == change["certain"].tolist() == [0.0]
    assert change["average"][0] > 0


@pytest.fixture(scope="module")
def calibrators():
    return Curves.from_histogram(day(0)), Curves.from_histogram(day(1, shift=0.4))


def test_a_log_says_which_is_better(calibrators):
    good, bad = calibrators
    log = day(7)
    assert compare_on_log(bad, good, log).verdict == "better"
    assert compare_on_log(good, bad, log).verdict == "worse"
    assert compare_on_log(good, good, log).verdict == "no clear difference"
    forth, back = compare_on_log(good, bad, log), compare_on_log(bad, good, log)
    assert forth.log_loss.change == pytest.approx(-back.log_loss.change)
    assert forth.o_over_e.old == back.o_over_e.new
    assert forth.o_over_e.upper < 0 < back.o_over_e.lower  # the shifted one predicts more


def test_the_figures_are_those_of_the_rows(calibrators):
    score, label, context = rows(8)
    found = compare_on_log(*calibrators, Histogram.from_arrays(score, label, context))
    probs = [curves.predict_proba(score, context) for curves in calibrators]
    losses = [metrics.sums.row_loss(label.astype(float), prob) for prob in probs]
    difference = losses[1] - losses[0]
    assert found.log_loss.old == pytest.approx(losses[0].mean(), rel=1e-4)
    assert found.log_loss.change == pytest.approx(difference.mean(), rel=0.01)
    half = 1.96 * difference.std() / np.sqrt(len(label))
    assert found.log_loss.upper - found.log_loss.change == pytest.approx(half, rel=0.01)
    ratios = [label.sum() / prob.sum() for prob in probs]
    assert [found.o_over_e.old, found.o_over_e.new] == pytest.approx(ratios, rel=1e-3)
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        kept = random.integers(0, len(label), len(label))
        drawn.append(label[kept].sum() / probs[1][kept].sum() - label[kept].sum() / probs[0][kept].sum())
    assert found.o_over_e.upper - found.o_over_e.lower == pytest.approx(3.92 * np.std(drawn), rel=0.2)


def test_clusters_widen_the_interval(calibrators):
    score, label, context = rows(9)
    cluster = np.argsort(np.argsort(score)) * 40 // len(score)  # of like scores
    log = Histogram.from_arrays(score, label, context, fold=cluster)
    alone, together = (compare_on_log(*calibrators, log, clustered=clustered) for clustered in (False, True))
    assert alone.log_loss.change == pytest.approx(together.log_loss.change, rel=1e-3)
    assert together.clusters == 40
    width = [found.log_loss.upper - found.log_loss.lower for found in (alone, together)]
    assert width[1] > 1.2 * width[0]


def test_contexts_of_either_are_read():
    score, label, context = rows(10)
    both = {**context, "device": np.arange(len(score)) % 2}
    whole = Histogram.from_arrays(score, label, both)
    one = Curves.from_histogram(Histogram.from_arrays(score, label, context))
    two = Curves.from_histogram(Histogram.from_arrays(score, label, {"device": both["device"]}))
    assert compare_on_log(one, two, whole).verdict == "worse"


def test_an_empty_log_is_refused(calibrators):
    with pytest.raises(InputError, match="histogram: expected at least one row, got none; check the log"):
        compare_on_log(*calibrators, Histogram.from_arrays([], [], {"place": []}))
