"""The folder of a trained model: it knows its columns, changes as a whole, and nothing damaged or unusable gets in."""

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from isolayer import InputError
from isolayer.debias import AdditiveTower, DualHead, Naive
from isolayer.training.checkpoints import read_checkpoint
from isolayer.training.columns import Columns
from isolayer.training.log_check import LogSummary, check_log
from isolayer.training.model_folder import ModelColumns, load_weights, save_model_folder
from isolayer.training.parquet_batches import ParquetLogs
from isolayer.training.train import Fit, train

COLUMNS = {"features": ["price", "age"], "tasks": ["click"], "contexts": ["position"]}
FIT = Fit(epochs=1, batch_size=64, progress=False)


def table(rows=400, seed=0, **columns):
    random = np.random.default_rng(seed)
    price, age = random.normal(3, 2, rows), random.normal(-1, 0.5, rows)
    position = random.integers(0, 4, rows)
    click = random.random(rows) < 1 / (1 + np.exp(1 + position - price))
    plain = {"price": price, "age": age, "position": position, "click": click.astype(np.int8), "weight": np.ones(rows)}
    return pa.table(plain | columns)


def model(seed=0, **options):
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 4), nn.ReLU())
    return DualHead(backbone, **({"width": 4, "tasks": ("click",), "contexts": {"position": 4}} | options))


def run(log, folder, *, fit=FIT, start=None, columns=COLUMNS, **options):
    pq.write_table(log, folder.parent / "log.parquet", row_group_size=100)
    return train(model(**options), folder.parent / "log.parquet", **columns, folder=folder, fit=fit, start=start)


def contents(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "model"
    run(table(), folder)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


def answers(path, features):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"features": features}), session.get_modelmeta().custom_metadata_map


def test_names_order_sizes_and_means_travel_with_the_weights_and_inside_the_export(folder):
    known = ModelColumns.load(folder)
    assert known.features == ["price", "age"]
    assert known.tasks == ["click"]
    assert known.contexts == {"position": 4}
    assert known.width == 2
    features = np.column_stack([table()["price"], table()["age"]])
    np.testing.assert_allclose(known.mean, features.mean(0), rtol=1e-6)
    np.testing.assert_allclose(known.std, features.std(0), rtol=1e-6)
    _, metadata = answers(folder / "serving.onnx", np.zeros((1, 2), np.float32))
    assert json.loads(metadata["isolayer"]) == json.loads((folder / "model.json").read_text()) == known.to_json()


def test_a_folder_gives_back_the_model_that_was_trained(tmp_path):
    done = run(table(), tmp_path / "model")
    features = torch.randn(20, 2)
    again = load_weights(model(seed=5), tmp_path / "model").serving()(features)
    found, _ = answers(done.serving, features.numpy())
    for name, value, exported in zip(again, again.values(), found, strict=True):
        assert torch.equal(value, done.model.serving()(features)[name])
        np.testing.assert_allclose(exported, value.numpy(), atol=1e-5)


@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_files_have_the_mode_that_the_umask_gives(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_model_folder(model(), tmp_path, described(model()))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)
    assert "model.safetensors" in modes


def described(any_model, tasks=("click",)):
    columns = Columns(["price", "age"], list(tasks), ["position"])
    return ModelColumns.of(any_model, columns, LogSummary(9, np.zeros(2), np.ones(2)))


def test_a_model_without_curves_leaves_none_of_an_earlier_one(folder):
    assert (folder / "curves.parquet").exists()
    naive = Naive(nn.Identity(), width=2)
    paths = save_model_folder(naive, folder, described(naive))
    assert paths["curves.parquet"] is None
    assert not (folder / "curves.parquet").exists()
    assert ModelColumns.load(folder).contexts == {"position": None}
    tower = AdditiveTower(nn.Identity(), width=2, contexts={"position": 4})
    save_model_folder(tower, folder, described(tower))
    assert ModelColumns.load(folder).contexts == {"position": 4}


