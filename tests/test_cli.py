"""The commands as a user types them: real files, real engines, exit codes, what is on which stream."""

import io
import json
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import duckdb
import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isolayer import Curves, Grid, cli
from isolayer.cli.app import COMMANDS, app
from isolayer.cli.reference import page
from isolayer.errors import InputError

ROOT = Path(__file__).parents[1]
runner = CliRunner()
FOLDER = "--out: expected a folder that exists, got 'no'; create it"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def log(seed=0, rows=6000, shift=0.0):
    random = np.random.default_rng(seed)
    truth = random.normal(-1, 1, rows)
    device = random.choice(["app", "tv", "web"], rows)
    click = random.random(rows) < 1 / (1 + np.exp(-truth - shift * (device == "tv")))
    wrong = truth + np.select([device == "tv", device == "web"], [1.0, -0.5], 0.0)
    day = random.integers(0, 3, rows)
    return pa.table({"prob": 1 / (1 + np.exp(-wrong)), "click": click.astype(np.int8), "device": device, "day": day})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(log(), "day1.parquet")
    pq.write_table(log(1), "day2.parquet")
    return tmp_path


def run(*arguments, code=0, data=None):
    result = runner.invoke(app, [str(argument) for argument in arguments], input=data)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def fit(*more, log="day1.parquet"):
    return run("fit", log, "--contexts", "device", "--sums", "sums.parquet", *more)


def test_fit_prints_its_guesses_on_stderr_and_its_result_on_stdout(folder):
    result = fit("--json")
    numbers = json.loads(result.stdout)["figures"]
    assert numbers["rows"] == 6000
    assert numbers["contexts"] == 3
    assert numbers["log_loss_after"] < numbers["log_loss_before"]
    assert "guessed: --score prob" in result.stderr
    assert "guessed: --scale prob" in result.stderr
    assert "guessed: --label click" in result.stderr
    assert Curves.load("curves.parquet").contexts == ("device",)


def test_csv_ndjson_parquet_and_stdin_give_the_same_curves(folder):
    table = pq.read_table("day1.parquet")
    pa.csv.write_csv(table, "day1.csv")
    Path("day1.ndjson").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    fit()
    expected = Curves.load("curves.parquet")
    sources = [(name, None) for name in ("day1.csv", "day1.ndjson", "day*1.parquet", "da?1.csv", "day[1].ndjson")]
    sources += [("-", buffer.getvalue())]
    sources += [("-", Path("day1.csv").read_bytes()), ("-", Path("day1.ndjson").read_bytes())]
    for source, data in sources:
        run("fit", source, "--contexts", "device", "--out", "other.parquet", data=data)
        np.testing.assert_allclose(Curves.load("other.parquet").values, expected.values, atol=1e-6)


def test_apply_adds_the_column_the_curves_give(folder):
    fit()
    run("apply", "day2.parquet", "--out", "out.parquet", "--column", "p")
    out = pq.read_table("out.parquet")
    expected = Curves.load("curves.parquet").predict_proba(
        out["prob"].to_numpy(), {"device": out["device"].to_pylist()}
    )
    np.testing.assert_allclose(out["p"].to_numpy(), expected, atol=1e-9)
    assert out.num_rows == 6000
    assert not Path("out.parquet.part").exists()


def test_update_is_the_fit_of_both_days_and_can_be_taken_back(folder):
    fit()
    first = Curves.load("curves.parquet")
    run("update", "sums.parquet", "day2.parquet")
    both = Curves.load("curves.parquet")
    grid = f"{first.grid.lower},{first.grid.upper},{first.grid.step}"  # later days stay on the grid of the first
    run("fit", "day[12].parquet", "--contexts", "device", "--out", "whole.parquet", f"--grid={grid}")
    np.testing.assert_allclose(both.values, Curves.load("whole.parquet").values, atol=1e-6)
    run("update", "sums.parquet", "day2.parquet", "--remove")
    np.testing.assert_allclose(Curves.load("curves.parquet").values, first.values, atol=1e-6)


