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
@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_curves_of_a_layer_are_its_function(mode, unit, extrapolation):
    torch.manual_seed(0)
    layer = ContextIsotonicLayer(
        {"position": 3, "device": 2}, units=2, grid=GRID, mode=mode, extrapolation=extrapolation
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for table in layer.tables:
            table.rows.weight[0] = table.bias.weight[0] = 0  # the row of unknown ids
    curves = Curves.from_layer(layer, unit=unit, names={"position": "slot"}, vocabulary={"device": ["tv", "web"]})
    position, device = np.array([0, 2, 1, 2, -1]), np.array([0, 1, -1, -1, -1])
    score = np.array([-20.0, -3.3, 0.1, 2.9, 20.0])
    ids = {"position": torch.tensor(position), "device": torch.tensor(device)}
    expected = layer(torch.tensor(score), ids)[:, unit].detach().numpy()
    words = {"slot": position, "device": np.array(["tv", "web", "?"])[device]}
    np.testing.assert_allclose(curves.decision_function(score, words), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("extrapolation", ["clip", "extend"])
def test_a_layer_without_contexts_becomes_one_curve(extrapolation):
    layer = IsotonicLayer(grid=GRID, constraint="softplus", extrapolation=extrapolation).double()
    with torch.no_grad():
        layer.weight.add_(torch.linspace(-1, 1, GRID.buckets))
    score = np.linspace(GRID.lower - 9, GRID.upper + 9, 50)
    curves = from_layer(layer)
    expected = layer(torch.tensor(score)).detach()[:, 0].numpy()
    np.testing.assert_allclose(curves.decision_function(score), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(to_layer(curves)(torch.tensor(score)).detach()[:, 0], expected, rtol=0, atol=1e-12)
    prob = np.linspace(0.001, 0.999, 50)
    inverse = layer.inverse(torch.logit(torch.tensor(prob))).detach()[:, 0].numpy()
    np.testing.assert_allclose(curves.inverse(prob), inverse, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (IsotonicLayer(), {"unit": 1}, "unit: expected an integer from 0 to 0, got 1; count the layer's units"),
        (
            ContextIsotonicLayer({"a": 1}, hash_buckets=8),
            {},
            "layer: expected tables of bounded ids, got hashed ids or a projection; fit curves to its logits instead",
        ),
        (
            ContextIsotonicLayer({"a": 2**21}, rank=1),
            {},
            "layer: expected at most 1048576 combinations of ids, got more; use fewer features",
        ),
        (
            ContextIsotonicLayer({"a": 2}),
            {"vocabulary": {"a": [1]}},
            "vocabulary of a: expected 2 values, got 1; give one per id",
        ),
        (
            ContextIsotonicLayer({"a": 2}),
            {"vocabulary": {"b": [1, 2]}},
            r"vocabulary: expected features among \['a'\], got \['b'\]; check spelling",
        ),
        (
            ContextIsotonicLayer({"a": 2, "b": 2}),
            {"names": {"a": "b"}},
            r"names: expected distinct columns, got \['b', 'b'\]; rename one",
        ),
        (
            IsotonicLayer(),
            {"like": Curves.identity(GRID)},
            r"like: expected curves of the layer's shape .*; give those that the layer was made from",
        ),
    ],
)
def test_a_layer_that_is_no_table_of_curves_is_refused(layer, options, message):
    with pytest.raises(InputError, match=message):
        from_layer(layer, **options)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (
            None,
            "context: expected a mapping from 'curve' to ids, got None; pass {'curve': curves.rows_of(context, n)}",
        ),
        (
            {"device": np.array(["tv"])},
            "context: expected ids for 'curve', got keys ['device']; pass {'curve': curves.rows_of(context, n)}",
        ),
        (
            {"curve": ["tv"]},
            "context 'curve': expected integer ids, got ['tv']; pass {'curve': curves.rows_of(context, n)}",
        ),
        ({"curve": torch.tensor([0.0])}, "context 'curve': expected integer ids, got torch.float32; call .long()"),
        ({"curve": torch.tensor([0, 0])}, "context 'curve': expected ids of shape [1], got [2]; give one id per logit"),
    ],
    ids=["none", "columns", "words", "floats", "length"],
)
def test_a_layer_of_curves_says_what_to_pass(context, message):
    with pytest.raises(InputError) as error:
        fitted(("device",)).to_layer()(torch.zeros(1), context)
    assert str(error.value) == message


def test_a_layer_of_curves_takes_the_rows_that_the_curves_give():
    curves, data = fitted(("device",)), questions()
    rows = curves.rows_of({"device": data["device"]}, 500)
    answer = curves.to_layer()(torch.tensor(data["score"]), {"curve": rows})
    expected = curves.decision_function(data["score"], {"device": data["device"]})
    np.testing.assert_allclose(answer.detach()[:, 0].numpy(), expected, rtol=0, atol=1e-12)


def test_a_layer_that_may_decrease_gives_curves_that_say_so(tmp_path):
    curves = Curves.from_layer(IsotonicLayer(constraint=None, init=-1.0))
    assert not curves.monotone
    curves.save(tmp_path / "curves.parquet")
    assert Curves.from_layer(IsotonicLayer(constraint=None, init=1.0)).monotone
