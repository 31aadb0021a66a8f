"""Every experiment, run for real at its quick size: ``python -m research all --quick``, one test per experiment.

The results page that is committed is checked against the numbers committed beside it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import QUICK_SECONDS
from scipy import stats

from research import claims_compared as compared
from research import debias_tuning, page, registry, runner, tree_tuning
from research.claim import Claim, chosen
from research.claims import ANEW, CLAIMS, DIRECTION, MOST, NO_DECISION, NOT_RUN, claims_page, row
from research.result import FIRST_SEED, VERDICTS, Part, certain, estimate
from research.tested import TESTED

EMPTY = {"rows": [], "parts": [], "picture": None, "command": "c", "seeds": [0], "cpu_seconds": 1.0}
DOCS = Path(__file__).parents[2] / "docs"


def judged(part):
    """The verdict on a part of a claim, worked out from its printed interval and bound."""
    must, bounds = part["must"].split(), {"above": -math.inf, "below": math.inf}
    bounds |= {side: float(bound) for side, bound in zip(must[::3], must[1::3], strict=True)}

    def inside(*numbers):
        return all(bounds["above"] < number < bounds["below"] for number in numbers)

    if inside(part["lower"], part["upper"]):
        return "held"
    return "held in direction" if inside(part["value"]) else "did not hold"


def parts_named(name):
    """What claims call parts of a study."""
    of = ((study, parts) for claim in CLAIMS for study, parts in ((claim.study, claim.parts), *claim.also.items()))
    return [part for study, parts in of if study == name for part in parts]


def committed_parts(name):
    """The parts of a full run, some of which no quick run has."""
    path = DOCS / page.REPRODUCED / f"{name}.json"
    return json.loads(path.read_text())["parts"] if path.exists() else []


@pytest.mark.parametrize("experiment", registry.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_a_quick_run_comes_to_numbers_a_table_a_picture_and_a_verdict(experiment, tmp_path, record_property):
    name, seen = experiment.name, []
    document = runner.reproduce([name], quick=True, out=tmp_path, processes=1, progress=seen.append)[name]
    if document["held"] == "not run":
        assert "to get it: " in document["verdict"]  # data may be absent, nothing else
        pytest.skip(document["verdict"])
    assert seen[-1].done == seen[-1].total == len(experiment.load().units(quick=True, seeds=2))
    assert document["command"] == f"python -m research {name} --quick"
    assert document["seeds"] in ([0], [0, 1])
    record_property(QUICK_SECONDS, document["cpu_seconds"])  # told at the end, see conftest
    assert not [one for one in parts_named(name) if not chosen([one], document["parts"] + committed_parts(name))]
    estimates = [row["ours"] for row in document["rows"]] + document["parts"]
    assert all(math.isfinite(one["value"]) and one["lower"] <= one["value"] <= one["upper"] for one in estimates)
    assert [part["held"] for part in document["parts"]] == [judged(part) for part in document["parts"]]
    assert all(part["must"].startswith(("above", "below")) for part in document["parts"])
    assert len({part["says"] for part in document["parts"]}) == len(document["parts"])
    written = tmp_path / "quick"
    assert (written / document["picture"]).read_bytes().startswith(b"\x89PNG")
    assert f"`{document['command']}`" in (written / f"{name}.md").read_text()
    page.write_page(tmp_path / "results.md", written)
    assert f"]({page.STUDIES}/{name}.md)" in (tmp_path / "results.md").read_text()
    text = (tmp_path / page.STUDIES / f"{name}.md").read_text()
    assert f"**Outcome: {document['held']}.** {document['verdict']}" in text
    assert (tmp_path / page.REPRODUCED / document["picture"]).exists()
    assert f"](../{page.REPRODUCED}/{document['picture']})" in text


def test_an_interrupted_run_keeps_what_was_finished_and_says_so(tmp_path):
    command = [sys.executable, "-m", "research", "incremental", "--quick", "--out", str(tmp_path)]
    started = subprocess.Popen(
        command, cwd=DOCS.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does, to the run and to its workers
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "interrupted: finished units are kept" in said
    assert "Traceback" not in said
    saved = [json.loads(path.read_text()) for path in tmp_path.rglob("*.json")]
    assert 1 <= len(saved) < len(registry.find(["incremental"])[0].load().units(quick=True))
    assert all(one["numbers"] for one in saved)


def test_a_study_that_was_interrupted_half_way_comes_to_the_numbers_of_one_that_was_not(tmp_path):
    def interrupt(progress):
        if progress.done == progress.total // 2:
            signal.raise_signal(signal.SIGINT)

    def run(folder, progress=None):
        found = runner.reproduce(["ranking-ties"], quick=True, out=tmp_path / folder, processes=1, progress=progress)
        return {key: one for key, one in found["ranking-ties"].items() if not key.endswith("seconds")}

    with pytest.raises(KeyboardInterrupt):
        run("halves", interrupt)
    units = registry.find(["ranking-ties"])[0].load().units(quick=True, seeds=2)
    saved = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(saved) == len(units) // 2
    assert run("halves") == run("whole")
    assert {path: path.read_bytes() for path in saved} == saved  # none was run again


def test_a_unit_that_fails_stops_no_other_study_and_is_the_only_one_run_again(tmp_path, monkeypatch):
    module = registry.find(["ranking-ties"])[0].load()
    right, broken = module.run_unit, module.units(quick=True, seeds=2)[1]

    def run_unit(unit):
        return {"nothing": 1 / 0} if unit == broken else right(unit)

    def run():
        return runner.reproduce(["ranking-ties", "stated-numbers"], quick=True, out=tmp_path, processes=1)

    monkeypatch.setattr(module, "run_unit", run_unit)
    with pytest.raises(
        RuntimeError, match=f"(?s)ranking-ties, .*seed={broken.seed}.*ZeroDivisionError.*1 units failed"
    ):
        run()
    written = {path.name for path in (tmp_path / "quick").glob("*.json")}
    assert written == {"stated-numbers.json"}
    saved = {path: path.read_bytes() for path in (tmp_path / "quick" / "ranking-ties").iterdir()}
    assert len(saved) == len(module.units(quick=True, seeds=2)) - 1
    monkeypatch.setattr(module, "run_unit", right)
    assert set(run()) == {"ranking-ties", "stated-numbers"}
    assert {path: path.read_bytes() for path in saved} == saved


def test_every_study_says_in_one_sentence_what_it_tests():
    assert set(TESTED) == {experiment.name for experiment in registry.EXPERIMENTS}
    assert all(said.endswith(".") and said.count(". ") == 0 for said in TESTED.values())
    text = page.table(
        {"name": "ab-test", "title": "A", "claim": "C.", "paper": "P", "held": "held", "verdict": "V."} | EMPTY
    )
    assert f"**What was tested:** {TESTED['ab-test']}" in text


def test_the_papers_claims_name_studies_and_explain_only_outcomes_that_were_explained():
    assert {study for claim in CLAIMS for study in claim.studies} == {one.name for one in registry.EXPERIMENTS}
    claim = Claim("It rises", "table 9", "made-up", ("a", "b"), "Somewhere.", {"held in part": "Because."})
    parts = [
        {"says": says, "held": held, "value": 1.0, "lower": 1.0, "upper": 1.0, "must": "above 0"}
        for says, held in (("a rises", "held"), ("b rises", "did not hold"), ("c rises", "held in direction"))
    ]
    parts[1] |= {"value": -1.0, "lower": -1.0, "upper": -1.0}
    said = row(claim, {"made-up": {"parts": parts}})  # what contradicts the claim stands beside its figure
    figures = "a rises: 1, must be above 0;<br>but b rises: -1, must be above 0"
    counts = "of 2 parts 1 held, 1 did not, 1 of them beyond chance"
    assert said.endswith(f"| **held in part** ({counts}) | {figures} | Because. |")
    universal = replace(claim, universal=True)  # one part beyond chance refutes what is said of all
    assert f"**did not hold** ({counts})" in row(universal, {"made-up": {"parts": parts}})
    assert row(universal, {"made-up": {"parts": parts}}).endswith("| Because. |")
    parts[1] |= {"upper": 1.0}  # what may be chance
    for one in (claim, universal):
        said = row(one, {"made-up": {"parts": parts}})
        assert "**held in part** (of 2 parts 1 held, 1 did not, none of them beyond chance)" in said
    alone = row(replace(claim, parts=("b",)), {"made-up": {"parts": parts}})
    assert alone.endswith(f"| **undecided** | b rises: -1 [-1, 1], must be above 0 | {NO_DECISION} |")
    parts[1] |= {"held": "held in direction"}
    assert row(claim, {"made-up": {"parts": parts}}).endswith(f"| {DIRECTION.format(some=1, all=2)} |")
    parts[1]["held"] = "held"
    said = row(claim, {"made-up": {"parts": parts}})
    assert said.endswith(f"| **held** (all 2 parts) | a rises: 1, must be above 0 | {ANEW} |")
    assert row(claim, {}).endswith(f"| **{NOT_RUN}** |  |  |")
    assert row(claim, {"made-up": {"parts": parts[2:]}}).endswith(f"| **{NOT_RUN}** |  |  |")
    assert all(set(one.why) <= {*VERDICTS, "held in part", "undecided"} for one in CLAIMS)


def test_every_study_that_contradicts_a_claim_has_a_figure_in_its_row():
    def part(says, held):
        return {"says": says, "held": held, "value": 1.0, "lower": 1.0, "upper": 1.0, "must": "above 0"}

    against = [part(f"b{number}", "did not hold") for number in range(MOST + 2)]
    documents = {"one": {"parts": [part("a", "held"), *against]}, "two": {"parts": [part("c", "did not hold")]}}
    claim = Claim("It rises", "table 9", "one", ("a", "b"), "Somewhere.", also={"two": ("c",)})
    said = row(claim, documents)
    assert "(of 8 parts 1 held, 7 did not, none of them beyond chance)" in said
    assert ";<br>but b0: 1, must be above 0;<br>c: 1, must be above 0;<br>b1: " in said
    assert ";<br>and 3 more |" in said
    assert "[two](studies/two.md)" in said
    computed = Claim("It falls", "table 9", "one", ("a",), "", compared=lambda _: [Part("d (x)", certain(-1), above=0)])
    assert ";<br>but d (x): -1, must be above 0 |" in row(computed, documents)


def test_no_committed_part_that_did_not_hold_is_left_out_of_the_claims():
    documents = {path.stem: json.loads(path.read_text()) for path in (DOCS / page.REPRODUCED).glob("*.json")}
    shown = {(part["from"], part["says"]) for claim in CLAIMS for part in claim.evidence(documents)}
    left = {
        part["says"]
        for name, document in documents.items()
        for part in document["parts"]
        if part["held"] == "did not hold" and (name, part["says"]) not in shown
    }
    assert all(says.startswith("the warning fires") for says in left)  # no claim of the paper: told in words


def test_comparisons_between_studies_are_of_their_numbers():
    def mean(value, half, seeds=10):
        return {"value": value, "lower": value - half, "upper": value + half, "seeds": seeds}

    def rows(metric, **means):
        return [{"name": f"W, spurious: {name}", "metric": metric, "ours": one} for name, one in means.items()]

    joint = {"dual head, joint alpha .25": mean(0.9, 0.01), "naive": mean(0.8, 0.01)}
    gain = {"says": "a joint loss ranks better than naive (W, spurious)", **mean(0.1, 0.02)}
    benchmark = {"unbiased labels": mean(1.0, 0.0), "position dropout": mean(0.95, 0.01), "naive": mean(0.8, 0.03)}
    documents = {
        "debias-variants": {"rows": rows("nDCG@10", **joint), "parts": [gain]},
        "debias-benchmark": {"rows": rows("nDCG@10", **benchmark), "parts": []},
    }
    closes, above = compared.papers_debias(documents)
    assert closes.estimate.value == pytest.approx(0.5)
    assert (closes.estimate.lower, closes.estimate.upper) == pytest.approx((0.4, 0.6))
    assert above.held == "did not hold"
    assert above.estimate.value == pytest.approx(-0.05)
    assert "50.0% (W)" in compared.shares(documents)
    fires = {"says": "the warning fires in more than half of the logs (W, spurious)", "value": 0.75, "seeds": 4}
    documents["debias-benchmark"] |= {"parts": [fires]}
    documents["debias-benchmark"]["rows"] += rows("nDCG@10", **{"dual head": mean(0.7, 0.01)})
    told = compared.informed(documents)
    assert "fires under 3 of 4 seeds and the dual head ranks below naive (0.7000 against 0.8000)" in told
    assert compared.papers_debias({}) == []
    assert compared.graded_and_informed({}) == compared.rates({}) == ""


def test_the_best_rate_of_dropout_is_told_with_the_steps_that_are_beyond_chance():
    def rows(metric, **means):
        return [
            {"name": f"dropout {rate}, {task}", "metric": metric, "ours": estimate(values)._asdict()}
            for task in ("click", "like")
            for rate, values in means.items()
        ]

    better, level = [1.0, 1.1, 0.9], [0.1, -0.1, 0.05]
    found = rows("delta AUC", **{"0.05": level, "0.15": better}) + rows(
        "nDCG@10, true relevance", **{"0.05": better, "0.15": level}
    )
    found += rows("AUC over that of the next lower rate", **{"0.10": better, "0.15": level})
    told = compared.rates({"offline-debiasing": {"rows": found}})
    assert "0.15 by AUC on the log, 0.05 by nDCG" in told
    assert "1 of 2 steps from one rate to the next for Click and 1 of 2 steps" in told


def test_differences_between_two_studies_of_the_same_logs_are_paired_by_seed():
    def study(name, values):
        mean = estimate(values)._asdict()
        rows = [{"name": f"W: {name}", "metric": "nDCG@10", "ours": mean}]
        return {"rows": rows, "parts": [], "series": {"by seed": {f"W: {name}": values}}}

    joint, dropout = [0.5, 0.7, 0.6], [0.45, 0.66, 0.54, 0.1]  # the last seed was run of one of them only
    documents = {
        "debias-variants": study("dual head, joint alpha .25", joint),
        "debias-benchmark": study("position dropout", dropout),
    }
    (paired,) = [part for part in compared.papers_debias(documents) if "dropout" in part.says]
    assert paired.estimate == pytest.approx(estimate([0.05, 0.04, 0.06]))
    assert paired.held == "held"
    for document in documents.values():
        document["series"] = {}
    (apart,) = [part for part in compared.papers_debias(documents) if "dropout" in part.says]
    assert apart.held == "held in direction"


def test_what_cannot_but_be_above_zero_has_a_bound_that_it_can_miss():
    def violations(share):
        name, mean = "simulated, rises: booster", {"value": share, "lower": share, "upper": share, "seeds": 4}
        rows = [{"name": name, "metric": "violations, share of pairs", "ours": mean}]
        return compared.unconstrained_invert({"lattice": {"rows": rows}})[0].held

    assert violations(0.02) == "held"
    assert violations(0.001) == "did not hold"


def test_sentences_on_the_claims_page_are_told_from_the_numbers():
    head = "with the joint loss the isotonic head ranks"
    parts = [
        {"says": f"bias grows: {head} better than IPS old", "value": -0.03, "lower": -0.04, "upper": -0.02},
        {"says": f"bias fades: {head} as well as IPS new (within .1)", "value": 0.01, "lower": -0.02, "upper": 0.04},
        {"says": "bias fades: IPS ranks worse", "value": 0.01, "lower": -0.02, "upper": 0.04},
    ]
    assert compared.drifts({"incremental": {"parts": parts}}) == (
        "With the joint loss nDCG is 0.0300 below IPS old where bias grows, 0.0100 above, within chance, IPS new where "
        "bias fades."
    )
    rows = [{"name": "clicks", "metric": "events", "ours": {"value": 25.0}}]
    assert "rests on 25 clicks of the other policy's own log" in compared.events({"open-bandit": {"rows": rows}})
    above = [{"says": f"above {name}", "value": value, "upper": value + 1} for name, value in (("a", -2), ("b", -0.5))]
    told = compared.behind_others({"debias-benchmark": {"parts": above}})
    assert "the other's mean is above the head's in 2, beyond chance in 1." in told
    assert compared.drifts({}) == compared.events({}) == compared.behind_others({}) == ""


def test_the_difference_of_two_means_has_the_interval_of_welch():
    rng = np.random.default_rng(0)
    one, other = rng.normal(1.0, 2.0, 12), rng.normal(0.0, 0.5, 7)
    found = compared.difference(estimate(one)._asdict(), estimate(other)._asdict())
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    assert (found.lower, found.upper) == pytest.approx((interval.low, interval.high))


def test_the_committed_pages_are_those_of_the_committed_numbers():
    assert (DOCS / "results.md").read_text() == page.results_page(DOCS / page.REPRODUCED)
    assert (DOCS / page.CLAIMS).read_text() == claims_page(DOCS / page.REPRODUCED)
    committed = {path.stem: path.read_text() for path in (DOCS / page.STUDIES).glob("*.md")}
    assert committed == page.study_pages(DOCS / page.REPRODUCED)


@pytest.mark.parametrize("path", sorted((DOCS / page.REPRODUCED).glob("*.json")), ids=lambda path: path.stem)
def test_committed_numbers_are_of_full_runs_on_seeds_nothing_was_chosen_on(path):
    document = json.loads(path.read_text())
    assert document["command"] == f"python -m research {path.stem}"
    chooses = {"debias-tuning": debias_tuning.FIRST, "tree-tuning": tree_tuning.FIRST}  # on seeds of their own
    start = document["seeds"][0]  # 0 where nothing is drawn; later than the first where a rule was set on the others
    assert start in (0, chooses[path.stem]) if path.stem in chooses else start == 0 or start >= FIRST_SEED
    assert not document["picture"] or (path.parent / document["picture"]).exists()
