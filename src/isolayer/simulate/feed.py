"""The feed: sessions, candidates, a logging policy and users who act. A log has labels and true probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import numbers
from isolayer.settings import count, function, instance, number, shown, text
from isolayer.settings import seed as checked_seed
from isolayer.simulate.behaviours import (
    GAIN,
    Behaviour,
    Grades,
    Outcome,
    PositionBased,
    Shown,
    Single,
    expit,
    strengths,
)
from isolayer.simulate.population import Ids, Population
from isolayer.simulate.session_behaviours import query_length

Columns = dict[str, NDArray[Any]]
Policy = Callable[[Single], Any]  # features [n, features] to scores [n], higher shown first

DEVICES = (0.6, 0.3, 0.1)  # share of phone, desktop, tablet
GRADE_SHARES = (0.50, 0.25, 0.15, 0.07, 0.03)  # of grades 0 .. 4 for normal latent relevance; within .02
PLATFORM_LOGIT = (0.0, 0.3, -0.3)  # ios, android, web: added to the logit of every task except click
_CHUNK = 8192  # sessions drawn at once: large enough to vectorise, small enough for the cache
_CUTS = [NormalDist().inv_cdf(share) for share in np.cumsum(GRADE_SHARES)[:-1]]


@dataclass(frozen=True)
class Task:
    r"""A task other than click. Its relevance is a sigmoid of latent relevance z and of the task's own function.

    :math:`r_t = \sigma(\mathrm{logit}(rate) + slope\,(\sqrt{1 - own^2}\, z + own\, f_t(item)) + platform)`.

    Args:
        name: Name of its column.
        rate: Probability at average relevance, given that the item is seen.
        slope: How steeply it rises with relevance; negative if it falls, as skip does.
        own: How much of its latent variable is its own function of the item, from 0 to 1.
        after: The action it is conditional on: a downstream conversion occurs only in rows with that action.
    """

    name: str
    rate: float
    slope: float = 1.0
    own: float = 0.3
    after: str | None = None

    def __post_init__(self) -> None:
        text("name", self.name, advice="name the column of the label")
        number("rate", self.rate, 0, 1, advice="give a probability")
        number("slope", self.slope, advice="1.0 is usual")
        number("own", self.own, 0, 1, ends="[]", advice="give a share")
        if self.after is not None:
            text("after", self.after, advice="name the task it is conditional on, or None")


TASKS = (
    Task("skip", 0.4, slope=-1.0),
    Task("like", 0.05),
    Task("share", 0.015),
    Task("comment", 0.02),
    Task("long_dwell", 0.15, slope=1.2),
)
DOWNSTREAM = (
    Task("downstream_like", 0.03, slope=0.7, after="like"),
    Task("downstream_share", 0.08, slope=0.7, after="share"),
    Task("downstream_comment", 0.06, slope=0.7, after="comment"),
)


@dataclass(frozen=True)
class Logger:
    """The logging policy: ``relevance v + spurious s + popularity q + informed xi + grade y + noise N(0, 1)``.

    Args:
        relevance: Weight of the visible relevance, a function of the features.
        spurious: Weight of the spurious feature, which hardly matters to users.
        popularity: Weight of the item's popularity, which is half its appeal and half something else.
        informed: Weight of the part of relevance that is absent from the features: the logger knows more than a model.
        grade: Weight of the true grade 0 .. 4, its visible and its hidden part together.
        noise: Weight of standard normal noise.
        temperature: Lists are drawn by Plackett-Luce with logits ``score / temperature`` (Gumbel noise and a sort);
            0 sorts by the score, deterministically.
    """

    relevance: float = 0.3
    spurious: float = 0.7
    informed: float = 0.0
    grade: float = 0.0
    noise: float = 0.0
    temperature: float = 0.0
    popularity: float = 0.0

    def __post_init__(self) -> None:
        for name in ("relevance", "spurious", "informed", "grade", "popularity"):
            number(name, getattr(self, name), advice="give the weight of this part of the score")
        for name in ("noise", "temperature"):
            number(name, getattr(self, name), 0, ends="[)", advice="0 leaves it out")

    def score(self, candidates: Candidates, rng: np.random.Generator) -> Single:
        """The policy's score of every candidate, Gumbel noise included, ``[sessions, candidates]``."""
        parts = (
            (self.relevance, candidates.visible),
            (self.spurious, candidates.spurious),
            (self.informed, candidates.hidden),
            (self.grade, candidates.grade),
            (self.popularity, candidates.popularity),
        )
        score = np.zeros(candidates.item.shape, dtype=np.float32)
        for weight, part in parts:
            if weight:
                score += np.float32(weight) * part
        if self.noise:
            score += np.float32(self.noise) * rng.standard_normal(score.shape, dtype=np.float32)
        if self.temperature:
            uniform = rng.random(score.shape, dtype=np.float32) + np.float32(1e-9)
            score -= np.float32(self.temperature) * np.log(-np.log(uniform))
        return score


