"""`ContextIsotonicLayer`: where a context's curve comes from.

A context (position, device, advertiser, any combination) picks bucket weights; `functional` evaluates the curve. Here
belong the ways to keep those weights: a table a feature, a table of combinations, hashed ids, low rank, a projection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.functional import Extrapolation, knot_values, piecewise_linear
from isolayer.nn.isotonic import Constraint, IsotonicLayer, columns_of, slopes

_ALL = 4096  # up to so many combinations, every curve is computed each step; beyond, only those in the batch
_ALL_EXPORTED = 2**20  # in an exported graph the curves are constants: only memory speaks against computing them all


class _Table(nn.Module):
    """Bucket weights and bias of each context id, as offsets from the base curve; id -1 has none.

    With ``rank``, a context holds ``rank`` coefficients over shared directions instead of a row of its own.
    """

    def __init__(self, size: int, width: int, *, rank: int | None, sparse: bool) -> None:
        super().__init__()
        # Row 0 is id -1: it stays zero and gets no gradient.
        self.rows = nn.Embedding(size + 1, width if rank is None else rank, padding_idx=0, sparse=sparse)
        nn.init.zeros_(self.rows.weight)
        # Coefficients start at zero, so that every context starts on the base curve; directions must not.
        self.directions = None if rank is None else nn.Parameter(torch.randn(rank, width) / math.sqrt(rank))

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.rows(ids + 1)  # [n, width or rank]
        return rows if self.directions is None else rows @ self.directions


class ContextIsotonicLayer(nn.Module):
    r"""A curve of its own for every context, by embeddings of bucket weights.

    :math:`z = f_{iso}(x;\, \mathrm{ReLU}(w + E(c)),\, b + b(c))` (eq. 9). All contexts start on the base curve
    :math:`(w, b)`, and an unknown one, id -1, stays on it.

    Args:
        contexts: Name and number of ids of each context feature.
        units: Number of curves a context has, usually one a task.
        grid: Bounds and bucket width.
        mode: ``"sum"`` adds one embedding a feature (the paper's); ``"cross"`` gives every combination its own.
        rank: Keep this many coefficients a context over shared directions, instead of a row of bucket weights.
        hash_buckets: Take unbounded integer ids, folded into tables of this size (``contexts`` sizes are ignored).
        projection: Take one dense vector of this size a row (key ``"vector"``), projected to bucket weights.
        constraint: ``"relu"``, ``"softplus"`` or None, as in `IsotonicLayer`.
        init: Slope of every bucket at the start.
        extrapolation: ``"clip"`` or ``"extend"``, as in `IsotonicLayer`.
        leaky_gradient: As in `IsotonicLayer`.
        sparse: Sparse gradients for the tables, for `torch.optim.SparseAdam`.

    >>> layer = ContextIsotonicLayer({"position": 20, "device": 3})
    >>> layer(torch.tensor([0.5, 1.0]), {"position": torch.tensor([0, 19]), "device": torch.tensor([2, -1])}).detach()
    tensor([[0.5000],
            [1.0000]])
    """

    is_curve = True

    def __init__(
        self,
        contexts: Mapping[str, int],
        *,
        units: int = 1,
        grid: Grid | None = None,
        mode: Literal["sum", "cross"] = "sum",
        rank: int | None = None,
        hash_buckets: int | None = None,
        projection: int | None = None,
        constraint: Constraint = "relu",
        init: float = 1.0,
        extrapolation: Extrapolation = "clip",
        leaky_gradient: bool = True,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        _check(contexts, mode=mode, rank=rank, hash_buckets=hash_buckets, projection=projection)
        self.base = IsotonicLayer(
            units,
            grid=grid,
            constraint=constraint,
            init=init,
            extrapolation=extrapolation,
            leaky_gradient=leaky_gradient,
        )
        self.contexts, self.mode, self.hash_buckets = dict(contexts), mode, hash_buckets
        self.rank, self.projection, self.sparse = rank, projection, sparse
        self.sizes = [hash_buckets or size for size in contexts.values()]
        width = units * (self.base.grid.buckets + 1)  # a bias a unit, then its bucket weights
        tables = self.sizes if mode == "sum" else [math.prod(self.sizes)] if self.sizes else []
        if hash_buckets and mode == "cross":
            tables = [hash_buckets]  # the combination is hashed, not the features
        self.tables = nn.ModuleList(_Table(size, width, rank=rank, sparse=sparse) for size in tables)
        self.project = None if projection is None else nn.Linear(projection, width, bias=False)
        if self.project is not None:
            nn.init.zeros_(self.project.weight)

    @property
    def units(self) -> int:
        """Number of curves a context has.

        >>> ContextIsotonicLayer({"position": 20}, units=3).units
        3
        """
        return self.base.units

    @property
    def grid(self) -> Grid:
        """Bounds and bucket width.

        >>> ContextIsotonicLayer({"position": 20}).grid.buckets
        126
        """
        return self.base.grid

    def forward(self, logit: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Calibrated logits of each row in its context.

        Args:
            logit: Raw logits, ``[batch]`` or ``[batch, units]``.
            context: Ids ``[batch]`` of each feature; -1 is unknown. With ``projection``, also ``"vector"``
                ``[batch, projection]``.

        Returns:
            Calibrated logits, ``[batch, units]``.
        """
        logit = columns_of(logit, self.units)
        curves, rows = self._curves([self._ids(name, context) for name in self.contexts], context)
        units = torch.arange(self.units, device=logit.device, dtype=torch.int32)
        rows = (rows.to(torch.int32) * self.units).unsqueeze(1) + units  # [batch, units]
        calibrated = piecewise_linear(
            logit, curves.flatten(0, 1), rows, grid=self.grid, extrapolation=self.base.extrapolation
        )
        return calibrated.to(torch.promote_types(logit.dtype, self.base.weight.dtype))

    def prob(self, logit: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Calibrated probabilities, ``[batch, units]``.

        >>> ContextIsotonicLayer({"position": 2}).prob(torch.zeros(1), {"position": torch.tensor([1])}).detach()
        tensor([[0.5000]])
        """
        return torch.sigmoid(self(logit, context))

    def knot_values(self, context: Mapping[str, Tensor]) -> Tensor:
        """Values at the grid's knots for each given context, ``[contexts, units, buckets + 1]``.

        >>> ContextIsotonicLayer({"position": 2}).knot_values({"position": torch.tensor([0, 1])}).shape
        torch.Size([2, 1, 127])
        """
        curves, rows = self._curves([self._ids(name, context) for name in self.contexts], context)
        return curves[rows.long()]

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return (
            f"{self.contexts}, mode={self.mode!r}, rank={self.rank}, hash_buckets={self.hash_buckets}, "
            f"projection={self.projection}, sparse={self.sparse}"
        )

    def _ids(self, name: str, context: Mapping[str, Tensor]) -> Tensor:
        """Ids of one feature, checked in eager mode; -1 stays -1."""
        if name not in context:
            raise InputError(f"context: expected a tensor for {name!r}, got keys {sorted(context)}; add it, or -1s")
        ids, size = context[name], self.contexts[name]
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise InputError(f"context {name!r}: expected integer ids, got {ids.dtype}; call .long()")
        if self.hash_buckets:
            return torch.where(ids < 0, -1, _mixed(ids) % self.hash_buckets)
        if torch.compiler.is_compiling():
            return ids.clamp(-1, size - 1)
        if ids.numel():
            low, high = (int(bound) for bound in torch.aminmax(ids))
            if low < -1 or high >= size:
                raise InputError(
                    f"context {name!r}: expected ids from -1 (unknown) to {size - 1}, got {low if low < -1 else high}; "
                    "map unseen values to -1, or use hash_buckets"
                )
        return ids

    def _curves(self, ids: list[Tensor], context: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Knot values of the contexts that are needed, ``[needed, units, buckets + 1]``, and the row of each input."""
        if self.project is not None:  # a dense vector is a context of its own
            if "vector" not in context:
                raise InputError(f"context: expected 'vector' for the projection, got keys {sorted(context)}; add it")
            delta = self.project(context["vector"])
            if ids:
                delta = delta + self._delta(ids)
            return self._knots(delta), torch.arange(len(delta), device=delta.device, dtype=torch.int32)
        # -1 takes room only where it may be: in a graph, or in this batch.
        room = int(torch.compiler.is_compiling() or any(bool((key < 0).any()) for key in ids))
        sizes = [size + room for size in self.sizes]
        combination = _ravel([key + room for key in ids], sizes)
        total = math.prod(sizes)
        if total <= _ALL or (torch.compiler.is_exporting() and total <= _ALL_EXPORTED):
            wanted, rows = torch.arange(total, device=combination.device), combination
        elif torch.compiler.is_compiling():  # the number of distinct contexts is not known when tracing
            wanted, rows = combination, torch.arange(len(combination), device=combination.device)
        else:
            wanted, rows = torch.unique(combination, return_inverse=True)
        parts = [part - room for part in _unravel(wanted, sizes)]
        return self._knots(self._delta(parts)), rows

    def _delta(self, ids: list[Tensor]) -> Tensor:
        """Offsets from the base curve, ``[n, units * (1 + buckets)]``."""
        parts = [table(key) for table, key in zip(self.tables, self._keys(ids), strict=True)]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0) if len(parts) > 2 else parts[0] + parts[1]

    def _keys(self, ids: list[Tensor]) -> list[Tensor]:
        """The id each table is asked for: one a feature, or that of their combination."""
        if self.mode == "sum":
            return ids
        known = torch.stack([key >= 0 for key in ids]).all(0)
        key = _ravel([key.clamp(min=0) for key in ids], self.sizes)
        if self.hash_buckets:
            key = _mixed(key) % self.hash_buckets
        return [torch.where(known, key, -1)]

    def _knots(self, delta: Tensor) -> Tensor:
        """Knot values from offsets ``[n, units * (1 + buckets)]`` to the base curve."""
        delta = delta.view(len(delta), self.units, self.grid.buckets + 1)
        slope = slopes(self.base.weight + delta[..., 1:], self.base.constraint, leaky_gradient=self.base.leaky_gradient)
        bias = delta[..., 0] if self.base.bias is None else self.base.bias + delta[..., 0]
        return knot_values(slope, bias, grid=self.grid)


def _check(
    contexts: Mapping[str, int], *, mode: str, rank: int | None, hash_buckets: int | None, projection: int | None
) -> None:
    if not contexts and projection is None:
        raise InputError("contexts: expected at least one feature, got none; use IsotonicLayer, or give projection")
    for name, size in contexts.items():
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and not hash_buckets):
            raise InputError(
                f"contexts: expected a positive number of ids for {name!r}, got {size!r}; count its values"
            )
    if mode not in ("sum", "cross"):
        raise InputError(f"mode: expected 'sum' or 'cross', got {mode!r}; 'sum' is the paper's")
    for name, value in {"rank": rank, "hash_buckets": hash_buckets, "projection": projection}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}: expected a positive integer or None, got {value!r}; leave it out")


def _ravel(parts: list[Tensor], sizes: list[int]) -> Tensor:
    """One integer for each combination of ids."""
    combination = parts[0].long()
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        combination = combination * size + part
    return combination


def _unravel(combination: Tensor, sizes: list[int]) -> list[Tensor]:
    """The ids of each combination: the inverse of `_ravel`."""
    parts = []
    for size in reversed(sizes[1:]):
        parts.append(combination % size)
        combination = combination // size
    return [combination, *reversed(parts)]


def _mixed(ids: Tensor) -> Tensor:
    """Well-spread non-negative 64-bit integers, the same on every device and in every process (splitmix64's mixer)."""
    z = ids.long() * -7046029254386353131
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (z ^ ((z >> 31) & 0x1FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF
