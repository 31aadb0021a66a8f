"""Notifications: verdicts either way, a paired test against scipy's, and when calibration pays."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import lost, outcome
from scipy import stats

from isolayer.errors import InputError
from research import notifications


def test_notification_verdict_asks_for_both_rules():
    good = {"known": 0.1, "same rows": 0.2, "Platt": 0.3, "lift": 1.0}
    assert outcome(notifications, good).held == "held"
    by_budget_only = {"worth isotonic": -1.0, "known": -2.0, "same rows": -2.0, "Platt": -2.0, "lift": 1.0}
    cost = "sending where the expected value exceeds the cost"
    assert lost(outcome(notifications, by_budget_only)) == [
        f"{cost}, the layer lifts {metric}" for metric in notifications.JUDGED["worth"]
    ]
    fewer = {"worth isotonic layer sessions lift": -3.0} | good
    assert lost(outcome(notifications, fewer)) == [f"{cost}, the layer lifts sessions"]
    many = {"worth control notifications total": 8.0, "budget control notifications total": 3.0} | good
    assert "sends after 80% of all actions" in outcome(notifications, many).note
    lines = {"budget Platt": 2.0} | good
    assert lost(outcome(notifications, lines)) == [
        "for the same budget, the layer lifts sessions by more than Platt scaling does"
    ]
    rows = {"worth same rows": 2.0} | good
    assert lost(outcome(notifications, rows)) == [
        f"{cost}, the layer lifts value by more than a corrected baseline with the same rows does"
    ]


def test_what_is_one_result_within_a_budget_is_judged_once():
    found = outcome(notifications, {"p_value": 0.01, "lift": 1.0})
    budget = [part.says for part in found.parts if part.says.startswith("for the same budget")]
    assert [says for says in budget if "more than" not in says] == [
        "for the same budget, the layer lifts sessions",
        "for the same budget, the layer lifts sessions after a share or comment",
    ]
    assert not [says for says in budget if "value" in says]
    assert {
        f"{rule}: {notifications.LAYER}, value, gain in % of the control's sessions" for rule in notifications.RULES
    } <= {f"{row.name}, {row.metric}" for row in found.rows}  # but the figure is there
    assert (
        "engagement and the health of the ecosystem are one result there, which is judged once, by sessions"
        in found.note
    )
    assert "4 of 4 single tests of the layer (2 metrics under 2 seeds)" in found.note


def test_a_lift_over_nothing_is_refused():
    with pytest.raises(InputError, match=r"base: expected a number above 0, got 0\.0"):
        notifications.paired(np.ones(3), np.zeros(3), 0.0)


def test_a_control_that_pays_more_than_it_gets_still_has_lifts():
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.01, 0.2, (30_000, 3))  # most notifications cost more than they bring
    rows = {"user": rng.integers(0, 3_000, 30_000)}
    for number, (task, action) in enumerate(notifications.AFTER.items()):
        rows |= {action: np.ones(30_000), task: (rng.random(30_000) < chance[:, number]).astype(int)}
    arms = dict.fromkeys((notifications.CONTROL, *notifications.ARMS), 0.8 + 0.1 * rng.random(chance.shape))
    found = notifications.compared([(rows, arms | {notifications.TRUE: chance})])
    assert found[f"worth {notifications.CONTROL} {notifications.VALUE} total"] < 0
    gain = {metric: found[f"worth {notifications.TRUE} {metric} lift"] for metric in notifications.METRICS}
    assert gain[notifications.SESSIONS] < 0 < gain[notifications.VALUE]
    by_budget = [found[f"budget {notifications.TRUE} {metric} lift"] for metric in ("sessions", "value")]
    assert by_budget[0] == pytest.approx(by_budget[1])  # one result, where all send the same number


def test_notifications_pay_where_the_chance_is_right():
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.01, 0.4, 30_000)
    rows = {"user": rng.integers(0, 3_000, 30_000), "like": np.ones(30_000), "share": np.zeros(30_000)}
    rows |= {"comment": rows["share"], "downstream_share": rows["share"], "downstream_comment": rows["share"]}
    rows["downstream_like"] = (rng.random(30_000) < chance).astype(int)
    of_arm = {"right": chance, "high": np.minimum(3 * chance, 0.9), "low": chance / 3, "blind": rng.random(30_000)}
    served = [(rows, {arm: np.stack([column] * 3, axis=1) for arm, column in of_arm.items()})]
    worth, budget = (
        {arm: notifications.notified(served, arm, rule) for arm in of_arm} for rule in notifications.RULES[::-1]
    )
    value = {arm: columns[notifications.VALUE].sum() for arm, columns in worth.items()}
    assert value["right"] > max(value["high"], value["low"], value["blind"])
    assert worth["high"][notifications.SENT].sum() > worth["right"][notifications.SENT].sum()
    sent = {arm: columns[notifications.SENT].sum() for arm, columns in budget.items()}
    assert all(count == pytest.approx(0.3 * 30_000, abs=1) for count in sent.values())
    sessions = {arm: columns[notifications.SESSIONS].sum() for arm, columns in budget.items()}
    assert sessions["right"] == sessions["low"] > 1.3 * sessions["blind"]  # only the order counts


def test_a_paired_test_is_scipys():
    rng = np.random.default_rng(0)
    control = rng.poisson(1.0, 300).astype(float)
    treatment = control + rng.poisson(0.1, 300)
    lift, p_value = notifications.paired(treatment, control, float(control.sum()))
    assert p_value == pytest.approx(stats.ttest_rel(treatment, control).pvalue)
    assert lift == pytest.approx(100 * (treatment.sum() / control.sum() - 1))
