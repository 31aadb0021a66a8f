"""Several processes that train one model: what they exchange after each step, and after each pass.

Lightning's own strategy wraps the model in `DistributedDataParallel`, which looks for unused parameters and broadcasts
buffers at every step. For a model as small as a ranker over tables this costs as much as the step. Here all gradients
of a step, and which of them exist, are sent in one message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning
import torch
import torch.distributed
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from isolayer.nn.gate import Waiting, pass_on, together


class OneMessage(DDPStrategy):
    """Processes that average the gradients of a step in one message; for CPUs, where nothing can overlap."""

    def setup(self, trainer: lightning.Trainer) -> None:
        """Without Lightning's messages by which the first process says that it was told to stop.

        One is sent before every step. The other is sent by the handler of the signal, in the middle of any other
        message, so that processes wait for each other for ever. Here a process that is told to stop does so at the end
        of its step; torchrun tells all of them.
        """
        super().setup(trainer)
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
        signals = trainer._signal_connector
        signals._sigterm_notifier_fn = lambda *_: setattr(signals, "received_sigterm", True)  # type: ignore[method-assign]

    def configure_ddp(self) -> None:
        """Start in every process with the model of the first one, without a wrapper around it."""
        assert self.model is not None
        broadcast_tensors([*self.model.parameters(), *self.model.buffers()])

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """A step whose gradients of negative bucket weights are decided by the rows of all processes."""
        with together() as self._waiting:
            return super().training_step(*args, **kwargs)

    def post_backward(self, closure_loss: Tensor) -> None:
        """Exchange the gradients."""
        groups = [group for optimiser in self.optimizers for group in optimiser.param_groups]
        dense = [one for group in groups if not group.get("sparse") for one in group["params"]]
        sparse = [one for group in groups if group.get("sparse") for one in group["params"]]
        average_gradients(dense, sparse, self._waiting)


class SameBuffers(Callback):
    """After each pass, and before held-out rows are read, all processes take the buffers of the first one.

    These are the running statistics of batch normalisation, in networks that have it; while training they are not read.
    """

    def on_train_batch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule, *rest: Any) -> None:
        """Exchange them after the last batch of a pass."""
        if trainer.is_last_batch:
            broadcast_tensors(module.buffers())


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the first process."""
    for tensor in tensors:
        torch.distributed.broadcast(tensor.detach(), 0)


def average_gradients(
    dense: Iterable[nn.Parameter], sparse: Iterable[nn.Parameter] = (), waiting: Iterable[Waiting] = ()
) -> None:
    """Replace the gradient of every parameter by its mean over the processes; one that none has stays None.

    A batch of one process may lack labels of a task, whose parameters then get no gradient there: it counts as zero.

    Args:
        dense: Parameters with dense gradients.
        sparse: Parameters whose gradients are sparse.
        waiting: Bucket weights whose gradients were put off by `nn.gate.together`.
    """
    world = torch.distributed.get_world_size()
    for one in waiting:
        if one.ids:  # rows that differ between processes
            one.pass_on_own()
    shared = [one for one in waiting if not one.ids]
    by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in [*dense, *(one.leaf for one in shared)]:
        if parameter.requires_grad:
            by_type.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for parameters in by_type.values():
        _average_dense(parameters, world)
    for parameter in sparse:
        gradient = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
        torch.distributed.all_reduce(gradient)
        parameter.grad = gradient / world
    pass_on(shared)


def _average_dense(parameters: list[Tensor], world: int) -> None:
    """One message: the gradients one after another, and a one for each that is there."""
    there = parameters[0].new_tensor([one.grad is not None for one in parameters])
    parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    message = torch.cat([part.reshape(-1) for part in parts] + [there])
    torch.distributed.all_reduce(message)
    *means, there = message.split([one.numel() for one in parameters] + [len(parameters)])
    used = there.tolist()
    message.div_(world)
    for parameter, mean, count in zip(parameters, means, used, strict=True):
        parameter.grad = mean.view_as(parameter) if count else None
