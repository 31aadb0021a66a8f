r"""Click models as rankers: attraction is learned from the features, reading behaviour from the clicks of whole lists.

An item is clicked if it was examined and attracts, :math:`P(C_k) = \epsilon_k \alpha_k` with
:math:`\alpha = \sigma(r)`; the models differ in :math:`\epsilon`. In all but UBM users read from the top, and continue
with probability :math:`c_k` after a click and :math:`n_k` without a click:

    Cascade   c = 0, n = 1: users stop at their first click (Craswell et al. 2008)
    DCM       c of each position, n = 1 (Guo et al. 2009)
    DBN       c = gamma (1 - s), n = gamma, with the satisfaction s of the item (Chapelle and Zhang 2009)
    UBM       examination by position and by the position of the previous click (Dupret and Piwowarski 2008)

The loss is the likelihood of a whole list, factorised into the probability of each click given the clicks above it:
:math:`\epsilon_{k+1} = c_k` after a click, and :math:`n_k (1 - \alpha_k)\epsilon_k / (1 - \alpha_k \epsilon_k)` without
a click. ``observed_logit`` is the logit of the unconditional probability, for which
:math:`\epsilon_{k+1} = \epsilon_k (\alpha_k c_k + (1 - \alpha_k) n_k)`. A batch holds whole lists; their rows are read
in order of position. For a decreasing task the event is the opposite of the label.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from isolayer.debias.baselines import Mask, Naive, product_logit
from isolayer.debias.lists import Lists, Outputs, seen_again, seen_lists
from isolayer.debias.loss import Heads, Labels, stacked_labels
from isolayer.debias.serving import Relevance
from isolayer.nn.context_ids import checked_ids
from isolayer.nn.whole_batch import shared_total
from isolayer.settings import count, text

_NEVER = -30.0  # log of a probability that counts as zero


class _ClickModel(Naive):
    """A click model; subclasses say how users read.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        positions: Number of positions.
        feature: The context feature that is the position.
        group: The key of ``context`` that holds the list of each row; a batch holds whole lists.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.
    """

    needs_lists = True  # `training.train` then gives batches of whole lists, under the key ``group``

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        positions: int,
        feature: str = "position",
        group: str = "session",
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        self.positions = count("positions", positions, advice="give the length of the lists")
        self.feature = text("feature", feature, advice="name the context feature that is the position")
        self.group = text("group", group, advice="name the key of the context that holds the list of each row")
        self._build(width)

    def _build(self, width: int) -> None:
        """Parameters of a subclass; by default it has none of its own."""

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task; the observed one is that of a click in this list, whatever else was clicked."""
        position = checked_ids(context, self.feature, self.positions, training=self.training)
        lists = Lists.of_context(context, self.group, len(position), position)
        hidden = self.represent(features, context)
        attraction = self._attraction(hidden)  # [batch, tasks]
        parts = [attraction, *self._reading(hidden, position)]
        table = torch.stack([lists.pad(part) for part in parts])  # [parts, lists, longest, tasks]
        observed = lists.flat(_logit(self._unconditional(*table))) * self.sign
        relevance: Tensor = self.relevance(hidden)
        return Outputs.of(self._heads(relevance, observed), lists, table)

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Log loss of each row's click given the clicks above it, averaged over rows and summed over tasks."""
        lists, table = seen_lists(outputs), seen_again(outputs)
        label, weights = stacked_labels(self.tasks, labels, mask, weight, lists.flat(table[0]))
        event = lists.pad(torch.where(self.sign > 0, label, 1 - label))
        counted = lists.pad(weights.expand_as(label)) * self._counted(event)
        log_prob = self._conditional(event, *table)
        each = -(event * log_prob + (1 - event) * _log_other(log_prob))
        loss: Tensor = (counted * each).sum((0, 1)) / shared_total(counted.sum((0, 1)))
        return loss.sum()

    def _attraction(self, hidden: Tensor) -> Tensor:
        """Logit of a click on an examined item, ``[batch, tasks]``."""
        logit: Tensor = self.relevance(hidden)
        return logit

    def _counted(self, event: Tensor) -> Tensor:
        """Which rows the likelihood reads, ``[lists, longest, tasks]``."""
        return torch.ones_like(event)

    @abstractmethod
    def _reading(self, hidden: Tensor, position: Tensor) -> list[Tensor]:
        """Further quantities of each row that the model needs, each ``[batch, tasks]``."""

    @abstractmethod
    def _unconditional(self, *table: Tensor) -> Tensor:
        """Log probability of a click at each position, ``[lists, longest, tasks]``, from padded tables of `forward`."""

    @abstractmethod
    def _conditional(self, event: Tensor, *table: Tensor) -> Tensor:
        """The same, given the events above each place."""


