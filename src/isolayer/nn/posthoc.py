"""The paper's alternating procedure (section 4): freeze a model, fit curves to it exactly, and put them on top of it.

This is the second phase: the model may be trained in any way, and the result can be trained further.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.errors import InputError, need
from isolayer.fitting.hierarchy import Shrinkage
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid, grid_or
from isolayer.nn.context_ids import CURVE, checked_ids, slot_table, slots
from isolayer.nn.convert import Layer, from_layer, to_layer
from isolayer.nn.inputs import context_sizes, module, tensor
from isolayer.settings import flag, number, shown
from isolayer.storage import read_once, whole_file

_BLOCK = 1_000_000  # rows kept before they are added to the histograms
_MOST_COMBINATIONS = 50_000_000  # most entries of the table from ids to curves
_FORMAT = "isolayer calibrated model 1"


class CalibratedModel(nn.Module):
    """A model with fitted curves on top, one per task and context: what `calibrate` returns.

    Its ``curves`` are those of the exact fit, with their bands and counts: save them, compare them, write them as SQL.
    Its ``layers``, one per task, start as these curves and have ordinary parameters. For serving, the curves are
    fastest as ``FrozenCurves.from_curves(calibrated.curves, calibrated.contexts)``.

    Args:
        model: Anything from inputs to logits, ``[batch]`` or ``[batch, tasks]``.
        curves: The fitted curves of each task.
        contexts: Name and number of ids of each context feature, coarse to fine.

    >>> calibrated = CalibratedModel(nn.Identity(), [Curves.identity(Grid())], {})
    >>> calibrated(torch.tensor([0.5])).detach()
    tensor([0.5000])
    """

    row_of: Tensor

    def __init__(self, model: nn.Module, curves: Sequence[Curves], contexts: Mapping[str, int]) -> None:
        super().__init__()
        self.model, self.contexts, self.curves = model, dict(contexts), tuple(curves)
        self.layers = nn.ModuleList(to_layer(curve, dtype=torch.float32) for curve in self.curves)
        if contexts:
            rows = torch.as_tensor(_rows(self.curves, self.contexts), dtype=torch.int32)
            self.register_buffer("row_of", slot_table(rows, self.contexts), persistent=False)

    def forward(self, inputs: Any, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Calibrated logits of the shape of the model's.

        Args:
            inputs: What the model takes; a tuple is given as several arguments.
            context: Ids ``[batch]`` of each feature. An unknown id, -1 or one outside the table, is served by the next
                coarser curve.
        """
        logit = logits_of(self.model, inputs)
        columns = logit.reshape(len(logit), -1).unbind(1)
        if not self.contexts:
            parts = [layer(column) for layer, column in zip(self.layers, columns, strict=True)]
        else:
            rows = self.row_of.index_select(0, slots(context, self.contexts, len(logit))).unbind(1)
            tasks = zip(self.layers, columns, rows, strict=True)
            parts = [layer(column, {CURVE: row}) for layer, column, row in tasks]
        return torch.cat(parts, dim=1).view(logit.shape)

    def trained_curves(self) -> list[Curves]:
        """The curves of the layers as they are now, after training by gradient; bands and counts are still the fit's.

        >>> calibrated = CalibratedModel(nn.Identity(), [Curves.identity(Grid())], {})
        >>> calibrated.trained_curves()[0].decision_function([0.5]).round(4).tolist()
        [0.5]
        """
        pairs = zip(self.layers, self.curves, strict=True)
        return [from_layer(cast("Layer", layer), like=curve) for layer, curve in pairs]

    def save(self, path: str | PathLike[str]) -> None:
        """Write one safetensors file: the weights of the model and of the layers, the curves and the contexts."""
        tensors = {f"state.{name}": value.detach().cpu().clone() for name, value in self.state_dict().items()}
        facts = {"format": _FORMAT, "contexts": self.contexts, "tasks": len(self.curves)}
        tensors |= {f"curves.{task}": _tensor(_content(curve)) for task, curve in enumerate(self.curves)}
        tensors["facts"] = _tensor(json.dumps(facts | {"digest": _digest(tensors)}).encode())
        with whole_file(path) as part:
            need("safetensors.torch").save_file(tensors, str(part))

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> Self:
        """Read what :meth:`save` wrote.

        Args:
            path: The file.
            model: A model of the same architecture as the one that was calibrated; it takes the weights of the file,
                is put into eval mode and frozen.
        """
        tensors = _tensors(path)
        facts = json.loads(_bytes(tensors.pop("facts")))
        curves = [_curves(_bytes(tensors.pop(f"curves.{task}"))) for task in range(facts["tasks"])]
        calibrated = cls(model.eval().requires_grad_(False), curves, facts["contexts"])
        try:
            calibrated.load_state_dict({name.removeprefix("state."): value for name, value in tensors.items()})
        except RuntimeError as error:
            raise InputError(
                f"model: expected the architecture that {str(path)!r} was saved with, got another; "
                "build it with the same arguments"
            ) from error
        return calibrated


