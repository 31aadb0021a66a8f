"""The framework of the experiments on a made-up one that runs in no time, the rule of verdicts, and the real ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from isolayer.debias.baselines import Naive
from isolayer.errors import InputError, MissingExtra
from isolayer.simulate import TASKS, Feed
from research import (
    downstream,
    downstream_world,
    learned_curves,
    loop,
    loss_weights,
    observed_over_expected,
    offline_debiasing,
    page,
    registry,
    runner,
)
from research.datasets import DataAbsent
from research.result import (
    Estimate,
    Finished,
    Part,
    Result,
    Row,
    Unit,
    by_seed,
    certain,
    estimate,
    units_of,
)


class MadeUp:
    """An experiment whose numbers are its seeds; it keeps count of what it was asked to run."""

    CLAIM, PAPER = "Numbers rise.", "table 0: +1"
    __file__ = __file__

    def __init__(self, *, missing=None, stops_at=None):
        self.ran, self.missing, self.stops_at = [], missing, stops_at

    def units(self, quick, seeds=None):
        return units_of(["low", "high"], quick=quick, seeds=seeds or 4)

    def run_unit(self, unit):
        if self.missing:
            raise self.missing
        if len(self.ran) == self.stops_at:
            raise KeyboardInterrupt
        self.ran.append((unit.seed, unit.setting))
        return {"number": unit.seed + (10.0 if unit.setting == "high" else 0.0)}

    def summarise(self, finished):
        gain = estimate(by_seed(finished, "high", "number") - by_seed(finished, "low", "number") + [0, 0.5, 0, 0.5])
        return Result(
            (Row("high", "gain", gain, "+1", unit="%"),), (Part("numbers rise", gain, above=0),), {"gain": gain}
        )


@pytest.fixture
def made_up(monkeypatch):
    """Put an experiment in the registry's place."""

    def put(module):
        experiment = registry.Experiment("made-up", "A made-up experiment", "made_up")
        monkeypatch.setattr(registry, "EXPERIMENTS", (experiment,))
        monkeypatch.setattr(page, "EXPERIMENTS", (experiment,))
        monkeypatch.setattr(registry.Experiment, "load", lambda self: module)
        monkeypatch.setattr(runner, "code_version", lambda module: "code 1")
        return module

    return put


def test_a_run_writes_numbers_table_and_verdict_and_is_not_repeated(made_up, tmp_path):
    module, seen = made_up(MadeUp()), []
    document = runner.reproduce(["made-up"], out=tmp_path, processes=1, progress=seen.append)["made-up"]
    assert document["held"] == "held"
    assert document["verdict"] == "All parts held (1)."
    assert document["parts"][0]["must"] == "above 0"
    assert document["command"] == "python -m research made-up"
    assert document["seeds"] == [1000, 1001, 1002, 1003]  # none that anything was chosen on
    assert document["rows"][0]["ours"]["value"] == pytest.approx(10.25)
    assert json.loads((tmp_path / "made-up.json").read_text()) == document | {
        "series": {"gain": [*document["series"]["gain"]]}
    }
    assert "| numbers rise | above 0 | 10.2 [" in (tmp_path / "made-up.md").read_text()
    assert "| high | gain | +1 | +10.250% [+" in (tmp_path / "made-up.md").read_text()
    assert [(one.done, one.total) for one in seen] == [(done, 8) for done in range(9)]
    assert seen[-1].seconds_left == 0
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    assert len(module.ran) == 8
    runner.reproduce(["made-up"], out=tmp_path, processes=1, fresh=True)
    assert len(module.ran) == 16


def test_an_interrupted_run_goes_on_where_it_stopped(made_up, tmp_path):
    first = made_up(MadeUp(stops_at=3))
    with pytest.raises(KeyboardInterrupt):
        runner.reproduce(["made-up"], out=tmp_path, processes=1)
    second = made_up(MadeUp())
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    assert len(first.ran) == 3
    assert len(second.ran) == 5
    assert not set(first.ran) & set(second.ran)


def test_units_of_other_code_are_run_again(made_up, tmp_path, monkeypatch):
    module = made_up(MadeUp())
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    monkeypatch.setattr(runner, "code_version", lambda module: "code 2")
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    assert len(module.ran) == 16


def test_quick_results_stand_apart(made_up, tmp_path):
    made_up(MadeUp())
    document = runner.reproduce(["made-up"], quick=True, seeds=4, out=tmp_path, processes=1)["made-up"]
    assert document["command"] == "python -m research made-up --quick --seeds 4"
    assert (tmp_path / "quick" / "made-up.json").exists()
    assert not (tmp_path / "made-up.json").exists()


@pytest.mark.parametrize(
    "error", [DataAbsent("data: expected files, got none; get them"), MissingExtra("pip install it")]
)
def test_what_cannot_run_is_left_out_and_says_why(made_up, tmp_path, error):
    made_up(MadeUp(missing=error))
    document = runner.reproduce(["made-up"], out=tmp_path, processes=1)["made-up"]
    assert document == {"name": "made-up", "held": "not run", "verdict": str(error)}
    assert not list(tmp_path.rglob("*.json"))


