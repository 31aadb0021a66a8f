"""Curves and histograms on disk: the same to the bit, readable by others, never half written, never misread."""

import json
import os
from dataclasses import replace

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curve_examples import GRID, columns, fitted, questions

from isolayer.curves import parquet_io, verified_file
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import evaluate, prob_of
from isolayer.curves.parquet_io import load_curves, load_histogram, save_curves, save_histogram
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.tables.histogram_query import ColumnSpec, histogram_of


def histogram(seed=0, missing=False, fold=None):
    data = columns(seed, missing=missing)
    context = {name: data[name] for name in ("device", "position")}
    return Histogram.from_arrays(data["score"], data["label"], context, fold=fold, grid=GRID)


def assert_equal(one, two, names):
    assert (one.grid, one.contexts) == (two.grid, two.contexts)
    for name in names:
        mine, theirs = getattr(one, name), getattr(two, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


@pytest.mark.parametrize("contexts", [(), ("device",), ("position", "device")])
@pytest.mark.parametrize("missing", [False, True])
def test_curves_come_back_to_the_bit(contexts, missing, tmp_path):
    curves = fitted(contexts, scale="prob", missing=missing)
    save_curves(curves, tmp_path / "curves.parquet")
    again = load_curves(tmp_path / "curves.parquet")
    assert_equal(curves, again, ("values", "variance", "knot_weight", "count"))
    assert [[key.tolist() for key in keys] for keys in curves.keys] == [
        [k.tolist() for k in keys] for keys in again.keys
    ]
    assert (again.scale, again.settings) == ("prob", curves.settings)
    data = questions("prob", missing=missing)
    context = {name: data[name] for name in contexts} or None
    np.testing.assert_array_equal(
        again.predict_proba(data["score"], context), curves.predict_proba(data["score"], context)
    )


def test_booleans_and_a_last_column_that_is_missing_everywhere_come_back(tmp_path):
    context = {"new": np.array([True, False, True]), "shop": np.array([None, None, None])}
    curves = Curves.from_histogram(Histogram.from_arrays([0.0, 0.1, 0.2], [0, 1, 1], context))
    save_curves(curves, tmp_path / "c.parquet")
    assert load_curves(tmp_path / "c.parquet").keys[1][0].tolist() == [False, True]


@pytest.mark.parametrize("missing", [False, True])
def test_histograms_come_back_to_the_bit(missing, tmp_path):
    whole = histogram(missing=missing, fold=np.arange(4000) % 3)
    save_histogram(whole, tmp_path / "day.parquet")
    again = load_histogram(tmp_path / "day.parquet")
    names = ("group", "fold", "bin", "count", "weight", "weight_squared", "positive", "logit")
    assert_equal(whole, again, names)
    assert [key.tolist() for key in whole.keys] == [key.tolist() for key in again.keys]


def test_days_on_disk_add_up_and_can_be_taken_out(tmp_path):
    for day in (0, 1):
        save_histogram(histogram(day), tmp_path / f"{day}.parquet")
    one, two = (load_histogram(tmp_path / f"{day}.parquet") for day in (0, 1))
    both = one.merge(two)
    np.testing.assert_array_equal(both.subtract(two).count, one.count)
    np.testing.assert_allclose(both.subtract(two).positive, one.positive, atol=1e-12)


def test_others_read_the_curves_without_this_package(tmp_path):
    curves = fitted()
    path = tmp_path / "curves.parquet"
    save_curves(curves, path)
    frame = pl.read_parquet(path)
    np.testing.assert_array_equal(np.array(frame["values"].to_list()), curves.values)
    sql = f"SELECT values[11] FROM '{path}' WHERE depth = 1 AND device = 'tv'"
    row = curves.rows_of({"device": ["tv"]}, 1, depth=1)
    assert duckdb.connect().sql(sql).fetchall() == [(curves.values[row[0], 10],)]
    logit = evaluate(curves.values, row, np.array([GRID.knots[11]]), GRID)
    assert prob_of(logit)[0] == pytest.approx(1 / (1 + np.exp(-curves.values[row[0], 10])))
    facts = json.loads(pq.read_schema(path).metadata[b"isolayer"])
    assert facts["grid"] == {"lower": -6.0, "upper": 3.0, "step": 0.3}
    assert {"schema", "library", "scale", "settings", "contexts", "kind", "content"} <= set(facts)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "curves.parquet"
    save_curves(fitted(), path)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_curves(fitted(seed=3), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["curves.parquet"]


def test_a_broken_file_is_told_apart(tmp_path):
    path = tmp_path / "curves.parquet"
    save_curves(fitted(), path)
    sound = path.read_bytes()

    def message(content):
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            load_curves(path)
        return str(caught.value)

    assert "which is truncated; write it again" in message(sound[:-100])
    assert "which is truncated" in message(b"PAR1")
    assert "which is corrupt (it does not start as Parquet does)" in message(b"hello, world" * 9)
    assert "which is corrupt" in message(b"")
    flipped = bytearray(sound)
    flipped[len(sound) // 3] ^= 0xFF
    assert "which is corrupt (" in message(bytes(flipped))


def test_no_byte_can_change(tmp_path):
    """Verified before Arrow parses anything: some damaged footers make Arrow end the process."""
    path = tmp_path / "curves.parquet"
    save_curves(Curves.identity(GRID), path)
    sound = path.read_bytes()
    for place in range(0, len(sound), 7):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="file: expected"):
            load_curves(path)


def test_a_newer_or_foreign_file_is_told_apart(tmp_path, monkeypatch):
    path = tmp_path / "curves.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(verified_file, "_PLAIN", 7)
        save_curves(fitted(), path)
    with pytest.raises(
        InputError, match=r"file: expected schema 4 or older, got the newer schema 7 .*; upgrade isolayer"
    ):
        load_curves(path)
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(InputError, match=r"file: expected one that isolayer wrote, got .* without its seal"):
        load_curves(path)
    verified_file.seal(path)
    with pytest.raises(InputError, match=r"file: expected one that isolayer wrote, got .* without its metadata"):
        load_curves(path)
    save_histogram(histogram(), path)
    with pytest.raises(InputError, match=r"file: expected curves, got histogram in .*; load it as what it is"):
        load_curves(path)
    with pytest.raises(InputError, match=r"file: expected curves at .*, got no file; check the path"):
        load_curves(tmp_path / "none")
    with pytest.raises(InputError, match=r"path: expected a folder that exists, got .*; create it"):
        save_curves(fitted(), tmp_path / "no" / "where.parquet")


def rewritten(path, change=lambda table: table, **facts):
    """Write a file anew with another table and other facts, as one who can write Parquet but knows no digest."""
    table = pq.read_table(path)
    told = json.loads(table.schema.metadata[b"isolayer"])
    told |= {name: fact(told[name]) if callable(fact) else fact for name, fact in facts.items()}
    pq.write_table(change(table).replace_schema_metadata({b"isolayer": json.dumps(told).encode()}), path)
    with pytest.raises(InputError, match=r"got .* without its seal"):
        load_curves(path)
    verified_file.seal(path)


def with_column(name, change):
    return lambda table: table.set_column(table.column_names.index(name), name, change(table[name]))


TAMPERED = {
    "a row is missing": (
        {"change": lambda table: table.slice(0, len(table) - 1)},
        "rows: expected 29 as its facts say",
    ),
    "and the facts say so": (
        {"change": lambda table: table.slice(0, len(table) - 1), "rows": lambda rows: rows - 1},
        "content: expected the digest of what was saved",
    ),
    "a row comes twice": (
        {"change": lambda table: pa.concat_tables([table, table.slice(len(table) - 1)]), "rows": lambda rows: rows + 1},
        "content: expected the digest",
    ),
    "a number is another": (
        {"change": with_column("count", lambda column: pa.array(column.to_numpy() + 1))},
        "content: expected the digest",
    ),
    "keys are of another type": (
        {"change": with_column("position", lambda column: column.cast(pa.string()))},
        "columns: expected those of its facts",
    ),
    "a column is missing": ({"change": lambda table: table.drop_columns(["count"])}, "columns: expected those of its"),
    "knots are missing": (
        {
            "change": with_column(
                "values", lambda column: pa.array([row[1:] for row in column.to_pylist()], column.type)
            )
        },
        "values: expected 899, got 870",
    ),
    "a list is longer, another shorter": (
        {
            "change": with_column(
                "values",
                lambda column: pa.array(
                    [[*column[0].as_py(), 9.0], column[1].as_py()[1:], *column.to_pylist()[2:]], column.type
                ),
            )
        },
        "lists: expected 31 knots in each",
    ),
    "NULL": (
        {"change": with_column("count", lambda column: pa.array([None, *column.to_pylist()[1:]]))},
        "content: expected the digest",
    ),
    "an unknown scale": ({"scale": "qrob"}, "scale: expected 'logit' or 'prob', got 'qrob'"),
    "another scale": ({"scale": "prob"}, "content: expected the digest"),
    "another end": ({"extrapolation": "clip"}, "content: expected the digest"),
    "another kind": ({"kind": "bias"}, "content: expected the digest"),
    "another score": ({"score_name": "p"}, "content: expected the digest"),
    "another source": ({"source": {"from": "layer"}}, "content: expected the digest"),
    "contexts in another order": (
        {"contexts": ["position", "device"]},
        "curves: expected the parent|content: expected",
    ),
    "contexts that are none": ({"contexts": [3]}, "contexts: expected names"),
    "a grid that is none": ({"grid": {"lower": 1, "upper": 0, "step": 1}}, "grid bounds: expected lower < upper"),
    "another grid": ({"grid": {"lower": -6.0, "upper": 3.3, "step": 0.3}}, "lists: expected 32 knots"),
    "a grid of other words": ({"grid": {"low": 1}}, "corrupt"),
    "no digest": ({"digest": None}, "content: expected the digest"),
    "a schema that is no number": ({"schema": "two"}, "corrupt"),
    "deep facts": ({"settings": json.loads("[" * 500 + "]" * 500)}, "corrupt"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_file_that_was_tampered_with_is_refused(how, tmp_path):
    path = tmp_path / "curves.parquet"
    save_curves(fitted(), path)
    change, message = TAMPERED[how]
    rewritten(path, **change)
    with pytest.raises(InputError, match=r"file: expected .*") as caught:
        load_curves(path)
    assert any(part in str(caught.value) for part in message.split("|")), caught.value


def test_facts_are_json_and_nothing_else(tmp_path):
    path = tmp_path / "curves.parquet"
    save_curves(fitted(), path)
    table = pq.read_table(path)
    for text in (b"{", b"[]", b"3", b"{}", b"\xff", b"[" * 100_000):
        pq.write_table(table.replace_schema_metadata({b"isolayer": text}), path)
        verified_file.seal(path)
        with pytest.raises(InputError, match=r"file: expected an intact file, got .*, which is corrupt"):
            load_curves(path)


def test_a_file_of_the_first_schema_is_refused_in_words(tmp_path):
    path = tmp_path / "curves.parquet"
    save_curves(fitted(), path)
    rewritten(path, schema=1)
    with pytest.raises(
        InputError, match=r"file: expected schema 3 or newer, got the older schema 1 in .*; write it again"
    ):
        load_curves(path)


def put(curves, name, place, value):
    column = np.array(getattr(curves, name))
    column[place] = value
    return replace(curves, **{name: column})


def with_keys(curves, depth, keys):
    return replace(curves, keys=(*curves.keys[:depth], keys, *curves.keys[depth + 1 :]))


BAD_CURVES = {
    "values: expected it finite": lambda curves: put(curves, "values", (2, 3), np.nan),
    "values: expected it finite, got 1 entries that are not, first in row 0": lambda curves: put(
        curves, "values", (0, -1), np.inf
    ),
    "values: expected it never decreasing": lambda curves: put(curves, "values", (5, 3), -90.0),
    "variance: expected it finite and not negative": lambda curves: put(curves, "variance", (1, 1), -1.0),
    "variance: expected it finite and": lambda curves: put(curves, "variance", (1, 1), np.nan),
    "knot_weight: expected it finite and not": lambda curves: put(curves, "knot_weight", (1, 1), np.inf),
    "count: expected it finite and not negative": lambda curves: put(curves, "count", 4, -1.0),
    "count: expected shape": lambda curves: replace(curves, count=curves.count[1:]),
    "values: expected shape": lambda curves: replace(curves, values=curves.values[:, 1:]),
    "curves: expected every context once": lambda curves: with_keys(
        curves, 2, tuple(np.concatenate([key[:-1], key[-2:-1]]) for key in curves.keys[2])
    ),
    "curves: expected the parent of every context": lambda curves: with_keys(
        curves, 2, (np.full(len(curves.keys[2][0]), "nobody"), curves.keys[2][1])
    ),
    "keys: expected 2 equally long columns at depth 2": lambda curves: with_keys(
        curves, 2, (curves.keys[2][0], curves.keys[2][1][1:])
    ),
    "contexts: expected each once": lambda curves: replace(curves, contexts=("device", "device")),
}


@pytest.mark.parametrize("message", BAD_CURVES)
def test_curves_that_cannot_be_are_neither_saved_nor_loaded(message, tmp_path, monkeypatch):
    path, bad = tmp_path / "curves.parquet", BAD_CURVES[message](fitted())
    with pytest.raises(InputError, match=message):
        save_curves(bad, path)
    assert not path.exists()
    with monkeypatch.context() as patch:
        patch.setattr(parquet_io, "check_curves", lambda curves: None)
        try:
            save_curves(bad, path)
        except ValueError:
            return  # not even Arrow can write it
    with pytest.raises(InputError, match="file: expected an intact file, got"):
        load_curves(path)


BAD_SUMS = {
    "weight: expected it finite and not negative": ("weight", 3, np.nan),
    "count: expected it finite and not negative": ("count", 3, -1.0),
    "positive: expected it at most the weight": ("positive", 3, 1e9),
    "weight_squared: expected it finite and not negative": ("weight_squared", 3, -1.0),
    "logit: expected it finite": ("logit", 3, np.inf),
    "bin: expected it from 0 to 121": ("bin", 3, 122),
    "fold: expected it from 0 to 126": ("fold", 3, -1),
    "cells: expected it in order, each once": ("bin", slice(3, 5), 7),
    "group: expected it from 0 to 27": ("group", -1, 99),
}


@pytest.mark.parametrize("message", BAD_SUMS)
def test_sums_that_cannot_be_are_neither_saved_nor_loaded(message, tmp_path, monkeypatch):
    path, bad = tmp_path / "sums.parquet", put(histogram(), *BAD_SUMS[message])
    with pytest.raises(InputError, match=message):
        save_histogram(bad, path)
    assert not path.exists()
    if "group" in message:
        return  # a file has no numbers of groups
    with monkeypatch.context() as patch:
        patch.setattr(parquet_io, "check_histogram", lambda histogram: None)
        save_histogram(bad, path)
    with pytest.raises(InputError, match=rf"file: expected an intact file, got .*{message}"):
        load_histogram(path)


def test_a_file_is_refused_by_its_metadata_before_any_column_is_read(tmp_path, monkeypatch):
    """A small file may promise a lot: constant columns compress to nothing."""
    path = tmp_path / "curves.parquet"
    save_curves(Curves.identity(GRID), path)
    facts = json.loads(pq.read_schema(path).metadata[b"isolayer"])
    rows = 400_000
    lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * 31), pa.array(np.zeros(rows * 31)))
    table = {"depth": np.zeros(rows, np.int32), "count": np.zeros(rows), "values": lists, "variance": lists}
    table = pa.table({**table, "knot_weight": lists})

    def write(**told):
        meta = {b"isolayer": json.dumps({**facts, **told}).encode()}
        pq.write_table(table.replace_schema_metadata(meta), path, compression="zstd")
        verified_file.seal(path)

    def never(*_, **__):
        raise AssertionError("a column was read")

    monkeypatch.setattr(pq.ParquetFile, "read", never)
    write()
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match=r"rows: expected 1 as its facts say, got 400000"):
        load_curves(path)
    write(rows=rows, columns={field.name: str(field.type) for field in pq.read_schema(path)})
    with pytest.raises(InputError, match=r"size: expected at most \d+ bytes of content, got 3024"):
        load_curves(path)


def test_curves_that_compress_to_nothing_are_written_so_that_they_load(tmp_path, monkeypatch):
    monkeypatch.setattr(verified_file, "_FREE", 0)
    path, many = tmp_path / "curves.parquet", 2000
    one = np.tile(GRID.knots[1:], (many + 1, 1))
    keys = ((), (np.arange(many),))
    curves = Curves(GRID, ("item",), keys, one, np.zeros_like(one), np.zeros_like(one), np.zeros(many + 1))
    save_curves(curves, path)
    assert_equal(curves, load_curves(path), ("values", "variance", "knot_weight", "count"))


def test_what_curves_are_comes_back(tmp_path):
    told = {
        "scale": "prob",
        "extrapolation": "clip",
        "kind": "bias",
        "score_name": "p",
        "label_name": "click",
        "source": {"from": "DualHead", "tasks": ["click"]},
        "settings": {"strict": True, "residual": np.float64(1e-9), "rounds": np.int64(3)},
    }
    save_curves(replace(fitted(), **told), tmp_path / "c.parquet")
    again = load_curves(tmp_path / "c.parquet")
    assert {name: getattr(again, name) for name in told} == told
    with pytest.raises(InputError, match="settings: expected plain values, got object; convert it"):
        save_curves(replace(fitted(), settings={"a": object()}), tmp_path / "d.parquet")


def test_what_sums_are_comes_back_and_minus_zero_stays(tmp_path):
    day = replace(histogram(), source={"score": "p", "scale": "prob", "negative_rate": None})
    day = replace(day, logit=np.where(np.arange(len(day.logit)) == 3, -0.0, day.logit))
    save_histogram(day, tmp_path / "s.parquet")
    again = load_histogram(tmp_path / "s.parquet")
    assert again.source == day.source
    assert np.signbit(again.logit[3])
    assert again.fingerprint() == day.fingerprint()


def test_groups_without_cells_are_not_kept(tmp_path):
    day = Histogram.from_arrays([0.1, 0.2], [0, 1], {"device": ["tv", "web"]}, fold=[0, 1])
    one, _ = day.split(0)
    save_histogram(one, tmp_path / "s.parquet")
    assert (one.groups, load_histogram(tmp_path / "s.parquet").keys[0].tolist()) == (2, ["web"])


def test_a_context_called_as_a_column_is_refused(tmp_path):
    for name in ("depth", "Values"):
        curves = Curves.from_histogram(Histogram.from_arrays([0.0, 1.0], [0, 1], {name: [1, 2]}))
        with pytest.raises(InputError, match=rf"context {name}: expected a name other than depth, .*; rename it"):
            save_curves(curves, tmp_path / "c.parquet")


def test_a_fingerprint_names_the_data_not_the_engine():
    data = columns()
    there, _ = histogram_of(data, ColumnSpec(("device", "position"), grid=GRID))
    assert there.fingerprint() == histogram().fingerprint()
    assert there.fingerprint() != histogram(seed=1).fingerprint()
    data["label"][0] = 1 - data["label"][0]
    other, _ = histogram_of(data, ColumnSpec(("device", "position"), grid=GRID))
    assert there.fingerprint() != other.fingerprint()
