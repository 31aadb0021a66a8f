"""The backbone that the command line trains: from features of any scale and kind to a hidden layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

DIM = 8  # size of the embedding of a value


class TableBackbone(nn.Module):
    """Layers over the features of a log: numbers standardised, values of a vocabulary embedded.

    Numbers are measured by the mean and standard deviation of each feature that `standardise` was given; `train` gives
    those of the first log in which the feature varies. They are stored with the weights and do not change afterwards,
    unlike statistics of batches, which differ between processes that share a batch.

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
    mean: Tensor
    deviation: Tensor

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
        self.register_buffer("mean", torch.zeros(len(places)))
        self.register_buffer("deviation", torch.zeros(len(places)))
        self.tables = nn.ModuleList(nn.Embedding(size + 1, DIM, padding_idx=0) for size in self.categories.values())
        layers: list[nn.Module] = []
        for before, after in pairwise([len(places) + DIM * len(self.tables), *hidden]):
            layers += [nn.Linear(before, after), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        self.layers = nn.Sequential(*layers)

    def standardise(self, mean: ArrayLike, deviation: ArrayLike) -> None:
        """Set the mean and the standard deviation of all features, ``[features]``, unless they are known already.

        A constant feature, of deviation 0, is only centred. It counts as unknown: nothing was learned about it.
        """
        centre, spread = (
            torch.as_tensor(np.asarray(one), dtype=self.mean.dtype, device=self.mean.device)[self.numeric]
            for one in (mean, deviation)
        )
        unknown = self.deviation == 0
        self.mean.copy_(torch.where(unknown, centre, self.mean))
        self.deviation.copy_(torch.where(unknown, spread, self.deviation))

    def forward(self, features: Tensor) -> Tensor:
        """Hidden layer ``[batch, width]`` of features ``[batch, features]``."""
        spread = torch.where(self.deviation > 0, self.deviation, 1.0)
        parts = [(features.index_select(1, self.numeric) - self.mean) / spread]
        for (place, size), table in zip(self.categories.items(), self.tables, strict=True):
            number = features[:, place].round().long()
            parts.append(table(torch.where((number < 0) | (number > size), 0, number)))
        hidden: Tensor = self.layers(torch.cat(parts, dim=1))
        return hidden
