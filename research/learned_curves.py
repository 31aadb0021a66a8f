"""Appendix B: the curves a trained dual head holds, by task and position and by platform and position, and the truth.

The simulator's users distort relevance by a monotone curve of its own for every task, position and platform
(``distortion``), or look down the list at a rate that differs by platform (``position``). The paper could only show
learned curves; here the true ones stand beside them. Both are measured from the reference context, position 0 on
device 0: what is the chance elsewhere of an item whose chance is x there? The simulator's device (phone, desktop or
tablet) stands for the paper's platform.

That Click falls with depth, Skip rises and devices differ is drawn into the world; what is tested is whether the head
learns it. Whether Skip depends less on position than Click, as the caption of figure 5 says, is judged in neither
world. Under ``distortion`` every item is seen, and the same fall of the logit is drawn for both tasks. Under
``position`` users look down the list and skip what they do not see: an item that is seen with chance e is clicked with
chance e a and skipped with chance 1 - e (1 - r), so that Skip moves (1 - r) / a times as far as Click. That is farther
wherever r + a is below 1, as it is at the base rates here. The figures are rows of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.debias.heads import DualHead
from isolayer.errors import need
from isolayer.simulate import GRADE_SHARES, TASKS, Distortion, Feed, Logger, Population, PositionBased
from isolayer.simulate.behaviours import Behaviour, Shown, strengths
from isolayer.simulate.feed import DEVICES, PLATFORM_LOGIT
from research.loop import WIDTH, as_log, network, train
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of

Floats = NDArray[np.float64]

CLAIM = (
    "Curves differ by task and position (Click falls with depth, Skip goes the other way), and position and platform "
    "interact in a way that no sum of corrections can represent; the layer learns them all from the log."
)
PAPER = "appendix B, figures 5 and 6: Click and Skip at positions 0, 1, 2, 6, 10; Click on three platforms at 0 and 1"
SEEDS = 6
POSITIONS = (0, 1, 2, 6, 10)
CONTEXTS = {"position": 11, "device": len(DEVICES)}
LABELS = ("click", "skip")
PLATFORMS = ("iOS", "Android", "Web")  # how units name devices 0, 1 and 2
DEVICE = dict(zip(PLATFORMS, ("phone", "desktop", "tablet"), strict=True))  # what these are in the simulator
_NODES = np.array([NormalDist().inv_cdf((i + 0.5) / 200) for i in range(200)])  # of what the features lack
_VISIBLE = np.linspace(-5, 5, 101)


@dataclass(frozen=True)
class Setting:
    """How users act in the world of a seed, and whether every combination of position and platform has a curve."""

    behaviour: Callable[[int], Behaviour]
    mode: Literal["sum", "cross"]


def _distortion(seed: int) -> Behaviour:
    return Distortion(seed=seed)


def _position(seed: int) -> Behaviour:
    return PositionBased(eta=(1.0, 0.6, 1.4))


SETTINGS = {
    "distortion, crossed": Setting(_distortion, "cross"),
    "distortion, added": Setting(_distortion, "sum"),
    "position, crossed": Setting(_position, "cross"),
}
MAIN, ADDED, SEEN = "distortion, crossed", "distortion, added", "position, crossed"
DEEPEST = max(POSITIONS)


NOTE = (
    "The world is drawn so that Click falls, Skip rises and devices differ; whether the head learns it is what is "
    "tested. Where users skip what they do not see, an item that is seen with chance e is clicked with chance e a and "
    "skipped with chance 1 - e (1 - r), so that Skip moves (1 - r) / a times as far as Click. At the base rates here, "
    "where r + a is below 1, that is farther, in chances and in logits. So that Skip depends more on position follows "
    "from the design; its figures are rows and no parts, since the outcome is no evidence about the paper's users."
)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every behaviour and mode under every seed."""
    return units_of(list(SETTINGS), quick=quick, seeds=seeds or SEEDS, cost=5 if quick else 25)


def run_unit(unit: Unit) -> Numbers:
    """Train a dual head; its curves against the true ones, over the scores that occur."""
    setting, sessions = SETTINGS[unit.setting], 12_000 if unit.quick else 60_000
    world = Feed(
        population=Population(seed=unit.seed),
        logger=Logger(relevance=0.3, spurious=0.7, temperature=0.3),
        behaviour=setting.behaviour(unit.seed),
        tasks=tuple(task for task in TASKS if task.name in LABELS),
        positions=CONTEXTS["position"],
    )
    torch.manual_seed(unit.seed)
    model = DualHead(
        network(world.population.features),
        width=WIDTH,
        tasks=LABELS,
        decreasing=("skip",),
        contexts=CONTEXTS,
        anchor="detached",
        mode=setting.mode,
        reference={"position": 0, "device": 0},
    )
    train(model, as_log(world.log(sessions, seed=2 * unit.seed + 1), LABELS), seed=unit.seed)
    features = torch.from_numpy(world.log(5_000, seed=2 * unit.seed)["features"])
    with torch.no_grad():
        event = model.relevance(model.backbone(features)) * model.sign  # [rows, tasks]
    at = np.quantile(event.double().numpy(), np.linspace(0.005, 0.995, 100), axis=0)  # [points, tasks]
    return _compared(model, true_probs(world), {task: at[:, i] for i, task in enumerate(LABELS)})


