"""What an environment must do: run by ``smoke.py`` inside each of them, with the name of its extra.

The core works everywhere; of the extras, those that are installed work and the others say which extra brings them.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import isolayer
from isolayer import Curves, Histogram, IsotonicCalibrator, metrics
from isolayer.errors import EXTRA_OF

FOLDER = Path(tempfile.mkdtemp(prefix="isolayer-"))
RNG = np.random.default_rng(0)
ROWS = {"score": RNG.normal(size=2000), "device": RNG.choice(["tv", "web"], 2000)}
LABEL = (RNG.random(2000) < 1 / (1 + np.exp(-ROWS["score"]))).astype(int)
LOG = ROWS | {"label": LABEL}
CALIBRATOR = IsotonicCalibrator(("device",)).fit(ROWS, LABEL)
CURVES = CALIBRATOR.curves_
PROB = CALIBRATOR.predict_proba(ROWS)[:, 1]


def core():
    assert "site-packages" in isolayer.__file__
    CURVES.save(FOLDER / "curves.parquet")
    again = Curves.load(FOLDER / "curves.parquet")
    np.testing.assert_array_equal(again.predict_proba(ROWS["score"], ROWS), PROB)
    histogram = Histogram.from_arrays(ROWS["score"], LABEL, {"device": ROWS["device"]})
    histogram.save(FOLDER / "sums.parquet")
    assert Histogram.load(FOLDER / "sums.parquet").rows == 2000
    table = pa.table(ROWS)
    np.testing.assert_array_equal(IsotonicCalibrator(("device",)).fit(table, LABEL).predict_proba(table)[:, 1], PROB)
    assert metrics.ece(LABEL, PROB) < 0.1
    assert isolayer.policy.ipw(LABEL, np.ones(2000)).value == LABEL.mean()
    assert len(isolayer.simulate.Feed().log(10)["click"]) == 100


def torch():
    import torch

    layer = CURVES.to_layer()
    ids = {"curve": torch.from_numpy(CURVES.rows_of(ROWS, 2000))}
    logit = layer(torch.from_numpy(ROWS["score"]), ids).detach().numpy().reshape(-1)
    np.testing.assert_allclose(1 / (1 + np.exp(-logit)), PROB, atol=1e-9)
    model = isolayer.DualHead(torch.nn.Linear(3, 4), width=4, tasks=("click",), contexts={"position": 5})
    assert model.serving()(torch.zeros(2, 3))["click_prob"].shape == (2,)


def data():
    fitted = IsotonicCalibrator(("device",)).fit_table(LOG)
    np.testing.assert_allclose(fitted.predict_proba(ROWS)[:, 1], PROB, atol=1e-6)
    applied = CURVES.apply_table(LOG).to_pyarrow()["calibrated_prob"].to_numpy()
    np.testing.assert_allclose(np.sort(applied), np.sort(PROB), atol=1e-9)


def onnx():
    import onnxruntime

    CURVES.to_onnx(FOLDER / "curves.onnx")
    session = onnxruntime.InferenceSession(FOLDER / "curves.onnx")
    (found,) = session.run(["prob"], {"score": ROWS["score"], "device": ROWS["device"].astype(object)})
    np.testing.assert_allclose(found, PROB, atol=1e-9)


def report():
    assert CURVES.plot().to_dict()["$schema"]
    assert CALIBRATOR.report(FOLDER / "fit.html").stat().st_size > 100_000


def train():
    import torch

    from isolayer.training.train import Fit, train

    log = isolayer.simulate.Feed(positions=5).log(200)
    features = [f"x{place}" for place in range(log["features"].shape[1])]
    columns = dict(zip(features, log["features"].T, strict=True)) | {"click": log["click"], "position": log["position"]}
    pq.write_table(pa.table(columns), FOLDER / "feed.parquet")
    backbone = torch.nn.Linear(len(features), 4)
    model = isolayer.DualHead(backbone, width=4, tasks=("click",), contexts={"position": 5})
    trained = train(
        model,
        FOLDER / "feed.parquet",
        features=features,
        tasks=["click"],
        contexts=["position"],
        folder=FOLDER / "model",
        fit=Fit(epochs=1, progress=False),
    )
    assert np.isfinite(trained.held_out_loss)


def cli():
    pq.write_table(pa.table(LOG), FOLDER / "log.parquet")
    command = [sys.executable, "-m", "isolayer", "fit", "log.parquet", "--scale", "logit", "--contexts", "device"]
    subprocess.run([*command, "--out", "cli.parquet"], cwd=FOLDER, check=True, capture_output=True)
    np.testing.assert_allclose(Curves.load(FOLDER / "cli.parquet").predict_proba(ROWS["score"], ROWS), PROB, atol=1e-6)


def boosting():
    log = isolayer.simulate.debias_feed("position").log(100, seed=1)
    for engine in ("lightgbm", "xgboost"):
        ranker = isolayer.debias.BoostedRanker({"position": 10}, engine=engine, curves="trees", rounds=5)
        ranker.fit(log["features"], log["click"], {"position": log["position"]}, lists=log["session"])
        assert np.isfinite(ranker.predict(log["features"])).all()


def integrations():
    import pandas as pd

    from isolayer import mlflow

    mlflow.save_model(CURVES, FOLDER / "mlflow")
    again = mlflow.load_model(str(FOLDER / "mlflow"))
    np.testing.assert_array_equal(again.predict_proba(ROWS["score"], pd.DataFrame(ROWS)), PROB)


EXTRAS = {"torch": torch, "data": data, "onnx": onnx, "report": report, "train": train}
EXTRAS |= {"boosting": boosting, "integrations": integrations, "cli": cli}
BROUGHT = {
    "core": (),
    "train": ("torch", "train"),
    "boosting": ("torch", "boosting"),
    "cli": ("cli", "data", "report"),
    "all": [extra for extra in EXTRAS if extra != "integrations"],
    "lowest": EXTRAS,
}
ASKING = {
    "torch": "isolayer.DualHead",
    "data": "CURVES.apply_table(LOG)",
    "onnx": "CURVES.to_onnx(FOLDER / 'no.onnx')",
    "report": "CURVES.plot()",
    "train": "isolayer.errors.need('isolayer.training.train')",
    "boosting": "isolayer.errors.need('lightgbm')",
    "integrations": "isolayer.errors.need('mlflow.pyfunc')",
    "cli": "isolayer.errors.need('isolayer.cli.app')",
}


def refusal(words):
    try:
        eval(words)
    except isolayer.MissingExtra as error:
        return str(error)
    return f"{words} works"


def main(name):
    present = {EXTRA_OF[package] for package in EXTRA_OF if importlib.util.find_spec(package)} - {"torchrec"}
    core()
    for extra, check in EXTRAS.items():
        if extra in BROUGHT.get(name, (name,)):
            check()
        elif extra not in present:
            assert re.search(r"in a clone of isolayer, pip install '\.\[\w+\]'$", refusal(ASKING[extra])), extra


if __name__ == "__main__":
    main(sys.argv[1])
