"""Histograms from tables: what engines sum is what numpy sums; bad rows are counted, refused or left out."""

import datetime
from decimal import Decimal

import duckdb
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram, bin_of
from isolayer.grid import Grid
from isolayer.tables.engine_answer import columns_of, histogram_of_cells
from isolayer.tables.folds import fold_of
from isolayer.tables.histogram_query import ColumnSpec, RowsDropped, grouped, histogram_of, sample_query
from isolayer.tables.sources import as_table, collect, collect_sparingly, double, engine

NAN = float("nan")
DIALECTS = ("duckdb", "bigquery", "snowflake", "trino", "postgres")


def rows(seed=0, n=3000):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "score": rng.normal(-2, 4, n),
            "label": rng.random(n) < 0.3,
            "device": rng.choice(["tv", "web", "phone"], n),
            "position": rng.integers(0, 20, n),
            "weight": rng.choice([0.0, 0.5, 2.0], n),
            "rate": rng.choice([0.1, 0.5, 1.0], n),
        }
    )


def from_arrays(table, contexts=("device", "position"), weight=None, fold=None, grid=None, negative_rate=1.0):
    context, given = {name: table[name] for name in contexts}, {"grid": grid, "negative_rate": negative_rate}
    return Histogram.from_arrays(table["score"], table["label"], context, weight, fold, **given)


