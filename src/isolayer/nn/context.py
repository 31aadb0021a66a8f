"""`ContextIsotonicLayer`: a curve for every context.

A context (position, device, advertiser, any combination) selects bucket weights, and `functional` evaluates the curve.
This file holds the ways to store those weights: one table per feature, one table of combinations, hashed ids, low
rank, a projection. What an id means is in `context_ids`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from isolayer.curves.evaluation import Extrapolation
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.context_ids import checked_ids, id_column
from isolayer.nn.functional import knot_values, piecewise_linear, piecewise_linear_inverse
from isolayer.nn.gate import Ids, deciding_together
from isolayer.nn.inputs import context_sizes, floats
from isolayer.nn.isotonic import Constraint, IsotonicLayer, columns_of, slopes
from isolayer.settings import choice, count, flag, mapping

_ALL = 4096  # up to this many combinations, all curves are computed at each step; beyond, only those in the batch
_ALL_EXPORTED = 2**20  # in an exported graph the curves are constants, so that only memory limits their number


class _Table(nn.Module):
    """Bias and bucket weights of each context id, as offsets from the base curve; id -1 has none.

    With ``rank``, a context holds ``rank`` coefficients over shared directions instead of bucket weights of its own.
    """

    def __init__(self, size: int, units: int, buckets: int, *, rank: int | None, sparse: bool) -> None:
        super().__init__()
        width = units * buckets
        # Row 0 is id -1: it stays zero and gets no gradient.
        self.bias = nn.Embedding(size + 1, units, padding_idx=0, sparse=sparse)
        self.rows = nn.Embedding(size + 1, width if rank is None else rank, padding_idx=0, sparse=sparse)
        for table in (self.bias, self.rows):
            nn.init.zeros_(table.weight)
        # Coefficients start at zero, so that every context starts on the base curve; directions must not.
        self.directions = None if rank is None else nn.Parameter(torch.randn(rank, width) / math.sqrt(rank))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Bias ``[n, units]`` and bucket weights ``[n, units * buckets]`` of ids ``[n]``."""
        rows: Tensor = self.rows(ids + 1)  # [n, width or rank]
        return self.bias(ids + 1), rows if self.directions is None else rows @ self.directions


