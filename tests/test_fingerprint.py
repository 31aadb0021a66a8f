"""The fingerprint of a study: it follows what the study can run, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from research import fingerprint, registry

SOURCES = {
    "research": {
        "study.py": "from isolayer.models import Head\nfrom research import shared\n\n"
        "def run():\n    from isolayer.late import score\n    return need('isolayer.named')\n",
        "shared.py": "import numpy\n",
        "other.py": "from isolayer.models.extra import Extra\n",
    },
    "isolayer": {
        "__init__.py": "",
        "errors.py": "OFFERED = {'apply': 'isolayer.unused'}\n",
        "late.py": "from isolayer.errors import InputError\nfrom .named import deep\n",
        "named.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from isolayer.unused import Type\n",
        "unused.py": "",
        "models/__init__.py": "from isolayer.models.extra import Extra\nfrom isolayer.models.head import Head\n",
        "models/head.py": "",
        "models/extra.py": "",
    },
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project in a folder of its own; returns a function that edits one of its files."""
    for package, files in SOURCES.items():
        for name, text in files.items():
            path = tmp_path / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.setattr(fingerprint, "OWN", {name: tmp_path / name for name in SOURCES})

    def forget():
        for function in (fingerprint.code_version, fingerprint.imports, fingerprint._file, fingerprint._text):
            function.cache_clear()

    def edit(name):
        with Path(tmp_path, name).open("a") as file:
            file.write("# edited\n")
        forget()

    forget()
    yield edit
    monkeypatch.undo()
    forget()


def test_all_that_a_study_can_run_counts_however_deep_or_late_it_is_imported(project):
    assert fingerprint.sources("research.study") == {
        "research.study",
        "research.shared",
        "isolayer.models.head",  # through the package, which only passes it on
        "isolayer.late",  # within a function
        "isolayer.named",  # by its name
        "isolayer.errors",
    }


@pytest.mark.parametrize("name", ["research/study.py", "research/shared.py", "isolayer/models/head.py"])
def test_an_edit_of_what_runs_voids_what_was_finished(project, name):
    before = fingerprint.code_version("research.study")
    project(name)
    assert fingerprint.code_version("research.study") != before


@pytest.mark.parametrize(
    "name", ["research/other.py", "isolayer/unused.py", "isolayer/models/extra.py", "isolayer/models/__init__.py"]
)
def test_an_edit_elsewhere_does_not(project, name):
    before = fingerprint.code_version("research.study")
    project(name)
    assert fingerprint.code_version("research.study") == before


@pytest.mark.parametrize("experiment", registry.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_no_study_depends_on_the_runner_or_on_a_page(experiment):
    found = fingerprint.sources(f"research.{experiment.module}")
    assert not found & {"research.runner", "research.page", "research.claims", "research.registry", "research.summary"}
    assert not any(name.startswith(("isolayer.cli", "isolayer.report")) for name in found)


def test_what_a_study_has_loaded_is_among_its_sources():
    experiment = registry.find(["offline-debiasing"])[0]
    experiment.load()
    found = fingerprint.sources("research.offline_debiasing")
    values = vars(sys.modules["research.offline_debiasing"]).values()
    homes = {str(getattr(one, "__module__", "")) for one in values}
    assert {home for home in homes if home.startswith(("isolayer.", "research."))} <= found
