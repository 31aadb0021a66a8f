"""MonotoneLattice: monotone where declared for any parameters, free elsewhere, and the layer itself in one input."""

import itertools
import math

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer import Grid, InputError, IsotonicLayer, parameter_groups
from isolayer.nn.functional import piecewise_linear
from isolayer.nn.lattice import MonotoneLattice, input_map, monotone_vertices, multilinear, vertex_rises

QUALITY, RECENCY, HOUR = Grid(lower=-2, upper=2, step=1), Grid(lower=0, upper=1, step=0.5), Grid(0, 24, 8)
INPUTS = {"quality": QUALITY, "hour": HOUR, "recency": RECENCY}
seeds = st.integers(0, 2**31)
constraints = st.sampled_from(["relu", "softplus"])
knots = st.sampled_from([0, 2, 7])


def random_lattice(seed, **options):
    torch.manual_seed(seed)
    lattice = MonotoneLattice(INPUTS, units=2, **options).double()
    for parameter in lattice.parameters():
        torch.nn.init.normal_(parameter, std=2)
    return lattice


def random_columns(seed, rows=40):
    rng = np.random.default_rng(seed)
    # Wider than the grids: what is beyond is clipped.
    return {
        name: torch.tensor(rng.uniform(grid.lower - grid.step, grid.upper + grid.step, rows))
        for name, grid in INPUTS.items()
    }


def obvious(lattice, columns):
    """Vertex by vertex and corner by corner."""
    table = {}
    weight = lattice.weight.detach().numpy()
    sizes = [lattice.inputs[name].buckets for name in lattice.order]
    out = np.zeros((len(next(iter(columns.values()))), lattice.units))
    for unit in range(lattice.units):
        for index in itertools.product(*map(range, sizes)):
            raw = weight[(*index, unit)]
            before = [
                table[(*index[:axis], index[axis] - 1, *index[axis + 1 :])]
                for axis in range(lattice.axes)
                if index[axis]
            ]
            rise = max(raw, 0) if lattice.constraint == "relu" else np.log1p(np.exp(raw))
            table[index] = max(before) + rise if before else raw
        for row in range(len(out)):
            total = 0.0
            points = []
            for name in lattice.order:
                grid = lattice.inputs[name]
                x = min(max(float(columns[name][row]), grid.lower), grid.upper)
                steps = (x - grid.lower) / grid.step
                if name in lattice.decreasing:
                    steps = grid.buckets - 1 - steps
                points.append(steps)
            for index in itertools.product(*map(range, sizes)):
                share = np.prod([max(0.0, 1 - abs(point - at)) for point, at in zip(points, index, strict=True)])
                total += share * table[index]
            out[row, unit] = total
    return out


@settings(max_examples=40, deadline=None)
@given(seeds, constraints, knots)
def test_monotone_in_every_declared_input_for_any_parameters(seed, constraint, input_knots):
    options = {"constraint": constraint, "input_knots": input_knots}
    lattice = random_lattice(seed, monotone=("quality",), decreasing=("recency",), **options)
    columns = random_columns(seed)
    for name, sign in (("quality", 1), ("recency", -1)):
        more = columns | {name: columns[name] + torch.rand(40, dtype=torch.float64) * 2 * INPUTS[name].step}
        assert (sign * (lattice(more) - lattice(columns)) >= -1e-9).all()


@settings(max_examples=40, deadline=None)
@given(seeds, constraints, knots)
def test_jointly_monotone_in_all_inputs(seed, constraint, input_knots):
    options = {"constraint": constraint, "input_knots": input_knots}
    lattice = random_lattice(seed, monotone=("quality", "hour", "recency"), **options)
    columns = random_columns(seed)
    more = {name: column + torch.rand(40, dtype=torch.float64) * INPUTS[name].step for name, column in columns.items()}
    assert (lattice(more) - lattice(columns) >= -1e-9).all()


