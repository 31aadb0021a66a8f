"""Curves as an ONNX model: a score and context values in, a probability out, in operations that every runtime has.

The vocabulary of every context is inside the model: strings and integers go in as they are in the logs, and an unseen
one has the curve of its deepest known ancestor. What is written has been read again and compared.
"""

from __future__ import annotations

import json
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Unsupported

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import NEAR
from isolayer.errors import InputError
from isolayer.storage import whole_file

Floating = Literal["float64", "float32"]

MISSING_STRING, MISSING_INTEGER = "", int(np.iinfo(np.int64).min)  # how a missing value is said to a model

_MOST_BYTES = 1_900_000_000  # a protobuf holds 2 GB
_CHECKED = 2000  # curves that are compared after writing, at most


def to_onnx(curves: Curves, path: str | PathLike[str], *, dtype: Floating = "float64") -> None:
    """Write the curves as an ONNX model, checked in onnxruntime against :meth:`Curves.predict_proba` before it is kept.

    Inputs are ``score`` (of ``dtype``) and one input a context under its own name (string, int64 or bool), each of
    shape ``[batch]``; the output is ``prob``, of ``dtype`` and the same shape. A missing context value is ``""`` or the
    smallest integer. A NaN score gives NaN.

    Args:
        curves: The curves.
        path: Where to.
        dtype: Type of scores and probabilities; the arithmetic inside is always double.
    """
    if dtype not in ("float64", "float32"):
        raise InputError(f'dtype: expected "float64" or "float32", got {dtype!r}; choose one')
    if curves.values.nbytes > _MOST_BYTES:
        raise InputError(f"curves: expected at most 2 GB, got {curves.values.nbytes / 1e9:.1f} GB; use fewer contexts")
    model = _model(curves, dtype)
    onnx.checker.check_model(model)
    with whole_file(path) as part:
        part.write_bytes(model.SerializeToString())
        _compare(curves, part, dtype)


def session(model: str | Path | bytes, *, threads: int = 1) -> Any:
    """An onnxruntime session of a model, given by its path or its bytes, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


class _Graph:
    """Nodes and constants in the order they are added; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes = list[Any]()
        self.constants = list[Any]()

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def encode(self, column: str, keys: NDArray[Any], numbers: NDArray[Any], default: int) -> str:
        """``numbers`` by their keys, integers or strings; ``default`` for whatever is not a key."""
        kind = (
            {"keys_strings": [str(key) for key in keys]} if keys.dtype.kind in "UO" else {"keys_int64s": keys.tolist()}
        )
        values = {"values_int64s": numbers.tolist(), "default_int64": default}
        return self.add("LabelEncoder", column, domain="ai.onnx.ml", **kind, **values)


