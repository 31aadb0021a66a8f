"""Curves as layers and layers as curves: exactly fitted curves can learn further by gradient, and come back.

A layer holds slopes, `Curves` holds values at knots; `functional.knot_values` and `functional.knot_slopes` convert.
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
from isolayer.curves.evaluation import Extrapolation
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.context_ids import CURVE
from isolayer.nn.field_curves import FieldCurves
from isolayer.nn.functional import knot_slopes
from isolayer.nn.isotonic import Constraint, IsotonicLayer
from isolayer.settings import count, instance, mapping, shown

_MOST_CURVES = 1 << 20
Layer = IsotonicLayer | ContextIsotonicLayer


def to_layer(curves: Curves, *, dtype: torch.dtype = torch.float64) -> Layer | FieldCurves:
    """A layer that maps raw logits to the same calibrated logits as the curves, and can be trained further.

    Without contexts it is an `IsotonicLayer`. Otherwise it is a `ContextIsotonicLayer` with the one context feature
    ``"curve"``, whose ids are rows of the table: pass ``{"curve": curves.rows_of(context, n)}``, where unseen contexts
    have the row of their ancestor. Id -1 is the global curve. With fields it is a `FieldCurves`, whose terms can be
    trained and whose base curves are fixed.

    Args:
        curves: The curves. Their scale is not part of the layer: it reads logits.
        dtype: Type of the parameters; in double precision the layer agrees to 1e-12.

    >>> to_layer(Curves.identity(Grid()))(torch.tensor([0.25], dtype=torch.float64)).detach()
    tensor([[0.2500]], dtype=torch.float64)
    """
    if curves.terms is not None:
        return FieldCurves(curves, trainable=True, dtype=dtype)
    values = torch.tensor(np.asarray(curves.values)).unsqueeze(1)  # [rows, units, buckets]
    constraint: Constraint = "relu" if curves.monotone else None
    if not curves.contexts:
        layer = IsotonicLayer(grid=curves.grid, constraint=constraint, extrapolation=curves.extrapolation)
        return layer.to(dtype).set_values(values[0])
    return table_layer(
        values,
        values[0],
        grid=curves.grid,
        extrapolation=curves.extrapolation,
        constraint=constraint,
        dtype=dtype,
    )


def table_layer(
    values: Tensor,
    base: Tensor,
    *,
    grid: Grid,
    extrapolation: Extrapolation,
    constraint: Constraint = "relu",
    dtype: torch.dtype = torch.float32,
) -> ContextIsotonicLayer:
    """A layer with the one context feature ``"curve"``, whose ids are the rows of a table of curves.

    Args:
        values: Values at the knots from lower to upper, ``[rows, units, buckets]``.
        base: Those of the base curve, which unknown ids have, ``[units, buckets]``.
        grid: Where the knots are.
        extrapolation: What the curves do outside the grid.
        constraint: What keeps slopes non-negative; None for curves that may decrease.
        dtype: Type of the parameters.

    >>> table_layer(torch.zeros(5, 2, 2), torch.zeros(2, 2), grid=Grid(0, 1, 1), extrapolation="clip").contexts
    {'curve': 5}
    """
    layer = ContextIsotonicLayer(
        {CURVE: len(values)}, units=len(base), grid=grid, extrapolation=extrapolation, constraint=constraint
    )
    layer.to(dtype).base.set_values(base)
    (slope, bias), (base_slope, base_bias) = (knot_slopes(curves, grid=grid) for curves in (values, base))
    table: Any = layer.tables[0]
    with torch.no_grad():  # row 0 of the tables is id -1
        table.bias.weight[1:] = bias - base_bias
        table.rows.weight[1:] = (slope - base_slope).flatten(1)
    return layer


def from_layer(
    layer: Layer,
    *,
    like: Curves | None = None,
    names: Mapping[str, str] | None = None,
    vocabulary: Mapping[str, Sequence[Any]] | None = None,
    unit: int = 0,
) -> Curves:
    """The curves of a layer: one per context, with the base curve above them.

    They are those of the layer exactly, outside the grid too. Contexts of several features become a hierarchy in the
    order of the layer's features.

    Args:
        layer: An `IsotonicLayer`, or a `ContextIsotonicLayer` with tables of bounded ids.
        like: The curves from which :func:`to_layer` made the layer; contexts, scale and settings are theirs.
        names: For a feature of the layer, the name of the context column; by default its own name.
        vocabulary: For a feature, the value that each id stands for; by default the id itself.
        unit: Which of the layer's units.

    >>> layer = ContextIsotonicLayer({"position": 3, "device": 2})
    >>> curves = from_layer(layer, names={"position": "slot"}, vocabulary={"device": ["tv", "web"]})
    >>> curves.contexts, curves.predict_proba([0.0], {"slot": [2], "device": ["tv"]}).round(4).tolist()
    (('slot', 'device'), [0.5])
    """
    if not isinstance(layer, IsotonicLayer | ContextIsotonicLayer):
        raise InputError(
            f"layer: expected an IsotonicLayer or a ContextIsotonicLayer, got {shown(layer)}; for a DualHead use its "
            "curves()"
        )
    count("unit", unit, 0, layer.units - 1, advice="count the layer's units")
    for name, value in {"names": names, "vocabulary": vocabulary}.items():
        if value is not None:
            mapping(name, value, advice="give one for each feature of the layer that has another")
    if like is not None:
        instance("like", like, Curves, advice="give the curves that the layer was made from")
        return _like(layer, like, unit)
    if isinstance(layer, IsotonicLayer):
        return _curves(layer, (), ((),), _values(layer, {}, unit))
    _refuse_unbounded(layer)
    _refuse_unnamed(layer, {"names": names, "vocabulary": vocabulary})
    ids = [_combinations(list(layer.contexts.values())[:depth]) for depth in range(len(layer.contexts) + 1)]
    parts = [_values(layer, _context(layer, combinations), unit) for combinations in ids]
    words = [_words(name, size, vocabulary) for name, size in layer.contexts.items()]
    keys = tuple(tuple(words[i][combinations[:, i]] for i in range(combinations.shape[1])) for combinations in ids)
    columns = tuple((names or {}).get(name, name) for name in layer.contexts)
    if len(set(columns)) < len(columns):
        raise InputError(f"names: expected distinct columns, got {list(columns)}; rename one")
    return _curves(layer, columns, keys, np.concatenate(parts))


def _like(layer: Layer, like: Curves, unit: int) -> Curves:
    """The curves that a layer was made from, with the values the layer has now."""
    values = _values(layer, {CURVE: torch.arange(len(like.values))}, unit)
    if values.shape != like.values.shape or layer.grid != like.grid:
        raise InputError(
            f"like: expected curves of the layer's shape {values.shape}, got {like.values.shape}; "
            "give those that the layer was made from"
        )
    return replace(like, values=values, monotone=_never_decrease(values))


def _refuse_unbounded(layer: ContextIsotonicLayer) -> None:
    if layer.hash_buckets or layer.projection:
        raise InputError(
            "layer: expected tables of bounded ids, got hashed ids or a projection; fit curves to its logits instead"
        )
    sizes = list(layer.contexts.values())
    if sum(int(np.prod(sizes[:depth], dtype=object)) for depth in range(len(sizes) + 1)) > _MOST_CURVES:
        raise InputError(f"layer: expected at most {_MOST_CURVES} combinations of ids, got more; use fewer features")


def _refuse_unnamed(layer: ContextIsotonicLayer, given: Mapping[str, Mapping[str, Any] | None]) -> None:
    for option, words in given.items():
        unknown = sorted(set(words or {}) - set(layer.contexts))
        if unknown:
            raise InputError(f"{option}: expected features among {list(layer.contexts)}, got {unknown}; check spelling")


@torch.no_grad()
def _values(layer: Layer, ids: Mapping[str, Tensor], unit: int) -> NDArray[np.float64]:
    """Values at the knots from lower to upper of every given context, ``[contexts, knots]``."""
    if isinstance(layer, IsotonicLayer):
        knots = layer.knot_values()[None]
    else:
        knots = layer.knot_values({name: column.to(layer.base.weight.device) for name, column in ids.items()})
    return np.asarray(knots[:, unit, 1:].double().cpu().numpy())


def _never_decrease(values: NDArray[np.float64]) -> bool:
    return bool((np.diff(values, axis=1) >= 0).all())


def _combinations(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Every combination of ids, ``[combinations, features]``."""
    return np.indices(sizes).reshape(len(sizes), -1).T if sizes else np.zeros((1, 0), np.int64)


