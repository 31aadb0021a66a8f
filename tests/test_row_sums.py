"""Rows that are sorted here instead of grouped by the engine: the same sums, or left to the engine."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from isolayer import Grid, Histogram, InputError
from isolayer.calibrator import IsotonicCalibrator
from isolayer.fitting import runs
from isolayer.fitting.runs import Packing, Run, histogram_of_run, joined
from isolayer.tables import row_sums
from isolayer.tables.histogram_query import ColumnSpec, RowsDropped, histogram_of
from isolayer.tables.sources import engine

GRID = Grid(lower=-6, upper=4, step=0.25)
ROWS = 6000


def log(seed=0, *, soft=False, wide=1):
    rng = np.random.default_rng(seed)
    label = rng.random(ROWS) if soft else (rng.random(ROWS) < 0.3).astype(float)
    return {
        "score": rng.normal(-1, 3, ROWS),
        "label": label,
        "shop": wide * rng.integers(-400, 1500, ROWS),
        "item": rng.integers(0, 40, ROWS).astype(np.int16),
    }


def same(found, expected):
    assert [key.tolist() for key in found.keys] == [key.tolist() for key in expected.keys]
    assert [key.dtype for key in found.keys] == [key.dtype for key in expected.keys]
    for name in ("group", "fold", "bin", "negative_rate", "count", "weight", "weight_squared"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("positive", "logit"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    assert found.fingerprint() == expected.fingerprint()


@pytest.fixture
def here(monkeypatch):
    """Small tables are sorted here too, in blocks that are added up several times; says how often that was done."""
    done = []
    for name, value in (("FROM", 0), ("_FIRST", 300), ("_BLOCK", 500), ("_MOST", 2000)):
        monkeypatch.setattr(row_sums, name, value)
    monkeypatch.setattr("isolayer.fitting.runs._PART", 64)
    monkeypatch.setattr("isolayer.fitting.runs._SAMPLED", 16)
    made = row_sums.histogram_of_run
    monkeypatch.setattr(row_sums, "histogram_of_run", lambda *given: done.append(1) or made(*given))
    return done


def by_engine(path, spec, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sums, "FROM", 1 << 62)
        return histogram_of(path, spec, **options)


def written(tmp_path, **columns):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=700)
    return str(path)


@pytest.mark.parametrize("contexts", [("shop",), ("shop", "item"), ("item", "shop")])
@pytest.mark.parametrize("options", [{}, {"soft": True}, {"wide": 10**9}])
def test_the_same_sums_as_those_of_the_engine(contexts, options, here, tmp_path):
    path, spec = written(tmp_path, **log(**options)), ColumnSpec(contexts, grid=GRID, negative_rate=0.5)
    found, bad = histogram_of(path, spec)
    assert here == [1]
    assert bad == {}
    same(found, by_engine(path, spec)[0])


def test_runs_under_different_packings_add_up_to_the_histogram_of_all_rows():
    data = log(1)
    one, two = (
        {name: column[:900] for name, column in data.items()},
        {name: column[900:] for name, column in data.items()},
    )
    two["shop"] += 10**6
    with ThreadPoolExecutor(2) as pool:
        runs = [run_of(one), run_of(two), run_of(one)]
        assert runs[0].packing != runs[1].packing
        runs = [joined(runs[:2], pool), runs[2]]
        found, kinds, numbers = histogram_of_run(joined(runs, pool), ("shop",), GRID, 1.0, pool)
    every = {name: np.concatenate([one[name], two[name], one[name]]) for name in data}
    same(found, Histogram.from_arrays(every["score"], every["label"], {"shop": every["shop"]}, grid=GRID))
    assert len(kinds) == len(numbers) == 0


def run_of(data):
    from isolayer.fitting.histogram import bin_of

    return Run.of([data["shop"]], bin_of(data["score"], GRID), data["label"], data["score"], GRID)


def test_rows_that_cannot_be_used_are_counted_and_left_out(here, tmp_path):
    data = log(2)
    data["score"][::7], data["label"][5::11] = np.nan, 2.0
    data["shop"] = pa.array(data["shop"])
    path, spec = written(tmp_path, **data), ColumnSpec(("shop",), grid=GRID)
    with pytest.warns(RowsDropped) as told:
        found, bad = histogram_of(path, spec, on_bad_rows="drop")
    assert here == [1]
    with pytest.warns(RowsDropped) as before:
        expected, counted = by_engine(path, spec, on_bad_rows="drop")
    same(found, expected)
    assert bad == counted
    assert str(told[0].message) == str(before[0].message)
    with pytest.raises(InputError) as refused:
        histogram_of(path, spec)
    with pytest.raises(InputError) as expected_error:
        by_engine(path, spec)
    assert str(refused.value) == str(expected_error.value)


LEFT = {
    "few cells": lambda data: {**data, "shop": data["shop"] % 3, "score": np.zeros(ROWS)},
    "text": lambda data: {**data, "shop": data["shop"].astype(str)},
    "numbers of 64 bits without a sign": lambda data: {**data, "shop": np.abs(data["shop"]).astype(np.uint64)},
    "missing contexts": lambda data: {**data, "shop": pa.array(data["shop"], mask=np.arange(ROWS) == 5900)},
    "keys beyond 62 bits": lambda data: {**data, "shop": data["shop"] << 51},
}


@pytest.mark.parametrize("why", LEFT)
def test_what_does_not_suit_is_left_to_the_engine(why, here, tmp_path):
    path, spec = written(tmp_path, **LEFT[why](log(3))), ColumnSpec(("shop",), grid=GRID)
    found, _ = histogram_of(path, spec)
    assert here == []
    same(found, by_engine(path, spec)[0])


def test_weights_folds_rates_frames_and_text_are_left_to_the_engine(here, tmp_path):
    data = log(4)
    data |= {"w": np.ones(ROWS), "rate": np.full(ROWS, 0.5)}
    path = written(tmp_path, **data)
    for options in ({"weight": "w"}, {"folds": 3}, {"negative_rate": "rate"}, {"half_life": ("w", 2.0)}):
        histogram_of(path, ColumnSpec(("shop",), grid=GRID, **options))
    histogram_of(data, ColumnSpec(("shop",), grid=GRID))
    histogram_of(path, ColumnSpec((), grid=GRID))
    pa.csv.write_csv(pa.table(data), tmp_path / "log.csv")  # counting its rows would mean reading it
    histogram_of(tmp_path / "log.csv", ColumnSpec(("shop",), grid=GRID))
    assert here == []


def test_labels_that_are_words_or_true_and_false_are_sorted_here_too(here, tmp_path):
    data = log(6)
    expected, _ = by_engine(written(tmp_path, **data), ColumnSpec(("shop",), grid=GRID))
    for label in (np.where(data["label"] > 0, "Yes", "no"), data["label"] > 0):
        same(histogram_of(written(tmp_path, **data | {"label": label}), ColumnSpec(("shop",), grid=GRID))[0], expected)
    assert here == [1, 1]


def test_one_scan_is_one_scan(here, tmp_path):
    path = written(tmp_path, **log(5))
    assert IsotonicCalibrator(("shop",), grid=GRID).fit_table(path).scans_ == 1
    assert here == [1]


def test_a_packing_of_two_holds_the_values_of_both():
    one, two = Packing((0, -8), (3, 10)), Packing((-2, -8), (4, 10))
    assert one.joined(two) == Packing((-2, -8), (5, 10))
    key = one.pack([np.array([2, 0]), np.array([1, -8])])
    again = one.joined(two).pack(one.unpack(key))
    assert [column.tolist() for column in one.joined(two).unpack(again)] == [[2, 0], [1, -8]]


@pytest.mark.parametrize("part", [1, 3, 64, 1 << 18])
def test_groups_are_numbered_in_parts_as_at_once(part, monkeypatch):
    monkeypatch.setattr(runs, "_PART", part)
    starts = np.random.default_rng(part).random(50) < 0.3
    starts[0] = True
    with ThreadPoolExecutor(2) as pool:
        for some in (starts, starts[:1], starts[:0]):
            found = runs._numbered(some, np.empty(len(some), np.int64), pool)
            np.testing.assert_array_equal(found, np.cumsum(some) - 1)


def test_the_engine_has_as_many_threads_as_before(here, tmp_path):
    ask = engine().con.execute
    ask("SET threads = 3")
    try:
        histogram_of(written(tmp_path, **log()), ColumnSpec(("shop", "item"), grid=GRID))
        assert here == [1]
        assert ask("SELECT current_setting('threads')").fetchall() == [(3,)]
    finally:
        ask("RESET threads")
