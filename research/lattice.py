"""Several monotone inputs at once: a lattice against boosters, where order is known in advance.

The paper leaves joint monotonicity in several features (quality, recency) to future work; `MonotoneLattice` is our form
of it. Worlds, sizes and what is judged were stated before any run. The learned maps of the inputs, pytorch-lattice and
all settings came later, after a first report of lattices without maps; the settings of boosters were searched last.
Five learners predict a binary outcome from the same features:

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

Each learner has the best of three settings on a quarter of its training rows. Which three was chosen on rows that are
not reported: on other seeds of the simulated data, and on rows of April alone, since the rows of May are the same under
every seed. For pytorch-lattice the choice was from 24 settings on seeds 0 and 1; for our lattice, since it has maps,
from 14 (2 to 4 vertices, 5 or 10 knots of the maps, rates .1, .2 and in part .3) on seed 0. For boosters it was from 24
on seeds 0 and 1 (four sizes of trees; a rate of .02 with 150 or 400 rounds, .05 with 50, 100 or 200, or .1 with 50),
and for the monotone one from twice as many, LightGBM's ``basic`` and ``advanced`` way of keeping the constraint: the
three whose best has the lowest log loss, on average over all sizes of simulated data and of KuaiRand.

Judged are the log loss on the test rows, and violations: the share of pairs of test rows that differ in one declared
input only, where the prediction falls as that input rises. Intervals are over seeds; those of log loss on KuaiRand are
over seeds and resampled users, since all seeds are tested on the same rows. pytorch-lattice runs in an environment of
its own (`research.lattice_peer`), on the same rows, seeds and held-out quarter; where that is absent the rest runs
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
from research.lattice_rows import Floats, Rows, rows_of, users_of
from research.resampling import draws, pooled
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
SMALL, MIDDLE, LARGE = (
    {"num_leaves": leaves, "min_child_samples": rows} for leaves, rows in ((4, 20), (8, 50), (24, 100))
)
TREES: dict[str, tuple[dict[str, Any], ...]] = {  # tried
    PLAIN: (
        {**LARGE, "learning_rate": 0.02, "n_estimators": 150},
        {**SMALL, "learning_rate": 0.05, "n_estimators": 100},
        {**SMALL, "learning_rate": 0.05, "n_estimators": 200},
    ),
    BOOSTED: (
        {**LARGE, "learning_rate": 0.05, "n_estimators": 100, "monotone_constraints_method": "basic"},
        {**SMALL, "learning_rate": 0.02, "n_estimators": 150, "monotone_constraints_method": "basic"},
        {**MIDDLE, "learning_rate": 0.02, "n_estimators": 150, "monotone_constraints_method": "advanced"},
    ),
}
STEPS, RATE, DECAY = 200, 0.2, 0.03  # of the lattice: AdamW over all rows or large batches
BATCH, PAIRS = 4_000, 4_000
RESAMPLES = 200  # of the users of KuaiRand
SLACK = 0.001  # log loss: as good as, when not higher by more


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
        numbers |= _judged(method, tuned(method, train, unit.seed)(asked), test, users_of(world))
    return numbers


def _with_peer(world: str, unit: Unit) -> Numbers:
    lattice_peer.interpreter()  # rather now than after the rows are read
    tasks = {size: _task(world, size, unit) for size in _sizes(quick=unit.quick)}
    answers = lattice_peer.logits([_question(train, asked, unit.seed) for train, _, asked in tasks.values()])
    return {
        f"{size:,} rows, {key}": value
        for (size, (_, test, _)), logit in zip(tasks.items(), answers, strict=True)
        for key, value in _judged(PEER, logit, test, users_of(world)).items()
    }


def _task(world: str, size: int, unit: Unit) -> tuple[Rows, Rows, Floats]:
    # training rows, test rows, and what is asked: the test rows, then the lower and the upper row of every pair
    train, test = rows_of(world, size, unit.seed, quick=unit.quick)
    return train, test, np.concatenate([test.inputs, *pairs(test.inputs, unit.seed)])


def _judged(method: str, logit: Floats, test: Rows, user: NDArray[np.intp] | None) -> Numbers:
    rows = len(test.label)
    below, above = np.split(logit[rows:], 2)
    numbers: Numbers = {
        f"{method} loss": metrics.log_loss(test.label, prob_of(logit[:rows])),
        f"{method} violations": float(np.mean(above < below - 1e-6)),
    }
    if user is not None:
        numbers[f"{method} loss draws"] = _resampled(test.label, logit[:rows], user).tolist()
    return numbers


def _resampled(label: NDArray[np.int64], logit: Floats, user: NDArray[np.intp]) -> Floats:
    # mean log loss of each resample of the users, who are numbered from 0; [resamples]
    loss = np.logaddexp(0, logit) - label * logit
    sums, counts = np.bincount(user, loss), np.bincount(user)
    weight = draws(np.arange(len(counts)), RESAMPLES).astype(np.float64)
    return np.asarray((weight @ sums) / (weight @ counts))


def _sizes(*, quick: bool) -> Sequence[int]:
    return SIZES[:1] if quick else SIZES


def _named(world: str, size: int) -> str:
    return f"{world}, {size:,} rows"


def _of_peer(setting: str) -> str:
    # the setting of pytorch-lattice's units in the same world
    return f"{setting.split(', ')[0]}, {PEER}"


def tuned(method: str, train: Rows, seed: int) -> Predict:
    """The method with the best of its settings on a quarter of the rows, learned again from all of them."""
    if method == PEER:
        return lambda asked: lattice_peer.logits([_question(train, asked, seed)])[0]
    held = _held(train, seed)
    learn: Any = _lattice if method in (LATTICE, FREE) else _booster
    settings: Sequence[Any] = LATTICES if method in (LATTICE, FREE) else TREES[method]
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
        monotone_constraints=constraint, random_state=seed, n_jobs=1, verbose=-1, **setting
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
            loss = _loss(finished, setting, method)
            fallen = estimate(_figures(finished, setting, method, "violations"))
            rows.append(Row(f"{setting}: {method}", "log loss", loss, digits=4))
            rows.append(Row(f"{setting}: {method}", "violations, share of pairs", fallen, digits=4))
            series.append({"setting": setting, "method": method, **loss._asdict()})
    return Result(tuple(rows), _parts(finished, ran), {"rows": series}, _note(finished, ran))


def _figures(finished: Sequence[Finished], setting: str, method: str, key: str) -> Floats:
    # [seeds], or [seeds, resamples] of draws
    if method != PEER:
        return by_seed(finished, setting, f"{method} {key}")
    return by_seed(finished, _of_peer(setting), f"{setting.split(', ', maxsplit=1)[1]}, {PEER} {key}")


def _loss(finished: Sequence[Finished], setting: str, method: str, other: str | None = None) -> Estimate:
    """Log loss of a method, or how much higher it is than another's, paired by seed and by draw of the users."""

    def of(key: str) -> Floats:
        own = _figures(finished, setting, method, key)
        return own if other is None else own - _figures(finished, setting, other, key)

    return pooled(of("loss"), of("loss draws")) if setting.startswith("KuaiRand") else estimate(of("loss"))


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
            Part(f"{says} ({setting})", _loss(finished, setting, LATTICE, other), below=bound)
            for other, (says, bound) in than.items()
            if other != PEER or _of_peer(setting) in ran
        ]
    return tuple(parts)


