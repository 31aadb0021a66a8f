"""ClickHouse, embedded: the exported statement for Trino, as sqlglot writes it for ClickHouse."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot

from isolayer import Curves, Histogram
from isolayer.curves.export.sql import to_sql

chdb = pytest.importorskip("chdb", reason="needs ClickHouse, embedded: pip install chdb")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log with unseen and missing contexts and scores beyond the grid, as a Parquet file."""
    rng = np.random.default_rng(0)
    device = np.array(["tv", "web", "new", None], dtype=object)[rng.integers(0, 4, 400)]
    score = np.concatenate([rng.normal(-2, 2, 394), [-50, 50, -12.5, 0.0, 1e-9, 7.5]])
    label = rng.random(400) < 1 / (1 + np.exp(-score))
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    columns = {"id": np.arange(400), "score": score, "device": device, "position": rng.integers(0, 5, 400)}
    pq.write_table(pa.table(columns | {"label": label.astype(np.int64)}), path)
    return path


def answered(statement, path):
    """The rows that ClickHouse answers, as an Arrow table."""
    assert "the_log" in statement
    data = chdb.query(statement.replace("the_log", f"file('{path}', Parquet)"), "ArrowStream").bytes()
    return pa.ipc.open_stream(data).read_all()


@pytest.mark.parametrize("contexts", [(), ("device",), ("device", "position")])
def test_the_exported_statement_gives_the_probabilities_of_python(log, contexts):
    table = pq.read_table(log)
    score, label = table["score"].to_numpy(), table["label"].to_numpy()
    known = {name: table[name].to_pandas().to_numpy() for name in contexts}
    fitted = np.ones(400, bool) if not contexts else np.array([one != "new" for one in table["device"].to_pylist()])
    some = {name: column[fitted] for name, column in known.items()} or None
    curves = Curves.from_histogram(Histogram.from_arrays(score[fitted], label[fitted], some))
    trino = to_sql(curves, "trino", table="the_log", keep=["id"])
    statement = sqlglot.transpile(trino, read="trino", write="clickhouse")[0]
    data = answered(statement, log).sort_by("id")
    np.testing.assert_allclose(
        data["calibrated_prob"].to_numpy(), curves.predict_proba(score, known or None), rtol=0, atol=1e-12
    )
