import copy
import inspect
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isolayer.cli.debiasing import train as train_command
from isolayer.curves.curves import Curves
from isolayer.debias import DualHead, Heads
from isolayer.debias.loss import stacked_labels
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.rates import parameter_groups

CONTEXTS = {"position": 4, "device": 3}
TASKS = ("click", "skip")
ROWS = 40


def made(seed=0, **options):
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
    return DualHead(backbone, **{"width": 8, "tasks": TASKS, "contexts": CONTEXTS, **options})


def shaken(model, seed=1, spread=0.5):
    """The same with parameters far from where they start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
        for table in model.context_curves.tables:
            table.rows.weight[0] = table.bias.weight[0] = 0.0  # id -1, which no optimiser moves
    return model


def batch(rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 5, generator=generator)
    context = {name: torch.randint(0, size, (rows,), generator=generator) for name, size in CONTEXTS.items()}
    labels = {task: (torch.rand(rows, generator=generator) < 0.4).float() for task in TASKS}
    return features, context, labels


def log_loss(logit, label):
    prob = 1 / (1 + np.exp(-logit.detach().double().numpy()))
    label = label.double().numpy()
    return -(label * np.log(prob) + (1 - label) * np.log(1 - prob))


def trained(model, steps=30):
    features, context, labels = batch()
    optimiser = torch.optim.Adam(parameter_groups(model, 1e-2))
    for _ in range(steps):
        optimiser.zero_grad()
        model.loss(model(features, context), labels).backward()
        optimiser.step()
    return model


def test_every_task_has_its_logits():
    outputs = made()(*batch()[:2])
    assert list(outputs) == list(TASKS)
    assert all(isinstance(heads, Heads) and heads.observed_logit.shape == (ROWS,) for heads in outputs.values())


@pytest.mark.parametrize("anchor", ["joint", "detached"])
def test_curves_start_as_the_identity(anchor):
    for heads in made(anchor=anchor)(*batch()[:2]).values():
        assert torch.allclose(heads.observed_logit, heads.relevance_logit, atol=1e-4)
        assert torch.allclose(heads.served_logit, heads.relevance_logit, atol=1e-4)


@pytest.mark.parametrize("anchor", ["joint", "detached"])
def test_loss_is_the_sum_over_tasks_of_both_heads(anchor):
    alpha, beta = {"click": 0.2, "skip": 0.4}, {"click": 0.8, "skip": 0.5}
    model = shaken(made(alpha=alpha, beta=beta, anchor=anchor))
    features, context, labels = batch()
    outputs = model(features, context)
    expected = sum(
        alpha[task] * log_loss(outputs[task].served_logit, labels[task]).mean()
        + beta[task] * log_loss(outputs[task].observed_logit, labels[task]).mean()
        for task in TASKS
    )
    assert model.loss(outputs, labels).item() == pytest.approx(expected, rel=1e-5)


def test_weight_two_is_the_row_twice():
    model = shaken(made())
    features, context, labels = batch()
    weight = torch.ones(ROWS)
    weight[:7] = 2.0
    twice = torch.cat([torch.arange(ROWS), torch.arange(7)])
    repeated = model(features[twice], {name: ids[twice] for name, ids in context.items()})
    one = model.loss(model(features, context), labels, weight=weight)
    other = model.loss(repeated, {task: label[twice] for task, label in labels.items()})
    assert torch.allclose(one, other, rtol=1e-5)


def test_a_masked_label_is_not_read():
    model = shaken(made(tasks=("click",)))
    features, context, labels = batch()
    kept = torch.arange(ROWS) % 3 > 0
    label = torch.where(kept, labels["click"], torch.nan)
    masked = model.loss(model(features, context), {"click": label}, {"click": kept})
    some = model(features[kept], {name: ids[kept] for name, ids in context.items()})
    assert torch.allclose(masked, model.loss(some, {"click": labels["click"][kept]}), rtol=1e-5)
    masked.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a_task_without_any_label_adds_nothing():
    model = shaken(made(alpha=0.0))
    features, context, labels = batch()
    none = model.loss(model(features, context), labels, {"skip": torch.zeros(ROWS, dtype=torch.bool)})
    click = log_loss(model(features, context)["click"].observed_logit, labels["click"]).mean()
    assert none.item() == pytest.approx(0.75 * click, rel=1e-5)


@pytest.mark.parametrize("mode", ["sum", "cross"])
@pytest.mark.parametrize("options", [{"alpha": 0.0, "anchor": "joint"}, {"anchor": "detached"}])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_reference_context_is_the_identity_at_any_parameters(mode, options, seed):
    model = shaken(made(mode=mode, reference={"position": 2, "device": 0}, **options), seed)
    context = {"position": torch.full((ROWS,), 2), "device": torch.zeros(ROWS, dtype=torch.long)}
    for heads in model(batch()[0], context).values():
        assert torch.allclose(heads.observed_logit, heads.relevance_logit, atol=1e-4)


def test_the_reference_is_the_middle_id_unless_it_is_given_or_ids_are_hashed():
    sizes = {"position": 10, "device": 3, "surface": 1}
    made_of = {"width": 4, "tasks": ("click",), "contexts": sizes}
    middle = DualHead(nn.Identity(), **made_of)
    assert middle.context_curves.reference == {"position": 4, "device": 1, "surface": 0}
    given = DualHead(nn.Identity(), **made_of, reference={"position": 0})
    assert given.context_curves.reference == {"position": 0, "device": 1, "surface": 0}
    hashed = DualHead(nn.Identity(), **made_of, hash_buckets=50)
    assert hashed.context_curves.reference == dict.fromkeys(sizes, 0)


def test_only_tasks_without_a_joint_alpha_are_held():
    model = shaken(made(alpha={"click": 0.0, "skip": 0.25}, anchor="joint"))
    context = {name: torch.full((ROWS,), id_) for name, id_ in model.context_curves.reference.items()}
    outputs = model(batch()[0], context)
    assert torch.allclose(outputs["click"].observed_logit, outputs["click"].relevance_logit, atol=1e-4)
    assert not torch.allclose(outputs["skip"].observed_logit, outputs["skip"].relevance_logit, atol=0.1)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), spread=st.floats(0.1, 3.0))
def test_observed_rises_with_relevance_and_falls_for_a_decreasing_task(seed, spread):
    model = shaken(made(decreasing=("skip",), anchor="detached"), seed, spread)
    model.backbone, model.relevance = nn.Identity(), nn.Identity()
    relevance = torch.linspace(-20, 10, 301).unsqueeze(1).expand(-1, 2)
    position = torch.full((301,), seed % 4)
    outputs = model(relevance, {"position": position, "device": position % 3})
    assert (outputs["click"].observed_logit.diff() >= -1e-4).all()
    assert (outputs["skip"].observed_logit.diff() <= 1e-4).all()
    assert (outputs["click"].served_logit.diff() >= 0).all()
    assert (outputs["skip"].served_logit.diff() <= 0).all()


def test_relevance_of_a_decreasing_task_learns_to_rise():
    torch.manual_seed(0)
    quality = torch.randn(4000, 1)
    labels = {"skip": (torch.rand(4000) < torch.sigmoid(-2 * quality[:, 0])).float()}
    model = DualHead(
        nn.Identity(), width=1, tasks=("skip",), contexts={"position": 1}, alpha=0.0, beta=1.0, decreasing=("skip",)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        model.loss(model(quality, {"position": torch.zeros(4000, dtype=torch.long)}), labels).backward()
        optimiser.step()
    assert model.relevance.weight.item() == pytest.approx(2.0, abs=0.2)
    served = model.serving()(torch.tensor([[-1.0], [1.0]]))
    assert served["skip"][0] < served["skip"][1]
    assert served["skip_prob"][0] > 0.8 > 0.2 > served["skip_prob"][1]


def test_the_detached_anchor_leaves_relevance_as_it_was_to_the_bit():
    anchored, bare = trained(made(anchor="detached")), made(anchor="detached", alpha=0.0)
    features = batch()[0]
    trained(bare)
    one, other = anchored.serving()(features), bare.serving()(features)
    assert torch.equal(one["click"], other["click"])
    assert not torch.equal(one["click_prob"], other["click_prob"])


def test_the_joint_anchor_moves_relevance():
    one, other = (trained(made(alpha=alpha, anchor="joint")) for alpha in (0.25, 0.0))
    assert not torch.allclose(one.serving()(batch()[0])["click"], other.serving()(batch()[0])["click"])


def test_parallel_heads_read_a_logit_of_their_own():
    model = shaken(made(wiring="parallel", anchor="joint"))
    outputs = model(*batch()[:2])
    (gradient,) = torch.autograd.grad(outputs["click"].observed_logit.sum(), model.relevance.weight, allow_unused=True)
    assert gradient is None
    assert model.serving()(batch()[0])["click"].equal(outputs["click"].relevance_logit.detach())


@pytest.mark.parametrize(
    ("plain", "options"),
    [
        ({"anchor": "joint"}, {"alpha": 0.5}),
        ({"anchor": "joint"}, {"alpha": {"click": 0.25, "skip": 0.5}}),
        ({}, {"beta": 0.5}),
        ({}, {"beta": {"click": 0.75, "skip": 0.5}}),
        ({}, {"anchor": "joint"}),
        ({"anchor": "joint"}, {"wiring": "parallel"}),
        ({}, {"decreasing": ("skip",)}),
        ({}, {"reference": {"position": 3}}),
        ({}, {"grid": Grid(step=1.0)}),
        ({}, {"mode": "cross"}),
    ],
    ids=str,
)
def test_every_option_changes_what_is_learned(plain, options):
    one, other = trained(made(**plain)), trained(made(**plain, **options))
    if "beta" in options:  # Adam is blind to the scale of a loss: look at the loss itself
        losses = [model.loss(model(*batch()[:2]), batch()[2]) for model in (made(**plain), made(**options))]
        assert not torch.allclose(*losses)
        return
    outputs = [model(*batch()[:2])["skip"] for model in (one, other)]
    assert not torch.allclose(outputs[0].observed_logit, outputs[1].observed_logit, atol=1e-3)


def test_constructor_and_command_line_have_the_same_anchor():
    assert made().anchor == "detached" == inspect.signature(train_command).parameters["anchor"].default


@pytest.mark.parametrize("anchor", ["joint", "detached"])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_loss_weights_changed_during_training_count_at_once(name, anchor):
    model, (features, context, labels) = shaken(made(anchor=anchor)), batch()
    for value in (10.0, 0.5, {"click": 3.0, "skip": 0.0}):
        setattr(model, name, value)
        built = made(anchor=anchor, **{name: value})
        built.load_state_dict(model.state_dict())
        assert torch.equal(model.loss(model(features, context), labels), built.loss(model(features, context), labels))
        assert dict(getattr(model, name)) == dict(getattr(built, name))
    with pytest.raises(TypeError, match="does not support item assignment"):
        getattr(model, name)["click"] = 1.0
    with pytest.raises(InputError, match=f"{name}: expected a number >= 0, got -1;"):
        setattr(model, name, -1)


def test_a_larger_joint_alpha_pulls_relevance_towards_the_log_from_the_step_it_is_set():
    features, context, labels = batch()

    def gradient(alpha):
        model = shaken(made(anchor="joint", alpha=0.25))
        model.alpha = alpha
        model.loss(model(features, context), labels).backward()
        return model.relevance.weight.grad

    small, large, larger = gradient(0.25), gradient(10.0), gradient(19.75)
    assert torch.allclose(larger - large, large - small, atol=1e-4)
    assert (large - small).abs().max() > 0.1


def test_a_model_with_loss_weights_can_be_copied():
    model = made(alpha=0.5)
    other = copy.deepcopy(model)
    other.alpha = 0.125
    assert set(model.alpha.values()) == {0.5}
    assert set(other.alpha.values()) == {0.125}


@pytest.mark.parametrize("anchor", ["detached", "joint"])
def test_the_exact_fit_of_what_is_served_leaves_relevance_and_calibrates(anchor):
    torch.manual_seed(0)
    features = torch.randn(20_000, 5)
    model = made(anchor=anchor, decreasing=("skip",))
    before = model.serving()(features)
    rate = {"click": torch.sigmoid(3 * before["click"] - 2), "skip": torch.sigmoid(1 - 2 * before["skip"])}
    labels = {task: torch.bernoulli(rate[task]) for task in TASKS}
    after = model.refit_served(features, labels).serving()(features)
    for task in TASKS:
        assert torch.equal(before[task], after[task])
        assert (
            (after[f"{task}_prob"] - rate[task]).abs().mean()
            < 0.01
            < (before[f"{task}_prob"] - rate[task]).abs().mean()
        )
    assert model.training
    weight = torch.ones(20_000)
    weight[:10_000] = 2.0
    twice = torch.cat([torch.arange(20_000), torch.arange(10_000)])
    one = model.refit_served(features, labels, weight=weight).serving()(features)["click_prob"]
    repeated = {task: label[twice] for task, label in labels.items()}
    other = model.refit_served(features[twice], repeated).serving()(features)["click_prob"]
    assert torch.allclose(one, other, atol=1e-4)
    hidden = {task: torch.where(weight > 1, label, torch.nan) for task, label in labels.items()}
    some = {task: label[:10_000] for task, label in labels.items()}
    one = model.refit_served(features, hidden, dict.fromkeys(TASKS, weight > 1)).serving()(features)["click_prob"]
    assert torch.allclose(one, model.refit_served(features[:10_000], some).serving()(features)["click_prob"], atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"decay": 0.3}, {"curve_lr": 1.0}])
def test_curves_learn_at_their_own_rate(settings):
    model = made(anchor="detached")
    groups = parameter_groups(model, 0.001, **settings)
    times = settings.get("curve_lr", 10.0)
    assert [group["lr"] for group in groups] == pytest.approx([0.001, 1e-4 * times, 1e-3 * times, 1e-2 * times])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    network, device, _, biases = ({names[id(p)] for p in group["params"]} for group in groups)
    assert network == {"backbone.0.weight", "backbone.0.bias", "relevance.weight"}
    assert device == {"context_curves.tables.1.rows.weight"}  # a tenth of the rate of the position's
    assert biases == {
        "relevance.bias",
        "context_curves.base.bias",
        "context_curves.tables.0.bias.weight",
        "context_curves.tables.1.bias.weight",
    }
    assert [group.get("weight_decay", 0.0) for group in groups] == [settings.get("decay", 0.0), 0.0, 0.0, 0.0]


def test_a_bias_enters_the_logit_as_it_is():
    model = made(anchor="joint")
    features, context, _ = batch()
    with torch.no_grad():
        before = model(features, context)["click"]
        model.relevance.bias.fill_(0.5)
        model.context_curves.base.bias.fill_(0.25)
        for table in model.context_curves.tables:
            table.bias.weight[1:] = 0.125
        after = model(features, context)["click"]
    reference = model.context_curves.reference
    shown_elsewhere = sum((context[name] != reference[name]).float() for name in CONTEXTS)
    assert torch.allclose(after.relevance_logit - before.relevance_logit, torch.tensor(0.5), atol=1e-5)
    change = after.observed_logit - before.observed_logit
    assert torch.allclose(change, 0.75 + 0.125 * shown_elsewhere, atol=1e-4)


def test_curves_agree_with_the_model_in_every_context():
    model = shaken(made(alpha=0.0, decreasing=("skip",)))
    curves = model.curves()
    assert curves.contexts == ("task", "position", "device")
    assert len(curves.values) == 1 + 2 * (1 + 4 + 4 * 3)
    assert (np.diff(curves.values, axis=1) >= 0).all()
    features, context, _ = batch()
    columns = {name: ids.numpy() for name, ids in context.items()}
    for task, sign in (("click", 1), ("skip", -1)):
        heads = model(features, context)[task]
        event = sign * heads.relevance_logit.detach().double().numpy()
        found = curves.decision_function(event, {"task": np.repeat(task, ROWS), **columns})
        assert found == pytest.approx(heads.observed_logit.detach().numpy(), abs=1e-4)


@pytest.mark.parametrize("anchor", ["joint", "detached"])
@pytest.mark.parametrize("tasks", [("click", "skip"), ("skip", "click")])
def test_served_curves_are_the_served_probability(anchor, tasks, tmp_path):
    model = shaken(made(anchor=anchor, tasks=tasks, decreasing=("skip",)))
    model.curves("calibration").save(tmp_path / "served.parquet")
    curves = Curves.load(tmp_path / "served.parquet")
    assert curves.kind == "calibration"
    assert model.curves().kind == "bias"
    served = model.serving()(batch()[0])
    for task, sign in (("click", 1), ("skip", -1)):
        event = sign * served[task].double().numpy()
        found = curves.predict_proba(event, {"task": np.repeat(task, ROWS)})
        assert found == pytest.approx(served[f"{task}_prob"].numpy(), abs=1e-5)
    with pytest.raises(InputError, match="kind: expected 'bias' or 'calibration', got 'both'; choose one"):
        model.curves("both")


def test_curves_of_tasks_in_any_order_are_found_again(tmp_path):
    model = shaken(made(tasks=("skip", "click"), decreasing=("skip",)))
    model.curves().save(tmp_path / "curves.parquet")
    curves = Curves.load(tmp_path / "curves.parquet")
    features, context, _ = batch()
    columns = {name: ids.numpy() for name, ids in context.items()}
    for task, sign in (("click", 1), ("skip", -1)):
        heads = model(features, context)[task]
        event = sign * heads.relevance_logit.detach().double().numpy()
        found = curves.decision_function(event, {"task": np.repeat(task, ROWS), **columns})
        assert found == pytest.approx(heads.observed_logit.detach().numpy(), abs=1e-4)


def test_curves_of_an_unknown_context_are_those_of_id_minus_one():
    model = shaken(made())
    relevance = np.linspace(-3, 3, 7)
    context = {"task": np.repeat("click", 7), "position": np.repeat(2, 7), "device": np.repeat(-1, 7)}
    knots = model.context_curves.knot_values({"position": torch.tensor([2]), "device": torch.tensor([-1])})
    expected = np.interp(relevance, model.context_curves.grid.knots, knots[0, 0].detach().numpy())
    assert model.curves().decision_function(relevance, context) == pytest.approx(expected, abs=1e-4)


def test_served_names_and_probabilities():
    model = trained(made(anchor="detached", decreasing=("skip",)))
    features, context, _ = batch()
    served, outputs = model.serving()(features), model(features, context)
    assert list(served) == ["click", "click_prob", "skip", "skip_prob"]
    for task in TASKS:
        assert torch.equal(served[task], outputs[task].relevance_logit)
        assert torch.allclose(served[f"{task}_prob"], torch.sigmoid(outputs[task].served_logit), atol=1e-6)


def test_serving_is_a_copy_in_evaluation_mode():
    model = made()
    serving = model.serving()
    before = serving(batch()[0])["click"].clone()
    trained(model)
    assert torch.equal(serving(batch()[0])["click"], before)
    assert not serving.training
    assert model.training


def test_onnx_takes_features_alone_and_agrees(tmp_path):
    model = trained(made(anchor="detached", decreasing=("skip",)))
    serving, features = model.serving(), batch()[0]
    path = tmp_path / "serving.onnx"
    rows = torch.export.Dim("rows", min=2)
    torch.onnx.export(
        serving,
        (features,),
        str(path),
        input_names=["features"],
        output_names=serving.names,
        dynamic_shapes={"features": {0: rows}},
        dynamo=True,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(path))
    assert [one.name for one in session.get_inputs()] == ["features"]
    found = session.run(None, {"features": features[:17].numpy()})
    for name, value in zip(serving.names, found, strict=True):
        assert value == pytest.approx(serving(features[:17])[name].numpy(), abs=1e-5)


def test_an_exported_program_needs_neither_context_nor_this_package(tmp_path):
    model = trained(made(anchor="detached"))
    features, path = batch()[0], tmp_path / "serving.pt2"
    program = torch.export.export(model.serving(), (features,))
    assert list(program.graph_signature.user_inputs) == ["features"]
    torch.export.save(program, path)
    np.save(tmp_path / "features.npy", features.numpy())
    script = (
        "import sys, numpy, torch; sys.modules['isolayer'] = None\n"
        "features = torch.from_numpy(numpy.load('features.npy'))\n"
        "served = torch.export.load('serving.pt2').module()(features)\n"
        "print(*served['click_prob'][:3].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = model.serving()(features)["click_prob"][:3].tolist()
    assert [float(number) for number in done.stdout.split()] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tasks": ()}, "tasks: expected at least one name, got none; name each label once"),
        (
            {"decreasing": ("like",)},
            "decreasing: expected distinct names among ['click', 'skip'], got ('like',); name tasks only",
        ),
        ({"alpha": -1.0}, "alpha: expected a number >= 0, got -1.0; 0 leaves that loss out"),
        (
            {"beta": {"click": 1.0}},
            "beta: expected a number for each of ['click', 'skip'], got ['click']; name them all",
        ),
        ({"anchor": "none"}, "anchor: expected 'joint' or 'detached', got 'none'; 'joint' is the paper's"),
        ({"wiring": "series"}, "wiring: expected 'curve' or 'parallel', got 'series'; use 'curve'"),
        (
            {"wiring": "parallel"},
            "wiring: expected anchor='joint' with 'parallel', got 'detached'; nothing would train relevance",
        ),
        (
            {"wiring": "parallel", "anchor": "joint", "alpha": {"click": 1.0, "skip": 0.0}},
            "alpha: expected positive numbers with 'parallel', got {'click': 1.0, 'skip': 0.0}; relevance needs it",
        ),
        (
            {"reference": {"position": 4}},
            "reference 'position': expected an integer from 0 to 3, got 4; give an id of the feature",
        ),
    ],
)
def test_a_bad_option_is_refused(options, text):
    with pytest.raises(InputError) as caught:
        made(**options)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("labels", "mask", "weight", "text"),
    [
        ({}, None, None, "labels: expected a tensor for task 'click', got keys []; add it"),
        ({"click": torch.ones(3)}, None, None, "labels 'click': expected shape [2], got [3]; one label per row"),
        (
            {"click": torch.tensor([0.0, 2.0])},
            None,
            None,
            "labels: expected values in [0, 1], got 0.0 to 2.0; mask rows that have no label",
        ),
        (
            {"click": torch.ones(2)},
            {"like": torch.ones(2, dtype=torch.bool)},
            None,
            "mask: expected tasks ['click'], got ['like']; remove or rename them",
        ),
        (
            {"click": torch.ones(2)},
            None,
            torch.tensor([1.0, -1.0]),
            "weight: expected finite numbers >= 0, got -1.0 to 1.0; check the column",
        ),
        ({"click": torch.ones(2)}, None, torch.ones(3), "weight: expected shape [2], got [3]; one weight per row"),
    ],
)
def test_bad_labels_are_refused(labels, mask, weight, text):
    with pytest.raises(InputError) as caught:
        stacked_labels(["click"], labels, mask, weight, torch.zeros(2))
    assert str(caught.value) == text


def test_a_missing_context_is_named():
    features, context, _ = batch()
    with pytest.raises(InputError, match="expected ids for 'device', got keys"):
        made()(features, {"position": context["position"]})


def test_the_curves_of_a_model_say_that_they_are_bias_and_where_they_came_from(tmp_path):
    model = DualHead(torch.nn.Linear(4, 8), width=8, tasks=("click",), contexts={"position": 3})
    model.curves().save(tmp_path / "curves.parquet")
    curves = Curves.load(tmp_path / "curves.parquet")
    assert (curves.kind, curves.source) == ("bias", {"from": "DualHead", "tasks": ["click"]})
    x = torch.tensor([-60.0, 0.5, 60.0])
    observed = model.context_curves(x[:, None], {"position": torch.full((3,), 2)})[:, 0]
    context = {"task": ["click"] * 3, "position": [2] * 3}
    torch.testing.assert_close(observed.double(), torch.as_tensor(curves.decision_function(x.numpy(), context)))