def _model(curves: Curves, dtype: Floating) -> Any:
    graph = _Graph()
    number = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("score", number, ["batch"])]
    row = graph.constant([0], np.int64)  # without contexts one row serves every score
    for level, name in enumerate(curves.contexts, start=1):
        words = _words(curves, level)
        kind = {"U": TensorProto.STRING, "b": TensorProto.BOOL}.get(words.dtype.kind, TensorProto.INT64)
        inputs.append(helper.make_tensor_value_info(name, kind, ["batch"]))
        row = _row(graph, curves, level, name, words, row)
    prob = _prob(graph, curves, graph.add("Cast", "score", to=TensorProto.DOUBLE), row)
    graph.nodes.append(helper.make_node("Cast", [prob], ["prob"], name="prob", to=number))
    output = helper.make_tensor_value_info("prob", number, ["batch"])
    body = helper.make_graph(graph.nodes, "isolayer", inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", _opset()), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(body, producer_name="isolayer", opset_imports=opsets)
    model.ir_version = helper.find_min_ir_version_for(opsets)
    grid = {"lower": curves.grid.lower, "upper": curves.grid.upper, "step": curves.grid.step}
    helper.set_model_props(model, {"isolayer": json.dumps({"grid": grid, "scale": curves.scale})})
    return model


def _row(graph: _Graph, curves: Curves, level: int, name: str, words: NDArray[Any], parent: str) -> str:
    """Row of the curve that serves each input at a level: its own if it has one, else its parent's."""
    keys, rows = curves.keys[level], np.arange(curves.starts[level], curves.starts[level + 1])
    column = graph.add("Cast", name, to=TensorProto.INT64) if words.dtype == bool else name
    own: Any = MISSING_STRING if words.dtype.kind == "U" else MISSING_INTEGER
    known = np.array([*words.tolist(), own], None if words.dtype.kind == "U" else np.int64)
    place = {word: code for code, word in enumerate(words.tolist())}
    code = np.array([place.get(value, len(words)) for value in keys[-1].tolist()], np.int64)
    if level == 1:
        found = graph.encode(column, known[code], rows, -1)
    else:
        stride = len(known) + 1  # codes of the known, of a missing value, and of whatever is unseen
        coded = graph.encode(column, known, np.arange(len(known)), len(known))
        above = curves.rows_of(dict(zip(curves.contexts, keys, strict=False)), len(rows), depth=level - 1)
        pair = graph.add("Add", graph.add("Mul", parent, graph.constant([stride], np.int64)), coded)
        found = graph.encode(pair, above * stride + code, rows, -1)
    return graph.add("Max", found, parent)  # curves of a deeper level stand further down


def _words(curves: Curves, level: int) -> NDArray[Any]:
    """Distinct values of the context of a level, without the missing one."""
    values = [value for value in curves.keys[level][level - 1].tolist() if value is not None]
    words = np.unique(np.array(values)) if values else np.array([], dtype=str)
    clash = MISSING_STRING if words.dtype.kind == "U" else MISSING_INTEGER
    if clash in words.tolist():
        raise InputError(
            f"context {curves.contexts[level - 1]}: expected no value {clash!r}, which says missing to a model, got "
            "one; rename it"
        )
    return words


def _prob(graph: _Graph, curves: Curves, score: str, row: str) -> str:
    """Calibrated probability of scores, each by its row: the formula of :mod:`isolayer.curves.curves`, node by node."""
    grid, constant, add = curves.grid, graph.constant, graph.add
    logit = score
    if curves.scale == "prob":
        inside = add("Clip", score, constant(NEAR), constant(1 - NEAR))
        logit = add("Log", add("Div", inside, add("Sub", constant(1), inside)))
    inside = add("Clip", logit, constant(grid.lower), constant(grid.upper))
    place = add("Mul", add("Sub", inside, constant(grid.lower)), constant(1 / grid.step))
    left = add("Min", add("Floor", place), constant(grid.buckets - 2))
    left = add("Where", add("IsNaN", left), constant(0), left)  # NaN has no bucket, and stays NaN below
    first = add("Mul", row, constant([grid.buckets], np.int64))
    at = add("Add", first, add("Cast", left, to=TensorProto.INT64))
    flat = constant(curves.values.reshape(-1))
    below = add("Gather", flat, at)
    above = add("Gather", flat, add("Add", at, constant([1], np.int64)))
    part = add("Mul", add("Sub", place, left), add("Sub", above, below))
    value = add("Add", add("Add", below, part), add("Sub", logit, inside))
    clipped = add("Clip", value, constant(-700), constant(36))
    return add("Div", constant(1), add("Add", constant(1), add("Exp", add("Neg", clipped))))


@cache
def _opset() -> int:
    """The newest operator set that the installed onnx and onnxruntime both know: onnx is often a release ahead."""
    for newest in range(onnx.defs.onnx_opset_version(), 18, -1):
        opsets = [helper.make_opsetid("", newest)]
        number = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1]) for name in "xy"]
        body = helper.make_graph([helper.make_node("Floor", "x", "y")], "probe", number[:1], number[1:])
        model = helper.make_model(body, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
        try:
            session(model.SerializeToString())
        except (Fail, InvalidGraph, Unsupported):
            continue
        return newest
    raise RuntimeError("onnxruntime knows no operator set from 19 on: pip install --upgrade onnxruntime")


def _compare(curves: Curves, path: Path, dtype: Floating) -> None:
    """Raise unless the model answers as the curves do: in known and unseen contexts, on the grid and outside it."""
    rng = np.random.default_rng(0)
    rows = min(_CHECKED, len(curves.values))
    chosen = np.sort(rng.choice(len(curves.values), rows, replace=False))
    lower, upper = curves.grid.lower, curves.grid.upper
    width = upper - lower
    logit = np.concatenate([rng.uniform(lower - width, upper + width, rows), [lower, upper, 0.0]])
    score = logit if curves.scale == "logit" else 1 / (1 + np.exp(-logit))
    context = {name: _examples(curves, level, chosen) for level, name in enumerate(curves.contexts, start=1)}
    answer = predict(session(path), score.astype(dtype), context)
    expected = curves.predict_proba(score.astype(dtype).astype(np.float64), context or None)
    worst = float(np.abs(answer - expected).max())
    if not worst <= (1e-9 if dtype == "float64" else 1e-6):
        raise RuntimeError(f"the ONNX model differs from the curves by {worst:.1e} in probability; it was not written")


def predict(session: Any, score: NDArray[Any], context: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Answer of a model to columns as :meth:`Curves.predict_proba` takes them, missing values included."""
    feed = {"score": score}
    for given in session.get_inputs():
        if given.name == "score":
            continue
        own: Any = MISSING_STRING if given.type == "tensor(string)" else MISSING_INTEGER
        values = [own if value is None else value for value in np.asarray(context[given.name]).tolist()]
        feed[given.name] = np.array(values, object if given.type == "tensor(string)" else None)
    return np.asarray(session.run(["prob"], feed)[0])


def _examples(curves: Curves, level: int, chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Values of a context in some curves, in unseen contexts where a curve stands above its level, and thrice more."""
    words = _words(curves, level)
    unseen: Any = (
        "\x00 never seen" if words.dtype.kind == "U" else False if words.dtype == bool else MISSING_INTEGER + 1
    )
    out = list[Any]()
    depth = np.searchsorted(np.array(curves.starts), chosen, side="right") - 1
    for row, at in zip(chosen.tolist(), depth.tolist(), strict=True):
        out.append(curves.keys[at][level - 1][row - curves.starts[at]] if at >= level else unseen)
    return np.array([*out, unseen, unseen, unseen], dtype=object)
