"""Context keys: every kind of column gives the same codes, and values come back from them."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.errors import InputError
from isolayer.fitting.categories import KnownValues, combine, context_names, encode, lookup, typed

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
    for names in (("device", ""), (1,), (None,)):
        with pytest.raises(InputError, match=r"contexts: expected names of columns, got \(.*; name each column"):
            context_names(names)


def test_combinations_are_in_lexicographic_order():
    parts, group = combine([np.array([1, 0, 1, 0]), np.array([1, 1, 0, 1])], [2, 2], 4)
    assert [part.tolist() for part in parts] == [[0, 1, 1], [1, 0, 1]]
    assert group.tolist() == [2, 0, 1, 0]


FLOATS = {"numpy": np.array, "list": list, "arrow": pa.array, "polars": pl.Series, "pandas": pd.Series}


@pytest.mark.parametrize("container", FLOATS.values(), ids=FLOATS)
def test_a_number_that_equals_no_key_is_unseen_and_nan_is_missing(container):
    """Lookups never fail by value: engines cannot either."""
    column = container([7.0, -0.0, 0.5, 1e300, float("inf"), -float("inf"), float("nan")])
    assert lookup(column, np.array([0, 7])).tolist() == [1, 0, -1, -1, -1, -1, -1]
    assert lookup(column, np.array([0, 7, None], dtype=object)).tolist() == [1, 0, -1, -1, -1, -1, 2]


def test_integers_beyond_64_bits_are_unseen():
    known = np.array([2**63 - 1, None], dtype=object)
    assert lookup(np.array([2**63 - 1, 2**63], np.uint64), known).tolist() == [0, -1]
    assert lookup(pa.array([2**63 - 1, 2**63, None], pa.uint64()), known).tolist() == [0, -1, 1]
    assert lookup([Decimal(2**63 - 1), Decimal(2**63), Decimal(10) ** 30], known).tolist() == [0, -1, -1]


def test_whole_decimals_are_integers():
    rows = [Decimal("2.00"), None, Decimal("-1"), Decimal("2")]
    for column in (rows, pa.array(rows), pl.Series(rows), pd.Series(rows), np.array(rows, dtype=object)):
        vocabulary, codes = encode(column)
        assert (vocabulary.tolist(), codes.tolist()) == ([-1, 2, None], [1, 2, 0, 1])
    assert lookup([Decimal("2.5"), Decimal("2")], np.array([2])).tolist() == [-1, 0]
    tiny = pa.array([Decimal("2." + "0" * 29 + "1")], pa.decimal128(38, 30))  # a double would round it to 2
    assert lookup(tiny, np.array([2])).tolist() == [-1]


def test_strings_with_nul_are_unseen_and_no_keys():
    """Postgres cannot hold them and numpy drops them at the end of a string, so that "a" would stand for "a\0"."""
    asked = ["a", "a\0", "a\0b", "\0", ""]
    for name, container in CONTAINERS.items():
        if name == "pandas category" and container(asked).tolist() != asked:
            continue  # pandas 2 itself takes them for one category
        assert lookup(container(asked), np.array(["", "a"])).tolist() == [1, -1, -1, -1, 0]
    numpy = np.array(["a", "a\0b", "", "\0b"])  # numpy itself drops a NUL at the end
    for column in (numpy, numpy[::-1][::-1], numpy.astype(">U3")):
        assert lookup(column, np.array(["", "a"])).tolist() == [1, -1, 0, -1]
    with pytest.raises(InputError, match=r"context c: expected strings without NUL, got 'a\\x00'; clean the column"):
        encode(["b", "a\0"], "c")


@pytest.mark.parametrize(("kind", "bits"), [(np.float64, 53), (np.float32, 24), (np.float16, 11)])
def test_floats_too_narrow_for_the_keys_are_refused(kind, bits):
    known, column = np.array([0, 2**bits]), np.array([0.0], kind)
    message = rf"context c: expected integers, since some keys are beyond 2\*\*{bits}, got {kind.__name__}; convert the"
    for floats in (column, pa.array(column), pl.Series(column) if kind != np.float16 else column):
        with pytest.raises(InputError, match=message):
            lookup(floats, known, "c")
        assert lookup(floats, np.array([0, 2**bits - 1]), "c").tolist() == [0]
    with pytest.raises(InputError, match="context c: expected strings, integers or booleans, got"):
        encode(np.array([2**bits], kind), "c")


def test_only_values_that_occur_count():
    """A categorical may list what never occurs, be it unfit or missing."""
    words = pa.array(["b", "a\0", None, "a"])
    column = pa.DictionaryArray.from_arrays(pa.array([3, 0, None]), words)
    vocabulary, codes = encode(column)
    assert (vocabulary.tolist(), codes.tolist()) == (["a", "b", None], [0, 1, 2])
    column = pa.DictionaryArray.from_arrays(pa.array([3, 2]), words)  # missing by its word
    assert encode(column)[0].tolist() == ["a", None]


NOON = datetime.datetime(2026, 1, 1, 12)
UNFIT = {
    "fraction": (np.array([0.5]), "expected strings, integers or booleans, got 0.5; bin or convert it"),
    "decimal": ([Decimal("0.5")], "expected strings, integers or booleans, got 0.5; bin or convert it"),
    "infinity": ([float("inf")], "expected strings, integers or booleans, got inf; bin or convert it"),
    "mixture": (["a", 1], "expected values of one type, got a mixture"),
    "booleans and numbers": ([True, 1], "expected values of one type, got a mixture"),
    "large": (
        np.array([2**63], np.uint64),
        r"expected integers from -2\*\*63 to 2\*\*63 - 1, got 9223372036854775808;",
    ),
    "larger": ([2**70], r"expected integers from -2\*\*63 to 2\*\*63 - 1, got"),
    "large decimal": ([Decimal(2**63)], r"expected integers from -2\*\*63 to 2\*\*63 - 1, got 9223372036854775808;"),
    "date": ([datetime.date(2026, 1, 1)], "expected strings, integers or booleans, got date"),
    "time": (pd.Series([NOON]), "expected strings, integers or booleans, got timestamp"),
    "time zone": (pd.Series([NOON]).dt.tz_localize("Asia/Tokyo"), "expected strings, integers or booleans, got timest"),
    "numpy time": (np.array([NOON], "datetime64[s]"), "expected strings, integers or booleans, got timestamp"),
    "duration": ([datetime.timedelta(1)], "expected strings, integers or booleans, got duration"),
    "polars date": (pl.Series([NOON.date()]), "expected strings, integers or booleans, got date"),
    "category of dates": (
        pa.array([NOON]).dictionary_encode(),
        "expected strings, integers or booleans, got timestamp",
    ),
    "bytes": ([b"a"], "expected strings, integers or booleans, got binary"),
    "lists": ([[1], [2]], "expected strings, integers or booleans, got list"),
    "complex": (np.array([1j]), "expected strings, integers or booleans, got complex128"),
    "two dimensions": (np.zeros((2, 2)), r"expected one column, got shape \(2, 2\)"),
    "surrogate": (["\ud800"], "expected text, got invalid UTF-8"),
}


@pytest.mark.parametrize(("column", "message"), UNFIT.values(), ids=UNFIT)
def test_columns_that_cannot_be_keys(column, message):
    with pytest.raises(InputError, match=f"context c: {message}"):
        encode(column, "c")


@pytest.mark.parametrize(
    ("known", "column", "message"),
    [
        ([1], ["1"], "expected integers as when fitted, got strings"),
        (["1"], [1], "expected strings as when fitted, got integers"),
        (["1"], [1.5], "expected strings as when fitted, got integers"),
        ([0, 1], [True], "expected integers as when fitted, got booleans"),
        ([True], [1], "expected booleans as when fitted, got integers"),
        (["a"], [NOON], "expected strings, integers or booleans, got timestamp"),
    ],
)
def test_lookup_refuses_another_type(known, column, message):
    with pytest.raises(InputError, match=f"context c: {message}"):
        lookup(column, np.array(known), "c")


def test_nothing_has_every_type():
    for nothing in ([], [None, None], pa.nulls(2), np.array([np.nan]), pd.Series([None], dtype=object)):
        for known in (["a"], [1], [True]):
            assert set(lookup(nothing, np.array(known)).tolist()) <= {-1}
            assert set(lookup(nothing, np.array([*known, None], dtype=object)).tolist()) <= {1}


@given(
    st.lists(st.integers(-50, 50), min_size=1, unique=True),
    st.lists(st.lists(st.integers(-60, 60), max_size=5), min_size=2, max_size=4),
)
def test_known_values_answer_every_column_as_a_dictionary_does(known, columns):
    vocabulary = np.array(sorted(known), np.int64)
    values, expected = KnownValues(vocabulary), {value: place for place, value in enumerate(sorted(known))}
    for column in columns:
        found = values.lookup(np.array(column, np.int64)).tolist()
        assert found == [expected.get(value, -1) for value in column]
