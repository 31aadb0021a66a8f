"""Conclusion of the paper: training day after day while the world drifts, with nothing to re-estimate.

The design, stated before any run. A year of 365 short days, of 300 sessions each. Users look less and less far down the
list, or further and further, and what is relevant turns slowly. Every model starts from the log of the first month;
then each day's log is first ranked and predicted, which is the test, and then learned from, in one pass that goes on
with the optimiser of the day before:

    naive                            clicks as they are
    isotonic head, joint loss        the dual head as the paper trains it
    isotonic head, detached anchor   the same with the detached anchor, our remedy where the joint loss falls behind:
                                     the inference loss no longer pulls relevance towards clicks whose bias grows
    isotonic head, frozen            the same with the detached anchor, never trained again
    exact calibrator                 the naive model, whose scores are calibrated by position and device: curves fitted
                                     exactly to the sums of all days, every day; a day counts half as much after every
                                     30 days
    IPS, re-estimated                propensities harvested anew every day from the log of the last month
    IPS, never re-estimated          the propensities of the first month
    IPS, true propensities           those of the simulator, day by day: what no pipeline has

None of the arms is isotonic regression. Judged are the order by true relevance (nDCG), and the predictions of the day's
log, of which the position is known: O/E by position, and normalised entropy (NE).

The world is a position-based model, for which inverse propensity weighting is exactly right. All arms learn at the same
rate and from the same rows, and the figures are those of the second half of the year. The exact calibrator cannot
change an order, so it ranks as the naive model does and is judged by what it predicts for each position. In a first
report it was fitted once a week, while all others learned every day; the seeds reported now are others.
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
from isolayer.calibrator import IsotonicCalibrator
from isolayer.debias.baselines import Naive
from isolayer.debias.heads import DualHead
from isolayer.debias.intervention_harvesting import harvest
from isolayer.debias.weighting import InversePropensity
from isolayer.errors import need
from isolayer.nn.rates import parameter_groups
from isolayer.simulate import Drift, Feed, Population, PositionBased
from research.charts import records
from research.loop import BATCH, WIDTH, as_log, network, prob, train
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
SEEDS = 4
SEEN = 100  # seeds that were reported before the exact calibrator was fitted every day
CONTEXTS = {"position": 10, "device": 3}
MONTH = 30  # days that are learned from before the first test, and that propensities are harvested from
RATE = 1e-3  # of the daily updates
NAIVE, JOINT, DETACHED, FROZEN = "naive", "isotonic", "isotonic, detached anchor", "isotonic, frozen"
EXACT = "exact calibrator"
FRESH, STALE, TRUE = "IPS, re-estimated", "IPS, never re-estimated", "IPS, true propensities"
ARMS = (NAIVE, JOINT, DETACHED, FROZEN, EXACT, FRESH, STALE, TRUE)
LABELS = {  # of the arms, whose names are those of the saved units
    JOINT: "isotonic head, joint loss",
    DETACHED: "isotonic head, detached anchor",
    FROZEN: "isotonic head, frozen",
}
WIRED = {JOINT: "with the joint loss the isotonic head", DETACHED: "with the detached anchor the isotonic head"}
DRIFTS = {"bias grows": (0.6, 0.9), "bias fades": (1.4, -0.9)}  # strength on day 0, and what its logarithm gains
CLIP = 0.05  # propensities below count as this
MARGIN = 0.005  # nDCG: as good as, when not lower by more
Columns = Mapping[str, NDArray[Any]]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every drift and arm under every seed."""
    settings = [f"{drift}: {arm}" for drift in DRIFTS for arm in ARMS]
    return units_of(settings, quick=quick, seeds=seeds or SEEDS, cost=0.4 if quick else 7.0, seen=SEEN)


def feed(seed: int, days: int, drift: str) -> Feed:
    """A world that drifts: the strength of position bias by a factor of 2.5, relevance by 80 degrees."""
    strength, gain = DRIFTS[drift]
    return Feed(
        population=Population(items=4_000, seed=seed),
        behaviour=PositionBased(eta=strength),
        tasks=(),
        days=days,
        drift=Drift(position_bias=gain / (days - 1), relevance=1.4 / (days - 1)),
    )


