"""Where we win and where we lose, on one screen: the table of the README and of the home page.

Each line is a figure of a study under docs/reproduced, read from its file and never typed:
``python -m research.summary`` writes the table into both pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BEGIN, END = "<!-- outcomes: written by `python -m research.summary` -->", "<!-- /outcomes -->"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Args:
        question: What is asked, in words.
        study: The study that answers, by name.
        part: The part of its claim whose figure is shown.
        better: The sign of the figure at which isolayer is better.
        digits: Decimals to show.
        ratio: Whether the figure is a ratio, which is 1 where both are alike, rather than a difference.
    """

    question: str
    study: str
    part: str
    better: Literal[-1, 1]
    digits: int = 4
    ratio: bool = False


LINES = (
    Line(
        "Real clicks (KuaiRand), by tab: log loss against Platt per tab",
        "kuairand",
        "log loss no worse than platt by tab",
        -1,
    ),
    Line(
        "The same against scikit-learn's isotonic regression per tab",
        "kuairand",
        "log loss no worse than isotonic by tab",
        -1,
    ),
    Line(
        "The same by the error of observed over expected of each tab",
        "kuairand",
        "mean abs(O/E - 1) no worse than isotonic by tab",
        -1,
    ),
    Line(
        "12 tasks, 30 contexts: error of observed over expected against one Platt model per task and context",
        "per-task-isotonic",
        "the layer, exact has lower O/E error than Platt, one per task and context",
        -1,
    ),
    Line(
        "Ranking learned from biased clicks, trust bias: nDCG against the best of the other methods, all tuned",
        "debias-benchmark",
        "it is at most 0.002 nDCG behind the best other method (trust, spurious)",
        1,
    ),
    Line(
        "The same under plain position bias, the log sorted by a score",
        "debias-benchmark",
        "it is at most 0.002 nDCG behind the best other method (PBM, spurious, deterministic)",
        1,
    ),
    Line(
        "Eight real tasks by tab: normalised entropy against Platt per task and tab",
        "kuairand-tasks",
        "layer, exact has lower NE than Platt, one per task and tab",
        -1,
    ),
    Line(
        "Position bias that grows day by day: nDCG against inverse propensities estimated daily",
        "incremental",
        "bias grows: with the detached anchor it ranks as well as IPS re-estimated daily (within 0.005)",
        1,
        3,
    ),
    Line(
        "The same with the paper's joint loss instead of our default",
        "incremental",
        "bias grows: isotonic ranks as well as IPS re-estimated daily (within 0.005)",
        1,
        3,
    ),
    Line(
        "Calibration of what a debiased ranker serves, trust bias: error against a ranker that was not debiased",
        "debias-benchmark",
        "what is served is calibrated like naive (trust, spurious)",
        -1,
        2,
        ratio=True,
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
    """The figure of a part in words: sizes rather than signs, unless there is no clear difference.

    >>> said(Line("", "", "", -1, 2), {"value": -0.5, "lower": -0.75, "upper": -0.25})
    '0.50 lower [0.25, 0.75]'
    >>> said(Line("", "", "", 1, 1, ratio=True), {"value": 1.1, "lower": 0.9, "upper": 1.3})
    'no clear difference: 1.1 times [0.9, 1.3]'
    """
    value, lower, upper = (part[name] for name in ("value", "lower", "upper"))
    before, word = "", " times" if line.ratio else " lower" if value < 0 else " higher"
    if outcome(line, part) == "tie":
        before, word = "no clear difference: ", word * line.ratio
    elif value < 0:
        value, lower, upper = -value, -upper, -lower
    value, lower, upper = (f"{number:.{line.digits}f}" for number in (value, lower, upper))
    return f"{before}{value}{word} [{lower}, {upper}]"


def outcome(line: Line, part: dict[str, Any]) -> str:
    """Win or loss by the side that the whole interval is on.

    >>> line = Line("", "", "", -1)
    >>> outcome(line, {"lower": -0.2, "upper": -0.1}), outcome(line, {"lower": -0.2, "upper": 0.1})
    ('better', 'tie')
    """
    lower, upper = part["lower"] - line.ratio, part["upper"] - line.ratio
    if lower <= 0 <= upper:
        return "tie"
    return "better" if line.better * lower > 0 else "**worse**"


def write(page: Path, studies: str) -> None:
    """Put the table between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{outcomes(studies=studies)}\n{END}{after}")


PAGES = {ROOT / "README.md": "docs/studies/", ROOT / "docs" / "index.md": "studies/"}

if __name__ == "__main__":
    for page, studies in PAGES.items():
        write(page, studies)
