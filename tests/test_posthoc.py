import numpy as np
import pytest
import torch
from torch import nn

from isolayer import Grid, InputError, IsotonicLayer, calibrate, parameter_groups
from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.posthoc import CalibratedModel

GRID = Grid(-6, 6, 0.5)


class Towers(nn.Module):
    """Two tasks, both of them wrong: one overconfident, one shifted."""

    def forward(self, x):
        return torch.stack([2.5 * x, x + 1.5], 1)


def rows(seed, count=6000):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator) * 1.5
    platform = torch.randint(0, 2, (count,), generator=generator)
    position = torch.randint(0, 3, (count,), generator=generator)
    truth = torch.stack([x - 0.5 * platform, 0.8 * x + 0.4 * position], 1)
    label = torch.bernoulli(torch.sigmoid(truth), generator=generator)
    return x, label, {"platform": platform, "position": position}, truth


def test_it_serves_the_curves_that_the_exact_fit_gives():
    x, label, context, _ = rows(0)
    calibrated = calibrate(Towers(), [(x, label, context)], contexts={"platform": 2, "position": 3}, grid=GRID)
    columns = {name: ids.numpy() for name, ids in context.items()}
    logit = Towers()(x).double().numpy()
    for task in range(2):
        histogram = Histogram.from_arrays(logit[:, task], label[:, task].double().numpy(), columns, grid=GRID)
        expected = Curves.from_histogram(histogram).decision_function(logit[:, task], columns)
        np.testing.assert_allclose(calibrated(x, context)[:, task].detach().numpy(), expected, atol=1e-4)


def test_it_calibrates_every_task_in_every_segment():
    x, label, context, _ = rows(1, 20_000)
    calibrated = calibrate(Towers(), [(x, label, context)], contexts={"platform": 2, "position": 3}, grid=GRID)
    x, _, context, truth = rows(2, 20_000)
    raw, better = torch.sigmoid(Towers()(x)), torch.sigmoid(calibrated(x, context))
    error = (torch.sigmoid(truth) - better).abs().mean(0)
    assert (error < 0.03).all()
    assert ((torch.sigmoid(truth) - raw).abs().mean(0) > 2 * error).all()


def test_batches_in_any_number_give_the_same_layer():
    x, label, context, _ = rows(3)
    whole = calibrate(Towers(), [(x, label, context)], contexts={"platform": 2}, grid=GRID)
    parts = calibrate(
        Towers(),
        ((x[i::7], label[i::7], {name: ids[i::7] for name, ids in context.items()}) for i in range(7)),
        contexts={"platform": 2},
        grid=GRID,
    )
    torch.testing.assert_close(parts(x, context), whole(x, context), atol=1e-5, rtol=0)


def test_an_unknown_context_is_served_by_the_next_coarser_curve():
    x, label, context, _ = rows(4)
    calibrated = calibrate(Towers(), [(x, label, context)], contexts={"platform": 2, "position": 3}, grid=GRID)
    columns = {"platform": context["platform"].numpy(), "position": np.full(len(x), -1)}
    histogram = Histogram.from_arrays(
        Towers()(x)[:, 0].double().numpy(),
        label[:, 0].double().numpy(),
        {name: ids.numpy() for name, ids in context.items()},
        grid=GRID,
    )
    expected = Curves.from_histogram(histogram).decision_function(Towers()(x)[:, 0].double().numpy(), columns)
    for unknown in (-1, 99):
        served = calibrated(x, context | {"position": torch.full((len(x),), unknown)})[:, 0]
        np.testing.assert_allclose(served.detach().numpy(), expected, atol=1e-4)


def test_rows_of_unknown_contexts_count_towards_the_coarser_curve_alone():
    x, label, context, _ = rows(7)
    position = context["position"].clone()
    position[::3] = -1
    label[::3] = 1.0  # the unknown are unlike any other
    context |= {"position": position}
    calibrated = calibrate(Towers(), [(x, label, context)], contexts={"platform": 2, "position": 3}, grid=GRID)
    platform = calibrate(Towers(), [(x, label, context)], contexts={"platform": 2}, grid=GRID)
    curves = calibrated.curves[0]
    assert not any((key == -1).any() for keys in curves.keys for key in keys)
    unknown = context | {"position": torch.full((len(x),), -1)}
    np.testing.assert_allclose(
        torch.sigmoid(calibrated(x, unknown)).detach(), torch.sigmoid(platform(x, context)).detach(), atol=0.02
    )
    columns = {name: ids.numpy() for name, ids in unknown.items()}
    expected = curves.decision_function(Towers()(x)[:, 0].double().numpy(), columns)
    np.testing.assert_allclose(calibrated(x, unknown)[:, 0].detach().numpy(), expected, atol=1e-4)


def fine_tuned():
    """A calibrated model whose layers have been trained further."""
    x, label, context, _ = rows(8)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 2))
    calibrated = calibrate(model, [(x, label, context)], contexts={"platform": 2, "position": 3}, grid=GRID)
    optimiser = torch.optim.SGD(calibrated.layers.parameters(), lr=5.0)
    nn.functional.binary_cross_entropy_with_logits(calibrated(x, context), label).backward()
    optimiser.step()
    return calibrated, x, context


