"""Boosted trees from clicks: LightGBM and XGBoost tuned alike, and LightGBM told as much as our curves are."""

import json

import numpy as np
import pytest

from research import boosted_trees, tree_methods, tree_settings, tree_tuning
from research.debias_benchmark import clicks_of, draw
from research.debias_methods import QUERY
from research.result import Finished, Unit

LISTS = 600
ALL = ("position", "device", "query_length")


@pytest.fixture(scope="module")
def contextual():
    """A log of a world where examination depends on the device and on the length of the query."""
    return boosted_trees.log_of(draw("contextual, spurious", 0, LISTS))


@pytest.mark.parametrize("engine", tree_methods.ENGINES)
def test_both_engines_are_tuned_with_and_without_normalised_gradients(engine):
    default, *others = tree_methods.TRIED[engine]
    assert default["normalised"] == 1  # as the engine has it
    l2_without = {setting["l2"] for setting in others if not setting["normalised"]}
    assert len(l2_without) >= 3


def test_lightgbm_is_given_whether_gradients_are_normalised(contextual):
    pytest.importorskip("lightgbm")
    for setting in tree_methods.TRIED[tree_methods.LIGHT]:
        booster = tree_methods.lightgbm_booster(contextual, setting, rounds=1, seed=0, by_position=True)
        assert booster.params["lambdarank_norm"] is bool(setting["normalised"])
    plain = tree_methods.TRIED[tree_methods.NAIVE][0]
    booster = tree_methods.lightgbm_booster(contextual, plain, rounds=1, seed=0, by_position=False)
    assert not any(name.startswith("lambdarank") for name in booster.params)


def test_lightgbm_has_an_id_for_every_combination_of_contexts_where_examination_depends_on_them(contextual):
    pytest.importorskip("lightgbm")
    ids = np.asarray(contextual.binned.position)
    combinations = np.stack([contextual.context[name] for name in ALL], axis=1)
    assert contextual.examined_by == ALL
    assert np.array_equal(np.unique(ids), np.arange(len(np.unique(combinations, axis=0))))
    assert len(np.unique(np.column_stack([ids, combinations]), axis=0)) == ids.max() + 1  # one combination per id


@pytest.mark.parametrize("world", [name for name in boosted_trees.WORLDS if clicks_of(name) != "contextual"])
def test_elsewhere_lightgbm_has_the_position(world):
    pytest.importorskip("lightgbm")
    log = boosted_trees.log_of(draw(world, 0, 50))
    assert not QUERY.keys() & log.context.keys()
    assert np.array_equal(log.binned.position, log.context["position"])


def test_the_contexts_change_the_trees_of_lightgbm(contextual):
    pytest.importorskip("lightgbm")
    by_position = tree_methods.ClickLog(contextual.features, contextual.click, contextual.context)
    setting = tree_methods.TRIED[tree_methods.LIGHT][0]
    scores = [
        tree_methods.rank(tree_methods.LIGHT, log, contextual.features, setting, rounds=8, seed=0)
        for log in (contextual, by_position)
    ]
    assert not np.array_equal(*scores)


def test_the_note_says_what_each_engine_is_told_of_the_contexts():
    ndcg = {f"ndcg {method}": 0.8 for method in tree_methods.METHODS}

    def note(*worlds):
        done = [Finished(Unit(seed, world), ndcg) for world in worlds for seed in (0, 1)]
        return boosted_trees.summarise(done).note

    assert "XGBoost's can only take positions" in note("PBM, spurious", "contextual, spurious")
    assert "XGBoost's" not in note("PBM, spurious")


def test_a_choice_that_is_no_longer_tried_gives_way_to_the_default(tmp_path, monkeypatch):
    default, second = tree_methods.TRIED[tree_methods.LIGHT][:2]
    earlier = {name: value for name, value in second.items() if name != "normalised"}
    path = tmp_path / "tree-tuning.json"
    monkeypatch.setattr(tree_settings, "RESULTS", path)
    try:
        for chosen, expected in ((second, second), (earlier, default)):
            path.write_text(json.dumps({"series": {"best": {"PBM": {tree_methods.LIGHT: chosen}}}}))
            tree_settings.tuned.cache_clear()
            assert tree_settings.setting_of("PBM", tree_methods.LIGHT) == expected
    finally:
        tree_settings.tuned.cache_clear()


def test_committed_choices_are_among_the_settings_tried():
    """Where this fails, run `python -m research tree-tuning --page docs/results.md`."""
    chosen = [(method, one) for best in tree_settings.tuned().values() for method, one in best.items()]
    assert [(method, one) for method, one in chosen if one not in tree_methods.TRIED[method]] == []


def test_the_tuning_is_one_unit_per_method_and_click_model():
    assert len(tree_tuning.units(quick=False)) == len(tree_methods.KNOWN) * len(tree_methods.METHODS) == 12
