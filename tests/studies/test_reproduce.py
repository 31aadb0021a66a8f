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
from pathlib import Path

import pytest
from conftest import QUICK_SECONDS

from research import debias_tuning, page, registry, runner, tree_tuning
from research.claim import CONTRADICTED, NOT_SHOWN, chosen
from research.claims import CLAIMS, claims_page
from research.result import FIRST_SEED
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
    assert f"**Outcome: {document['held']}** (" in text
    assert document["note"] in text
    failed = sum(text.count(f"| **{outcome}** |") for outcome in (CONTRADICTED, NOT_SHOWN))
    assert failed == sum(part["held"] == "did not hold" for part in document["parts"])
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

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run("halves", interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
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

    def run(progress=None):
        names = ["ranking-ties", "stated-numbers"]
        return runner.reproduce(names, quick=True, out=tmp_path, processes=1, progress=progress)

    seen = []

    monkeypatch.setattr(module, "run_unit", run_unit)
    with pytest.raises(
        RuntimeError, match=f"(?s)ranking-ties, .*seed={broken.seed}.*ZeroDivisionError.*units: 1 failed"
    ):
        run(seen.append)
    assert [one.failed for one in seen][:4] == [0, 0, 1, 1]  # told when it happens
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
        {"name": "ab-test", "title": "A", "claim": "C.", "paper": "P", "held": "held", "note": "N."} | EMPTY
    )
    assert f"**What was tested:** {TESTED['ab-test']}" in text


def test_the_committed_pages_are_those_of_the_committed_numbers():
    assert (DOCS / "results.md").read_text() == page.results_page(DOCS / page.REPRODUCED)
    assert (DOCS / page.CLAIMS).read_text() == claims_page(DOCS / page.REPRODUCED)
    committed = {path.stem: path.read_text() for path in (DOCS / page.STUDIES).glob("*.md")}
    assert committed == page.study_pages(DOCS / page.REPRODUCED)


COMMITTED = sorted(path for path in (DOCS / page.REPRODUCED).glob("*.json") if path.name != page.RUN)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_numbers_are_of_full_runs_on_seeds_nothing_was_chosen_on(path):
    document = json.loads(path.read_text())
    assert document["command"] == f"python -m research {path.stem}"
    chooses = {"debias-tuning": debias_tuning.FIRST, "tree-tuning": tree_tuning.FIRST}  # on seeds of their own
    start = document["seeds"][0]  # 0 where nothing is drawn; later than the first where a rule was set on the others
    assert start in (0, chooses[path.stem]) if path.stem in chooses else start == 0 or start >= FIRST_SEED
    assert not document["picture"] or (path.parent / document["picture"]).exists()
