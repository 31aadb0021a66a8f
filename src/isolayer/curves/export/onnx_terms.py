"""Corrections of fields in an ONNX graph: the level of each field, one lookup per term, and the corrected logit.

The input of a category is a string or a bool, that of a number a double, named after its column; a part of a date is a
double named after the field, such as ``when.hour``. NaN is a missing number; a category that may be missing has a
further input that says so. The graph itself is handled by :mod:`isolayer.curves.export.onnx`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper

from isolayer.curves.export.levels import Level
from isolayer.curves.export.onnx_graph import Graph
from isolayer.errors import InputError
from isolayer.fitting.categories import typed
from isolayer.fitting.field_levels import Field, as_arrow, number_of
from isolayer.fitting.interactions import View
from isolayer.fitting.terms import Term, Terms


class FieldInput(NamedTuple):
    """The inputs of a field: its value and, for a category that may be missing, whether it is missing."""

    field: Field
    name: str
    missing: str | None

    def declared(self) -> list[Any]:
        """The inputs as a graph declares them."""
        kind = TensorProto.DOUBLE
        if self.field.kind == "category":
            kind = TensorProto.BOOL if is_boolean(self.field) else TensorProto.STRING
        marks = [] if self.missing is None else [(self.missing, TensorProto.BOOL)]
        return [helper.make_tensor_value_info(name, one, ["batch"]) for name, one in [(self.name, kind), *marks]]

    def facts(self) -> dict[str, Any]:
        """The facts about the input that are stored in the model."""
        one = self.field
        told = {"column": one.column, "part": one.part, "kind": one.kind, "name": self.name, "missing": self.missing}
        return told if one.kind == "number" else {**told, "unseen": unseen_word(one)}

    @staticmethod
    def fed(told: Mapping[str, Any], values: Any) -> dict[str, Any]:
        """Inputs of a model for a column of values, given its stored facts; errors as in :meth:`Field.levels_of`."""
        words = np.array([False if told.get("unseen") is None else told["unseen"]])
        Field(told["column"], told["kind"], words=words, part=told["part"]).levels_of(values)
        if told["kind"] == "number":
            return {told["name"]: number_of(told["column"], values, told["part"])}
        given = as_arrow(told["column"], values).to_pylist()
        gap = np.array([value is None for value in given], bool)
        if told["missing"] is None and gap.any() and told["unseen"] is None:
            raise InputError(
                f"field {told['column']}: expected no missing values, for which the model has no input, got None; "
                "fill them, or fit rows that have some"
            )
        filler = False if told["unseen"] is None else told["unseen"]
        kind: Any = np.bool_ if isinstance(filler, bool) else object
        fed: dict[str, Any] = {told["name"]: np.array([filler if value is None else value for value in given], kind)}
        return fed if told["missing"] is None else {**fed, told["missing"]: gap}


def field_inputs(terms: Terms, shared: Collection[str], fresh: Callable[[str], str]) -> list[FieldInput]:
    """Inputs of all fields that some term uses and that are not contexts.

    Args:
        terms: The terms.
        shared: Columns that are already inputs because they are contexts.
        fresh: Gives a name that is not taken yet.
    """
    found = list[FieldInput]()
    for one in (one for one in _used(terms) if one.column not in shared):
        name = fresh(one.name)
        found.append(
            FieldInput(one, name, fresh(f"{name}_missing") if one.missing >= 0 and _is_category(one) else None)
        )
    return found


def context_inputs(graph: Graph, terms: Terms, walk: Sequence[Level], missing: Mapping[str, str]) -> list[FieldInput]:
    """Fields that are also contexts, read from their inputs; ``missing`` maps contexts to their missing inputs."""
    found = list[FieldInput]()
    kinds = {level.context: level.kind for level in walk if level.kind is not None}
    for one in (one for one in _used(terms) if one.column in kinds):
        name, gap = one.column, missing.get(one.column)
        if not _is_category(one):
            name = graph.add("Cast", name, to=TensorProto.DOUBLE)
            name = name if gap is None else graph.add("Where", gap, graph.constant(np.nan), name)
        found.append(FieldInput(one, name, gap if one.missing >= 0 and _is_category(one) else None))
    return found


def _used(terms: Terms) -> list[Field]:
    """Fields that some term uses."""
    return [terms.fields[i] for i in sorted({view.field for term in terms.terms for view in term.views})]


def _is_category(one: Field) -> bool:
    return one.kind == "category"


def unseen_word(one: Field) -> Any:
    """A value that a category does not have; None if it has all, which is possible for booleans."""
    words = set(typed(one.words)[0].tolist())
    if is_boolean(one):
        return next((value for value in (False, True) if value not in words), None)
    return next(str(number) for number in range(len(words) + 1) if str(number) not in words)


def examples(terms: Terms, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Columns with values at and next to every edge, known and unseen categories, and missing values."""
    found = dict[str, Any]()
    for one in terms.fields:
        if one.part is not None:
            found[one.column] = rng.integers(0, 10**9, rows).astype("datetime64[s]")
        elif one.kind == "number":
            near = [one.edges, np.nextafter(one.edges, -np.inf), np.array([np.nan, -1e300, 1e300])]
            found[one.column] = rng.choice(np.concatenate(near), rows)
        else:
            words = [*one.words.tolist(), *([] if unseen_word(one) is None else [unseen_word(one)])]
            found[one.column] = np.array([words[place] for place in rng.integers(0, len(words), rows)], dtype=object)
    return found