def _note(finished: Sequence[Finished], ran: Sequence[str]) -> str:
    settings = [setting for setting in ran if not setting.endswith(PEER)]
    rises = [setting for setting in settings if setting.startswith("simulated")]
    wrong = [setting for setting in settings if setting.startswith("not monotone")]
    fallen = "; ".join(
        f"{method} {np.mean([_figures(finished, setting, method, 'violations').mean() for setting in rises]):.1%}"
        for method in (FREE, PLAIN)
    )
    told = "; ".join(
        f"{_cost(_loss(finished, one, LATTICE, FREE))} ({one.split(', ', maxsplit=1)[1]})" for one in wrong
    )
    return (
        f"Where the truth rises, learners without the constraint order this share of pairs wrongly: {fallen}. Where "
        f"the truth falls in a declared input, the constraint, by the log loss of the lattice minus that of the "
        f"unconstrained one, {told}. {_peer(finished, ran)} {_boosters()}"
    )


def _boosters() -> str:
    """Where the search of settings may have been too narrow for the largest training sets."""
    rounds = max(tried["n_estimators"] for tried in TREES[BOOSTED])
    return (
        "Settings of boosters were searched up to 200 rounds at a rate of .05 and 400 at .02, and each booster has one "
        f"trio of settings for all sizes, by its mean over them; that of the monotone booster has at most {rounds} "
        f"rounds. So with {SIZES[-1]:,} rows the monotone booster may be a little better than shown."
    )


def _cost(loss: Estimate) -> str:
    """What a difference in log loss is called.

    >>> _cost(Estimate(0.01, 0.005, 0.015, 6)), _cost(Estimate(-0.01, -0.02, 0.001, 6))
    ('costs +0.0100', 'neither costs nor gains beyond chance, -0.0100')
    """
    beyond = "costs" if loss.lower > 0 else "gains" if loss.upper < 0 else "neither costs nor gains beyond chance,"
    return f"{beyond} {loss.value:+.4f}"


def _peer(finished: Sequence[Finished], ran: Sequence[str]) -> str:
    settings = [setting for setting in ran if not setting.endswith(PEER) and _of_peer(setting) in ran]
    if not settings:
        return "pytorch-lattice was not run: its own environment, which make lattice installs, is absent."
    fallen = np.mean([_figures(finished, setting, PEER, "violations").mean() for setting in settings])
    return (
        "Both lattices have a learned piecewise-linear map of each input; pytorch-lattice's predictions fall in a "
        f"declared input in {fallen:.1%} of pairs."
    )


def chart(series: dict[str, Any]) -> Any:
    """Log loss of every learner, one panel per world and size."""
    order = (*METHODS, PEER)
    return intervals(
        series["rows"], y="method", panel="setting", order=order, title="log loss", columns=3, ours=LATTICE
    )
