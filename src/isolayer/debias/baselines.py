r"""Other ways to remove position bias, with the interface of `DualHead`, to compare with and to start from.

    Naive               relevance is the label
    AdditiveTower       logit P = r + b(context)
    PAL                 P = e(context) sigma(r)
    TrustAffine         P = bottom(context) + (top(context) - bottom(context)) sigma(r)
    PositionAsFeature   the backbone reads the context; one fixed context at serving
    PositionDropout     the same, with the context hidden at random in training and always at serving
    post_hoc            Platt scaling or isotonic regression of a trained model; its ranking does not change

Methods that weight events are in `weighting`.

A decreasing task, such as skip, is the opposite of an event that rises with relevance: its relevance logit still rises
with relevance, and the model reads its negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import embedding

from isolayer.curves.evaluation import logit_of
from isolayer.debias.head_settings import checked_tasks
from isolayer.debias.loss import Heads, Labels, stacked_labels, stacked_logits, weighted_bce
from isolayer.debias.served_probability import ServedProbability, unfitted_curve
from isolayer.debias.serving import Relevance, Serving
from isolayer.errors import InputError
from isolayer.grid import Grid, grid_or
from isolayer.nn.context_ids import checked_ids, id_column
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.inputs import context_sizes, module
from isolayer.settings import choice, count, instance, number

DROP_RATES = (0.05, 0.10, 0.15, 0.20, 0.30, 0.50)  # tried by the paper
_MOST_KNOTS = 4000  # most knots of a curve that is fitted after training
_TRUST_START = -4.0  # logit of the rate of irrelevant items divided by that of relevant ones, before training
Mask = Mapping[str, Tensor] | None
Column = NDArray[Any]


class Naive(ServedProbability):
    """Relevance is the label, and no bias is modelled. The other models are subclasses that model the context.

    What is served as ``click`` is relevance, and as ``click_prob`` the probability of a click on traffic like that of
    the log, given the features and not the context: `training.train` ends with the fit of the curve from one to the
    other. In a training loop of your own call `refit_served` at the end; until then ``click_prob`` is the sigmoid of
    relevance, which in most of these models is no probability of what is observed.

    Args:
        backbone: Features to ``[batch, width]``.
        width: Width of the backbone's output.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> model = Naive(nn.Identity(), width=2, tasks=("click",))
    >>> model(torch.zeros(3, 2), {})["click"].observed_logit.shape
    torch.Size([3])
    """

    sign: Tensor

    def __init__(
        self, backbone: nn.Module, *, width: int, tasks: Sequence[str] = ("click",), decreasing: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.tasks, self.decreasing = checked_tasks(tasks, decreasing)
        self.backbone = module("backbone", backbone)
        self.relevance = Relevance(width, len(self.tasks))
        self.register_buffer("sign", torch.tensor([-1.0 if task in self.decreasing else 1.0 for task in self.tasks]))
        self.served_curve = unfitted_curve(len(self.tasks))

    def represent(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Input of the relevance head, ``[batch, width]``."""
        hidden: Tensor = self.backbone(features)
        return hidden

    def observe(self, relevance: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Logit of each label in its context, from relevance logits; both ``[batch, tasks]``."""
        return relevance * self.sign

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Heads]:
        """Logits of every task, for features and ids ``[batch]`` of each context feature."""
        relevance = self.relevance(self.represent(features, context))
        observed = self.observe(relevance, context)
        return self._heads(relevance, observed)

    def _heads(self, relevance: Tensor, observed: Tensor, *more: Tensor) -> dict[str, Heads]:
        """The outputs of every task, from columns ``[batch, tasks]``."""
        event = relevance * self.sign
        served = event if self.training else self.served_curve(event)  # no loss reads it, so it is fitted at the end
        columns = zip(*(part.unbind(1) for part in (relevance, observed, served, *more)), strict=True)
        return {task: Heads(*parts) for task, parts in zip(self.tasks, columns, strict=True)}

    def loss(
        self, outputs: Mapping[str, Heads], labels: Labels, mask: Mask = None, weight: Tensor | None = None
    ) -> Tensor:
        """Log loss of the observed labels, summed over tasks."""
        observed = stacked_logits(outputs, self.tasks, "observed_logit")
        label, weights = stacked_labels(self.tasks, labels, mask, weight, observed)
        return weighted_bce(observed, label, weights).sum()

    def serving(self) -> Serving:
        """A copy that takes features only; its probability is that of relevance until `refit_served` fits the curve."""
        backbone, curve = self._served_backbone(), self.served_curve
        assert isinstance(curve, FrozenCurves)  # a trained curve is frozen by the models that have one
        return Serving(backbone, self.relevance, tasks=self.tasks, decreasing=self.decreasing, curve=curve)


class ContextTables(nn.Module):
    """One vector per id of every context feature, including -1 (unknown), initially zero; the output is their sum.

    Args:
        contexts: Name and number of ids of each feature.
        dim: Size of the vectors.

    >>> ContextTables({"position": 3}, 2)({"position": torch.tensor([0, -1])}).shape
    torch.Size([2, 2])
    """

    # Only the rows with an id update its vector, so it has the learning rate of curves.
    curve_lr_factors: ClassVar[Mapping[str, float]] = {"tables": 1.0}

    def __init__(self, contexts: Mapping[str, int], dim: int) -> None:
        super().__init__()
        self.contexts, dim = context_sizes(contexts), count("dim", dim)
        if not self.contexts:
            raise InputError("contexts: expected at least one feature, got none; use Naive, which reads no context")
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(size + 1, dim)) for size in self.contexts.values())

    def parts(self, context: Mapping[str, Tensor]) -> list[Tensor]:
        """The vector of each feature, ``[batch, dim]`` each."""
        return [
            embedding(checked_ids(context, name, size, training=self.training) + 1, table)
            for (name, size), table in zip(self.contexts.items(), self.tables, strict=True)
        ]

    def forward(self, context: Mapping[str, Tensor]) -> Tensor:
        """Their sum, ``[batch, dim]``."""
        return torch.stack(self.parts(context)).sum(0)


class _BiasTower(Naive):
    """One number per task and context id; subclasses say how it is combined with relevance."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        contexts: Mapping[str, int],
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        self.bias = ContextTables(contexts, len(self.tasks))


class AdditiveTower(_BiasTower):
    """A bias of each context id on the logit: ``observed = r + sum of b(id)``, dropped at serving.

    >>> model = AdditiveTower(nn.Identity(), width=2, contexts={"position": 10})
    >>> model(torch.zeros(1, 2), {"position": torch.tensor([9])})["click"].observed_logit.shape
    torch.Size([1])
    """

    def observe(self, relevance: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """``r + b(context)`` for the event."""
        bias: Tensor = self.bias(context)
        return relevance * self.sign + bias


class PAL(_BiasTower):
    r"""PAL: seen and relevant, :math:`P = \sigma(b(context))\,\sigma(r)` (Guo et al. 2019); r is served.

    For a decreasing task this is the probability of the opposite event: an item is skipped unless it is both seen and
    relevant.

    >>> model = PAL(nn.Identity(), width=2, contexts={"position": 10})
    >>> model(torch.zeros(1, 2), {"position": torch.tensor([9])})["click"].observed_logit.shape
    torch.Size([1])
    """

    def observe(self, relevance: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """The logit of the product of both probabilities."""
        return product_logit(self.bias(context), relevance) * self.sign


class TrustAffine(_BiasTower):
    r"""Trust bias as an affine map of relevance, :math:`P = \beta + \alpha\,\sigma(r)` (Agarwal et al. 2019).

    In each context :math:`\alpha + \beta` is the label rate of relevant items, and :math:`\beta` the smaller rate of
    irrelevant items, which users also click if they trust the ranking. With :math:`\beta = 0` this is `PAL`. For a
    decreasing task this is the probability of the opposite event.

    >>> model = TrustAffine(nn.Identity(), width=2, contexts={"position": 10})
    >>> model(torch.zeros(1, 2), {"position": torch.tensor([9])})["click"].observed_logit.shape
    torch.Size([1])
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        contexts: Mapping[str, int],
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, contexts=contexts, tasks=tasks, decreasing=decreasing)
        self.trust = ContextTables(contexts, len(self.tasks))

    def observe(self, relevance: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """The logit of the affine map; the rate of irrelevant items is a share of that of relevant ones."""
        # Training starts close to PAL. With a larger share the bias would explain clicks that relevance should explain.
        share = torch.sigmoid(self.trust(context) + _TRUST_START)
        seen = share + (1 - share) * torch.sigmoid(relevance)
        return product_logit(self.bias(context), torch.logit(seen, eps=1e-6)) * self.sign


def product_logit(one: Tensor, two: Tensor) -> Tensor:
    r"""Logit of :math:`\sigma(a)\,\sigma(b)`, which is :math:`-\log(e^{-a} + e^{-b} + e^{-a-b})`.

    >>> product_logit(torch.tensor([0.0]), torch.tensor([0.0])).exp()  # odds of a quarter
    tensor([0.3333])
    """
    return -torch.logsumexp(torch.stack([-one, -two, -one - two]), dim=0)


class PositionAsFeature(Naive):
    """The context is a feature of the backbone; at serving it is one fixed context.

    Args:
        backbone: Features and ``dim`` more columns per context feature to ``[batch, width]``.
        width: Width of the backbone's output.
        contexts: Name and number of ids of each feature.
        dim: Size of the embedding of a context feature.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> model = PositionAsFeature(nn.Linear(2 + 4, 8), width=8, contexts={"position": 10})
    >>> model.serving()(torch.zeros(5, 2))["click"].shape
    torch.Size([5])
    """

    served_id = 0

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        contexts: Mapping[str, int],
        dim: int = 4,
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, tasks=tasks, decreasing=decreasing)
        self.embedding = ContextTables(contexts, dim)
        for table in self.embedding.tables:
            nn.init.normal_(table, std=0.1)

    def represent(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """The backbone over features and embedded context."""
        hidden: Tensor = self.backbone(torch.cat([features, *self.embedding.parts(context)], dim=1))
        return hidden

    def _served_backbone(self) -> nn.Module:
        """The backbone with the served context fixed inside it."""
        ids = {name: torch.tensor([self.served_id], device=self.sign.device) for name in self.embedding.contexts}
        with torch.no_grad():
            constant = torch.cat(self.embedding.parts(ids), dim=1)
        return _FixedContext(self.backbone, constant)


class _FixedContext(nn.Module):
    constant: Tensor

    def __init__(self, backbone: nn.Module, constant: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("constant", constant)

    def forward(self, features: Tensor) -> Tensor:
        hidden: Tensor = self.backbone(torch.cat([features, self.constant.expand(features.shape[0], -1)], dim=1))
        return hidden


class PositionDropout(PositionAsFeature):
    """Position as a feature, replaced by -1 (unknown) at random in training and always at serving.

    Args:
        backbone: As in `PositionAsFeature`.
        width: Width of the backbone's output.
        contexts: Name and number of ids of each feature.
        drop: Probability that a row's context is hidden; the paper tried ``DROP_RATES``.
        dim: Size of the embedding of a context feature.
        tasks: Names of the labels.
        decreasing: Tasks whose label is less likely with more relevance.

    >>> PositionDropout(nn.Linear(2 + 4, 8), width=8, contexts={"position": 10}, drop=0.15).drop
    0.15
    """

    served_id = -1

    def __init__(
        self,
        backbone: nn.Module,
        *,
        width: int,
        contexts: Mapping[str, int],
        drop: float = 0.15,
        dim: int = 4,
        tasks: Sequence[str] = ("click",),
        decreasing: Sequence[str] = (),
    ) -> None:
        super().__init__(backbone, width=width, contexts=contexts, dim=dim, tasks=tasks, decreasing=decreasing)
        self.drop = number("drop", drop, 0, 1, advice="the paper's is 0.15")

    def represent(self, features: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """The backbone over features and context; in training the context of some rows is hidden."""
        if self.training:
            hidden = torch.rand(len(features), device=features.device) < self.drop
            context = {name: torch.where(hidden, -1, id_column(context, name)) for name in self.embedding.contexts}
        return super().represent(features, context)


def post_hoc(
    model: Naive,
    features: Tensor,
    labels: Labels,
    *,
    method: Literal["platt", "isotonic"],
    weight: Tensor | None = None,
    grid: Grid | None = None,
) -> Serving:
    """Calibrate a trained model's probabilities, one fit per task; the relevance logits do not change.

    Args:
        model: A trained model.
        features: Features of the rows to fit, preferably not those it was trained on.
        labels: 0 or 1 of each task, ``[batch]``.
        method: ``"platt"``, a line over the logit, or ``"isotonic"``, isotonic regression.
        weight: Weight of each row, ``[batch]``.
        grid: Knots of the fitted curves, by default over all logits; isotonic steps become ramps of one grid step.

    Returns:
        The served module, with calibrated probabilities.
    """
    fits = {"platt": _platt, "isotonic": _isotonic}
    choice("method", method, list(fits))
    serving = instance("model", model, Naive, advice="train a model of isolayer.debias other than DualHead").serving()
    outputs = serving(features)
    relevance = torch.stack([outputs[task] for task in model.tasks], dim=1)
    grid = grid_or(grid, _grid_of(relevance * model.sign))
    label, weight = stacked_labels(model.tasks, labels, None, weight, relevance)
    weights = weight.double().cpu().numpy()[:, 0]
    values = []
    for logit, y in zip((relevance * model.sign).unbind(1), label.unbind(1), strict=True):
        columns = logit.double().cpu().numpy(), y.double().cpu().numpy()
        values.append(torch.from_numpy(fits[method](*columns, weights, grid.knots[1:])))
    serving.curve = FrozenCurves(torch.stack(values).to(model.sign), grid=grid, extrapolation="extend")
    return serving


def _grid_of(logit: Tensor) -> Grid:
    """The default grid, extended to these logits, since some losses do not determine their mean."""
    usual = Grid(step=0.05)
    low, high = (float(end) for end in torch.aminmax(logit)) if logit.numel() else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        return usual
    lower, upper = min(usual.lower, math.floor(low)), max(usual.upper, math.ceil(high))
    return Grid(lower=lower, upper=upper, step=max(usual.step, (upper - lower) / _MOST_KNOTS))


def _platt(logit: Column, label: Column, weight: Column, at: Column) -> Column:
    """Platt scaling with smoothed targets, evaluated at given logits."""
    positive, total = float(weight @ label), float(weight.sum())
    target = np.where(label == 1, (positive + 1) / (positive + 2), 1 / (total - positive + 2))
    both = np.concatenate([logit, logit])[:, None]  # soft labels: each row once as positive and once as negative
    side, weights = np.repeat([1, 0], len(label)), np.concatenate([weight * target, weight * (1 - target)])
    fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(both, side, weights)
    return np.asarray(fitted.decision_function(at[:, None]))


def _isotonic(logit: Column, label: Column, weight: Column, at: Column) -> Column:
    """The logit of isotonic regression, with probabilities clipped to [1e-6, 1 - 1e-6], at given logits."""
    steps = IsotonicRegression(out_of_bounds="clip").fit(logit, label, weight)
    return logit_of(steps.predict(at).clip(1e-6, 1 - 1e-6))
