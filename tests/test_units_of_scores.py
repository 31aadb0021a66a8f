"""Nothing depends on the unit of the score: grids, curves and probabilities follow it, in memory and in an engine."""

import numpy as np
import pyarrow as pa
import pytest

from isolayer import Curves, Grid, IsotonicCalibrator

UNITS = [(3.0, -1.0), (0.05, 0.0), (1.0, 20.0), (1e4, 0.0)]


def log_of(rows, seed=0):
    rng = np.random.default_rng(seed)
    device = rng.choice(["phone", "tv", "web"], rows)
    score = rng.normal(-2, 1.2, rows)
    truth = 0.8 * score + 0.3 * np.sin(2 * score) + np.where(device == "tv", 0.6, 0.0)
    return {"score": score, "device": device}, (rng.random(rows) < 1 / (1 + np.exp(-truth))).astype(int)


def in_unit(frame, unit):
    return {**frame, "score": unit[0] * frame["score"] + unit[1]}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rows", [200, 20_000])
def test_a_score_in_another_unit_gets_nearly_the_same_probabilities(unit, rows):
    """Not exactly: knots are at round numbers, and scores that look like logits are trusted a little more."""
    frame, label = log_of(rows)
    prob, other = (
        IsotonicCalibrator(("device",)).fit(rows_, label).predict_proba(rows_)[:, 1]
        for rows_ in (frame, in_unit(frame, unit))
    )
    assert np.abs(prob - other).max() < (0.12 if rows == 200 else 0.03)
    assert np.abs(prob - other).mean() < (0.03 if rows == 200 else 0.004)


@pytest.mark.parametrize("unit", [(1.0, 0.0), *UNITS])
def test_a_table_gets_the_grid_of_the_same_rows_in_memory(unit):
    frame, label = log_of(5000)
    frame = in_unit(frame, unit)
    here = IsotonicCalibrator(("device",)).fit(frame, label).curves_
    there = IsotonicCalibrator(("device",)).fit_table(pa.table({**frame, "label": label})).curves_
    assert here.grid == there.grid
    np.testing.assert_allclose(here.values, there.values, atol=1e-6 * np.abs(here.values).max())


def test_weights_place_the_grid_as_rows_do():
    frame, label = log_of(500)
    weight = np.arange(500) % 3
    again = np.repeat(np.arange(500), weight)
    weighted = IsotonicCalibrator().fit(frame["score"], label, sample_weight=weight).curves_
    repeated = IsotonicCalibrator().fit(frame["score"][again], label[again]).curves_
    table = pa.table({**frame, "label": label, "weight": weight})
    there = IsotonicCalibrator().fit_table(table, weight="weight").curves_
    assert weighted.grid == repeated.grid == there.grid


def test_outliers_do_not_stretch_the_grid_in_memory_or_in_an_engine():
    frame, label = log_of(5000)
    score = frame["score"].copy()
    score[:3] = -1e6, 1e5, 4e3
    here = IsotonicCalibrator().fit(score, label).curves_.grid
    there = IsotonicCalibrator().fit_table(pa.table({"score": score, "label": label})).curves_.grid
    assert here == there
    assert here.step == 0.2
    assert here.buckets < 100


def test_later_rows_and_files_keep_the_grid_of_the_first(tmp_path):
    frame, label = log_of(2000)
    model = IsotonicCalibrator(("device",)).partial_fit(frame, label)
    first = model.curves_.grid
    later = in_unit(log_of(2000, seed=1)[0], (3.0, 0.0))
    model.partial_fit(later, label)
    assert model.curves_.grid == first
    model.curves_.save(tmp_path / "curves.parquet")
    assert Curves.load(tmp_path / "curves.parquet").grid == first
    assert model.fit(later, label).curves_.grid != first


def test_a_grid_that_is_given_stays():
    frame, label = log_of(500)
    grid = Grid(-9, 3, 0.5)
    assert IsotonicCalibrator(grid=grid).fit(frame["score"], label).curves_.grid == grid
