"""Columns of frames, whatever the frame."""

from datetime import timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from isolayer.errors import InputError
from isolayer.fitting.frames import column, column_names, numbers, refuse_missing, shares, times

FRAMES = [dict, pd.DataFrame, pl.DataFrame, pa.table]
named = pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.__name__)


@named
def test_names_and_columns_of_every_frame(frame):
    table = frame({"score": [1.0, 2.0], "day": [3, 4]})
    assert column_names(table) == ["score", "day"]
    assert numbers("score", column(table, "score")).tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match="column slot: expected it in the frame, got only"):
        column(table, "slot")


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((3, 1)), [1.0], pd.Series([1.0])])
def test_arrays_have_no_columns(array):
    assert column_names(array) is None


@named
def test_datetimes_are_seconds(frame):
    days = [np.datetime64("2024-01-01", "us"), np.datetime64("2024-01-02", "us")]
    seconds, half_life = times(frame({"day": np.array(days)}), "day", timedelta(hours=1))
    assert np.diff(seconds).tolist() == [86400]
    assert half_life == 3600


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: numbers("score", ["a"]), "score: expected a column of numbers, got could not convert"),
        (lambda: numbers("score", [np.inf]), "score: expected finite numbers, got inf in row 0"),
        (
            lambda: shares("negative_rate", np.array([0.0, 1.0])),
            r"negative_rate: expected shares in \(0, 1\], got 0.0 to 1.0",
        ),
        (lambda: times({"d": [1]}, "d", timedelta(1)), "half_life: expected a number in the units of d, got 1 day"),
        (
            lambda: times({"d": np.array(["2024"], "M8[D]")}, "d", 1),
            "half_life: expected a timedelta for the datetimes of d",
        ),
        (lambda: refuse_missing({"c": [1.0, None]}), "context c: expected no missing values, got 1 of 2 rows"),
    ],
)
def test_columns_that_will_not_do(call, message):
    with pytest.raises(InputError, match=message):
        call()
