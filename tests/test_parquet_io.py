"""Curves and histograms on disk: the same to the bit, readable by others, never half written, never misread."""

import json
import os

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from curve_examples import GRID, columns, fitted, questions

from isolayer.curves import parquet_io as artefact
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
    sql = f"SELECT values[11] FROM '{path}' WHERE level = 1 AND device = 'tv'"
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


def test_a_newer_or_foreign_file_is_told_apart(tmp_path, monkeypatch):
    path = tmp_path / "curves.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(artefact, "SCHEMA", 7)
        save_curves(fitted(), path)
    with pytest.raises(
        InputError, match=r"file: expected schema 1 or older, got the newer schema 7 .*; upgrade isolayer"
    ):
        load_curves(path)
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(InputError, match=r"file: expected one that isolayer wrote, got .* without its metadata"):
        load_curves(path)
    save_histogram(histogram(), path)
    with pytest.raises(InputError, match=r"file: expected curves, got histogram in .*; load it as what it is"):
        load_curves(path)
    with pytest.raises(InputError, match=r"file: expected curves at .*, got no file; check the path"):
        load_curves(tmp_path / "none")
    with pytest.raises(InputError, match=r"path: expected a folder that exists, got .*; create it"):
        save_curves(fitted(), tmp_path / "no" / "where.parquet")


def test_a_context_called_as_a_column_is_refused(tmp_path):
    curves = Curves.from_histogram(Histogram.from_arrays([0.0, 1.0], [0, 1], {"level": [1, 2]}))
    with pytest.raises(InputError, match=r"context level: expected a name other than level, .*; rename it"):
        save_curves(curves, tmp_path / "c.parquet")


def test_a_fingerprint_names_the_data_not_the_engine():
    data = columns()
    there, _ = histogram_of(data, ColumnSpec(("device", "position"), grid=GRID))
    assert there.fingerprint() == histogram().fingerprint()
    assert there.fingerprint() != histogram(seed=1).fingerprint()
    data["label"][0] = 1 - data["label"][0]
    other, _ = histogram_of(data, ColumnSpec(("device", "position"), grid=GRID))
    assert there.fingerprint() != other.fingerprint()
