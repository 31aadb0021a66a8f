"""Very many curves, light: packed curves are those that were fitted, everywhere they are used."""

import json
import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolayer import Curves, Grid, Histogram, InputError
from isolayer.curves import verified_file
from isolayer.curves.fielded import LabelledRows, with_fields
from isolayer.curves.packed_io import Deferred
from isolayer.fitting import level, packed_level
from isolayer.fitting.packed import UNIT, Packed, Shapes
from isolayer.fitting.quantised import Quantised

GRID = Grid(lower=-6, upper=4, step=0.25)
ROWS = 12_000


def log(seed=0):
    rng = np.random.default_rng(seed)
    shop = (200 * rng.random(ROWS) ** 2).astype(int)
    device = rng.choice(np.array(["tv", "web", "app", None]), ROWS)
    score = rng.normal(-1, 1.5, ROWS)
    steep = 0.7 + 0.6 * np.sin(shop) ** 2
    label = rng.random(ROWS) < 1 / (1 + np.exp(-steep * score - np.cos(3 * shop) - (device == "tv")))
    return {
        "score": score,
        "label": label.astype(float),
        "shop": shop,
        "device": device,
    }


@cache
def fit(contexts, *, packed, **options):
    data = log()
    sums = Histogram.from_arrays(data["score"], data["label"], {name: data[name] for name in contexts}, grid=GRID)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_level, "PACKED_FROM", 0 if packed else 1 << 62)
        patch.setattr(packed_level, "_LEVEL_FROM", 50)
        patch.setattr(level, "MANY", 0 if packed else 1 << 62)
        return Curves.from_histogram(sums, **options)


NESTED = [("shop",), ("shop", "device"), ("device", "shop")]


@pytest.mark.parametrize(
    ("contexts", "options"),
    [*((contexts, {}) for contexts in NESTED), (NESTED[0], {"monotone": False})],
)
def test_no_prediction_changes_by_more_than_1e_4_in_logit(contexts, options):
    dense, packed = (fit(contexts, packed=kind, **options) for kind in (False, True))
    assert isinstance(packed.values, Packed)
    assert isinstance(dense.values, np.ndarray)
    values = np.asarray(packed.values)
    assert np.abs(values - dense.values).max() <= 1e-4
    if dense.monotone:
        assert np.diff(values, axis=1).min() >= 0
    np.testing.assert_allclose(np.asarray(packed.variance), dense.variance, rtol=0.03)
    largest = dense.knot_weight.max(1, keepdims=True)
    assert (np.abs(np.asarray(packed.knot_weight) - dense.knot_weight) <= 0.004 * largest).all()
    assert ((np.asarray(packed.knot_weight) > 0) == (dense.knot_weight > 0)).all()


def test_contexts_that_may_bend_are_packed_too(monkeypatch):
    """The weaker the prior of the curvature, the more shapes there are: with too few, every curve was stored whole."""
    rng, contexts = np.random.default_rng(0), 6_000
    shop = np.repeat(np.arange(contexts), 20)
    score = rng.normal(-1, 1.5, len(shop))
    label = rng.random(len(shop)) < 1 / (1 + np.exp(-score - rng.normal(0, 0.5, contexts)[shop]))
    sums = Histogram.from_arrays(score, label, {"shop": shop}, grid=Grid(lower=-11, upper=9, step=0.2))
    monkeypatch.setattr(packed_level, "PACKED_FROM", 0)
    curves = Curves.from_histogram(sums, shrinkage=[[4, 8, 1000], [5, 170, 30]])
    assert len(curves.values.rows) < 0.1 * contexts
    assert len(curves.values.levels[0].shapes.shapes) > 24


