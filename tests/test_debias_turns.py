"""Bias and ranker in turns, and informed loggers: formulas by loops, parameters found again, laws of weights."""

import numpy as np
import pytest
import torch
from torch import nn

from isolayer import InputError, parameter_groups
from isolayer.debias import (
    AdditiveTower,
    GradientReversal,
    Naive,
    PairwiseDebiasing,
    RegressionEM,
    em_propensity,
    placement_weights,
)
from isolayer.debias.ranking_loss import level_loss

SEEN = np.array([0.9, 0.5, 0.3, 0.15])


def log(lists=5000, seed=0):
    """Lists of four under position bias; the logger ranks by the second feature, which has no part in relevance."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((lists, 4, 2))
    order = np.argsort(-(features[:, :, 1] + 0.7 * rng.standard_normal((lists, 4))), axis=1)
    features = np.take_along_axis(features, order[:, :, None], axis=1)
    click = rng.random((lists, 4)) < SEEN / (1 + np.exp(1 - 1.5 * features[:, :, 0]))
    context = {
        "position": torch.arange(4).repeat(lists),
        "session": torch.repeat_interleave(torch.arange(lists), 4),
    }
    return torch.from_numpy(features.reshape(-1, 2)).float(), context, torch.from_numpy(click.ravel()).float()


def fitted(model, *, steps=400, lists=250):
    features, context, click = log()
    optimiser = torch.optim.Adam(parameter_groups(model, 0.02))
    torch.manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(0, len(click) // 4, (lists,))
        rows = (chosen.unsqueeze(1) * 4 + torch.arange(4)).view(-1)
        some = {"position": context["position"][rows], "session": torch.repeat_interleave(torch.arange(lists), 4)}
        optimiser.zero_grad()
        model.loss(model(features[rows], some), {"click": click[rows]}).backward()
        optimiser.step()
    return model.eval()


def spurious(model):
    quality, other = model.relevance.weight[0].detach().tolist()
    return abs(other) / (abs(quality) + abs(other))


def test_regression_em_finds_examination_and_forgets_what_the_logger_ranked_by():
    torch.manual_seed(0)
    model = fitted(RegressionEM(nn.Identity(), width=2, positions=4))
    features, context, click = log()
    exact = em_propensity(features, context["position"], click, positions=4)
    found = (model.examination[1:, 0] / model.examination[1, 0]).numpy()
    assert found == pytest.approx(SEEN / SEEN[0], abs=0.06)
    assert found == pytest.approx(exact, abs=0.06)
    naive = spurious(fitted(Naive(nn.Identity(), width=2)))
    assert spurious(model) < naive / 3


def test_regression_em_expects_in_evaluation_and_draws_in_training():
    torch.manual_seed(0)
    model = RegressionEM(nn.Identity(), width=2, positions=4).eval()
    features, context, click = log(lists=5)
    before = model.examination.clone()
    outputs = model(features, context)
    loss = float(model.loss(outputs, {"click": click}).detach())
    r = torch.sigmoid(outputs["click"].relevance_logit).detach().double().numpy()
    e, y = np.full(20, 0.5), click.numpy()
    target = np.where(y > 0, 1.0, r * (1 - e) / (1 - e * r))
    assert loss == pytest.approx(-np.mean(target * np.log(r) + (1 - target) * np.log(1 - r)), rel=1e-4)
    assert torch.equal(before, model.examination)
    model.train()
    assert float(model.loss(model(features, context), {"click": click}).detach()) != loss
    looked = np.where(y > 0, 1.0, e * (1 - r) / (1 - e * r)).reshape(5, 4).mean(0)
    assert model.examination[1:, 0].numpy() == pytest.approx(0.5 + 0.05 * (looked - 0.5), abs=1e-5)


def test_pairwise_debiasing_weights_pairs_by_both_positions():
    torch.manual_seed(0)
    model = PairwiseDebiasing(nn.Identity(), width=2, positions=4).eval()
    plus, minus = np.array([1.0, 0.7, 0.5, 0.2]), np.array([1.0, 1.2, 1.3, 1.5])
    model.of_clicked[1:, 0], model.of_other[1:, 0] = torch.from_numpy(plus).float(), torch.from_numpy(minus).float()
    features, context, click = log(lists=6, seed=2)
    outputs = model(features, context)
    r, y = outputs["click"].relevance_logit.detach().double().numpy().reshape(6, 4), click.numpy().reshape(6, 4)
    total, by_clicked, by_other = 0.0, np.zeros(4), np.zeros(4)
    for one in range(6):
        for i in range(4):
            for j in range(4):
                if y[one, i] > y[one, j]:
                    each = np.log1p(np.exp(r[one, j] - r[one, i]))
                    total += each / (plus[i] * minus[j])
                    by_clicked[i] += each / minus[j]
                    by_other[j] += each / plus[i]
    logit, ones = outputs["click"].relevance_logit.unsqueeze(1), torch.ones(24, 1)
    level = float(level_loss(logit, click.unsqueeze(1), ones).sum().detach())
    assert float(model.loss(outputs, {"click": click}).detach()) == pytest.approx(total / 24 + level, rel=1e-4)
    model.train().loss(outputs, {"click": click})
    for ratio, sums in ((model.of_clicked, by_clicked), (model.of_other, by_other)):
        expected = np.where(sums > 0, np.clip((sums / sums[0]) ** 0.5, 1e-3, 1e3), 1.0)
        assert ratio[1:, 0].numpy() == pytest.approx(expected, rel=1e-3)


def test_pairwise_debiasing_learns_less_of_the_loggers_feature():
    torch.manual_seed(0)
    naive = spurious(fitted(Naive(nn.Identity(), width=2)))
    model = fitted(PairwiseDebiasing(nn.Identity(), width=2, positions=4, norm=0.0))
    assert spurious(model) < 0.75 * naive
    assert (model.of_clicked[1:, 0].diff() < 0).all()  # further down, clicked items count more


def test_the_norm_pulls_ratios_towards_one():
    found = {}
    for norm in (0.0, 3.0):
        torch.manual_seed(0)
        found[norm] = fitted(PairwiseDebiasing(nn.Identity(), width=2, positions=4, norm=norm), steps=60).of_clicked
    assert (found[3.0][2:] > found[0.0][2:]).all()


def test_the_reversal_trains_the_embedding_against_the_adversary_and_nothing_else():
    features, context, click = log(lists=8)
    found = {}
    for eta in (0.0, 0.7):
        torch.manual_seed(0)
        model = GradientReversal(nn.Identity(), width=2, contexts={"position": 4}, eta=eta)
        model.loss(model(features, context), {"click": click}).backward()
        found[eta] = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        outputs, table = model(features, context), model.embedding.tables[0]
        hidden = model.embedding(context)
        missed = ((model.adversary(hidden)[:, 0] - outputs["click"].relevance_logit.detach()) ** 2).mean()
        against = torch.autograd.grad(missed, table)[0]
    for name, gradient in found[0.7].items():
        expected = found[0.0][name] - (0.7 * against if name == "embedding.tables.0" else 0)
        assert torch.allclose(gradient, expected, atol=1e-6), name


def test_without_reversal_it_is_a_two_tower_model():
    naive = spurious(fitted(Naive(nn.Identity(), width=2)))
    torch.manual_seed(0)
    two = spurious(fitted(GradientReversal(nn.Identity(), width=2, contexts={"position": 4}, eta=0.0)))
    additive = spurious(fitted(AdditiveTower(nn.Identity(), width=2, contexts={"position": 4})))
    assert abs(two - additive) < 0.05
    assert two < naive / 2


def test_placement_weights_are_the_inverse_of_how_items_were_placed():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30_000, 2))
    logit = x @ np.array([[1.0, 0.0, -1.0], [0.0, 0.5, 0.2]])
    prob = np.exp(logit) / np.exp(logit).sum(1, keepdims=True)
    position = (rng.random((len(x), 1)) > prob.cumsum(1)).sum(1)
    weight = placement_weights(x, position, positions=3, clip=1000)
    truth = np.bincount(position)[position] / len(x) / prob[np.arange(len(x)), position]
    assert np.median(np.abs(weight / truth - 1)) < 0.05
    for k in range(3):  # under the weights, positions do not depend on the features
        rows = position == k
        assert np.average(x[rows], axis=0, weights=weight[rows]) == pytest.approx([0, 0], abs=0.08)
        assert abs(x[rows].mean(0)).max() > 0.2
    assert placement_weights(x, position, positions=3, clip=2.0).max() == 2.0
    assert (placement_weights(x[:5], np.zeros(5, int), positions=3) == 1).all()
    with pytest.raises(InputError, match="features: expected 4 rows, as position has, got 5"):
        placement_weights(x[:5], np.zeros(4, int), positions=3)
