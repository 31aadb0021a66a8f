"""Click models: probabilities by enumeration of everything a user may do, and parameters found again in logs."""

import itertools

import numpy as np
import pytest
import torch
from list_training import tensors, trained
from torch import nn

from isolayer import metrics, simulate
from isolayer.debias import DBN, DCM, UBM, Cascade, Naive

KINDS = (Cascade, DCM, DBN, UBM)
LENGTH = 4


def made(kind, seed=0):
    torch.manual_seed(seed)
    model = kind(nn.Identity(), width=3, positions=LENGTH).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.8 * torch.randn_like(parameter))
    return model


def listed(seed=1, order=None):
    features = torch.randn(LENGTH, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = torch.arange(LENGTH) if order is None else order
    return features[order], {"position": order, "session": torch.full((LENGTH,), 5)}


def parameters(model, features):
    """Attraction of each position, and the functions that say how a user goes on, read from the model by name."""
    with torch.no_grad():
        hidden = features
        if isinstance(model, DBN):
            attraction = torch.sigmoid(model.relevance.attraction(hidden))[:, 0].tolist()
            satisfied = torch.sigmoid(model.relevance.satisfaction(hidden))[:, 0].tolist()
            gamma = float(torch.sigmoid(model.continuation[0]))
            return attraction, lambda k: gamma * (1 - satisfied[k]), lambda k: gamma
        attraction = torch.sigmoid(model.relevance(hidden))[:, 0].tolist()
        if isinstance(model, DCM):
            go_on = torch.sigmoid(model.continuation[1:, 0]).tolist()
            return attraction, lambda k: go_on[k], lambda k: 1.0
        return attraction, lambda k: 0.0, lambda k: 1.0


def chance_of(model, features, clicks):
    """Probability of these clicks, by summing over where the user stops; UBM's by its chain rule."""
    if isinstance(model, UBM):
        attraction = torch.sigmoid(model.relevance(features))[:, 0].tolist()
        gamma = torch.sigmoid(model.examination[1:, :, 0]).tolist()
        chance, last = 1.0, LENGTH + 1
        for k, click in enumerate(clicks):
            prob = gamma[k][last] * attraction[k]
            chance *= prob if click else 1 - prob
            last = k + 1 if click else last
        return chance
    attraction, after_click, after_none = parameters(model, features)
    total = 0.0
    for end in range(1, LENGTH + 1):  # the user examines exactly the first `end` items
        if any(clicks[end:]):
            continue
        chance = 1.0
        for k in range(end):
            chance *= attraction[k] if clicks[k] else 1 - attraction[k]
            on = after_click(k) if clicks[k] else after_none(k)
            chance *= 1.0 if k == LENGTH - 1 else on if k < end - 1 else 1 - on
        total += chance
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_the_likelihood_of_every_pattern_of_clicks_is_that_of_all_that_users_may_do(kind):
    model, (features, context) = made(kind), listed()
    total = 0.0
    for clicks in itertools.product((0, 1), repeat=LENGTH):
        chance = chance_of(model, features, clicks)
        total += chance
        if kind is Cascade and sum(clicks) > 1:
            continue  # impossible in this model
        counted = LENGTH if kind is not Cascade or not sum(clicks) else clicks.index(1) + 1
        loss = model.loss(model(features, context), {"click": torch.tensor(clicks).double()})
        assert float(loss.detach()) * counted == pytest.approx(-np.log(chance), rel=1e-6)
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_observed_probability_is_the_sum_over_patterns(kind):
    model, (features, context) = made(kind, 2), listed()
    found = torch.sigmoid(model(features, context)["click"].observed_logit).detach().numpy()
    expected = np.zeros(LENGTH)
    for clicks in itertools.product((0, 1), repeat=LENGTH):
        expected += chance_of(model, features, clicks) * np.array(clicks)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_by_position_and_not_by_their_order(kind):
    model, order = made(kind), torch.tensor([2, 0, 3, 1])
    clicks = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()
    (features, context), (moved, places) = listed(), listed(order=order)
    one = model.loss(model(features, context), {"click": clicks})
    other = model.loss(model(moved, places), {"click": clicks[order]})
    assert torch.allclose(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences(kind):
    model, (features, context) = made(kind), listed()
    labels = {"click": torch.tensor([0.0, 1.0, 0.0, 0.0]).double()}
    names = [name for name, _ in model.named_parameters()]

    def loss(*values):
        outputs = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (features, context))
        return model.loss(outputs, labels)

    values = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())
    if kind is UBM:  # its loss reads the table itself

        def loss(*values):
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), values, strict=True):
                    parameter.copy_(value)
            found = model.loss(model(features, context), labels)
            grads = torch.autograd.grad(found, list(model.parameters()))
            return _Given.apply(found.detach(), grads, *values)

    assert torch.autograd.gradcheck(loss, values, atol=1e-5)


