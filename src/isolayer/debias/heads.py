r"""`DualHead`: relevance and its bias learned together, of which only relevance is served.

For each task a backbone gives a relevance logit :math:`r`, and the log is explained by a monotone curve over it that
depends on where and how the item was shown: :math:`\hat y = \sigma(f_{task, context}(r))`. Other ways to remove bias
are in `baselines`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.debias.loss import Heads, Labels, PerTask, per_task, stacked_labels, weighted_bce
from isolayer.debias.serving import BIAS_RATE, Relevance, Serving
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.functional import knot_values
from isolayer.nn.isotonic import IsotonicLayer, slopes

COARSE = Grid(step=2.5)  # of the curves of contexts
FINE = Grid(step=0.05)  # of the one curve a task that is served


class ReferencedCurves(ContextIsotonicLayer):
    """Context curves measured from a reference context, whose curve is the base curve, and for held units the identity.

    Relevance and curves explain the same labels: without a fixed point any monotone map could move from one to the
    other. A held unit has its fixed point here: relevance is what would be observed in the reference context.
    The ids of the reference stand for "no difference" (id -1), so this holds at any parameters. The bias of a curve
    learns ``BIAS_RATE`` times as fast as its slopes: as long as biases lag behind, the backbone absorbs their effect.

    Args:
        contexts: Name and number of ids of each context feature.
        reference: The id of each feature that counts as the reference.
        held: For each unit, whether its reference curve is the identity.
        grid: Bounds and bucket width.
        mode: ``"sum"`` or ``"cross"``, as in `ContextIsotonicLayer`.

    >>> curves = ReferencedCurves({"position": 3}, reference={"position": 0}, held=[True])
    >>> _ = nn.init.normal_(curves.base.weight)
    >>> curves(torch.tensor([0.5]), {"position": torch.tensor([0])}).detach()
    tensor([[0.5000]])
    """

    held: Tensor

    def __init__(
        self,
        contexts: Mapping[str, int],
        *,
        reference: Mapping[str, int],
        held: Sequence[bool],
        grid: Grid | None = None,
        mode: Literal["sum", "cross"] = "sum",
    ) -> None:
        super().__init__(contexts, units=len(held), grid=grid, mode=mode, extrapolation="extend")
        self.reference = dict(reference)
        self.register_buffer("held", torch.tensor(list(held)), persistent=False)
        self.all_held = all(held)
        self.base.requires_grad_(not self.all_held)
        self.curve_lr_factors = {"base.bias": BIAS_RATE} | {
            f"tables.{i}.bias": BIAS_RATE for i in range(len(self.tables))
        }

    def forward(self, logit: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Observed logits of each row in its context, ``[batch, units]``."""
        return super().forward(logit, self._measured(context))

    def knot_values(self, context: Mapping[str, Tensor]) -> Tensor:
        """Values at the grid's knots for each given context, ``[contexts, units, buckets + 1]``."""
        return super().knot_values(self._measured(context))

    def _measured(self, context: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ids = {name: context[name] for name in self.contexts if name in context}
        at = {name: key == self.reference[name] for name, key in ids.items()}
        if self.mode == "cross" and at:  # one table of combinations: only the whole reference has no difference
            at = dict.fromkeys(ids, torch.stack(list(at.values())).all(0))
        return {name: torch.where(at[name], -1, key) for name, key in ids.items()}

    def _knots(self, bias: Tensor, weight: Tensor) -> Tensor:
        offset = weight.view(-1, self.units, self.grid.buckets)
        weight = offset + 1.0
        if not self.all_held:
            weight = torch.where(self.held.unsqueeze(1), weight, self.base.weight + offset)
            bias = torch.where(self.held, bias, self._base_bias() + bias)
        slope = slopes(weight, self.base.constraint, leaky_gradient=self.base.leaky_gradient)
        return knot_values(slope, bias, grid=self.grid)

    def _base_bias(self) -> Tensor:
        assert self.base.bias is not None  # as constructed above
        return self.base.bias


class DualHead(nn.Module):
    r"""Relevance for serving, and a monotone curve over it for every task and context to explain the log.

    :math:`\mathcal L = \sum_t \alpha_t\, BCE(y_t, served_t) + \beta_t\, BCE(y_t, f_{t, context}(r_t))`.

    What the alpha loss trains is the anchor. ``"joint"``, the paper's: the relevance logit itself, which keeps it
    calibrated on the log and pulls it back towards the confounded label rate. ``"detached"``: one monotone curve a task
    over ``relevance_logit.detach()``, which gives the served probability and cannot change the ranking. Where the
    logger ranked by something the features do not tell, a joint alpha helps; everywhere else use ``"detached"``.

    Without a joint alpha nothing but the curves ties relevance to a scale, so for such a task the curve of the
    reference context is the identity: relevance is the logit of what would be observed there.

    A decreasing task, such as skip, is less likely the more relevant the item: its relevance logit still rises with
    relevance, and the curves (and the alpha loss) read its negative. So every relevance logit may be added to another.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        tasks: Names of the labels.
        contexts: Name and number of ids of each bias feature.
        alpha: Weight of the loss of the served probability, for all tasks or each.
        beta: Weight of the loss of the observed logit, for all tasks or each.
        anchor: ``"joint"`` or ``"detached"``.
        wiring: ``"curve"``, curves over the relevance logit; ``"parallel"``, curves over a second logit of the same
            backbone, kept for comparison: it does not debias.
        decreasing: Tasks whose label is less likely with more relevance.
        reference: Id of each context feature that counts as the reference; by default 0.
        grid: Bounds and bucket width of the context curves; beyond it they go on with slope 1. The default is coarse:
            a curve a context is learned from that context's rows, and on 150,000 rows wide buckets ranked best.
        mode: ``"sum"`` adds an embedding a context feature; ``"cross"`` gives every combination its own curve.

    >>> model = DualHead(nn.Linear(4, 8), width=8, tasks=("click",), contexts={"position": 10})
    >>> outputs = model(torch.zeros(5, 4), {"position": torch.arange(5)})
    >>> model.loss(outputs, {"click": torch.ones(5)}).shape, outputs["click"].relevance_logit.shape
    (torch.Size([]), torch.Size([5]))
    """

    sign: Tensor
    alphas: Tensor
    betas: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        tasks: Sequence[str] = ("click", "skip", "long_dwell"),
        contexts: Mapping[str, int] | None = None,
        alpha: PerTask = 0.25,
        beta: PerTask = 0.75,
        anchor: Literal["joint", "detached"] = "joint",
        wiring: Literal["curve", "parallel"] = "curve",
        decreasing: Sequence[str] = (),
        reference: Mapping[str, int] | None = None,
        grid: Grid | None = None,
        mode: Literal["sum", "cross"] = "sum",
    ) -> None:
        super().__init__()
        contexts = {"position": 20, "device": 3} if contexts is None else dict(contexts)
        self.tasks, self.decreasing = checked_tasks(tasks, decreasing)
        self.alpha, self.beta = per_task("alpha", alpha, self.tasks), per_task("beta", beta, self.tasks)
        _check_wiring(anchor, wiring, self.alpha)
        self.anchor, self.wiring = anchor, wiring
        self.backbone = backbone
        self.relevance = Relevance(width, len(self.tasks))
        self.parallel = Relevance(width, len(self.tasks)) if wiring == "parallel" else None
        held = [wiring == "curve" and (anchor == "detached" or self.alpha[task] == 0) for task in self.tasks]
        self.context_curves = ReferencedCurves(
            contexts, reference=_checked_reference(reference, contexts), held=held, grid=grid or COARSE, mode=mode
        )
        self.served_curve = (
            IsotonicLayer(len(self.tasks), grid=FINE, extrapolation="extend") if anchor == "detached" else None
        )
        self.register_buffer("sign", torch.tensor([-1.0 if task in self.decreasing else 1.0 for task in self.tasks]))
        for name, numbers in (("alphas", self.alpha), ("betas", self.beta)):
            self.register_buffer(name, torch.tensor(list(numbers.values())), persistent=False)

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> dict[str, Heads]:
        """Logits of every task.

        Args:
            features: Whatever the backbone takes.
            context: Ids ``[batch]`` of each context feature; -1 is unknown.
        """
        hidden = self.backbone(features)
        relevance = self.relevance(hidden)  # [batch, tasks]
        event = relevance * self.sign if self.decreasing else relevance
        observed = self.context_curves(event if self.parallel is None else self.parallel(hidden), context)
        served = event if self.served_curve is None else self.served_curve(event.detach())
        columns = zip(relevance.unbind(1), observed.unbind(1), served.unbind(1), strict=True)
        return {task: Heads(*logits) for task, logits in zip(self.tasks, columns, strict=True)}

    def loss(
        self,
        outputs: Mapping[str, Heads],
        labels: Labels,
        mask: Mapping[str, Tensor] | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Weighted sum of both heads' log losses over the tasks.

        Args:
            outputs: What `forward` returned.
            labels: Labels in [0, 1] of each task, ``[batch]``.
            mask: For some tasks, which rows have a label; the others' labels are not read.
            weight: Weight of each row, ``[batch]``.
        """
        observed = torch.stack([outputs[task].observed_logit for task in self.tasks], dim=1)
        label, weights = stacked_labels(self.tasks, labels, mask, weight, observed)
        total = (self.betas * weighted_bce(observed, label, weights)).sum()
        if any(self.alpha.values()):
            served = torch.stack([outputs[task].served_logit for task in self.tasks], dim=1)
            total = total + (self.alphas * weighted_bce(served, label, weights)).sum()
        return total

    def serving(self) -> Serving:
        """A copy that takes features alone: relevance and, with the detached anchor, its calibration; no context."""
        curve = None if self.served_curve is None else FrozenCurves.from_layer(self.served_curve)
        return Serving(self.backbone, self.relevance, tasks=self.tasks, decreasing=self.decreasing, curve=curve)

    @torch.no_grad()
    def refit_served(self, features: Tensor, labels: Labels, weight: Tensor | None = None) -> Self:
        """Fit the served curve exactly to these rows, as the last step of training; relevance stays as it is.

        By gradient the curve lags behind relevance, which moves until the end. The curve may be flat: rank by the
        relevance logit, which has no ties. Needs the detached anchor.

        Args:
            features: Whatever the backbone takes; logged traffic, the training rows will do.
            labels: 0 or 1 of each task, ``[batch]``; NaN where there is none.
            weight: Weight of each row, ``[batch]``.
        """
        if self.served_curve is None:
            raise InputError("refit_served: expected anchor='detached', got 'joint'; relevance itself is served there")
        training = self.training
        event = (self.eval().relevance(self.backbone(features)) * self.sign).double().cpu().numpy()
        self.train(training)
        values, grid = [], self.served_curve.grid
        for unit, task in enumerate(self.tasks):
            label = labels[task].double().cpu().numpy()
            known = ~np.isnan(label)
            weights = None if weight is None else weight.double().cpu().numpy()[known]
            rows = Histogram.from_arrays(event[known, unit], label[known], weight=weights, grid=grid)
            # Flat where more relevance is logged with fewer labels: there a curve that rises is not calibrated.
            values.append(Curves.from_histogram(rows, strict=False).values[0])
        self.served_curve.set_values(torch.from_numpy(np.stack(values)))
        return self

    @torch.no_grad()
    def curves(self) -> Curves:
        """The learned curves, contexts ``("task", ...)``: logit of the event by relevance to that in the context.

        A decreasing task's curve reads the negated relevance logit. A context that is partly unknown stands above the
        contexts it could be, and has the curve that id -1 has.

        >>> model = DualHead(nn.Linear(4, 8), width=8, tasks=("click",), contexts={"position": 10})
        >>> model.curves().predict_proba([0.0], {"task": ["click"], "position": [3]}).round(4).tolist()
        [0.5]
        """
        layer, names = self.context_curves, list(self.context_curves.contexts)
        keys: list[tuple[np.ndarray, ...]] = [()]
        values = [layer.grid.knots[None, 1:]]  # over all tasks: the identity
        for level in range(len(names) + 1):
            ids = list(itertools.product(*(range(size) for size in list(layer.contexts.values())[:level])))
            table = torch.tensor(ids, dtype=torch.long, device=self.sign.device).view(len(ids), level)
            unknown = table.new_full((len(ids), len(names) - level), -1)
            context = dict(zip(names, torch.cat([table, unknown], dim=1).unbind(1), strict=True))
            knots = layer.knot_values(context).transpose(0, 1)[..., 1:]  # [tasks, contexts, buckets]
            values.append(knots.reshape(-1, layer.grid.buckets).double().cpu().numpy())
            task = np.repeat(np.array(self.tasks), len(ids))
            keys.append((task, *(np.tile(column.cpu().numpy(), len(self.tasks)) for column in table.unbind(1))))
        table_ = np.concatenate(values)
        nothing = np.zeros_like(table_)
        return Curves(layer.grid, ("task", *names), tuple(keys), table_, nothing, nothing, np.zeros(len(table_)))

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return (
            f"tasks={self.tasks}, alpha={self.alpha}, beta={self.beta}, anchor={self.anchor!r}, wiring={self.wiring!r}"
        )


def checked_tasks(tasks: Sequence[str], decreasing: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Task names, distinct, and those of them that are decreasing.

    >>> checked_tasks(["click", "skip"], ["skip"])
    (('click', 'skip'), ('skip',))
    """
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    falling = (decreasing,) if isinstance(decreasing, str) else tuple(decreasing)
    if not names or len(set(names)) < len(names):
        raise InputError(f"tasks: expected distinct names, got {list(names)}; name each label once")
    if not set(falling) <= set(names):
        raise InputError(f"decreasing: expected some of {list(names)}, got {list(falling)}; name tasks only")
    return names, falling


def _check_wiring(anchor: str, wiring: str, alpha: Mapping[str, float]) -> None:
    if anchor not in ("joint", "detached"):
        raise InputError(f"anchor: expected 'joint' or 'detached', got {anchor!r}; 'joint' is the paper's")
    if wiring not in ("curve", "parallel"):
        raise InputError(f"wiring: expected 'curve' or 'parallel', got {wiring!r}; use 'curve'")
    if wiring == "parallel" and (anchor == "detached" or not all(alpha.values())):
        raise InputError(
            "wiring: expected alpha > 0 and anchor='joint' with 'parallel', got one no loss trains; use 'curve'"
        )


def _checked_reference(reference: Mapping[str, int] | None, contexts: Mapping[str, int]) -> dict[str, int]:
    ids = dict.fromkeys(contexts, 0) | dict(reference or {})
    for name, id_ in ids.items():
        if name not in contexts or not 0 <= id_ < contexts[name]:
            known = {key: f"0 to {size - 1}" for key, size in contexts.items()}
            raise InputError(f"reference: expected an id of {known}, got {name}={id_}; choose another")
    return ids
