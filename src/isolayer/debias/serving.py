"""What is left of a debiasing model at serving: features in, relevance and probability out, no context.

The relevance head itself is here too: it is what every model trains and what is served.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isolayer.grid import Grid
from isolayer.nn.functional import piecewise_linear

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
        relevance: ``[batch, width]`` to a relevance logit a task.
        tasks: Their names.
        decreasing: The tasks whose probability falls as relevance rises.
        curve: One monotone curve a task from the event's logit to that of the served probability; none is the identity.

    >>> serving = Serving(nn.Identity(), nn.Linear(2, 1), tasks=("click",))
    >>> [(name, list(value.shape)) for name, value in serving(torch.zeros(5, 2)).items()]
    [('click', [5]), ('click_prob', [5])]
    """

    def __init__(
        self,
        backbone: nn.Module,
        relevance: nn.Module,
        *,
        tasks: Sequence[str],
        decreasing: Sequence[str] = (),
        curve: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        self.backbone, self.relevance, self.curve = copy.deepcopy((backbone, relevance, curve))
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
        logit = relevance * self.sign
        prob = torch.sigmoid(logit if self.curve is None else self.curve(logit))
        columns = (part for pair in zip(relevance.unbind(1), prob.unbind(1), strict=True) for part in pair)
        return dict(zip(self.names, columns, strict=True))


class BakedCurve(nn.Module):
    """Fixed curves, one a column: the values at a grid's knots and nothing to learn.

    Args:
        values: Values at ``grid.knots``, ``[units, buckets + 1]``.
        grid: Where the knots are; beyond it curves go on with slope 1.

    >>> grid = Grid(lower=0, upper=1, step=1)
    >>> BakedCurve(torch.tensor([[-1.0, 0.0, 2.0]]), grid)(torch.tensor([[0.5], [2.0]])).round(decimals=4)
    tensor([[1.],
            [3.]])
    """

    values: Tensor

    def __init__(self, values: Tensor, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer("values", values.detach().clone())

    def forward(self, logit: Tensor) -> Tensor:
        """Values of column ``u`` by curve ``u``, ``[batch, units]``."""
        return piecewise_linear(logit, self.values, grid=self.grid, extrapolation="extend")
