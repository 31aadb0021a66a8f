"""Runs: what they write, keep and repeat; the list of studies; pages of results."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from isolayer.errors import InputError, MissingExtra
from research import page, registry, runner
from research.datasets import DataAbsent
from research.result import Part, Result, Row, Unit, by_seed, certain, estimate, units_of


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
    with pytest.raises(runner.UnitsFailed, match=r"(?s)made-up, .*expected both classes.*units: 8 failed"):
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
    assert [ended for _, ended in runner._outcomes(jobs, 2)] == [("", ""), ("", "")]  # nothing missing, none failed
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


def test_the_page_tells_what_was_run_and_what_was_not(made_up, tmp_path):
    made_up(MadeUp())
    assert "Not run: made-up." in page.results_page(tmp_path)
    runner.reproduce(["made-up"], out=tmp_path, processes=1)
    assert "[A made-up experiment](studies/made-up.md)" in page.results_page(tmp_path)
    text = page.study_pages(tmp_path)["made-up"]
    for part in (
        "# A made-up experiment",
        "**The paper:** Numbers rise.",
        "**Outcome: held** (one part).",
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
    made_up(MadeUp(missing=ValueError("broken")))
    with pytest.raises(runner.UnitsFailed):
        runner.reproduce(["all"], out=tmp_path, processes=1, fresh=True)
    text = page.results_page(tmp_path)
    assert f"in 1 processes; {units} of them failed and were run again later." in text