def assert_same(one, two, tolerance=1e-12):
    assert (one.grid, one.contexts) == (two.grid, two.contexts)
    for mine, theirs in zip(one.keys, two.keys, strict=True):
        assert mine.tolist() == theirs.tolist()
    for name in ("group", "fold", "bin", "negative_rate", "count"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    for name in ("weight", "weight_squared", "positive", "logit"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=tolerance, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    table = rows()
    pq.write_table(table.slice(0, 1000), folder / "a.parquet")
    pq.write_table(table.slice(1000), folder / "b.parquet")
    return folder


@pytest.mark.parametrize(
    "source",
    ["ibis", "glob", "folder", "relation", "pandas", "polars", "pyarrow", "dict"],
)
def test_every_source_gives_the_histogram_of_its_rows(source, parquet):
    table = rows()
    given = {
        "ibis": lambda: ibis.memtable(table),
        "glob": lambda: str(parquet / "*.parquet"),
        "folder": lambda: parquet,
        "relation": lambda: duckdb.connect().read_parquet(str(parquet / "*.parquet")),
        "pandas": table.to_pandas,
        "polars": lambda: pl.from_arrow(table),
        "pyarrow": lambda: table,
        "dict": lambda: {name: table[name].to_pylist() for name in table.column_names},
    }[source]()
    histogram, dropped = histogram_of(given, ColumnSpec(("device", "position")))
    assert_same(histogram, from_arrays(table))
    assert dropped == {}


def test_weights_are_summed_and_rows_of_weight_zero_are_absent():
    table = rows()
    histogram, _ = histogram_of(table, ColumnSpec(("device",), weight="weight"))
    assert_same(histogram, from_arrays(table, ("device",), table["weight"]))
    assert histogram.rows < len(table)


@pytest.mark.parametrize("rate", [0.1, "rate"])
@pytest.mark.parametrize("contexts", [(), ("device", "position")])
def test_rows_sampled_at_different_rates_stay_apart(rate, contexts):
    table = rows()
    share = table[rate] if isinstance(rate, str) else rate
    got, _ = histogram_of(table, ColumnSpec(contexts, negative_rate=rate))
    assert_same(got, from_arrays(table, contexts, negative_rate=share))


def test_a_column_of_many_rates_is_refused_before_it_is_grouped():
    table = rows().append_column("many", pa.array(np.linspace(0.1, 1, 3000)))
    with pytest.raises(InputError, match="negative_rate: expected at most 100 distinct rates, got 3000; round them"):
        histogram_of(table, ColumnSpec(negative_rate="many"))


def test_old_rows_weigh_less():
    table, start = rows(n=200), datetime.datetime(2026, 1, 1)
    day = np.arange(200) % 9
    table = table.append_column("day", pa.array(day))
    times = [start + datetime.timedelta(days=int(d), microseconds=250_000) for d in day]
    table = table.append_column("time", pa.array(times))
    want = from_arrays(table, (), np.exp2(-(8 - day) / 3))
    assert_same(histogram_of(table, ColumnSpec(half_life=("day", 3)))[0], want)
    assert_same(histogram_of(table, ColumnSpec(half_life=("time", datetime.timedelta(days=3))))[0], want)
    with pytest.raises(InputError, match="half_life: expected a timedelta for the datetimes of time, got 3; give one"):
        histogram_of(table, ColumnSpec(half_life=("time", 3)))


def test_probabilities_become_logits_in_the_engine():
    prob = np.concatenate([np.random.default_rng(0).random(500), [0.0, 1.0, 0.5]])
    label = (np.arange(503) % 3 == 0).astype(float)
    got, _ = histogram_of({"score": prob, "label": label}, ColumnSpec(scale="prob"))
    assert_same(got, Histogram.from_arrays(logit_of(prob), label))


@given(
    score=st.lists(st.floats(-1e6, 1e6) | st.integers(-1000, 500).map(lambda k: k / 20), min_size=1, max_size=60),
    lower=st.sampled_from([-17.0, -1 / 3, -0.1, 1e-7]),
    step=st.sampled_from([0.2, 0.3, 1 / 3, 0.07, 1e-3]),
)
@settings(max_examples=40, deadline=None)
def test_bins_are_equal_to_the_bit(score, lower, step):
    grid = Grid(lower=lower, upper=lower + 40 * step, step=step)
    score = np.array([*score, *grid.knots, *(grid.lower + np.arange(160) * grid.step / 4)])
    frame = {"id": np.arange(len(score)), "score": score, "label": np.zeros(len(score))}
    cells = collect(frame, lambda table: grouped(table, ColumnSpec(("id",), grid=grid))).sort_by("context_0")
    np.testing.assert_array_equal(cells["bin"].to_numpy(), bin_of(score, grid))


@given(value=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15))
@settings(max_examples=60, deadline=None)
def test_a_literal_is_read_as_the_same_double(value):
    value = 0.0 if abs(value) < 1e-3 else value
    one = ibis.table({"a": "int64"}, name="one")
    sql = ibis.to_sql(one.select(value=double(value)), dialect="duckdb")
    literal = sqlglot.parse_one(sql, read="duckdb").expressions[0].this.sql("duckdb")
    assert duckdb.connect().sql(f"SELECT CAST({literal} AS DOUBLE)").fetchall() == [(value,)]


def test_folds_are_a_hash_that_numpy_repeats():
    table = rows()
    got, _ = histogram_of(table, ColumnSpec(("device",), folds=5))
    fold = fold_of(table["score"].to_numpy(), 5)
    assert_same(got, from_arrays(table, ("device",), fold=fold))
    assert np.bincount(fold).min() > 0.8 * len(table) / 5
    assert_same(got.folded(), histogram_of(table, ColumnSpec(("device",)))[0])


@pytest.mark.parametrize("column", ["position", "device"])
def test_folds_by_a_column_keep_its_values_together(column):
    got, _ = histogram_of(rows(), ColumnSpec((column,), folds=(3, column)))
    folds = [set(got.fold[got.group == group].tolist()) for group in range(got.groups)]
    assert all(len(fold) == 1 for fold in folds)
    assert len(set().union(*folds)) > 1


def bad_rows():
    return pd.DataFrame(
        {
            "score": [0.1, None, np.nan, np.inf, 0.2, 0.3, 0.4, 0.5],
            "label": [1.0, 1.0, 0.0, 0.0, 2.0, None, 1.0, 0.0],
            "weight": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0],
            "device": ["tv", "tv", "tv", "tv", "tv", "tv", "tv", None],
        }
    )


