"""The study of loss weights: which model stands for the paper's, and verdicts that can come out either way."""

from __future__ import annotations

import pytest

from research import loss_weights
from research.result import Finished, Unit


def test_the_weight_of_the_head_moves_ranking_and_calibration():
    settings = (loss_weights.named(beta, "joint", "some") for beta in (0.0, 1.0))
    none, all_ = (loss_weights.run_unit(Unit(0, setting, quick=True)) for setting in settings)
    assert all_["ndcg"] > none["ndcg"] + 0.02
    assert all_["ece"] > 2 * none["ece"]  # without alpha nothing ties the served score to a level
    assert none["observed_over_expected"] == pytest.approx(1, abs=0.1)
    assert none["ece debiased"] < none["ece"]


def test_the_papers_loss_without_alpha_is_judged_without_our_remedy():
    papers, ours = (loss_weights.head(1.0, anchor, 4) for anchor in ("joint", loss_weights.HELD))
    assert papers.alpha["click"] == ours.alpha["click"] == 0
    assert ours.context_curves.all_held
    assert not papers.context_curves.all_held
    assert all(weight.requires_grad for weight in papers.context_curves.parameters())
    assert loss_weights.head(0.7, "joint", 4).alpha["click"] == pytest.approx(0.3)
    assert loss_weights.head(1.0, "detached", 4).alpha["click"] == 0.25


def told(numbers):
    """Finished units of the map, whose numbers are given by beta and anchor."""
    return [
        Finished(
            unit, {key: value + 1e-5 * unit.seed for key, value in numbers(*loss_weights.asked(unit.setting)).items()}
        )
        for unit in loss_weights.units(False, 3)
    ]


def test_calibration_of_the_joint_loss_is_paired_with_beta_zero():
    def numbers(beta, anchor, overlap):
        error = {0.7: 0.001, 0.8: 0.003}.get(beta, 0.0)
        return {**dict.fromkeys(loss_weights.METRICS, 0.9), "ece debiased": 0.1 + error * (anchor == "joint")}

    parts = [part for part in loss_weights.summarise(told(numbers)).parts if part.says.startswith("ECE at")]
    assert len(parts) == 6
    assert {part.held for part in parts if "beta 0.7" in part.says} == {"held"}
    assert {part.held for part in parts if "beta 0.8" in part.says} == {"did not hold"}


@pytest.mark.parametrize("held", [True, False])
def test_a_model_without_alpha_is_judged_with_and_without_the_reference_curve_held(held):
    def numbers(beta, anchor, overlap):
        worse = beta == 1 and (anchor == "joint" or (anchor == loss_weights.HELD and not held))
        return dict.fromkeys(loss_weights.METRICS, 0.5 + 0.1 * worse)

    parts = [part for part in loss_weights.summarise(told(numbers)).parts if part.says.startswith("without alpha")]
    nothing_held = [part for part in parts if "no curve held" in part.says]
    reference_held = [part for part in parts if "the reference curve held" in part.says]
    assert len(parts) == 6
    assert len(nothing_held) == len(reference_held) == 3
    assert {part.held for part in nothing_held} == {"held"}
    assert ({part.held for part in reference_held} == {"held"}) != held


@pytest.mark.parametrize("agree", [True, False])
def test_the_note_says_where_ranking_and_calibration_are_best(agree):
    def numbers(beta, anchor, overlap):
        best = {"ndcg": beta, "ece debiased": 1 - beta if agree else beta}
        return {**dict.fromkeys(loss_weights.METRICS, 0.5), **best}

    note = loss_weights.summarise(told(numbers)).note
    assert ("With some overlap, ranking and calibration of the joint loss are both best at beta 1" in note) == agree
    assert ("With some overlap, ranking by the joint loss is best at beta 1 and calibration at beta 0" in note) != agree


@pytest.mark.parametrize("best", [0.4, 0.7, 1.0])
def test_the_papers_weights_are_compared_with_the_best_other_weight_of_each_overlap(best):
    def numbers(beta, anchor, overlap):
        near = 1 - abs(beta - best) + 0.2 * (anchor == "joint" and best == 0.7 and beta in loss_weights.BEST)
        return {**dict.fromkeys(loss_weights.METRICS, 0.5), "ndcg": near}

    parts = [part for part in loss_weights.summarise(told(numbers)).parts if part.says.startswith("nDCG at beta .7-.8")]
    assert len(parts) == len(loss_weights.OVERLAPS)
    assert {part.held for part in parts} == {"held" if best == 0.7 else "did not hold"}
    assert all(f"beta, {best:g} (" in part.says for part in parts) or best == 0.7


def test_steadiness_is_shown_where_as_many_models_are_trained():
    rows = loss_weights.summarise(told(lambda *_: dict.fromkeys(loss_weights.METRICS, 1.0))).rows
    assert {row.name for row in rows if row.metric == loss_weights.METRICS["spread"]} == set(loss_weights.STEADY)
    counts = {loss_weights._retrainings(setting, quick=False) for setting in loss_weights.STEADY}
    assert counts == {5}


def test_the_map_of_weights_is_read_back_from_its_names():
    for (anchor, overlap), betas in loss_weights.BETAS.items():
        for beta in betas:
            assert loss_weights.asked(loss_weights.named(beta, anchor, overlap)) == (beta, anchor, overlap)
    settings = {unit.setting for unit in loss_weights.units(False)}
    assert {loss_weights.named(beta, "joint", "some") for beta in loss_weights.BEST} <= settings
