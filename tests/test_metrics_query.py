"""Metrics of a table against the same metrics of its rows, for every kind of source."""

import datetime

import duckdb
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolayer import InputError
from isolayer.metrics import BinSums, SegmentSums, Sums, f_rce_of, ratio_table, segmented_ne_of


def log(seed=0, n=3000):
    rng = np.random.default_rng(seed)
    prob = np.concatenate([rng.beta(1, 6, n - 4), [0.0, 1.0, 0.0, 1.0]])
    label = np.concatenate([(rng.random(n - 4) < prob[:-4]).astype(np.int8), [0, 1, 1, 0]])
    return {"prob": prob, "label": label, "weight": rng.uniform(0, 3, n), "device": rng.choice(["ios", "tv", "web"], n)}


SOURCES = {
    "dict": lambda columns, path: columns,
    "pandas": lambda columns, path: pd.DataFrame(columns),
    "polars": lambda columns, path: pl.DataFrame(columns),
    "path": lambda columns, path: (pq.write_table(pa.table(columns), path), str(path))[1],
    "ibis": lambda columns, path: ibis.memtable(pa.table(columns)),
    "relation": lambda columns, path: duckdb.connect().from_arrow(pa.table(columns)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("weight", [None, "weight"])
def test_sums_of_a_table_are_those_of_its_rows(source, weight, tmp_path):
    columns = log()
    table = SOURCES[source](columns, tmp_path / "log.parquet")
    rows = columns["label"], columns["prob"]
    own = None if weight is None else columns[weight]
    there, here = Sums.from_table(table, weight=weight), Sums.from_rows(*rows, own)
    for name in ("log_loss", "normalised_entropy", "brier", "pcoc", "background_rate"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), rel=1e-12)
    there, here = (
        SegmentSums.from_table(table, segment="device", weight=weight),
        SegmentSums.from_rows(*rows, columns["device"], own),
    )
    assert there.key.tolist() == here.key.tolist() == ["ios", "tv", "web"]
    np.testing.assert_allclose(ratio_table(there).lower, ratio_table(here).lower, rtol=1e-12)
    assert f_rce_of(there) == pytest.approx(f_rce_of(here), rel=1e-12)
    assert segmented_ne_of(there).mean == pytest.approx(segmented_ne_of(here).mean, rel=1e-12)
    there, here = BinSums.from_table(table, weight=weight), BinSums.from_rows(*rows, own)
    assert np.count_nonzero(~np.isclose(there.weight, here.weight)) <= 4  # a score on an edge may fall on either side
    assert there.auc == pytest.approx(here.auc, abs=1e-6)
    assert there.ece() == pytest.approx(here.ece(), abs=1e-6)
    assert there.smooth_ece() == pytest.approx(here.smooth_ece(), abs=1e-6)


def test_sums_of_days_add_up():
    one, two = log(1), log(2)
    both = {name: np.concatenate([one[name], two[name]]) for name in one}
    for cls, more in ((Sums, {}), (SegmentSums, {"segment": "device"}), (BinSums, {"bins": 64})):
        merged = cls.from_table(one, **more) + cls.from_table(two, **more)
        whole = cls.from_table(both, **more)
        np.testing.assert_allclose(merged.squared_error, whole.squared_error, rtol=1e-12)
        np.testing.assert_allclose(merged.expected, whole.expected, rtol=1e-12)


def test_columns_have_names_of_ones_own():
    columns = log()
    named = {"p": columns["prob"], "clicked": columns["label"].astype(bool), "day": np.arange(3000) % 7}
    found = SegmentSums.from_table(named, prob="p", label="clicked", segment="day")
    assert found.key.tolist() == list(range(7))
    assert found.total.positive == columns["label"].sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"prob": [0.5, 1.5]},
            r"rows: expected probabilities and labels in \[0, 1\] .* got 1 others in 2 rows; repair",
        ),
        ({"prob": [0.5, float("nan")]}, "got 1 others in 2 rows"),
        ({"prob": [None, None]}, "got 2 others in 2 rows"),
        ({"label": [0, 2]}, "got 1 others in 2 rows"),
        ({"weight": [1.0, -1.0]}, "got 1 others in 2 rows"),
        ({"prob": [], "label": [], "weight": [], "device": []}, "rows: expected at least one row, got 0"),
    ],
)
def test_rows_that_cannot_be_used_are_counted(change, message):
    rows = {"prob": [0.5, 0.5], "label": [0, 1], "weight": [1.0, 1.0], "device": ["tv", "web"]} | change
    types = {"prob": pa.float64(), "label": pa.int64(), "weight": pa.float64(), "device": pa.string()}
    table = pa.table({name: pa.array(rows[name], kind) for name, kind in types.items()})
    for ask in (
        lambda: Sums.from_table(table, weight="weight"),
        lambda: SegmentSums.from_table(table, segment="device", weight="weight"),
        lambda: BinSums.from_table(table, weight="weight"),
    ):
        with pytest.raises(InputError, match=message):
            ask()


