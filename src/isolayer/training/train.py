"""Train a debiasing model from Parquet logs: progress, early stopping, checkpoints, resume, new days, many processes.

The one file that imports lightning. `train` is the front door; the classes are for those who run a trainer of their
own. A model is anything with `DualHead`'s interface: ``forward(features, context)``, ``loss(outputs, labels, mask,
weight)`` and, for every task, ``outputs[task].observed_logit``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader

from isolayer.debias.loss import stacked_labels, weighted_bce
from isolayer.errors import InputError
from isolayer.nn.rates import parameter_groups
from isolayer.training.parquet_batches import Batch, Columns, LogBatches, ParquetLogs

HELD_OUT_LOSS = "held_out_loss"
_NOT_THE_USERS = (  # what lightning says of choices that are made here
    ".*isinstance.treespec, LeafSpec.*",
    ".*IterableDataset. has .__len__. defined.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*The number of training batches .* is smaller than the logging interval.*",
    ".*does not have many workers.*",
    ".*find_unused_parameters=True was specified.*",
)


@dataclass(frozen=True)
class Fit:
    """How to train.

    Args:
        epochs: Most passes over the log.
        patience: Passes without a better held-out loss before training stops.
        batch_size: Rows a batch, of one process.
        lr: Learning rate of everything but the curves.
        curve_lr: How many times faster curves learn.
        held_out: Share of the rows kept from training; 0 trains on all of them for all the epochs.
        seed: Of everything random.
        progress: Whether to show a progress bar.
        weight: A column of row weights.
    """

    epochs: int = 10
    patience: int = 2
    batch_size: int = 1024
    lr: float = 1e-3
    curve_lr: float = 10.0
    held_out: float = 0.1
    seed: int = 0
    progress: bool = True
    weight: str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}; raise it")
        for name in ("lr", "curve_lr"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: expected a positive number, got {getattr(self, name)}; raise it")


@dataclass(frozen=True)
class Trained:
    """What training left.

    Args:
        model: The model, with the weights of the best pass.
        held_out_loss: Its log loss of observed labels on the rows held out, the mean over tasks; None without any.
        epochs: Passes over the log.
        checkpoint: Where the next day starts: weights and optimiser after the last pass.
        weights: The model's weights as safetensors.
    """

    model: nn.Module
    held_out_loss: float | None
    epochs: int
    checkpoint: Path
    weights: Path


class LogModule(lightning.LightningModule):
    """A debiasing model as Lightning trains it: its loss, its held-out observed loss, curves in their own group.

    Args:
        model: Anything with `DualHead`'s interface.
        lr: Learning rate of everything but the curves.
        curve_lr: How many times faster curves learn.
    """

    def __init__(self, model: nn.Module, *, lr: float = 1e-3, curve_lr: float = 10.0) -> None:
        super().__init__()
        self.model, self.lr, self.curve_lr = model, lr, curve_lr
        self.optimiser_state: dict[str, Any] | None = None

    def forward(self, batch: Batch) -> Any:
        """Outputs of the model."""
        return self.model(batch.features, batch.context)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """The model's own loss."""
        loss: Tensor = self.model.loss(self(batch), batch.labels, batch.mask or None, batch.weight)  # type: ignore[operator]
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch.features))
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        """Log loss of the observed labels, the mean over tasks."""
        loss = observed_loss(self(batch), batch)
        self.log(HELD_OUT_LOSS, loss, prog_bar=True, sync_dist=True, batch_size=len(batch.features))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, with the curves' parameters in a group of their own."""
        optimiser = torch.optim.Adam(parameter_groups(self.model, self.lr, curve_lr=self.curve_lr))
        if self.optimiser_state is not None:  # the averages of the day before; the rates are this run's
            rates = [group["lr"] for group in optimiser.param_groups]
            optimiser.load_state_dict(self.optimiser_state)
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate
        return optimiser

    def start_from(self, checkpoint: Path) -> None:
        """Take weights and the optimiser's averages from a checkpoint of another log."""
        if not checkpoint.is_file():
            raise InputError(f"start: expected a checkpoint of an earlier run, got {str(checkpoint)!r}; check the path")
        try:
            saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
            self.load_state_dict(saved["state_dict"])
            self.optimiser_state = saved["optimizer_states"][0]
        except (UnpicklingError, EOFError, KeyError, RuntimeError) as error:  # no checkpoint, or of another model
            raise InputError(
                f"start: expected a checkpoint of the same model, got {str(checkpoint)!r}; give the last.ckpt of a run "
                "with the same features, tasks and widths"
            ) from error


def observed_loss(outputs: Mapping[str, Any], batch: Batch) -> Tensor:
    """Log loss of the labels as they were observed, the mean over tasks."""
    tasks = list(batch.labels)
    logit = torch.stack([outputs[task].observed_logit for task in tasks], dim=1)
    label, weight = stacked_labels(tasks, batch.labels, batch.mask or None, batch.weight, logit)
    return weighted_bce(logit, label, weight).mean()


