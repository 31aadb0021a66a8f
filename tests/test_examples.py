"""Tutorials and examples run as they are."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([*(ROOT / "tutorials").glob("*.py"), *(ROOT / "examples").glob("*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.filterwarnings("default")
def test_it_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out, "an example shows something"


def test_there_are_some():
    assert len(SCRIPTS) >= 5
