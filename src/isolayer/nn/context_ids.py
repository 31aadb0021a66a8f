"""Context ids, and the one rule about ids that have no curve of their own.

The ids of a context feature are the integers ``0 .. size - 1``. Any other integer is *unknown* and takes the base
curve: -1 by convention, and also a smaller number or one beyond the table, such as an item that is newer than the
model. This holds wherever curves are served: in eval mode, compiled, exported and in ONNX. In eager training mode an
id other than -1 outside the table is refused, because there it is a mistake in the data pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isolayer.errors import InputError
from isolayer.settings import shown

_INDICES = (torch.int64, torch.int32)  # types that torch can look up by
_INTEGERS = (*_INDICES, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
CURVE = "curve"  # the one context feature of what is made from fitted curves: the row in their table


def id_column(context: Mapping[str, Any] | Any, name: str, batch: int | None = None) -> Tensor:
    """The ids of one context feature, whatever their values.

    Args:
        context: Integers ``[batch]`` for each feature, as a tensor, a numpy array or a list.
        name: The feature.
        batch: How many there must be; by default any number.

    >>> id_column({"position": torch.tensor([0, -1])}, "position")
    tensor([ 0, -1])
    """
    if not isinstance(context, Mapping):
        raise InputError(f"context: expected a mapping from {name!r} to ids, got {shown(context)}; {_add(name)}")
    if name not in context:
        raise InputError(f"context: expected ids for {name!r}, got keys {sorted(map(str, context))}; {_add(name)}")
    ids = context[name]
    if not isinstance(ids, Tensor):
        ids = _tensor(ids, name)
    if ids.dtype not in _INTEGERS:
        raise InputError(f"context {name!r}: expected integer ids, got {ids.dtype}; call .long()")
    if ids.dim() != 1 or (batch is not None and not torch.compiler.is_compiling() and len(ids) != batch):
        raise InputError(
            f"context {name!r}: expected ids of shape [{'batch' if batch is None else batch}], got {list(ids.shape)}; "
            "give one id per logit"
        )
    return ids if ids.dtype in _INDICES else _widened(ids, name)


def _tensor(ids: Any, name: str) -> Tensor:
    """Ids given as a numpy array or a list."""
    if isinstance(ids, np.ndarray) and np.issubdtype(ids.dtype, np.integer):
        return torch.as_tensor(ids)
    if isinstance(ids, list | tuple) and all(type(one) is int for one in ids):
        return torch.tensor(ids, dtype=torch.int64)
    remedy = _add(name) if name == CURVE else "number the values from 0"
    raise InputError(f"context {name!r}: expected integer ids, got {shown(ids)}; {remedy}")


def _widened(ids: Tensor, name: str) -> Tensor:
    """Ids of another integer type, in one that torch can look up by."""
    wide = ids.long()
    if ids.dtype == torch.uint64 and not torch.compiler.is_compiling() and bool((wide < 0).any()):
        raise InputError(f"context {name!r}: expected ids below 2**63, got larger ones; halve them first: ids // 2")
    return wide


def known_ids(ids: Tensor, size: int) -> Tensor:
    """The ids that are in the table; every other id becomes -1, which has the base curve.

    >>> known_ids(torch.tensor([-7, -1, 0, 2, 3]), 3)
    tensor([-1, -1,  0,  2, -1])
    """
    return torch.where((ids < 0) | (ids >= size), -1, ids)


def checked_ids(
    context: Mapping[str, Any] | Any, name: str, size: int, *, training: bool, batch: int | None = None
) -> Tensor:
    """The ids of one context feature, with -1 for unknown ones; eager training refuses unknown ids other than -1.

    Args:
        context: Integers ``[batch]`` for each feature, as a tensor, a numpy array or a list.
        name: The feature.
        size: Its number of ids.
        training: Whether the module is in training mode.
        batch: How many ids there must be; by default any number.

    >>> checked_ids({"position": torch.tensor([0, -1, 9])}, "position", 3, training=False)
    tensor([ 0, -1, -1])
    """
    ids = id_column(context, name, batch)
    if torch.compiler.is_compiling():
        return known_ids(ids, size)
    low, high = (int(bound) for bound in torch.aminmax(ids)) if ids.numel() else (0, 0)
    if low >= -1 and high < size:
        return ids
    if training:
        raise InputError(
            f"context {name!r}: expected ids from -1 (unknown) to {size - 1}, got {low if low < -1 else high}; "
            "map unseen values to -1"
        )
    return known_ids(ids, size)


def slot_table(rows: Tensor, contexts: Mapping[str, int]) -> Tensor:
    """A table over all combinations of ids that `slots` can look up, unknown ids included.

    Args:
        rows: The entry of every combination of ids from -1 to ``size - 1``, with the last feature varying fastest,
            ``[combinations, columns]``.
        contexts: Name and number of ids of each feature.

    Returns:
        The same with one more id per feature, which stands for all ids beyond the table and has the entry of -1.

    >>> slot_table(torch.tensor([[7], [0], [1]]), {"position": 2}).flatten()
    tensor([7, 0, 1, 7])
    """
    table = rows.view(*(size + 1 for size in contexts.values()), rows.shape[1])
    for axis in range(len(contexts)):
        table = torch.cat([table, table.narrow(axis, 0, 1)], dim=axis)
    return table.reshape(-1, rows.shape[1])


def slots(context: Mapping[str, Any] | Any, contexts: Mapping[str, int], batch: int | None = None) -> Tensor:
    """Where each row's combination of ids is in a `slot_table`, ``[batch]``.

    >>> slots({"position": torch.tensor([-5, 0, 1, 99])}, {"position": 2})
    tensor([0, 1, 2, 3])
    """
    place, first = None, 0  # every operation counts here, so ids begin at -1 until the end
    for name, size in contexts.items():
        ids = id_column(context, name, batch).clamp(-1, size)
        place, first = ids if place is None else torch.add(ids, place, alpha=size + 2), first * (size + 2) + 1
    if place is None:
        raise InputError("contexts: expected at least one feature, got none; leave the context out")
    return place + first


def _add(name: str) -> str:
    """What to do when the ids of a feature are missing."""
    if name == CURVE:
        return f"pass {{{CURVE!r}: curves.rows_of(context, n)}}"
    return "add them, or pass -1 for unknown"
