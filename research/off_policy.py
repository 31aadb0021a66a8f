"""Off-policy evaluation with learned propensities: what would a new ranking have earned, told from the old one's log?

The design, stated before any run but for what is named at the end. The paper leaves this to future work: the
interaction of latent utility and position bias should give propensities for off-policy evaluation. A hundred logs of
4,000 lists are drawn for each of two click models, each from a world of its own, under a logger that ranks by a feature
that hardly matters to users. Two new rankings are valued from each log: ``better`` sorts by a linear function of the
features that is near to relevance, ``worse`` by its opposite. The true value is what simulated users do under the new
ranking on 15,000 other lists, in expectation. The ways to value it:

    logged clicks          as if the ranking did not matter
    by position, harvested clicks weighted by the examination of the new position over that of the old, harvested from
                           items that were shown at several positions; right under position bias only. Where a
                           log does not tell it, the click rate of the position stands in
    by position, EM        the same with the examination that regression EM finds, which needs no item twice
    curves, learned        `isolayer.debias.evaluate`: clicks weighted by learned curves of utility and position
    curves alone           what these curves expect, without the clicks
    true propensities      clicks weighted by the simulator's own chances: what nobody has

Judged are the relative error of the value, and how often its 95% interval covers the truth. The interval comes from the
variation between lists and counts what was learned as given, so it could well cover too rarely. Learned curves are
compared with the better of the two weights by position, chosen per click model and ranking by the errors that are
reported, which is generous to them. A share of logs that are covered has the exact interval of as many trials.

The lower end of that interval must be above .9. Over a hundred logs this is strict: intervals that are right, covering
in 95% of logs, pass it in fewer than half of such studies. The bound was not moved when this was found; the note beside
the verdict has that chance as a number, and says how often the true propensities pass.

Added after a first report, on the same seeds: weights by position by EM, the comparison with the better of the two
weights by position, and the exact interval of a share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.debias.curve_learners import network_relevance
from isolayer.debias.evaluation import evaluate
from isolayer.debias.intervention_harvesting import harvest
from isolayer.debias.propensity import em_propensity
from isolayer.errors import need
from isolayer.policy import ranked_positions
from isolayer.simulate import Feed, debias_feed
from research.charts import intervals
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
    proportion,
    units_of,
)

CLAIM = "The interaction of latent utility and position bias gives propensities for robust off-policy evaluation."
PAPER = "section 6, future work; no figures"
SEEDS, LOGS = 20, 5  # a hundred logs in all
BIASES: dict[str, Any] = {"position bias": "position", "trust bias": "trust"}
POLICIES = ("better", "worse")
LOGGED, CURVES = "logged clicks", "curves, learned"
BY_POSITION, BY_EM = "by position, harvested", "by position, EM"
MODEL, TRUE = "curves alone", "true propensities"
METHODS = (LOGGED, BY_POSITION, BY_EM, CURVES, MODEL, TRUE)
WITH_INTERVAL = (BY_POSITION, BY_EM, CURVES, TRUE)
POSITIONS, DEVICES, GRADES = 10, 3, 5
WITHIN, COVER = 0.05, 0.9  # mean relative error, and coverage of 95% intervals, that would do
REACH = 1.96
Columns = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Value = tuple[float, float]  # clicks per list, and its standard error


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """A few logs per seed, for each click model."""
    return units_of(list(BIASES), quick=quick, seeds=seeds or SEEDS, cost=1.0 if quick else 6.0)


def run_unit(unit: Unit) -> Numbers:
    """Errors and coverage of every method, averaged over the unit's logs."""
    logs = 1 if unit.quick else LOGS
    found = [_one_log(unit, 1000 * unit.seed + number) for number in range(logs)]
    return {key: float(np.mean([one[key] for one in found])) for key in found[0]}


def _one_log(unit: Unit, seed: int) -> Numbers:
    world = debias_feed(BIASES[unit.setting], seed=seed)
    lists, others = (1_000, 3_000) if unit.quick else (4_000, 15_000)
    log = world.log(lists, seed=3 * seed)
    numbers: Numbers = {}
    learned = _learned(log, seed)
    for policy in POLICIES:
        direction = _direction(log, policy)
        truth = _true_value(world, direction, others, seed=3 * seed + 1)
        new = ranked_positions(log["features"] @ direction, log["session"])
        for method, (value, error) in _values(log, new, learned).items():
            numbers[f"{policy} {method} error"] = abs(value / truth - 1)
            numbers[f"{policy} {method} bias"] = value / truth - 1
            numbers[f"{policy} {method} covered"] = float(abs(value - truth) <= REACH * error)
    return numbers


def _direction(log: Columns, policy: str) -> Floats:
    """The weights of a linear ranking: least squares for the true relevance, or their opposite."""
    centred = log["relevance_click"] - log["relevance_click"].mean()
    best = np.linalg.lstsq(log["features"].astype(float), centred, rcond=None)[0]
    return np.asarray(best if policy == "better" else -best)


