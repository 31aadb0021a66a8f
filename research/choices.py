"""What a study that chooses settings comes to: the best setting of every method, and how near the edge of those tried.

A unit of such a study is one method in one click model, its setting is called ``"PBM: PAL"``, and its numbers are the
score of each setting, by its JSON; the first is the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from research.charts import intervals
from research.debias_methods import Setting
from research.result import Finished, Part, Row, certain, estimate

Best = dict[str, dict[str, Setting]]  # by click model and method
Tried = Mapping[str, Sequence[Setting]]  # by method
FEWEST = 3  # values of a parameter for which it means something that a choice is at the edge of them


class Choices(NamedTuple):
    """The best settings, and what they gained over the defaults on the seeds that they were chosen on."""

    best: Best
    rows: tuple[Row, ...]
    gain: list[dict[str, Any]]  # for the picture


class Chosen(NamedTuple):
    """The value of one parameter in one choice."""

    clicks: str
    method: str
    parameter: str
    value: float
    values: tuple[float, ...]  # that were tried, in order

    @property
    def at_edge(self) -> bool:
        """Whether values beyond it, which may be better, were not tried; none of these parameters can be below 0.

        >>> [Chosen("PBM", "PAL", "rate", value, (0, 10, 100)).at_edge for value in (0, 10, 100)]
        [False, False, True]
        """
        return self.value == self.values[-1] or self.value == self.values[0] > 0


def choices(finished: Sequence[Finished]) -> Choices:
    """The setting with the best mean over seeds of every method in every click model."""
    best: Best = {}
    rows, gains = list[Row](), list[dict[str, Any]]()
    for name in dict.fromkeys(one.unit.setting for one in finished):
        clicks, method = name.split(": ")
        scores = [one.numbers for one in finished if one.unit.setting == name]
        means = {key: float(np.mean([score[key] for score in scores])) for key in scores[0]}
        default, chosen = next(iter(means)), max(means, key=lambda key: means[key])
        best.setdefault(clicks, {})[method] = json.loads(chosen)
        by_seed = [score[chosen] - score[default] for score in scores]
        gain = estimate(by_seed) if len(by_seed) > 1 else certain(by_seed[0])
        gains.append({"clicks": clicks, "method": method, **gain._asdict()})
        rows.append(Row(name, f"nDCG@10 gained by {chosen}", gain, digits=4))
    return Choices(best, tuple(rows), gains)


def ordered(best: Best, tried: Tried) -> Iterator[Chosen]:
    """Every parameter of every choice that had at least `FEWEST` values to choose from."""
    for clicks, chosen in best.items():
        for method, setting in chosen.items():
            for parameter, value in setting.items():
                values = tuple(sorted({one[parameter] for one in tried[method]}))
                if len(values) >= FEWEST:
                    yield Chosen(clicks, method, parameter, value, values)


def no_edge(best: Best, tried: Tried) -> Part:
    """Whether no choice is at an edge of the values tried."""
    count = sum(one.at_edge for one in ordered(best, tried))
    return Part("no choice is at an edge of the values tried (number that are)", certain(count), below=0.5)


def said_of_edges(best: Best, tried: Tried) -> str:
    """How many choices are at an edge, and which methods are so in every click model."""
    found = list(ordered(best, tried))
    edges = [(one.method, one.parameter, one.value) for one in found if one.at_edge]
    least = sum(not one.at_edge and one.value == one.values[0] for one in found)
    always = [one for one in dict.fromkeys(edges) if edges.count(one) == len(best)]
    named = ", ".join(f"{method} ({parameter} {value:g})" for method, parameter, value in always)
    said = (
        f"Of {len(found)} choices among {FEWEST} or more values of a parameter {len(edges)} are at an edge of them, "
        f"beyond which others may be better{f'; in every click model that of {named}' if named else ''}."
    )
    return said + f" {least} more are at a value of 0, below which there is none." * bool(least)


def said_of_same(best: Best) -> str:
    """How many methods have the same choice in every click model."""
    methods = dict.fromkeys(method for chosen in best.values() for method in chosen)
    same = [name for name in methods if len({json.dumps(chosen.get(name)) for chosen in best.values()}) == 1]
    named = f" ({', '.join(same)})" if same else ""
    return f"Methods with the same choice in all {len(best)} click models: {len(same)} of {len(methods)}{named}."


def chart(series: dict[str, Any]) -> Any:
    """What the best setting gains over the default, with intervals over the seeds of tuning."""
    order = list(dict.fromkeys(row["method"] for row in series["gain"]))
    title = "nDCG@10 over the default"
    return intervals(series["gain"], y="method", panel="clicks", order=order, title=title, columns=3, zero=True)
