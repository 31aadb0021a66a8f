"""The site: every page and link of it, built strictly, with nothing in its code that cannot be pasted."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_site_builds_without_a_warning_and_its_code_can_be_pasted(tmp_path):
    mkdocs = str(Path(sys.executable).with_name("mkdocs"))  # as `make docs` runs it, with nothing on its path
    command = [mkdocs, "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert not (tmp_path / "playground.html").exists()
    pages = {path: path.read_text() for path in tmp_path.rglob("index.html")}
    assert len(pages) > 20
    assert [path for path, text in pages.items() if "&gt;&gt;&gt; " in text] == []
