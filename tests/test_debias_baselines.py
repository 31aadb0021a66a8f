import numpy as np
import pytest
import torch
from torch import nn

from isolayer import metrics
from isolayer.debias import (
    DBN,
    DCM,
    DROP_RATES,
    PAL,
    UBM,
    AdditiveTower,
    Cascade,
    DualHead,
    DualLearning,
    GradientReversal,
    InversePropensity,
    Naive,
    PairwiseDebiasing,
    PositionAsFeature,
    PositionDropout,
    RegressionEM,
    TrustAffine,
    post_hoc,
)
from isolayer.debias.baselines import product_logit
from isolayer.errors import InputError
from isolayer.grid import Grid
from isolayer.nn.rates import parameter_groups
from isolayer.simulate import debias_feed
from research.calibrators import PlattCalibrator

CONTEXTS = {"position": 4}
TASKS = ("click", "skip")
LISTS, LENGTH = 12, 4
ROWS = LISTS * LENGTH


def backbone(inputs=5):
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU())


def makers(tasks=TASKS, decreasing=("skip",)):
    known = {"width": 8, "tasks": tasks, "decreasing": decreasing}
    return {
        "naive": lambda: Naive(backbone(), **known),
        "additive": lambda: AdditiveTower(backbone(), contexts=CONTEXTS, **known),
        "pal": lambda: PAL(backbone(), contexts=CONTEXTS, **known),
        "affine": lambda: TrustAffine(backbone(), contexts=CONTEXTS, **known),
        "feature": lambda: PositionAsFeature(backbone(5 + 4), contexts=CONTEXTS, **known),
        "dropout": lambda: PositionDropout(backbone(5 + 4), contexts=CONTEXTS, drop=0.3, **known),
        "ips": lambda: InversePropensity(backbone(), propensity=[1.0, 0.5, 0.25, 0.2], **known),
        "dla": lambda: DualLearning(backbone(), contexts=CONTEXTS, **known),
        "dual": lambda: DualHead(backbone(), contexts=CONTEXTS, alpha=0.0, beta=1.0, **known),
        **{
            f"dual {loss}": lambda loss=loss: DualHead(backbone(), contexts=CONTEXTS, loss=loss, **known)
            for loss in ("listwise", "pairwise", "lambdarank", "jrc")
        },
        **{
            kind.__name__: lambda kind=kind: kind(backbone(), positions=LENGTH, **known)
            for kind in (Cascade, DCM, DBN, UBM, RegressionEM, PairwiseDebiasing)
        },
        "reversal": lambda: GradientReversal(backbone(), contexts=CONTEXTS, **known),
    }


NAMES = list(makers())


