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

from research.claim import (
    CONTRADICTED,
    HELD,
    MIXED,
    NOT,
    PARTLY,
    Claim,
    Documents,
    bound,
    contradiction,
    counted,
    figure,
    outcome_in_words,
    p_value,
    refuted,
)
from research.claims_of_alternatives import ALTERNATIVES
from research.claims_of_debiasing import DEBIASING
from research.claims_of_layer import LAYER
from research.claims_of_ours import OURS
from research.claims_of_scope import SCOPE
from research.claims_of_tables import TABLES
from research.claims_untested import UNTESTED
from research.result import UNDECIDED, outcome_of

_HEAD = """# What holds and what does not

The paper is *Isotonic Layer: A Unified Framework for Recommendation Calibration and Debiasing*. Each row below is one
of its claims, how we tested it, what came out, and the figures that decide. We have no live traffic: unless a row names
public data, its world is simulated, so compare signs with the paper and not sizes. {counted}

A claim is cut into parts. A part is one number with a 95% interval and a bound. It **held** if the whole interval is on
the claimed side of the bound, **held in direction** if only the mean is, is **contradicted** if the whole interval is
on the other side, and is **not shown** otherwise. A claim

- **held** or **held in direction** when all its parts did;
- is **mixed** when some part held and some part is contradicted;
- **held in part** when some part held and none is contradicted;
- **did not hold** when no part held and some part is contradicted;
- is **undecided** when no part held and none is contradicted.

The column of figures begins with the part by which the claim is named. Below it stand the parts that speak against the
claim most surely, one of every study that has any, and folded away all others that are contradicted or not shown. "The
table" in the last column is that of all parts on the page of the study. No reason is tested unless the last column says
so. The names of worlds are those of their click models (PBM, trust, DCM, DBN, contextual) and loggers (spurious: ranks
by a feature that tells nothing of relevance; informed: knows relevance that the features lack), see the
[glossary](glossary.md).
"""
_FOOT = """## How to read it

- A claim that says that something is so always, best or never (any, all, every, no, free of, impossible) did not hold
  when a single part is contradicted, even where others held. With many parts chance alone contradicts some, so there
  the interval is widened for their number (Bonferroni); if none is contradicted then, the claim is judged as any other.
- For all other claims each interval is at 95% by itself: {parts} parts decide the claims on this page, and of parts
  whose truth lies exactly on the bound chance contradicts one in forty. {contradicted} are contradicted.
- Some parts ask for more than the paper says, such as closing 92% of the gap to a model that is trained on unbiased
  labels. That target, and all margins, are ours.
- Differences between two studies are paired by seed only where both drew the same logs.
- Rows about the head are of the paper's own loss and wiring, with this package's curves and learning rates. What we
  changed is under [What we add](#what-we-add).
- The [studies](results.md) have every figure, and the [glossary](glossary.md) explains the terms.
- The paper's listing of the layer (appendix C) does not parse as printed: in the assignment of `delta` a bracket closes
  one line too early. What we call "as the paper lists it" is our reading of it.
"""
TOPICS = {
    "The layer (section 3)": LAYER,
    "Tables and figures (sections 4 and 5, appendices A and B)": TABLES,
    "Debiasing (section 5)": DEBIASING,
    "What other methods cannot do (sections 1, 2 and 5)": ALTERNATIVES,
    "Many segments, real data and future work (sections 1, 4 and 6)": SCOPE,
}
PAPERS = tuple(claim for claims in TOPICS.values() for claim in claims)
CLAIMS = (*PAPERS, *OURS)
NOT_RUN, ANEW = "not run", "No explanation is written for this outcome."
DIRECTION = "The means agree with the claim, but {some} of {all} intervals include the bound."
NO_DECISION = "The intervals are too wide to tell."
LEVEL = 0.05


def row(claim: Claim, documents: Documents) -> str:
    """The line of a claim, from the numbers of its studies."""
    decided = claim.evidence(documents)
    studies = ", ".join(_link(study, documents) for study in claim.studies)
    came_out = outcome(decided, universal=claim.universal)
    told = claim.tells(documents) if claim.tells and decided else ""
    said = " ".join(filter(None, (_why(claim, came_out, decided), told)))
    counts = f" ({counted(decided)})" if decided[1:] else ""
    return (
        f"| {claim.says} ({claim.where}) | {claim.world} {studies} | **{came_out}**{counts} | "
        f"{_figures(decided)} | {said} |"
    )


