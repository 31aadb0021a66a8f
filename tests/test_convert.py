"""Curves as layers and back: the same function, in double precision to 1e-12."""

import numpy as np
import pytest
import torch
from curve_examples import GRID, fitted, questions

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.convert import from_layer, to_layer
from isolayer.nn.isotonic import IsotonicLayer


@pytest.mark.parametrize("contexts", [(), ("device",), ("device", "position")])
def test_a_layer_computes_what_the_curves_do(contexts):
    curves, data = fitted(contexts), questions()
    context = {name: data[name] for name in contexts} or None
    layer, logit = to_layer(curves), torch.tensor(data["score"])
    ids = torch.tensor(curves.rows_of(context, len(logit)))
    answer = layer(logit, {"curve": ids}) if contexts else layer(logit)
    expected = curves.decision_function(data["score"], context)
    np.testing.assert_allclose(answer.detach()[:, 0].numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("contexts", [(), ("device", "position")])
def test_curves_come_back_from_their_layer(contexts):
    curves = fitted(contexts)
    again = from_layer(to_layer(curves), like=curves)
    np.testing.assert_allclose(again.values, curves.values, rtol=0, atol=1e-12)
    assert (again.contexts, again.settings) == (curves.contexts, curves.settings)
    single = from_layer(to_layer(curves, dtype=torch.float32), like=curves)
    np.testing.assert_allclose(single.values, curves.values, rtol=0, atol=1e-4)


def test_a_layer_of_curves_learns_on():
    curves, data = fitted(("device",)), questions()
    layer = to_layer(curves)
    ids = torch.tensor(curves.rows_of({"device": data["device"]}, 500))
    layer(torch.tensor(data["score"]), {"curve": ids}).sum().backward()
    assert layer.tables[0].rows.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", ["sum", "cross"])
@pytest.mark.parametrize("unit", [0, 1])
def test_curves_of_a_layer_are_its_function(mode, unit):
    torch.manual_seed(0)
    layer = ContextIsotonicLayer(
        {"position": 3, "device": 2}, units=2, grid=GRID, mode=mode, extrapolation="extend"
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for table in layer.tables:
            table.rows.weight[0] = table.bias.weight[0] = 0  # the row of unknown ids
    curves = from_layer(layer, unit=unit, vocabulary={"device": ["tv", "web"]})
    position, device = np.array([0, 2, 1, 2, -1]), np.array([0, 1, -1, -1, -1])
    score = np.linspace(-8, 5, 5)
    ids = {"position": torch.tensor(position), "device": torch.tensor(device)}
    expected = layer(torch.tensor(score), ids)[:, unit].detach().numpy()
    words = {"position": position, "device": np.array(["tv", "web", "?"])[device]}
    np.testing.assert_allclose(curves.decision_function(score, words), expected, rtol=0, atol=1e-12)


def test_a_layer_without_contexts_becomes_one_curve():
    layer = IsotonicLayer(grid=GRID, constraint="softplus").double()
    with torch.no_grad():
        layer.weight.add_(torch.linspace(-1, 1, GRID.buckets))
    score = np.linspace(GRID.lower, GRID.upper, 50)
    expected = layer(torch.tensor(score)).detach()[:, 0].numpy()
    np.testing.assert_allclose(from_layer(layer).decision_function(score), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (IsotonicLayer(), {"unit": 1}, "unit: expected a number from 0 to 0, got 1; count the layer's units"),
        (
            ContextIsotonicLayer({"a": 1}, hash_buckets=8),
            {},
            "layer: expected tables of bounded ids, got hashed ids or a projection; fit those by curves",
        ),
        (
            ContextIsotonicLayer({"a": 2**21}, rank=1),
            {},
            "layer: expected at most 1048576 combinations of ids, got more; use fewer features",
        ),
        (
            IsotonicLayer(constraint=None, init=-1.0),
            {},
            "layer: expected curves that never decrease, got one that does; use constraint='relu'",
        ),
        (
            ContextIsotonicLayer({"a": 2}),
            {"vocabulary": {"a": [1]}},
            "vocabulary of a: expected 2 values, got 1; give one an id",
        ),
        (
            IsotonicLayer(),
            {"like": Curves.identity(GRID)},
            r"like: expected the layer's shape .*; give the curves it is of",
        ),
    ],
)
def test_a_layer_that_is_no_table_of_curves_is_refused(layer, options, message):
    with pytest.raises(InputError, match=message):
        from_layer(layer, **options)