def test_its_curves_are_the_fit_and_those_of_its_layers_what_it_serves():
    calibrated, x, context = fine_tuned()
    columns = {name: ids.numpy() for name, ids in context.items()}
    logit, served = (calibrated.model(x).double().numpy(), calibrated(x, context).detach().double().numpy())
    for task in range(2):
        fitted, trained = calibrated.curves[task], calibrated.trained_curves()[task]
        assert fitted.count.sum() > 0
        assert (fitted.variance > 0).any()
        now = trained.decision_function(logit[:, task], columns)
        np.testing.assert_allclose(served[:, task], now, atol=1e-4)
        assert np.abs(now - fitted.decision_function(logit[:, task], columns)).max() > 1e-3
    frozen = FrozenCurves.from_curves(calibrated.trained_curves(), calibrated.contexts)
    np.testing.assert_allclose(frozen(calibrated.model(x), context), served, atol=1e-4)


def test_saved_and_loaded_it_is_the_same_model(tmp_path):
    calibrated, x, context = fine_tuned()
    calibrated.save(tmp_path / "ranker.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["ranker.safetensors"]
    fresh = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 2))
    again = CalibratedModel.load(tmp_path / "ranker.safetensors", fresh)
    assert torch.equal(again(x, context), calibrated(x, context))
    assert not any(parameter.requires_grad for parameter in again.model.parameters())
    for one, two in zip(calibrated.curves, again.curves, strict=True):
        assert np.array_equal(one.values, two.values)
        assert np.array_equal(one.variance, two.variance)
        assert (one.contexts, one.scale, one.settings) == (two.contexts, two.scale, two.settings)
    again.save(tmp_path / "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == (tmp_path / "ranker.safetensors").read_bytes()


def test_a_file_that_is_not_whole_or_of_another_model_is_refused(tmp_path):
    calibrated, *_ = fine_tuned()
    path = tmp_path / "ranker.safetensors"
    calibrated.save(path)
    content = path.read_bytes()

    def refused(model=None):
        with pytest.raises(InputError) as error:
            CalibratedModel.load(path, model or nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 2)))
        return str(error.value)

    assert refused(nn.Linear(1, 2)) == (
        f"model: expected the architecture that {str(path)!r} was saved with, got another; "
        "build it with the same arguments"
    )
    message = f"file: expected a complete file that CalibratedModel.save wrote, got {str(path)!r}; save it again"
    rng = np.random.default_rng(0)
    for place in [0, 8, 20, *rng.integers(0, len(content), 40)]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :])
        assert refused() == message, place
    path.write_bytes(content[:-1])
    assert refused() == message
    path.unlink()
    assert refused() == f"file: expected a calibrated model at {str(path)!r}, got no file; check the path"


def test_labels_that_were_not_observed_do_not_count():
    x, label, _, _ = rows(5)
    hidden = label.clone()
    hidden[::2, 1] = torch.nan
    calibrated = calibrate(Towers(), [(x, hidden)], grid=GRID)
    first = calibrate(Towers(), [(x, label)], grid=GRID)
    half = calibrate(Towers(), [(x[1::2], label[1::2])], grid=GRID)
    assert all(isinstance(layer, IsotonicLayer) for layer in calibrated.layers)
    torch.testing.assert_close(calibrated(x)[:, 0], first(x)[:, 0])
    torch.testing.assert_close(calibrated(x)[:, 1], half(x)[:, 1])


def test_the_model_is_frozen_and_the_layer_can_go_on_learning():
    model = nn.Linear(1, 1)
    x, label, context, _ = rows(6)
    batch = (x.unsqueeze(1), label[:, :1], context)
    calibrated = calibrate(model, [batch], contexts={"platform": 2}, grid=GRID)
    assert not any(p.requires_grad for p in calibrated.model.parameters())
    assert not calibrated.model.training
    before = calibrated(x.unsqueeze(1), context).detach()
    slow, fast = parameter_groups(calibrated, 1e-2)
    assert len(slow["params"]) == 2
    optimiser = torch.optim.SGD(fast["params"], lr=0.1)
    loss = nn.functional.binary_cross_entropy_with_logits(calibrated(x.unsqueeze(1), context), label[:, :1])
    loss.backward()
    optimiser.step()
    assert not torch.equal(calibrated(x.unsqueeze(1), context), before)
    assert model.weight.grad is None


@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 2)])
def test_it_keeps_the_shape_of_the_models_logits(shape):
    logit = torch.randn(shape)
    label = (logit > 0).float()
    label.view(-1)[:4] = 1 - label.view(-1)[:4]
    assert calibrate(nn.Identity(), [(logit, label)])(logit).shape == shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: calibrate(nn.Identity(), []),
            "batches: expected at least one batch, got none; a generator can be read only once",
        ),
        (
            lambda: calibrate(nn.Identity(), [(torch.zeros(3), torch.zeros(2))]),
            "labels: expected the shape of the logits, [3], got [2]; align them",
        ),
        (
            lambda: calibrate(nn.Identity(), [(torch.zeros(3), torch.zeros(3))], contexts={"device": 2}),
            "context: expected a mapping from 'device' to ids, got None; add them, or pass -1 for unknown",
        ),
        (
            lambda: calibrate(
                nn.Identity(),
                [(torch.zeros(3), torch.zeros(3), {"device": torch.tensor([0, 1, 2])})],
                contexts={"device": 2},
            ),
            "context 'device': expected ids from -1 (unknown) to 1, got 2; map unseen values to -1",
        ),
        (
            lambda: calibrate(nn.Identity(), [(torch.zeros(3, 1, 1), torch.zeros(3))]),
            "model: expected logits [batch] or [batch, tasks], got [3, 1, 1]; wrap it",
        ),
        (
            lambda: CalibratedModel(nn.Identity(), [Curves.identity(GRID)], {"device": 2})(torch.zeros(3)),
            "context: expected a mapping from 'device' to ids, got None; add them, or pass -1 for unknown",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message
