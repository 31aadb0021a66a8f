r"""`DualHead`: relevance and bias are learned together, and only relevance is served.

For each task a backbone gives a relevance logit :math:`r`, and the log is explained by a monotone curve over it that
depends on where and how the item was shown: :math:`\hat y = \sigma(f_{task, context}(r))`. Other ways to remove bias
are in `baselines`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.debias.head_curves import bias_curves, served_curves
from isolayer.debias.head_settings import check_wiring, checked_loss, checked_reference, checked_tasks
from isolayer.debias.lists import Lists, Outputs
from isolayer.debias.loss import (
    Heads,
    Labels,
    NegativeRate,
    PerTask,
    per_task,
    sampled,
    stacked_labels,
    stacked_logits,
    weighted_bce,
)
from isolayer.debias.ranking_loss import Ranking, level_loss, list_loss
from isolayer.debias.referenced_curves import ReferencedCurves
from isolayer.debias.served_probability import FINE, ServedProbability, unfitted_curve
from isolayer.debias.serving import Relevance, Serving
from isolayer.debias.towers import TowerRelevance, Towers
from isolayer.errors import InputError
from isolayer.grid import Grid, grid_or
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.inputs import context_sizes, module
from isolayer.nn.isotonic import IsotonicLayer
from isolayer.settings import choice

TASKS = ("click", "skip", "long_dwell")  # skip is a decreasing task
BIAS = Grid(step=0.5)  # grid of the context curves


class DualHead(ServedProbability):
    r"""Relevance for serving, and a monotone curve over it for every task and context to explain the log.

    :math:`\mathcal L = \sum_t \alpha_t\, BCE(y_t, served_t) + \beta_t\, BCE(y_t, f_{t, context}(r_t))`.

    The anchor decides what the alpha loss trains. ``"detached"``: one monotone curve per task over
    ``relevance_logit.detach()``, which gives the served probability and cannot change the ranking. ``"joint"``, the
    paper's: the relevance logit itself, which keeps it calibrated on the log and pulls it back towards the confounded
    label rate. Where the logger ranked by something that the features do not contain, a joint alpha helps; everywhere
    else use ``"detached"``.

    Without a joint alpha only the curves tie relevance to a scale, so for such a task the curve of the reference
    context is the identity: relevance is the logit of what would be observed there. Which tasks these are is decided
    when the model is built; ``alpha`` and ``beta`` themselves may be changed at any time, by assigning to them.

    A decreasing task, such as skip, is less likely the more relevant the item is: its relevance logit still rises with
    relevance, and the curves (and the alpha loss) read its negative. So relevance logits of all tasks can be added.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output or, with towers, of theirs.
        tasks: Names of the labels; by default ``click``, ``skip`` and ``long_dwell``.
        contexts: Name and number of ids of each bias feature. Beside one called ``position``, the others mostly shift
            curves: their slopes learn at a tenth of its rate.
        alpha: Weight of the loss of the served probability: one number for all tasks, or a number for each.
        beta: Weight of the loss of the observed logit, likewise.
        anchor: ``"detached"`` or ``"joint"``.
        wiring: ``"curve"``, curves over the relevance logit; ``"parallel"``, curves over a second logit of the same
            backbone, kept for comparison: it does not debias.
        decreasing: Tasks whose label is less likely with more relevance; by default none, and ``skip`` among the
            default tasks.
        reference: Id of each context feature that is the reference; by default the middle one, (ids - 1) // 2, or 0 if
            ids are hashed. Measured from the middle position no curve is much steeper than another, so relevance is
            learned better than from the first, under trust bias most of all.
        grid: Bounds and bucket width of the context curves; beyond it they continue with slope 1. Buckets of half a
            logit ranked best on 150,000 rows; use wider ones for contexts with few rows.
        mode: ``"sum"`` adds one embedding per context feature; ``"cross"`` gives every combination its own curve.
        towers: Layers of each task between the backbone and its relevance: a module per task, or one module for all,
            such as a mixture of experts; see `TowerRelevance`.
        rank: As in `ContextIsotonicLayer`: that many numbers per context instead of a row of bucket weights.
        hash_buckets: As there: unbounded ids, hashed into tables of this size.
        projection: As there: a dense vector of this size per row, ``context["vector"]``.
        sparse: As there: sparse gradients, for contexts with very many ids; train it with `RowAdam`.
        loss: Loss of the observed logits: ``"pointwise"``, the log loss; or one that compares the rows of a list, see
            `ranking_loss`: ``"listwise"``, ``"pairwise"``, ``"lambdarank"``, ``"jrc"``. The list of each row is then
            read from ``context["session"]``, and a batch holds whole lists.

    >>> model = DualHead(nn.Linear(4, 8), width=8, tasks=("click",), contexts={"position": 10})
    >>> outputs = model(torch.zeros(5, 4), {"position": torch.arange(5)})
    >>> model.loss(outputs, {"click": torch.ones(5)}).shape, outputs["click"].relevance_logit.shape
    (torch.Size([]), torch.Size([5]))
    """

    sign: Tensor
    group = "session"  # the key of the context that holds the list of each row

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        tasks: Sequence[str] | None = None,
        contexts: Mapping[str, int] | None = None,
        alpha: PerTask = 0.25,
        beta: PerTask = 0.75,
        anchor: Literal["joint", "detached"] = "detached",
        wiring: Literal["curve", "parallel"] = "curve",
        decreasing: Sequence[str] | None = None,
        reference: Mapping[str, int] | None = None,
        grid: Grid | None = None,
        mode: Literal["sum", "cross"] = "sum",
        towers: Towers | None = None,
        rank: int | None = None,
        hash_buckets: int | None = None,
        projection: int | None = None,
        sparse: bool = False,
        loss: Ranking = "pointwise",
    ) -> None:
        super().__init__()
        contexts = {"position": 20, "device": 3} if contexts is None else contexts
        contexts = context_sizes(contexts, 1 if hash_buckets is None else 0)
        if decreasing is None:
            decreasing = ("skip",) if tasks is None else ()
        self.tasks, self.decreasing = checked_tasks(TASKS if tasks is None else tasks, decreasing)
        check_wiring(anchor, wiring, towers)
        self.anchor, self.wiring = anchor, wiring
        self.ranking: Ranking = checked_loss(loss, towers)
        self.needs_lists = loss != "pointwise"  # `training.train` then gives batches of whole lists
        self.alpha, self.beta = alpha, beta
        self.backbone = module("backbone", backbone)
        self.relevance: nn.Module = (
            Relevance(width, len(self.tasks)) if towers is None else TowerRelevance(towers, width, self.tasks)
        )
        self.parallel = Relevance(width, len(self.tasks)) if wiring == "parallel" else None
        self.negative = Relevance(width, len(self.tasks)) if loss == "jrc" else None  # the logit of label 0
        held = [wiring == "curve" and (anchor == "detached" or self.alpha[task] == 0) for task in self.tasks]
        self.context_curves = ReferencedCurves(
            contexts,
            reference=checked_reference(reference, contexts, hashed=hash_buckets is not None),
            held=held,
            grid=grid_or(grid, BIAS),
            mode=mode,
            rank=rank,
            hash_buckets=hash_buckets,
            projection=projection,
            sparse=sparse,
        )
        self.served_curve = (
            IsotonicLayer(len(self.tasks), grid=FINE, extrapolation="extend")
            if anchor == "detached"
            else unfitted_curve(len(self.tasks))
        )
        self.register_buffer("sign", torch.tensor([-1.0 if task in self.decreasing else 1.0 for task in self.tasks]))

    @property
    def alpha(self) -> Mapping[str, float]:
        """Weight of the loss of the served probability for each task; assign a number or a mapping to change it.

        >>> model = DualHead(nn.Identity(), width=4, tasks=("click", "skip"), contexts={"position": 10})
        >>> model.alpha = {"click": 0.5, "skip": 0.0}
        >>> dict(model.alpha)
        {'click': 0.5, 'skip': 0.0}
        """
        return MappingProxyType(self._alpha)

    @alpha.setter
    def alpha(self, value: PerTask) -> None:
        numbers = per_task("alpha", value, self.tasks)
        if self.wiring == "parallel" and not all(numbers.values()):
            raise InputError(f"alpha: expected positive numbers with 'parallel', got {numbers}; relevance needs it")
        self._alpha = numbers

    @property
    def beta(self) -> Mapping[str, float]:
        """Weight of the loss of the observed logit for each task; assign a number or a mapping to change it."""
        return MappingProxyType(self._beta)

    @beta.setter
    def beta(self, value: PerTask) -> None:
        self._beta = per_task("beta", value, self.tasks)

    @property
    def contexts(self) -> dict[str, int]:
        """Name and number of ids of each bias feature."""
        return self.context_curves.contexts

    @property
    def hash_buckets(self) -> int | None:
        """Size of the tables that ids are hashed into; None if ids are those of the tables."""
        return self.context_curves.hash_buckets

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
        if self.anchor == "joint":  # the curve is fitted after training
            served = event if self.training else self.served_curve(event)
        else:
            served = self.served_curve(event.detach())
        columns = zip(relevance.unbind(1), observed.unbind(1), served.unbind(1), strict=True)
        outputs = {task: Heads(*logits) for task, logits in zip(self.tasks, columns, strict=True)}
        if not self.needs_lists or self.group not in context:
            return outputs
        lists = Lists.of_context(context, self.group, len(relevance))
        return Outputs.of(outputs, lists, None if self.negative is None else self.negative(hidden))

    def loss(
        self,
        outputs: Mapping[str, Heads],
        labels: Labels,
        mask: Mapping[str, Tensor] | None = None,
        weight: Tensor | None = None,
        *,
        negative_rate: NegativeRate | None = None,
    ) -> Tensor:
        """Sum over the tasks of both heads' losses, weighted by beta and alpha.

        Args:
            outputs: What `forward` returned.
            labels: Labels in [0, 1] of each task, ``[batch]``.
            mask: For some tasks, which rows have a label; labels of the other rows are not read.
            weight: Weight of each row, ``[batch]``.
            negative_rate: Share of the negatives that was kept when the log was sampled: one number for all tasks, one
                per row ``[batch]``, or a mapping from the tasks whose negatives were sampled to such rates. Logits are
                compared with the labels at an offset of -log(rate), so both heads learn real traffic, and serving needs
                no correction.
        """
        observed = stacked_logits(outputs, self.tasks, "observed_logit")
        label, weights = stacked_labels(self.tasks, labels, mask, weight, observed)
        observed = sampled(observed, self.tasks, negative_rate)
        total = (self._factors(self._beta) * self._observed_loss(outputs, observed, label, weights)).sum()
        if any(self._alpha.values()):
            served = sampled(stacked_logits(outputs, self.tasks, "served_logit"), self.tasks, negative_rate)
            total = total + (self._factors(self._alpha) * weighted_bce(served, label, weights)).sum()
        return total

    def _observed_loss(self, outputs: Mapping[str, Heads], observed: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        """Loss of the observed logits of each task, ``[tasks]``."""
        if not self.needs_lists:
            return weighted_bce(observed, label, weight)
        if not isinstance(outputs, Outputs) or outputs.lists is None:
            raise InputError(
                f"outputs: expected lists for the loss {self.ranking!r}, got none; give {self.group!r}, the list of "
                "each row, in the context"
            )
        score = stacked_logits(outputs, self.tasks, "relevance_logit") * self.sign
        loss = list_loss(self.ranking, observed, label, weight, outputs.lists, score=score, negative=outputs.beside)
        return loss if self.ranking == "jrc" else loss + level_loss(observed, label, weight)

    def _factors(self, numbers: Mapping[str, float]) -> Tensor:
        return torch.tensor([numbers[task] for task in self.tasks], device=self.sign.device, dtype=self.sign.dtype)

    def serving(self) -> Serving:
        """A copy that takes features only: relevance and its calibration by the served curve; no context.

        With the joint anchor the probability is that of relevance itself until `refit_served` fits the curve.
        """
        curve = self.served_curve
        curve = FrozenCurves.from_layer(curve) if isinstance(curve, IsotonicLayer) else curve
        return Serving(self.backbone, self.relevance, tasks=self.tasks, decreasing=self.decreasing, curve=curve)

    def curves(self, kind: Literal["bias", "calibration"] = "bias") -> Curves:
        """The learned curves over the event's logit, which is relevance, negated for a decreasing task.

        Args:
            kind: ``"bias"``, curves by task and context to the logit that was observed there; ``"calibration"``, curves
                by task to the logit that is served. Context features with too many ids for a table of all
                combinations, and hashed ones, are left out of bias curves: these are of an unknown id.

        >>> model = DualHead(nn.Linear(4, 8), width=8, tasks=("click",), contexts={"position": 10})
        >>> model.curves().predict_proba([0.0], {"task": ["click"], "position": [3]}).round(4).tolist()
        [0.5]
        >>> model.curves("calibration").contexts
        ('task',)
        """
        choice("kind", kind, ("bias", "calibration"))
        if kind == "bias":
            return bias_curves(self.context_curves, self.tasks)
        return served_curves(self.served_curve, self.tasks)

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return (
            f"tasks={self.tasks}, alpha={self._alpha}, beta={self._beta}, anchor={self.anchor!r}, "
            f"wiring={self.wiring!r}, loss={self.ranking!r}"
        )
