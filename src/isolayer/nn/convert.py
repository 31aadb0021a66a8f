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
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.frozen import CURVE
from isolayer.nn.functional import knot_slopes
from isolayer.nn.isotonic import IsotonicLayer

_MOST_CURVES = 1 << 20


def to_layer(curves: Curves, *, dtype: torch.dtype = torch.float64) -> IsotonicLayer | ContextIsotonicLayer:
    """A layer that computes the calibrated logit of raw logits as the curves do, and can be trained further.

    Without contexts an `IsotonicLayer`; otherwise a `ContextIsotonicLayer` with the one context ``"curve"``, whose ids
    are the rows of the table: ``curves.rows_of(context, n)`` finds them, fallback for unseen contexts included. Id -1
    is the global curve.

    Args:
        curves: The curves. Their scale is not part of the layer: it reads logits.
        dtype: Type of the parameters; equal to 1e-12 in double precision.

    >>> to_layer(Curves.identity(Grid()))(torch.tensor([0.25], dtype=torch.float64)).detach()
    tensor([[0.2500]], dtype=torch.float64)
    """
    values = torch.as_tensor(curves.values).unsqueeze(1)  # [rows, units, buckets]
    if not curves.contexts:
        layer = IsotonicLayer(grid=curves.grid, extrapolation="extend").to(dtype)
        return layer.set_values(values[0])
    return table_layer(values, values[0], grid=curves.grid, name=CURVE, dtype=dtype)


def table_layer(
    values: Tensor, base: Tensor, *, grid: Grid, name: str = CURVE, dtype: torch.dtype = torch.float32
) -> ContextIsotonicLayer:
    """A layer with one context feature whose ids are the rows of a table of curves.

    Args:
        values: Values at the knots from lower to upper, ``[rows, units, buckets]``.
        base: Those of the base curve, which unknown ids have, ``[units, buckets]``.
        grid: Where the knots are.
        name: Name of the context feature.
        dtype: Type of the parameters.

    >>> table_layer(torch.zeros(5, 2, 2), torch.zeros(2, 2), grid=Grid(0, 1, 1)).contexts
    {'curve': 5}
    """
    layer = ContextIsotonicLayer({name: len(values)}, units=len(base), grid=grid, extrapolation="extend").to(dtype)
    layer.base.set_values(base)
    (slope, bias), (base_slope, base_bias) = (knot_slopes(curves, grid=grid) for curves in (values, base))
    table: Any = layer.tables[0]
    with torch.no_grad():  # row 0 of the tables is id -1
        table.bias.weight[1:] = bias - base_bias
        table.rows.weight[1:] = (slope - base_slope).flatten(1)
    return layer


def from_layer(
    layer: IsotonicLayer | ContextIsotonicLayer,
    *,
    like: Curves | None = None,
    vocabulary: Mapping[str, Sequence[Any]] | None = None,
    unit: int = 0,
) -> Curves:
    """The curves of a layer: one a context, with the base curve above them.

    They are those of the layer exactly, beyond the grid too. Contexts of several features become a hierarchy in the
    order of the layer.

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
        layer.grid,
        contexts,
        keys,
        values,
        nothing,
        nothing,
        np.zeros(len(values)),
        extrapolation=layer.extrapolation,
        source={"from": "layer"},
    )
