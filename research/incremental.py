"""Conclusion of the paper: training day after day while the world drifts, with nothing to re-estimate.

Users look less and less far down the list, or further and further, and what is relevant turns slowly. Every model
starts from the first days' log; then each day's log is first ranked and predicted, which is the test, and then learned
from, in one pass:

    naive                    clicks as they are
    isotonic                 the dual head as the paper trains it, and with the detached anchor
    isotonic, frozen         the same with the detached anchor, never trained again
    IPS, re-estimated        propensities harvested anew from each day's log before it is learned from
    IPS, never re-estimated  the propensities of the first days
    IPS, true propensities   those of the simulator, day by day: what no pipeline has

The world is a position-based model, for which inverse propensity weighting is exactly right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.debias.baselines import Naive
from isolayer.debias.heads import DualHead
from isolayer.debias.intervention_harvesting import harvest
from isolayer.debias.weighting import InversePropensity
from isolayer.errors import need
from isolayer.simulate import Drift, Feed, Population, PositionBased
from research.charts import records
from research.loop import WIDTH, as_log, network, prob, train
from research.result import (
    Estimate,
    Finished,
    Numbers,
    Part,
    Result,
    Row,
    Unit,
    by_seed,
    estimate,
    units_of,
)

CLAIM = (
    "The isotonic layer adapts as new data arrive, without anything to re-estimate; weighting by inverse propensities "
    "needs a fresh estimation whenever the distribution shifts."
)
PAPER = "conclusion, no figures"
SEEDS = 5
CONTEXTS = {"position": 10, "device": 3}
FIRST_DAYS = 2  # learned from before the first test
NAIVE, JOINT, DETACHED, FROZEN = "naive", "isotonic", "isotonic, detached anchor", "isotonic, frozen"
FRESH, STALE, TRUE = "IPS, re-estimated", "IPS, never re-estimated", "IPS, true propensities"
ARMS = (NAIVE, JOINT, DETACHED, FROZEN, FRESH, STALE, TRUE)
DRIFTS = {"bias grows": (0.6, 0.9), "bias fades": (1.4, -0.9)}  # strength on day 0, and what its logarithm gains
CLIP = 0.05  # propensities below count as this
MARGIN = 0.005  # nDCG: as good as, when not lower by more
Columns = Mapping[str, NDArray[Any]]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every drift and arm under every seed."""
    settings = [f"{drift}: {arm}" for drift in DRIFTS for arm in ARMS]
    return units_of(settings, quick=quick, seeds=seeds or SEEDS, cost=1.3 if quick else 5.5)


def feed(seed: int, days: int, drift: str) -> Feed:
    """A world that drifts: the strength of position bias by a factor of 2.5, relevance by 40 degrees."""
    strength, gain = DRIFTS[drift]
    return Feed(
        population=Population(items=4_000, seed=seed),
        behaviour=PositionBased(eta=strength),
        tasks=(),
        days=days,
        drift=Drift(position_bias=gain / (days - 1), relevance=0.7 / (days - 1)),
    )


