"""Models trained on sampled negatives: an offset in the loss, real traffic at serving."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from isolayer import DualHead, calibrate
from isolayer.errors import InputError
from isolayer.nn.sampled import sampled_logit

RATE = 0.1


def log_of(n=40_000, seed=0):
    """Features, labels and which rows were kept; the logit is the one feature minus 2."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=random)
    label = torch.bernoulli(torch.sigmoid(x[:, 0] - 2), generator=random)
    kept = (label == 1) | (torch.rand(n, generator=random) < RATE)
    return x, label, kept


def head(tasks=("click",)):
    model = DualHead(nn.Identity(), width=1, tasks=tasks, contexts={"position": 2})
    with torch.no_grad():
        for parameter in model.relevance.parameters():
            parameter.fill_(1.0 if parameter.dim() == 2 else 0.0)
    return model


def test_the_loss_reads_the_labels_at_an_offset():
    model, (x, label, _) = head(), log_of(50)
    outputs = model(x, {"position": torch.zeros(50, dtype=torch.int64)})
    moved = [
        binary_cross_entropy_with_logits(logit - math.log(RATE), label)
        for logit in (outputs["click"].observed_logit, outputs["click"].served_logit)
    ]
    expected = 0.75 * moved[0] + 0.25 * moved[1]
    for rate in (RATE, torch.full((50,), RATE), {"click": RATE}):
        torch.testing.assert_close(model.loss(outputs, {"click": label}, negative_rate=rate), expected)
    plain = model.loss(outputs, {"click": label})
    torch.testing.assert_close(model.loss(outputs, {"click": label}, negative_rate=1.0), plain)
    assert abs(plain - expected) > 0.01


def test_only_the_tasks_that_are_named_are_moved():
    model, (x, label, _) = head(("click", "like")), log_of(50)
    outputs = model(x, {"position": torch.zeros(50, dtype=torch.int64)})
    labels = {"click": label, "like": label}
    one, both = (model.loss(outputs, labels, negative_rate=rate) for rate in ({"click": RATE}, RATE))
    plain = model.loss(outputs, labels)
    torch.testing.assert_close(both - plain, 2 * (one - plain))  # the tasks are alike
    with pytest.raises(InputError, match="negative_rate: expected tasks"):
        model.loss(outputs, labels, negative_rate={"skip": RATE})


def test_training_on_the_sample_learns_real_traffic():
    x, label, kept = log_of()
    weight, bias = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=50)

    def closure():
        optimiser.zero_grad()
        loss = binary_cross_entropy_with_logits(sampled_logit(weight * x[kept, 0] + bias, RATE), label[kept])
        loss.backward()
        return loss

    optimiser.step(closure)
    assert abs(float(bias.detach()) + 2) < 0.1
    assert abs(float(weight.detach()) - 1) < 0.1


@pytest.mark.parametrize("rate", [RATE, {"click": RATE}, torch.full((40_000,), RATE)], ids=["number", "task", "rows"])
def test_the_served_curve_of_sampled_rows_is_that_of_real_traffic(rate):
    x, label, kept = log_of()
    rate = rate[kept] if isinstance(rate, torch.Tensor) else rate
    model = head().refit_served(x[kept], {"click": label[kept]}, negative_rate=rate)
    served = model.serving()(x)["click_prob"]
    assert abs(float(served.mean() / label.mean()) - 1) < 0.1
    plain = head().refit_served(x[kept], {"click": label[kept]}).serving()(x)["click_prob"]
    assert float(plain.mean() / label.mean()) > 2


def test_a_calibrated_model_is_of_real_traffic():
    x, label, kept = log_of()
    calibrated = calibrate(nn.Identity(), [(x[kept], label[kept].unsqueeze(1))], negative_rate=RATE)
    with torch.no_grad():
        prob = torch.sigmoid(calibrated(x))
    assert abs(float(prob.mean() / label.mean()) - 1) < 0.1


@pytest.mark.parametrize("rate", [0.0, 1.5, torch.tensor([0.5, float("nan")])])
def test_a_rate_is_a_share(rate):
    with pytest.raises(InputError, match=r"negative_rate: expected (shares|a number) in \(0, 1\], got"):
        sampled_logit(torch.zeros(2), rate)


def test_there_is_one_rate_per_row():
    with pytest.raises(InputError, match=r"negative_rate: expected a number or shape \[2\], got \[3\]; give one"):
        sampled_logit(torch.zeros(2, 4), torch.ones(3))
    assert sampled_logit(torch.zeros(2, 4), torch.tensor([0.5, 1.0]))[:, 0].tolist() == pytest.approx([math.log(2), 0])
