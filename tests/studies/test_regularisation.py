"""The layer with and without its constraint: verdicts either way, equal rows, equal settings."""

from __future__ import annotations

import numpy as np
from made_up_numbers import done, lost

from research import regularisation
from research.result import FIRST_SEED, Unit


def test_regularisation_verdict_goes_either_way():
    def good(setting, key):
        free = "no constraint" in key
        return 0.02 if free != (setting == regularisation.FALLS) else 0.01

    assert regularisation.summarise(done(regularisation, good)).held == "held"
    bad = lost(regularisation.summarise(done(regularisation, lambda setting, key: 0.03 - good(setting, key))))
    both = [(setting, name) for setting in regularisation.SETTINGS for name in ("layer, ReLU", "layer, softplus")]
    assert len(bad) == sum(len(regularisation.comparisons(*each)) for each in both)
    assert len(bad) < 30  # where a comparison is the same as one before it, it is no part
    early = regularisation.summarise(
        done(regularisation, lambda s, k: 0.01 if "rate 0.1" not in k and s == "100 rows" else good(s, k))
    )
    assert len(lost(early)) == 4
    assert all("tuned" in says and "(100 rows)" in says for says in lost(early))
    assert "ReLU changes nothing with 100 rows:" in early.note


def test_regularisation_runs_small_and_compares_the_same_rows():
    numbers = regularisation.run_unit(Unit(0, "1,000 rows", quick=True))
    assert all(0 <= value < 1 for value in numbers.values())
    assert not any(value for key, value in numbers.items() if key.endswith("falls") and "no constraint" not in key)
    assert numbers[f"{regularisation.layer_at(regularisation.FREE, regularisation.SAME)} falls"] > 0  # to be prevented
    assert set(regularisation.CHOSEN) == set(regularisation.SETTINGS)
    assert all(set(own) == set(regularisation.LAYERS) for own in regularisation.CHOSEN.values())
    chosen = {one for own in regularisation.CHOSEN.values() for one in own.values()}
    assert chosen <= {(rate, steps) for rate in regularisation.RATES for steps in regularisation.STEPS}
    assert len(regularisation.TUNING_SEEDS) >= 100
    assert max(regularisation.TUNING_SEEDS) < FIRST_SEED


def test_a_layer_that_never_falls_is_the_same_curve_with_relu_at_the_same_settings():
    numbers = regularisation.run_unit(Unit(0, "100 rows", quick=True))
    free, bound = (
        regularisation.layer_at(name, regularisation.CHOSEN["100 rows"][regularisation.FREE])
        for name in (regularisation.FREE, regularisation.RELU)
    )
    assert numbers[f"{free} falls"] == 0
    assert numbers[f"{free} loss"] == numbers[f"{bound} loss"]


def test_both_layers_have_the_same_settings_where_it_is_said_and_their_own_where_each_is_tuned():
    each = [(setting, name) for setting in regularisation.SETTINGS for name in regularisation.LAYERS]
    for setting, name in each:
        chosen, free = (regularisation.CHOSEN[setting][one] for one in (name, regularisation.FREE))
        found = {one: regularisation.recipes(setting, name, one) for one in regularisation.comparisons(setting, name)}
        assert len(set(found.values())) == len(found)
        assert found[regularisation.SAME_TRAINING] == (regularisation.SAME,) * 2
        assert set(found.values()) == {(regularisation.SAME,) * 2, (chosen, free), (chosen, chosen), (free, free)}


def test_a_truth_rises_or_falls_as_its_setting_says():
    score = np.linspace(-8, 4, 2_000)
    falls = {setting: (np.diff(regularisation.true_logit(score, setting)) < 0) for setting in regularisation.SETTINGS}
    assert {setting for setting, down in falls.items() if down.any()} == {regularisation.FALLS}
    assert falls[regularisation.FALLS].mean() > 1 / 3


def test_layers_that_learn_side_by_side_are_those_that_learn_alone():
    score, label, _ = regularisation.drawn("300 rows", 300, 7)
    other, hit, _ = regularisation.drawn("300 rows", 300, 8)
    together = regularisation.trained(
        np.stack([score, other], axis=1), np.stack([label, hit], axis=1), "relu", 0.1, [5, 30]
    )
    alone = regularisation.trained(score[:, None], label[:, None], "relu", 0.1, [5, 30])
    for both, one in zip(together, alone, strict=True):
        np.testing.assert_allclose(both[0], one[0], atol=1e-6)
