"""Simulated feed logs whose relevance and bias are known: seeded, vectorised, returned as plain columns.

    population   the users and the items                     Population
    behaviours   how users act on a list                     PositionBased, Trust, DynamicBayesian, DependentClick,
                                                             Distortion
    session_behaviours  users who differ between sessions    Contextual, Mixture
    feed         candidates, logging policy, tasks, days     Feed, Logger, Task, Drift
    setups       named feeds of the debiasing benchmark      debias_feed
    loop         policies rank, users act, metrics by user   closed_loop, UserMetrics
    scored_log   a log of scores that are wrong by surface   scored_log
    check        the simulator against its own formulas      self_test, Check

>>> from isolayer import simulate
>>> log = simulate.Feed().log(sessions=100, seed=1)
>>> log["click"].shape, log["features"].dtype
((1000,), dtype('float32'))
"""

from isolayer.simulate.behaviours import (
    ULTRA_EXAMINATION,
    Behaviour,
    DependentClick,
    Distortion,
    DynamicBayesian,
    PositionBased,
    Trust,
)
from isolayer.simulate.check import Check, self_test
from isolayer.simulate.feed import DEVICES, DOWNSTREAM, GRADE_SHARES, TASKS, Drift, Feed, Logger, Policy, Task
from isolayer.simulate.loop import UserMetrics, closed_loop
from isolayer.simulate.population import Population
from isolayer.simulate.scored_log import scored_log
from isolayer.simulate.session_behaviours import QUERY_LENGTHS, Contextual, Mixture
from isolayer.simulate.setups import debias_feed

__all__ = [
    "DEVICES",
    "DOWNSTREAM",
    "GRADE_SHARES",
    "QUERY_LENGTHS",
    "TASKS",
    "ULTRA_EXAMINATION",
    "Behaviour",
    "Check",
    "Contextual",
    "DependentClick",
    "Distortion",
    "Drift",
    "DynamicBayesian",
    "Feed",
    "Logger",
    "Mixture",
    "Policy",
    "Population",
    "PositionBased",
    "Task",
    "Trust",
    "UserMetrics",
    "closed_loop",
    "debias_feed",
    "scored_log",
    "self_test",
]
