r"""`MonotoneLattice`: a function of several inputs that is monotone in those declared, and free in the others.

The function is given by values at the vertices of a grid, interpolated multilinearly between them. So it is monotone
in an input exactly if its vertex values are monotone along that axis. This module has the construction of such values
and the layer that learns them, with a learned map of each input before them if asked for; functions of one input are in
`isotonic`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate, product
from typing import Literal

import torch
from torch import Tensor, nn

from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.functional import piecewise_linear
from isolayer.nn.inputs import tensor
from isolayer.nn.isotonic import initial_weight, slopes
from isolayer.settings import choice, count, instance, mapping, names, number

_MOST_VERTICES = 1_000_000
_STEEPEST = 1e6  # largest slope that it can start with
_MOST_INPUTS = 8  # each input doubles the number of corners that are read
_MOST_KNOTS = 1_000  # of the map of an input
_LEAST_RISE = 0.01  # over a bucket of a map, on average; it starts with 1


def monotone_vertices(rises: Tensor, axes: int) -> Tensor:
    r"""Vertex values that never fall along the first ``axes`` axes, from the rise of each over its predecessors.

    :math:`v_i = \max_a v_{i - e_a} + \delta_i` over the axes a with :math:`i_a > 0`, and :math:`v_0 = \delta_0`. With
    :math:`\delta \ge 0` beyond the origin, v is monotone; and every monotone v has such rises, where a plain prefix sum
    over several axes would reach only those with non-negative mixed differences. For one axis it is the prefix sum.

    Args:
        rises: Shape ``[*monotone sizes, ...]``.
        axes: How many of the leading axes are monotone.

    >>> monotone_vertices(torch.tensor([[0.0, 1.0], [2.0, 0.5]]), axes=2)
    tensor([[0.0000, 1.0000],
            [2.0000, 2.5000]])
    """
    if axes == 0:
        return rises
    if axes == 1:
        return rises.cumsum(0)
    # Along the last monotone axis the recursion is v_j = S_j + max_{m <= j} (p_m - S_{m-1}), with p_m what the other
    # predecessors give and S the prefix sum of the rises: two scans per row, so the loop is over the other axes only.
    rows: dict[tuple[int, ...], Tensor] = {}
    for index in product(*(range(size) for size in rises.shape[: axes - 1])):
        rise = rises[index]
        total = rise.cumsum(0)
        before = [rows[_back(index, axis)] for axis in range(axes - 1) if index[axis]]
        if before:
            start = _running_max(reduce(torch.maximum, before) - (total - rise))
            rows[index] = total + start
        else:
            rows[index] = total
    return torch.stack(list(rows.values())).view(rises.shape)


def _running_max(x: Tensor) -> Tensor:
    """The largest value so far along the first axis."""
    if torch.compiler.is_exporting():  # ONNX has no such operation
        return torch.stack(list(accumulate(x.unbind(0), torch.maximum)))
    return x.cummax(0).values


def _back(index: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(i - (a == axis) for a, i in enumerate(index))


def vertex_rises(vertices: Tensor, axes: int) -> Tensor:
    """The inverse of `monotone_vertices`: the rise of each vertex over the largest of its predecessors.

    >>> vertex_rises(torch.tensor([[0.0, 1.0], [2.0, 2.5]]), axes=2)
    tensor([[0.0000, 1.0000],
            [2.0000, 0.5000]])
    """
    before = torch.full_like(vertices, -math.inf)
    for axis in range(axes):
        earlier = vertices.narrow(axis, 0, vertices.shape[axis] - 1)
        shifted = torch.cat([torch.full_like(vertices.narrow(axis, 0, 1), -math.inf), earlier], dim=axis)
        before = torch.maximum(before, shifted)
    return vertices - torch.where(before.isinf(), torch.zeros_like(before), before)


def multilinear(inputs: Sequence[Tensor], vertices: Tensor, grids: Sequence[Grid]) -> Tensor:
    r"""Interpolate between the :math:`2^d` vertices around each point.

    :math:`\sum_{c \in \{0,1\}^d} v_{i + c} \prod_a f_a^{c_a} (1 - f_a)^{1 - c_a}`, with buckets i and fractions f on
    each input's grid; inputs are clipped to it. NaN gives NaN for that point only.

    Args:
        inputs: One tensor ``[batch]`` per input.
        vertices: Shape ``[*sizes, units]``, where an input's size is its grid's ``buckets``.
        grids: Where the vertices of each input are.

    Returns:
        Values, ``[batch, units]``.

    >>> grid = Grid(lower=0, upper=1, step=1)
    >>> x, y = torch.tensor([0.5]), torch.tensor([0.25])
    >>> multilinear([x, y], torch.tensor([[[0.0], [4.0]], [[8.0], [12.0]]]), [grid, grid])
    tensor([[5.]])
    """
    units, sizes = vertices.shape[-1], vertices.shape[:-1]
    flat = vertices.reshape(-1, units)
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    index = torch.zeros_like(inputs[0], dtype=torch.int64)
    shares = []
    for x, grid, stride in zip(inputs, grids, strides, strict=True):
        place = grid.place(x.detach()).long().clamp(1, grid.buckets - 1)  # this clamp is for NaN
        index = index + (place - 1) * stride
        fraction = (x.clamp(grid.lower, grid.upper) - (grid.lower + (place - 1) * grid.step)) / grid.step
        shares.append((1 - fraction, fraction))
    value = flat.new_zeros(index.shape[0], units)  # len would fix the batch size of an export
    for corner in product((0, 1), repeat=len(shares)):
        share = reduce(torch.mul, [pair[side] for pair, side in zip(shares, corner, strict=True)])
        at = index + sum(stride * side for stride, side in zip(strides, corner, strict=True))
        value = value + share.unsqueeze(1) * flat.index_select(0, at)
    return value


def input_map(rises: Tensor, *, monotone: bool, grid: Grid) -> Tensor:
    r"""Knot values of a piecewise-linear map of a grid's range onto itself, from the rise over each of its buckets.

    With :math:`v` the prefix sums of the rises, :math:`k = L + (U - L)\,(v - \min v) / (\max v - \min v)`. So the map
    spans the whole range whatever the rises are, and all vertices of a lattice behind it stay within reach, which
    clipping would not ensure. It never falls if no rise is negative. Rises that hardly add up are not scaled any
    further, so that a flat map is no division by zero.

    Args:
        rises: Shape ``[buckets - 1]``, one per bucket inside the grid; only their ratios matter.
        monotone: Whether no rise is negative, so that the ends of the map are at the ends of the range.
        grid: Where the knots are.

    Returns:
        Knot values as `functional.piecewise_linear` takes them, ``[1, buckets + 1]``.

    >>> input_map(torch.tensor([1.0, 3.0]), monotone=True, grid=Grid(lower=0, upper=2, step=1))
    tensor([[0.0000, 0.0000, 0.5000, 2.0000]])
    """
    values = torch.cat([rises.new_zeros(1), rises.cumsum(0)])
    least, most = (values[0], values[-1]) if monotone else (values.amin(0), values.amax(0))
    share = (values - least) / (most - least).clamp(min=_LEAST_RISE * len(rises))
    inside = grid.lower + (grid.upper - grid.lower) * share
    return torch.cat([inside[:1], inside]).unsqueeze(0)  # no input falls below the grid


class MonotoneLattice(nn.Module):
    r"""A learned function of several inputs, monotone in the declared ones for any parameters.

    Vertex values follow `monotone_vertices` along the declared inputs and are free along the others; `multilinear`
    interpolates. It can represent any function that is multilinear between the vertices and monotone in the declared
    inputs. With one input it is `IsotonicLayer` on the same grid. It starts as ``init`` times the sum of the declared
    inputs (less those in ``decreasing``).

    With ``input_knots``, each input first passes through a learned piecewise-linear map of its range onto itself, so
    that few vertices are enough: the map bends where the data need it, and never falls for a declared input. The maps
    start as the identity.

    Args:
        inputs: Name and grid of each input; an input has ``grid.buckets`` vertices, from lower to upper. Keep them few.
        monotone: Inputs in which the function never falls.
        decreasing: Inputs in which it never rises.
        units: Number of functions.
        constraint: What keeps rises non-negative: ``"relu"`` or ``"softplus"``.
        init: Slope in each declared input at the start.
        input_knots: Number of knots of the map of each input, evenly spaced from lower to upper; 0 for no maps. About
            10 suit inputs that are spread evenly over their range, such as quantiles; others need more.

    >>> grid = Grid(lower=0, upper=1, step=0.5)
    >>> lattice = MonotoneLattice({"quality": grid, "recency": grid, "hour": grid}, monotone=("quality", "recency"))
    >>> columns = {"quality": torch.tensor([0.2]), "recency": torch.tensor([0.5]), "hour": torch.tensor([0.9])}
    >>> lattice(columns).detach()
    tensor([[0.7000]])
    """

    is_curve = True  # see parameter_groups

    def __init__(
        self,
        inputs: Mapping[str, Grid],
        *,
        monotone: Sequence[str] = (),
        decreasing: Sequence[str] = (),
        units: int = 1,
        constraint: Literal["relu", "softplus"] = "relu",
        init: float = 1.0,
        input_knots: int = 0,
    ) -> None:
        super().__init__()
        _check(inputs, monotone, decreasing)
        self.units = count("units", units, advice="use one unit per function")
        self.constraint = choice("constraint", constraint, ("relu", "softplus"), advice="use 'relu'")
        ends = "(]" if constraint == "softplus" else "[]"
        init = number("init", init, 0, _STEEPEST, ends=ends, advice="try 1.0")
        self.inputs = dict(inputs)
        self.monotone, self.decreasing = tuple(monotone), tuple(decreasing)
        # Parameters hold the declared inputs first, then the free ones, then units: [*declared, *free, units].
        declared = set(monotone) | set(decreasing)
        self.order = [name for name in inputs if name in declared] + [name for name in inputs if name not in declared]
        self.axes = len(declared)
        self.weight = nn.Parameter(self._initial(init))
        base = torch.zeros([self.inputs[name].buckets for name in self.order] + [1], dtype=torch.bool)
        base[(0,) * self.axes] = True  # no predecessor there: the level itself, of any sign
        self.register_buffer("base", base, persistent=False)
        self.input_knots = _knots(input_knots)
        self.map_grids = [
            Grid(grid.lower, grid.upper, (grid.upper - grid.lower) / (self.input_knots - 1))
            for grid in (inputs.values() if self.input_knots else ())
        ]
        self.maps = nn.ParameterList(
            torch.full((self.input_knots - 1,), initial_weight(1.0, self._map_constraint(name)))
            for name in (inputs if self.input_knots else ())
        )

    def vertices(self) -> Tensor:
        """Values at the vertices, ``[*sizes in the order of inputs, units]``.

        >>> MonotoneLattice({"quality": Grid(lower=0, upper=2, step=1)}, monotone=["quality"]).vertices().T.detach()
        tensor([[0., 1., 2.]])
        """
        base = self.get_buffer("base")
        values = monotone_vertices(torch.where(base, self.weight, slopes(self.weight, self.constraint)), self.axes)
        falling = [self.order.index(name) for name in self.decreasing]
        values = values.flip(falling) if falling else values
        return values.permute(*(self.order.index(name) for name in self.inputs), -1)

    def forward(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Values ``[batch, units]`` for inputs ``{name: [batch]}``; an input outside its grid is clipped to it."""
        rows = None
        mapping("columns", columns, advice="give a tensor for each input")
        for name in self.inputs:
            if name not in columns:
                raise InputError(f"columns: expected a tensor for {name!r}, got keys {sorted(columns)}; add it")
            shape = list(tensor(f"columns {name!r}", columns[name]).shape)
            if len(shape) != 1 or rows not in (None, shape[0]) or not columns[name].is_floating_point():
                raise InputError(
                    f"columns {name!r}: expected floats of shape [batch], all of one length, got "
                    f"{columns[name].dtype} of shape {shape}; flatten or convert it"
                )
            rows = shape[0]
        return multilinear(self._mapped(columns), self.vertices(), list(self.inputs.values()))

    def _mapped(self, columns: Mapping[str, Tensor]) -> list[Tensor]:
        """Inputs in their order, each through its map if there is one."""
        if not self.input_knots:
            return [columns[name] for name in self.inputs]
        mapped = []
        for name, weight, grid in zip(self.inputs, self.maps, self.map_grids, strict=True):
            constraint = self._map_constraint(name)
            curve = input_map(slopes(weight, constraint), monotone=constraint is not None, grid=grid)
            mapped.append(piecewise_linear(columns[name], curve, grid=grid))
        return mapped

    def _map_constraint(self, name: str) -> Literal["relu", "softplus"] | None:
        return self.constraint if name in self.order[: self.axes] else None

    def extra_repr(self) -> str:
        """Arguments as the constructor takes them."""
        return (
            f"{self.inputs}, monotone={self.monotone}, decreasing={self.decreasing}, units={self.units}, "
            f"input_knots={self.input_knots}"
        )

    def _initial(self, init: float) -> Tensor:
        """Raw weights whose vertices are ``init`` times the sum of the declared inputs, ``[*sizes, units]``."""
        sizes = [self.inputs[name].buckets for name in self.order]
        values = torch.zeros([*sizes, self.units])
        for axis, name in enumerate(self.order[: self.axes]):
            knots = torch.as_tensor(self.inputs[name].knots[1:], dtype=values.dtype)
            knots = -knots.flip(0) if name in self.decreasing else knots
            values = values + init * knots.view(-1, *[1] * (len(sizes) - axis))
        rises = vertex_rises(values, self.axes)
        if self.constraint == "relu" or not self.axes:
            return rises
        raw = torch.log(torch.expm1(rises))
        raw[(0,) * self.axes] = rises[(0,) * self.axes]
        return raw


