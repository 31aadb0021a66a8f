r"""The one kernel: evaluate, invert and build piecewise-linear curves. Pure tensors, no parameters.

The paper sums a ``[batch, units, buckets]`` activation tensor against the bucket weights. The same function is a
prefix sum over the weights, once per step, and then two gathers and one multiply-add for each input:

.. math:: z = k_i + f\,(k_{i+1} - k_i), \qquad k_{j+1} = k_j + \Delta\,w_j, \quad k_0 = L - \Delta + b.

So the cost of an input does not depend on the number of buckets. Letters are the paper's: :math:`L` and :math:`U` are
the grid's bounds, :math:`\Delta` its step, :math:`w` the bucket weights, :math:`b` the bias, :math:`k` the knot values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from isolayer.curves.evaluation import Extrapolation
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.inputs import floats, tensor
from isolayer.settings import choice, instance


def knot_values(slope: Tensor, bias: Tensor | None = None, *, grid: Grid) -> Tensor:
    r"""Values of a curve at its knots, from its slopes: :math:`k_j = L - \Delta + b + \Delta\sum_{m<j} w_m` (eq. 6).

    Args:
        slope: Bucket weights after the constraint, shape ``[..., buckets]``.
        bias: Shape ``[...]``; zero by default.
        grid: Where the knots are.

    >>> knot_values(torch.tensor([1.0, 2.0, 0.0]), grid=Grid(lower=0, upper=2, step=1))
    tensor([-1.,  0.,  2.,  2.])
    """
    if slope.dtype in (torch.bfloat16, torch.float16):  # a prefix sum in half precision would lose the small steps
        slope, bias = slope.float(), None if bias is None else bias.float()
    first = (
        slope.new_full(slope.shape[:-1], grid.lower - grid.step) if bias is None else bias + (grid.lower - grid.step)
    )
    rises = torch.cat([first.unsqueeze(-1), slope * grid.step], dim=-1)
    if torch.compiler.is_exporting():  # torch sums float32 in double precision on a CPU; other runtimes do not
        return rises.double().cumsum(-1).to(slope.dtype)
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return rises.cumsum(-1)
    return apply(_PrefixSum, rises)


def knot_slopes(values: Tensor, *, grid: Grid) -> tuple[Tensor, Tensor]:
    r"""Slopes and bias of a curve from its values at the knots: the inverse of `knot_values`.

    :math:`w_j = (k_{j+1} - k_j) / \Delta` and :math:`b = k_1 - L`. Bucket 0 lies below the grid, where no input falls,
    so its slope is free; here it is 1.

    Args:
        values: Values at the knots from ``lower`` to ``upper``, as `Curves.values` has them, shape ``[..., buckets]``.
        grid: Where the knots are.

    Returns:
        Slopes ``[..., buckets]`` and biases ``[...]``.

    >>> knot_slopes(torch.tensor([0.0, 2.0, 2.0]), grid=Grid(lower=0, upper=2, step=1))
    (tensor([1., 2., 0.]), tensor(0.))
    """
    slope = values.diff(dim=-1) / grid.step
    return torch.cat([torch.ones_like(slope[..., :1]), slope], dim=-1), values[..., 0] - grid.lower


def _expanded(x: Tensor, rows: Tensor) -> Tensor:
    try:
        return x.expand(torch.broadcast_shapes(x.shape, rows.shape))
    except RuntimeError as error:
        raise InputError(
            f"rows: expected a shape that broadcasts against {list(x.shape)}, got {list(rows.shape)}; give one curve "
            "per input"
        ) from error


def apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """``function.apply``, which torch leaves untyped."""
    result: Tensor = function.apply(*args)
    return result


class _PrefixSum(torch.autograd.Function):
    """A cumulative sum along the last axis whose backward is one too, without the two flips of the built-in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # The sum is constant after the last non-zero gradient, so the result is exactly zero there.
        before = grad.cumsum(-1)
        return before[..., -1:] - before + grad


def piecewise_linear(
    x: Tensor, knot_values: Tensor, rows: Tensor | None = None, *, grid: Grid, extrapolation: Extrapolation = "clip"
) -> Tensor:
    r"""Evaluate one of many piecewise-linear curves at each input.

    With knot :math:`i` at or left of ``x`` and fraction :math:`f` on the grid,
    :math:`z = k_i + f\,(k_{i+1} - k_i)` (eq. 4 to 6).

    Args:
        x: Inputs, any shape. NaN gives NaN for that element only.
        knot_values: One curve per row, shape ``[curves, buckets + 1]``.
        rows: The curve of each input, integers that broadcast against ``x``. By default the first, or, where there
            are several, curve ``u`` for column ``u`` of ``x``.
        grid: Where the knots are.
        extrapolation: Outside the grid, ``"clip"`` (the paper's) holds the end value and ``"extend"`` has slope 1.

    >>> grid = Grid(lower=0, upper=2, step=1)
    >>> piecewise_linear(torch.tensor([0.5, 1.5]), torch.tensor([[-1.0, 0.0, 1.0, 4.0]]), grid=grid)
    tensor([0.5000, 2.5000])
    """
    _check(x, knot_values, rows, grid, extrapolation)
    dtype = torch.promote_types(x.dtype, knot_values.dtype)
    exact = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    x, curves = x.to(exact).contiguous(), knot_values.to(exact)
    if rows is not None and rows.shape != x.shape:
        x = _expanded(x, rows)
    if torch.compiler.is_compiling():
        columns = torch.arange(len(curves), device=x.device) if rows is None else rows
        z = (_exported if torch.compiler.is_exporting() else _compiled)(x, curves, columns, grid)
    else:
        z = _eager(x, curves, rows, grid)
    if extrapolation == "extend":
        z = z + (x - x.clamp(grid.lower, grid.upper))
    return z.to(dtype)


