"""`FrozenCurves`: curves that no longer learn, evaluated as fast as possible.

Trained or fitted models serve their curves with it: the served curve of a `DualHead`, an isotonic head that is kept at
inference, the curves that `PositionPredictor` averages over, and a table of fitted `Curves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Extrapolation
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.context_ids import CURVE, slot_table, slots
from isolayer.nn.isotonic import IsotonicLayer, columns_of

_MOST_VALUES = 1 << 27  # one gigabyte for both tables in single precision
_HALF = (torch.bfloat16, torch.float16)  # too coarse to distinguish the buckets of a grid


class FrozenCurves(nn.Module):
    r"""Fixed curves for serving: buffers only, nothing to learn.

    On piece :math:`j` of its curve an input is mapped to :math:`a_j + b_j x`. All units and contexts share one flat
    table of intercepts and one of slopes, so a batch of any number of heads is two gathers and a multiply-add. The
    operations are plain tensor operations: the module can be compiled, exported and written as ONNX.

    An id outside its table, including -1, has the base curve; see `isolayer.nn.context_ids`.

    The tables are in single precision at least, even inside a model that is converted to half precision: inputs in half
    precision are mapped in single precision, and only the result is rounded.

    Args:
        values: Values at the knots from ``grid.lower`` to ``grid.upper``, ``[units, buckets]``. With contexts,
            ``[combinations, units, buckets]``: one entry for every combination of ids from -1 to ``size - 1``, the last
            feature counting fastest.
        grid: Where the knots are.
        contexts: Name and number of ids of each context feature.
        rows: To store each distinct curve once: ``values [curves, buckets]``, and here the curve of each combination
            and unit, ``[combinations, units]``.
        extrapolation: Outside the grid: ``"clip"`` holds the end value, ``"extend"`` continues with slope 1.

    >>> frozen = FrozenCurves(torch.tensor([[0.0, 2.0]]), grid=Grid(lower=0, upper=1, step=1), extrapolation="extend")
    >>> frozen(torch.tensor([0.5, 2.0]))
    tensor([[1.],
            [3.]])
    """

    intercept: Tensor
    slope: Tensor
    first: Tensor
    shift: Tensor

    def __init__(
        self,
        values: Tensor,
        *,
        grid: Grid,
        contexts: Mapping[str, int] | None = None,
        rows: Tensor | None = None,
        extrapolation: Extrapolation = "clip",
    ) -> None:
        super().__init__()
        self.grid, self.contexts, self.extrapolation = grid, dict(contexts or {}), extrapolation
        values = values.float() if values.dtype in _HALF else values
        rows = _rows(values, rows, self.contexts, grid)
        intercept, slope = _pieces(values.detach().reshape(-1, grid.buckets), grid, extrapolation)
        self.register_buffer("intercept", intercept.flatten())
        self.register_buffer("slope", slope.flatten())
        self.register_buffer("first", (slot_table(rows, self.contexts) * slope.shape[1]).int())
        shift = torch.tensor(1 - grid.lower / grid.step, dtype=values.dtype, device=values.device)
        self.register_buffer("shift", shift, persistent=False)

    @classmethod
    def from_layer(cls, layer: IsotonicLayer | ContextIsotonicLayer) -> FrozenCurves:
        """The curves of a layer as they are now, for every combination of its context ids.

        Args:
            layer: An `IsotonicLayer`, or a `ContextIsotonicLayer` with tables of bounded ids, such as the
                ``context_curves`` of a `DualHead`.

        >>> frozen = FrozenCurves.from_layer(ContextIsotonicLayer({"position": 20}, units=2))
        >>> frozen(torch.tensor([[0.5, -1.0]]), {"position": torch.tensor([3])})
        tensor([[ 0.5000, -1.0000]])
        """
        if isinstance(layer, IsotonicLayer):
            with torch.no_grad():
                return cls(layer.knot_values()[:, 1:], grid=layer.grid, extrapolation=layer.extrapolation)
        combinations = math.prod(size + 1 for size in layer.contexts.values())
        bounded = not (layer.hash_buckets or layer.projection)
        most = _MOST_VALUES // layer.grid.buckets
        if not bounded or combinations * layer.units > most:
            count = f"{combinations * layer.units:,}" if bounded else "any number"
            raise InputError(f"layer: expected at most {most:,} curves, got {count}; keep the layer itself")
        sizes = [size + 1 for size in layer.contexts.values()]
        index = torch.arange(combinations, device=layer.base.weight.device)
        ids = (part - 1 for part in torch.unravel_index(index, sizes))
        with torch.no_grad():
            values = layer.knot_values(dict(zip(layer.contexts, ids, strict=True)))[..., 1:]
        return cls(values, grid=layer.grid, contexts=layer.contexts, extrapolation=layer.extrapolation)

    @classmethod
    def from_curves(
        cls,
        curves: Curves | Sequence[Curves],
        contexts: Mapping[str, int] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> FrozenCurves:
        """Fitted curves as a module over raw logits.

        Args:
            curves: The curves, or those of each unit, all with the same grid, extrapolation and context columns.
            contexts: If the context values are the integers ``0 .. size - 1``, the size of each column. Otherwise the
                only feature is ``"curve"``, whose ids are rows of the table: ``curves.rows_of(context, n)``.
            dtype: Type of the tables, single precision at least.

        >>> frozen = FrozenCurves.from_curves(Curves.identity(Grid()))
        >>> frozen(torch.tensor([0.25]))
        tensor([[0.2500]])
        """
        units = [curves] if isinstance(curves, Curves) else list(curves)
        for unit in units:
            unit.refuse_terms("from_curves")
        sizes = _sizes(units, contexts)
        served = _served(units, sizes)  # [combinations, units]
        starts = np.cumsum([0, *(len(unit.values) for unit in units[:-1])])
        exact = torch.float32 if dtype in _HALF else dtype
        return cls(
            torch.as_tensor(np.concatenate([np.asarray(unit.values) for unit in units]), dtype=exact),
            grid=units[0].grid,
            contexts=sizes,
            rows=torch.as_tensor(served + starts),
            extrapolation=units[0].extrapolation,
        )

    @property
    def units(self) -> int:
        """Number of curves per context.

        >>> FrozenCurves.from_curves([Curves.identity(Grid())] * 3).units
        3
        """
        return self.first.shape[1]

    def forward(self, logit: Tensor, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Values of the curves.

        Args:
            logit: Inputs, ``[batch]`` or ``[batch, units]``.
            context: Ids ``[batch]`` of each context feature, if there are any.

        Returns:
            Values, ``[batch, units]``.
        """
        first = self.first
        logit = columns_of(logit, first.shape[1])
        if self.contexts:
            first = first.index_select(0, slots(context, self.contexts, logit.shape[0]))
        return self._evaluate(logit, first)

    def at_every_context(self, logit: Tensor) -> Tensor:
        """Values of the curves of all combinations of known ids, ``[batch, combinations, units]``.

        >>> frozen = FrozenCurves.from_layer(ContextIsotonicLayer({"position": 20, "device": 3}, units=2))
        >>> frozen.at_every_context(torch.zeros(5, 2)).shape
        torch.Size([5, 60, 2])
        """
        known = self.first.view(*(size + 2 for size in self.contexts.values()), self.units)
        for axis, size in enumerate(self.contexts.values()):
            known = known.narrow(axis, 1, size)
        return self._evaluate(columns_of(logit, self.units).unsqueeze(1), known.reshape(-1, self.units))

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return f"units={self.units}, grid={self.grid}, contexts={self.contexts}, extrapolation={self.extrapolation!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FrozenCurves:
        """Move or convert, for ``.to()`` and ``.bfloat16()``, without rounding the tables to half precision."""
        nn.Module._apply(self, lambda table: _not_half(table, fn(table)), recurse)
        return self

    def _evaluate(self, logit: Tensor, first: Tensor) -> Tensor:
        if logit.dtype in _HALF:
            return self._evaluate(logit.float(), first).to(logit.dtype)
        tables = cast("dict[str, Tensor]", self._buffers)  # a module looks up its attributes slowly
        grid, last = self.grid, self.grid.buckets
        if self.extrapolation == "clip":
            logit = logit.clamp(grid.lower, grid.upper)  # NaN stays NaN
        place = torch.add(tables["shift"], logit, alpha=1 / grid.step)
        if self.extrapolation != "clip":
            place = place.clamp_(0, last)  # before it becomes an integer, which may be too small for it
        index = place.int().clamp_(0, last) + first  # the clamp is for NaN, which cannot be converted to an integer
        flat = index.view(-1)
        start = tables["intercept"].index_select(0, flat).view_as(index)
        return torch.addcmul(start, tables["slope"].index_select(0, flat).view_as(index), logit)


