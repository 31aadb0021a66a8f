"""What weights mean: counts of rows, or importance whose scale does not matter."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.curves.fit_checks import refuse_worse_than_constant
from isolayer.errors import InputError
from isolayer.fitting.evidence import WeightsAreNotCounts, evidence
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

GRID = Grid(lower=-6, upper=4, step=0.5)
ASKED = {"score": np.linspace(-5, 3, 20), "device": ["tv", "web"] * 10}


def rows_of(seed=0, n=2000):
    rng = np.random.default_rng(seed)
    score = rng.normal(-1, 1, n)
    device = rng.choice(["tv", "web"], n)
    label = (rng.random(n) < prob_of(score + (device == "tv"))).astype(int)
    return {"score": score, "device": device}, label, rng.lognormal(0, 1.5, n)


def fitted(frame, label, weight=None, kind="importance"):
    return IsotonicCalibrator(("device",), grid=GRID, weight_kind=kind).fit(frame, label, sample_weight=weight)


def assert_same(one, two, tolerance=1e-9):
    np.testing.assert_allclose(one.decision_function(ASKED), two.decision_function(ASKED), atol=tolerance)
    for mine, theirs in zip(one.band(ASKED), two.band(ASKED), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100), st.sampled_from([1e-6, 0.01, 3.0, 1e6]))
def test_the_scale_of_importance_weights_does_not_matter(seed, factor):
    frame, label, weight = rows_of(seed, 500)
    assert_same(fitted(frame, label, weight), fitted(frame, label, factor * weight))


def test_equal_importance_is_no_weight_at_all():
    frame, label, _ = rows_of()
    assert_same(fitted(frame, label, np.full(len(label), 0.037)), fitted(frame, label))


def test_a_count_of_two_is_the_row_twice_in_bands_too():
    frame, label, _ = rows_of(n=600)
    count = np.random.default_rng(1).integers(0, 4, 600)
    again = np.repeat(np.arange(600), count)
    repeated = fitted({name: column[again] for name, column in frame.items()}, label[again], kind="frequency")
    assert_same(fitted(frame, label, count, kind="frequency"), repeated, tolerance=1e-6)


@pytest.mark.filterwarnings("ignore::isolayer.fitting.evidence.WeightsAreNotCounts")
def test_bands_know_the_effective_number_of_rows():
    frame, label, weight = rows_of()
    weight /= weight.mean()
    widths = []
    for kind in ("importance", "frequency"):
        calibrator = IsotonicCalibrator(("device",), grid=GRID, shrinkage=0.1, weight_kind=kind)
        lower, upper = calibrator.fit(frame, label, sample_weight=weight).band(ASKED)
        widths.append(logit_of(upper) - logit_of(lower))
    effective = weight.sum() ** 2 / (weight**2).sum()
    ratio = np.median(widths[0] / widths[1])
    assert 1.2 < ratio < 1.2 * np.sqrt(len(label) / effective)


def test_a_context_counts_as_its_effective_number_of_rows():
    frame, label, weight = rows_of()
    sums = Histogram.from_arrays(frame["score"], label, {"device": frame["device"]}, weight)
    read = evidence(replace(sums, source={"weight_kind": "importance"}))
    for group, device in enumerate(["tv", "web"]):
        own = weight[frame["device"] == device]
        assert read.weight[read.group == group].sum() == pytest.approx(own.sum() ** 2 / (own**2).sum())
    np.testing.assert_allclose(read.positive / read.weight, sums.positive / sums.weight)
    assert evidence(sums).weight is sums.weight


def test_batches_and_tables_are_the_fit_of_all_rows():
    frame, label, weight = rows_of()
    whole = fitted(frame, label, weight)
    parts = IsotonicCalibrator(("device",), grid=GRID, weight_kind="importance")
    for part in (slice(0, 700), slice(700, None)):
        columns = {name: column[part] for name, column in frame.items()}
        parts.partial_fit(columns, label[part], sample_weight=weight[part])
    assert_same(parts, whole)
    table = IsotonicCalibrator(("device",), grid=GRID, weight_kind="importance")
    assert_same(table.fit_table({**frame, "label": label, "w": 7 * weight}, weight="w"), whole)


@pytest.mark.parametrize(("factor", "got"), [(1e-3, "with a mean of 0.00"), (None, "that sum to 1")])
def test_weights_that_cannot_be_counts_are_named(factor, got):
    frame, label, weight = rows_of()
    weight = weight / weight.sum() if factor is None else weight * factor
    message = f'weights: expected counts of rows, got weights {got}.*; use weight_kind="importance"'
    calibrator = IsotonicCalibrator(("device",))
    with pytest.warns(WeightsAreNotCounts, match=message):
        calibrator.fit(frame, label, sample_weight=weight)
    with pytest.warns(WeightsAreNotCounts, match=message):
        calibrator.fit_table({**frame, "label": label, "w": weight}, weight="w")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(frame, label, weight)
        fitted(frame, label, np.r_[np.zeros(1000), np.ones(1000)], kind="frequency")  # zeros leave rows out


@pytest.mark.parametrize("spread", [1.0, 1.5, 3.0])
def test_unequal_fractions_are_not_counts(spread):
    frame, label, _ = rows_of()
    weight = np.random.default_rng(1).lognormal(0, spread, len(label))
    message = 'got fractions such as .* 2,000 rows count as .*; use weight_kind="importance", unless'
    with pytest.warns(WeightsAreNotCounts, match=message):
        fitted(frame, label, weight, kind="frequency")
    with pytest.warns(WeightsAreNotCounts, match=message):
        IsotonicCalibrator(("device",), grid=GRID).fit_table({**frame, "label": label, "w": weight}, weight="w")


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(np.arange(2000) % 900 + 1.0, id="large and unequal counts"),
        pytest.param((np.arange(2000) % 900 + 1) * (1 + 1.5e-8), id="counts after single precision"),
        pytest.param(np.where(np.arange(2000) == 7, 2.5, np.arange(2000) % 900 + 1.0), id="one slip among counts"),
        pytest.param(np.exp2(-np.arange(2000) / 500) + 0.3, id="decaying with age"),
        pytest.param(np.linspace(0.7, 1.3, 2000), id="about one"),
    ],
)
def test_counts_and_nearly_equal_fractions_are_not_doubted(weight):
    frame, label, _ = rows_of()
    fitted(frame, label, weight, kind="frequency")  # warnings are errors here
    IsotonicCalibrator(("device",), grid=GRID).fit_table({**frame, "label": label, "w": weight}, weight="w")


@pytest.mark.parametrize(
    ("weight", "kind", "said"),
    [
        (None, "frequency", False),
        (1.5, "importance", False),
        (1.5, "frequency", True),  # absurdly unequal counts are another reason for curves that are off
    ],
)
def test_curves_that_are_off_may_be_due_to_weights(weight, kind, said):
    frame, label, _ = rows_of()
    weight = None if weight is None else np.full(len(label), weight)
    log = Histogram.from_arrays(frame["score"], label, weight=weight, grid=GRID)
    other = Histogram.from_arrays(frame["score"], np.ones(len(label)), grid=GRID)
    with pytest.raises(InputError, match="check that labels belong to these scores") as told:
        refuse_worse_than_constant(Curves.from_histogram(other), replace(log, source={"weight_kind": kind}))
    assert ('and that weights are counts of rows, or use weight_kind="importance"' in str(told.value)) is said


def test_kinds_do_not_mix():
    frame, label, weight = rows_of(n=200)
    weight = np.ceil(weight)
    with pytest.raises(InputError, match="weight_kind: expected 'frequency' or 'importance', got 'both'; choose one"):
        fitted(frame, label, weight, kind="both")
    sums = [fitted(frame, label, weight, kind).histogram_ for kind in ("importance", "frequency")]
    with pytest.raises(InputError, match="got weight_kind 'importance' and 'frequency'; read both with the same"):
        sums[0].merge(sums[1])
    with pytest.raises(InputError, match="weight_kind: expected that of the calibrator, 'frequency', got a histogram"):
        IsotonicCalibrator(("device",), grid=GRID).fit_histogram(sums[0])
