"""The outputs of a debiasing model for a task, and the weighted, masked log loss that all models share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from isolayer.errors import InputError

PerTask = float | Mapping[str, float]
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
    return loss / weight.sum(0).clamp(min=torch.finfo(loss.dtype).tiny)


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
    for task in tasks:
        if task not in labels:
            raise InputError(f"labels: expected a tensor for task {task!r}, got keys {sorted(labels)}; add it")
        if labels[task].shape != (rows,):
            raise InputError(
                f"labels {task!r}: expected shape [{rows}], got {list(labels[task].shape)}; one label per row"
            )
    label = torch.stack([labels[task] for task in tasks], dim=1).to(like.dtype)
    weights = like.new_ones(rows, 1) if weight is None else _checked_weight(weight, rows).to(like.dtype).unsqueeze(1)
    if mask:
        unknown = sorted(set(mask) - set(tasks))
        if unknown:
            raise InputError(f"mask: expected tasks {list(tasks)}, got {unknown}; remove or rename them")
        everywhere = torch.ones(rows, dtype=torch.bool, device=like.device)
        kept = torch.stack([mask.get(task, everywhere).bool() for task in tasks], dim=1)
        label, weights = torch.where(kept, label, 0.0), weights * kept
    if not torch.compiler.is_compiling() and rows:
        low, high = (float(bound) for bound in torch.aminmax(label))
        if not (low >= 0 and high <= 1):  # also when NaN
            raise InputError(f"labels: expected values in [0, 1], got {low} to {high}; mask rows that have no label")
    return label, weights


def _checked_weight(weight: Tensor, rows: int) -> Tensor:
    if weight.shape != (rows,):
        raise InputError(f"weight: expected shape [{rows}], got {list(weight.shape)}; one weight per row")
    if not torch.compiler.is_compiling() and rows:
        low, high = (float(bound) for bound in torch.aminmax(weight))
        if not (low >= 0 and math.isfinite(high)):
            raise InputError(f"weight: expected finite numbers >= 0, got {low} to {high}; check the column")
    return weight


def per_task(name: str, value: PerTask, tasks: Sequence[str]) -> dict[str, float]:
    """A number for each task, given as one number for all or as a mapping that names every task.

    >>> per_task("alpha", 0.25, ["click", "skip"])
    {'click': 0.25, 'skip': 0.25}
    """
    if isinstance(value, Mapping):
        if set(value) != set(tasks):
            raise InputError(f"{name}: expected a number for each of {list(tasks)}, got {sorted(value)}; name them all")
        numbers = {task: float(value[task]) for task in tasks}
    else:
        numbers = dict.fromkeys(tasks, float(value))
    for task, number in numbers.items():
        if not (number >= 0 and math.isfinite(number)):
            raise InputError(f"{name}: expected numbers >= 0, got {number} for {task!r}; 0 leaves that loss out")
    return numbers
