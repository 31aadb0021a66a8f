"""Fields of uncommon types and sizes: every reader gives the answer of numpy, or refuses where numpy refuses."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from isolayer import IsotonicCalibrator
from isolayer.curves.export.onnx import predict, session
from isolayer.curves.export.sql import to_sql
from isolayer.errors import InputError

ROWS = 3000
_rng = np.random.default_rng(0)
SCORE, PLACE = _rng.normal(-1, 1, ROWS), _rng.integers(0, 6, ROWS)
LABEL = (_rng.random(ROWS) < 1 / (1 + np.exp(-SCORE - 0.6 * (PLACE - 2.5)))).astype(int)

COLUMNS = {
    "beyond 2**53": pa.array(2**53 + PLACE),
    "uint64": pa.array(np.uint64(2**63) + PLACE.astype(np.uint64) * np.uint64(4096)),
    "float16": pa.array((PLACE / 8).astype(np.float16)),
    "booleans": pa.array(PLACE > 2),
    "text": pa.array([f"\u00e9{place}" for place in PLACE.tolist()]),
}


def curves_of(values):
    rows = pa.table({"score": SCORE, "f": values})
    return IsotonicCalibrator(fields=("f",)).fit(rows, LABEL).curves_, rows


@pytest.mark.parametrize("name", COLUMNS)
def test_every_reader_gives_the_answer_of_numpy(name, tmp_path):
    curves, rows = curves_of(COLUMNS[name])
    expected = curves.predict_proba(SCORE, rows)
    assert len(np.unique(curves.terms.fields[0].levels_of(rows["f"]))) > 1
    scorer = curves.scorer()
    asked = zip(SCORE[:300].tolist(), rows["f"].to_pylist()[:300], strict=True)
    np.testing.assert_allclose([scorer(score, {"f": value}) for score, value in asked], expected[:300], atol=1e-9)
    curves.to_onnx(tmp_path / "curves.onnx")
    found = predict(session(tmp_path / "curves.onnx"), SCORE, {"f": rows["f"]})
    np.testing.assert_allclose(found, expected, atol=1e-9)
    numbered = rows.append_column("id", pa.array(range(ROWS)))
    applied = curves.apply_table(numbered).to_pyarrow().sort_by("id")
    np.testing.assert_allclose(applied["calibrated_prob"], expected, atol=1e-9)
    if name != "float16":  # which DuckDB cannot read from Arrow by itself
        answer = duckdb.sql(to_sql(curves, "duckdb", table="numbered", keep=["id"])).to_arrow_table().sort_by("id")
        np.testing.assert_allclose(answer["calibrated_prob"], expected, atol=1e-9)


@pytest.mark.parametrize("name", ["uint64", "float16"])
def test_tables_fit_what_rows_fit(name):
    curves, rows = curves_of(COLUMNS[name])
    table = IsotonicCalibrator(fields=("f",)).fit_table(rows.append_column("label", pa.array(LABEL))).curves_
    np.testing.assert_allclose(table.predict_proba(SCORE, rows), curves.predict_proba(SCORE, rows), atol=1e-7)


OTHERS = {
    "beyond 2**53": [10**400, [2**70, "x"], "1", True],
    "booleans": ["false", 0, 2.5],
    "text": ["\ud800", 1, True, b"x"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, id=f"{name}-{i}") for name, values in OTHERS.items() for i, value in enumerate(values)],
)
def test_what_numpy_refuses_every_reader_refuses(name, value, tmp_path):
    curves, _ = curves_of(COLUMNS[name])
    curves.to_onnx(tmp_path / "curves.onnx")
    column = value if isinstance(value, list) else [value]
    score = np.zeros(len(column))
    with pytest.raises(InputError, match="f: expected"):
        curves.predict_proba(score, {"f": column})
    with pytest.raises(InputError, match="f: expected"):
        predict(session(tmp_path / "curves.onnx"), score, {"f": column})
    if not isinstance(value, list):
        with pytest.raises(InputError, match="f: expected"):
            curves.scorer()(0.0, {"f": value})


@pytest.mark.parametrize("value", [2**53 + 1, 2**53 + 3, -(2**53) - 1, 2**70, -(2**1000)])
def test_integers_are_compared_as_doubles(value):
    curves, _ = curves_of(COLUMNS["beyond 2**53"])
    assert curves.scorer()(0.5, {"f": value}) == pytest.approx(
        curves.predict_proba([0.5], {"f": [value]})[0], abs=1e-12
    )
