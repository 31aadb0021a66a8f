"""What is left of a debiasing model at serving: features in, relevance and probability out, no context.

The relevance head itself is here too: it is what every model trains and what is served.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from isolayer.nn.frozen import FrozenCurves

LEVEL_RATE = 10.0  # a level learns so many times as fast as the rest of its group


class Relevance(nn.Linear):
    """A relevance logit a task: linear in the backbone's output, with a level that learns as fast as levels of curves.

    The level must not lag behind the bias of positions: what both have yet to learn, the backbone would learn instead,
    from whatever feature tells the position.

    Args:
        width: Width of the backbone's output.
        tasks: Number of logits.

    >>> Relevance(8, 2)(torch.zeros(5, 8)).shape
    torch.Size([5, 2])
    """

    def __init__(self, width: int, tasks: int) -> None:
        super().__init__(width, tasks, bias=False)
        self.level = Level(tasks)

    def forward(self, hidden: Tensor) -> Tensor:
        """Relevance logits ``[batch, tasks]`` of ``[batch, width]``."""
        logit: Tensor = self.level(super().forward(hidden))
        return logit


class Level(nn.Module):
    """A constant a column, added; flagged as a curve, so that `parameter_groups` gives it the rate of curves.

    >>> Level(2)(torch.zeros(1, 2)).shape
    torch.Size([1, 2])
    """

    is_curve = True

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(columns))

    def forward(self, logit: Tensor) -> Tensor:
        """Each column and its constant."""
        return logit + LEVEL_RATE * self.value


class Serving(nn.Module):
    """What is deployed: features in, and for each task its relevance logit and a probability out. No context.

    Exported by `torch.export` or `torch.onnx.export`, the graph holds plain tensor operations only.

    Args:
        backbone: Features to ``[batch, width]``.
        relevance: ``[batch, width]`` to one relevance logit per task.
        tasks: Their names.
        decreasing: The tasks whose probability falls as relevance rises.
        curve: One monotone curve per task from the event's logit to that of the served probability; by default the
            identity.
        shares: Features, or relevance logits, to the probability of each context of the curves, ``[batch, contexts]``.
            The served probability is then the average over the contexts.
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
        curve: FrozenCurves | None = None,
        shares: nn.Module | None = None,
        shares_given: Literal["features", "relevance"] = "features",
    ) -> None:
        super().__init__()
        self.tasks, self.shares_given = tuple(tasks), shares_given
        self.backbone, self.relevance, self.shares = copy.deepcopy((backbone, relevance, shares))
        self.curve = copy.deepcopy(curve)
        self.register_buffer("sign", torch.tensor([-1.0 if task in decreasing else 1.0 for task in tasks]))
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
        each = torch.sigmoid(self.curve.at_every_context(logit))  # [batch, contexts, tasks]
        share: Tensor = self.shares(given)
        return (share.unsqueeze(2) * each).sum(1)
