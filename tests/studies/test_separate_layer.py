"""A layer learned apart or jointly: verdicts either way, differences of differences."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import Anything, lost

from research import separate_layer
from research.result import Finished, Unit


def shifted(losses):
    """The verdict on separate layers whose losses, ``(apart, joint)``, depend on what moves alone."""
    done = []
    for unit in separate_layer.units(True, 2):
        apart, joint = losses[separate_layer.SETTINGS[unit.setting].moves]
        numbers = {"joint, then apart": apart, "apart": apart, "joint": joint}
        done.append(Finished(unit, Anything(unit.seed, numbers)))
    return separate_layer.summarise(done)


def test_separate_layer_verdict():
    # worse at every level, and yet the shift costs it less
    robust = shifted({"": (5.0, 1.0), "rates": (9.0, 7.0), "features": (6.0, 3.0)})
    assert robust.held == "held"
    assert "lower beyond chance for apart than for joint in 0, and higher in 8." in robust.note
    assert "In 8 of 8 settings the shift costs the layer learned apart less than the joint one, beyond" in robust.note
    assert "chance; in 0 it costs more." in robust.note
    # better at every level, and yet the shift costs it more
    fragile = shifted({"": (1.0, 5.0), "rates": (3.0, 6.0), "features": (3.0, 4.0)})
    assert lost(fragile) == [
        f"{name}: the shift costs a layer learned apart less than a joint one" for name in separate_layer.SHIFTED
    ]
    assert "lower beyond chance for apart than for joint in 8, and higher in 0." in fragile.note


def test_robustness_is_the_difference_of_differences():
    result = shifted({"": (5.0, 1.0), "rates": (9.0, 7.0), "features": (6.0, 3.0)})
    found = {part.says.partition(":")[0]: part.estimate.value for part in result.parts}
    assert found == pytest.approx({name: -2.0 if "rates" in name else -1.0 for name in separate_layer.SHIFTED})
    assert {separate_layer.still(name) for name in separate_layer.SHIFTED} == set(separate_layer.SETTINGS) - set(
        separate_layer.SHIFTED
    )


def test_old_rows_train_what_no_shift_trains(monkeypatch):
    given = {}
    for name in ("over-fitted, no shift", "over-fitted, rates move, old rows", "over-fitted, rates move, new rows"):
        monkeypatch.setattr(
            separate_layer, "predicted", lambda early, late, *rest, name=name: given.update({name: (early, late)}) or {}
        )
        separate_layer.run_unit(Unit(0, name, quick=True))
    still, old, new = given.values()
    for one, other in zip(still, old, strict=True):
        assert all(np.array_equal(one[key], other[key]) for key in one)
    assert not np.array_equal(still[1]["click"], new[1]["click"])


def test_the_true_probabilities_have_no_loss_above_the_best_and_others_do():
    rng = np.random.default_rng(0)
    test = separate_layer.drawn(2_000, "rates", rng, rng.normal(size=separate_layer.FEATURES))
    found = separate_layer._judged({"true": test["truth"], "half": np.full(2_000, 0.5)}, test)
    assert found["true loss"] == pytest.approx(0, abs=1e-9)
    assert found["half loss"] > 100
    assert found["true error"] == 0
    assert found["half error"] > 5
