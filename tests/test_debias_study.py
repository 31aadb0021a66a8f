"""The debiasing studies: methods tuned alike, true curves that are true, and settings that are read where they are."""

import json

import numpy as np
import pytest
import torch

from isolayer import simulate
from research import boosted_trees, debias_benchmark, debias_methods, debias_tuning, tree_methods
from research.page import write_page
from research.result import FIRST_SEED, Finished, Unit


def test_every_method_is_tuned_over_as_many_settings_on_seeds_that_are_not_reported():
    tried = [*(debias_methods.METHODS[name].tried for name in debias_tuning.TUNED), tree_methods.TRIED]
    assert {len(settings) for settings in tried} == {debias_methods.TRIED}
    assert all(len({json.dumps(one) for one in settings}) == len(settings) for settings in tried)
    seeds = {unit.seed for unit in debias_tuning.units(quick=False)}
    reported = {unit.seed for unit in debias_benchmark.units(quick=False) + boosted_trees.units(quick=False)}
    assert not seeds & reported
    assert min(reported) == FIRST_SEED


def test_the_best_setting_is_what_the_benchmark_uses_and_the_dual_head_keeps_its_defaults(tmp_path, monkeypatch):
    tried = debias_methods.METHODS["PAL"].tried
    numbers = [{json.dumps(one): 0.9 + 0.01 * (place == 3) for place, one in enumerate(tried)} for _ in range(2)]
    done = [Finished(Unit(seed, "PBM: PAL"), one) for seed, one in enumerate(numbers)]
    result = debias_tuning.summarise(done)
    part = {"says": "tuned alike", "must": "above 0", "held": "held", "value": 1, "lower": 1, "upper": 1, "seeds": 2}
    written = {
        "name": "debias-tuning",
        "parts": [part],
        "rows": [],
        "seeds": [0, 1],
        "cpu_seconds": 1.0,
        "picture": None,
    }
    written |= {"title": "", "claim": "", "paper": "", "command": "", "held": result.held, "verdict": result.verdict}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "debias-tuning.json").write_text(json.dumps(written | {"series": dict(result.series)}))
    write_page(tmp_path / "docs" / "results.md", tmp_path / "out")
    monkeypatch.setattr(debias_methods, "RESULTS", tmp_path / "docs" / "reproduced" / "debias-tuning.json")
    debias_methods.tuned.cache_clear()
    try:
        assert debias_methods.setting_of("PBM", "PAL") == tried[3]
        assert debias_methods.setting_of("trust", "PAL") == tried[0]
        assert debias_methods.setting_of("PBM", "dual head") == {}
    finally:
        debias_methods.tuned.cache_clear()


@pytest.mark.parametrize("clicks", ["PBM", "trust"])
def test_true_curves_give_the_simulator_s_probabilities(clicks):
    log = simulate.debias_feed(debias_benchmark.CLICKS[clicks], seed=1).log(2000, seed=1)
    curves = boosted_trees.true_curves(clicks)
    table = np.zeros((5, 10))  # the probability of each grade at each position
    table[log["grade"], log["position"]] = log["prob_click"]
    relevance = np.log(table / (1 - table)).mean(1)
    for grade in (1, 2, 3):  # the others are at the ends of the gains
        found = curves.predict_proba(np.full(10, relevance[grade]), {"position": np.arange(10)})
        assert found == pytest.approx(table[grade], rel=0.02)


ALL = debias_methods.METHODS | debias_methods.VARIANTS


@pytest.mark.parametrize("name", list(ALL))
def test_every_method_can_be_trained_and_its_settings_change_it(name):
    columns = simulate.debias_feed("position", seed=1).log(500, seed=1)
    rows = debias_methods.Rows.of(columns, debias_methods.CONTEXTS)
    found = []
    tried = ALL[name].tried
    for setting in (tried[0], tried[-1]):
        model = debias_methods.trained(name, rows, seed=0, setting=setting)
        found.append(model.serving()(rows.features)["click"])
        assert torch.isfinite(found[-1]).all()
    if len(tried) > 1:
        assert not torch.equal(*found)
