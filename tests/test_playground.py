"""The page that audits a file inside the browser: its Python here, and what it says where its packages are absent.

Pyodide's compiled packages are on none of the registries that the tests can count on, so the audit itself is run by
this Python and not by the browser's.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from isolayer.simulate import scored_log

PAGE = Path(__file__).parents[1] / "docs" / "playground.html"
CHROMIUM = shutil.which("chromium")


def program():
    return re.search(r'id="program">(.*?)</script>', PAGE.read_text(), re.DOTALL)[1]


@pytest.fixture(scope="module")
def python():
    names = {}
    exec(program(), names)
    return names


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_its_python_finds_the_columns_and_what_is_off(python, tmp_path, suffix):
    path = str(tmp_path / f"log.{suffix}")
    {"csv": pa.csv.write_csv, "parquet": pa.parquet.write_table}[suffix](pa.table(scored_log(20_000, 3)), path)
    names, score, label = python["columns_of"](path)
    assert {score, label} == {"prob", "click"} <= set(names)
    answer = python["audited"](path, score, label, "prob")
    assert answer.startswith("20,000 rows, log loss 0.")
    assert "surface push: predicted" in answer


def test_its_python_needs_no_torch(tmp_path):
    log = tmp_path / "log.csv"
    pa.csv.write_csv(pa.table(scored_log(2_000, 1)), log)
    code = (
        program() + f"\naudited({str(log)!r}, 'prob', 'click', 'prob')\nimport sys\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_without_the_runtime_beside_it_the_page_says_so(tmp_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto(PAGE.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#file").set_input_files(
            {"name": "log.csv", "mimeType": "text/csv", "buffer": b"score,label\n0,1\n"}
        )
        page.get_by_text("It did not work:").wait_for(timeout=10_000)
        assert page.locator("#audit").is_disabled()
        browser.close()
