"""Tasks that were declared in the wrong direction are named after training, however short; others are not."""

import pytest
import torch
from torch import nn

from isolayer import debias, parameter_groups, simulate
from isolayer.training.columns import Batch
from isolayer.training.outcome import wrong_directions

TASKS = ("click", "skip", "long_dwell")


def rows(seed, behaviour):
    log = simulate.Feed(behaviour=behaviour()).log(2_000, seed=seed)
    context = {name: torch.from_numpy(log[name]).long() for name in ("position", "device")}
    labels = {task: torch.from_numpy(log[task]).float() for task in TASKS}
    return Batch(torch.from_numpy(log["features"]).float(), context, labels, {}, None)


def trained(batch, *, epochs, decreasing, tasks=TASKS):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(batch.features.shape[1], 16), nn.ReLU())
    model = debias.DualHead(
        backbone, width=16, tasks=tasks, decreasing=decreasing, contexts={"position": 10, "device": 3}
    )
    optimiser = torch.optim.Adam(parameter_groups(model, 1e-3))
    for _ in range(epochs):
        for some in torch.randperm(len(batch.features)).split(1024):
            optimiser.zero_grad()
            outputs = model(batch.features[some], {name: ids[some] for name, ids in batch.context.items()})
            model.loss(outputs, {task: batch.labels[task][some] for task in tasks}).backward()
            optimiser.step()
    return model


@pytest.mark.parametrize("behaviour", [simulate.PositionBased, simulate.Trust])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("epochs", [1, 3])
def test_right_declarations_are_not_doubted(seed, epochs, behaviour):
    batch = rows(seed, behaviour)
    assert wrong_directions(trained(batch, epochs=epochs, decreasing=("skip",)), batch) == []


@pytest.mark.parametrize(
    ("epochs", "decreasing", "tasks", "message"),
    [
        (3, (), ("click", "skip"), "task 'skip' falls where 'click' rises (correlation -"),
        (
            6,
            ("click", "skip"),
            ("click", "skip"),
            "tasks 'click' and 'skip' were both declared decreasing, but one falls",
        ),
        (
            3,
            ("long_dwell",),
            ("click", "long_dwell"),
            "task 'long_dwell' was declared decreasing, but rises where 'click'",
        ),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_wrong_declarations_are_named(seed, epochs, decreasing, tasks, message):
    batch = rows(seed, simulate.PositionBased)
    (found,) = wrong_directions(trained(batch, epochs=epochs, decreasing=decreasing, tasks=tasks), batch)
    assert found.startswith(message)


def test_labels_speak_where_the_relevance_of_a_task_was_not_learned():
    batch = rows(0, simulate.PositionBased)
    model = trained(batch, epochs=6, decreasing=(), tasks=("click", "skip"))
    with torch.no_grad():
        model.relevance.weight[1] = torch.randn(16)  # relevance of skip, as before training
        model.relevance.weight[1] -= model.relevance.weight[0] * (
            model.relevance.weight[1] @ model.relevance.weight[0] / model.relevance.weight[0].square().sum()
        )
    assert "of the labels of 'skip' with the relevance of 'click'" in wrong_directions(model, batch)[0]
    unlabelled = batch._replace(mask={"skip": torch.zeros(len(batch.features), dtype=torch.bool)})
    assert wrong_directions(model, unlabelled) == []
