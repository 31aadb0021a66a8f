"""Table 1 and the stability figure: the chance of a downstream session after a like, share or comment.

Every day the models are learned anew and judged on the next, once where labels are rare (``sparse``: one day of some
150 positives a task) and once where they are not (``ample``: three larger days):

    baseline               shared layers and a tower a task, platform among the features
    isotonic layer         the baseline, frozen, then a curve per task and platform, learned on randomised sessions
    exact curves           the same, with the curves found by the exact solver
    layer over engagement  a model of the actions themselves, whose labels are many, frozen, then such curves
    baseline, same rows    the baseline, given the randomised sessions as well, for as many steps

The paper's first phase trains "the primary downstream model ... on engagement data", which can be read as either of the
first and the fourth; so both are shown. The second and third cannot reorder the items of a platform. The last tells
what the curves add beyond the rows they are learned from, which the paper's baseline does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.debias.loss import stacked_labels, weighted_bce
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
SEEDS = 8
ACTIONS = ("like", "share", "comment")
AFTER = {f"downstream_{action}": action for action in ACTIONS}
TABLE = {"like": "+0.0%", "share": "+1.5%", "comment": "+1.9%"}
DAILY = {
    "score": ("mean score over mean label", 1.0),
    "distance": ("daily distance to the label mean, x100", 100.0),
    "variance": ("variance of the daily mean, x1e4", 1e4),
}
SAME_ROWS = "baseline, same rows"
METHODS = ("baseline", "isotonic layer", "exact curves", "layer over engagement", SAME_ROWS)
RANDOM_WINDOW, RANDOM_SESSIONS = 14, 2_000  # days and daily number of the randomised sessions that curves learn from
NEGATIVES = 0.05  # share of the impressions without an action that the engagement model sees

Columns = dict[str, NDArray[Any]]


class Setting(NamedTuple):
    """How much the models learn from every day."""

    sessions: int  # a day
    window: int  # days
    epochs: int  # of the downstream model


SETTINGS = {"sparse": Setting(8_000, 1, 60), "ample": Setting(20_000, 3, 8)}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """All methods see the same days, rare labels and ample ones."""
    costs = {"sparse": 10, "ample": 15} if quick else {"sparse": 25, "ample": 50}
    return units_of(list(SETTINGS), quick=quick, seeds=seeds or SEEDS, cost=costs.__getitem__)


class Towers(nn.Module):
    """Shared layers and a small tower a task: a logit each.

    >>> Towers(5, ("a", "b"))(torch.zeros(2, 5), {}).shape
    torch.Size([2, 2])
    """

    def __init__(self, inputs: int, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks, self.shared = tuple(tasks), network(inputs)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in self.tasks
        )

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[batch, tasks]``; the context is not read."""
        shared = self.shared(features)
        return torch.cat([tower(shared) for tower in self.towers], dim=1)

    def loss(self, outputs: Tensor, labels: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None) -> Tensor:
        """Log loss summed over tasks, each over the rows that have a label."""
        label, weight = stacked_labels(self.tasks, labels, mask, None, outputs)
        return weighted_bce(outputs, label, weight).sum()