class _Given(torch.autograd.Function):
    """A value whose gradients were computed elsewhere."""

    @staticmethod
    def forward(ctx, value, grads, *inputs):
        ctx.grads = grads
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return (None, None, *(grad * one for one in ctx.grads))


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_logits_stay_finite(kind):
    model = kind(nn.Identity(), width=1, positions=LENGTH)
    features = torch.tensor([[90.0], [-90.0], [90.0], [0.0]])
    with torch.no_grad():
        next(iter(model.relevance.parameters())).fill_(1.0)
    context = {"position": torch.arange(LENGTH), "session": torch.zeros(LENGTH, dtype=torch.long)}
    for clicks in itertools.product((0.0, 1.0), repeat=LENGTH):
        model.zero_grad()
        loss = model.loss(model(features, context), {"click": torch.tensor(clicks)})
        loss.backward()
        assert torch.isfinite(loss)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# In simulated logs.


def tower():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU())


def ranks(model, shuffled):
    logit = model.serving()(torch.from_numpy(shuffled["features"]))["click"].numpy()
    return metrics.ndcg(shuffled["grade"], logit, shuffled["session"], k=10)


@pytest.mark.parametrize(("bias", "kind"), [("cascade", DBN), ("dependent", DCM), ("position", UBM)])
def test_a_click_model_ranks_better_than_naive_in_its_own_world(bias, kind):
    feed = simulate.debias_feed(bias, seed=3)
    log = feed.log(3000, seed=1)
    shuffled = feed.log(1500, seed=2, policy=lambda x: np.random.default_rng(0).random(len(x)))
    torch.manual_seed(0)
    naive = ranks(trained(Naive(tower(), width=32), log), shuffled)
    torch.manual_seed(0)
    model = trained(kind(tower(), width=32, positions=10), log)
    assert ranks(model, shuffled) > naive + 0.02
    if kind is DBN:
        assert float(torch.sigmoid(model.continuation[0]).detach()) == pytest.approx(0.8, abs=0.05)
    if kind is DCM:
        found = torch.sigmoid(model.continuation[1:4, 0]).detach().numpy()
        assert found == pytest.approx(0.6 / np.arange(1, 4), abs=0.12)
    features, context, click = tensors(log)
    with torch.no_grad():
        prob = torch.sigmoid(model(features, context)["click"].observed_logit)
    by_position = torch.stack([(prob - click)[context["position"] == k].mean() for k in range(10)])
    assert by_position.abs().max() < 0.02


@pytest.mark.parametrize("kind", [Cascade, DCM, DBN])
def test_second_derivatives_are_differences_of_gradients(kind):
    model, (features, context) = made(kind), listed()
    labels = {"click": torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)}
    weights = model.relevance.weight if kind is not DBN else model.relevance.attraction.weight
    towards = torch.randn_like(weights)

    def slope(graph=False):
        loss = model.loss(model(features, context), labels)
        return (torch.autograd.grad(loss, weights, create_graph=graph)[0] * towards).sum()

    (second,) = torch.autograd.grad(slope(graph=True), weights)
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weights += step * towards
        ends.append(float(slope()))
    assert float((second * towards).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_half_precision_does_not_confuse_positions():
    model = UBM(nn.Linear(2, 2), width=2, positions=300)
    with torch.no_grad():
        model.examination[256], model.examination[257] = -5.0, 5.0  # of positions 255 and 256
    context = {"position": torch.tensor([256]), "session": torch.tensor([0])}
    expected = model(torch.ones(1, 2), context)["click"].observed_logit
    with torch.autocast("cpu", torch.bfloat16):
        found = model(torch.ones(1, 2), context)["click"].observed_logit
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)