def contents():
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [
        ("update", "sums.parquet", "day2.parquet", "--curves", "other.parquet"),
        ("update", "sums.parquet", "day1.parquet", "--remove"),
        ("update", "sums.parquet", "day2.parquet", "--keep", "0"),
        ("update", "sums.parquet", "day2.parquet", "--keep", "nan"),
        ("fit", "day2.parquet", "--sums", "nowhere/sums.parquet"),
        ("fit", "day2.parquet", "--sums", "folder"),
        ("fit", "day2.parquet", "--sums", "curves.parquet"),
        ("fit", "bin.parquet", "--contexts", "bin", "--sums", "sums.parquet"),
    ],
    ids=" ".join,
)
def test_a_command_that_fails_leaves_every_file_as_it_was(folder, arguments):
    fit()
    run("fit", "day1.parquet", "--contexts", "day", "--out", "other.parquet")
    pq.write_table(pq.read_table("day2.parquet").rename_columns(["prob", "click", "bin", "day"]), "bin.parquet")
    Path("folder").mkdir()
    before = contents()
    with pytest.raises(InputError):
        run(*arguments)
    assert contents() == before


def test_update_refuses_the_calibrator_of_other_contexts(folder):
    fit()
    run("fit", "day1.parquet", "--contexts", "day", "--out", "other.parquet")
    with pytest.raises(
        InputError, match=r"--curves: expected the calibrator of the sums, by device, got one by day in"
    ):
        run("update", "sums.parquet", "day2.parquet", "--curves", "other.parquet")


def test_sampled_negatives_can_be_fitted_updated_and_checked(folder):
    keep = np.random.default_rng(3).random(6000) < 0.5
    for day in ("day1", "day2"):
        table = pq.read_table(f"{day}.parquet")
        table = table.filter(pa.array(keep | (table["click"].to_numpy() == 1)))
        pq.write_table(table.append_column("rate", pa.array(np.full(len(table), 0.5))), f"{day}.parquet")
    fit("--negative-rate", "0.5", "--grid=-8,6,0.2")
    run("check", "day2.parquet", "--negative-rate", "1", code=1)
    run("check", "day2.parquet")  # the rate of the fit
    run("check", "day2.parquet", "--negative-rate", "rate")
    run("update", "sums.parquet", "day2.parquet", "--negative-rate", "rate")
    run(
        "fit",
        "day[12].parquet",
        "--contexts",
        "device",
        "--negative-rate",
        "0.5",
        "--out",
        "whole.parquet",
        "--grid=-8,6,0.2",
    )
    both, whole = Curves.load("curves.parquet"), Curves.load("whole.parquet")
    np.testing.assert_allclose(both.values, whole.values, atol=1e-6)


def test_a_rate_that_falls_is_named_and_can_be_fitted(folder):
    rng = np.random.default_rng(0)
    for day in ("day1", "day2"):
        table = pq.read_table(f"{day}.parquet")
        prob = table["prob"].to_numpy()
        falls = rng.random(len(prob)) < 0.5 - np.abs(prob - np.median(prob))
        pq.write_table(
            table.set_column(table.column_names.index("click"), "click", [falls.astype(int)]), f"{day}.parquet"
        )
    result = fit()
    assert "the event becomes rarer as the score rises" in result.stderr
    assert "or fit with --no-monotone" in result.stderr
    assert Curves.load("curves.parquet").monotone
    fit("--no-monotone")
    run("update", "sums.parquet", "day2.parquet")
    curves = Curves.load("curves.parquet")
    assert not curves.monotone
    assert (np.diff(curves.values) < 0).any()


def test_probabilities_taken_for_logits_are_named(folder):
    result = fit("--scale", "logit")
    assert "scores: expected logits under --scale logit" in result.stderr
    assert "if they are probabilities, use --scale prob" in result.stderr


