"""The paper's alternating procedure (section 4) by gradient: freeze a model, and train curves on top of it.

The exact counterpart is `calibrate`, in `posthoc`: it needs no learning rate and no epochs, and gives bands. Train
curves by gradient descent if they should keep learning with the model, or to compare with the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.convert import from_layer
from isolayer.nn.inputs import context_sizes, module, tensor
from isolayer.nn.isotonic import IsotonicLayer
from isolayer.nn.posthoc import logits_of, read_batch
from isolayer.nn.rates import RowAdam, parameter_groups
from isolayer.settings import choice, count, number, shown
from isolayer.settings import seed as checked_seed


class CurvesOnTop(nn.Module):
    """A frozen model with trained curves on top, one per task and segment: what `train_curves` returns.

    Args:
        model: Anything from inputs to logits, ``[batch]`` or ``[batch, tasks]``.
        layer: The curves: a unit per task.
    """

    def __init__(self, model: nn.Module, layer: IsotonicLayer | ContextIsotonicLayer) -> None:
        super().__init__()
        self.model, self.layer = model, layer

    def forward(self, inputs: Any, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Calibrated logits of the shape of the model's.

        Args:
            inputs: What the model takes; a tuple is given as several arguments.
            context: Ids ``[batch]`` of each segment feature; an unknown one has the base curve.
        """
        logit = logits_of(self.model, inputs)
        columns = logit.reshape(len(logit), -1)
        return self._curved(columns, context).view(logit.shape)

    def _curved(self, logit: Tensor, context: Mapping[str, Tensor] | None) -> Tensor:
        found: Tensor = self.layer(logit) if isinstance(self.layer, IsotonicLayer) else self.layer(logit, context)
        return found

    def curves(self) -> list[Curves]:
        """The curves of each task, to save, compare, and write as SQL."""
        return [from_layer(self.layer, unit=unit) for unit in range(self.layer.units)]


def train_curves(
    model: nn.Module,
    batches: Iterable[tuple[Any, ...]],
    *,
    contexts: Mapping[str, int] | None = None,
    mode: Literal["sum", "cross"] = "cross",
    grid: Grid | None = None,
    epochs: int = 30,
    batch_size: int = 4096,
    lr: float = 0.01,
    seed: int = 0,
) -> CurvesOnTop:
    """Freeze a model and train curves on top of it by gradient, one per task and segment.

    The model is run once over the batches, which should hold randomised traffic; its logits do not change afterwards.
    To alternate, unfreeze it with ``trained.model.requires_grad_(True)``, train it further, and call this again.

    Args:
        model: Anything from inputs to logits, ``[batch]`` or ``[batch, tasks]``. It is put into eval mode and frozen.
        batches: ``(inputs, labels)``, ``(inputs, labels, context)`` or ``(inputs, labels, context, weight)``. Labels
            have the shape of the logits; NaN means not observed. Weights are ``[batch]``, and 0 leaves a row out.
        contexts: Name and number of ids of each segment feature; -1 is unknown.
        mode: ``"cross"``, independent curves for every combination of segments, as in the paper; or ``"sum"``.
        grid: Where the knots are.
        epochs: Number of passes over the logits.
        batch_size: Rows per step.
        lr: Learning rate of the curves at the start; it decreases linearly to zero.
        seed: Seed of the order of rows.

    >>> overconfident = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(overconfident.weight, 3.0)
    >>> x = torch.linspace(-2, 2, 4001).unsqueeze(1)
    >>> label = torch.bernoulli(torch.sigmoid(x), generator=torch.Generator().manual_seed(0))
    >>> trained = train_curves(overconfident, [(x, label)], lr=0.03, batch_size=512)
    >>> bool((trained(x) - x).abs().mean() < 0.2)
    True
    """
    sizes = context_sizes({} if contexts is None else contexts)
    epochs, batch_size = count("epochs", epochs, advice="try 30"), count("batch_size", batch_size, advice="try 4096")
    choice("mode", mode, ("sum", "cross"), advice="'cross' is the paper's")
    lr, seed = number("lr", lr, 0, advice="try 0.01"), checked_seed("seed", seed)
    module("model", model).eval().requires_grad_(False)
    logit, label, weight, ids = _rows(model, batches, sizes)
    units = logit.shape[1]
    layer: IsotonicLayer | ContextIsotonicLayer = (
        ContextIsotonicLayer(sizes, units=units, grid=grid, mode=mode) if sizes else IsotonicLayer(units, grid=grid)
    )
    trained = CurvesOnTop(model, layer.to(logit.device))
    optimiser = RowAdam(parameter_groups(layer, lr, curve_lr=1))
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: 1 - epoch / epochs)
    order = torch.Generator().manual_seed(seed % 2**63)
    with torch.enable_grad():
        for _ in range(epochs):
            for rows in torch.randperm(len(logit), generator=order).to(logit.device).split(batch_size):
                found = trained._curved(logit[rows], {name: column[rows] for name, column in ids.items()})
                optimiser.zero_grad()
                (
                    binary_cross_entropy_with_logits(found, label[rows], weight[rows], reduction="sum") / len(rows)
                ).backward()
                optimiser.step()
            decay.step()
    layer.eval()
    return trained


def _rows(
    model: nn.Module, batches: Iterable[tuple[Any, ...]], sizes: Mapping[str, int]
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Logits, labels and weights ``[rows, tasks]`` and ids ``[rows]`` of all batches; weights have mean 1 per task."""
    if not isinstance(batches, Iterable) or isinstance(batches, Mapping | str | Tensor):
        raise InputError(f"batches: expected tuples of tensors, got {shown(batches)}; give [(inputs, labels), ...]")
    parts, weights = [], []
    for batch in batches:
        weighted = isinstance(batch, tuple | list) and len(batch) == 4
        parts.append(read_batch(model, batch[:3] if weighted else batch, sizes))
        weights.append(_weight(batch[3], len(parts[-1][0])) if weighted else torch.ones(len(parts[-1][0])))
    if not parts:
        raise InputError("batches: expected at least one batch, got none; a generator can be read only once")
    logit, label = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    known = ~label.isnan()
    if not bool(((label >= 0) & (label <= 1) | ~known).all()):
        raise InputError("labels: expected values in [0, 1], got something else; use NaN where there is no label")
    weight = torch.cat(weights).to(logit).unsqueeze(1) * known
    weight = weight / weight.mean(0).clamp(min=torch.finfo(weight.dtype).tiny)
    ids = {name: torch.cat([part[2][name] for part in parts]) for name in sizes}
    return logit, torch.where(known, label, 0).to(logit.dtype), weight, ids


def _weight(weight: Any, rows: int) -> Tensor:
    if tensor("weight", weight).shape != (rows,):
        raise InputError(f"weight: expected shape [{rows}], got {list(weight.shape)}; one weight per row")
    if not (bool(torch.isfinite(weight).all()) and bool((weight >= 0).all())):
        raise InputError("weight: expected finite numbers >= 0, got something else; check the column")
    found: Tensor = weight
    return found
