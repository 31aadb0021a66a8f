import copy
import math

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper import calibrated_logit, listing

from isolayer import Grid, InputError, IsotonicEmbedding, IsotonicLayer

GRIDS = [Grid(), Grid(step=0.05), Grid(-2, 3, 0.25), Grid(0, 1, 1), Grid(-1, 0.8, 0.3)]
seeds = st.integers(0, 2**31)


def random_layer(seed, *, units=3, spread=1.0, **options):
    layer = IsotonicLayer(units, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + 0.3)
    return layer


def inputs(seed, grid, *, batch=40, units=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    width = grid.upper - grid.lower
    return (torch.rand(batch, units, generator=generator, dtype=dtype) * 1.4 - 0.2) * width + grid.lower


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_it_is_the_papers_function_equation_by_equation(grid):
    layer = random_layer(0, grid=grid).double()
    x = inputs(0, grid, dtype=torch.float64)
    z = layer(x)
    for row, unit in np.ndindex(*x.shape):
        weights, bias = layer.weight[unit].tolist(), layer.bias[unit].item()
        expected = calibrated_logit(x[row, unit].item(), weights, bias, grid.lower, grid.upper, grid.step)
        assert z[row, unit].item() == pytest.approx(expected, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_values_and_gradients_are_those_of_the_listing(grid, dtype, tolerance):
    layer = random_layer(1, grid=grid, leaky_gradient=False).to(dtype)
    x = inputs(1, grid, dtype=dtype).requires_grad_()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype) / x.numel()
    ours = torch.autograd.grad((layer(x) * upstream).sum(), [x, layer.weight, layer.bias])
    z = listing(x, layer.weight, layer.bias, grid.lower, grid.upper, grid.step)
    theirs = torch.autograd.grad((z * upstream).sum(), [x, layer.weight, layer.bias])
    scale = max(1.0, z.detach().abs().max().item())
    torch.testing.assert_close(layer(x), z, atol=tolerance * scale, rtol=0)
    for mine, papers in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, papers, atol=tolerance, rtol=0)


@pytest.mark.parametrize("shape", ["units", "batch"])
def test_a_delta_is_added_before_the_constraint(shape):
    layer, x = random_layer(3, grid=GRIDS[2], leaky_gradient=False), inputs(3, GRIDS[2])
    size = (3, layer.grid.buckets) if shape == "units" else (len(x), 3, layer.grid.buckets)
    delta = torch.randn(size)
    z = listing(x, layer.weight + delta, layer.bias, -2, 3, 0.25)
    torch.testing.assert_close(layer(x, delta), z, atol=1e-5, rtol=0)


@given(seeds, st.sampled_from(["relu", "softplus"]), st.sampled_from(["clip", "extend"]))
@settings(deadline=None, max_examples=40)
def test_it_is_monotone_whatever_its_parameters(seed, constraint, extrapolation):
    layer = random_layer(seed, grid=GRIDS[2], constraint=constraint, extrapolation=extrapolation, spread=3.0)
    x = inputs(seed, GRIDS[2], batch=300).sort(0).values
    z = layer(x)
    assert (z.diff(dim=0) >= -1e-5).all()


def test_without_a_constraint_it_can_fall():
    layer = IsotonicLayer(grid=GRIDS[2], constraint=None, init=-1.0)
    z = layer(torch.linspace(-2, 3, 20))[:, 0]
    assert (z.diff() < 0).all()


@pytest.mark.parametrize("constraint", ["relu", "softplus", None])
def test_it_starts_as_the_identity(constraint):
    layer = IsotonicLayer(constraint=constraint)
    x = torch.linspace(-17, 8, 1001)
    torch.testing.assert_close(layer(x)[:, 0], x, atol=4e-6, rtol=0)


