"""Table 2: live traffic of a platform that notifies members after an action, if a downstream session is likely enough.

The design, stated before any run. The models are those of table 1 (`research.downstream_world`, setting ``sparse``): a
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
    Platt scaling      the same rows, one line per task for phone and desktop
    known correction   the baseline, with the weight of positives taken back by its known shift of the logit
    same rows          the baseline, given the randomised rows that curves learn from as well, and corrected likewise
    true chance        what nobody has

Every arm serves the same members in a world of its own, with the same answers to a notification. Judged is the lift of
the isotonic layer over the control, on average over seeds. Within a seed a paired two-sided t-test over members
compares the two, and sees what an unpaired test would need many more members for; the note says how many of these tests
show a rise under ``budget``.

Table 2 has three metrics. Sessions stand for engagement, those after a share or comment for quality, and value, the
sessions less the cost of the notifications, for the health of the ecosystem. Under ``worth`` all three are judged,
though an inflated control sends too much, so that calibration will lose sessions there; it can gain value. Under
``budget`` every arm sends the same number, so that the gain in value is that in sessions: the two are one result, which
is judged once, by sessions. The lift of value is in percent of the control's sessions, since the control's value can be
near zero or below: where it sends after nearly every action, notifications cost more than they bring.

The layer is judged against rivals too: under ``budget`` by sessions, under ``worth`` by value. These are the baseline
with the same rows, Platt scaling, and under ``worth`` the known correction. That one shifts all logits alike, which
changes no order, so that under ``budget`` it decides as the control does and is no rival there. Exact curves and the
true chance are shown only. The arm with the same rows was added after a first report, since curves learn from
randomised rows that the control does not have, and Platt scaling after a second one, since lines might do; the seeds
reported now are others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.errors import InputError, need
from research.ab_test import LEVEL
from research.charts import intervals, records
from research.downstream_world import (
    AFTER,
    CORRECTED,
    EXACT,
    LAYER,
    PLATT,
    POSITIVE_WEIGHT,
    SETTINGS,
    TRUTH,
    Columns,
    days,
)
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "On live traffic, calibrating the sparse downstream tasks lifts user engagement, content quality and the health of "
    "the ecosystem significantly (two-sided t-test, p < .05)."
)
PAPER = "table 2: user engagement +0.17%, content quality +0.20%, ecosystem health +0.36%"
SEEDS = 6
SEEN = 200  # seeds that were reported before all arms were there
COST = 0.12  # of a notification, in sessions
BUDGET = 0.3  # share of a day's actions that may be followed by one
RULES = ("budget", "worth")
WORDS = {"budget": "for the same budget", "worth": "sending where the expected value exceeds the cost"}
CONTROL, CORRECTION, SAME, TRUE = "control", "known correction", "same rows", "true chance"
ARMS = (LAYER, EXACT, PLATT, CORRECTION, SAME, TRUE)
SESSIONS, QUALITY, VALUE, SENT = "sessions", "sessions after a share or comment", "value", "notifications"
METRICS = (SESSIONS, QUALITY, VALUE, SENT)
PAPER_LIFTS = {SESSIONS: "+0.17% (engagement)", QUALITY: "+0.20% (quality)", VALUE: "+0.36% (ecosystem)"}
JUDGED = {"budget": (SESSIONS, QUALITY), "worth": tuple(PAPER_LIFTS)}  # within a budget value rises with sessions
EARNED = {"budget": SESSIONS, "worth": VALUE}  # by which the layer is compared with rivals

Day = tuple[Columns, dict[str, NDArray[np.float64]]]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One unit per seed: both rules decide by the same models."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=8.0 if quick else 25.0, seen=SEEN)


def run_unit(unit: Unit) -> Numbers:
    """Let every arm notify for some days, and test each against the control."""
    methods = ("baseline", LAYER, EXACT, PLATT, CORRECTED)
    served = [with_arms(day.test, day.probs) for day in days(unit.seed, SETTINGS["sparse"], methods, count=_days(unit))]
    return compared(served)


def compared(served: Sequence[Day]) -> Numbers:
    """Totals of the control, and the lift and p-value of every arm, by rule and metric."""
    numbers: Numbers = {}
    for rule in RULES:
        earned = {arm: notified(served, arm, rule) for arm in (CONTROL, *ARMS)}
        for metric in METRICS:
            numbers[f"{rule} {CONTROL} {metric} total"] = float(earned[CONTROL][metric].sum())
            base = float(earned[CONTROL][SESSIONS if metric == VALUE else metric].sum())
            for arm in ARMS:
                lift, p_value = paired(earned[arm][metric], earned[CONTROL][metric], base)
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
        PLATT: probs[PLATT],
        CORRECTION: prob_of(logit_of(probs["baseline"]) - math.log(POSITIVE_WEIGHT)),
        SAME: probs[CORRECTED],
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


def paired(treatment: NDArray[np.float64], control: NDArray[np.float64], base: float) -> tuple[float, float]:
    """Lift in percent of a base, and the p-value of a paired two-sided t-test over members.

    >>> paired(np.array([1.0, 2.0]), np.array([1.0, 2.0]), base=3.0)
    (0.0, 1.0)
    """
    difference = treatment - control
    if not base > 0:
        raise InputError(f"base: expected a number above 0, got {base}; a lift is relative to it")
    lift = 100 * float(difference.sum()) / base
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    if error == 0:
        return lift, 1.0
    return lift, 2 * float(need("scipy.special").stdtr(len(difference) - 1, -abs(float(difference.mean())) / error))


def summarise(finished: Sequence[Finished]) -> Result:
    """Mean lift over seeds with its interval, by both rules."""
    rows = [
        Row(
            f"{rule}: {arm}",
            f"value, gain in % of the control's {SESSIONS}" if metric == VALUE else f"{metric}, lift",
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


def _lifts(finished: Sequence[Finished], rule: str, arm: str, metric: str) -> NDArray[np.float64]:
    return by_seed(finished, "all", f"{rule} {arm} {metric} lift")


def _lift(finished: Sequence[Finished], rule: str, arm: str, metric: str) -> Estimate:
    return estimate(_lifts(finished, rule, arm, metric))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    rivals = {("budget", SAME): "a corrected baseline with the same rows"}
    rivals |= {("worth", SAME): rivals["budget", SAME], ("worth", CORRECTION): "the known correction"}
    rivals |= {(rule, PLATT): "Platt scaling" for rule in RULES}
    return (
        *(
            Part(f"{WORDS[rule]}, the layer lifts {metric}", _lift(finished, rule, LAYER, metric), above=0, unit="%")
            for rule in RULES
            for metric in JUDGED[rule]
        ),
        *(
            Part(
                f"{WORDS[rule]}, the layer lifts {EARNED[rule]} by more than {rival} does",
                estimate(_lifts(finished, rule, LAYER, EARNED[rule]) - _lifts(finished, rule, arm, EARNED[rule])),
                above=0,
                unit="%",
            )
            for (rule, arm), rival in rivals.items()
        ),
    )


def significant(finished: Sequence[Finished], rule: str) -> NDArray[np.bool_]:
    """Whether each single test of the layer shows a rise with p < .05, ``[metrics, seeds]``."""
    return np.array(
        [
            (by_seed(finished, "all", f"{rule} {LAYER} {metric} p_value") < LEVEL)
            & (by_seed(finished, "all", f"{rule} {LAYER} {metric} lift") > 0)
            for metric in JUDGED[rule]
        ]
    )


def _note(finished: Sequence[Finished]) -> str:
    sent, sessions, value = (_lift(finished, "worth", LAYER, metric).value for metric in (SENT, SESSIONS, VALUE))
    shown, share = significant(finished, "budget"), float(_share_sent(finished).mean())
    return (
        f"Value is the number of sessions minus {COST} per notification. Where a notification is sent wherever its "
        f"predicted chance exceeds that cost, the layer changes notifications by {sent:+.0f}%, sessions by "
        f"{sessions:+.0f}% and value by {value:+.0f}% of the control's sessions. The control over-predicts and sends "
        f"after {share:.0%} of all actions. Where every arm sends the same number ({BUDGET:.0%} of a day's actions), "
        "only the order matters, and the gain in value is that in sessions: engagement and the health of the "
        "ecosystem are one result there, which is judged once, by sessions. Under that rule "
        f"{shown.sum()} of {shown.size} single tests of the layer ({shown.shape[0]} metrics under {shown.shape[1]} "
        "seeds) show a rise with p < .05."
    )


def _share_sent(finished: Sequence[Finished]) -> NDArray[np.float64]:
    """Share of actions after which the control notifies by worth, ``[seeds]``: by budget it does after BUDGET."""
    by_worth, by_budget = (by_seed(finished, "all", f"{rule} {CONTROL} {SENT} total") for rule in ("worth", "budget"))
    return BUDGET * by_worth / by_budget


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
