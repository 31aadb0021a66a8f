"""Curves in SQL: engines answer what numpy answers, and every dialect gets a statement it can parse."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import duckdb
import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot
from contract_cases import CASES as CONTRACT
from curve_examples import GRID, columns, fitted, questions

from isolayer.curves.curves import Curves
from isolayer.curves.export.dialects import DIALECTS
from isolayer.curves.export.levels import levels
from isolayer.curves.export.sql import to_sql
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid
from isolayer.tables.apply import apply_table, lookup_tables

CASES = [
    ((), "logit", False),
    (("device",), "logit", False),
    (("position",), "prob", False),
    (("device", "position"), "logit", False),
    (("device", "position"), "prob", True),
    (("position", "device"), "logit", True),
]


def expected(curves, data):
    return curves.predict_proba(data["score"], {name: data[name] for name in curves.contexts} or None)


def in_order(table):
    return table.sort_by("id")["calibrated_prob"].to_numpy()


@pytest.mark.parametrize(("contexts", "scale", "missing"), CASES)
def test_a_table_gets_the_probabilities_of_numpy(contexts, scale, missing):
    curves, data = fitted(contexts, scale=scale, missing=missing), questions(scale, missing=missing)
    table = apply_table(curves, data)
    assert isinstance(table, ibis.Table)
    assert table.columns == (*data, "calibrated_prob")
    np.testing.assert_allclose(in_order(table.to_pyarrow()), expected(curves, data), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("contexts", "scale", "missing"), CASES)
def test_a_written_statement_runs_and_agrees(contexts, scale, missing):
    curves, data = fitted(contexts, scale=scale, missing=missing), questions(scale, missing=missing)
    connection = duckdb.connect()
    connection.register("logs", pa.table(data))
    answer = connection.sql(to_sql(curves, table="logs", keep=["id"])).to_arrow_table()
    assert answer.column_names == ["id", "score", *contexts, "calibrated_prob"]
    np.testing.assert_allclose(in_order(answer), expected(curves, data), rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CONTRACT, ids=lambda case: case.name)
def test_a_curve_is_what_the_contract_says(case):
    x, y = np.array(case.forward).T
    want = 1 / (1 + np.exp(-np.clip(y, -700, 36)))
    rows = pa.table({"id": np.arange(len(x)), "score": x})
    connection = duckdb.connect()
    connection.register("scores", rows)
    for answer in (
        apply_table(case.curves(), rows).to_pyarrow(),
        connection.sql(to_sql(case.curves(), keep=["id"])).to_arrow_table(),
    ):
        np.testing.assert_allclose(in_order(answer), want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("missing", [False, True])
def test_a_statement_is_parsed_by_its_dialect(dialect, missing):
    curves = fitted(("device", "position"), missing=missing)
    tree = sqlglot.parse_one(to_sql(curves, dialect, table="shop.logs"), read=dialect)
    assert tree.named_selects == ["score", "device", "position", "calibrated_prob"]
    joins = list(tree.find_all(sqlglot.exp.Join))
    assert len(joins) == 3  # one a level and one for the cells
    names = {table.sql(dialect).split(" AS")[0] for table in tree.find_all(sqlglot.exp.Table) if table.db}
    assert names == {"shop.logs"}
    ours = {"k", "gap", "parent", "curve", "cell", "v"}
    for column in tree.find_all(sqlglot.exp.Column):
        name = column.args["this"]
        if isinstance(name, sqlglot.exp.Identifier) and not name.name.startswith("isolayer_"):
            assert name.quoted or name.name in ours or name.name[0] == "r"


@pytest.mark.parametrize("dialect", ["snowflake", "trino"])
def test_a_statement_for_an_engine_that_is_not_here_means_the_same_in_duckdb(dialect):
    """BigQuery's arrays of structs have no translation; Spark and Postgres are here."""
    curves, data = fitted(("device", "position")), questions()
    connection = duckdb.connect()
    connection.register("logs", pa.table(data))
    there = to_sql(curves, dialect, table="logs", keep=["id"])
    back = sqlglot.transpile(there, read=dialect, write="duckdb")[0]
    np.testing.assert_allclose(
        in_order(connection.sql(back).to_arrow_table()), expected(curves, data), rtol=0, atol=1e-9
    )


