r"""DeepFM, the base model that papers on ads calibration use: embedded fields, their pairs, and a network over them.

:math:`z = b + \sum_f w_f + \frac12 \sum_d [(\sum_f e_{fd})^2 - \sum_f e_{fd}^2] + MLP(e)` (Guo et al. 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Codes = NDArray[np.int64]
LARGEST_TABLE = 100_000  # ids of a field; beyond, they share rows
BATCH = 2048


class DeepFM(nn.Module):
    """Ids ``[batch, fields]`` to logits ``[batch]``.

    Args:
        sizes: Number of ids of each field.
        dim: Size of an embedding.
        hidden: Widths of the network.

    >>> DeepFM([3, 5])(torch.tensor([[0, 4], [2, 1]])).shape
    torch.Size([2])
    """

    starts: Tensor

    def __init__(self, sizes: Sequence[int], *, dim: int = 8, hidden: Sequence[int] = (64, 32)) -> None:
        super().__init__()
        self.register_buffer("starts", torch.tensor([0, *np.cumsum(sizes)[:-1].tolist()]))
        self.linear, self.embedding = nn.Embedding(sum(sizes), 1), nn.Embedding(sum(sizes), dim)
        nn.init.zeros_(self.linear.weight)
        nn.init.normal_(self.embedding.weight, std=0.01)
        self.bias = nn.Parameter(torch.zeros(1))
        widths = [dim * len(sizes), *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of rows of ids, ``[batch]``."""
        rows = ids + self.starts
        embedded = self.embedding(rows)  # [batch, fields, dim]
        pairs = (embedded.sum(1).square() - embedded.square().sum(1)).sum(1) / 2
        first = self.linear(rows).sum((1, 2))
        logit: Tensor = self.bias + first + pairs + self.network(embedded.flatten(1)).squeeze(1)
        return logit


def field_ids(column: NDArray[Any]) -> tuple[Codes, int]:
    """Ids of a column and how many there are; counts go by the power of two they reach, missing ones to id 0.

    >>> field_ids(np.array([np.nan, 0.0, 1.0, 5.0, 6.0]))
    (array([0, 1, 2, 3, 3]), 4)
    """
    if column.dtype.kind == "f":
        tamed = np.sign(column) * np.floor(np.log2(1 + np.abs(column)))
        column = np.nan_to_num(tamed, nan=-1e9)
    elif column.dtype.kind == "O":
        column = column.astype(str)
    keys, code = np.unique(column, return_inverse=True)
    size = min(len(keys), LARGEST_TABLE)
    return code.astype(np.int64) % size, size


def fitted_logits(
    fields: Sequence[NDArray[Any]], label: NDArray[Any], train_rows: int, *, seed: int, epochs: int = 1
) -> NDArray[np.float64]:
    """Logits of all rows by a DeepFM trained on the first ``train_rows``, in passes over them at random."""
    torch.manual_seed(seed)
    coded = [field_ids(column) for column in fields]
    ids = torch.from_numpy(np.stack([code for code, _ in coded], axis=1))
    model = DeepFM([size for _, size in coded])
    target = torch.from_numpy(np.asarray(label, np.float32))
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for _ in range(epochs):
        for chosen in torch.randperm(train_rows).split(BATCH):
            loss = nn.functional.binary_cross_entropy_with_logits(model(ids[chosen]), target[chosen])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        return torch.cat([model(part) for part in ids.split(1 << 16)]).double().numpy()
