"""Features that give a label away, or are a context under another name, are refused; honest ones are not."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm

from isolayer.errors import InputError
from isolayer.training.columns import Columns
from isolayer.training.log_check import check_log
from isolayer.training.parquet_batches import ParquetLogs
from isolayer.vocabularies import vocabularies

ROWS = 6_000


def checked(tmp_path, feature, *, click, position=None, rows=ROWS):
    """The check of a log with one feature."""
    position = np.random.default_rng(9).integers(0, 10, rows) if position is None else position
    table = pa.table({"x": feature, "click": click, "position": position})
    pq.write_table(table, tmp_path / "log.parquet")
    known = vocabularies([table], ["x"]) if pa.types.is_string(table["x"].type) else {}
    columns = Columns(["x"], ["click"], ["position"], vocabularies=known)
    return check_log(ParquetLogs(tmp_path / "log.parquet", columns))


def clicks(seed=0, rows=ROWS, rate=0.2):
    return (np.random.default_rng(seed).random(rows) < rate).astype(float)


LEAKS = {
    "a word": lambda click, rng: np.where(click > 0, "opened", rng.choice(["passed", "left", "away"], len(click))),
    "a word of half the positives": lambda click, rng: np.where(
        (click > 0) & (rng.random(len(click)) < 0.5), "opened", rng.choice(["a", "passed", "z"], len(click))
    ),
    "ids of half the positives": lambda click, rng: np.where(
        (click > 0) & (rng.random(len(click)) < 0.5), rng.integers(0, 4000, len(click)).astype(str), "none"
    ),
    "in the middle": lambda click, rng: (
        np.where(click > 0, 0.0, rng.choice([-1, 1], len(click))) * (1 + rng.random(len(click)))
        + 0.1 * rng.standard_normal(len(click))
    ),
    "odd numbers": lambda click, rng: 2 * rng.integers(0, 8, len(click)) + click,
    "at both ends": lambda click, rng: (
        np.where(click > 0, rng.choice([-9.0, 9.0], len(click)), 0) + rng.standard_normal(len(click))
    ),
    "a dwell time of half the positives": lambda click, rng: (
        click * (rng.random(len(click)) < 0.5) * rng.uniform(1, 60, len(click))
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_feature_that_decides_the_label_is_refused_whatever_its_kind(name, tmp_path):
    click = clicks()
    feature = LEAKS[name](click, np.random.default_rng(1))
    with pytest.raises(InputError, match="got 'x', which gives 'click' away"):
        checked(tmp_path, feature, click=click)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows", [800, ROWS])
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("kind", ["number", "rounded", "word", "folded"])
def test_an_honest_feature_passes_up_to_an_area_of_95_percent(kind, rate, rows, seed, tmp_path):
    click = clicks(seed, rows, rate)
    strength = 2**0.5 * norm.ppf(0.95)
    x = np.random.default_rng(seed + 10).standard_normal(rows) + strength * click
    sign = np.random.default_rng(3).choice([-1, 1], rows)
    feature = {
        "number": x,
        "rounded": x.round(1),
        "word": np.array([f"{value:.1f}" for value in x]),
        "folded": sign * np.exp(x),
    }[kind]
    checked(tmp_path, feature, click=click, rows=rows)


@pytest.mark.parametrize("rows", [800, ROWS])
def test_ids_with_few_rows_pass(rows, tmp_path):
    users = np.random.default_rng(4).integers(0, rows // 2, rows)
    for feature in (users.astype(float), np.array([f"u{user}" for user in users])):
        checked(tmp_path, feature, click=clicks(5, rows, 0.6), rows=rows)


@pytest.mark.parametrize(
    "renamed",
    [
        lambda position: position + 1.0,
        lambda position: 1 / np.log2(position + 2),
        lambda position: np.array([f"slot {one}" for one in position]),
    ],
    ids=["counted from 1", "discount", "words"],
)
def test_a_copy_of_a_context_is_refused_by_name(renamed, tmp_path):
    position = np.random.default_rng(6).integers(0, 10, ROWS)
    told = "got 'x', which is the context 'position' under another name; leave it out, or allow it by allow_leaks"
    with pytest.raises(InputError, match=told):
        checked(tmp_path, renamed(position), click=clicks(), position=position)
    nearly = position + (np.random.default_rng(7).random(ROWS) < 0.02)
    checked(tmp_path, nearly.astype(float), click=clicks(), position=position)