def test_levels_that_are_shifted_far_are_fitted_again(monkeypatch):
    found = []
    for slight in (-1.0, 1e9):  # no shift is slight, or each is
        monkeypatch.setattr(packed_level, "_SLIGHT", slight)
        monkeypatch.setattr(packed_level, "_MOST_WHOLE", slight)
        found.append(fit.__wrapped__(NESTED[0], packed=True))
    again, once = found
    np.testing.assert_allclose(np.asarray(again.values), np.asarray(once.values), atol=5e-5)
    np.testing.assert_allclose(np.asarray(again.variance), np.asarray(once.variance), rtol=0.03)
    assert not np.array_equal(np.asarray(again.values), np.asarray(once.values)), "fitted in another way"


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize(
    ("contexts", "extrapolation"),
    [*zip(NESTED, ("extend", "clip", "extend"), strict=True)],
)
def test_every_question_has_the_answer_of_the_unpacked_table(contexts, extrapolation, light, monkeypatch):
    if light:
        monkeypatch.setattr("isolayer.fitting.packed.MOST_UNPACKED", 0)
    packed = replace(fit(contexts, packed=True), extrapolation=extrapolation)
    tables = {name: np.asarray(getattr(packed, name)) for name in ("values", "variance", "knot_weight")}
    whole, data = replace(packed, **tables), log(1)
    context = {name: data[name] for name in contexts} | {"shop": np.where(data["shop"] % 7, data["shop"], 9999)}
    context = {name: context[name] for name in contexts}
    for score in (data["score"], data["score"] * 20):
        np.testing.assert_allclose(
            packed.decision_function(score, context),
            whole.decision_function(score, context),
            atol=1e-12,
        )
        for one, two in zip(packed.band(score, context), whole.band(score, context), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-9)
    prob = data["score"] / 100 + 0.5
    np.testing.assert_allclose(packed.inverse(prob, context), whole.inverse(prob, context), atol=1e-9)
    for name, table in tables.items():
        light = getattr(packed, name)
        np.testing.assert_allclose(light[3:9], table[3:9], atol=1e-12)
        np.testing.assert_allclose(light[5], table[5], atol=1e-12)
        np.testing.assert_allclose(light[np.array([4, 2]), np.array([1, 3])], table[[4, 2], [1, 3]], atol=1e-12)
    assert packed.compare(whole)["largest"].max() < 1e-12


def test_the_text_of_sql_the_join_tables_and_onnx_agree(tmp_path):
    import duckdb

    from isolayer.curves.export.onnx import predict, session
    from isolayer.curves.export.sql import to_sql
    from isolayer.tables.apply import apply_table

    data = log(2)
    rows = pa.table({name: column[:500] for name, column in data.items()})
    for contexts in NESTED:
        packed = fit(contexts, packed=True)
        context = {name: np.array(rows[name].to_pylist(), dtype=object) for name in contexts}
        context["shop"] = context["shop"].astype(int)
        expected = packed.predict_proba(data["score"][:500], {name: context[name] for name in contexts})
        table = rows.append_column("id", pa.array(range(500)))
        applied = apply_table(packed, table).order_by("id").to_pyarrow()["calibrated_prob"].to_numpy()
        np.testing.assert_allclose(applied, expected, atol=1e-12)
        scores = table  # found by DuckDB under its name
        answer = duckdb.sql(to_sql(packed, "duckdb", table="scores", keep=["id"])).to_arrow_table().sort_by("id")
        assert len(answer) == len(scores)
        np.testing.assert_allclose(answer["calibrated_prob"].to_numpy(), expected, atol=1e-12)
        packed.to_onnx(tmp_path / "curves.onnx")
        there = predict(session(tmp_path / "curves.onnx"), data["score"][:500], context)
        np.testing.assert_allclose(there, expected, atol=1e-12)


@pytest.mark.parametrize("contexts", NESTED)
def test_a_torch_layer_of_packed_curves_agrees(contexts):
    import torch

    data, packed = log(2), fit(contexts, packed=True)
    assert isinstance(packed.values, Packed)
    context = {name: data[name] for name in contexts}
    rows = torch.tensor(packed.rows_of(context, ROWS))
    logit = packed.to_layer()(torch.tensor(data["score"]), {"curve": rows})[:, 0].detach().numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-logit)), packed.predict_proba(data["score"], context), atol=1e-12)


@pytest.mark.parametrize("contexts", NESTED)
def test_packed_curves_come_back_to_the_bit_and_some_of_them_later(contexts, tmp_path):
    packed, path = fit(contexts, packed=True), tmp_path / "curves.parquet"
    packed.save(path)
    again = Curves.load(path)
    assert isinstance(again.variance, Deferred)
    data = log(3)
    context = {name: data[name] for name in contexts}
    np.testing.assert_array_equal(
        again.predict_proba(data["score"], context),
        packed.predict_proba(data["score"], context),
    )
    assert "table" not in vars(again.variance), "scoring reads no variances"
    path.write_bytes(b"replaced meanwhile")  # what is read later is what the file was when it was loaded
    for name in ("values", "variance", "knot_weight", "count"):
        np.testing.assert_array_equal(np.asarray(getattr(again, name)), np.asarray(getattr(packed, name)))
    again.save(path)
    twice = pickle.loads(pickle.dumps(Curves.load(path)))
    np.testing.assert_array_equal(np.asarray(twice.variance), np.asarray(packed.variance))
    assert [[key.tolist() for key in keys] for keys in again.keys] == [[k.tolist() for k in one] for one in packed.keys]


