"""Context heads at scale: sparse tables and their optimiser, hashed and projected contexts, towers, trained curves."""

import numpy as np
import pytest
import torch
from torch import nn

from isolayer import ContextIsotonicLayer, DualHead, InputError, RowAdam, calibrate, parameter_groups, train_curves


def steps(layer, optimiser, times=12):
    torch.manual_seed(0)
    for _ in range(times):
        ids = torch.randint(0, 50, (64,))
        logit, label = torch.randn(64), torch.randint(0, 2, (64, 1)).float()
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(layer(logit, {"item": ids}), label).backward()
        optimiser.step()


def test_sparse_tables_train_with_the_provided_groups():
    torch.manual_seed(0)
    layer = ContextIsotonicLayer({"item": 50}, sparse=True)
    optimiser = RowAdam(parameter_groups(layer, 1e-2))
    steps(layer, optimiser)
    assert (layer.tables[0].rows.weight[1:] != 0).any()
    assert (layer.tables[0].rows.weight[0] == 0).all()  # that of an unknown id
    assert layer.tables[0].rows.weight.grad.is_sparse  # gradients are left as they were
    with pytest.raises(RuntimeError, match="sparse"):
        steps(layer, torch.optim.Adam(parameter_groups(layer, 1e-2)))


def test_rows_that_are_in_every_batch_are_updated_as_adam_does():
    torch.manual_seed(0)
    sparse, dense = nn.Embedding(6, 3, sparse=True), nn.Embedding(6, 3)
    dense.load_state_dict(sparse.state_dict())
    pairs = (
        (sparse, RowAdam(parameter_groups(sparse, 0.1))),
        (dense, torch.optim.Adam(dense.parameters(), lr=0.1)),
    )
    for _ in range(5):
        scale = torch.randn(3)
        for table, optimiser in pairs:
            optimiser.zero_grad()
            (table(torch.arange(6)) * scale).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(sparse.weight, dense.weight, atol=1e-5, rtol=1e-5)


def test_the_optimiser_resumes_to_the_bit():
    def run(cut):
        torch.manual_seed(0)
        layer = ContextIsotonicLayer({"item": 50}, sparse=True)
        optimiser = RowAdam(parameter_groups(layer, 1e-2))
        steps(layer, optimiser, 5)
        if cut:
            again = RowAdam(parameter_groups(layer, 1e-2))
            again.load_state_dict(optimiser.state_dict())
            optimiser = again
        steps(layer, optimiser, 5)
        return layer.tables[0].rows.weight

    assert torch.equal(run(cut=False), run(cut=True))


def head(**options):
    torch.manual_seed(0)
    return DualHead(nn.Linear(4, 8), width=8, tasks=("click", "skip"), decreasing=("skip",), **options)


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ({"contexts": {"item": 1000}, "sparse": True}, {"item": torch.arange(5)}),
        ({"contexts": {"item": 1000}, "rank": 2}, {"item": torch.arange(5)}),
        ({"contexts": {"item": 0}, "hash_buckets": 64}, {"item": torch.tensor([0, 10**12, 3, -1, 7])}),
        (
            {"contexts": {"item": 0, "place": 0}, "hash_buckets": 64, "mode": "cross"},
            {"item": torch.arange(5), "place": torch.zeros(5).long()},
        ),
        ({"contexts": {}, "projection": 3}, {"vector": torch.eye(5, 3)}),
        ({"contexts": {"item": 10}, "projection": 3}, {"vector": torch.eye(5, 3), "item": torch.arange(5)}),
    ],
    ids=["sparse", "rank", "hashed", "hashed combinations", "projection", "both"],
)
def test_a_dual_head_takes_every_kind_of_context(options, context):
    model = head(**options)
    optimiser = RowAdam(parameter_groups(model, 1e-2))
    features, labels = torch.randn(5, 4), {"click": torch.tensor([1.0, 0, 1, 0, 1]), "skip": torch.zeros(5)}
    first = None
    for _ in range(30):
        optimiser.zero_grad()
        loss = model.loss(model(features, context), labels)
        loss.backward()
        optimiser.step()
        first = first or float(loss.detach())
    assert float(loss.detach()) < first
    ids = model.context_curves.reference  # of a vector, zero is the reference
    reference = {name: torch.full_like(given[:1], ids.get(name, 0)) for name, given in context.items()}
    heads = model.eval()(features[:1], reference)
    torch.testing.assert_close(heads["click"].observed_logit, heads["click"].relevance_logit)
    assert model.curves().contexts == (
        ("task", "item") if "item" in options["contexts"] and not model.hash_buckets else ("task",)
    )


def test_curves_of_a_million_ids_leave_them_out():
    model = DualHead(
        nn.Identity(), width=2, tasks=("click",), contexts={"item": 1_000_000, "position": 10}, rank=1, sparse=True
    )
    assert model.curves().contexts == ("task", "position")