def _why(claim: Claim, came_out: str, decided: Sequence[Mapping[str, Any]]) -> str:
    """The sentence written for an outcome: one for "held in part" also serves where other parts are contradicted."""
    if came_out == NOT_RUN:
        return ""
    if came_out == "held in direction":
        some = sum(part["held"] != HELD for part in decided)
        return claim.why.get(came_out, DIRECTION.format(some=some, all=len(decided)))
    if came_out == UNDECIDED:
        return claim.why.get(came_out, NO_DECISION)
    some_held = any(part["held"] == HELD for part in decided)
    written_for = [PARTLY, came_out] if came_out == NOT and some_held else [came_out]
    written_for += [PARTLY] * (came_out == MIXED)
    return next((claim.why[one] for one in written_for if one in claim.why), ANEW)


def outcome(decided: Sequence[Mapping[str, Any]], *, universal: bool = False) -> str:
    """What the parts that decide a claim come to; a single contradicted part refutes a universal claim."""
    if not decided:
        return NOT_RUN
    against = [part for part in decided if part["held"] == NOT and refuted(part)]
    if universal:
        if any(p_value(part) * len(decided) < LEVEL for part in against):
            return NOT
        if all(part["held"] != HELD for part in decided):
            against = []  # by chance, perhaps: nothing refutes it, and nothing shows it
    return outcome_of([part["held"] for part in decided], contradicted=bool(against))


def _link(study: str, documents: Documents) -> str:
    return f"[{study}](studies/{study}.md)" if study in documents else f"`python -m research {study}`"


def _figures(decided: list[dict[str, Any]]) -> str:
    """The part that a claim is named by, that of each study which contradicts it most surely, and folded the others."""
    if not decided:
        return ""
    against = sorted(decided, key=contradiction, reverse=True)
    worst = outcome_in_words(against[0])
    first: dict[str, dict[str, Any]] = {}
    for part in against:
        if worst != HELD and outcome_in_words(part) == worst:
            first.setdefault(part["from"], part)
    shown = [decided[0], *(part for part in first.values() if part is not decided[0])]
    others = [part for part in against if part["held"] == NOT and not any(part is one for one in shown)]
    return "<br>".join(map(_told, shown)) + _folded(others)


def _folded(parts: Sequence[dict[str, Any]]) -> str:
    """The other parts that did not hold, behind a line that says how many there are."""
    if not parts:
        return ""
    return f"<details><summary>{len(parts)} more did not hold</summary>{'<br>'.join(map(_told, parts))}</details>"


def _told(part: dict[str, Any]) -> str:
    return f"{outcome_in_words(part)}: {_figure(part)}"


def claims_page(out: str | Path) -> str:
    """The whole of ``docs/claims.md`` from the numbers under ``out``.

    >>> print(claims_page("a folder nobody has").splitlines()[0])
    # What holds and what does not
    """
    names = dict.fromkeys(study for claim in CLAIMS for study in claim.studies)
    paths = {name: Path(out) / f"{name}.json" for name in names}
    documents = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    lines = [_HEAD.format(counted=_counted(documents))]
    for topic, claims in TOPICS.items():
        lines += [f"## {topic}", "", *_begin("the paper says"), *(row(claim, documents) for claim in claims), ""]
    lines += [_ADDED, *_begin("we say"), *(row(claim, documents) for claim in OURS), "", "## Not tested", ""]
    for kind, untested in UNTESTED.items():
        lines += [f"{kind}:", "", *(f"- {says} ({where}). {why}" for says, where, why in untested), ""]
    return "\n".join([*lines, _foot(documents)])


def _counted(documents: Documents) -> str:
    """How many claims of the paper came out in each way."""
    found = Counter(outcome(claim.evidence(documents), universal=claim.universal) for claim in PAPERS)
    words = {HELD: "held", "held in direction": "held in direction", PARTLY: "held in part", MIXED: "are mixed"}
    words |= {NOT: "did not hold", UNDECIDED: "stayed undecided", NOT_RUN: "wait for a run"}
    said = [f"{found[one]} {word}" for one, word in words.items() if found[one]]
    listed = f"{', '.join(said[:-1])} and {said[-1]}" if said[1:] else said[0]
    left = sum(map(len, UNTESTED.values()))
    return f"Of {len(PAPERS)} claims that a study tests {listed}; {left} more are [not tested](#not-tested)."


def _foot(documents: Documents) -> str:
    parts = [part for claim in CLAIMS for part in claim.evidence(documents)]
    unlike = {(part["from"], part["says"]): outcome_in_words(part) for part in parts}
    return _FOOT.format(parts=len(unlike), contradicted=list(unlike.values()).count(CONTRADICTED))


def _begin(first: str) -> tuple[str, str]:
    return f"| {first} | our world | outcome | figures | why |", "|---" * 5 + "|"


def _figure(part: dict[str, Any]) -> str:
    return f"{part['says']}: {figure(part)}, must be {bound(part)}"


_ADDED = """## What we add

What this package adds to the paper, so that none of it counts for the paper or against it.
"""
