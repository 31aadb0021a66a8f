"""Curves as layers and layers as curves: what the exact fit found can go on learning by gradient, and come back.

A layer knows slopes, curves know values at knots; the two are sums and differences of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.isotonic import IsotonicLayer

CURVE = "curve"  # the one context of a layer made of curves: the row in their table

_MOST_CURVES = 1 << 20


def to_layer(curves: Curves, *, dtype: torch.dtype = torch.float64) -> IsotonicLayer | ContextIsotonicLayer:
    """A layer that computes the calibrated logit of raw logits as the curves do, and can be trained further.

    Without contexts an `IsotonicLayer`; otherwise a `ContextIsotonicLayer` with the one context ``"curve"``, whose ids
    are the rows of the table: ``curves.rows_of(context, n)`` finds them, fallback for unseen contexts included. Id -1
    is the global curve.

    Args:
        curves: The curves. Their scale is not part of the layer: it reads logits.
        dtype: Type of the parameters; equal to 1e-12 in double precision.

    >>> from isolayer.grid import Grid
    >>> to_layer(Curves.identity(Grid()))(torch.tensor([0.25], dtype=torch.float64)).detach()
    tensor([[0.2500]], dtype=torch.float64)
    """
    grid = curves.grid
    slope = np.diff(curves.values, axis=1, prepend=curves.values[:, :1] - grid.step) / grid.step  # bucket 0 has slope 1
    bias = curves.values[:, 0] - grid.lower
    base = _filled(IsotonicLayer(grid=grid, extrapolation="extend").to(dtype), slope[0], bias[0])
    if not curves.contexts:
        return base
    layer = ContextIsotonicLayer({CURVE: len(slope)}, grid=grid, extrapolation="extend").to(dtype)
    _filled(layer.base, slope[0], bias[0])
    offset = np.concatenate([(bias - bias[0])[:, None], slope - slope[0]], axis=1)
    table: Any = layer.tables[0]
    with torch.no_grad():
        table.rows.weight[1:] = torch.as_tensor(offset, dtype=dtype)  # row 0 is id -1
    return layer


def from_layer(
    layer: IsotonicLayer | ContextIsotonicLayer,
    *,
    like: Curves | None = None,
    vocabulary: Mapping[str, Sequence[Any]] | None = None,
    unit: int = 0,
) -> Curves:
    """The curves of a layer: one a context, with the base curve above them.

    On the grid they are those of the layer exactly. Outside it curves go on with slope 1, where a layer that clips is
    flat. Contexts of several features become a hierarchy in the order of the layer.

    Args:
        layer: An `IsotonicLayer` or a `ContextIsotonicLayer` with tables of bounded ids.
        like: The curves that :func:`to_layer` made the layer of: contexts, scale and settings are taken from there.
        vocabulary: For a context, the value that each id stands for; by default the id itself.
        unit: Which of the layer's units.

    >>> from_layer(ContextIsotonicLayer({"position": 3})).keys[1][0].tolist()
    [0, 1, 2]
    """
    if not 0 <= unit < layer.units:
        raise InputError(f"unit: expected a number from 0 to {layer.units - 1}, got {unit}; count the layer's units")
    if like is not None:
        values = _values(layer, {CURVE: torch.arange(len(like.values))}, unit)
        if values.shape != like.values.shape or layer.grid != like.grid:
            raise InputError(
                f"like: expected the layer's shape {values.shape}, got {like.values.shape}; give the curves it is of"
            )
        return replace(like, values=values)
    if isinstance(layer, IsotonicLayer):
        return _curves(layer, ((),), _values(layer, {}, unit))
    if layer.hash_buckets or layer.projection:
        raise InputError("layer: expected tables of bounded ids, got hashed ids or a projection; fit those by curves")
    ids = [_ids(list(layer.contexts.values())[:level]) for level in range(len(layer.contexts) + 1)]
    if sum(len(level) for level in ids) > _MOST_CURVES:
        raise InputError(f"layer: expected at most {_MOST_CURVES} combinations of ids, got more; use fewer features")
    names = list(layer.contexts)
    parts = [_values(layer, {name: _column(level, place) for place, name in enumerate(names)}, unit) for level in ids]
    words = [_words(name, size, vocabulary) for name, size in layer.contexts.items()]
    keys = tuple(tuple(words[place][level[:, place]] for place in range(level.shape[1])) for level in ids)
    return _curves(layer, keys, np.concatenate(parts))


def _filled(layer: IsotonicLayer, slope: NDArray[np.float64], bias: float) -> IsotonicLayer:
    """A layer of one unit with given slopes and bias."""
    with torch.no_grad():
        layer.weight[0] = torch.as_tensor(slope)
        if layer.bias is not None:
            layer.bias[0] = float(bias)
    return layer


@torch.no_grad()
def _values(layer: IsotonicLayer | ContextIsotonicLayer, ids: Mapping[str, Tensor], unit: int) -> NDArray[np.float64]:
    """Values at the knots from lower to upper of every given context, ``[contexts, knots]``, never decreasing."""
    if isinstance(layer, IsotonicLayer):
        knots = layer.knot_values()[None]
    else:
        knots = layer.knot_values({name: column.to(layer.base.weight.device) for name, column in ids.items()})
    values = knots[:, unit, 1:].double().cpu().numpy()
    if (np.diff(values, axis=1) < 0).any():
        raise InputError("layer: expected curves that never decrease, got one that does; use constraint='relu'")
    return np.asarray(values)


def _ids(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Every combination of ids, ``[combinations, features]``."""
    return np.stack([axis.reshape(-1) for axis in np.indices(sizes)], axis=1) if sizes else np.zeros((1, 0), np.int64)


def _column(ids: NDArray[np.int64], place: int) -> Tensor:
    """Ids of a feature; -1, unknown, in levels above it."""
    return torch.as_tensor(ids[:, place] if place < ids.shape[1] else np.full(len(ids), -1))


def _words(name: str, size: int, vocabulary: Mapping[str, Sequence[Any]] | None) -> NDArray[Any]:
    words = np.asarray((vocabulary or {}).get(name, range(size)))
    if len(words) != size:
        raise InputError(f"vocabulary of {name}: expected {size} values, got {len(words)}; give one an id")
    return words


def _curves(
    layer: IsotonicLayer | ContextIsotonicLayer, keys: tuple[tuple[NDArray[Any], ...], ...], values: NDArray[np.float64]
) -> Curves:
    contexts = () if isinstance(layer, IsotonicLayer) else tuple(layer.contexts)
    nothing = np.zeros_like(values)  # a layer does not say how sure it is, nor of how many rows
    return Curves(
        layer.grid, contexts, keys, values, nothing, nothing, np.zeros(len(values)), settings={"from": "layer"}
    )
