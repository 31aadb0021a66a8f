"""Position Action Prediction: better calibrated than the inference head alone, and the ranking stays as it was."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from isolayer import InputError, metrics, parameter_groups, simulate
from isolayer.debias import DualHead
from isolayer.debias.pap import PositionPredictor

CONTEXTS = {"position": 10, "device": 3}


def tower(inputs=12):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU())


def dual_head(**options):
    torch.manual_seed(0)
    return DualHead(tower(), width=32, **({"tasks": ("click",), "contexts": CONTEXTS} | options))


def fit(model, log, epochs=6, batch=512):
    torch.manual_seed(1)
    features, click = torch.from_numpy(log["features"]), torch.from_numpy(log["click"]).float()
    context = {name: torch.from_numpy(log[name]).long() for name in CONTEXTS}
    optimiser = torch.optim.Adam(parameter_groups(model, 3e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * -(-len(click) // batch))
    for _ in range(epochs):
        for rows in torch.randperm(len(click)).split(batch):
            outputs = model(features[rows], {name: ids[rows] for name, ids in context.items()})
            loss = model.loss(outputs, {"click": click[rows]})
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model


@pytest.fixture(scope="module")
def feed():
    return simulate.debias_feed("position", "spurious")


@pytest.fixture(scope="module")
def trained(feed):
    log = feed.log(3_000, seed=1)
    free = {"alpha": 0, "beta": 1, "reference": {"position": 0}}  # relevance is what the first position would show
    return {
        "alone": fit(dual_head(**free), log),
        "joint": fit(dual_head(anchor="joint"), log),
        "pooled": fit(PositionPredictor(dual_head(**free), tower(), width=32), log),
        "by relevance": fit(PositionPredictor(dual_head(**free), tower(1), width=32, given="relevance"), log),
    }


def test_serves_probabilities_that_hold_without_a_position(feed, trained):
    test = feed.log(3_000, seed=2)
    features = torch.from_numpy(test["features"])
    error, loss, by_spurious = {}, {}, {}
    segment = np.digitize(feed.population.spurious(test["item"]), [-1, 0, 1])
    for name, model in trained.items():
        prob = model.serving()(features)["click_prob"].double().numpy()
        error[name] = metrics.ece(test["click"], prob)
        loss[name] = metrics.log_loss(test["click"], prob)
        by_spurious[name] = metrics.f_rce(test["click"], prob, segment)
    assert error["pooled"] < 0.7 * error["joint"] < 0.2 * error["alone"]
    assert loss["pooled"] < loss["joint"] < loss["alone"]
    # The features tell where the logger puts an item; relevance alone does not.
    assert by_spurious["pooled"] < 0.5 * by_spurious["by relevance"]
    assert loss["pooled"] < loss["by relevance"]


def test_the_ranking_is_that_of_the_model_alone_to_the_bit(feed, trained):
    features = torch.from_numpy(feed.log(200, seed=3)["features"])
    relevance = {name: model.serving()(features)["click"] for name, model in trained.items()}
    assert torch.equal(relevance["alone"], relevance["pooled"])
    assert torch.equal(relevance["alone"], relevance["by relevance"])


def test_pooling_is_the_obvious_sum():
    model = dual_head(tasks=("click", "skip"), decreasing=("skip",))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    pap = PositionPredictor(model, tower(), width=32)
    x = torch.randn(7, 12)
    served = pap.serving()(x)
    share = torch.softmax(pap.predict(pap.tower(x)), dim=1)
    for task in model.tasks:
        total = torch.zeros(7)
        for position in range(10):
            for device in range(3):
                context = {"position": torch.full((7,), position), "device": torch.full((7,), device)}
                observed = torch.sigmoid(model(x, context)[task].observed_logit)
                total = total + share[:, position * 3 + device] * observed
        torch.testing.assert_close(served[f"{task}_prob"], total.detach())
        torch.testing.assert_close(served[task], model(x, context)[task].relevance_logit.detach())


@pytest.mark.parametrize("pool", ["probabilities", "embeddings"])
def test_serving_takes_features_alone_and_is_a_copy(pool):
    pap = PositionPredictor(dual_head(), tower(), width=32, pool=pool)
    serving = pap.serving()
    x = torch.randn(3, 12)
    before = serving(x)
    assert not any(parameter.requires_grad for parameter in serving.parameters())
    with torch.no_grad():
        pap.predict.weight.add_(1)
        pap.model.relevance.weight.add_(1)
    assert torch.equal(serving(x)["click_prob"], before["click_prob"])
    program = torch.export.export(serving, (x,))
    assert program.graph_signature.user_inputs == ("features",)
    exported = program.module()(x)
    torch.testing.assert_close(exported["click_prob"], before["click_prob"])


def test_loss_adds_the_tower_s_and_unknown_contexts_do_not_count():
    torch.manual_seed(0)
    pap = PositionPredictor(dual_head(), tower(), width=32)
    heavier = PositionPredictor(pap.model, pap.tower, width=32, gamma=3.0)
    heavier.predict = pap.predict
    x, label = torch.randn(6, 12), {"click": torch.tensor([1.0, 0, 0, 1, 0, 1])}
    context = {"position": torch.tensor([0, 3, 9, 2, -1, 4]), "device": torch.tensor([0, 1, 2, 0, 1, -1])}
    one = pap.loss(pap(x, context), label)
    base = pap.model.loss(pap.model(x, context), label)
    torch.testing.assert_close(heavier.loss(heavier(x, context), label) - base, 3 * (one - base))
    classes = torch.tensor([0, 10, 29, 6])
    expected = nn.functional.cross_entropy(pap.predict(pap.tower(x[:4])), classes)
    torch.testing.assert_close(one - base, expected)
    weight = torch.tensor([2.0, 1, 1, 1, 1, 1])
    twice = {name: torch.cat([ids, ids[:1]]) for name, ids in context.items()}
    weighted = pap.loss(pap(x, context), label, weight=weight)
    rows = torch.cat([x, x[:1]])
    torch.testing.assert_close(
        weighted, pap.loss(pap(rows, twice), {"click": torch.cat([label["click"], torch.ones(1)])})
    )


def test_gradients_of_the_tower_s_loss_stay_in_the_tower():
    pap = PositionPredictor(dual_head(), tower(1), width=32, given="relevance")
    alone = copy.deepcopy(pap.model)
    x, label = torch.randn(6, 12), {"click": torch.ones(6)}
    context = {name: torch.zeros(6, dtype=torch.long) for name in CONTEXTS}
    pap.loss(pap(x, context), label).backward()
    alone.loss(alone(x, context), label).backward()
    assert pap.predict.weight.grad.abs().sum() > 0
    for one, two in zip(pap.model.parameters(), alone.parameters(), strict=True):
        assert (one.grad is None and two.grad is None) or torch.equal(one.grad, two.grad)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({}, {"given": "x"}, "given: expected 'features' or 'relevance', got 'x'; choose one"),
        ({}, {"gamma": 0}, "gamma: expected a positive number, got 0; at 0 the tower would not be trained"),
        (
            {"contexts": {"position": 5000}},
            {},
            "contexts: expected at most 4096 combinations to pool over, got 5000; use fewer context features",
        ),
        (
            {"wiring": "parallel", "anchor": "joint"},
            {},
            "wiring: expected 'curve', got 'parallel'; its curves do not read relevance",
        ),
    ],
)
def test_mistakes_are_named(model, options, message):
    with pytest.raises(InputError) as error:
        PositionPredictor(dual_head(**model), tower(), width=32, **options)
    assert str(error.value) == message


def test_pooled_embeddings_are_one_curve_of_the_mean_embedding(trained):
    source = copy.deepcopy(trained["pooled"])
    source.pool = "embeddings"
    features = torch.randn(50, 12)
    served = source.serving()(features)["click_prob"]
    model, layer = source.model, source.model.context_curves
    with torch.no_grad():
        share = torch.softmax(source.predict(source.tower(features)), dim=1)  # [rows, contexts]
        relevance = model.relevance(model.backbone(features))
        position, device = torch.arange(10).repeat_interleave(3), torch.arange(3).repeat(10)
        expected = torch.zeros(50)
        for row in range(50):
            bias, weight = torch.zeros(1), torch.zeros(layer.grid.buckets)
            for place, (k, d) in enumerate(zip(position, device, strict=True)):
                ids = zip(layer.tables, (k, d), layer.reference.values(), strict=True)
                for table, key, reference in ids:
                    if key != reference:  # the reference has no deviation
                        bias = bias + share[row, place] * table.bias.weight[key + 1]
                        weight = weight + share[row, place] * table.rows.weight[key + 1]
            slope = torch.relu(1 + weight)
            knots = torch.cat([bias + layer.grid.lower - layer.grid.step, slope * layer.grid.step]).cumsum(0)
            at = torch.from_numpy(layer.grid.knots).float()
            expected[row] = float(np.interp(float(relevance[row, 0]), at.numpy(), knots.numpy()))
    assert torch.allclose(served, torch.sigmoid(expected), atol=1e-5)


def test_both_kinds_of_pooling_agree_where_the_position_is_certain_and_differ_elsewhere(trained):
    features = torch.randn(40, 12)
    found = {}
    for certain in (True, False):
        for pool in ("probabilities", "embeddings"):
            source = copy.deepcopy(trained["pooled"])
            source.pool = pool
            if certain:
                with torch.no_grad():
                    source.predict.weight.zero_()
                    source.predict.bias.zero_()[7] = 100.0
            found[certain, pool] = source.serving()(features)["click_prob"]
    assert torch.allclose(found[True, "probabilities"], found[True, "embeddings"], atol=1e-6)
    assert not torch.allclose(found[False, "probabilities"], found[False, "embeddings"], atol=1e-3)
