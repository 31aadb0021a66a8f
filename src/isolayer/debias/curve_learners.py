r"""Bias curves for a model that cannot learn them itself, such as boosted trees: learned first, then frozen.

    network_relevance    a small `DualHead` over the same features
    out_of_fold_curves   trees and intercepts per context, grown together in folds; then curves, fitted exactly
    centred              the same curves on a shifted grid, such that the average item has relevance 0

If a booster refits its curves on its own rows, the fit diverges: the curves steepen and relevance collapses, because
both explain the same noise. So the curves come from another model, or from rows that the trees have not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.debias.boosters import ENGINES, Engine, Floats, Objective, Trees
from isolayer.debias.heads import DualHead
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid, Spread
from isolayer.nn.rates import parameter_groups

Ids = NDArray[np.int64]
TASK = "click"
_RATE = 1e-2
_SMALLEST, _BATCH, _BATCHES = 50, 1000, 40  # rows per batch, fewer if a pass would have fewer batches than this
_LEAST_PASSES, _MOST_PASSES, _LEAST_STEPS = 5, 12, 500
_FOLDS = 3
_CHUNK = 10  # trees between two updates of the intercepts
_NEWTON_STEPS = 4
_BISECTIONS = 60


def network_relevance(
    features: Floats, label: Floats, context: Mapping[str, Ids], contexts: Mapping[str, int], weight: Floats, seed: int
) -> tuple[Curves, Floats]:
    """The curves of a `DualHead` with two small layers over standardised features, and its relevance logits ``[n]``."""
    x = torch.from_numpy((features - features.mean(0)) / np.maximum(features.std(0), 1e-9)).float().clamp(-5, 5)
    ids = {name: torch.from_numpy(column) for name, column in context.items()}
    y, w = torch.from_numpy(label).float(), torch.from_numpy(weight).float()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        settings: dict[str, Any] = {"alpha": 0.0, "beta": 1.0, "reference": _middle(context)}
        model = DualHead(backbone, width=32, tasks=(TASK,), contexts=contexts, **settings)
        groups = parameter_groups(model, _RATE)
        optimiser = torch.optim.Adam(groups, fused=True)
        passes, batch = passes_over(len(x)), batch_of(len(x))
        steps = passes * -(-len(x) // batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, [group["lr"] for group in groups], total_steps=max(steps, 2), pct_start=0.1
        )
        for _ in range(passes):
            for rows in torch.randperm(len(x)).split(batch):
                outputs = model(x[rows], {name: column[rows] for name, column in ids.items()})
                loss = model.loss(outputs, {TASK: y[rows]}, weight=w[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
        with torch.no_grad():
            relevance = model.relevance(model.backbone(x))[:, 0].double().numpy()
    return model.curves(), relevance


def passes_over(rows: int) -> int:
    """How often the network sees a log: more often if it is short, since after few steps curves are still too alike.

    >>> [passes_over(rows) for rows in (1_000, 40_000, 60_000, 150_000)]
    [12, 12, 9, 5]
    """
    return min(_MOST_PASSES, max(_LEAST_PASSES, -(-_LEAST_STEPS * _BATCH // rows)))


def batch_of(rows: int) -> int:
    """Rows per batch: fewer if the log is short, since more passes would learn its noise, and fewer steps nothing.

    >>> [batch_of(rows) for rows in (200, 3_000, 10_000, 40_000, 1_000_000)]
    [50, 75, 250, 1000, 1000]
    """
    return min(_BATCH, max(_SMALLEST, rows // _BATCHES))


def _middle(context: Mapping[str, Ids]) -> dict[str, int]:
    """The middle one of the ids that occur, of each feature: from others, nothing would tie relevance to a scale.

    >>> _middle({"position": np.array([7, 0, 0, 2, 9])})
    {'position': 2}
    """
    occurring = {name: np.unique(ids) for name, ids in context.items()}
    return {name: int(ids[(len(ids) - 1) // 2]) for name, ids in occurring.items()}


def out_of_fold_curves(
    features: Floats, label: Floats, context: Mapping[str, Ids], weight: Floats, lists: Ids, engine: str, trees: Trees
) -> Curves:
    """Curves fitted exactly over the relevance that trees give to rows of other folds, intercepts taken out of it."""
    fold = np.random.default_rng(trees.seed).integers(0, _FOLDS, int(lists.max()) + 1)[lists]
    intercepts = {name: np.zeros(int(ids.max()) + 1) for name, ids in context.items()}
    grown: list[Engine] = [ENGINES[engine](features[fold != one], trees) for one in range(_FOLDS)]
    start = float(np.log(np.average(label, weights=weight)) - np.log1p(-np.average(label, weights=weight)))
    relevance = np.full(len(label), start)
    for _ in range(0, trees.rounds, _CHUNK):
        _update(intercepts, relevance, label, context, weight)
        offset = start + _total(intercepts, context)
        for one, engine_ in enumerate(grown):
            rows = fold != one
            engine_.grow(additive(offset[rows], label[rows], weight[rows]), min(_CHUNK, trees.rounds))
            relevance[~rows] = start + engine_.raw(features[~rows])
    grid = Grid.covering(Spread.of(relevance, weight))
    return Curves.from_histogram(Histogram.from_arrays(relevance, label, dict(context), weight, grid=grid))


def additive(offset: Floats, label: Floats, weight: Floats) -> Objective:
    """The log loss of trees plus a fixed offset per row."""

    def objective(raw: Floats) -> tuple[Floats, Floats]:
        prob = prob_of(raw + offset)
        return weight * (prob - label), weight * prob * (1 - prob)

    return objective


def _total(intercepts: Mapping[str, Floats], context: Mapping[str, Ids]) -> Floats:
    return np.asarray(sum(intercepts[name][ids] for name, ids in context.items()))


def _update(
    intercepts: dict[str, Floats], relevance: Floats, label: Floats, context: Mapping[str, Ids], weight: Floats
) -> None:
    """A few Newton steps on the intercepts, feature by feature, each at most 1, in place; those of id 0 stay zero."""
    for _ in range(_NEWTON_STEPS):
        for name, ids in context.items():
            prob = prob_of(relevance + _total(intercepts, context))
            slope, size = np.bincount(ids, weight * (label - prob)), np.bincount(ids, weight * prob * (1 - prob))
            step = np.clip(slope / (size + 1e-3), -1, 1)
            intercepts[name] = intercepts[name] + step - step[0]


def centred(curves: Curves, rows: Ids, label: Floats, weight: Floats) -> Curves:
    """The same curves over relevance minus the constant that explains the average label, so that boosting starts at 0.

    Args:
        curves: Bias curves.
        rows: Row of their table for each logged row, ``[n]``.
        label: Labels, ``[n]``.
        weight: Weights, ``[n]``.
    """
    used, at = np.unique(rows, return_inverse=True)
    share = np.bincount(at, weight) / weight.sum()
    wanted = float(np.average(label, weights=weight))
    low, high = curves.grid.lower - 10, curves.grid.upper + 10
    for _ in range(_BISECTIONS):  # curves rise, so the expected label crosses the mean label once
        middle = (low + high) / 2
        expected = float(share @ prob_of(curves.evaluate(used, np.full(len(used), middle))))
        low, high = (middle, high) if expected < wanted else (low, middle)
    grid = Grid(lower=curves.grid.lower - low, upper=curves.grid.upper - low, step=curves.grid.step)
    return replace(curves, grid=grid)
