"""The one learning loop of the experiments: a small network, a log in memory, minibatches, a rate that falls to zero.

Real training, with files, checkpoints and early stopping, is the business of `isolayer.training.train`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer.nn.rates import parameter_groups

WIDTH = 32  # of the network's output
BATCH = 512


class Log(NamedTuple):
    """A log as tensors; ``features [n, width]``, everything else ``[n]``."""

    features: Tensor
    context: dict[str, Tensor]
    labels: dict[str, Tensor]
    mask: dict[str, Tensor]  # for some tasks, the rows that have a label

    def rows(self, chosen: Tensor) -> Log:
        """The rows of these numbers."""
        context, labels, mask = (
            {name: column.index_select(0, chosen) for name, column in columns.items()}
            for columns in (self.context, self.labels, self.mask)
        )
        return Log(self.features.index_select(0, chosen), context, labels, mask)

    def batches(self, size: int) -> Iterator[Log]:
        """So many rows at a time, in their order, without copying them."""
        columns = [
            {name: column.split(size) for name, column in columns.items()}
            for columns in (self.context, self.labels, self.mask)
        ]
        for number, features in enumerate(self.features.split(size)):
            yield Log(features, *({name: parts[number] for name, parts in each.items()} for each in columns))


class Learner(Protocol):
    """What the loop asks of a model: `DualHead` and every baseline have it."""

    def __call__(self, features: Tensor, context: Mapping[str, Tensor]) -> Any:
        """Outputs for a batch."""

    def loss(self, outputs: Any, labels: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None) -> Tensor:
        """Their loss."""


Model = TypeVar("Model", bound=nn.Module)


def network(inputs: int, *, hidden: int = 64) -> nn.Sequential:
    """The backbone of every experiment: two layers, to ``[batch, WIDTH]``.

    >>> network(12)(torch.zeros(5, 12)).shape
    torch.Size([5, 32])
    """
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH), nn.ReLU())


def as_log(
    columns: Mapping[str, NDArray[Any]],
    tasks: Sequence[str],
    *,
    contexts: Sequence[str] = ("position", "device"),
    after: Mapping[str, str] | None = None,
) -> Log:
    """Columns of the simulator as tensors; ``after`` names the action without which a task has no label.

    >>> columns = {"features": np.zeros((2, 3)), "like": np.array([0, 1]), "sale": np.array([0, 1])}
    >>> as_log(columns, ["sale"], contexts=(), after={"sale": "like"}).mask["sale"]
    tensor([False,  True])
    """
    return Log(
        torch.as_tensor(columns["features"], dtype=torch.float32),
        {name: torch.as_tensor(columns[name], dtype=torch.long) for name in contexts},
        {task: torch.as_tensor(columns[task], dtype=torch.float32) for task in tasks},
        {task: torch.as_tensor(columns[action] == 1) for task, action in (after or {}).items()},
    )


def train(model: Model, log: Log, *, epochs: int = 3, lr: float = 3e-3, seed: int = 0) -> Model:
    """Fit a model to a log in place and return it in evaluation mode: Adam, curves at ten times the rate, cosine decay.

    Args:
        model: A `Learner`.
        log: Its rows.
        epochs: Passes over the rows, each in another order.
        lr: Rate of the backbone at the start.
        seed: Of the order, and of whatever the model draws.

    >>> from isolayer.debias import Naive
    >>> log = as_log({"features": np.eye(4), "click": np.ones(4)}, ["click"], contexts=())
    >>> model = train(Naive(nn.Identity(), width=4), log, epochs=50, lr=0.1)
    >>> bool((model.serving()(log.features)["click_prob"] > 0.9).all())
    True
    """
    learner = cast("Learner", model)
    torch.manual_seed(seed)
    rows = len(log.features)
    steps = epochs * -(-rows // BATCH)
    optimiser = torch.optim.Adam(parameter_groups(model, lr), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    model.train()
    for _ in range(epochs):
        for batch in log.rows(torch.randperm(rows)).batches(BATCH):  # gathered once per pass
            loss = learner.loss(learner(batch.features, batch.context), batch.labels, batch.mask or None)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def prob(logit: Tensor) -> NDArray[np.float64]:
    """Probabilities of logits, in numpy's double precision.

    >>> prob(torch.zeros(1)).tolist()
    [0.5]
    """
    return torch.sigmoid(logit.detach().double()).numpy()