def test_data_that_is_there_is_used_and_a_mistake_is_not_hidden(made_up, tmp_path):
    class Some(MadeUp):
        def run_unit(self, unit):
            if unit.setting == "low":
                raise DataAbsent("low: expected files, got none; get them")
            return super().run_unit(unit)

        def summarise(self, finished):
            assert {one.unit.setting for one in finished} == {"high"}
            return Result((), (Part("there is some", certain(len(finished)), above=0),))

    made_up(Some())
    assert runner.reproduce(["made-up"], out=tmp_path, processes=1)["made-up"]["held"] == "held"
    made_up(MadeUp(missing=InputError("label: expected both classes, got one; use more rows")))
    with pytest.raises(InputError, match="expected both classes"):
        runner.reproduce(["made-up"], out=tmp_path, processes=1, fresh=True)


def test_a_real_experiment_leaves_a_picture(tmp_path):
    document = runner.reproduce(["expressiveness"], quick=True, out=tmp_path, processes=1)["expressiveness"]
    assert document["held"] == "held"
    assert (tmp_path / "quick" / document["picture"]).read_bytes().startswith(b"\x89PNG")
    assert f"]({document['picture']})" in (tmp_path / "quick" / "expressiveness.md").read_text()
    assert (
        f"](pictures/{document['picture']})"
        in page.study_pages(tmp_path / "quick", pictures="pictures/")[document["name"]]
    )


def test_spawned_workers_save_their_units_and_the_dual_head_beats_the_baseline(tmp_path):
    experiment = registry.find(["offline-debiasing"])[0]
    units = [Unit(0, setting, quick=True) for setting in ("baseline", "dual head")]
    jobs = [runner._Job(experiment, unit, tmp_path / f"{unit.setting}.json", "code") for unit in units]
    assert sorted(why for _, why in runner._outcomes(jobs, 2)) == ["", ""]
    assert all(replace(job, code="other").saved() is None for job in jobs)
    baseline, dual = (job.saved()["numbers"] for job in jobs)
    assert dual["click observed auc"] > baseline["click observed auc"] + 0.01
    assert dual["click ndcg"] > baseline["click ndcg"] + 0.01
    assert baseline["click observed auc"] == pytest.approx(baseline["click served auc"], abs=1e-6)


def test_names_are_checked():
    with pytest.raises(InputError, match=r"experiment: expected one of all, expressiveness, .* got 'table'; choose"):
        registry.find(["table"])
    with pytest.raises(InputError, match="expected a name or all, got none"):
        registry.find([])
    assert [one.name for one in registry.find(["downstream", "downstream"])] == ["downstream"]
    tuning = registry.find(["debias-tuning", "tree-tuning"])  # by name only: others read what is committed of them
    assert registry.find(["all"]) == [one for one in registry.EXPERIMENTS if one not in tuning]