def test_what_weights_mean_is_said_by_an_option_and_remembered_in_the_sums(folder):
    weight = np.random.default_rng(0).lognormal(0, 1, 6000)
    for factor, name in ((1e-3, "small"), (1.0, "large")):
        for day in ("day1", "day2"):
            table = pq.read_table(f"{day}.parquet").append_column("w", pa.array(factor * weight))
            pq.write_table(table, f"{name}_{day}.parquet")
    result = fit("--weight", "w", log="small_day1.parquet")
    assert "weights: expected counts of rows, got weights with a mean of 0.00" in result.stderr
    assert "use --weight-kind importance" in result.stderr
    curves, verdicts = [], []
    for name in ("small", "large"):
        result = fit("--weight", "w", "--weight-kind", "importance", log=f"{name}_day1.parquet")
        assert "counts" not in result.stderr
        run("update", "sums.parquet", f"{name}_day2.parquet", "--weight", "w")
        checked = run("check", f"{name}_day2.parquet", "--weight", "w", "--json")
        assert "counts" not in checked.stderr
        verdicts.append(
            [(row["device"], row["o_over_e"], row["from"], row["to"]) for row in json.loads(checked.stdout)["entries"]]
        )
        curves.append(Curves.load("curves.parquet"))
    np.testing.assert_allclose(curves[0].values, curves[1].values, atol=1e-9)
    np.testing.assert_allclose(curves[0].variance, curves[1].variance, rtol=1e-5)
    for small, large in zip(*verdicts, strict=True):
        assert small[0] == large[0]
        assert small[1:] == pytest.approx(large[1:], rel=1e-6)
    with pytest.raises(InputError, match=r"^--weight-kind: expected frequency or importance, got 'counts'; choose one"):
        fit("--weight", "w", "--weight-kind", "counts", log="small_day1.parquet")


@pytest.mark.parametrize("rate", ["nan", "0", "-1", "2"])
@pytest.mark.parametrize("command", [("fit",), ("check",), ("update", "sums.parquet")], ids=" ".join)
def test_a_share_of_negatives_is_above_0_and_at_most_1(folder, command, rate):
    fit()
    before = contents()
    with pytest.raises(InputError, match=r"^--negative-rate: expected a share in \(0, 1\] or a column, got"):
        run(*command, "day2.parquet", f"--negative-rate={rate}")
    assert contents() == before


def test_bad_rows_are_told_in_the_words_of_the_command_line(folder, recwarn):
    day = pq.read_table("day1.parquet")
    pq.write_table(day.set_column(1, "click", pa.array([None, 7] + [0, 1] * 2999)), "bad.parquet")
    with pytest.raises(InputError, match=r"leave them out by --on-bad-rows drop\. To see some: ") as error:
        run("fit", "bad.parquet")
    assert len(duckdb.sql(str(error.value).partition("To see some: ")[2]).fetchall()) == 2
    with pytest.raises(InputError, match=r"leave them out by --on-bad-rows drop$"):
        run("fit", "-", data=Path("bad.parquet").read_bytes())
    assert "left out: 2 labels" in run("fit", "bad.parquet", "--on-bad-rows", "drop").stderr
    assert not [one for one in recwarn if one.category.__name__ == "RowsDropped"]
    with pytest.raises(InputError, match=r"^--on-bad-rows: expected error or drop, got 'maybe'; choose one"):
        run("fit", "bad.parquet", "--on-bad-rows", "maybe")


@pytest.mark.parametrize("label", [0, 1])
def test_fit_refuses_labels_of_one_class(folder, label):
    day = pq.read_table("day1.parquet")
    pq.write_table(day.set_column(1, "click", pa.array(np.full(6000, label))), "one.parquet")
    with pytest.raises(
        InputError, match=f"--label: expected labels of both classes, got only {label} in 6,000 rows; add rows"
    ):
        run("fit", "one.parquet")
    assert not Path("curves.parquet").exists()