def test_bad_rows_are_counted_by_kind_with_a_query_that_finds_them(tmp_path):
    path = tmp_path / "bad.parquet"
    bad_rows().to_parquet(path)
    spec = ColumnSpec(("device",), weight="weight", missing="error")
    with pytest.raises(InputError) as caught:
        histogram_of(path, spec)
    text = str(caught.value)
    assert text.startswith(
        "rows: expected finite scores, labels in [0, 1], weights from 0 to 1e+100, no missing contexts, got 3 scores "
        "that are NULL, NaN or infinite, 2 labels that are NULL or outside [0, 1], 1 weights that are NULL, negative "
        "or above 1e+100, 1 contexts that are NULL or NaN in 8 rows; repair them, give missing contexts "
        'a curve of their own by missing="own", or leave them out by on_bad_rows="drop". To see some: SELECT'
    )
    found = duckdb.connect().sql(text.split("To see some: ")[1]).to_arrow_table()
    assert len(found) == 7


def test_bad_rows_are_left_out_when_asked_for():
    spec = ColumnSpec(("device",), weight="weight", missing="error")
    with pytest.warns(RowsDropped, match="left out of 8 rows: 3 scores"):
        histogram, dropped = histogram_of(bad_rows(), spec, on_bad_rows="drop")
    assert (histogram.rows, sum(dropped.values())) == (1, 7)


def test_a_missing_context_is_a_context_of_its_own_unless_refused():
    frame = bad_rows().iloc[[0, 7]]
    assert histogram_of(frame, ColumnSpec(("device",)))[0].keys[0].tolist() == ["tv", None]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ColumnSpec(score="nope"), r"column nope: expected it in the table, got \['score', .*; name another"),
        (ColumnSpec(label="device"), r"column device: expected labels \(0 and 1, .*\), got .*; write 1 for the event"),
        (ColumnSpec(folds=(5, "weight")), "folds: expected integers or strings in weight, got float64; convert it"),
    ],
)
def test_a_wrong_reading_is_refused(spec, message):
    with pytest.raises(InputError, match=message):
        histogram_of(rows(n=10), spec)
    with pytest.raises(InputError, match=r"folds: expected an integer from 1 to 127, got 500; try 5, or \(5, a column"):
        ColumnSpec(folds=500)


def test_a_wrong_source_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"table: expected a file at '.*none.parquet', got none; check the path"):
        histogram_of(tmp_path / "none.parquet", ColumnSpec())
    with pytest.raises(InputError, match=r"table: expected an Ibis table, a Parquet path, .*, got int .*; convert it"):
        histogram_of(3, ColumnSpec())
    with pytest.raises(InputError, match="on_bad_rows: expected 'error' or 'drop', got 'skip'; choose one"):
        histogram_of(rows(n=10), ColumnSpec(), on_bad_rows="skip")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_expression_compiles_to_one_grouped_statement(dialect):
    table = ibis.table({"score": "float32", "label": "int8", "device": "string", "position": "int64"}, name="logs")
    sql = ibis.to_sql(grouped(table, ColumnSpec(("device", "position"), folds=5)), dialect=dialect)
    tree = sqlglot.parse_one(sql, read=dialect)
    assert len(list(tree.find_all(sqlglot.exp.Group))) == 1
    assert not list(tree.find_all(sqlglot.exp.Join))
    assert not list(tree.find_all(sqlglot.exp.Window))
    assert [table.name for table in tree.find_all(sqlglot.exp.Table) if table.name == "logs"] == ["logs"]


def calibrators(**options):
    return [IsotonicCalibrator(("device", "position"), **options) for _ in range(2)]