def calibrate(
    model: nn.Module,
    batches: Iterable[tuple[Any, ...]],
    *,
    contexts: Mapping[str, int] | None = None,
    grid: Grid | None = None,
    shrinkage: Shrinkage = "auto",
    strict: bool = True,
    negative_rate: float = 1.0,
) -> CalibratedModel:
    """Freeze a model and put on top of it the curves that calibrate it, one per task and context.

    The model is run once over the batches; its logits become a histogram, to which the curves are fitted exactly. The
    result can be served as it is, with its ``curves`` and `CalibratedModel.save`. Its layers have ordinary parameters,
    so training by gradient can continue: unfreeze the model with ``calibrated.model.requires_grad_(True)`` and use
    `isolayer.parameter_groups`.

    Args:
        model: Anything from inputs to logits, ``[batch]`` or ``[batch, tasks]``. It is put into eval mode and frozen.
        batches: ``(inputs, labels)`` or ``(inputs, labels, context)``. Labels have the shape of the logits; NaN means
            not observed. Use rows that the model was not trained on.
        contexts: Name and number of ids of each context feature, coarse to fine. Ids are ``0 .. size - 1``; -1 is
            unknown. Rows with an unknown id count towards the coarser curves, which also serve them.
        grid: Where the knots are.
        shrinkage: As in `isolayer.IsotonicCalibrator`.
        strict: Whether curves increase strictly.
        negative_rate: Share of the negatives that was kept when the rows were sampled; the curves are of real traffic.

    >>> overconfident = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(overconfident.weight, 3.0)
    >>> x = torch.linspace(-2, 2, 4001).unsqueeze(1)
    >>> label = torch.bernoulli(torch.sigmoid(x), generator=torch.Generator().manual_seed(0))
    >>> calibrated = calibrate(overconfident, [(x, label)])
    >>> bool((calibrated(x) - x).abs().mean() < 0.2)
    True
    >>> calibrated.curves[0].predict_proba([0.0]).round(1).tolist()
    [0.5]
    """
    sizes, grid = context_sizes({} if contexts is None else contexts), grid_or(grid)
    strict, kept = flag("strict", strict), "give the share of the negatives that was kept"
    negative_rate = number("negative_rate", negative_rate, 0, 1, ends="(]", advice=kept)
    module("model", model).eval().requires_grad_(False)
    if not isinstance(batches, Iterable) or isinstance(batches, Mapping | str | Tensor):
        raise InputError(f"batches: expected tuples of tensors, got {shown(batches)}; give [(inputs, labels), ...]")
    histograms: list[Histogram] = []
    held: list[_Rows] = []
    for batch in batches:
        held.append(read_batch(model, batch, sizes))
        if sum(len(logit) for logit, _, _ in held) >= _BLOCK:
            histograms, held = _added(histograms, held, grid, negative_rate), []
    if held:
        histograms = _added(histograms, held, grid, negative_rate)
    if not histograms:
        raise InputError("batches: expected at least one batch, got none; a generator can be read only once")
    curves = [Curves.from_histogram(histogram, shrinkage=shrinkage, strict=strict) for histogram in histograms]
    return CalibratedModel(model, [_without_unknown(curve) for curve in curves], sizes)


_Rows = tuple[Tensor, Tensor, dict[str, Tensor]]  # logits and labels [rows, tasks], ids [rows] of each feature


def logits_of(model: nn.Module, inputs: Any) -> Tensor:
    """Logits of a model, ``[batch]`` or ``[batch, tasks]``; a tuple of inputs is given as several arguments."""
    logit: Tensor = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if logit.dim() not in (1, 2):
        raise InputError(f"model: expected logits [batch] or [batch, tasks], got {list(logit.shape)}; wrap it")
    return logit


