"""Tables 2 and 4: simulated live traffic. Each arm ranks for users of its own, and a two-sided t-test compares them.

Two tests a seed, each in a world of its own:

    debiasing     control is the naive model; Position Dropout, the inference head as the paper trains it (alpha .25,
                  beta .75, joint) and with the detached anchor; and the control once more, an A/A test
    calibration   control is a multi-task model with sparse downstream labels; the treatment puts one monotone curve a
                  downstream task over it, fitted on sessions shown at random; both rank by the same value function

The world answers every ranking, so an arm earns what its users do and not what a log says it would have earned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.calibrator import IsotonicCalibrator
from isolayer.debias.baselines import Naive, PositionDropout
from isolayer.debias.heads import DualHead
from isolayer.debias.serving import Serving
from isolayer.errors import need
from isolayer.simulate import DOWNSTREAM, TASKS, Feed, Policy, Population, PositionBased, UserMetrics, closed_loop
from research.charts import intervals, records
from research.loop import WIDTH, as_log, network, train
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = (
    "On live traffic the inference head lifts the top-line metrics significantly (two-sided t-test, p < .05), Position "
    "Dropout lifts none; calibrating sparse downstream tasks lifts engagement, quality and the ecosystem metric."
)
PAPER = "table 4: +0.63%, +0.14%, +0.14%, +0.06%, dropout about 0; table 2: +0.17%, +0.20%, +0.36%"
SEEDS = 6
LEVEL = 0.05
CONTEXTS = {"position": 10, "device": 3}
RANKED = ("click", "like", "long_dwell")
VALUE = {"click": 1.0, "like": 4.0, "long_dwell": 2.0}  # what an event is worth to the ranking
DOWNSTREAM_VALUE = 40.0  # of a downstream session, which is rare
ACTIONS = {"downstream_like": "like", "downstream_share": "share", "downstream_comment": "comment"}
DROPOUT, JOINT, DETACHED, AGAIN = "Position Dropout", "inference head", "inference head, detached", "control again"
CALIBRATED = "calibrated downstream"
ARMS = {"debiasing": (DROPOUT, JOINT, DETACHED, AGAIN), "calibration": (CALIBRATED,)}
METRICS: dict[str, dict[str, tuple[str, ...]]] = {  # metric -> the events it counts
    "debiasing": {"clicks": ("click",), "likes": ("like",), "long dwells": ("long_dwell",), "true relevance": ("dcg",)},
    "calibration": {
        "clicks": ("click",),
        "interactions": ("like", "share", "comment"),
        "downstream sessions": tuple(ACTIONS),
    },
}
PAPER_LIFTS = {
    (JOINT, "clicks"): "+0.06% to +0.63%",
    (DROPOUT, "clicks"): "about 0",
    (CALIBRATED, "interactions"): "+0.17%",
    (CALIBRATED, "downstream sessions"): "+0.36% (ecosystem)",
}


class Comparison(NamedTuple):
    """One comparison of two arms: relative lift, its standard error, both in percent, and the two-sided p-value."""

    lift: float
    error: float
    p_value: float


def welch(treatment: NDArray[np.float64], control: NDArray[np.float64]) -> Comparison:
    r"""Two-sided t-test of unequal variances over users; the lift is :math:`100 (\bar t / \bar c - 1)`.

    >>> rng = np.random.default_rng(0)
    >>> found = welch(rng.normal(1.1, 1, 20_000), rng.normal(1.0, 1, 20_000))
    >>> found.p_value < 0.05, 7 < found.lift < 13
    (True, True)
    """
    means, parts = (treatment.mean(), control.mean()), (_of_mean(treatment), _of_mean(control))
    error = math.sqrt(sum(parts))
    sizes = (len(treatment) - 1, len(control) - 1)
    freedom = sum(parts) ** 2 / sum(part**2 / size for part, size in zip(parts, sizes, strict=True))
    t = abs(means[0] - means[1]) / error
    p_value = 2 * float(need("scipy.special").stdtr(freedom, -t))
    return Comparison(100 * float(means[0] / means[1] - 1), 100 * error / float(means[1]), p_value)


def _of_mean(column: NDArray[np.float64]) -> float:
    # variance of the mean
    return float(column.var(ddof=1)) / len(column)


def power(lift: float, error: float) -> float:
    """Chance that a two-sided test at level .05 sees a lift of this size with this standard error.

    >>> round(power(0.0, 1.0), 3), round(power(2.8, 1.0), 2)
    (0.05, 0.8)
    """
    normal = NormalDist()
    reach = normal.inv_cdf(1 - LEVEL / 2)
    return normal.cdf(abs(lift) / error - reach) + normal.cdf(-abs(lift) / error - reach)


def detectable(error: float, *, chance: float = 0.8) -> float:
    """The lift that a test with this standard error sees with this chance.

    >>> round(detectable(1.0), 2)
    2.8
    """
    return error * (NormalDist().inv_cdf(1 - LEVEL / 2) + NormalDist().inv_cdf(chance))


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Both tests under every seed."""
    return units_of(list(ARMS), quick=quick, seeds=seeds or SEEDS, cost=4.0 if quick else 22.0)