@pytest.mark.parametrize(
    "options",
    [{}, {"negative_rate": 0.2}, {"negative_rate": "rate"}, {"strict": False}, {"half_life": ("position", 3.0)}],
    ids=str,
)
def test_a_fit_of_a_table_is_the_fit_of_its_rows(options, parquet):
    here, there = calibrators(**options)
    table = rows()
    frame = table.drop_columns(["label", "weight"])
    here.fit(frame, table["label"].to_numpy(), sample_weight=table["weight"].to_numpy())
    there.fit_table(str(parquet / "*.parquet"), weight="weight")
    np.testing.assert_allclose(prob_of(there.curves_.values), prob_of(here.curves_.values), rtol=0, atol=1e-9)
    np.testing.assert_allclose(there.predict_proba(frame), here.predict_proba(frame), rtol=0, atol=1e-9)
    applied = there.apply_table(table).order_by("score").to_pyarrow()
    expected = here.predict_proba(frame.sort_by("score"))[:, 1]
    np.testing.assert_allclose(applied["calibrated_prob"].to_numpy(), expected, rtol=0, atol=1e-9)


def test_a_fit_of_a_table_holds_to_the_settings():
    table = rows()
    with pytest.raises(
        InputError, match="half_life: expected a time column and a length, got 100 rows; a table has no"
    ):
        IsotonicCalibrator(half_life=100).fit_table(table)
    with pytest.raises(
        InputError,
        match=r"rows: expected finite scores, labels in .*, no missing contexts, got 1 contexts that are NULL",
    ):
        IsotonicCalibrator(("device",)).fit_table(bad_rows().iloc[[0, 7]])
    with pytest.warns(RowsDropped):
        dropping = IsotonicCalibrator(("device",)).fit_table(
            pd.concat([bad_rows(), rows().to_pandas()]), on_bad_rows="drop"
        )
    assert sum(dropping.dropped_rows_.values()) == 6  # one of the bad rows is bad by its weight only
    one = rows().filter(rows()["label"])
    with pytest.raises(InputError, match="expected both classes among the rows"):
        IsotonicCalibrator().fit_table(one)
    for empty in (table.slice(0, 0), {"score": [], "label": []}, table.to_pandas().iloc[:0]):
        with pytest.raises(InputError, match="table: expected a row with a positive weight, got none"):
            IsotonicCalibrator().fit_table(empty)


def test_the_histogram_has_the_same_door():
    table = rows()
    assert_same(Histogram.from_table(table, ("device",), grid=Grid()), from_arrays(table, ("device",)))
    with pytest.raises(InputError, match="scale: expected 'logit' or 'prob', got 'probs'; choose one"):
        Histogram.from_table(table, ("device",), scale="probs")
    with pytest.raises(InputError, match=r"contexts: expected every name once, got \('device', 'device'\)"):
        Histogram.from_table(table, ("device", "device"))
    with pytest.raises(InputError, match="contexts: expected names in a tuple, got 'device'"):
        Histogram.from_table(table, "device")


NAMES = ("weight", "fold", "weight_squared", "bin", "label", "logit", "count", "positive", "score", "context_0")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weight", [None, "w"])
def test_a_context_may_have_any_name(name, weight):
    table = rows(n=400)
    columns = {"s": table["score"], "y": table["label"], "w": table["weight"], "context_1": table["device"]}
    spec = ColumnSpec((name, "context_1"), score="s", label="y", weight=weight)
    got, _ = histogram_of(columns | {name: table["position"]}, spec)
    want = from_arrays(table, ("position", "device"), None if weight is None else table["weight"])
    assert got.contexts == (name, "context_1")
    for mine, theirs in zip(got.keys, want.keys, strict=True):
        assert mine.tolist() == theirs.tolist()
    for column in ("group", "fold", "bin", "count"):
        np.testing.assert_array_equal(getattr(got, column), getattr(want, column))
    np.testing.assert_allclose(got.weight, want.weight)
    np.testing.assert_allclose(got.positive, want.positive)


