"""Train a debiasing model from Parquet logs: progress, early stopping, checkpoints, resume, new days, many processes.

`train` is the main entry point; its parts are in `lightning_module`, for those who run their own trainer.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning
import torch
import torch.distributed
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import Strategy
from torch import nn

from isolayer.debias.heads import DualHead
from isolayer.debias.referenced_curves import ReferencedCurves
from isolayer.debias.served_probability import ServedProbability
from isolayer.errors import InputError
from isolayer.training.backbone import TableBackbone
from isolayer.training.checkpoints import read_checkpoint, start_from
from isolayer.training.columns import Columns
from isolayer.training.leaks import too_good
from isolayer.training.lightning_module import HELD_OUT_LOSS, LOG_EVERY, LogData, LogModule
from isolayer.training.log_check import check_log
from isolayer.training.mistakes import told_to_all
from isolayer.training.model_folder import (
    CURVES,
    SERVING,
    WEIGHTS,
    ModelColumns,
    context_sizes,
    load_weights,
    save_model_folder,
)
from isolayer.training.outcome import context_effects, sample, wrong_directions
from isolayer.training.parquet_batches import ParquetLogs
from isolayer.training.processes import OneMessage, SameBuffers
from isolayer.training.served_curve import refit_served
from isolayer.vocabularies import Vocabulary

__all__ = ["Fit", "Trained", "load_weights", "train"]

_FASTEST = 1e6  # larger factors of learning rates overflow float32
_REFRESH = 20  # steps after which the progress bar is drawn again: drawing takes longer than a small step
_OUR_CHOICES = (  # warnings of Lightning about choices that are made here on purpose
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
        epochs: Maximal number of passes over the log.
        patience: Number of passes without a better held-out loss after which training stops.
        batch_size: Rows per batch, of all processes together: more processes take the same steps at the same rate.
        lr: Learning rate of everything but the curves.
        curve_lr: Factor by which curves learn faster.
        decay: Share of itself, times ``lr``, that every parameter but those of curves and sparse tables loses at each
            step; a network that sees a small log several times overfits less with it.
        held_out: Share of the rows held out; with 0, all rows are used for all the epochs.
        seed: Seed of everything random.
        progress: Whether to show a progress bar.
        weight: A column of row weights.
        list_id: The column of the list that each row belongs to: batches have whole lists, and whole lists are held
            out. The rows of a list follow one another in the log.
        allow_leaks: Whether features that give a label away are allowed.
    """

    epochs: int = 10
    patience: int = 2
    batch_size: int = 1024
    lr: float = 1e-3
    curve_lr: float = 10.0
    decay: float = 0.0
    held_out: float = 0.1
    seed: int = 0
    progress: bool = True
    weight: str | None = None
    list_id: str | None = None
    allow_leaks: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}; raise it")
        for name in ("lr", "curve_lr"):
            if not 0 < getattr(self, name) <= _FASTEST:
                raise InputError(
                    f"{name}: expected a positive number up to {_FASTEST:g}, got {getattr(self, name)}; choose another"
                )
        if not 0 <= self.decay * self.lr < 1:  # of a weight at each step
            raise InputError(f"decay: expected a number from 0 to below 1 / lr, got {self.decay}; try 0.1")


@dataclass(frozen=True)
class Trained:
    """The result of training.

    Args:
        model: The model, with the weights of the best pass.
        held_out_loss: Its log loss of observed labels on the held-out rows, averaged over tasks, or the model's own
            loss if that compares the rows of a list; None without held-out rows.
        epochs: Number of passes over the log.
        checkpoint: Weights and optimiser after the last pass, from which the next day can start.
        weights: The model's weights as safetensors.
        curves: The learned curves, or None for a model without curves.
        serving: What is served as ONNX, or None where the extra ``onnx`` is not installed.
        warnings: Sentences about what is doubtful in the result; also issued as Python warnings.
    """

    model: nn.Module
    held_out_loss: float | None
    epochs: int
    checkpoint: Path
    weights: Path
    curves: Path | None
    serving: Path | None
    warnings: tuple[str, ...] = ()


