"""Table 1 and the stability figure: the chance of a downstream session after a like, share or comment.

The design, stated before any run. Labels are sparse: a day has some 150 positives per task. As is usual with sparse
labels, positives are weighted (by 3), and nobody corrects the scores for it, so that they over-predict. The model is
learned anew every day from that day alone, for many epochs, so that it over-fits and its scores swing from day to day.
Users on a phone and on a desktop return at different rates, which the model is not told; the curves are separate for
each task and for phone and desktop, as in the paper, and learned on sessions that were shown in random order. Every day
each method predicts the next:

    baseline                        shared layers and one tower per task
    isotonic layer                  the baseline, frozen, then the curves, learned by gradient
    exact curves                    the same, with the curves found by the exact solver
    baseline, same rows             the baseline, given the randomised sessions as well, for as many steps
    baseline, same rows, corrected  the same, with the weight of positives taken back by its known shift of the logit
    layer over engagement           a model of the actions themselves, whose labels are many, frozen, then such curves

The paper's first phase trains "the primary downstream model ... on engagement data", which can be read as the first or
the last; both are shown. Three settings: ``sparse`` is the above. In ``platform given`` the model sees the platform, so
that a curve per platform has nothing to repair, and monotone curves cannot change the order of items within one. In
``ample`` it learns from three larger days for fewer epochs. That calibrated scores are nearer to the label mean than
inflated ones is true by construction; whether they rank better, swing less, and do so beside a baseline that has the
same rows or the same correction, is not.
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
from isolayer.errors import need
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.simulate import DOWNSTREAM, TASKS, Drift, Feed, Logger, Population
from research.loop import WIDTH, Log, as_log, network, train
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
    "A frozen model with an isotonic layer learned on randomised sessions ranks sparse tasks better than the "
    "multi-task model (Share and Comment, not Like), with a steadier daily mean score, nearer to the label mean."
)
PAPER = "table 1: AUC Share +1.5%, Like +0.0%, Comment +1.9%; figure 3: lower variance of the daily mean score"
SEEDS = 6
ACTIONS = ("like", "share", "comment")
AFTER = {f"downstream_{action}": action for action in ACTIONS}
TRUTH = tuple(f"relevance_{task}" for task in AFTER)  # the true chance of the session, given the action
TABLE = {"like": "+0.0%", "share": "+1.5%", "comment": "+1.9%"}
DAILY = {
    "score": ("mean score over mean label", 1.0),
    "distance": ("daily distance to the label mean, x100", 100.0),
    "variance": ("variance of the daily mean, x1e4", 1e4),
}
TAILS = {"lower tail": 0.05, "middle": 0.5, "upper tail": 0.95}  # quantiles of a day's scores
LAYER, EXACT, OVER_ENGAGEMENT = "isotonic layer", "exact curves", "layer over engagement"
SAME_ROWS, CORRECTED = "baseline, same rows", "baseline, same rows, corrected"
METHODS = ("baseline", LAYER, EXACT, SAME_ROWS, CORRECTED, OVER_ENGAGEMENT)
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


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """All methods see the same days, in every setting."""
    cost = (15.0, 10.0) if quick else (50.0, 25.0)
    return units_of(
        list(SETTINGS), quick=quick, seeds=seeds or SEEDS, cost=lambda setting: cost[SETTINGS[setting].window == 1]
    )


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

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.curves = ContextIsotonicLayer({"desktop": 2}, units=tasks, extrapolation="extend")

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Calibrated logits ``[batch, tasks]``."""
        return self.curves(features, context)  # type: ignore[no-any-return]

    loss = Towers.loss


def run_unit(unit: Unit) -> Numbers:
    """Retrain every day, predict the next; daily means and AUC of every method and task."""
    found: dict[str, list[NDArray[np.float64]]] = {method: [] for method in METHODS}
    tests = []
    for test, probs in days(unit.seed, SETTINGS[unit.setting], METHODS, count=4 if unit.quick else 14):
        tests.append(test)
        for method, column in probs.items():
            found[method].append(column)
    test = {name: np.concatenate([one[name] for one in tests]) for name in tests[0]}
    return _judged({method: np.concatenate(columns) for method, columns in found.items()}, test)


def days(
    seed: int, setting: Setting, methods: Sequence[str], *, count: int
) -> Iterator[tuple[Columns, dict[str, NDArray[np.float64]]]]:
    """The rows with an action of each day, and every method's probabilities for them, ``[n, tasks]``."""
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
        yield test, predicted(past, random, test, methods, epochs=setting.epochs, seed=day)


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


