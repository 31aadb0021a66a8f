"""A debiasing model and its Parquet logs as Lightning takes them, for `train` and for trainers of your own.

A model is anything with `DualHead`'s interface: ``forward(features, context)``, ``loss(outputs, labels, mask, weight)``
and, for every task, ``outputs[task].observed_logit``. A model that compares the rows of a list says so by an attribute
``needs_lists = True``; it gets batches of whole lists, and finds the number of each row's list in its context, under
the key that its attribute ``group`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from isolayer.debias.loss import stacked_labels, weighted_bce
from isolayer.errors import InputError
from isolayer.nn.rates import RowAdam, parameter_groups
from isolayer.nn.whole_batch import process_sum, whole_batch
from isolayer.training.columns import Batch
from isolayer.training.parquet_batches import LogBatches, ParquetLogs

HELD_OUT_LOSS = "held_out_loss"
LOG_EVERY = 50  # steps between two logged losses
LISTS = "list"  # the default key of the context with the list of each row; a model's ``group`` overrides it
_OWN = ("lr", "weight_decay", "decoupled_weight_decay")  # settings of an optimiser that a run does not take over
COLUMNS = "isolayer_columns"  # key of a checkpoint under which the model's columns are stored


class LogModule(lightning.LightningModule):
    """A debiasing model with its loss, its held-out loss, and an optimiser in which curves have their own rate.

    Args:
        model: Anything with `DualHead`'s interface.
        lr: Learning rate of everything but the curves.
        curve_lr: Factor by which curves learn faster.
        decay: Share of itself, times ``lr``, that every other parameter loses at each step.
        columns: Facts about the model's columns, as JSON values; stored in every checkpoint.
        equal_rows: Whether all rows have weight 1 and a label of every task, and all processes have equally many at
            every step: then these need not tell each other.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = 1e-3,
        curve_lr: float = 10.0,
        decay: float = 0.0,
        columns: Mapping[str, Any] | None = None,
        equal_rows: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.lr, self.curve_lr, self.decay = model, lr, curve_lr, decay
        self.columns, self.equal_rows = dict(columns or {}), equal_rows
        self.optimiser_state: dict[str, Any] | None = None
        self._held_out: Tensor | None = None  # [sum of losses times weights, sum of weights] of the rows so far

    def forward(self, batch: Batch) -> Any:
        """Outputs of the model; one that compares the rows of a list finds their numbers in its context."""
        if batch.lists is None:
            return self.model(batch.features, batch.context)
        return self.model(batch.features, batch.context | {getattr(self.model, "group", LISTS): batch.lists})

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """The model's own loss; in several processes it is normalised by the rows of all of them."""
        with whole_batch(equal_rows=self.equal_rows):
            loss: Tensor = self.model.loss(self(batch), batch.labels, batch.mask or None, batch.weight)  # type: ignore[operator]
        if not torch.isfinite(loss):
            value = float(loss.detach())
            raise InputError(
                f"loss: expected a finite number, got {value} at step {self.global_step}; lower the learning rate, or "
                "check the features"
            )
        if index == 0 or (self.global_step + 1) % LOG_EVERY == 0:  # a call costs as much as a layer
            self.log("train_loss", loss, prog_bar=True, batch_size=len(batch.features))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Forget the rows of an earlier pass."""
        self._held_out = None

    def validation_step(self, batch: Batch, index: int) -> None:
        """Add the losses of a batch up; they are averaged over all held-out rows at the end."""
        own = getattr(self.model, "needs_lists", False)  # its logits are not those of probabilities
        losses = own_losses(self.model, self(batch), batch) if own else observed_losses(self(batch), batch)
        self._held_out = losses if self._held_out is None else self._held_out + losses

    def on_validation_epoch_end(self) -> None:
        """Log loss of the observed labels, averaged over tasks; for a model that compares lists, its own loss.

        Each task's loss is the weighted mean over its labels in the held-out rows of all processes.
        """
        if self._held_out is None:
            return
        with whole_batch():
            loss, weight = process_sum(self._held_out).unbind(0)
        means = loss / weight.clamp(min=torch.finfo(weight.dtype).tiny)
        found = means.sum() if getattr(self.model, "needs_lists", False) else means.mean()
        self.log(HELD_OUT_LOSS, found, prog_bar=True, sync_dist=True, batch_size=1)  # the same in all processes

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, with the curves' parameters in a group of their own, and sparse tables updated row by row."""
        groups = parameter_groups(self.model, self.lr, curve_lr=self.curve_lr, decay=self.decay)
        optimiser = RowAdam([group | {"fused": True} for group in groups])  # one call for all parameters of a group
        if self.optimiser_state is not None:  # the averages of the earlier run, with the rates and decay of this run
            own = [{name: group[name] for name in _OWN} for group in optimiser.param_groups]
            optimiser.load_state_dict(self.optimiser_state)
            for group, settings in zip(optimiser.param_groups, own, strict=True):
                group.update(settings)
        return optimiser

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the columns with the weights."""
        checkpoint[COLUMNS] = self.columns


def observed_losses(outputs: Mapping[str, Any], batch: Batch) -> Tensor:
    """Log loss of the labels of each task as they were observed: its weighted sum, and the weights, ``[2, tasks]``."""
    tasks = list(batch.labels)
    logit = torch.stack([outputs[task].observed_logit for task in tasks], dim=1)
    label, weight = stacked_labels(tasks, batch.labels, batch.mask or None, batch.weight, logit)
    total = weight.sum(0, dtype=torch.double).expand(len(tasks))
    return torch.stack([weighted_bce(logit, label, weight) * total, total])


def own_losses(model: nn.Module, outputs: Mapping[str, Any], batch: Batch) -> Tensor:
    """The same of the model's own loss: of each task alone, and of what belongs to no task, ``[2, tasks + 1]``."""
    tasks, loss = list(batch.labels), cast("Callable[..., Tensor]", model.loss)
    weight = batch.features.new_ones(len(batch.features)) if batch.weight is None else batch.weight
    none = dict.fromkeys(tasks, torch.zeros_like(weight, dtype=torch.bool))
    known = {task: batch.known(task) for task in tasks}
    rest = loss(outputs, batch.labels, none, batch.weight) if len(tasks) > 1 else weight.new_zeros(())
    each = [loss(outputs, batch.labels, none | {task: known[task]}, batch.weight) - rest for task in tasks]
    total = torch.stack([one.sum(dtype=torch.double) for one in (*(weight * known[task] for task in tasks), weight)])
    return torch.stack([torch.stack([*each, rest]) * total, total])


class LogData(lightning.LightningDataModule):
    """Parquet logs as Lightning reads them: one stream of batches for each process; no log is loaded as a whole.

    Args:
        logs: The log.
        batch_size: Rows per batch, of all processes together.
    """

    def __init__(self, logs: ParquetLogs, *, batch_size: int = 1024) -> None:
        super().__init__()
        self.logs, self.batch_size = logs, batch_size

    def train_dataloader(self) -> DataLoader[Batch]:
        """Training batches, in another order each epoch."""
        return self._loader(train=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Held-out batches."""
        return self._loader(train=False)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, index: int) -> Batch:
        """The batch itself if it is already on its device, as on a CPU; Lightning would walk through it."""
        if batch.features.device == device:
            return batch
        moved: Batch = super().transfer_batch_to_device(batch, device, index)
        return moved

    def _loader(self, *, train: bool) -> DataLoader[Batch]:
        size = max(1, self.batch_size // self._place()[1])
        batches = LogBatches(self.logs, batch_size=size, train=train, epoch=self._epoch, place=self._place)
        return DataLoader(batches, batch_size=None)

    def _epoch(self) -> int:
        return 0 if self.trainer is None else self.trainer.current_epoch

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