@told_to_all()
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
    vocabularies: Mapping[str, Vocabulary] | None = None,
) -> Trained:
    """Train a model on Parquet logs, and write the model, checkpoints and the course of the loss into a folder.

    The log is read once before training, and unusable columns are refused. After the last pass, the curve of the
    served probability is fitted exactly, whatever the model: ``click_prob`` is the probability of a click on traffic
    like that of the log, given the features and not the context. (`PositionPredictor` averages over contexts instead.)
    Tasks whose relevance contradicts that of the others are named in a warning, and so is a reference that no row has.
    Weights, curves and the ONNX model replace those of an earlier run together, or not at all. Under ``torchrun`` the
    same call trains in several processes, each with its share of the rows; the first of them writes.

    Args:
        model: Anything with `DualHead`'s interface; it is trained in place.
        logs: A Parquet file, a folder of files, or several of either.
        features: Numeric columns, or the name of one column of lists of equal length.
        tasks: Label columns in [0, 1]; a null means that the row has no label.
        contexts: Columns of context ids: integers from 0, or values of a vocabulary.
        folder: Where to write; see `model_folder`. Also ``last.ckpt``, ``best.ckpt`` and ``csv/``.
        fit: How to train.
        start: ``"resume"`` continues an interrupted run in this folder, if there is one. A path is the checkpoint of
            an earlier day, to continue from with this log alone. By default training starts from the model as it is.
        vocabularies: Values of the columns that hold no ids, see `vocabularies`; they are stored with the model.
    """
    fit, folder = fit or Fit(), Path(folder)
    lightning.seed_everything(fit.seed, verbose=False)
    for name, given, what in (("features", features, "column"), ("tasks", tasks, "label column")):
        if not given:
            raise InputError(f"{name}: expected at least one {what}, got none; name some")
    _check_lists(model, fit)
    columns = Columns(features, tasks, contexts, fit.weight, fit.list_id, vocabularies or {})
    log = ParquetLogs(logs, columns, held_out=fit.held_out, seed=fit.seed)
    rank, world = _joined()
    for part in (True, False):
        if not log.batches(batch_size=fit.batch_size, train=part, world=world) and (part or fit.held_out):
            got = f"{log.rows} rows for {world} processes" if world > 1 else f"{log.rows} rows"
            raise InputError(f"logs: expected rows to train on and to hold out, got {got}; use more rows")
    tied = [ids for part in model.modules() if isinstance(part, ReferencedCurves) for ids in part.references()]
    summary = check_log(log, context_sizes(model), references=tied, allow_leaks=fit.allow_leaks, rank=rank, world=world)
    known = ModelColumns.of(model, columns, summary)
    equal = fit.weight is None and summary.labelled and log.equal_rows(batch_size=fit.batch_size // world, world=world)
    rates = {"lr": fit.lr, "curve_lr": fit.curve_lr, "decay": fit.decay}
    module = LogModule(model, **rates, columns=known.to_json(), equal_rows=equal)
    resumed = folder / "last.ckpt" if start == "resume" and (folder / "last.ckpt").is_file() else None
    if resumed is not None:
        start_from(module, resumed, weights=False)
    elif start is not None and start != "resume":
        start_from(module, Path(start))
    for backbone in model.modules() if resumed is None else ():  # a run that is continued has its statistics
        if isinstance(backbone, TableBackbone):
            backbone.standardise(summary.mean, summary.std)
    best = ModelCheckpoint(folder, filename="best", monitor=HELD_OUT_LOSS, enable_version_counter=False)
    last = ModelCheckpoint(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    watch = [best, EarlyStopping(HELD_OUT_LOSS, patience=fit.patience)] if fit.held_out else []
    shared = [SameBuffers()] if world > 1 else []
    bar = [RichProgressBar(refresh_rate=_REFRESH)] if fit.progress else []
    trainer = _trainer(fit, folder, [*shared, *watch, *bar, last])
    with warnings.catch_warnings():
        for message in _OUR_CHOICES:
            warnings.filterwarnings("ignore", message)
        trainer.fit(module, LogData(log, batch_size=fit.batch_size), ckpt_path=resumed, weights_only=True)
    loss = _restore_best(module, best) if fit.held_out else None
    if isinstance(model, ServedProbability):
        refit_served(model, log, rank=trainer.global_rank, world=trainer.world_size)
    own_loss = getattr(model, "needs_lists", False)  # which is no log loss
    doubt = too_good(loss, summary.rates) if loss is not None and not own_loss else ""
    return _finish(trainer, module, known, log, folder, loss, [*summary.doubts(), *([doubt] if doubt else [])])


def _joined() -> tuple[int, int]:
    """Rank of this process and number of processes; those that torchrun started are joined here, not by Lightning."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return 0, 1
    if not torch.distributed.is_initialized():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if torch.cuda.is_available():
            torch.cuda.set_device(local)
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    atexit.unregister(_leave)
    atexit.register(_leave)
    return torch.distributed.get_rank(), world


def _leave() -> None:
    """Leave the process group at the end of the process: threads of gloo that are left would abort it.

    The group ends with the last object that holds it, and models in torch's `DistributedDataParallel` do.
    """
    if torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


def _check_lists(model: nn.Module, fit: Fit) -> None:
    """Raise if the model compares the rows of a list, and the lists are not known."""
    if getattr(model, "needs_lists", False) and fit.list_id is None:
        raise InputError(
            f"list_id: expected the column of the list each row belongs to, since {type(model).__name__} compares the "
            "rows of a list, got none; name it in Fit, and keep the rows of a list together in the log"
        )


def _trainer(fit: Fit, folder: Path, callbacks: list[Callback]) -> lightning.Trainer:
    for name in ("lightning.pytorch", "lightning.fabric"):  # they list devices and advertise products
        logging.getLogger(name).setLevel(logging.WARNING)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return lightning.Trainer(
        max_epochs=fit.epochs,
        callbacks=callbacks,
        logger=CSVLogger(folder, name="csv"),
        strategy=_strategy(world),
        devices=local if world > 1 else "auto",
        num_nodes=world // local,
        limit_val_batches=None if fit.held_out else 0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # `LogBatches` distributes the rows itself
        enable_progress_bar=fit.progress,
        enable_model_summary=False,
        log_every_n_steps=LOG_EVERY,
    )


def _strategy(world: int) -> str | Strategy:
    if world == 1:
        return "auto"
    # A batch of one process may lack labels of a task, or rows of a context, whose parameters get no gradient then.
    return "ddp_find_unused_parameters_true" if torch.cuda.is_available() else OneMessage()


def _restore_best(module: LogModule, best: ModelCheckpoint) -> float | None:
    """Put the weights of the best pass back into the model, and return its held-out loss."""
    if not best.best_model_path:
        return None
    module.load_state_dict(read_checkpoint(Path(best.best_model_path))["state_dict"])
    return None if best.best_model_score is None else float(best.best_model_score)


def _finish(
    trainer: lightning.Trainer,
    module: LogModule,
    columns: ModelColumns,
    log: ParquetLogs,
    folder: Path,
    loss: float | None,
    doubts: list[str],
) -> Trained:
    """Write the model from the first process, and describe the result in all of them."""
    files: dict[str, Path | None] = {}
    model = module.model
    if trainer.is_global_zero:
        rows = sample(log)
        doubts = [*wrong_directions(model, rows), *doubts]
        effects = context_effects(model, rows) if isinstance(model, DualHead) else None
        files = save_model_folder(model, folder, columns, effects)
    files, doubts = trainer.strategy.broadcast((files, doubts))
    for doubt in doubts if trainer.is_global_zero else ():
        warnings.warn(doubt, stacklevel=3)
    paths = {"curves": files[CURVES], "serving": files[SERVING]}
    last = folder / "last.ckpt"
    return Trained(model, loss, trainer.current_epoch, last, folder / WEIGHTS, **paths, warnings=tuple(doubts))
