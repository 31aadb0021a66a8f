"""What holds and what does not: one row per claim of the paper, decided by the parts of the studies that test it.

A claim names the study and the parts of its verdict that decide it. Its outcome and figure are read from the study's
numbers; only the sentences are typed. A sentence that explains an outcome is written for that outcome: should a later
run come out otherwise, the page says that it has to be explained anew, and does not show it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.result import outcome_of

_HEAD = """# What holds and what does not

One row per claim of the paper: where it says it, the world in which we tried it, what came out and why. Outcomes and
figures are those of the [studies](results.md), which test each claim in parts: it **held** when the 95% interval of
every part is on the side that the claim says, **held in direction** when only the means are, **held in part** when some
parts held and others did not. The figure is that of the part that is named.
"""
NOT_RUN, ANEW = "not run", "The outcome differs from the one that was explained here; it has to be explained anew."


@dataclass(frozen=True)
class Claim:
    """One thing the paper says.

    Args:
        says: The claim, in a sentence.
        where: The section, table or figure.
        study: The experiment that tests it.
        parts: What the deciding parts of its verdict say, or begin with; the first gives the figure.
        world: Where it was tried, in a sentence.
        found: The outcome that ``why`` explains.
        why: Why it came out so.
    """

    says: str
    where: str
    study: str
    parts: tuple[str, ...]
    world: str
    found: str
    why: str

    def row(self, document: dict[str, Any] | None) -> str:
        """Its line of the page, from the numbers of its study."""
        decided = [] if document is None else self.decided(document["parts"])
        study = f"[{self.study}](studies/{self.study}.md)" if decided else f"`python -m research {self.study}`"
        outcome = outcome_of([part["held"] for part in decided]) if decided else NOT_RUN
        why = {self.found: self.why, NOT_RUN: ""}.get(outcome, ANEW)
        figure = _figure(decided[0]) if decided else ""
        return f"| {self.says} ({self.where}) | {self.world} {study} | **{outcome}** | {figure} | {why} |"

    def decided(self, parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The parts of a verdict that decide this claim, that of the figure first."""
        found = {part["says"]: part for says in self.parts for part in parts if part["says"].startswith(says)}
        return list(found.values())


def claims_page(out: str | Path) -> str:
    """The whole of ``docs/claims.md`` from the numbers under ``out``.

    >>> print(claims_page("a folder nobody has").splitlines()[0])
    # What holds and what does not
    """
    lines = [_HEAD, "| the paper says | our world | outcome | figure | why |", "|---" * 5 + "|"]
    for claim in CLAIMS:
        path = Path(out) / f"{claim.study}.json"
        lines.append(claim.row(json.loads(path.read_text()) if path.exists() else None))
    return "\n".join([*lines, "", _FOOT]) + "\n"


def _figure(part: dict[str, Any]) -> str:
    interval = f" [{part['lower']:.3g}, {part['upper']:.3g}]" if part["lower"] < part["upper"] else ""
    return f"{part['says']}: {part['value']:.3g}{interval}, must be {part['must']}"