def run_unit(unit: Unit) -> Numbers:
    """Train the arms on a log, let each serve its users, test each against the control."""
    torch.manual_seed(unit.seed)
    world, policies = (debiasing if unit.setting == "debiasing" else calibration)(unit.seed, quick=unit.quick)
    sessions = 40_000 if unit.quick else 400_000
    served = closed_loop(world, policies, sessions, seed=7 + unit.seed)
    numbers: Numbers = {}
    for metric, events in METRICS[unit.setting].items():
        columns = {arm: per_session(users, events) for arm, users in served.items()}
        for arm in ARMS[unit.setting]:
            found = welch(columns[arm], columns["control"])
            numbers |= {f"{arm} {metric} {name}": value for name, value in found._asdict().items()}
    return numbers


def per_session(users: UserMetrics, events: Sequence[str]) -> NDArray[np.float64]:
    """Events of each user a session, those who came."""
    return np.asarray(np.sum([users.per_session(event) for event in events], axis=0))


def debiasing(seed: int, *, quick: bool) -> tuple[Feed, dict[str, Policy]]:
    """The world of table 4, and the policies trained on its log."""
    world = Feed(
        population=Population(users=60_000, seed=seed),
        behaviour=PositionBased(eta=(1.0, 0.7, 1.3)),
        tasks=tuple(task for task in TASKS if task.name in RANKED),
    )
    log = as_log(world.log(8_000 if quick else 40_000, seed=1 + seed), RANKED)
    columns = world.population.features
    plain: dict[str, Any] = {"width": WIDTH, "tasks": RANKED}
    models: dict[str, Naive | DualHead] = {
        "control": Naive(network(columns), **plain),
        DROPOUT: PositionDropout(network(columns + 8), contexts=CONTEXTS, drop=0.15, dim=4, **plain),
        JOINT: DualHead(network(columns), contexts=CONTEXTS, anchor="joint", **plain),
        DETACHED: DualHead(network(columns), contexts=CONTEXTS, anchor="detached", **plain),
    }
    policies = {name: by_value(train(model, log, seed=seed).serving(), VALUE) for name, model in models.items()}
    return world, {**policies, AGAIN: policies["control"]}


def by_value(serving: Serving, worth: Mapping[str, float]) -> Policy:
    """Rank by the expected value of the events, from served probabilities."""

    def score(features: NDArray[np.float32]) -> Any:
        with torch.no_grad():
            outputs = serving(torch.from_numpy(features))
            return sum(weight * outputs[f"{task}_prob"] for task, weight in worth.items())

    return score


def calibration(seed: int, *, quick: bool) -> tuple[Feed, dict[str, Policy]]:
    """The world of table 2: a model trained on the log, then curves fitted on sessions in random order."""
    world = Feed(population=Population(users=60_000, seed=seed), tasks=TASKS[1:4] + DOWNSTREAM)
    tasks = ("click", *ACTIONS.values(), *ACTIONS)
    sessions = 8_000 if quick else 40_000
    log = as_log(world.log(sessions, seed=1 + seed), tasks, after=ACTIONS)
    model = Naive(network(world.population.features), width=WIDTH, tasks=tasks)
    serving = train(model, log, epochs=6, seed=seed).serving()
    rng = np.random.default_rng(seed)
    shuffled = world.log(sessions, seed=2 + seed, policy=lambda features: rng.random(len(features)))
    curve = downstream_curve(serving, shuffled)
    return world, {"control": by_downstream(serving, lambda _, logit: logit), CALIBRATED: by_downstream(serving, curve)}


def downstream_curve(
    serving: Serving, columns: Mapping[str, NDArray[Any]]
) -> Callable[[str, NDArray[np.float64]], NDArray[np.float64]]:
    """One curve a downstream task over the frozen model's logits, from the rows that had the action."""
    with torch.no_grad():
        outputs = serving(torch.from_numpy(columns["features"]))
    parts = [
        (np.full(int(acted.sum()), task), outputs[task].double().numpy()[acted], columns[task][acted])
        for task, acted in ((task, columns[action] == 1) for task, action in ACTIONS.items())
    ]
    task, logit, label = (np.concatenate(column) for column in zip(*parts, strict=True))
    fitted = IsotonicCalibrator(("task",)).fit({"score": logit, "task": task}, label)
    return lambda name, score: fitted.decision_function({"score": score, "task": np.full(len(score), name)})


