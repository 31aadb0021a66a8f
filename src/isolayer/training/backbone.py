"""The backbone that the command line trains: from features of any scale and kind to a hidden layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

DIM = 8  # size of the embedding of a value


class TableBackbone(nn.Module):
    """Layers over the features of a log: numbers normalised by batch, values of a vocabulary embedded.

    Args:
        features: Number of features.
        hidden: Widths of the layers.
        categories: Size of the vocabulary of each feature that has one, by its index. Such a feature contains ids from
            1; 0 and ids beyond the vocabulary are unknown and have a zero embedding.
        dropout: Share of each layer's outputs that is left out in training.

    >>> backbone = TableBackbone(3, [8, 4], {1: 100})
    >>> backbone(torch.tensor([[0.5, 7.0, 2.0], [1.5, 0.0, 3.0]])).shape
    torch.Size([2, 4])
    """

    numeric: Tensor

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        categories: Mapping[int, int] | None = None,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.categories = dict(categories or {})
        places = [place for place in range(features) if place not in self.categories]
        self.register_buffer("numeric", torch.tensor(places, dtype=torch.long), persistent=False)
        self.norm = nn.BatchNorm1d(len(places)) if places else None
        self.tables = nn.ModuleList(nn.Embedding(size + 1, DIM, padding_idx=0) for size in self.categories.values())
        layers: list[nn.Module] = []
        for before, after in pairwise([len(places) + DIM * len(self.tables), *hidden]):
            layers += [nn.Linear(before, after), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Hidden layer ``[batch, width]`` of features ``[batch, features]``."""
        parts = [] if self.norm is None else [self.norm(features.index_select(1, self.numeric))]
        for (place, size), table in zip(self.categories.items(), self.tables, strict=True):
            number = features[:, place].round().long()
            parts.append(table(torch.where((number < 0) | (number > size), 0, number)))
        hidden: Tensor = self.layers(torch.cat(parts, dim=1))
        return hidden
