r"""Methods for loggers that knew something about relevance, so that position itself carries information about it.

    GradientReversal    a bias tower that must not know relevance (Zhang et al. 2023)
    placement_weights   rows weighted as if positions had been drawn without regard to the features (Hager et al. 2025)

`informed_logger_test` and `diagnose` test whether a logger was informed. No method here can recover what the logger
knew and the features do not contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from isolayer.debias.baselines import ContextTables, Mask, Naive
from isolayer.debias.lists import Outputs, seen_again
from isolayer.debias.loss import Heads, Labels, stacked_labels, stacked_logits
from isolayer.errors import InputError
from isolayer.fitting.columns import numbers, some, whole
from isolayer.nn.whole_batch import weight_total
from isolayer.settings import count, number


class GradientReversal(Naive):
    r"""An additive bias tower whose embedding must not predict relevance: an adversary has a reversed gradient.

    :math:`observed = r + o(h)` with the embedding :math:`h` of the context. An adversary predicts :math:`r` from
    :math:`h` with squared error. Its gradient is multiplied by :math:`-\eta` before it reaches :math:`h`, so that
    :math:`h` keeps what explains clicks apart from relevance, and loses what explains relevance.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        contexts: Name and number of ids of each bias feature.
        eta: Strength of the reversal; at 0 it is a plain two-tower model.
        dim: Size of the embedding.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> model = GradientReversal(nn.Identity(), width=2, contexts={"position": 10})
    >>> outputs = model(torch.zeros(1, 2), {"position": torch.tensor([9])})
    >>> model.loss(outputs, {"click": torch.ones(1)}).shape
    torch.Size([])
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        contexts: Mapping[str, int],
        eta: float = 1.0,
        dim: int = 4,
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        self.eta = number("eta", eta, 0, ends="[)", advice="0 leaves the reversal out")
        self.embedding = ContextTables(contexts, dim)
        for table in self.embedding.tables:
            nn.init.normal_(table, std=0.1)
        self.bias = nn.Linear(dim, len(self.tasks), bias=False)
        self.adversary = nn.Linear(dim, len(self.tasks))

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task, and the adversary's prediction of relevance."""
        relevance = self.relevance(self.represent(features, context))
        hidden = self.embedding(context)
        observed = relevance * self.sign + self.bias(hidden)
        return Outputs.of(self._heads(relevance, observed), None, self.adversary(reversed_gradient(hidden, self.eta)))

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Log loss of the observed labels and squared error of the adversary, summed over tasks."""
        said, relevance = seen_again(outputs), stacked_logits(outputs, self.tasks, "relevance_logit").detach()
        _, weights = stacked_labels(self.tasks, labels, mask, weight, relevance)
        weights = weights.expand_as(relevance)
        missed = (weights * (said - relevance) ** 2).sum(0) / weight_total(weights)
        return super().loss(outputs, labels, mask, weight) + missed.sum()


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, eta: float) -> Tensor:
        ctx.eta = eta
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.eta * grads[0], None


def reversed_gradient(value: Tensor, eta: float) -> Tensor:
    """The value itself; its gradient is the gradient of the result times ``-eta``.

    >>> x = torch.ones(2, requires_grad=True)
    >>> reversed_gradient(x, 0.5).sum().backward()
    >>> x.grad
    tensor([-0.5000, -0.5000])
    """
    found: Tensor = _Reversed.apply(value, eta)  # type: ignore[no-untyped-call]
    return found


def placement_weights(
    features: ArrayLike, position: ArrayLike, *, positions: int, clip: float = 10.0
) -> NDArray[np.float64]:
    r"""Weights of rows under which positions do not depend on the features, ``[n]``; give them to a model's loss.

    :math:`w = P(k) / P(k \mid x)`, where a multinomial logistic regression gives :math:`P(k \mid x)`: the inverse of
    the probability that the logger placed the item there, relative to that of the position. Where a model of clicks
    is not exactly right, its errors then no longer depend on where the logger put which items.

    Args:
        features: What the logger may have ranked by, its own score among them if the log has it, ``[n, columns]``.
        position: Where each row was shown, 0-based, ``[n]``.
        positions: Number of positions.
        clip: Upper bound of the weights: less variance, some bias.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal(40_000)
    >>> position = (rng.random(40_000) < 1 / (1 + np.exp(-x))).astype(int)  # the second is shown where x is large
    >>> weight = placement_weights(x[:, None], position, positions=2, clip=100)
    >>> [round(float(np.average(x[position == k], weights=weight[position == k])), 1) + 0.0 for k in (0, 1)]
    [0.0, 0.0]
    """
    table = numbers("features", features, dims=2)
    positions = count("positions", positions, 2, advice="with one position there is nothing to weight")
    where = some("position", whole("position", position, positions))
    clip = number("clip", clip, 1, ends="[)", advice="10 is usual")
    if len(table) != len(where):
        raise InputError(f"features: expected {len(where)} rows, as position has, got {len(table)}; align them")
    shown, inverse = np.unique(where, return_inverse=True)
    if len(shown) < 2:
        return np.ones(len(where))
    spread = table.std(0)
    scaled = (table - table.mean(0)) / np.where(spread > 0, spread, 1.0)
    fitted = LogisticRegression(C=1e3, max_iter=1000).fit(scaled, inverse)
    placed = np.take_along_axis(fitted.predict_proba(scaled), inverse[:, None], axis=1)[:, 0]
    share = np.bincount(inverse) / len(inverse)
    return np.asarray((share[inverse] / np.maximum(placed, 1e-12)).clip(max=clip))
