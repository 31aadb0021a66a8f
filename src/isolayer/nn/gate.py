"""Non-negative slopes by ReLU, with a gradient by which a negative weight can recover.

A negative weight takes a gradient only if a step along it would raise the weight. Whether it would is decided by the
sum over all rows of a batch. If several processes share the batch, none of them knows that sum while it goes backward.
Inside `together` the decision is therefore put off until all have done so, so that they train what one process would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

from isolayer.nn.functional import apply

Ids = Sequence[Tensor] | None


class _Gate(torch.autograd.Function):
    """ReLU whose gradient also reaches a negative input if a descent step along it would raise that input."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return weight.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        return torch.where(weight > 0, grad, grad.clamp(max=0))


class _Straight(torch.autograd.Function):
    """ReLU that passes every gradient on."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Waiting(NamedTuple):
    """Weights whose gradient ends at ``leaf`` until all processes have theirs."""

    weight: Tensor
    leaf: Tensor
    ids: Sequence[Tensor]

    def pass_on_own(self) -> None:
        """Pass this process's part of the gradient on, as the sum over all processes decides; all call it at once."""
        own = torch.zeros_like(self.leaf) if self.leaf.grad is None else self.leaf.grad
        total = _total_of_rows(own, torch.stack(list(self.ids), 1))
        self.weight.backward(torch.where((self.weight > 0) | (total < 0), own, 0))


def pass_on(waiting: Sequence[Waiting]) -> None:
    """Pass the gradients of leaves on, which are the means over all processes by now, in one step backward."""
    there = [(one.weight, one.leaf.grad) for one in waiting if one.leaf.grad is not None]
    decided = [torch.where(weight > 0, grad, grad.clamp(max=0)) for weight, grad in there]
    if there:
        torch.autograd.backward([weight for weight, _ in there], decided)


_waiting: ContextVar[list[Waiting] | None] = ContextVar("waiting", default=None)


def gated(weight: Tensor, ids: Ids = ()) -> Tensor:
    """ReLU, with a gradient for negative weights that would rise.

    Args:
        weight: Raw weights, any shape.
        ids: What the rows belong to, for processes that decide together: for every context feature the id of each row;
            empty if every process has the same rows; None if each row belongs to one input of this process alone.

    >>> weight = torch.tensor([-1.0, -1.0, 2.0], requires_grad=True)
    >>> (gated(weight) * torch.tensor([-3.0, 3.0, 3.0])).sum().backward()
    >>> weight.grad
    tensor([-3.,  0.,  3.])
    """
    waiting = _waiting.get() if deciding_together() else None
    if waiting is None or ids is None or not weight.requires_grad:
        return apply(_Gate, weight)
    leaf = weight.detach().requires_grad_()
    waiting.append(Waiting(weight, leaf, ids))
    return apply(_Straight, leaf)


@contextmanager
def together() -> Iterator[list[Waiting]]:
    """Put the gradients of weights off, to be passed on when those of all processes are there."""
    waiting: list[Waiting] = []
    token = _waiting.set(waiting)
    try:
        yield waiting
    finally:
        _waiting.reset(token)


def deciding_together() -> bool:
    """Whether gradients are put off just now."""
    return not torch.compiler.is_compiling() and _waiting.get() is not None


def _total_of_rows(own: Tensor, ids: Tensor) -> Tensor:
    """The sum over processes of rows ``[n, ...]`` with the same ids ``[n, features]``, for the rows of this process."""
    lengths = [torch.zeros(1, dtype=torch.long, device=own.device) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(lengths, torch.full_like(lengths[0], len(own)))
    most = int(torch.cat(lengths).max())
    all_ids, all_rows = (_gathered(part, most, lengths) for part in (ids, own))
    known, place = torch.unique(all_ids, dim=0, return_inverse=True)
    total = own.new_zeros(len(known), *own.shape[1:]).index_add_(0, place, all_rows)
    before = sum(int(length) for length in lengths[: torch.distributed.get_rank()])
    return total[place[before : before + len(own)]]


def _gathered(own: Tensor, most: int, lengths: Sequence[Tensor]) -> Tensor:
    """The rows of all processes one after another; messages have one size, so that the shorter ones are padded."""
    padded = torch.cat([own, own.new_zeros(most - len(own), *own.shape[1:])])
    parts = [torch.empty_like(padded) for _ in lengths]
    torch.distributed.all_gather(parts, padded)
    return torch.cat([part[: int(length)] for part, length in zip(parts, lengths, strict=True)])
