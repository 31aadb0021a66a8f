"""What holds and what does not: one row per claim of the paper, decided by the parts of the studies that test it.

A claim names the studies and the parts of their verdicts that decide it (`research.claim`). Its outcome and figures are
read from the numbers of the studies; only the sentences are typed. A sentence that explains an outcome is written for
that outcome and shown with no other: where a run comes out in a way nobody has explained, the page says so. Beside the
figure of the part that the claim is named by stand those of parts that speak against it, some of every study.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from research.claim import Claim, Documents, beyond_chance, figure
from research.claims_of_alternatives import ALTERNATIVES
from research.claims_of_debiasing import DEBIASING
from research.claims_of_layer import LAYER
from research.claims_of_ours import OURS
from research.claims_of_scope import SCOPE, UNTESTED
from research.claims_of_tables import TABLES
from research.result import VERDICTS, Held, outcome_of

_HEAD = """# What holds and what does not

One row per claim of the paper: where it says it, the world in which we tried it, what came out and why. Outcomes and
figures are those of the [studies](results.md), which test each claim in parts: it **held** when the 95% interval of
every part is on the side that the claim says, **held in direction** when only the means are, **held in part** when some
parts held and others did not, and **did not hold** when the mean of some part is on the other side and no part held. In
brackets is how many parts held, held in direction only, and did not hold, and how many of the last are beyond chance,
with the whole interval on the other side: the rest is undecided. Some parts ask for more than the paper says, such as
closing 92% of the gap to a model that is trained on unbiased labels. Rows about the head are of the paper's own loss
and wiring; what we changed has a table of its own, below. The figures are that of the part by which the claim is named
and, after "but" or "also", those of parts that contradict it: at least one of every study that has any. Click models
(PBM, DBN), loggers, anchors and other terms are in the [glossary](glossary.md).
"""
PAPERS = (*LAYER, *TABLES, *DEBIASING, *ALTERNATIVES, *SCOPE)
CLAIMS = (*PAPERS, *OURS)
NOT_RUN, ANEW = "not run", "No explanation is written for this outcome."
DIRECTION = "All means are on the claimed side; the interval of {some} of {all} parts reaches the other."
MOST = 4  # parts shown that speak against a claim, unless more studies than that have one


def row(claim: Claim, documents: Documents) -> str:
    """The line of a claim, from the numbers of its studies."""
    decided = claim.evidence(documents)
    studies = ", ".join(_link(study, documents) for study in claim.studies)
    outcome = outcome_of([part["held"] for part in decided]) if decided else NOT_RUN
    why = {NOT_RUN: "", "held in direction": _direction(decided), **claim.why}.get(outcome, ANEW)
    told = claim.tells(documents) if claim.tells and decided else ""
    said = " ".join(filter(None, (why, told)))
    return (
        f"| {claim.says} ({claim.where}) | {claim.world} {studies} | **{outcome}**{_counts(decided)} | "
        f"{_figures(decided)} | {said} |"
    )


def _link(study: str, documents: Documents) -> str:
    return f"[{study}](studies/{study}.md)" if study in documents else f"`python -m research {study}`"


def _counts(decided: list[dict[str, Any]]) -> str:
    """How many parts came out in each way, best first; nothing where there is one part or none."""
    counts = ", ".join(str(sum(part["held"] == kind for part in decided)) for kind in VERDICTS)
    return f" ({counts}{beyond_chance(decided)})" if len(decided) > 1 else ""


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
    figures = f"; {links} {'; '.join(_figure(part) for part in shown)}" if shown else ""
    return _figure(decided[0]) + figures + (f"; and {left} more" if left else "")


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
    lines = [_HEAD, *_begin("the paper says"), *(row(claim, documents) for claim in PAPERS)]
    lines += [f"| {says} ({where}) | | **not tested** | | {why} |" for says, where, why in UNTESTED]
    lines += ["", _LISTING, _ADDED, *_begin("we say"), *(row(claim, documents) for claim in OURS)]
    return "\n".join(lines) + "\n"


def _begin(first: str) -> tuple[str, str]:
    return f"| {first} | our world | outcome | figure | why |", "|---" * 5 + "|"


def _figure(part: dict[str, Any]) -> str:
    return f"{part['says']}: {figure(part)}, must be {part['must']}"


_LISTING = """The paper's listing of the layer (appendix C) does not parse as printed: in the assignment of `delta` a
bracket closes one line too early. What we call "as the paper lists it" is our reading of it.
"""
_ADDED = """## What we add

The same of what is not in the paper, so that nothing of it counts for the paper or against it.
"""
