"""The pages that promise something name a test that shows it; the tests are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = re.compile(r"`(tests/\w+\.py)::(\w+)`")


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/production.md"])
def test_every_promise_names_a_test_that_exists(page):
    named = TEST.findall((ROOT / page).read_text())
    assert len(named) >= 8
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_every_line_of_the_tables_of_promises_names_one():
    for page in ("SECURITY.md", "docs/production.md"):
        text = (ROOT / page).read_text()
        table = text[text.index("| promise | shown by |") :].split("\n\n")[0].splitlines()[2:]
        assert table
        assert all(TEST.search(line) for line in table)
