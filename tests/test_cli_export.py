"""The SQL that `isolayer export` writes runs as it is, on the user's table, in DuckDB and in Postgres."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
import servers
from test_cli import folder, log, run
from test_cli_operations import refused

from isolayer import Curves
from isolayer.curves.export.statements import statement

__all__ = ["folder"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
OPTIONS = ("--table", "shop.logs", "--keep", "id,Day of week", "--column", "p")


def table():
    """A log with names that need quotes, and the calibrated probabilities by id."""
    rows = log(5, rows=300).rename_columns(["Model score", "click", "device", "Day of week"])
    rows = rows.append_column("id", [list(range(300))])
    pq.write_table(rows, "logs.parquet")
    run("fit", "logs.parquet", "--score", "Model score", "--scale", "prob", "--contexts", "device")
    curves = Curves.load("curves.parquet")
    return rows, curves.predict_proba(rows["Model score"].to_numpy(), {"device": rows["device"].to_pylist()})


def test_it_runs_in_duckdb_as_a_statement_and_as_a_view(folder):
    rows, expected = table()
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.logs AS SELECT * FROM 'logs.parquet'")
        answer = connection.sql(run("export", "curves.parquet", "--sql", *OPTIONS).stdout).to_arrow_table()
        assert set(answer.column_names) == {"id", "Day of week", "Model score", "device", "p"}
        answer = answer.sort_by("id")
        np.testing.assert_allclose(answer["p"].to_numpy(), expected, atol=1e-9)
        assert answer["Day of week"].to_pylist() == rows["Day of week"].to_pylist()
        run("export", "curves.parquet", "--out", "view.sql", *OPTIONS, "--as", "view", "--name", "shop.calibrated")
        for _ in range(2):  # a view is replaced
            connection.execute(Path("view.sql").read_text())
        seen = connection.execute("SELECT p FROM shop.calibrated ORDER BY id").fetchnumpy()["p"]
        np.testing.assert_allclose(seen, expected, atol=1e-9)


def test_it_runs_in_postgres_as_a_statement_and_as_a_view(folder):
    rows, expected = table()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    )
    columns = '"Model score" float8, click int, device text, "Day of week" bigint, id bigint'
    load = f"CREATE SCHEMA shop; CREATE TABLE shop.logs ({columns});\n"
    load += f"COPY shop.logs FROM STDIN CSV;\n{text.getvalue()}\\.\n"
    try:
        with servers.postgres() as ask:
            ask(load)
            sql = run("export", "curves.parquet", "--sql", "--dialect", "postgres", *OPTIONS).stdout
            answer = {int(row[0]): float(row[-1]) for row in ask(sql + ";")}
            np.testing.assert_allclose([answer[one] for one in range(300)], expected, atol=1e-9)
            ask(run("export", "curves.parquet", "--dialect", "postgres", *OPTIONS, "--as", "view").stdout + ";")
            seen = [float(row[0]) for row in ask("SELECT p FROM calibrated ORDER BY id;")]
            np.testing.assert_allclose(seen, expected, atol=1e-9)
    except servers.Absent as absent:
        pytest.skip(str(absent))


def test_a_model_of_dbt_reads_a_model_or_a_source(folder):
    table()
    for given, wanted in (("logs", "{{ ref('logs') }}"), ("raw.logs", "{{ source('raw', 'logs') }}")):
        model = run("export", "curves.parquet", "--as", "dbt", "--table", given).stdout
        assert model.count("{{") == 1
        assert f"FROM {wanted}" in model
    refused("^table: expected a model of dbt", "export", "curves.parquet", "--as", "dbt", "--table", "a.b.c")
    refused("^--as: expected select, view, dbt", "export", "curves.parquet", "--as", "table")
    braced = statement(Curves.load("curves.parquet"), form="dbt", table="logs", keep=["{{ x }}"])
    assert braced.startswith("{% raw %}WITH ")
    assert "{% endraw %}{{ ref('logs') }}{% raw %}" in braced


ODD = 'id,prob,day,code,amount,note\n007,0.10,03/01/2026,1e3,1.50, a\n008,.2,24/01/2026,2e3,2.00,"x, ""y"""\n'


@pytest.mark.parametrize("piped", [False, True])
def test_apply_writes_other_columns_as_they_were_spelled(folder, piped):
    random = np.random.default_rng(0)
    day = np.where(np.arange(4000) % 3, "03/01/2026", "24/01/2026")
    prob, click = random.random(4000), random.integers(0, 2, 4000)
    rows = [f"{prob[place]},{day[place]},{click[place]}" for place in range(4000)]
    Path("fit.csv").write_text("prob,day,click\n" + "\n".join(rows))
    run("fit", "fit.csv", "--fields", "day", "--label", "click", "--score", "prob")
    Path("odd.csv").write_text(ODD)
    run("apply", "-" if piped else "odd.csv", "--score", "prob", "--out", "out.csv", data=ODD if piped else None)
    run("apply", "odd.csv", "--score", "prob", "--out", "out.parquet")
    lines = [line.rpartition(",") for line in Path("out.csv").read_text().splitlines()]
    assert "\n".join(line[0] for line in lines) + "\n" == ODD
    assert [float(line[2]) for line in lines[1:]] == pq.read_table("out.parquet")["calibrated_prob"].to_pylist()


def test_apply_does_not_read_columns_that_it_only_passes_on(folder):
    Path("log.csv").write_text("prob,click\n" + "\n".join(f"{(1 + k % 98) / 100},{k * 7 % 3 % 2}" for k in range(400)))
    run("fit", "log.csv", "--label", "click", "--score", "prob")
    days = ["25/09/2026", "09/25/2026", "2026-09-25T10:00:00Z", "1", "true", "25.9.26", "10:00"]
    for place, day in enumerate(days):
        Path(f"{place}.csv").write_text(f"prob,day\n0.5,{day}\n0.25,{day}\n")
    run("apply", *(f"{place}.csv" for place in range(len(days))), "--score", "prob", "--out", "out.csv")
    lines = Path("out.csv").read_text().splitlines()[1:]
    assert [line.rpartition(",")[0] for line in lines] == [f"{p},{day}" for day in days for p in ("0.5", "0.25")]


@pytest.mark.parametrize("contexts", [(), ("--contexts", "device")], ids=["one curve", "a curve per device"])
def test_apply_on_csv_keeps_the_order_of_rows(folder, contexts):
    random = np.random.default_rng(1)
    rows = [f"{place:05d},{random.random():.4f},{'abc'[random.integers(3)]},{place % 2}" for place in range(5000)]
    Path("log.csv").write_text("id,prob,device,click\n" + "\n".join(rows) + "\n")
    run("fit", "log.csv", *contexts, "--label", "click", "--score", "prob")
    for some in (rows, rows[:2], rows[10:3:-1]):
        Path("some.csv").write_text("id,prob,device,click\n" + "\n".join(some) + "\n")
        run("apply", "some.csv", "--score", "prob", "--out", "out.csv")
        assert [line.rpartition(",")[0] for line in Path("out.csv").read_text().splitlines()[1:]] == some