@pytest.mark.parametrize("init", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("constraint", ["relu", "softplus", None])
def test_init_is_the_slope_at_the_start(init, constraint):
    layer = IsotonicLayer(constraint=constraint, init=init)
    y = layer.curve()[1][0].double()
    np.testing.assert_allclose(y.diff().numpy(), init * 0.2, atol=3e-6)


def test_every_option_changes_the_result():
    x = torch.tensor([-30.0, -1.3, 0.4, 20.0])
    reference = random_layer(5, units=1)(x)
    for options in ({"constraint": "softplus"}, {"constraint": None}, {"extrapolation": "extend"}, {"bias": False}):
        layer = IsotonicLayer(1, **options)
        state = {k: v for k, v in random_layer(5, units=1).state_dict().items() if k in layer.state_dict()}
        layer.load_state_dict(state)
        assert not torch.allclose(layer(x), reference), options


def test_clipping_ties_and_extension_does_not():
    x = torch.tensor([-40.0, -30.0, 9.0, 12.0])
    clipped, extended = IsotonicLayer()(x)[:, 0], IsotonicLayer(extrapolation="extend")(x)[:, 0]
    torch.testing.assert_close(clipped, torch.tensor([-17.0, -17.0, 8.0, 8.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(extended, x, atol=1e-5, rtol=0)


def test_the_rows_of_a_batch_do_not_know_of_each_other():
    layer, x = random_layer(6), inputs(6, Grid(), batch=150)
    order = torch.randperm(150)
    assert torch.equal(layer(x)[order], layer(x[order]))
    torch.testing.assert_close(layer(x)[7:8], layer(x[7:8]), atol=0, rtol=0)


def test_one_column_serves_every_unit():
    layer, x = random_layer(7), inputs(7, Grid(), units=1)
    torch.testing.assert_close(layer(x[:, 0]), layer(x.expand(-1, 3)))
    torch.testing.assert_close(layer(x), layer(x.expand(-1, 3)))


@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_the_inverse_undoes_the_layer(extrapolation):
    layer = random_layer(8, constraint="softplus", extrapolation=extrapolation, grid=Grid(-4, 4, 0.5)).double()
    x = inputs(8, layer.grid, dtype=torch.float64)
    expected = x if extrapolation == "extend" else x.clamp(-4, 4)
    torch.testing.assert_close(layer.inverse(layer(x)), expected, atol=1e-9, rtol=0)


def test_prob_is_the_sigmoid_and_curve_the_function():
    layer, x = random_layer(9), inputs(9, Grid())
    assert torch.equal(layer.prob(x), torch.sigmoid(layer(x)))
    points, y = layer.curve()
    torch.testing.assert_close(layer(points), y.T, atol=2e-5, rtol=0)
    assert not y.requires_grad


def test_not_a_number_in_is_not_a_number_out_for_that_element():
    layer = random_layer(10)
    x = torch.tensor([[math.nan, 0.0, 1.0], [math.inf, -math.inf, 0.0]])
    z = layer(x)
    assert z.isnan().tolist() == [[True, False, False], [False, False, False]]
    torch.testing.assert_close(z[1], layer(torch.tensor([[8.0, -17.0, 0.0]]))[0])


def test_a_negative_weight_becomes_positive_again_only_with_the_leaky_gradient():
    """The target rises; every weight starts below zero, where plain ReLU has no gradient at all."""
    x = torch.linspace(-3, 3, 400)
    target = torch.sigmoid(2 * x)

    def loss_after_training(leaky_gradient):
        torch.manual_seed(0)
        layer = IsotonicLayer(grid=Grid(-3, 3, 0.5), init=-0.5, leaky_gradient=leaky_gradient)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(400):
            loss = torch.nn.functional.binary_cross_entropy(layer.prob(x)[:, 0], target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return loss.item()

    entropy = torch.nn.functional.binary_cross_entropy(target, target).item()
    assert loss_after_training(True) - entropy < 0.002
    assert loss_after_training(False) - entropy > 0.2


def test_the_leaky_gradient_changes_that_of_negative_weights_that_should_grow_and_nothing_else():
    grid = Grid(0, 4, 1)
    plain, leaky = (IsotonicLayer(grid=grid, leaky_gradient=leaky_gradient) for leaky_gradient in (False, True))
    weight = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    for layer in (plain, leaky):
        layer.weight.data.copy_(weight)
    x = torch.tensor([0.5, 3.9])
    assert torch.equal(plain(x), leaky(x))
    for sign in (1, -1):
        grads = []
        for layer in (plain, leaky):
            layer.zero_grad()
            (sign * layer(x).sum()).backward()
            grads.append(layer.weight.grad.clone())
        alive = weight > 0
        assert torch.equal(grads[0][alive], grads[1][alive])
        assert (grads[0][~alive] == 0).all()
        assert ((grads[1][~alive] < 0).all()) == (sign == -1)


@pytest.mark.parametrize("constraint", ["relu", "softplus", None])
@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_compiled_and_exported_it_is_the_same_function(constraint, extrapolation):
    torch._dynamo.reset()
    layer = random_layer(11, constraint=constraint, extrapolation=extrapolation)
    x = inputs(11, Grid(), batch=33)
    x[0, 0] = math.inf
    x[1, 1] = math.nan
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=0, equal_nan=True)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    torch.testing.assert_close(exported(x[:5]), layer(x[:5]), atol=1e-5, rtol=0, equal_nan=True)


def test_compiled_gradients_are_the_same():
    torch._dynamo.reset()
    layer, x = random_layer(12, leaky_gradient=False), inputs(12, Grid(), batch=65).requires_grad_()
    compiled = torch.compile(layer, fullgraph=True)
    for parameter in (x, layer.weight, layer.bias):
        ours = torch.autograd.grad(layer(x).square().mean(), parameter)[0]
        theirs = torch.autograd.grad(compiled(x).square().mean(), parameter)[0]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_gives_the_same_logits(tmp_path):
    layer, x = random_layer(13, extrapolation="extend").eval(), inputs(13, Grid(), batch=50)
    path = tmp_path / "layer.onnx"
    torch.onnx.export(layer, (x,), path, dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
    session = onnxruntime.InferenceSession(path)
    for batch in (1, 50):
        (z,) = session.run(None, {session.get_inputs()[0].name: x[:batch].numpy()})
        np.testing.assert_allclose(z, layer(x[:batch]).detach().numpy(), atol=1e-5)


def test_copies_and_states_are_equal_and_independent():
    layer, x = random_layer(14), inputs(14, Grid())
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x))
    fresh = IsotonicLayer(3)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))
    with torch.no_grad():
        twin.bias += 1
    assert not torch.equal(twin(x), layer(x))
    assert set(layer.state_dict()) == {"weight", "bias"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_precision_follows_the_module(dtype):
    layer, x = random_layer(15).to(dtype), inputs(15, Grid()).to(dtype)
    z = layer(x)
    assert z.dtype == dtype
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(z.double(), copy.deepcopy(layer).double()(x.double()), atol=tolerance, rtol=1e-2)
    z.float().sum().backward()
    assert layer.weight.grad.dtype == dtype


def test_autocast_keeps_the_logit_in_single_precision():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), IsotonicLayer(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.randn(2, 4)).dtype == torch.float32


def test_its_cost_does_not_hold_a_tensor_of_buckets():
    """Saved for the backward: a handful of [batch, units] tensors, however many buckets there are."""
    sizes = []
    for step in (0.2, 0.01):
        layer = IsotonicLayer(4, grid=Grid(step=step))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=saved: s.append(t.numel()) or t, lambda t: t):
            layer(torch.randn(1000, 4).requires_grad_())
        sizes.append(sum(size for size in saved if size >= 4000 and size != layer.weight.numel()))
    assert sizes[0] <= 5 * 4000
    assert sizes[1] <= sizes[0] + 5 * 4 * 2502


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: IsotonicLayer(0), "units: expected a positive integer, got 0; use one unit per task"),
        (
            lambda: IsotonicLayer(constraint="tanh"),
            "constraint: expected 'relu', 'softplus' or None, got 'tanh'; use 'relu'",
        ),
        (
            lambda: IsotonicLayer(constraint="softplus", init=0),
            "init: expected a number in (0, 1e+06], got 0; 1.0 starts at the identity",
        ),
        (
            lambda: IsotonicLayer(init=math.nan),
            "init: expected a number in [-1e+06, 1e+06], got nan; 1.0 starts at the identity",
        ),
        (
            lambda: IsotonicLayer(extrapolation="wrap"),
            "extrapolation: expected 'clip' or 'extend', got 'wrap'; 'clip' is the paper's",
        ),
        (
            lambda: IsotonicLayer(2)(torch.zeros(5, 3)),
            "logit: expected shape [batch] or [batch, 2], got [5, 3]; give one column per unit, or one for all of them",
        ),
        (
            lambda: IsotonicLayer()(torch.zeros(5, dtype=torch.int64)),
            "logit: expected floating-point values, got torch.int64; call .float()",
        ),
        (
            lambda: IsotonicLayer(constraint=None).inverse(torch.zeros(1)),
            "inverse: expected a monotone layer, got constraint=None; use 'relu' or 'softplus'",
        ),
        (lambda: IsotonicEmbedding(0, 2), "levels: expected a positive integer, got 0; count from 1"),
        (
            lambda: IsotonicEmbedding(3, 2)(torch.tensor([3])),
            "level: expected ids from 0 to 2, got 3; clip them or make the table larger",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message


@given(seeds, st.integers(1, 12), st.integers(1, 4), st.sampled_from(["relu", "softplus"]))
@settings(deadline=None, max_examples=30)
def test_every_coordinate_of_an_isotonic_embedding_rises_with_the_level(seed, levels, dim, constraint):
    embed = IsotonicEmbedding(levels, dim, constraint=constraint)
    with torch.no_grad():
        for parameter in embed.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    table = embed(torch.arange(levels))
    assert table.shape == (levels, dim)
    assert (table.diff(dim=0) >= 0).all()
    assert torch.equal(embed(torch.tensor([[0, levels - 1]]))[0, 1], table[-1])


@pytest.mark.parametrize("way", ["eager", "compiled", "exported"])
def test_a_level_beyond_the_table_is_the_nearest_one_when_served(way):
    torch._dynamo.reset()
    embed = IsotonicEmbedding(4, 2, init=0.5).eval()
    level = torch.tensor([-9, -1, 0, 3, 4, 10**9])
    run = {
        "eager": lambda: embed,
        "compiled": lambda: torch.compile(embed, fullgraph=True),
        "exported": lambda: torch.export.export(embed, (level,)).module(),
    }[way]()
    torch.testing.assert_close(run(level)[:, 0], torch.tensor([0.0, 0.0, 0.0, 1.5, 1.5, 1.5]))


@pytest.mark.parametrize(
    ("layer", "values", "message"),
    [
        (
            IsotonicLayer(constraint="softplus"),
            torch.zeros(1, 126),
            "set_values: expected constraint 'relu' or None and a bias, got another layer; use those",
        ),
        (
            IsotonicLayer(2),
            torch.zeros(2, 127),
            "values: expected shape [2, 126], got [2, 127]; leave out the knot below the grid",
        ),
        (
            IsotonicLayer(),
            -torch.arange(126.0)[None],
            "values: expected curves that never decrease, got one that does; use constraint=None",
        ),
    ],
)
def test_values_that_no_layer_can_take_are_refused(layer, values, message):
    with pytest.raises(InputError) as error:
        layer.set_values(values)
    assert str(error.value) == message


@given(seeds)
@settings(deadline=None, max_examples=30)
def test_a_layer_takes_any_values_and_gives_them_back(seed):
    grid = GRIDS[2]
    values = torch.randn(3, grid.buckets, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rising = values.abs().cumsum(1) - 5
    for constraint, wanted in (("relu", rising), (None, values)):
        layer = IsotonicLayer(3, grid=grid, constraint=constraint).double().set_values(wanted)
        torch.testing.assert_close(layer.curve()[1], wanted, atol=1e-12, rtol=0)