def test_a_context_that_is_nan_is_missing():
    table = rows(n=300)
    gaps = np.where(np.arange(300) % 7 == 0, np.nan, table["position"].to_numpy())
    nan = pa.array(gaps)  # NaN stays NaN
    null = pa.array([None if value != value else int(value) for value in gaps.tolist()])
    half = pa.array([None if row == 0 else value for row, value in enumerate(gaps.tolist())])  # one NULL, many NaN
    place = table.column_names.index("position")
    got = [
        histogram_of(table.set_column(place, "position", column), ColumnSpec(("position",)))[0]
        for column in (nan, half)
    ]
    want, _ = histogram_of(table.set_column(place, "position", null), ColumnSpec(("position",)))
    for histogram in got:
        assert_same(histogram, want)
    assert want.keys[0].tolist()[-1] is None
    with pytest.raises(InputError, match="no missing contexts, got 43 contexts that are NULL or NaN in 300 rows"):
        histogram_of(table.set_column(place, "position", half), ColumnSpec(("position",), missing="error"))


def test_a_fine_grid_has_bins_of_its_own():
    table, grid = rows(n=500), Grid(lower=-8, upper=8, step=16 / 10_000)
    got, _ = histogram_of(table, ColumnSpec(grid=grid))
    assert_same(got, from_arrays(table, (), grid=grid))
    assert got.bin.max() > np.iinfo(np.int16).max


def test_weights_have_limits():
    table = {"score": [0.1, 0.2, 0.3], "label": [0, 1, 1], "weight": [1.0, 5e-324, 2.0]}
    got, _ = histogram_of(table, ColumnSpec(weight="weight"))
    assert_same(got, Histogram.from_arrays(table["score"], table["label"], weight=table["weight"]))
    assert got.rows == 2
    with pytest.raises(InputError, match=r"got 1 weights that are NULL, negative or above 1e\+100 in 3 rows"):
        histogram_of(table | {"weight": [1.0, 1e101, 2.0]}, ColumnSpec(weight="weight"))


@pytest.mark.parametrize("time", [np.nan, np.inf, None])
def test_times_that_are_none_are_counted_and_the_others_keep_theirs(time):
    frame = {"score": [0.1, 0.2, 0.3], "label": [0, 1, 1], "t": pa.array([0.0, 2.0, time])}
    spec = ColumnSpec(half_life=("t", 1.0))
    with pytest.raises(InputError, match="got 1 times that are NULL, NaN or infinite in 3 rows"):
        histogram_of(frame, spec)
    with pytest.warns(RowsDropped):
        got, _ = histogram_of(frame, spec, on_bad_rows="drop")
    assert_same(got, Histogram.from_arrays([0.1, 0.2], [0, 1], weight=[0.25, 1.0]))


def test_scores_are_reported_on_their_scale():
    frame = {"score": [0.1, 1.5, None], "label": [0, 1, 1]}
    with pytest.raises(
        InputError, match=r"rows: expected scores in \[0, 1\], .* got 2 scores that are NULL or outside"
    ):
        histogram_of(frame, ColumnSpec(scale="prob"))


@pytest.mark.filterwarnings("ignore:fetch_arrow_table")  # Ibis asks DuckDB by a name that DuckDB 2 deprecates
def test_the_query_for_bad_rows_reads_the_files(tmp_path):
    folder = tmp_path / "a 'log'  of rows"
    folder.mkdir()
    bad_rows().to_parquet(folder / "bad.parquet")
    bad_rows().to_parquet(folder / "no suffix")
    bad_rows().to_csv(folder / "bad.csv", index=False)
    spec = ColumnSpec(weight="weight")
    for source in (
        folder,
        folder / "bad.parquet",
        str(folder / "*.parquet"),
        folder / "no suffix",
        as_table(folder / "bad.parquet"),
        ibis.read_csv(folder / "bad.csv").mutate(more=1),
    ):
        assert len(duckdb.connect().sql(sample_query(source, spec)).to_arrow_table()) == 6


