r"""Losses that compare the rows of a list, over the logits of what was observed.

With :math:`s_i` the observed logit of row i, which the curve of its context made from relevance:

    listwise     :math:`-\sum_i y_i \log softmax(s)_i` (Cao et al. 2007)
    pairwise     :math:`\sum_{y_i > y_j} \log(1 + e^{-(s_i - s_j)})` (RankNet, Burges et al. 2005)
    lambdarank   the same, each pair times :math:`|\Delta nDCG_{ij}|` of swapping both (Burges et al. 2006)
    jrc          :math:`\frac12 BCE(y, s) - \frac12 \sum_i \log softmax(f^{y_i})_i`, where :math:`s = f^1 - f^0` is a
                 difference of two logits (joint ranking and calibration, Sheng et al. 2023)

Given that one row of two was clicked, it was row i with probability :math:`\sigma(s_i - s_j)`: the pairwise losses are
conditional likelihoods of the same model, so curves over position have the same meaning as under the log loss. A
softmax learns :math:`s = \log P` up to a constant of each list. Only JRC determines the mean of the logits; with the
others, `level_loss` is added, since an optimiser could otherwise move the logits out of the grid.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from isolayer.debias.lists import Lists
from isolayer.nn.whole_batch import process_mean, weight_total

Ranking = Literal["pointwise", "listwise", "pairwise", "lambdarank", "jrc"]
LOSSES: tuple[Ranking, ...] = get_args(Ranking)
CALIBRATION = 0.5  # share of the log loss in JRC


def list_loss(
    kind: Ranking,
    logit: Tensor,
    label: Tensor,
    weight: Tensor,
    lists: Lists,
    *,
    score: Tensor,
    negative: Tensor | None = None,
) -> Tensor:
    """The loss of each task, summed over rows or pairs and divided by the weight of all rows, ``[tasks]``.

    A pair has the weight of its row with the larger label. Rows of weight 0 are left out of the lists.

    Args:
        kind: Which loss.
        logit: Observed logits, ``[batch, tasks]``.
        label: Labels in [0, 1], ``[batch, tasks]``.
        weight: Of each row, ``[batch, tasks]`` or ``[batch, 1]``.
        lists: The lists.
        score: By which rows are ranked, for the weights of ``"lambdarank"``, ``[batch, tasks]``.
        negative: For ``"jrc"``, the logit of label 0, ``[batch, tasks]``.

    >>> lists, click = Lists.of(torch.zeros(2).long()), torch.tensor([[1.0], [0.0]])
    >>> list_loss("pairwise", torch.zeros(2, 1), click, torch.ones(2, 1), lists, score=torch.zeros(2, 1))
    tensor([0.3466])
    """
    weight = weight.expand_as(logit)
    table, label_table, weights = lists.pad(logit), lists.pad(label), lists.pad(weight)
    if kind == "jrc":
        assert negative is not None
        each = _jrc(table, lists.pad(negative), label_table, weights)
    elif kind == "listwise":
        each = -label_table * _log_softmax(table, weights)
    else:
        each = _pairs(table, label_table, weights, lists.pad(score) if kind == "lambdarank" else None)
    total = (weights * each).sum((0, 1))
    return total / weight_total(weight)


def level_loss(logit: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    """Log loss of the mean probability as a prediction of the mean label, ``[tasks]``; it moves all logits equally.

    Args:
        logit: Observed logits, ``[batch, tasks]``.
        label: Labels in [0, 1], ``[batch, tasks]``.
        weight: Of each row, ``[batch, tasks]`` or ``[batch, 1]``.

    >>> logit = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    >>> level_loss(logit, torch.tensor([[1.0], [1.0]]), torch.ones(2, 1)).sum().backward()
    >>> logit.grad.flatten()  # too low on average
    tensor([-0.1966, -0.1966])
    """
    weight = weight.expand_as(logit)
    share = weight / weight_total(weight)
    level = process_mean((share * logit).sum(0))
    prob = (share * torch.sigmoid(logit.detach() + level - level.detach())).sum(0)
    prob, rate = process_mean(torch.stack([prob, (share * label).sum(0)])).unbind(0)
    prob = prob.clamp(1e-6, 1 - 1e-6)
    return -(rate * prob.log() + (1 - rate) * torch.log1p(-prob))


def _log_softmax(logit: Tensor, weight: Tensor) -> Tensor:
    """Log of the softmax within each list over the rows that have a weight, ``[lists, longest, tasks]``."""
    return logit.masked_fill(weight <= 0, torch.finfo(logit.dtype).min / 2).log_softmax(1)


def _jrc(logit: Tensor, negative: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    calibration = binary_cross_entropy_with_logits(logit, label, reduction="none")
    clicked, other = _log_softmax(logit + negative, weight), _log_softmax(negative, weight)
    return CALIBRATION * calibration - (1 - CALIBRATION) * (label * clicked + (1 - label) * other)


def _pairs(logit: Tensor, label: Tensor, weight: Tensor, score: Tensor | None) -> Tensor:
    """Losses of the pairs in which each row has the larger label, summed over the other row."""
    known = weight > 0
    loss = softplus(logit.unsqueeze(1) - logit.unsqueeze(2))  # [lists, row, other row, tasks]
    wanted = (label.unsqueeze(2) > label.unsqueeze(1)) & known.unsqueeze(1)
    if score is not None:
        loss = loss * _swaps(label, known, score)
    return torch.where(wanted, loss, 0.0).sum(2)


def _swaps(label: Tensor, known: Tensor, score: Tensor) -> Tensor:
    r"""Change of nDCG by swapping two rows, with gains :math:`2^y - 1`, ``[lists, row, other row, tasks]``."""
    gain = torch.where(known, 2**label - 1, 0.0)
    order = score.detach().masked_fill(~known, -torch.inf).argsort(dim=1, descending=True, stable=True)
    discount = 1 / torch.log2(order.argsort(1).to(label.dtype) + 2)
    places = torch.arange(label.shape[1], device=label.device, dtype=label.dtype).view(1, -1, 1)
    best = (gain.sort(dim=1, descending=True).values / torch.log2(places + 2.0)).sum(1)  # [lists, tasks]
    gains, discounts = (part.unsqueeze(2) - part.unsqueeze(1) for part in (gain, discount))
    return (gains * discounts).abs() / best.clamp(min=torch.finfo(best.dtype).tiny)[:, None, None]