@pytest.mark.parametrize("experiment", registry.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_offers_the_interface(experiment):
    assert experiment.claim.endswith(".")
    assert experiment.paper
    for quick in (True, False):
        units = experiment.load().units(quick)
        assert units
        assert all(unit.quick == quick and unit.cost > 0 for unit in units)
        assert len({runner._slug(unit) for unit in units}) == len(units)
    assert callable(experiment.load().run_unit)


def test_the_interval_is_the_t_interval():
    values = np.random.default_rng(0).normal(3, 2, 7)
    found = estimate(values, level=0.9)
    assert (found.lower, found.upper) == pytest.approx(
        stats.t.interval(0.9, 6, values.mean(), values.std(ddof=1) / math.sqrt(7))
    )
    with pytest.raises(InputError, match="expected two or more finite numbers"):
        estimate([1.0])
    with pytest.raises(InputError, match="seeds: expected at least 2, got 1"):
        units_of(["a"], quick=False, seeds=1)


@pytest.mark.parametrize(
    ("lower", "value", "upper", "held"),
    [
        (0.1, 0.5, 0.9, "held"),
        (-0.1, 0.5, 1.1, "held in direction"),
        (-0.9, -0.5, 0.1, "did not hold"),
        (-0.9, -0.5, -0.1, "did not hold"),
    ],
)
def test_a_part_is_judged_by_its_interval(lower, value, upper, held):
    assert Part("it rises", Estimate(value, lower, upper, 5), above=0).held == held
    assert Part("it falls", Estimate(-value, -upper, -lower, 5), below=0).held == held


def test_a_claim_is_as_good_as_its_worst_part_and_says_which():
    good, weak = Part("one", certain(1), above=0), Part("two", Estimate(1, -1, 3, 2), above=0)
    bad = Part("three", certain(-1), above=0)
    assert Result((), (good, weak)).held == "held in direction"
    result = Result((), (good, weak, bad), note="Mind this.")
    assert result.held == "held in part"
    assert Result((), (weak, bad)).held == "did not hold"
    assert result.verdict == "1 of 3 parts held. Held in direction: two. Did not hold: three. Mind this."


def test_the_page_tells_what_was_run_and_what_was_not(made_up, tmp_path):
    made_up(MadeUp())
    assert "Not run: made-up." in page.results_page(tmp_path)
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    assert "[A made-up experiment](studies/made-up.md)" in page.results_page(tmp_path)
    text = page.study_pages(tmp_path)["made-up"]
    for part in (
        "# A made-up experiment",
        "**The paper:** Numbers rise.",
        "**Outcome: held.**",
        "python -m research made-up",
    ):
        assert part in text
    assert "Not run" not in text


def test_the_page_tells_how_long_everything_took_if_it_was_run_in_one_go(made_up, tmp_path):
    made_up(MadeUp())
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    assert not (tmp_path / page.RUN).exists()  # not everything was asked for
    runner.reproduce(["all"], out=tmp_path, processes=1)
    assert not (tmp_path / page.RUN).exists()  # some of it was there before
    runner.reproduce(["all"], out=tmp_path, processes=1, fresh=True)
    units = json.loads((tmp_path / page.RUN).read_text())["units"]
    page.write_page(tmp_path / "docs" / "results.md", tmp_path)
    text = (tmp_path / "docs" / "results.md").read_text()
    assert f"Run in one go, its {units} units took 0 minutes in 1 processes." in text


def test_the_loop_learns_a_rate_and_repeats_itself():
    rng = np.random.default_rng(0)
    columns = {"features": rng.normal(size=(4000, 3)), "click": (rng.random(4000) < 0.2).astype(int)}
    log = loop.as_log(columns, ["click"], contexts=())

    def fitted(seed):
        torch.manual_seed(0)
        model = loop.train(Naive(loop.network(3), width=loop.WIDTH), log, epochs=20, seed=seed)
        return model.serving()(log.features)["click_prob"]

    one = fitted(1)
    assert float(one.mean()) == pytest.approx(columns["click"].mean(), abs=0.03)
    assert torch.equal(one, fitted(1))
    assert not torch.equal(one, fitted(2))


def flat(module, quick=True):
    """Finished units of an experiment whose every number is 1 with a little noise, for what summaries must survive."""
    rng = np.random.default_rng(0)

    class Ones(dict):
        def __missing__(self, key):
            return [] if key in ("daily", "drawn") else 1 + 0.01 * rng.random()

    return [Finished(unit, Ones()) for unit in module.units(quick)]


@pytest.mark.parametrize(
    "module", [offline_debiasing, observed_over_expected, loss_weights, learned_curves, downstream]
)
def test_what_does_not_differ_does_not_hold(module):
    result = module.summarise(flat(module))
    assert result.held != "held"
    assert len({(row.name, row.metric) for row in result.rows}) == len(result.rows)
    assert module.chart(dict(result.series)) is not None


def test_swings_are_variances_of_daily_quantiles():
    day = np.repeat([0, 1, 2], 101)
    spread = np.tile(np.linspace(0, 1, 101), 3)
    found = downstream._swings(0.3 + spread * (1 + day), day)  # the day stretches scores upwards
    assert found["middle"] == pytest.approx(np.var([0.5, 1.0, 1.5], ddof=1))
    assert found["upper tail"] == pytest.approx((0.95 / 0.5) ** 2 * found["middle"])
    assert found["lower tail"] == pytest.approx((0.05 / 0.5) ** 2 * found["middle"])


def test_downstream_methods_see_only_days_before():
    world = Feed(
        tasks=tuple(t for t in TASKS if t.name in downstream_world.ACTIONS) + downstream_world.DOWNSTREAM, days=3
    )
    given, rows = (downstream_world.collected(world, 6_000, seed=0, platform_given=given) for given in (True, False))
    assert (given["features"].shape[1], rows["features"].shape[1]) == (15, 12)
    assert downstream_world.acted(rows).mean() > 0.3  # most rows without an action are left out
    past, test = (
        downstream_world.chosen(rows, kept)
        for kept in (rows["day"] < 2, (rows["day"] == 2) & downstream_world.acted(rows))
    )
    mixed = downstream_world.chosen(past, downstream_world.acted(past))
    probs = downstream_world.predicted(past, mixed, test, downstream_world.METHODS, epochs=2, seed=0)
    assert set(probs) == set(downstream_world.METHODS)
    assert all(column.shape == (len(test["day"]), 3) and (column > 0).all() for column in probs.values())
    likes = {**test, "downstream_like": 1 - test["downstream_like"]}
    again = downstream_world.predicted(past, mixed, likes, downstream_world.METHODS, epochs=2, seed=0)
    assert all(np.array_equal(probs[name], again[name]) for name in probs)
    odds = {name: column / (1 - column) for name, column in probs.items()}
    rows_alone, corrected = odds[downstream_world.SAME_ROWS], odds[downstream_world.CORRECTED]
    assert np.allclose(rows_alone, downstream_world.POSITIVE_WEIGHT * corrected)
