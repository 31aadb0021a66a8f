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


def test_a_feature_that_was_constant_is_measured_by_the_first_log_in_which_it_varies(tmp_path):
    rng = np.random.default_rng(0)
    for day in ("one", "two", "three"):
        x, late = rng.normal(0, 1, 2000), rng.normal(5000, 1000, 2000) if day != "one" else np.zeros(2000)
        click = rng.random(2000) < 1 / (1 + np.exp(-2 * x))
        columns = {"x": x, "late": late, "click": click.astype(np.float32), "position": rng.integers(0, 3, 2000)}
        pq.write_table(pa.table(columns), tmp_path / f"{day}.parquet")
    torch.manual_seed(0)
    columns = {"features": ["x", "late"], "tasks": ["click"], "contexts": ["position"]}
    fit = Fit(epochs=2, batch_size=64, lr=1e-2, progress=False)
    model = Naive(TableBackbone(2, [8]), width=8, tasks=("click",))
    found = [train(model, tmp_path / "one.parquet", **columns, folder=tmp_path / "one", fit=fit)]
    first = model.backbone.mean[0].item()
    for day in ("two", "three"):
        start = found[-1].checkpoint
        found.append(train(model, tmp_path / f"{day}.parquet", **columns, folder=tmp_path / day, fit=fit, start=start))
        if day == "two":
            measured = (model.backbone.mean[1].item(), model.backbone.deviation[1].item())
    assert measured == (pytest.approx(5000, rel=0.05), pytest.approx(1000, rel=0.05))
    assert (model.backbone.mean[1].item(), model.backbone.deviation[1].item()) == measured
    assert model.backbone.mean[0].item() == first
    assert found[1].held_out_loss < found[0].held_out_loss + 0.05


def _trained_with(tmp_path, column):
    rng = np.random.default_rng(0)
    rows = len(column)
    columns = {"x": column, "z": rng.normal(0, 1, rows), "click": (rng.random(rows) < 0.3).astype(np.float32)}
    columns |= {"trend": np.arange(rows) * 1e3, "position": rng.integers(0, 3, rows)}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=5_000)
    model = Naive(TableBackbone(3, [4]), width=4, tasks=("click",))
    columns = {"features": ["x", "z", "trend"], "tasks": ["click"], "contexts": ["position"]}
    return train(
        model, tmp_path / "log.parquet", **columns, folder=tmp_path / "model", fit=Fit(epochs=1, progress=False)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: np.where(np.arange(len(x)) == 24_000, 1e6, x), "feature 'x': expected values without extremes"),
        (lambda x: np.where(np.arange(len(x)) % 100 == 0, -999_999.0, x), "replace codes such as -999999"),
        (lambda x: 1.7e9 + 30 * x, "feature 'x': expected numbers that single precision distinguishes"),
    ],
)
def test_features_of_which_the_network_sees_little_are_named(tmp_path, change, said):
    x = np.random.default_rng(1).normal(0, 1, 25_000)
    with pytest.warns(UserWarning, match=said):
        _trained_with(tmp_path, change(x))


@pytest.mark.parametrize("change", [lambda x: x, np.exp, np.abs, lambda x: x > 2, lambda x: 1.7e9 + 3000 * x])
def test_ordinary_features_are_not_doubted(tmp_path, change):
    _trained_with(tmp_path, change(np.random.default_rng(1).normal(0, 1, 25_000)))  # warnings are errors here
