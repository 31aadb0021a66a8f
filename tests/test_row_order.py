"""The order of the rows in a batch means nothing: where an item was shown is in its context, and its list in its id."""

import pytest
import torch
from torch import nn

from isolayer import debias
from isolayer.debias.ranking_loss import LOSSES
from isolayer.errors import InputError

LISTS, LENGTH, WIDTH = 6, 5, 3
POSITIONS = {"position": LENGTH}


def models():
    by_contexts = ("AdditiveTower", "PAL", "TrustAffine", "GradientReversal", "DualLearning")
    by_positions = ("Cascade", "DCM", "DBN", "UBM", "RegressionEM", "PairwiseDebiasing")
    known = {"width": WIDTH, "tasks": ("click", "skip"), "decreasing": ("skip",)}
    made = {name: lambda n=name: getattr(debias, n)(nn.Identity(), contexts=POSITIONS, **known) for name in by_contexts}
    made |= {name: lambda n=name: getattr(debias, n)(nn.Identity(), positions=LENGTH, **known) for name in by_positions}
    made |= {
        f"DualHead {loss}": lambda one=loss: debias.DualHead(nn.Identity(), contexts=POSITIONS, loss=one, **known)
        for loss in LOSSES
    }
    made["Naive"] = lambda: debias.Naive(nn.Identity(), **known)
    made["InversePropensity"] = lambda: debias.InversePropensity(
        nn.Identity(), propensity=[1 / (k + 1) for k in range(LENGTH)], **known
    )
    made["PositionAsFeature"] = lambda: debias.PositionAsFeature(
        nn.Linear(WIDTH + 4, WIDTH), contexts=POSITIONS, **known
    )
    made["PositionPredictor"] = lambda: debias.PositionPredictor(
        debias.DualHead(nn.Identity(), contexts=POSITIONS, loss="listwise", **known), nn.Identity(), width=WIDTH
    )
    return made


MODELS = models()


def moved(model):
    """The model with other parameters and running estimates, since some of them start equal for all positions."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter).abs())
        for name in ("examination", "of_clicked", "of_other"):
            running = dict(model.named_buffers()).get(name)
            if running is not None:
                running.uniform_(0.2, 0.9)
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("known", [True, False])
def test_the_loss_does_not_depend_on_the_order_of_rows(name, known):
    torch.manual_seed(5)
    model = moved(MODELS[name]()).double().eval()
    rows = LISTS * LENGTH
    features, weight = torch.randn(rows, WIDTH).double(), torch.rand(rows).double() + 0.5
    context = {"position": torch.arange(LENGTH).repeat(LISTS), "session": torch.arange(LISTS).repeat_interleave(LENGTH)}
    if not known:  # one row of each list has no position
        context["position"] = torch.where(context["position"] == 2, -1, context["position"])
    labels = {task: (torch.rand(rows) < 0.4).double() for task in ("click", "skip")}

    def loss(order):
        outputs = model(features[order], {key: ids[order] for key, ids in context.items()})
        return model.loss(outputs, {task: label[order] for task, label in labels.items()}, None, weight[order])

    first = loss(torch.arange(rows))
    for _ in range(3):
        torch.testing.assert_close(loss(torch.randperm(rows)), first)


def test_several_rows_at_the_first_position_count_equally():
    torch.manual_seed(0)
    model = moved(MODELS["DualLearning"]()).double().eval()
    features, labels = torch.randn(4, WIDTH).double(), {task: torch.ones(4).double() for task in ("click", "skip")}
    context = {"position": torch.tensor([0, 0, 1, 2]), "session": torch.zeros(4).long()}
    order = torch.tensor([1, 3, 0, 2])
    one = model.loss(model(features, context), labels)
    other = model.loss(model(features[order], {name: ids[order] for name, ids in context.items()}), labels)
    torch.testing.assert_close(one, other)


def test_the_position_of_dual_learning_may_have_another_name():
    make = lambda **more: debias.DualLearning(nn.Identity(), width=2, contexts={"device": 3, "rank": 5}, **more)  # noqa: E731
    assert make(feature="rank").feature == "rank"
    assert make().feature == "device"
    with pytest.raises(InputError, match="feature: expected 'device' or 'rank', got 'place'"):
        make(feature="place")