def test_scores_that_cannot_be_used_get_null():
    score = pa.array([None, float("nan"), float("inf"), -float("inf"), 0.0])
    table = apply_table(Curves.identity(Grid()), {"id": range(5), "score": score})
    assert table.order_by("id").to_pyarrow()["calibrated_prob"].to_pylist() == [None, None, None, None, 0.5]
    table = apply_table(Curves.identity(Grid(), scale="prob"), {"id": range(3), "score": [-0.1, 1.1, 0.5]})
    got = table.order_by("id").to_pyarrow()["calibrated_prob"].to_pylist()
    assert got[:2] == [None, None]
    assert got[2] == pytest.approx(0.5, abs=1e-12)


def test_a_relation_stays_on_its_connection():
    curves, data = fitted(), questions()
    connection = duckdb.connect()
    connection.register("rows", pa.table(data))
    answer = apply_table(curves, connection.sql("SELECT * FROM rows"))
    assert type(answer).__name__ == "DuckDBPyRelation"
    np.testing.assert_allclose(in_order(answer.to_arrow_table()), expected(curves, data), rtol=0, atol=1e-9)


def test_a_path_is_read_and_written_lazily(tmp_path):
    curves, data = fitted(), questions()
    pq.write_table(pa.table(data), tmp_path / "in.parquet")
    apply_table(curves, tmp_path / "in.parquet", prob="p").to_parquet(tmp_path / "out.parquet")
    answer = pq.read_table(tmp_path / "out.parquet").sort_by("id")
    np.testing.assert_allclose(answer["p"].to_numpy(), expected(curves, data), rtol=0, atol=1e-9)