def test_standard_input_leaves_no_file_behind(folder, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    run("fit", "-", "--contexts", "device", data=Path("day1.parquet").read_bytes())
    run("apply", "-", data=Path("day1.parquet").read_bytes())
    assert not list((tmp_path / "temporary").iterdir())
    assert pq.read_metadata("calibrated.parquet").num_rows == 6000


def test_check_ends_with_one_when_a_context_drifted(folder):
    fit()
    result = run("check", "day2.parquet")
    assert "the calibrator holds" in result.stderr
    pq.write_table(log(2, shift=1.0), "day3.parquet")
    result = run("check", "day3.parquet", "--json", code=1)
    found = json.loads(result.stdout)
    assert (found["verdict"], found["holds"]) == ("drifted", False)
    assert [row["device"] for row in found["entries"] if row["verdict"] == "level"] == ["(all)", "tv"]
    assert (
        "drifted: all rows together, observed over expected 1.21; 1 of 3 contexts (device tv: observed" in result.stderr
    )


@pytest.mark.parametrize("out", ["out.parquet", "out.csv"])
def test_apply_keeps_every_digit_of_an_id(folder, out):
    run("fit", "day1.parquet")
    ids = [18446744073709551615, 18446744073709551614]
    Path("ids.csv").write_text("id,prob\n" + "".join(f"{one},0.5\n" for one in ids))
    run("apply", "ids.csv", "--out", out)
    if out.endswith("parquet"):
        found = [int(one) for one in pq.read_table(out)["id"].to_pylist()]
    else:
        found = [int(line.split(",")[0]) for line in Path(out).read_text().splitlines()[1:]]
    assert sorted(found, reverse=True) == ids


EMPTY = "empty.parquet"


@pytest.mark.parametrize(
    "command",
    [
        ("fit", EMPTY, "--out", "other.parquet"),
        ("update", "sums.parquet", EMPTY),
        ("check", EMPTY),
        ("check", EMPTY, "--cluster", "device"),
        ("compare", "curves.parquet", "curves.parquet", "--log", EMPTY),
        ("report", EMPTY, "--out", "page.html"),
        ("audit", EMPTY, "--score", "prob", "--label", "click"),
    ],
    ids=lambda words: " ".join(words[:1] + words[2:3]),
)
def test_a_log_without_rows_is_refused_in_words(folder, command):
    fit()
    pq.write_table(log(1).slice(0, 0), EMPTY)
    with pytest.raises(InputError, match=r"expected .*got (none|no rows)"):
        run(*command)


def test_check_says_what_holds_does_not_mean(folder):
    random = np.random.default_rng(0)
    prob = 1 / (1 + np.exp(-random.normal(0, 2, 20_000)))
    click = (random.random(20_000) < prob).astype(np.int8)
    pq.write_table(pa.table({"prob": prob, "click": click}), "right.parquet")
    few = pa.table({"prob": [0.4, 0.6] * 60, "click": pa.array([0, 1, 1, 0] * 30, pa.int8())})
    pq.write_table(few, "few.parquet")
    run("fit", "few.parquet")
    told = run("check", "right.parquet", "--tolerance", "10").stderr
    assert "the calibrator holds" in told
    assert "the raw score has a lower log loss on these rows" in told
    run("fit", "right.parquet")
    assert "raw score" not in run("check", "right.parquet").stderr


def test_check_counts_contexts_only_where_there_are_any(folder):
    run("fit", "day1.parquet")
    pq.write_table(log(2, shift=2.0), "day3.parquet")
    assert "drifted: all rows together, observed over expected" in run("check", "day3.parquet", code=1).stderr


@pytest.mark.parametrize("values", ["number", "date", "timestamp", "text"])
def test_check_counts_clusters_of_any_type(folder, values):
    """Days that vary widen the interval; where rows count as independent, that is said."""
    fit()
    random = np.random.default_rng(5)
    day = random.integers(0, 30, 6000)
    table = log(6).append_column("level", pa.array(random.normal(0, 0.5, 30)[day]))
    click = random.random(6000) < 1 / (1 + np.exp(-np.log(table["prob"].to_numpy() / (1 - table["prob"].to_numpy()))))
    keep = np.where(random.random(6000) < np.abs(table["level"].to_numpy()), table["level"].to_numpy() > 0, click)
    dates = np.datetime64("2026-11-01") + day
    times = dates.astype("datetime64[s]") + np.arange(6000)
    column = {"number": day, "date": dates, "timestamp": times, "text": day.astype(str)}
    table = table.set_column(table.column_names.index("click"), "click", pa.array(keep.astype(np.int8)))
    pq.write_table(table.append_column("when", pa.array(column[values])), "day3.parquet")
    alone = runner.invoke(app, ["check", "day3.parquet", "--json"])
    together = runner.invoke(app, ["check", "day3.parquet", "--json", "--date", "when"])
    assert "intervals assume independent rows" in alone.stderr
    assert "intervals assume independent rows" not in together.stderr
    one, two = (json.loads(result.stdout)["figures"] for result in (alone, together))
    assert one["clusters"] is None
    assert 20 <= two["clusters"] <= 30
    assert one["o_over_e"] == pytest.approx(two["o_over_e"])
    assert two["o_over_e_to"] - two["o_over_e_from"] > 1.5 * (one["o_over_e_to"] - one["o_over_e_from"])


def test_one_day_is_no_cluster_to_judge_by(folder):
    fit()
    pq.write_table(log(1).append_column("when", pa.array(["monday"] * 6000)), "day3.parquet")
    result = run("check", "day3.parquet", "--date", "when", "--json")
    assert "--date when has one value: intervals assume independent rows" in result.stderr
    assert json.loads(result.stdout)["figures"]["clusters"] is None


def test_check_calls_a_context_without_a_curve_new(folder):
    fit()
    other = log(3, shift=3.0).set_column(2, "device", pa.array(["phone"] * 6000))
    pq.write_table(pa.concat_tables([log(1), other]), "day3.parquet")
    result = run("check", "day3.parquet", "--json")
    found = json.loads(result.stdout)
    assert [row["device"] for row in found["entries"] if row["verdict"] == "new"] == ["phone"]
    assert found["figures"]["new_contexts"] == 1
    assert "new: 1 context (50.0% of rows) was not in the fit" in result.stderr


def test_compare_gates_a_release(folder):
    fit()
    run("fit", "day2.parquet", "--contexts", "device", "--out", "new.parquet")
    assert "largest change" in run("compare", "curves.parquet", "new.parquet").stderr
    quiet = run("compare", "curves.parquet", "new.parquet", "--most", "0.02")
    assert "within --most 0.02" in quiet.stderr
    pq.write_table(log(2, shift=1.0), "day3.parquet")
    run("fit", "day3.parquet", "--contexts", "device", "--out", "moved.parquet")
    result = run("compare", "curves.parquet", "moved.parquet", "--most", "0.02", "--json", code=1)
    assert "beyond --most" in result.stderr
    assert json.loads(result.stdout)["verdict"] == "moved"
    with pytest.raises(InputError, match=r"^--most: expected a number of at least 0, got nan"):
        run("compare", "curves.parquet", "new.parquet", "--most", "nan")


def test_compare_on_a_log_says_which_is_better(folder):
    fit()
    pq.write_table(log(2, shift=1.0), "day3.parquet")
    run("fit", "day3.parquet", "--contexts", "device", "--out", "moved.parquet")
    worse = run("compare", "curves.parquet", "moved.parquet", "--log", "day2.parquet", "--json", code=1)
    found = json.loads(worse.stdout)
    assert found["verdict"] == "worse"
    assert found["figures"]["log_loss_lower"] > 0
    assert "intervals assume independent rows" in worse.stderr
    better = run("compare", "moved.parquet", "curves.parquet", "--log", "day2.parquet", "--cluster", "day")
    assert "on the log, better: log loss" in better.stderr
    assert "intervals assume independent rows" not in better.stderr
    run("fit", "day1.parquet", "--contexts", "device,day", "--out", "finer.parquet")  # other contexts
    assert json.loads(run("compare", "curves.parquet", "finer.parquet", "--log", "day2.parquet", "--json").stdout)


def test_compare_shows_the_largest_change_first(folder):
    run("fit", "day1.parquet", "--contexts", "device,day")
    run("fit", "day2.parquet", "--contexts", "device,day", "--out", "new.parquet")
    rows = json.loads(run("compare", "curves.parquet", "new.parquet", "--json").stdout)["entries"]
    largest, average = ([row[name] for row in rows] for name in ("largest", "average"))
    assert largest == sorted(largest, reverse=True)
    assert average != sorted(average, reverse=True)  # or the test could not tell the two orders apart


def documented(*arguments, code=0):
    """The document of a command, which is all of its stdout and follows the schema."""
    document = json.loads(run(*arguments, "--json", code=code).stdout)
    schema = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document["version"] == version("isolayer")
    return document


@pytest.mark.parametrize("command", ["check", "check drifted", "compare", "compare --log", "compare moved"])
def test_the_document_of_a_verdict_is_all_of_stdout_and_follows_its_schema(folder, command):
    fit()
    pq.write_table(log(2, shift=1.0), "day3.parquet")
    run("fit", "day3.parquet", "--contexts", "device", "--out", "new.parquet")
    arguments, code = {
        "check": (["check", "day2.parquet"], 0),
        "check drifted": (["check", "day3.parquet"], 1),
        "compare": (["compare", "curves.parquet", "new.parquet"], 0),
        "compare --log": (["compare", "curves.parquet", "new.parquet", "--log", "day2.parquet"], 1),
        "compare moved": (["compare", "curves.parquet", "new.parquet", "--most", "0.01"], 1),
    }[command]
    document = documented(*arguments, code=code)
    assert document["holds"] == (code == 0)
    assert document["settings"]["top"] == 15


def test_commands_that_do_not_judge_print_a_document_too(folder):
    first = documented("fit", "day1.parquet", "--contexts", "device", "--sums", "sums.parquet")
    assert first["settings"] | {"contexts": ["device"], "out": "curves.parquet", "weight": None} == first["settings"]
    for arguments in (
        ("report", "day2.parquet"),
        ("apply", "day2.parquet"),
        ("export", "curves.parquet"),
        ("export", "curves.parquet", "--out", "curves.onnx"),
        ("update", "sums.parquet", "day2.parquet"),
        ("show", "curves.parquet"),
        ("show", "sums.parquet"),
    ):
        assert documented(*arguments)["command"] == arguments[0]


def test_the_schema_knows_a_wrong_document():
    schema = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"command": "check", "verdict": "fine"}, schema)


