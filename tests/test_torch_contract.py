"""What a curve is, in torch: every case of the contract that numpy, SQL and ONNX keep too, in every way to run it."""

import numpy as np
import pytest
import torch
from contract_cases import CASES

from isolayer import ContextIsotonicLayer, Curves, IsotonicLayer
from isolayer.curves.evaluation import invert
from isolayer.nn.convert import table_layer
from isolayer.nn.frozen import FrozenCurves

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["double", "single"]
)


def a_layer(case, dtype=torch.float64):
    layer = IsotonicLayer(grid=case.grid, extrapolation=case.extrapolation).to(dtype)
    return layer.set_values(torch.tensor([case.values], dtype=torch.float64))


def a_context_layer(case, dtype=torch.float64):
    """The curve as context 1 of two, the other and the base being somewhere else."""
    values = torch.tensor([case.values], dtype=torch.float64)
    base = values + torch.linspace(5, 9, len(case.values), dtype=torch.float64)
    table = torch.stack([base, values])
    return table_layer(table, base, grid=case.grid, extrapolation=case.extrapolation, dtype=dtype)


def columns(pairs, dtype):
    """Inputs and answers, ``[n]`` each; none of a magnitude at which single precision rounds by more than 1e-6."""
    given, expected = torch.tensor(pairs, dtype=torch.float64).T
    kept = given.abs() < (1e9 if dtype == torch.float64 else 50)
    return given[kept].to(dtype), expected[kept]


def check(answer, expected, tolerance):
    torch.testing.assert_close(answer[:, 0].detach().double(), expected, atol=tolerance, rtol=0)


@cases
@precisions
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_forward(case, dtype, tolerance, grad):
    logit, expected = columns(case.forward, dtype)
    ids = {"curve": torch.ones(len(logit), dtype=torch.long)}
    layer, context_layer = a_layer(case, dtype), a_context_layer(case, dtype)
    with torch.set_grad_enabled(grad):
        check(layer(logit), expected, tolerance)
        check(context_layer(logit, ids), expected, 3 * tolerance)
        check(FrozenCurves.from_layer(layer)(logit), expected, tolerance)
        check(FrozenCurves.from_layer(context_layer)(logit, ids), expected, 3 * tolerance)


@cases
@precisions
def test_inverse(case, dtype, tolerance):
    logit, expected = columns(case.inverse, dtype)
    steepest = 1e3 if case.name.startswith("nearly flat") else 1.0  # the inverse's slope multiplies what was rounded
    check(a_layer(case, dtype).inverse(logit), expected, steepest * tolerance)
    if dtype == torch.float64:  # a context is an offset from the base curve: in single precision no flat is exact
        ids = {"curve": torch.ones(len(logit), dtype=torch.long)}
        check(a_context_layer(case, dtype).inverse(logit, ids), expected, steepest * tolerance)


@cases
def test_curves_as_a_layer_and_back(case):
    curves = case.curves()
    again = Curves.from_layer(curves.to_layer())
    assert again.extrapolation == case.extrapolation
    frozen = FrozenCurves.from_curves(curves, dtype=torch.float64)
    logit, expected = columns(case.forward, torch.float64)
    for answer in (curves.to_layer()(logit), frozen(logit), torch.as_tensor(again.decision_function(logit))[:, None]):
        check(answer, expected, 1e-9)
    logit, expected = columns(case.inverse, torch.float64)
    check(curves.to_layer().inverse(logit), expected, 1e-9)
    row = np.zeros(len(logit), np.int64)
    raw = invert(again.values, row, logit.numpy(), again.grid, again.extrapolation)
    check(torch.as_tensor(raw)[:, None], expected, 1e-9)


@pytest.mark.parametrize("way", ["compiled", "exported"])
def test_forward_in_a_graph(way):
    torch._dynamo.reset()
    for case in CASES:
        logit, expected = columns(case.forward, torch.float32)
        layer = a_layer(case, torch.float32)
        if way == "exported":
            module = torch.export.export(layer, (logit,)).module()
        else:
            module = torch.compile(layer, fullgraph=True)
        check(module(logit), expected, 1e-5)


def test_the_inverse_of_a_context_is_that_of_its_curve():
    torch.manual_seed(0)
    layer = ContextIsotonicLayer({"position": 3}, units=2).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.rand_like(parameter))
    logit, ids = torch.randn(60, 2, dtype=torch.float64), torch.arange(60) % 4 - 1
    raw = layer.inverse(logit, {"position": ids})
    assert raw.shape == (60, 2)
    torch.testing.assert_close(layer(raw, {"position": ids}), logit, atol=1e-9, rtol=0)


@cases
def test_the_inverse_of_nan_is_nan(case):
    raw = a_layer(case).inverse(torch.tensor([torch.nan, 0.0], dtype=torch.float64))
    assert raw.isnan().tolist() == [[True], [False]]
