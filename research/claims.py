"""What holds and what does not: one row per claim of the paper, decided by the parts of the studies that test it.

A claim names the study and the parts of its verdict that decide it (`research.claim`). Its outcome and figures are
read from the study's numbers; only the sentences are typed. A sentence that explains an outcome is written for that
outcome and shown with no other: where a run comes out in a way nobody has explained, the page says so. Beside the
figure of the part that the claim is named by stands that of the part that speaks most against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from research.claim import Claim
from research.claims_of_scope import SCOPE, UNTESTED
from research.claims_of_tables import TABLES
from research.result import VERDICTS, outcome_of

_HEAD = """# What holds and what does not

One row per claim of the paper: where it says it, the world in which we tried it, what came out and why. Outcomes and
figures are those of the [studies](results.md), which test each claim in parts: it **held** when the 95% interval of
every part is on the side that the claim says, **held in direction** when only the means are, **held in part** when some
parts held and others did not. The figures are that of the part by which the claim is named and, where not all parts
held, that of the one that contradicts it most.
"""
CLAIMS = (*TABLES, *SCOPE)
NOT_RUN, ANEW = "not run", "No explanation is written for this outcome."
DIRECTION = "The means are on the claimed side; their intervals reach the other, so it may be chance."


def row(claim: Claim, document: dict[str, Any] | None) -> str:
    """The line of a claim, from the numbers of its study."""
    decided = [] if document is None else claim.decided(document["parts"])
    study = f"[{claim.study}](studies/{claim.study}.md)" if decided else f"`python -m research {claim.study}`"
    outcome = outcome_of([part["held"] for part in decided]) if decided else NOT_RUN
    why = {NOT_RUN: "", "held in direction": DIRECTION, **claim.why}.get(outcome, ANEW)
    figures = "; ".join(_figure(part) for part in _shown(decided))
    return f"| {claim.says} ({claim.where}) | {claim.world} {study} | **{outcome}** | {figures} | {why} |"


def _shown(decided: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The part that a claim is named by, and the worst of the others if it is worse."""
    if not decided:
        return []
    worst = max(decided, key=lambda part: VERDICTS.index(part["held"]))
    first = decided[0]
    return [first] if VERDICTS.index(worst["held"]) <= VERDICTS.index(first["held"]) else [first, worst]


def claims_page(out: str | Path) -> str:
    """The whole of ``docs/claims.md`` from the numbers under ``out``.

    >>> print(claims_page("a folder nobody has").splitlines()[0])
    # What holds and what does not
    """
    lines = [_HEAD, "| the paper says | our world | outcome | figure | why |", "|---" * 5 + "|"]
    for claim in CLAIMS:
        path = Path(out) / f"{claim.study}.json"
        lines.append(row(claim, json.loads(path.read_text()) if path.exists() else None))
    lines += [f"| {says} ({where}) | | **not tested** | | {why} |" for says, where, why in UNTESTED]
    return "\n".join([*lines, "", _FOOT])


def _figure(part: dict[str, Any]) -> str:
    interval = f" [{part['lower']:.3g}, {part['upper']:.3g}]" if part["lower"] < part["upper"] else ""
    return f"{part['says']}: {part['value']:.3g}{interval}, must be {part['must']}"


_FOOT = """The paper's listing of the layer (appendix C) does not parse as printed: in the assignment of `delta` a
bracket closes one line too early. What we call "as the paper lists it" is our reading of it.
"""
