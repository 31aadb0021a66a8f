"""A claim of the paper: what it says and where, the study and parts that decide it, and why it came out so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
    """

    says: str
    where: str
    study: str
    parts: tuple[str, ...]
    world: str
    why: Mapping[str, str] = field(default_factory=dict)

    def decided(self, parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The parts of a verdict that decide this claim, that of the figure first."""
        found = {part["says"]: part for says in self.parts for part in parts if part["says"].startswith(says)}
        return list(found.values())


HELD, PARTLY, NOT = "held", "held in part", "did not hold"
