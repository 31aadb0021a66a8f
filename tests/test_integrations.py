"""The pages about other tools, run with the tools themselves: cron's shell, Prometheus, dbt and MLflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_cli import ROOT, fit, folder, log, run

from isolayer import Curves
from isolayer.errors import InputError

__all__ = ["folder"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PAGE = ROOT / "docs" / "integrations.md"


def blocks(heading, kind="sh"):
    """The blocks of code of a section of the page."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


def environment():
    """That of a shell in which ``isolayer`` is this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


def test_the_release_of_a_night_is_as_the_guide_shows_it(folder):
    fit()
    script = re.search(r"```sh\n(set -e\n.*?)```", (ROOT / "docs" / "production.md").read_text(), re.DOTALL)[1]
    before = Path("sums.parquet").read_bytes()

    def night(yesterday, today):
        for name, rows in (("yesterday", yesterday), ("today", today)):
            pq.write_table(rows.append_column("user", pa.array(np.arange(rows.num_rows) // 5)), f"{name}.parquet")
        return subprocess.run(
            ["sh", "-c", script], env=environment(), capture_output=True, text=True, check=False
        ).returncode

    assert night(log(4, shift=1.0), log(5)) == 1  # a candidate that learned a drift is worse on the day after
    assert Path("sums.parquet").read_bytes() == before
    assert night(log(3), log(5)) == 0
    assert Path("sums.parquet").read_bytes() != before
    assert not Path("candidate.parquet").exists()


def test_the_job_of_cron_adds_what_holds_and_stops_at_what_drifted(folder):
    fit()
    Path("nightly.sh").write_text(blocks("cron")[0])
    pq.write_table(log(3), "monday.parquet")
    pq.write_table(log(4, shift=1.0), "tuesday.parquet")

    def night(day):
        return subprocess.run(
            ["sh", "nightly.sh", day], env=environment(), capture_output=True, text=True, check=False
        ).returncode

    assert night("monday") == 0
    assert json.loads(Path("verdict.json").read_text())["verdict"] == "holds"
    after = Path("sums.parquet").read_bytes()
    assert night("tuesday") == 1
    assert json.loads(Path("verdict.json").read_text())["verdict"] == "drifted"
    assert night("wednesday") == 2
    assert Path("verdict.json").read_text() == ""
    assert Path("sums.parquet").read_bytes() == after
    assert night("monday") == 0  # again: the verdict is in sample, and the day is replaced by itself
    assert json.loads(Path("verdict.json").read_text())["verdict"] == "in sample"
    assert json.loads(run("show", "sums.parquet", "--json").stdout)["figures"]["rows"] == 12_000


def test_prometheus_reads_the_metrics_of_a_check(folder):
    fit()
    pq.write_table(log(4, shift=1.0), "tuesday.parquet")
    for name, code in (("day2.parquet", 0), ("tuesday.parquet", 1)):
        figures = json.loads(run("check", name, "--metrics", "isolayer.prom", "--json", code=code).stdout)["figures"]
        families = {family.name: family for family in text_string_to_metric_families(Path("isolayer.prom").read_text())}
        named = set(re.findall(r"isolayer_check_\w+", PAGE.read_text()))
        assert named <= families.keys()
        assert all(family.type == "gauge" and family.documentation for family in families.values())
        assert families["isolayer_check_holds"].samples[0].value == 1 - code
        (sample,) = families["isolayer_check_o_over_e"].samples
        assert sample.value == figures["o_over_e"]
        assert sample.labels == {"curves": "curves.parquet"}


def test_dbt_runs_the_exported_model(folder):
    program = shutil.which("dbt", path=f"{ROOT / '.venv-dbt' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    program = os.environ.get("ISOLAYER_DBT", program)
    if program is None:
        pytest.skip("dbt is not here: make dbt installs it where it can")
    rows = log(5, rows=2000).append_column("id", [list(range(2000))])
    pq.write_table(rows, "logs.parquet")
    fit(log="logs.parquet")
    with duckdb.connect("shop.duckdb") as connection:
        connection.execute("CREATE TABLE logs AS SELECT * FROM 'logs.parquet'")
    Path("models").mkdir()
    (command, word), _ = (line.split(" ", 1) for line in blocks("dbt")[0].strip().splitlines())
    assert command == "isolayer"
    run(*word.split())
    tables = "tables: [{name: logs}]"
    Path("models/sources.yml").write_text(f"version: 2\nsources: [{{name: raw, schema: main, {tables}}}]\n")
    Path("dbt_project.yml").write_text('name: shop\nversion: "1.0"\nprofile: shop\nmodel-paths: [models]\n')
    Path("profiles.yml").write_text("shop: {target: dev, outputs: {dev: {type: duckdb, path: shop.duckdb}}}\n")
    settings = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DBT_PROFILES_DIR": "."}
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([program, "run"], env={**clean, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    with duckdb.connect("shop.duckdb") as connection:
        answer = connection.execute("SELECT * FROM calibrated ORDER BY id").fetchnumpy()
    expected = Curves.load("curves.parquet").predict_proba(
        rows["prob"].to_numpy(), {"device": rows["device"].to_pylist()}
    )
    np.testing.assert_allclose(answer["calibrated_prob"], expected, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_logs_loads_and_scores_a_calibrator(folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    import isolayer.mlflow

    fit()
    curves, frame = Curves.load("curves.parquet"), pq.read_table("day2.parquet").to_pandas()
    mlflow.set_tracking_uri(f"file:{folder / 'runs'}")
    with mlflow.start_run():
        logged = isolayer.mlflow.log_model(curves, metadata={"day": "2026-11-16"})
    model = mlflow.pyfunc.load_model(logged.model_uri)
    expected = curves.predict_proba(frame["prob"], {"device": frame["device"]})
    np.testing.assert_array_equal(model.predict(frame[["prob", "device"]]), expected)
    assert model.metadata.metadata == {"day": "2026-11-16"}
    assert [column.name for column in model.metadata.signature.inputs] == ["prob", "device"]
    again = isolayer.mlflow.load_model(logged.model_uri)
    assert (again.values == curves.values).all()
    with pytest.raises(InputError, match="got none called 'device'"):
        isolayer.mlflow.Predictor(curves).predict(frame[["prob"]])
    with pytest.raises(InputError, match="curves: expected"):
        isolayer.mlflow.save_model("curves.parquet", "model")