def test_terms_of_fields_stand_below_packed_curves(tmp_path):
    data, packed = log(4), fit(("shop",), packed=True)
    columns = {"shop": data["shop"], "device": data["device"]}
    fielded = with_fields(packed, LabelledRows(data["score"], data["label"], columns), ["device"])
    fielded.save(tmp_path / "curves.parquet")
    again = Curves.load(tmp_path / "curves.parquet")
    assert again.terms is not None
    np.testing.assert_array_equal(
        again.predict_proba(data["score"], columns),
        fielded.predict_proba(data["score"], columns),
    )
    np.testing.assert_array_equal(np.asarray(again.knot_weight), np.asarray(packed.knot_weight))


def test_files_of_few_curves_are_as_they_were(tmp_path):
    for kind, schema in ((False, 3), (True, 4)):
        path = tmp_path / f"{schema}.parquet"
        fit(("shop",), packed=kind).save(path)
        facts = json.loads(pq.read_schema(path).metadata[b"isolayer"])
        assert (facts["schema"], "packed" in facts) == (schema, kind)


def resealed(path, change=lambda table: table, **facts):
    """A file written anew by one who can write Parquet and a seal, but knows no digest."""
    table = pq.read_table(path)
    told = json.loads(table.schema.metadata[b"isolayer"])
    told |= {name: fact(told[name]) for name, fact in facts.items()}
    pq.write_table(
        change(table).replace_schema_metadata({b"isolayer": json.dumps(told).encode()}),
        path,
    )
    verified_file.seal(path)


def with_bytes(name, place, value):
    def change(table):
        rows = table[name].to_pylist()
        rows[place] = value(rows[place])
        field = table.schema.field(name)
        return table.set_column(table.column_names.index(name), field, pa.array(rows, field.type))

    return change


TAMPERED = {
    "a weight": (
        {"change": with_bytes("deviation", 5, lambda old: b"\1" + old[1:])},
        "digest",
        False,
    ),
    "weights of variances": (
        {"change": with_bytes("spread", 5, lambda old: b"\1" + old[1:])},
        "digest",
        True,
    ),
    "a weight of a knot": (
        {"change": with_bytes("knot_weight", 5, lambda old: b"\7" + old[1:])},
        "digest",
        True,
    ),
    "a whole curve is gone": (
        {"change": with_bytes("values", 0, lambda old: [])},
        "whole curves|every curve",
        False,
    ),
    "another shape": (
        {"packed": lambda old: {**old, "values": []}},
        "every curve",
        False,
    ),
    "fewer knots in a shape": (
        {
            "packed": lambda old: {
                **old,
                "values": [{**old["values"][0], "mean": [0.0]}],
            }
        },
        "one value per knot",
        False,
    ),
    "a level beyond the table": (
        {
            "packed": lambda old: {
                **old,
                "values": [{**old["values"][0], "first": 10**6}],
            }
        },
        "one value per knot and rows",
        False,
    ),
    "no digests": ({"digests": lambda old: {}}, "digest", False),
    "other knots": ({"knots": lambda old: old + 1}, "whole curves", False),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_packed_file_that_was_tampered_with_is_refused(how, tmp_path):
    path = tmp_path / "curves.parquet"
    fit(("shop",), packed=True).save(path)
    change, message, later = TAMPERED[how]
    resealed(path, **change)
    curves = Curves.load(path) if later else None

    def read():
        return Curves.load(path) if curves is None else (np.asarray(curves.variance), np.asarray(curves.knot_weight))

    with pytest.raises(InputError, match=r"file: expected an intact file, got .*corrupt") as caught:
        read()
    assert any(part in str(caught.value) for part in message.split("|")), caught.value


def test_a_packed_curve_that_falls_is_refused(tmp_path):
    packed = fit.__wrapped__(("shop",), packed=True)
    level = packed.values.levels[0]
    row = next(row for row in range(200) if packed.values._place[level.first + row] < 0)
    level.weights[row] = np.rint(-(level.shapes.shapes @ GRID.knots[1:]) / UNIT)
    with pytest.raises(
        InputError,
        match="values: expected it finite and, unless monotone=False, never falling",
    ):
        packed.save(tmp_path / "curves.parquet")


def test_shapes_keep_what_they_cannot_give_apart():
    rng = np.random.default_rng(0)
    lines = rng.normal(size=(200, 1)) + rng.normal(size=(200, 1)) * np.linspace(-1, 1, 30)
    shapes = Shapes.of(lines)
    assert len(shapes.shapes) == 2
    weights, good = shapes.pack(np.vstack([lines[:5], rng.normal(size=30)]))
    assert good.tolist() == [True] * 5 + [False]
    np.testing.assert_allclose(shapes.unpack(weights[:5]), lines[:5], atol=3e-5)


def test_a_quantised_weight_is_zero_only_where_it_was():
    weight = np.array([[0.0, 1e-6, 3.0], [0.0, 0.0, 0.0]])
    again = np.asarray(Quantised.of(weight))
    assert (again > 0).tolist() == (weight > 0).tolist()