BAD = {
    "a huge feature": (
        {"price": np.r_[1e30, np.zeros(399)]},
        "features: expected finite numbers up to 1e+18, got 1e+30 in 'price'; repair the rows, or rescale the column",
    ),
    "an infinite feature": (
        {"age": np.r_[np.zeros(399), -np.inf]},
        "features: expected finite numbers up to 1e+18, got -inf in 'age'; repair the rows, or rescale the column",
    ),
    "labels all null": (
        {"click": pa.nulls(400, pa.int8())},
        "column 'click': expected labels, got nulls only; check what wrote the column",
    ),
    "one class": (
        {"click": np.zeros(400)},
        "column 'click': expected both labels 0 and 1, got 0 in every row; use more rows",
    ),
    "few labels": (
        {"click": pa.array([1, 0] + [None] * 398, pa.int8())},
        "column 'click': expected labels in the training rows and in the held-out rows, got none in one; use more rows",
    ),
    "labels of two": (
        {"click": np.tile([0, 2], 200)},
        "column 'click': expected labels in [0, 1], got 2; use null for none",
    ),
    "labels that are not numbers": (
        {"click": np.r_[np.nan, np.ones(399)]},
        "column 'click': expected labels in [0, 1], got nan; use null for none",
    ),
    "a position beyond the table": (
        {"position": np.arange(400) % 5},
        "column 'position': expected ids from -1 (unknown) to 3, got 4; count ids from 0, or give a vocabulary",
    ),
    "a position below -1": (
        {"position": np.arange(400) % 4 - 2},
        "column 'position': expected ids from -1 (unknown) to 3, got -2; count ids from 0, or give a vocabulary",
    ),
    "no weight": (
        {"weight": np.zeros(400)},
        "column 'weight': expected a positive weight, got zeros only; check it",
    ),
    "a negative weight": (
        {"weight": np.r_[np.ones(399), -1]},
        "column 'weight': expected finite weights >= 0, got -1; check the column",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_an_unusable_column_is_named_and_the_old_model_stays(folder, name):
    columns, message = BAD[name]
    before = contents(folder)
    with pytest.raises(InputError) as error:
        run(table(**columns), folder, fit=Fit(epochs=1, batch_size=64, progress=False, weight="weight"))
    assert str(error.value) == message
    assert contents(folder) == before


class Overflowing(nn.Module):
    def forward(self, features):
        return torch.exp(100 * features)


def test_training_that_diverges_is_an_error_and_the_old_model_stays(folder, tmp_path):
    before = contents(folder)
    pq.write_table(table(), tmp_path / "log.parquet")
    diverging = DualHead(Overflowing(), width=2, tasks=("click",), contexts={"position": 4})
    with pytest.raises(
        InputError, match=r"loss: expected a finite number, got (nan|inf) at step 0; lower the learning"
    ):
        train(diverging, tmp_path / "log.parquet", **COLUMNS, folder=folder, fit=FIT)
    assert contents(folder) == before


def test_weights_that_are_not_finite_are_never_written(folder):
    before, broken = contents(folder), model()
    broken.backbone[0].running_var[1] = torch.inf
    with pytest.raises(InputError, match=r"weights: expected finite numbers, got NaN or infinity in 'backbone.0.runn"):
        save_model_folder(broken, folder, described(broken))
    assert contents(folder) == before


def test_the_summary_of_a_log_is_that_of_its_rows(tmp_path):
    log = table(rows=1000, price=1.6e9 + np.arange(1000) % 7)
    pq.write_table(log, tmp_path / "log.parquet", row_group_size=300)
    found = check_log(ParquetLogs(tmp_path / "log.parquet", Columns(["price", "age"], ["click"], ["position"])))
    rows = np.column_stack([log["price"], log["age"]]).astype(np.float32).astype(np.float64)
    assert found.rows == 1000
    np.testing.assert_allclose(found.mean, rows.mean(0))
    np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"features": ["age", "price"]}, r"one with features \['price', 'age'\] instead of \['age', 'price'\]"),
        ({"features": ["price", "weight"]}, r"one with features \['price', 'age'\] instead of \['price', 'weight'\]"),
    ],
)
@pytest.mark.parametrize("start", ["resume", "path"])
def test_training_does_not_go_on_from_other_columns(folder, columns, message, start):
    chosen = folder / "last.ckpt" if start == "path" else "resume"
    with pytest.raises(InputError, match=message):
        run(table(), folder, columns=COLUMNS | columns, start=chosen)


def damaged(whole, number, random):
    place = int(random.integers(len(whole)))
    if number % 3 == 0:
        return whole[:place] + bytes([whole[place] ^ 1 << int(random.integers(8))]) + whole[place + 1 :]
    return whole[:place] if number % 3 == 1 else whole[:place] + random.bytes(16) + whole[place + 16 :]


