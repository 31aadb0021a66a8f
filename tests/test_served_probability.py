"""Whatever the model, training ends with a served probability that has the rate of the log; the ranking is kept."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from isolayer import debias, simulate
from isolayer.training import model_folder
from isolayer.training.train import Fit, load_weights, train

POSITIONS = {"position": 10}
FEATURES = [f"feature_{i}" for i in range(12)]
COLUMNS = {"features": FEATURES, "tasks": ["click", "skip"], "contexts": ["position"]}


def backbone(more=0):
    return nn.Sequential(nn.Linear(12 + more, 8), nn.ReLU())


def models():
    known = {"width": 8, "tasks": ("click", "skip"), "decreasing": ("skip",)}
    kinds = {
        **{name: {"contexts": POSITIONS} for name in ("AdditiveTower", "PAL", "TrustAffine", "DualLearning")},
        **{name: {"positions": 10} for name in ("DBN", "UBM", "RegressionEM", "PairwiseDebiasing")},
        "GradientReversal": {"contexts": POSITIONS},
        "Naive": {},
        "InversePropensity": {"propensity": [1 / (k + 1) for k in range(10)]},
    }
    made = {
        name: lambda n=name, more=more: getattr(debias, n)(backbone(), **known, **more) for name, more in kinds.items()
    }
    made["PositionAsFeature"] = lambda: debias.PositionAsFeature(backbone(4), contexts=POSITIONS, **known)
    made |= {
        f"DualHead {anchor}": lambda a=anchor: debias.DualHead(backbone(), contexts=POSITIONS, anchor=a, **known)
        for anchor in ("joint", "detached")
    }
    return made


MODELS = models()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    found = simulate.Feed().log(300, seed=2)
    table = {f"feature_{i}": found["features"][:, i] for i in range(12)}
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(pa.table(table | {name: found[name] for name in ("click", "skip", "position", "session")}), path)
    return path, found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_every_way_of_training_ends_with_a_calibrated_probability(name, log, tmp_path, monkeypatch):
    path, rows = log
    monkeypatch.setattr(model_folder, "_can_export", lambda: name == "PAL")
    torch.manual_seed(0)
    fit = Fit(epochs=1, batch_size=500, lr=1e-2, list_id="session", progress=False)
    model = train(MODELS[name](), path, **COLUMNS, folder=tmp_path, fit=fit).model
    features = torch.from_numpy(rows["features"])
    served = model.serving()(features)
    for task, sign in (("click", 1), ("skip", -1)):
        prob, logit = served[f"{task}_prob"].numpy(), served[task].numpy()
        assert prob.mean() == pytest.approx(rows[task].mean(), rel=0.02)
        assert (np.diff(sign * prob[np.argsort(logit)]) >= -1e-6).all()  # the curve cannot change the ranking
    context = {key: torch.from_numpy(rows[key]).long() for key in ("position", "session")}
    heads = model.eval()(features, context)["click"]
    if name != "PositionAsFeature":  # whose relevance depends on the context, except at serving
        prob = torch.sigmoid(heads.served_logit.detach())
        torch.testing.assert_close(prob, served["click_prob"], rtol=1e-4, atol=1e-5)
    again = load_weights(MODELS[name](), tmp_path).serving()(features)
    assert all(torch.equal(again[key], served[key]) for key in served)


@pytest.mark.parametrize("name", ["PAL", "PositionAsFeature", "DualHead joint"])
def test_before_the_fit_the_sigmoid_of_relevance_is_served_and_the_fit_leaves_relevance(name):
    torch.manual_seed(0)
    features, model = torch.randn(4_000, 12), MODELS[name]()
    before = model.serving()(features)
    torch.testing.assert_close(before["skip_prob"], torch.sigmoid(-before["skip"]))
    rate = {"click": torch.sigmoid(2 * before["click"] - 2), "skip": torch.sigmoid(-before["skip"])}
    labels = {task: torch.bernoulli(prob) for task, prob in rate.items()}
    after = model.refit_served(features, labels).serving()(features)
    assert torch.equal(after["click"], before["click"])
    assert float(after["click_prob"].mean()) == pytest.approx(float(labels["click"].mean()), rel=0.01)


@pytest.mark.parametrize("name", ["PAL", "DualHead joint"])
def test_weights_from_before_there_was_a_served_curve_can_be_loaded(name):
    model = MODELS[name]()
    old = {key: value for key, value in model.state_dict().items() if not key.startswith("served_curve")}
    other = MODELS[name]()
    other.load_state_dict(old)
    features = torch.randn(9, 12)
    assert torch.equal(other.serving()(features)["click_prob"], model.serving()(features)["click_prob"])