def _context(layer: ContextIsotonicLayer, ids: NDArray[np.int64]) -> dict[str, Tensor]:
    """Ids ``[n, features]`` as a context; features that they leave out are unknown."""
    missing = np.full((len(ids), len(layer.contexts) - ids.shape[1]), -1)
    columns = torch.as_tensor(np.concatenate([ids, missing], axis=1)).unbind(1)
    return dict(zip(layer.contexts, columns, strict=True))


def _words(name: str, size: int, vocabulary: Mapping[str, Sequence[Any]] | None) -> NDArray[Any]:
    words = np.asarray((vocabulary or {}).get(name, range(size)))
    if len(words) != size:
        raise InputError(f"vocabulary of {name}: expected {size} values, got {len(words)}; give one per id")
    return words


def _curves(
    layer: Layer, contexts: tuple[str, ...], keys: tuple[tuple[NDArray[Any], ...], ...], values: NDArray[np.float64]
) -> Curves:
    nothing = np.zeros_like(values)  # a layer knows neither its uncertainty nor its number of rows
    return Curves(
        layer.grid,
        contexts,
        keys,
        values,
        nothing,
        nothing,
        np.zeros(len(values)),
        extrapolation=layer.extrapolation,
        monotone=_never_decrease(values),
        source={"from": "layer"},
    )
