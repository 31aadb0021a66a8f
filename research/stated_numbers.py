"""What the paper states and can be worked out: the footnote on clipping, the number of buckets, and a remark on O/E.

The footnote of section 3.2 says that beyond logits of -17 and 8 "both the output probability and its gradient change by
less than 1e-4 per unit change" of the logit. The largest change over one unit is looked for beyond either end. Section
5.7 counts about 125 buckets; section 3.2 has a default width of .05 and a formula for their number, the listing of
appendix C a width of .2. Appendix A remarks that O/E near 1 at every position says nothing of ranking, since predicting
the mean rate of each position reaches it: rates of relevances and positions under position bias show both. Nothing here
is left to chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isolayer.errors import need
from research.result import Finished, Numbers, Part, Result, Row, Unit, certain

CLAIM = (
    "Beyond logits of -17 and 8 the probability and its gradient change by less than 1e-4 per unit, so that clipping "
    "there changes next to nothing; the layer has about 125 buckets; and O/E of 1 at every position needs no "
    "discrimination."
)
PAPER = (
    "section 3.2, footnote: sigma'(8) = 3.35e-4, sigma(-17) = 4.1e-8, width .05; section 5.7: about 125 buckets; app. A"
)
LOWER, UPPER = -17.0, 8.0
WIDTH, LISTED = 0.05, 0.2  # of a bucket: section 3.2, and the listing of appendix C
LITTLE = 1e-4
NEAR = 5  # buckets from 125 that still are about 125
REACH, POINTS = 20.0, 4_001  # how far beyond the ends is looked, and at how many logits


def sigmoid(logit: float) -> float:
    """The probability of a logit.

    >>> f"{sigmoid(8):.6f}"
    '0.999665'
    """
    return 1 / (1 + math.exp(-logit))


def gradient(logit: float) -> float:
    """The derivative of the probability.

    >>> f"{gradient(8):.3g}"
    '0.000335'
    """
    return sigmoid(logit) * sigmoid(-logit)


CURVES: dict[str, Callable[[float], float]] = {"probability": sigmoid, "gradient": gradient}


def buckets(width: float) -> int:
    """How many buckets the paper's formula gives, N = ceil((U - L) / width) + 1.

    >>> buckets(0.2)
    126
    """
    return math.ceil(round((UPPER - LOWER) / width, 9)) + 1


def changes(curve: Callable[[float], float], start: float, side: int) -> list[float]:
    """How much a curve changes over one unit of the logit, from each of many logits at or beyond an end."""
    logits = start + side * np.linspace(0, REACH, POINTS)
    return [abs(curve(logit + side) - curve(logit)) for logit in logits.tolist()]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One: this is arithmetic."""
    return [Unit(0, quick=quick)]


def run_unit(unit: Unit) -> Numbers:
    """The largest changes beyond either end, and what clipping does to a probability."""
    numbers: Numbers = {
        f"{name} {end:g}": max(changes(curve, end, side))
        for name, curve in CURVES.items()
        for end, side in ((LOWER, -1), (UPPER, 1))
    }
    numbers |= {f"slope {end:g}": gradient(end) for end in (LOWER, UPPER)}
    numbers |= {"clipped": 1 - sigmoid(UPPER), "default": buckets(WIDTH), "listed": buckets(LISTED)}
    return numbers | mean_rates()


def mean_rates() -> Numbers:
    """How far O/E is from 1 if the mean rate of each position is predicted, and how well that ranks a position's items.

    >>> mean_rates()
    {'off': 0.0, 'auc': 0.5}
    """
    relevance, examined = np.linspace(0.01, 0.99, 99), 1 / np.arange(1, 11)
    rate = np.outer(examined, relevance)  # [positions, items]
    predicted = np.broadcast_to(rate.mean(1, keepdims=True), rate.shape)
    above, tied = (compare(predicted[0][:, None], predicted[0][None, :]) for compare in (np.greater, np.equal))
    pairs = np.outer(rate[0], 1 - rate[0])  # chance that the one is clicked and the other is not
    return {
        "off": float(np.abs(rate.sum(1) / predicted.sum(1) - 1).max().round(12)),
        "auc": float((pairs * (above + tied / 2)).sum() / pairs.sum()),
    }


def summarise(finished: Sequence[Finished]) -> Result:
    """Each stated number beside what it comes to."""
    found = finished[0].numbers
    rows, parts = [], list[Part]()
    for end, where in ((LOWER, f"below {LOWER:g}"), (UPPER, f"above {UPPER:g}")):
        for name in CURVES:
            change = certain(found[f"{name} {end:g}"])
            rows.append(Row(where, f"largest change of the {name} over one unit", change, "< 1e-4", 9))
            parts.append(Part(f"{where} the {name} changes by less than 1e-4 per unit", change, below=LITTLE))
    for end, printed in ((LOWER, "4.1e-8"), (UPPER, "3.35e-4")):
        rows.append(Row(f"at {end:g}", "derivative of the probability", certain(found[f"slope {end:g}"]), printed, 9))
    rows.append(Row(f"clipped at {UPPER:g}", "most that a probability can lose", certain(found["clipped"]), "", 9))
    for key, width in (("default", WIDTH), ("listed", LISTED)):
        count = certain(found[key])
        rows.append(Row(f"width {width:g}", "buckets from -17 to 8", count, "about 125", 0))
        parts.append(
            Part(f"buckets of width {width:g} from -17 to 8 are about 125", count, above=125 - NEAR, below=125 + NEAR)
        )
    rows.append(Row("mean rate of each position", "largest abs(O/E - 1)", certain(found["off"])))
    rows.append(Row("mean rate of each position", "AUC within a position", certain(found["auc"])))
    parts += [
        Part(
            "predicting the mean rate of each position has O/E of 1 at all of them", certain(found["off"]), below=1e-9
        ),
        Part("and puts no items of a position in order (AUC - 1/2)", certain(found["auc"] - 0.5), -1e-9, 1e-9),
    ]
    curves = [
        {"logit": UPPER + at, "curve": name, "change": change}
        for name, curve in CURVES.items()
        for at, change in zip(np.linspace(0, REACH, POINTS)[::20].tolist(), changes(curve, UPPER, 1)[::20], strict=True)
        if at <= 4
    ]
    return Result(tuple(rows), tuple(parts), {"curves": curves}, _note(found))


def _note(found: Numbers) -> str:
    return (
        "The footnote itself gives sigma'(8) = 3.35e-4, more than three times its bound; the bound is met only from a "
        f"logit of about {_met():.1f} on. Clipping at 8 takes at most {found['clipped']:.2g} from a probability."
    )


def _met() -> float:
    """The logit from which on the probability changes by less than the bound per unit."""
    logits = UPPER + np.linspace(0, REACH, POINTS)
    small = np.array(changes(sigmoid, UPPER, 1)) < LITTLE
    return float(logits[int(np.argmax(small))])


def chart(series: dict[str, Any]) -> Any:
    """Change over one unit above the upper end, beside the stated bound."""
    alt = need("altair")
    lines = (
        alt.Chart(alt.Data(values=series["curves"]))
        .mark_line()
        .encode(
            x=alt.X("logit:Q", scale=alt.Scale(zero=False)),
            y=alt.Y("change:Q", title="change over the next unit", axis=alt.Axis(format=".0e")),
            color=alt.Color("curve:N", title=None, scale=alt.Scale(range=["#9aa0ac", "#2457c5"])),
        )
    )
    bound = alt.Chart().mark_rule(strokeDash=[4, 4], color="#555").encode(y=alt.datum(LITTLE))
    return alt.layer(lines, bound).properties(width=360, height=240)