class _ReadsDown(_ClickModel):
    """Users read from the top. `_reading` returns the log probabilities to continue after a click, and without one."""

    def _unconditional(self, *table: Tensor) -> Tensor:
        """Log probability of a click in each place, over all clicks above it."""
        attraction, after_click, after_none = table
        log_prob = logsigmoid(attraction)
        step = torch.logaddexp(log_prob + after_click, logsigmoid(-attraction) + after_none)
        return log_prob + torch.cat([torch.zeros_like(step[:, :1]), step[:, :-1].cumsum(1)], dim=1)

    def _conditional(self, event: Tensor, *table: Tensor) -> Tensor:
        """Log probability of a click in each place, given the clicks above it."""
        attraction, after_click, after_none = table
        clicked, nothing = event > 0.5, torch.finfo(attraction.dtype).min / 4  # the log of 0, with finite differences
        # The odds w that a place was not examined are linear in those of the place above, without differences of
        # probabilities: w = (1 - c) / c after a click, and w / (n (1 - alpha)) + (1 - n) / n without a click.
        slope = torch.where(clicked, nothing, -after_none - logsigmoid(-attraction))
        start = _log_odds_against(torch.where(clicked, after_click, after_none), nothing)
        unseen = [torch.full_like(attraction[:, 0], nothing)]
        for log_slope, log_start in zip(slope[:, :-1].unbind(1), start[:, :-1].unbind(1), strict=True):
            both = torch.stack([unseen[-1] + log_slope, log_start])
            unseen.append(both.logsumexp(0))  # unlike logaddexp it has second derivatives beside the log of 0
        return logsigmoid(attraction) + logsigmoid(-torch.stack(unseen, dim=1))


class Cascade(_ReadsDown):
    r"""Cascade model: users click the first item that attracts them, and stop; :math:`\epsilon = \prod (1 - \alpha)`.

    Rows after the first click of a list were not examined and are not counted.

    >>> model = Cascade(nn.Identity(), width=2, positions=10)
    >>> context = {"position": torch.tensor([0, 1]), "session": torch.tensor([7, 7])}
    >>> torch.sigmoid(model(torch.zeros(2, 2), context)["click"].observed_logit).detach()
    tensor([0.5000, 0.2500])
    """

    def _reading(self, hidden: Tensor, position: Tensor) -> list[Tensor]:
        """Logs of the probabilities to read on after a click, and after none."""
        none = hidden.new_zeros(len(hidden), len(self.tasks))
        return [none + _NEVER, none]

    def _counted(self, event: Tensor) -> Tensor:
        """The rows up to the first click."""
        return ((event.cumsum(1) - event) < 0.5).to(event.dtype)


class DCM(_ReadsDown):
    r"""Dependent click model: after a click users continue with a probability that depends on the position.

    Without a click they always continue.

    >>> model = DCM(nn.Identity(), width=2, positions=10)
    >>> context = {"position": torch.tensor([0, 1]), "session": torch.tensor([7, 7])}
    >>> torch.sigmoid(model(torch.zeros(2, 2), context)["click"].observed_logit).detach()
    tensor([0.5000, 0.3750])
    """

    curve_lr_factors: ClassVar[Mapping[str, float]] = {"continuation": 1.0}

    def _build(self, width: int) -> None:
        self.continuation = nn.Parameter(torch.zeros(self.positions + 1, len(self.tasks)))  # the first of id -1

    def _reading(self, hidden: Tensor, position: Tensor) -> list[Tensor]:
        """Logs of the probabilities to read on after a click, and after none."""
        after_click = logsigmoid(self.continuation[position + 1])
        return [after_click, torch.zeros_like(after_click)]


class DBN(_ReadsDown):
    r"""Dynamic Bayesian network: a click satisfies the user with probability s.

    Users who are not satisfied continue with probability gamma.

    Relevance is :math:`\alpha s`, the probability that an examined item is clicked and satisfies; it is served.

    >>> model = DBN(nn.Identity(), width=2, positions=10)
    >>> context = {"position": torch.tensor([0, 1]), "session": torch.tensor([7, 7])}
    >>> torch.sigmoid(model(torch.zeros(2, 2), context)["click"].relevance_logit).detach()
    tensor([0.2500, 0.2500])
    """

    curve_lr_factors: ClassVar[Mapping[str, float]] = {"continuation": 1.0}

    def _build(self, width: int) -> None:
        self.relevance: _Satisfying = _Satisfying(width, len(self.tasks))
        self.continuation = nn.Parameter(torch.full((len(self.tasks),), 2.0))

    def _attraction(self, hidden: Tensor) -> Tensor:
        """Logit of a click on an examined item, ``[batch, tasks]``."""
        logit: Tensor = self.relevance.attraction(hidden)
        return logit

    def _reading(self, hidden: Tensor, position: Tensor) -> list[Tensor]:
        """Logs of the probabilities to read on after a click, and after none."""
        after_none = logsigmoid(self.continuation).expand(len(hidden), -1)
        return [after_none + logsigmoid(-self.relevance.satisfaction(hidden)), after_none]


