"""Daily updates: verdicts either way, days that are tested before they are learned."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import Anything, lost

from isolayer.simulate import PositionBased
from research import incremental
from research.result import Finished, Unit


def test_incremental_verdict():
    head = {anchor: f"with the {anchor} the isotonic head" for anchor in ("joint loss", "detached anchor")}
    ranks = {"isotonic": 0.9, "frozen": 0.6, "naive": 0.7, "exact": 0.7, "IPS": 0.85, "never": 0.8}  # the last counts

    def verdict(errors, **other):
        done = []
        for unit in incremental.units(True, 2):
            rank = [value for word, value in (ranks | other).items() if word in unit.setting][-1]
            error = next((value for word, value in errors.items() if word in unit.setting), 0.5)
            numbers = {"ndcg": rank + 1e-6 * unit.seed, "ndcg by day": [rank] * 3}
            numbers |= dict.fromkeys(("ne", "oe"), error + 1e-6 * unit.seed)
            found = Anything(unit.seed, {})
            found.update(numbers)
            done.append(Finished(unit, found))
        return lost(incremental.summarise(done))

    assert not verdict({"isotonic": 0.1})
    stale = verdict({"grows: IPS, never": 0.05, "isotonic": 0.1})
    assert stale == [
        f"bias grows: {head['joint loss']} has an O/E by position nearer to 1 than IPS with old propensities",
        *(f"bias grows: {head[anchor]} has lower NE than IPS never re-estimated" for anchor in head),
    ]
    exact = verdict({"exact": 0.05, "isotonic": 0.1})
    assert exact == [
        f"bias {moves}: {head[anchor]} has lower NE than the exact calibrator"
        for moves in ("grows", "fades")
        for anchor in head
    ]
    old = verdict({"isotonic": 0.1}, never=0.95)
    assert f"bias grows: {head['joint loss']} ranks better than IPS never re-estimated" in old
    assert "bias fades: IPS ranks worse without re-estimation" in old


def test_propensities_follow_the_day_they_are_of():
    world = incremental.feed(0, days=4, drift="bias grows")
    log = world.log(8_000, seed=0)
    curves = []
    for day in (0, 3):
        columns = {name: column[log["day"] == day] for name, column in log.items()}
        strength = 0.6 * np.exp(0.9 * day / 3)
        curve = PositionBased().curve(10, np.array([strength]))[0]
        curves.append(incremental.propensity(incremental.TRUE, columns))
        np.testing.assert_allclose(curves[-1], curve / curve[0], rtol=1e-5)
        model = incremental.arm(incremental.STALE, columns, 12)
        incremental.reweigh(model, incremental.TRUE, columns)
        np.testing.assert_allclose(model.factors[1:].numpy(), 1 / np.maximum(curves[-1], incremental.CLIP), rtol=1e-5)
    assert curves[0][5] > curves[1][5]


@pytest.mark.parametrize("arm", [incremental.JOINT, incremental.FROZEN, incremental.FRESH, incremental.EXACT])
def test_days_are_tested_before_they_are_learned(arm):
    numbers = incremental.run_unit(Unit(0, f"bias fades: {arm}", quick=True))
    assert len(numbers["ndcg by day"]) == 8
    assert numbers["ndcg"] == pytest.approx(np.mean(numbers["ndcg by day"][4:]))
    assert (numbers["training seconds"] > 0) == (arm != incremental.FROZEN)
    assert (numbers["estimating seconds"] > 0) == (arm in (incremental.FRESH, incremental.EXACT))
