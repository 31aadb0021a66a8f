"""What the numbers suggest: rules that turn the evidence into sentences. Suggestions are written nowhere else."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from isolayer.report.bias import Bias
from isolayer.report.evidence import LEAST_ROWS, ContextTable, Evidence, Figure
from isolayer.report.words import readable, readables

CLEARLY = 0.10  # if the whole interval of an O/E is further from 1 than this, the user should act
THIN = 10.0  # with fewer expected events, the O/E of a context says little
SLIGHT = 0.005  # a change of log loss below this many percent counts as no change
NOTABLE = 0.01  # smallest share of the rows that is mentioned


IN_SAMPLE = (
    "The curves were fitted to these very rows, or to some of them, so the figures after calibration look better than "
    "they will on new rows. Judge the curves on a later log before you serve them."
)


class Advice(NamedTuple):
    """One or two sentences, and their kind: good news, something to do, or information."""

    kind: Literal["good", "act", "note"]
    text: str


def advise(evidence: Evidence, bias: Bias | None = None, fall: str | None = None) -> list[Advice]:
    """All sentences that apply: the verdict first, then what the user should do, then the rest.

    Args:
        evidence: What the page shows.
        bias: The learned bias, if a debiased model was given.
        fall: A sentence that says where the rate falls as the score rises; None if it never does.
    """
    verdict, rest = _verdict(evidence.figures[0], evidence.in_sample), list[Advice]()
    rest += ([] if fall is None else [Advice("act", fall)]) + _total(evidence)
    if evidence.tables:
        rest += _contexts(evidence.tables[0]) + _thin(evidence.tables[0])
    rest += _coverage(evidence) + _last_day(evidence) + (_bias(bias) if bias else [])
    found = [verdict, *sorted(rest, key=lambda advice: advice.kind != "act")]
    return [each._replace(text=each.text.replace(" -", " −").replace("(-", "(−")) for each in found]


def _verdict(loss: Figure, in_sample: bool) -> Advice:
    change = loss.change
    assert change is not None
    numbers = f"log loss {loss.before.value:.4f} to {loss.after.value:.4f}, {change.value:+.2f}%"
    between = f"(95% interval {change.lower:+.2f}% to {change.upper:+.2f}%)"
    if change.upper < -SLIGHT:
        remedy = "" if in_sample else " Serve the calibrated score."
        return Advice("good", f"Calibration helps on this log: {numbers} {between}.{remedy}")
    if change.lower > SLIGHT:
        remedy = (
            "Do not serve it: keep the raw score and refit on rows like these. (`isolayer check` asks another "
            "question, whether there are as many events as predicted, and may say that the calibrator holds.)"
        )
        return Advice("act", f"Calibration harms on this log: {numbers} {between}. {remedy}")
    remedy = "More rows may show one."
    return Advice("note", f"Calibration makes no clear difference on this log: {numbers} {between}. {remedy}")


def _total(evidence: Evidence) -> list[Advice]:
    ratio = evidence.figures[-1].after
    if ratio.lower <= 1 <= ratio.upper:
        return []
    side = "above" if ratio.value > 1 else "below"
    text = (
        f"Over all rows, observed events are {abs(ratio.value - 1):.1%} {side} the prediction. The rate has moved "
        "since the curves were fitted: refit, or update with these rows."
    )
    return [Advice("act" if abs(ratio.value - 1) > CLEARLY / 5 else "note", text)]


def _contexts(table: ContextTable) -> list[Advice]:
    far = np.abs(np.log1p(table.off)) > np.log1p(CLEARLY)
    if not table.judged:
        return []
    tail = (
        f"{table.outside[1]:,} of the {table.judged:,} contexts with {LEAST_ROWS} rows or more "
        f"{_are(table.outside[1])} off beyond chance by any amount (before calibration: {table.outside[0]:,}). "
        "Intervals are adjusted for the number of contexts tested."
    )
    if not far.any():
        return [Advice("good", f"No context is off by more than {CLEARLY:.0%} beyond chance. {tail}")]
    worst, share = int(np.flatnonzero(far)[0]), table.after.weight[far].sum() / table.after.weight.sum()
    text = (
        f"{int(far.sum()):,} {_plural('context', far.sum())} ({share:.1%} of rows) {_are(far.sum())} "
        f"off by more than {CLEARLY:.0%} beyond chance. The worst is {table.label(worst)}: O/E "
        f"{table.after.ratio[worst]:.2f} ({table.after.lower[worst]:.2f} to {table.after.upper[worst]:.2f}). "
        f"Look at its curve, then refit on recent rows, or add a context column that separates its rows. {tail}"
    )
    return [Advice("act", text)]


def _thin(table: ContextTable) -> list[Advice]:
    thin = table.after.expected < THIN
    if not thin.any() or thin.all():
        return []
    share = table.after.weight[thin].sum() / table.after.weight.sum()
    return [
        Advice(
            "note",
            f"{int(thin.sum()):,} contexts ({share:.1%} of rows) have fewer than {THIN:.0f} expected events, so their "
            "O/E says little. Their curves are shrunk towards the curve of their parent context.",
        )
    ]


def _coverage(evidence: Evidence) -> list[Advice]:
    found = []
    if evidence.unseen > NOTABLE:
        text = (
            f"{evidence.unseen:.1%} of rows are in contexts that have no curve yet and use the curve of their parent "
            "context. Refit with a log that contains them."
        )
        found.append(Advice("act", text))
    if evidence.beyond > NOTABLE / 10:
        text = (
            f"{evidence.beyond:.2%} of rows have a score outside the grid, where curves are extended with slope 1. "
            "Use a wider grid and refit."
        )
        found.append(Advice("act", text))
    return found


def _last_day(evidence: Evidence) -> list[Advice]:
    daily = evidence.daily
    if daily is None or len(daily.day) < 2:
        return []
    ratio, lower, upper = (float(column[-1]) for column in (daily.ratio.ratio, daily.ratio.lower, daily.ratio.upper))
    found = f"On the last day, {daily.day[-1]}, O/E is {ratio:.3f} ({lower:.3f} to {upper:.3f})"
    if lower <= 1 <= upper:
        return [Advice("good", f"{found}: no sign of drift.")]
    if lower > 1 + CLEARLY or upper < 1 - CLEARLY:
        return [Advice("act", f"{found}: the curves are drifting. Update them with recent days.")]
    text = (
        f"{found}. By chance alone, only one day in 20 is this far from 1. If the next day looks the same, update the "
        "curves with recent days."
    )
    return [Advice("act", text)]


def _bias(bias: Bias) -> list[Advice]:
    last, feature, values = len(bias.values) - 1, readable(bias.feature), readables(bias.values)
    parts = [
        f"{readable(task)} {bias.relative[place, last]:.2f} times"
        for place, task in enumerate(bias.tasks)
        if np.isfinite(bias.relative[place, last])
    ]
    if not parts:
        return []
    return [
        Advice(
            "note",
            f"Probability of each label for an item of medium relevance, at {feature} {values[-1]} relative to "
            f"{feature} {values[0]}: {', '.join(parts)}. This is bias, not relevance: rank by relevance alone, "
            f"without {feature}.",
        )
    ]


def _are(count: float) -> str:
    return "is" if count == 1 else "are"


def _plural(word: str, count: float) -> str:
    return word if count == 1 else f"{word}s"
