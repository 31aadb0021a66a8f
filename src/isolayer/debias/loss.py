"""The outputs of a debiasing model for a task, and the weighted, masked log loss that all models share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from isolayer.errors import InputError
from isolayer.nn.inputs import tensor
from isolayer.nn.sampled import sampled_logit
from isolayer.nn.whole_batch import equal_weights, weight_total
from isolayer.settings import mapping, number

PerTask = float | Mapping[str, float]
NegativeRate = float | Tensor | Mapping[str, float | Tensor]
Labels = Mapping[str, Tensor]


class Heads(NamedTuple):
    """The outputs of a debiasing model for one task, each ``[batch]``.

    Attributes:
        relevance_logit: The logit to rank by; higher is more relevant, for a decreasing task too.
        observed_logit: Logit of the logged label in the context it was shown in.
        served_logit: Logit of the probability that would be served, without a context.
        event_cost: What a row's event adds to the loss, in models that weight events; None in the others.
    """

    relevance_logit: Tensor
    observed_logit: Tensor
    served_logit: Tensor
    event_cost: Tensor | None = None


def weighted_bce(logit: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    r"""Weighted mean log loss of each task, :math:`\sum_i w_i \ell_i / \sum_i w_i`; zero for a task without labels.

    Args:
        logit: Predictions, ``[batch, tasks]``.
        label: Labels in [0, 1], ``[batch, tasks]``.
        weight: Non-negative, ``[batch, tasks]`` or ``[batch, 1]``.

    Returns:
        One loss per task, ``[tasks]``.

    >>> weighted_bce(torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([[1.0], [0.0]]))
    tensor([0.6931])
    """
    loss = binary_cross_entropy_with_logits(logit, label, weight=weight, reduction="none").sum(0)
    return loss / weight_total(weight, logit.shape[1])


def stacked_logits(outputs: Mapping[str, Heads], tasks: Sequence[str], part: str) -> Tensor:
    """One part of the outputs of every task, ``[batch, tasks]``.

    >>> stacked_logits({"click": Heads(*torch.zeros(3, 5))}, ["click"], "observed_logit").shape
    torch.Size([5, 1])
    """
    given = mapping("outputs", outputs, advice="pass what forward returned")
    missing = [task for task in tasks if not isinstance(getattr(given.get(task), part, None), Tensor)]
    if missing:
        raise InputError(f"outputs: expected {part} of every task, got none of {missing}; pass what forward returned")
    return torch.stack([getattr(given[task], part) for task in tasks], dim=1)


def stacked_labels(
    tasks: Sequence[str], labels: Labels, mask: Mapping[str, Tensor] | None, weight: Tensor | None, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Labels ``[batch, tasks]`` and weights ``[batch, tasks]`` (``[batch, 1]`` without masks), checked.

    A masked label may be anything, NaN included: it becomes 0 with weight 0.

    >>> labels = {"click": torch.tensor([1.0, torch.nan])}
    >>> stacked_labels(["click"], labels, {"click": torch.tensor([True, False])}, None, torch.zeros(2))
    (tensor([[1.],
            [0.]]), tensor([[1.],
            [0.]]))
    """
    rows = len(like)
    mapping("labels", labels, advice="give a tensor for each task")
    for task in tasks:
        if task not in labels:
            raise InputError(f"labels: expected a tensor for task {task!r}, got keys {sorted(labels)}; add it")
        if tensor(f"labels {task!r}", labels[task]).shape != (rows,):
            raise InputError(
                f"labels {task!r}: expected shape [{rows}], got {list(labels[task].shape)}; one label per row"
            )
    label = torch.stack([labels[task] for task in tasks], dim=1).to(like.dtype)
    weights = equal_weights(like) if weight is None else _checked_weight(weight, rows).to(like.dtype).unsqueeze(1)
    if mask is not None:
        _check_mask(tasks, mask, rows)
        everywhere = torch.ones(rows, dtype=torch.bool, device=like.device)
        kept = torch.stack([mask.get(task, everywhere).bool() for task in tasks], dim=1)
        label, weights = torch.where(kept, label, 0.0), weights * kept
    if not torch.compiler.is_compiling() and rows:
        low, high = (float(bound) for bound in torch.aminmax(label))
        if not (low >= 0 and high <= 1):  # also when NaN
            raise InputError(f"labels: expected values in [0, 1], got {low} to {high}; mask rows that have no label")
    return label, weights


def _check_mask(tasks: Sequence[str], mask: Mapping[str, Tensor], rows: int) -> None:
    mapping("mask", mask, advice="give a tensor for each task that has one")
    unknown = sorted(set(mask) - set(tasks))
    if unknown:
        raise InputError(f"mask: expected tasks {list(tasks)}, got {unknown}; remove or rename them")
    for task, kept in mask.items():
        if tensor(f"mask {task!r}", kept).shape != (rows,):
            raise InputError(f"mask {task!r}: expected shape [{rows}], got {list(kept.shape)}; one entry per row")


def _checked_weight(weight: Tensor, rows: int) -> Tensor:
    if tensor("weight", weight).shape != (rows,):
        raise InputError(f"weight: expected shape [{rows}], got {list(weight.shape)}; one weight per row")
    if not torch.compiler.is_compiling() and rows:
        low, high = (float(bound) for bound in torch.aminmax(weight))
        if not (low >= 0 and math.isfinite(high)):
            raise InputError(f"weight: expected finite numbers >= 0, got {low} to {high}; check the column")
    return weight


def sampled(logit: Tensor, tasks: Sequence[str], negative_rate: NegativeRate | None) -> Tensor:
    """Logits ``[batch, tasks]`` of the labels of a log whose negatives were sampled; see `sampled_logit`.

    Args:
        logit: Logits of real traffic, ``[batch, tasks]``.
        tasks: Their tasks.
        negative_rate: One rate for all tasks, or the rates of some, each a number or one per row.

    >>> sampled(torch.zeros(1, 2), ["click", "skip"], {"click": 0.5})
    tensor([[0.6931, 0.0000]])
    """
    if negative_rate is None:
        return logit
    if not isinstance(negative_rate, Mapping):
        return sampled_logit(logit, negative_rate)
    unknown = sorted(set(map(str, negative_rate)) - set(tasks))
    if unknown:
        raise InputError(f"negative_rate: expected tasks {list(tasks)}, got {unknown}; remove or rename them")
    columns = zip(logit.unbind(1), tasks, strict=True)
    return torch.stack([sampled_logit(column, negative_rate.get(task, 1.0)) for column, task in columns], dim=1)


def per_task(name: str, value: PerTask, tasks: Sequence[str]) -> dict[str, float]:
    """A number for each task, given as one number for all or as a mapping that names every task.

    >>> per_task("alpha", 0.25, ["click", "skip"])
    {'click': 0.25, 'skip': 0.25}
    """
    if isinstance(value, Mapping):
        if set(value) != set(tasks):
            given = sorted(map(str, value))
            raise InputError(f"{name}: expected a number for each of {list(tasks)}, got {given}; name them all")
        given_numbers = {task: (f"{name} {task!r}", value[task]) for task in tasks}
    else:
        given_numbers = dict.fromkeys(tasks, (name, value))
    advice = "0 leaves that loss out"
    return {task: number(what, one, 0, ends="[)", advice=advice) for task, (what, one) in given_numbers.items()}
