"""Commands that run at night: what is done twice is done once, and what is missing is a mistake, not an answer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import contents, fit, folder, log, run

from isolayer import Curves
from isolayer.curves.verified_file import library_version
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram

__all__ = ["folder"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def refused(message, *arguments, data=None):
    """Run a command that must fail with a message, and leave every file as it was."""
    before = contents()
    with pytest.raises(InputError, match=message):
        run(*arguments, data=data)
    assert contents() == before


def test_a_day_is_added_once_whatever_its_file_is_called(folder):
    fit()
    run("update", "sums.parquet", "day2.parquet")
    Path("again.parquet").write_bytes(Path("day2.parquet").read_bytes())
    for name in ("day1.parquet", "day2.parquet", "again.parquet"):
        refused(rf"^update: .*got '{name}', which was added before", "update", "sums.parquet", name)
    refused("added before", "update", "sums.parquet", "day*.parquet")
    run("update", "sums.parquet", "day2.parquet", "--remove")
    run("update", "sums.parquet", "again.parquet")
    assert Histogram.load("sums.parquet").rows == 12_000


def test_a_named_day_is_added_once_whatever_it_holds(folder):
    fit()
    run("update", "sums.parquet", "day2.parquet", "--id", "2026-11-16")
    pq.write_table(log(seed=7), "other.parquet")
    name = ("--id", "2026-11-16")
    refused("got --id 2026-11-16, which was added before", "update", "sums.parquet", "other.parquet", *name)
    refused("got 'day2.parquet', which", "update", "sums.parquet", "day2.parquet", "--id", "2026-11-17")
    run("update", "sums.parquet", "day2.parquet", "--remove", *name)
    assert Histogram.load("sums.parquet").rows == 6_000
    run("update", "sums.parquet", "other.parquet", *name)


def test_only_a_day_that_is_held_can_be_removed(folder):
    fit()
    run("update", "sums.parquet", "day2.parquet")
    pq.write_table(pq.read_table("day2.parquet").slice(0, 10), "part.parquet")  # its rows could be subtracted
    refused("^--remove: .*got 'part.parquet', which was not", "update", "sums.parquet", "part.parquet", "--remove")
    refused("got --id x, which was not", "update", "sums.parquet", "day2.parquet", "--remove", "--id", "x")


def test_a_piped_day_has_no_content_to_know_but_may_have_a_name(folder):
    fit()
    piped = Path("day2.parquet").read_bytes()
    run("update", "sums.parquet", "-", "--id", "monday", data=piped)
    refused("got --id monday", "update", "sums.parquet", "-", "--id", "monday", data=piped)
    run("update", "sums.parquet", "day2.parquet", "--remove", "--id", "monday")
    run("update", "sums.parquet", "-", data=piped)
    run("update", "sums.parquet", "day2.parquet", "--remove")  # nothing says that it is not what was piped
    assert Histogram.load("sums.parquet").rows == 6_000


@pytest.mark.parametrize("rows", [slice(0, 0), slice(None)], ids=["empty", "all unusable"])
def test_a_day_without_usable_rows_is_a_mistake(folder, rows):
    fit()
    empty = log(seed=3).to_pandas()[rows].assign(prob=float("nan"))
    empty.to_parquet("empty.parquet")
    refused("^log: expected usable rows", "update", "sums.parquet", "empty.parquet", "--on-bad-rows", "drop")


@pytest.mark.parametrize("keep", ["0", "-1", "1.5", "nan", "inf"])
def test_the_share_of_earlier_days_is_above_0_and_at_most_1(folder, keep):
    fit()
    refused(r"^--keep: expected a share in \(0, 1\]", "update", "sums.parquet", "day2.parquet", "--keep", keep)
    refused("^--id: expected a name", "update", "sums.parquet", "day2.parquet", "--id", "")


def test_what_is_remembered_survives_the_update(folder):
    fit()
    first = Curves.load("curves.parquet").source["files"]
    run("update", "sums.parquet", "day2.parquet", "--id", "monday", "--keep", "0.5")
    files = Curves.load("curves.parquet").source["files"]
    assert len(first) == 1
    assert files[:2] == [*first, "id:monday"]
    assert len(files) == 3


def test_days_that_were_fitted_elsewhere_are_not_known_and_may_be_removed(folder):
    fit()
    run("update", "sums.parquet", "day2.parquet")
    Curves.from_histogram(Histogram.load("sums.parquet")).save("curves.parquet")
    pq.write_table(log(seed=7), "day3.parquet")
    run("update", "sums.parquet", "day3.parquet")
    run("update", "sums.parquet", "day2.parquet", "--remove")
    assert Histogram.load("sums.parquet").rows == 12_000


def with_scores(name, *scores):
    """A log whose first scores are these."""
    table = log(seed=2)
    prob = pa.array([*scores, *table["prob"].to_pylist()[len(scores) :]], pa.float64())
    pq.write_table(table.set_column(0, "prob", prob), name)


def test_rows_without_a_probability_are_a_mistake_unless_allowed(folder):
    fit()
    with_scores("holes.parquet", None, float("nan"), 1.5)
    refused("^log: .*'prob', got 3 of 6000 rows without a probability", "apply", "holes.parquet", "--out", "x.parquet")
    told = json.loads(run("apply", "holes.parquet", "--out", "x.parquet", "--allow-nulls", "--json").stdout)["figures"]
    assert (told["rows"], told["nulls"]) == (6000, 3)
    assert pq.read_table("x.parquet")["calibrated_prob"].null_count == 3
    assert json.loads(run("apply", "day2.parquet", "--json").stdout)["figures"]["nulls"] == 0


def content(path):
    """What is in a file whose name may lie, its format found by its first bytes."""
    data = Path(path).read_bytes()
    packed = data[:2] == b"\x1f\x8b"
    data = gzip.decompress(data) if packed else data
    kind = "parquet" if data[:4] == b"PAR1" else "json" if data[:1] == b"{" else "csv"
    return kind, packed


@pytest.mark.parametrize(
    ("out", "kind"),
    [
        ("x.parquet", ("parquet", False)),
        ("x.csv", ("csv", False)),
        ("it's.csv.gz", ("csv", True)),
        ("x.ndjson", ("json", False)),
        ("X.CSV", ("csv", False)),
    ],
)
def test_what_apply_writes_is_what_the_name_says_and_can_be_read_again(folder, out, kind):
    fit()
    pq.write_table(log(seed=2, rows=500), "few.parquet")
    for given in ("few.parquet", "-"):
        piped = Path("few.parquet").read_bytes() if given == "-" else None
        run("apply", given, "--out", out, data=piped)
        assert content(out) == kind
        run("apply", out, "--score", "prob", "--column", "twice", "--out", "again.parquet")
        again = pq.read_table("again.parquet")
        once = again["calibrated_prob"].to_numpy()
        expected = Curves.load("curves.parquet").predict_proba(
            again["prob"].to_numpy(), {"device": again["device"].to_pylist()}
        )
        np.testing.assert_allclose(once, expected, atol=1e-9)
        np.testing.assert_allclose(again["twice"].to_numpy(), once, atol=1e-9)
        assert again.num_rows == 500


@pytest.mark.parametrize("out", ["x.sql", "x", "x.gz", "x.parquet.gz", "csv"])
def test_a_name_that_says_no_format_is_refused(folder, out):
    fit()
    refused(r"^--out: expected a name ending in one of \.parquet, \.csv", "apply", "day2.parquet", "--out", out)


def shown(path):
    return json.loads(run("show", path, "--json").stdout)["figures"]


def test_show_prints_what_the_calibrator_remembers(folder):
    pq.write_table(pq.read_table("day1.parquet").append_column("w", pa.array([2.0] * 6000)), "weighted.parquet")
    read = ("--weight", "w", "--negative-rate", "0.5")
    run("fit", "weighted.parquet", "--contexts", "device,day", "--sums", "sums.parquet", *read)
    pq.write_table(pq.read_table("day2.parquet").append_column("w", pa.array([2.0] * 6000)), "next.parquet")
    run("update", "sums.parquet", "next.parquet", "--id", "monday", *read)
    curves, told = Curves.load("curves.parquet"), shown("curves.parquet")
    expected = {"score": "prob", "label": "click", "weight": "w", "weight_kind": "frequency"}
    expected |= {"contexts": ["device", "day"], "scale": "prob", "negative_rate": 0.5, "rows": 12_000}
    assert expected.items() <= told.items()
    assert told["content"] == "calibrator"
    assert (told["curves"], told["days"], len(told["files"])) == (1 + 3 + 9, ["monday"], 2)
    assert told["grid"] == {"lower": curves.grid.lower, "upper": curves.grid.upper, "step": curves.grid.step}
    assert told["settings"].keys() == curves.settings.keys()
    assert told["version"] == library_version()
    sums = shown("sums.parquet")
    assert expected.items() <= sums.items()
    assert (sums["content"], sums["grid"], sums["version"]) == ("sums", told["grid"], told["version"])
    text = run("show", "curves.parquet").stdout
    assert "device, day" in text
    assert "monday" in text
    assert {"files          2", "weight         w"} <= set(text.splitlines())


def test_show_prints_what_changes_with_the_fit(folder):
    fit()
    run("fit", "day1.parquet", "--no-monotone", "--holdout", "0.2", "--out", "free.parquet")
    run("fit", "day1.parquet", "--fields", "device", "--out", "fields.parquet")
    plain, free = shown("curves.parquet"), shown("free.parquet")
    assert (plain["monotone"], plain["fields"], plain["holdout"]) == (True, [], None)
    assert (free["monotone"], free["contexts"]) == (False, [])
    assert free["holdout"] == Curves.load("free.parquet").source["holdout"]
    assert shown("fields.parquet")["fields"] == ["device"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere.parquet", "expected curves or sums at 'nowhere.parquet'"), ("day1.parquet", "without its seal")],
)
def test_show_refuses_what_isolayer_did_not_write(folder, path, message):
    refused(message, "show", path)


def test_what_fields_cannot_do_is_said_in_words(folder):
    fit("--fields", "day")
    refused("^--remove: expected a calibrator without fields", "update", "sums.parquet", "day1.parquet", "--remove")
    refused("^--log: expected a log, since calibrators with fields", "compare", "curves.parquet", "curves.parquet")
    pq.write_table(pq.read_table("day2.parquet").drop_columns("day"), "without.parquet")
    for command in (
        ("check", "without.parquet"),
        ("compare", "curves.parquet", "curves.parquet", "--log", "without.parquet"),
        ("update", "sums.parquet", "without.parquet"),
        ("apply", "without.parquet", "--out", "other.parquet"),
        ("report", "without.parquet"),
    ):
        refused("^(fields: expected a column of the log, got .day.|column day: expected)", *command)


def test_commands_read_the_columns_that_were_fitted_not_those_with_a_usual_name(folder):
    """A log with a column called ``score`` beside the one that was fitted: 1 - p beside p."""
    for day in ("day1", "day2"):
        table = pq.read_table(f"{day}.parquet").rename_columns(
            ["model_prob" if name == "prob" else name for name in pq.read_table(f"{day}.parquet").column_names]
        )
        table = table.append_column("score", pa.array(1 - table["model_prob"].to_numpy()))
        pq.write_table(table, f"{day}.parquet")
    run(
        "fit",
        "day1.parquet",
        "--score",
        "model_prob",
        "--scale",
        "prob",
        "--contexts",
        "device",
        "--sums",
        "sums.parquet",
    )
    run("apply", "day2.parquet", "--out", "out.parquet")
    out = pq.read_table("out.parquet")
    curves = Curves.load("curves.parquet")
    expected = curves.predict_proba(out["model_prob"].to_numpy(), {"device": out["device"].to_pylist()})
    np.testing.assert_allclose(out["calibrated_prob"].to_numpy(), expected, atol=1e-9)
    run("check", "day2.parquet")
    assert '"model_prob"' in run("export", "curves.parquet").stdout
    run("update", "sums.parquet", "day2.parquet")
    pq.write_table(pq.read_table("day2.parquet").drop_columns(["model_prob"]), "other.parquet")
    refused(r"^--score: expected the column of the fit, 'model_prob'", "apply", "other.parquet", "--out", "no.parquet")