def _knots(value: int) -> int:
    """Number of knots of a map, or 0 for no maps."""
    knots = count("input_knots", value, 0, advice="try 10, or 0 for no maps")
    if knots == 1 or knots > _MOST_KNOTS:
        raise InputError(f"input_knots: expected 0 or 2 to {_MOST_KNOTS}, got {knots}; try 10, or 0 for no maps")
    return knots


def _check(inputs: Mapping[str, Grid], monotone: Sequence[str], decreasing: Sequence[str]) -> None:
    for name, grid in mapping("inputs", inputs, advice="give the grid of each").items():
        instance(f"inputs {name!r}", grid, Grid, advice="use Grid(lower=..., upper=..., step=...)")
    if not 1 <= len(inputs) <= _MOST_INPUTS:
        raise InputError(f"inputs: expected 1 to {_MOST_INPUTS}, got {len(inputs)}; each doubles the cost")
    for name, values in {"monotone": monotone, "decreasing": decreasing}.items():
        names(name, values, inputs, advice="name inputs")
    if set(monotone) & set(decreasing):
        both = sorted(set(monotone) & set(decreasing))
        raise InputError(f"decreasing: expected names that are not in monotone, got {both} in both; choose one")
    vertices = math.prod(grid.buckets for grid in inputs.values())
    if vertices > _MOST_VERTICES:
        raise InputError(f"inputs: expected at most {_MOST_VERTICES} vertices, got {vertices}; widen the steps")
