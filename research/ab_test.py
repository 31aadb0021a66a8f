"""Table 4: simulated live traffic. Each arm ranks for users of its own, and a two-sided t-test compares them.

The control is the naive model. Against it stand Position Dropout at every rate of the paper's grid, the control with
each task calibrated by Platt scaling or by isotonic regression (on a log of its own, from the same logger), the
inference head with the paper's loss and weights (alpha .25, beta .75, joint) and with the detached anchor, and the
control once more, an A/A test. Dropout hides the device as well as the position, and at serving both are hidden. The
world answers every ranking, so an arm earns what its users do and not what a log says it would have earned.

A single test has little power for the lifts of dropout, so lifts are judged over all seeds together, against the mean
of the control and of the control again, since both rank by the same model. What the paper calls no lift is judged by
its size, since that a lift is not beyond chance would hold more often the fewer seeds there are. An arm that should
lift nothing must lift less than a quarter of what the inference head does: the difference, paired by seed, must be
below 0. So the allowance depends on how much there is to gain, which is not the same in this world and in the paper's.
Which lifts of dropout are above 0 beyond chance is said beside the verdict.

A second allowance, of half a percent for dropout, was dropped. A quarter of the head's lift is about as much here, so
that each lift was judged twice; and three of the paper's own four lifts, which it calls significant, are smaller than
half a percent. The control against itself is among the rows and in the note, and no part of the verdict: both rank by
the same model, so that what it lifts is chance, and speaks neither for the paper nor against it. These rules were set
after first reports; the seeds reported now are others. Table 2, the other online test of the paper, is in
`research.notifications`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.debias.baselines import Naive, PositionDropout, post_hoc
from isolayer.debias.heads import DualHead
from isolayer.debias.serving import Serving
from isolayer.errors import need
from isolayer.simulate import TASKS, Feed, Policy, Population, PositionBased, closed_loop
from research.charts import intervals, records
from research.loop import WIDTH, as_log, network, train
from research.result import (
    Estimate,
    Finished,
    Numbers,
    Part,
    Result,
    Row,
    Unit,
    by_seed,
    certain,
    estimate,
    proportion,
    units_of,
)

CLAIM = (
    "On live traffic the inference head lifts the top-line metrics significantly (two-sided t-test, p < .05), Position "
    "Dropout lifts none under any evaluated configuration, and Platt scaling and isotonic regression of each task are "
    "negative to flat."
)
PAPER = "table 4: +0.63%, +0.14%, +0.14%, +0.06%, dropout about 0 (best offline rate .15); section 5.3"
SEEDS = 12
LEVEL = 0.05
SEEN = 100  # seeds that were reported before the rules were set
SMALL = 0.25  # of the inference head's lift: what is less counts as no lift
CONTEXTS = {"position": 10, "device": 3}
RANKED = ("click", "like", "long_dwell")
VALUE = {"click": 1.0, "like": 4.0, "long_dwell": 2.0}  # what an event is worth to the ranking
JOINT, DETACHED, AGAIN = "inference head", "inference head, detached", "control again"
DROPOUT = {f"Position Dropout {rate:g}": rate for rate in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)}  # the paper's grid
POST_HOC: dict[str, Literal["platt", "isotonic"]] = {"Platt per task": "platt", "isotonic per task": "isotonic"}
ARMS = (*DROPOUT, *POST_HOC, JOINT, DETACHED, AGAIN)
NONE = (*DROPOUT, *POST_HOC)  # should lift nothing
METRICS = {"clicks": "click", "likes": "like", "long dwells": "long_dwell", "true relevance": "dcg"}
LIVE = tuple(METRICS)[:3]  # true relevance is seen by the simulator alone
Lifts = Mapping[tuple[str, str], Estimate]  # by arm and metric, over seeds
PAPER_LIFTS = {JOINT: "+0.06% to +0.63%", "Position Dropout 0.15": "about 0"}
PAPER_LIFTS |= dict.fromkeys(POST_HOC, "negative to flat (section 5.3)")


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
    """One test of all arms per seed."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=8.0 if quick else 50.0, seen=SEEN)


