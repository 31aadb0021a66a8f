"""Where we win and where we lose, on one screen: the table of the README and of the home page.

Each line is a figure of a study under docs/reproduced, read from its file and never typed:
``python -m research.summary`` writes the table into both pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isolayer.errors import InputError

BEGIN, END = "<!-- outcomes: written by `python -m research.summary` -->", "<!-- /outcomes -->"
ROOT = Path(__file__).parents[1]
KINDS = ("better", "tie", "**worse**")  # as outcomes are called, best first


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Args:
        question: What is asked, in words.
        study: The study that answers, by name.
        part: The part of its claim whose figure is shown; of a count, what all parts that are counted begin with.
        better: The sign of the figure at which isolayer is better.
        digits: Decimals to show.
        ratio: Whether the figure is a ratio, which is 1 where both are alike, rather than a difference.
        count: Whether the line counts in how many worlds, one part each, isolayer is better, level and worse.
    """

    question: str
    study: str
    part: str
    better: Literal[-1, 1]
    digits: int = 4
    ratio: bool = False
    count: bool = False


LINES = (
    Line(
        "Real clicks (KuaiRand), by tab: log loss against Platt per tab",
        "kuairand",
        "log loss no worse than platt by tab",
        -1,
    ),
    Line(
        "The same against isotonic regression per tab, its blocks smoothed by half an event",
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
        "The same with the paper's layer, the isotonic head that is learned inside the model",
        "per-task-isotonic",
        "the layer, isotonic head has lower O/E error than Platt, one per task and context",
        -1,
    ),
    Line(
        "Ranking learned from biased clicks in simulated worlds: nDCG against the best of the other "
        "methods, each with the best of six settings",
        "debias-benchmark",
        "it is at most 0.002 nDCG behind the best other method",
        1,
        count=True,
    ),
    Line(
        "Eight real tasks by tab (KuaiRand), scores of one network that does not see the tab; our defaults were chosen "
        "on these rows with most of the eight labels: normalised entropy against Platt per task and tab",
        "kuairand-tasks",
        "layer, exact has lower NE than Platt, one per task and tab",
        -1,
    ),
    Line(
        "Position bias that grows day by day: nDCG against inverse propensities estimated daily",
        "incremental",
        "bias grows: with the detached anchor the isotonic head ranks as well as IPS re-estimated daily (within 0.005)",
        1,
        3,
    ),
    Line(
        "The same with the paper's joint loss instead of our detached anchor",
        "incremental",
        "bias grows: with the joint loss the isotonic head ranks as well as IPS re-estimated daily (within 0.005)",
        1,
        3,
    ),
    Line(
        "Calibration of what a debiased ranker serves: its error (ECE) as a ratio to that of a ranker that was not "
        "debiased, after the same refit",
        "debias-benchmark",
        "what is served is calibrated like naive",
        -1,
        2,
        ratio=True,
        count=True,
    ),
)
RULE = (
    "Better and worse mean that the whole 95% interval is on that side of 0, for a ratio of 1; where worlds are "
    "counted, the outcome is that of most of them. The [claims]({claims}) hold the same figures against the bounds "
    "that the studies state ({bounds}), so that a difference can be better or worse here and undecided there."
)


def outcomes(folder: Path = ROOT / "docs" / "reproduced", *, studies: str = "studies/") -> str:
    """The table, in Markdown; ``studies`` is where its links find the pages of the studies.

    >>> outcomes().splitlines()[0]
    '| question | isolayer, with 95% interval | outcome | command |'
    """
    rows = ["| question | isolayer, with 95% interval | outcome | command |", "|---|---|---|---|"]
    bounds = list[str]()
    for line in LINES:
        document = json.loads((folder / f"{line.study}.json").read_text())
        own = [part for part in document["parts"] if matches(line, part["says"])]
        if not own:
            raise InputError(f"part: expected one of {line.study} that says {line.part!r}, got none; run it again")
        figure, came = counted(line, own) if line.count else (said(line, own[0]), outcome(line, own[0]))
        link = f"[`{document['command']}`]({studies}{line.study}.md)"
        rows.append(f"| {line.question} | {figure} | {came} | {link} |")
        bounds += [f"{line.study}: {part['must']}" for part in own if not asks_nothing(line, part)]
    claims = studies.removesuffix("studies/") + "claims.md"
    rule = RULE.format(claims=claims, bounds="; ".join(dict.fromkeys(bounds)))
    return "\n".join([*rows, "", rule])


def matches(line: Line, says: str) -> bool:
    """Whether a part is the one of a line, or one that it counts."""
    return says.startswith(line.part) if line.count else says == line.part


def asks_nothing(line: Line, part: dict[str, Any]) -> bool:
    """Whether the bound of a part is that of this table: no difference, or for ratios 1.

    >>> asks_nothing(Line("", "", "", -1), {"must": "below 0"}), asks_nothing(Line("", "", "", -1), {"must": "below 1"})
    (True, False)
    """
    return float(part["must"].split()[-1]) == line.ratio


def counted(line: Line, parts: list[dict[str, Any]]) -> tuple[str, str]:
    """In how many worlds isolayer is better, level and worse beyond chance, with the range of means; and the most.

    >>> three = [{"value": 1.0, "lower": low, "upper": 2.0} for low in (-1.0, -0.5, 0.5)]
    >>> counted(Line("", "", "", 1, 1), three)
    ('better in 1 of 3 worlds, level in 2, worse in 0; means from 1.0 to 1.0', 'tie in 2 of 3')
    """
    came = [outcome(line, part) for part in parts]
    better, level, worse = (came.count(kind) for kind in KINDS)
    ends = (end(part["value"] for part in parts) for end in (min, max))
    means = " to ".join(_number(value, line.digits) for value in ends)
    figure = f"better in {better} of {len(parts)} worlds, level in {level}, worse in {worse}; means from {means}"
    most = max(KINDS, key=came.count)
    return figure, f"{most} in {came.count(most)} of {len(parts)}"


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
    value, lower, upper = (_number(number, line.digits) for number in (value, lower, upper))
    return f"{before}{value}{word} [{lower}, {upper}]"


def _number(number: float, digits: int) -> str:
    """A number of so many decimals, without a sign where they are all 0.

    >>> _number(-0.00002, 4), _number(-0.5, 1)
    ('0.0000', '-0.5')
    """
    return f"{round(number, digits) + 0.0:.{digits}f}"


def outcome(line: Line, part: dict[str, Any]) -> str:
    """Win or loss by the side that the whole interval is on.

    >>> line = Line("", "", "", -1)
    >>> outcome(line, {"lower": -0.2, "upper": -0.1}), outcome(line, {"lower": -0.2, "upper": 0.1})
    ('better', 'tie')
    """
    lower, upper = part["lower"] - line.ratio, part["upper"] - line.ratio
    better, level, worse = KINDS
    if lower <= 0 <= upper:
        return level
    return better if line.better * lower > 0 else worse


def write(page: Path, studies: str) -> None:
    """Put the table between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{outcomes(studies=studies)}\n{END}{after}")


PAGES = {ROOT / "README.md": "docs/studies/", ROOT / "docs" / "index.md": "studies/"}

if __name__ == "__main__":
    for page, studies in PAGES.items():
        write(page, studies)