class _Satisfying(nn.Module):
    """Logit of the product of attraction and satisfaction, both linear in the backbone's output."""

    def __init__(self, width: int, tasks: int) -> None:
        super().__init__()
        self.attraction, self.satisfaction = Relevance(width, tasks), Relevance(width, tasks)

    def forward(self, hidden: Tensor) -> Tensor:
        """Relevance logits ``[batch, tasks]``."""
        return product_logit(self.attraction(hidden), self.satisfaction(hidden))


class UBM(_ClickModel):
    r"""User browsing model: examination depends on the position and on the position of the previous click, if any.

    :math:`P(C_k \mid C_{<k}) = \gamma_{k, k'} \alpha_k`, where :math:`k'` is the position of the last click above.

    >>> model = UBM(nn.Identity(), width=2, positions=10)
    >>> context = {"position": torch.tensor([0, 1]), "session": torch.tensor([7, 7])}
    >>> torch.sigmoid(model(torch.zeros(2, 2), context)["click"].observed_logit).detach()
    tensor([0.2500, 0.2500])
    """

    curve_lr_factors: ClassVar[Mapping[str, float]] = {"examination": 1.0}

    def _build(self, width: int) -> None:
        size = self.positions + 1  # the first is of id -1
        # Logit of gamma by position and by the position of the last click, of which the last entry is no click.
        self.examination = nn.Parameter(torch.zeros(size, size + 1, len(self.tasks)))

    def _reading(self, hidden: Tensor, position: Tensor) -> list[Tensor]:
        """The row of each position in the table of examination."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)  # half precision confuses positions
        return [(position + 1).to(dtype).unsqueeze(1).expand(-1, len(self.tasks))]

    def _unconditional(self, *table: Tensor) -> Tensor:
        """Log probability of a click in each place, over all clicks above it."""
        attraction, position = logsigmoid(table[0]), table[1][..., 0].long()
        gamma = logsigmoid(self.examination)[position]  # [lists, longest, last click, tasks]
        click = (gamma + attraction.unsqueeze(2)).exp()  # given the last click
        none = 1 - click
        place = position[..., None, None].expand(-1, -1, 1, len(self.tasks))
        last = torch.zeros_like(gamma[:, 0])  # probability of each last click so far
        last[:, -1] = 1.0
        found = []
        for clicks, others, here in zip(click.unbind(1), none.unbind(1), place.unbind(1), strict=True):
            found.append((last * clicks).sum(1, keepdim=True))
            last = (last * others).scatter_add(1, here, found[-1])
        return torch.cat(found, dim=1).clamp(min=1e-12).log()

    def _conditional(self, event: Tensor, *table: Tensor) -> Tensor:
        """Log probability of a click in each place, given the clicks above it."""
        position = table[1].long()
        clicked = torch.where(event > 0.5, torch.arange(1, event.shape[1] + 1, device=event.device).view(1, -1, 1), 0)
        above = torch.cat([torch.zeros_like(clicked[:, :1]), clicked.cummax(1).values[:, :-1]], dim=1)  # 0 is none
        before = torch.where(above > 0, position.gather(1, (above - 1).clamp(min=0)), self.positions + 1)
        task = torch.arange(len(self.tasks), device=event.device)
        return logsigmoid(table[0]) + logsigmoid(self.examination[position, before, task])


def _log_other(log_prob: Tensor) -> Tensor:
    """Log of 1 - p from that of p, finite for p from 0 to 1."""
    return torch.log(-torch.expm1(log_prob.clamp(max=-1e-6)))


def _log_odds_against(log_prob: Tensor, nothing: float) -> Tensor:
    """Log of (1 - p) / p from that of p, and ``nothing`` where p is 1."""
    other = torch.log(-torch.expm1(log_prob.clamp(max=-torch.finfo(log_prob.dtype).tiny)))
    return torch.where(log_prob < 0, other - log_prob, nothing)


def _logit(log_prob: Tensor) -> Tensor:
    return log_prob - _log_other(log_prob)
