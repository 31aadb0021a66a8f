"""The held-out loss is the weighted mean over the labels of all held-out rows, however they are cut into batches."""

import pytest
import torch
from torch import nn

from isolayer.debias import DualHead
from isolayer.debias.pap import PositionPredictor
from isolayer.training.columns import Batch
from isolayer.training.lightning_module import LogModule

ROWS = 40
CUTS = (slice(0, 12), slice(12, 30), slice(30, ROWS))


def whole():
    """Rows of two tasks, one of which has no labels in the last batch, with weights that differ between batches."""
    torch.manual_seed(0)
    place = torch.arange(ROWS)
    labels = {task: torch.rand(ROWS).round() for task in ("click", "like")}
    weight = torch.rand(ROWS).double() + (place < 12) * 5
    return Batch(torch.randn(ROWS, 3), {"position": place % 2}, labels, {"like": place < 15}, weight, place // 2)


def part(batch, rows):
    def of(columns):
        return {name: column[rows] for name, column in columns.items()}

    mask = {} if rows == CUTS[0] else of(batch.mask)  # a batch without nulls has no mask
    return Batch(batch.features[rows], of(batch.context), of(batch.labels), mask, batch.weight[rows], batch.lists[rows])


def held_out(model, batches, monkeypatch):
    module, logged = LogModule(model.double().eval()), {}
    monkeypatch.setattr(module, "log", lambda name, value, **options: logged.update({name: float(value)}))
    with torch.no_grad():
        for index, batch in enumerate(batches):
            module.validation_step(batch._replace(features=batch.features.double()), index)
        module.on_validation_epoch_end()
    return logged["held_out_loss"]


def dual_head(loss="pointwise", tasks=("click", "like")):
    return DualHead(nn.Linear(3, 4), width=4, tasks=tasks, contexts={"position": 2}, loss=loss)


@pytest.mark.parametrize("loss", ["pointwise", "pairwise", "jrc", "predictor"])
def test_the_held_out_loss_does_not_depend_on_the_batches(monkeypatch, loss):
    batch, model = whole(), dual_head("jrc" if loss == "predictor" else loss)
    if loss == "pairwise":  # without the loss of the level, which is a loss of the mean over a batch
        monkeypatch.setattr("isolayer.debias.heads.level_loss", lambda logit, label, weight: 0.0)
    if loss == "predictor":
        model = PositionPredictor(model, nn.Linear(3, 2), width=2)
    found = held_out(model, [part(batch, rows) for rows in CUTS], monkeypatch)
    assert found == pytest.approx(held_out(model, [batch], monkeypatch), rel=1e-9)
    if loss != "pointwise":
        outputs = model(batch.features.double(), batch.context | {"session": batch.lists})
        own = model.loss(outputs, batch.labels, batch.mask, batch.weight)
        assert found == pytest.approx(float(own.detach()), rel=1e-9)


def test_it_is_the_mean_over_labels_and_then_over_tasks(monkeypatch):
    batch, model = whole(), dual_head()
    found = held_out(model, [part(batch, rows) for rows in CUTS], monkeypatch)
    outputs, means = model(batch.features.double(), batch.context), []
    for task, known in (("click", slice(None)), ("like", batch.mask["like"])):
        chance = torch.sigmoid(outputs[task].observed_logit.detach())[known]
        label, weight = batch.labels[task][known], batch.weight[known]
        loss = -torch.where(label > 0, chance, 1 - chance).log()
        means.append(float((weight * loss).sum() / weight.sum()))
    assert found == pytest.approx(sum(means) / 2, rel=1e-9)
