import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from isolayer.grid import Grid
from isolayer.nn.functional import knot_values, piecewise_linear, piecewise_linear_inverse

GRID = Grid(-2, 2, 0.5)
seeds = st.integers(0, 2**31)


def curves(seed, number=3, grid=GRID, lowest=-0.5):
    """Slopes with flats in them, and inputs on and extrapolation the grid."""
    generator = torch.Generator().manual_seed(seed)
    slope = (torch.rand(number, grid.buckets, dtype=torch.float64, generator=generator) * 3 + lowest).clamp(min=0)
    bias = torch.randn(number, dtype=torch.float64, generator=generator)
    x = torch.randn(17, number, dtype=torch.float64, generator=generator) * 2
    return slope, bias, x


def obvious(x, values, rows, grid, extrapolation):
    """np.interp, one input at a time."""
    out = torch.empty_like(x)
    for place in np.ndindex(*x.shape):
        curve = values[int(rows[place])].numpy()
        z = np.interp(x[place].item(), grid.knots[1:], curve[1:])
        if extrapolation == "extend":
            z += x[place].item() - np.clip(x[place].item(), grid.lower, grid.upper)
        out[place] = z
    return out


@given(seeds, st.sampled_from(["clip", "extend"]), st.booleans())
@settings(deadline=None)
def test_it_is_interpolation_at_the_knots(seed, extrapolation, grad):
    slope, bias, x = curves(seed)
    values = knot_values(slope, bias, grid=GRID)
    rows = torch.randint(0, 3, x.shape, generator=torch.Generator().manual_seed(seed))
    with torch.set_grad_enabled(grad):
        z = piecewise_linear(x, values, rows, grid=GRID, extrapolation=extrapolation)
        columns = piecewise_linear(x, values, grid=GRID, extrapolation=extrapolation)
        first = piecewise_linear(x[:, 0], values[:1], grid=GRID, extrapolation=extrapolation)
    torch.testing.assert_close(z, obvious(x, values, rows, GRID, extrapolation), atol=1e-12, rtol=0)
    torch.testing.assert_close(
        columns, obvious(x, values, torch.arange(3).expand(17, 3), GRID, extrapolation), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(first, columns[:, 0])


def test_any_batch_size_and_more_than_one_curve_goes_by_columns():
    slope, bias, _ = curves(0)
    values = knot_values(slope, bias, grid=GRID)
    for batch in (0, 1, 63, 64, 65, 200):
        x = torch.randn(batch, 3, dtype=torch.float64)
        expected = torch.stack([piecewise_linear(x[:, u], values[u : u + 1], grid=GRID) for u in range(3)], 1)
        torch.testing.assert_close(piecewise_linear(x, values, grid=GRID), expected)


@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
@pytest.mark.parametrize("rows", [None, torch.arange(3), torch.tensor([[2, 0, 1]])])
def test_first_and_second_derivatives(extrapolation, rows):
    slope, bias, x = curves(3, lowest=0.1)

    def function(x, slope, bias):
        return piecewise_linear(x, knot_values(slope, bias, grid=GRID), rows, grid=GRID, extrapolation=extrapolation)

    inputs = tuple(tensor.requires_grad_() for tensor in (x, slope, bias))
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@given(seeds, st.sampled_from(["clip", "extend"]))
@settings(deadline=None)
def test_the_inverse_undoes_rising_curves(seed, extrapolation):
    slope, bias, x = curves(seed, lowest=0.05)
    values = knot_values(slope, bias, grid=GRID)
    z = piecewise_linear(x, values, grid=GRID, extrapolation=extrapolation)
    back = piecewise_linear_inverse(z, values, torch.arange(3), grid=GRID, extrapolation=extrapolation)
    expected = x if extrapolation == "extend" else x.clamp(GRID.lower, GRID.upper)
    torch.testing.assert_close(back, expected, atol=1e-11, rtol=0)


@given(seeds)
@settings(deadline=None)
def test_the_inverse_is_the_left_edge_of_flats(seed):
    slope, bias, x = curves(seed, lowest=-2.0)  # two slopes in three are flat
    values = knot_values(slope, bias, grid=GRID)
    z = piecewise_linear(x, values, grid=GRID)
    back = piecewise_linear_inverse(z, values, torch.arange(3), grid=GRID)
    clipped = x.clamp(GRID.lower, GRID.upper)
    assert (back <= clipped + 1e-9).all()
    torch.testing.assert_close(piecewise_linear(back, values, grid=GRID), z, atol=1e-9, rtol=0)
    left = piecewise_linear(back - 1e-6, values, grid=GRID)
    assert ((left < z) | (back <= GRID.lower + 1e-9) | (z - left < 1e-12)).all()


@pytest.mark.parametrize(("extrapolation", "ends"), [("clip", [-2.0, -2.0, 2.0]), ("extend", [-2.5, -2.0, 2.5])])
def test_the_inverse_outside_the_range_of_a_flat_curve_is_the_nearest_end(extrapolation, ends):
    values = torch.full((1, GRID.buckets + 1), 0.5)
    back = piecewise_linear_inverse(
        torch.tensor([0.0, 0.5, 1.0, torch.nan]), values, grid=GRID, extrapolation=extrapolation
    )
    assert back[:3].tolist() == ends
    assert back[3].isnan()


def test_nan_is_one_elements_own_affair():
    slope, bias, x = curves(1)
    values = knot_values(slope, bias, grid=GRID)
    spoilt = x.clone()
    spoilt[4, 1] = torch.nan
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            z, clean = piecewise_linear(spoilt, values, grid=GRID), piecewise_linear(x, values, grid=GRID)
        assert z[4, 1].isnan()
        z[4, 1] = clean[4, 1]
        torch.testing.assert_close(z, clean, rtol=0, atol=0)


def test_beyond_the_last_gradient_bucket_weights_are_left_alone():
    slope = torch.ones(1, GRID.buckets, requires_grad=True)
    piecewise_linear(torch.tensor([[-1.9], [0.3]]), knot_values(slope, grid=GRID), grid=GRID).sum().backward()
    bucket = int(GRID.locate(torch.tensor([0.3]))[0])
    assert (slope.grad[0, bucket + 1 :] == 0).all()
    assert (slope.grad[0, : bucket + 1] > 0).all()


def test_half_precision_inputs_are_computed_in_single():
    slope = torch.full((1, Grid().buckets), 0.7)
    x = torch.linspace(-17, 8, 100).bfloat16().unsqueeze(1)
    z = piecewise_linear(x, knot_values(slope.bfloat16(), grid=Grid()).bfloat16(), grid=Grid())
    assert z.dtype == torch.bfloat16
    exact = piecewise_linear(x.float(), knot_values(slope.bfloat16().float(), grid=Grid()), grid=Grid())
    assert (z - exact).abs().max() < 0.08  # half a unit in the last place at 17