@pytest.mark.parametrize("pack", [1, 2, 3, 4, 29, 30])
def test_buckets_packed_in_cells_hold_the_same_curve(pack):
    curves = fitted()
    lookup = lookup_tables(curves, levels(curves), pack=pack)
    width = len(lookup.cells) // len(curves.values)
    start = lookup.cells["v"].to_numpy().reshape(-1, width)
    rise = np.stack([lookup.cells[f"r{k}"].to_numpy() for k in range(pack)], 1).reshape(len(start), -1)
    np.testing.assert_array_equal(rise[:, : curves.grid.buckets - 1], np.diff(curves.values))
    np.testing.assert_array_equal(start, curves.values[:, :-1:pack])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("device"), r"column device: expected it in the table, got .*; name another"),
        (lambda data: data.pop("score"), r"column score: expected it in the table, got .*; name another"),
        (
            lambda data: data.update(position=["1"] * 10),
            "context position: expected integers as when fitted, got string; convert the column",
        ),
        (lambda data: data.update(score=["x"] * 10), "column score: expected numbers, got string; convert it"),
        (
            lambda data: data.update(calibrated_prob=[1] * 10),
            "prob: expected a name that no column has, got 'calibrated_prob'; choose another",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(change, message):
    data = columns(n=10)
    change(data)
    with pytest.raises(InputError, match=message):
        apply_table(fitted(), data)


def test_an_unknown_dialect_is_refused():
    with pytest.raises(
        InputError, match=r"dialect: expected 'duckdb', 'spark', .* or 'postgres', got 'excel'; choose one"
    ):
        to_sql(Curves.identity(Grid()), "excel")


@pytest.mark.parametrize("missing", [False, True])
def test_integers_with_gaps_may_come_as_floats(missing):
    """A pandas column of integers with gaps is one of floats, NaN where the gaps are."""
    data = columns(missing=True)
    position = np.where(data["device"] == None, np.nan, data["position"].astype(float))  # noqa: E711
    kept = np.isfinite(position) | missing
    histogram = Histogram.from_arrays(
        data["score"][kept], data["label"][kept], {"position": position[kept]}, grid=Grid(lower=-6, upper=3, step=0.3)
    )
    curves = Curves.from_histogram(histogram)
    table = pa.table({"id": np.arange(len(position)), "score": data["score"], "position": position})
    want = curves.predict_proba(data["score"], {"position": position})
    for kind in (pa.float64(), pa.float32()):
        cast = table.set_column(2, "position", table["position"].cast(kind))
        for source in (cast, duckdb.connect().from_arrow(cast)):
            answer = apply_table(curves, source)
            answer = answer.to_pyarrow() if isinstance(answer, ibis.Table) else answer.to_arrow_table()
            np.testing.assert_allclose(in_order(answer), want, rtol=0, atol=1e-9)


def test_floats_cannot_tell_large_keys_apart():
    large = 2**53 + np.arange(2)
    curves = Curves.from_histogram(Histogram.from_arrays([0.0, 1.0], [0, 1], {"item": large}))
    with pytest.raises(
        InputError, match=r"context item: expected integers, since some keys are beyond 2\*\*53, got float64"
    ):
        apply_table(curves, {"score": [0.0], "item": [1.0]})


OURS = [
    f"isolayer_{name}" for name in ("score", "logit", "place", "cell", "r0", "v", "base_1", "usable", "rows", "key_1")
]
COLLIDING = [
    "v", "cell", "r0", "level", "k", "curve", *OURS, "ISOLAYER_GROUP", "isolayer2_into", "isolayer_cells", "r",
]  # fmt: skip


@pytest.fixture(scope="module")
def by_device():
    return fitted(("device",))


@pytest.mark.parametrize("name", COLLIDING)
@pytest.mark.parametrize("role", ["kept", "score", "context", "prob"])
def test_a_column_may_have_any_name(name, role, by_device):
    data = questions(n=50)
    names = {"kept": "id", "score": "score", "context": "device", "prob": "calibrated_prob"} | {role: name}
    curves = replace(by_device, contexts=(names["context"],))
    rows = {names["kept"]: data["id"], names["score"]: data["score"], names["context"]: data["device"]}
    want = expected(by_device, data)
    options = {"score": names["score"], "prob": names["prob"]}
    connection = duckdb.connect()
    connection.register("logs", pa.table(rows))
    answers = [
        apply_table(curves, rows, **options).to_pyarrow(),
        apply_table(curves, connection.table("logs"), **options).to_arrow_table(),
        connection.sql(to_sql(curves, table="logs", keep=[names["kept"]], **options)).to_arrow_table(),
    ]
    for answer in answers:
        answer = answer.sort_by(names["kept"])
        assert answer.column_names == [*rows, names["prob"]]
        np.testing.assert_allclose(answer[names["prob"]].to_numpy(), want, rtol=0, atol=1e-9)
        assert answer[names["kept"]].to_pylist() == data["id"].tolist()


@pytest.mark.parametrize("table", ["isolayer_cells", "isolayer_rows", "isolayer_level_1", "isolayer_found"])
def test_a_table_may_have_any_name(table):
    curves, data = fitted(("device",)), questions(n=50)
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE {table} (id BIGINT, score DOUBLE, device VARCHAR)")
    connection.register("rows", pa.table({name: data[name] for name in ("id", "score", "device")}))
    connection.execute(f"INSERT INTO {table} SELECT * FROM rows")
    for answer in (
        connection.sql(to_sql(curves, table=table, keep=["id"])),
        apply_table(curves, connection.table(table)),
    ):
        np.testing.assert_allclose(in_order(answer.to_arrow_table()), expected(curves, data), rtol=0, atol=1e-9)


def test_calibrators_over_the_same_columns_in_another_order_do_not_share_tables():
    """Lookup tables on a connection are known by their content, to which the names of the columns belong."""
    keys = np.array([1, 2])
    data = {"id": np.arange(2), "score": np.zeros(2), "viewer": keys, "author": keys[::-1]}
    knots = GRID.knots[None, 1:] + np.array([[0.0], [-3.0], [3.0]])
    one = Curves(GRID, ("viewer",), ((), (keys,)), knots, knots * 0, knots * 0, np.zeros(3))
    two = replace(one, contexts=("author",))
    assert abs(expected(one, data) - expected(two, data)).max() > 0.1
    for curves in (one, two, one):
        np.testing.assert_allclose(in_order(apply_table(curves, data).to_pyarrow()), expected(curves, data), atol=1e-9)


def test_threads_do_not_meet_on_one_connection(tmp_path):
    curves, data = fitted(), questions()
    pq.write_table(pa.table(data), tmp_path / "rows.parquet")
    sources = [data, tmp_path / "rows.parquet", ibis.memtable(pa.table(data))] * 8
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda source: in_order(apply_table(curves, source).to_pyarrow()), sources))
    for answer in answers:
        np.testing.assert_allclose(answer, expected(curves, data), rtol=0, atol=1e-9)


