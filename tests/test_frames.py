"""Columns of frames, whatever the frame, and of single columns of numbers."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import duckdb
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from isolayer import ContextIsotonicLayer, IsotonicCalibrator
from isolayer.errors import InputError
from isolayer.fitting.columns import labels, numbers, weights
from isolayer.fitting.frames import column, column_names, columns, read_rows, refuse_missing, times


def relation(columns):
    return duckdb.from_arrow(pa.table(columns))


def ibis_table(columns):
    return ibis.memtable(pa.table(columns))


FRAMES = [dict, pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table, relation, ibis_table]
named = pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame.__module__}.{frame.__name__}")


@named
def test_names_and_columns_of_every_frame(frame):
    table = frame({"score": [1.0, 2.0], "day": [3, 4]})
    assert column_names(table) == ["score", "day"]
    assert numbers("score", column(table, "score")).tolist() == [1.0, 2.0]
    assert numbers("day", columns(table, ["day", "score"])["day"]).tolist() == [3.0, 4.0]
    with pytest.raises(InputError, match="column slot: expected it in the frame, got only"):
        column(table, "slot")


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((3, 1)), [1.0], pd.Series([1.0]), pl.Series([1.0]), None, 3])
def test_arrays_have_no_columns(array):
    assert column_names(array) is None
    with pytest.raises(InputError, match=r"frame: expected a frame with the columns \['a'\], got an? "):
        column(array, "a")


@pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table, duckdb.sql])
def test_names_that_differ_in_case_are_two_columns(frame):
    """DuckDB, asked for ``A``, gives ``a``."""
    table = frame('SELECT 1.0 AS a, 2.0 AS "A"' if frame is duckdb.sql else {"a": [1.0], "A": [2.0]})
    found = columns(table, ["A", "a"])
    assert [numbers(name, found[name]).tolist() for name in ("a", "A")] == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "frame", [pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), pa.table([[1.0], [2.0]], names=["a", "a"])], ids=type
)
def test_a_name_that_two_columns_have_is_refused(frame):
    with pytest.raises(InputError, match=r"frame: expected every column name once, got \['a'\] more than once; rename"):
        read_rows(frame)


def test_only_the_columns_that_are_asked_for_are_read():
    lazy = pl.LazyFrame({"a": [1.0], "text": ["x"]}).with_columns(pl.col("text").cast(pl.Float64))  # which fails
    assert numbers("a", column(lazy, "a")).tolist() == [1.0]


def test_a_relation_is_read_without_a_word_at_exit():
    """DuckDB's bindings complain of types that narwhals keeps when it collects a relation by itself."""
    code = "import duckdb; from isolayer.fitting.frames import column; column(duckdb.sql('SELECT 1.0 AS a'), 'a')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr == ""


@named
def test_datetimes_are_seconds(frame):
    days = [np.datetime64("2024-01-01", "us"), np.datetime64("2024-01-02", "us")]
    seconds, half_life = times("day", column(frame({"day": np.array(days)}), "day"), timedelta(hours=1))
    assert np.diff(seconds).tolist() == [86400]
    assert half_life == 3600


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: numbers("score", ["a"]), "score: expected a column of numbers, got text; convert it"),
        (lambda: numbers("score", [np.inf]), "score: expected finite numbers, got inf in row 0"),
        (lambda: times("d", [1], timedelta(1)), "half_life: expected a number in the units of d, got 1 day"),
        (
            lambda: times("d", np.array(["2024"], "M8[D]"), 1),
            "half_life: expected a timedelta for the datetimes of d",
        ),
        (lambda: refuse_missing({"c": [1.0, None]}), "context c: expected no missing values, got 1 of 2 rows"),
    ],
)
def test_columns_that_will_not_do(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_time_zones_are_one_clock():
    utc = pd.Series(pd.to_datetime(["2024-01-01T00:00", "2024-01-01T01:00"])).dt.tz_localize("UTC")
    for series in (
        utc,
        utc.dt.tz_convert("Asia/Tokyo"),
        pl.Series([datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in (0, 1)]),
    ):
        seconds, _ = times("at", series, timedelta(hours=1))
        assert seconds.tolist() == [1704067200.0, 1704070800.0]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        (1.0, 2.0),
        np.array([1, 2], np.int8),
        np.array([1, 2], np.float16),
        np.array([1, 2], np.longdouble),
        np.array([1, 2], object),
        np.ma.array([1.0, 2.0], mask=[False, False]),
        [Decimal(1), Decimal(2)],
        pd.Series([1, 2], dtype="Int64"),
        pd.Series([1, 2], dtype="double[pyarrow]"),
        pd.Series([1, 2], dtype="category"),
        pl.Series([1, 2]),
        pl.Series([1, 2]).cast(pl.Decimal(10, 2)),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        pa.array([1, 2]).dictionary_encode(),
    ],
    ids=lambda values: f"{type(values).__module__}.{type(values).__name__}",
)
def test_numbers_of_every_kind(values):
    found = numbers("score", values)
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 2.0]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_a_column_of_doubles_is_read_as_it_is(values):
    array = np.array(values, np.float64)
    assert numbers("score", array) is array
    assert numbers("score", values).tolist() == values


def test_labels_and_weights_may_be_booleans_and_scores_may_not():
    assert labels("label", [True, False]).tolist() == [1.0, 0.0]
    assert weights("weight", np.array([True, False])).tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match="score: expected a column of numbers, got booleans; convert it to numbers"):
        numbers("score", [True, False])


def test_the_score_is_the_column_named_or_called_so_or_left_over():
    frame = {"raw": [1.0], "score": [2.0], "device": ["tv"]}
    assert read_rows(frame, ["device"]).score.tolist() == [2.0]
    assert read_rows(frame, ["device"], score="raw").score.tolist() == [1.0]
    assert read_rows({"raw": [1.0], "device": ["tv"]}, ["device"]).score.tolist() == [1.0]
    assert read_rows(frame, ["device"], other=["score"]).score_name == "raw"
    with pytest.raises(InputError, match=r"X: expected a frame with the columns \['raw'\], got an array; give a frame"):
        read_rows([1.0], score="raw")
    with pytest.raises(InputError, match="column other: expected it in the frame, got only"):
        read_rows(frame, ["device"], score="other")


def test_a_lazy_frame_can_be_fitted_as_a_table():
    rows = {
        "score": np.tile([0.0, 1.0, 2.0, 3.0], 50),
        "label": np.tile([0, 1, 0, 1], 50),
        "device": ["tv", "web"] * 100,
    }
    lazy, eager = (
        IsotonicCalibrator(("device",)).fit_table(pl_frame(rows)) for pl_frame in (pl.LazyFrame, pl.DataFrame)
    )
    assert_array_equal(lazy.curves_.values, eager.curves_.values)


def test_contexts_may_be_tensors_and_lists():
    device = np.tile([0, 1], 200)
    label = np.tile([0, 1, 1, 1], 100)
    curves = IsotonicCalibrator(("device",)).fit({"score": np.zeros(400), "device": device}, label).curves_
    expected = curves.predict_proba([0.0, 0.0], {"device": np.array([0, 1])})
    assert expected[0] < expected[1]
    assert_array_equal(curves.predict_proba([0.0, 0.0], {"device": torch.tensor([0, 1])}), expected)
    layer = ContextIsotonicLayer({"device": 2})
    logit = torch.zeros(2)
    assert torch.equal(layer(logit, {"device": [0, 1]}), layer(logit, {"device": torch.tensor([0, 1])}))