@dataclass(frozen=True)
class Drift:
    r"""What changes from day to day; on day 0 nothing has changed yet.

    Args:
        position_bias: The strength of the bias on day d is :math:`\eta\, e^{d \cdot position\_bias}`.
        relevance: Visible relevance rotates by this many radians per day towards another function of the items.
        rate: Added to the logit of every task except click, each day.
    """

    position_bias: float = 0.0
    relevance: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("position_bias", "relevance", "rate"):
            number(name, getattr(self, name), advice="give the change per day")


class Candidates(NamedTuple):
    """Sessions and the items that can be shown in them, before ranking."""

    session: Ids  # [sessions]
    user: Ids  # [sessions]
    device: Ids  # [sessions]
    platform: Ids  # [sessions]
    day: Ids  # [sessions]
    item: Ids  # [sessions, positions]
    visible: Single  # [sessions, positions], like all below
    spurious: Single
    hidden: Single
    latent: Single
    grade: Grades
    popularity: Single

    def ranked(self, order: NDArray[np.intp]) -> Candidates:
        """The same candidates with those of every session in ``order``."""
        moved = {
            name: np.take_along_axis(getattr(self, name), order, axis=1)
            for name in ("item", "visible", "spurious", "hidden", "latent", "grade", "popularity")
        }
        return self._replace(**moved)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A simulated feed whose relevance and bias are known.

    Args:
        population: Users and items.
        logger: The policy that ranks the log.
        behaviour: How users act on a list.
        tasks: Tasks other than click; a task that is conditional on another comes after it.
        positions: Length of a list; every candidate is shown.
        days: Number of days over which sessions are spread, in order.
        drift: What changes from day to day.

    >>> log = Feed(population=Population(users=10, items=50)).log(sessions=3, seed=1)
    >>> log["features"].shape, log["position"][:12].tolist()
    ((30, 12), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    """

    population: Population = field(default_factory=Population)
    logger: Logger = field(default_factory=Logger)
    behaviour: Behaviour = field(default_factory=PositionBased)
    tasks: tuple[Task, ...] = TASKS + DOWNSTREAM
    positions: int = 10
    days: int = 1
    drift: Drift = field(default_factory=Drift)

    def __post_init__(self) -> None:
        for name, kind in {"population": Population, "logger": Logger, "drift": Drift}.items():
            instance(name, getattr(self, name), kind, advice=f"use simulate.{kind.__name__}(...)")
        if not all(hasattr(self.behaviour, name) for name in ("eta", "curve", "act")):
            got = shown(self.behaviour)
            raise InputError(f"behaviour: expected eta, curve and act, got {got}; use simulate.PositionBased()")
        most = self.population.items // 2
        count("positions", self.positions, 1, most, advice="list at most half the items, or add items")
        count("days", self.days, advice="raise it")
        if not isinstance(self.tasks, tuple | list):
            raise InputError(f"tasks: expected a tuple of tasks, got {shown(self.tasks)}; use simulate.Task(...)")
        known = {"click"}
        for task in self.tasks:
            instance("tasks", task, Task, advice="use simulate.Task(...)")
            if task.name in known:
                raise InputError(f"tasks: expected distinct names other than click, got {task.name!r} again; rename it")
            if task.after is not None and task.after not in known:
                raise InputError(f"tasks: expected {task.after!r} before {task.name!r}, got it nowhere; add that task")
            known.add(task.name)
        strengths(self.behaviour, len(DEVICES))

    @property
    def task_names(self) -> tuple[str, ...]:
        """Every label column, click first."""
        return ("click", *(task.name for task in self.tasks))

    def log(self, sessions: int, seed: int = 0, *, policy: Policy | None = None) -> Columns:
        """Columns of ``sessions * positions`` logged impressions, session by session in order of position.

        ``policy``, a function of the features, ranks instead of the logger.

        The columns are ``features`` ``[n, features]``; ``session user item position device platform day
        query_length``; a 0/1 column per task; and the truth: ``grade``, ``relevance_<task>`` (probability given full
        attention; for click the gain of the grade), ``examination``, ``prob_<task>`` (probability of the label in the
        list as shown) and ``logging_score``.
        """
        whole: Columns = {}
        filled = 0
        for chunk in self.batches(sessions, seed, policy=policy):
            rows = len(chunk["item"])
            for name, column in chunk.items():
                if not filled:
                    whole[name] = np.empty((sessions * self.positions, *column.shape[1:]), dtype=column.dtype)
                whole[name][filled : filled + rows] = column
            filled += rows
        return whole

    def batches(self, sessions: int, seed: int = 0, *, policy: Policy | None = None) -> Iterator[Columns]:
        """The same rows as :meth:`log`, in pieces that fit in memory."""
        sessions = count("sessions", sessions, advice="simulate several logs with other seeds")
        seed = checked_seed("seed", seed)
        if policy is not None:
            function("policy", policy, advice="give a function of the features")
        return self._chunks(sessions, np.random.default_rng(seed), policy)

    def _chunks(self, sessions: int, rng: np.random.Generator, policy: Policy | None) -> Iterator[Columns]:
        for start in range(0, sessions, _CHUNK):
            ids = np.arange(start, min(start + _CHUNK, sessions), dtype=np.int32)
            candidates = self.candidates(ids, sessions, rng)
            score = self.logger.score(candidates, rng) if policy is None else self.scores(policy, candidates)
            order = np.argsort(-score, axis=1)
            columns = self.show(candidates.ranked(order), self.draws(len(ids), rng))
            columns["logging_score"] = np.take_along_axis(score, order, axis=1).ravel()
            yield columns

    def candidates(
        self, session: Ids, sessions: int, rng: np.random.Generator, *, users: tuple[int, int] = (0, 1)
    ) -> Candidates:
        """Draw the sessions of these ids: their users, devices and candidates, which are distinct items.

        ``users=(a, m)`` draws only users whose id is ``a`` modulo ``m``: one arm of a test.
        """
        people, count = self.population, len(session)
        arm, arms = users
        user = (rng.integers(0, len(range(arm, people.users, arms)), count) * arms + arm).astype(np.int32)
        device = np.searchsorted(np.cumsum(DEVICES)[:-1], rng.random(count), side="right").astype(np.int32)
        platform = np.where(device == 1, 2, rng.integers(0, 2, count)).astype(np.int32)
        day = (session.astype(np.int64) * self.days // sessions).astype(np.int32)
        first = rng.integers(0, people.items, count)
        stride = rng.integers(
            1, (people.items - 1) // self.positions + 1, count
        )  # this few strides never wrap around to the first item
        item = ((first[:, None] + stride[:, None] * np.arange(self.positions)) % people.items).astype(np.int32)
        visible = self._visible(user, item, day)
        hidden = rng.standard_normal((count, self.positions), dtype=np.float32)
        share = people.hidden
        latent = (math.sqrt(1 - share**2) * visible + share * hidden).astype(np.float32, copy=False)
        grade = np.zeros(item.shape, dtype=np.int8)
        for cut in _CUTS:
            grade += latent > np.float32(cut)
        spurious = people.spurious(item)
        return Candidates(
            session,
            user,
            device,
            platform,
            day,
            item,
            visible,
            spurious,
            hidden,
            latent,
            grade,
            people.popularity[item],
        )

    def _visible(self, user: Ids, item: Ids, day: Ids) -> Single:
        visible = self.population.visible(user, item)
        if not self.drift.relevance:
            return visible
        turn = (self.drift.relevance * day).astype(np.float32)[:, None]
        return np.asarray(np.cos(turn) * visible + np.sin(turn) * self.population.novelty[item])

    def scores(self, policy: Policy, candidates: Candidates) -> Single:
        """A policy's score of every candidate, ``[sessions, positions]``; missing or non-finite scores are refused."""
        features = self.population.features_of(candidates.user, candidates.item)
        score = numbers("scores of the policy", policy(features), len(features))
        return score.astype(np.float32).reshape(candidates.item.shape)

    def draws(self, sessions: int, rng: np.random.Generator) -> dict[str, Single]:
        """Uniform draws for one chunk: ``look`` by position, and one by item for every task."""
        shape = (sessions, self.positions)
        return {name: rng.random(shape, dtype=np.float32) for name in ("look", *self.task_names)}

    def show(self, ranked: Candidates, draws: dict[str, Single]) -> Columns:
        """Columns of what users do when they are shown the candidates in this order."""
        relevance = self._relevance(ranked)
        direct = {task.name: relevance[task.name] for task in self.tasks if task.after is None}
        curve = self._curves[ranked.device, ranked.day]
        outcome = self.behaviour.act(
            Shown(ranked.grade, curve, ranked.device, direct, draws["look"], draws, ranked.session)
        )
        self._follow(outcome, relevance, draws)
        sessions = len(ranked.session)
        columns: Columns = {"features": self.population.features_of(ranked.user, ranked.item)}
        columns |= {name: np.repeat(getattr(ranked, name), self.positions) for name in ("session", "user")}
        columns["item"] = ranked.item.ravel()
        columns["position"] = np.tile(np.arange(self.positions, dtype=np.int32), sessions)
        columns |= {name: np.repeat(getattr(ranked, name), self.positions) for name in ("device", "platform", "day")}
        columns["query_length"] = np.repeat(query_length(ranked.session), self.positions)
        columns |= {name: outcome.label[name].ravel().astype(np.int8) for name in self.task_names}
        columns["grade"] = ranked.grade.ravel()
        columns["relevance_click"] = GAIN[columns["grade"]]
        columns |= {f"relevance_{name}": value.ravel() for name, value in relevance.items()}
        columns["examination"] = outcome.examination.ravel()
        columns |= {f"prob_{name}": outcome.prob[name].ravel() for name in self.task_names}
        return columns

    def _follow(self, outcome: Outcome, relevance: dict[str, Single], draws: dict[str, Single]) -> None:
        # Downstream conversions depend on the action they follow and no longer on attention.
        for task in self.tasks:
            if task.after is not None:
                outcome.prob[task.name] = outcome.prob[task.after] * relevance[task.name]
                outcome.label[task.name] = outcome.label[task.after] & (draws[task.name] < relevance[task.name])

    def _relevance(self, ranked: Candidates) -> dict[str, Single]:
        shift = np.asarray(PLATFORM_LOGIT, dtype=np.float32)[ranked.platform]
        shift = (shift + np.float32(self.drift.rate) * ranked.day)[:, None]
        out = {}
        for task in self.tasks:
            shared = np.float32(task.slope * math.sqrt(1 - task.own**2))
            base = np.float32(math.log(task.rate / (1 - task.rate)))
            out[task.name] = expit(shared * ranked.latent + self._own[task.name][ranked.item] + (shift + base))
        return out

    @cached_property
    def _own(self) -> dict[str, Single]:
        # The part of each task's logit that is the task's own function of the item, [items].
        return {
            task.name: np.float32(task.slope * task.own) * self.population.direction(task.name) for task in self.tasks
        }

    @cached_property
    def _curves(self) -> Single:
        # The behaviour's curve for every device and day, [devices, days, positions].
        eta = strengths(self.behaviour, len(DEVICES))[:, None]
        eta = eta * np.exp(self.drift.position_bias * np.arange(self.days))
        flat = self.behaviour.curve(self.positions, eta.ravel())
        return flat.reshape(len(DEVICES), self.days, self.positions).astype(np.float32)