def test_fit_and_export_count_the_same_contexts_and_curves(folder):
    numbers = json.loads(run("fit", "day1.parquet", "--contexts", "device,day", "--json").stdout)["figures"]
    exported = json.loads(run("export", "curves.parquet", "--out", "curves.sql", "--json").stdout)["figures"]
    assert (numbers["contexts"], numbers["curves"]) == (exported["contexts"], exported["curves"]) == (9, 13)


def test_export_writes_sql_onnx_and_parquet(folder):
    import onnxruntime

    fit()
    assert run("export", "curves.parquet").stdout.startswith("WITH")
    run("export", "curves.parquet", "--out", "curves.onnx")
    rows = pq.read_table("day1.parquet")
    prob, device = rows["prob"].to_numpy(), np.array(rows["device"].to_pylist(), dtype=object)
    (served,) = onnxruntime.InferenceSession("curves.onnx").run(None, {"score": prob, "device": device})
    expected = Curves.load("curves.parquet").predict_proba(prob, {"device": device})
    np.testing.assert_allclose(served, expected, atol=1e-12)
    run("export", "curves.parquet", "--out", "curves.sql", "--dialect", "spark")
    assert Path("curves.sql").read_text() == Curves.load("curves.parquet").to_sql("spark", score="prob") + "\n"
    run("export", "curves.parquet", "--out", "copy.parquet")
    assert np.array_equal(Curves.load("copy.parquet").values, Curves.load("curves.parquet").values)
    with pytest.raises(InputError, match=r"--out: expected a name ending in .onnx, .sql or .parquet, got 'curves.doc'"):
        run("export", "curves.parquet", "--out", "curves.doc")


