"""Means over the rows of a batch that several processes share.

A loss is divided by the weight of its rows. If every process divided by the weight of its own rows, the mean over the
processes would be another loss than that of the whole batch wherever these weights differ: where a task has labels in
one process only, where rows have weights, and where lists have different lengths. Inside `whole_batch` every process
divides by the mean of these weights over the processes, so that the mean of their losses, and of their gradients, is
what one process would compute from all rows. Where all rows have weight 1 and every process has equally many, which a
trainer may know of its log, that mean needs no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

from isolayer.nn.functional import apply


class _Shared(NamedTuple):
    """What is known of a batch that several processes share."""

    totals: list[tuple[Tensor, Tensor]]  # weights of rows, and the mean of their sums over the processes
    equal_rows: bool


_known: ContextVar[_Shared | None] = ContextVar("known", default=None)


class _Sum(torch.autograd.Function):
    """The sum over the processes; so is its gradient, since the results of all processes depend on every value."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _summed(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _summed(grad)


def _summed(value: Tensor) -> Tensor:
    total = value.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total)
    return total


@contextmanager
def whole_batch(*, equal_rows: bool = False) -> Iterator[None]:
    """Let the losses inside be those of the rows of all processes; all of them have to compute the same losses.

    Args:
        equal_rows: Whether every process is known to have equally many rows.
    """
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    token = _known.set(_Shared([], equal_rows) if several else None)
    try:
        yield
    finally:
        _known.reset(token)


def equal_weights(like: Tensor) -> Tensor:
    """Weights of 1, ``[batch, 1]``, for the rows of a tensor.

    >>> equal_weights(torch.zeros(2, 3))
    tensor([[1.],
            [1.]])
    """
    weight, known = like.new_ones(len(like), 1), _shared()
    if known is not None and known.equal_rows:
        known.totals.append((weight, weight.new_tensor([len(like)])))
    return weight


def weight_total(weight: Tensor, tasks: int | None = None) -> Tensor:
    """The weight of the rows that a sum over them is divided by, positive, ``[tasks]`` or ``[1]``.

    Inside `whole_batch` it is the mean over the processes. It is exchanged once for losses that share their weights.

    Args:
        weight: Of each row, ``[batch, tasks]`` or ``[batch, 1]``.
        tasks: Number of tasks, if the weights of one process may have a column per task and those of another only one.

    >>> weight_total(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    tensor([3.0000e+00, 1.1755e-38])
    """
    known = _shared()
    for earlier, total in known.totals if known is not None else ():
        if earlier is weight:
            return total
    own = weight.sum(0)
    if known is None:
        return shared_total(own)
    known.totals.append((weight, shared_total(own if tasks is None else own.expand(tasks))))
    return known.totals[-1][1]


def shared_total(own: Tensor) -> Tensor:
    """The same, from weights that are already added up over the rows of this process, any shape.

    >>> shared_total(torch.tensor(2.0))
    tensor(2.)
    """
    return process_mean(own).clamp(min=torch.finfo(own.dtype).tiny)


def process_sum(value: Tensor) -> Tensor:
    """The sum over the processes inside `whole_batch`, with its gradient; elsewhere the value itself.

    >>> process_sum(torch.ones(1))
    tensor([1.])
    """
    if _shared() is None:
        return value
    return apply(_Sum, value)


def process_mean(value: Tensor) -> Tensor:
    """The mean over the processes inside `whole_batch`, with its gradient; elsewhere the value itself.

    >>> process_mean(torch.ones(1))
    tensor([1.])
    """
    return value if _shared() is None else process_sum(value) / torch.distributed.get_world_size()


def _shared() -> _Shared | None:
    return None if torch.compiler.is_compiling() else _known.get()
