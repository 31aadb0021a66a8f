"""The latest days are the latest in time, however a column writes its days; what does not sort in time is refused."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_holdout import log, run

from isolayer import InputError
from isolayer.cli.clusters import latest_day
from isolayer.cli.logs import read
from isolayer.cli.provenance import period_of
from isolayer.metrics.history import read_history
from isolayer.tables.holdout import fitted, held_out, rule_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
START = datetime(2026, 9, 25, 13, 30)
ROWS, DAYS = 400, 50
WHEN = [START + timedelta(days=row * DAYS // ROWS) for row in range(ROWS)]  # over the turn of months, in order

SORTED = [
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y%m%d",
    "%G-W%V",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y%m%dT%H%M",
    "%Y.%m.%d",
]
READ_AS_DATES = ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d/%m/%Y %H:%M:%S"]  # by DuckDB, from a CSV file
UNSORTED = ["%d %b %Y", "%B %d %Y", "%a %d/%m/%Y", "%d%m%Y", "%d/%m/%y", "%y-%m-%d", "%Y-%d-%m", "day %j"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table_of(days, form="parquet"):
    rows = {"row": list(range(ROWS)), "day": days, "score": np.linspace(0, 1, ROWS).tolist()}
    if form == "parquet":
        pq.write_table(pa.table(rows), "log.parquet")
    elif form == "csv":
        lines = [",".join(map(str, line)) for line in zip(*rows.values(), strict=True)]
        Path("log.csv").write_text("\n".join([",".join(rows), *lines]))
    else:
        lines = [json.dumps(dict(zip(rows, line, strict=True))) for line in zip(*rows.values(), strict=True)]
        Path("log.ndjson").write_text("\n".join(lines))
    return read([f"log.{form}"])


def assert_latest(table):
    """The law: every row that is held out is later than every row that is not; rows are in the order of time."""
    rule = json.loads(json.dumps(rule_of(table, 0.2, score="score", date="day")))
    out, kept = (part(table, rule).to_pyarrow()["row"].to_pylist() for part in (held_out, fitted))
    assert max(kept) < min(out)
    assert len(out) + len(kept) == ROWS
    assert 0.15 * ROWS < len(out) < 0.35 * ROWS


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize("written", SORTED)
def test_days_that_sort_are_taken_as_text_or_as_dates(written, form):
    assert_latest(table_of([when.strftime(written) for when in WHEN], form))


@pytest.mark.parametrize("written", READ_AS_DATES)
def test_dates_with_a_whole_year_are_read_from_csv(written):
    assert_latest(table_of([when.strftime(written) for when in WHEN], "csv"))


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
@pytest.mark.parametrize("written", UNSORTED)
def test_days_that_do_not_sort_in_time_are_refused_wherever_they_are_ordered(written, form):
    days = [when.strftime(written) for when in WHEN]
    table = table_of(days, form)
    for ask in (lambda: rule_of(table, 0.2, score="score", date="day"), lambda: latest_day(table, "day")):
        with pytest.raises(
            InputError, match=r"^days: expected text that sorts .*; write days as 2026-09-25, or"
        ) as error:
            ask()
        assert any(f"got {day!r};" in str(error.value) for day in days)
    assert period_of(table, "day") is None


def test_days_with_a_short_year_in_one_of_several_files_are_refused():
    for name, written in (("a", "%d/%m/%Y"), ("b", "%d/%m/%y")):
        rows = [f"{when.strftime(written)},0.5" for when in WHEN]
        Path(f"{name}.csv").write_text("\n".join(["day,score", *rows]))
    with pytest.raises(InputError, match="days: expected text that sorts"):
        rule_of(read(["a.csv", "b.csv"]), 0.2, score="score", date="day")


@pytest.mark.parametrize("written", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%m-%d-%Y", "%m/%d/%Y %H:%M:%S"])
@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_dates_are_refused_if_no_day_tells_it_from_the_month(written, form):
    days = [datetime(2026, 9 + row * 3 // ROWS, 1 + row % 12).strftime(written) for row in range(ROWS)]
    with pytest.raises(InputError, match=r"days: expected text that sorts in time in 'day', such as .*, got '\d"):
        rule_of(table_of(days, form), 0.2, score="score", date="day")


def test_files_in_which_dates_are_read_in_other_ways_are_refused():
    for name, days in (("a", ["09/25/2026", "09/30/2026"]), ("b", ["10/01/2026", "10/02/2026"])):
        Path(f"{name}.csv").write_text("\n".join(["day,score", *(f"{day},0.5" for day in days)]))
    with pytest.raises(InputError, match="days: expected"):
        rule_of(read(["a.csv", "b.csv"]), 0.2, score="score", date="day")


def test_other_columns_keep_their_types_beside_a_short_year():
    row = '{"day": "25-09-26", "when": "2026-09-25T10:00:00", "n": 1, "deep": {"a": [1]}}'
    Path("log.ndjson").write_text("\n".join([row] * 3))
    Path("log.csv").write_text("day,when,n\n" + "25/09/26,2026-09-25 10:00:00,1\n" * 3)
    for name in ("log.ndjson", "log.csv"):
        kinds = {column: str(kind) for column, kind in read([name]).schema().items()}
        assert kinds["day"] == "string"
        assert kinds["n"] == "int64"
    assert read(["log.ndjson"]).schema()["when"].is_timestamp()
    assert read(["log.ndjson"]).deep.a.to_pyarrow().to_pylist() == [[1]] * 3


@pytest.mark.parametrize("two", ["20261001", "2026/10/01", "2026-W40"])
def test_text_must_be_written_alike(two):
    table = ibis.memtable({"day": ["2026-09-25", two], "score": [0.1, 0.2]})
    with pytest.raises(InputError, match="days: expected days that are all written alike in 'day', got '2026"):
        rule_of(table, 0.2, score="score", date="day")


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_doubles_sort_as_numbers(form):
    table = table_of([float(990 + row * DAYS // ROWS) for row in range(ROWS)], form)
    assert_latest(table)
    assert latest_day(table, "day") == "1039"
    assert period_of(table, "day") == [990, 1039]


def test_doubles_that_are_no_number_are_no_day():
    days = [None, float("nan"), float("inf"), *(float(day) for day in range(3, ROWS))]
    table = table_of(days)
    assert_latest(table)
    assert latest_day(table, "day") == str(ROWS - 1)


@pytest.mark.parametrize("other", [["1", "2"], ["20261101", "20261102"], [1, 2]])
def test_a_rule_is_not_read_for_days_of_another_kind(other):
    table = ibis.memtable({"day": ["2026-11-01", "2026-11-02"], "score": [0.1, 0.2]})
    rule = rule_of(table, 0.2, score="score", date="day")
    with pytest.raises(InputError, match="days: expected"):
        held_out(ibis.memtable({"day": other, "score": [0.1, 0.2]}), rule)


def test_fit_says_which_days_it_held_out():
    pq.write_table(log(1), "log.parquet")
    told = run("fit", "log.parquet", "--holdout", "0.2", "--date", "when").stderr
    rows = sum(day >= 7 for day in log(1)["day"].to_pylist())
    assert f"held out: from 2026-11-08 to 2026-11-10 ({rows:,} rows)" in told
    assert "without a day" not in told


def test_fit_says_how_many_rows_have_no_day_and_where_they_are():
    rows = log(1)
    days = [None if row % 50 == 0 else float(day) for row, day in enumerate(rows["day"].to_pylist())]
    pq.write_table(rows.drop_columns(["day"]).append_column("day", pa.array(days)), "log.parquet")
    asked = ("fit", "log.parquet", "--holdout", "0.2", "--date", "day")
    told = run(*asked).stderr
    held = sum(day is not None and day >= 7 for day in days)
    assert f"held out: from 7 to 9 ({held:,} rows)" in told
    assert "without a day in day: 100 rows, which are in the fit" in told
    figures = json.loads(run(*asked, "--json").stdout)["figures"]
    assert figures["held_out_rows"] == held
    assert figures["rows"] == 5000 - held


def test_a_history_sorts_numbers_as_numbers():
    for number in (999.5, 1000.0, 1000.5):
        rows = log(1, rows=500)
        pq.write_table(rows.append_column("at", pa.array([number] * 500)), f"{number}.parquet")
    run("fit", "999.5.parquet")
    for number in (1000.5, 999.5, 1000.0):
        run("check", f"{number}.parquet", "--date", "at", "--history", "history.parquet", "--tolerance", "9")
    assert read_history("history.parquet")["day"].to_pylist() == ["999.5", "1000", "1000.5"]