def same_or_refused(call, expected):
    """Whether a call was refused, in one line; otherwise its weights must be the expected ones."""
    try:
        found = call()
    except InputError as error:
        return "\n" not in str(error)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    return False


def test_a_damaged_checkpoint_is_refused_or_the_same(folder):
    path, random = folder / "last.ckpt", np.random.default_rng(0)
    whole, expected = path.read_bytes(), torch.load(path, weights_only=True)["state_dict"]
    refused = 0
    for number in range(150):
        path.write_bytes(damaged(whole, number, random))
        refused += same_or_refused(lambda: read_checkpoint(path)["state_dict"], expected)
    assert refused > 100
    path.write_bytes(whole[:-100])
    with pytest.raises(InputError, match="start: expected a checkpoint of the same model"):
        run(table(), folder, start="resume")


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "manifest.json"])
def test_damaged_weights_are_refused_or_the_same(folder, name):
    path, random = folder / name, np.random.default_rng(0)
    whole, expected = path.read_bytes(), load_weights(model(), folder).state_dict()
    refused = 0
    for number in range(60):
        path.write_bytes(damaged(whole, number, random))
        refused += same_or_refused(lambda: load_weights(model(), folder).state_dict(), expected)
    assert refused == 60 if name != "manifest.json" else refused > 30  # it also has the digests of other files


def test_weights_of_another_model_are_refused(folder):
    with pytest.raises(InputError, match=r"model: expected the tasks \['click'\], got \['like'\]; build it as it was"):
        load_weights(model(tasks=("like",)), folder)
    with pytest.raises(
        InputError, match=r"weights: expected those of the same model in .*, got something else; build the model"
    ):
        load_weights(model(contexts={"position": 5}), folder)
    with pytest.raises(InputError, match=r"manifest: expected a manifest at '.*nowhere/manifest.json', got no file"):
        load_weights(model(), folder / "nowhere")


KILLS = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np, torch
from torch import nn
from isolayer.debias import DualHead
from isolayer.training import model_folder
from isolayer.training.columns import Columns
from isolayer.training.log_check import LogSummary
from isolayer.training.model_folder import ModelColumns, load_weights, save_model_folder
import onnxruntime

def made(seed):
    torch.manual_seed(seed)
    return DualHead(nn.Linear(2, 3), width=3, tasks=("click",), contexts={"position": 4})

def answer(model):
    return model.serving()(features)["click"].numpy()

folder, features = Path(sys.argv[1]), torch.eye(2)
old, new = made(0), made(1)
known = ModelColumns.of(old, Columns(["a", "b"], ["click"], ["position"]), LogSummary(9, np.zeros(2), np.ones(2)))
save_model_folder(new, folder, known)
exported = (folder / "serving.onnx").read_bytes()
save_model_folder(old, folder, known)
shutil.copytree(folder, f"{folder}.old")
model_folder.export_onnx = lambda serving, path, columns: path.write_bytes(exported)  # the same, but in no time
real, outcomes = Path.replace, []
for last in range(20):
    child = os.fork()
    if not child:
        done = 0
        def counted(self, target):
            global done
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return real(self, target)
        Path.replace = counted
        save_model_folder(new, folder, known)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = answer(load_weights(made(2), folder))
    session = onnxruntime.InferenceSession(str(folder / "serving.onnx"), providers=["CPUExecutionProvider"])
    served = session.run(None, {"features": features.numpy()})[0]
    np.testing.assert_allclose(served, found, atol=1e-6)
    assert np.array_equal(found, answer(old)) or np.array_equal(found, answer(new))
    outcomes.append("new" if np.array_equal(found, answer(new)) else "old")
    if status == 0:
        break
    shutil.rmtree(folder)
    shutil.copytree(f"{folder}.old", folder)
print(*outcomes)
"""


def test_a_process_killed_at_any_rename_leaves_the_old_model_or_the_new_one(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(KILLS)
    (tmp_path / "model").mkdir()
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = done.stdout.split()
    assert outcomes[0] == "old"
    assert outcomes[-1] == "new"
    assert outcomes == sorted(outcomes, reverse=True)  # one commit point
    assert len(outcomes) > 4
    assert not [path.name for path in (tmp_path / "model").iterdir() if path.name.startswith(".")]
