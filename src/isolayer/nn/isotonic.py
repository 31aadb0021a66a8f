"""The layers that hold bucket weights: `IsotonicLayer`, one curve per unit, and `IsotonicEmbedding`, an ordered table.

Parameters live here; the mathematics is in `functional`, the choice of a curve by context in `context`.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
from torch import Tensor, nn

from isolayer.curves.evaluation import Extrapolation
from isolayer.errors import InputError
from isolayer.grid import Grid, grid_or
from isolayer.nn.functional import (
    knot_slopes,
    knot_values,
    piecewise_linear,
    piecewise_linear_inverse,
)
from isolayer.nn.gate import Ids, gated
from isolayer.nn.inputs import floats, tensor
from isolayer.settings import choice, count, flag, number

Constraint = Literal["relu", "softplus"] | None
_STEEPEST = 1e6  # largest slope that a layer can start with


def slopes(weight: Tensor, constraint: Constraint, *, leaky_gradient: bool = True, ids: Ids = ()) -> Tensor:
    """Bucket slopes from raw bucket weights: non-negative unless the constraint is None (eq. 5).

    Args:
        weight: Raw weights, any shape.
        constraint: ``"relu"`` (the paper's), ``"softplus"`` (never exactly flat) or None (any slope).
        leaky_gradient: Under ReLU, pass the gradient to a negative weight if a larger weight would lower the loss. The
            function is the same; without this, a weight that once became negative never changes again.
        ids: What the rows belong to, see `gate.gated`; needed only where several processes train together.

    >>> slopes(torch.tensor([-1.0, 2.0]), "relu")
    tensor([0., 2.])
    """
    if constraint == "relu":
        if leaky_gradient and torch.is_grad_enabled():
            return gated(weight, ids)
        return torch.relu(weight)
    if constraint == "softplus":
        return torch.nn.functional.softplus(weight)
    return weight


def initial_weight(init: float, constraint: Constraint) -> float:
    """The raw weight whose slope is ``init``.

    >>> initial_weight(1.0, "relu"), round(initial_weight(1.0, "softplus"), 6)
    (1.0, 0.541325)
    """
    choice("constraint", constraint, ("relu", "softplus", None), advice="use 'relu'")
    low, ends = (0.0, "(]") if constraint == "softplus" else (-_STEEPEST, "[]")
    slope = number("init", init, low, _STEEPEST, ends=ends, advice="1.0 starts at the identity")
    return slope + math.log(-math.expm1(-slope)) if constraint == "softplus" else slope


class IsotonicLayer(nn.Module):
    r"""One monotone piecewise-linear curve per unit, from a raw logit to a calibrated one.

    :math:`z(x) = \sum_j a_j(\mathrm{clip}(x, L, U))\,\mathrm{ReLU}(w_j) + L - \Delta + b` (eq. 1 to 6), evaluated at a
    cost that does not depend on the number of buckets. With ``init=1`` it starts as the identity.

    Args:
        units: Number of curves, usually one per task.
        grid: Bounds and bucket width.
        constraint: What keeps slopes non-negative: ``"relu"`` (the paper's), ``"softplus"``, or None for a general
            piecewise-linear function.
        init: Slope of every bucket at the start.
        bias: Whether each unit has a bias.
        extrapolation: Outside the grid: ``"clip"`` (the paper's) or ``"extend"``, which continues with slope 1, so that
            no two scores tie.
        leaky_gradient: Whether a negative bucket weight can become positive again; see `slopes`.

    >>> layer = IsotonicLayer(units=2)
    >>> layer(torch.tensor([-1.0, 0.5])).detach().round(decimals=4)
    tensor([[-1.0000, -1.0000],
            [ 0.5000,  0.5000]])
    """

    is_curve = True

    def __init__(
        self,
        units: int = 1,
        *,
        grid: Grid | None = None,
        constraint: Constraint = "relu",
        init: float = 1.0,
        bias: bool = True,
        extrapolation: Extrapolation = "clip",
        leaky_gradient: bool = True,
    ) -> None:
        super().__init__()
        self.units, self.grid = count("units", units, advice="use one unit per task"), grid_or(grid)
        self.extrapolation = choice("extrapolation", extrapolation, ("clip", "extend"), advice="'clip' is the paper's")
        self.constraint, self.leaky_gradient = constraint, flag("leaky_gradient", leaky_gradient)
        self.weight = nn.Parameter(torch.full((self.units, self.grid.buckets), initial_weight(init, constraint)))
        self.bias = nn.Parameter(torch.zeros(self.units)) if flag("bias", bias) else None

    def knot_values(self, weight_delta: Tensor | None = None) -> Tensor:
        """Values at the grid's knots, ``[units, buckets + 1]``, or ``[batch, units, buckets + 1]`` with such a delta.

        >>> IsotonicLayer(grid=Grid(lower=0, upper=1, step=1)).knot_values().detach()
        tensor([[-1.,  0.,  1.]])
        """
        weight = self.weight if weight_delta is None else self.weight + self._checked_delta(weight_delta)
        ids = () if weight.dim() == 2 else None
        slope = slopes(weight, self.constraint, leaky_gradient=self.leaky_gradient, ids=ids)
        bias = self.bias if self.bias is None or slope.dim() == 2 else self.bias.expand(slope.shape[:-1])
        return knot_values(slope, bias, grid=self.grid)

    def _checked_delta(self, weight_delta: Tensor) -> Tensor:
        if floats("weight_delta", weight_delta).shape[-2:] != self.weight.shape:
            rule, got = f"[..., {self.units}, {self.grid.buckets}]", list(weight_delta.shape)
            raise InputError(f"weight_delta: expected shape {rule}, got {got}; give one number per bucket")
        return weight_delta

    def forward(self, logit: Tensor, weight_delta: Tensor | None = None) -> Tensor:
        """Calibrated logits.

        Args:
            logit: Raw logits, ``[batch]`` (every unit sees the same) or ``[batch, units]``.
            weight_delta: Added to the bucket weights before the constraint (the paper's calibration embedding),
                ``[units, buckets]`` or ``[batch, units, buckets]``.

        Returns:
            Calibrated logits, ``[batch, units]``.
        """
        logit = columns_of(logit, self.units)
        curves = self.knot_values(weight_delta)
        rows = None
        if curves.dim() == 3:  # every input has its own curve
            rows = torch.arange(logit.numel(), device=logit.device).view(logit.shape)
            curves = curves.flatten(0, 1)
        calibrated = piecewise_linear(logit, curves, rows, grid=self.grid, extrapolation=self.extrapolation)
        return calibrated.to(torch.promote_types(logit.dtype, self.weight.dtype))

    def prob(self, logit: Tensor) -> Tensor:
        """Calibrated probabilities, ``[batch, units]`` (eq. 7).

        >>> IsotonicLayer().prob(torch.tensor([0.0])).detach()
        tensor([[0.5000]])
        """
        return torch.sigmoid(self(logit))

    def inverse(self, logit: Tensor) -> Tensor:
        """The smallest raw logits that the layer maps to at least these, ``[batch, units]``.

        It is exact where the curve rises and the left end where the curve is flat. A value outside the curve's range
        has the nearest end of the grid under ``"clip"``, and continues with slope 1 under ``"extend"``.

        >>> IsotonicLayer().inverse(torch.tensor([0.25])).detach().round(decimals=5)
        tensor([[0.2500]])
        """
        if self.constraint is None:
            raise InputError("inverse: expected a monotone layer, got constraint=None; use 'relu' or 'softplus'")
        logit = columns_of(logit, self.units)
        rows = torch.arange(self.units, device=logit.device)
        return piecewise_linear_inverse(
            logit, self.knot_values(), rows, grid=self.grid, extrapolation=self.extrapolation
        )

    @torch.no_grad()
    def set_values(self, values: Tensor) -> Self:
        """Take the curves with these values at the knots from lower to upper, ``[units, buckets]``.

        >>> layer = IsotonicLayer(grid=Grid(lower=0, upper=1, step=1)).set_values(torch.tensor([[1.0, 3.0]]))
        >>> layer(torch.tensor([0.5])).detach()
        tensor([[2.]])
        """
        if self.constraint == "softplus" or self.bias is None:
            raise InputError("set_values: expected constraint 'relu' or None and a bias, got another layer; use those")
        if tensor("values", values).shape != self.weight.shape:
            raise InputError(
                f"values: expected shape {list(self.weight.shape)}, got {list(values.shape)}; "
                "leave out the knot below the grid"
            )
        if self.constraint == "relu" and bool((values.diff(dim=1) < 0).any()):
            raise InputError("values: expected curves that never decrease, got one that does; use constraint=None")
        slope, bias = knot_slopes(values, grid=self.grid)
        self.weight.copy_(slope)
        self.bias.copy_(bias)
        return self

    @torch.no_grad()
    def curve(self) -> tuple[Tensor, Tensor]:
        """Each unit's curve as points: ``x`` at the knots from lower to upper, ``[buckets]``; ``y [units, buckets]``.

        >>> x, y = IsotonicLayer(grid=Grid(lower=0, upper=1, step=1)).curve()
        >>> x, y
        (tensor([0., 1.]), tensor([[0., 1.]]))
        """
        y = self.knot_values()[:, 1:]
        return torch.as_tensor(self.grid.knots[1:], dtype=y.dtype, device=y.device), y

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return (
            f"units={self.units}, grid={self.grid}, constraint={self.constraint!r}, "
            f"bias={self.bias is not None}, extrapolation={self.extrapolation!r}, leaky_gradient={self.leaky_gradient}"
        )


def columns_of(logit: Tensor, units: int) -> Tensor:
    """One column of logits per unit, ``[batch, units]``, from ``[batch]``, ``[batch, 1]`` or ``[batch, units]``.

    >>> columns_of(torch.zeros(5), units=2).shape
    torch.Size([5, 2])
    """
    if floats("logit", logit).dim() == 1:
        logit = logit.unsqueeze(1)
    if logit.dim() != 2 or logit.shape[1] not in (1, units):
        raise InputError(
            f"logit: expected shape [batch] or [batch, {units}], got {list(logit.shape)}; "
            "give one column per unit, or one for all of them"
        )
    return logit.contiguous() if logit.shape[1] == units else logit.expand(-1, units)


class IsotonicEmbedding(nn.Module):
    r"""An ordered level to an embedding that is non-decreasing in every coordinate (DIPN's isotonic embedding).

    :math:`E(l) = b + \sum_{m \le l} \mathrm{ReLU}(w_m)`: a level's embedding is the sum of the steps up to it.

    Args:
        levels: Number of levels; ids are ``0 .. levels - 1``. In eager training others are refused; in eval mode,
            compiled or exported they have the nearest level's embedding.
        dim: Size of the embedding.
        constraint: What keeps steps non-negative: ``"relu"`` or ``"softplus"``.
        init: Size of every step at the start.

    >>> embed = IsotonicEmbedding(levels=4, dim=2, init=0.5)
    >>> embed(torch.tensor([0, 3])).detach()
    tensor([[0.0000, 0.0000],
            [1.5000, 1.5000]])
    """

    is_curve = True

    def __init__(
        self, levels: int, dim: int, *, constraint: Literal["relu", "softplus"] = "relu", init: float = 0.1
    ) -> None:
        super().__init__()
        self.levels, self.dim = count("levels", levels), count("dim", dim)
        self.constraint = choice(
            "constraint", constraint, ("relu", "softplus"), advice="an embedding without it has no order"
        )
        ends = "(]" if constraint == "softplus" else "[]"
        init = number("init", init, 0, _STEEPEST, ends=ends, advice="0.1 is usual")
        self.weight = nn.Parameter(torch.full((self.levels - 1, self.dim), initial_weight(init, constraint)))
        self.bias = nn.Parameter(torch.zeros(dim))

    def table(self) -> Tensor:
        """Embedding of every level, ``[levels, dim]``.

        >>> IsotonicEmbedding(levels=2, dim=1, init=1.0).table().detach()
        tensor([[0.],
                [1.]])
        """
        steps = slopes(self.weight, self.constraint)
        return self.bias + torch.cat([torch.zeros_like(self.bias).unsqueeze(0), steps.cumsum(0)])

    def forward(self, level: Tensor) -> Tensor:
        """Embeddings of integer levels of any shape, ``[..., dim]``."""
        if tensor("level", level).is_floating_point() or level.is_complex() or level.dtype == torch.bool:
            raise InputError(f"level: expected integers, got {level.dtype}; call .long()")
        if self.training and not torch.compiler.is_compiling() and level.numel():
            low, high = (int(bound) for bound in torch.aminmax(level))
            if low < 0 or high >= self.levels:
                raise InputError(
                    f"level: expected ids from 0 to {self.levels - 1}, got {low if low < 0 else high}; "
                    "clip them or make the table larger"
                )
        return torch.nn.functional.embedding(level.clamp(0, self.levels - 1), self.table())

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return f"levels={self.levels}, dim={self.dim}, constraint={self.constraint!r}"
