"""The debiasing studies: methods tuned alike, true curves that are true, and settings that are read where they are."""

import json

import numpy as np
import pytest
import torch

from isolayer import simulate
from research import (
    boosted_trees,
    choices,
    debias_benchmark,
    debias_methods,
    debias_tuning,
    mslr_clicks,
    tree_methods,
    tree_settings,
    tree_tuning,
)
from research.fingerprint import sources
from research.page import write_page
from research.result import FIRST_SEED, Finished, Unit


def test_every_method_is_tuned_over_as_many_settings_on_seeds_that_are_not_reported():
    tried = [*debias_tuning.TRIED.values(), *(tree_methods.TRIED[name] for name in tree_methods.METHODS)]
    assert {len(settings) for settings in tried} == {debias_methods.TRIED}
    assert all(len({json.dumps(one) for one in settings}) == len(settings) for settings in tried)
    seeds = {unit.seed for study in (debias_tuning, tree_tuning) for unit in study.units(quick=False)}
    reported = {unit.seed for unit in debias_benchmark.units(quick=False) + boosted_trees.units(quick=False)}
    assert not seeds & reported
    assert min(reported) == FIRST_SEED


def test_tuning_the_trees_again_voids_what_reads_their_settings_and_nothing_else():
    readers = [study for study in (boosted_trees, mslr_clicks) if "research.tree_settings" in sources(study.__name__)]
    assert readers == [boosted_trees, mslr_clicks]
    for study in (debias_benchmark, debias_tuning, tree_tuning):  # the last would void itself by what it chose
        assert "research.tree_settings" not in sources(study.__name__)


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
    written |= {"title": "", "claim": "", "paper": "", "command": "", "held": result.held, "note": result.note}
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


def benchmark(advice=0.0, **errors):
    """The benchmark's result where every method ranks alike, with these errors of what is served, or pairs in turn."""
    errors = {"naive": 0.004, "isotonic": 0.002, "dual head": 0.003} | errors
    finished = []
    for unit in debias_benchmark.units(quick=False):
        one = {f"ndcg {name}": 0.8 for name in debias_methods.METHODS} | {f"ndcg {debias_benchmark.UNBIASED}": 0.9}
        one |= {"ratio": 0.95, "same order": 1.0, "advised alpha": advice}
        for metric in ("ece", "smooth ece"):
            one |= {f"{metric} {name}": 0.01 for name in ("platt", "dual head, by gradient")}
            turns = {name: np.resize(value, 2)[unit.seed % 2] for name, value in errors.items()}
            one |= {f"{metric} {name}": value * (1 + 1e-6 * unit.seed) for name, value in turns.items()}
        finished.append(Finished(unit, one))
    return debias_benchmark.summarise(finished)


def test_what_is_served_is_judged_against_naive_with_the_same_refit():
    parts = [part for part in benchmark().parts if part.says.startswith("what is served is calibrated like naive")]
    assert all("with the same refit" in part.says for part in parts)
    assert [part.estimate.value for part in parts] == pytest.approx([1.5] * len(parts))  # not .75, to naive as trained
    assert {part.held for part in parts} == {"did not hold"}
    better = benchmark(isotonic=0.003).parts
    assert {part.held for part in better if "same refit" in part.says} == {"held"}


def test_a_ratio_of_errors_that_doubles_and_halves_in_turn_comes_to_one_whichever_way_it_is_taken():
    swung, turned = (
        benchmark(**{"isotonic": (0.002, 0.004), "dual head": (0.004, 0.002)}),
        benchmark(**{"isotonic": (0.004, 0.002), "dual head": (0.002, 0.004)}),
    )
    for found in (swung, turned):
        ratios = [part.estimate for part in found.parts if part.says.startswith("what is served is calibrated")]
        ratios += [row.ours for row in found.rows if row.metric.endswith("naive with the same refit")]
        assert [one.value for one in ratios] == pytest.approx([1.0] * len(ratios))
        assert [one.lower * one.upper for one in ratios] == pytest.approx([1.0] * len(ratios))
    plain = [row.ours for row in swung.rows if row.metric.endswith("naive without a refit")]
    assert [one.value for one in plain] == pytest.approx([0.5**0.5] * len(plain))  # .004 and .002, over .004
    assert "geometric means" in swung.note


def test_shares_of_seeds_are_never_certain():
    result = benchmark(advice=0.25)
    fires = [part for part in result.parts if part.says.startswith("the warning fires")]
    assert fires
    assert all(part.estimate.value == 1 > part.estimate.lower for part in fires)
    assert {part.held for part in fires} == {"held"}  # six seeds that agree leave out a half
    false = [part for part in result.parts if part.says.startswith("a false warning")]
    assert {part.held for part in false} == {"did not hold"}
    quiet = [part for part in benchmark().parts if part.says.startswith("a false warning")]
    assert {part.held for part in quiet if part.estimate.seeds == 10} == {"held"}


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


