"""Calibrators per task: verdicts either way, and the truth as the best of all."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import lost, outcome

from research import per_task_isotonic
from research.result import Finished

EXACT = {"exact, cross-fitted": 0.15}  # behind the head: goes before words that it contains


def test_per_task_verdict():
    good = EXACT | {"inference head ndcg": 0.9, "ndcg": 0.8, "layer": 0.1, "additive": 0.2, "Platt": 0.6}
    assert outcome(per_task_isotonic, good).held == "held"
    worse = lost(outcome(per_task_isotonic, good | {"layer": 0.7}))
    assert len(worse) == 16 + 4 + 2 + 2  # both layers, the head against all three cross-fitted, the additive
    additive = lost(outcome(per_task_isotonic, good | {"additive": 0.7}))
    assert additive == [
        f"the isotonic head, additive has lower {what} than {name}"
        for name in (*per_task_isotonic.PER_TASK, *per_task_isotonic.PER_SEGMENT)
        for what in ("NE", "O/E error")
    ]
    with_more_rows = outcome(per_task_isotonic, {"raw model, both logs ndcg": 0.95} | good)
    assert lost(with_more_rows) == ["the inference head ranks better"]


def test_the_ranking_of_a_calibrator_per_task_is_shown_and_not_judged():
    """Scores that are calibrated per task already leave such a calibrator nothing to change."""
    found = outcome(
        per_task_isotonic, {"Platt, one per task ndcg": 0.9, "raw model ne": 0.8, "Platt": 0.6, "ndcg": 0.8}
    )
    changes = {row.name: row.ours.value for row in found.rows if row.metric.endswith("minus that of the raw model")}
    assert changes == pytest.approx({"Platt, one per task": 0.1, "isotonic, one per task": 0.0})
    assert not [part.says for part in found.parts if "flat" in part.says]
    assert "by Platt scaling, its mean NE goes from 0.80000 to 0.60000" in found.note
    assert "are rows and no parts" in found.note


def test_no_part_is_the_negative_of_another():
    rng = np.random.default_rng(0)
    units = per_task_isotonic.units(True, 3)
    keys = [
        f"{name} {key}"
        for name in {**per_task_isotonic.METHODS, per_task_isotonic.RAW_BOTH: 0, "inference head": 0}
        for key in ("ne", "oe", "ndcg")
    ]
    done = [Finished(unit, {key: float(rng.random()) for key in keys}) for unit in units]
    sizes = [round(abs(part.estimate.value), 12) for part in per_task_isotonic.summarise(done).parts]
    assert len(set(sizes)) == len(sizes)


def test_the_head_is_judged_against_calibrators_that_use_every_row_as_it_does():
    good = EXACT | {"inference head ndcg": 0.9, "ndcg": 0.8, "additive": 0.2, "layer": 0.1, "Platt": 0.6}
    assert outcome(per_task_isotonic, good).held == "held"
    cross_fitted = {f"{name} and context, cross-fitted": 0.05 for name in per_task_isotonic.PER_TASK}
    assert set(lost(outcome(per_task_isotonic, cross_fitted | good))) == {
        f"the layer, {ours} has lower {what} than {rival} and context, cross-fitted"
        for ours in ("isotonic head", "exact, cross-fitted")
        for what in ("NE", "O/E error")
        for rival in per_task_isotonic.PER_TASK
    }
    assert lost(outcome(per_task_isotonic, good | {"exact, cross-fitted": 0.05})) == [
        f"the isotonic head has lower {what} than the exact layer, cross-fitted" for what in ("NE", "O/E error")
    ]


def test_calibrators_are_cross_fitted_to_rows_that_their_network_has_not_seen(monkeypatch):
    world = per_task_isotonic.feed(0)
    first, second, tested = (world.log(200, seed=seed) for seed in range(3))
    learned = []
    monkeypatch.setattr(per_task_isotonic, "_raw", lambda features, log, seed: learned.append((log, seed)) or log)
    monkeypatch.setattr(per_task_isotonic, "logits_of", lambda network, log: (network, log))
    folds = per_task_isotonic.folds_of((first, second), tested, 7)
    for (network, _), fold, (own, kept) in zip(learned, folds, ((first, second), (second, first)), strict=True):
        assert fold.fitted[0][0] is fold.tested[0][0] is network
        np.testing.assert_array_equal(network.features, own["features"])
        np.testing.assert_array_equal(fold.fitted[0][1].features, kept["features"])
        assert fold.fitted[1] is kept
        assert fold.tested[1] is tested
    assert learned[0][1] == 7 != learned[1][1]  # networks of their own


def test_a_cross_fitted_probability_is_the_mean_of_both():
    one, other = ({task: np.array([low, 0.5]) for task in per_task_isotonic.TWELVE} for low in (0.1, 0.3))
    mean = per_task_isotonic.averaged(one, other)
    assert all(mean[task].tolist() == pytest.approx([0.2, 0.5]) for task in per_task_isotonic.TWELVE)


def test_the_note_says_that_cross_fitting_came_after_a_first_report():
    note = outcome(per_task_isotonic, {"ndcg": 0.8}).note
    assert "cross-fitted calibrators were added after the report on seeds 1100 to 1104" in note
    assert [unit.seed for unit in per_task_isotonic.units(False)] == list(range(1200, 1205))


def test_platt_is_too_restrictive_or_is_not():
    layer = EXACT | {"layer": 0.1, "additive": 0.2, "inference head ndcg": 0.9, "ndcg": 0.8}
    at_both = lost(outcome(per_task_isotonic, layer | {"isotonic, one per task": 0.5, "Platt": 0.4}))
    assert at_both == [
        f"too restrictive: Platt, {each} has higher NE than isotonic, {each}"
        for each in ("one per task", "one per task and context")
    ]
    by_context = {"isotonic, one per task and context": 0.7, "isotonic, one per task": 0.5, "Platt": 0.6}
    assert lost(outcome(per_task_isotonic, layer | by_context)) == at_both[1:]


def test_an_additive_head_is_compared_and_not_judged_in_place_of_the_head():
    good = EXACT | {"inference head ndcg": 0.9, "ndcg": 0.8, "Platt": 0.6, "layer": 0.1}
    better = lost(outcome(per_task_isotonic, {"isotonic head, additive": 0.05} | good))
    assert better == [f"a curve per combination has lower {what} than an additive head" for what in ("NE", "O/E error")]
    result = outcome(per_task_isotonic, {"isotonic head, additive": 0.9} | good)
    assert all(says.startswith("the isotonic head, additive") for says in lost(result))  # it loses in its own name
    assert [row.ours.value for row in result.rows if row.name == "isotonic head, additive"][:2] == pytest.approx(
        [0.9] * 2
    )


def test_the_truth_is_calibrated_and_ranks_best():
    world = per_task_isotonic.feed(0)
    log = world.log(3_000, seed=1)
    tasks = per_task_isotonic.TWELVE
    assert len(tasks) == 12
    truth = {task: log[f"prob_{task}"].astype(float) for task in tasks}
    wrong = {task: prob / 2 for task, prob in truth.items()}
    assert per_task_isotonic.judged(truth, log)["oe"] == pytest.approx(0, abs=1e-9)
    assert per_task_isotonic.judged(wrong, log)["oe"] == pytest.approx(1, abs=1e-9)
    assert per_task_isotonic.judged(truth, log)["ne"] < per_task_isotonic.judged(wrong, log)["ne"]
    relevance = {task: log[f"relevance_{task}"].astype(float) for task in tasks}
    assert per_task_isotonic.value_ndcg(relevance, log) == pytest.approx(1)
    assert per_task_isotonic.value_ndcg({task: -column for task, column in relevance.items()}, log) < 0.95
