"""The audit: planted segments are found and told once, clean scores hold, and every option changes the answer."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import isolayer
from isolayer.auditing.groups import LEAST_ROWS, mcgrad_groups
from isolayer.auditing.rows import AuditRows, State
from isolayer.auditing.segments import Table, tables
from isolayer.auditing.testing import Judged
from isolayer.cli.app import app
from isolayer.curves.evaluation import logit_of
from isolayer.curves.fielded import LabelledRows
from isolayer.fitting.field_levels import fields_of
from isolayer.metrics import multicalibration_error
from isolayer.report import write_audit
from isolayer.simulate.scored_log import scored_log

ROOT = Path(__file__).parents[1]


def log(seed=0, n=40_000, *, late=1.5, women=1.0, users=0, low=0.05, high=0.3):
    """A log whose score is off late at night on phones, and for women."""
    rng = np.random.default_rng(seed)
    columns = {
        "prob": rng.uniform(low, high, n),
        "device": rng.choice(["phone", "tv", "web"], n, p=[0.5, 0.2, 0.3]),
        "hour": rng.integers(0, 24, n),
        "age": rng.normal(40, 12, n).round(1),
        "gender": rng.choice(["f", "m"], n),
    }
    rate = columns["prob"] * np.where((columns["hour"] >= 22) & (columns["device"] == "phone"), late, 1.0)
    rate = rate * np.where(columns["gender"] == "f", women, 1.0)
    if users:
        columns["user"] = rng.integers(0, users, n)
        odds = rate / (1 - rate) * np.exp(rng.normal(0, 0.6, users)[columns["user"]])
        rate = odds / (1 + odds)
    columns["click"] = (rng.random(n) < rate).astype(int)
    return columns


def audited(columns, **options):
    return isolayer.audit(columns, "prob", "click", scale="prob", **options)


def test_a_planted_combination_is_found_and_told_once_in_words_that_people_use():
    found = audited(log())
    (one,) = found.findings
    assert one.segment == "device phone and hour 22-23"
    assert str(one).startswith("device phone and hour 22-23: predicted 1")
    assert one.lower > 1
    assert one.lower < one.o_over_e < one.upper
    assert one.p_value < 1e-6
    assert one.loss_saved > 0
    assert one.off
    assert not found.holds
    assert found.repair_fields == ("device", "hour")


def test_a_field_that_explains_a_combination_is_told_instead_of_it():
    """Every combination with women is off too; none of them is told."""
    found = audited(log(late=1.0, women=0.8))
    assert [one.fields for one in found.findings] == [("gender",)]


def test_a_score_that_is_off_everywhere_is_said_so_before_any_segment():
    columns = log(late=1.0, n=60_000)
    columns["prob"] = columns["prob"] * 0.7
    found = audited(columns)
    assert found.overall.off
    assert found.overall.o_over_e > 1.3
    assert not found.findings
    assert not found.holds
    assert found.reasons()[0].startswith("off everywhere: all rows: predicted")


def test_a_score_that_is_right_on_the_whole_is_not_called_off_everywhere():
    """One segment up, others down: what is left of the whole once the first is corrected is no fault of the score."""
    found = isolayer.audit(isolayer.simulate.scored_log(20_000, 3), "prob", "click", scale="prob")
    assert not found.overall.off
    assert abs(found.overall.o_over_e - 1) < 0.05
    assert found.overall.expected == pytest.approx(found.overall.predicted, rel=1e-3)
    assert not any("everywhere" in reason for reason in found.reasons())
    assert any("once the others are corrected" in str(one) for one in found.findings)


def test_clean_scores_hold():
    """Over 20 clean logs, each of thousands of segments; the benchmark runs a hundred of larger ones."""
    held = [audited(log(seed, n=8000, late=1.0), depth=2).holds for seed in range(100, 120)]
    assert sum(held) >= 18


def test_rare_events_are_not_called_off():
    held = [audited(log(seed, n=20_000, late=1.0, low=1e-4, high=2e-3), depth=2).holds for seed in range(10)]
    assert sum(held) >= 9


def test_clusters_are_counted():
    """Users differ, the score does not know them: without clusters, groups of users look off."""
    columns = log(3, n=20_000, late=1.0, users=60)
    columns["team"] = columns["user"] % 4
    alone, together = audited(columns, exclude=("user",)), audited(columns, cluster="user")
    assert together.clusters == 60
    assert alone.clusters is None
    assert not alone.holds
    assert together.holds


def test_a_weight_of_two_is_the_row_twice():
    columns = log(n=15_000)
    twice = {name: np.concatenate([values, values]) for name, values in columns.items()}
    weighted = audited({**columns, "w": np.full(15_000, 2.0)}, weight="w", depth=2)
    doubled = audited(twice, depth=2)
    assert [str(one) for one in weighted.findings] == [str(one) for one in doubled.findings]
    assert weighted.findings[0].p_value == pytest.approx(doubled.findings[0].p_value, rel=1e-6)


def test_importance_weights_count_as_their_effective_number():
    columns = log(n=20_000)
    columns["w"] = np.full(20_000, 1e-3)
    plain, scaled = (
        audited(columns, exclude=("w",), depth=2),
        audited(columns, weight="w", weight_kind="importance", depth=2),
    )
    assert [one.segment for one in plain.findings] == [one.segment for one in scaled.findings]
    assert scaled.findings[0].p_value == pytest.approx(plain.findings[0].p_value, rel=1e-6)


def test_sampled_negatives_are_told_in_rates_of_real_traffic():
    columns = log(n=120_000, late=2.0)
    rng = np.random.default_rng(1)
    kept = (columns["click"] == 1) | (rng.random(120_000) < 0.25)
    sampled = audited({name: values[kept] for name, values in columns.items()}, negative_rate=0.25)
    whole = audited(columns)
    (one,), (all_,) = sampled.findings, whole.findings
    assert one.segment == all_.segment
    assert one.observed == pytest.approx(all_.observed, rel=0.05)
    assert one.rows == pytest.approx(all_.rows, rel=0.05)
    assert one.o_over_e == pytest.approx(all_.o_over_e, rel=0.05)


def test_soft_labels_are_allowed():
    columns = log(n=20_000)
    columns["click"] = np.where(columns["click"] == 1, 0.9, 0.02)
    assert audited(columns, depth=1).rows == 20_000


def test_audit_only_fields_are_marked_and_not_used_for_repair():
    found = audited(log(women=0.8), audit_only=("gender",))
    marked = {one.audit_only for one in found.findings if "gender" in one.fields}
    assert marked == {("gender",)}
    assert "gender" not in found.repair_fields
    assert "(gender: audit only)" in str(found)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_bounds_how_many_fields_are_combined(depth):
    found = audited(log(n=20_000, late=2.5), depth=depth)
    assert found.findings
    assert max(len(one.fields) for one in found.findings) <= depth


def test_fields_exclude_and_most_bound_the_search():
    columns = log(n=20_000, late=2.0, women=0.7)
    assert audited(columns, fields=("gender", "device"), depth=1).fields == ("gender", "device")
    assert "hour" not in audited(columns, exclude=("hour",), depth=1).fields
    few = audited(columns, most=1)
    assert len(few.findings) == 1
    assert not few.complete


def test_missing_values_and_columns_that_cannot_be_fields():
    columns = log(n=20_000, late=1.0)
    rng = np.random.default_rng(77)
    gone = rng.random(20_000) < 0.2
    columns["age"] = np.where(gone, np.nan, columns["age"])
    columns["click"] = np.where(gone, rng.random(20_000) < 1.6 * columns["prob"], columns["click"]).astype(int)
    table = pa.table({**columns, "tags": [["a"]] * 20_000})
    found = audited(table, depth=1)
    assert found.skipped == ("tags",)
    assert [one.segment for one in found.findings] == ["age missing"]


def test_every_kind_of_table_gives_the_same_answer(tmp_path):
    columns = log(n=12_000, late=2.0)
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "log.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "log.csv")
    import ibis

    sources = [columns, pd.DataFrame(columns), pl.DataFrame(columns), table, ibis.memtable(table)]
    sources += [tmp_path / "log.parquet", str(tmp_path / "log.csv")]
    told = [[str(one) for one in audited(source, depth=2).findings] for source in sources]
    assert told[0]
    assert all(one == told[0] for one in told)


def test_the_sums_of_ranges_are_those_of_their_rows():
    columns = log(n=3000)
    given = LabelledRows(logit_of(columns["prob"]), columns["click"].astype(float), columns)
    rows = AuditRows.of(given, ["device", "hour"])
    state = State.of(rows)
    pair: Table = tables(rows, state, 2)[1][0]
    depth, segment = pair.clearest(1)[0]
    inside = segment.rows(rows)
    tested = Judged.of(rows, state, inside, None)
    words = segment.words(rows)
    hour, device = words.partition("hour ")[2], words.split()[1]
    first, _, last = hour.partition("-")
    chosen = (columns["device"] == device) & (columns["hour"] >= int(first)) & (columns["hour"] <= int(last or first))
    assert np.array_equal(np.flatnonzero(chosen), inside)
    assert tested.observed == columns["click"][chosen].sum()
    assert tested.expected == pytest.approx(columns["prob"][chosen].sum(), rel=1e-3)
    assert depth > 0


def test_correcting_a_finding_moves_all_sums_as_if_they_were_made_anew():
    columns = log(n=3000)
    given = LabelledRows(logit_of(columns["prob"]), columns["click"].astype(float), columns)
    rows = AuditRows.of(given, ["device", "hour", "age"])
    state = State.of(rows)
    made = tables(rows, state, 2)[1]
    some = np.flatnonzero(columns["hour"] > 20)
    before = state.expected[some], state.variance[some]
    state.move(some, 0.4)
    for table in made:
        table.change(rows, some, state.expected[some] - before[0], state.variance[some] - before[1])
    for moved, anew in zip(made, tables(rows, state, 2)[1], strict=True):
        np.testing.assert_allclose(moved.expected, anew.expected, atol=1e-9)
        np.testing.assert_allclose(moved.variance, anew.variance, atol=1e-9)


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
def test_the_multicalibration_error_equals_that_of_mcgrad():
    metrics = pytest.importorskip("mcgrad.metrics", reason="needs the extra `peers`: pip install '.[peers]'")
    columns = log(n=6000, late=2.0)
    columns["prob"] = columns["prob"] + np.linspace(0, 1e-6, 6000)  # no ties, whose order MCGrad leaves open
    names = {"device": "categorical", "gender": "categorical", "hour": "numerical", "age": "numerical"}
    theirs = metrics.MulticalibrationError(
        pd.DataFrame(columns),
        label_column="click",
        score_column="prob",
        categorical_segment_columns=[name for name, kind in names.items() if kind == "categorical"],
        numerical_segment_columns=[name for name, kind in names.items() if kind == "numerical"],
        precision_dtype="float64",
    )
    given = {name: columns[name] for name in names}
    groups = mcgrad_groups(fields_of(given), given)
    ours = multicalibration_error(columns["click"], columns["prob"], groups, min_rows=LEAST_ROWS)
    assert len(ours.group) == len(theirs.segments_ecce_sigma)
    np.testing.assert_allclose(np.sort(ours.group_sigma), np.sort(theirs.segments_ecce_sigma), rtol=1e-9)
    assert ours.error == pytest.approx(theirs.mce, rel=1e-9)
    assert ours.group_p_value.min() == pytest.approx(theirs.mce_pvalue, rel=1e-6, abs=1e-14)


def test_the_page_shows_every_segment_and_escapes_its_words(tmp_path):
    columns = log(n=12_000, late=1.0)
    columns["device"] = np.where(columns["device"] == "tv", "<script>alert(1)</script>", columns["device"])
    odd = columns["device"] == "<script>alert(1)</script>"
    columns["click"] = np.where(odd, np.random.default_rng(77).random(12_000) < 2 * columns["prob"], columns["click"])
    found = audited({**columns, "click": columns["click"].astype(int)}, depth=1)
    page = write_audit(tmp_path / "audit.html", found, repair="isolayer fit log.parquet").read_text()
    assert found.findings
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count('role="img"') == len(found.findings)
    assert "isolayer fit log.parquet" in page


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(log(n=30_000)), "log.parquet")
    pq.write_table(pa.table(log(1, n=30_000)), "later.parquet")
    pq.write_table(pa.table(log(2, n=10_000, late=1.0)), "clean.parquet")
    return tmp_path


@pytest.mark.parametrize(("name", "code"), [("log", 1), ("clean", 0)])
def test_the_document_of_an_audit_follows_the_schema(folder, name, code):
    document = json.loads(run("audit", f"{name}.parquet", "--json", code=code).stdout)
    schema = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document["verdict"] == ("off" if code else "holds")


def test_the_command_that_is_printed_repairs_what_was_found(folder):
    told = run("audit", "log.parquet", "--audit-only", "gender", "--out", "audit.html", code=1)
    assert "device phone and hour 22-23: predicted" in told.output
    command = next(line for line in told.output.splitlines() if line.startswith("to repair: isolayer "))
    assert "--audit-only gender" in command
    assert Path("audit.html").exists()
    run(*command.removeprefix("to repair: isolayer ").split())
    assert json.loads(run("audit", "later.parquet", "--curves", "curves.parquet", "--json").stdout)["holds"]
    assert json.loads(run("show", "curves.parquet", "--json").stdout)["figures"]["audit_only"] == ["gender"]


def test_the_terms_of_a_fit_are_explained_in_the_same_sentences(folder):
    run("fit", "log.parquet", "--score", "prob", "--label", "click", "--fields", "device,hour")
    shown = run("show", "curves.parquet").output
    assert re.search(r"corrects  device phone and hour [^:]*: predicted \S+%, observed \S+%, [0-9,]+ rows", shown)
    run("report", "later.parquet", "--audit", "all", "--out", "page.html")
    page = Path("page.html").read_text()
    assert "What fields correct" in page
    assert "Where the score is off" in page


def test_mistakes_end_with_code_2(folder):
    for arguments in (["--fields", "nothing"], ["--level", "2"], ["--audit-only", "nothing"], ["--cluster", "no"]):
        with pytest.raises(isolayer.InputError):
            run("audit", "log.parquet", *arguments)


def test_a_segment_that_is_off_again_after_the_curve_of_all_rows_is_told_once():
    columns = scored_log(40_062 + 40_000 // 14, 15)
    past = columns["day"] < columns["day"][-1]
    found = audited({name: values[past] for name, values in columns.items()}, cluster="user")
    segments = [one.segment for one in found.findings]
    assert "surface search" in segments
    assert len(set(segments)) == len(segments)
    assert found.complete
    assert not audited(columns, cluster="user", most=2).complete
