"""Calibrators per task: verdicts either way, and the truth as the best of all."""

from __future__ import annotations

import pytest
from made_up_numbers import lost, outcome

from research import per_task_isotonic


def test_per_task_verdict():
    good = {"inference head ndcg": 0.9, "ndcg": 0.8, "layer": 0.1, "additive": 0.2, "Platt": 0.6}
    assert outcome(per_task_isotonic, good).held == "held"
    assert len(lost(outcome(per_task_isotonic, good | {"layer": 0.7}))) == 16 + 2 + 1  # the additive head, and Platt
    additive = lost(outcome(per_task_isotonic, good | {"additive": 0.7}))
    assert additive == [
        f"the isotonic head, additive has lower {what} than {name}"
        for name in (*per_task_isotonic.PER_TASK, *per_task_isotonic.PER_SEGMENT)
        for what in ("NE", "O/E error")
    ]
    flat = outcome(per_task_isotonic, {"Platt, one per task ndcg": 0.9} | good)
    assert lost(flat) == ["Platt, one per task is flat or worse in ranking"]
    with_more_rows = outcome(per_task_isotonic, {"raw model, both logs ndcg": 0.95} | good)
    assert lost(with_more_rows) == ["the inference head ranks better"]


def test_platt_is_too_restrictive_or_is_not():
    layer = {"layer": 0.1, "additive": 0.2, "inference head ndcg": 0.9, "ndcg": 0.8}
    at_both = lost(outcome(per_task_isotonic, layer | {"isotonic, one per task": 0.5, "Platt": 0.4}))
    assert at_both == [
        f"too restrictive: Platt, {each} has higher NE than isotonic, {each}"
        for each in ("one per task", "one per task and context")
    ]
    by_context = {"isotonic, one per task and context": 0.7, "isotonic, one per task": 0.5, "Platt": 0.6}
    assert lost(outcome(per_task_isotonic, layer | by_context)) == at_both[1:]


def test_an_additive_head_is_compared_and_not_judged_in_place_of_the_head():
    good = {"inference head ndcg": 0.9, "ndcg": 0.8, "Platt": 0.6, "layer": 0.1}
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
