"""Context keys: every kind of column gives the same codes, and values come back from them."""

import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.errors import InputError
from isolayer.fitting.categories import combine, context_names, encode, lookup, typed

STRINGS = ["b", "a", None, "b", "ü", ""]
CONTAINERS = {
    "list": list,
    "objects": lambda rows: np.array(rows, dtype=object),
    "pandas": pd.Series,
    "pandas category": lambda rows: pd.Series(rows, dtype="category"),
    "polars": pl.Series,
    "polars category": lambda rows: pl.Series(rows, dtype=pl.Categorical),
    "arrow": pa.array,
    "arrow chunks": lambda rows: pa.chunked_array([pa.array(rows[:2]), pa.array(rows[2:])]),
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_of_strings_gives_the_same_codes(container):
    vocabulary, codes = encode(container(STRINGS))
    assert vocabulary.tolist() == ["", "a", "b", "ü", None]
    assert codes.tolist() == [2, 1, 4, 2, 3, 0]


@pytest.mark.parametrize(
    "column",
    [
        np.array([3, 1, 3], np.int16),
        np.array([3, 1, 3], np.uint64),
        np.array([3.0, 1.0, 3.0]),
        [3, 1, 3],
        pd.Series([3, 1, 3], dtype="Int64"),
        pl.Series([3, 1, 3]),
        pa.array([3, 1, 3], pa.int8()),
    ],
    ids=lambda column: f"{type(column).__name__} {getattr(column, 'dtype', '')}",
)
def test_every_container_of_integers_gives_the_same_codes(column):
    vocabulary, codes = encode(column)
    assert vocabulary.dtype == np.int64
    assert (vocabulary.tolist(), codes.tolist()) == ([1, 3], [1, 0, 1])


@pytest.mark.parametrize("column", [np.array([True, False]), [True, False], pl.Series([True, False])])
def test_booleans_stay_booleans(column):
    vocabulary, codes = encode(column)
    assert vocabulary.dtype == bool
    assert (vocabulary.tolist(), codes.tolist()) == ([False, True], [1, 0])


def test_missing_integers_are_missing_in_every_guise():
    chunks = [pa.array([2.0]), pa.array([np.nan])]
    for column in (
        np.array([2.0, np.nan]),
        np.array([2.0, np.nan], np.float16),
        [2, None],
        [2.0, float("nan")],
        pd.Series([2, None], dtype="Int64"),
        pd.Series([2, None], dtype="Float64"),
        pl.Series([2, None]),
        pl.Series([2.0, float("nan")]),
        pa.array([2.0, np.nan]),
        pa.array([2.0, np.nan]).dictionary_encode(),
        pa.chunked_array(chunks),
    ):
        vocabulary, codes = encode(column)
        assert (vocabulary.tolist(), codes.tolist()) == ([2, None], [0, 1])


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62))))
def test_integers_come_back_from_their_codes(rows):
    vocabulary, codes = encode(np.array(rows, dtype=object))
    assert [vocabulary[code] for code in codes] == rows


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0")))))
def test_strings_come_back_from_their_codes(rows):
    vocabulary, codes = encode(np.array(rows, dtype=object))
    assert [vocabulary[code] for code in codes] == rows
    known, _ = typed(vocabulary)
    assert known.tolist() == sorted(set(rows) - {None})


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5)), st.lists(st.integers(-9, 9)))
def test_lookup_finds_what_is_there_and_only_that(known, asked):
    vocabulary, _ = encode(np.array(known, np.int64))
    found = lookup(np.array(asked, np.int64), vocabulary)
    for value, place in zip(asked, found, strict=True):
        assert (place >= 0 and vocabulary[place] == value) if value in known else place == -1


def test_lookup_of_scattered_integers_and_of_strings():
    scattered = np.array([-(2**60), 0, 2**60])
    assert lookup(np.array([2**60, 5, -(2**60)]), scattered).tolist() == [2, -1, 0]
    assert lookup(["b", None, "z"], np.array(["a", "b", None], dtype=object)).tolist() == [1, 2, -1]
    assert lookup(["b", None], np.array(["a", "b"])).tolist() == [1, -1]
    assert lookup(np.array([True, False]), np.array([True])).tolist() == [0, -1]


@pytest.mark.parametrize("end", [-(2**63), 2**63 - 4])
def test_lookup_at_the_ends_of_the_integers(end):
    vocabulary, _ = encode(np.array([end, end + 3]))
    asked = [end + 3, end, end + 1, 0, -(2**63), 2**63 - 1]
    expected = [{end: 0, end + 3: 1}.get(value, -1) for value in asked]
    assert lookup(np.array(asked), vocabulary).tolist() == expected


def test_names_of_contexts():
    assert context_names(["device", "slot"]) == ("device", "slot")
    with pytest.raises(InputError, match=r"contexts: expected names in a tuple, got 'device'; use \('device',\)"):
        context_names("device")


def test_combinations_are_in_lexicographic_order():
    parts, group = combine([np.array([1, 0, 1, 0]), np.array([1, 1, 0, 1])], [2, 2], 4)
    assert [part.tolist() for part in parts] == [[0, 1, 1], [1, 0, 1]]
    assert group.tolist() == [2, 0, 1, 0]


def test_without_arrow_the_answers_are_the_same(monkeypatch):
    with_arrow = encode(STRINGS)
    monkeypatch.setattr("isolayer.fitting.categories.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "pyarrow")
    without = encode(STRINGS)
    assert [part.tolist() for part in with_arrow] == [part.tolist() for part in without]
    assert encode([True, None])[0].tolist() == [True, None]
    assert encode([2.0, float("nan")])[0].tolist() == [2, None]
    with pytest.raises(InputError, match="one type"):
        encode(["a", 1])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.array([0.5]), r"context c: expected strings, integers or booleans, got 0.5; bin or convert it"),
        (["a", 1], r"context c: expected values of one type, got a mixture"),
        (
            pd.Series(pd.to_datetime(["2020-01-01"])),
            r"context c: expected strings, integers or booleans, got timestamp",
        ),
        (np.array([2**63], np.uint64), r"context c: expected integers below 2\*\*63, got 9223372036854775808"),
    ],
)
def test_columns_that_cannot_be_keys(column, message):
    with pytest.raises(InputError, match=message):
        encode(column, "c")


def test_lookup_refuses_another_type():
    with pytest.raises(
        InputError, match="context c: expected integers as when fitted, got strings; convert the column"
    ):
        lookup(["1"], np.array([1]), "c")
