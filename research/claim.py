"""A claim of the paper: what it says and where, the studies and parts that decide it, and why it came out so."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isolayer.errors import need
from research.result import MIXED, PARTLY, VERDICTS, Part

__all__ = ["HELD", "MIXED", "NOT", "PARTLY", "Claim"]

Documents = Mapping[str, dict[str, Any]]  # what studies wrote, by name; those that were run


@dataclass(frozen=True)
class Claim:
    """One thing the paper says.

    Args:
        says: The claim, in a sentence.
        where: The section, table or figure.
        study: The experiment that tests it.
        parts: What the deciding parts of its verdict say, or begin with; the first gives the figure.
        world: Where it was tried, in a sentence.
        why: Why it came out so, by outcome.
        also: Other studies that test it, with their deciding parts; with none, a study is only named.
        compared: Further parts, worked out from the numbers of one or more studies.
        tells: Sentences for the explanation that are written from the numbers.
        universal: Whether it says that something is so always, best or never, so that one contradicted part refutes it.
    """

    says: str
    where: str
    study: str
    parts: tuple[str, ...]
    world: str
    why: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compared: Callable[[Documents], Sequence[Part]] | None = None
    tells: Callable[[Documents], str] | None = None
    universal: bool = False

    @property
    def studies(self) -> tuple[str, ...]:
        """Every study that tests it, the first gives the figure."""
        return (self.study, *self.also)

    def decided(self, parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The parts of the first study's verdict that decide this claim, that of the figure first."""
        return chosen(self.parts, parts)

    def evidence(self, documents: Documents) -> list[dict[str, Any]]:
        """All parts that decide this claim, that of the figure first, each with its study or what it compares."""
        found = [
            {**part, "from": study}
            for study, names in ((self.study, self.parts), *self.also.items())
            if study in documents
            for part in chosen(names, documents[study]["parts"])
        ]
        compared = self.compared(documents) if self.compared else ()
        return found + [{**plain(part), "from": part.says.partition(" (")[0]} for part in compared]


