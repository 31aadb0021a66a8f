"""Tests of the simulator itself: measured rates, curves and correlations against the formulas they should follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isolayer.settings import count, instance
from isolayer.settings import seed as checked_seed
from isolayer.simulate.behaviours import (
    GAIN,
    Behaviour,
    DependentClick,
    Distortion,
    DynamicBayesian,
    PositionBased,
    Trust,
)
from isolayer.simulate.feed import GRADE_SHARES, Columns, Feed, Logger
from isolayer.simulate.session_behaviours import Contextual, Mixture

_MODELS: tuple[Behaviour, ...] = (
    PositionBased(),
    PositionBased(examination=None),
    Trust(),
    DynamicBayesian(),
    DependentClick(),
    Distortion(),
    Contextual(),
    Mixture((PositionBased(), Trust(), DynamicBayesian())),
)
_SPREAD = 5.0  # standard errors by which a correct simulator may deviate


@dataclass(frozen=True)
class Check:
    """One measured number and the value its formula gives."""

    name: str
    expected: float
    measured: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether they agree within the tolerance.

        >>> Check("rate", expected=0.5, measured=0.51, tolerance=0.02).holds
        True
        """
        return abs(self.measured - self.expected) <= self.tolerance


def self_test(feed: Feed | None = None, *, sessions: int = 20_000, seed: int = 0) -> list[Check]:
    """Check a feed, and the same feed with each click model, against the formulas; every ``.holds`` should be true.

    The checks are: relevance falls with position under a logger that ranks by it, and does not under a logger of pure
    noise; grades have their shares; the examination of each model follows its curve; every label occurs at its true
    rate at every position.

    >>> all(check.holds for check in self_test(sessions=2_000))
    True
    """
    feed = Feed() if feed is None else instance("feed", feed, Feed, advice="use simulate.Feed(...)")
    sessions = count("sessions", sessions, advice="20,000 is usual")
    seed = checked_seed("seed", seed)
    checks = _logging_checks(feed, sessions, seed)
    others = [behaviour for behaviour in _MODELS if behaviour != feed.behaviour]
    for number, behaviour in enumerate([feed.behaviour, *others]):
        log = replace(feed, behaviour=behaviour).log(sessions, seed + number)
        checks += _rate_checks(type(behaviour).__name__, feed, log)
    return checks + _click_checks(feed, sessions, seed)


def _logging_checks(feed: Feed, sessions: int, seed: int) -> list[Check]:
    rows = sessions * feed.positions
    quiet = _SPREAD / np.sqrt(rows)
    none = Logger(relevance=0.0, spurious=0.0)
    by_grade = replace(feed, logger=replace(none, grade=1.0, noise=1e-3)).log(sessions, seed)
    by_noise = replace(feed, logger=replace(none, noise=1.0)).log(sessions, seed)
    by_spurious = replace(feed, logger=replace(none, spurious=1.0)).log(sessions, seed)
    ideal = -np.sort(-by_grade["grade"].reshape(sessions, -1), axis=1)
    checks = [
        Check("corr(grade, position), ideal logger", _corr(ideal.ravel(), by_grade), _corr_of(by_grade, "grade"), 1e-9),
        Check("corr(grade, position), noise logger", 0.0, _corr_of(by_noise, "grade"), quiet),
        Check(
            "corr(grade, position), spurious logger",
            feed.population.spurious_relevance * _corr(by_spurious["features"][:, -1], by_spurious) * _grade_corr(),
            _corr_of(by_spurious, "grade"),
            2 * quiet + 0.02,
        ),
    ]
    shares = np.bincount(by_noise["grade"], minlength=len(GRADE_SHARES)) / rows
    # Items occur several times, so there are fewer independent grades than rows; 0.02 covers small catalogues.
    return checks + [
        Check(f"share of grade {y}", GRADE_SHARES[y], float(shares[y]), 0.02) for y in range(len(GRADE_SHARES))
    ]


def _rate_checks(name: str, feed: Feed, log: Columns) -> list[Check]:
    position, size = log["position"], len(log["position"]) / feed.positions
    checks = []
    for task in feed.task_names:
        prob = log[f"prob_{task}"].astype(np.float64)
        expected, measured, variance = (
            np.bincount(position, column) / size for column in (prob, log[task], prob * (1 - prob))
        )
        allowed = _SPREAD * np.sqrt(variance / size) + 1 / size
        checks += [
            Check(f"{name}: rate of {task} at {k}", float(expected[k]), float(measured[k]), float(allowed[k]))
            for k in range(feed.positions)
        ]
    return checks


def _click_checks(feed: Feed, sessions: int, seed: int) -> list[Check]:
    # Clicks by grade and position against the formula itself, not against the column of true probabilities.
    checks = []
    k = np.arange(feed.positions)
    models: dict[str, Behaviour] = {"PositionBased": PositionBased(examination=None), "Trust": Trust()}
    true_positive, false_positive = Trust.rates(feed.positions)
    chance = {
        "PositionBased": (0.1 + 0.9 * GAIN[:, None]) / (k + 1),
        "Trust": (false_positive + (true_positive - false_positive) * GAIN[:, None]) / (k + 1),
    }  # each [grades, positions]
    for name, behaviour in models.items():
        flat = replace(feed, behaviour=behaviour, days=1).log(sessions, seed)
        cell = flat["grade"].astype(np.intp) * feed.positions + flat["position"]
        count = np.bincount(cell, minlength=chance[name].size)
        clicks = np.bincount(cell, flat["click"], chance[name].size)
        for index in np.flatnonzero(count > 50):
            expected = float(chance[name].flat[index])
            y, place = divmod(int(index), feed.positions)
            allowed = _SPREAD * float(np.sqrt(expected * (1 - expected) / count[index])) + 1 / count[index]
            measured = float(clicks[index] / count[index])
            checks.append(Check(f"{name}: clicks of grade {y} at {place}", expected, measured, float(allowed)))
    return checks


def _corr(values: NDArray[np.generic], log: Columns) -> float:
    return float(np.corrcoef(values.astype(np.float64), log["position"])[0, 1])


def _corr_of(log: Columns, name: str) -> float:
    return _corr(log[name], log)


def _grade_corr() -> float:
    # The correlation between latent relevance and its rounding to grades.
    rng = np.random.default_rng(0)
    latent = rng.standard_normal(200_000)
    cuts = np.quantile(latent, np.cumsum(GRADE_SHARES)[:-1])
    return float(np.corrcoef(latent, np.searchsorted(cuts, latent))[0, 1])
