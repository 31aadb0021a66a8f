"""Conclusion of the paper: training day after day while the world drifts, with nothing to re-estimate.

Users look less and less far down the list, and what is relevant turns slowly. Every model starts from the first days'
log; then each day's log is first ranked and predicted, which is the test, and then learned from, in one pass:

    naive                    clicks as they are
    isotonic                 the dual head as the paper trains it, and with the detached anchor
    isotonic, frozen         the same with the detached anchor, never trained again
    IPS, re-estimated        propensities harvested anew from each day's log before it is learned from
    IPS, never re-estimated  the propensities of the first days

The world is a position-based model, for which inverse propensity weighting is exactly right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.debias.baselines import Naive
from isolayer.debias.heads import DualHead
from isolayer.debias.propensity import harvest_propensity
from isolayer.debias.weighting import InversePropensity
from isolayer.errors import need
from isolayer.experiments.loop import WIDTH, as_log, network, prob, train
from isolayer.experiments.result import (
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
from isolayer.simulate import Drift, Feed, Population, PositionBased

CLAIM = (
    "The isotonic layer adapts as new data arrive, without anything to re-estimate; weighting by inverse propensities "
    "needs a fresh estimation whenever the distribution shifts."
)
PAPER = "conclusion, no figures"
SEEDS = 6
CONTEXTS = {"position": 10, "device": 3}
FIRST_DAYS = 2  # learned from before the first test
NAIVE, JOINT, DETACHED, FROZEN = "naive", "isotonic", "isotonic, detached anchor", "isotonic, frozen"
FRESH, STALE = "IPS, re-estimated", "IPS, never re-estimated"
ARMS = (NAIVE, JOINT, DETACHED, FROZEN, FRESH, STALE)
MARGIN = 0.005  # nDCG: as good as, when not lower by more
Columns = Mapping[str, NDArray[Any]]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every arm under every seed."""
    return units_of(ARMS, quick=quick, seeds=seeds or SEEDS, cost=2.0 if quick else 12.0)


def feed(seed: int, days: int) -> Feed:
    """A world that drifts: the strength of position bias grows by 150% over the days, relevance turns by 40 degrees."""
    drift = Drift(position_bias=0.9 / (days - 1), relevance=0.7 / (days - 1))
    return Feed(
        population=Population(items=4_000, seed=seed),
        behaviour=PositionBased(eta=0.6),
        tasks=(),
        days=days,
        drift=drift,
    )