@settings(max_examples=15, deadline=None)
@given(seeds, constraints, st.sampled_from([(), ("hour",), ("quality", "recency"), ("recency", "hour", "quality")]))
def test_equals_the_obvious_loop(seed, constraint, monotone):
    decreasing = () if "quality" in monotone else ("quality",)
    lattice = random_lattice(seed, monotone=monotone, decreasing=decreasing, constraint=constraint)
    columns = random_columns(seed, rows=6)
    np.testing.assert_allclose(lattice(columns).detach(), obvious(lattice, columns), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_is_the_isotonic_layer_in_one_input(seed):
    torch.manual_seed(seed)
    grid = Grid(lower=-3, upper=3, step=0.5)
    layer = IsotonicLayer(units=2, grid=grid).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    lattice = MonotoneLattice({"logit": grid}, monotone=("logit",), units=2).double()
    with torch.no_grad():
        lattice.weight.copy_(layer.weight.T * grid.step)
        lattice.weight[0] = layer.knot_values()[:, 1]
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(lattice({"logit": x}), layer(x))


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 3))
def test_any_monotone_table_has_rises(seed, axes):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(4, 3, 5))
    for axis in range(axes):
        values = np.maximum.accumulate(values, axis=axis)  # flats included
    vertices = torch.tensor(values)
    rises = vertex_rises(vertices, axes)
    torch.testing.assert_close(monotone_vertices(rises, axes), vertices)
    rises[(0,) * axes] = 0
    assert (rises >= 0).all()


