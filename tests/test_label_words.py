"""Labels that are words are read alike in every format and by every entry; other words are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from test_cli import folder, log, run

import isolayer
from isolayer import Curves, InputError, IsotonicCalibrator, metrics, report
from isolayer.training.columns import Columns

__all__ = ["folder"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
WORDS = {"yes": ("No", "yes "), "y": ("N", "Y"), "true": ("FALSE", "true"), "t": ("f", "t")}


def worded(spelling, rows=2000):
    table = log(rows=rows)
    words = np.array(WORDS[spelling])[table["click"].to_numpy()]
    return table.set_column(1, "click", pa.array(words))


def write(table, ending):
    if ending == "csv":
        pa.csv.write_csv(table, "words.csv")
    elif ending == "ndjson":
        Path("words.ndjson").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    else:
        pq.write_table(table, "words.parquet")


@pytest.mark.parametrize(("ending", "spelling"), [("csv", "y"), ("csv", "yes"), ("ndjson", "yes"), ("parquet", "true")])
def test_words_in_files_are_read_by_every_command(folder, ending, spelling):
    write(worded(spelling), ending)
    pq.write_table(log(rows=2000), "numbers.parquet")
    run("fit", f"words.{ending}", "--contexts", "device")
    run("fit", "numbers.parquet", "--contexts", "device", "--out", "other.parquet")
    np.testing.assert_allclose(Curves.load("curves.parquet").values, Curves.load("other.parquet").values, atol=1e-9)
    run("report", f"words.{ending}")
    run("check", f"words.{ending}")


def test_words_in_frames_are_read_by_every_function(tmp_path):
    table, number = worded("yes"), log(rows=2000)
    frame = table.to_pandas()
    calibrators = [IsotonicCalibrator(("device",), scale="prob") for _ in range(2)]
    one, two = (
        calibrator.fit_table(rows, score="prob", label="click").curves_
        for calibrator, rows in zip(calibrators, (frame, number), strict=True)
    )
    np.testing.assert_array_equal(one.values, two.values)
    found, plain = (isolayer.audit(rows, "prob", "click", scale="prob") for rows in (frame, number))
    assert str(found) == str(plain)
    report.write(tmp_path / "page.html", frame, one, score="prob", label="click")
    prob = number["prob"].to_numpy()
    assert metrics.log_loss(frame["click"], prob) == metrics.log_loss(number["click"].to_numpy(), prob)


def test_other_words_are_refused_with_what_was_seen_and_what_is_read(folder):
    frame = log(rows=200).to_pandas()
    frame["click"] = pd.Series(np.where(frame["click"] == 1, "bad", "good"))
    message = (
        r"expected labels \(0 and 1, true and false, yes and no, or t, f, y and n\), got 'bad', 'good'; write 1 for"
    )
    with pytest.raises(InputError, match="column click: " + message):
        isolayer.audit(frame, "prob", "click", scale="prob", on_bad_rows="drop")
    with pytest.raises(InputError, match="label: " + message):
        metrics.log_loss(frame["click"], frame["prob"])
    frame["click"] = np.where(np.arange(200) < 5, "unknown", np.where(frame["click"] == "bad", "yes", "no"))
    frame.to_parquet("some.parquet")
    with pytest.raises(InputError, match="got 'unknown'; write 1"):
        run("fit", "some.parquet")
    assert "left out: 5 labels" in run("fit", "some.parquet", "--on-bad-rows", "drop").stderr
    assert "left out: 5 labels" in run("report", "some.parquet").stderr


def test_an_estimator_takes_yes_for_the_event_however_it_is_spelled():
    table = log(rows=2000)
    frame, click = table.to_pandas()[["prob", "device"]], table["click"].to_numpy()
    expected = IsotonicCalibrator(("device",), scale="prob").fit(frame, click, score="prob").predict_proba(frame)
    for spelling, classes in ((("no", "Yes"), ["no", "Yes"]), (("N", "Y"), ["N", "Y"]), ((False, True), [False, True])):
        calibrator = IsotonicCalibrator(("device",), scale="prob").fit(frame, np.array(spelling)[click], score="prob")
        np.testing.assert_array_equal(calibrator.predict_proba(frame), expected)
        assert calibrator.classes_.tolist() == classes
    mixed = np.where(np.arange(2000) % 2, np.array(["no", "Yes"])[click], np.array(["No", "yes"])[click])
    calibrator = IsotonicCalibrator(("device",), scale="prob").fit(frame, mixed, score="prob")
    np.testing.assert_array_equal(calibrator.predict_proba(frame), expected)
    assert calibrator.classes_.tolist() == [0, 1]


@pytest.mark.parametrize("two", [("yes", "Yes"), ("no", "No"), ("n", "0")])
def test_two_spellings_of_one_answer_are_one_class(two):
    score = np.linspace(-2, 2, 40)
    with pytest.raises(InputError, match="one class only"):
        IsotonicCalibrator().fit(score, np.where(score > 0, *two))


@pytest.mark.parametrize(
    "label",
    [["yes", ""] * 20, ["yes", "  ", "no", "no"] * 10, pd.Series(["yes", "no", None, "no"] * 10, dtype="string")],
    ids=["blank", "blank among three", "missing"],
)
def test_a_row_without_a_label_is_refused(label):
    with pytest.raises(InputError, match="y: expected"):
        IsotonicCalibrator().fit(np.linspace(-2, 2, 40), label)


KINDS = {
    "strings": lambda words: words,
    "objects": lambda words: words.astype(object),
    "numpy text": lambda words: words.astype(np.dtypes.StringDType()),
    "pandas": lambda words: pd.Series(words, dtype="string"),
    "categories": lambda words: pd.Series(words, dtype="category"),
    "polars": lambda words: polars.Series(words.tolist()),
    "polars categories": lambda words: polars.Series(words.tolist(), dtype=polars.Categorical),
    "arrow": lambda words: pa.array(words.tolist()),
    "arrow dictionary": lambda words: pa.array(words.tolist()).dictionary_encode(),
    "arrow views": lambda words: pa.array(words.tolist(), pa.string_view()),
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("spelling", [("no", "YES"), ("0.0", "1.0"), ("0", "1")])
def test_words_are_labels_in_every_kind_of_column(kind, spelling):
    score, random = np.linspace(-2, 2, 400), np.random.default_rng(0)
    click = (random.random(400) < 0.5).astype(int)
    words = KINDS[kind](np.array(spelling)[click])
    fitted = IsotonicCalibrator().fit(score, words)
    expected = IsotonicCalibrator().fit(score, click)
    np.testing.assert_array_equal(fitted.predict_proba(score), expected.predict_proba(score))
    assert [str(one) for one in fitted.classes_] == list(spelling)
    prob = 1 / (1 + np.exp(-score))
    assert metrics.log_loss(words, prob) == metrics.log_loss(click, prob)
    table = IsotonicCalibrator().fit_table({"score": score, "label": words}).curves_
    np.testing.assert_array_equal(
        table.values, IsotonicCalibrator().fit_table({"score": score, "label": click}).curves_.values
    )


@pytest.mark.parametrize("ending", ["csv", "ndjson", "parquet"])
def test_numbers_that_are_written_as_text_are_labels_in_every_file(folder, ending):
    table = log(rows=2000)
    write(table.set_column(1, "click", pa.array(np.array(["0.0", "1.0"])[table["click"].to_numpy()])), ending)
    pq.write_table(table, "numbers.parquet")
    for name in (f"words.{ending}", "numbers.parquet"):
        run("fit", name, "--out", f"{name}.curves")
    one, two = (Curves.load(f"{name}.curves").values for name in (f"words.{ending}", "numbers.parquet"))
    np.testing.assert_allclose(one, two, atol=1e-9)


SPELLINGS = [[0, 1], [False, True], ["no", "yes"], ["No", "Y"], ["0.0", "1.0"], ["0", "1"]]


@pytest.mark.parametrize("later", SPELLINGS, ids=str)
@pytest.mark.parametrize("first", SPELLINGS, ids=str)
def test_rows_are_added_whose_labels_are_spelled_in_another_way(first, later):
    score, random = np.linspace(-2, 2, 400), np.random.default_rng(0)
    click = (random.random(400) < 0.5).astype(int)
    one, two = IsotonicCalibrator(), IsotonicCalibrator()
    one.partial_fit(score, np.array(first)[click]).partial_fit(score[:9], np.array(later)[click[:9]])
    two.partial_fit(score, click).partial_fit(score[:9], click[:9])
    np.testing.assert_array_equal(one.predict_proba(score), two.predict_proba(score))
    assert one.classes_.tolist() == first
    named = IsotonicCalibrator().partial_fit(score, np.array(later)[click], classes=first)
    assert named.classes_.tolist() == first


def test_classes_that_are_no_answers_are_not_mistaken_for_some():
    score = np.linspace(-2, 2, 40)
    calibrator = IsotonicCalibrator().partial_fit(score, np.where(score > 0, "good", "bad"))
    for labels in (["yes", "no"], [0, 1], ["Good", "Bad"]):
        with pytest.raises(InputError, match=r"y: expected the classes \['bad', 'good'\]"):
            calibrator.partial_fit(score, np.array(labels)[(score > 0).astype(int)])
    numbers = IsotonicCalibrator().partial_fit(score, np.where(score > 0, 2, 1))
    with pytest.raises(InputError, match=r"y: expected the classes \[1, 2\]"):
        numbers.partial_fit(score, np.where(score > 0, "yes", "no"))


def test_a_ranker_is_trained_and_diagnosed_on_labels_that_are_words(folder):
    random = np.random.default_rng(0)
    feature, position = random.normal(size=(2, 4000)), random.integers(0, 4, 4000)
    click = random.random(4000) < 0.5 / (1 + np.exp(-feature[0])) / (1 + position)
    rows = {"a": feature[0], "b": feature[1], "position": position, "item": random.integers(0, 40, 4000)}
    pq.write_table(pa.table({**rows, "click": np.where(click, "Yes", "no")}), "words.parquet")
    pq.write_table(pa.table({**rows, "click": click}), "booleans.parquet")
    columns = Columns(["a", "b"], ["click"], ["position"])
    words = pa.array(np.where(click, "Yes", "no"))
    for kind in (words, words.dictionary_encode(), words.cast(pa.string_view()), words.cast(pa.large_string())):
        assert columns.batch(pa.table({**rows, "click": kind})).labels["click"].tolist() == click.tolist()
    told = [run("diagnose", log, "--item", "item").stdout for log in ("words.parquet", "booleans.parquet")]
    assert told[0] == told[1]
    options = ["--features", "a,b", "--contexts", "position", "--epochs", "1", "--tasks", "click", "--json"]
    found = [json.loads(run("train", log, *options).stdout) for log in ("words.parquet", "booleans.parquet")]
    assert found[0].pop("settings") != found[1].pop("settings")  # the names of the files
    assert found[0] == found[1]


@pytest.mark.parametrize("content", ["", "prob,click,device,day\n"], ids=["no bytes", "header only"])
def test_a_file_of_text_without_rows_is_said_to_have_none(folder, content):
    run("fit", "day1.parquet")
    Path("empty.csv").write_text(content)
    for words in (["check", "empty.csv"], ["fit", "empty.csv"], ["audit", "empty.csv"], ["apply", "empty.csv"]):
        with pytest.raises(InputError, match=r"^log: expected rows, got none in 'empty.csv'; check"):
            run(*words)


def test_rows_that_were_left_out_of_an_audit_are_no_sample(folder):
    table = log()
    holes = pa.array(table["click"].to_numpy(), pa.int8(), mask=np.arange(6000) % 3 == 0)
    pq.write_table(table.set_column(1, "click", holes), "holes.parquet")
    told = run("audit", "holes.parquet", "--on-bad-rows", "drop", code=1).stderr
    assert "a sample of" not in told
    assert "left out of 6000 rows: 2000 labels" in told


def test_a_guess_is_told_once(folder):
    told = run("fit", "day1.parquet", "--holdout", "0.2").stderr
    assert told.count("guessed: --score prob") == 1
