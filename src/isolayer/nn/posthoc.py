"""The paper's alternating procedure (section 4): freeze a model, fit its curves exactly, put them on top of it.

Training the model is not known here: this is the second phase, and what it returns can be trained further by gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.hierarchy import Shrinkage
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.convert import table_layer
from isolayer.nn.isotonic import IsotonicLayer

_BLOCK = 1_000_000  # rows held before they become sums
_MOST_COMBINATIONS = 50_000_000  # entries of the table from ids to curves: 8 bytes each


class CalibratedModel(nn.Module):
    """A model with fitted curves on top, one a task and context: what `calibrate` returns.

    Args:
        model: Anything from inputs to logits, ``[batch]`` or ``[batch, tasks]``.
        curves: The fitted curves of each task.
        contexts: Name and number of ids of each context feature, coarse to fine.

    >>> calibrated = CalibratedModel(nn.Identity(), [Curves.identity(Grid())], {})
    >>> calibrated(torch.tensor([0.5])).detach()
    tensor([0.5000])
    """

    row_of: Tensor

    def __init__(self, model: nn.Module, curves: list[Curves], contexts: Mapping[str, int]) -> None:
        super().__init__()
        self.model, self.contexts = model, dict(contexts)
        if not contexts:
            self.layer: nn.Module = _layer(curves, None)
            return
        sizes = [size + 1 for size in contexts.values()]  # room for -1, which is unknown
        combinations = math.prod(sizes)
        if combinations > _MOST_COMBINATIONS:
            raise InputError(
                f"contexts: expected at most {_MOST_COMBINATIONS} combinations, got {combinations}; "
                "hash the largest feature into fewer ids"
            )
        ids = np.stack(np.unravel_index(np.arange(combinations), sizes), 1) - 1  # [combinations, features]
        columns = {name: ids[:, i] for i, name in enumerate(contexts)}
        # Each task has its own table of curves: a row of the layer stands for one choice of rows in all of them.
        served = np.stack([curve.rows_of(columns, combinations) for curve in curves], 1)  # [combinations, tasks]
        rows, row_of = np.unique(served, axis=0, return_inverse=True)
        self.register_buffer("row_of", torch.from_numpy(row_of.reshape(-1)))
        self.layer = _layer(curves, rows)

    def forward(self, inputs: Any, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Calibrated logits of the shape of the model's.

        Args:
            inputs: What the model takes; a tuple is given as several arguments.
            context: Ids ``[batch]`` of each feature; -1 is unknown.
        """
        logit = _logits(self.model, inputs)
        if not self.contexts:
            calibrated: Tensor = self.layer(logit)
        else:
            row = torch.zeros(len(logit), dtype=torch.int64, device=logit.device)
            for name, size in self.contexts.items():
                ids = (context or {}).get(name)
                if ids is None:
                    raise InputError(f"context: expected a tensor for {name!r}, got none; add it, or -1s")
                row = row * (size + 1) + torch.where(ids >= size, -1, ids).clamp(min=-1) + 1
            calibrated = self.layer(logit, {"row": self.row_of[row]})
        return calibrated.view(logit.shape)


