"""A claim of the paper: what it says and where, the studies and parts that decide it, and why it came out so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from research.result import VERDICTS, Part

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
        universal: Whether it says "any", "no" or "free of", so that one part beyond chance refutes it.
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


def refuted(part: Mapping[str, Any]) -> bool:
    """Whether the whole interval of a part is on the other side of its bound.

    >>> part = {"must": "below 0", "value": 1.0, "lower": -1.0, "upper": 3.0}
    >>> refuted(part), refuted({**part, "lower": 0.5}), refuted({**part, "must": "above -9 and below 0", "lower": 0.5})
    (False, True, True)
    """
    words = part["must"].split()
    bounds = dict(zip(words[::3], map(float, words[1::3]), strict=True))
    return bool(part["upper"] < bounds.get("above", -math.inf) or part["lower"] > bounds.get("below", math.inf))


def contradiction(part: Mapping[str, Any]) -> tuple[int, bool, float]:
    """How strongly a part speaks against a claim, to sort by: its outcome, whether it is beyond chance, how far.

    How far is the distance of the number from its bound in half widths of the interval.

    >>> part = {"must": "below 0", "value": 1.0, "lower": 0.5, "upper": 1.5, "held": "did not hold"}
    >>> contradiction(part), contradiction({**part, "value": -1.0, "lower": -2.0, "upper": 0.5, "held": "held"})
    ((2, True, 2.0), (0, False, -0.8))
    """
    words = part["must"].split()
    over = max(
        part["value"] - bound if side == "below" else bound - part["value"]
        for side, bound in zip(words[::3], map(float, words[1::3]), strict=True)
    )
    half = (part["upper"] - part["lower"]) / 2
    return VERDICTS.index(part["held"]), refuted(part), over / half if half > 0 else math.copysign(math.inf, over)


def beyond_chance(parts: Sequence[Mapping[str, Any]]) -> str:
    """How many of the parts that did not hold are beyond chance, after their number; nothing where all held."""
    failed = [part for part in parts if part["held"] == NOT]
    return f", {sum(map(refuted, failed))} beyond chance" if failed else ""


HELD, PARTLY, NOT = "held", "held in part", "did not hold"