def test_report_writes_a_page(folder):
    fit()
    run("report", "day2.parquet", "--out", "page.html", "--date", "day", "--title", "Tuesday")
    html = Path("page.html").read_text()
    assert "Tuesday" in html
    assert len(html) < 3_000_000


EFFECT = ("effect_lower", "effect", "effect_upper")


def test_simulate_diagnose_and_train(folder):
    numbers = documented("simulate", "--sessions", "600", "--out", "log.parquet")["figures"]
    assert numbers["rows"] == 6000
    assert "grade" not in pq.read_schema("log.parquet").names
    run("simulate", "--sessions", "10", "--truth", "--out", "truth.parquet")
    assert "grade" in pq.read_schema("truth.parquet").names
    assert "were shown at more than one position" in run("diagnose", "log.parquet", "--label", "click").stdout
    found = documented("diagnose", "log.parquet", "--label", "click", "--features", "feature_*")["figures"]
    assert {"estimable", "effect"} <= found.keys()
    assert found["clusters"] is None
    assert all(low <= at <= high for low, at, high in zip(*(found[name] for name in EFFECT), strict=True))
    wider = documented("diagnose", "log.parquet", "--label", "click", "--features", "feature_*", "--cluster", "session")
    assert wider["figures"]["clusters"] == 600
    assert wider["figures"]["effect_upper"][-1] >= found["effect_upper"][-1]
    told = run("diagnose", "log.parquet", "--label", "click", "--cluster", "session")
    assert "intervals account for the clusters of --cluster session" in told.stderr
    assert "intervals assume independent rows" in run("diagnose", "log.parquet", "--label", "click").stderr
    days = pq.read_table("log.parquet")
    stamps = np.datetime64("2026-01-01T00:00:00") + 3600 * (days["session"].to_numpy() % 240).astype("m8[s]")
    pq.write_table(days.append_column("when", pa.array(stamps)), "days.parquet")
    by_day = documented("diagnose", "days.parquet", "--label", "click", "--date", "when")
    assert by_day["figures"]["clusters"] == 10  # days, not hours
    numbers = documented(
        *("train", "log.parquet", "--features", "feature_*", "--contexts", "position:10,device:3"),
        *("--epochs", "1", "--hidden", "8", "--out", "model"),
    )["figures"]
    assert documented("score", "log.parquet")["figures"]["rows"] == 6000
    assert numbers["held_out_loss"] > 0
    assert Path(numbers["serving"]).exists()
    assert Curves.load("model/curves.parquet").contexts[0] == "task"


