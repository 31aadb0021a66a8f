"""Curves in SQL: engines answer what numpy answers, and every dialect gets a statement it can parse."""

import duckdb
import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot
from curve_examples import columns, fitted, questions

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid
from isolayer.tables.apply import DIALECTS, apply_table, lookup_tables, to_sql

CASES = [
    ((), "logit", False),
    (("device",), "logit", False),
    (("position",), "prob", False),
    (("device", "position"), "logit", False),
    (("device", "position"), "prob", True),
    (("position", "device"), "logit", True),
]


def expected(curves, data):
    return curves.predict_proba(data["score"], {name: data[name] for name in curves.contexts} or None)


def in_order(table):
    return table.sort_by("id")["calibrated_prob"].to_numpy()


@pytest.mark.parametrize(("contexts", "scale", "missing"), CASES)
def test_a_table_gets_the_probabilities_of_numpy(contexts, scale, missing):
    curves, data = fitted(contexts, scale=scale, missing=missing), questions(scale, missing=missing)
    table = apply_table(curves, data)
    assert isinstance(table, ibis.Table)
    assert table.columns == (*data, "calibrated_prob")
    np.testing.assert_allclose(in_order(table.to_pyarrow()), expected(curves, data), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("contexts", "scale", "missing"), CASES)
def test_a_written_statement_runs_and_agrees(contexts, scale, missing):
    curves, data = fitted(contexts, scale=scale, missing=missing), questions(scale, missing=missing)
    connection = duckdb.connect()
    connection.register("logs", pa.table(data))
    answer = connection.sql(to_sql(curves, table="logs", keep=["id"])).to_arrow_table()
    assert answer.column_names == ["id", "score", *contexts, "calibrated_prob"]
    np.testing.assert_allclose(in_order(answer), expected(curves, data), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("missing", [False, True])
def test_a_statement_is_parsed_by_its_dialect(dialect, missing):
    curves = fitted(("device", "position"), missing=missing)
    tree = sqlglot.parse_one(to_sql(curves, dialect, table="shop.logs"), read=dialect)
    assert tree.named_selects == ["score", "device", "position", "calibrated_prob"]
    joins = list(tree.find_all(sqlglot.exp.Join))
    assert len(joins) == 3  # one a level and one for the cells
    names = {table.sql(dialect).split(" AS")[0] for table in tree.find_all(sqlglot.exp.Table) if table.db}
    assert names == {"shop.logs"}
    assert not list(tree.find_all(sqlglot.exp.Star))[2:]  # only those of the two written tables
    for column in tree.find_all(sqlglot.exp.Column):
        assert column.args["this"].quoted


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in DIALECTS if dialect != "bigquery"]
)  # no way back for STRUCT
def test_a_statement_means_the_same_in_every_dialect(dialect):
    curves, data = fitted(("device", "position")), questions()
    connection = duckdb.connect()
    connection.register("logs", pa.table(data))
    there = to_sql(curves, dialect, table="logs", keep=["id"])
    back = sqlglot.transpile(there, read=dialect, write="duckdb")[0]
    np.testing.assert_allclose(
        in_order(connection.sql(back).to_arrow_table()), expected(curves, data), rtol=0, atol=1e-9
    )


def test_scores_that_cannot_be_used_get_null():
    score = pa.array([None, float("nan"), float("inf"), -float("inf"), 0.0])
    table = apply_table(Curves.identity(Grid()), {"id": range(5), "score": score})
    assert table.order_by("id").to_pyarrow()["calibrated_prob"].to_pylist() == [None, None, None, None, 0.5]
    table = apply_table(Curves.identity(Grid(), scale="prob"), {"id": range(3), "score": [-0.1, 1.1, 0.5]})
    got = table.order_by("id").to_pyarrow()["calibrated_prob"].to_pylist()
    assert got[:2] == [None, None]
    assert got[2] == pytest.approx(0.5, abs=1e-12)


def test_a_relation_stays_on_its_connection():
    curves, data = fitted(), questions()
    connection = duckdb.connect()
    connection.register("rows", pa.table(data))
    answer = apply_table(curves, connection.sql("SELECT * FROM rows"))
    assert type(answer).__name__ == "DuckDBPyRelation"
    np.testing.assert_allclose(in_order(answer.to_arrow_table()), expected(curves, data), rtol=0, atol=1e-9)