def test_free_inputs_are_free_and_submodular_functions_are_reached():
    # max(quality, recency) has negative mixed differences, which a double prefix sum could not reach.
    torch.manual_seed(0)
    unit = Grid(lower=0, upper=1, step=0.25)
    lattice = MonotoneLattice({"quality": unit, "recency": unit, "hour": unit}, monotone=("quality", "recency"))
    optimiser = torch.optim.Adam(lattice.parameters(), lr=0.02)
    for _ in range(600):
        quality, recency, hour = (torch.randint(0, 5, (256,)) / 4 for _ in range(3))
        target = torch.maximum(quality, recency) + torch.sin(6 * hour)
        loss = (lattice({"quality": quality, "recency": recency, "hour": hour})[:, 0] - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 1e-3


@pytest.mark.parametrize("constraint", ["relu", "softplus"])
def test_starts_as_the_sum_of_the_declared_inputs(constraint):
    lattice = MonotoneLattice(
        INPUTS, monotone=("quality",), decreasing=("recency",), constraint=constraint, init=0.5
    ).double()
    columns = {name: column.clamp(INPUTS[name].lower, INPUTS[name].upper) for name, column in random_columns(1).items()}
    expected = 0.5 * (columns["quality"] - columns["recency"])
    torch.testing.assert_close(lattice(columns)[:, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("input_knots", [0, 4])
def test_gradients(input_knots):
    options = {"constraint": "softplus", "input_knots": input_knots}
    lattice = random_lattice(3, monotone=("quality",), decreasing=("recency",), **options)
    columns = {name: column[:5].requires_grad_() for name, column in random_columns(5).items()}
    parameters = dict(lattice.named_parameters())
    assert len(parameters) == (4 if input_knots else 1)

    def value(*given):
        named = dict(zip(INPUTS, given[len(parameters) :], strict=True))
        return torch.func.functional_call(lattice, dict(zip(parameters, given, strict=False)), (named,))

    assert torch.autograd.gradcheck(value, (*parameters.values(), *columns.values()))


@settings(max_examples=25, deadline=None)
@given(seeds, constraints)
def test_maps_are_the_lattice_of_inputs_mapped_one_by_one(seed, constraint):
    options = {"monotone": ("quality",), "decreasing": ("recency",), "constraint": constraint}
    lattice, plain = random_lattice(seed, input_knots=7, **options), random_lattice(seed, **options)
    with torch.no_grad():
        plain.weight.copy_(lattice.weight)
    columns, mapped = random_columns(seed), {}
    for (name, grid), weight in zip(INPUTS.items(), lattice.maps, strict=True):
        raw = weight.detach().numpy()
        if name != "hour":  # the only one that is free
            raw = np.maximum(raw, 0) if constraint == "relu" else np.log1p(np.exp(raw))
        values = np.concatenate([[0.0], np.cumsum(raw)])
        values = (values - values.min()) / max(np.ptp(values), 0.06)
        values = grid.lower + (grid.upper - grid.lower) * values
        mapped[name] = torch.tensor(np.interp(columns[name], np.linspace(grid.lower, grid.upper, 7), values))
    torch.testing.assert_close(lattice(columns), plain(mapped))


@pytest.mark.parametrize("constraint", ["relu", "softplus"])
@pytest.mark.parametrize("input_knots", [2, 10])
def test_maps_start_as_the_identity(constraint, input_knots):
    options = {"monotone": ("quality",), "decreasing": ("recency",), "constraint": constraint}
    mapped, plain = (MonotoneLattice(INPUTS, **options, **more).double() for more in ({"input_knots": input_knots}, {}))
    torch.testing.assert_close(mapped(random_columns(1)), plain(random_columns(1)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("rises", [[0.0, 0.0, 0.0], [1e-30, 0.0, 1e-30], [1e30, 0.0, 1e30], [-5.0, -0.1, -1e-9]])
@pytest.mark.parametrize("monotone", [True, False])
def test_any_map_stays_in_the_range_and_has_finite_gradients(rises, monotone):
    raw = torch.tensor(rises, requires_grad=True)
    grid = Grid(lower=-3, upper=6, step=3)
    curve = input_map(raw.clamp(min=0) if monotone else raw, monotone=monotone, grid=grid)
    value = piecewise_linear(torch.tensor([-math.inf, -9.0, 0.0, 5.0, math.inf]), curve, grid=grid)
    assert ((value >= -3) & (value <= 6 + 1e-5)).all()
    value.sum().backward()
    assert raw.grad.isfinite().all()


def test_maps_find_what_two_vertices_cannot():
    """A step in a declared input and a wave in a free one, where a lattice of two vertices has straight lines only."""
    unit = Grid(lower=0, upper=1, step=1)
    torch.manual_seed(0)
    quality, hour = torch.rand(2, 2_000)
    target = torch.sigmoid(30 * (quality - 0.7)) + torch.sin(6 * hour)
    reached = {}
    for input_knots in (0, 12):
        lattice = MonotoneLattice({"quality": unit, "hour": unit}, monotone=["quality"], input_knots=input_knots)
        optimiser = torch.optim.Adam(lattice.parameters(), lr=0.05)
        for _ in range(300):
            loss = (lattice({"quality": quality, "hour": hour})[:, 0] - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        reached[input_knots] = float(loss.detach())
    assert reached[12] < 0.005 < 0.1 < reached[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("input_knots", [0, 7])
def test_compiled_and_in_onnx_it_is_the_same_function(input_knots, tmp_path):
    torch._dynamo.reset()
    lattice = random_lattice(4, monotone=("quality",), decreasing=("recency",), input_knots=input_knots).float().eval()
    columns = {name: column.float() for name, column in random_columns(4).items()}
    columns["hour"][3], columns["quality"][5] = math.nan, math.inf
    compiled = torch.compile(lattice, fullgraph=True)
    torch.testing.assert_close(compiled(columns), lattice(columns), atol=1e-4, rtol=1e-5, equal_nan=True)
    batch = {name: {0: torch.export.Dim("batch")} for name in columns}
    path, shapes = tmp_path / "lattice.onnx", {"columns": batch}
    torch.onnx.export(lattice, (), path, kwargs={"columns": columns}, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path)
    for rows in (1, 40):
        feed = {f"columns_{name}": column[:rows].numpy() for name, column in columns.items()}
        (value,) = session.run(None, feed)
        expected = lattice({name: column[:rows] for name, column in columns.items()}).detach()
        np.testing.assert_allclose(value, expected, atol=1e-4, rtol=1e-5)


def test_nan_stays_in_its_row_and_options_change_the_result():
    columns = {"quality": torch.tensor([0.3, float("nan")]), "recency": torch.tensor([0.2, 0.2])}
    inputs = {"quality": QUALITY, "recency": RECENCY}
    for input_knots in (0, 5):
        out = MonotoneLattice(inputs, monotone=("quality",), input_knots=input_knots)(columns)
        assert out[0].isfinite().all()
        assert out[1].isnan().all()
    options = ({}, {"monotone": ("quality",)}, {"decreasing": ("quality",)}, {"monotone": ("quality",), "init": 2.0})
    first = [float(MonotoneLattice(inputs, **option)(columns)[0, 0].detach()) for option in options]
    assert first == pytest.approx([0, 0.3, -0.3, 0.6])
    assert len(parameter_groups(MonotoneLattice(inputs), 0.1)) == 1
    assert parameter_groups(MonotoneLattice(inputs), 0.1)[0]["lr"] == pytest.approx(1.0)


@pytest.mark.parametrize(("input_knots", "names"), [(0, []), (5, ["maps.0", "maps.1", "maps.2"])])
def test_saves_and_loads(input_knots, names):
    lattice, other = (random_lattice(seed, monotone=("hour",), input_knots=input_knots) for seed in (1, 2))
    assert not torch.equal(lattice(random_columns(0)), other(random_columns(0)))
    other.load_state_dict(lattice.state_dict())
    assert torch.equal(lattice(random_columns(0)), other(random_columns(0)))
    assert list(lattice.state_dict()) == ["weight", *names]


def test_multilinear_of_a_linear_function_is_that_function():
    knots = [torch.tensor(grid.knots[1:]) for grid in INPUTS.values()]
    vertices = (2 * knots[0][:, None, None] - knots[1][:, None] + 3 * knots[2])[..., None]
    columns = {name: column.clamp(INPUTS[name].lower, INPUTS[name].upper) for name, column in random_columns(1).items()}
    out = multilinear(list(columns.values()), vertices, list(INPUTS.values()))[:, 0]
    torch.testing.assert_close(out, 2 * columns["quality"] - columns["hour"] + 3 * columns["recency"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": {}}, "inputs: expected 1 to 8, got 0; each doubles the cost"),
        (
            {"monotone": ("qality",)},
            "monotone: expected distinct names among ['quality'], got ('qality',); name inputs",
        ),
        ({"monotone": "quality"}, "monotone: expected distinct names among ['quality'], got 'quality'; name inputs"),
        (
            {"monotone": ["quality"], "decreasing": ["quality"]},
            "decreasing: expected names that are not in monotone, got ['quality'] in both; choose one",
        ),
        ({"units": 0}, "units: expected a positive integer, got 0; use one unit per function"),
        ({"constraint": None}, "constraint: expected 'relu' or 'softplus', got None; use 'relu'"),
        (
            {"input_knots": 1},
            "input_knots: expected 0 or 2 to 1000, got 1; try 10, or 0 for no maps",
        ),
        ({"init": -1.0}, "init: expected a number in [0, 1e+06], got -1.0; try 1.0"),
        (
            {"inputs": {name: Grid(step=0.02) for name in "ab"}},
            "inputs: expected at most 1000000 vertices, got 1565001; widen the steps",
        ),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(InputError) as error:
        MonotoneLattice(**({"inputs": {"quality": QUALITY}} | options))
    assert str(error.value) == message


def test_wrong_columns_are_named():
    lattice = MonotoneLattice({"quality": QUALITY})
    with pytest.raises(InputError) as error:
        lattice({"quantity": torch.zeros(1)})
    assert str(error.value) == "columns: expected a tensor for 'quality', got keys ['quantity']; add it"
    with pytest.raises(InputError) as error:
        lattice({"quality": torch.zeros(1, 1)})
    assert str(error.value) == (
        "columns 'quality': expected floats of shape [batch], all of one length, got torch.float32 of shape [1, 1]; "
        "flatten or convert it"
    )
