"""The same answer everywhere: one table of cases through numpy, DuckDB, Postgres, Spark, ONNX and torch.

The contract in words is in ``docs/warehouse.md``. A case either has the same answer in every engine, or is refused by
every engine. ``tests/chaos/engines.py`` runs random curves and rows through the same engines for as long as one likes.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal

import engines
import numpy as np
import pyarrow as pa
import pytest
import torch
from engines import EMBEDDED, Postgres, Refused, Spark, Unheld

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.grid import Grid

GRID = Grid(lower=-4, upper=4, step=0.5)
NAMES = [*EMBEDDED, "postgres", "spark", "spark ibis"]
NAN, INF = float("nan"), float("inf")

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pyspark")


SLOW = {  # engines that take a second per case are asked about some here, and about all kinds by chaos/engines.py
    "spark": (
        *(
            "strings and none",
            "NUL",
            "limits and none",
            "floats and none",
            "unsigned",
            "large decimals",
            "fine decimals",
        ),
        *("decimals and none", "booleans and none", "one boolean", "deepest context that is known", "logit, doubles"),
        *(
            "curves that fall",
            "prob, doubles",
            "prob, clipped",
            "no rows, string",
            "column ISOLAYER_KEY_1",
            "column back`tick",
        ),
        *("strings for integers", "booleans for integers", "integers for booleans", "floats for large integers"),
        *("dates for strings", "times of a zone for strings", "lists for integers"),
    ),
    "spark ibis": ("context, strings and none", "large decimals", "floats and none", "dates for strings"),
}


def pairs(names):
    """Every engine with every case that it is asked about."""
    return [(engine, name) for engine in NAMES for name in names if engine not in SLOW or name.endswith(SLOW[engine])]


def with_cases(names):
    return pytest.mark.parametrize(("engine", "name"), pairs(names), indirect=["engine"])


@pytest.fixture(params=NAMES)
def engine(request):
    if request.param in EMBEDDED:
        return request.param, EMBEDDED[request.param]
    if request.param == "postgres":
        return request.param, Postgres(request.getfixturevalue("postgres"))
    backend = request.getfixturevalue("spark_backend") if "ibis" in request.param else None
    return request.param, Spark(request.getfixturevalue("spark"), backend)


def curves_of(keys, *, scale="logit", extrapolation="extend"):
    """Curves of one context, each of its own level and slope; with two lists of keys, of all pairs but the first."""
    levels = [(), *([(vocabulary(keys),)] if keys and not isinstance(keys, tuple) else [])]
    if isinstance(keys, tuple):
        first, second = map(vocabulary, keys)
        levels += [(first,), (np.repeat(first, len(second))[1:], np.tile(second, len(first))[1:])]
    count = 1 + sum(len(level[0]) for level in levels[1:])
    order = np.arange(count)[:, None]
    values = 0.1 + order / 7 + GRID.knots[1:] * (0.5 + (order % 5) / 4) + np.maximum(GRID.knots[1:], 0) ** 2 / 9
    contexts = ("context", "second")[: len(levels) - 1]
    nothing = np.zeros_like(values)
    return Curves(GRID, contexts, tuple(levels), values, nothing, nothing, np.zeros(count), scale, extrapolation)


def vocabulary(keys):
    return np.array(keys, dtype=object) if None in keys else np.array(keys)


def rows_of(**contexts):
    size = len(next(iter(contexts.values())))
    return pa.table({"id": np.arange(size), "score": np.linspace(-6, 6, size), **contexts})


ODD = [
    "", " ", "a", "A", "a ", " a", "b", "é", "e\u0301", "it's", "''", 'say "x"', "back\\slash", "\\", "\\n", "a\nb",
    "return\r", "tab\t", "${x}", "${env:HOME}", "$1", ":x", "%s", "{0}", "NULL", "null", "nan", "None", "true", "0",
    "ß", "SS", "日本", "🙂", "--", "/*", ";", "`", "\u2028", "\x7f", "\x01",
]  # fmt: skip
LIMITS = [-(2**63), -(2**53) - 1, -1, 0, 1, 2**53 + 1, 2**63 - 1]
SMALL = [-7, 0, 1, 100]


def decimals(values, precision, scale):
    return pa.array([None if value is None else Decimal(value) for value in values], pa.decimal128(precision, scale))


FLOATS = [1.0, -0.0, 0.5, NAN, None, INF, -INF, 1e300, 100.0]
SAME = {
    # name: (keys, column)
    "strings": (ODD[::2], pa.array([*ODD, None, "unseen"])),
    "strings and none": ([*ODD[::2], None], pa.array([*ODD, None, "unseen"])),
    "categories": (["a", "b", None], pa.array(["a", "b", None, "c", "A"]).dictionary_encode()),
    "long strings": (["a" * 300, "a" * 299 + "b"], pa.array(["a" * 300, "a" * 299 + "b", "a" * 299])),
    "NUL": (["", "a", None], pa.array(["a", "a\0", "a\0b", "\0", "", None])),
    "integers to the limits": (LIMITS, pa.array([*LIMITS, 2, -(2**63) + 1, 2**53, None])),
    "integers to the limits and none": ([*LIMITS, None], pa.array([*LIMITS, 2, -(2**63) + 1, 2**53, None])),
    "bytes": (SMALL, pa.array([-7, 0, 1, 100, 5, None], pa.int8())),
    "bytes asked for more": ([*SMALL, 1000], pa.array([-7, 0, 1, 100, 5, None], pa.int8())),
    "32 bits and none": ([*SMALL, None], pa.array([-7, 0, 1, 100, 5, None], pa.int32())),
    "unsigned": ([0, 2**63 - 1, None], pa.array([0, 2**63 - 1, 2**63, 2**64 - 1, None], pa.uint64())),
    "unsigned asked for negatives": ([-1, 0], pa.array([0, 2**64 - 1, None], pa.uint64())),
    "floats": (SMALL, pa.array(FLOATS)),
    "floats and none": ([*SMALL, None], pa.array(FLOATS)),
    "single floats": ([*SMALL, 2**24 - 1], pa.array([*FLOATS[:7], 16777215.0], pa.float32())),
    "single floats and none": ([*SMALL, None], pa.array(FLOATS[:7], pa.float32())),
    "whole decimals": (LIMITS, decimals([*LIMITS, 2, None], 19, 0)),
    "large decimals": ([*LIMITS, None], decimals([*LIMITS, 2**63, -(10**30), 10**30, None], 38, 0)),
    "decimals": (SMALL, decimals(["1", "1.5", "0.00", "-7", None, "100.01"], 10, 2)),
    "decimals and none": ([*SMALL, None], decimals(["1", "1.5", "0.00", "-7", None, "100.01"], 10, 2)),
    "fine decimals": ([*SMALL, None], decimals(["1", "1." + "0" * 29 + "1", None], 38, 30)),
    "booleans": ([False, True], pa.array([False, True, True])),
    "one boolean": ([True], pa.array([False, True, None])),
    "booleans and none": ([False, True, None], pa.array([False, None, True])),
    "only none": ([None], pa.array(["a", None])),
    "nothing": (["a", None], pa.nulls(3)),
    "nothing, by numbers": ([1, 2], pa.nulls(3)),
}
TYPED = ("floats", "decimals", "unsigned")  # inputs of ONNX have 64-bit integers; others are refused there


NOON = datetime.datetime(2026, 1, 1, 12)
OTHERS = {
    "strings for integers": ([1, 2], pa.array(["1", "2"])),
    "booleans for integers": ([0, 1], pa.array([False, True])),
    "integers for strings": (["1", "2"], pa.array([1, 2])),
    "floats for strings": (["1", "2"], pa.array([1.0, 2.0])),
    "booleans for strings": (["true", "false"], pa.array([True, False])),
    "integers for booleans": ([False, True], pa.array([0, 1])),
    "strings for booleans": ([False, True], pa.array(["true", "false"])),
    "floats for large integers": ([0, 2**53], pa.array([0.0, 2.0**53])),
    "single floats for integers": ([0, 2**24], pa.array([0.0, 2.0**24], pa.float32())),
    "dates for strings": (["2026-01-01"], pa.array([NOON.date()])),
    "dates for integers": ([20454], pa.array([NOON.date()])),
    "times for strings": (["2026-01-01 12:00:00"], pa.array([NOON])),
    "times of a zone for strings": (["2026-01-01 12:00:00+00"], pa.array([NOON], pa.timestamp("us", "Asia/Tokyo"))),
    "bytes for strings": (["a"], pa.array([b"a"])),
    "lists for integers": ([1, 2], pa.array([[1], [2]])),
}


@with_cases(OTHERS)
def test_columns_of_another_type_are_refused_by_all(name, engine):
    keys, column = OTHERS[name]
    try:
        with pytest.raises(Refused) as refused:
            engine[1](curves_of(keys), rows_of(context=column))
    except Unheld as reason:
        pytest.skip(str(reason))
    words = ("context context: expected ", "Unimplemented type for cast", "operator does not exist", "CASE types")
    assert any(word in str(refused.value) for word in words)


SCORES = {
    "doubles": pa.array([None, NAN, INF, -INF, -0.0, 0.0, 1e308, -1e308, 5e-324, -4.0, 4.0, 3.999, 40.0, -900.0, 0.26]),
    "single": pa.array([None, NAN, INF, -0.0, 3.4e38, -4.0, 0.25, 17.0], pa.float32()),
    "integers": pa.array([None, 0, -4, 4, 2**53, -(2**63), 2**63 - 1]),
    "bytes": pa.array([None, 0, -128, 127], pa.int8()),
    "decimals": decimals([None, "0.25", "-4.000", "12345678.5"], 12, 3),
    "nothing": pa.nulls(2),
}
PROBS = {
    "doubles": pa.array([None, NAN, INF, -INF, -0.0, 0.0, 1.0, 0.5, 1e-300, 1 - 1e-16, -1e-9, 1.0000001, 1.7, -5.0]),
    "single": pa.array([None, NAN, 0.0, 1.0, 0.25, 1.0000001, 1.7], pa.float32()),
    "integers": pa.array([None, 0, 1, 2, -1]),
    "decimals": decimals([None, "0", "1", "0.125", "1.001"], 12, 3),
}


@pytest.mark.parametrize(
    "score", [pa.array(["0.5"]), pa.array([NOON]), pa.array([NOON.date()])], ids=["text", "time", "date"]
)
def test_scores_that_are_no_numbers_are_refused_by_all(score, engine):
    if engine[0] == "onnx":
        pytest.skip("a model's score is a float")
    table = pa.table({"id": [0], "score": score})
    with pytest.raises((Refused, TypeError, ValueError)):
        engine[1](curves_of([]), table)


COLUMNS = [
    "isolayer_v",
    "isolayer_score",
    "ISOLAYER_KEY_1",
    'it\'s "x"',
    "back`tick",
    "日本",
    "select",
    "prob",
    "l1",
    "k",
]


KINDS = {"string": ["a", None], "int64": [1, None], "bool": [True, None], "double": [1, None]}
PATHS = [(one, two) for one in ("a", "b", None, "c") for two in (1, 2, None, 3)]


def scored(score):
    return pa.table({"id": np.arange(len(score)), "score": score})


def answered():
    """All cases to which every engine has the same answer, by name: curves and a table."""
    paths = rows_of(context=[one for one, _ in PATHS], second=[two for _, two in PATHS])
    cases = {f"context, {name}": (curves_of(keys), rows_of(context=column)) for name, (keys, column) in SAME.items()}
    cases["a path ends at the deepest context that is known"] = curves_of((["a", "b", None], [1, 2, None])), paths
    falling = curves_of([1, 2, None])
    falling = replace(falling, values=falling.values - 2 * np.abs(GRID.knots[1:]), monotone=False)
    cases["curves that fall"] = falling, rows_of(context=[1, 2, 3, None] * 10)
    for scale, scores in (("logit", SCORES), ("prob", PROBS)):
        for name, score in scores.items():
            cases[f"{scale}, {name}"] = curves_of([], scale=scale), scored(score)
        cases[f"{scale}, clipped"] = curves_of([], scale=scale, extrapolation="clip"), scored(scores["doubles"])
    for kind, keys in KINDS.items():
        empty = rows_of(context=pa.array([None], getattr(pa, {"bool": "bool_", "double": "float64"}.get(kind, kind))()))
        cases[f"no rows, {kind}"] = curves_of(keys), empty.slice(0, 0)
    for name in COLUMNS:
        cases[f"column {name}"] = replace(curves_of([1, None]), contexts=(name,)), rows_of(**{name: [1, 2, None]})
    return cases


CASES = answered()
_ANSWERS = {}  # by engine and case: engines that are slow to start a statement are asked about all cases at once


def answer_of(engine, name):
    named, ask = engine
    if (named, name) not in _ANSWERS:
        names = [case for one, case in pairs(CASES) if one == named]
        found = engines.answers(ask, [CASES[case] for case in names])
        _ANSWERS.update({(named, case): answer for case, answer in zip(names, found, strict=True)})
    return _ANSWERS[named, name]


@with_cases(CASES)
def test_every_engine_answers_alike(name, engine):
    answer = answer_of(engine, name)
    if isinstance(answer, Unheld):
        pytest.skip(str(answer))
    if engine[0] == "onnx" and name.startswith("context") and any(word in name for word in TYPED):
        assert isinstance(answer, Refused)
        return
    if (engine[0], name) == ("onnx", "no rows, double"):
        pytest.skip("a model's contexts are integers")
    assert not isinstance(answer, Refused), answer
    np.testing.assert_allclose(answer, engines.oracle(*CASES[name]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("columns", [("ctx", "CTX"), ("CTX", "ctx")], ids="-".join)
def test_columns_that_differ_in_case_only(columns, engine):
    """Right where an engine tells them apart, elsewhere refused. DuckDB itself renames the second when it reads."""
    curves = replace(curves_of([1, 2]), contexts=("CTX",))
    table = rows_of(**dict(zip(columns, ([1, 2, 3], [2, 3, 1]), strict=True)))
    after_renaming = columns[0] == "CTX" and engine[0] in ("relation", "duckdb")
    if engine[0] in ("numpy", "frames", "onnx", "postgres") or after_renaming:
        np.testing.assert_allclose(engine[1](curves, table), engines.oracle(curves, table), rtol=0, atol=1e-9)
    else:
        with pytest.raises(Refused):
            engine[1](curves, table)


@pytest.mark.parametrize("way", ["eager", "compiled", "exported"])
@pytest.mark.parametrize(("scale", "extrapolation"), [("logit", "extend"), ("prob", "clip")])
def test_torch_answers_alike(way, scale, extrapolation):
    """A layer reads logits and the rows of curves that `rows_of` finds; NaN stays NaN, and infinity gives the limit."""
    keys, column = SAME["strings and none"]
    curves = curves_of(keys, scale=scale, extrapolation=extrapolation)
    score = np.linspace(-9, 9, len(column)) if scale == "logit" else np.linspace(0, 1, len(column))
    table = rows_of(context=column).set_column(1, "score", pa.array(score))
    logit = torch.tensor(score if scale == "logit" else logit_of(score))
    context = {"curve": torch.tensor(curves.rows_of({"context": column}, len(column)))}
    layer = curves.to_layer()
    if way == "compiled":
        layer = torch.compile(layer, dynamic=True, backend="inductor")
    if way == "exported":
        layer = torch.export.export(layer, (logit, context), strict=False).module()
    answer = prob_of(layer(logit, context)[:, 0].detach().numpy())
    np.testing.assert_allclose(answer, engines.oracle(curves, table), rtol=0, atol=1e-9)
    logit[:3] = torch.tensor([NAN, INF, -INF])
    ends = layer(logit, context)[:3, 0].detach().numpy()
    assert np.isnan(ends[0])
    if extrapolation == "extend":
        assert ends[1:].tolist() == [INF, -INF]
    else:
        rows = context["curve"][1:3].numpy()
        np.testing.assert_allclose(ends[1:], [curves.values[rows[0], -1], curves.values[rows[1], 0]], atol=1e-9)
