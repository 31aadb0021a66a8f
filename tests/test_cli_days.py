"""What sums remember of their days, and later commands of the fit: columns, period, days that can be replaced."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from test_cli import contents, fit, folder, log, run
from test_cli_operations import refused, shown

from isolayer import Curves
from isolayer.cli.days import MOST_NAMED
from isolayer.fitting.histogram import Histogram

__all__ = ["folder"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def same_curves(one="curves.parquet", two="other.parquet"):
    np.testing.assert_allclose(Curves.load(one).values, Curves.load(two).values, atol=1e-6)


def test_a_named_day_is_replaced_as_if_it_had_been_right_from_the_start(folder):
    """Also after later days, which discounted it."""
    fit("--grid=-8,6,0.2")
    for name, seed in (("wrong", 3), ("right", 4), ("next", 5)):
        pq.write_table(log(seed, rows=2000, shift=float(name == "wrong")), f"{name}.parquet")
    for folder_name, first in (("a", "wrong"), ("b", "right")):
        Path(folder_name).mkdir()
        for name in ("sums", "curves"):
            Path(folder_name, f"{name}.parquet").write_bytes(Path(f"{name}.parquet").read_bytes())
        files = (f"{folder_name}/sums.parquet", "--curves", f"{folder_name}/curves.parquet", "--keep", "0.8")
        run("update", files[0], f"{first}.parquet", *files[1:], "--id", "monday")
        run("update", files[0], "next.parquet", *files[1:], "--id", "tuesday", "--replace")
    run("update", "a/sums.parquet", "right.parquet", "--curves", "a/curves.parquet", "--id", "monday", "--replace")
    same_curves("a/curves.parquet", "b/curves.parquet")
    one, two = Histogram.load("a/sums.parquet"), Histogram.load("b/sums.parquet")
    assert one.fingerprint() == two.fingerprint()
    assert shown("a/sums.parquet")["days"] == ["tuesday", "monday"]
    run("update", "a/sums.parquet", "next.parquet", "--curves", "a/curves.parquet", "--id", "tuesday", "--remove")
    assert Histogram.load("a/sums.parquet").rows == 8000


def test_a_day_without_a_name_is_known_by_its_content(folder):
    fit()
    run("update", "sums.parquet", "day2.parquet")
    before = Path("sums.parquet").read_bytes()
    assert "nothing was written" in run("update", "sums.parquet", "day2.parquet", "--replace").stderr
    assert Path("sums.parquet").read_bytes() == before
    refused("choose one", "update", "sums.parquet", "day2.parquet", "--replace", "--remove")
    refused("which is in another day", *rename_day())


def test_a_script_can_tell_a_day_that_was_added_from_a_broken_one(folder):
    fit()
    asked = ("update", "sums.parquet", "day2.parquet", "--if-new", "--json")
    assert json.loads(run(*asked, "--id", "monday").stdout)["verdict"] == "done"
    before = contents()
    for more in ([], ["--id", "monday"]):
        again = json.loads(run(*asked, *more).stdout)
        assert (again["verdict"], again["figures"]["rows"]) == ("already added", 12_000)
        assert "written" not in again["figures"]
    assert contents() == before
    Path("broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(Exception, match="parquet"):
        run("update", "sums.parquet", "broken.parquet", "--if-new")
    refused("^--if-new: expected neither --replace", *asked, "--replace")


def rename_day():
    pq.write_table(log(9, rows=500), "day3.parquet")
    run("update", "sums.parquet", "day3.parquet", "--id", "wednesday")
    return ("update", "sums.parquet", "day2.parquet", "--id", "wednesday", "--replace")


def test_the_oldest_named_day_joins_the_rest(folder):
    fit()
    for day in range(MOST_NAMED + 1):
        pq.write_table(log(10 + day, rows=50), f"small{day}.parquet")
        run("update", "sums.parquet", f"small{day}.parquet", "--id", str(day))
    sums = Histogram.load("sums.parquet")
    assert len(np.unique(sums.fold)) == MOST_NAMED + 1
    assert sums.rows == 6000 + 50 * (MOST_NAMED + 1)
    refused("--replace: expected one of the last", "update", "sums.parquet", "small3.parquet", "--id", "0", "--replace")
    run("update", "sums.parquet", "small0.parquet", "--id", "0", "--remove")
    assert Histogram.load("sums.parquet").rows == 6000 + 50 * MOST_NAMED


def test_later_commands_need_none_of_the_columns_again(folder):
    for name, seed in (("a", 0), ("b", 1)):
        table = log(seed).rename_columns(["model_says", "bought", "device", "when"])
        table = table.append_column("copies", pa.array(np.full(6000, 2.0)))
        pq.write_table(table.append_column("user", pa.array(np.arange(6000) % 500)), f"{name}.parquet")
    columns = ("--score", "model_says", "--label", "bought", "--scale", "prob", "--weight", "copies")
    columns += ("--date", "when", "--cluster", "user", "--contexts", "device", "--sums", "sums.parquet")
    run("fit", "a.parquet", *columns)
    told = shown("curves.parquet")
    expected = {"score": "model_says", "label": "bought", "weight": "copies", "date": "when", "cluster": "user"}
    expected |= {"period": [0, 2], "scale": "prob", "contexts": ["device"], "rows": 6000}
    assert told | expected == told
    assert shown("sums.parquet") | expected == shown("sums.parquet")
    checked = run("check", "b.parquet", "--json").stdout
    assert '"rows": 12000.0' in checked
    assert '"clusters": "--cluster user"' in checked
    run("report", "b.parquet")
    run("apply", "b.parquet")
    run("compare", "curves.parquet", "curves.parquet", "--log", "b.parquet")
    run("update", "sums.parquet", "b.parquet")
    assert shown("curves.parquet") | expected | {"rows": 12_000} == shown("curves.parquet")
    assert "0 to 2" in run("show", "sums.parquet").stdout
    pq.write_table(pq.read_table("b.parquet").drop_columns(["copies", "user"]), "plain.parquet")
    refused("or --weight '' for none", "check", "plain.parquet")
    assert '"rows": 6000.0' in run("check", "plain.parquet", "--weight", "", "--json").stdout


def test_later_commands_know_what_to_do_with_rows_that_cannot_be_used(folder):
    """What the fit was told of them holds for every command that reads a log later, until an option says otherwise."""
    for name, seed in (("a", 0), ("b", 1)):
        table = log(seed)
        holes = pa.array(table["click"].to_numpy(), pa.int8(), mask=np.arange(6000) % 50 == 0)
        pq.write_table(table.set_column(1, "click", holes), f"{name}.parquet")
    run(
        "fit",
        "a.parquet",
        "--contexts",
        "device",
        "--sums",
        "sums.parquet",
        "--holdout",
        "0.2",
        "--on-bad-rows",
        "drop",
    )
    later = (
        "check b.parquet",
        "report b.parquet",
        "report a.parquet --held-out",
        "audit b.parquet --curves curves.parquet",
    )
    later += ("compare curves.parquet curves.parquet --log b.parquet", "update sums.parquet b.parquet")
    for words in later:
        refused("--on-bad-rows drop|on_bad_rows=.drop.", *words.split(), "--on-bad-rows", "error")
        assert "left out" in run(*words.split()).stderr, words
    assert shown("sums.parquet")["on_bad_rows"] == shown("curves.parquet")["on_bad_rows"] == "drop"


def test_the_period_grows_with_the_days(folder):
    for name, day in (("a", 1), ("b", 2), ("c", 9), ("d", 3)):
        rows = log(day, rows=500).drop_columns(["day"])
        pq.write_table(rows.append_column("on", pa.array([f"2026-11-{day:02d}"] * 500)), f"{name}.parquet")
    run("fit", "a.parquet", "--contexts", "device", "--sums", "sums.parquet", "--date", "on")
    run("update", "sums.parquet", "b.parquet")
    run("update", "sums.parquet", "c.parquet", "--id", "monday")
    assert shown("sums.parquet")["period"] == shown("curves.parquet")["period"] == ["2026-11-01", "2026-11-09"]
    run("update", "sums.parquet", "d.parquet", "--id", "monday", "--replace")
    run("update", "sums.parquet", "b.parquet", "--remove")
    assert shown("sums.parquet")["rows"] == 1000


def test_several_files_globs_and_gzip_are_one_log(folder):
    tables = [pq.read_table(f"day{day}.parquet") for day in (1, 2)]
    for day, table in enumerate(tables, 1):
        buffer = io.BytesIO()
        pa.csv.write_csv(table, buffer)
        Path(f"day{day}.csv.gz").write_bytes(gzip.compress(buffer.getvalue()))
    pq.write_table(pa.concat_tables(tables), "both.parquet")
    run("fit", "both.parquet", "--contexts", "device", "--out", "other.parquet", "--grid=-8,6,0.2")
    for given in (["day1.csv.gz", "day2.csv.gz"], ["day1.parquet", "day[2].parquet"]):
        run("fit", *given, "--contexts", "device", "--grid=-8,6,0.2")
        same_curves()
        assert "fitted on these rows" in run("check", *given).stderr
    run("apply", "day1.csv.gz", "day2.csv.gz", "--out", "out.parquet")
    assert pq.read_metadata("out.parquet").num_rows == 12_000
    run("compare", "curves.parquet", "other.parquet", "--log", "day1.parquet", "--log", "day2.parquet")
    refused("files of one format, got .csv, .parquet", "fit", "day1.csv.gz", "day2.parquet")
    refused("expected only files if there are several, got '-'", "fit", "-", "day2.parquet")


def test_rows_are_printed_as_csv_and_by_themselves(folder):
    fit()
    run("apply", "day2.parquet", "--out", "out.csv")
    command = [sys.executable, "-m", "isolayer", "apply", "day2.parquet", "--out", "-"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert printed == Path("out.csv").read_bytes()
    refused("^--json: expected a file in --out", "apply", "day2.parquet", "--out", "-", "--json")
