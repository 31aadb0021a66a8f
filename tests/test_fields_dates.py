"""Dates as fields: hours, weekdays and months in UTC, in every engine, whatever the time zone of its session."""

from __future__ import annotations

import datetime as dt

import duckdb
import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servers

from isolayer import IsotonicCalibrator
from isolayer.curves.export.onnx import predict, session
from isolayer.curves.export.sql import to_sql
from isolayer.fitting.field_levels import Field

ZONES = ("America/Los_Angeles", "America/Sao_Paulo")
TIGHT = 1e-9
TYPES = {
    "naive": pa.timestamp("us"),
    "nanoseconds": pa.timestamp("ns"),
    "UTC": pa.timestamp("us", "UTC"),
    "zoned": pa.timestamp("us", "Asia/Kolkata"),
    "date": pa.date32(),
    "nothing": pa.null(),
}


@pytest.fixture(scope="module")
def curves():
    """Curves with the hour, the weekday and the month of a moment."""
    rng = np.random.default_rng(0)
    when = pd.DatetimeIndex(np.datetime64("2025-01-01T00") + rng.integers(0, 365 * 24, 8000))
    effect = 1.2 * (when.hour > 12) + 0.8 * (when.day_of_week >= 5) + 0.8 * (when.month > 6)
    score = rng.normal(-1, 1, 8000)
    label = (rng.random(8000) < 1 / (1 + np.exp(-score - effect))).astype(int)
    found = IsotonicCalibrator(fields=("when",)).fit(pd.DataFrame({"score": score, "when": when}), label).curves_
    assert set(found.terms.names) >= {"when.hour", "when.weekday", "when.month"}
    return found


def moments(kind):
    """Rows with every hour, the night a clock is put back, days that begin at one, and moments before 1970."""
    start = dt.datetime(2018, 11, 3, 12, 30)
    found = [start + dt.timedelta(hours=37 * i) for i in range(250)]
    found += [dt.datetime(2024, 11, 3, h, 30) for h in range(24)]
    found += [dt.datetime(1969, 12, 31, h, 59, 59, 999999) for h in range(24)]
    if kind == "nothing":
        return pa.table({"id": range(3), "score": [0.0] * 3, "when": pa.nulls(3)})
    kept = [one.date() for one in found] if pa.types.is_date(TYPES[kind]) else found
    when = pa.array([*kept, None], TYPES[kind])
    return pa.table({"id": range(len(when)), "score": np.linspace(-2, 1, len(when)), "when": when})


def part(when, name):
    """Parts by the calendar of Python."""
    return {"hour": when.hour, "weekday": when.weekday(), "month": when.month}[name]


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in ("date", "nothing")])
@pytest.mark.parametrize("name", ["hour", "weekday", "month"])
def test_levels_are_those_of_the_calendar(kind, name):
    rows = moments(kind)["when"].drop_null()
    field = Field("when", "number", part=name, edges=np.arange(24) + 0.5)
    moved = [
        one.astimezone(dt.UTC) if one.tzinfo else one for one in rows.cast(pa.timestamp("us", rows.type.tz)).to_pylist()
    ]
    assert field.levels_of(rows).tolist() == [part(one, name) for one in moved]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # by which Ibis calls DuckDB
def test_duckdb_answers_in_utc_in_every_session(curves, kind, zone):
    rows = moments(kind)
    expected = curves.predict_proba(rows["score"], rows)
    connection, ibis_connection = duckdb.connect(), ibis.duckdb.connect()
    connection.execute(f"SET timezone = '{zone}'")
    ibis_connection.raw_sql(f"SET timezone = '{zone}'")
    connection.register("rows", rows)
    ibis_connection.con.register("rows", rows)
    statement = to_sql(curves, "duckdb", table="rows", keep=["id"])
    for found in (
        connection.sql(statement).to_arrow_table(),
        curves.apply_table(connection.table("rows")).to_arrow_table(),
        curves.apply_table(ibis_connection.table("rows")).to_pyarrow(),
    ):
        np.testing.assert_allclose(found.sort_by("id")["calibrated_prob"], expected, atol=TIGHT)


@pytest.mark.parametrize("kind", TYPES)
def test_one_row_and_onnx_answer_in_utc(curves, kind, tmp_path):
    rows = moments(kind)
    expected = curves.predict_proba(rows["score"], rows)
    scorer = curves.scorer()
    given = zip(rows["score"].to_pylist(), rows["when"], strict=True)
    if kind != "nanoseconds":
        one_by_one = [scorer(score, {"when": when.as_py()}) for score, when in given]
        np.testing.assert_allclose(one_by_one, expected, atol=TIGHT)
    curves.to_onnx(tmp_path / "curves.onnx")
    found = predict(session(tmp_path / "curves.onnx"), rows["score"].to_numpy(), {"when": rows["when"]})
    np.testing.assert_allclose(found, expected, atol=TIGHT)