class Experts(nn.Module):
    """A mixture of experts with a gate per task."""

    def __init__(self, width, tasks, out):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, out) for _ in range(3))
        self.gates = nn.Parameter(torch.randn(tasks, width, 3))

    def forward(self, hidden):
        each = torch.stack([torch.relu(expert(hidden)) for expert in self.experts], dim=1)  # [batch, 3, out]
        gate = torch.einsum("bw,twe->bte", hidden, self.gates).softmax(2)
        return gate @ each


TASKS = tuple(f"task{number}" for number in range(12))


@pytest.mark.parametrize("kind", ["modules", "experts"])
def test_towers_of_twelve_tasks(kind, tmp_path):
    torch.manual_seed(0)
    towers = (
        {task: nn.Sequential(nn.Linear(8, 4), nn.ReLU()) for task in TASKS} if kind == "modules" else Experts(8, 12, 4)
    )
    model = DualHead(nn.Linear(3, 8), width=4, tasks=TASKS, contexts={"position": 5}, towers=towers)
    features, context = torch.randn(6, 3), {"position": torch.arange(6) % 5}
    optimiser = RowAdam(parameter_groups(model, 1e-3))
    model.loss(model(features, context), dict.fromkeys(TASKS, torch.ones(6))).backward()
    assert all(parameter.grad is not None for parameter in model.relevance.towers.parameters())
    optimiser.step()
    served = model.serving()(features)
    for task in TASKS:
        torch.testing.assert_close(served[task], model.eval()(features, context)[task].relevance_logit)
    exported = torch.export.export(model.serving(), (features,)).module()(features)
    torch.testing.assert_close(exported["task3_prob"], served["task3_prob"])


def test_a_tower_touches_its_own_task_only():
    towers = {task: nn.Linear(4, 4) for task in ("click", "like")}
    model = DualHead(nn.Identity(), width=4, tasks=("click", "like"), contexts={"position": 2}, towers=towers)
    features, context = torch.randn(3, 4), {"position": torch.zeros(3).long()}
    before = model(features, context)
    nn.init.zeros_(towers["like"].weight)
    after = model(features, context)
    assert torch.equal(before["click"].relevance_logit, after["click"].relevance_logit)
    assert not torch.equal(before["like"].relevance_logit, after["like"].relevance_logit)
    wrong = DualHead(
        nn.Identity(), width=5, tasks=("click",), contexts={"position": 2}, towers={"click": nn.Linear(4, 4)}
    )
    with pytest.raises(InputError, match=r"towers 'click': expected an output of shape \[batch, 5\], got \[3, 4\]"):
        wrong(features, context)


def test_default_tasks_have_their_directions():
    assert DualHead(nn.Identity(), width=2).decreasing == ("skip",)
    assert DualHead(nn.Identity(), width=2, tasks=("click", "skip")).decreasing == ()


def test_trained_curves_come_close_to_the_exact_ones():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 1, generator=random) * 1.5
    device = torch.randint(0, 2, (20_000,), generator=random)
    truth = torch.where(device == 0, 0.5 * x[:, 0] - 1, 1.5 * x[:, 0]).unsqueeze(1)
    label = torch.bernoulli(torch.sigmoid(truth), generator=random)
    batches = [(x, label, {"device": device})]
    model = nn.Identity()
    trained = train_curves(model, batches, contexts={"device": 2}, lr=0.02, batch_size=1024)
    exact = calibrate(model, batches, contexts={"device": 2})
    loss = nn.functional.binary_cross_entropy_with_logits
    by_gradient, fitted, raw = (
        float(loss(found.detach(), label))
        for found in (trained(x, {"device": device}), exact(x, {"device": device}), x)
    )
    assert by_gradient < fitted + 0.002 < raw - 0.02
    values = trained.curves()[0].decision_function([1.0, 1.0], {"device": [0, 1]})
    np.testing.assert_allclose(values, [-0.5, 1.5], atol=0.25)
    assert all(not parameter.requires_grad for parameter in trained.model.parameters())


def test_rows_of_weight_zero_and_labels_that_are_nan_are_left_out():
    x = torch.linspace(-2, 2, 400).unsqueeze(1)
    label = (x > 0).float()
    label = torch.cat([label, 1 - label], dim=1)  # two tasks
    half = torch.arange(400) < 200
    model = nn.Sequential(nn.Linear(1, 2))
    kept = train_curves(model, [(x[half], label[half])], epochs=3)
    weighted = train_curves(model, [(x, label, {}, half.float())], epochs=3, batch_size=400)
    masked = train_curves(model, [(x, torch.where(half.unsqueeze(1), label, torch.nan))], epochs=3, batch_size=400)
    torch.testing.assert_close(weighted(x), masked(x))
    torch.testing.assert_close(weighted(x), kept(x), atol=1e-3, rtol=1e-3)
