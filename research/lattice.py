"""Several monotone inputs at once: a lattice against boosters, where order is known in advance.

The design, stated before any run. The paper leaves joint monotonicity in several features (quality, recency) to future
work; `MonotoneLattice` is our form of it. Five learners predict a binary outcome from the same features:

    lattice                    `MonotoneLattice`, never falling in the declared inputs, free in the others, with a
                               learned piecewise-linear map of each input before it
    lattice, unconstrained     the same with nothing declared
    booster, monotone          LightGBM with ``monotone_constraints`` on the same inputs
    booster                    LightGBM without
    pytorch-lattice            the library's calibrated lattice, with the same inputs declared and such maps too

On ``simulated`` data the outcome rises with quality and with recency, which interact (recency matters only where
quality is high), and depends on the hour in a wave that is not monotone; training sets have 500, 2,000 and 20,000 rows,
test rows are many. ``not monotone`` is the same with a dip in recency, where the constraint is wrong and must cost.
``KuaiRand`` is real: clicks by the past click rate of the user and of the video, in both of which the chance should
rise, and by the video's length, which is free; models learn from 500, 2,000 and 20,000 rows of April and are tested on
May, with other training rows for each seed.

Each learner has the best of three settings on a quarter of its training rows. Which three, and at which rate, was
chosen on rows that are not reported: on other seeds of the simulated data, and on rows of April alone, since the rows
of May are the same under every seed. For pytorch-lattice the choice was from 24 settings on seeds 0 and 1; for our
lattice, since it has maps, from 14 (2 to 4 vertices, 5 or 10 knots of the maps, rates .1, .2 and in part .3) on seed 0.

Judged are the log loss on the test rows, and violations: the share of pairs of test rows that differ in one declared
input only, where the prediction falls as that input rises. pytorch-lattice runs in an environment of its own
(`research.lattice_peer`), on the same rows, seeds and held-out quarter; where that is absent the rest runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.curves.evaluation import prob_of
from isolayer.errors import need
from isolayer.grid import Grid
from isolayer.nn.lattice import MonotoneLattice
from research import lattice_peer
from research.charts import intervals
from research.data import kuairand_path
from research.datasets import kuairand
from research.kuairand_calibration import TESTED_FROM, past_rate
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

CLAIM = "Constraints on several dimensions, such as quality and recency, ensure joint monotonicity across features."
PAPER = "section 6, future work; no figures"
SEEDS = 6
SIZES = (500, 2_000, 20_000)
WORLDS = ("simulated", "not monotone", "KuaiRand")
LATTICE, FREE, BOOSTED, PLAIN = "lattice", "lattice, unconstrained", "booster, monotone", "booster"
METHODS = (LATTICE, FREE, BOOSTED, PLAIN)
PEER = "pytorch-lattice"  # apart, since its environment may be absent
DECLARED = 2  # the first inputs are those in which the outcome should rise
LATTICES = ((2, 5), (3, 5), (4, 10))  # tried: vertices of each input of the lattice, and knots of the map before it
TREES: tuple[dict[str, Any], ...] = (
    {"num_leaves": 4, "min_child_samples": 20},
    {"num_leaves": 8, "min_child_samples": 50},
    {"num_leaves": 24, "min_child_samples": 100},
)
STEPS, RATE, DECAY = 200, 0.2, 0.03  # of the lattice: AdamW over all rows or large batches
BATCH, PAIRS = 4_000, 4_000
SLACK = 0.001  # log loss: as good as, when not higher by more
Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Inputs ``[n, inputs]``, the declared ones first, each from 0 to 1, and labels ``[n]``."""

    inputs: Floats
    label: NDArray[np.int64]

    def part(self, chosen: NDArray[Any]) -> Rows:
        """The rows that are chosen."""
        return Rows(self.inputs[chosen], self.label[chosen])


