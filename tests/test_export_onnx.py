"""Curves as an ONNX model: onnxruntime answers what numpy answers, for known, unseen and missing contexts."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from contract_cases import CASES as CONTRACT
from curve_examples import fitted, questions

from isolayer.curves.curves import Curves
from isolayer.curves.export import onnx as export_onnx
from isolayer.curves.export.onnx import predict, session, to_onnx
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

CASES = [
    ((), "logit", False),
    (("device",), "prob", False),
    (("position",), "logit", False),
    (("device", "position"), "logit", False),
    (("device", "position"), "prob", True),
    (("position", "device"), "logit", True),
]


@pytest.mark.parametrize(("contexts", "scale", "missing"), CASES)
def test_a_model_answers_as_the_curves_do(contexts, scale, missing, tmp_path):
    curves, data = fitted(contexts, scale=scale, missing=missing), questions(scale, missing=missing)
    to_onnx(curves, tmp_path / "curves.onnx")
    context = {name: data[name] for name in contexts}
    answer = predict(session(tmp_path / "curves.onnx"), data["score"], context)
    np.testing.assert_allclose(answer, curves.predict_proba(data["score"], context or None), rtol=0, atol=1e-12)


def test_three_levels_and_booleans(tmp_path):
    rng = np.random.default_rng(0)
    context = {name: rng.integers(0, size, 3000) for name, size in (("a", 3), ("b", 4), ("c", 2))}
    context["c"] = context["c"].astype(bool)
    seen = (context["a"] != 1) | (context["b"] != 2)
    score, label = rng.normal(size=3000), rng.integers(0, 2, 3000)
    some = {name: column[seen] for name, column in context.items()}
    curves = Curves.from_histogram(Histogram.from_arrays(score[seen], label[seen], some))
    to_onnx(curves, tmp_path / "c.onnx")
    answer = predict(session(tmp_path / "c.onnx"), score, context)
    np.testing.assert_allclose(answer, curves.predict_proba(score, context), rtol=0, atol=1e-12)


def test_the_batch_is_free(tmp_path):
    to_onnx(fitted(("device",)), tmp_path / "c.onnx")
    run = session(tmp_path / "c.onnx")
    for size in (0, 1, 7):
        assert predict(run, np.zeros(size), {"device": np.array(["tv"] * size)}).shape == (size,)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("scale", "bad"), [("logit", []), ("prob", [-0.1, 1.7, -1e-9, 1.0001])])
def test_a_score_that_cannot_be_used_gives_nan(scale, bad, dtype, tmp_path):
    """Numpy refuses it; a model cannot."""
    to_onnx(Curves.identity(Grid(), scale=scale), tmp_path / "c.onnx", dtype=dtype)
    score = np.array([np.nan, np.inf, -np.inf, *bad, 0.5, 0.0, -0.0], dtype)
    answer = predict(session(tmp_path / "c.onnx"), score, {})
    assert np.isnan(answer).tolist() == [True] * (3 + len(bad)) + [False] * 3


@pytest.mark.parametrize("case", CONTRACT, ids=lambda case: case.name)
def test_a_curve_is_what_the_contract_says(case, tmp_path):
    to_onnx(case.curves(), tmp_path / "c.onnx")
    x, y = np.array(case.forward).T
    answer = predict(session(tmp_path / "c.onnx"), x, {})
    np.testing.assert_allclose(answer, 1 / (1 + np.exp(-np.clip(y, -700, 36))), rtol=0, atol=1e-12)


def with_keys(keys, name="context"):
    """Curves one apart, one for each key."""
    keys = np.array(keys, dtype=object) if None in keys else np.array(keys)
    grid = Grid(lower=-4, upper=4, step=1)
    values = grid.knots[None, 1:] + np.arange(len(keys) + 1.0)[:, None]
    return Curves(grid, (name,), ((), (keys,)), values, values * 0, values * 0, np.zeros(len(values)))


NAMES = ("prob", "score", "score_1", "missing", "constant_0", "cast_0", "isolayer_cast_1", "context_missing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keys", [["a", "b"], ["a", None]])
def test_a_context_may_have_any_name(name, keys, tmp_path):
    curves = with_keys(keys, name)
    to_onnx(curves, tmp_path / "c.onnx")
    model = session(tmp_path / "c.onnx")
    assert name in [given.name for given in model.get_inputs()]
    context = {name: np.array(["a", "b", None, ""], dtype=object)}
    want = curves.predict_proba(np.zeros(4), context)
    np.testing.assert_allclose(predict(model, np.zeros(4), context), want, rtol=0, atol=1e-12)


def test_names_of_inputs_and_of_the_output(tmp_path):
    """Ours give way to those of the contexts; the metadata say how they are called."""
    curves = replace(fitted(missing=True), contexts=("score", "prob"))
    to_onnx(curves, tmp_path / "c.onnx")
    model = session(tmp_path / "c.onnx")
    assert [given.name for given in model.get_inputs()] == ["score_1", "score", "score_missing", "prob"]
    assert [given.name for given in model.get_outputs()] == ["prob_1"]
    meta = json.loads(model.get_modelmeta().custom_metadata_map["isolayer"])
    assert (meta["score"], meta["prob"]) == ("score_1", "prob_1")
    assert [context["missing"] for context in meta["contexts"]] == ["score_missing", None]


LIMITS = [-(2**63), -1, 0, 2**63 - 1]
KEYS = {
    "strings": (["", "a", "A", "it's"], ["", "a", "A", " ", "a ", "z", "a\0b", "a\0"]),
    "strings or none": (["", "a", None], ["", "a", None, "A"]),
    "integers": (LIMITS, [*LIMITS, 1, -2]),
    "integers or none": ([*LIMITS, None], [*LIMITS, None, 1, -2]),
    "booleans": ([False, True], [False, True]),
    "one boolean": ([True], [False, True, None]),
    "booleans or none": ([False, True, None], [False, True, None]),
    "nothing": ([None], [None]),
}


@pytest.mark.parametrize(("keys", "asked"), KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("levels", [1, 2])
def test_every_value_is_told_from_every_other(keys, asked, levels, tmp_path):
    """The empty string and the smallest integer are values; missing is said beside them."""
    curves = with_keys(keys)
    if levels == 2:
        below = (np.repeat(curves.keys[1][0], len(keys)), np.tile(curves.keys[1][0], len(keys)))
        more = curves.values[0] + 10 + np.arange(len(below[0]))[:, None] / 9
        values = np.concatenate([curves.values, more])
        nothing = np.zeros_like(values)
        curves = Curves(
            curves.grid, ("context", "b"), (*curves.keys, below), values, nothing, nothing, np.zeros(len(values))
        )
    to_onnx(curves, tmp_path / "c.onnx")
    context = {"context": np.array([value for value in asked for _ in asked], dtype=object)}
    if levels == 2:
        context["b"] = np.array(asked * len(asked), dtype=object)
    score = np.linspace(-5, 5, len(asked) ** 2)
    want = curves.predict_proba(score, context)
    np.testing.assert_allclose(predict(session(tmp_path / "c.onnx"), score, context), want, rtol=0, atol=1e-12)


def test_a_boolean_model_without_missing_values_cannot_be_told_of_one(tmp_path):
    to_onnx(with_keys([False, True]), tmp_path / "c.onnx")
    with pytest.raises(
        InputError, match="context context: expected no missing values, for which the model has no input"
    ):
        predict(session(tmp_path / "c.onnx"), np.zeros(1), {"context": np.array([None])})


@pytest.mark.parametrize(
    ("keys", "column"), [([1, 2], ["1"]), ([1, 2], [1.5]), ([1, 2], [True]), (["1"], [1]), ([True, False], [1])]
)
def test_columns_of_another_type_are_refused(keys, column, tmp_path):
    to_onnx(with_keys(keys), tmp_path / "c.onnx")
    with pytest.raises(
        InputError, match=r"context context: expected (integers|strings|booleans), got .*; convert the col"
    ):
        predict(session(tmp_path / "c.onnx"), np.zeros(1), {"context": np.array(column, dtype=object)})


def test_single_precision_goes_in_and_out(tmp_path):
    curves, data = fitted(("device",)), questions()
    to_onnx(curves, tmp_path / "c.onnx", dtype="float32")
    answer = predict(session(tmp_path / "c.onnx"), data["score"].astype(np.float32), {"device": data["device"]})
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, curves.predict_proba(data["score"], {"device": data["device"]}), atol=1e-6)


def test_the_model_is_sound_and_of_the_current_operators(tmp_path):
    to_onnx(fitted(), tmp_path / "c.onnx")
    model = onnx.load(tmp_path / "c.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version >= min(25, onnx.defs.onnx_opset_version() - 1)
    assert [given.name for given in model.graph.input] == ["score", "device", "position"]
    assert {given.type.tensor_type.shape.dim[0].dim_param for given in model.graph.input} == {"batch"}


def test_a_model_that_differs_is_not_written(tmp_path, monkeypatch):
    def wrong(graph, curves, score, row, fields):
        return graph.add("Sigmoid", score)

    monkeypatch.setattr(export_onnx, "_prob", wrong)
    with pytest.raises(RuntimeError, match=r"the ONNX model differs from the curves by .*; it was not written"):
        to_onnx(fitted(()), tmp_path / "c.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_said_to_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match='dtype: expected "float64" or "float32", got \'int8\'; choose one'):
        to_onnx(Curves.identity(Grid()), tmp_path / "c.onnx", dtype="int8")