class LogData(lightning.LightningDataModule):
    """Parquet logs as Lightning reads them: a stream of batches for each process, none of which loads a whole log.

    Args:
        logs: The log.
        batch_size: Rows a batch, of one process.
    """

    def __init__(self, logs: ParquetLogs, *, batch_size: int = 1024) -> None:
        super().__init__()
        self.logs, self.batch_size = logs, batch_size

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches to train on, in another order each epoch."""
        return self._loader(train=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches held out."""
        return self._loader(train=False)

    def _loader(self, *, train: bool) -> DataLoader[Batch]:
        batches = LogBatches(self.logs, batch_size=self.batch_size, train=train, epoch=self._epoch, place=self._place)
        return DataLoader(batches, batch_size=None)

    def _epoch(self) -> int:
        return 0 if self.trainer is None else self.trainer.current_epoch

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)


def train(
    model: nn.Module,
    logs: str | Path | Sequence[str | Path],
    *,
    features: str | Sequence[str],
    tasks: Sequence[str],
    contexts: Sequence[str],
    folder: str | Path,
    fit: Fit | None = None,
    start: str | Path | None = None,
) -> Trained:
    """Train a model on Parquet logs, and leave checkpoints, curves of the loss and its weights in a folder.

    Under ``torchrun`` the same call trains in as many processes, each with its share of the rows.

    Args:
        model: Anything with `DualHead`'s interface; it is trained in place.
        logs: A Parquet file, a folder of files, or several of either.
        features: Numeric columns, or the name of one column of lists of equal length.
        tasks: Label columns in [0, 1]; a null has no label.
        contexts: Integer columns of context ids.
        folder: Where to write ``last.ckpt``, ``best.ckpt``, ``model.safetensors``, ``csv/`` and ``tensorboard/``.
        fit: How to train.
        start: ``"resume"`` goes on where an interrupted run of this folder stopped, if there is one. A path is the
            checkpoint of an earlier day, to go on from with this log alone. By default the model as it is.
    """
    fit, folder = fit or Fit(), Path(folder)
    lightning.seed_everything(fit.seed, verbose=False)
    module = LogModule(model, lr=fit.lr, curve_lr=fit.curve_lr)
    if start is not None and start != "resume":
        module.start_from(Path(start))
    columns = Columns(features, tasks, contexts, fit.weight)
    log = ParquetLogs(logs, columns, held_out=fit.held_out, seed=fit.seed)
    for part in (True, False):
        if not log.batches(batch_size=fit.batch_size, train=part) and (part or fit.held_out):
            raise InputError(f"logs: expected rows to train on and to hold out, got {log.rows} rows; use more rows")
    best = ModelCheckpoint(folder, filename="best", monitor=HELD_OUT_LOSS, enable_version_counter=False)
    last = ModelCheckpoint(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    watch = [best, EarlyStopping(HELD_OUT_LOSS, patience=fit.patience)] if fit.held_out else []
    trainer = _trainer(fit, folder, [*watch, last])
    resumed = folder / "last.ckpt" if start == "resume" and (folder / "last.ckpt").is_file() else None
    with warnings.catch_warnings():
        for message in _NOT_THE_USERS:
            warnings.filterwarnings("ignore", message)
        trainer.fit(module, LogData(log, batch_size=fit.batch_size), ckpt_path=resumed, weights_only=True)
    return _finish(trainer, module, best if fit.held_out else None, folder)


def _trainer(fit: Fit, folder: Path, callbacks: list[Callback]) -> lightning.Trainer:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return lightning.Trainer(
        max_epochs=fit.epochs,
        callbacks=callbacks,
        logger=[CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="tensorboard")],
        # A task may have no label in one process's batch, and a curve no row.
        strategy="ddp_find_unused_parameters_true" if world > 1 else "auto",
        devices=local if world > 1 else "auto",
        num_nodes=world // local,
        limit_val_batches=None if fit.held_out else 0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the log deals out its rows itself
        enable_progress_bar=fit.progress,
        enable_model_summary=False,
    )


def _finish(trainer: lightning.Trainer, module: LogModule, best: ModelCheckpoint | None, folder: Path) -> Trained:
    """Put the best weights back into the model, write them, and say what came of it."""
    loss = None
    if best is not None and best.best_model_path:
        saved = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
        module.load_state_dict(saved["state_dict"])
        loss = None if best.best_model_score is None else float(best.best_model_score)
    weights = folder / "model.safetensors"
    if trainer.is_global_zero:
        part = weights.with_suffix(".part")
        save_model(module.model, str(part))
        part.replace(weights)
    trainer.strategy.barrier()
    return Trained(module.model, loss, trainer.current_epoch, folder / "last.ckpt", weights)


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Put the weights that `train` wrote into a model built by the same constructor."""
    if not Path(path).is_file():
        raise InputError(f"weights: expected a file that train wrote, got {str(path)!r}; check the path")
    load_model(model, str(path))
    return model