class ContextIsotonicLayer(nn.Module):
    r"""One curve per context, from embeddings of bucket weights.

    :math:`z = f_{iso}(x;\, \mathrm{ReLU}(w + E(c)),\, b + b(c))` (eq. 9). All contexts start on the base curve
    :math:`(w, b)`, and an unknown one stays on it: id -1, and in eval mode, compiled or exported any id outside the
    table. In training mode such an id is refused.

    Args:
        contexts: Name and number of ids of each context feature.
        units: Number of curves per context, usually one per task.
        grid: Bounds and bucket width.
        mode: ``"sum"`` adds one embedding per feature (the paper's); ``"cross"`` gives every combination its own, and
            the base curve if any of its ids is unknown.
        rank: Store this many coefficients per context over shared directions, instead of a row of bucket weights.
        hash_buckets: Take unbounded integer ids, hashed into tables of this size (the sizes in ``contexts`` are
            ignored).
        projection: Take one dense vector of this size per row (key ``"vector"``), projected to bucket weights.
        constraint: ``"relu"``, ``"softplus"`` or None, as in `IsotonicLayer`.
        init: Slope of every bucket at the start.
        extrapolation: ``"clip"`` or ``"extend"``, as in `IsotonicLayer`.
        leaky_gradient: As in `IsotonicLayer`.
        sparse: Whether the tables have sparse gradients. Train them with `RowAdam`: `torch.optim.Adam` does not support
            sparse gradients. See `parameter_groups`.

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
        for name, value in {"rank": rank, "hash_buckets": hash_buckets, "projection": projection}.items():
            if value is not None:
                count(name, value, advice="or None to leave it out")
        contexts = context_sizes(contexts, 1 if hash_buckets is None else 0)
        if not contexts and projection is None:
            raise InputError("contexts: expected at least one feature, got none; use IsotonicLayer, or give projection")
        self.base = IsotonicLayer(
            units,
            grid=grid,
            constraint=constraint,
            init=init,
            extrapolation=extrapolation,
            leaky_gradient=leaky_gradient,
        )
        self.contexts, self.hash_buckets = contexts, hash_buckets
        self.mode = choice("mode", mode, ("sum", "cross"), advice="'sum' is the paper's")
        self.rank, self.projection, self.sparse = rank, projection, flag("sparse", sparse)
        self.sizes = [hash_buckets or size for size in contexts.values()]
        buckets = self.grid.buckets
        self.tables = nn.ModuleList(self._table_of(size) for size in self._table_sizes())
        self.project = None if projection is None else nn.Linear(projection, units * (1 + buckets), bias=False)
        if self.project is not None:
            nn.init.zeros_(self.project.weight)

    @property
    def units(self) -> int:
        """Number of curves per context.

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

    @property
    def extrapolation(self) -> Extrapolation:
        """What the curves do outside the grid.

        >>> ContextIsotonicLayer({"position": 20}).extrapolation
        'clip'
        """
        return self.base.extrapolation

    def forward(self, logit: Tensor, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Calibrated logits of each row in its context.

        Args:
            logit: Raw logits, ``[batch]`` or ``[batch, units]``.
            context: Integer ids ``[batch]`` of each feature; -1 is unknown. With ``projection``, also ``"vector"``
                ``[batch, projection]``.

        Returns:
            Calibrated logits, ``[batch, units]``.
        """
        logit = columns_of(logit, self.units)
        return self._evaluated(logit, *self._curves(context, len(logit)))

    def _evaluated(self, logit: Tensor, curves: Tensor, rows: Tensor) -> Tensor:
        """Curves ``[curves, units, buckets + 1]`` at logits ``[batch, units]``, of which rows ``[batch]`` has each."""
        units = torch.arange(self.units, device=logit.device, dtype=torch.int32)
        rows = (rows.to(torch.int32) * self.units).unsqueeze(1) + units  # [batch, units]
        calibrated = piecewise_linear(
            logit, curves.flatten(0, 1), rows, grid=self.grid, extrapolation=self.extrapolation
        )
        return calibrated.to(torch.promote_types(logit.dtype, self.base.weight.dtype))

    def prob(self, logit: Tensor, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Calibrated probabilities, ``[batch, units]``.

        >>> ContextIsotonicLayer({"position": 2}).prob(torch.zeros(1), {"position": torch.tensor([1])}).detach()
        tensor([[0.5000]])
        """
        return torch.sigmoid(self(logit, context))

    def inverse(self, logit: Tensor, context: Mapping[str, Tensor] | None = None) -> Tensor:
        """Raw logits that the layer maps to these in each context, as in `IsotonicLayer.inverse`, ``[batch, units]``.

        >>> layer = ContextIsotonicLayer({"position": 2})
        >>> layer.inverse(torch.tensor([0.25]), {"position": torch.tensor([1])}).detach().round(decimals=4)
        tensor([[0.2500]])
        """
        if self.base.constraint is None:
            raise InputError("inverse: expected a monotone layer, got constraint=None; use 'relu' or 'softplus'")
        logit = columns_of(logit, self.units)
        curves, rows = self._curves(context, len(logit))
        rows = (rows * self.units).unsqueeze(1) + torch.arange(self.units, device=logit.device)
        return piecewise_linear_inverse(
            logit, curves.flatten(0, 1), rows, grid=self.grid, extrapolation=self.extrapolation
        )

    def knot_values(self, context: Mapping[str, Tensor]) -> Tensor:
        """Values at the grid's knots for each given context, ``[contexts, units, buckets + 1]``.

        >>> ContextIsotonicLayer({"position": 2}).knot_values({"position": torch.tensor([0, 1])}).shape
        torch.Size([2, 1, 127])
        """
        curves, rows = self._curves(context, None)
        return curves[rows.long()]

    def embeddings(self, context: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Bias ``[contexts, units]`` and bucket weights ``[contexts, units * buckets]`` of each given context.

        >>> bias, weight = ContextIsotonicLayer({"position": 2}).embeddings({"position": torch.tensor([0, 1])})
        >>> bias.shape, weight.shape
        (torch.Size([2, 1]), torch.Size([2, 126]))
        """
        return self._offsets(self._ids(context, None))

    def at_embeddings(self, logit: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
        """Calibrated logits ``[batch, units]`` of each row by its own embedding, such as a mean of several.

        Args:
            logit: Raw logits, ``[batch]`` or ``[batch, units]``.
            bias: One row of `embeddings` for each row, ``[batch, units]``.
            weight: Likewise, ``[batch, units * buckets]``.

        >>> layer = ContextIsotonicLayer({"position": 2})
        >>> layer.at_embeddings(torch.tensor([0.5]), torch.ones(1, 1), torch.zeros(1, 126)).detach()
        tensor([[1.5000]])
        """
        logit = columns_of(logit, self.units)
        rows = torch.arange(len(logit), device=logit.device, dtype=torch.int32)
        return self._evaluated(logit, self._knots(bias, weight, None), rows)

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return (
            f"{self.contexts}, mode={self.mode!r}, rank={self.rank}, hash_buckets={self.hash_buckets}, "
            f"projection={self.projection}, sparse={self.sparse}"
        )

    def _table_of(self, size: int) -> nn.Module:
        """A table with this many ids."""
        return _Table(size, self.units, self.grid.buckets, rank=self.rank, sparse=self.sparse)

    def _table_sizes(self) -> list[int]:
        """Number of ids of each table: one table per feature, or one for all combinations."""
        if self.mode == "sum" or not self.sizes:
            return self.sizes
        return [self.hash_buckets or math.prod(self.sizes)]  # with hash_buckets the combination is hashed again

    def _ids(self, context: Mapping[str, Tensor] | None, batch: int | None) -> list[Tensor]:
        """Ids of each feature, with -1 for those that are unknown."""
        if self.hash_buckets:
            columns = [id_column(context, name, batch) for name in self.contexts]
            return [torch.where(ids < 0, -1, _mixed(ids) % self.hash_buckets) for ids in columns]
        features = self.contexts.items()
        return [checked_ids(context, name, size, training=self.training, batch=batch) for name, size in features]

    def _curves(self, context: Mapping[str, Tensor] | None, batch: int | None) -> tuple[Tensor, Tensor]:
        """Knot values of the contexts that are needed, ``[needed, units, buckets + 1]``, and the row of each input."""
        ids = self._ids(context, batch)
        if self.project is not None:  # a dense vector is a context of its own
            knots = self._knots(*self._projected(context, ids), None)
            return knots, torch.arange(len(knots), device=knots.device, dtype=torch.int32)
        # The id -1 (unknown) has an entry only if it can occur: in a graph, in another process, or in this batch.
        anywhere = torch.compiler.is_compiling() or deciding_together()
        unknown = int(anywhere or any(bool((key < 0).any()) for key in ids))
        sizes = [size + unknown for size in self.sizes]
        combination = _ravel([key + unknown for key in ids], sizes)
        total = math.prod(sizes)
        every = total <= _ALL or (torch.compiler.is_exporting() and total <= _ALL_EXPORTED)
        if every:
            wanted, rows = torch.arange(total, device=combination.device), combination
        elif torch.compiler.is_compiling():  # the number of distinct contexts is not known when tracing
            wanted, rows = combination, torch.arange(len(combination), device=combination.device)
        else:
            wanted, rows = torch.unique(combination, return_inverse=True)
        needed = [part - unknown for part in _unravel(wanted, sizes)]
        return self._knots(*self._offsets(needed), () if every else needed), rows

    def _projected(self, context: Mapping[str, Tensor] | None, ids: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Offsets of the dense vectors, and of the ids if there are any; shapes as in `_offsets`."""
        context = mapping("context", {} if context is None else context, advice="give a tensor for 'vector'")
        if "vector" not in context:
            raise InputError(f"context: expected 'vector' for the projection, got keys {sorted(context)}; add it")
        vector = floats("context 'vector'", context["vector"])
        if vector.dim() != 2 or vector.shape[1] != self.projection:
            raise InputError(
                f"context 'vector': expected shape [batch, {self.projection}], got {list(vector.shape)}; reshape it"
            )
        assert self.project is not None
        bias, weight = self.project(vector).split([self.units, self.units * self.grid.buckets], dim=1)
        if not ids:
            return bias, weight
        more_bias, more_weight = self._offsets(ids)
        return bias + more_bias, weight + more_weight

    def _offsets(self, ids: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Offsets from the base curve: bias ``[n, units]`` and bucket weights ``[n, units * buckets]``."""
        parts = [table(key) for table, key in zip(self.tables, self._keys(ids), strict=True)]
        bias, weight = parts[0]
        for more_bias, more_weight in parts[1:]:
            bias, weight = bias + more_bias, weight + more_weight
        return bias, weight

    def _keys(self, ids: list[Tensor]) -> list[Tensor]:
        """The id to look up in each table: one per feature, or that of their combination."""
        if self.mode == "sum":
            return ids
        known = torch.stack([key >= 0 for key in ids]).all(0)
        key = _ravel([key.clamp(min=0) for key in ids], self.sizes)
        if self.hash_buckets:
            key = _mixed(key) % self.hash_buckets
        return [torch.where(known, key, -1)]

    def _knots(self, bias: Tensor, weight: Tensor, ids: Ids) -> Tensor:
        """Knot values ``[n, units, buckets + 1]`` of curves given by offsets from the base; ids as in `slopes`."""
        weight = self.base.weight + weight.view(-1, self.units, self.grid.buckets)
        slope = slopes(weight, self.base.constraint, leaky_gradient=self.base.leaky_gradient, ids=ids)
        return knot_values(slope, bias if self.base.bias is None else self.base.bias + bias, grid=self.grid)


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