def predicted(
    past: Columns, mixed: Columns, test: Columns, methods: Sequence[str], *, epochs: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Probabilities of every method for the rows of a day, ``[n, tasks]``, learned from the days before it."""
    own = chosen(past, acted(past))
    fitted, asked = _logits(_learned(_log(own, AFTER, POSITIVE_WEIGHT), epochs, seed), mixed, test)
    ways: dict[str, Callable[[], NDArray[np.float64]]] = {
        "baseline": lambda: asked,
        LAYER: lambda: _layered(fitted, asked, mixed, test, seed),
        EXACT: lambda: _exact(fitted, asked, mixed, test),
    }
    if {SAME_ROWS, CORRECTED} & set(methods):
        both = {name: np.concatenate([own[name], mixed[name]]) for name in own}
        fewer = max(1, round(epochs * len(own["day"]) / len(both["day"])))
        _, richer = _logits(_learned(_log(both, AFTER, POSITIVE_WEIGHT), fewer, seed), mixed, test)
        ways |= {SAME_ROWS: lambda: richer, CORRECTED: lambda: richer - math.log(POSITIVE_WEIGHT)}
    if OVER_ENGAGEMENT in methods:
        early, late = _logits(_learned(_log(past, dict.fromkeys(ACTIONS)), 3, seed), mixed, test)
        ways[OVER_ENGAGEMENT] = lambda: _layered(early, late, mixed, test, seed)
    return {method: prob_of(ways[method]()) for method in methods}


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
    fitted: NDArray[np.float64], asked: NDArray[np.float64], mixed: Columns, test: Columns, seed: int
) -> NDArray[np.float64]:
    # curves by gradient over frozen logits [n, tasks] of the randomised rows, for those of the test
    log = _log(mixed, AFTER)._replace(features=torch.from_numpy(fitted).float())
    model = train(FrozenWithCurves(len(AFTER)), log, epochs=15, seed=seed)
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(asked).float(), _log(test, AFTER).context).double().numpy())


def _exact(
    fitted: NDArray[np.float64], asked: NDArray[np.float64], mixed: Columns, test: Columns
) -> NDArray[np.float64]:
    columns = []
    for number, (task, action) in enumerate(AFTER.items()):
        kept = mixed[action] == 1
        calibrator = IsotonicCalibrator(("desktop",)).fit(
            {"score": fitted[kept, number], "desktop": mixed["desktop"][kept]}, mixed[task][kept]
        )
        columns.append(calibrator.decision_function({"score": asked[:, number], "desktop": test["desktop"]}))
    return np.stack(columns, axis=1)


def _judged(probs: dict[str, NDArray[np.float64]], test: Columns) -> Numbers:
    numbers: Numbers = {"daily": []}
    for number, (task, action) in enumerate(AFTER.items()):
        kept = test[action] == 1
        label, day = test[task][kept], test["day"][kept]
        for method, columns in probs.items():
            prob = columns[kept, number]
            daily = metrics.daily_scores(label, prob, day)
            numbers[f"{method} {action} auc"] = metrics.gauc(label, prob, day)  # within each day
            numbers[f"{method} {action} variance"] = daily.variance
            numbers[f"{method} {action} distance"] = daily.distance
            numbers[f"{method} {action} score"] = float(daily.mean_prob.mean() / daily.mean_label.mean())
            numbers |= {f"{method} {action} {tail}": one for tail, one in _swings(prob, day).items()}
            numbers["daily"] += [
                {"task": action, "line": line, "day": int(at), "mean": round(float(value), 5)}
                for line, column in ((method, daily.mean_prob), ("labels", daily.mean_label))
                for at, value in zip(daily.day, column, strict=True)
                if line != "labels" or method == "baseline"
            ]
    return numbers


def _swings(prob: NDArray[np.float64], day: NDArray[Any]) -> dict[str, float]:
    # variance over days of quantiles of the day's scores
    daily = [np.quantile(prob[day == one], list(TAILS.values())) for one in np.unique(day)]
    return dict(zip(TAILS, np.var(daily, axis=0, ddof=1).tolist(), strict=True))


def summarise(finished: Sequence[Finished]) -> Result:
    """The paper's table, and the variance and distance of the daily mean, against the baseline of the same seed."""
    rows = []
    for setting in SETTINGS:
        for method in METHODS[1:]:
            for action in ACTIONS:
                paper = TABLE[action] if setting == "sparse" and method == LAYER else ""
                ours = estimate(_change(finished, method, action, "auc", setting))
                rows.append(Row(f"{setting}: {method}, {action}", "delta AUC", ours, paper, 2, "%"))
        for method in METHODS:
            for action in ACTIONS:
                for key, (name, scale) in DAILY.items():
                    ours = estimate(scale * by_seed(finished, setting, f"{method} {action} {key}"))
                    rows.append(Row(f"{setting}: {method}, {action}", name, ours))
    rows += [
        Row(f"sparse: {method}, {tail}", "variance over days over that of the middle", _tail(finished, method, tail))
        for method in METHODS
        for tail in ("upper tail", "lower tail")
    ]
    drawn = next(one.numbers["daily"] for one in finished if one.unit.setting == "sparse")
    return Result(tuple(rows), _parts(finished), {"rows": drawn}, _note(finished))


def _change(
    finished: Sequence[Finished],
    method: str,
    action: str,
    key: str,
    setting: str = "sparse",
    against: str = "baseline",
) -> Any:
    # percent against the baseline of the same seed, [seeds]
    ours, base = (by_seed(finished, setting, f"{name} {action} {key}") for name in (method, against))
    return 100 * (ours / base - 1)


def _mean_change(
    finished: Sequence[Finished], method: str, key: str, setting: str = "sparse", against: str = "baseline"
) -> Estimate:
    # the same, averaged over the actions on the log scale, so that doubling and halving cancel
    logs = [np.log1p(_change(finished, method, action, key, setting, against) / 100) for action in ACTIONS]
    return estimate(100 * np.expm1(np.mean(logs, axis=0)))


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:
    says = {"variance": "varies less", "distance": "is nearer to the label mean"}
    rivals = {SAME_ROWS: "a baseline with the same rows", CORRECTED: "a corrected baseline with the same rows"}
    return (
        Part("Share AUC rises with the layer", estimate(_change(finished, LAYER, "share", "auc")), above=0, unit="%"),
        Part(
            "Comment AUC rises with the layer", estimate(_change(finished, LAYER, "comment", "auc")), above=0, unit="%"
        ),
        Part(
            "Like AUC is kept (within 0.5%)",
            estimate(_change(finished, LAYER, "like", "auc")),
            above=-0.5,
            below=0.5,
            unit="%",
        ),
        Part(
            "Share and Comment gain more AUC by the layer where labels are sparse than where they are ample",
            estimate(_mean_of(finished, ("share", "comment")) - _mean_of(finished, ("share", "comment"), "ample")),
            above=0,
            unit="%",
        ),
        *(
            Part(f"the daily mean score {words}", _mean_change(finished, LAYER, key), below=0, unit="%")
            for key, words in says.items()
        ),
        *(
            Part(
                f"the daily mean {words} than that of {rival}",
                _mean_change(finished, LAYER, key, against=against),
                below=0,
                unit="%",
            )
            for against, rival in rivals.items()
            for key, words in says.items()
        ),
        Part(
            "Share and Comment rank better with the layer than with a baseline that has the same rows",
            estimate(_mean_of(finished, ("share", "comment"), against=SAME_ROWS)),
            above=0,
            unit="%",
        ),
        *(
            Part(
                f"scores of the baseline vary more over days in the {tail} than in the middle (ratio of variances)",
                _tail(finished, "baseline", tail),
                above=1,
            )
            for tail in ("upper tail", "lower tail")
        ),
    )


def _tail(finished: Sequence[Finished], method: str, tail: str) -> Estimate:
    # variance over days of a tail's quantile over that of the median, mean over actions on the log scale
    tails, middles = (
        [by_seed(finished, "sparse", f"{method} {action} {key}") for action in ACTIONS] for key in (tail, "middle")
    )
    logs = estimate(np.mean(np.log(np.array(tails) / np.array(middles)), axis=0))
    return Estimate(math.exp(logs.value), math.exp(logs.lower), math.exp(logs.upper), logs.seeds)


def _mean_of(
    finished: Sequence[Finished], actions: Sequence[str], setting: str = "sparse", against: str = "baseline"
) -> NDArray[np.float64]:
    # the layer's change of AUC in percent, mean over actions, [seeds]
    changes = [_change(finished, LAYER, action, "auc", setting, against) for action in actions]
    return np.asarray(np.mean(changes, axis=0))


def _note(finished: Sequence[Finished]) -> str:
    def gains(method: str, setting: str = "sparse") -> str:
        changes = {action: estimate(_change(finished, method, action, "auc", setting)).value for action in ACTIONS}
        return ", ".join(f"{action} {change:+.1f}%" for action, change in changes.items())

    return (
        "A monotone map cannot change the order of items within a platform, so it can only rank better across "
        f"platforms: AUC changed by {gains(LAYER)}, and by {gains(LAYER, 'platform given')} where the model is "
        f"given the platform. A baseline with the same randomised rows changed it by {gains(SAME_ROWS)}, and the layer "
        f"over a model of the actions by {gains(OVER_ENGAGEMENT)}. With ample labels the layer's changes were "
        f"{gains(LAYER, 'ample')}."
    )


def chart(series: dict[str, Any]) -> Any:
    """The daily mean score of every method beside the label mean, one panel per task."""
    alt = need("altair")
    order = [*METHODS, "labels"]
    colours = alt.Scale(
        domain=order, range=["#9aa0ac", "#2457c5", "#39a0ed", "#b04a8f", "#d98cbf", "#f0a30a", "#111111"]
    )
    line = (
        alt.Chart(alt.Data(values=series["rows"]))
        .mark_line(point=True)
        .encode(
            x=alt.X("day:O", title="day", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("mean:Q", title="daily mean", scale=alt.Scale(zero=False)),
            color=alt.Color("line:N", title=None, scale=colours, sort=order),
            strokeDash=alt.condition("datum.line == 'labels'", alt.value([4, 3]), alt.value([1, 0])),
        )
        .properties(width=260, height=220)
    )
    return line.facet(alt.Facet("task:N", title=None, sort=list(ACTIONS))).resolve_scale(y="independent")