def run_unit(unit: Unit) -> Numbers:
    """One arm through the days."""
    torch.manual_seed(unit.seed)
    days, sessions = (6, 2_500) if unit.quick else (14, 6_000)
    drift, name = unit.setting.split(": ")
    world = feed(unit.seed, days, drift)
    whole = world.log(days * sessions, seed=1 + unit.seed)
    by_day = [{name: column[whole["day"] == day] for name, column in whole.items()} for day in range(days)]
    first = {name: np.concatenate([day[name] for day in by_day[:FIRST_DAYS]]) for name in whole}
    spent = {"estimating": 0.0, "training": 0.0}
    model = _timed(spent, "estimating", partial(arm, name, first, world.population.features))
    _timed(spent, "training", partial(train, model, as_log(first, ["click"]), epochs=4, seed=unit.seed))
    spent = dict.fromkeys(spent, 0.0)  # only the days after the first count
    found: list[Numbers] = []
    for day, columns in enumerate(by_day[FIRST_DAYS:]):
        found.append(judged(model, columns))
        if name in (FRESH, TRUE):
            _timed(spent, "estimating", partial(reweigh, model, name, columns))
        if name != FROZEN:
            log = as_log(columns, ["click"])
            _timed(spent, "training", partial(train, model, log, epochs=1, lr=2e-3, seed=day))
    numbers: Numbers = {f"{key} by day": [one[key] for one in found] for key in found[0]}
    later = found[len(found) // 2 :]
    numbers |= {key: float(np.mean([one[key] for one in later])) for key in found[0]}
    return numbers | {f"{key} seconds": value / len(found) for key, value in spent.items()}


def arm(setting: str, first: Columns, features: int) -> Any:
    """The model of an arm, untrained; propensities, where it needs any, from the first days' log."""
    body = network(features)
    if setting == NAIVE:
        return Naive(body, width=WIDTH)
    if setting in (FRESH, STALE, TRUE):
        return InversePropensity(body, width=WIDTH, propensity=propensity(setting, first), clip=CLIP)
    anchor: Any = "joint" if setting == JOINT else "detached"
    return DualHead(body, width=WIDTH, tasks=("click",), contexts=CONTEXTS, anchor=anchor)


def propensity(setting: str, columns: Columns) -> list[float]:
    """Examination by position relative to the top: harvested from items shown at several, or the simulator's own."""
    positions = CONTEXTS["position"]
    if setting == TRUE:
        seen = np.bincount(columns["position"], columns["examination"], positions)
        return [float(value / seen[0]) for value in seen]
    found = harvest(columns["item"], columns["position"], columns["click"])
    return [float(value) for value in found.examination(positions)]


def reweigh(model: InversePropensity, setting: str, columns: Columns) -> None:
    """Give the model the propensities of another log."""
    other = InversePropensity(torch.nn.Identity(), width=1, propensity=propensity(setting, columns), clip=CLIP)
    model.factors.copy_(other.factors)


def judged(model: Any, columns: Columns) -> Numbers:
    """Ranking against true relevance, and predictions of the log by position, on a day not yet learned from."""
    log = as_log(columns, ["click"])
    with torch.no_grad():
        heads = model(log.features, log.context)["click"]
    observed = prob(heads.observed_logit)
    table = metrics.observed_over_expected(columns["click"], observed, columns["position"])
    return {
        "ndcg": metrics.ndcg(columns["grade"], heads.relevance_logit.numpy(), columns["session"]),
        "ne": metrics.normalised_entropy(columns["click"], observed),
        "oe": float(np.abs(table.ratio - 1).mean()),
    }


def _timed(spent: dict[str, float], what: str, call: Callable[[], Any]) -> Any:
    start = time.process_time()
    out = call()
    spent[what] += time.process_time() - start
    return out


def summarise(finished: Sequence[Finished]) -> Result:
    """Means over the later half of the days, differences paired by seed."""
    told = (("ndcg", "nDCG@10, true relevance"), ("oe", "mean abs(O/E - 1) by position"), ("ne", "NE of the log"))
    rows = [
        Row(f"{drift}: {name}", f"{what}, later days", estimate(by_seed(finished, f"{drift}: {name}", key)), digits=4)
        for key, what in told
        for drift in DRIFTS
        for name in ARMS
    ]
    rows += [
        Row(name, f"CPU seconds of {key} a day", estimate(_both(finished, name, f"{key} seconds")), digits=3)
        for name, key in ((DETACHED, "training"), (FRESH, "training"), (FRESH, "estimating"))
    ]
    return Result(tuple(rows), _parts(finished), _series(finished), _note(finished))


def _both(finished: Sequence[Finished], name: str, key: str) -> NDArray[np.float64]:
    # mean over the two drifts, [seeds]
    return np.asarray(np.mean([by_seed(finished, f"{drift}: {name}", key) for drift in DRIFTS], axis=0))


def _minus(finished: Sequence[Finished], drift: str, one: str, other: str, key: str = "ndcg") -> Estimate:
    return estimate(by_seed(finished, f"{drift}: {one}", key) - by_seed(finished, f"{drift}: {other}", key))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    # each drift by itself: propensities that err may happen to err towards where a drift leads
    parts: list[Part] = []
    for drift in DRIFTS:
        minus = partial(_minus, finished, drift)
        parts += [
            Part(f"{drift}: isotonic ranks better than naive", minus(JOINT, NAIVE), above=0),
            Part(f"{drift}: isotonic adapts, ranking better than frozen", minus(DETACHED, FROZEN), above=0),
            Part(f"{drift}: isotonic ranks better than IPS never re-estimated", minus(JOINT, STALE), above=0),
            Part(
                f"{drift}: isotonic ranks as well as IPS re-estimated daily (within {MARGIN})",
                minus(JOINT, FRESH),
                above=-MARGIN,
            ),
            Part(f"{drift}: IPS ranks worse without re-estimation", minus(STALE, FRESH), below=0),
            Part(f"{drift}: isotonic predicts positions better than stale IPS", minus(JOINT, STALE, "oe"), below=0),
        ]
    return tuple(parts)


def _note(finished: Sequence[Finished]) -> str:
    told = []
    for drift in DRIFTS:
        gain = {other: _minus(finished, drift, DETACHED, other) for other in (STALE, FRESH, TRUE)}
        found = ", ".join(
            f"{one.value:+.4f} [{one.lower:+.4f}, {one.upper:+.4f}] to {name}" for name, one in gain.items()
        )
        told.append(f"{drift}: {found}")
    return f"Isotonic is as the paper trains it; with the detached anchor its nDCG compares: {'; '.join(told)}."


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {"drift": [], "arm": [], "day": [], "ndcg": []}
    for drift in DRIFTS:
        for name in ARMS:
            own = [one.numbers["ndcg by day"] for one in finished if one.unit.setting == f"{drift}: {name}"]
            for day, value in enumerate(np.mean(own, axis=0).tolist(), start=FIRST_DAYS):
                for column, one in zip(columns.values(), (drift, name, day, value), strict=True):
                    column.append(one)
    return columns


def chart(series: dict[str, Any]) -> Any:
    """Ranking by day, before that day is learned from; means over seeds."""
    alt = need("altair")
    line = (
        alt.Chart(alt.Data(values=records(series)))
        .mark_line(point=True)
        .encode(
            x=alt.X("day:Q", title="day"),
            y=alt.Y("ndcg:Q", title="nDCG@10, true relevance", scale=alt.Scale(zero=False)),
            color=alt.Color("arm:N", title=None, sort=list(ARMS)),
        )
        .properties(width=320, height=240)
    )
    return line.facet(alt.Facet("drift:N", title=None, sort=list(DRIFTS)))
