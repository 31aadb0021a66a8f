"""Where we win and where we lose, on one screen: the table of the README and of the home page.

Each line is a figure of a study under docs/reproduced, read from its file and never typed:
``python -m research.summary`` writes the table into both pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- outcomes: written by `python -m research.summary` -->", "<!-- /outcomes -->"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Args:
        question: What is asked, in words.
        study: The study that answers, by name.
        part: The part of its claim whose figure is shown.
        words: What the figure means, with ``{value}``, ``{lower}`` and ``{upper}``, of the size of the figure.
        better: The sign of the figure at which isolayer is better.
        digits: Decimals to show.
    """

    question: str
    study: str
    part: str
    words: str
    better: int
    digits: int = 4


LINES = (
    Line(
        "Real clicks (KuaiRand), by tab: log loss against Platt per tab",
        "kuairand",
        "log loss no worse than platt by tab",
        "{value} lower [{lower}, {upper}]",
        -1,
    ),
    Line(
        "The same against scikit-learn's isotonic regression per tab",
        "kuairand",
        "log loss no worse than isotonic by tab",
        "{value} lower [{lower}, {upper}]",
        -1,
    ),
    Line(
        "12 tasks, 30 contexts: error of observed over expected against one Platt model per task",
        "per-task-isotonic",
        "the layer, exact has lower O/E error than Platt, one per task",
        "{value} lower [{lower}, {upper}]",
        -1,
        2,
    ),
    Line(
        "Ranking learned from biased clicks, trust bias: nDCG against inverse propensities",
        "debias-benchmark",
        "above IPS, harvested (trust, spurious)",
        "{value} higher [{lower}, {upper}]",
        1,
        3,
    ),
    Line(
        "The same under plain position bias: nDCG against PAL",
        "debias-benchmark",
        "above PAL (PBM, spurious)",
        "no clear difference: {value} [{lower}, {upper}]",
        0,
    ),
    Line(
        "Eight real tasks by tab: normalised entropy against Platt per task and tab",
        "kuairand-tasks",
        "layer, exact has lower NE than Platt, one per task and tab",
        "no clear difference, on the wrong side: {value} higher [{lower}, {upper}]",
        0,
    ),
    Line(
        "Position bias that grows day by day: nDCG against inverse propensities estimated daily",
        "incremental",
        "bias grows: isotonic ranks as well as IPS re-estimated daily (within 0.005)",
        "{value} lower [{lower}, {upper}]",
        1,
        3,
    ),
    Line(
        "Calibration of what a debiased ranker serves, trust bias: error against a ranker that was not debiased",
        "debias-benchmark",
        "what is served is calibrated like naive (trust, spurious)",
        "{value} times [{lower}, {upper}]",
        0,
        1,
    ),
)


def outcomes(folder: Path = ROOT / "docs" / "reproduced", *, studies: str = "studies/") -> str:
    """The table, in Markdown; ``studies`` is where its links find the pages of the studies.

    >>> outcomes().splitlines()[0]
    '| question | isolayer, with 95% interval | outcome | command |'
    """
    rows = ["| question | isolayer, with 95% interval | outcome | command |", "|---|---|---|---|"]
    for line in LINES:
        document = json.loads((folder / f"{line.study}.json").read_text())
        part = next(part for part in document["parts"] if part["says"] == line.part)
        link = f"[`{document['command']}`]({studies}{line.study}.md)"
        rows.append(f"| {line.question} | {said(line, part)} | {outcome(line, part)} | {link} |")
    return "\n".join(rows)


def said(line: Line, part: dict[str, Any]) -> str:
    """The figure of a part in words: sizes rather than signs, unless the interval contains zero.

    >>> line = Line("", "", "", "{value} lower [{lower}, {upper}]", -1, 2)
    >>> said(line, {"value": -0.5, "lower": -0.75, "upper": -0.25})
    '0.50 lower [0.25, 0.75]'
    """
    value, lower, upper = (part[name] for name in ("value", "lower", "upper"))
    if upper < 0:
        value, lower, upper = -value, -upper, -lower
    shown = {"value": value, "lower": lower, "upper": upper}
    return line.words.format(**{name: f"{number:.{line.digits}f}" for name, number in shown.items()})


def outcome(line: Line, part: dict[str, Any]) -> str:
    """Win or loss by the sign of the whole interval; where only a bound decides, by whether it held.

    >>> line = Line("", "", "", "", -1)
    >>> outcome(line, {"lower": -0.2, "upper": -0.1}), outcome(line, {"lower": -0.2, "upper": 0.1})
    ('better', 'tie')
    """
    if part["lower"] <= 0 <= part["upper"]:
        return "tie"
    if line.better == 0:
        return "better" if part["held"] == "held" else "**worse**"
    return "better" if line.better * part["lower"] > 0 else "**worse**"


def write(page: Path, studies: str) -> None:
    """Put the table between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{outcomes(studies=studies)}\n{END}{after}")


PAGES = {ROOT / "README.md": "docs/studies/", ROOT / "docs" / "index.md": "studies/"}

if __name__ == "__main__":
    for page, studies in PAGES.items():
        write(page, studies)
