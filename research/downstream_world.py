"""The world of downstream sessions: what is logged every day, and what each method predicts for the next day.

`research.downstream` says what the design is; this module has the feeds, the model with its towers, and the curves over
it. What is judged of the predictions is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.debias.loss import weighted_bce
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.isotonic import Constraint
from isolayer.simulate import DOWNSTREAM, TASKS, Drift, Feed, Logger, Population
from research.calibrators import PlattCalibrator
from research.loop import WIDTH, Log, as_log, network, train

ACTIONS = ("like", "share", "comment")
AFTER = {f"downstream_{action}": action for action in ACTIONS}
TRUTH = tuple(f"relevance_{task}" for task in AFTER)  # the true chance of the session, given the action
BASELINE, LAYER, EXACT, OVER_ENGAGEMENT = "baseline", "isotonic layer", "exact curves", "layer over engagement"
FREE, PLATT = "layer without the constraint", "Platt scaling"
KNOWN, SAME_ROWS, CORRECTED = "baseline, corrected", "baseline, same rows", "baseline, same rows, corrected"
METHODS = (BASELINE, LAYER, EXACT, FREE, PLATT, KNOWN, SAME_ROWS, CORRECTED, OVER_ENGAGEMENT)
TOWER = 16  # units of a tower
POSITIVE_WEIGHT = 3.0  # of a positive in the downstream models
DESKTOP = 2  # platform: ios and android are phones, web is a desktop
RANDOM_WINDOW, RANDOM_SESSIONS = 14, 2_000  # days and daily number of the randomised sessions that curves learn from
NEGATIVES = 0.05  # share of the impressions without an action that the engagement model sees
Columns = dict[str, NDArray[Any]]


class Setting(NamedTuple):
    """How much the models learn from every day."""

    sessions: int  # a day
    window: int  # days
    epochs: int  # of the downstream model
    platform_given: bool = False  # whether the model sees the platform


SETTINGS = {
    "sparse": Setting(8_000, 1, 60),
    "platform given": Setting(8_000, 1, 60, platform_given=True),
    "ample": Setting(20_000, 3, 8),
}


class Day(NamedTuple):
    """The rows with an action of a day, and what each method predicts of them from the days before."""

    test: Columns
    probs: dict[str, NDArray[np.float64]]  # by method, [n, tasks]
    fitted_auc: dict[str, float]  # of the baseline on the rows that it was trained on, by action


class Towers(nn.Module):
    """Shared layers and one small tower per task, with one logit each.

    All towers are computed at once: their first layers side by side, and their outputs by one matrix in which a tower
    has weights for its own units only.

    >>> Towers(5, 2)(torch.zeros(2, 5), {}).shape
    torch.Size([2, 2])
    """

    def __init__(self, inputs: int, tasks: int) -> None:
        super().__init__()
        self.shared = network(inputs)
        towers = [(nn.Linear(WIDTH, TOWER), nn.Linear(TOWER, 1)) for _ in range(tasks)]
        with torch.no_grad():
            self.first = nn.Parameter(torch.cat([first.weight for first, _ in towers]))
            self.first_bias = nn.Parameter(torch.cat([first.bias for first, _ in towers]))
            self.last = nn.Parameter(torch.block_diag(*(last.weight for _, last in towers)))
            self.last_bias = nn.Parameter(torch.cat([last.bias for _, last in towers]))
        self.register_buffer("own", torch.block_diag(*torch.ones(tasks, 1, TOWER)))

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[batch, tasks]``; the context is not read."""
        hidden = torch.relu(nn.functional.linear(self.shared(features), self.first, self.first_bias))
        return nn.functional.linear(hidden, self.last * self.get_buffer("own"), self.last_bias)

    def loss(self, outputs: Tensor, labels: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None) -> Tensor:
        """Log loss summed over tasks, with labels and weights as `_log` stacks them; there is no other mask."""
        return weighted_bce(outputs, labels["label"], labels["weight"]).sum()


