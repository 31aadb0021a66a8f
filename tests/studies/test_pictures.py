"""What the pages show: pictures exist, are small, come in light and dark; tables are those of the committed numbers."""

import re
from pathlib import Path

import pytest

from research import summary

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [
    "audit",
    "calibrate",
    "choosing",
    "debias",
    "get-started",
    "how-it-works",
    "integrations",
    "layer",
    "measure",
    "migration",
    "production",
]


@pytest.mark.parametrize("page", [*GUIDES, "warehouse", "index"])
def test_every_guide_has_a_picture_that_is_there(page):
    shown = re.findall(r"!\[[^\]]+\]\((images/[^)#]+)(#only-\w+)?\)", (DOCS / f"{page}.md").read_text())
    assert shown
    for path, mode in shown:
        assert (DOCS / path).exists(), path
        assert not mode or f"-{mode.removeprefix('#only-')}." in path
    assert page == "warehouse" or sum(mode == "#only-dark" for _, mode in shown) * 2 == len(shown)


@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.png")), ids=lambda path: path.name)
def test_pictures_are_small(path):
    assert path.stat().st_size < 150_000


@pytest.mark.parametrize("page", summary.PAGES, ids=lambda page: page.name)
def test_wins_and_losses_are_those_of_the_committed_numbers(page):
    written = page.read_text().partition(summary.BEGIN)[2].partition(summary.END)[0].strip()
    assert written == summary.outcomes(studies=summary.PAGES[page])
    assert "**worse**" in written, "a table without losses is an advertisement"


@pytest.mark.parametrize(
    "page", ["calibrate", "choosing", "get-started", "index", "install", "measure", "migration", "warehouse"]
)
def test_code_fits_a_narrow_page(page):
    for block in re.findall(r"^```(?:python|sh)\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.M | re.S):
        for line in block.splitlines():
            assert len(line) <= 88, line


def test_the_words_of_the_glossary_that_pages_link_to_are_there():
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line[4:].lower()).strip().replace(" ", "-")
        for line in (DOCS / "glossary.md").read_text().splitlines()
        if line.startswith("### ")
    }
    linked = {found for page in DOCS.glob("*.md") for found in re.findall(r"glossary\.md#([\w-]+)", page.read_text())}
    assert linked <= anchors
    assert {"curve", "context", "bucket", "knot", "shrinkage"} <= linked


def test_the_terms_that_the_claims_leave_to_the_glossary_are_there():
    glossary = (DOCS / "glossary.md").read_text()
    terms = """PBM Trust DBN DCM UBM Contextual Mixture spurious popular informed joint detached NE ECE F-RCE AUC nDCG
    IPS PAL harvested Propensity"""
    phrases = """Inference head, Isotonic head, Alpha and beta, Joint loss, Overlap, Position Dropout, Beyond chance,
    Intervention harvesting, Click model, Logger, Anchor, exact calibrator, exact curves"""
    asked = [*terms.split(), *(" ".join(phrase.split()) for phrase in phrases.split(","))]
    assert [one for one in asked if not re.search(rf"(### .*|\*|\(){re.escape(one)}\b", glossary)] == []