def test_each_command_says_the_next_from_a_simulated_log_to_a_report(folder):
    result = run("simulate", "--sessions", "600")
    with pytest.raises(InputError, match=r"isolayer train log.parquet --features 'feature_\*' && isolayer score log"):
        run("fit", "log.parquet")
    done = []
    while "next: isolayer " in result.stderr:
        command = shlex.split(result.stderr.partition("next: isolayer ")[2].splitlines()[0])
        done.append(command[0])
        result = run(*command, *(["--epochs", "1", "--hidden", "8"] if command[0] == "train" else []))
    assert done == ["train", "score", "fit"]
    scored, raw = pq.read_table("scored.parquet"), pq.read_table("log.parquet")
    assert scored.select(raw.column_names).equals(raw)
    assert 0 < scored["click_prob"].to_numpy().min() < scored["click_prob"].to_numpy().max() < 1
    run("check", "scored.parquet", "--score", "click_prob")
    run("report", "scored.parquet", "--score", "click_prob")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "nothing.parquet"], "log: expected a file at 'nothing.parquet', got none; check the path"),
        (["fit", "day1.parquet", "--label", "nope"], "--label: expected a column of the log, got 'nope'; it has"),
        (
            ["fit", "day1.parquet", "--score", "day"],
            "--scale: expected logit or prob for the column 'day', got nothing",
        ),
        (["check", "day1.parquet"], "--curves: expected a calibrator at 'curves.parquet', got none; make one with"),
        (["simulate", "--clicks", "magic"], "--clicks: expected position or trust, got 'magic'; choose one"),
        (["fit", "nope*.csv"], "log: expected a file at 'nope*.csv', got none; check the path"),
        (["fit", "garbage.parquet"], "Invalid Input Error: File "),
        (["check", "garbage.parquet", "--curves", "fitted.parquet"], "Invalid Input Error: File "),
        (
            ["check", "day1.parquet", "--curves", "garbage.parquet"],
            "file: expected an intact file, got 'garbage.parquet'",
        ),
        (["train", "garbage.parquet", "--features", "x"], "Parquet magic bytes not found in footer"),
        (["apply", "day1.parquet", "--curves", "fitted.parquet", "--out", "no/x.parquet"], FOLDER),
        (["simulate", "--sessions", "10", "--out", "no/x.parquet"], FOLDER),
        (["export", "fitted.parquet", "--out", "no/x.sql"], FOLDER),
        (["export", "fitted.parquet", "--out", "no/x.onnx"], FOLDER),
        (["report", "day1.parquet", "--curves", "fitted.parquet", "--out", "no/x.html"], FOLDER),
        (["fit", "day1.parquet", "--out", "no/x.parquet"], FOLDER),
        (
            ["diagnose", "day1.parquet", "--item", "device", "--position", "nope"],
            "--position: expected a column of the",
        ),
        (
            ["diagnose", "day1.parquet", "--features", "device", "--position", "day"],
            "column device: expected numbers, got string; convert them",
        ),
        (
            ["train", "nope.parquet", "--features", "x"],
            "logs: expected a file, or a folder of Parquet files, at 'nope.pa",
        ),
        (["train", "day1.parquet", "--features", "prob", "--hidden", "a,b"], "--hidden: expected widths such as 64,32"),
        (["train", "day1.parquet", "--features", "prob", "--hidden", ""], "--hidden: expected widths such as 64,32"),
        (["train", "day1.parquet", "--features", "prob", "--tasks", "click,click"], "--tasks: expected each name once"),
        (
            ["train", "day1.parquet", "--features", "prob", "--contexts", "day:3,day:4"],
            "--contexts: expected each name",
        ),
        (
            ["fit", "day1.parquet", "--contexts", "device,device"],
            "--contexts: expected each name once, got 'device' tw",
        ),
        (["check", "day1.parquet", "--level", "2"], "--level: expected a number between 0 and 1, got 2.0; try 0.05"),
        (["check", "day1.parquet", "--level", "nan"], "--level: expected a number between 0 and 1, got nan; try 0.05"),
        (["compare", "nope.parquet", "fitted.parquet"], "old: expected a calibrator at 'nope.parquet', got none; make"),
    ],
)
def test_a_mistake_is_one_line_and_code_two(folder, monkeypatch, capsys, arguments, message):
    Path("garbage.parquet").write_text("garbage\n")
    Curves.identity(Grid(), scale="prob").save("fitted.parquet")
    before = contents()
    monkeypatch.setattr(sys, "argv", ["isolayer", *arguments])
    assert cli.run() == 2
    error = [one for one in capsys.readouterr().err.splitlines() if one and not one.startswith("guessed: ")]
    assert len(error) == 1
    assert error[0].startswith(f"isolayer: {message}")
    assert "; " in error[0]
    assert contents() == before