def run_unit(unit: Unit) -> Numbers:
    """Train the arms on a log, let each serve its users, test each against the control."""
    torch.manual_seed(unit.seed)
    world, policies = arms(unit.seed, quick=unit.quick)
    sessions = 40_000 if unit.quick else 400_000
    served = closed_loop(world, policies, sessions, seed=7 + unit.seed)
    numbers: Numbers = {}
    for metric, event in METRICS.items():
        for arm in ARMS:
            found = welch(served[arm].per_session(event), served["control"].per_session(event))
            numbers |= {f"{arm} {metric} {name}": value for name, value in found._asdict().items()}
    return numbers


def arms(seed: int, *, quick: bool) -> tuple[Feed, dict[str, Policy]]:
    """The world, and the policies trained on its log."""
    world = Feed(
        population=Population(users=120_000, seed=seed),
        behaviour=PositionBased(eta=(1.0, 0.7, 1.3)),
        tasks=tuple(task for task in TASKS if task.name in RANKED),
    )
    log, other = (as_log(world.log(8_000 if quick else 40_000, seed=k + seed), RANKED) for k in (1, 1_000_003))
    columns = world.population.features
    plain: dict[str, Any] = {"width": WIDTH, "tasks": RANKED}
    control = Naive(network(columns), **plain)
    models: dict[str, Naive | DualHead] = {
        "control": control,
        **{
            name: PositionDropout(network(columns + 8), contexts=CONTEXTS, drop=rate, dim=4, **plain)
            for name, rate in DROPOUT.items()
        },
        JOINT: DualHead(network(columns), contexts=CONTEXTS, anchor="joint", **plain),
        DETACHED: DualHead(network(columns), contexts=CONTEXTS, anchor="detached", **plain),
    }
    served = {name: train(model, log, seed=seed).serving() for name, model in models.items()}
    served |= {name: post_hoc(control, other.features, other.labels, method=how) for name, how in POST_HOC.items()}
    policies = {name: by_value(serving, VALUE) for name, serving in served.items()}
    return world, {**policies, AGAIN: policies["control"]}


def by_value(serving: Serving, worth: Mapping[str, float]) -> Policy:
    """Rank by the expected value of the events, from served probabilities."""

    def score(features: NDArray[np.float32]) -> Any:
        with torch.no_grad():
            outputs = serving(torch.from_numpy(features))
            return sum(weight * outputs[f"{task}_prob"] for task, weight in worth.items())

    return score


def summarise(finished: Sequence[Finished]) -> Result:
    """Mean lift over seeds with its interval, and beside it the least lift one test could see."""
    lifts = {(arm, metric): _lift(finished, arm, metric) for arm in ARMS for metric in METRICS}
    rows = [
        Row(arm, f"{metric}, lift", lift, PAPER_LIFTS.get(arm, ""), 2, "%") for (arm, metric), lift in lifts.items()
    ]
    rows += [Row(arm, "single tests of live metrics that show a lift", _shown(finished, arm), digits=2) for arm in ARMS]
    rows += _powers(finished)
    rows += [
        Row("one test", f"{metric}, least lift it sees with power .8", _least(finished, metric), "", 2)
        for metric in METRICS
    ]
    rows += least_together(lifts)
    note = f"{told_together(lifts)} {_note(finished)} {told_of_control(lifts)}"
    return Result(tuple(rows), _parts(finished), _series(finished), note)


def told_together(lifts: Lifts) -> str:
    """Which lifts of dropout are beyond chance over all seeds."""
    found = {arm: [metric for metric in LIVE if lifts[arm, metric].lower > 0] for arm in DROPOUT}
    lifted, tried = sum(map(len, found.values())), len(DROPOUT) * len(LIVE)
    said = "; ".join(f"{arm}: {', '.join(metrics)}" for arm, metrics in found.items() if metrics)
    return (
        f"Over all seeds together {lifted} of the {tried} lifts of Position Dropout (six rates, three metrics) are "
        f"above 0 beyond chance{f' ({said})' if said else ''}. All are measured against the same control, so these "
        f"are not {tried} independent tests."
    )


def told_of_control(lifts: Lifts) -> str:
    """How far the control differs from the control again, which ranks by the same model."""
    found = {metric: lifts[AGAIN, metric] for metric in LIVE}
    told = [f"{one.value:+.2f}% [{one.lower:+.2f}, {one.upper:+.2f}] in {metric}" for metric, one in found.items()]
    return f"The control against itself, an A/A test, differs by {', '.join(told)}."