def _true_value(world: Feed, direction: Floats, lists: int, seed: int) -> float:
    """Expected clicks per list under the ranking, on other lists of the same world."""
    shown = world.log(lists, seed=seed, policy=lambda features: features @ direction)
    return float(shown["prob_click"].sum(dtype=float) / lists)


def _learned(log: Columns, seed: int) -> tuple[Any, Floats]:
    """Curves by position and device, and the utility they belong to, as `evaluate` learns them by itself."""
    context = {name: log[name].astype(np.int64) for name in ("position", "device")}
    sizes, rows = {"position": POSITIONS, "device": DEVICES}, len(log["click"])
    return network_relevance(
        log["features"].astype(float), log["click"].astype(float), context, sizes, np.ones(rows), seed
    )


def _values(log: Columns, new: NDArray[np.int64], learned: tuple[Any, Floats]) -> dict[str, Value]:
    """What each method says the new ranking earns."""
    curves, relevance = learned
    told = evaluate({**log, "relevance": relevance}, log["position"], new, curves=curves, least_share=0.0)
    seen = {BY_POSITION: examination(log), BY_EM: examination_by_em(log)}
    chance = true_chances(log)
    old, grade = log["position"], log["grade"]
    return {
        LOGGED: weighted(log, np.ones(len(old))),
        **{name: weighted(log, one[new] / np.maximum(one[old], 1e-3)) for name, one in seen.items()},
        CURVES: (told.value, told.standard_error),
        MODEL: (told.modelled, 0.0),
        TRUE: weighted(log, chance[grade, new] / chance[grade, old]),
    }


def examination(log: Mapping[str, NDArray[Any]]) -> Floats:
    """Examination by position, relative to the first: harvested, or the click rate where a log does not tell it.

    >>> log = {"item": np.arange(4), "position": np.array([0, 0, 1, 1]), "click": np.array([1, 1, 1, 0])}
    >>> examination(log)[:2].tolist()
    [1.0, 0.5]
    """
    found = np.asarray(harvest(log["item"], log["position"], log["click"]).examination(POSITIONS), float)
    rows = np.maximum(np.bincount(log["position"], minlength=POSITIONS), 1)
    rate = np.bincount(log["position"], log["click"], POSITIONS) / rows
    return np.where(np.isfinite(found), found, rate / rate[0])


def examination_by_em(log: Mapping[str, NDArray[Any]]) -> Floats:
    """The same by regression EM, which takes relevance for a logistic regression on the features.

    >>> log = {"features": np.zeros((4, 1)), "position": np.array([0, 0, 1, 1]), "click": np.array([1, 1, 1, 0])}
    >>> one, two = examination_by_em(log)[:2]
    >>> bool(one == 1 > two)
    True
    """
    found = em_propensity(log["features"].astype(float), log["position"], log["click"], positions=POSITIONS)
    return np.asarray(found, float)


def weighted(log: Mapping[str, NDArray[Any]], weight: Floats) -> Value:
    """Weighted clicks per list and the standard error of their mean.

    >>> weighted({"click": np.array([1, 0, 1, 1]), "session": np.array([0, 0, 1, 1])}, np.ones(4))
    (1.5, 0.5)
    """
    gain = np.bincount(log["session"], weight * log["click"])
    return float(gain.mean()), float(gain.std(ddof=1) / math.sqrt(len(gain)))


def true_chances(log: Mapping[str, NDArray[Any]]) -> Floats:
    """The simulator's chance of a click by grade and position, ``[grades, positions]``.

    >>> log = {"grade": np.array([0, 1]), "position": np.array([0, 0]), "prob_click": np.array([0.1, 0.4])}
    >>> true_chances(log)[:2, 0].round(6).tolist()
    [0.1, 0.4]
    """
    code = log["grade"].astype(np.int64) * POSITIONS + log["position"]
    cells = GRADES * POSITIONS
    rows = np.maximum(np.bincount(code, minlength=cells), 1)
    mean = np.bincount(code, log["prob_click"], cells) / rows
    return np.asarray(np.maximum(mean, 1e-9).reshape(GRADES, POSITIONS))


def summarise(finished: Sequence[Finished]) -> Result:
    """Relative error, bias and coverage of every method, for each click model and ranking."""
    rows, series = [], []
    for world in BIASES:
        for policy in POLICIES:
            for method in METHODS:
                name = f"{world}, {policy} ranking: {method}"
                error = _found(finished, world, f"{policy} {method} error")
                rows.append(Row(name, "mean relative error, %", _percent(error), digits=1))
                rows.append(
                    Row(name, "bias, %", _percent(_found(finished, world, f"{policy} {method} bias")), "", 1, "%")
                )
                if method in WITH_INTERVAL:
                    covered = _covered(finished, world, policy, method)
                    rows.append(Row(name, "coverage of 95% intervals", covered, digits=2))
                series.append({"panel": f"{world}, {policy}", "method": method, **_percent(error)._asdict()})
    return Result(tuple(rows), _parts(finished), {"rows": series}, _note(finished))


