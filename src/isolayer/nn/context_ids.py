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


def id_column(context: Mapping[str, Tensor] | Any, name: str, remedy: str = "add it, or pass -1 for unknown") -> Tensor:
    """The ids of one context feature, whatever their values.

    Args:
        context: A tensor of integers, ``[batch]``, for each feature.
        name: The feature.
        remedy: What to do if the feature is missing.

    >>> id_column({"position": torch.tensor([0, -1])}, "position")
    tensor([ 0, -1])
    """
    if not isinstance(context, Mapping):
        raise InputError(f"context: expected a mapping from {name!r} to integer ids, got {_told(context)}; {remedy}")
    if name not in context:
        raise InputError(f"context: expected a tensor for {name!r}, got keys {sorted(map(str, context))}; {remedy}")
    ids = context[name]
    if not isinstance(ids, Tensor):
        raise InputError(
            f"context {name!r}: expected a tensor of integer ids, got {_told(ids)}; number the values from 0"
        )
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"context {name!r}: expected integer ids, got {ids.dtype}; call .long()")
    return ids


def known_ids(ids: Tensor, size: int) -> Tensor:
    """The ids that are in the table, and -1 for every other: the base curve.

    >>> known_ids(torch.tensor([-7, -1, 0, 2, 3]), 3)
    tensor([-1, -1,  0,  2, -1])
    """
    return torch.where((ids < 0) | (ids >= size), -1, ids)


def require_known(ids: Tensor, size: int, name: str) -> None:
    """Refuse ids outside ``-1 .. size - 1``, as eager training does.

    >>> require_known(torch.tensor([0, -1]), 3, "position")
    """
    if not ids.numel():
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < -1 or high >= size:
        raise InputError(
            f"context {name!r}: expected ids from -1 (unknown) to {size - 1}, got {low if low < -1 else high}; "
            "map unseen values to -1, or use hash_buckets"
        )


def _told(value: Any) -> str:
    """A value for an error message: its type, and the value itself if that is short."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 60 and value is not None else type(value).__name__