def least_together(lifts: Lifts) -> list[Row]:
    """The lift of dropout that all seeds together see with power .8, from the mean error over its rates."""
    rows = []
    for metric in METRICS:
        errors = [_error(lifts[arm, metric]) for arm in DROPOUT]
        least = certain(detectable(float(np.mean(errors))))
        rows.append(Row("all seeds together", f"{metric}, least lift they see with power .8", least, "", 2))
    return rows


def _error(lift: Estimate) -> float:
    # the standard error that a t-interval of 95% came from
    return (lift.upper - lift.lower) / 2 / float(need("scipy.special").stdtrit(lift.seeds - 1, 1 - LEVEL / 2))


def lift_of(finished: Sequence[Finished], arm: str, metric: str) -> NDArray[np.float64]:
    """Lift in percent over the mean of both controls, which rank alike, ``[seeds]``; of the second over the first."""
    lift, again = (1 + by_seed(finished, "all", f"{one} {metric} lift") / 100 for one in (arm, AGAIN))
    return 100 * (lift - 1 if arm == AGAIN else lift / (1 + again) * 2 - 1)


def _lift(finished: Sequence[Finished], arm: str, metric: str) -> Estimate:
    return estimate(lift_of(finished, arm, metric))


def _least(finished: Sequence[Finished], metric: str) -> Estimate:
    return estimate([detectable(error) for error in by_seed(finished, "all", f"{JOINT} {metric} error")])


def significant(finished: Sequence[Finished], arm: str) -> NDArray[np.bool_]:
    """Whether each single test of a live metric shows a rise with p < .05, ``[metrics, seeds]``."""
    return np.array(
        [
            (by_seed(finished, "all", f"{arm} {metric} p_value") < LEVEL)
            & (by_seed(finished, "all", f"{arm} {metric} lift") > 0)
            for metric in LIVE
        ]
    )


def _shown(finished: Sequence[Finished], arm: str) -> Estimate:
    return proportion(significant(finished, arm).mean(axis=0))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    return (
        *(Part(f"{JOINT} lifts {metric}", _lift(finished, JOINT, metric), above=0, unit="%") for metric in METRICS),
        *(
            Part(
                f"{arm}: lift of {metric} minus a quarter of the {JOINT}'s",
                estimate(lift_of(finished, arm, metric) - SMALL * lift_of(finished, JOINT, metric)),
                below=0,
                unit="%",
            )
            for arm in NONE
            for metric in LIVE
        ),
        *(
            Part(
                f"{JOINT} lifts {metric} more than every rate of dropout",
                _over_dropout(finished, metric),
                above=0,
                unit="%",
            )
            for metric in METRICS
        ),
    )


def _over_dropout(finished: Sequence[Finished], metric: str) -> Estimate:
    # over the best rate of all, chosen after the fact
    best = max(DROPOUT, key=lambda arm: _lift(finished, arm, metric).value)
    return estimate(lift_of(finished, JOINT, metric) - lift_of(finished, best, metric))


def _note(finished: Sequence[Finished]) -> str:
    shown = {arm: significant(finished, arm) for arm in ARMS}
    metrics, seeds = shown[JOINT].shape
    told = ", ".join(f"{arm} {one.sum()}" for arm, one in shown.items())
    return (
        f"A single test, as the paper has them, is of one metric under one seed. Of {metrics * seeds} of each arm "
        f"({metrics} metrics, {seeds} seeds) these show a rise with p < .05: {told}."
    )


def _powers(finished: Sequence[Finished]) -> list[Row]:
    """The chance that one test of clicks sees the mean lift of an arm; of an arm that lifts nothing, a false alarm."""
    return [
        Row(
            arm,
            "chance that one test of clicks sees this lift",
            certain(
                power(*(float(by_seed(finished, "all", f"{arm} clicks {key}").mean()) for key in ("lift", "error")))
            ),
            digits=2,
        )
        for arm in ARMS
    ]


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in ("arm", "metric", "value", "lower", "upper")}
    for arm in ARMS:
        for metric in METRICS:
            found = _lift(finished, arm, metric)
            for column, value in zip(columns.values(), (arm, metric, *found[:3]), strict=True):
                column.append(value)
    return columns


def chart(series: dict[str, Any]) -> Any:
    """Lift of every arm and metric with its interval over seeds."""
    return intervals(
        records(series), y="arm", panel="metric", order=ARMS, title="lift over control, %", columns=4, zero=True
    )