SCRIPT = """
import torch
from isolayer import Curves, Grid
from isolayer.metrics import Sums
table = Curves.identity(Grid()).apply_table({"score": [0.0]})
assert table.to_pyarrow()["calibrated_prob"].to_pylist() == [0.5]
Sums.from_table({"prob": [0.5], "label": [1]})
"""


def test_a_script_ends_without_a_word():
    """DuckDB lists all that is alive when the interpreter ends, as Ibis's default connection is beside torch."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_columns_that_differ_in_case_only_are_refused_where_an_engine_takes_one_for_the_other():
    curves, data = fitted(("device",)), questions(n=50)
    twins = pa.table({"score": data["score"], "device": data["device"], "Device": data["device"][::-1]})
    message = "columns: expected names that differ in more than case, which duckdb ignores, got 'device' and 'Devi"
    for source in (twins, ibis.memtable(twins), {name: twins[name] for name in twins.column_names}):
        with pytest.raises(InputError, match=message):
            apply_table(curves, source)
    with pytest.raises(InputError, match="prob: expected a name that no column has, got 'SCORE'; choose another"):
        apply_table(curves, data, prob="SCORE")
    upper = replace(curves, contexts=("SCORE",))
    for dialect in DIALECTS:
        if dialect in ("postgres", "snowflake"):
            assert '"SCORE"' in to_sql(upper, dialect)
            continue
        with pytest.raises(InputError, match=f"columns: expected names that differ in {dialect}, got 'score' and 'SC"):
            to_sql(upper, dialect)


def temporary(connection):
    return {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE temporary").fetchall()}


def with_scores(data):
    """DuckDB with a table of scores, as a backend of Ibis."""
    connection = duckdb.connect()
    connection.register("data", pa.table(data))
    connection.execute("CREATE TABLE scores AS SELECT * FROM data")
    return ibis.duckdb.from_connection(connection)


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # Ibis calls DuckDB by an old name
def test_lookup_tables_of_curves_that_nobody_asks_any_more_do_not_pile_up():
    backend = with_scores(questions(n=50))
    backend.con.execute("CREATE TEMP TABLE isolayer_mine AS SELECT 1 AS a")
    curves = fitted(("device",))
    kept, want = apply_table(curves, backend.table("scores")), expected(curves, questions(n=50))
    most = 0
    for day in range(1, 20):
        new = replace(curves, values=curves.values + day)
        answer = apply_table(new, backend.table("scores")).to_pyarrow()
        np.testing.assert_allclose(in_order(answer), expected(new, questions(n=50)), rtol=0, atol=1e-9)
        most = max(most, len(temporary(backend.con)))
    assert most <= 12
    assert "isolayer_mine" in temporary(backend.con)
    np.testing.assert_allclose(in_order(kept.to_pyarrow()), want, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # Ibis calls DuckDB by an old name
def test_lookup_tables_are_shared_by_the_same_curves():
    backend = with_scores(questions(n=50))
    curves, found = fitted(("device",)), []
    for _ in range(3):
        answer = apply_table(curves, backend.table("scores"))
        found.append((temporary(backend.con), in_order(answer.to_pyarrow()).tolist()))
    assert found[0] == found[1] == found[2]


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # Ibis calls DuckDB by an old name
def test_an_expression_outlives_the_table_it_was_derived_from():
    """What is derived needs the lookup tables as well, while a second connection has its own."""
    curves, backends = fitted(("device",)), [with_scores(questions(n=50)) for _ in range(2)]
    asked = [apply_table(curves, backend.table("scores")) for backend in backends]
    asked = [table.agg(mean=table.calibrated_prob.mean()) for table in asked]
    for day in range(1, 20):
        for backend in backends:
            apply_table(replace(curves, values=curves.values + day), backend.table("scores"))
    for table in asked:
        assert table.to_pyarrow()["mean"][0].as_py() == pytest.approx(expected(curves, questions(n=50)).mean())


def test_columns_of_a_file_that_differ_in_case_only_are_refused_whichever_is_asked_for(tmp_path):
    """DuckDB reads them as device and DEVICE_1, by which name neither is in the file."""
    device, path = ["tv", "web"], tmp_path / "day[1].parquet"
    twins = {"score": [0.0, 1.0], "label": [0, 1], "device": device, "DEVICE": device[::-1]}
    pq.write_table(pa.table(twins), path)
    for name in ("device", "DEVICE", "DEVICE_1"):
        curves = replace(fitted(("device",)), contexts=(name,))
        with pytest.raises(InputError, match="which duckdb ignores, got 'device' and 'DEVICE'; rename one"):
            apply_table(curves, path)
        with pytest.raises(InputError, match="which duckdb ignores, got 'device' and 'DEVICE'; rename one"):
            Histogram.from_table(path, (name,))
    same = tmp_path / "same.parquet"  # another file: DuckDB 1.5 remembers the columns of one for a second
    pq.write_table(pa.table([*twins.values()], names=["score", "label", "device", "device"]), same)
    with pytest.raises(InputError, match="which duckdb ignores, got 'device' and 'device'; rename one"):
        apply_table(fitted(("device",)), same)


def test_columns_whose_names_only_look_renamed_are_read(tmp_path):
    path = tmp_path / "device_2=1" / "rows.parquet"
    path.parent.mkdir()
    rows = pa.table({"id": [0, 1], "score": [0.0, 1.0], "device": ["tv", "web"], "DEVICE_1": ["web", "tv"]})
    pq.write_table(rows, path)
    curves = replace(fitted(("device",)), contexts=("DEVICE_1",))
    want = curves.predict_proba(rows["score"], {"DEVICE_1": rows["DEVICE_1"]})
    np.testing.assert_allclose(in_order(apply_table(curves, path).to_pyarrow()), want, rtol=0, atol=1e-9)


def test_a_statement_reads_columns_by_their_exact_names():
    """DuckDB would take "DEVICE" for device, also where it has renamed the DEVICE of a file to DEVICE_1."""
    curves, connection = replace(fitted(("device",)), contexts=("DEVICE",)), duckdb.connect()
    connection.execute("CREATE TABLE scores AS SELECT 0.5 AS score, 'tv' AS device")
    with pytest.raises(duckdb.BinderException, match='does not have a column named "DEVICE"'):
        connection.sql(to_sql(curves))


def test_names_that_spark_would_replace_are_refused():
    with pytest.raises(InputError, match=r"columns: expected no \$\{ in a name, which spark replaces, got '\$\{x\}'"):
        to_sql(Curves.identity(Grid()), "spark", score="${x}")


def test_a_frame_with_two_columns_of_one_name_is_refused():
    twice = pa.table([[0.0], [1.0]], names=["score", "score"])
    with pytest.raises(InputError, match=r"table: expected an Ibis table, .* or a frame, got Table .*; convert it"):
        apply_table(Curves.identity(Grid()), twice)


def test_the_core_writes_sql():
    """Without Ibis, sqlglot, DuckDB and torch."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['ibis', 'sqlglot', 'duckdb', 'torch']))"
    script = f"{blocked}\nfrom isolayer import Curves, Grid\nprint(Curves.identity(Grid()).to_sql('trino')[:4])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "WITH\n"


def test_long_lists_of_values_are_cut_for_snowflake():
    cut = replace(DIALECTS["snowflake"], most=3)
    columns = {"k": ("U", list("abcdefg")), "v": ("d", [0.1 * k for k in range(7)])}
    assert DIALECTS["snowflake"].most == 10_000  # it takes 16,384 expressions
    assert (DIALECTS["snowflake"].table(columns).count("VALUES"), cut.table(columns).count("VALUES")) == (1, 3)
    assert duckdb.sql(cut.table(columns)).fetchall() == list(
        zip(*(values for _, values in columns.values()), strict=True)
    )