def _found(finished: Sequence[Finished], world: str, key: str) -> Estimate:
    return estimate(by_seed(finished, world, key))


def _covered(finished: Sequence[Finished], world: str, policy: str, method: str) -> Estimate:
    """The share of logs whose interval covers the truth; units have the mean over as many logs each."""
    logs = 1 if finished[0].unit.quick else LOGS
    return proportion(np.repeat(by_seed(finished, world, f"{policy} {method} covered"), logs))


def _percent(one: Estimate) -> Estimate:
    return Estimate(100 * one.value, 100 * one.lower, 100 * one.upper, one.seeds)


def _less(finished: Sequence[Finished], world: str, policy: str, other: str) -> Estimate:
    ours, theirs = (by_seed(finished, world, f"{policy} {method} error") for method in (CURVES, other))
    return estimate(ours - theirs)


def _by_position(finished: Sequence[Finished], world: str, policy: str) -> str:
    """The better of the weights by position alone, by the errors that are reported."""
    return min((BY_POSITION, BY_EM), key=lambda method: _found(finished, world, f"{policy} {method} error").value)


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    parts = []
    for world in BIASES:
        for policy in POLICIES:
            where = f"({world}, {policy} ranking)"
            rival = _by_position(finished, world, policy)
            better = rival.removeprefix("by position, ")
            parts += [
                Part(
                    f"learned curves value the new ranking within 5% on average {where}",
                    _found(finished, world, f"{policy} {CURVES} error"),
                    below=WITHIN,
                ),
                Part(
                    f"their 95% intervals cover the truth nine times of ten or more {where}",
                    _covered(finished, world, policy, CURVES),
                    above=COVER,
                ),
                Part(f"they err less than the logged clicks {where}", _less(finished, world, policy, LOGGED), below=0),
                Part(
                    f"they err less than weights by position alone {where[:-1]}; the better of two: {better})",
                    _less(finished, world, policy, rival),
                    below=0,
                ),
            ]
    return tuple(parts)


def _note(finished: Sequence[Finished]) -> str:
    told = []
    for world in BIASES:
        share = [_covered(finished, world, "better", method).value for method in (CURVES, TRUE)]
        told.append(f"{share[0]:.0%} and {share[1]:.0%} under {world}")
    covered = (
        "Intervals of the better ranking's value cover the truth, with learned curves and with the simulator's own "
        f"chances, {' and '.join(told)}."
    )
    return " ".join([covered, _bar(finished), *_misses(finished)])


def passing(logs: int, right: float = 0.95) -> float:
    """How often a part on coverage holds if intervals cover the truth in this share of all logs.

    >>> round(passing(100), 2)
    0.44
    """
    held = [hits for hits in range(logs + 1) if proportion([1.0] * hits + [0.0] * (logs - hits)).lower > COVER]
    return float(need("scipy.stats").binom.pmf(held, logs, right).sum())


def _bar(finished: Sequence[Finished]) -> str:
    """How strict the bound on coverage is: how often right intervals pass it, and those of the true propensities."""
    true = [_covered(finished, world, policy, TRUE) for world in BIASES for policy in POLICIES]
    logs = true[0].seeds
    return (
        f"A part on coverage holds when the lower end of the exact interval over {logs} logs is above {COVER:.0%}: "
        f"intervals that cover in 95% of logs pass this in {passing(logs):.0%} of such studies, and those of the true "
        f"propensities pass it in {sum(one.lower > COVER for one in true)} of {len(true)} cases here (they cover in "
        f"{', '.join(f'{one.value:.0%}' for one in true)})."
    )


def _misses(finished: Sequence[Finished]) -> list[str]:
    """Where learned curves err by more than asked: by bias or by chance, and what the true propensities do there."""
    told = []
    for world in BIASES:
        for policy in POLICIES:
            if _found(finished, world, f"{policy} {CURVES} error").value > WITHIN:
                curves, true = (_kind(finished, world, policy, method) for method in (CURVES, TRUE))
                told.append(
                    f"Learned curves miss {WITHIN:.0%} under {world} for the {policy} ranking: they {curves}; the "
                    f"true propensities {true}."
                )
    return told


def _kind(finished: Sequence[Finished], world: str, policy: str, method: str) -> str:
    error, bias = (_percent(_found(finished, world, f"{policy} {method} {key}")) for key in ("error", "bias"))
    sure = bias.lower > 0 or bias.upper < 0
    biased = "are biased" if sure else "are not biased beyond chance"
    return f"err by {error.value:.1f}% and {biased} ({bias.value:+.1f}% [{bias.lower:+.1f}, {bias.upper:+.1f}])"


def chart(series: dict[str, Any]) -> Any:
    """Relative error of every method with its interval over logs."""
    return intervals(
        series["rows"], y="method", panel="panel", order=METHODS, title="mean relative error, %", ours=CURVES
    )
