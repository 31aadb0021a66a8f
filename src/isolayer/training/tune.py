"""A small search over the settings of training: every trial is a separate run, and is saved when it is done.

An interrupted search continues where it stopped: finished trials are not repeated, and the one that was running resumes
from its checkpoint. A trial is known by its settings and its model, after which its folder is named, and a folder holds
the trials of one search, see `search_facts`: so no trial is reused for, or continued from, another one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from isolayer.errors import InputError
from isolayer.metrics import ndcg
from isolayer.storage import whole_file
from isolayer.training.columns import Columns
from isolayer.training.parquet_batches import ParquetLogs
from isolayer.training.search_facts import claim, digest, search_facts
from isolayer.training.train import Fit, train

TRIALS = "trials.jsonl"
ROWS = 200_000  # the k of nDCG against the truth
Settings = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Args:
        settings: What was tried: alpha, beta, lr, decay, dropout, and whatever else the search varied.
        held_out_loss: Log loss of the observed labels on held-out rows.
        truth: nDCG of the relevance of the first task against true relevance, where the log has it.
        epochs: Passes over the log.
        folder: Where the run wrote its model.
        warnings: Sentences about what is doubtful in the result, as in `Trained`.
    """

    settings: Settings
    held_out_loss: float
    truth: float | None
    epochs: int
    folder: str
    warnings: Sequence[str] = ()


def candidates(space: Mapping[str, Sequence[Any]], trials: int, seed: int = 0) -> list[Settings]:
    """The settings to try: the first value of everything, and then others at random, each once.

    Args:
        space: Values of each setting.
        trials: How many, at most all combinations.
        seed: Seed of the order.

    >>> candidates({"alpha": [0.25, 0.0], "lr": [1e-3]}, 5)
    [{'alpha': 0.25, 'lr': 0.001}, {'alpha': 0.0, 'lr': 0.001}]
    """
    first, *others = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    order = np.random.default_rng(seed).permutation(len(others))
    return [first, *(others[place] for place in order)][:trials]


def tune(
    make: Callable[[Settings], nn.Module],
    logs: str | Path | Sequence[str | Path],
    space: Mapping[str, Sequence[Any]],
    *,
    trials: int = 12,
    folder: str | Path,
    columns: Mapping[str, Any],
    fit: Fit | None = None,
    truth: str | None = None,
    setup: Mapping[str, Any] | None = None,
    report: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> list[Trial]:
    """Train one model for each of some settings, and return them, best first.

    The best has the highest nDCG against the truth if the log has it, and otherwise the lowest held-out loss.

    Args:
        make: Builds the model for given settings.
        logs: A Parquet file, a folder of files, or several of either.
        space: Values of each setting; ``"lr"`` and ``"decay"`` are those of training, the others are for ``make``.
        trials: How many to try.
        folder: Where to write; a search in this folder is continued. It must have the same log, columns, ``fit``,
            ``truth`` and ``setup``; ``space`` and ``trials`` may change.
        columns: ``features``, ``tasks``, ``contexts`` and ``vocabularies``, as `train` takes them.
        fit: How to train.
        truth: A column of true relevance, as simulated logs have it; needs the lists of the rows in ``fit``.
        setup: What else ``make`` depends on, by name, to be compared when the search is continued.
        report: Called with the number of finished trials, the number of all trials, and the settings being tried.
    """
    fit, folder = fit or Fit(), Path(folder)
    if trials < 1 or not all(len(values) for values in space.values()):
        raise InputError(f"trials: expected at least one, and values of every setting, got {trials}; give some")
    if fit.held_out <= 0 or (truth is not None and fit.list_id is None):
        raise InputError("fit: expected rows held out, and lists where the truth is known, got none; set them")
    wanted = candidates(space, trials, fit.seed)
    fits = [
        replace(fit, lr=one.get("lr", fit.lr), decay=one.get("decay", fit.decay)) for one in wanted
    ]  # checked first
    done = {Path(trial.folder).name: trial for trial in _read(folder / TRIALS)}
    claim(folder, search_facts(logs, columns, fit, truth, setup or {}), trials=bool(done))
    finished = []
    for place, settings in enumerate(wanted):
        report(place, len(wanted), ", ".join(f"{name} {value}" for name, value in settings.items()))
        model = make(settings)
        run = folder / _name(settings, fits[place], model)
        if run.name not in done:
            trained = train(model, logs, **columns, folder=run, fit=fits[place], start="resume")
            found = None if truth is None else _against_truth(trained.model, logs, columns, str(fit.list_id), truth)
            loss = np.inf if trained.held_out_loss is None else trained.held_out_loss
            done[run.name] = Trial(settings, float(loss), found, trained.epochs, str(run), trained.warnings)
            _write(folder / TRIALS, list(done.values()))
        finished.append(replace(done[run.name], folder=str(run)))
    report(len(wanted), len(wanted), "done")
    return sorted(finished, key=lambda trial: trial.held_out_loss if trial.truth is None else -trial.truth)


@torch.no_grad()
def _against_truth(model: nn.Module, logs: Any, columns: Mapping[str, Any], list_id: str, truth: str) -> float:
    """NDCG of the first task's relevance against true relevance, list by list."""
    task = columns["tasks"][0]
    reads = Columns(columns["features"], [], [truth], list_id=list_id, vocabularies=columns.get("vocabularies") or {})
    log = ParquetLogs(logs, reads, held_out=0)
    serving = model.serving()  # type: ignore[operator]
    score, true, lists = list[Any](), list[Any](), list[Any]()
    for group in log.row_groups:
        table = log.read(group)
        if table.num_rows:
            score.append(serving(torch.from_numpy(reads.matrix(table)))[task].numpy())
            true.append(table[truth].to_numpy())
            lists.append(np.array([f"{group.path} {one}" for one in table[list_id].to_pylist()]))
        if sum(map(len, score)) >= ROWS:
            break
    return float(ndcg(np.concatenate(true), np.concatenate(score), np.concatenate(lists)))


def _name(settings: Settings, fit: Fit, model: nn.Module) -> str:
    """The folder of a trial, by everything that it does not share with all trials of its search."""
    return f"trial-{digest([settings, fit.lr, fit.decay, str(model)])}"


def _read(path: Path) -> list[Trial]:
    if not path.is_file():
        return []
    try:
        return [Trial(**json.loads(line)) for line in path.read_text().splitlines()]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"folder: expected the trials of a search in {str(path)!r}, got something else; name another folder"
        ) from error


def _write(path: Path, trials: list[Trial]) -> None:
    with whole_file(path) as part:
        part.write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in trials))
