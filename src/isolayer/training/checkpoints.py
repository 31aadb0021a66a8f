"""Checkpoints of Lightning, verified when they are read: complete, of the same model, and of the same columns."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from isolayer.errors import InputError
from isolayer.storage import read_once
from isolayer.training.lightning_module import COLUMNS, LogModule

_CORRUPT = (
    EOFError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    UnpicklingError,
    ValueError,
    zipfile.BadZipFile,
)

# Served curves that are fitted after training; checkpoints of 0.1.0 lack them.
_FITTED_LATER = tuple(f"model.served_curve.{name}" for name in ("intercept", "slope", "first"))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint; an `InputError` if the file is not one, or is damaged.

    torch.load does not verify checksums, so a flipped bit would be loaded as another weight. The zip file has them.

    Args:
        path: What an earlier run wrote, such as ``last.ckpt``.
    """
    content = io.BytesIO(read_once(path, "a checkpoint of an earlier run", name="start"))
    try:
        damaged = zipfile.ZipFile(content).testzip()
        content.seek(0)
        saved = None if damaged else torch.load(content, map_location="cpu", weights_only=True)
    except _CORRUPT as error:
        raise InputError(_refusal(path, "a damaged file, or another kind of file")) from error
    if not (isinstance(saved, dict) and {"state_dict", "optimizer_states"} <= set(saved)):
        raise InputError(_refusal(path, "a damaged file, or another kind of file"))
    return saved


def start_from(module: LogModule, path: Path, *, weights: bool = True) -> None:
    """Verify that a checkpoint belongs to a model, and take its weights and the optimiser's averages.

    Args:
        module: The model.
        path: The checkpoint.
        weights: Whether to load the weights, or only to verify that they could be loaded.
    """
    saved = read_checkpoint(path)
    difference = _difference(saved.get(COLUMNS, {}), module.columns)
    if difference:
        raise InputError(_refusal(path, f"one with {difference}"))
    now = module.state_dict()
    state, optimiser = saved["state_dict"], saved["optimizer_states"]
    if isinstance(state, dict):
        state = {name: now[name] for name in _FITTED_LATER if name in now} | state
    if not isinstance(state, dict) or {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in now.items()}:
        raise InputError(_refusal(path, "one with weights of other shapes"))
    if weights:
        module.load_state_dict(state)
        module.optimiser_state = optimiser[0]


def _difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How the columns of a checkpoint differ from those of a model, in words; empty if they do not."""
    for name in ("features", "tasks", "decreasing", "contexts"):
        if saved.get(name) != now.get(name):
            return f"{name} {saved.get(name)} instead of {now.get(name)}"
    old, new = (columns.get("vocabularies") or {} for columns in (saved, now))
    other = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return f"another vocabulary of {', '.join(other)}" if other else ""


def _refusal(path: Path, got: str) -> str:
    return (
        f"start: expected a checkpoint of the same model at {str(path)!r}, got {got}; give the last.ckpt of a run with "
        "the same features, tasks, contexts and widths"
    )