def test_what_is_not_there_is_named():
    rows = {"prob": [0.5, 0.5], "label": [0, 1], "device": ["tv", None]}
    with pytest.raises(InputError, match=r"column score: expected it in the table, got \['prob', 'label', 'device'\]"):
        Sums.from_table(rows, prob="score")
    with pytest.raises(InputError, match="column device: expected no NULL or NaN segments, got some"):
        SegmentSums.from_table(rows, segment="device")
    with pytest.raises(InputError, match="column day: expected no NULL or NaN segments, got some"):
        SegmentSums.from_table(pa.table(rows | {"day": [1.0, np.nan]}), segment="day")
    for bins in (1, 2.5):
        with pytest.raises(
            InputError, match=f"bins: expected an integer from 2 to 16777216, got {bins}; 4096 is usual"
        ):
            BinSums.from_table(rows, bins=bins)


def each_of(table, **more):
    """The three sums of a table."""
    return (
        lambda: Sums.from_table(table, **more),
        lambda: SegmentSums.from_table(table, segment="device", **more),
        lambda: BinSums.from_table(table, **more),
    )


def test_rows_that_weigh_nothing_are_refused_as_by_rows():
    rows = {"prob": [0.5, 0.5], "label": [0, 1], "weight": [0.0, 0.0], "device": ["tv", "web"]}
    message = "weight: expected a positive sum, got 0.0; give some row a weight"
    with pytest.raises(InputError, match=message):
        Sums.from_rows(rows["label"], rows["prob"], rows["weight"])
    for ask in each_of(rows, weight="weight"):
        with pytest.raises(InputError, match=message):
            ask()


@pytest.mark.parametrize("name", ["prob", "label", "weight"])
@pytest.mark.parametrize(("value", "kind"), [("maybe", "string"), (datetime.date(2026, 1, 1), "date")])
def test_columns_that_are_no_numbers_are_refused(name, value, kind):
    rows = {"prob": [0.5, 0.5], "label": [0, 1], "weight": [1, 1], "device": ["tv", "web"]} | {name: [value, value]}
    for ask in each_of(rows, weight="weight"):
        message = f"column {name}: expected numbers, got {kind}; convert it"
        if name == "label":
            message = "column label: expected labels" + (", got date; convert it" if kind == "date" else r" \(0 and 1")
        with pytest.raises(InputError, match=message):
            ask()


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_segments_in_time_merge_with_those_of_rows(unit):
    prob, label = np.array([0.2, 0.4, 0.6]), np.array([0, 1, 1])
    days = np.array(["2026-01-02", "2026-01-01", "2026-01-02"], f"datetime64[{unit}]")
    there = SegmentSums.from_table({"prob": prob, "label": label, "day": days}, segment="day")
    here = SegmentSums.from_rows(label, prob, days)
    for both in (there + here, here + there):
        assert both.key.astype("datetime64[D]").tolist() == [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]
        np.testing.assert_allclose(both.expected, 2 * here.expected)
    if unit != "ns":  # Python's times have no nanoseconds
        by_object = SegmentSums.from_rows(label, prob, np.array(days.tolist(), dtype=object))
        np.testing.assert_allclose((there + by_object).expected, 2 * here.expected)


def test_nan_in_a_file_is_found(tmp_path):
    columns = {"prob": np.full(100, 0.5), "label": np.arange(100) % 2}
    columns["prob"][::10] = np.nan
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    with pytest.raises(InputError, match="got 10 others in 100 rows"):
        Sums.from_table(str(tmp_path / "log.parquet"))