def by_downstream(serving: Serving, curve: Callable[[str, NDArray[np.float64]], NDArray[np.float64]]) -> Policy:
    """Rank by clicks, and actions with what is expected to follow from them."""

    def score(features: NDArray[np.float32]) -> Any:
        with torch.no_grad():
            outputs = {name: column.double().numpy() for name, column in serving(torch.from_numpy(features)).items()}
        value = outputs["click_prob"].copy()
        for task, action in ACTIONS.items():
            follows = 1 / (1 + np.exp(-curve(task, outputs[task])))
            value += outputs[f"{action}_prob"] * (VALUE["like"] + DOWNSTREAM_VALUE * follows)
        return value

    return score


def summarise(finished: Sequence[Finished]) -> Result:
    """Mean lift over seeds with its interval, and beside it the least lift one test could see."""
    rows = []
    for setting, arms in ARMS.items():
        for arm in arms:
            for metric in METRICS[setting]:
                lift = estimate(by_seed(finished, setting, f"{arm} {metric} lift"))
                rows.append(Row(arm, f"{metric}, lift", lift, PAPER_LIFTS.get((arm, metric), ""), 2, "%"))
        rows += [
            Row(setting, f"{metric}, least lift one test sees with power .8", _least(finished, setting, metric), "", 2)
            for metric in METRICS[setting]
        ]
    return Result(tuple(rows), _parts(finished), _series(finished), _note(finished))


def _least(finished: Sequence[Finished], setting: str, metric: str) -> Any:
    errors = by_seed(finished, setting, f"{ARMS[setting][0]} {metric} error")
    return estimate([detectable(error) for error in errors])


def _significant(finished: Sequence[Finished], setting: str, arm: str) -> NDArray[np.float64]:
    # share of the metrics that rose with p < .05, [seeds]
    told = [
        (by_seed(finished, setting, f"{arm} {metric} {key}") for key in ("p_value", "lift"))
        for metric in METRICS[setting]
    ]
    return np.asarray(np.mean([(p_value < LEVEL) & (lift > 0) for p_value, lift in told], axis=0))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    lifted = [
        Part(f"{arm} lifts {metric}", estimate(by_seed(finished, setting, f"{arm} {metric} lift")), above=0)
        for setting, arm in (("debiasing", JOINT), ("calibration", CALIBRATED))
        for metric in METRICS[setting]
    ]
    dropout = estimate(_significant(finished, "debiasing", DROPOUT))
    aa = estimate(_significant(finished, "debiasing", AGAIN))
    return (
        *lifted,
        Part("Position Dropout has no significant lift (in fewer than a tenth of its tests)", dropout, below=0.1),
        Part("the control against itself has none either (in fewer than a tenth of its tests)", aa, below=0.1),
    )


def _note(finished: Sequence[Finished]) -> str:
    told = []
    for setting, arms in ARMS.items():
        for arm in arms:
            share = float(_significant(finished, setting, arm).mean())
            metric = next(iter(METRICS[setting]))
            lift = float(by_seed(finished, setting, f"{arm} {metric} lift").mean())
            error = float(by_seed(finished, setting, f"{arm} {metric} error").mean())
            told.append(f"{arm} {share:.0%} (power for its mean lift of {metric}: {power(lift, error):.2f})")
    return f"Share of single tests that show a lift with p < .05: {'; '.join(told)}."


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in ("test", "arm", "metric", "value", "lower", "upper")}
    for setting, arms in ARMS.items():
        for arm in arms:
            for metric in METRICS[setting]:
                found = estimate(by_seed(finished, setting, f"{arm} {metric} lift"))
                values = (setting, arm, metric, found.value, found.lower, found.upper)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
    return columns


def chart(series: dict[str, Any]) -> Any:
    """Lift of every arm and metric with its interval over seeds, the two tests one below the other."""
    rows, title = records(series), "lift over control, %"
    tests = [
        intervals(
            [row for row in rows if row["test"] == test],
            y="arm",
            panel="metric",
            order=arms,
            title=title,
            columns=4,
            zero=True,
        )
        for test, arms in ARMS.items()
    ]
    return need("altair").vconcat(*tests)
