"""Terms of fields fitted by sums in an engine: the same as rows in memory with the same structure."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pytest
from test_fields import log_of

from isolayer import IsotonicCalibrator
from isolayer.tables import field_fit
from isolayer.tables.field_fit import fit_table_fields
from isolayer.tables.histogram_query import ColumnSpec

NAMES = ("device", "age", "when")
TIGHT = 1e-8


@pytest.fixture(scope="module")
def day():
    """The curves of an earlier day, with a pair among their terms, and the rows of another."""
    frame, label, _ = log_of(20_000)
    structure = IsotonicCalibrator(fields=NAMES, interactions=[("device", "when.hour")]).fit(
        frame, label, score="score"
    )
    other, labels, _ = log_of(3_000, seed=7)
    rng = np.random.default_rng(0)
    extra = {"label": labels, "weight": rng.integers(1, 4, 3_000), "rate": rng.choice([0.5, 1.0], 3_000)}
    odd = other.assign(**extra)
    odd["device"] = odd["device"].where(odd.index % 50 > 0, "radio")  # a level that the structure does not have
    return structure.curves_, odd


CASES = {
    "contexts, weights, rates": {"contexts": ("country",), "weight": "weight", "negative_rate": "rate"},
    "importance, frozen": {"weight": "weight", "weight_kind": "importance", "freeze": ["device"]},
    "rates, one free term": {
        "negative_rate": "rate",
        "freeze": ["age", "when.hour", "when.weekday", "when.month", ("device", "when.hour")],
    },
    "probabilities, sampled negatives": {"scale": "prob", "negative_rate": 0.5},
}


def both(day, case, table_of):
    """Decision functions of the fit in memory and of the fit in an engine, on the same rows, and the latter."""
    structure, frame = day
    told = dict(CASES[case])
    weight, frozen = told.pop("weight", None), told.pop("freeze", ())
    if frozen:
        structure = replace(structure, terms=structure.terms.freeze(*frozen))
    if told.get("scale") == "prob":
        frame = frame.assign(score=1 / (1 + np.exp(-frame["score"])))
    settings = {"fields": NAMES, "structure": structure, "missing": "own", **told}
    rows = IsotonicCalibrator(**settings).fit(
        frame, frame["label"], None if weight is None else frame[weight], score="score"
    )
    found = IsotonicCalibrator(**settings).fit_table(table_of(frame), weight=weight)
    return rows.decision_function(frame), found.decision_function(frame), rows, found


@pytest.mark.parametrize("case", [case for case in CASES if "free" not in case])
def test_duckdb_fits_what_memory_fits(day, case, tmp_path):
    def table_of(frame):
        frame.to_parquet(tmp_path / "day.parquet")
        return tmp_path / "day.parquet"

    here, there, rows, found = both(day, case, table_of)
    np.testing.assert_allclose(there, here, atol=TIGHT)
    assert found.curves_.terms.names == rows.curves_.terms.names
    for one, two in zip(found.curves_.terms.terms, rows.curves_.terms.terms, strict=True):
        for name in ("values", "covariance", "count", "observed", "expected", "strengths"):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6, atol=1e-7)
    assert 3 < found.scans_ < 60


@pytest.mark.parametrize("case", ["rates, one free term"])
@pytest.mark.filterwarnings("ignore")
def test_spark_fits_what_memory_fits(day, case, spark, spark_backend, tmp_path):
    def table_of(frame):
        when = frame["when"].astype("datetime64[us]").dt.tz_localize("UTC")
        frame.assign(when=when).to_parquet(tmp_path / "day.parquet")
        spark.read.parquet(str(tmp_path / "day.parquet")).createOrReplaceTempView("day")
        return spark_backend.table("day")

    here, there, _, _ = both(day, case, table_of)
    np.testing.assert_allclose(there, here, atol=TIGHT)


def test_no_row_leaves_the_engine_with_a_structure(day, monkeypatch):
    structure, frame = day

    def refuse(*_, **__):
        raise AssertionError("rows were fetched")

    monkeypatch.setattr(field_fit, "labelled_rows", refuse)
    frozen = replace(structure, terms=structure.terms.freeze("device", "age", "when.hour"))
    settings = {"fields": NAMES, "structure": frozen}
    found = IsotonicCalibrator(**settings).fit_table(duckdb.connect().from_df(frame))
    rows = IsotonicCalibrator(**settings).fit(frame, frame["label"], score="score")
    np.testing.assert_allclose(found.decision_function(frame), rows.decision_function(frame), atol=TIGHT)


def test_a_sample_chooses_the_terms_and_all_rows_fit_them():
    frame, label, _ = log_of(30_000, seed=8)
    frame = frame.assign(label=label)
    curves = IsotonicCalibrator().fit(frame["score"], label).curves_
    found = fit_table_fields(curves, frame, ColumnSpec(()), NAMES, most=12_000)
    assert 10_000 < found.sample < 14_000
    terms = found.curves.terms
    assert terms.terms[0].count.sum() == 30_000
    again = IsotonicCalibrator(fields=NAMES, structure=found.curves).fit(frame, label, score="score")
    np.testing.assert_allclose(
        again.decision_function(frame), found.curves.decision_function(frame["score"], frame), atol=1e-6
    )


def test_rows_can_be_forgotten_in_a_table_with_fields():
    frame, label, _ = log_of(4_000)
    frame = frame.assign(label=label, day=np.arange(4_000) // 400)
    settings = {"fields": ("device", "age"), "half_life": ("day", 3.0), "interactions": 0}
    there = IsotonicCalibrator(**settings).fit_table(frame)
    here = IsotonicCalibrator(**settings).fit(frame, label, score="score")
    np.testing.assert_allclose(there.decision_function(frame), here.decision_function(frame), atol=1e-6)