Predict = Callable[[Floats], Floats]  # inputs to logits


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every world and size under every seed; all sizes in one for pytorch-lattice, since each start of it costs."""
    sizes = _sizes(quick=quick)
    settings = [setting for world in WORLDS for setting in (*(_named(world, size) for size in sizes), _of_peer(world))]
    one = 0.7 if quick else 3.0
    return units_of(
        settings, quick=quick, seeds=seeds or SEEDS, cost=lambda name: one * (len(sizes) if name.endswith(PEER) else 1)
    )


def run_unit(unit: Unit) -> Numbers:
    """Log loss and violations of our learners, or of pytorch-lattice for every size, on the same rows."""
    world, rest = unit.setting.split(", ", maxsplit=1)
    if rest == PEER:
        return _with_peer(world, unit)
    train, test, asked = _task(world, int(rest.removesuffix(" rows").replace(",", "")), unit)
    torch.manual_seed(unit.seed)
    numbers: Numbers = {"rows": len(test.label)}
    for method in METHODS:
        numbers |= _judged(method, tuned(method, train, unit.seed)(asked), test)
    return numbers


def _with_peer(world: str, unit: Unit) -> Numbers:
    lattice_peer.interpreter()  # rather now than after the rows are read
    tasks = {size: _task(world, size, unit) for size in _sizes(quick=unit.quick)}
    answers = lattice_peer.logits([_question(train, asked, unit.seed) for train, _, asked in tasks.values()])
    return {
        f"{size:,} rows, {key}": value
        for (size, (_, test, _)), logit in zip(tasks.items(), answers, strict=True)
        for key, value in _judged(PEER, logit, test).items()
    }


def _task(world: str, size: int, unit: Unit) -> tuple[Rows, Rows, Floats]:
    # training rows, test rows, and what is asked: the test rows, then the lower and the upper row of every pair
    train, test = rows_of(world, size, unit.seed, quick=unit.quick)
    return train, test, np.concatenate([test.inputs, *pairs(test.inputs, unit.seed)])


def _judged(method: str, logit: Floats, test: Rows) -> Numbers:
    rows = len(test.label)
    below, above = np.split(logit[rows:], 2)
    return {
        f"{method} loss": metrics.log_loss(test.label, prob_of(logit[:rows])),
        f"{method} violations": float(np.mean(above < below - 1e-6)),
    }


def _sizes(*, quick: bool) -> Sequence[int]:
    return SIZES[:1] if quick else SIZES


def _named(world: str, size: int) -> str:
    return f"{world}, {size:,} rows"


def _of_peer(setting: str) -> str:
    # the setting of pytorch-lattice's units in the same world
    return f"{setting.split(', ')[0]}, {PEER}"


def rows_of(world: str, size: int, seed: int, *, quick: bool) -> tuple[Rows, Rows]:
    """Training rows of a world, and test rows."""
    rng = np.random.default_rng(seed)
    if world == "KuaiRand":
        early, late = _kuairand()
        return early.part(rng.choice(len(early.label), size, replace=False)), late
    count = 10_000 if quick else 50_000
    inputs = rng.random((size + count, 3))
    label = (rng.random(len(inputs)) < prob_of(true_logit(inputs, monotone=world == "simulated"))).astype(np.int64)
    whole = Rows(inputs, label)
    return whole.part(np.arange(size)), whole.part(np.arange(size, size + count))


def true_logit(inputs: Floats, *, monotone: bool) -> Floats:
    """The simulated outcome: rising in quality and in recency, where the dip is left out, and a wave over the hour.

    >>> true_logit(np.array([[0.9, 0.2, 0.5], [0.9, 0.8, 0.5]]), monotone=True).round(2).tolist()
    [-0.53, 1.78]
    """
    quality, recency, hour = inputs.T
    rise = -2.5 + 2 * quality**2 + 3.5 / (1 + np.exp(-12 * (quality - 0.6))) * recency + 0.6 * np.sqrt(recency)
    dip = 0.0 if monotone else -2.0 * np.exp(-(((recency - 0.7) / 0.1) ** 2))
    return np.asarray(rise + dip + 0.7 * np.sin(2 * np.pi * hour) - 0.6)


@cache
def _kuairand() -> tuple[Rows, Rows]:
    """April and May: past click rates of user and video, and the video's length, all as shares of the April rows."""
    columns = kuairand(kuairand_path())
    late = columns["date"] >= TESTED_FROM
    length = columns["video_duration"].astype(float)
    raw = [past_rate(columns, "user_id"), past_rate(columns, "video_id"), length]
    inputs = np.stack([_share(column, ~late) for column in raw], axis=1)
    whole = Rows(inputs, columns["is_click"].astype(np.int64))
    return whole.part(~late), whole.part(late)


