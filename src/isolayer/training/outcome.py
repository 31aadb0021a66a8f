"""Checks of a model after training: tasks whose directions contradict one another, and effects of contexts.

Both are computed on a sample of the log, with the model as it will be served.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from isolayer.debias.heads import DualHead
from isolayer.training.columns import Batch
from isolayer.training.parquet_batches import ParquetLogs

ROWS = 20_000  # rows of the sample
GROUPS = 8  # row groups it comes from
OPPOSED = -0.2  # correlation of two relevance logits below which one of them has the wrong direction
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
        {},
        None,
    )


@torch.no_grad()
def wrong_directions(model: nn.Module, batch: Batch) -> list[str]:
    """A sentence for each task whose relevance falls where that of the main task rises.

    Relevance logits of all tasks rise with relevance, if the tasks that fall with it were declared decreasing. The main
    task is click, or else the first that was not declared decreasing.

    Args:
        model: A model with ``serving()``.
        batch: Rows to look at.
    """
    tasks = list(getattr(model, "tasks", ()))
    declared = set(getattr(model, "decreasing", ()))
    rising = [task for task in tasks if task not in declared]
    if len(tasks) < 2 or not rising or not hasattr(model, "serving"):
        return []
    main = "click" if "click" in rising else rising[0]
    device = next(model.parameters()).device
    relevance: Mapping[str, Tensor] = model.serving()(batch.features.to(device))  # type: ignore[operator]
    found = []
    for task in tasks:
        both = torch.stack([relevance[main], relevance[task]]).double()
        correlation = float(torch.corrcoef(both)[0, 1])
        if correlation < OPPOSED:
            found.append(_contradiction(task, main, correlation, declared=task in declared))
    return found


def _contradiction(task: str, main: str, correlation: float, *, declared: bool) -> str:
    """What is wrong with the direction of a task.

    >>> _contradiction("skip", "click", -0.6, declared=False)[:75]
    "task 'skip' falls where 'click' rises (correlation -0.60 of their relevance"
    """
    if declared:
        return (
            f"task {task!r} was declared decreasing, but rises where {main!r} rises (correlation {correlation:.2f} of "
            "their relevance), so its relevance has the wrong sign: do not declare it decreasing"
        )
    return (
        f"task {task!r} falls where {main!r} rises (correlation {correlation:.2f} of their relevance), so its "
        "relevance has the wrong sign: declare it decreasing"
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
