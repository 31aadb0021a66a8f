"""Downstream calibration: swings of daily scores, and methods that see only the days before."""

from __future__ import annotations

import numpy as np
import pytest

from isolayer.simulate import TASKS, Feed
from research import downstream, downstream_world


def test_swings_are_variances_of_daily_quantiles():
    day = np.repeat([0, 1, 2], 101)
    spread = np.tile(np.linspace(0, 1, 101), 3)
    found = downstream._swings(0.3 + spread * (1 + day), day)  # the day stretches scores upwards
    assert found["middle"] == pytest.approx(np.var([0.5, 1.0, 1.5], ddof=1))
    assert found["upper tail"] == pytest.approx((0.95 / 0.5) ** 2 * found["middle"])
    assert found["lower tail"] == pytest.approx((0.05 / 0.5) ** 2 * found["middle"])


def test_downstream_methods_see_only_days_before():
    world = Feed(
        tasks=tuple(t for t in TASKS if t.name in downstream_world.ACTIONS) + downstream_world.DOWNSTREAM, days=3
    )
    given, rows = (downstream_world.collected(world, 6_000, seed=0, platform_given=given) for given in (True, False))
    assert (given["features"].shape[1], rows["features"].shape[1]) == (15, 12)
    assert downstream_world.acted(rows).mean() > 0.3  # most rows without an action are left out
    past, test = (
        downstream_world.chosen(rows, kept)
        for kept in (rows["day"] < 2, (rows["day"] == 2) & downstream_world.acted(rows))
    )
    mixed = downstream_world.chosen(past, downstream_world.acted(past))
    probs = downstream_world.predicted(past, mixed, test, downstream_world.METHODS, epochs=2, seed=0)
    assert set(probs) == set(downstream_world.METHODS)
    assert all(column.shape == (len(test["day"]), 3) and (column > 0).all() for column in probs.values())
    likes = {**test, "downstream_like": 1 - test["downstream_like"]}
    again = downstream_world.predicted(past, mixed, likes, downstream_world.METHODS, epochs=2, seed=0)
    assert all(np.array_equal(probs[name], again[name]) for name in probs)
    odds = {name: column / (1 - column) for name, column in probs.items()}
    rows_alone, corrected = odds[downstream_world.SAME_ROWS], odds[downstream_world.CORRECTED]
    assert np.allclose(rows_alone, downstream_world.POSITIVE_WEIGHT * corrected)