@torch.no_grad()
def read_batch(model: nn.Module, batch: tuple[Any, ...], sizes: Mapping[str, int]) -> _Rows:
    """Logits and labels ``[rows, tasks]`` and ids ``[rows]`` of one batch."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        raise InputError(f"batches: expected (inputs, labels) or those and a context, got {shown(batch)}; pair them")
    inputs, labels, *rest = batch
    logit = logits_of(model, inputs)
    if tensor("labels", labels).shape != logit.shape:
        raise InputError(
            f"labels: expected the shape of the logits, {list(logit.shape)}, got {list(labels.shape)}; align them"
        )
    rows, context = len(logit), rest[0] if rest else None
    ids = {name: checked_ids(context, name, size, training=True, batch=rows) for name, size in sizes.items()}
    return logit.reshape(rows, -1), labels.reshape(rows, -1), ids


def _added(histograms: list[Histogram], held: list[_Rows], grid: Grid, negative_rate: float) -> list[Histogram]:
    """The histogram of each task, with the given rows added."""
    logit = torch.cat([logit for logit, _, _ in held]).double().cpu().numpy()  # [rows, tasks]
    label = torch.cat([label for _, label, _ in held]).double().cpu().numpy()
    context = {name: torch.cat([ids[name] for _, _, ids in held]).cpu().numpy() for name in held[0][2]}
    new = []
    for task in range(logit.shape[1]):
        seen = ~np.isnan(label[:, task])
        columns = {name: ids[seen] for name, ids in context.items()}
        rows = logit[seen, task], label[seen, task], columns
        new.append(Histogram.from_arrays(*rows, negative_rate=negative_rate, grid=grid))
    return [old.merge(part) for old, part in zip(histograms, new, strict=True)] if histograms else new


def _without_unknown(curves: Curves) -> Curves:
    """The curves without those of id -1: a context that is unknown is served by its ancestor."""
    known = [np.ones(1, bool), *(np.all([key != -1 for key in keys], axis=0) for keys in curves.keys[1:])]
    keys = tuple(tuple(key[kept] for key in keys) for keys, kept in zip(curves.keys, known, strict=True))
    rows = np.concatenate(known)
    tables = {name: getattr(curves, name)[rows] for name in ("values", "variance", "knot_weight", "count")}
    return replace(curves, keys=keys, **tables)


def _rows(curves: Sequence[Curves], contexts: Mapping[str, int]) -> NDArray[np.int64]:
    """The row of each task's table for every combination of ids from -1, ``[combinations, tasks]``."""
    sizes = [size + 1 for size in contexts.values()]
    combinations = math.prod(sizes)
    if combinations > _MOST_COMBINATIONS:
        raise InputError(
            f"contexts: expected at most {_MOST_COMBINATIONS} combinations, got {combinations}; "
            "hash the largest feature into fewer ids"
        )
    ids = np.indices(sizes).reshape(len(sizes), combinations) - 1
    columns = dict(zip(contexts, ids, strict=True))
    return np.stack([curve.rows_of(columns, combinations) for curve in curves], axis=1)


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum over names, shapes and content."""
    digest = sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _content(curves: Curves) -> bytes:
    """The Parquet file of curves."""
    with tempfile.TemporaryDirectory() as folder:
        curves.save(Path(folder) / "curves.parquet")
        return (Path(folder) / "curves.parquet").read_bytes()


def _curves(content: bytes) -> Curves:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "curves.parquet").write_bytes(content)
        return Curves.load(Path(folder) / "curves.parquet")


def _tensors(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file that `CalibratedModel.save` wrote."""
    safetensors = need("safetensors.torch")
    content = read_once(path, "a calibrated model")
    try:
        tensors: dict[str, Tensor] = safetensors.load(content)
        facts = json.loads(_bytes(tensors["facts"]))
        rest = {name: tensor for name, tensor in tensors.items() if name != "facts"}
        good = facts["format"] == _FORMAT and facts["digest"] == _digest(rest)
    except (need("safetensors").SafetensorError, KeyError, ValueError, TypeError):
        good = False
    if not good:
        raise InputError(
            f"file: expected a complete file that CalibratedModel.save wrote, got {str(path)!r}; save it again"
        )
    return tensors
