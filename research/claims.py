"""What holds and what does not: one row per claim of the paper, decided by the parts of the studies that test it.

A claim names the studies and the parts of their verdicts that decide it (`research.claim`). Its outcome and figures are
read from the numbers of the studies; only the sentences are typed. A sentence that explains an outcome is written for
that outcome and shown with no other: where a run comes out in a way nobody has explained, the page says so. Beside the
figure of the part that the claim is named by stand those of parts that speak against it, some of every study.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.claim import Claim, Documents, figure, refuted
from research.claims_of_alternatives import ALTERNATIVES
from research.claims_of_debiasing import DEBIASING
from research.claims_of_layer import LAYER
from research.claims_of_ours import OURS
from research.claims_of_scope import SCOPE, UNTESTED
from research.claims_of_tables import TABLES
from research.result import VERDICTS, Held, outcome_of

_HEAD = """# What holds and what does not

This page goes through the paper claim by claim: what the paper says and where, the world in which we tried it, what
came out, and why. {counted}

The [studies](results.md) test each claim in parts. A part is a number that must be above or below a bound, and a claim

- **held** when the 95% interval of every part is on the side that the claim says;
- **held in direction** when the means of all parts are, but not all intervals;
- **held in part** when some parts held and others did not;
- **did not hold** when no part held and some part is beyond chance: its whole interval is on the other side;
- is **undecided** when no part held and none is beyond chance on the other side.