class FrozenWithCurves(nn.Module):
    """A curve per task and platform over logits that are given as features ``[batch, tasks]``."""

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        self.curves = ContextIsotonicLayer({"platform": 3}, units=len(self.tasks), extrapolation="extend")

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Calibrated logits ``[batch, tasks]``."""
        return self.curves(features, context)  # type: ignore[no-any-return]

    loss = Towers.loss


def run_unit(unit: Unit) -> Numbers:
    """Retrain every day, predict the next; daily means and AUC of every method and task."""
    setting, days = SETTINGS[unit.setting], 4 if unit.quick else 14
    total = RANDOM_WINDOW + days
    world = Feed(
        population=Population(seed=unit.seed),
        tasks=tuple(task for task in TASKS if task.name in ACTIONS) + DOWNSTREAM,
        days=total,
        drift=Drift(relevance=0.01),
    )
    randomised = Feed(
        population=world.population, logger=Logger(0, 0, noise=1.0), tasks=world.tasks, days=total, drift=world.drift
    )
    logged = collected(world, setting.sessions * total, seed=2 * unit.seed)
    mixed = collected(randomised, RANDOM_SESSIONS * total, seed=2 * unit.seed + 1)
    found: dict[str, list[NDArray[np.float64]]] = {method: [] for method in METHODS}
    tests = []
    for day in range(RANDOM_WINDOW, total):
        test = chosen(logged, (logged["day"] == day) & acted(logged))
        past = chosen(logged, (logged["day"] >= day - setting.window) & (logged["day"] < day))
        random = chosen(mixed, (mixed["day"] < day) & (mixed["day"] >= day - RANDOM_WINDOW) & acted(mixed))
        probs = predicted(past, random, test, epochs=setting.epochs, seed=day)
        tests.append(test)
        for method, column in probs.items():
            found[method].append(column)
    test = {name: np.concatenate([one[name] for one in tests]) for name in tests[0]}
    return _judged({method: np.concatenate(columns) for method, columns in found.items()}, test)


def collected(world: Feed, sessions: int, seed: int) -> Columns:
    """Rows of a log that had an action, and some of the others; platform joins the features as three columns."""
    rng, names = np.random.default_rng(seed), ("features", "platform", "day", *ACTIONS, *AFTER)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for chunk in world.batches(sessions, seed):
        kept = acted(chunk) | (rng.random(len(chunk["day"])) < NEGATIVES)
        for name in names:
            parts[name].append(chunk[name][kept])
    columns = {name: np.concatenate(part) for name, part in parts.items()}
    columns["features"] = np.hstack([columns["features"], np.eye(3, dtype=np.float32)[columns["platform"]]])
    return columns


def acted(columns: Columns) -> NDArray[np.bool_]:
    """Whether a row had any action, ``[n]``."""
    return np.asarray(np.any([columns[action] == 1 for action in ACTIONS], axis=0))


def chosen(columns: Columns, kept: NDArray[np.bool_]) -> Columns:
    """The rows that are kept."""
    return {name: column[kept] for name, column in columns.items()}


def predicted(
    past: Columns, mixed: Columns, test: Columns, *, epochs: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Probabilities of every method for the rows of a day, ``[n, tasks]``, learned from the days before it."""
    torch.manual_seed(seed)
    inputs = past["features"].shape[1]
    own = chosen(past, acted(past))
    base = train(Towers(inputs, tuple(AFTER)), _log(own), epochs=epochs, seed=seed)
    both = {name: np.concatenate([own[name], mixed[name]]) for name in own}
    fewer = max(1, round(epochs * len(own["day"]) / len(both["day"])))
    torch.manual_seed(seed)
    richer = train(Towers(inputs, tuple(AFTER)), _log(both), epochs=fewer, seed=seed)
    actions = train(Towers(inputs, ACTIONS), as_log(past, ACTIONS, contexts=()), epochs=3, seed=seed)
    (fitted, asked), (fitted_action, asked_action) = (
        [model(torch.from_numpy(rows["features"]), {}).detach() for rows in (mixed, test)] for model in (base, actions)
    )
    return {
        "baseline": prob_of(asked.double().numpy()),
        "isotonic layer": _layered(fitted, asked, mixed, test, seed),
        "exact curves": _exact(fitted, asked, mixed, test),
        "layer over engagement": _layered(fitted_action, asked_action, mixed, test, seed),
        SAME_ROWS: prob_of(richer(torch.from_numpy(test["features"]), {}).detach().double().numpy()),
    }


def _log(columns: Columns) -> Log:
    return as_log(columns, tuple(AFTER), contexts=("platform",), after=AFTER)


