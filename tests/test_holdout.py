"""Rows that judge a calibrator are not those it was fitted on: what is remembered, left out and said."""

import json
import re
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isolayer import Curves, InputError, report
from isolayer.calibrator import IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.storage import content_id
from isolayer.tables.holdout import fitted, held_out, rule_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BANNER = 'id="in-sample"'


def log(seed=0, rows=5000):
    random = np.random.default_rng(seed)
    truth = random.normal(-1, 1, rows)
    device = random.choice(["app", "tv"], rows)
    click = random.random(rows) < 1 / (1 + np.exp(-truth))
    day = np.sort(random.integers(0, 10, rows))
    columns = {"prob": 1 / (1 + np.exp(-truth - (device == "tv"))), "click": click.astype(np.int8), "device": device}
    when = (np.datetime64("2026-11-01") + day).astype("datetime64[s]") + random.integers(0, 86400, rows)
    return pa.table({**columns, "day": day, "when": when, "user": random.integers(0, 300, rows).astype(str)})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2, 3):
        pq.write_table(log(seed), f"day{seed}.parquet")
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def page(name, *more):
    run("report", name, "--out", "page.html", *more)
    return Path("page.html").read_text()


def verdict(name, *more, code=0):
    return json.loads(run("check", name, "--json", *more, code=code).stdout)["verdict"]


def test_a_page_about_rows_that_were_fitted_says_so_and_does_not_advise_to_serve(folder):
    run("fit", "day1.parquet", "--contexts", "device")
    assert BANNER in page("day1.parquet")
    assert "Serve the calibrated score" not in page("day1.parquet")
    assert BANNER not in page("day2.parquet")
    assert "Serve the calibrated score" in page("day2.parquet")


def test_a_page_says_which_rows_it_is_about_and_so_does_its_document(folder):
    run("fit", "day1.parquet", "--contexts", "device", "--holdout", "0.2")
    held = page("day1.parquet", "--held-out")
    assert re.search(
        r"Judged on the [0-9,]+ rows of day1.parquet that were left out of the fit of curves.parquet.", held
    )
    assert "rows of day1.parquet; curves.parquet was fitted to some or all of them" in page("day1.parquet")
    assert "rows of day2.parquet, a log that curves.parquet was not fitted to" in page("day2.parquet")
    documents = [
        json.loads(run("report", *asked, "--json").stdout)
        for asked in (["day1.parquet", "--held-out"], ["day1.parquet"], ["day2.parquet"])
    ]
    assert [one["figures"]["judged_on"] for one in documents] == ["held out", "in sample", "other rows"]
    assert [any("cannot judge it" in note for note in one["notes"]) for one in documents] == [False, True, False]


def test_the_same_rows_in_another_format_are_in_sample_on_the_page_too(folder):
    run("fit", "day1.parquet", "--contexts", "device")
    pa.csv.write_csv(pq.read_table("day1.parquet"), "copy.csv")
    assert BANNER in page("copy.csv")


@pytest.mark.parametrize("copy", ["day1.parquet", "copy.parquet", "copy.csv", "day?.parquet"])
def test_a_verdict_on_rows_that_were_fitted_is_none(folder, copy):
    """The file, a copy of it, the same rows in another format, and a log of which they are a part."""
    run("fit", "day1.parquet", "--contexts", "device")
    Path("copy.parquet").write_bytes(Path("day1.parquet").read_bytes())
    pa.csv.write_csv(pq.read_table("day1.parquet"), "copy.csv")
    assert verdict(copy) == "in sample"
    assert verdict("day2.parquet") == "holds"


def test_days_that_were_added_are_remembered_and_those_taken_out_forgotten(folder):
    run("fit", "day1.parquet", "--sums", "sums.parquet")
    run("update", "sums.parquet", "day2.parquet")
    assert [verdict(f"day{day}.parquet") for day in (1, 2, 3)] == ["in sample", "in sample", "holds"]
    run("update", "sums.parquet", "day2.parquet", "--remove")
    assert [verdict(f"day{day}.parquet") for day in (1, 2, 3)] == ["in sample", "holds", "holds"]