def is_boolean(one: Field) -> bool:
    """Whether the values of a category are booleans."""
    return typed(one.words)[0].dtype.kind == "b"


def corrected(graph: Graph, terms: Terms, inputs: Sequence[FieldInput], base: str) -> str:
    """The corrected logit of a base logit: :meth:`isolayer.fitting.terms.Terms.correct`, node by node."""
    levels = {one.field.name: _level(graph, one) for one in inputs}
    offset, tilt = graph.constant([terms.shared[0]]), graph.constant([terms.shared[1]])
    for term in terms.terms:
        row = _row(graph, terms, term, levels)
        offset = graph.add("Add", offset, _gathered(graph, term.values[:, 0], row))
        if term.values.shape[1] == 2:
            tilt = graph.add("Add", tilt, _gathered(graph, term.values[:, 1], row))
    place = graph.add("Mul", graph.add("Sub", base, graph.constant(terms.lower)), graph.constant(1 / terms.width))
    place = graph.add("Sub", graph.add("Clip", place, graph.constant(0), graph.constant(1)), graph.constant(0.5))
    leaning = graph.add("Mul", graph.add("Max", tilt, graph.constant([-terms.width])), place)
    return graph.add("Add", graph.add("Add", base, offset), leaning)


def _level(graph: Graph, one: FieldInput) -> str:
    """Level of a field; -1 if it has none."""
    field = one.field
    if field.kind == "number":
        column = graph.add("Unsqueeze", one.name, graph.constant([1], np.int64))  # [batch, 1]
        above = graph.add("GreaterOrEqual", column, graph.constant(field.edges))  # [batch, edges]
        count = graph.add("Cast", above, to=TensorProto.INT64)
        level = graph.add("ReduceSum", count, graph.constant([1], np.int64), keepdims=0)
        return graph.add("Where", graph.add("IsNaN", one.name), graph.constant([field.missing], np.int64), level)
    keys = typed(field.words)[0].tolist()
    column = graph.add("Cast", one.name, to=TensorProto.INT64) if is_boolean(field) else one.name
    keys = [int(key) for key in keys] if is_boolean(field) else keys
    level = graph.encode(column, keys, np.arange(len(keys)), -1)
    if one.missing is None:
        return level
    return graph.add("Where", one.missing, graph.constant([field.missing], np.int64), level)


def _row(graph: Graph, terms: Terms, term: Term, levels: dict[str, str]) -> str:
    """Row of a term's table; one beyond the last if there is none."""
    views = [_viewed(graph, view, levels[terms.fields[view.field].name]) for view in term.views]
    cell, unseen = views[0], graph.add("Less", views[0], graph.constant([0], np.int64))
    for view, level in zip(term.views[1:], views[1:], strict=True):
        cell = graph.add("Add", graph.add("Mul", cell, graph.constant([view.size], np.int64)), level)
        unseen = graph.add("Or", unseen, graph.add("Less", level, graph.constant([0], np.int64)))
    size = len(term.cells)
    found = graph.encode(cell, term.cells.tolist(), np.arange(size), size)
    return graph.add("Where", unseen, graph.constant([size], np.int64), found)


def _viewed(graph: Graph, view: View, level: str) -> str:
    """A level at another resolution; -1 stays."""
    if np.array_equal(view.level, np.arange(view.size)):
        return level
    table = graph.constant(np.append(view.level, -1), np.int64)
    return graph.add("Gather", table, level)  # index -1 is the last entry


def _gathered(graph: Graph, values: Any, row: str) -> str:
    return graph.add("Gather", graph.constant(np.append(values, 0.0)), row)