def test_a_path_is_read_and_written_lazily(tmp_path):
    curves, data = fitted(), questions()
    pq.write_table(pa.table(data), tmp_path / "in.parquet")
    apply_table(curves, tmp_path / "in.parquet", prob="p").to_parquet(tmp_path / "out.parquet")
    answer = pq.read_table(tmp_path / "out.parquet").sort_by("id")
    np.testing.assert_allclose(answer["p"].to_numpy(), expected(curves, data), rtol=0, atol=1e-9)


@pytest.mark.parametrize("pack", [1, 2, 3, 4, 29, 30])
def test_buckets_packed_in_cells_hold_the_same_curve(pack):
    curves = fitted()
    lookup = lookup_tables(curves, pack=pack)
    width = len(lookup.cells) // len(curves.values)
    start = lookup.cells["isolayer_v"].to_numpy().reshape(-1, width)
    rise = np.stack([lookup.cells[f"isolayer_r{k}"].to_numpy() for k in range(pack)], 1).reshape(len(start), -1)
    np.testing.assert_array_equal(rise[:, : curves.grid.buckets - 1], np.diff(curves.values))
    np.testing.assert_array_equal(start, curves.values[:, :-1:pack])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("device"), r"column device: expected it in the table, got .*; name another"),
        (lambda data: data.pop("score"), r"column score: expected it in the table, got .*; name another"),
        (
            lambda data: data.update(position=["1"] * 10),
            "context position: expected integers as when fitted, got string; convert the column",
        ),
        (lambda data: data.update(score=["x"] * 10), "column score: expected numbers, got string; convert it"),
        (
            lambda data: data.update(calibrated_prob=[1] * 10),
            "prob: expected a name that no column has, got 'calibrated_prob'; choose another",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(change, message):
    data = columns(n=10)
    change(data)
    with pytest.raises(InputError, match=message):
        apply_table(fitted(), data)


def test_an_unknown_dialect_is_refused():
    with pytest.raises(InputError, match=r"dialect: expected one of duckdb, spark, .*, got 'excel'; choose one"):
        to_sql(Curves.identity(Grid()), "excel")


@pytest.mark.parametrize("missing", [False, True])
def test_integers_with_gaps_may_come_as_floats(missing):
    """A pandas column of integers with gaps is one of floats, NaN where the gaps are."""
    data = columns(missing=True)
    position = np.where(data["device"] == None, np.nan, data["position"].astype(float))  # noqa: E711
    kept = np.isfinite(position) | missing
    histogram = Histogram.from_arrays(
        data["score"][kept], data["label"][kept], {"position": position[kept]}, grid=Grid(lower=-6, upper=3, step=0.3)
    )
    curves = Curves.from_histogram(histogram)
    table = pa.table({"id": np.arange(len(position)), "score": data["score"], "position": position})
    want = curves.predict_proba(data["score"], {"position": position})
    for kind in (pa.float64(), pa.float32()):
        cast = table.set_column(2, "position", table["position"].cast(kind))
        for source in (cast, duckdb.connect().from_arrow(cast)):
            answer = apply_table(curves, source)
            answer = answer.to_pyarrow() if isinstance(answer, ibis.Table) else answer.to_arrow_table()
            np.testing.assert_allclose(in_order(answer), want, rtol=0, atol=1e-9)


def test_floats_cannot_tell_large_keys_apart():
    large = 2**53 + np.arange(2)
    curves = Curves.from_histogram(Histogram.from_arrays([0.0, 1.0], [0, 1], {"item": large}))
    with pytest.raises(
        InputError, match=r"context item: expected integers, since some keys are beyond 2\*\*53, got float64"
    ):
        apply_table(curves, {"score": [0.0], "item": [1.0]})


def test_columns_of_any_name_are_handed_on():
    data = {"id": [0, 1], "score": [0.0, 1.0], "v": [7.0, 8.0], "cell": [5, 6], "r0": [3, 3], "level": [1, 2]}
    answer = apply_table(Curves.identity(Grid()), data).to_pyarrow()
    np.testing.assert_allclose(in_order(answer), [0.5, 1 / (1 + np.exp(-1))], rtol=0, atol=1e-12)
    assert answer.sort_by("id")["v"].to_pylist() == [7.0, 8.0]