def true_probs(world: Feed) -> dict[str, Floats]:
    """Chance of each task by visible relevance, platform and position, ``[points, platforms, positions]``.

    What the features lack is averaged over, as any model of the features must: hidden relevance and operating system.

    >>> probs = true_probs(Feed(behaviour=PositionBased(), tasks=TASKS[:1], positions=3))
    >>> (probs["click"][50, 0] / probs["click"][50, 0, 0]).round(3).tolist()
    [1.0, 0.897, 0.706]
    """
    hidden = world.population.hidden
    latent = (math.sqrt(1 - hidden**2) * _VISIBLE[:, None] + hidden * _NODES).ravel()  # [points * nodes]
    curves = world.behaviour.curve(world.positions, strengths(world.behaviour, len(DEVICES)))
    probs: dict[str, list[Floats]] = {task: [] for task in world.task_names}
    for device in range(len(DEVICES)):
        shifts = [PLATFORM_LOGIT[2]] if device == 1 else list(PLATFORM_LOGIT[:2])
        for task in world.task_names:
            shown = [_acted(world, latent, curves[device], device, shift)[task] for shift in shifts]
            by_node = np.mean(shown, axis=0, dtype=np.float64).reshape(len(_VISIBLE), len(_NODES), world.positions)
            probs[task].append(by_node.mean(1))
    return {task: np.stack(columns, axis=1) for task, columns in probs.items()}


def _acted(world: Feed, latent: Floats, curve: Floats, device: int, shift: float) -> dict[str, Any]:
    # Chances of items of this latent relevance at every position, [items, positions], as the behaviour itself has them.
    shape = (len(latent), world.positions)

    def everywhere(column: Any, kind: Any = np.float32) -> Any:
        return np.broadcast_to(np.asarray(column, kind).reshape(-1, 1), shape)

    cuts = [NormalDist().inv_cdf(share) for share in np.cumsum(GRADE_SHARES)[:-1]]
    relevance = {
        task.name: everywhere(
            prob_of(math.log(task.rate / (1 - task.rate)) + task.slope * math.sqrt(1 - task.own**2) * latent + shift)
        )
        for task in world.tasks
    }
    nothing = np.zeros(shape, np.float32)
    shown = Shown(
        everywhere(np.searchsorted(cuts, latent), np.int8),
        np.broadcast_to(curve.astype(np.float32), shape),
        np.full(len(latent), device, np.int32),
        relevance,
        nothing,
        dict.fromkeys(world.task_names, nothing),
    )
    return world.behaviour.act(shown).prob


def _compared(model: DualHead, truth: dict[str, Floats], at: dict[str, Floats]) -> Numbers:
    curves, drawn = model.curves(), []
    numbers: Numbers = {}
    for task, x in at.items():
        true = logit_of(truth[task])  # [points, platforms, positions]
        start = np.argsort(true[:, 0, 0])
        off, raw = [], []
        for position, device in np.ndindex(CONTEXTS["position"], CONTEXTS["device"]):
            context = {"task": [task] * len(x), "position": [position] * len(x), "device": [device] * len(x)}
            learned = curves.predict_proba(x, context)
            target = prob_of(np.interp(x, true[start, 0, 0], true[start, device, position]))
            if (position, device) != (0, 0):
                off.append(np.abs(learned - target).mean())
                raw.append(np.abs(prob_of(x) - target).mean())
            numbers[f"{task} {position} {device}"] = float(learned.mean())
            if position in POSITIONS:
                key = {"task": task, "position": position, "platform": PLATFORMS[device]}
                drawn += [
                    {**key, "x": round(float(a), 5), "learned": round(float(b), 5), "true": round(float(c), 5)}
                    for a, b, c in zip(prob_of(x)[::4], learned[::4], target[::4], strict=True)
                ]
        numbers |= {f"{task} error": float(np.mean(off)), f"{task} identity error": float(np.mean(raw))}
    return {**numbers, "drawn": drawn}


