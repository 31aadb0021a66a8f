"""Every experiment, run for real at its quick size: ``python -m research all --quick``, one test an experiment.

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
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from research import claims_compared as compared
from research import debias_tuning, page, registry, runner
from research.claim import Claim, chosen
from research.claims import ANEW, CLAIMS, DIRECTION, MOST, NOT_RUN, claims_page, row
from research.result import FIRST_SEED, VERDICTS, Part, certain, estimate
from research.tested import TESTED

EMPTY = {"rows": [], "parts": [], "picture": None, "command": "c", "seeds": [0], "cpu_seconds": 1.0}
DOCS = Path(__file__).parent.parent / "docs"


def judged(part):
    """The verdict on a part of a claim, worked out from its printed interval and bound."""
    must, bounds = part["must"].split(), {"above": -math.inf, "below": math.inf}
    bounds |= {side: float(bound) for side, bound in zip(must[::3], must[1::3], strict=True)}

    def inside(*numbers):
        return all(bounds["above"] < number < bounds["below"] for number in numbers)

    if inside(part["lower"], part["upper"]):
        return "held"
    return "held in direction" if inside(part["value"]) else "did not hold"


@pytest.mark.parametrize("experiment", registry.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_a_quick_run_comes_to_numbers_a_table_a_picture_and_a_verdict(experiment, tmp_path):
    name, seen = experiment.name, []
    document = runner.reproduce([name], quick=True, out=tmp_path, processes=1, progress=seen.append)[name]
    if document["held"] == "not run":
        assert "to get it: " in document["verdict"]  # data may be absent, nothing else
        pytest.skip(document["verdict"])
    assert seen[-1].done == seen[-1].total == len(experiment.load().units(quick=True, seeds=2))
    assert document["command"] == f"python -m research {name} --quick"
    assert document["seeds"] in ([0], [0, 1])
    for claim in CLAIMS:
        for study, names in ((claim.study, claim.parts), *claim.also.items()):
            assert study != name or not names or chosen(names, document["parts"])
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
    figures = "a rises: 1, must be above 0; but b rises: -1, must be above 0"
    assert said.endswith(f"| **held in part** (1, 0, 1, 1 beyond chance) | {figures} | Because. |")
    parts[1] |= {"upper": 1.0}  # what may be chance
    assert "(1, 0, 1, 0 beyond chance)" in row(claim, {"made-up": {"parts": parts}})
    parts[1] |= {"held": "held in direction"}
    assert row(claim, {"made-up": {"parts": parts}}).endswith(f"| {DIRECTION.format(some=1, all=2)} |")
    parts[1]["held"] = "held"
    said = row(claim, {"made-up": {"parts": parts}})
    assert said.endswith(f"| **held** (2, 0, 0) | a rises: 1, must be above 0 | {ANEW} |")
    assert row(claim, {}).endswith(f"| **{NOT_RUN}** |  |  |")
    assert row(claim, {"made-up": {"parts": parts[2:]}}).endswith(f"| **{NOT_RUN}** |  |  |")
    assert all(set(one.why) <= {*VERDICTS, "held in part"} for one in CLAIMS)


def test_every_study_that_contradicts_a_claim_has_a_figure_in_its_row():
    def part(says, held):
        return {"says": says, "held": held, "value": 1.0, "lower": 1.0, "upper": 1.0, "must": "above 0"}

    against = [part(f"b{number}", "did not hold") for number in range(MOST + 2)]
    documents = {"one": {"parts": [part("a", "held"), *against]}, "two": {"parts": [part("c", "did not hold")]}}
    claim = Claim("It rises", "table 9", "one", ("a", "b"), "Somewhere.", also={"two": ("c",)})
    said = row(claim, documents)
    assert "(1, 0, 7, 0 beyond chance)" in said
    assert "; but b0: 1, must be above 0; c: 1, must be above 0; b1: " in said
    assert "; and 3 more |" in said
    assert "[two](studies/two.md)" in said
    computed = Claim("It falls", "table 9", "one", ("a",), "", compared=lambda _: [Part("d (x)", certain(-1), above=0)])
    assert "; but d (x): -1, must be above 0 |" in row(computed, documents)


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
    fires = {"says": "the warning fires (W, spurious)", "value": 0.75, "seeds": 4}
    documents["debias-benchmark"] |= {"parts": [fires]}
    documents["debias-benchmark"]["rows"] += rows("nDCG@10", **{"dual head": mean(0.7, 0.01)})
    told = compared.informed(documents)
    assert "fires under 3 of 4 seeds and the dual head ranks below naive (0.7000 against 0.8000)" in told
    assert compared.papers_debias({}) == compared.best_rate({}) == compared.joint_calibrated({}) == []
    assert compared.graded_and_informed({}) == compared.rates({}) == ""


def test_calibration_of_the_joint_loss_is_judged_against_what_is_allowed():
    def errors(plain, ours):
        means = {"beta 0": plain, "beta 0.7": ours}
        rows = [
            {"name": f"{beta}, joint, some overlap", "metric": "ECE on the log", "ours": estimate(values)._asdict()}
            for beta, values in means.items()
        ]
        return compared.joint_calibrated({"loss-weights": {"rows": rows}})[0]

    assert errors([1.0, 1.01, 0.99], [1.1, 1.11, 1.09]).held == "held"
    assert errors([1.0, 1.01, 0.99], [1.3, 1.31, 1.29]).held == "did not hold"
    assert errors([1.0, 1.2, 0.8], [1.0, 1.2, 0.8]).held == "held in direction"


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
    first = debias_tuning.FIRST if path.stem == "debias-tuning" else FIRST_SEED  # what chooses has seeds of its own
    assert document["seeds"][0] in (0, first)  # 0 where nothing is drawn
    assert not document["picture"] or (path.parent / document["picture"]).exists()
