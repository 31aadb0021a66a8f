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

import pytest

from research import debias_tuning, page, registry, runner
from research.claim import Claim
from research.claims import ANEW, CLAIMS, DIRECTION, NOT_RUN, claims_page, row
from research.result import FIRST_SEED, VERDICTS
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
        assert claim.study != name or claim.decided(document["parts"])
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
    assert {claim.study for claim in CLAIMS} <= {experiment.name for experiment in registry.EXPERIMENTS}
    claim = Claim("It rises", "table 9", "made-up", ("a", "b"), "Somewhere.", {"held in part": "Because."})
    parts = [
        {"says": says, "held": held, "value": 1.0, "lower": 1.0, "upper": 1.0, "must": "above 0"}
        for says, held in (("a rises", "held"), ("b rises", "did not hold"), ("c rises", "held in direction"))
    ]
    said = row(claim, {"parts": parts})  # what contradicts the claim stands beside its figure
    assert said.endswith("| **held in part** | a rises: 1, must be above 0; b rises: 1, must be above 0 | Because. |")
    parts[1]["held"] = "held in direction"
    assert row(claim, {"parts": parts}).endswith(f"| {DIRECTION} |")
    parts[1]["held"] = "held"
    assert row(claim, {"parts": parts}).endswith(f"| **held** | a rises: 1, must be above 0 | {ANEW} |")
    assert row(claim, None).endswith(f"| **{NOT_RUN}** |  |  |")
    assert row(claim, {"parts": parts[2:]}).endswith(f"| **{NOT_RUN}** |  |  |")
    assert all(set(one.why) <= {*VERDICTS, "held in part"} for one in CLAIMS)


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