@pytest.mark.parametrize(("kind", "zone"), [("UTC", ZONES[0]), ("naive", ZONES[1])])
def test_duckdb_fits_in_utc_in_every_session(curves, kind, zone):
    rows = moments(kind).slice(0, 250)
    rows = rows.append_column("label", pa.array(np.arange(250) % 3 == 0).cast(pa.int64()))
    here = IsotonicCalibrator(fields=("when",), structure=curves).fit(
        rows.select(["score", "when"]), rows["label"].to_numpy()
    )
    connection = duckdb.connect()
    connection.execute(f"SET timezone = '{zone}'")
    connection.register("rows", rows)
    there = IsotonicCalibrator(fields=("when",), structure=curves).fit_table(connection.table("rows"))
    np.testing.assert_allclose(there.decision_function(rows), here.decision_function(rows), atol=1e-7)


def test_nanoseconds_stay_in_their_hour(curves):
    when = np.array(["1969-12-31T12:59:59.999999999", "2025-03-01T12:59:59.999999999"], "datetime64[ns]")
    asked = pa.table({"id": [0, 1], "score": [0.0, 0.0], "when": when})
    found = duckdb.sql(to_sql(curves, "duckdb", table="asked", keep=["id"])).to_arrow_table().sort_by("id")
    np.testing.assert_allclose(found["calibrated_prob"], curves.predict_proba(asked["score"], asked), atol=TIGHT)
    assert Field("when", "number", part="hour", edges=np.arange(24) + 0.5).levels_of(when).tolist() == [12, 12]


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "nothing"])
def test_postgres_answers_in_utc_in_every_session(postgres, curves, kind):
    rows = moments(kind)
    column = "date" if kind == "date" else "timestamptz" if TYPES[kind].tz else "timestamp"
    texts = [None if one is None else one.isoformat() for one in rows["when"].cast(_micros(kind)).to_pylist()]
    values = ", ".join(
        f"({i}, CAST({score!r} AS double precision), CAST({'NULL' if text is None else repr(text)} AS {column}))"
        for i, (score, text) in enumerate(zip(rows["score"].to_pylist(), texts, strict=True))
    )
    postgres(f'DROP TABLE IF EXISTS asked; CREATE TABLE asked (id, score, "when") AS VALUES {values}')
    statement = to_sql(curves, "postgres", table="asked", keep=["id"])
    expected = curves.predict_proba(rows["score"], rows)
    for zone in ZONES:
        got = {int(row[0]): float(row[-1]) for row in postgres(f"SET timezone = '{zone}'; {statement}")}
        np.testing.assert_allclose([got[i] for i in range(len(rows))], expected, atol=TIGHT)


@pytest.mark.parametrize("kind", ["time", "interval", "text", "bigint"])
def test_postgres_refuses_what_is_no_date(postgres, curves, kind):
    postgres(f'DROP TABLE IF EXISTS asked; CREATE TABLE asked (score double precision, "when" {kind})')
    with pytest.raises(servers.Failed, match="date"):
        postgres(to_sql(curves, "postgres", table="asked"))


@pytest.mark.parametrize("kind", ["TIME", "INTERVAL", "VARCHAR", "BIGINT"])
def test_duckdb_refuses_what_is_no_date(curves, kind):
    connection = duckdb.connect()
    connection.execute(f'CREATE TABLE asked (score DOUBLE, "when" {kind})')
    with pytest.raises(duckdb.Error, match="DATE"):
        connection.sql(to_sql(curves, "duckdb", table="asked"))


def _micros(kind):
    return pa.timestamp("us") if kind == "nanoseconds" else TYPES[kind]


@pytest.mark.filterwarnings("ignore")
def test_spark_answers_in_utc_in_every_session(spark, curves, tmp_path):
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for kind in ("naive", "UTC", "date"):
            rows = moments(kind)
            pq.write_table(rows, tmp_path / f"{kind}.parquet")
            expected = curves.predict_proba(rows["score"], rows)
            for zone in ZONES:
                spark.conf.set("spark.sql.session.timeZone", zone)
                spark.read.parquet(str(tmp_path / f"{kind}.parquet")).createOrReplaceTempView("asked")
                found = spark.sql(to_sql(curves, "spark", table="asked", keep=["id"])).orderBy("id").collect()
                np.testing.assert_allclose([row["calibrated_prob"] for row in found], expected, atol=TIGHT)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
