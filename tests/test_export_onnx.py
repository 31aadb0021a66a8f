"""Curves as an ONNX model: onnxruntime answers what numpy answers, for known, unseen and missing contexts."""

import numpy as np
import onnx
import pytest
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


def test_the_batch_is_free_and_nan_stays_nan(tmp_path):
    to_onnx(fitted(("device",)), tmp_path / "c.onnx")
    run = session(tmp_path / "c.onnx")
    for size in (0, 1, 7):
        assert predict(run, np.zeros(size), {"device": np.array(["tv"] * size)}).shape == (size,)
    answer = predict(run, np.array([np.nan, 0.0]), {"device": np.array(["tv", "tv"])})
    assert np.isnan(answer).tolist() == [True, False]


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
    assert model.opset_import[0].version >= 25
    assert [given.name for given in model.graph.input] == ["score", "device", "position"]
    assert {given.type.tensor_type.shape.dim[0].dim_param for given in model.graph.input} == {"batch"}


def test_a_model_that_differs_is_not_written(tmp_path, monkeypatch):
    def wrong(graph, curves, score, row):
        return graph.add("Sigmoid", score)

    monkeypatch.setattr(export_onnx, "_prob", wrong)
    with pytest.raises(RuntimeError, match=r"the ONNX model differs from the curves by .*; it was not written"):
        to_onnx(fitted(()), tmp_path / "c.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_said_to_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match='dtype: expected "float64" or "float32", got \'int8\'; choose one'):
        to_onnx(Curves.identity(Grid()), tmp_path / "c.onnx", dtype="int8")
    curves = Curves.from_histogram(Histogram.from_arrays([0.0, 1.0], [0, 1], {"device": ["", "tv"]}))
    with pytest.raises(InputError, match=r"context device: expected no value '', which says missing .*; rename it"):
        to_onnx(curves, tmp_path / "c.onnx")
