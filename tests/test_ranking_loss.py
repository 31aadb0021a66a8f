"""Losses over lists: against loops, finite differences, and the exact expectation over all clicks of a tiny world."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from list_training import tensors, trained
from torch import nn

from isolayer import InputError, metrics, simulate
from isolayer.debias import DualHead, PositionPredictor
from isolayer.debias.lists import Lists
from isolayer.debias.ranking_loss import LOSSES, level_loss, list_loss

KINDS = [kind for kind in LOSSES if kind != "pointwise"]


def batch(seed=0, lengths=(4, 1, 3), tasks=2):
    generator = torch.Generator().manual_seed(seed)
    group = torch.repeat_interleave(torch.tensor([9, 2, 5])[: len(lengths)], torch.tensor(lengths))
    rows = len(group)
    logit, score, negative = torch.randn(3, rows, tasks, generator=generator, dtype=torch.float64)
    label = (torch.rand(rows, tasks, generator=generator) < 0.5).double()
    weight = torch.randint(0, 3, (rows, tasks), generator=generator).double()
    return group, logit, score, negative, label, weight


def reference(kind, group, logit, score, negative, label, weight):
    """The same in plain loops over lists, rows and pairs."""
    s, f0, y, w = (part.numpy() for part in (logit, negative, label, weight))
    total = np.zeros(s.shape[1])
    for task in range(s.shape[1]):
        for one in np.unique(group):
            rows = [i for i in np.flatnonzero(group.numpy() == one) if w[i, task] > 0]
            if not rows:
                continue
            ranked = sorted(rows, key=lambda i: -float(score[i, task]))
            discount = {row: 1 / np.log2(place + 2) for place, row in enumerate(ranked)}
            gains = sorted((2 ** y[i, task] - 1 for i in rows), reverse=True)
            best = sum(gain / np.log2(place + 2) for place, gain in enumerate(gains))

            def share(values, i, rows=rows):
                return values[i] - np.log(sum(np.exp(values[j]) for j in rows))

            for i in rows:
                if kind == "listwise":
                    total[task] -= w[i, task] * y[i, task] * share(s[:, task], i)
                elif kind == "jrc":
                    p = 1 / (1 + np.exp(-s[i, task]))
                    log_loss = -np.log(p if y[i, task] else 1 - p)
                    f = (s + f0)[:, task] if y[i, task] else f0[:, task]
                    total[task] += w[i, task] * (0.5 * log_loss - 0.5 * share(f, i))
                else:
                    for j in rows:
                        if y[i, task] > y[j, task]:
                            swap = (2 ** y[i, task] - 2 ** y[j, task]) * abs(discount[i] - discount[j]) / best
                            factor = swap if kind == "lambdarank" else 1.0
                            total[task] += w[i, task] * factor * np.log1p(np.exp(s[j, task] - s[i, task]))
    return total / w.sum(0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_loops(kind):
    for seed in range(5):
        group, logit, score, negative, label, weight = batch(seed)
        found = list_loss(kind, logit, label, weight, Lists.of(group), score=score, negative=negative)
        assert found.numpy() == pytest.approx(reference(kind, group, logit, score, negative, label, weight), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences(kind):
    group, logit, score, negative, label, weight = batch(3)
    lists = Lists.of(group)

    def loss(logit, negative):
        return list_loss(kind, logit, label, weight, lists, score=score, negative=negative).sum()

    assert torch.autograd.gradcheck(loss, (logit.requires_grad_(), negative.requires_grad_()), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_without_rows_that_count_has_no_part_and_a_finite_gradient(kind):
    group, logit, score, negative, label, weight = batch(1)
    weight[group == 2] = 0.0
    logit.requires_grad_()
    found = list_loss(kind, logit, label, weight, Lists.of(group), score=score, negative=negative)
    found.sum().backward()
    assert torch.isfinite(logit.grad).all()
    assert (logit.grad[group == 2] == 0).all()
    kept = group != 2
    parts = (part[kept].detach() for part in (logit, label, weight))
    again = list_loss(kind, *parts, Lists.of(group[kept]), score=score[kept], negative=negative[kept])
    assert torch.allclose(found, again)


# The expectation over all clicks of a list, computed exactly, is least where the model is right.

PROB = torch.tensor([0.7, 0.4, 0.2], dtype=torch.float64)


def expected_gradient(kind, logit, negative):
    """Gradient of the expected loss where three items are clicked independently with ``PROB``."""
    logit, negative = (part.clone().unsqueeze(1).requires_grad_() for part in (logit, negative))
    lists, total = Lists.of(torch.zeros(3, dtype=torch.long)), torch.zeros(1, dtype=torch.float64)
    score = torch.tensor([[0.3], [0.9], [0.1]], dtype=torch.float64)  # any ranking
    for clicks in itertools.product((0.0, 1.0), repeat=3):
        label = torch.tensor(clicks, dtype=torch.float64)
        chance = (label * PROB + (1 - label) * (1 - PROB)).prod()
        weight = torch.ones(3, 1, dtype=torch.float64)
        total = total + chance * list_loss(
            kind, logit, label.unsqueeze(1), weight, lists, score=score, negative=negative
        )
    total.sum().backward()
    parts = [logit.grad, negative.grad if negative.grad is not None else torch.zeros_like(logit)]
    return torch.stack(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_logits_are_where_the_expected_loss_is_least(kind):
    truth = {"listwise": PROB.log() + 0.8}.get(kind, torch.logit(PROB) + (0.0 if kind == "jrc" else 0.8))
    negative = torch.log1p(-PROB) - 0.4  # of JRC: both logits are log probabilities up to one constant
    assert expected_gradient(kind, truth, negative).abs().max() < 1e-12
    other = truth + torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64)
    assert expected_gradient(kind, other, negative).abs().max() > 1e-3


def test_the_level_is_right_where_the_mean_probability_is_the_rate_and_moves_all_rows_alike():
    generator = torch.Generator().manual_seed(0)
    logit = torch.randn(50, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(50, 1, generator=generator, dtype=torch.float64)
    rate = (weight * torch.sigmoid(logit)).sum(0) / weight.sum(0)
    label = rate.detach().expand(50, 2)
    level_loss(logit, label, weight).sum().backward()
    assert logit.grad.abs().max() < 1e-12
    logit.grad = None
    level_loss(logit, 0.5 * label, weight).sum().backward()
    assert (logit.grad > 0).all()  # too high, and each row by its weight
    assert torch.allclose(logit.grad / weight, (logit.grad / weight)[:1].expand(50, 2))


# In the model.


def tower():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU())


def fitted(log, loss):
    torch.manual_seed(0)
    model = DualHead(tower(), width=32, tasks=("click",), contexts={"position": 10}, loss=loss)
    features, _, click = tensors(log)
    return trained(model, log).refit_served(features, {"click": click}).eval()


@pytest.fixture(scope="module")
def world():
    feed = simulate.debias_feed("trust", seed=3)
    shuffled = feed.log(1500, seed=2, policy=lambda x: np.random.default_rng(0).random(len(x)))
    return feed.log(3000, seed=1), feed.log(3000, seed=4), shuffled


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_debiases_through_the_curves_and_serves_calibrated_probabilities(world, loss):
    log, traffic, shuffled = world
    serving = fitted(log, loss).serving()
    ranked = serving(torch.from_numpy(shuffled["features"]))["click"].numpy()
    assert metrics.ndcg(shuffled["grade"], ranked, shuffled["session"], k=10) > 0.88  # naive: .72
    prob = serving(torch.from_numpy(traffic["features"]))["click_prob"].double().numpy()
    assert prob.mean() == pytest.approx(traffic["click"].mean(), rel=0.03)
    assert metrics.ece(traffic["click"], prob) < 0.03


def test_the_loss_changes_the_result_and_needs_lists():
    torch.manual_seed(0)
    context = {"position": torch.arange(4), "session": torch.zeros(4, dtype=torch.long)}
    labels, found = {"click": torch.tensor([0.0, 1.0, 0.0, 1.0])}, {}
    features = torch.randn(4, 3)
    for loss in LOSSES:
        torch.manual_seed(0)
        model = DualHead(nn.Linear(3, 4), width=4, tasks=("click",), contexts={"position": 4}, loss=loss)
        assert model.needs_lists == (loss != "pointwise")
        found[loss] = float(model.loss(model(features, context), labels).detach())
        if model.needs_lists:
            outputs = model(features, {"position": torch.arange(4)})
            with pytest.raises(InputError, match=f"expected lists for the loss '{loss}', got none; give 'session'"):
                model.loss(outputs, labels)
    assert len({round(value, 6) for value in found.values()}) == len(LOSSES)


def test_position_prediction_takes_a_model_with_any_loss():
    dual = DualHead(nn.Linear(3, 4), width=4, tasks=("click",), contexts={"position": 4}, loss="jrc")
    model = PositionPredictor(dual, nn.Linear(3, 4), width=4)
    context = {"position": torch.arange(4), "session": torch.zeros(4, dtype=torch.long)}
    loss = model.loss(model(torch.ones(4, 3), context), {"click": torch.tensor([0.0, 1.0, 0.0, 1.0])})
    assert model.needs_lists
    assert model.group == "session"
    assert torch.isfinite(loss)


def test_jrc_has_no_towers():
    with pytest.raises(InputError, match="loss: expected no towers with 'jrc', got some"):
        DualHead(
            nn.Identity(), width=2, tasks=("a",), contexts={"position": 3}, loss="jrc", towers={"a": nn.Linear(2, 2)}
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_a_layout_is_that_of_the_rows_one_by_one(lengths, equal, in_order, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = [lengths[0]] * len(lengths) if equal else lengths
    group = torch.repeat_interleave(torch.randperm(len(lengths), generator=generator), torch.tensor(lengths))
    order = torch.cat([torch.arange(length) for length in lengths])
    if not in_order:
        group, order = group[(mixed := torch.randperm(len(group), generator=generator))], order[mixed]
    for given_order in (order, order.to(torch.uint8), None):
        lists = Lists.of(group, given_order)
        sort = torch.arange(len(group)) if given_order is None else given_order
        value = torch.arange(1.0, len(group) + 1)
        table = {tuple(row[row > 0].tolist()) for row in lists.pad(value)}
        assert table == {
            tuple(value[group == one][torch.argsort(sort[group == one], stable=True)].tolist())
            for one in group.unique()
        }
        assert torch.equal(lists.flat(lists.pad(value)), value)
