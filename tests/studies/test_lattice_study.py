"""The study of lattices: verdicts that can come out either way, intervals, and learners that find a simple truth."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import done, lost

from isolayer.errors import MissingExtra
from research import lattice, lattice_peer, lattice_rows
from research.resampling import draws
from research.result import Finished


def test_lattice_verdict_goes_either_way():
    def good(setting, key):
        return 0.0 if "violations" in key else 0.4 if key == "lattice loss" else 0.5

    result = lattice.summarise(done(lattice, lambda s, k: good(s, k) - 1e-5 * ("violations" in k)))
    assert result.held == "held"
    worse = lost(lattice.summarise(done(lattice, lambda s, k: 0.3 if k == "booster, monotone loss" else good(s, k))))
    assert worse
    assert all("monotone booster" in says or "never falls" in says for says in worse)


def test_lattice_verdict_has_no_part_about_a_library_that_was_not_run():
    finished = done(lattice, lambda setting, key: 0.5)
    with_peer, without = (
        lattice.summarise([one for one in finished if keep or not one.unit.setting.endswith(lattice.PEER)])
        for keep in (True, False)
    )
    assert sum("pytorch-lattice" in part.says for part in with_peer.parts) == 2
    assert not [part for part in without.parts if "pytorch-lattice" in part.says]
    assert [row for row in with_peer.rows if "pytorch-lattice" not in row.name] == list(without.rows)
    assert "pytorch-lattice was not run" in without.note
    assert "not run" not in with_peer.note


def test_the_cost_of_a_constraint_is_between_lattices_and_called_what_it_is():
    def number(setting, key):
        if "violations" in key:
            return 0.25 if setting.startswith("simulated") else 0.75
        higher = {"lattice": 0.01, "booster": -0.2}.get(key.removesuffix(" draws").removesuffix(" loss"), 0.0)
        return 0.5 + higher

    note = lattice.summarise(done(lattice, number)).note
    assert "costs +0.0100 (500 rows)" in note
    assert "booster 25.0%" in note
    assert "75.0% of pairs" not in note.partition("Both lattices")[0]
    less = lattice.summarise(done(lattice, lambda s, k: 0.4 if k == "lattice loss" else number(s, k))).note
    assert "gains -0.1000 (500 rows)" in less


def test_users_drawn_again_widen_intervals_on_real_rows():
    rng = np.random.default_rng(0)

    class Drawn(dict):
        def __missing__(self, key):
            return (0.5 + 0.1 * rng.standard_normal(20)).tolist() if key.endswith("draws") else 0.5

    finished = [Finished(unit, Drawn()) for unit in lattice.units(True, 2)]
    real, made = (lattice._loss(finished, f"{world}, 500 rows", lattice.LATTICE) for world in ("KuaiRand", "simulated"))
    assert made.upper == made.lower == real.value == 0.5
    assert real.upper > 0.5 > real.lower


def test_resampled_losses_are_means_over_the_rows_of_the_users_that_were_drawn():
    label, logit, user = np.array([0, 1, 1]), np.array([0.0, 1.0, -1.0]), np.array([1, 0, 1])
    loss, weight = np.logaddexp(0, logit) - label * logit, draws(user, lattice.RESAMPLES)
    drawn = weight.sum(1) > 0
    expected = (weight @ loss)[drawn] / weight.sum(1)[drawn]
    with np.errstate(invalid="ignore"):
        found = lattice._resampled(label, logit, user)[drawn]
    np.testing.assert_allclose(found, expected)


def test_the_note_says_that_boosters_may_be_better_than_shown_with_many_rows():
    note = lattice.summarise(done(lattice, lambda setting, key: 0.5)).note
    rounds = max(tried["n_estimators"] for tried in lattice.TREES[lattice.BOOSTED])
    assert f"has at most {rounds} rounds" in note
    assert "with 20,000 rows the monotone booster may be a little better than shown" in note


def test_every_booster_was_given_the_same_number_of_settings_as_the_lattice():
    assert {len(tried) for tried in lattice.TREES.values()} == {len(lattice.LATTICES)}
    assert lattice.TREES[lattice.PLAIN] != lattice.TREES[lattice.BOOSTED]


def learned(method):
    """Test rows, what a method says of them, and of pairs of rows that differ in one declared input."""
    train, test = lattice.rows_of("simulated", 2_000, 0, quick=True)
    lower, upper = lattice.pairs(test.inputs, 0)
    rows = [test.inputs, lower, upper]
    logit = lattice.tuned(method, train, 0)(np.concatenate(rows))
    return test, *np.split(logit, np.cumsum([len(part) for part in rows])[:-1])


def loss_gained(test, logit):
    """How much lower the log loss is than that of the mean."""
    rate = test.label.mean()
    constant = -np.mean(test.label * np.log(rate) + (1 - test.label) * np.log(1 - rate))
    return constant - np.mean(np.logaddexp(0, logit) - test.label * logit)


@pytest.mark.parametrize("method", lattice.METHODS)
def test_every_learner_finds_a_simple_truth_and_declared_ones_keep_the_order(method):
    test, logit, below, above = learned(method)
    assert loss_gained(test, logit) > 0.05
    if method in (lattice.LATTICE, lattice.BOOSTED):
        assert (above >= below - 1e-6).all()


def test_pytorch_lattice_in_its_own_environment_finds_it_too():
    try:
        lattice_peer.interpreter()
    except MissingExtra as error:
        pytest.skip(str(error))
    test, logit, below, above = learned(lattice.PEER)
    assert loss_gained(test, logit) > 0.05
    assert (above >= below - 1e-6).all()


def test_the_simulated_outcome_rises_where_it_is_said_to():
    rng = np.random.default_rng(0)
    low = rng.random((500, 3))
    for at in range(lattice.DECLARED):
        high = low.copy()
        high[:, at] = low[:, at] + (1 - low[:, at]) * rng.random(500)
        assert (lattice_rows.true_logit(high, monotone=True) >= lattice_rows.true_logit(low, monotone=True)).all()
    assert (lattice_rows.true_logit(high, monotone=False) < lattice_rows.true_logit(low, monotone=False)).any()
