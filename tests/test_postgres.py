"""Postgres, started for real: it sums what numpy sums, and its statement gives the probabilities of numpy."""

import csv
import io

import ibis
import numpy as np
import pytest
from curve_examples import GRID, columns, fitted, questions

from isolayer import IsotonicCalibrator
from isolayer.curves.export.sql import to_sql
from isolayer.fitting.histogram import Histogram
from isolayer.tables.folds import fold_of
from isolayer.tables.histogram_query import ColumnSpec, grouped

TYPES = {
    "score": "double precision",
    "label": "double precision",
    "device": "text",
    "position": "bigint",
    "id": "bigint",
    "hour": "bigint",
    "weight": "double precision",
    "rate": "double precision",
}
IBIS_TYPES = {"score": "float64", "label": "float64", "device": "string", "position": "int64"}
WEIGHTED = {**IBIS_TYPES, "weight": "float64", "rate": "float64"}


def load(ask, name, rows):
    ask(f"DROP TABLE IF EXISTS {name}")
    ask(f"CREATE TABLE {name} ({', '.join(f'{column} {TYPES[column]}' for column in rows)})")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        zip(*(column.tolist() for column in rows.values()), strict=True)
    )  # None is empty: NULL
    ask(f"COPY {name} FROM STDIN (FORMAT csv);\n{text.getvalue()}\\.\n")


@pytest.mark.parametrize("missing", [False, True])
def test_postgres_sums_what_numpy_sums(postgres, missing):
    data = columns(missing=missing)
    load(postgres, "logs", data)
    reading = ColumnSpec(("device", "position"), grid=GRID, folds=5)
    answer = postgres(ibis.to_sql(grouped(ibis.table(IBIS_TYPES, name="logs"), reading), dialect="postgres"))
    context = {name: data[name] for name in reading.contexts}
    want = Histogram.from_arrays(data["score"], data["label"], context, fold=fold_of(data["score"], 5), grid=GRID)
    device, position = (key[want.group].tolist() for key in want.keys)
    cells = zip(device, position, want.fold.tolist(), want.bin.tolist(), strict=True)
    known = dict(zip(cells, zip(want.count, want.positive, want.logit, strict=True), strict=True))
    got = {
        (row[0] or None, int(row[1]), int(row[2]), int(row[3])): tuple(float(value) for value in row[4:])
        for row in answer
    }
    assert got.keys() == known.keys()
    np.testing.assert_allclose([got[cell] for cell in known], list(known.values()), rtol=0, atol=1e-9)


def test_postgres_weighs_rows_and_keeps_rates_apart(postgres):
    rng, data = np.random.default_rng(0), columns()
    data |= {"weight": rng.choice([0.5, 3.0], 4000), "rate": rng.choice([0.1, 1 / 3, 1.0], 4000)}
    load(postgres, "logs", data)
    reading = ColumnSpec((), weight="weight", negative_rate="rate", grid=GRID)
    answer = postgres(ibis.to_sql(grouped(ibis.table(WEIGHTED, name="logs"), reading), dialect="postgres"))
    given = {"weight": data["weight"], "negative_rate": data["rate"], "grid": GRID}
    want = Histogram.from_arrays(data["score"], data["label"], **given)
    got = np.array(sorted((int(row[1]), *map(float, (row[0], *row[2:]))) for row in answer))
    names = ("bin", "negative_rate", "count", "weight", "weight_squared", "positive", "logit")
    np.testing.assert_allclose(got, np.stack([getattr(want, name) for name in names], axis=1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", ["logit", "prob"])
@pytest.mark.parametrize("missing", [False, True])
def test_postgres_gives_the_probabilities_of_numpy(postgres, scale, missing):
    curves, data = fitted(scale=scale, missing=missing), questions(scale, missing=missing)
    load(postgres, "questions", {name: column for name, column in data.items() if name in TYPES})
    answer = postgres(
        f"SELECT id, calibrated_prob FROM ({to_sql(curves, 'postgres', table='questions', keep=['id'])}) AS q"
    )
    got = {int(row[0]): float(row[1]) for row in answer}
    expected = curves.predict_proba(data["score"], {name: data[name] for name in curves.contexts})
    np.testing.assert_allclose([got[i] for i in data["id"].tolist()], expected, rtol=0, atol=1e-9)


def test_postgres_corrects_by_fields_as_numpy_does(postgres):
    """Text and whole numbers, a context that has a term too, missing and unseen values."""
    data = columns(missing=True)
    rng = np.random.default_rng(3)
    data["hour"] = rng.integers(0, 24, len(data["score"]))
    model = IsotonicCalibrator(("device",), fields=("hour", "position"), missing="own").fit_table(data)
    asked = {name: values[:300].copy() for name, values in data.items()} | {"id": np.arange(300)}
    asked["device"][:3] = ["unseen", None, "unseen"]
    load(postgres, "asked", {name: asked[name] for name in ("id", "score", "device", "position", "hour")})
    answer = postgres(to_sql(model.curves_, "postgres", table="asked", keep=["id"]))
    got = {int(row[0]): float(row[-1]) for row in answer}
    want = model.curves_.predict_proba(asked["score"], asked)
    np.testing.assert_allclose([got[place] for place in range(300)], want, rtol=0, atol=1e-9)
