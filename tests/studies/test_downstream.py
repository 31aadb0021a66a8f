"""Downstream calibration: swings of daily scores, and methods that see only the days before."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import outcome

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
    day = downstream_world.predicted(past, mixed, test, downstream_world.METHODS, epochs=2, seed=0)
    probs = day.probs
    assert set(probs) == set(downstream_world.METHODS)
    assert all(column.shape == (len(test["day"]), 3) and (column > 0).all() for column in probs.values())
    likes = {**test, "downstream_like": 1 - test["downstream_like"]}
    again = downstream_world.predicted(past, mixed, likes, downstream_world.METHODS, epochs=2, seed=0).probs
    assert all(np.array_equal(probs[name], again[name]) for name in probs)
    odds = {name: column / (1 - column) for name, column in probs.items()}
    for plain, corrected in (("SAME_ROWS", "CORRECTED"), ("BASELINE", "KNOWN")):
        told, taken = (odds[getattr(downstream_world, name)] for name in (plain, corrected))
        assert np.allclose(told, downstream_world.POSITIVE_WEIGHT * taken)
    assert all(0.4 < auc < 1 for auc in day.fitted_auc.values())


def falls(scores, probs):
    """Whether a prediction falls anywhere as the score rises."""
    return (np.diff(probs[np.argsort(scores)]) < -1e-9).any()


def test_only_the_layer_without_the_constraint_may_fall():
    rng = np.random.default_rng(0)
    score, rows = rng.normal(0, 2, 4_000), 4_000
    columns = {"desktop": np.zeros(rows, np.int32), "features": np.zeros((rows, 1), np.float32)}
    for task, action in downstream_world.AFTER.items():
        columns |= {action: np.ones(rows), task: (rng.random(rows) < 0.5 + 0.4 * np.sin(2 * score)).astype(np.float32)}
    logits = np.repeat(score[:, None], 3, axis=1)
    for constraint, may_fall in (("relu", False), (None, True)):
        out = downstream_world._layered(logits, logits, columns, columns, 0, constraint=constraint)
        assert falls(score, out[:, 0]) == may_fall


def test_that_the_constraint_gains_can_hold_and_fail():
    gain = "AUC of Share and Comment: gain by the layer over the same layer without the constraint"
    for level, held in ((0.6, "held"), (0.9, "did not hold")):
        numbers = {"layer without the constraint share auc": level, "layer without the constraint comment auc": level}
        result = outcome(downstream, {**numbers, "isotonic layer": 0.8})
        (part,) = [part for part in result.parts if part.says == gain]
        assert part.held == held
        assert part.refuted == (held == "did not hold")


def test_a_steadier_and_nearer_daily_mean_holds_against_every_rival_or_none():
    def daily(layer):
        parts = outcome(
            downstream,
            {f"isotonic layer {one} {key}": layer for one in downstream.ACTIONS for key in ("variance", "distance")},
        ).parts
        return {part.held for part in parts if part.says.startswith(("variance of the daily", "distance of the daily"))}

    assert daily(0.1) == {"held"}
    assert daily(2.0) == {"did not hold"}
