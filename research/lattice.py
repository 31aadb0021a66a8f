"""Several monotone inputs at once: a lattice against boosters, where order is known in advance.

The design, stated before any run. The paper leaves joint monotonicity in several features (quality, recency) to future
work; `MonotoneLattice` is our form of it. Four learners predict a binary outcome from the same features:

    lattice                    `MonotoneLattice`, never falling in the declared inputs, free in the others
    lattice, unconstrained     the same with nothing declared
    booster, monotone          LightGBM with ``monotone_constraints`` on the same inputs
    booster                    LightGBM without

Each has the best of three settings on a quarter of its training rows. On ``simulated`` data the outcome rises with
quality and with recency, which interact (recency matters only where quality is high), and depends on the hour in a wave
that is not monotone; training sets have 500, 2,000 and 20,000 rows, test rows are many. ``not monotone`` is the same
with a dip in recency, where the constraint is wrong and must cost. ``KuaiRand`` is real: clicks by the past click rate
of the user and of the video, in both of which the chance should rise, and by the video's length, which is free; models
learn from 500, 2,000 and 20,000 rows of April and are tested on May, with other rows for each seed.

Judged are the log loss on the test rows, and violations: the share of pairs of test rows that differ in one declared
input only, where the prediction falls as that input rises. pytorch-lattice, the other implementation of lattices, is
left out: it needs numpy below 2, which nothing else here can use any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.curves.evaluation import prob_of
from isolayer.errors import need
from isolayer.grid import Grid
from isolayer.nn.lattice import MonotoneLattice
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
DECLARED = 2  # the first inputs are those in which the outcome should rise
VERTICES = (3, 4, 6)  # of each input of the lattice: tried
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
    """Every world and size under every seed."""
    sizes = SIZES[:1] if quick else SIZES
    settings = [f"{world}, {size:,} rows" for world in WORLDS for size in sizes]
    return units_of(settings, quick=quick, seeds=seeds or SEEDS, cost=0.7 if quick else 3.0)


def run_unit(unit: Unit) -> Numbers:
    """Log loss and violations of every learner on the same rows."""
    world, size = _asked(unit.setting)
    train, test = rows_of(world, size, unit.seed, quick=unit.quick)
    torch.manual_seed(unit.seed)
    numbers: Numbers = {"rows": len(test.label)}
    for method in METHODS:
        predict = tuned(method, train, unit.seed)
        numbers[f"{method} loss"] = metrics.log_loss(test.label, prob_of(predict(test.inputs)))
        numbers[f"{method} violations"] = violations(predict, test.inputs, unit.seed)
    return numbers


def _asked(setting: str) -> tuple[str, int]:
    world, size = setting.removesuffix(" rows").split(", ")
    return world, int(size.replace(",", ""))


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
    learn: Any = _lattice if method in (LATTICE, FREE) else _booster
    settings: Sequence[Any] = VERTICES if method in (LATTICE, FREE) else TREES
    constrained = method in (LATTICE, BOOSTED)
    held = np.random.default_rng(seed).permutation(len(train.label)) % 4 == 0
    fitted, judged = train.part(~held), train.part(held)

    def loss(setting: Any) -> float:
        predict = learn(fitted, setting, constrained=constrained, seed=seed)
        return metrics.log_loss(judged.label, prob_of(predict(judged.inputs)))

    best: Predict = learn(train, min(settings, key=loss), constrained=constrained, seed=seed)
    return best


def _lattice(train: Rows, vertices: int, *, constrained: bool, seed: int) -> Predict:
    grid = Grid(lower=0.0, upper=1.0, step=1 / (vertices - 1))
    names = [f"x{at}" for at in range(train.inputs.shape[1])]
    lattice = MonotoneLattice(
        dict.fromkeys(names, grid), monotone=names[:DECLARED] if constrained else (), init=1.0 if constrained else 0.0
    )
    torch.manual_seed(seed)
    optimiser = torch.optim.AdamW(lattice.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    inputs, label = torch.from_numpy(train.inputs).float(), torch.from_numpy(train.label).float()
    for _ in range(STEPS):
        chosen = torch.randperm(len(label))[:BATCH]
        logit = lattice(_columns(names, inputs[chosen]))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, label[chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()

    def predict(asked: Floats) -> Floats:
        with torch.no_grad():
            return np.asarray(lattice(_columns(names, torch.from_numpy(asked).float()))[:, 0].double().numpy())

    return predict


def _columns(names: Sequence[str], inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
    return dict(zip(names, inputs.T, strict=True))


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


def violations(predict: Predict, inputs: Floats, seed: int) -> float:
    """Share of pairs of rows, alike but for one declared input, whose prediction falls as that input rises.

    >>> round(violations(lambda x: -x[:, 0] + x[:, 1], np.random.default_rng(0).random((50, 2)), seed=0), 1)
    0.5
    """
    rng = np.random.default_rng(seed)
    falls = []
    for at in range(DECLARED):
        lower = inputs[rng.integers(0, len(inputs), PAIRS)]
        upper = lower.copy()
        values = np.sort(np.stack([lower[:, at], inputs[rng.integers(0, len(inputs), PAIRS), at]]), axis=0)
        lower[:, at], upper[:, at] = values
        falls.append(predict(upper) < predict(lower) - 1e-6)
    return float(np.mean(falls))


def summarise(finished: Sequence[Finished]) -> Result:
    """Both figures of every learner, world and size; differences paired by seed."""
    settings = list(dict.fromkeys(one.unit.setting for one in finished))
    rows, series = [], []
    for setting in settings:
        for method in METHODS:
            loss, fallen = (estimate(by_seed(finished, setting, f"{method} {key}")) for key in ("loss", "violations"))
            rows.append(Row(f"{setting}: {method}", "log loss", loss, digits=4))
            rows.append(Row(f"{setting}: {method}", "violations, share of pairs", fallen, digits=4))
            series.append({"setting": setting, "method": method, **loss._asdict()})
    return Result(tuple(rows), _parts(finished, settings), {"rows": series}, _note(finished, settings))


def _minus(finished: Sequence[Finished], setting: str, other: str) -> Estimate:
    return estimate(by_seed(finished, setting, f"{LATTICE} loss") - by_seed(finished, setting, f"{other} loss"))


def _parts(finished: Sequence[Finished], settings: Sequence[str]) -> tuple[Part, ...]:
    parts = [
        Part(
            "the lattice never falls in a declared input, in any world",
            estimate(_worst(finished, settings)),
            below=1e-9,
        )
    ]
    for setting in settings:
        if setting.startswith("not monotone"):
            continue
        parts += [
            Part(f"lower log loss than an unconstrained lattice ({setting})", _minus(finished, setting, FREE), below=0),
            Part(
                f"lower log loss than an unconstrained booster ({setting})", _minus(finished, setting, PLAIN), below=0
            ),
            Part(
                f"log loss no higher than a monotone booster's by {SLACK} ({setting})",
                _minus(finished, setting, BOOSTED),
                below=SLACK,
            ),
        ]
    return tuple(parts)


def _worst(finished: Sequence[Finished], settings: Sequence[str]) -> Floats:
    # the largest share of violations of the lattice over worlds and sizes, [seeds]
    return np.asarray(np.max([by_seed(finished, setting, f"{LATTICE} violations") for setting in settings], axis=0))


def _note(finished: Sequence[Finished], settings: Sequence[str]) -> str:
    wrong = [setting for setting in settings if setting.startswith("not monotone")]
    costs = "; ".join(f"{_minus(finished, one, PLAIN).value:+.4f} ({one.split(', ')[1]})" for one in wrong)
    fallen = np.mean([by_seed(finished, setting, f"{PLAIN} violations").mean() for setting in settings])
    return (
        f"The unconstrained booster orders {fallen:.1%} of pairs of rows wrongly. Where the truth falls in a declared "
        f"input the constraint costs: log loss of the lattice minus that booster's is {costs}. "
        "pytorch-lattice is not compared: it needs numpy below 2."
    )


def chart(series: dict[str, Any]) -> Any:
    """Log loss of every learner, one panel per world and size."""
    return intervals(
        series["rows"], y="method", panel="setting", order=METHODS, title="log loss", columns=3, ours=LATTICE
    )
