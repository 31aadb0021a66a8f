"""The fingerprint of a study: it follows what the study can run, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from research import fingerprint, registry

SOURCES = {
    "research": {
        "study.py": "from isolayer.models import Head\nfrom isolayer.models.extra import Extra\n"
        "from research import shared\nfrom research.parts import used, BASE as STARTS, unused\n\n"
        "SIZE = used()\nSIZE += 1\nLOADS = ('isolayer.told',)\n\n"
        "def run_unit():\n    from isolayer.late import score\n"
        "    return need('isolayer.named'), Head, helper, shared\n\n"
        "def helper():\n    return SIZE + STARTS\n\n"
        "def summarise():\n    return Extra, unused()\n",
        "parts.py": "def used():\n    return _deeper()\n\ndef _deeper():\n    return 1\n\n"
        "BASE = 2\n\ndef unused():\n    return 3\n",
        "shared.py": "import numpy\nVALUE = 1\n",
        "other.py": "from isolayer.models.extra import Extra\n",
        "reader.py": "READS = ('chooser',)\n\ndef run_unit():\n    return 1\n",
    },
    "isolayer": {
        "__init__.py": "",
        "errors.py": "OFFERED = {'apply': 'isolayer.unused'}\n",
        "late.py": "from isolayer.errors import InputError\nfrom .named import deep\n",
        "named.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from isolayer.unused import Type\n",
        "told.py": "",
        "unused.py": "",
        "models/__init__.py": "from isolayer.models.extra import Extra\nfrom isolayer.models.head import Head\n",
        "models/head.py": "class Head:\n    pass\n",
        "models/extra.py": "",
    },
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project in a folder of its own; returns a function that replaces a text in one of its files."""
    for package, files in SOURCES.items():
        for name, text in files.items():
            path = tmp_path / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.setattr(fingerprint, "OWN", {name: tmp_path / name for name in SOURCES})
    monkeypatch.setattr(fingerprint, "CHOSEN", tmp_path)

    def edit(name, old, new):
        path = Path(tmp_path, name)
        text = path.read_text() if path.exists() else ""
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text + new)
        forget()

    forget()
    yield edit
    monkeypatch.undo()
    forget()


def forget():
    for function in vars(fingerprint).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def test_all_that_a_study_can_run_counts_however_deep_or_late_it_is_imported(project):
    assert fingerprint.sources("research.study") == {
        "research.study",
        "research.shared",
        "research.parts",
        "isolayer.models.head",  # through the package, which only passes it on
        "isolayer.late",  # within a function
        "isolayer.named",  # by its name
        "isolayer.told",  # as the study says
        "isolayer.errors",
    }


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("research/study.py", "return SIZE + STARTS", "return SIZE - STARTS"),  # what run_unit calls
        ("research/study.py", "SIZE += 1", "SIZE += 2"),  # a constant, where it is changed
        ("research/study.py", "used, BASE as STARTS", "unused as used, BASE as STARTS"),  # what a name stands for
        ("research/parts.py", "return 1", "return 7"),  # what an imported function calls
        ("research/parts.py", "BASE = 2", "BASE = 3"),
        ("research/parts.py", "", "import numpy\nprint(numpy)\n"),  # a statement that binds no name
        ("research/shared.py", "VALUE = 1", "VALUE = 2"),  # a module that is imported as a whole
        ("isolayer/models/head.py", "pass", "size = 1"),
        ("isolayer/told.py", "", "SIZE = 1\n"),
        ("isolayer/named.py", "", "SIZE = 1\n"),
    ],
)
def test_an_edit_of_what_runs_voids_what_was_finished(project, name, old, new):
    before = fingerprint.code_version("research.study")
    project(name, old, new)
    assert fingerprint.code_version("research.study") != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("research/study.py", "return Extra, unused()", "return Extra"),  # the summary
        ("research/study.py", "def helper():", "def helper():  # a comment\n    'What it does.'\n"),
        ("research/parts.py", "return 3", "return 4"),  # what only the summary calls
        ("research/other.py", "", "SIZE = 1\n"),
        ("isolayer/unused.py", "", "SIZE = 1\n"),
        ("isolayer/models/extra.py", "", "SIZE = 1\n"),
        ("isolayer/models/__init__.py", "", "SIZE = 1\n"),
        ("isolayer/models/head.py", "pass", "'A head.'\n    pass  # nothing"),
    ],
)
def test_an_edit_elsewhere_does_not(project, name, old, new):
    before = fingerprint.code_version("research.study")
    project(name, old, new)
    assert fingerprint.code_version("research.study") == before


def test_what_another_study_has_chosen_counts_but_not_how_long_it_took(project):
    versions = [fingerprint.code_version("research.reader")]
    for text in ('{"series": {"best": 1}, "seconds": 5}', '{"series": {"best": 2}, "seconds": 5}'):
        versions.append((project("chooser.json", "", text), fingerprint.code_version("research.reader"))[1])
        Path(fingerprint.CHOSEN, "chooser.json").unlink()
    assert len(set(versions)) == 3
    project("chooser.json", "", '{"series": {"best": 2}, "seconds": 7}')
    assert fingerprint.code_version("research.reader") == versions[-1]


@pytest.mark.parametrize(
    "name", ["stated-numbers", "ranking-ties", "regularisation", "separate-layer", "learned-curves"]
)
def test_whatever_a_unit_runs_is_among_its_pieces(name):
    """The oracle: every function of ours that is called while a unit runs, by its module and its name at the top."""
    experiment = registry.find([name])[0]
    study, found = experiment.load(), fingerprint.pieces(f"research.{experiment.module}")
    unit, called = study.units(True)[0], set()

    def watch(frame, event, _):
        home, top = str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname.partition(".")[0]
        ours = home.startswith(("research.", "isolayer.", "benchmarks."))
        if event == "call" and ours and not top.startswith(("<", "__")):  # not made by a dataclass
            called.add((home, top))

    sys.setprofile(watch)
    try:
        study.run_unit(unit)
    finally:
        sys.setprofile(None)
    assert (study.__name__, "run_unit") in called
    assert {fingerprint.Piece(*one) for one in called if fingerprint.Piece(one[0]) not in found} <= found


@pytest.mark.parametrize("experiment", registry.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_no_saved_unit_depends_on_how_its_study_is_summarised(experiment):
    own = f"research.{experiment.module}"
    names = {piece.name for piece in fingerprint.pieces(own) if piece.module == own}
    assert "run_unit" in names
    assert names.isdisjoint({"", "summarise", "chart", "CLAIM", "PAPER", "Part", "Row", "Result"})


@pytest.mark.parametrize("experiment", registry.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_no_study_depends_on_the_runner_or_on_a_page(experiment):
    found = fingerprint.sources(f"research.{experiment.module}")
    assert not found & {"research.runner", "research.page", "research.claims", "research.registry", "research.summary"}
    assert not any(name.startswith(("isolayer.cli", "isolayer.report")) for name in found)