class FrozenWithCurves(nn.Module):
    """One curve per task, for phone and desktop apart, over logits given as features ``[batch, tasks]``."""

    def __init__(self, tasks: int, constraint: Constraint) -> None:
        super().__init__()
        self.curves = ContextIsotonicLayer({"desktop": 2}, units=tasks, constraint=constraint, extrapolation="extend")

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Calibrated logits ``[batch, tasks]``."""
        return self.curves(features, context)  # type: ignore[no-any-return]

    loss = Towers.loss


def days(seed: int, setting: Setting, methods: Sequence[str], *, count: int) -> Iterator[Day]:
    """Every day after the first two weeks, which only the randomised sessions have."""
    total = RANDOM_WINDOW + count
    world = Feed(
        population=Population(seed=seed),
        tasks=tuple(task for task in TASKS if task.name in ACTIONS) + DOWNSTREAM,
        days=total,
        drift=Drift(relevance=0.01),
    )
    randomised = Feed(
        population=world.population, logger=Logger(0, 0, noise=1.0), tasks=world.tasks, days=total, drift=world.drift
    )
    logged, mixed = (
        collected(feed, sessions * total, seed=2 * seed + number, platform_given=setting.platform_given)
        for number, (feed, sessions) in enumerate(((world, setting.sessions), (randomised, RANDOM_SESSIONS)))
    )
    for day in range(RANDOM_WINDOW, total):
        test = chosen(logged, (logged["day"] == day) & acted(logged))
        past = chosen(logged, (logged["day"] >= day - setting.window) & (logged["day"] < day))
        random = chosen(mixed, (mixed["day"] < day) & (mixed["day"] >= day - RANDOM_WINDOW) & acted(mixed))
        yield predicted(past, random, test, methods, epochs=setting.epochs, seed=day)


def collected(world: Feed, sessions: int, seed: int, *, platform_given: bool) -> Columns:
    """Rows of a log that had an action, and some of the others; the platform joins the features if it is given."""
    rng, names = np.random.default_rng(seed), ("features", "user", "platform", "day", *ACTIONS, *AFTER, *TRUTH)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for chunk in world.batches(sessions, seed):
        kept = acted(chunk) | (rng.random(len(chunk["day"])) < NEGATIVES)
        for name in names:
            parts[name].append(chunk[name][kept])
    columns = {name: np.concatenate(part) for name, part in parts.items()}
    columns["desktop"] = (columns["platform"] == DESKTOP).astype(np.int32)
    if platform_given:
        columns["features"] = np.hstack([columns["features"], np.eye(3, dtype=np.float32)[columns["platform"]]])
    return columns


def acted(columns: Columns) -> NDArray[np.bool_]:
    """Whether a row had any action, ``[n]``."""
    return np.asarray(np.any([columns[action] == 1 for action in ACTIONS], axis=0))


def chosen(columns: Columns, kept: NDArray[np.bool_]) -> Columns:
    """The rows that are kept."""
    return {name: column[kept] for name, column in columns.items()}


def predicted(past: Columns, mixed: Columns, test: Columns, methods: Sequence[str], *, epochs: int, seed: int) -> Day:
    """What every method predicts for the rows of a day, learned from the days before it."""
    own = chosen(past, acted(past))
    model = _learned(_log(own, AFTER, POSITIVE_WEIGHT), epochs, seed)
    fitted, asked, seen = _logits(model, mixed, test, own)
    ways: dict[str, Callable[[], NDArray[np.float64]]] = {
        BASELINE: lambda: asked,
        LAYER: lambda: _layered(fitted, asked, mixed, test, seed),
        FREE: lambda: _layered(fitted, asked, mixed, test, seed, constraint=None),
        EXACT: lambda: _calibrated(IsotonicCalibrator, fitted, asked, mixed, test),
        PLATT: lambda: _calibrated(PlattCalibrator, fitted, asked, mixed, test),
        KNOWN: lambda: asked - math.log(POSITIVE_WEIGHT),
    }
    if {SAME_ROWS, CORRECTED} & set(methods):
        both = {name: np.concatenate([own[name], mixed[name]]) for name in own}
        fewer = max(1, round(epochs * len(own["day"]) / len(both["day"])))
        _, richer = _logits(_learned(_log(both, AFTER, POSITIVE_WEIGHT), fewer, seed), mixed, test)
        ways |= {SAME_ROWS: lambda: richer, CORRECTED: lambda: richer - math.log(POSITIVE_WEIGHT)}
    if OVER_ENGAGEMENT in methods:
        early, late = _logits(_learned(_log(past, dict.fromkeys(ACTIONS)), 3, seed), mixed, test)
        ways[OVER_ENGAGEMENT] = lambda: _layered(early, late, mixed, test, seed)
    return Day(test, {method: prob_of(ways[method]()) for method in methods}, _aucs(own, seen))


def _aucs(rows: Columns, logits: NDArray[np.float64]) -> dict[str, float]:
    """AUC of each task among the rows that have its action, within each day."""
    found = {}
    for number, (task, action) in enumerate(AFTER.items()):
        kept = rows[action] == 1
        found[action] = float(metrics.gauc(rows[task][kept], logits[kept, number], rows["day"][kept]))
    return found


def _learned(log: Log, epochs: int, seed: int) -> Towers:
    torch.manual_seed(seed)
    model = Towers(log.features.shape[1], log.labels["label"].shape[1])
    return train(model, log, epochs=epochs, seed=seed)


def _logits(model: Towers, *rows: Columns) -> list[NDArray[np.float64]]:
    with torch.no_grad():
        return [model(torch.from_numpy(one["features"]), {}).double().numpy() for one in rows]


def _log(columns: Columns, after: Mapping[str, str | None], positive_weight: float = 1.0) -> Log:
    # labels and weights [n, tasks], stacked once rather than in every batch; a task without its action weighs nothing
    log = as_log(columns, tuple(after), contexts=("desktop",))
    kept = np.stack(
        [np.ones(len(log.features)) if act is None else columns[act] == 1 for act in after.values()], axis=1
    )
    weight = torch.from_numpy(kept).float()
    label = torch.stack(list(log.labels.values()), dim=1) * weight
    return log._replace(labels={"label": label, "weight": weight * (1 + (positive_weight - 1) * label)})


def _layered(
    fitted: NDArray[np.float64],
    asked: NDArray[np.float64],
    mixed: Columns,
    test: Columns,
    seed: int,
    constraint: Constraint = "relu",
) -> NDArray[np.float64]:
    # curves by gradient over frozen logits [n, tasks] of the randomised rows, for those of the test
    log = _log(mixed, AFTER)._replace(features=torch.from_numpy(fitted).float())
    model = train(FrozenWithCurves(len(AFTER), constraint), log, epochs=15, seed=seed)
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(asked).float(), _log(test, AFTER).context).double().numpy())


def _calibrated(
    kind: type[IsotonicCalibrator | PlattCalibrator],
    fitted: NDArray[np.float64],
    asked: NDArray[np.float64],
    mixed: Columns,
    test: Columns,
) -> NDArray[np.float64]:
    # one calibrator per task, for phone and desktop apart, over the same logits
    columns = []
    for number, (task, action) in enumerate(AFTER.items()):
        kept = mixed[action] == 1
        calibrator = kind(("desktop",)).fit(
            {"score": fitted[kept, number], "desktop": mixed["desktop"][kept]}, mixed[task][kept]
        )
        columns.append(calibrator.decision_function({"score": asked[:, number], "desktop": test["desktop"]}))
    return np.stack(columns, axis=1)