def test_a_mistake_ends_the_installed_command_with_its_line_alone(folder):
    Path("garbage.parquet").write_text("garbage\n")
    command = [sys.executable, "-m", "isolayer", "check", "garbage.parquet", "--curves", "fitted.parquet"]
    Curves.identity(Grid(), scale="prob").save("fitted.parquet")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), result.stderr
    assert result.stderr.endswith("; check the log: its path, its format and its columns\n")


def test_an_error_of_the_system_is_one_line(folder, monkeypatch, capsys):
    Path("folder").mkdir()
    monkeypatch.setattr(sys, "argv", ["isolayer", "demo", "--out", "day1.parquet"])
    assert cli.run() == 2
    assert capsys.readouterr().err.strip().endswith("; check the path and its permissions")


def test_an_error_of_the_program_stays_a_traceback(folder, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("isolayer.cli.calibration.quality", broken)
    monkeypatch.setattr(sys, "argv", ["isolayer", "fit", "day1.parquet"])
    with pytest.raises(ZeroDivisionError):
        cli.run()
    assert not Path("curves.parquet").exists()


def test_the_installed_command_answers():
    result = subprocess.run([sys.executable, "-m", "isolayer", "--help"], capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert command.__name__ in result.stdout


def test_nothing_but_the_result_is_printed_at_the_end(folder):
    command = [sys.executable, "-m", "isolayer", "fit", "day1.parquet", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(result.stdout)
    assert document["figures"]["rows"] == 6000
    assert document["notes"] == result.stderr.splitlines()
    assert all(line.startswith("guessed: ") for line in result.stderr.splitlines()), result.stderr


def test_help_has_an_example_of_every_command():
    for command in COMMANDS:
        assert f"Example: isolayer {command.__name__}" in (command.__doc__ or "")


def test_the_reference_is_the_generated_one():
    assert (ROOT / "docs" / "cli.md").read_text() == page(), "run: python -m isolayer.cli.reference > docs/cli.md"
