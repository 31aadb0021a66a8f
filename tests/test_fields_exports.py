"""Curves with fields answer alike in numpy, SQL, ONNX and torch: unseen levels, missing values, edges and all."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pandas as pd
import pytest
import torch
from test_fields import log_of, odd

from isolayer import IsotonicCalibrator
from isolayer.curves.evaluation import logit_of
from isolayer.curves.export.dialects import DIALECTS
from isolayer.curves.export.onnx import predict, session, to_onnx
from isolayer.curves.export.sql import to_sql
from isolayer.errors import InputError
from isolayer.fitting.field_refit import RowSums, refit
from isolayer.fitting.fields import data_of
from isolayer.fitting.terms import LAST_GRID
from isolayer.nn.field_curves import FieldCurves, levels_of

TIGHT = 1e-9


@pytest.fixture(scope="module", params=["fields", "fields and contexts", "last curve", "probabilities"])
def case(request):
    """Curves and rows to ask them about."""
    frame, label, _ = log_of(12_000)
    frame.loc[::9, "country"] = None
    some = odd(frame).assign(id=np.arange(300))
    contexts = ("country",) if request.param == "fields and contexts" else ()
    scale = "prob" if request.param == "probabilities" else "logit"
    if scale == "prob":
        frame["score"], some["score"] = 1 / (1 + np.exp(-frame["score"])), 1 / (1 + np.exp(-some["score"]))
    curves = IsotonicCalibrator(contexts, fields="all", scale=scale, missing="own").fit(frame, label).curves_
    if request.param == "last curve":
        curves = replace(curves, terms=replace(curves.terms, last=LAST_GRID.knots[1:] * 0.8 - 0.1))
    return curves, some


def test_one_sql_statement_gives_the_same(case):
    curves, some = case
    asked = some  # DuckDB finds it by its name
    statement = to_sql(curves, "duckdb", table="asked", keep=["id"])
    found = duckdb.sql(f"SELECT * FROM ({statement}) ORDER BY id").df()
    expected = curves.predict_proba(asked["score"], asked)
    np.testing.assert_allclose(found["calibrated_prob"], expected, atol=TIGHT)


def test_a_score_that_cannot_be_used_gives_null(case):
    curves, some = case
    asked = some.head(3).assign(score=[np.nan, None, np.inf])
    found = duckdb.sql(to_sql(curves, "duckdb", table="asked")).df()
    assert len(asked) == 3
    assert found["calibrated_prob"].isna().all()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_can_be_parsed(case, dialect):
    import sqlglot

    curves, _ = case
    sqlglot.parse_one(to_sql(curves, dialect, table="logs"), read=dialect)


def test_tables_of_every_kind_give_the_same(case, tmp_path):
    curves, some = case
    expected = curves.predict_proba(some["score"], some)
    some.to_parquet(tmp_path / "rows.parquet")
    relation = duckdb.connect().read_parquet(str(tmp_path / "rows.parquet"))
    for found in (
        curves.apply_table(some).to_pyarrow(),
        curves.apply_table(tmp_path / "rows.parquet").to_pyarrow(),
        curves.apply_table(relation).to_arrow_table(),
    ):
        np.testing.assert_allclose(found.sort_by("id")["calibrated_prob"], expected, atol=TIGHT)
        assert found.column_names == [*some, "calibrated_prob"]
    with pytest.raises(InputError, match="column device: expected it in the table"):
        curves.apply_table(some.drop(columns="device"))
    with pytest.raises(InputError, match="prob: expected a name that no column has"):
        curves.apply_table(some, prob="Hour")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", TIGHT), ("float32", 1e-5)])
def test_one_onnx_graph_gives_the_same(case, dtype, tolerance, tmp_path):
    curves, some = case
    to_onnx(curves, tmp_path / "curves.onnx", dtype=dtype)
    plain = {name: some[name].astype(object).where(some[name].notna(), None).to_numpy() for name in curves.contexts}
    columns = {**{name: some[name] for name in some}, **plain}
    found = predict(session(tmp_path / "curves.onnx"), some["score"].to_numpy().astype(dtype), columns)
    expected = curves.predict_proba(some["score"].to_numpy().astype(dtype), some)
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, TIGHT), (torch.float32, 1e-5)])
def test_one_torch_module_gives_the_same(case, dtype, tolerance):
    curves, some = case
    logits = curves.on_logits
    score = some["score"].to_numpy(copy=True)
    if curves.scale == "prob":
        score = logit_of(score)
    rows = torch.as_tensor(curves.rows_of(some if curves.contexts else None, len(some)))
    found = FieldCurves(curves, dtype=dtype)(torch.as_tensor(score, dtype=dtype), levels_of(curves, some), rows)
    expected = logits.predict_proba(score, some)
    np.testing.assert_allclose(torch.sigmoid(found).numpy(), expected, atol=tolerance)


def test_a_module_of_fields_can_be_exported(case):
    curves, some = case
    module = FieldCurves(curves)
    given = (torch.zeros(len(some), dtype=torch.float64), levels_of(curves, some), torch.zeros(len(some)).long())
    program = torch.export.export(module, given)
    torch.testing.assert_close(program.module()(*given), module(*given))


def test_another_type_of_field_is_refused_in_the_engine(case):
    curves, some = case
    asked = some.assign(device=7)
    with pytest.raises(duckdb.Error, match="field device: expected strings as when fitted, got"):
        duckdb.sql(to_sql(curves, "duckdb", table="asked")).df()
    assert len(asked)


def test_weekdays_are_the_same_in_the_engine():
    when = pd.Series(pd.date_range("2023-12-25", periods=60, freq="7h"))
    label = (when.dt.day_of_week >= 5).astype(int).to_numpy()
    asked = pd.DataFrame({"score": 0.0, "when": when, "id": np.arange(60)})
    many, labels = pd.concat([asked] * 10), np.tile(label, 10)
    labels[:60] = 1 - label  # a field that told the label without fault would be refused
    curves = IsotonicCalibrator(fields=("when",)).fit(many, labels, score="score").curves_
    found = duckdb.sql(f"SELECT * FROM ({to_sql(curves, 'duckdb', table='asked', keep=['id'])}) ORDER BY id").df()
    np.testing.assert_allclose(found["calibrated_prob"], curves.predict_proba(asked["score"], asked), atol=TIGHT)
    assert found["calibrated_prob"][label == 1].min() > found["calibrated_prob"][label == 0].max()


def exactly_fitted():
    """Curves whose terms are at the minimum of the penalised loss, and their rows."""
    frame, label, _ = log_of(3000)
    model = IsotonicCalibrator(fields=("device", "age", "hour"), interactions=[("device", "hour")])
    curves = model.fit(frame, label, score="score").curves_
    terms = replace(curves.terms, last=None)
    base, columns = (
        curves.evaluate(np.zeros(3000, int), frame["score"].to_numpy()),
        {n: frame[n] for n in curves.fields},
    )
    data = data_of(terms, base, label.astype(float), columns, np.ones(3000), 1.0)
    terms = refit(terms, RowSums(data, terms), most=1000, still=1e-10).terms
    return replace(curves, terms=terms), frame, label


def test_training_the_layer_stays_where_the_solver_ended():
    curves, frame, label = exactly_fitted()
    module = FieldCurves(curves, trainable=True)
    assert sum(value.requires_grad for value in module.parameters()) == len(curves.terms.terms) + 1
    score, levels = torch.tensor(frame["score"].to_numpy()), levels_of(curves, frame)
    np.testing.assert_allclose(module(score, levels).detach(), curves.decision_function(score, frame), atol=TIGHT)

    def objective():
        target = torch.tensor(label, dtype=torch.float64)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(module(score, levels), target, reduction="sum")
        return loss + module.penalty()

    objective().backward()
    assert max(float(value.grad.abs().max()) for value in module.parameters()) < 1e-4  # of 3,000 rows
    before = [value.detach().clone() for value in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4)
    for _ in range(20):
        optimiser.zero_grad()
        objective().backward()
        optimiser.step()
    for one, two in zip(before, module.parameters(), strict=True):
        torch.testing.assert_close(one, two.detach(), atol=1e-7, rtol=0)


def test_the_layer_comes_back_to_the_minimum_and_goes_back_into_curves():
    curves, frame, label = exactly_fitted()
    module = FieldCurves(curves, trainable=True)
    score, levels, target = (
        torch.tensor(frame["score"].to_numpy()),
        levels_of(curves, frame),
        torch.tensor(label).double(),
    )
    with torch.no_grad():
        for value in module.parameters():
            value += 0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=value.dtype)
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=300, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(module(score, levels), target, reduction="sum")
        total = loss + module.penalty()
        total.backward()
        return total

    optimiser.step(closure)
    trained = module.to_curves()
    np.testing.assert_allclose(
        trained.decision_function(frame["score"], frame), curves.decision_function(frame["score"], frame), atol=1e-3
    )


def test_curves_with_fields_become_a_layer_that_can_be_trained(case):
    curves, _ = case
    layer = curves.to_layer()
    assert isinstance(layer, FieldCurves)
    assert layer.shared.requires_grad
    frozen = replace(curves, terms=curves.terms.freeze())
    assert [name for name, _ in FieldCurves(frozen, trainable=True).named_parameters()] == ["shared"]