def run_unit(unit: Unit) -> Numbers:
    """One arm through the days."""
    torch.manual_seed(unit.seed)
    days, sessions = (6, 2_500) if unit.quick else (14, 6_000)
    world = feed(unit.seed, days)
    whole = world.log(days * sessions, seed=1 + unit.seed)
    by_day = [{name: column[whole["day"] == day] for name, column in whole.items()} for day in range(days)]
    first = {name: np.concatenate([day[name] for day in by_day[:FIRST_DAYS]]) for name in whole}
    spent = {"estimating": 0.0, "training": 0.0}
    model = _timed(spent, "estimating", lambda: arm(unit.setting, first, world.population.features))
    _timed(spent, "training", lambda: train(model, as_log(first, ["click"]), epochs=4, seed=unit.seed))
    spent = dict.fromkeys(spent, 0.0)  # only the days after the first count
    found: list[Numbers] = []
    for day, columns in enumerate(by_day[FIRST_DAYS:]):
        found.append(tested(model, columns))
        if unit.setting == FRESH:
            _timed(spent, "estimating", lambda columns=columns: reweigh(model, columns))
        if unit.setting != FROZEN:
            log = as_log(columns, ["click"])
            _timed(spent, "training", lambda log=log, day=day: train(model, log, epochs=1, lr=2e-3, seed=day))
    numbers: Numbers = {f"{key} by day": [one[key] for one in found] for key in found[0]}
    later = found[len(found) // 2 :]
    numbers |= {key: float(np.mean([one[key] for one in later])) for key in found[0]}
    return numbers | {f"{key} seconds": value / len(found) for key, value in spent.items()}


def arm(setting: str, first: Columns, features: int) -> Any:
    """The model of an arm, untrained; propensities, where it needs any, from the first days' log."""
    body = network(features)
    if setting == NAIVE:
        return Naive(body, width=WIDTH)
    if setting in (FRESH, STALE):
        return InversePropensity(body, width=WIDTH, propensity=propensity(first), clip=0.05)
    anchor: Any = "joint" if setting == JOINT else "detached"
    return DualHead(body, width=WIDTH, tasks=("click",), contexts=CONTEXTS, anchor=anchor)


def propensity(columns: Columns) -> list[float]:
    """Examination by position, harvested from items shown at several of them."""
    positions = CONTEXTS["position"]
    found = harvest_propensity(columns["item"], columns["position"], columns["click"], positions=positions)
    return [float(value) for value in found.examination]


def reweigh(model: InversePropensity, columns: Columns) -> None:
    """Estimate propensities anew and give them to the model."""
    fresh = InversePropensity(torch.nn.Identity(), width=1, propensity=propensity(columns), clip=0.05)
    model.factors.copy_(fresh.factors)


def tested(model: Any, columns: Columns) -> Numbers:
    """Ranking against true relevance, and predictions of the log by position, on a day not yet learned from."""
    log = as_log(columns, ["click"])
    with torch.no_grad():
        heads = model(log.features, log.context)["click"]
    observed = prob(heads.observed_logit)
    table = metrics.observed_over_expected(observed, columns["click"], columns["position"])
    return {
        "ndcg": metrics.ndcg(heads.relevance_logit.numpy(), columns["grade"], columns["session"]),
        "ne": metrics.normalised_entropy(observed, columns["click"]),
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
        Row(name, f"{what}, later days", estimate(by_seed(finished, name, key)), digits=4)
        for name in ARMS
        for key, what in told
    ]
    rows += [
        Row(name, f"CPU seconds of {key} a day", estimate(by_seed(finished, name, f"{key} seconds")), digits=2)
        for name, key in ((DETACHED, "training"), (FRESH, "training"), (FRESH, "estimating"))
    ]
    return Result(tuple(rows), _parts(finished), _series(finished), _note(finished))


def _minus(finished: Sequence[Finished], one: str, other: str, key: str = "ndcg") -> Estimate:
    return estimate(by_seed(finished, one, key) - by_seed(finished, other, key))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    return (
        Part("isotonic ranks better than naive", _minus(finished, JOINT, NAIVE), above=0),
        Part(f"{DETACHED}, ranks better than when frozen: it adapts", _minus(finished, DETACHED, FROZEN), above=0),
        Part("isotonic ranks better than IPS that is never re-estimated", _minus(finished, JOINT, STALE), above=0),
        Part(
            f"isotonic ranks as well as IPS re-estimated every day (within {MARGIN})",
            _minus(finished, JOINT, FRESH),
            above=-MARGIN,
        ),
        Part("IPS needs the estimation: without it ranks worse", _minus(finished, STALE, FRESH), below=0),
        Part("isotonic predicts positions better than stale IPS", _minus(finished, JOINT, STALE, "oe"), below=0),
    )


def _note(finished: Sequence[Finished]) -> str:
    gain = {other: _minus(finished, DETACHED, other) for other in (STALE, FRESH)}
    told = ", ".join(f"{one.value:+.4f} [{one.lower:+.4f}, {one.upper:+.4f}] to {name}" for name, one in gain.items())
    return f"With the detached anchor the isotonic head's nDCG compares {told}."


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {"arm": [], "day": [], "ndcg": [], "oe": []}
    for name in ARMS:
        own = [one.numbers for one in finished if one.unit.setting == name]
        ndcg, oe = (np.mean([one[f"{key} by day"] for one in own], axis=0) for key in ("ndcg", "oe"))
        columns["arm"] += [name] * len(ndcg)
        columns["day"] += list(range(FIRST_DAYS, FIRST_DAYS + len(ndcg)))
        columns["ndcg"] += ndcg.tolist()
        columns["oe"] += oe.tolist()
    return columns


def chart(series: dict[str, Any]) -> Any:
    """Ranking and calibration by day, before that day is learned from; means over seeds."""
    alt = need("altair", "report")
    rows = [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]
    line = alt.Chart(alt.Data(values=rows)).mark_line(point=True).encode(x=alt.X("day:Q", title="day"))
    color = alt.Color("arm:N", title=None, sort=list(ARMS))
    scale = alt.Scale(zero=False)
    left = line.encode(y=alt.Y("ndcg:Q", title="nDCG@10, true relevance", scale=scale), color=color)
    right = line.encode(y=alt.Y("oe:Q", title="mean abs(O/E - 1) by position"), color=color)
    return left.properties(width=300, height=220) | right.properties(width=300, height=220)