def _not_half(table: Tensor, converted: Tensor) -> Tensor:
    """A converted table, or the table itself on the same device if the converted one has half precision."""
    return table.to(converted.device, torch.float32) if converted.dtype in _HALF else converted


def _rows(values: Tensor, rows: Tensor | None, contexts: Mapping[str, int], grid: Grid) -> Tensor:
    """The curve of each combination of ids and unit, ``[combinations, units]``, once all shapes are checked."""
    combinations = math.prod(size + 1 for size in contexts.values())
    if rows is None:
        expected, good = "[combinations, units, buckets]" if contexts else "[units, buckets]", 3 if contexts else 2
    else:
        expected, good = "[curves, buckets]", 2
    if values.dim() != good or values.shape[-1] != grid.buckets:
        raise InputError(
            f"values: expected shape {expected} with {grid.buckets} buckets, got {list(values.shape)}; "
            "leave out the knot below the grid"
        )
    if rows is None:
        rows = torch.arange(values[..., 0].numel(), device=values.device).view(-1, values.shape[-2])
    if rows.dim() != 2 or len(rows) != combinations:
        raise InputError(
            f"rows: expected shape [{combinations}, units], got {list(rows.shape)}; "
            "give one row per combination of ids from -1"
        )
    return rows


def _pieces(values: Tensor, grid: Grid, extrapolation: Extrapolation) -> tuple[Tensor, Tensor]:
    """Intercepts and slopes of the pieces of each curve, ``[curves, buckets + 1]``: below, on and above the grid."""
    y = values.double()
    x = torch.as_tensor(grid.knots[1:], device=y.device)
    end = torch.full_like(y[:, :1], 1.0 if extrapolation == "extend" else 0.0)
    slope = torch.cat([end, y.diff(dim=1) / x.diff(), end], dim=1)
    known = torch.cat([y[:, :1], y], dim=1)  # a point of each piece: its left knot, but for the first piece
    intercept = known - slope * torch.cat([x[:1], x])
    return intercept.to(values.dtype), slope.to(values.dtype)


def _sizes(units: Sequence[Curves], contexts: Mapping[str, int] | None) -> dict[str, int]:
    if len({(unit.grid, unit.contexts, unit.extrapolation) for unit in units}) != 1:
        rule = "one or more with the same grid, extrapolation and contexts"
        raise InputError(f"curves: expected {rule}, got {len(units)}; use the same settings")
    if contexts is not None:
        return dict(contexts)
    if len(units) > 1 and units[0].contexts:
        raise InputError("contexts: expected the number of ids of each column, got none; give {name: size}")
    return {CURVE: len(units[0].values)} if units[0].contexts else {}


def _served(units: Sequence[Curves], contexts: Mapping[str, int]) -> np.ndarray:
    """The row of each unit's table for every combination of ids from -1, ``[combinations, units]``."""
    if list(contexts) == [CURVE] and CURVE not in units[0].contexts:
        return np.arange(-1, contexts[CURVE]).clip(min=0)[:, None]
    sizes = [size + 1 for size in contexts.values()]
    ids = np.indices(sizes).reshape(len(sizes), math.prod(sizes)) - 1
    columns = dict(zip(contexts, ids, strict=True))
    return np.stack([unit.rows_of(columns, math.prod(sizes)) for unit in units], axis=1)
