"""The folder of a trained model: files that belong together, replaced together, and checked when they are read.

    model.json          facts about the columns: names, order, context sizes, vocabularies, means
    model.safetensors   weights
    curves.parquet      the learned bias curves, of models that have some
    served.parquet      their served curves: from relevance to the served probability
    serving.onnx        what is served; needs the extra onnx
    manifest.json       digests of the files above

If the process is killed at any moment, the folder contains either the old model or the new one, never the weights of
one with an export of the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from isolayer.curves.curves import Curves
from isolayer.debias.export import export_onnx
from isolayer.debias.heads import DualHead
from isolayer.errors import InputError, MissingExtra, need
from isolayer.storage import read_set, whole_files
from isolayer.training.columns import Columns
from isolayer.training.log_check import LogSummary

COLUMNS, WEIGHTS, SERVING, MANIFEST = "model.json", "model.safetensors", "serving.onnx", "manifest.json"
CURVES, SERVED = "curves.parquet", "served.parquet"
FORMAT = 2  # 2: vocabularies


@dataclass(frozen=True)
class ModelColumns:
    """Facts about the columns that a model was trained on, stored with its weights and inside its ONNX export.

    Args:
        features: Names of the feature columns in the model's order, or the name of one column of lists.
        width: Number of features.
        mean: Mean of each feature in training, ``[width]``.
        std: Standard deviation of each feature in training, ``[width]``.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.
        contexts: Name of each context feature, and its number of ids where the model declares it.
        vocabularies: Values of the columns that hold no ids: the id of a value is its index, counted from 0 in contexts
            and from 1 in features, where 0 is unknown.
        format: Version of this description.
    """

    features: str | list[str]
    width: int
    mean: list[float]
    std: list[float]
    tasks: list[str]
    decreasing: list[str]
    contexts: dict[str, int | None]
    vocabularies: dict[str, list[Any]] = field(default_factory=dict)
    format: int = FORMAT

    @classmethod
    def of(cls, model: nn.Module, columns: Columns, summary: LogSummary) -> ModelColumns:
        """Describe a model, the columns it is trained on, and their values."""
        sizes = context_sizes(model)
        return cls(
            features=columns.features if isinstance(columns.features, str) else list(columns.features),
            width=len(summary.mean),
            mean=summary.mean.tolist(),
            std=summary.std.tolist(),
            tasks=list(columns.tasks),
            decreasing=list(getattr(model, "decreasing", ())),
            contexts={name: sizes.get(name) for name in columns.contexts},
            vocabularies={name: list(found.values) for name, found in columns.vocabularies.items()},
        )

    @classmethod
    def load(cls, folder: str | Path) -> ModelColumns:
        """Read the description that a training run left in a folder."""
        return _parsed(read_set(Path(folder) / MANIFEST, COLUMNS)[COLUMNS], Path(folder) / COLUMNS)

    def to_json(self) -> dict[str, Any]:
        """The description as JSON values."""
        return asdict(self)


def context_sizes(model: nn.Module) -> dict[str, int]:
    """Number of ids of each context feature that the modules of a model declare; those that are hashed have none."""
    sizes: dict[str, int] = {}
    for module in model.modules():
        declared = getattr(module, "contexts", None)
        if isinstance(declared, Mapping) and not getattr(module, "hash_buckets", None):
            sizes |= declared
    return sizes


def save_model_folder(
    model: nn.Module, folder: Path, columns: ModelColumns, effects: Mapping[str, Any] | None = None
) -> dict[str, Path | None]:
    """Write everything that belongs to a trained model, at one commit point.

    Args:
        model: The model; the curves of a `DualHead`, and what any model with ``serving()`` serves, are written too.
        folder: Where to; it exists.
        columns: Facts about the model's columns.
        effects: Effects of the context features, see `context_effects`; kept with the curves.

    Returns:
        The path of each file, or None for a file that this model or this installation cannot have.
    """
    wrong = next((name for name, value in model.state_dict().items() if not _finite(value)), None)
    if wrong is not None:
        raise InputError(
            f"weights: expected finite numbers, got NaN or infinity in {wrong!r}; lower the learning rate, or "
            "check the features for extreme values"
        )
    names = [COLUMNS, WEIGHTS]
    names += [CURVES, SERVED] if isinstance(model, DualHead) else []
    names += [SERVING] if hasattr(model, "serving") and _can_export() else []
    with whole_files(*(folder / name for name in names), manifest=folder / MANIFEST, name="folder") as parts:
        _write(model, dict(zip(names, parts, strict=True)), columns, effects)
    for name in {CURVES, SERVED, SERVING} - set(names):  # left by an earlier model; the manifest no longer lists it
        (folder / name).unlink(missing_ok=True)
    return {name: folder / name if name in names else None for name in (COLUMNS, WEIGHTS, CURVES, SERVED, SERVING)}


def _write(
    model: nn.Module, parts: Mapping[str, Path], columns: ModelColumns, effects: Mapping[str, Any] | None
) -> None:
    parts[COLUMNS].write_text(json.dumps(columns.to_json(), indent=1) + "\n")
    state = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    parts[WEIGHTS].write_bytes(save(state))
    if isinstance(model, DualHead):
        curves = _by_value(model.curves("bias"), columns.vocabularies)
        replace(curves, source={**curves.source, "effects": dict(effects or {})}).save(parts[CURVES])
        model.curves("calibration").save(parts[SERVED])
    if SERVING in parts:
        export_onnx(model.serving().cpu(), parts[SERVING], columns.to_json())  # type: ignore[operator]


def _by_value(curves: Curves, vocabularies: Mapping[str, list[Any]]) -> Curves:
    """Curves whose contexts are values of the log instead of ids; both are in the same order."""
    values = {name: np.array(found) for name, found in vocabularies.items()}
    keys = [
        tuple(values[name][key] if name in values else key for name, key in zip(curves.contexts, level, strict=False))
        for level in curves.keys
    ]
    return replace(curves, keys=tuple(keys))


def load_weights(model: nn.Module, folder: str | Path) -> nn.Module:
    """Put the weights that `train` left in a folder into a model built by the same constructor.

    Args:
        model: The model, with the tasks and contexts of the one that was trained.
        folder: The folder.
    """
    folder = Path(folder)
    files = read_set(folder / MANIFEST, COLUMNS, WEIGHTS)
    columns = _parsed(files[COLUMNS], folder / COLUMNS)
    tasks = list(getattr(model, "tasks", columns.tasks))
    if tasks != columns.tasks:
        raise InputError(f"model: expected the tasks {columns.tasks}, got {tasks}; build it as it was trained")
    try:
        model.load_state_dict(load(files[WEIGHTS]))
    except (SafetensorError, RuntimeError) as error:
        raise InputError(
            f"weights: expected those of the same model in {str(folder / WEIGHTS)!r}, got something else; build the "
            "model with the widths, tasks and contexts it was trained with"
        ) from error
    return model


def _finite(value: torch.Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _can_export() -> bool:
    try:
        for package in ("onnx", "onnxruntime", "onnxscript"):
            need(package)
    except (MissingExtra, ModuleNotFoundError):
        return False
    return True


def _parsed(content: bytes, path: Path) -> ModelColumns:
    try:
        found = json.loads(content)
        if found["format"] > FORMAT:
            raise InputError(f"model: expected format {FORMAT} or older in {str(path)!r}, got newer; upgrade isolayer")
        columns = ModelColumns(**found)
        if columns.width == len(columns.mean) == len(columns.std) and all(map(math.isfinite, columns.mean)):
            return columns
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"model: expected a description of columns in {str(path)!r}, got something else; train it again")
