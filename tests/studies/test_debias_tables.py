"""The studies of table 3, table 5 and the learned curves: parts, notes and the tools that they measure with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_up_numbers import flat

from isolayer.curves.evaluation import logit_of
from isolayer.simulate import TASKS, Feed, PositionBased, Trust
from research import learned_curves, observed_over_expected, offline_debiasing
from research.result import Finished


@pytest.mark.parametrize("behaviour", [PositionBased(eta=(1.0, 0.5, 2.0)), Trust()], ids=["position", "trust"])
def test_true_curves_are_what_the_simulator_does(behaviour):
    world = Feed(behaviour=behaviour, tasks=TASKS[:1], positions=4)
    probs, log = learned_curves.true_probs(world), world.log(60_000, seed=3)
    visible = world.population.visible(log["user"][::4], log["item"].reshape(-1, 4)).ravel()
    for position, device in ((0, 0), (2, 0), (3, 1)):
        rows = (log["position"] == position) & (log["device"] == device)
        expected = np.interp(visible[rows], learned_curves._VISIBLE, probs["click"][:, device, position])
        assert expected.mean() == pytest.approx(log["prob_click"][rows].mean(), rel=0.02)
        assert np.corrcoef(expected, log["prob_click"][rows])[0, 1] > 0.8


def test_a_learned_curve_that_is_the_truth_has_no_error():
    truth = learned_curves.true_probs(Feed(behaviour=PositionBased(eta=0.0), tasks=TASKS[:1], positions=11))
    model = learned_curves.DualHead(
        torch.nn.Identity(), width=1, tasks=("click",), contexts=learned_curves.CONTEXTS, anchor="detached"
    )
    found = learned_curves._compared(model, truth, {"click": np.linspace(-2, 0, 50)})
    assert found["click error"] < 1e-6  # no bias, and an untrained head has no curves


def test_o_over_e_of_a_right_prediction_is_one():
    log = {"click": np.tile([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1], 20), "position": np.tile(np.arange(11), 20)}
    rate = np.maximum(log["click"].astype(float), 1e-9)
    found = observed_over_expected._ratios("model", rate, log)
    assert found["model 0"] == pytest.approx(1)
    assert observed_over_expected._ratios("model", rate / 2, log)["model 10"] == pytest.approx(2)


def test_the_baseline_is_judged_at_every_position_as_the_paper_prints_it():
    parts = observed_over_expected.summarise(flat(observed_over_expected)).parts
    own = [part.says.removeprefix("baseline's O/E is ") for part in parts if part.says.startswith("baseline")]
    sides = {0: "above", 1: "below", 2: "above", 3: "below", 6: "below", 10: "below"}
    assert own == [f"{side} 1 at position {position}" for position, side in sides.items()]


@pytest.mark.parametrize(("at_0", "held"), [(0.02, "held"), (0.09, "did not hold")])
def test_the_gain_at_position_6_is_compared_with_the_largest_gain_at_another_position(at_0, held):
    """A gain of .05 at position 6 is above the mean of the others either way, but not above .09 at position 0."""
    gains = {"0": at_0, "1": 0.01, "2": 0.01, "3": 0.01, "6": 0.05, "10": 0.5}  # the paper has no figures of 10

    class Told(dict):
        def __init__(self, seed):
            super().__init__()
            self.noise = 1e-4 * seed

        def __missing__(self, key):
            model, _, position = key.rpartition(" ")
            gain = gains.get(position, 0.0) if model == "inference head" else 0.0
            return 1.1 - gain + self.noise * (position == "6")

    done = [Finished(unit, Told(unit.seed)) for unit in observed_over_expected.units(True, 3)]
    parts = observed_over_expected.summarise(done).parts
    (most,) = [part for part in parts if part.says.startswith("the same difference at position 6 minus")]
    assert most.estimate.value == pytest.approx(0.05 - at_0, abs=1e-3)
    assert "position 0" in most.says
    assert most.held == held


def test_ads_take_their_slots_and_the_others_keep_their_order():
    relevance = np.random.default_rng(0).random((50, 11)).astype(np.float32)
    scores = observed_over_expected.with_ads(lambda features: features[:, 0], seed=1)(relevance.reshape(-1, 1))
    shown = np.take_along_axis(relevance, np.argsort(-scores.reshape(50, 11), axis=1), axis=1)
    assert (np.diff(np.delete(shown, observed_over_expected.AD_SLOTS, axis=1), axis=1) <= 0).all()
    slots = shown[:, list(observed_over_expected.AD_SLOTS)]
    assert abs(slots.mean() - relevance.mean()) < 0.1  # bids know nothing of relevance
    log = {"position": np.tile(np.arange(11), 3), "click": np.ones(33)}
    assert set(observed_over_expected.organic(log)["position"]) == set(range(11)) - {4, 5}


def test_rates_of_dropout_are_compared_under_the_same_seed():
    rng = np.random.default_rng(0)
    level = {unit.seed: rng.normal(0.7, 0.1) for unit in offline_debiasing.units(False)}

    class Of(dict):
        def __init__(self, unit):
            super().__init__()
            self.unit = unit

        def __missing__(self, key):
            return level[self.unit.seed] * (1 + 0.01 * offline_debiasing.DROPOUTS.get(self.unit.setting, 0))

    parts = {
        part.says: part
        for part in offline_debiasing.summarise([Finished(u, Of(u)) for u in offline_debiasing.units(False)]).parts
    }
    assert parts["click AUC at a dropout rate of .15 is above that at the best other rate (0.50)"].refuted
    often = "where position is hidden often (0.50) than rarely (0.05)"
    assert parts[f"dropout has a higher like AUC {often}"].held == "held"
    assert parts[f"dropout ranks click nearer to true relevance {often}"].held == "held"


def test_the_best_rate_of_dropout_is_called_level_with_the_baseline_where_it_is():
    assert "level with the baseline" in offline_debiasing.summarise(flat(offline_debiasing)).note


def test_ranking_is_published_under_both_strengths_of_the_bias():
    result = observed_over_expected.summarise(flat(observed_over_expected))
    metrics_ = [row.metric for row in result.rows if row.name == "inference head minus baseline"]
    assert metrics_ == ["nDCG@10, mild bias", "nDCG@10, strong bias"]
    assert "(mild bias)" in result.note
    assert "(strong bias)" in result.note
    assert "no measure" not in result.note


def test_how_far_skip_and_click_move_is_shown_and_not_judged():
    def number(setting, key):
        task, *rest = key.split()
        if "error" in rest:
            return 0.5
        steeper = "skip" if setting == learned_curves.SEEN else "click"
        moved = int(rest[0]) / 40 * (2.0 if task == steeper else 1.0)
        return 0.5 + moved / 2 * (1 if task == "skip" else -1)

    class Told(dict):
        def __init__(self, setting):
            super().__init__()
            self.setting = setting

        def __missing__(self, key):
            return [] if key == "drawn" else number(self.setting, key)

    result = learned_curves.summarise([Finished(unit, Told(unit.setting)) for unit in learned_curves.units(True)])
    assert not [part.says for part in result.parts if "depends less" in part.says]
    less = {row.metric: row for row in result.rows if row.name == f"{learned_curves.SEEN}, Click minus Skip"}
    assert less["change from position 0 to 10, phone"].ours.value == pytest.approx(-0.125)
    assert less["change from position 0 to 10, phone, in logits of the means"].ours.value < 0
    assert "is no evidence about the paper's users" in result.note
    assert "(1 - r) / a" in result.note


def test_what_is_not_seen_is_skipped_makes_skip_depend_more_on_position_whatever_is_learned():
    behaviour = learned_curves.SETTINGS[learned_curves.SEEN].behaviour(0)
    world = Feed(behaviour=behaviour, tasks=tuple(task for task in TASKS if task.name == "skip"), positions=11)
    truth = {task: probs.mean(0) for task, probs in learned_curves.true_probs(world).items()}  # [platforms, positions]
    for scale in (np.asarray, logit_of):
        click, skip = (np.abs(scale(truth[task][:, -1]) - scale(truth[task][:, 0])) for task in learned_curves.LABELS)
        assert (skip > click).all()