def _layered(fitted: Tensor, asked: Tensor, mixed: Columns, test: Columns, seed: int) -> NDArray[np.float64]:
    # curves by gradient over frozen logits [n, tasks] of the randomised rows, for those of the test
    model = train(FrozenWithCurves(tuple(AFTER)), _log(mixed)._replace(features=fitted), epochs=15, seed=seed)
    with torch.no_grad():
        return prob_of(model(asked, _log(test).context).double().numpy())


def _exact(fitted: Tensor, asked: Tensor, mixed: Columns, test: Columns) -> NDArray[np.float64]:
    columns = []
    for number, (task, action) in enumerate(AFTER.items()):
        kept = mixed[action] == 1
        frame = {"score": fitted[:, number].double().numpy()[kept], "platform": mixed["platform"][kept]}
        calibrator = IsotonicCalibrator(("platform",)).fit(frame, mixed[task][kept])
        asked_frame = {"score": asked[:, number].double().numpy(), "platform": test["platform"]}
        columns.append(calibrator.predict_proba(asked_frame)[:, 1])
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
            numbers["daily"] += [
                {"task": action, "line": line, "day": int(at), "mean": round(float(value), 5)}
                for line, column in ((method, daily.mean_prob), ("labels", daily.mean_label))
                for at, value in zip(daily.day, column, strict=True)
                if line != "labels" or method == "baseline"
            ]
    return numbers


def summarise(finished: Sequence[Finished]) -> Result:
    """The paper's table, and the variance and distance of the daily mean, against the baseline of the same seed."""
    rows = []
    for setting in SETTINGS:
        for method in METHODS[1:]:
            for action in ACTIONS:
                paper = TABLE[action] if setting == "sparse" and method == "isotonic layer" else ""
                ours = estimate(_change(finished, method, action, "auc", setting))
                rows.append(Row(f"{setting}: {method}, {action}", "delta AUC", ours, paper, 2, "%"))
        for method in METHODS:
            for action in ACTIONS:
                for key, (name, scale) in DAILY.items():
                    ours = estimate(scale * by_seed(finished, setting, f"{method} {action} {key}"))
                    rows.append(Row(f"{setting}: {method}, {action}", name, ours))
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
    layer = "isotonic layer"
    return (
        Part("Share AUC rises with the layer", estimate(_change(finished, layer, "share", "auc")), above=0),
        Part("Comment AUC rises with the layer", estimate(_change(finished, layer, "comment", "auc")), above=0),
        Part("Like AUC is kept (above -0.5%)", estimate(_change(finished, layer, "like", "auc")), above=-0.5),
        Part("the daily mean score varies less", _mean_change(finished, layer, "variance"), below=0),
        Part("the daily mean score is nearer to the label mean", _mean_change(finished, layer, "distance"), below=0),
        *(
            Part(
                f"the layer's daily mean {says} than that of a baseline given the same rows",
                _mean_change(finished, layer, key, against=SAME_ROWS),
                below=0,
            )
            for key, says in (("variance", "varies less"), ("distance", "is nearer to the label mean"))
        ),
    )


def _note(finished: Sequence[Finished]) -> str:
    gains = {
        method: ", ".join(
            f"{action} {estimate(_change(finished, method, action, 'auc')).value:+.1f}%" for action in ACTIONS
        )
        for method in ("isotonic layer", "layer over engagement")
    }
    ample = {key: _mean_change(finished, "isotonic layer", key, "ample").value for key in ("variance", "distance")}
    return (
        f"A monotone map cannot reorder the items of a platform: AUC changed by {gains['isotonic layer']}. Over a "
        f"model of the actions, whose labels are many, it changed by {gains['layer over engagement']}. "
        f"With ample labels the layer changes the variance of the daily mean by {ample['variance']:+.0f}% and its "
        f"distance to the label mean by {ample['distance']:+.0f}%."
    )


def chart(series: dict[str, Any]) -> Any:
    """The daily mean score of every method beside the label mean, a panel a task."""
    alt = need("altair")
    order = [*METHODS, "labels"]
    colours = alt.Scale(domain=order, range=["#9aa0ac", "#2457c5", "#39a0ed", "#f0a30a", "#b04a8f", "#111111"])
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