@pytest.mark.parametrize("bad", ["score", "label", "weight", "rate"])
def test_nan_in_a_file_is_found(bad, tmp_path):
    """DuckDB takes BETWEEN from the minimum and maximum that a file notes, and these leave NaN out."""
    columns = {name: rows()[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in ("score", "label")}
    columns |= {"weight": np.ones(3000), "rate": np.full(3000, 0.5)}
    columns[bad][::50] = np.nan
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    spec = ColumnSpec(weight="weight", negative_rate="rate")
    with pytest.raises(InputError, match="got 60 "):
        histogram_of(str(tmp_path / "log.parquet"), spec)


CONTEXTS = {
    "floats": pa.array([1.0, -0.0, 0.0, NAN, None, 3.0]),
    "single floats": pa.array([1.0, -0.0, NAN, None], pa.float32()),
    "fractions": pa.array([1.0, 0.5]),
    "infinite": pa.array([1.0, float("inf")]),
    "large floats": pa.array([2.0**53]),
    "integers": pa.array([-(2**63), 2**63 - 1, None]),
    "unsigned": pa.array([0, 2**63 - 1], pa.uint64()),
    "large unsigned": pa.array([2**63], pa.uint64()),
    "decimals": pa.array([Decimal("1.00"), Decimal("2"), None], pa.decimal128(10, 2)),
    "fractions of decimals": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
    "large decimals": pa.array([Decimal(2**63)], pa.decimal128(38, 0)),
    "booleans": pa.array([True, None, False, True]),
    "strings": pa.array(["", "a", "A", None, "a "]),
    "categories": pa.array(["b", "a", None]).dictionary_encode(),
    "NUL": pa.array(["a", "a\0"]),
    "nothing": pa.nulls(2),
    "dates": pa.array([datetime.date(2026, 1, 1)]),
    "times": pa.array([datetime.datetime(2026, 1, 1)]),
    "times of a zone": pa.array([datetime.datetime(2026, 1, 1)], pa.timestamp("us", "UTC")),
    "bytes": pa.array([b"a"]),
}
REFUSED = ("fractions", "infinite", "large", "NUL", "dates", "times", "bytes")


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("kind", ["frame", "path", "relation"])
def test_an_engine_finds_the_contexts_that_numpy_finds(name, kind, tmp_path):
    """Every type of column that can be a context gives the same keys, and every other is refused by both."""
    column = CONTEXTS[name]
    table = pa.table({"score": np.zeros(len(column)), "label": np.arange(len(column)) % 2, "context": column})
    pq.write_table(table, tmp_path / "log.parquet")
    sources = {"frame": table, "path": tmp_path / "log.parquet", "relation": duckdb.connect().from_arrow(table)}
    asks = (
        lambda: from_arrays(table, ("context",)),
        lambda: histogram_of(sources[kind], ColumnSpec(("context",), missing="own"))[0],
    )
    if name.startswith(REFUSED):
        for ask in asks:
            with pytest.raises(InputError, match="context context: expected "):
                ask()
    else:
        assert_same(*(ask() for ask in asks))


def test_a_lazy_frame_of_polars_through_ibis_is_summed_and_calibrated():
    import ibis
    import polars as pl

    from isolayer import Curves
    from isolayer.tables.apply import apply_table

    rng = np.random.default_rng(0)
    data = {"score": rng.normal(size=300), "label": rng.integers(0, 2, 300), "device": rng.choice(["tv", "web"], 300)}
    frame = pl.DataFrame(data | {"id": np.arange(300)})
    table = ibis.polars.connect({"logs": frame.lazy()}).table("logs")
    there, _ = histogram_of(table, ColumnSpec(("device",)))
    here = Histogram.from_arrays(data["score"], data["label"], {"device": data["device"]})
    np.testing.assert_array_equal(there.count, here.count)
    np.testing.assert_allclose(there.logit, here.logit, atol=1e-12)
    curves = Curves.from_histogram(here)
    prob = apply_table(curves, table).order_by("id").to_pyarrow()["calibrated_prob"].to_numpy()
    np.testing.assert_allclose(prob, curves.predict_proba(data["score"], {"device": data["device"]}), atol=1e-12)


def test_a_lazy_frame_of_polars_is_a_table_as_its_collected_frame_is():
    import polars as pl

    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"score": rng.normal(size=300), "label": rng.integers(0, 2, 300), "shop": np.arange(300) % 3})
    some = frame.filter(pl.col("score") > -1)
    assert len(some) < 300
    lazy, eager = (
        histogram_of(one, ColumnSpec(("shop",)))[0] for one in (frame.lazy().filter(pl.col("score") > -1), some)
    )
    np.testing.assert_array_equal(lazy.count, eager.count)
    np.testing.assert_array_equal(lazy.logit, eager.logit)


