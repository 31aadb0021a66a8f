"""Histograms are sums: merging, subtracting, scaling and regrouping agree with summing the rows again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.errors import InputError
from isolayer.fitting import adding as module
from isolayer.fitting.histogram import Histogram, bin_of, bins
from isolayer.grid import Grid

GRID = Grid(lower=-2, upper=2, step=0.5)
SUMS = ("count", "weight", "weight_squared", "positive", "logit")


def rows_of(draw_seed, n):
    rng = np.random.default_rng(draw_seed)
    return {
        "logit": rng.normal(size=n) * 2,
        "label": rng.integers(0, 2, n),
        "context": {"device": rng.choice(["tv", "web", "app"], n), "slot": rng.integers(0, 4, n)},
        "weight": rng.uniform(0.5, 2, n),
        "fold": rng.integers(0, 3, n),
        "negative_rate": rng.choice([0.1, 0.5, 1.0], n),
    }


def part(rows, kept):
    context = {name: column[kept] for name, column in rows["context"].items()}
    return {**{name: column[kept] for name, column in rows.items() if name != "context"}, "context": context}


def assert_same(one, two):
    assert one.contexts == two.contexts
    for mine, theirs in zip(one.keys, two.keys, strict=True):
        assert mine.tolist() == theirs.tolist()
    for name in ("group", "fold", "bin", "negative_rate"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    for name in SUMS:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-11, atol=1e-11)


many = st.tuples(st.integers(0, 1000), st.integers(0, 60))


@settings(deadline=None)
@given(many, st.integers(0, 60))
def test_merge_of_two_parts_is_the_whole(draw, cut):
    rows = rows_of(*draw)
    first = np.arange(len(rows["logit"])) < cut
    one, two = (Histogram.from_arrays(**part(rows, kept), grid=GRID) for kept in (first, ~first))
    assert_same(one.merge(two), Histogram.from_arrays(**rows, grid=GRID))
    assert_same(two.merge(one), one.merge(two))


@settings(deadline=None)
@given(many, st.integers(0, 60))
def test_subtracting_a_part_leaves_the_rest(draw, cut):
    rows = rows_of(*draw)
    first = np.arange(len(rows["logit"])) < cut
    one, two = (Histogram.from_arrays(**part(rows, kept), grid=GRID) for kept in (first, ~first))
    assert_same(one.merge(two).subtract(one), two)


@settings(deadline=None)
@given(many)
def test_a_level_is_the_histogram_of_fewer_columns(draw):
    rows = rows_of(*draw)
    whole = Histogram.from_arrays(**rows, grid=GRID)
    device = {**rows, "context": {"device": rows["context"]["device"]}}
    assert_same(whole.level(1), Histogram.from_arrays(**device, grid=GRID))
    assert_same(whole.level(0), Histogram.from_arrays(**{**rows, "context": None}, grid=GRID))
    parent, first = whole.parents(1)
    assert whole.keys[0].tolist() == whole.level(1).keys[0][parent].tolist()
    assert whole.keys[0][first].tolist() == whole.level(1).keys[0].tolist()


@settings(deadline=None)
@given(many)
def test_weight_two_is_the_row_twice(draw):
    rows = rows_of(*draw)
    twice = part(rows, np.repeat(np.arange(len(rows["logit"])), 2))
    double = Histogram.from_arrays(**{**rows, "weight": 2 * rows["weight"]}, grid=GRID)
    for name in ("weight", "positive", "logit"):
        np.testing.assert_allclose(getattr(double, name), getattr(Histogram.from_arrays(**twice, grid=GRID), name))


@settings(deadline=None)
@given(many)
def test_a_row_of_weight_zero_is_absent(draw):
    rows = rows_of(*draw)
    kept = np.random.default_rng(1).random(len(rows["logit"])) < 0.5
    none = {**rows, "weight": np.where(kept, rows["weight"], 0)}
    assert_same(Histogram.from_arrays(**none, grid=GRID), Histogram.from_arrays(**part(rows, kept), grid=GRID))


@settings(deadline=None)
@given(many)
def test_folds_split_and_come_together_again(draw):
    rows = rows_of(*draw)
    whole = Histogram.from_arrays(**rows, grid=GRID)
    outside, inside = whole.split(1)
    assert outside.groups == inside.groups == whole.groups
    assert_same(outside.merge(inside), whole.folded())
    assert_same(whole.folded(), Histogram.from_arrays(**{**rows, "fold": None}, grid=GRID))


@settings(deadline=None)
@given(many)
def test_scaling_is_weighting(draw):
    rows = rows_of(*draw)
    half = Histogram.from_arrays(**{**rows, "weight": rows["weight"] / 2}, grid=GRID)
    assert_same(Histogram.from_arrays(**rows, grid=GRID).scaled(0.5), half)


@settings(max_examples=30, deadline=None)
@given(many)
def test_sorting_and_counting_agree(draw):
    rows = rows_of(*draw)
    counted = Histogram.from_arrays(**rows, grid=GRID)
    limit, module._DENSE = module._DENSE, -1
    try:
        rows = part(rows, np.arange(len(rows["logit"])))
        assert_same(Histogram.from_arrays(**rows, grid=Grid(lower=-2, upper=2, step=0.5)), counted)
    finally:
        module._DENSE = limit


@settings(deadline=None)
@given(st.floats(-30, 30))
def test_a_bin_holds_its_own_logits(x):
    place = int(bin_of(np.array([x]), GRID)[0])
    edge = GRID.lower + (place - 1) * GRID.step / 4
    if place == 0:
        assert x < GRID.lower
    elif place == bins(GRID) - 1:
        assert x >= GRID.upper
    else:
        assert edge - 1e-9 <= x <= edge + GRID.step / 4 + 1e-9


def test_unit_weights_share_one_column():
    histogram = Histogram.from_arrays([0.0], [1])
    assert histogram.count is histogram.weight
    assert histogram.weight is histogram.weight_squared


def test_rates_that_cannot_be_used():
    with pytest.raises(
        InputError, match=r"negative_rate: expected numbers in \(0, 1\], got 0.0 in row 0; give the share"
    ):
        Histogram.from_arrays([0.0, 1.0], [0, 1], negative_rate=[0.0, 1.0])
    with pytest.raises(InputError, match=r"negative_rate: expected a number in \(0, 1\], got 1.5; give"):
        Histogram.from_arrays([0.0, 1.0], [0, 1], negative_rate=1.5)
    with pytest.raises(InputError, match="negative_rate: expected 2 rows like the other columns, got 1; align"):
        Histogram.from_arrays([0.0, 1.0], [0, 1], negative_rate=[1.0])
    with pytest.raises(InputError, match="negative_rate: expected at most 100 distinct rates, got 200; round them"):
        Histogram.from_arrays(np.zeros(200), np.zeros(200), negative_rate=np.linspace(0.1, 1, 200))


def test_rows_of_different_rates_stay_apart():
    histogram = Histogram.from_arrays([0.1] * 4, [0, 1, 1, 1], negative_rate=[0.5, 0.1, 0.1, 0.5])
    assert (histogram.negative_rate.tolist(), histogram.positive.tolist()) == ([0.1, 0.5], [2, 1])
    assert histogram.fingerprint() != Histogram.from_arrays([0.1] * 4, [0, 1, 1, 1]).fingerprint()


def test_missing_keys_merge():
    one = Histogram.from_arrays([0.0, 0.0], [1, 0], {"device": ["tv", None]})
    two = Histogram.from_arrays([0.0, 0.0], [1, 0], {"device": [None, "app"]})
    assert one.merge(two).keys[0].tolist() == ["app", "tv", None]
    assert one.merge(two).count.tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ([np.nan, 1.0], [0, 1]),
            "logit: expected finite numbers, got nan in row 0; drop or repair those rows",
        ),
        (([0.0], [2]), r"label: expected labels in \[0, 1\], got 2.0 in row 0; give 0 and 1"),
        (
            ([0.0], [1], None, [-1]),
            r"weight: expected numbers >= 0, got -1.0 in row 0; drop those rows",
        ),
        (([0.0], [1], None, [1e101]), r"weight: expected numbers from 0 to 1e\+100, got 1e\+101 in row 0"),
        (([0.0], [1, 0]), "label: expected 1 rows like the other columns, got 2; align the columns"),
        (
            ([0.0], [1], {"c": ["a", "b"]}),
            "context c: expected 1 rows like the other columns, got 2; align the columns",
        ),
        (([[0.0]], [1]), r"logit: expected one dimension, got shape \(1, 1\); give one column"),
        (
            ([0.0], [1], None, None, [127]),
            "fold: expected integers from 0 to 126, got 127 in row 0; number them from 0",
        ),
    ],
)
def test_rows_that_cannot_be_summed(rows, message):
    with pytest.raises(InputError, match=message):
        Histogram.from_arrays(*rows)


def test_histograms_that_do_not_belong_together():
    one = Histogram.from_arrays([0.0], [1], {"c": ["a"]})
    with pytest.raises(InputError, match="histograms: expected the same grid and contexts"):
        one.merge(Histogram.from_arrays([0.0], [1]))
    with pytest.raises(InputError, match="context c: expected keys of one type in both histograms"):
        one.merge(Histogram.from_arrays([0.0], [1], {"c": [1]}))
    with pytest.raises(InputError, match="subtract: expected rows that are part of this histogram, got 1 more"):
        one.subtract(one.merge(one))
    with pytest.raises(InputError, match="factor: expected a positive number, got 0"):
        one.scaled(0)


@settings(deadline=None)
@given(many, st.integers(0, 60))
def test_what_is_left_is_within_its_bounds(draw, cut):
    rows = rows_of(*draw)
    rows["label"], rows["weight"] = rows["label"] / 3 + 2 / 3, rows["weight"] ** 9
    first = np.arange(len(rows["logit"])) < cut
    grid = Grid(lower=-2, upper=2, step=2)
    whole, one = (Histogram.from_arrays(**part(rows, kept), grid=grid) for kept in (np.full(len(first), True), first))
    rest = whole.subtract(one)
    assert ((rest.positive >= 0) & (rest.positive <= rest.weight) & (rest.weight > 0)).all()
    assert (rest.weight_squared >= 0).all()


def test_only_what_weighs_the_same_is_subtracted():
    day = Histogram.from_arrays([0.1, 0.2], [1, 0])
    both = day.merge(Histogram.from_arrays([0.1], [0]))
    assert_same(both.scaled(0.5).subtract(day.scaled(0.5)), both.subtract(day).scaled(0.5))
    message = (
        "subtract: expected rows with the weights and labels they have in this histogram, got something else; subtract"
    )
    for whole, part_of_it in (
        (both.scaled(0.5), day.scaled(1.5)),
        (both, day.scaled(0.5)),
        (both, Histogram.from_arrays([0.1, 0.1, 0.2], [1, 1, 0])),
    ):
        with pytest.raises(InputError, match=message):
            whole.subtract(part_of_it)


def test_what_weighs_next_to_nothing_is_forgotten():
    histogram = Histogram.from_arrays([0.1, 0.2], [1, 0], {"device": ["tv", "web"]}, [1.0, 1e-50])
    assert histogram.scaled(1e-180).keys[0].tolist() == ["tv"]
    assert histogram.scaled(1e-180).scaled(1e-180).groups == 0
    assert_same(histogram.scaled(1e-180).scaled(1e-180).merge(histogram), histogram)
    assert Histogram.from_arrays([0.1, 0.2], [1, 0], weight=[1.0, 5e-324]).rows == 1


def test_a_fine_grid_has_bins_of_its_own():
    grid = Grid(lower=-8, upper=8, step=16 / 10_000)
    logit = np.linspace(-9, 9, 1000)
    histogram = Histogram.from_arrays(logit, np.zeros(1000), grid=grid)
    np.testing.assert_array_equal(histogram.bin, np.unique(bin_of(logit, grid)))
    assert histogram.bin.max() == bins(grid) - 1 > np.iinfo(np.int16).max


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_over_parts_of_the_cells_are_those_over_all(weighted, monkeypatch):
    rng = np.random.default_rng(0)
    weight = rng.random(500) + 0.5 if weighted else None
    rows = rng.normal(0, 3, 500), (rng.random(500) < 0.3).astype(float)
    whole = Histogram.from_arrays(*rows, {"shop": rng.integers(0, 90, 500)}, weight)
    before = whole.fingerprint()
    monkeypatch.setattr("isolayer.fitting.adding._PART", 7)
    assert whole.fingerprint() == before
    found, expected = whole.level(0), Histogram.from_arrays(*rows, weight=weight)
    assert (found.keys, found.contexts) == ((), ())
    for name in ("group", "fold", "bin", "negative_rate", "count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    for name in ("weight", "weight_squared", "positive", "logit"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