def made(name, seed=0, **options):
    torch.manual_seed(seed)
    model = makers(**options)[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(ROWS, 5, generator=generator)
    context = {"position": torch.arange(ROWS) % LENGTH, "session": torch.arange(ROWS) // LENGTH}
    labels = {task: (torch.rand(ROWS, generator=generator) < 0.4).float() for task in TASKS}
    return features, context, labels


def rows_of(chosen, *columns):
    return [
        column[chosen] if torch.is_tensor(column) else {k: v[chosen] for k, v in column.items()} for column in columns
    ]


@pytest.mark.parametrize("name", NAMES)
def test_one_interface(name):
    model = made(name)
    features, context, labels = batch()
    outputs = model(features, context)
    assert list(outputs) == list(TASKS)
    for heads in outputs.values():
        assert {part.shape for part in heads[:3]} == {(ROWS,)}
    loss = model.loss(outputs, labels, {"click": labels["click"] >= 0}, torch.ones(ROWS))
    loss.backward()
    assert torch.isfinite(loss)
    served = model.serving()(features)
    assert list(served) == ["click", "click_prob", "skip", "skip_prob"]
    assert all(value.shape == (ROWS,) and not value.requires_grad for value in served.values())


@pytest.mark.parametrize("name", NAMES)
def test_weight_two_is_the_list_twice(name):
    model = made(name).eval()
    features, context, labels = batch()
    weight = torch.ones(ROWS)
    weight[:LENGTH] = 2.0
    one = model.loss(model(features, context), labels, weight=weight)
    twice = torch.cat([torch.arange(ROWS), torch.arange(LENGTH)])
    features, context, labels = rows_of(twice, features, context, labels)
    context["session"] = torch.cat([context["session"][:ROWS], torch.full((LENGTH,), LISTS)])
    assert torch.allclose(one, model.loss(model(features, context), labels), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_masking_every_row_of_a_list_is_leaving_it_out(name):
    model = made(name).eval()
    features, context, labels = batch()
    kept = torch.arange(ROWS) >= LENGTH
    masked = model.loss(model(features, context), labels, dict.fromkeys(TASKS, kept))
    features, context, labels = rows_of(kept, features, context, labels)
    assert torch.allclose(masked, model.loss(model(features, context), labels), rtol=1e-5)


OPPOSITES = [
    "naive",
    "pal",
    "feature",
    "ips",
    "dla",
    "Cascade",
    "DCM",
    "DBN",
    "UBM",
    "RegressionEM",
    "PairwiseDebiasing",
]


@pytest.mark.parametrize("name", OPPOSITES)
def test_a_decreasing_task_is_the_opposite_event(name):
    one, other = made(name, tasks=("skip",), decreasing=("skip",)).eval(), made(name, tasks=("skip",), decreasing=())
    other.eval().load_state_dict({k: v for k, v in one.state_dict().items() if k != "sign"}, strict=False)
    features, context, labels = batch()
    opposite = {"skip": 1 - labels["skip"]}
    losses = one.loss(one(features, context), labels), other.loss(other(features, context), opposite)
    assert torch.allclose(*losses, rtol=1e-4)


def test_additive_tower_adds_the_bias_of_the_position():
    model = made("additive", tasks=("click",), decreasing=())
    features, context, _ = batch()
    heads = model(features, context)["click"]
    table = model.bias.tables[0][1:, 0]
    assert torch.allclose(heads.observed_logit, heads.relevance_logit + table[context["position"]])


def test_pal_multiplies_both_chances():
    model = made("pal", tasks=("click",), decreasing=())
    features, context, _ = batch()
    heads = model(features, context)["click"]
    seen = torch.sigmoid(model.bias.tables[0][1:, 0])[context["position"]]
    expected = seen * torch.sigmoid(heads.relevance_logit)
    assert torch.allclose(torch.sigmoid(heads.observed_logit), expected, atol=1e-6)


def test_product_logit_is_finite_far_out():
    far = torch.tensor([-80.0, 0.0, 80.0])
    one, two = torch.meshgrid(far, far, indexing="ij")
    assert torch.isfinite(product_logit(one, two)).all()
    assert product_logit(torch.tensor(80.0), torch.tensor(-3.0)).item() == pytest.approx(-3.0)


def test_position_as_feature_serves_the_first_position():
    model = made("feature")
    features, _, _ = batch()
    at_first = model(features, {"position": torch.zeros(ROWS, dtype=torch.long)})["click"].relevance_logit
    assert torch.allclose(model.serving()(features)["click"], at_first, atol=1e-6)


def test_position_dropout_hides_the_position_in_training_and_serves_the_sentinel():
    model = made("dropout")
    features, context, _ = batch()
    hidden = model.eval()(features, {"position": torch.full((ROWS,), -1)})["click"].relevance_logit
    assert torch.allclose(model.serving()(features)["click"], hidden, atol=1e-6)
    shown = model(features, context)["click"].relevance_logit
    model.train()
    seen = model(features, context)["click"].relevance_logit
    same, masked = torch.isclose(seen, shown), torch.isclose(seen, hidden)
    assert (same | masked).all()
    assert 0 < int((masked & ~same).sum()) < ROWS // 2
    assert 0.15 in DROP_RATES


def test_position_dropout_hides_positions_of_any_integer_type():
    model = PositionDropout(nn.Linear(6, 8), width=8, contexts={"position": 300}).train()
    model.drop = 1.0
    position = torch.tensor([0, 7, 255], dtype=torch.uint8)
    hidden = model(torch.zeros(3, 2), {"position": position})["click"].observed_logit
    unknown = model(torch.zeros(3, 2), {"position": torch.full((3,), -1)})["click"].observed_logit
    assert torch.equal(hidden, unknown)


def test_ips_loss_is_that_of_the_divided_label():
    model = made("ips", tasks=("click",), decreasing=())
    features, context, labels = batch()
    outputs = model(features, context)
    r = outputs["click"].relevance_logit.detach().double().numpy()
    target = labels["click"].numpy() / np.array([1.0, 0.5, 0.25, 0.2])[context["position"]]
    expected = np.mean(np.log1p(np.exp(r)) - target * r)
    assert model.loss(outputs, labels).item() == pytest.approx(expected, rel=1e-5)


def test_ips_clips_small_propensities():
    table = [1.0, 1e-6]
    factors = [InversePropensity(backbone(), width=8, propensity=table, clip=c).factors[2].item() for c in (0.1, 0.01)]
    assert factors == pytest.approx([10.0, 100.0])


def test_dla_loss_is_the_two_losses_list_by_list():
    model = made("dla", tasks=("click",), decreasing=())
    features, context, labels = batch()
    outputs = model(features, context)
    r = outputs["click"].relevance_logit.detach().double().numpy()
    g = model.examination.tables[0].detach().double().numpy()[1:, 0]
    expected = 0.0
    for one in range(LISTS):
        rows = np.arange(one * LENGTH, (one + 1) * LENGTH)
        log_r, log_g = r[rows] - np.log(np.exp(r[rows]).sum()), g - np.log(np.exp(g).sum())
        for k, row in enumerate(rows):
            if labels["click"][row]:
                expected -= np.exp(g[0] - g[k]) * log_r[k] + np.exp(r[rows[0]] - r[row]) * log_g[k]
    assert model.loss(outputs, labels).item() == pytest.approx(expected / ROWS, rel=1e-4)


def test_dla_needs_the_lists():
    features, context, _ = batch()
    with pytest.raises(InputError, match="context: expected 'session', the list of each row, got \\['position'\\]"):
        made("dla")(features, {"position": context["position"]})


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_post_hoc_leaves_the_ranking_as_it_was(method):
    model = made("naive")
    features = torch.randn(400, 5)
    plain = model.serving()(features)
    labels = {task: torch.bernoulli(torch.sigmoid(4 * torch.logit(plain[f"{task}_prob"]) - 1)) for task in TASKS}
    calibrated = post_hoc(model, features, labels, method=method)(features)
    for task in TASKS:
        assert torch.equal(plain[task], calibrated[task])
        order = torch.argsort(plain[f"{task}_prob"])
        assert (calibrated[f"{task}_prob"][order].diff() >= -1e-6).all()
        assert calibrated[f"{task}_prob"].mean().item() == pytest.approx(labels[task].mean().item(), abs=0.03)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.parametrize("level", [-40.0, 30.0])
def test_post_hoc_calibrates_logits_at_any_level(method, level):
    """Losses over lists leave the level of relevance open, and optimisers move it far."""
    model = made("naive", tasks=("click",), decreasing=())
    with torch.no_grad():
        model.relevance.bias.fill_(level)
    features = torch.randn(2000, 5, generator=torch.Generator().manual_seed(1))
    logit = model.serving()(features)["click"]
    click = torch.bernoulli(torch.sigmoid(2 * (logit - logit.mean())), generator=torch.Generator().manual_seed(2))
    served = post_hoc(model, features, {"click": click}, method=method)(features)["click_prob"]
    assert served.mean().item() == pytest.approx(click.mean().item(), abs=0.01)
    assert served.std().item() > 0.05


def test_post_hoc_platt_is_platt_and_reads_weights():
    model = made("naive", tasks=("click",), decreasing=())
    features, _, labels = batch()
    weight = torch.linspace(0, 2, ROWS)
    served = post_hoc(model, features, labels, method="platt", weight=weight)(features)
    fitted = PlattCalibrator().fit(served["click"].double().numpy(), labels["click"].numpy(), weight.numpy())
    expected = fitted.predict_proba(served["click"].double().numpy())[:, 1]
    assert served["click_prob"].numpy() == pytest.approx(expected, abs=1e-4)
    other = post_hoc(model, features, labels, method="platt")(features)
    assert not torch.allclose(served["click_prob"], other["click_prob"], atol=1e-3)


def test_post_hoc_grid_is_used():
    model = made("naive", tasks=("click",), decreasing=())
    features, _, labels = batch()
    one = post_hoc(model, features, labels, method="isotonic")(features)
    other = post_hoc(model, features, labels, method="isotonic", grid=Grid(step=2.5))(features)
    assert not torch.allclose(one["click_prob"], other["click_prob"], atol=1e-3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: PositionDropout(backbone(9), width=8, contexts=CONTEXTS, drop=1.0),
            "drop: expected a number in (0, 1), got 1.0; the paper's is 0.15",
        ),
        (
            lambda: InversePropensity(backbone(), width=8, propensity=[1.0, 0.0]),
            "propensity: expected positive numbers, got 0.0 in row 1; estimate them again, or drop the position",
        ),
        (
            lambda: InversePropensity(backbone(), width=8, propensity=[1.0], clip=0.0),
            "clip: expected a number in (0, 1], got 0.0; 0.01 is usual",
        ),
        (
            lambda: post_hoc(made("naive"), *batch()[::2], method="spline"),
            "method: expected 'platt' or 'isotonic', got 'spline'; choose one",
        ),
        (
            lambda: made("additive")(batch()[0], {"position": torch.full((ROWS,), 4)}),
            "context 'position': expected ids from -1 (unknown) to 3, got 4; map unseen values to -1",
        ),
        (
            lambda: made("pal")(batch()[0], {}),
            "context: expected ids for 'position', got keys []; add them, or pass -1 for unknown",
        ),
    ],
)
def test_bad_input_is_refused(make, text):
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == text


def biased_log(rows=20_000):
    """Clicks by quality alone; position, and so attention, by a feature that has no part in it."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 2, generator=generator)  # quality, and what the logger ranks by
    noise = 0.7 * torch.randn(rows, generator=generator)
    position = torch.bucketize(-(features[:, 1] + noise), torch.tensor([-0.8, 0.0, 0.8]))
    seen = torch.tensor([0.9, 0.5, 0.2, 0.1])[position]
    click = torch.rand(rows, generator=generator) < seen * torch.sigmoid(1.5 * features[:, 0] - 1)
    lists = torch.argsort(position, stable=True).view(4, -1).T.reshape(-1)  # about one of each position
    context = {"position": position[lists], "session": torch.arange(rows) // 4}
    return features[lists], context, {"click": click.float()[lists]}


def spurious_share(model, *, steps=250):
    """How much of the relevance is the feature that has no part in it, after training."""
    features, context, labels = biased_log()
    optimiser = torch.optim.Adam(parameter_groups(model, 0.02))
    for _ in range(steps):
        optimiser.zero_grad()
        model.loss(model(features, context), labels).backward()
        optimiser.step()
    quality, spurious = model.relevance.weight[0].abs().tolist()
    return spurious / (quality + spurious)


def test_every_debiaser_learns_less_of_the_loggers_feature_than_naive():
    known = {"width": 2, "tasks": ("click",)}
    naive = spurious_share(Naive(nn.Identity(), **known))
    assert naive > 0.25
    models = {
        "additive": AdditiveTower(nn.Identity(), contexts=CONTEXTS, **known),
        "pal": PAL(nn.Identity(), contexts=CONTEXTS, **known),
        "ips": InversePropensity(nn.Identity(), propensity=[1.0, 0.5 / 0.9, 0.2 / 0.9, 0.1 / 0.9], **known),
        "dla": DualLearning(nn.Identity(), contexts=CONTEXTS, **known),
        "dual": DualHead(nn.Identity(), contexts=CONTEXTS, anchor="detached", **known),
    }
    shares = {name: spurious_share(model) for name, model in models.items()}
    assert max(shares.values()) < naive / 2, shares
    assert shares["dual"] < 0.08


def test_trust_affine_is_affine_in_relevance_between_two_rates_of_each_context():
    model = TrustAffine(nn.Identity(), width=1, contexts={"position": 3}).double()
    with torch.no_grad():
        model.bias.tables[0][:, 0] = torch.tensor([0.0, 2.0, 0.5, -1.0])
        model.trust.tables[0][:, 0] = torch.tensor([0.0, 1.5, 0.0, -2.0])
    gamma = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    for position in range(3):
        context = {"position": torch.full((50,), position)}
        prob = torch.sigmoid(model.observe(torch.logit(gamma).unsqueeze(1), context))[:, 0]
        top = torch.sigmoid(model.bias.tables[0][position + 1, 0])
        bottom = top * torch.sigmoid(model.trust.tables[0][position + 1, 0] - 4)
        torch.testing.assert_close(prob, bottom + (top - bottom) * gamma)


def test_trust_affine_removes_trust_bias_that_the_naive_model_keeps():
    feed = debias_feed("trust", seed=2)
    log = feed.log(4000, seed=1)
    shuffled = feed.log(1500, seed=2, policy=lambda x: np.random.default_rng(0).random(len(x)))
    features, context = torch.from_numpy(log["features"]), {"position": torch.from_numpy(log["position"]).long()}
    click, found = torch.from_numpy(log["click"]).float(), {}
    for kind, options in ((Naive, {}), (TrustAffine, {"contexts": {"position": 10}})):
        torch.manual_seed(0)
        model = kind(nn.Sequential(nn.Linear(12, 32), nn.ReLU()), width=32, **options)
        optimiser = torch.optim.Adam(parameter_groups(model, 1e-2))
        for _ in range(3):
            for rows in torch.randperm(len(click)).split(500):
                outputs = model(features[rows], {"position": context["position"][rows]})
                optimiser.zero_grad()
                model.loss(outputs, {"click": click[rows]}).backward()
                optimiser.step()
        logit = model.eval().serving()(torch.from_numpy(shuffled["features"]))["click"].numpy()
        found[kind] = metrics.ndcg(shuffled["grade"], logit, shuffled["session"], k=10)
    assert found[TrustAffine] > found[Naive] + 0.1