def _share(column: Floats, known: NDArray[np.bool_]) -> Floats:
    """The share of known values that are at most as large: from 0 to 1, in the same order."""
    column = np.nan_to_num(column, nan=float(np.nanmedian(column)))
    ordered = np.sort(column[known])
    return np.asarray(np.searchsorted(ordered, column, side="right") / len(ordered))


def tuned(method: str, train: Rows, seed: int) -> Predict:
    """The method with the best of its settings on a quarter of the rows, learned again from all of them."""
    if method == PEER:
        return lambda asked: lattice_peer.logits([_question(train, asked, seed)])[0]
    held = _held(train, seed)
    learn: Any = _lattice if method in (LATTICE, FREE) else _booster
    settings: Sequence[Any] = LATTICES if method in (LATTICE, FREE) else TREES
    constrained = method in (LATTICE, BOOSTED)
    fitted, judged = train.part(~held), train.part(held)

    def loss(setting: Any) -> float:
        predict = learn(fitted, setting, constrained=constrained, seed=seed)
        return metrics.log_loss(judged.label, prob_of(predict(judged.inputs)))

    best: Predict = learn(train, min(settings, key=loss), constrained=constrained, seed=seed)
    return best


def _held(train: Rows, seed: int) -> NDArray[np.bool_]:
    return np.asarray(np.random.default_rng(seed).permutation(len(train.label)) % 4 == 0)


def _question(train: Rows, asked: Floats, seed: int) -> dict[str, Any]:
    return {**train._asdict(), "held": _held(train, seed), "asked": asked, "declared": DECLARED, "seed": seed}


def _lattice(train: Rows, setting: tuple[int, int], *, constrained: bool, seed: int) -> Predict:
    vertices, knots = setting
    grid = Grid(lower=0.0, upper=1.0, step=1 / (vertices - 1))
    names = [f"x{at}" for at in range(train.inputs.shape[1])]
    lattice = MonotoneLattice(
        dict.fromkeys(names, grid),
        monotone=names[:DECLARED] if constrained else (),
        init=1.0 if constrained else 0.0,
        input_knots=knots,
    )
    torch.manual_seed(seed)
    optimiser = torch.optim.AdamW(lattice.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    columns, label = torch.from_numpy(train.inputs.T).float().contiguous(), torch.from_numpy(train.label).float()
    for _ in range(STEPS):
        chosen = torch.randperm(len(label))[:BATCH]
        logit = lattice(dict(zip(names, columns.index_select(1, chosen), strict=True)))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, label.index_select(0, chosen))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    lattice.double()  # rounding in single precision would be counted as a fall

    def predict(asked: Floats) -> Floats:
        with torch.no_grad():
            return np.asarray(lattice(dict(zip(names, torch.from_numpy(asked.T), strict=True)))[:, 0].numpy())

    return predict


def _booster(train: Rows, setting: Mapping[str, Any], *, constrained: bool, seed: int) -> Predict:
    lightgbm = need("lightgbm")
    constraint = [int(constrained and at < DECLARED) for at in range(train.inputs.shape[1])]
    model = lightgbm.LGBMClassifier(
        learning_rate=0.05,
        n_estimators=100,
        monotone_constraints=constraint,
        random_state=seed,
        n_jobs=1,
        verbose=-1,
        **setting,
    ).fit(train.inputs, train.label)
    return lambda asked: np.asarray(model.predict(asked, raw_score=True))


def pairs(inputs: Floats, seed: int) -> tuple[Floats, Floats]:
    """Rows, and the same rows with one declared input raised to the value of another row.

    >>> lower, upper = pairs(np.random.default_rng(0).random((50, 3)), seed=0)
    >>> bool((upper >= lower).all()), int((upper > lower).sum(axis=1).max())
    (True, 1)
    """
    rng = np.random.default_rng(seed)
    found = []
    for at in range(DECLARED):
        lower = inputs[rng.integers(0, len(inputs), PAIRS)]
        upper = lower.copy()
        values = np.sort(np.stack([lower[:, at], inputs[rng.integers(0, len(inputs), PAIRS), at]]), axis=0)
        lower[:, at], upper[:, at] = values
        found.append((lower, upper))
    below, above = (np.concatenate(rows) for rows in zip(*found, strict=True))
    return below, above


