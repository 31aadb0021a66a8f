"""The pages that promise something name a test or a benchmark that shows it, and these exist."""

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import names_of

ROOT = Path(__file__).parents[1]
PAGES = ("SECURITY.md", "docs/production.md")
TEST = re.compile(r"`(tests/\w+\.py)::(\w+)`")
BENCHMARK = re.compile(r"`python -m benchmarks (\w+)`")
SUBJECTS = {  # what the pages must say something about, in a row of their tables
    "SECURITY.md": ("code", "damaged", "newer version", "fails", "killed", "log", "traceback"),
    "docs/production.md": (
        *("SQL", "ONNX", "torch", "Packed", "refused", "replaces", "drifted", "release", "Exit code"),
        *("p50", "HTTP", "BigQuery", "Postgres", "Spark", "million contexts", "ten minutes"),
    ),
}


def rows(text: str) -> list[str]:
    """The lines of the table of promises."""
    return text[text.index("| promise | shown by |") :].split("\n\n")[0].splitlines()[2:]


def unshown(line: str) -> list[str]:
    """What is missing behind a promise: a test or a benchmark, or one that is named but does not exist."""
    tests, benchmarks = TEST.findall(line), BENCHMARK.findall(line)
    if not tests and not benchmarks:
        return [line]
    found = [f"{file}::{test}" for file, test in tests if f"def {test}(" not in (ROOT / file).read_text()]
    return found + [name for name in benchmarks if name not in names_of()]


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_names_a_test_or_a_benchmark_that_exists(page):
    promised = rows((ROOT / page).read_text())
    assert len(promised) >= 8
    assert [missing for line in promised for missing in unshown(line)] == []


def test_a_promise_that_nothing_shows_is_found():
    assert unshown("| It never fails | trust us |") == ["| It never fails | trust us |"]
    assert unshown("| It is fast | `python -m benchmarks nothing` |") == ["nothing"]
    assert unshown("| It is right | `tests/test_promises.py::test_nothing` |") == [
        "tests/test_promises.py::test_nothing"
    ]
    here = "`tests/test_promises.py::test_a_promise_that_nothing_shows_is_found`"
    assert unshown(f"| It is right | {here}, measured by `python -m benchmarks soak` |") == []


@pytest.mark.parametrize(("page", "subject"), [(page, one) for page in PAGES for one in SUBJECTS[page]])
def test_no_subject_is_left_out(page, subject):
    promised = [line.split("|")[1] for line in rows((ROOT / page).read_text())]
    assert any(subject in promise for promise in promised)
