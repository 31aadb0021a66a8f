"""The part of a debiasing model that is served: from features to relevance and probability, without a context.

The relevance head belongs here as well, because every model trains it and serves it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.inputs import module
from isolayer.settings import choice, count, instance, names

BIAS_RATE = 10.0  # biases learn this many times faster than the slopes of curves; see `parameter_groups`


class Relevance(nn.Linear):
    """One relevance logit per task: linear in the backbone's output, whose bias learns as fast as that of a curve.

    If this bias lags behind the position effects, the backbone absorbs the difference through whatever feature
    correlates with the position.

    Args:
        width: Width of the backbone's output.
        tasks: Number of logits.

    >>> Relevance(8, 2)(torch.zeros(5, 8)).shape
    torch.Size([5, 2])
    """

    curve_lr_factors: ClassVar[Mapping[str, float]] = {"bias": BIAS_RATE}

    def __init__(self, width: int, tasks: int) -> None:
        super().__init__(count("width", width, advice="give the width of the backbone's output"), tasks, bias=False)
        self.bias = nn.Parameter(torch.zeros(tasks))


class PooledCurves(nn.Module):
    """Context curves whose embeddings are first averaged, by the share of each context in each row, into one curve.

    Args:
        layer: Trained context curves; all combinations of its ids are contexts.

    >>> curves = PooledCurves(ContextIsotonicLayer({"position": 3}))
    >>> curves(torch.tensor([[0.5]]), torch.tensor([[0.2, 0.3, 0.5]])).detach()
    tensor([[0.5000]])
    """

    bias: Tensor
    weight: Tensor

    @torch.no_grad()
    def __init__(self, layer: ContextIsotonicLayer) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer).eval()
        sizes = list(layer.contexts.values())
        ids = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).view(-1, len(sizes))
        ids = ids.to(layer.base.weight.device)
        bias, weight = self.layer.embeddings(dict(zip(layer.contexts, ids.unbind(1), strict=True)))
        self.register_buffer("bias", bias)  # [contexts, units]
        self.register_buffer("weight", weight)  # [contexts, units * buckets]

    def forward(self, logit: Tensor, share: Tensor) -> Tensor:
        """Calibrated logits ``[batch, units]``, for the share of each context ``[batch, contexts]``."""
        return self.layer.at_embeddings(logit, share @ self.bias, share @ self.weight)


class Serving(nn.Module):
    """What is deployed: it takes features, and returns the relevance logit and a probability for each task.

    It reads no context. Exported by `torch.export` or `torch.onnx.export`, its graph has plain tensor operations only.

    Args:
        backbone: Features to ``[batch, width]``.
        relevance: ``[batch, width]`` to one relevance logit per task.
        tasks: Their names.
        decreasing: The tasks whose probability falls as relevance rises.
        curve: One monotone curve per task from the event's logit to that of the served probability; by default the
            identity.
        shares: Features, or relevance logits, to the probability of each context of the curves, ``[batch, contexts]``.
            The served probability is then the average over the contexts, or that of the averaged embedding.
        shares_given: What ``shares`` reads.

    >>> serving = Serving(nn.Identity(), nn.Linear(2, 1), tasks=("click",))
    >>> [(name, list(value.shape)) for name, value in serving(torch.zeros(5, 2)).items()]
    [('click', [5]), ('click_prob', [5])]
    """

    sign: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        relevance: nn.Module,
        *,
        tasks: Sequence[str],
        decreasing: Sequence[str] = (),
        curve: FrozenCurves | PooledCurves | None = None,
        shares: nn.Module | None = None,
        shares_given: Literal["features", "relevance"] = "features",
    ) -> None:
        super().__init__()
        self.tasks = names("tasks", tasks, advice="name each label once")
        falling = names("decreasing", decreasing, self.tasks, advice="name tasks only")
        self.shares_given = choice("shares_given", shares_given, ("features", "relevance"))
        for name, part in {"backbone": backbone, "relevance": relevance, "shares": shares}.items():
            if name != "shares" or part is not None:
                module(name, part)
        if not isinstance(curve, PooledCurves) and curve is not None:
            instance("curve", curve, FrozenCurves, advice="use FrozenCurves.from_layer")
        self.backbone, self.relevance, self.shares = copy.deepcopy((backbone, relevance, shares))
        self.curve = copy.deepcopy(curve)
        self.register_buffer("sign", torch.tensor([-1.0 if task in falling else 1.0 for task in self.tasks]))
        self.eval().requires_grad_(False)

    @property
    def names(self) -> list[str]:
        """Names of the outputs, in order.

        >>> Serving(nn.Identity(), nn.Linear(2, 1), tasks=("click",)).names
        ['click', 'click_prob']
        """
        return [name for task in self.tasks for name in (task, f"{task}_prob")]

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """``{"click": relevance_logit [batch], "click_prob": probability [batch], ...}``."""
        relevance = self.relevance(self.backbone(features))  # [batch, tasks]
        prob = self._prob(relevance * self.sign, features if self.shares_given == "features" else relevance)
        columns = (part for pair in zip(relevance.unbind(1), prob.unbind(1), strict=True) for part in pair)
        return dict(zip(self.names, columns, strict=True))

    def _prob(self, logit: Tensor, given: Tensor) -> Tensor:
        """Served probabilities ``[batch, tasks]`` of the events' logits ``[batch, tasks]``."""
        if self.curve is None:
            return torch.sigmoid(logit)
        if self.shares is None:
            return torch.sigmoid(self.curve(logit))
        share: Tensor = self.shares(given)
        if isinstance(self.curve, PooledCurves):
            return torch.sigmoid(self.curve(logit, share))
        each = torch.sigmoid(self.curve.at_every_context(logit))  # [batch, contexts, tasks]
        return (share.unsqueeze(2) * each).sum(1)