def summarise(finished: Sequence[Finished]) -> Result:
    """Both figures of every learner, world and size; differences paired by seed."""
    ran = list(dict.fromkeys(one.unit.setting for one in finished))
    settings = [setting for setting in ran if not setting.endswith(PEER)]
    rows, series = [], []
    for setting in settings:
        for method in (*METHODS, PEER):
            if method == PEER and _of_peer(setting) not in ran:
                continue
            loss, fallen = (estimate(_figures(finished, setting, method, key)) for key in ("loss", "violations"))
            rows.append(Row(f"{setting}: {method}", "log loss", loss, digits=4))
            rows.append(Row(f"{setting}: {method}", "violations, share of pairs", fallen, digits=4))
            series.append({"setting": setting, "method": method, **loss._asdict()})
    return Result(tuple(rows), _parts(finished, ran), {"rows": series}, _note(finished, ran))


def _figures(finished: Sequence[Finished], setting: str, method: str, key: str) -> Floats:
    if method != PEER:
        return by_seed(finished, setting, f"{method} {key}")
    return by_seed(finished, _of_peer(setting), f"{setting.split(', ', maxsplit=1)[1]}, {PEER} {key}")


def _minus(finished: Sequence[Finished], setting: str, other: str) -> Estimate:
    return estimate(_figures(finished, setting, LATTICE, "loss") - _figures(finished, setting, other, "loss"))


def _parts(finished: Sequence[Finished], ran: Sequence[str]) -> tuple[Part, ...]:
    settings = [setting for setting in ran if not setting.endswith(PEER)]
    worst = estimate(np.max([_figures(finished, one, LATTICE, "violations") for one in settings], axis=0))
    parts = [Part("the lattice never falls in a declared input, in any world", worst, below=1e-9)]
    than = {
        FREE: ("lower log loss than an unconstrained lattice", 0.0),
        PLAIN: ("lower log loss than an unconstrained booster", 0.0),
        BOOSTED: (f"log loss no higher than a monotone booster's by {SLACK}", SLACK),
        PEER: (f"log loss no higher than pytorch-lattice's by {SLACK}", SLACK),
    }
    for setting in settings:
        if setting.startswith("not monotone"):
            continue
        parts += [
            Part(f"{says} ({setting})", _minus(finished, setting, other), below=bound)
            for other, (says, bound) in than.items()
            if other != PEER or _of_peer(setting) in ran
        ]
    return tuple(parts)


def _note(finished: Sequence[Finished], ran: Sequence[str]) -> str:
    settings = [setting for setting in ran if not setting.endswith(PEER)]
    wrong = [setting for setting in settings if setting.startswith("not monotone")]
    costs = "; ".join(f"{_minus(finished, one, PLAIN).value:+.4f} ({one.split(', ')[1]})" for one in wrong)
    fallen = np.mean([_figures(finished, setting, PLAIN, "violations").mean() for setting in settings])
    return (
        f"The unconstrained booster orders {fallen:.1%} of pairs of rows wrongly. Where the truth falls in a declared "
        f"input the constraint costs: log loss of the lattice minus that booster's is {costs}. {_peer(finished, ran)}"
    )


def _peer(finished: Sequence[Finished], ran: Sequence[str]) -> str:
    settings = [setting for setting in ran if not setting.endswith(PEER) and _of_peer(setting) in ran]
    if not settings:
        return "pytorch-lattice was not run: its own environment, which make lattice installs, is absent."
    fallen = np.mean([_figures(finished, setting, PEER, "violations").mean() for setting in settings])
    return (
        "Both lattices have a learned piecewise-linear map of each input; pytorch-lattice orders "
        f"{fallen:.1%} of pairs wrongly."
    )


def chart(series: dict[str, Any]) -> Any:
    """Log loss of every learner, one panel per world and size."""
    order = (*METHODS, PEER)
    return intervals(
        series["rows"], y="method", panel="setting", order=order, title="log loss", columns=3, ours=LATTICE
    )
