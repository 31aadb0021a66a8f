"""Postgres, started for real: it sums what numpy sums, and its statement gives the probabilities of numpy."""

import csv
import io
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import ibis
import numpy as np
import pytest
from curve_examples import GRID, columns, fitted, questions

from isolayer.curves.export.sql import to_sql
from isolayer.fitting.histogram import Histogram
from isolayer.tables.histogram_query import ColumnSpec, fold_of, grouped

TYPES = {
    "score": "double precision",
    "label": "double precision",
    "device": "text",
    "position": "bigint",
    "id": "bigint",
}
IBIS_TYPES = {"score": "float64", "label": "float64", "device": "string", "position": "int64"}


def program(name: str) -> str:
    """A program of the server, which Debian keeps off the path."""
    found = shutil.which(name) or next((str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)
    if found is None:
        reason = "PostgreSQL's server is not here: make test installs it where it can"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def postgres():
    """A question to a server of our own, on a socket in a folder of its own: SQL in, rows of strings out."""
    server, folder = program("pg_ctl"), Path(mkdtemp(prefix="isolayer-"))  # a socket's path must be short
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # the server refuses to run as root
    data, options = folder / "data", f"-k {folder} -c listen_addresses='' -c fsync=off"
    run = {"check": True, "capture_output": True, "text": True, "cwd": folder}
    subprocess.run([*as_user, program("initdb"), "-D", data, "-U", "tester", "-E", "UTF8", "--locale=C.UTF-8"], **run)
    subprocess.run([*as_user, server, "-D", data, "-o", options, "-l", folder / "log", "-w", "start"], **run)

    def ask(statement: str, stdin: str = "") -> list[list[str]]:
        command = ["psql", "-h", str(folder), "-U", "tester", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "--csv", "-tq"]
        done = subprocess.run([*command, "-c", statement], input=stdin, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return list(csv.reader(io.StringIO(done.stdout)))

    yield ask
    subprocess.run([*as_user, server, "-D", data, "-m", "immediate", "stop"], **run)
    shutil.rmtree(folder)


def load(ask, name, rows):
    ask(f"DROP TABLE IF EXISTS {name}")
    ask(f"CREATE TABLE {name} ({', '.join(f'{column} {TYPES[column]}' for column in rows)})")
    text = io.StringIO()
    csv.writer(text).writerows(zip(*(column.tolist() for column in rows.values()), strict=True))  # None is empty: NULL
    ask(f"COPY {name} FROM STDIN (FORMAT csv)", text.getvalue())


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