def summarise(finished: Sequence[Finished]) -> Result:
    """Distance of learned from true curves, and what the curves say of tasks, positions and platforms."""
    rows = []
    for setting in SETTINGS:
        for task in LABELS:
            for key, name in (("error", "learned curves"), ("identity error", "no curves")):
                ours = estimate(by_seed(finished, setting, f"{task} {key}"))
                rows.append(Row(f"{setting}, {task}", f"mean abs distance of {name} from the true", ours, digits=4))
    where = DEVICE[PLATFORMS[0]]
    for setting in (MAIN, SEEN):
        for task in LABELS:
            for position in POSITIONS:
                ours = estimate(by_seed(finished, setting, f"{task} {position} 0"))
                rows.append(Row(f"{setting}, {task}", f"mean of the curve at position {position}, {where}", ours))
            for scale, change in _CHANGES.items():
                ours = estimate(np.abs(change(finished, setting, task)))
                rows.append(Row(f"{setting}, {task}", f"{_CHANGE}, {where}{scale}", ours))
    for scale, change in _CHANGES.items():
        click, skip = (np.abs(change(finished, SEEN, task)) for task in LABELS)
        rows.append(Row(f"{SEEN}, Click minus Skip", f"{_CHANGE}, {where}{scale}", estimate(click - skip)))
    drawn = next(one.numbers["drawn"] for one in finished if one.unit.setting == MAIN)
    kept = ("task", "position", "x", "learned", "true")
    named = [{"device": DEVICE[row["platform"]], **{key: row[key] for key in kept}} for row in drawn]
    return Result(tuple(rows), _parts(finished), {"rows": named}, NOTE)


def _fall(finished: Sequence[Finished], setting: str, task: str) -> Floats:
    # of the mean curve from position 0 to the deepest, [seeds]
    return by_seed(finished, setting, f"{task} 0 0") - by_seed(finished, setting, f"{task} {DEEPEST} 0")


def _logit_fall(finished: Sequence[Finished], setting: str, task: str) -> Floats:
    top, deep = (by_seed(finished, setting, f"{task} {position} 0") for position in (0, DEEPEST))
    return logit_of(top) - logit_of(deep)


_CHANGE = f"change from position 0 to {DEEPEST}"
_CHANGES = {"": _fall, ", in logits of the means": _logit_fall}


def _parts(finished: Sequence[Finished]) -> tuple[Part, ...]:

    def gap(device: int) -> Any:  # between positions 0 and 1, in percent of the curve at 0
        top, next_ = (by_seed(finished, MAIN, f"click {position} {device}") for position in (0, 1))
        return 100 * (1 - next_ / top)

    gaps = np.stack([gap(device) for device in range(len(PLATFORMS))])
    parts = [
        Part(f"Click falls from position 0 to {DEEPEST}", estimate(_fall(finished, MAIN, "click")), above=0),
        Part(f"Skip rises from position 0 to {DEEPEST}", estimate(_fall(finished, MAIN, "skip")), below=0),
        Part("the gap from position 0 to 1 differs by device (over 5 points)", estimate(np.ptp(gaps, axis=0)), above=5),
    ]
    for task in LABELS:
        error = by_seed(finished, MAIN, f"{task} error")
        parts += [
            Part(
                f"curves of every combination are nearer to the true ones than sums for {task}",
                estimate(by_seed(finished, ADDED, f"{task} error") - error),
                above=0,
            ),
            Part(
                f"learned curves take away over half of the {task} bias",
                estimate(error / by_seed(finished, MAIN, f"{task} identity error")),
                below=0.5,
            ),
        ]
    return tuple(parts)


def chart(series: dict[str, Any]) -> Any:
    """Learned curves (solid) and true ones (dashed): by task and position on one platform, then Click by platform."""
    alt = need("altair")
    lines = [
        {**{key: row[key] for key in ("task", "position", "device", "x")}, "y": row[curve], "curve": curve}
        for row in series["rows"]
        for curve in ("learned", "true")
    ]
    by_task = [line for line in lines if line["device"] == DEVICE[PLATFORMS[0]]]
    by_platform = [line for line in lines if line["task"] == "click" and line["position"] in (0, 1)]
    dash = alt.StrokeDash("curve:N", title=None, sort=["learned", "true"])

    def panel(rows: list[dict[str, Any]], colour: str, column: str) -> Any:
        return (
            alt.Chart(alt.Data(values=rows))
            .mark_line()
            .encode(
                x=alt.X("x:Q", title="chance at the reference"),
                y=alt.Y("y:Q", title="chance in the context"),
                color=alt.Color(colour, scale=alt.Scale(scheme="viridis" if column == "task" else "tableau10")),
                strokeDash=dash,
            )
            .properties(width=260, height=220)
            .facet(alt.Facet(f"{column}:N", title=column if column == "position" else None, sort="ascending"))
            .resolve_scale(x="independent", y="independent")
        )

    return alt.vconcat(panel(by_task, "position:O", "task"), panel(by_platform, "device:N", "position")).resolve_scale(
        color="independent"
    )
