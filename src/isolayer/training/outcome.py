"""Checks of a model after training: tasks whose directions contradict one another, and effects of contexts.

Both are computed on a sample of the log, with the model as it will be served.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from isolayer.debias.heads import DualHead
from isolayer.training.columns import Batch
from isolayer.training.parquet_batches import ParquetLogs

ROWS = 20_000  # rows of the sample
GROUPS = 8  # row groups it comes from
OPPOSED = -0.2  # correlation of two relevance logits below which one of them has the wrong direction
FALLS = -0.03  # correlation of a label with the relevance of another task below which the label falls with it,
BEYOND_CHANCE = 4.0  # if it is also this many standard errors from zero
MOST_IDS = 200  # most ids of a context feature whose effects are computed


def sample(logs: ParquetLogs, rows: int = ROWS) -> Batch:
    """Some rows of a log, from row groups that are spread over it."""
    places = np.unique(np.linspace(0, len(logs.row_groups) - 1, GROUPS).astype(int))
    some = -(-rows // len(places))
    tables = [logs.read(logs.row_groups[place]) for place in places]
    batches = [logs.columns.batch(table.slice(0, some)) for table in tables if table.num_rows]
    first = batches[0]
    return Batch(
        torch.cat([batch.features for batch in batches]),
        {name: torch.cat([batch.context[name] for batch in batches]) for name in first.context},
        {task: torch.cat([batch.labels[task] for batch in batches]) for task in first.labels},
        {task: torch.cat([_known(batch, task) for batch in batches]) for task in first.labels},
        None,
    )


def _known(batch: Batch, task: str) -> Tensor:
    """Which rows have a label, ``[batch]``."""
    return batch.mask.get(task, torch.ones(len(batch.features), dtype=torch.bool))


@torch.no_grad()
def wrong_directions(model: nn.Module, batch: Batch) -> list[str]:
    """A sentence for each task that falls where the relevance of the main task rises.

    Relevance logits of all tasks rise with relevance, if the tasks that fall with it, and no others, were declared
    decreasing. The main task is click, or else the first, of those that were not declared decreasing if there are some.
    After a short training the relevance of a task may say little yet, so labels are compared with the relevance of
    other tasks as well.

    Args:
        model: A model with ``serving()``.
        batch: Rows to look at.
    """
    tasks = list(getattr(model, "tasks", ()))
    declared = set(getattr(model, "decreasing", ()))
    if len(tasks) < 2 or not hasattr(model, "serving"):
        return []
    possible = [task for task in tasks if task not in declared] or tasks
    main = "click" if "click" in possible else possible[0]
    device = next(model.parameters()).device
    relevance: Mapping[str, Tensor] = model.serving()(batch.features.to(device))  # type: ignore[operator]
    others = ((task, _opposition(main, task, batch, relevance, declared)) for task in tasks if task != main)
    return [_contradiction(task, main, why, declared) for task, why in others if why]


def _opposition(main: str, task: str, batch: Batch, relevance: Mapping[str, Tensor], declared: Collection[str]) -> str:
    """The correlation that says that one task falls where another rises, in words; empty if none does.

    Relevance that is not yet related to its own labels says nothing about other tasks.
    """

    def rises(label: str, score: str) -> float:
        return _label_correlation(batch, label, relevance[score].cpu()) * (-1 if label in declared else 1)

    learned = [one for one in (main, task) if rises(one, one) > 0]
    both = float(torch.corrcoef(torch.stack([relevance[main], relevance[task]]).double())[0, 1])
    if len(learned) == 2 and both < OPPOSED:
        return f"{both:.2f} of their relevance"
    for one in learned:
        other = task if one == main else main
        if rises(other, one) < FALLS:
            return f"{rises(other, one):.2f} of the labels of {other!r} with the relevance of {one!r}"
    return ""


def _label_correlation(batch: Batch, task: str, relevance: Tensor) -> float:
    """Correlation of a task's labels with the relevance of another among rows of the same context; 0 if it is chance.

    Contexts are held fixed, since a task that needs examination is more frequent at the top of a list, and so are
    relevant items.
    """
    known = _known(batch, task)
    values = torch.stack([batch.labels[task][known], relevance[known]], dim=1).double()
    ids = torch.stack([column[known] for column in batch.context.values()] or [torch.zeros(len(values))], dim=1)
    contexts, cell = torch.unique(ids, dim=0, return_inverse=True)
    sums = values.new_zeros(len(contexts), 2).index_add(0, cell, values)
    both = values - (sums / torch.bincount(cell, minlength=len(contexts)).unsqueeze(1))[cell]
    free, squares = len(values) - len(contexts), both.square().sum(0)
    if free < 1 or not (squares > 0).all():
        return 0.0
    correlation = float(both.prod(1).sum() / squares.prod().sqrt())
    return correlation if abs(correlation) * free**0.5 > BEYOND_CHANCE else 0.0


def _contradiction(task: str, main: str, correlation: str, declared: Collection[str]) -> str:
    """What is wrong with the direction of a task.

    >>> _contradiction("skip", "click", "-0.60 of their relevance", ())[:75]
    "task 'skip' falls where 'click' rises (correlation -0.60 of their relevance"
    """
    if main in declared:
        return (
            f"tasks {main!r} and {task!r} were both declared decreasing, but one falls where the other rises "
            f"(correlation {correlation}), so the relevance of one has the wrong sign: declare only one of them"
        )
    if task in declared:
        return (
            f"task {task!r} was declared decreasing, but rises where {main!r} rises (correlation {correlation}), so "
            "its relevance has the wrong sign: do not declare it decreasing"
        )
    return (
        f"task {task!r} falls where {main!r} rises (correlation {correlation}), so its relevance has the wrong sign: "
        "declare it decreasing"
    )


@torch.no_grad()
def context_effects(model: DualHead, batch: Batch) -> dict[str, dict[str, list[float]]]:
    """Mean rate of each task if every row were shown with an id of a context feature, divided by that with id 0.

    Args:
        model: The trained model.
        batch: Rows to average over; their other context features stay as they were.

    Returns:
        ``{task: {feature: [effect of each id]}}``, for features with a few ids.
    """
    training, device = model.training, model.sign.device
    model.eval()
    features = batch.features.to(device)
    context = {name: ids.to(device) for name, ids in batch.context.items()}
    effects: dict[str, dict[str, list[float]]] = {task: {} for task in model.tasks}
    for name, size in model.contexts.items():
        if name not in context or not 0 < size <= MOST_IDS:
            continue
        rates = []  # [ids, tasks]
        for id_ in range(size):
            outputs = model(features, context | {name: torch.full_like(context[name], id_)})
            rates.append([float(torch.sigmoid(outputs[task].observed_logit).mean()) for task in model.tasks])
        for task, column in zip(model.tasks, zip(*rates, strict=True), strict=True):
            effects[task][name] = [rate / column[0] for rate in column]
    model.train(training)
    return effects
