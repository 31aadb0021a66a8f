"""The command that an audit prints can be pasted: it repairs what was audited, and destroys no calibrator."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import fit, folder, log, run

from isolayer import Curves, InputError

__all__ = ["folder"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def drifted(name="late.parquet", rows=6000):
    """A day on which evenings are worse than predicted, with some labels missing, and weights."""
    random, table = np.random.default_rng(9), log(seed=5, rows=rows)
    hour = random.integers(0, 24, rows)
    flip = (hour >= 18) & (random.random(rows) < 0.4)
    click = np.where(flip, 1, table["click"].to_numpy())
    columns = {
        "click": pa.array(click, pa.int8(), mask=random.random(rows) < 0.02),
        "hour": hour,
        "times": np.ones(rows),
    }
    for column, values in columns.items():
        table = table.drop_columns([column] if column in table.column_names else []).append_column(column, [values])
    pq.write_table(table, name)


def pasted(result):
    command = next(line for line in result.stderr.splitlines() if line.startswith("to repair: isolayer "))
    return shlex.split(command.removeprefix("to repair: isolayer "))


def audited(*more):
    return run("audit", "late.parquet", "--curves", "curves.parquet", "--on-bad-rows", "drop", *more, code=1)


def test_the_repair_of_a_calibrator_leaves_it_as_it_is_and_keeps_its_contexts(folder):
    drifted()
    fit()
    before = Path("curves.parquet").read_bytes()
    found = audited("--weight", "times", "--date", "day")
    assert "fits a new calibrator of the raw score with the same contexts to these rows only" in found.stderr
    assert "does not change curves.parquet" in found.stderr
    words = pasted(found)
    for option in ("--weight times", "--date day", "--on-bad-rows drop", "--contexts device", "--scale prob"):
        assert option in " ".join(words)
    run(*words)
    assert Path("curves.parquet").read_bytes() == before
    repaired = Curves.load("curves-repaired.parquet")
    assert repaired.contexts == ("device",)
    assert "hour" in repaired.fields
    again = pasted(audited("--audit-only", "device"))
    assert "--contexts" not in again  # which may not correct any more
    assert again[again.index("--out") + 1] == "curves-repaired-2.parquet"


def test_the_fields_and_the_choices_of_a_calibrator_are_kept_by_its_repair(folder):
    drifted()
    run("fit", "day1.parquet", "--fields", "day", "--no-monotone", "--missing", "own")
    words = " ".join(pasted(audited()))
    assert "--fields day,hour" in words
    assert "--no-monotone" in words
    assert "--missing own" in words


def test_the_repair_of_a_score_writes_over_no_calibrator(folder):
    drifted()
    asked = ("audit", "late.parquet", "--on-bad-rows", "drop")
    assert "--out" not in pasted(run(*asked, code=1))
    fit()
    words = pasted(run(*asked, code=1))
    assert words[words.index("--out") + 1] == "curves-repaired.parquet"


def test_names_with_commas_survive_in_the_repair(folder):
    drifted()
    table = pq.read_table("late.parquet")
    pq.write_table(
        table.rename_columns(["a,b" if name == "hour" else name for name in table.column_names]), "odd.parquet"
    )
    words = pasted(run("audit", "odd.parquet", "--on-bad-rows", "drop", code=1))
    run(*words)
    assert "a,b" in Curves.load("curves.parquet").fields


def test_a_fit_says_what_it_replaces(folder):
    assert "replaced" not in fit().stderr
    assert "replaced" not in fit().stderr  # of the same rows and settings
    lost = json.loads(run("fit", "day2.parquet", "--json").stdout)["notes"]
    rows = "replaced: curves.parquet was a calibrator of 6,000 rows, by device; the new one is of 6,000 rows, without"
    assert any(one.startswith(rows) for one in lost)
    assert "replaced" in run("fit", "day1.parquet").stderr  # of other rows
    Path("curves.parquet").write_bytes(b"other")
    assert "replaced: curves.parquet, which was not a readable calibrator" in run("fit", "day1.parquet").stderr


@pytest.mark.parametrize("content", ["", "prob,click,device,day\n"], ids=["no bytes", "header only"])
def test_a_file_of_text_without_rows_is_said_to_have_none(folder, content):
    Path("empty.csv").write_text(content)
    for words in (["fit", "empty.csv"], ["audit", "empty.csv"]):
        with pytest.raises(InputError, match=r"^log: expected rows, got none in 'empty.csv'; check"):
            run(*words)


def test_rows_that_were_left_out_of_an_audit_are_no_sample(folder):
    drifted()
    told = run("audit", "late.parquet", "--on-bad-rows", "drop", code=1).stderr
    assert "a sample of" not in told
    assert "left out of 6000 rows: 119 labels" in told