def calibrate(
    model: nn.Module,
    batches: Iterable[tuple[Any, ...]],
    *,
    contexts: Mapping[str, int] | None = None,
    grid: Grid | None = None,
    shrinkage: Shrinkage = "auto",
    strict: bool = True,
) -> CalibratedModel:
    """Freeze a model and put on top of it the curves that calibrate it, one a task and context.

    The model is run once over the batches; its logits become a histogram and the curves are fitted exactly. The result
    serves as it is. Its ``layer`` has ordinary parameters, so that fine-tuning by gradient can go on from there: thaw
    the model with ``calibrated.model.requires_grad_(True)`` and use `isolayer.parameter_groups`.

    Args:
        model: Anything from inputs to logits, ``[batch]`` or ``[batch, tasks]``. It is put into eval mode and frozen.
        batches: ``(inputs, labels)`` or ``(inputs, labels, context)``. Labels have the shape of the logits; NaN means
            not observed. Use rows that the model was not trained on.
        contexts: Name and number of ids of each context feature, coarse to fine; ids are in ``0 .. size - 1``, -1 is
            unknown and served by the next coarser curve.
        grid: Where the knots are.
        shrinkage: As in `isolayer.IsotonicCalibrator`.
        strict: Whether curves increase strictly.

    >>> overconfident = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(overconfident.weight, 3.0)
    >>> x = torch.linspace(-2, 2, 4001).unsqueeze(1)
    >>> label = torch.bernoulli(torch.sigmoid(x), generator=torch.Generator().manual_seed(0))
    >>> calibrated = calibrate(overconfident, [(x, label)])
    >>> bool((calibrated(x) - x).abs().mean() < 0.2)
    True
    """
    model.eval().requires_grad_(False)
    sizes, grid = dict(contexts or {}), grid or Grid()
    histograms: list[Histogram] = []
    held: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []
    for batch in batches:
        held.append(_read(model, batch, sizes))
        if sum(len(logit) for logit, _, _ in held) >= _BLOCK:
            histograms, held = _added(histograms, held, grid), []
    if held:
        histograms = _added(histograms, held, grid)
    if not histograms:
        raise InputError("batches: expected at least one batch, got none; a generator can be read only once")
    curves = [Curves.from_histogram(histogram, shrinkage=shrinkage, strict=strict) for histogram in histograms]
    return CalibratedModel(model, curves, sizes)


def _logits(model: nn.Module, inputs: Any) -> Tensor:
    logit: Tensor = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if logit.dim() not in (1, 2):
        raise InputError(f"model: expected logits [batch] or [batch, tasks], got {list(logit.shape)}; wrap it")
    return logit


@torch.no_grad()
def _read(
    model: nn.Module, batch: tuple[Any, ...], sizes: Mapping[str, int]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits and labels ``[batch, tasks]`` and the ids of one batch."""
    inputs, labels, *rest = batch
    logit = _logits(model, inputs)
    if labels.shape != logit.shape:
        raise InputError(
            f"labels: expected the shape of the logits, {list(logit.shape)}, got {list(labels.shape)}; align them"
        )
    given = rest[0] if rest else {}
    missing = sorted(set(sizes) - set(given))
    if missing:
        raise InputError(f"batches: expected a context with {sorted(sizes)}, got none for {missing}; add it")
    rows = len(logit)
    return logit.reshape(rows, -1), labels.reshape(rows, -1), {name: given[name].reshape(rows) for name in sizes}


def _added(
    histograms: list[Histogram], held: list[tuple[Tensor, Tensor, dict[str, Tensor]]], grid: Grid
) -> list[Histogram]:
    """The sums of each task with those of the rows held."""
    logit = torch.cat([logit for logit, _, _ in held]).double().cpu().numpy()  # [rows, tasks]
    label = torch.cat([label for _, label, _ in held]).double().cpu().numpy()
    context = {name: torch.cat([ids[name] for _, _, ids in held]).cpu().numpy() for name in held[0][2]}
    new = []
    for task in range(logit.shape[1]):
        seen = ~np.isnan(label[:, task])
        columns = {name: ids[seen] for name, ids in context.items()}
        new.append(Histogram.from_arrays(logit[seen, task], label[seen, task], columns, grid=grid))
    return [old.merge(part) for old, part in zip(histograms, new, strict=True)] if histograms else new


def _layer(curves: list[Curves], rows: NDArray[np.int64] | None) -> IsotonicLayer | ContextIsotonicLayer:
    """The curves as a layer, one unit per task; ``rows [n, tasks]``, the row of each task's curve for every context."""
    grid, base = curves[0].grid, torch.as_tensor(np.stack([curve.values[0] for curve in curves]))
    if rows is None:
        return IsotonicLayer(len(curves), grid=grid, extrapolation="extend").set_values(base)
    values = np.stack([curve.values[rows[:, task]] for task, curve in enumerate(curves)], 1)  # [n, tasks, knots]
    return table_layer(torch.as_tensor(values), base, grid=grid, name="row")
