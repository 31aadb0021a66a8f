r"""An isotonic head at serving, distilled into a shallow network.

`isolayer.nn.frozen.FrozenCurves` keeps a head exactly and costs about a hundredth of a backbone: prefer it. `distill`
is for serving stacks that run nothing but dense layers. Its student is strictly increasing as well: for each unit
:math:`z' = s\,z + \sum_h v_h \tanh(w_h z + E_h(c)) + b(c)` with :math:`s, v, w > 0`, so within a context it keeps the
order of items, without ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from isolayer.errors import InputError
from isolayer.metrics import auc
from isolayer.nn.context_ids import checked_ids
from isolayer.nn.inputs import context_sizes, floats, tensor
from isolayer.nn.isotonic import columns_of
from isolayer.settings import count, function, number
from isolayer.settings import seed as checked_seed

_ENDS = torch.tensor([0.001, 0.999])  # quantiles of the logits between which the student's hidden units start

Head = Callable[[Tensor, Mapping[str, Tensor]], Tensor]  # (logit [batch, units], context) -> logit [batch, units]


class ShallowHead(nn.Module):
    """One hidden layer per unit, strictly increasing in the logit for any parameters.

    Args:
        contexts: Name and number of ids of each context feature; id -1 is unknown.
        units: Number of curves per context.
        hidden: Width of the hidden layer of each unit.
        lower: Lower end of the logits between which the hidden units are spread at the start.
        upper: Upper end.

    >>> head = ShallowHead({"position": 20, "device": 3}, units=2)
    >>> head(torch.zeros(5, 2), {"position": torch.arange(5), "device": torch.full((5,), -1)}).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        contexts: Mapping[str, int],
        *,
        units: int = 1,
        hidden: int = 16,
        lower: float = -6.0,
        upper: float = 3.0,
    ) -> None:
        super().__init__()
        self.contexts, self.units, self.hidden = context_sizes(contexts), count("units", units), count("hidden", hidden)
        lower, upper = (
            number(name, end, advice="-6 and 3 are usual") for name, end in (("lower", lower), ("upper", upper))
        )
        if not lower < upper:
            raise InputError(f"lower and upper: expected lower < upper, got {lower:g} and {upper:g}; swap them")
        width = 2 * hidden * float(np.log(2)) / (upper - lower)  # neighbours overlap by half
        centre = torch.linspace(lower, upper, hidden)
        self.slope = nn.Parameter(torch.full((units,), -1.0))
        self.weight = nn.Parameter(torch.full((units, hidden), float(np.log(np.expm1(width)))))
        self.out = nn.Parameter(torch.full((units, hidden), -2.0))
        self.bias = nn.Parameter(-centre.repeat(units, 1) * width)
        self.level = nn.Parameter(torch.zeros(units))
        self.shifts = nn.ModuleList(  # of the hidden units and, last, of the level; row 0 is id -1 and stays zero
            nn.Embedding(size + 1, units * (hidden + 1), padding_idx=0) for size in self.contexts.values()
        )
        for table in self.shifts:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]

    def forward(self, logit: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[batch, units]`` in each row's context, for logits ``[batch]`` or ``[batch, units]``."""
        z = columns_of(logit, self.units)
        shift = torch.zeros(len(z), self.units, self.hidden + 1, device=z.device, dtype=z.dtype)
        for (name, size), table in zip(self.contexts.items(), self.shifts, strict=True):
            ids = checked_ids(context, name, size, training=self.training, batch=len(z))
            shift = shift + table(ids + 1).view(shift.shape)
        inside = z.unsqueeze(2) * softplus(self.weight) + self.bias + shift[..., :-1]
        bent = (torch.tanh(inside) * softplus(self.out)).sum(2)
        return z * softplus(self.slope) + bent + self.level + shift[..., -1]


@dataclass(frozen=True)
class Distilled:
    """A student and its loss of quality.

    Args:
        student: The shallow head.
        auc_loss_percent: AUC of the teacher minus AUC of the student on held-out rows, in percent of the teacher's, for
            each unit.
        mean_error: Mean absolute difference of their probabilities on those rows, for each unit.
    """

    student: ShallowHead
    auc_loss_percent: list[float]
    mean_error: list[float]


def distill(
    teacher: Head,
    contexts: Mapping[str, int],
    logit: Tensor,
    context: Mapping[str, Tensor],
    *,
    label: Tensor | None = None,
    hidden: int = 16,
    steps: int = 1500,
    seed: int = 0,
) -> Distilled:
    """Train a `ShallowHead` to reproduce an isotonic head on the rows of a log, and measure the loss of quality.

    A fifth of the rows is held out. Without labels, AUC is measured against the teacher's own probabilities as soft
    labels, which is its expected value if the teacher is right.

    Args:
        teacher: `ContextIsotonicLayer`, or the ``context_curves`` of a `DualHead`.
        contexts: Name and number of ids of each context feature.
        logit: Logits that the head reads, ``[n, units]``.
        context: Ids ``[n]`` of each context feature.
        label: Labels in [0, 1], ``[n, units]``, to measure AUC by.
        hidden: Width of the student's hidden layer.
        steps: Number of optimiser steps of 2,048 rows each.
        seed: Seed of the split and of the order.
    """
    function("teacher", teacher, advice="give a ContextIsotonicLayer, or the context_curves of a DualHead")
    sizes, hidden, steps = context_sizes(contexts), count("hidden", hidden), count("steps", steps)
    seed = checked_seed("seed", seed)
    if floats("logit", logit).dim() != 2 or len(logit) < 10:
        raise InputError(f"logit: expected shape [n, units] with n >= 10, got {list(logit.shape)}; use more rows")
    if label is not None and tensor("label", label).shape != logit.shape:
        raise InputError(f"label: expected shape {list(logit.shape)}, got {list(label.shape)}; one column per unit")
    for name, size in sizes.items():
        checked_ids(context, name, size, training=True, batch=len(logit))
    with torch.no_grad():
        target = torch.sigmoid(floats("output of the teacher", teacher(logit, context)))
    order = torch.randperm(len(logit), generator=torch.Generator().manual_seed(seed)).to(logit.device)
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    student = _untrained(logit[kept], contexts, hidden)
    _imitate(student, logit[kept], _rows(context, kept), target[kept], steps, seed)
    with torch.no_grad():
        found = torch.sigmoid(student(logit[held], _rows(context, held)))
    truth = target[held] if label is None else label[held]
    loss = [_auc_loss(*columns) for columns in zip(truth.T, found.T, target[held].T, strict=True)]
    return Distilled(student, loss, (found - target[held]).abs().mean(0).tolist())


def _untrained(logit: Tensor, contexts: Mapping[str, int], hidden: int) -> ShallowHead:
    """A student whose hidden units are spread over the given logits ``[n, units]``."""
    some = logit[:100_000].flatten()[:1_000_000]
    low, high = (float(bound) for bound in torch.quantile(some, _ENDS.to(logit)))
    student = ShallowHead(contexts, units=logit.shape[1], hidden=hidden, lower=low, upper=max(high, low + 1))
    return student.to(device=logit.device, dtype=logit.dtype)


def _rows(context: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: ids[rows] for name, ids in context.items()}


def _auc_loss(label: Tensor, student: Tensor, teacher: Tensor) -> float:
    """AUC of the teacher minus that of the student, in percent of the former."""
    y = label.cpu().numpy()
    return 100 * (1 - auc(y, student.cpu().numpy()) / auc(y, teacher.cpu().numpy()))


def _imitate(
    student: ShallowHead, logit: Tensor, context: Mapping[str, Tensor], target: Tensor, steps: int, seed: int
) -> None:
    """Minimise the cross entropy to the teacher's probabilities, over rows drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(student.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.02, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(0, len(logit), (min(2048, len(logit)),), generator=generator).to(logit.device)
        found = student(logit[rows], _rows(context, rows))
        loss = nn.functional.binary_cross_entropy_with_logits(found, target[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
