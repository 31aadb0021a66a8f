"""parameter_groups: every parameter once, at the rate its module states, dense and sparse apart."""

import pytest
import torch
from torch import nn

from isolayer import ContextIsotonicLayer, Grid, IsotonicEmbedding, IsotonicLayer, MonotoneLattice, parameter_groups
from isolayer.debias.referenced_curves import ReferencedCurves
from isolayer.nn.rates import RowAdam


def rates(model, lr, **options):
    """The rate of each parameter by name, from the groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, lr, **options)
    found = [(names[id(p)], group["lr"]) for group in groups for p in group["params"]]
    assert len(found) == len(names)  # each in one group
    return dict(found)


def test_every_kind_of_curve_learns_at_the_curves_rate_and_nothing_else_does():
    model = nn.ModuleDict(
        {
            "net": nn.Linear(2, 2),
            "table": nn.Embedding(3, 2),
            "layer": IsotonicLayer(2),
            "context": ContextIsotonicLayer({"position": 3}, rank=2, projection=4),
            "embedding": IsotonicEmbedding(3, 2),
            "lattice": MonotoneLattice({"x": Grid(0, 1, 1)}, input_knots=3),
        }
    )
    for name, rate in rates(model, 0.01, curve_lr=5).items():
        assert rate == pytest.approx(0.01 if name.startswith(("net", "table")) else 0.05), name
    assert len(parameter_groups(nn.Linear(2, 1), 0.1)) == 1


@pytest.mark.parametrize("curve_lr", [1, 10])
def test_only_the_network_decays_and_exactly_by_its_share(curve_lr):
    """Without gradients, a step of AdamW leaves 1 - lr * decay of each weight; curves and sparse tables keep theirs."""
    torch.manual_seed(0)
    parts = {"net": nn.Linear(2, 2), "table": nn.Embedding(3, 2, sparse=True), "curve": IsotonicLayer(2)}
    model = nn.ModuleDict(parts)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = RowAdam(parameter_groups(model, 0.01, curve_lr=curve_lr, decay=0.3))
    for name, value in model.named_parameters():
        if not name.startswith("table"):
            value.grad = torch.zeros_like(value)
    optimiser.step()
    for name, value in model.named_parameters():
        kept = 1 - 0.01 * 0.3 if name.startswith("net") else 1.0
        torch.testing.assert_close(value, before[name] * kept, rtol=1e-6, atol=0)


class Tower(nn.Module):
    curve_lr_factors = {"bias": 3.0, "inner.weight": 0.5}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.bias, self.biases = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.inner, self.curve = nn.Linear(1, 1), IsotonicLayer()


def test_a_module_can_name_parameters_that_learn_at_multiples_of_the_curves_rate():
    assert rates(nn.Sequential(Tower()), 0.01) == pytest.approx(
        {
            "0.bias": 0.3,
            "0.biases": 0.01,
            "0.inner.weight": 0.05,
            "0.inner.bias": 0.01,
            "0.curve.weight": 0.1,
            "0.curve.bias": 0.1,
        }
    )


def test_an_outer_factor_holds_for_a_curve_inside():
    class Head(nn.Module):
        curve_lr_factors = {"curve.bias": 4.0}  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.curve = IsotonicLayer()

    assert rates(Head(), 1.0, curve_lr=2) == pytest.approx({"curve.weight": 2.0, "curve.bias": 8.0})


class Ranker(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.items = nn.Embedding(9, 1, sparse=sparse)
        self.curves = ContextIsotonicLayer({"item": 9}, grid=Grid(-2, 2, 1), sparse=sparse)

    def forward(self, item):
        return self.curves(self.items(item), {"item": item})


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad causes it
@pytest.mark.parametrize("way", ["Adam and SparseAdam", "Adagrad"])
def test_sparse_tables_train_by_the_groups(way):
    torch.manual_seed(0)
    model = Ranker(sparse=True)
    groups = parameter_groups(model, 0.01)
    sparse = {id(p) for group in groups if group["sparse"] for p in group["params"]}
    table = model.curves.tables[0]
    assert sparse == {id(p) for p in (model.items.weight, table.rows.weight, table.bias.weight)}
    if way == "Adagrad":
        optimisers = [torch.optim.Adagrad(groups)]
    else:
        kinds = (torch.optim.Adam, False), (torch.optim.SparseAdam, True)
        optimisers = [kind([group for group in groups if group["sparse"] == which]) for kind, which in kinds]
    item, label = torch.arange(9).repeat(20), (torch.arange(180) % 9 < 4).float().unsqueeze(1)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    losses = []
    for _ in range(30):
        loss = nn.functional.binary_cross_entropy_with_logits(model(item), label)
        losses.append(loss.item())
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert not any(group["sparse"] for group in parameter_groups(Ranker(sparse=False), 0.01))


def test_features_beside_the_position_bend_curves_at_a_tenth_of_its_rate():
    def rates(contexts, **options):
        curves = ReferencedCurves(contexts, reference=dict.fromkeys(contexts, 0), held=[False], **options)
        names = {id(parameter): name for name, parameter in curves.named_parameters()}
        groups = parameter_groups(curves, 1.0, curve_lr=1.0)
        return {names[id(one)]: group["lr"] for group in groups for one in group["params"]}

    found = rates({"device": 3, "position": 4})
    assert found["tables.1.rows.weight"] == 1
    assert found["tables.0.rows.weight"] == pytest.approx(0.1)
    assert found["tables.0.bias.weight"] == found["tables.1.bias.weight"] == found["base.bias"] > 1
    assert rates({"device": 3, "slot": 4})["tables.1.rows.weight"] == 1
    assert rates({"device": 3, "position": 4}, mode="cross")["tables.0.rows.weight"] == 1
    assert rates({"position": 4, "device": 3}, rank=2)["tables.1.rows.weight"] == pytest.approx(0.1)
