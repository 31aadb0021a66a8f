"""Closed loop: policies rank, users act, and metrics are summed by user, so that policies compare as in an A/B test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.settings import choice, count, flag, function, instance, mapping
from isolayer.settings import seed as checked_seed
from isolayer.simulate.feed import Feed, Policy
from isolayer.simulate.population import Ids

_CHUNK = 8192


@dataclass(frozen=True)
class UserMetrics:
    """Metrics of every user of one arm, columns ``[users]``.

    Args:
        user: User ids, ascending.
        sessions: Number of sessions of each user.
        totals: Events of each task, and ``dcg``: the sum over sessions of the true ``sum (2^y - 1) / log2(k + 2)``.
    """

    user: Ids
    sessions: NDArray[np.float64]
    totals: dict[str, NDArray[np.float64]]

    def per_session(self, metric: str) -> NDArray[np.float64]:
        """Mean of a metric per session for each user with a session, ``[such users]``: what a t-test compares."""
        choice("metric", metric, sorted(self.totals))
        came = self.sessions > 0
        return np.asarray(self.totals[metric][came] / self.sessions[came])


def closed_loop(
    feed: Feed, policies: Mapping[str, Policy], sessions: int, seed: int = 0, *, common_random_numbers: bool = False
) -> dict[str, UserMetrics]:
    """Serve ``sessions`` sessions with each policy instead of the feed's logger, and return the metrics of its users.

    By default every arm has its own users, ``user % arms``, as in a real test: compare arms with an unpaired two-sided
    t-test. With ``common_random_numbers`` every arm serves the same sessions to the same users with the same random
    draws. Only the order of items differs, so a paired t-test over users detects much smaller effects.

    Args:
        feed: The simulated feed; its logger is not used.
        policies: For each arm, a function from features ``[n, features]`` to scores ``[n]``; higher is shown first.
        sessions: Number of sessions per arm.
        seed: Seed of everything random.
        common_random_numbers: Whether arms share sessions and random draws.

    >>> from isolayer.simulate import Population
    >>> feed = Feed(population=Population(users=40, items=100), tasks=())
    >>> arms = closed_loop(feed, {"last": lambda x: x[:, -1], "first": lambda x: x[:, 4]}, sessions=200)
    >>> arms["last"].user[:3].tolist(), int(arms["first"].sessions.sum())
    ([0, 2, 4], 200)
    """
    instance("feed", feed, Feed, advice="use simulate.Feed(...)")
    for name, policy in mapping("policies", policies, advice="name each function of the features").items():
        function(f"policies {name!r}", policy, advice="give a function of the features")
    if not policies:
        raise InputError("policies: expected at least one, got none; name a function of the features")
    sessions = count("sessions", sessions, advice="simulate several logs with other seeds")
    seed = checked_seed("seed", seed)
    arms = 1 if flag("common_random_numbers", common_random_numbers) else len(policies)
    if feed.population.users < arms:
        raise InputError(f"users: expected at least {arms}, one per arm, got {feed.population.users}; raise it")
    return {
        name: _serve(feed, policy, sessions, [seed, number % arms], users=(number % arms, arms))
        for number, (name, policy) in enumerate(policies.items())
    }


def _serve(feed: Feed, policy: Policy, sessions: int, seed: list[int], users: tuple[int, int]) -> UserMetrics:
    first, arms = users
    rng, people = np.random.default_rng(seed), feed.population
    names = (*feed.task_names, "dcg")
    came, totals = np.zeros(people.users), {name: np.zeros(people.users) for name in names}
    for start in range(0, sessions, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, sessions), dtype=np.int32)
        candidates = feed.candidates(ids, sessions, rng, users=users)
        draws = feed.draws(len(ids), rng)
        order = np.argsort(-feed.scores(policy, candidates), axis=1, kind="stable")
        moved = {name: _in_order(draw, order) if name != "look" else draw for name, draw in draws.items()}
        columns = feed.show(candidates.ranked(order), moved)
        came += np.bincount(candidates.user, minlength=people.users)
        columns["dcg"] = (np.exp2(columns["grade"]) - 1) / np.log2(columns["position"] + 2)
        for name in names:
            totals[name] += np.bincount(columns["user"], columns[name], people.users)
    mine = np.arange(first, people.users, arms, dtype=np.int32)
    return UserMetrics(mine, came[mine], {name: total[mine] for name, total in totals.items()})


def _in_order(draw: NDArray[np.float32], order: NDArray[np.intp]) -> NDArray[np.float32]:
    # The draw of a user's interest in an item moves with the item; the draw of attention stays with the position.
    return np.take_along_axis(draw, order, axis=1)
