"""Curves as an ONNX model from a score and context values to a probability, with operations that every runtime has.

The model contains the vocabulary of every context: strings and integers are passed as they are in the logs, and an
unseen value has the curve of its deepest known ancestor. After writing, the model is read again and compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Unsupported

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import NEAR
from isolayer.curves.export.levels import Kind, Level, levels
from isolayer.curves.export.onnx_graph import Graph
from isolayer.curves.export.onnx_terms import FieldInput, context_inputs, corrected, examples, field_inputs
from isolayer.curves.export.sql import own_prefix
from isolayer.errors import InputError
from isolayer.fitting.categories import KINDS
from isolayer.fitting.packed import Packed
from isolayer.fitting.terms import LAST_GRID
from isolayer.grid import Grid
from isolayer.storage import whole_file

Floating = Literal["float64", "float32"]

_MOST_BYTES = 1_900_000_000  # size limit of a protobuf, 2 GB
_CHECKED = 2000  # curves that are compared after writing, at most
_TYPES = {"i": TensorProto.INT64, "b": TensorProto.BOOL, "U": TensorProto.STRING}
_DTYPES: dict[str, Any] = {"tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(string)": object}
_KINDS: dict[str, Kind] = {"tensor(int64)": "i", "tensor(bool)": "b", "tensor(string)": "U"}


def to_onnx(curves: Curves, path: str | PathLike[str], *, dtype: Floating = "float64") -> None:
    """Write the curves as an ONNX model, checked in onnxruntime against :meth:`Curves.predict_proba` before it is kept.

    Inputs are ``score`` (of ``dtype``) and one per context under its own name (string, int64 or bool), each of shape
    ``[batch]``; the output is ``prob``, of ``dtype`` and the same shape. If missing values of a context have a curve of
    their own, a further input ``<context>_missing`` (bool) says which values are missing, and their values are ignored;
    otherwise pass any unseen value for a missing one. A score that cannot be used (NaN, infinite, or a probability
    outside [0, 1]) gives NaN. If a context is called ``score`` or ``prob``, the model's own score or output is called
    ``score_1`` or ``prob_1``; the metadata under the key ``isolayer`` list all names.

    Args:
        curves: The curves.
        path: Where to.
        dtype: Type of scores and probabilities; the arithmetic inside is always double.
    """
    if dtype not in ("float64", "float32"):
        raise InputError(f'dtype: expected "float64" or "float32", got {dtype!r}; choose one')
    if curves.values.nbytes > _MOST_BYTES:
        raise InputError(f"curves: expected at most 2 GB, got {curves.values.nbytes / 1e9:.1f} GB; use fewer contexts")
    walk = levels(curves)
    model = _model(curves, walk, dtype)
    onnx.checker.check_model(model)
    with whole_file(path) as part:
        part.write_bytes(model.SerializeToString())
        _compare(curves, walk, part, dtype)


def session(model: str | Path | bytes, *, threads: int = 1) -> Any:
    """An onnxruntime session of a model, given by its path or its bytes, on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def predict(session: Any, score: NDArray[Any], context: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Predictions of a model for columns of strings, integers or booleans, in which None is missing.

    Args:
        session: A :func:`session` of a model that :func:`to_onnx` wrote.
        score: Scores in the model's type, shape ``[n]``.
        context: Context columns by name, each of shape ``[n]``.
    """
    facts = json.loads(session.get_modelmeta().custom_metadata_map["isolayer"])
    types = {given.name: given.type for given in session.get_inputs()}
    feed = {facts["score"]: score}
    for told in facts["contexts"]:
        name, values = told["name"], np.asarray(context[told["name"]]).tolist()
        if told["missing"] is not None:
            feed[told["missing"]] = np.array([value is None for value in values], bool)
        if name in types:
            feed[name] = _typed(name, types[name], values, told)
    for told in facts["fields"]:
        feed |= FieldInput.fed(told, context[told["column"]])
    return np.asarray(session.run([facts["prob"]], feed)[0])


def _typed(name: str, kind: str, values: list[Any], told: Mapping[str, Any]) -> NDArray[Any]:
    """A column in the type of an input, with missing values replaced by an unseen one."""
    wanted = {"i": int, "b": bool, "U": str}[_KINDS[kind]]
    other = next((value for value in values if value is not None and type(value) is not wanted), None)
    if other is not None:
        rule = KINDS[_KINDS[kind]]
        raise InputError(f"context {name}: expected {rule}, got {other!r}; convert the column")
    filler = told["unseen"]
    if filler is None and told["missing"] is None and None in values:
        raise InputError(
            f"context {name}: expected no missing values, for which the model has no input, got None; fit curves with "
            'missing="own", or fill them'
        )
    return np.array([(filler or wanted()) if value is None else value for value in values], _DTYPES[kind])


class _Names(NamedTuple):
    """The names of the inputs and of the output."""

    score: str
    prob: str
    missing: dict[str, str]  # by context
    fields: list[FieldInput]

    @classmethod
    def of(cls, curves: Curves, walk: list[Level]) -> _Names:
        taken = set(curves.contexts)
        score, prob = _fresh("score", taken), _fresh("prob", taken)
        missing = {level.context: _fresh(f"{level.context}_missing", taken) for level in walk if level.has_missing}
        shared = {level.context for level in walk if level.kind is not None}
        fields = [] if curves.terms is None else field_inputs(curves.terms, shared, lambda name: _fresh(name, taken))
        return cls(score, prob, missing, fields)

    @property
    def all(self) -> list[str]:
        """All names except those of contexts."""
        fields = (name for one in self.fields for name in (one.name, one.missing) if name)
        return [self.score, self.prob, *self.missing.values(), *fields]


def _fresh(name: str, taken: set[str]) -> str:
    """A name that is not taken; it is added to the taken ones."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _model(curves: Curves, walk: list[Level], dtype: Floating) -> Any:
    names = _Names.of(curves, walk)
    graph = Graph(own_prefix([*curves.contexts, *names.all]))
    number = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(names.score, number, ["batch"])]
    row = graph.constant([0], np.int64)  # without contexts one row serves every score
    for level in walk:
        if level.kind is not None:
            inputs.append(helper.make_tensor_value_info(level.context, _TYPES[level.kind], ["batch"]))
        if level.has_missing:
            inputs.append(helper.make_tensor_value_info(names.missing[level.context], TensorProto.BOOL, ["batch"]))
        row = _row(graph, level, names.missing.get(level.context), row)
    inputs += [given for one in names.fields for given in one.declared()]
    fields = [
        *names.fields,
        *([] if curves.terms is None else context_inputs(graph, curves.terms, walk, names.missing)),
    ]
    prob = _prob(graph, curves, graph.add("Cast", names.score, to=TensorProto.DOUBLE), row, fields)
    graph.nodes.append(helper.make_node("Cast", [prob], [names.prob], name=names.prob, to=number))
    output = helper.make_tensor_value_info(names.prob, number, ["batch"])
    body = helper.make_graph(graph.nodes, "isolayer", inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", _opset()), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(body, producer_name="isolayer", opset_imports=opsets)
    model.ir_version = helper.find_min_ir_version_for(opsets)
    helper.set_model_props(model, {"isolayer": json.dumps(_facts(curves, walk, names))})
    return model


def _facts(curves: Curves, walk: list[Level], names: _Names) -> dict[str, Any]:
    """The facts that are stored in the model's metadata."""
    grid = {"lower": curves.grid.lower, "upper": curves.grid.upper, "step": curves.grid.step}
    contexts = [
        {"name": level.context, "missing": names.missing.get(level.context), "unseen": _unseen(level)} for level in walk
    ]
    facts = {"grid": grid, "scale": curves.scale, "extrapolation": curves.extrapolation}
    fields = [one.facts() for one in names.fields]
    return facts | {"score": names.score, "prob": names.prob, "contexts": contexts, "fields": fields}


def _unseen(level: Level) -> Any:
    """A value that is not a key; None if every value is one, which is possible for booleans."""
    words = set(level.words)
    if level.kind == "b":
        return next((value for value in (False, True) if value not in words), None)
    values = range(len(words) + 1)
    return next(value for value in (map(str, values) if level.kind == "U" else values) if value not in words)


def _row(graph: Graph, level: Level, missing: str | None, parent: str) -> str:
    """Row of the curve that serves each input at a level: its own if it has one, otherwise its parent's."""
    words = level.words
    stride, place = len(words) + 2, {word: code for code, word in enumerate(words)}
    unseen, gap = stride - 2, stride - 1  # codes after those of the values
    if level.kind is None:
        coded = graph.constant([unseen], np.int64)
    else:
        column = graph.add("Cast", level.context, to=TensorProto.INT64) if level.kind == "b" else level.context
        known = [int(word) for word in words] if level.kind == "b" else words
        coded = graph.encode(column, known, np.arange(len(words)), unseen)
    if missing is not None:
        coded = graph.add("Where", missing, graph.constant([gap], np.int64), coded)
    code = np.array([gap if key is None else place[key] for key in level.keys], np.int64)
    pair = graph.add("Add", graph.add("Mul", parent, graph.constant([stride], np.int64)), coded)
    found = graph.encode(pair, (level.parent * stride + code).tolist(), level.rows, -1)
    return graph.add("Max", found, parent)  # curves of a deeper level have larger row numbers


def _prob(graph: Graph, curves: Curves, score: str, row: str, fields: list[FieldInput]) -> str:
    """Calibrated probability of scores, each by its row: :mod:`isolayer.curves.evaluation`, node by node."""
    constant, add, terms = graph.constant, graph.add, curves.terms
    usable = add("Equal", add("Sub", score, score), constant(0))  # false for NaN and infinity
    if curves.scale == "prob":
        usable = add("And", usable, add("GreaterOrEqual", score, constant(0)))
        usable = add("And", usable, add("LessOrEqual", score, constant(1)))
    logit = add("Where", usable, score, constant(0))
    if curves.scale == "prob":
        inside = add("Clip", logit, constant(NEAR), constant(1 - NEAR))
        logit = add("Log", add("Div", inside, add("Sub", constant(1), inside)))
    read = _packed_value if isinstance(curves.values, Packed) else _value
    value = read(graph, curves.grid, curves.values, row, logit, extend=curves.extrapolation == "extend")
    if terms is not None:
        value = corrected(graph, terms, fields, value)
        if terms.last is not None:
            value = _value(graph, LAST_GRID, terms.last, constant([0], np.int64), value, extend=True)
    clipped = add("Clip", value, constant(-700), constant(36))
    prob = add("Div", constant(1), add("Add", constant(1), add("Exp", add("Neg", clipped))))
    return add("Where", usable, prob, constant(np.nan))


def _packed_value(graph: Graph, grid: Grid, values: Packed, row: str, logit: str, *, extend: bool) -> str:
    """The same for packed curves: the value of a whole curve plus a weighted sum of shapes."""
    flat, constant, add = values.flat(), graph.constant, graph.add
    root = add("Gather", constant(flat.root, np.int32), row)
    value = _value(graph, grid, values.whole, add("Cast", root, to=TensorProto.INT64), logit, extend=extend)
    _, place, left = _placed(graph, grid, logit)
    bucket, fraction = add("Cast", left, to=TensorProto.INT64), add("Sub", place, left)
    column = add("Unsqueeze", fraction, constant([1], np.int64))
    small = np.abs(flat.weights).max(0, initial=0) < 2**15  # most numbers, in half the bytes
    for chosen, kind in ((small, np.int16), (~small, np.int32)):
        if chosen.any():
            rise = add("Mul", add("Gather", constant(flat.rise[:, chosen]), bucket), column)
            shapes = add("Add", add("Gather", constant(flat.start[:, chosen]), bucket), rise)
            weights = add("Cast", add("Gather", constant(flat.weights[:, chosen], kind), row), to=TensorProto.DOUBLE)
            total = add("ReduceSum", add("Mul", weights, shapes), constant([1], np.int64), keepdims=0)
            value = add("Add", value, total)
    return value


def _placed(graph: Graph, grid: Grid, logit: str) -> tuple[str, str, str]:
    """Logits clipped to the grid, their distance from its lower end in steps, and the knot to their left."""
    constant, add = graph.constant, graph.add
    inside = add("Clip", logit, constant(grid.lower), constant(grid.upper))
    place = add("Mul", add("Sub", inside, constant(grid.lower)), constant(1 / grid.step))
    return inside, place, add("Min", add("Floor", place), constant(grid.buckets - 2))


def _value(graph: Graph, grid: Grid, values: NDArray[Any], row: str, logit: str, *, extend: bool) -> str:
    """Values of curves at logits, each by its row."""
    constant, add = graph.constant, graph.add
    inside, place, left = _placed(graph, grid, logit)
    first = add("Mul", row, constant([grid.buckets], np.int64))
    at = add("Add", first, add("Cast", left, to=TensorProto.INT64))
    flat = constant(values.reshape(-1))
    below = add("Gather", flat, at)
    above = add("Gather", flat, add("Add", at, constant([1], np.int64)))
    value = add("Add", below, add("Mul", add("Sub", place, left), add("Sub", above, below)))
    return add("Add", value, add("Sub", logit, inside)) if extend else value


@cache
def _opset() -> int:
    """The newest operator set that both onnx and onnxruntime support; onnx is often a release ahead."""
    for newest in range(onnx.defs.onnx_opset_version(), 18, -1):
        opsets = [helper.make_opsetid("", newest)]
        number = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1]) for name in "xy"]
        body = helper.make_graph([helper.make_node("Floor", "x", "y")], "probe", number[:1], number[1:])
        model = helper.make_model(body, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
        try:
            session(model.SerializeToString())
        except (Fail, InvalidArgument, InvalidGraph, Unsupported):
            continue
        return newest
    raise RuntimeError("onnxruntime supports no operator set from 19 on: pip install --upgrade onnxruntime")


def _compare(curves: Curves, walk: list[Level], path: Path, dtype: Floating) -> None:
    """Raise unless the model predicts as the curves do: in known and unseen contexts, on the grid and outside it."""
    rng = np.random.default_rng(0)
    rows = min(_CHECKED, len(curves.values))
    if curves.terms is not None:
        rows = _CHECKED  # so that most levels of fields occur
    chosen = np.sort(rng.choice(len(curves.values), rows, replace=rows > len(curves.values)))
    lower, upper = curves.grid.lower, curves.grid.upper
    width = upper - lower
    logit = np.concatenate([rng.uniform(lower - width, upper + width, rows), [lower, upper, 0.0]])
    score = logit if curves.scale == "logit" else 1 / (1 + np.exp(-logit))
    context = {} if curves.terms is None else examples(curves.terms, len(score), rng)
    context |= {level.context: _examples(curves, depth, level, chosen) for depth, level in enumerate(walk, start=1)}
    answer = predict(session(path), score.astype(dtype), context)
    context |= {name: np.full(len(score), None) for name in curves.contexts[len(walk) :]}
    expected = curves.predict_proba(score.astype(dtype).astype(np.float64), context or None)
    worst = float(np.abs(answer - expected).max())
    if not worst <= (1e-9 if dtype == "float64" else 1e-6):
        raise RuntimeError(f"the ONNX model differs from the curves by {worst:.1e} in probability; it was not written")


def _examples(curves: Curves, depth: int, level: Level, chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Values of a context for some curves, repeated three times with unseen values for coarser curves."""
    unseen = _unseen(level)
    unseen = level.keys[0] if unseen is None or level.kind is None else unseen
    at = np.searchsorted(np.array(curves.starts), chosen, side="right") - 1
    out = [
        curves.keys[place][depth - 1][row - curves.starts[place]] if place >= depth else unseen
        for row, place in zip(chosen.tolist(), at.tolist(), strict=True)
    ]
    values = np.empty(len(out) + 3, dtype=object)
    values[:] = [*(value.item() if isinstance(value, np.generic) else value for value in out), unseen, unseen, unseen]
    return values
