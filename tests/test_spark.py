"""Spark in local mode: the same histogram, the same probabilities, and files it reads without this package."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curve_examples import GRID, columns, fitted, questions

from isolayer.curves.curves import Curves
from isolayer.curves.export.sql import to_sql
from isolayer.fitting.histogram import Histogram
from isolayer.metrics import BinSums, SegmentSums, Sums
from isolayer.tables.apply import apply_table
from isolayer.tables.folds import fold_of
from isolayer.tables.histogram_query import ColumnSpec, histogram_of

# Spark and its driver warn of pandas, of open sockets and of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


def in_spark(spark_backend, spark, data, path):
    pq.write_table(pa.table(data), path)
    spark.read.parquet(str(path)).createOrReplaceTempView("logs")
    return spark_backend.table("logs")


def test_spark_sums_what_numpy_sums(spark_backend, spark, tmp_path):
    data = columns(missing=True)
    table = in_spark(spark_backend, spark, data, tmp_path / "logs.parquet")
    got, _ = histogram_of(table, ColumnSpec(("device", "position"), grid=GRID, folds=5))
    context = {name: data[name] for name in ("device", "position")}
    fold = fold_of(data["score"], 5)
    want = Histogram.from_arrays(data["score"], data["label"], context, fold=fold, grid=GRID)
    assert [key.tolist() for key in got.keys] == [key.tolist() for key in want.keys]
    for name in ("group", "fold", "bin", "count"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    np.testing.assert_allclose(got.logit, want.logit, rtol=0, atol=1e-9)
    one, two = (Curves.from_histogram(histogram.folded()) for histogram in (got, want))
    np.testing.assert_allclose(one.values, two.values, rtol=0, atol=1e-9)


def test_spark_weighs_rows_and_keeps_rates_apart(spark_backend, spark, tmp_path):
    rng, data = np.random.default_rng(0), columns()
    data |= {"weight": rng.choice([0.0, 0.5, 3.0], 4000), "rate": rng.choice([0.1, 1 / 3, 1.0], 4000)}
    table = in_spark(spark_backend, spark, data, tmp_path / "logs.parquet")
    settings = {"negative_rate": "rate", "weight_kind": "importance", "grid": GRID}
    got, _ = histogram_of(table, ColumnSpec(("device",), weight="weight", **settings))
    context, rate = {"device": data["device"]}, data["rate"]
    want = Histogram.from_arrays(data["score"], data["label"], context, data["weight"], negative_rate=rate, grid=GRID)
    for name in ("group", "bin", "negative_rate", "count", "weight", "weight_squared", "positive"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


def test_spark_measures_what_numpy_measures(spark_backend, spark, tmp_path):
    rng = np.random.default_rng(0)
    prob = rng.beta(1, 6, 2000)
    data = {"prob": prob, "label": (rng.random(2000) < prob).astype(np.int8), "day": np.arange(2000) % 3}
    table = in_spark(spark_backend, spark, data, tmp_path / "logs.parquet")
    assert Sums.from_table(table).log_loss == pytest.approx(Sums.from_rows(data["label"], prob).log_loss, rel=1e-12)
    there, here = SegmentSums.from_table(table, segment="day"), SegmentSums.from_rows(data["label"], prob, data["day"])
    np.testing.assert_allclose(there.squared_error, here.squared_error, rtol=1e-12)
    assert BinSums.from_table(table).auc == pytest.approx(BinSums.from_rows(data["label"], prob).auc, abs=1e-6)


def test_spark_counts_bad_rows(spark_backend, spark, tmp_path):
    data = columns(n=50)
    data["score"][:3] = np.nan
    data["label"][5] = 7.0
    table = in_spark(spark_backend, spark, data, tmp_path / "logs.parquet")
    _, dropped = histogram_of(table, ColumnSpec(), on_bad_rows="drop")
    assert sorted(dropped.values()) == [1, 3]


@pytest.mark.parametrize(("scale", "missing"), [("logit", False), ("prob", True)])
def test_spark_duckdb_and_numpy_agree(spark_backend, spark, tmp_path, scale, missing):
    curves, data = fitted(scale=scale, missing=missing), questions(scale, missing=missing)
    expected = curves.predict_proba(data["score"], {name: data[name] for name in curves.contexts})
    table = in_spark(spark_backend, spark, data, tmp_path / "logs.parquet")
    lazily = apply_table(curves, table).to_pyarrow().sort_by("id")["calibrated_prob"].to_numpy()
    np.testing.assert_allclose(lazily, expected, rtol=0, atol=1e-9)
    written = spark.sql(to_sql(curves, "spark", table="logs", keep=["id"])).orderBy("id").collect()
    np.testing.assert_allclose([row["calibrated_prob"] for row in written], expected, rtol=0, atol=1e-9)
    duckdb = apply_table(curves, tmp_path / "logs.parquet").to_pyarrow().sort_by("id")["calibrated_prob"].to_numpy()
    np.testing.assert_allclose(duckdb, lazily, rtol=0, atol=1e-9)


def test_spark_reads_the_curves(spark, tmp_path):
    curves = fitted()
    curves.save(tmp_path / "curves.parquet")
    rows = spark.read.parquet(str(tmp_path / "curves.parquet")).where("depth = 2").collect()
    assert len(rows) == len(curves.keys[2][0])
    row = curves.rows_of({name: [row[name] for row in rows] for name in curves.contexts}, len(rows))
    np.testing.assert_array_equal([list(row["values"]) for row in rows], curves.values[row])
