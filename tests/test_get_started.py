"""The pages that people paste from: their blocks run as they are printed, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pa_csv
import pytest

from isolayer import Curves

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.M | re.S)


def blocks(page):
    """Language and text of each block of a page."""
    return BLOCK.findall((ROOT / page).read_text())


def pasted(language, text, folder):
    """What a block prints, run by the shell or by Python in a folder."""
    bin_folder = Path(sys.executable).parent
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "isolayer"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m isolayer "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{bin_folder}:{os.environ['PATH']}"}
    shell = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    off = 1 if "isolayer audit" in text else 0  # the code of an audit that found something
    assert done.returncode == off, f"{text}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder after everything on the page was pasted, and what each block printed."""
    folder = tmp_path_factory.mktemp("started")
    printed = []
    for language, text in blocks("docs/get-started.md"):
        if language == "text":
            printed.append(text)
        elif "pip install" not in text:
            printed.append(pasted(language, text, folder))
    return folder, printed


def test_the_example_is_as_the_page_shows_it(started):
    _, printed = started
    assert printed[1] in printed[0], "the first lines of the log"


def test_what_was_pasted_leaves_a_page_a_table_and_a_statement(started):
    folder, printed = started
    assert "surface search" in printed[2]
    assert "calibration helps" in printed[3]
    for page in ("report.html", "page.html"):
        assert "<h1>" in (folder / page).read_text()
    rows = pa_csv.read_csv(folder / "calibrated.csv")
    fitted = Curves.load(folder / "curves.parquet")  # of the Python block: other days, about the same curves
    want = fitted.predict_proba(rows["prob"].to_numpy(), {"surface": rows["surface"].to_numpy(zero_copy_only=False)})
    assert abs(rows["calibrated_prob"].to_numpy() - want).max() < 0.05
    assert "calibrated_prob" in next(text for text in printed if "│" in text)


def test_python_shows_that_every_surface_is_mended(started):
    _, printed = started
    raw, calibrated = re.findall(r"\{.*\}", next(text for text in printed if text.startswith("prob {")))
    ratios = [[float(value) for value in re.findall(r": ([\d.]+)", line)] for line in (raw, calibrated)]
    assert len(ratios[0]) == len(ratios[1]) == 4
    assert min(abs(ratio - 1) for ratio in ratios[0]) > 0.05
    assert max(abs(ratio - 1) for ratio in ratios[1]) < max(abs(ratio - 1) for ratio in ratios[0]) / 2


def test_the_python_of_the_readme_runs_from_the_first_block_to_the_last(tmp_path):
    code = "".join(text for language, text in blocks("README.md") if language == "python")
    printed = pasted("python", code, tmp_path)
    assert printed.startswith("[0.1 0.5]\nWITH")
    assert {path.name for path in tmp_path.iterdir()} >= {"curves.parquet", "curves.onnx"}


@pytest.mark.parametrize("page", ["docs/get-started.md", "docs/install.md"])
def test_nothing_to_paste_has_a_prompt(page):
    for _, text in blocks(page):
        assert ">>>" not in text
        assert not re.search(r"^\$ ", text, re.M)


def test_installing_is_said_alike_everywhere():
    """The README and both pages install the clone itself, since there is no release to find."""
    for page in ("README.md", "docs/get-started.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        assert "pip install '.[cli]'" in text, page
        assert "pip install 'isolayer" not in text, page
    for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py")):  # nothing of that name is on PyPI
        assert "pip install 'isolayer" not in path.read_text(), path


def test_the_table_of_extras_names_each_that_users_install():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "docs" / "install.md").read_text()
    for extra in set(extras) - {"docs", "peers", "dev", "torchrec"}:
        assert re.search(rf"^\| `\.\[{extra}\]` \| .+ \| [\d.]+ [MG]B \|$", text, re.M), extra