def run_unit(unit: Unit) -> Numbers:
    """One arm through the year."""
    torch.manual_seed(unit.seed)
    days, sessions, first = (16, 150, 8) if unit.quick else (365, 300, MONTH)
    drift, name = unit.setting.split(": ")
    world = feed(unit.seed, days, drift)
    whole = world.log(days * sessions, seed=1 + unit.seed)
    starts = np.searchsorted(whole["day"], np.arange(days + 1))

    def rows(begin: int, end: int) -> Columns:
        return {key: column[starts[begin] : starts[end]] for key, column in whole.items()}

    pipeline = Pipeline(name, rows(0, first), world.population.features, unit.seed)
    found: list[Numbers] = []
    for day in range(first, days):
        found.append(pipeline.judged(rows(day, day + 1)))
        pipeline.learn(rows(day, day + 1), recent=rows(day + 1 - first, day + 1))
    later = found[len(found) // 2 :]
    numbers: Numbers = {"ndcg by day": [one["ndcg"] for one in found], "oe": monthly_error(later)}
    numbers |= {key: float(np.mean([one[key] for one in later])) for key in ("ndcg", "ne")}
    return numbers | {f"{key} seconds": value / len(found) for key, value in pipeline.spent.items()}


def monthly_error(days: Sequence[Numbers]) -> float:
    """Mean abs(O/E - 1) over positions and months; a single day has too few clicks for a ratio.

    >>> monthly_error([{"clicks": np.array([3.0]), "expected": np.array([2.0])}])
    0.5
    """
    errors = []
    for start in range(0, len(days), MONTH):
        month = days[start : start + MONTH]
        clicks, expected = (np.sum([one[key] for one in month], axis=0) for key in ("clicks", "expected"))
        errors.append(np.abs(clicks / expected - 1).mean())
    return float(np.mean(errors))


class Pipeline:
    """What a team runs every day for one arm: estimation, where it needs any, training, and prediction."""

    def __init__(self, name: str, first: Columns, features: int, seed: int) -> None:
        self.name, self.spent = name, {"estimating": 0.0, "training": 0.0}
        self.model = arm(name, first, features)
        train(self.model, as_log(first, ["click"]), epochs=4, seed=seed)
        self.optimiser = torch.optim.Adam(parameter_groups(self.model, RATE), fused=True)
        self.curves = IsotonicCalibrator(tuple(CONTEXTS), half_life=("day", float(MONTH)))
        if name == EXACT:
            self.curves.fit(self._scored(first), first["click"])

    def judged(self, columns: Columns) -> Numbers:
        """Ranking against true relevance, and predictions of the log by position, on a day not yet learned from."""
        log = as_log(columns, ["click"])
        with torch.no_grad():
            heads = self.model(log.features, log.context)["click"]
        exact = self.name == EXACT
        observed = self.curves.predict_proba(self._scored(columns))[:, 1] if exact else prob(heads.observed_logit)
        table = metrics.observed_over_expected(columns["click"], observed, columns["position"])
        return {
            "ndcg": metrics.ndcg(columns["grade"], heads.relevance_logit.numpy(), columns["session"]),
            "ne": metrics.normalised_entropy(columns["click"], observed),
            "clicks": table.observed,
            "expected": table.expected,
        }

    def learn(self, columns: Columns, recent: Columns) -> None:
        """One pass over a day's log, after whatever has to be estimated; ``recent`` is the log of the last month."""
        if self.name in (FRESH, TRUE):
            of = recent if self.name == FRESH else columns
            _timed(self.spent, "estimating", partial(reweigh, self.model, self.name, of))
        if self.name == EXACT:
            _timed(self.spent, "estimating", partial(self.curves.partial_fit, self._scored(columns), columns["click"]))
        if self.name != FROZEN:
            _timed(self.spent, "training", partial(self._one_pass, columns))

    def _one_pass(self, columns: Columns) -> None:
        log = as_log(columns, ["click"])
        self.model.train()
        for batch in log.rows(torch.randperm(len(log.features))).batches(BATCH):
            loss = self.model.loss(self.model(batch.features, batch.context), batch.labels)
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()
        self.model.eval()

    def _scored(self, columns: Columns) -> dict[str, NDArray[Any]]:
        log = as_log(columns, ["click"])
        with torch.no_grad():
            score = self.model(log.features, log.context)["click"].observed_logit.double().numpy()
        return {"score": score, **{name: columns[name] for name in (*CONTEXTS, "day")}}


def arm(setting: str, first: Columns, features: int) -> Any:
    """The model of an arm, untrained; propensities, where it needs any, from the first days' log."""
    body = network(features)
    if setting in (NAIVE, EXACT):
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


def _timed(spent: dict[str, float], what: str, call: Callable[[], Any]) -> Any:
    start = time.process_time()
    out = call()
    spent[what] += time.process_time() - start
    return out


def summarise(finished: Sequence[Finished]) -> Result:
    """Means over the second half of the year, differences paired by seed."""
    told = (("ndcg", "nDCG@10, true relevance"), ("oe", "mean abs(O/E - 1) by position"), ("ne", "NE of the log"))
    rows = [
        Row(
            f"{drift}: {_label(name)}",
            f"{what}, second half",
            estimate(by_seed(finished, f"{drift}: {name}", key)),
            digits=4,
        )
        for key, what in told
        for drift in DRIFTS
        for name in ARMS
    ]
    rows += [
        Row(_label(name), f"CPU seconds of {key} per day", estimate(_both(finished, name, f"{key} seconds")), digits=3)
        for name, key in ((DETACHED, "training"), (EXACT, "estimating"), (FRESH, "training"), (FRESH, "estimating"))
    ]
    return Result(tuple(rows), _parts(finished), _series(finished), _note(finished))


def _label(name: str) -> str:
    return LABELS.get(name, name)


def _both(finished: Sequence[Finished], name: str, key: str) -> NDArray[np.float64]:
    # mean over the two drifts, [seeds]
    return np.asarray(np.mean([by_seed(finished, f"{drift}: {name}", key) for drift in DRIFTS], axis=0))


def _minus(finished: Sequence[Finished], drift: str, one: str, other: str, key: str = "ndcg") -> Estimate:
    return estimate(by_seed(finished, f"{drift}: {one}", key) - by_seed(finished, f"{drift}: {other}", key))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    # each drift by itself: propensities that err may happen to err towards where a drift leads
    parts: list[Part] = []
    for drift in DRIFTS:
        parts += [*_joint(finished, drift), *_detached(finished, drift)]
        parts += [_lower_ne(finished, drift, ours, rival) for ours in WIRED for rival in (EXACT, STALE, FRESH)]
    return tuple(parts)


def _joint(finished: Sequence[Finished], drift: str) -> list[Part]:
    """What the paper's loss comes to in one drift, and what old propensities do."""
    minus, head = partial(_minus, finished, drift), f"{drift}: {WIRED[JOINT]}"
    return [
        Part(f"{head} ranks better than naive", minus(JOINT, NAIVE), above=0),
        Part(f"{head} ranks better than IPS never re-estimated", minus(JOINT, STALE), above=0),
        Part(f"{head} ranks as well as IPS re-estimated daily (within {MARGIN})", minus(JOINT, FRESH), above=-MARGIN),
        Part(f"{drift}: IPS ranks worse without re-estimation", minus(STALE, FRESH), below=0),
        Part(
            f"{head} has an O/E by position nearer to 1 than IPS with old propensities",
            minus(JOINT, STALE, "oe"),
            below=0,
        ),
    ]


def _detached(finished: Sequence[Finished], drift: str) -> list[Part]:
    """The same of the detached anchor, and of never training it again."""
    minus, head = partial(_minus, finished, drift), f"{drift}: {WIRED[DETACHED]}"
    return [
        Part(f"{head} adapts, ranking better than frozen", minus(DETACHED, FROZEN), above=0),
        Part(
            f"{head} ranks as well as IPS re-estimated daily (within {MARGIN})", minus(DETACHED, FRESH), above=-MARGIN
        ),
    ]


def _lower_ne(finished: Sequence[Finished], drift: str, ours: str, rival: str) -> Part:
    """Whether the head predicts the log better than a rival."""
    told = {EXACT: "the exact calibrator", STALE: "IPS never re-estimated", FRESH: "IPS re-estimated daily"}
    says = f"{drift}: {WIRED[ours]} has lower NE than {told[rival]}"
    return Part(says, _minus(finished, drift, ours, rival, "ne"), below=0)


def _note(finished: Sequence[Finished]) -> str:
    told = []
    for drift in DRIFTS:
        gain = {other: _minus(finished, drift, DETACHED, other) for other in (STALE, FRESH, TRUE)}
        found = ", ".join(f"{_apart(one)} {_label(name)}" for name, one in gain.items())
        told.append(f"where {drift}, nDCG is {found}")
    remedy = {drift: _minus(finished, drift, DETACHED, JOINT) for drift in DRIFTS}
    gained = " and ".join(f"{one.value:+.4f} where {drift}" for drift, one in remedy.items())
    return (
        "The head with the joint loss is as the paper trains it; the detached anchor changes its nDCG by "
        f"{gained}. With the detached anchor: {'; '.join(told)}."
    )


def _apart(one: Estimate) -> str:
    """A difference in words.

    >>> _apart(Estimate(-0.01, -0.02, 0.0, 4))
    '0.0100 [0.0000, 0.0200] below'
    """
    sign = -1 if one.value < 0 else 1
    lower, upper = sorted((sign * one.lower, sign * one.upper))
    return f"{abs(one.value):.4f} [{round(lower, 4) + 0.0:.4f}, {upper:.4f}] {'below' if sign < 0 else 'above'}"


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {"drift": [], "arm": [], "week": [], "ndcg": []}
    for drift in DRIFTS:
        for name in ARMS:
            own = [one.numbers["ndcg by day"] for one in finished if one.unit.setting == f"{drift}: {name}"]
            for week, value in enumerate(_weekly(np.mean(own, axis=0))):
                for column, one in zip(columns.values(), (drift, _label(name), week, value), strict=True):
                    column.append(one)
    return columns


def _weekly(daily: NDArray[np.float64]) -> list[float]:
    return [float(week.mean()) for week in np.array_split(daily, -(-len(daily) // 7))]


def chart(series: dict[str, Any]) -> Any:
    """Ranking by week, each day before it is learned from; means over seeds."""
    alt = need("altair")
    line = (
        alt.Chart(alt.Data(values=records(series)))
        .mark_line()
        .encode(
            x=alt.X("week:Q", title="week after the first month"),
            y=alt.Y("ndcg:Q", title="nDCG@10, true relevance", scale=alt.Scale(zero=False)),
            color=alt.Color("arm:N", title=None, sort=[_label(name) for name in ARMS]),
        )
        .properties(width=320, height=240)
    )
    return line.facet(alt.Facet("drift:N", title=None, sort=list(DRIFTS)))