def test_the_settings_of_trees_are_read_by_click_model_and_are_the_defaults_where_none_was_chosen(
    tmp_path, monkeypatch
):
    first, second = tree_methods.TRIED[tree_methods.LABELS][:2]
    numbers = {json.dumps(first): 0.8, json.dumps(second): 0.9}
    done = [Finished(Unit(seed, f"PBM: {tree_methods.LABELS}"), numbers) for seed in (0, 1)]
    path = tmp_path / "tree-tuning.json"
    path.write_text(json.dumps({"series": dict(tree_tuning.summarise(done).series)}))
    monkeypatch.setattr(tree_settings, "RESULTS", path)
    tree_settings.tuned.cache_clear()
    try:
        assert tree_settings.setting_of("PBM", tree_methods.LABELS) == second
        assert tree_settings.setting_of("DBN", tree_methods.LABELS) == second  # no trees are tuned in it
        assert tree_settings.setting_of("trust", tree_methods.LABELS) == first
        assert tree_settings.setting_of("PBM", tree_methods.XGB) == tree_methods.TRIED[tree_methods.XGB][0]
    finally:
        tree_settings.tuned.cache_clear()


def test_choices_at_an_edge_of_the_values_tried_are_counted_and_speak_against_the_claim():
    def done(place):
        tried = debias_methods.METHODS["PAL"].tried  # rates 100, 10, 30, at two learning rates
        numbers = {json.dumps(one): 0.9 + 0.01 * (one == tried[place]) for one in tried}
        return [Finished(Unit(0, "PBM: PAL"), numbers)]

    middle, edge = (debias_tuning.summarise(done(place)) for place in (2, 1))
    assert middle.held == "held"
    assert edge.held == "did not hold"
    assert edge.parts[0].estimate.value == 1
    assert "in every click model that of PAL (rate 10)" in edge.note
    assert "Chosen on 1 seed that" in edge.note


def test_a_value_of_0_is_no_edge_and_two_values_have_no_inside():
    tried = {"a": ({"x": 0, "y": 1}, {"x": 1, "y": 2}, {"x": 2, "y": 1})}
    at_zero, at_end = ({"PBM": {"a": {"x": x, "y": 2}}} for x in (0, 2))
    assert [choices.no_edge(best, tried).estimate.value for best in (at_zero, at_end)] == [0, 1]
    assert "1 more are at a value of 0" in choices.said_of_edges(at_zero, tried)


@pytest.fixture(scope="module")
def clicks_by_position():
    """A log whose clicks fall steeply with the position, ranked by a feature that is hardly relevant."""
    columns = simulate.debias_feed("position", "spurious", seed=1).log(1500, seed=1)
    context = {"position": columns["position"], "device": columns["device"]}
    return tree_methods.ClickLog(columns["features"], columns["click"], context)


@pytest.mark.parametrize("setting", tree_methods.TRIED[tree_methods.XGB], ids=str)
def test_the_correction_of_xgboost_engages_and_its_bias_falls_with_position(clicks_by_position, setting):
    xgboost, log = pytest.importorskip("xgboost"), clicks_by_position
    corrected, plain = (
        tree_methods.xgboost_booster(log, setting, rounds=10, seed=0, unbiased=unbiased) for unbiased in (True, False)
    )
    bias = np.array(json.loads(corrected.save_config())["learner"]["objective"]["ti+"][: tree_methods.LENGTH], float)
    assert bias[0] == 1
    assert (np.diff(bias[:8:2]) < -0.05).all()
    assert bias[-2:].max() < 0.35
    rows = xgboost.DMatrix(log.features)
    with_it, without = -np.corrcoef([log.context["position"], corrected.predict(rows), plain.predict(rows)])[0, 1:]
    assert with_it < without - 0.01  # less of the logger's order is left in the corrected ranking


@pytest.mark.parametrize("method", tree_methods.METHODS)
def test_settings_and_the_teacher_change_the_trees(clicks_by_position, method):
    pytest.importorskip("xgboost" if method == tree_methods.XGB else "lightgbm")
    log = clicks_by_position
    curves = boosted_trees.true_curves("PBM") if method == tree_methods.TRUE else None

    def scores(name, setting):
        return tree_methods.rank(name, log, log.features[:500], setting, rounds=8, seed=0, curves=curves)

    found = [scores(method, setting) for setting in tree_methods.TRIED[method]]
    assert all(np.isfinite(one).all() for one in found)
    assert len({one.tobytes() for one in found}) == len(found)
    if method == tree_methods.TAUGHT:
        assert not np.array_equal(found[0], scores(tree_methods.LABELS, tree_methods.TRIED[method][0]))


def test_ours_is_judged_against_the_true_curves_without_a_teacher():
    ndcg = {"naive": 0.5, "LightGBM position": 0.8, "XGBoost unbiased": 0.8, "true curves": 0.9}
    ndcg |= {"ours, labels alone": 0.7, "ours, with a teacher": 0.95}
    done = [
        Finished(unit, {f"ndcg {name}": value + 1e-4 * unit.seed for name, value in ndcg.items()})
        for unit in boosted_trees.units(True, 2)
    ]
    result = boosted_trees.summarise(done)
    lost = [part.says for part in result.parts if part.held == "did not hold"]
    assert len(lost) == 3 * len(boosted_trees.QUICK_WORLDS)
    assert all(says.startswith("ours, labels alone,") for says in lost)
    assert sum("true curves" in part.says for part in result.parts) == len(boosted_trees.QUICK_WORLDS)
    assert "50% of each label" in result.note
    assert "not tested why" not in result.note  # the true curves are above
    above = [one._replace(numbers=one.numbers | {"ndcg true curves": 0.6 + 1e-4 * one.unit.seed}) for one in done]
    assert "In 2 of 2 worlds whose curves are known" in boosted_trees.summarise(above).note


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