def chosen(names: Sequence[str], parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts that say one of these things or begin with it; one that says exactly it goes before all that begin so.

    >>> parts = [{"says": "AUC rises (trust)"}, {"says": "AUC rises"}, {"says": "NE falls (trust)"}]
    >>> [part["says"] for part in chosen(["NE", "AUC rises"], parts)]
    ['NE falls (trust)', 'AUC rises']
    """
    found = {}
    for name in names:
        exact = [part for part in parts if part["says"] == name]
        found.update({part["says"]: part for part in exact or parts if part["says"].startswith(name)})
    return list({part["says"]: part for part in found.values()}.values())


def figure(part: Mapping[str, Any]) -> str:
    """The number of a part with its unit and interval, as pages show it.

    >>> figure({"value": 1.5, "lower": 0.25, "upper": 2.75, "unit": "%"}), figure({"value": 0, "lower": 0, "upper": 0})
    ('1.5% [0.25, 2.75]', '0')
    """
    lower, upper = map(number, (part["lower"], part["upper"]))
    interval = f" [{lower}, {upper}]" if part["lower"] < part["upper"] and {lower, upper} != {"0"} else ""
    return f"{number(part['value'])}{part.get('unit', '')}{interval}"


def number(value: float) -> str:
    """Three digits, but all of those before the point, and nothing for what rounding left.

    >>> number(-0.00275), number(3741.2), number(12345), number(3.5e-14), number(-0.0)
    ('-0.00275', '3,740', '12,300', '0', '0')
    """
    if abs(value) < 1e-9:
        return "0"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


def plain(part: Part) -> dict[str, Any]:
    """A part as studies write it."""
    return {"says": part.says, "must": part.must, "held": part.held, **part.estimate._asdict(), "unit": part.unit}


def _over(part: Mapping[str, Any]) -> float:
    """How far the number of a part is beyond its bound; below 0 where it is on the claimed side."""
    words = part["must"].split()
    return max(
        float(part["value"]) - bound if side == "below" else bound - float(part["value"])
        for side, bound in zip(words[::3], map(float, words[1::3]), strict=True)
    )


def refuted(part: Mapping[str, Any]) -> bool:
    """Whether the whole interval of a part is on the other side of its bound.

    >>> part = {"must": "below 0", "value": 1.0, "lower": -1.0, "upper": 3.0}
    >>> refuted(part), refuted({**part, "lower": 0.5}), refuted({**part, "must": "above -9 and below 0", "lower": 0.5})
    (False, True, True)
    """
    words = part["must"].split()
    bounds = dict(zip(words[::3], map(float, words[1::3]), strict=True))
    return bool(part["upper"] < bounds.get("above", -math.inf) or part["lower"] > bounds.get("below", math.inf))


def outcome_in_words(part: Mapping[str, Any]) -> str:
    """How a part came out: what did not hold is contradicted beyond chance, or not shown.

    >>> part = {"must": "below 0", "held": "did not hold", "value": 1.0, "lower": 0.5, "upper": 3.0}
    >>> outcome_in_words(part), outcome_in_words({**part, "lower": -1.0}), outcome_in_words({**part, "held": "held"})
    ('contradicted', 'not shown', 'held')
    """
    if part["held"] != NOT:
        return str(part["held"])
    return CONTRADICTED if refuted(part) else NOT_SHOWN


def counted(parts: Sequence[Mapping[str, Any]]) -> str:
    """How many parts came out in each way.

    >>> held, failed = {"held": "held"}, {"held": "did not hold", "must": "above 0", "lower": -3, "upper": -1}
    >>> counted([held, failed]), counted([held, held]), counted([held])
    ('1 of 2 parts held, 1 contradicted', 'all 2 parts held', 'one part')
    """
    if len(parts) == 1:
        return "one part"
    found = [outcome_in_words(part) for part in parts]
    held = found.count("held")
    if held == len(parts):
        return f"all {held} parts held"
    others = {"held in direction": "in direction", NOT_SHOWN: NOT_SHOWN, CONTRADICTED: CONTRADICTED}
    said = [f"{held} of {len(parts)} parts held"]
    return ", ".join(said + [f"{found.count(one)} {words}" for one, words in others.items() if one in found])


def p_value(part: Mapping[str, Any]) -> float:
    """Of the two-sided t-test that the number is at its bound, from its 95% interval.

    Where resampled queries are pooled with seeds, the freedom of the seeds alone is taken, so that p is too large.

    >>> part = {"must": "below 0", "value": 1.0, "lower": 0.0, "upper": 2.0, "seeds": 5}
    >>> round(p_value(part), 3), p_value({**part, "lower": 1.0, "upper": 1.0})
    (0.05, 0.0)
    """
    half = (part["upper"] - part["lower"]) / 2
    if half == 0:
        return 0.0
    freedom = part["seeds"] - 1 if part["seeds"] > 1 else math.inf  # resampled rows or users: as good as normal
    special = need("scipy.special")
    distance = abs(_over(part)) / half * float(special.stdtrit(freedom, 0.975))
    return 2 * float(special.stdtr(freedom, -distance))


def contradiction(part: Mapping[str, Any]) -> tuple[int, bool, float]:
    """How strongly a part speaks against a claim, to sort by: its outcome, whether it is beyond chance, how far.

    How far is the distance of the number from its bound in half widths of the interval.

    >>> part = {"must": "below 0", "value": 1.0, "lower": 0.5, "upper": 1.5, "held": "did not hold"}
    >>> contradiction(part), contradiction({**part, "value": -1.0, "lower": -2.0, "upper": 0.5, "held": "held"})
    ((2, True, 2.0), (0, False, -0.8))
    """
    over, half = _over(part), (part["upper"] - part["lower"]) / 2
    return VERDICTS.index(part["held"]), refuted(part), over / half if half > 0 else math.copysign(math.inf, over)


def bound(part: Mapping[str, Any]) -> str:
    """What a part must be, with its unit.

    >>> bound({"must": "above -0.5 and below 1", "unit": "%"}), bound({"must": "below 0", "unit": ""})
    ('above -0.5% and below 1%', 'below 0')
    """
    return re.sub(r"(?<=[a-z] )\S+(?= and|$)", lambda found: f"{found[0]}{part.get('unit', '')}", part["must"])


HELD, NOT = "held", "did not hold"
NOT_SHOWN, CONTRADICTED = "not shown", "contradicted"