def _check(x: Tensor, curves: Tensor, rows: Tensor | None, grid: Grid, extrapolation: Extrapolation) -> None:
    """Check types and shapes only, not values, so that nothing has to leave a GPU."""
    instance("grid", grid, Grid, advice="use Grid(lower=..., upper=..., step=...)")
    choice("extrapolation", extrapolation, ("clip", "extend"), advice="'clip' is the paper's")
    floats("x", x)
    if floats("knot_values", curves).dim() != 2 or curves.shape[1] != grid.buckets + 1:
        raise InputError(
            f"knot_values: expected shape [curves, {grid.buckets + 1}], got {list(curves.shape)}; give one value per "
            "knot of the grid"
        )
    if rows is None:
        if len(curves) > 1 and (x.dim() == 0 or x.shape[-1] != len(curves)):
            raise InputError(
                f"x: expected one column for each of the {len(curves)} curves, got shape {list(x.shape)}; or give rows"
            )
    elif tensor("rows", rows).is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
        raise InputError(f"rows: expected integers, got {rows.dtype}; call .long()")


def _eager(x: Tensor, curves: Tensor, rows: Tensor | None, grid: Grid) -> Tensor:
    """The formula, with its own backward where gradients are recorded."""
    try:
        if torch.is_grad_enabled():
            return apply(_PiecewiseLinear, x, curves, rows, grid)
        bucket, fraction = grid.locate(x)
        start, end = _ends(curves, _index(bucket, rows, curves))
        return start.lerp_(end, fraction)
    except IndexError as error:
        raise InputError(
            f"rows: expected integers from 0 to {len(curves) - 1}, got something else; number the curves from 0"
        ) from error


@lru_cache(maxsize=32)
def _tile(units: int, width: int, device: torch.device) -> Tensor:
    """Where each unit's curve starts in the flat table, for 64 rows of a batch."""
    return torch.arange(0, units * width, width, dtype=torch.int32, device=device).repeat(64)


def _index(bucket: Tensor, rows: Tensor | None, curves: Tensor) -> Tensor:
    """Turn buckets into indices of the flattened curves, in place; by default column ``u`` takes curve ``u``."""
    width = curves.shape[-1]
    if rows is not None:
        return bucket.add_(rows, alpha=width)
    if len(curves) > 1:  # broadcasting over few units is slow, so add 64 rows at a time
        flat, tile = bucket.view(-1), _tile(len(curves), width, bucket.device)
        rest = flat.numel() % tile.numel()
        flat[: flat.numel() - rest].view(-1, tile.numel()).add_(tile)
        if rest:
            flat[-rest:].add_(tile[:rest])
    return bucket


