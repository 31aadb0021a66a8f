"""Curves: evaluation, inversion, lookup, bands and comparison."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from contract_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.curves import evaluation
from isolayer.curves import finder as module
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import evaluate, invert, logit_of, prob_of
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

GRID = Grid(lower=-2, upper=2, step=0.5)
KNOTS = GRID.knots[1:]
floats = st.floats(-50, 50)


@pytest.fixture
def fitted():
    rng = np.random.default_rng(0)
    n = 3000
    context = {"device": rng.choice(["tv", "web"], n), "slot": rng.integers(0, 3, n)}
    context["slot"][context["device"] == "tv"] = 7  # slot 7 is on tv, and nothing else is
    logit = rng.normal(size=n)
    shift = np.where(context["device"] == "tv", 0.7, -0.7) + 0.3 * (context["slot"] == 1)
    label = rng.random(n) < prob_of(logit + shift)
    return Curves.from_histogram(Histogram.from_arrays(logit, label, context, grid=GRID))


def increasing(seed, curves=3, least=0.01):
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.uniform(least, 1, (curves, GRID.buckets)), axis=1) - 3


@settings(deadline=None)
@given(st.integers(0, 99), st.lists(floats, min_size=1, max_size=40))
def test_evaluation_is_interpolation_and_goes_on_with_slope_one(seed, x):
    values, x = increasing(seed), np.array(x)
    row = np.arange(len(x)) % 3
    expected = [
        np.interp(at, KNOTS, values[r]) + max(at - GRID.upper, 0) + min(at - GRID.lower, 0)
        for at, r in zip(x, row, strict=True)
    ]
    np.testing.assert_allclose(evaluate(values, row, x, GRID), expected, atol=1e-9)


@settings(deadline=None)
@given(st.integers(0, 99), st.lists(floats, min_size=1, max_size=40))
def test_inversion_undoes_evaluation(seed, x):
    values, x = increasing(seed), np.array(x)
    row = np.arange(len(x)) % 3
    np.testing.assert_allclose(invert(values, row, evaluate(values, row, x, GRID), GRID), x, atol=1e-8)
    np.testing.assert_allclose(evaluate(values, row, invert(values, row, x, GRID), GRID), x, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_contract(case):
    curves = case.curves()
    raw, calibrated = np.array(case.forward).T
    np.testing.assert_allclose(curves.decision_function(raw), calibrated, rtol=0, atol=1e-9)
    asked, smallest = np.array(case.inverse).T
    found = invert(curves.values, np.zeros(len(asked), np.int64), asked, case.grid, case.extrapolation)
    np.testing.assert_allclose(found, smallest, rtol=0, atol=1e-9)


@settings(deadline=None)
@given(st.integers(0, 99), st.lists(st.integers(-24, 24), min_size=2, max_size=20), st.sampled_from(["extend", "clip"]))
def test_a_score_is_at_or_above_the_inverse_exactly_if_its_value_is(seed, x, extrapolation):
    """On the grid, for curves with flat pieces: eighths are exact in binary, so no rounding can blur it."""
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.integers(0, 3, (1, GRID.buckets)) * rng.integers(0, 2, (1, GRID.buckets)), axis=1) / 2.0 - 1
    x, z = np.array(x) / 8, np.unique(values)
    inside = x[(x >= GRID.lower) & (x <= GRID.upper)]
    value = evaluate(values, np.zeros(len(inside), np.int64), inside, GRID, extrapolation)
    threshold = invert(values, np.zeros(len(z), np.int64), z, GRID, extrapolation)
    np.testing.assert_array_equal(inside[:, None] >= threshold, value[:, None] >= z)


def test_clipped_curves_hold_their_end_values(fitted):
    clipped = replace(fitted, extrapolation="clip")
    x = np.array([-9.0, 0.25, 9.0])
    np.testing.assert_array_equal(clipped.decision_function(x), fitted.decision_function(np.clip(x, -2, 2)))
    assert fitted.decision_function(x)[2] > clipped.decision_function(x)[2]
    np.testing.assert_allclose(clipped.inverse([1e-9, 1 - 1e-9]), [-2, 2])
    low, high = clipped.band(x)
    assert (low < clipped.predict_proba(x)).all()
    assert (clipped.predict_proba(x) < high).all()


@pytest.mark.parametrize("name", ["scale", "extrapolation", "kind"])
def test_closed_choices(fitted, name):
    with pytest.raises(InputError, match=rf"{name}: expected '.*' or '.*', got 'qrob'; choose one"):
        replace(fitted, **{name: "qrob"})


@settings(deadline=None)
@given(st.integers(0, 99), st.lists(floats, min_size=2, max_size=40, unique=True))
def test_scores_far_enough_apart_never_tie(seed, x):
    x = np.unique(np.array(x).round(6))
    logit = evaluate(increasing(seed), np.zeros(len(x), np.int64), x, GRID)
    assert (np.diff(logit) > 0).all()


@settings(deadline=None)
@given(st.floats(-1e300, 1e300))
def test_probabilities_stay_inside(logit):
    assert 0 < prob_of(np.array([logit]))[0] < 1


def test_logits_of_certainty_are_finite():
    assert np.isfinite(logit_of(np.array([0.0, 1.0]))).all()
    prob = np.array([1e-12, 0.3, 1 - 1e-9])
    np.testing.assert_allclose(prob_of(logit_of(prob)), prob, rtol=1e-6)


def test_chunks_make_no_difference(monkeypatch):
    x, row, values = np.linspace(-5, 5, 101), np.arange(101) % 3, increasing(0)
    whole = evaluate(values, row, x, GRID)
    monkeypatch.setattr(evaluation, "_CHUNK", 7)
    np.testing.assert_array_equal(evaluate(values, row, x, GRID), whole)


def test_every_context_finds_its_curve_and_unseen_ones_their_deepest_ancestor(fitted):
    assert fitted.starts == (0, 1, 3, 7)
    context = {"device": ["tv", "web", "web", "tv", "web", "radio"], "slot": [7, 0, 2, 0, 9, 7]}
    assert fitted.rows_of(context, 6).tolist() == [3, 4, 6, 1, 2, 0]
    x = np.linspace(-3, 3, 6)
    for at, row, own in zip(x, [3, 4, 6, 1, 2, 0], fitted.decision_function(x, context), strict=True):
        assert own == evaluate(fitted.values, np.array([row]), np.array([at]), GRID)[0]
    np.testing.assert_array_equal(fitted.decision_function(x), evaluate(fitted.values, np.zeros(6, np.int64), x, GRID))


def test_a_search_finds_what_the_table_finds(fitted, monkeypatch):
    context = {"device": ["tv", "web", "radio", "web"], "slot": [7, 1, 7, 9]}
    by_table = fitted.rows_of(context, 4)
    monkeypatch.setattr(module, "_DENSE", 0)
    again = Curves(**{name: getattr(fitted, name) for name in fitted.__dataclass_fields__})
    np.testing.assert_array_equal(again.rows_of(context, 4), by_table)


@pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame, pa.table], ids=lambda frame: frame.__name__)
def test_contexts_come_in_any_frame(fitted, frame):
    columns = {"device": ["tv", "radio"], "slot": [7, 7]}
    assert fitted.rows_of(frame(columns), 2).tolist() == [3, 0]


def test_prob_scale_reads_probabilities(fitted):
    x = np.array([-1.0, 0.3])
    of_prob = Curves(**{**{name: getattr(fitted, name) for name in fitted.__dataclass_fields__}, "scale": "prob"})
    np.testing.assert_allclose(of_prob.predict_proba(prob_of(x)), fitted.predict_proba(x), rtol=1e-12)
    np.testing.assert_allclose(of_prob.inverse(of_prob.predict_proba(prob_of(x))), prob_of(x), rtol=1e-9)
    np.testing.assert_allclose(fitted.inverse(fitted.predict_proba(x)), x, rtol=1e-9)
    np.testing.assert_array_equal(of_prob.on_logits.predict_proba(x), fitted.predict_proba(x))


def test_bands_hold_the_curve_and_grow_with_their_level(fitted):
    context, x = {"device": ["tv", "web"], "slot": [7, 1]}, np.array([0.0, 9.0])
    low, high = fitted.band(x, context, level=0.5)
    lower, higher = fitted.band(x, context, level=0.95)
    assert (lower < low).all()
    assert (low < fitted.predict_proba(x, context)).all()
    assert (fitted.predict_proba(x, context) < high).all()
    assert (high < higher).all()
    at_knots = fitted.band()
    np.testing.assert_allclose(at_knots[0][3], fitted.band(KNOTS, {"device": ["tv"] * 9, "slot": [7] * 9})[0])


def test_strict_curves_rise_and_others_may_be_flat():
    rng = np.random.default_rng(0)
    logit = rng.normal(size=3000)
    histogram = Histogram.from_arrays(logit, rng.random(3000) < prob_of(-logit), grid=GRID)  # the wrong way round
    strict, flat = (Curves.from_histogram(histogram, strict=strict) for strict in (True, False))
    assert np.diff(strict.values).min() >= 1e-4 * GRID.step  # a share of the slope of the line of all rows
    assert 0 <= np.diff(flat.values).min() < 1e-5


def test_comparison_with_itself_is_nothing_and_with_a_shift_is_the_shift(fitted):
    same = fitted.compare(fitted)
    assert same["depth"].tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert same["device"].tolist() == [None, "tv", "web", "tv", "web", "web", "web"]
    assert same["slot"].tolist() == [None, None, None, 7, 0, 1, 2]
    assert not same["largest"].any()
    parts = {name: getattr(fitted, name) for name in fitted.__dataclass_fields__}
    moved = fitted.compare(Curves(**{**parts, "values": fitted.values + 0.5}))
    change = prob_of(fitted.values + 0.5) - prob_of(fitted.values)
    np.testing.assert_allclose(
        moved["average"], (change * fitted.knot_weight).sum(1) / fitted.knot_weight.sum(1), rtol=1e-6
    )
    np.testing.assert_allclose(moved["largest"], np.where(fitted.knot_weight > 0, change, 0).max(1))


def test_comparison_serves_new_contexts_by_their_ancestor():
    rng = np.random.default_rng(0)
    logit, device = rng.normal(size=400), np.array(["tv", "web"] * 200)
    label = rng.random(400) < np.where(device == "tv", 0.8, 0.2)
    both = Curves.from_histogram(Histogram.from_arrays(logit, label, {"device": device}, grid=GRID))
    tv = device == "tv"
    one = Curves.from_histogram(Histogram.from_arrays(logit[tv], label[tv], {"device": device[tv]}, grid=GRID))
    table = one.compare(both)
    assert table["device"].tolist() == [None, "tv", "web"]
    change = np.abs(prob_of(one.values[0]) - prob_of(both.values[2]))
    assert table["largest"][2] == pytest.approx(np.where(both.knot_weight[2] > 0, change, 0).max())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.predict_proba([np.nan]),
            "score: expected finite numbers, got nan in row 0; drop or repair those rows",
        ),
        (lambda c: c.predict_proba([[1.0]]), r"score: expected one dimension, got shape \(1, 1\); give one column"),
        (lambda c: c.inverse([1.5]), r"prob: expected probabilities in \[0, 1\], got 1.5 in row 0"),
        (lambda c: c.predict_proba([1.0], {"device": ["tv"]}), "column slot: expected it in the frame, got only"),
        (
            lambda c: c.predict_proba([1.0], {"device": ["tv"] * 2, "slot": [7]}),
            "context device: expected 1 rows like the other columns",
        ),
        (
            lambda c: c.predict_proba([1.0], {"device": [3], "slot": [7]}),
            "context device: expected strings as when fitted",
        ),
        (lambda c: c.band(level=1.0), r"level: expected a number in \(0, 1\), got 1.0; try 0.95"),
        (lambda c: c.compare(Curves.identity(GRID)), "compare: expected curves with the same contexts and scale"),
    ],
)
def test_questions_that_have_no_answer(fitted, call, message):
    with pytest.raises(InputError, match=message):
        call(fitted)


def test_a_context_without_its_parent_and_a_histogram_without_rows():
    keys = ((), (np.array(["tv"]),), (np.array(["web"]), np.array([1])))
    table = np.zeros((3, GRID.buckets))
    with pytest.raises(InputError, match="curves: expected the parent of every context"):
        Curves(GRID, ("device", "slot"), keys, table, table, table, np.zeros(3)).predict_proba(
            [0.0], {"device": ["tv"], "slot": [1]}
        )
    with pytest.raises(InputError, match="histogram: expected at least one row, got none; add rows"):
        Curves.from_histogram(Histogram.from_arrays([], [], grid=GRID))


def test_curves_and_sums_belong_together_or_not(fitted):
    rng = np.random.default_rng(1)
    day = Histogram.from_arrays(rng.normal(size=99), rng.integers(0, 2, 99), {"device": ["tv"] * 99}, grid=GRID)
    day = replace(day, source={"score": "p", "scale": "prob", "label": "click"})
    curves = Curves.from_histogram(day)
    assert (curves.scale, curves.score_name, curves.label_name) == ("prob", "p", "click")
    assert curves.source["from"] == "fit"
    curves.check_sums(day)
    others = {
        "scale: expected curves and sums of one fit, got 'logit' in the curves and 'prob' in the sums": replace(
            curves, scale="logit"
        ),
        "score_name: expected curves and sums of one fit, got 'q' in the curves": replace(curves, score_name="q"),
        "contexts: expected curves and sums of one fit": replace(curves, contexts=("platform",)),
        "sums: expected the sums that the curves were fitted to, got sums of other rows": Curves.from_histogram(
            day.merge(day)
        ),
    }
    for message, other in others.items():
        with pytest.raises(InputError, match=message):
            other.check_sums(day)
    with pytest.raises(InputError, match=r"histograms: expected rows read in the same way, got score 'p' and 'q'"):
        day.merge(replace(day, source={"score": "q"}))
    rates = [replace(day, source={"negative_rate": rate}) for rate in (0.5, "rate", None)]
    rates[0].merge(rates[1])
    with pytest.raises(InputError, match=r"got negative_rate 0.5 and None; read both with the same negative_rate"):
        rates[0].merge(rates[2])
    assert day.merge(replace(day, source={"weight": None})).source == {**day.source, "weight": None}
    assert day.level(0).source == day.folded().source == day.scaled(0.5).source == day.source
