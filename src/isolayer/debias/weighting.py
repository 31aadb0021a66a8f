r"""Debiasing by weights: a click has weight :math:`1/e_k`; examination is given, or learned together with relevance.

Both assume the position-based model. For a decreasing task they model the opposite event: an item is not skipped if it
is examined and liked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from isolayer.debias.baselines import ContextTables, Mask, Naive, product_logit
from isolayer.debias.lists import Lists
from isolayer.debias.loss import Heads, Labels, stacked_labels, stacked_logits
from isolayer.fitting.columns import numbers, refuse, some
from isolayer.nn.context_ids import checked_ids, id_column
from isolayer.nn.whole_batch import weight_total
from isolayer.settings import choice, number, text


class InversePropensity(Naive):
    r"""IPS: with :math:`t = y / e_k` in place of the label, the loss :math:`softplus(r) - t r` has no position bias.

    Relevance is :math:`r = logit P(y | position 0)`, because propensities are relative to position 0.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        propensity: Examination of each position relative to position 0, ``[positions]``, from `harvest` or
            `em_propensity`.
        clip: Lower bound of propensities: less variance, some bias.
        feature: The context feature that is the position.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> model = InversePropensity(nn.Identity(), width=2, propensity=[1.0, 0.5])
    >>> model(torch.zeros(1, 2), {"position": torch.tensor([1])})["click"].event_cost.shape
    torch.Size([1])
    """

    factors: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        propensity: Sequence[float],
        clip: float = 0.01,
        feature: str = "position",
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        column = some("propensity", numbers("propensity", propensity))
        if not (column > 0).all():
            refuse("propensity", column, column > 0, "positive numbers", "estimate them again, or drop the position")
        clip = number("clip", clip, 0, 1, ends="(]", advice="0.01 is usual")
        self.feature = text("feature", feature, advice="name the context feature that is the position")
        table = torch.as_tensor(column, dtype=torch.get_default_dtype())
        # The first entry is that of id -1, an unknown position, with weight 1.
        self.register_buffer("factors", torch.cat([torch.ones(1), 1 / table.clamp(min=clip)]))

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task, and the cost that its event adds to the loss at this position."""
        relevance = self.relevance(self.represent(features, context))
        ids = checked_ids(context, self.feature, len(self.factors) - 1, training=self.training)
        factor = self.factors[ids + 1].unsqueeze(1)
        chance = torch.logit(1 / factor, eps=1e-6).expand_as(relevance)  # examination is at most 1
        observed = product_logit(chance, relevance) * self.sign
        return self._heads(relevance, observed, -factor * relevance)

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Weighted log loss, summed over tasks."""
        return _cost(self, outputs, labels, mask, weight, unseen=softplus)


class DualLearning(Naive):
    r"""DLA: examination from relevance and relevance from examination, list by list (Ai et al. 2018).

    In each list :math:`L_r = -\sum_k y_k \frac{g_0}{g_k} \log softmax(r)_k` and
    :math:`L_g = -\sum_k y_k \frac{\rho_0}{\rho_k} \log softmax(g)_k`, where :math:`g` are the examination logits of
    positions, the ratios are those of the softmaxes, :math:`g_0` and :math:`\rho_0` are those of the list's first
    position, and weights have no gradient. The order of the rows in a batch does not matter. A softmax does not
    determine the level, so the served probability is not calibrated; use `post_hoc`.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        contexts: Name and number of ids of each bias feature.
        feature: The context feature that is the position; by default ``"position"``, or else the first of them.
        group: The key of ``context`` that holds the list of each row; a batch holds whole lists.
        clip: Upper bound of the weights.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> model = DualLearning(nn.Identity(), width=2, contexts={"position": 10})
    >>> context = {"position": torch.tensor([0, 1]), "session": torch.tensor([7, 7])}
    >>> model.loss(model(torch.zeros(2, 2), context), {"click": torch.tensor([0, 1])}).detach()
    tensor(0.6931)
    """

    needs_lists = True  # `training.train` then gives batches of whole lists, under the key ``group``

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        contexts: Mapping[str, int],
        feature: str | None = None,
        group: str = "session",
        clip: float = 100.0,
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        self.examination = ContextTables(contexts, len(self.tasks))
        usual = "position" if "position" in contexts else next(iter(contexts))
        self.feature = choice(
            "feature", usual if feature is None else feature, list(contexts), advice="name the one that is the position"
        )
        self.group = text("group", group, advice="name the key of the context that holds the list of each row")
        self.clip = number("clip", clip, 0, math.inf, ends="(]", advice="100 is usual")

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task, and the cost that its event adds to both losses."""
        lists = Lists.of_context(context, self.group)
        relevance = self.relevance(self.represent(features, context))
        examination = self.examination(context)
        top = self._first_rows(lists, id_column(context, self.feature))
        cost = torch.zeros_like(relevance)
        for one, other in ((relevance, examination), (examination, relevance)):
            first = other.new_zeros(lists.count, other.shape[1]).index_add(0, lists.row, top * other.detach())
            ratio = (first[lists.row] - other.detach()).exp().clamp(max=self.clip)
            cost = cost - ratio * lists.flat(lists.pad(one, -torch.inf).log_softmax(1))
        return self._heads(relevance, (relevance + examination) * self.sign, cost)

    def _first_rows(self, lists: Lists, position: Tensor) -> Tensor:
        """Share of each row in its list's first position, ``[batch, 1]``: 1 or 0 unless several rows are there.

        Rows of an unknown position come last.
        """
        place = torch.where(position < 0, torch.iinfo(position.dtype).max, position)
        lowest = torch.full_like(place, torch.iinfo(place.dtype).max)[: lists.count]
        lowest = lowest.scatter_reduce(0, lists.row, place, "amin")
        there = (place == lowest[lists.row]).to(self.sign.dtype)
        return (there / torch.zeros_like(there).index_add(0, lists.row, there)[lists.row]).unsqueeze(1)

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Both losses, averaged over rows and summed over tasks."""
        return _cost(self, outputs, labels, mask, weight, unseen=torch.zeros_like)


def _cost(
    model: Naive,
    outputs: Mapping[str, Heads],
    labels: Labels,
    mask: Mask,
    weight: Tensor | None,
    *,
    unseen: Callable[[Tensor], Tensor],
) -> Tensor:
    """``unseen(r) + y * event_cost`` of each row, averaged by weight and summed over tasks."""
    relevance = stacked_logits(outputs, model.tasks, "relevance_logit")
    cost = stacked_logits(outputs, model.tasks, "event_cost")
    label, weights = stacked_labels(model.tasks, labels, mask, weight, relevance)
    event = torch.where(model.sign > 0, label, 1 - label)
    loss = weights * (unseen(relevance) + event * cost)
    return (loss.sum(0) / weight_total(weights, loss.shape[1])).sum()