def _ends(curves: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Values at both ends of each bucket: ``index_select`` is four times as fast as indexing."""
    flat, index_ = curves.reshape(-1), index.view(-1)
    return flat.index_select(0, index_).view(index.shape), flat[1:].index_select(0, index_).view(index.shape)


def _exported(x: Tensor, curves: Tensor, rows: Tensor, grid: Grid) -> Tensor:
    """The formula in operations that every exporter supports."""
    place: Tensor = grid.place(x)
    index = place.int().clamp(1, grid.buckets - 1) + rows.to(torch.int32) * curves.shape[-1]
    start, end = _ends(curves, index)
    return start + place.frac() * (end - start)


def _compiled(x: Tensor, curves: Tensor, rows: Tensor, grid: Grid) -> Tensor:
    """The formula in the form that Inductor compiles best; the compiler derives the backward.

    ``fmax`` maps NaN to bucket 1, so no index needs checking. The 16-bit conversion keeps Inductor's loop scalar, and
    gcc then vectorises the gathers better than Inductor does.
    """
    place = x * (1 / grid.step) + (1 - grid.lower / grid.step)
    end_ = grid.buckets * (1 - torch.finfo(x.dtype).eps)
    place = torch.fmin(torch.fmax(place, x.new_ones(())), x.new_full((), end_))
    bucket = place.to(torch.int16) if grid.buckets < 2**15 else place.int()
    index, flat = bucket.long() + rows.long() * curves.shape[-1], curves.reshape(-1)
    take: Callable[[Tensor, list[Tensor]], Tensor] = torch.ops.aten._unsafe_index.Tensor
    start, end = take(flat, [index]), take(flat[1:], [index])
    value = start + place.frac() * (end - start)
    return torch.where(x.isnan(), x, value)


def _inside(grad: Tensor, x: Tensor, grid: Grid) -> Tensor:
    """``grad`` where ``x`` is on the grid, its bounds included, and zero elsewhere, in one pass."""
    low, high = torch.nextafter(x.new_tensor([grid.lower, grid.upper]), x.new_tensor([-math.inf, math.inf])).tolist()
    result: Tensor = torch.ops.aten.hardtanh_backward(grad, x, low, high)
    return result


class _PiecewiseLinear(torch.autograd.Function):
    """The formula with its own backward of two scatter-adds; the backward of plain indexing is many times slower."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, curves: Tensor, rows: Tensor | None, grid: Grid) -> Tensor:
        bucket, fraction = grid.locate(x)
        index = _index(bucket, rows, curves)
        start, end = _ends(curves, index)
        rise = end.sub_(start)
        ctx.save_for_backward(x, curves, index, fraction, rise)
        ctx.grid = grid
        return start.addcmul_(fraction, rise)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, curves, index, fraction, rise = ctx.saved_tensors
        grid, grad_x, grad_curves = ctx.grid, None, None
        if torch.is_grad_enabled():  # create_graph=True: the rise is itself a function of the curves, the fraction of x
            start, end = _ends(curves, index)
            fraction, rise = grid.place(x).frac(), end - start
        if ctx.needs_input_grad[0]:
            grad_x = _inside((grad * rise).mul_(1 / grid.step), x, grid)
        if ctx.needs_input_grad[1]:
            flat, zeros = index.view(-1).long(), grad.new_zeros(curves.numel())
            start = zeros.scatter_add(0, flat, grad.reshape(-1)).view(curves.shape)
            rises = zeros.scatter_add(0, flat, (grad * fraction).reshape(-1)).view(curves.shape)
            grad_curves = start - rises + torch.nn.functional.pad(rises[..., :-1], (1, 0))  # rise = next knot - this
        return grad_x, grad_curves, None, None


def piecewise_linear_inverse(
    z: Tensor, knot_values: Tensor, rows: Tensor | None = None, *, grid: Grid, extrapolation: Extrapolation = "clip"
) -> Tensor:
    r"""The smallest input on the grid that a curve maps to at least ``z``: :math:`x = \inf\{t : k(t) \ge z\}`.

    It is exact where the curve rises and the left end where the curve is flat. Curves must be non-decreasing. The knot
    is found by bisection, so the cost of an input grows with the logarithm of the number of buckets.

    Args:
        z: Values to look up, any shape; NaN stays NaN.
        knot_values: One curve per row, shape ``[curves, buckets + 1]``.
        rows: The curve of each value, integers that broadcast against ``z``; by default the first.
        grid: Where the knots are.
        extrapolation: For a value outside the curve's range: the nearest end of the grid (``"clip"``), or beyond it
            with slope 1 (``"extend"``).

    >>> grid = Grid(lower=0, upper=2, step=1)
    >>> piecewise_linear_inverse(torch.tensor([0.5, 1.0]), torch.tensor([[-1.0, 0.0, 1.0, 1.0]]), grid=grid)
    tensor([0.5000, 1.0000])
    """
    first = torch.zeros_like(z, dtype=torch.int64)
    if rows is not None:
        z = _expanded(z, rows)
        first = (rows.long() * knot_values.shape[-1]).expand(z.shape)
    right = _first_knot_at_least(z, knot_values, first, grid)
    left = (right - 1).clamp(min=1)
    start, end = torch.take(knot_values, first + left), torch.take(knot_values, first + right)
    rise = end - start
    flat = rise <= 0  # only where z lies outside the curve's range
    fraction = torch.where(flat, (z > end).to(z.dtype), (z - start) / torch.where(flat, 1.0, rise)).clamp(0, 1)
    x = grid.lower + grid.step * ((left - 1) + fraction)
    if extrapolation == "extend":
        x = x + (z - start).clamp(max=0) + (z - end).clamp(min=0)
    return torch.where(z.isnan(), z, x)


def _first_knot_at_least(z: Tensor, knot_values: Tensor, first: Tensor, grid: Grid) -> Tensor:
    """The first knot in ``1 .. buckets`` whose value is at least ``z``, by bisection; the last if there is none."""
    low, high = torch.ones_like(first), torch.full_like(first, grid.buckets)
    for _ in range(grid.buckets.bit_length()):
        middle = (low + high) // 2
        reached = torch.take(knot_values, first + middle) >= z
        low, high = torch.where(reached, low, middle + 1).clamp(max=grid.buckets), torch.where(reached, middle, high)
    return high