def limit():
    return engine().con.execute("SELECT current_setting('memory_limit')").fetchall()[0][0]


def test_grouping_needs_little_memory_and_leaves_the_engine_as_it_was(monkeypatch):
    asked, usual = [], limit()

    def ask(table):
        asked.append(limit())
        if len(asked) == 1 and fails:
            raise duckdb.OutOfMemoryException("too little")
        return table.agg(total=table.a.sum())

    monkeypatch.setattr("isolayer.tables.sources._MEMORY", 100)
    for fails in (False, True):
        asked.clear()
        assert collect_sparingly({"a": [1, 2]}, ask)["total"].to_pylist() == [3]
        assert asked[0] != usual
        assert asked[1:] == [usual] * fails, "what cannot be kept on disk is asked again without a limit"
        assert limit() == usual
    relation, fails = duckdb.sql("SELECT 1 AS a"), False
    asked.clear()
    collect_sparingly(relation, ask)
    assert asked == [usual], "the connection of a user is left alone"


def test_more_groups_than_fit_in_memory_are_summed_on_disk(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    many = 400_000
    table = pa.table({"shop": rng.permutation(many), "score": rng.normal(size=many), "label": rng.integers(0, 2, many)})
    pq.write_table(table, tmp_path / "log.parquet")
    monkeypatch.setattr("isolayer.tables.sources._MEMORY", 16)
    histogram, _ = histogram_of(tmp_path / "log.parquet", ColumnSpec(("shop",), grid=Grid()))
    assert histogram.groups == histogram.rows == many
    order = np.argsort(table["shop"].to_numpy())
    np.testing.assert_array_equal(histogram.logit, table["score"].to_numpy()[order])
    np.testing.assert_array_equal(histogram.positive, table["label"].to_numpy()[order])


def test_an_engine_that_gives_a_cell_twice_or_in_any_order_is_understood():
    answer = pa.table(
        {
            "context_0": pa.chunked_array([["b", "a"], ["b"]]),
            "bin": pa.chunked_array([pa.array([3, 2], pa.int32()), pa.array([3], pa.int32())]),
            "count": pa.chunked_array([[1, 2], [4]]),
            "positive": pa.chunked_array([[1.0, 0.0], [2.0]]),
            "logit": pa.chunked_array([[0.5, 0.1], [1.5]]),
        }
    )
    columns = columns_of(answer.schema, answer.to_batches())
    found = histogram_of_cells(columns, ("device",), Grid(lower=0, upper=4, step=1), 1.0)
    assert [found.keys[0].tolist(), found.group.tolist(), found.bin.tolist()] == [["a", "b"], [0, 1], [2, 3]]
    assert [found.count.tolist(), found.positive.tolist(), found.logit.tolist()] == [[2, 5], [0, 3], [0.1, 2.0]]
    assert found.negative_rate.tolist() == [1.0, 1.0]
