"""The lists of a batch as a padded table with one list per row, for losses that compare the rows of a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isolayer.debias.loss import Heads
from isolayer.errors import InputError
from isolayer.nn.context_ids import id_column
from isolayer.settings import instance, mapping

_ADVICE = "pass what forward returned"


@dataclass(frozen=True)
class Lists:
    """The list of each row of a batch, and its index within the list.

    Args:
        row: The list of each row, ``[batch]``.
        place: Its index within the list, ``[batch]``.
        count: Number of lists.
        longest: Number of rows of the longest list.
        aligned: Whether lists of one length follow each other, their rows in order: then the table is a reshape.
    """

    row: Tensor
    place: Tensor
    count: int
    longest: int
    aligned: bool = False

    @classmethod
    def of(cls, group: Tensor, order: Tensor | None = None) -> Lists:
        """The lists of rows, from the id of each row's list. Rows are sorted by ``order``, by default as they come.

        >>> lists = Lists.of(torch.tensor([7, 9, 7]), torch.tensor([1, 0, 0]))
        >>> lists.row.tolist(), lists.place.tolist()
        ([0, 1, 0], [1, 0, 0])
        """
        length = _common_length(group, order)
        if length:
            row = torch.arange(len(group), device=group.device)
            return cls(row // length, row % length, len(group) // length, length, aligned=True)
        ids, row = torch.unique(group, return_inverse=True)
        by_order = torch.arange(len(row), device=row.device) if order is None else torch.argsort(order, stable=True)
        rows = by_order[torch.argsort(row[by_order], stable=True)]
        lengths = torch.bincount(row, minlength=len(ids))
        first = lengths.cumsum(0) - lengths
        place = torch.empty_like(row)
        place[rows] = torch.arange(len(row), device=row.device) - first[row[rows]]
        return cls(row, place, len(ids), int(lengths.max()) if len(row) else 0)

    @classmethod
    def of_context(
        cls, context: Mapping[str, Tensor], group: str, batch: int | None = None, order: Tensor | None = None
    ) -> Lists:
        """The lists in a key of the context, checked."""
        if group not in mapping("context", context, advice="give ids of each feature"):
            raise InputError(f"context: expected {group!r}, the list of each row, got {sorted(context)}; add it")
        return cls.of(id_column(context, group, batch), order)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Values ``[batch, ...]`` as a table ``[lists, longest, ...]``, padded with ``fill``.

        >>> Lists.of(torch.tensor([0, 1, 0])).pad(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[1., 3.],
                [2., 0.]])
        """
        if self.aligned:
            return values.reshape(self.count, self.longest, *values.shape[1:])
        empty = values.new_full((self.count, self.longest, *values.shape[1:]), fill)
        return empty.index_put((self.row, self.place), values)

    def flat(self, table: Tensor) -> Tensor:
        """The rows of such a table, ``[batch, ...]``.

        >>> lists = Lists.of(torch.tensor([0, 1, 0]))
        >>> lists.flat(lists.pad(torch.tensor([1.0, 2.0, 3.0])))
        tensor([1., 2., 3.])
        """
        return table.flatten(0, 1) if self.aligned else table[self.row, self.place]


def _common_length(group: Tensor, order: Tensor | None) -> int:
    """The length of lists that are equally long, follow each other and have their rows in order; 0 of any others."""
    ids, lengths = torch.unique_consecutive(group, return_counts=True)
    length = len(group) // max(len(ids), 1)
    if not length or not bool((lengths == length).all()) or len(torch.unique(ids)) < len(ids):
        return 0
    if order is None:
        return length
    rows = order.view(-1, length)
    return length if bool((rows[:, 1:] >= rows[:, :-1]).all()) else 0


class Outputs(dict[str, Heads]):
    """`Heads` of every task, and further values that the loss of a model needs."""

    lists: Lists | None = None  # of the rows
    beside: Tensor | None = None  # a tensor that the model needs in its loss

    @classmethod
    def of(cls, heads: Mapping[str, Heads], lists: Lists | None, beside: Tensor | None = None) -> Outputs:
        """The same outputs with lists and a further tensor.

        >>> Outputs.of({}, None, torch.zeros(3)).beside
        tensor([0., 0., 0.])
        """
        found = cls(heads)
        found.lists, found.beside = lists, beside
        return found


def seen_lists(outputs: Mapping[str, Heads]) -> Lists:
    """The lists that a model's forward stored with its outputs.

    >>> seen_lists(Outputs.of({}, Lists.of(torch.tensor([0, 0])))).longest
    2
    """
    found = instance("outputs", outputs, Outputs, advice=_ADVICE).lists
    if found is None:
        raise InputError(f"outputs: expected those of this model, got something else; {_ADVICE}")
    return found


def seen_again(outputs: Mapping[str, Heads]) -> Tensor:
    """The tensor that a model's forward stored with its outputs.

    >>> seen_again(Outputs.of({}, None, torch.zeros(2)))
    tensor([0., 0.])
    """
    found = instance("outputs", outputs, Outputs, advice=_ADVICE).beside
    if found is None:
        raise InputError(f"outputs: expected those of this model, got something else; {_ADVICE}")
    return found
