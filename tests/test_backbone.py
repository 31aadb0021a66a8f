"""The network that the command line trains: features are measured by their mean and deviation in the log."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from isolayer.debias.baselines import Naive
from isolayer.training.backbone import TableBackbone
from isolayer.training.train import Fit, train


def test_numbers_are_standardised_and_ids_are_not():
    backbone = TableBackbone(4, [3], {1: 10})
    backbone.standardise([5.0, 100.0, -2.0, 7.0], [2.0, 50.0, 0.5, 0.0])
    with torch.no_grad():
        weight = backbone.layers[0].weight
        weight.zero_()
        weight[:, :3] = torch.eye(3)
        backbone.layers[0].bias.fill_(10.0)  # so that nothing is cut off
    found = backbone(torch.tensor([[9.0, 4.0, -3.0, 7.5]])) - 10
    assert found.tolist() == [pytest.approx([2.0, -2.0, 0.5])]  # a constant is only centred
    assert {"mean", "deviation"} <= backbone.state_dict().keys()


def test_only_ids_need_no_statistics():
    backbone = TableBackbone(1, [3], {0: 10})
    backbone.standardise([4.0], [1.0])
    assert backbone(torch.tensor([[4.0]])).shape == (1, 3)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_training_measures_features_by_the_log_and_the_next_day_keeps_its_measure(tmp_path, scale):
    rng = np.random.default_rng(0)

    def log(name, shift):
        x = rng.normal(shift, 2.0, 2000)
        click = rng.random(2000) < 1 / (1 + np.exp(-x + shift))
        columns = {"x": scale * x, "click": click.astype(np.float32), "position": rng.integers(0, 3, 2000)}
        pq.write_table(pa.table(columns), tmp_path / name)
        return x

    x, _ = log("one.parquet", 3.0), log("two.parquet", 30.0)
    torch.manual_seed(0)
    columns = {"features": ["x"], "tasks": ["click"], "contexts": ["position"]}
    fit = Fit(epochs=3, batch_size=64, lr=1e-2, progress=False)
    model = Naive(TableBackbone(1, [8]), width=8, tasks=("click",))
    first = train(model, tmp_path / "one.parquet", **columns, folder=tmp_path / "one", fit=fit)
    assert model.backbone.mean.item() == pytest.approx(scale * x.mean(), rel=1e-5)
    assert model.backbone.deviation.item() == pytest.approx(scale * x.std(), rel=1e-5)
    assert first.held_out_loss < 0.6
    kept = model.backbone.mean.clone()
    train(model, tmp_path / "two.parquet", **columns, folder=tmp_path / "two", fit=fit, start=first.checkpoint)
    assert torch.equal(model.backbone.mean, kept)
