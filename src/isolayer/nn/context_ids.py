"""Context ids, and the one rule about ids that have no curve of their own.

The ids of a context feature are the integers ``0 .. size - 1``. Any other integer is *unknown* and takes the base
curve: -1 by convention, and also a smaller number or one beyond the table, such as an item that is newer than the
model. This holds wherever curves are served: in eval mode, compiled, exported and in ONNX. In eager training mode an
id other than -1 outside the table is refused, because there it is a mistake in the data pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isolayer.errors import InputError

_REMEDY = "add it, or pass -1 for unknown"


def id_column(context: Mapping[str, Tensor] | Any, name: str, batch: int | None = None) -> Tensor:
    """The ids of one context feature, whatever their values.

    Args:
        context: A tensor of integers, ``[batch]``, for each feature.
        name: The feature.
        batch: How many there must be; by default any number.

    >>> id_column({"position": torch.tensor([0, -1])}, "position")
    tensor([ 0, -1])
    """
    if not isinstance(context, Mapping):
        raise InputError(f"context: expected a mapping from {name!r} to integer ids, got {_told(context)}; {_REMEDY}")
    if name not in context:
        raise InputError(f"context: expected a tensor for {name!r}, got keys {sorted(map(str, context))}; {_REMEDY}")
    ids = context[name]
    if not isinstance(ids, Tensor):
        raise InputError(
            f"context {name!r}: expected a tensor of integer ids, got {_told(ids)}; number the values from 0"
        )
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"context {name!r}: expected integer ids, got {ids.dtype}; call .long()")
    if ids.dim() != 1 or (batch is not None and not torch.compiler.is_compiling() and len(ids) != batch):
        raise InputError(
            f"context {name!r}: expected ids of shape [{'batch' if batch is None else batch}], got {list(ids.shape)}; "
            "give one id per logit"
        )
    return ids


def known_ids(ids: Tensor, size: int) -> Tensor:
    """The ids that are in the table, and -1, which has the base curve, for every other.

    >>> known_ids(torch.tensor([-7, -1, 0, 2, 3]), 3)
    tensor([-1, -1,  0,  2, -1])
    """
    return torch.where((ids < 0) | (ids >= size), -1, ids)


def checked_ids(ids: Tensor, size: int, name: str, *, training: bool) -> Tensor:
    """`known_ids`, but refuse ids outside ``-1 .. size - 1`` in eager training.

    >>> checked_ids(torch.tensor([0, -1, 9]), 3, "position", training=False)
    tensor([ 0, -1, -1])
    """
    if torch.compiler.is_compiling():
        return known_ids(ids, size)
    low, high = (int(bound) for bound in torch.aminmax(ids)) if ids.numel() else (0, 0)
    if low >= -1 and high < size:
        return ids
    if training:
        raise InputError(
            f"context {name!r}: expected ids from -1 (unknown) to {size - 1}, got {low if low < -1 else high}; "
            "map unseen values to -1, or use hash_buckets"
        )
    return known_ids(ids, size)


def _told(value: Any) -> str:
    """A value for an error message: its type, and the value itself if that is short."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 60 and value is not None else type(value).__name__
