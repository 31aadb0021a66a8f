r"""Methods that estimate the bias of positions and the ranker in turns, batch by batch.

Both keep the bias as running estimates, which are not parameters: they are updated when the loss of a training batch is
computed, and the ranker's gradient treats them as constants. For a decreasing task they model the opposite event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from isolayer.debias.baselines import Mask, Naive, product_logit
from isolayer.debias.lists import Lists, Outputs, seen_again, seen_lists
from isolayer.debias.loss import Heads, Labels, stacked_labels, stacked_logits, weighted_bce
from isolayer.debias.ranking_loss import level_loss
from isolayer.nn.context_ids import checked_ids
from isolayer.nn.whole_batch import process_sum, weight_total
from isolayer.settings import count, number, text

_LEAST = 1e-3  # of a share, and of the ratio of a position to the first


class _ByPosition(Naive):
    """A ranker with running estimates for each position.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        positions: Number of positions.
        step: How far the running numbers move in each batch, from 0 to 1.
        feature: The context feature that is the position.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        positions: int,
        step: float = 0.05,
        feature: str = "position",
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        self.positions = count("positions", positions, advice="give the length of the lists")
        self.step = number("step", step, 0, 1, ends="(]", advice="0.05 is usual")
        self.feature = text("feature", feature, advice="name the context feature that is the position")
        self._build()

    def _build(self) -> None:
        """The running numbers of a subclass."""

    def _running(self, name: str, value: float) -> None:
        """A number for each position and task; the first row is of an unknown position."""
        self.register_buffer(name, torch.full((self.positions + 1, len(self.tasks)), value))

    def _places(self, context: Mapping[str, Tensor]) -> Tensor:
        """The row of each position in such a table, ``[batch]``."""
        return checked_ids(context, self.feature, self.positions, training=self.training) + 1

    def _sums(self, place: Tensor, values: Tensor) -> Tensor:
        """Sums of values ``[batch, tasks]`` at each position, ``[positions + 1, tasks]``, of all processes."""
        own = values.new_zeros(self.positions + 1, values.shape[1]).index_add(0, place, values)
        return process_sum(own)

    def _events(self, relevance: Tensor, labels: Labels, mask: Mask, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Labels as events that rise with relevance, and weights, both ``[batch, tasks]``."""
        label, weights = stacked_labels(self.tasks, labels, mask, weight, relevance)
        return torch.where(self.sign > 0, label, 1 - label), weights.expand_as(label)


class RegressionEM(_ByPosition):
    r"""Regression EM as a ranker: :math:`P(click) = e_k\,\sigma(r)` by expectation, maximisation (Wang et al. 2018).

    Expectation: a row without a click was examined with probability :math:`e(1 - \sigma)/(1 - e\sigma)`, and relevant
    with probability :math:`\sigma(1 - e)/(1 - e\sigma)`. Maximisation: examination moves to the mean of the former at
    each position, and the ranker learns labels drawn from the latter; in evaluation mode, their expectation.

    >>> model = RegressionEM(nn.Identity(), width=2, positions=10)
    >>> model(torch.zeros(1, 2), {"position": torch.tensor([3])})["click"].observed_logit.shape
    torch.Size([1])
    """

    examination: Tensor

    def _build(self) -> None:
        self._running("examination", 0.5)

    def observe(self, relevance: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """The logit of being examined and relevant."""
        chance = torch.logit(self.examination[self._places(context)], eps=1e-6)
        return product_logit(chance, relevance) * self.sign

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task, for features and ids ``[batch]`` of each context feature."""
        return Outputs.of(super().forward(features, context), None, self._places(context))

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Log loss of drawn relevance, summed over tasks; in training mode examination is updated too."""
        place = seen_again(outputs)
        logit = stacked_logits(outputs, self.tasks, "relevance_logit")
        event, weights = self._events(logit, labels, mask, weight)
        relevance, seen = torch.sigmoid(logit.detach()), self.examination[place]
        neither = (1 - seen * relevance).clamp(min=_LEAST)
        relevant = event + (1 - event) * relevance * (1 - seen) / neither
        if self.training:
            looked = event + (1 - event) * seen * (1 - relevance) / neither
            self._update(place, looked.clamp(max=1), weights)
            relevant = torch.bernoulli(relevant.clamp(0, 1))
        return weighted_bce(logit, relevant, weights).sum()

    @torch.no_grad()
    def _update(self, place: Tensor, looked: Tensor, weight: Tensor) -> None:
        shown = self._sums(place, weight)
        mean = self._sums(place, weight * looked) / shown.clamp(min=torch.finfo(shown.dtype).tiny)
        moved = self.examination + self.step * (mean - self.examination)
        self.examination.copy_(torch.where(shown > 0, moved, self.examination).clamp(_LEAST, 1 - _LEAST))


class PairwiseDebiasing(_ByPosition):
    r"""Pairwise debiasing, the method of Unbiased LambdaMART (Hu et al. 2019): pairs weighted by both positions.

    :math:`L = \sum_{y_i = 1,\, y_j = 0} \frac{\log(1 + e^{-(r_i - r_j)})}{t^+_i t^-_j}`. The ratios of positions follow
    from the losses: :math:`t^+_k` is the sum of :math:`\ell_{ij} / t^-_j` over pairs whose clicked item was at k, over
    that of position 0, to the power :math:`1/(1 + p)`; and :math:`t^-_k` likewise of the other item. Pairs do not
    determine the level; `level_loss` keeps it at the label rate, and `post_hoc` calibrates.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        positions: Number of positions.
        step: How far the running sums move in each batch, from 0 to 1.
        norm: The p above; larger values pull the ratios towards 1.
        feature: The context feature that is the position.
        group: The key of ``context`` that holds the list of each row; a batch holds whole lists.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> model = PairwiseDebiasing(nn.Identity(), width=2, positions=10)
    >>> context = {"position": torch.tensor([0, 1]), "session": torch.tensor([7, 7])}
    >>> model.loss(model(torch.zeros(2, 2), context), {"click": torch.tensor([0, 1])}).detach()
    tensor(1.0397)
    """

    needs_lists = True  # `training.train` then gives batches of whole lists, under the key ``group``
    of_clicked: Tensor
    of_other: Tensor
    clicked_sum: Tensor
    other_sum: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        positions: int,
        step: float = 0.05,
        norm: float = 1.0,
        feature: str = "position",
        group: str = "session",
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(
            backbone,
            width=width,
            positions=positions,
            step=step,
            feature=feature,
            tasks=tasks,
            decreasing=decreasing,
        )
        self.norm = number("norm", norm, 0, ends="[)", advice="0 leaves the ratios as they are")
        self.group = text("group", group, advice="name the key of the context that holds the list of each row")

    def _build(self) -> None:
        for name in ("of_clicked", "of_other"):
            self._running(name, 1.0)
        for name in ("clicked_sum", "other_sum"):
            self._running(name, 0.0)

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task, and the lists of the rows."""
        place = self._places(context)
        lists = Lists.of_context(context, self.group, len(place))
        return Outputs.of(super().forward(features, context), lists, place)

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Weighted loss of the pairs over the weight of the rows, summed over tasks; updates the ratios in training."""
        lists, place = seen_lists(outputs), seen_again(outputs)
        logit = stacked_logits(outputs, self.tasks, "relevance_logit")
        event, weights = self._events(logit, labels, mask, weight)
        score, clicked, share = lists.pad(logit), lists.pad(event), lists.pad(weights)
        each = softplus(score.unsqueeze(1) - score.unsqueeze(2))  # [lists, row, other row, tasks]
        known = (share > 0).unsqueeze(1)
        each = torch.where((clicked.unsqueeze(2) > clicked.unsqueeze(1)) & known, each, 0.0) * share.unsqueeze(2)
        ours, other = (lists.pad(part[place], 1.0) for part in (self.of_clicked, self.of_other))
        by_other, by_ours = each / other.unsqueeze(1), each / ours.unsqueeze(2)
        if self.training:
            self._update(place, lists.flat(by_other.sum(2)).detach(), lists.flat(by_ours.sum(1)).detach())
        total = (by_other / ours.unsqueeze(2)).sum((0, 1, 2))
        pairs = total / weight_total(weights)
        return (pairs + level_loss(logit, event, weights)).sum()

    @torch.no_grad()
    def _update(self, place: Tensor, clicked: Tensor, other: Tensor) -> None:
        for sums, ratio, values in (
            (self.clicked_sum, self.of_clicked, clicked),
            (self.other_sum, self.of_other, other),
        ):
            sums.lerp_(self._sums(place, values), self.step)
            first = sums[1]  # of position 0
            found = (sums / first.clamp(min=torch.finfo(sums.dtype).tiny)) ** (1 / (1 + self.norm))
            ratio.copy_(torch.where((first > 0) & (sums > 0), found.clamp(_LEAST, 1 / _LEAST), 1.0))
