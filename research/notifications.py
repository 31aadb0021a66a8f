"""Table 2: live traffic of a platform that notifies members after an action, if a downstream session is likely enough.

The design, stated before any run. The models are those of table 1 (`research.downstream`, setting ``sparse``): a
multi-task model that is learned anew every day from sparse labels, over-predicts and swings. A like, share or comment
may be followed by a notification, by one of two rules:

    worth     it is sent where the predicted chance of a session exceeds its cost, COST sessions; so a score that is too
              high sends too many, and one that swings sends too many today and too few tomorrow
    budget    a fixed share of each day's actions gets one, those with the highest chance; so only the order counts,
              between tasks and between phone and desktop

Each arm decides by its own chance of a session:

    control            the baseline, as it is served
    isotonic layer     the baseline, frozen, then one curve per task for phone and desktop, learned by gradient
    exact curves       the same, with the curves found by the exact solver
    known correction   the baseline, with the weight of positives taken back by its known shift of the logit
    true chance        what nobody has

Every arm serves the same members in a world of its own, with the same answers to a notification, and a paired two-sided
t-test over members compares it with the control; it sees what an unpaired test would need many more members for. Under
``worth`` an inflated control sends nearly everything and so has nearly all sessions there are: calibration must lose
sessions there and can only gain value, the sessions less the cost of the notifications. Under ``budget`` all metrics
can go either way, and the known correction, which changes no order within a task, hardly matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.errors import need
from research.ab_test import LEVEL
from research.charts import intervals, records
from research.downstream import AFTER, EXACT, LAYER, POSITIVE_WEIGHT, SETTINGS, TRUTH, Columns, days
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "On live traffic, calibrating the sparse downstream tasks lifts user engagement, content quality and the health of "
    "the ecosystem significantly (two-sided t-test, p < .05)."
)
PAPER = "table 2: user engagement +0.17%, content quality +0.20%, ecosystem health +0.36%"
SEEDS = 6
COST = 0.12  # of a notification, in sessions
BUDGET = 0.3  # share of a day's actions that may be followed by one
RULES = ("budget", "worth")
CONTROL, CORRECTION, TRUE = "control", "known correction", "true chance"
ARMS = (LAYER, EXACT, CORRECTION, TRUE)
SESSIONS, QUALITY, VALUE, SENT = "sessions", "sessions after a share or comment", "value", "notifications"
METRICS = (SESSIONS, QUALITY, VALUE, SENT)
PAPER_LIFTS = {SESSIONS: "+0.17% (engagement)", QUALITY: "+0.20% (quality)", VALUE: "+0.36% (ecosystem)"}

Day = tuple[Columns, dict[str, NDArray[np.float64]]]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One unit per seed: both rules decide by the same models."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=8.0 if quick else 25.0)


def run_unit(unit: Unit) -> Numbers:
    """Let every arm notify for some days, and test each against the control."""
    served = [
        with_arms(*day) for day in days(unit.seed, SETTINGS["sparse"], ("baseline", LAYER, EXACT), count=_days(unit))
    ]
    numbers: Numbers = {}
    for rule in RULES:
        earned = {arm: notified(served, arm, rule) for arm in (CONTROL, *ARMS)}
        for metric in METRICS:
            numbers[f"{rule} {CONTROL} {metric} total"] = float(earned[CONTROL][metric].sum())
            for arm in ARMS:
                lift, p_value = paired(earned[arm][metric], earned[CONTROL][metric])
                numbers |= {f"{rule} {arm} {metric} lift": lift, f"{rule} {arm} {metric} p_value": p_value}
    return numbers


def _days(unit: Unit) -> int:
    return 4 if unit.quick else 14


def with_arms(rows: Columns, probs: Mapping[str, NDArray[np.float64]]) -> Day:
    """The rows of a day with the chance of a session that each arm decides by, ``[n, tasks]``."""
    return rows, {
        CONTROL: probs["baseline"],
        LAYER: probs[LAYER],
        EXACT: probs[EXACT],
        CORRECTION: prob_of(logit_of(probs["baseline"]) - math.log(POSITIVE_WEIGHT)),
        TRUE: np.stack([rows[name] for name in TRUTH], axis=1),
    }


def notified(served: Sequence[Day], arm: str, rule: str) -> dict[str, NDArray[np.float64]]:
    """What one arm earns of each member over the days: each metric as a column ``[members]``.

    >>> rows = {"user": np.array([0, 1]), "like": np.ones(2), "downstream_like": np.array([1, 0])}
    >>> rows |= {name: np.zeros(2) for pair in list(AFTER.items())[1:] for name in pair}
    >>> chance = {CONTROL: np.array([[0.9, 0, 0], [0.1, 0, 0]])}
    >>> earned = notified([(rows, chance)], CONTROL, "worth")
    >>> earned[SENT].tolist(), earned[SESSIONS].tolist(), earned[VALUE].tolist()
    ([1.0, 0.0], [1.0, 0.0], [0.88, 0.0])
    """
    members = 1 + max(int(rows["user"].max()) for rows, _ in served)
    earned = {metric: np.zeros(members) for metric in METRICS}
    for rows, chances in served:
        acted = np.stack([rows[action] == 1 for action in AFTER.values()], axis=1)  # [n, tasks]
        least = COST if rule == "worth" else float(np.quantile(chances[arm][acted], 1 - BUDGET))
        sent = acted & (chances[arm] > least)
        came = sent & (np.stack([rows[task] for task in AFTER], axis=1) == 1)
        deep = came & (np.array(list(AFTER.values())) != "like")
        for metric, kept in ((SENT, sent), (SESSIONS, came), (QUALITY, deep)):
            earned[metric] += np.bincount(rows["user"], kept.sum(1), minlength=members)
    earned[VALUE] = earned[SESSIONS] - COST * earned[SENT]
    return earned


def paired(treatment: NDArray[np.float64], control: NDArray[np.float64]) -> tuple[float, float]:
    """Lift in percent, and the p-value of a paired two-sided t-test over members.

    >>> paired(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    (0.0, 1.0)
    """
    difference = treatment - control
    lift = 100 * float(difference.sum() / control.sum())
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    if error == 0:
        return lift, 1.0
    return lift, 2 * float(need("scipy.special").stdtr(len(difference) - 1, -abs(float(difference.mean())) / error))


def summarise(finished: Sequence[Finished]) -> Result:
    """Mean lift over seeds with its interval, by both rules."""
    rows = [
        Row(
            f"{rule}: {arm}",
            f"{metric}, lift",
            _lift(finished, rule, arm, metric),
            PAPER_LIFTS.get(metric, "") if (rule, arm) == ("budget", LAYER) else "",
            2,
            "%",
        )
        for rule in RULES
        for arm in ARMS
        for metric in METRICS
    ]
    return Result(tuple(rows), _parts(finished), _series(finished), _note(finished))


def _lift(finished: Sequence[Finished], rule: str, arm: str, metric: str) -> Any:
    return estimate(by_seed(finished, "all", f"{rule} {arm} {metric} lift"))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    layer, simple = (by_seed(finished, "all", f"worth {arm} {VALUE} lift") for arm in (LAYER, CORRECTION))
    return (
        *(
            Part(f"{words}, the layer lifts {metric}", _lift(finished, rule, LAYER, metric), above=0, unit="%")
            for rule, words in (("budget", "for the same budget"), ("worth", "sending what is worth it"))
            for metric in PAPER_LIFTS
        ),
        Part(
            "sending what is worth it, the layer lifts value by more than the known correction does",
            estimate(layer - simple),
            above=0,
            unit="%",
        ),
    )


def _significant(finished: Sequence[Finished], rule: str) -> float:
    # share of the layer's single tests that rose with p < .05
    told = [
        (by_seed(finished, "all", f"{rule} {LAYER} {metric} {key}") for key in ("p_value", "lift"))
        for metric in PAPER_LIFTS
    ]
    return float(np.mean([(p_value < LEVEL) & (lift > 0) for p_value, lift in told]))


def _note(finished: Sequence[Finished]) -> str:
    sent, value = (_lift(finished, "worth", LAYER, metric).value for metric in (SENT, VALUE))
    best = {rule: _lift(finished, rule, TRUE, VALUE).value for rule in RULES}
    return (
        f"Sending what is worth it, the layer sends {sent:+.0f}% notifications for {value:+.0f}% value; knowing the "
        f"true chance would give {best['worth']:+.0f}%, and {best['budget']:+.0f}% for the same budget. Share of the "
        f"layer's single tests with p < .05: {_significant(finished, 'budget'):.0%} for the same budget, "
        f"{_significant(finished, 'worth'):.0%} otherwise. Lifts are larger than the paper's, where notifications are "
        "a small part of what the metrics count."
    )


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in ("rule", "arm", "metric", "value", "lower", "upper")}
    for rule in RULES:
        for arm in ARMS:
            for metric in METRICS:
                found = _lift(finished, rule, arm, metric)
                values = (rule, arm, metric, found.value, found.lower, found.upper)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
    return columns


def chart(series: dict[str, Any]) -> Any:
    """Lift of every arm and metric with its interval over seeds, the two rules one below the other."""
    rows = records(series)
    rules = [
        intervals(
            [row for row in rows if row["rule"] == rule],
            y="arm",
            panel="metric",
            order=ARMS,
            title=f"lift over control, %, by {rule}",
            columns=4,
            zero=True,
        )
        for rule in RULES
    ]
    return need("altair").vconcat(*rules)