def test_a_release_is_not_called_better_on_its_own_rows(folder):
    run("fit", "day1.parquet")
    run("fit", "day2.parquet", "--contexts", "device", "--out", "new.parquet")
    arguments = ("compare", "curves.parquet", "new.parquet", "--json", "--log")
    assert json.loads(run(*arguments, "day2.parquet").stdout)["verdict"] == "in sample"
    assert json.loads(run(*arguments, "day3.parquet").stdout)["verdict"] == "better"


def test_a_frame_that_was_fitted_is_recognised(tmp_path):
    table, other = log(1), log(2)
    frame = {"score": table["prob"].to_numpy(), "device": np.array(table["device"].to_pylist())}
    calibrator = IsotonicCalibrator(("device",), scale="prob").fit(frame, table["click"].to_numpy())
    pages = [
        report.write(tmp_path / "x.html", part, calibrator.curves_, score="prob", label="click").read_text()
        for part in (table, other)
    ]
    assert [BANNER in each for each in pages] == [True, False]


@pytest.mark.parametrize("more", [{}, {"cluster": "user"}, {"date": "day"}, {"date": "when"}], ids=str)
def test_held_out_rows_and_fitted_rows_are_all_rows_once(more):
    table = ibis.memtable(log())
    rule = json.loads(json.dumps(rule_of(table, 0.2, score="prob", **more)))  # as it is kept in the file
    out, kept = (part(table, rule).to_pyarrow() for part in (held_out, fitted))
    assert len(out) + len(kept) == 5000
    assert 0.1 < len(out) / 5000 < 0.35
    assert out.schema == kept.schema == log().schema
    if "cluster" in more:
        assert not set(out["user"].to_pylist()) & set(kept["user"].to_pylist())
    if "date" in more:
        assert min(out["day"].to_pylist()) > max(kept["day"].to_pylist())


@pytest.mark.parametrize("more", [(), ("--cluster", "user"), ("--date", "when")], ids=str)
def test_fit_judges_on_what_it_left_out(folder, more):
    numbers = json.loads(
        run("fit", "day1.parquet", "--contexts", "device", "--holdout", "0.2", *more, "--json").stdout
    )["figures"]
    assert numbers["rows"] + numbers["held_out_rows"] == 5000
    assert numbers["held_out_verdict"] == "calibration helps"
    assert numbers["held_out_change_from"] < numbers["held_out_change_to"] < 0
    assert Curves.load("curves.parquet").source["rows"] == numbers["rows"]
    html = page("day1.parquet", "--held-out")
    assert BANNER not in html
    assert f"{numbers['held_out_rows']:,.0f} rows" in html
    assert verdict("day1.parquet", "--held-out") == "holds"
    assert verdict("day1.parquet") == "in sample"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "day1.parquet", "--holdout", "1.5"], "--holdout: expected a share between 0 and 1, got 1.5; try 0.2"),
        (
            ["fit", "one.parquet", "--holdout", "0.2", "--date", "day"],
            "holdout: expected at least two days in day, got 1",
        ),
        (["check", "day1.parquet", "--held-out"], "--held-out: expected a calibrator of `fit --holdout`, got one that"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(folder, arguments, message):
    pq.write_table(log().filter(pa.compute.equal(log()["day"], 3)), "one.parquet")
    run("fit", "day2.parquet")
    with pytest.raises(InputError) as error:
        run(*arguments)
    assert message in str(error.value)


def test_the_content_of_a_file_is_known_whatever_its_size(tmp_path):
    """A change anywhere is another content; the name is not part of it."""
    content = bytearray(np.random.default_rng(0).bytes(1_000_000))
    ids = []
    for change in (None, None, 10, 250_000, 500_000, 999_990):
        path = tmp_path / f"file{len(ids)}"
        path.write_bytes(bytes(content[:change] + b"x" + content[change + 1 :]) if change else bytes(content))
        ids.append(content_id(path))
    assert ids[0] == ids[1]
    assert len(set(ids)) == 5
