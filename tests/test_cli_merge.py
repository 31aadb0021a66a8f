"""merge: the sums of many writers on the command line, each counted once, and the calibrator of all of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isolayer import Curves, Grid, Histogram, IsotonicCalibrator
from isolayer.cli.app import app
from isolayer.errors import InputError
from isolayer.fitting.partial_sums import merge_parts

FIT = ("--scale", "logit", "--contexts", "shop", "--grid=-5,4,0.5")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the logs of four writers, and the sums of each."""
    monkeypatch.chdir(tmp_path)
    Path("sums").mkdir()
    for part in range(4):
        log(part).to_parquet(f"log{part}.parquet")
        run("fit", f"log{part}.parquet", *FIT, "--sums", f"sums/{part}.parquet", "--out", "part.parquet")
    return tmp_path


def log(seed: int, rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    score, shop = rng.normal(0, 1.2, rows), rng.integers(0, 5, rows)
    label = (rng.random(rows) < 1 / (1 + np.exp(-score - 0.2 * shop))).astype(int)
    return pd.DataFrame({"score": score, "label": label, "shop": shop})


def run(*words: object, code: int = 0) -> tuple[dict[str, object], str]:
    """The document that a command prints, and what it says besides; or its error."""
    found = CliRunner().invoke(app, [*map(str, words), "--json"])
    if code:
        assert isinstance(found.exception, InputError)
        return {}, str(found.exception)
    assert found.exit_code == 0, found.exception or found.output
    return json.loads(found.stdout), found.stderr


def content(path: str) -> list[object]:
    sums = Histogram.load(path)
    names = ("group", "bin", "count", "weight", "weight_squared", "positive", "logit")
    return [key.tolist() for key in sums.keys] + [getattr(sums, name).tobytes() for name in names]


def test_parts_in_any_order_some_of_them_twice_are_one_fit(folder):
    told, _ = run("merge", "sums/*.parquet", "--out", "total.parquet", "--curves", "curves.parquet")
    assert (told["figures"]["parts"], told["figures"]["duplicates"], told["figures"]["rows"]) == (4, 0, 1600)
    shutil.copy("sums/1.parquet", "late.parquet")
    parts = ("sums/3.parquet", "late.parquet", "sums/0.parquet", "sums/1.parquet", "sums/2.parquet")
    told, said = run("merge", *parts, "--out", "again.parquet")
    assert told["figures"]["duplicates"] == 1
    assert "counted once: sums/1.parquet has the rows of late.parquet" in said
    assert content("again.parquet") == content("total.parquet")
    run("fit", *(f"log{part}.parquet" for part in range(4)), *FIT, "--out", "whole.parquet")
    ask = np.linspace(-6, 5, 200), {"shop": np.arange(200) % 6}
    whole, merged = (Curves.load(name).predict_proba(*ask) for name in ("whole.parquet", "curves.parquet"))
    np.testing.assert_allclose(merged, whole, atol=1e-9)


def test_a_part_that_a_writer_made_twice_is_counted_once(folder):
    run("fit", "log1.parquet", *FIT, "--sums", "sums/retried.parquet", "--out", "part.parquet")
    told, said = run("merge", "sums/*.parquet", "--out", "total.parquet")
    assert (told["figures"]["rows"], told["figures"]["duplicates"]) == (1600, 1)
    assert "counted once: sums/retried.parquet has the rows of sums/1.parquet" in said


def test_totals_are_parts_too(folder):
    run("merge", "sums/0.parquet", "sums/1.parquet", "--out", "left.parquet")
    run("merge", "sums/2.parquet", "sums/3.parquet", "--out", "right.parquet")
    run("merge", "left.parquet", "right.parquet", "--out", "both.parquet")
    run("merge", "sums/*.parquet", "--out", "total.parquet")
    np.testing.assert_allclose(Histogram.load("both.parquet").weight, Histogram.load("total.parquet").weight)
    assert "which have some files in common" in run("merge", "left.parquet", "sums/1.parquet", code=2)[1]
    assert not Path("sums.parquet").exists()


def test_days_are_added_to_what_was_merged_each_once(folder):
    run("merge", "sums/0.parquet", "sums/1.parquet", "--out", "sums.parquet", "--curves", "curves.parquet")
    run("update", "sums.parquet", "log2.parquet")
    assert Histogram.load("sums.parquet").rows == 1200
    assert "which was added before" in run("update", "sums.parquet", "log1.parquet", code=2)[1]


def test_sums_without_a_memory_are_known_by_the_name_of_their_file(folder):
    for attempt in ("a", "b", "c"):
        Path(attempt).mkdir()
        rows = log(9 if attempt == "c" else 8)
        context = {"shop": rows["shop"].to_numpy()}
        sums = Histogram.from_arrays(rows["score"], rows["label"], context, grid=Grid(-5, 4, 0.5))
        sums.save(f"{attempt}/part-7.parquet")
    told, said = run("merge", "a/part-7.parquet", "b/part-7.parquet", "--out", "total.parquet")
    assert (told["figures"]["rows"], told["figures"]["duplicates"]) == (400, 1)
    assert "counted once: b/part-7.parquet" in said
    before = Path("total.parquet").read_bytes()
    error = run("merge", "a/part-7.parquet", "c/part-7.parquet", "--out", "total.parquet", code=2)[1]
    assert "expected the same rows in 'a/part-7.parquet' and 'c/part-7.parquet', since both are 'part-7'" in error
    assert Path("total.parquet").read_bytes() == before
    told, _ = run("merge", "total.parquet", "a/part-7.parquet", "sums/0.parquet")  # a total remembers its parts
    assert (told["figures"]["parts"], told["figures"]["duplicates"], told["figures"]["rows"]) == (2, 1, 800)


def test_parts_have_to_be_alike(folder):
    run("fit", "log3.parquet", "--scale", "logit", "--grid=-5,4,0.25", "--sums", "other.parquet", "--out", "c.parquet")
    assert (
        "give each writer the same --contexts and --grid" in run("merge", "sums/0.parquet", "other.parquet", code=2)[1]
    )
    assert "expected another file than --out" in run("merge", "sums/0.parquet", "--curves", "sums.parquet", code=2)[1]
    assert "--out: expected" in run("merge", "sums/0.parquet", "--out", "sums/0.parquet", code=2)[1]
    assert run("merge", "nowhere.parquet", code=2)[1]


def part(seed: int) -> tuple[str, Histogram]:
    rows = log(seed)
    context = {"shop": rows["shop"].to_numpy()}
    return f"part-{seed}", Histogram.from_arrays(rows["score"], rows["label"], context, grid=Grid(-5, 4, 0.5))


def test_totals_that_were_merged_in_python_are_known_by_their_parts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seeds in (("left", (0, 1)), ("right", (1, 2)), ("other", (3, 4)), ("again", (0, 1))):
        merge_parts(map(part, seeds)).save(f"{name}.parquet")
    assert "which have some files in common" in run("merge", "left.parquet", "right.parquet", code=2)[1]
    told, said = run("merge", "left.parquet", "other.parquet", "again.parquet", "--curves", "curves.parquet")
    assert (told["figures"]["rows"], told["figures"]["duplicates"]) == (1600, 1)
    assert "counted once: again.parquet" in said
    assert "which have some files in common" in run("merge", "sums.parquet", "right.parquet", "--out", "x", code=2)[1]
    log(5).to_parquet("day.parquet")
    words = ("update", "sums.parquet", "day.parquet", "--score", "score", "--label", "label", "--id")
    assert "--id part-3, which was added before" in run(*words, "part-3", code=2)[1]
    run(*words, "part-5")
    assert Histogram.load("sums.parquet").rows == 2000
    assert "which have some files in common" in run("merge", "sums.parquet", "left.parquet", "--out", "x", code=2)[1]


def test_a_day_that_is_added_to_a_total_of_python_keeps_its_parts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    total = merge_parts(map(part, (0, 1)))
    total.save("sums.parquet")
    IsotonicCalibrator(("shop",)).fit_histogram(total).curves_.save("curves.parquet")
    log(2).to_parquet("day.parquet")
    words = ("update", "sums.parquet", "day.parquet", "--score", "score", "--label", "label")
    run(*words, "--keep", "0.9")
    merge_parts(map(part, (1, 3))).save("other.parquet")
    assert "which have some files in common" in run("merge", "sums.parquet", "other.parquet", "--out", "x", code=2)[1]
    assert "which was added before" in run(*words, code=2)[1]
    run(*words, "--remove")
    np.testing.assert_allclose(Histogram.load("sums.parquet").weight, 0.9 * total.weight)


def test_a_total_remembers_more_parts_than_a_log_has_files(folder, monkeypatch):
    monkeypatch.setattr("isolayer.cli.days.MOST_FILES", 2)
    monkeypatch.setattr("isolayer.cli.merging.MOST_FILES", 2, raising=False)
    run("merge", "sums/*.parquet", "--out", "total.parquet")
    for each in range(4):
        assert "files in common" in run("merge", "total.parquet", f"sums/{each}.parquet", "--out", "x", code=2)[1]
