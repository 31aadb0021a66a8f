"""Summaries of any study: what does not differ does not hold, every picture can be drawn, absent data."""

from __future__ import annotations

import pytest
from made_up_numbers import flat, lost, outcome

from isolayer.errors import InputError
from research import (
    ab_test,
    ads_calibration,
    downstream,
    incremental,
    kuairand_tasks,
    learned_curves,
    loss_weights,
    mslr_clicks,
    notifications,
    observed_over_expected,
    offline_debiasing,
    open_bandit,
    overhead,
    per_task_isotonic,
    separate_layer,
)
from research.registry import EXPERIMENTS
from research.result import FIRST_SEED


@pytest.mark.parametrize(
    "module", [offline_debiasing, observed_over_expected, loss_weights, learned_curves, downstream]
)
def test_what_does_not_differ_does_not_hold(module):
    result = module.summarise(flat(module))
    assert result.held != "held"
    assert len({(row.name, row.metric) for row in result.rows}) == len(result.rows)
    assert module.chart(dict(result.series)) is not None


MINE = {
    "notifications": notifications,
    "separate-layer": separate_layer,
    "ab-test": ab_test,
    "per-task-isotonic": per_task_isotonic,
    "overhead": overhead,
    "incremental": incremental,
    "kuairand-tasks": kuairand_tasks,
    "mslr-clicks": mslr_clicks,
    "open-bandit": open_bandit,
    "ads-calibration": ads_calibration,
}


def test_all_are_listed_and_offer_what_the_list_asks_for():
    listed = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name, module in MINE.items():
        assert listed[name].load() is module
        assert listed[name].claim.endswith(".")
        assert listed[name].paper


@pytest.mark.parametrize("module", [per_task_isotonic, separate_layer])
def test_a_study_whose_rule_was_replaced_reports_on_seeds_that_nobody_had_seen(module):
    seen = range(FIRST_SEED, FIRST_SEED + 50)
    assert not {unit.seed for unit in module.units(False)} & set(seen)
    assert min(unit.seed for unit in module.units(True)) == 0
    assert "the seeds reported here are others" in outcome(module, {"ndcg": 0.8}).note


def test_real_data_verdicts(monkeypatch, tmp_path):
    monkeypatch.setenv("ISOLAYER_DATA", str(tmp_path))
    assert outcome(kuairand_tasks, {"layer": 0.1, "rows": 10}).held == "held"
    by_gradient = lost(outcome(kuairand_tasks, {"layer, by gradient": 0.9, "layer": 0.1, "rows": 10}))
    assert len(by_gradient) == 8
    assert all(says.startswith("layer, by gradient") for says in by_gradient)
    good = {"dual head": 0.9, "trees, ours, labels alone": 0.9, "trees, ours, with a teacher": 0.95}
    assert outcome(mslr_clicks, good).held == "held"
    detached = lost(outcome(mslr_clicks, {"detached": 0.2} | good))
    assert len(detached) == 12
    assert all("detached" in says for says in detached)
    dropout = lost(outcome(mslr_clicks, {"Position Dropout": 0.95} | good))
    assert len(dropout) == 8
    assert all("Position Dropout" in says for says in dropout)
    trees = lost(outcome(mslr_clicks, {"trees, XGBoost": 0.92} | good))  # a teacher is not counted for labels alone
    assert len(trees) == 4
    assert all("XGBoost" in says and says.startswith("trees, ours, labels alone,") for says in trees)
    assert outcome(ads_calibration, {"layer": 0.1, "rows": 10}).held == "held"
    assert outcome(ads_calibration, {"layer": 0.9, "rows": 10}).held == "did not hold"
    assert outcome(open_bandit, {"isotonic": 0.1, "true events": 42}).held == "held"
    assert outcome(open_bandit, {"isotonic": 0.9, "true events": 42}).held == "did not hold"


@pytest.mark.parametrize("name", MINE)
def test_every_picture_can_be_drawn(name):
    series = dict(outcome(MINE[name], {"rows": 10, "events": 42}).series)
    assert MINE[name].chart(series).to_dict()["$schema"]


@pytest.mark.parametrize("module", [kuairand_tasks, mslr_clicks, open_bandit, ads_calibration])
def test_absent_data_is_said_with_where_to_get_it(monkeypatch, tmp_path, module):
    monkeypatch.setenv("ISOLAYER_DATA", str(tmp_path))
    for unit in module.units(True, 2):
        with pytest.raises(InputError, match=r"expected .*, got nothing there; to get it: .*licence"):
            module.run_unit(unit)