The brackets count the parts. A claim that says "any", "no" or "free of" did not hold when a single part is beyond
chance, even where others held. Some parts ask for more than the paper says, such as closing 92% of the gap to a model
that is trained on unbiased labels. Differences between two studies are paired by seed only where both drew the same
logs. Rows about the head are of the paper's own loss and wiring, with this package's curves and learning rates; what we
changed has [a table of its own](#what-we-add). The column of figures begins with the part by which the claim is named,
and continues with parts that contradict it: at least one of every study that has any. The [glossary](glossary.md)
explains the terms.
"""
PAPERS = (*LAYER, *TABLES, *DEBIASING, *ALTERNATIVES, *SCOPE)
CLAIMS = (*PAPERS, *OURS)
NOT_RUN, ANEW = "not run", "No explanation is written for this outcome."
DIRECTION = "All means are on the claimed side; the interval of {some} of {all} parts reaches the other."
UNDECIDED = "undecided"
NO_DECISION = "No part held, and none is beyond chance on the other side: this study cannot tell."
MOST = 4  # parts shown that speak against a claim, unless more studies than that have one


def row(claim: Claim, documents: Documents) -> str:
    """The line of a claim, from the numbers of its studies."""
    decided = claim.evidence(documents)
    studies = ", ".join(_link(study, documents) for study in claim.studies)
    came_out = outcome(decided, universal=claim.universal)
    known = {NOT_RUN: "", "held in direction": _direction(decided), UNDECIDED: NO_DECISION}
    why = {**known, **claim.why}.get(came_out, claim.why.get("held in part", ANEW) if claim.universal else ANEW)
    told = claim.tells(documents) if claim.tells and decided else ""
    said = " ".join(filter(None, (why, told)))
    return (
        f"| {claim.says} ({claim.where}) | {claim.world} {studies} | **{came_out}**{_counts(decided)} | "
        f"{_figures(decided)} | {said} |"
    )


def outcome(decided: Sequence[Mapping[str, Any]], *, universal: bool = False) -> str:
    """What the parts that decide a claim come to; one beyond chance refutes a universal claim."""
    if not decided:
        return NOT_RUN
    beyond = any(part["held"] == VERDICTS[-1] and refuted(part) for part in decided)
    if universal and beyond:
        return VERDICTS[-1]
    return outcome_of([part["held"] for part in decided], beyond_chance=beyond)


def _link(study: str, documents: Documents) -> str:
    return f"[{study}](studies/{study}.md)" if study in documents else f"`python -m research {study}`"


def _counts(decided: list[dict[str, Any]]) -> str:
    """How many parts came out in each way; nothing where there is one part or none.

    >>> part = {"must": "above 0", "value": -1.0, "lower": -2.0, "upper": -0.5, "held": "did not hold"}
    >>> _counts([part, {**part, "held": "held"}])
    ' (of 2 parts 1 held, 1 did not, 1 of them beyond chance)'
    """
    if len(decided) < 2:
        return ""
    held, direction, failed = (sum(part["held"] == kind for part in decided) for kind in VERDICTS)
    if held == len(decided):
        return f" (all {held} parts)"
    said = [f"{held} held", *([f"{direction} in direction"] if direction else [])]
    if failed:
        beyond = sum(part["held"] == VERDICTS[-1] and refuted(part) for part in decided)
        said.append(f"{failed} did not, {beyond or 'none'} of them beyond chance")
    return f" (of {len(decided)} parts {', '.join(said)})"


def _direction(decided: list[dict[str, Any]]) -> str:
    some = sum(part["held"] != VERDICTS[0] for part in decided)
    return DIRECTION.format(some=some, all=len(decided))


def _figures(decided: list[dict[str, Any]]) -> str:
    """The part that a claim is named by, and after it those that contradict it."""
    if not decided:
        return ""
    against = [part for part in decided[1:] if part["held"] == _worst(decided) != VERDICTS[0]]
    shown, left = _some(against), len(against) - len(_some(against))
    links = "also" if decided[0]["held"] == _worst(decided) else "but"
    figures = f";<br>{links} {';<br>'.join(_figure(part) for part in shown)}" if shown else ""
    return _figure(decided[0]) + figures + (f";<br>and {left} more" if left else "")


def _worst(decided: list[dict[str, Any]]) -> str:
    held: list[Held] = [part["held"] for part in decided]
    return max(held, key=VERDICTS.index)


def _some(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first part of every study or comparison, then others up to a few in all."""
    first = {part["from"]: part for part in reversed(parts)}
    heads = [part for part in parts if first[part["from"]] is part]
    rest = [part for part in parts if first[part["from"]] is not part]
    return heads + rest[: max(0, MOST - len(heads))]


def claims_page(out: str | Path) -> str:
    """The whole of ``docs/claims.md`` from the numbers under ``out``.

    >>> print(claims_page("a folder nobody has").splitlines()[0])
    # What holds and what does not
    """
    names = dict.fromkeys(study for claim in CLAIMS for study in claim.studies)
    paths = {name: Path(out) / f"{name}.json" for name in names}
    documents = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    lines = [_HEAD.format(counted=_counted(documents))]
    lines += [*_begin("the paper says"), *(row(claim, documents) for claim in PAPERS)]
    lines += [f"| {says} ({where}) | | **not tested** | | {why} |" for says, where, why in UNTESTED]
    lines += ["", _LISTING, _ADDED, *_begin("we say"), *(row(claim, documents) for claim in OURS)]
    return "\n".join(lines) + "\n"


def _counted(documents: Documents) -> str:
    """How many claims of the paper came out in each way."""
    found = Counter(outcome(claim.evidence(documents), universal=claim.universal) for claim in PAPERS)
    order = (*VERDICTS[:2], "held in part", VERDICTS[2], UNDECIDED, NOT_RUN)
    words = {UNDECIDED: "stayed undecided", NOT_RUN: "wait for a run"}
    said = [f"{found[one]} {words.get(one, one)}" for one in order if found[one]]
    listed = f"{', '.join(said[:-1])} and {said[-1]}" if said[1:] else said[0]
    return (
        f"Of {len(PAPERS)} claims that a study tests {listed}.\n"
        f"{len(UNTESTED)} more are not tested; they are at the end of the table."
    )


def _begin(first: str) -> tuple[str, str]:
    return f"| {first} | our world | outcome | figure | why |", "|---" * 5 + "|"


def _figure(part: dict[str, Any]) -> str:
    return f"{part['says']}: {figure(part)}, must be {part['must']}"


_LISTING = """The paper's listing of the layer (appendix C) does not parse as printed: in the assignment of `delta` a
bracket closes one line too early. What we call "as the paper lists it" is our reading of it.
"""
_ADDED = """## What we add

The same table for what this package adds to the paper, so that none of it counts for the paper or against it.
"""