CLAIMS = (
    Claim(
        "The layer can represent any monotone curve, and finds the best monotone fit of one that is not",
        "section 3.4, figure 2",
        "expressiveness",
        ("square that falls", "square is"),
        "Two targets, as in the paper.",
        "held",
        "A piecewise-linear curve with enough buckets does; nothing is left to chance here.",
    ),
    Claim(
        "Calibrating sparse downstream tasks with the layer raises the AUC of Share and Comment, and keeps that of "
        "Like",
        "table 1",
        "downstream",
        ("Share AUC", "Comment AUC", "Like AUC"),
        "A multi-task model over sparse labels, which sees the platform.",
        "held in direction",
        "The model sees the platform, so that a monotone curve per platform can change no order within one. A world in "
        "which it does not, and over-fits day by day, has been designed since and not been run in full.",
    ),
    Claim(
        "The daily mean score varies less and is nearer to the label mean",
        "figure 3",
        "downstream",
        ("the daily mean score",),
        "The same model and days.",
        "held in direction",
        "It varies less, clearly; that it is nearer to the label mean is not beyond chance.",
    ),
    Claim(
        "It is the layer that steadies and corrects the scores",
        "section 4.2, as we read it",
        "downstream",
        ("the layer's daily mean", "the daily mean varies", "the daily mean is"),
        "The same, against a baseline that is given the same randomised rows.",
        "did not hold",
        "What steadies the scores is the rows: a baseline that is given them too is as steady, and nearer to the mean.",
    ),
    Claim(
        "Calibrated downstream scores lift engagement, quality and the health of the ecosystem on live traffic",
        "table 2",
        "notifications",
        ("for the same budget, the layer lifts", "sending what is worth it, the layer lifts"),
        "Notifications sent by predicted value or within a budget, from the model of table 1.",
        "held in part",
        "Calibration changes what is sent where a threshold or tasks compete; the order within a task is the same.",
    ),
    Claim(
        "The isotonic head predicts the log better: AUC rises, NE falls",
        "table 3",
        "offline-debiasing",
        ("isotonic head's click", "isotonic head's like"),
        "A feed with position and device bias and nine tasks.",
        "held",
        "It is told the position, which explains part of every label.",
    ),
    Claim(
        "The inference head keeps AUC on the log at a slight cost in NE",
        "table 3",
        "offline-debiasing",
        (
            "inference head's click AUC",
            "inference head's like AUC",
            "inference head's click NE",
            "inference head's like NE",
        ),
        "The same feed.",
        "held in part",
        "A log rewards whoever predicts its positions. Our logger ranks well, so that leaving position out costs "
        "AUC there, while the ranking by true relevance, which the paper could not see, improves.",
    ),
    Claim(
        "The inference head is nearer to relevance than the baseline and than Position Dropout",
        "section 5.6",
        "offline-debiasing",
        ("inference head ranks click", "inference head ranks like"),
        "The same feed, judged by true relevance.",
        "held",
        "The head explains position by curves, so that the backbone need not.",
    ),
    Claim(
        "The inference head lifts live metrics",
        "table 4",
        "ab-test",
        ("inference head lifts clicks", "inference head lifts"),
        "Simulated users who answer every ranking; a two-sided t-test.",
        "held",
        "Lifts are larger than the paper's: our control has learned more bias.",
    ),
    Claim(
        "Position Dropout lifts no live metric at any rate",
        "table 4",
        "ab-test",
        ("Position Dropout",),
        "The same users, at the rate .15, which the paper chose.",
        "held",
        "At that rate. In trials the rate .05 did lift most metrics, less than the inference head; a run that judges "
        "every rate of the paper's grid has not been made in full.",
    ),
    Claim(
        "The baseline under-predicts at the top and over-predicts below",
        "section 5.6, table 5",
        "observed-over-expected",
        ("baseline's O/E is below", "baseline's O/E is above"),
        "A feed with ad slots at positions 4 and 5 that are governed by an auction and left out.",
        "held",
        "A model without position predicts the mean over positions.",
    ),
    Claim(
        "The debiased model is nearer to O/E of 1 at every position, most of all at position 6",
        "table 5",
        "observed-over-expected",
        ("the served, debiased model is nearer to 1 at position 6", "the served, debiased", "it gains most"),
        "The same feed.",
        "held in part",
        "A model that is not told the position cannot have O/E of 1 at each: what gains at one position is lost at"
        " another. The isotonic head, which is told, is nearer over all.",
    ),
    Claim(
        "Click falls with depth, Skip rises, and platform and position interact",
        "figures 5 and 6",
        "learned-curves",
        ("Click falls", "Skip rises", "the gap from", "curves of every", "learned curves take"),
        "A feed whose true curves are known.",
        "held",
        "Curves of every combination come nearer to the true ones than sums of a curve per feature.",
    ),
    Claim(
        "A weight of .7 to .8 on the isotonic head debiases best",
        "section 5.2",
        "loss-weights",
        ("ranking at beta .7-.8 is better than at beta 0.9", "ranking at beta"),
        "The same feed, eleven weights.",
        "held in part",
        "The less the inference head pulls at the shared layers, the better they rank. The paper's range is a "
        "compromise with calibration, which a detached anchor makes unnecessary.",
    ),
    Claim(
        "Some weight on the inference head is needed to keep served scores calibrated and steady",
        "section 5.2",
        "loss-weights",
        ("without alpha",),
        "The same feed.",
        "held in part",
        "Nothing else fixes the level of the inference head. The single scores are steadier without it.",
    ),
    Claim(
        "Platt scaling and a calibrator per task leave ranking flat",
        "section 5.3",
        "per-task-isotonic",
        ("isotonic, one per task is flat", "Platt, one per task is flat"),
        "Twelve tasks of a feed.",
        "held",
        "A monotone map of a task's score changes no order within the task.",
    ),
    Claim(
        "One layer calibrates every task and context at least as well as a calibrator for each",
        "sections 1.4 and 5.3",
        "per-task-isotonic",
        ("the layer, isotonic head has lower NE than isotonic, one per task and context", "the layer,"),
        "The same tasks, by position and device.",
        "held",
        "The exact layer, against both; the head that is learned by gradient, against calibrators per task. In trials "
        "that head did not reach calibrators fitted to each context afterwards; the next full run judges this too.",
    ),
    Claim(
        "Keeping the head at serving costs about 5% of CPU",
        "section 5.7",
        "overhead",
        ("the head as the paper lists it costs about 5% of CPU (medium", "the head as the paper lists it"),
        "Rankers of three sizes on one core.",
        "held in part",
        "It depends on the ranker: the listing builds a vector of all buckets per row, which a large network hides"
        " and a small one does not. Kept as a table, the head costs a small part of that.",
    ),
    Claim(
        "Distilled into a shallow network it loses less than 0.1% of AUC",
        "section 5.7",
        "overhead",
        ("distilling loses less than 0.1% AUC on average", "distilling"),
        "The same rankers.",
        "held in direction",
        "On average, clearly; on the worst task the interval reaches the bound.",
    ),
    Claim(
        "The layer adapts as data arrive; inverse propensities need estimating again",
        "conclusion",
        "incremental",
        ("bias grows: isotonic ranks better than IPS", "bias grows", "bias fades"),
        "Days on which position bias grows or fades.",
        "held in part",
        "Where bias fades it does. Where bias grows, the joint loss falls behind: the inference head keeps "
        "learning from clicks that are ever more biased. With the detached anchor it does not.",
    ),
    Claim(
        "The isotonic head takes position out of relevance, where dropout does not",
        "section 5",
        "debias-benchmark",
        ("the dual head closes", "above Position Dropout"),
        "Worlds whose true relevance is known, rates of all methods tuned.",
        "held",
        "It does wherever position can be told from relevance; under a logger that already knows relevance nothing"
        " can tell them apart, and a warning says so.",
    ),
    Claim(
        "Swapping in another embedding, such as the advertiser's, calibrates each of its values",
        "sections 1.4 and 6",
        "ads-calibration",
        ("kuairand: the layer has lower log loss",),
        "KuaiRand's clicks by the values of a field.",
        "held",
        "In log loss, against raw scores and calibrators by field. ECE and the error by field (F-RCE) are level "
        "with the best of them, not lower.",
    ),
    Claim(
        "One layer calibrates every task and surface of real traffic at once",
        "sections 1.4 and 4",
        "kuairand-tasks",
        ("layer, exact has lower NE than Platt, one per task and tab", "layer, exact"),
        "Eight tasks of KuaiRand by tab.",
        "held in part",
        "Beside calibrators per task, yes. Platt per task and tab is level in NE: on rare events a line per tab is"
        " nearly all that the data can tell.",
    ),
    Claim(
        "Predicting the position bridges the gap between training and serving",
        "section 6, future work",
        "position-prediction",
        ("the paper's pooling has a lower log loss",),
        "Simulated feeds, pooling over embeddings of positions or over probabilities.",
        "",
        "",
    ),
    Claim(
        "Learned curves can serve off-policy evaluation",
        "section 6, future work",
        "open-bandit",
        ("DRos with the isotonic reward", "DM with", "DRos errs", "DR errs", "DM errs", "switch DR"),
        "Open Bandit's sample of real logs.",
        "did not hold",
        "The sample has 42 clicks, which decide nothing; see the guide for simulated logs, where estimates with "
        "learned curves come within 5% of the truth.",
    ),
)
_FOOT = """Two directions of future work are features without a study: several monotone inputs
([`MonotoneLattice`](layer.md)) and millions of segments ([production](production.md)). The paper's listing of the layer
does not parse as printed; what we compare with is our reading of it."""
