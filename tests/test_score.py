"""`isolayer train` and `score`: a model reads its own columns by name, or says which are missing."""

import json
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from isolayer.cli.app import app
from isolayer.debias import DualHead
from isolayer.errors import InputError
from isolayer.training.train import Fit, train

runner = CliRunner()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def run(*arguments):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def log(seed=0, rows=600):
    random = np.random.default_rng(seed)
    columns = {
        "price": random.normal(3, 2, rows),
        "age": random.normal(-1, 0.5, rows),
        "size": random.normal(0, 9, rows),
    }
    position = random.integers(0, 4, rows)
    click = random.random(rows) < 1 / (1 + np.exp(1 + position - columns["price"]))
    return pa.table(columns | {"position": position, "click": click.astype(np.int8), "note": ["shown"] * rows})


TRAIN = (
    "--features",
    "price,age,size",
    "--contexts",
    "position:4",
    "--epochs",
    "8",
    "--hidden",
    "4",
    "--batch-size",
    "32",
    "--lr",
    "0.01",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    pq.write_table(log(), folder / "log.parquet")
    run("train", folder / "log.parquet", *TRAIN, "--out", folder / "model")
    return folder


@pytest.fixture
def model(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return trained / "model" / "serving.onnx"


def scored(model, table, *options):
    pq.write_table(table, "log.parquet")
    result = run("score", "log.parquet", "--model", model, *options)
    return pq.read_table("scored.parquet"), result


@pytest.mark.parametrize("options", [(), ("--features", "price,age,size"), ("--features", "size,price,age")])
def test_the_order_of_columns_does_not_matter(model, options):
    plain, _ = scored(model, log())
    reversed_, _ = scored(model, log().select(log().column_names[::-1]), *options)
    for name in ("click_prob", "click_relevance"):
        assert plain[name].equals(reversed_[name])
    assert np.ptp(plain["click_prob"].to_numpy()) > 0.05


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            log().rename_columns(["cost", "age", "size", "position", "click", "note"]),
            (),
            "log: expected the feature columns of the model, got none called price; it has cost, age, size,",
        ),
        (
            log(),
            ("--features", "price,age"),
            "--features: expected the columns of the model, got size left out; leave it out",
        ),
        (
            log(),
            ("--features", "price,age,position"),
            "--features: expected the columns of the model, got size left out and position added; leave it out",
        ),
        (log().set_column(0, "price", pa.array(["a"] * 600)), (), "column price: expected numbers, got string"),
        (
            log().set_column(0, "price", pa.array([None, *range(599)])),
            (),
            "features: expected finite values, got NULL, NaN or infinity; repair those rows",
        ),
        (
            log().append_column("click_prob", log()["price"]),
            (),
            "log: expected no column 'click_prob', which is to be added, got one; rename it",
        ),
        (log().slice(0, 0), (), "log: expected at least one row, got none in 'log.parquet'; check what wrote it"),
    ],
)
def test_columns_that_do_not_fit_are_named(model, table, options, message):
    with pytest.raises(InputError) as error:
        scored(model, table, *options)
    assert str(error.value).startswith(message)
    assert not Path("scored.parquet").exists()


def test_a_feature_in_another_unit_is_pointed_out(model):
    _, result = scored(model, log().set_column(0, "price", pa.array(log()["price"].to_numpy() * 100)))
    assert "warning: the mean of price is 295, in training it was 2.95" in result.stderr
    assert "warning" not in scored(model, log(seed=1))[1].stderr


def test_models_that_cannot_be_used_are_refused(model):
    whole = model.read_bytes()
    nameless = onnx.load(model)
    del nameless.metadata_props[:]
    for content, message in (
        (None, "--model: expected a serving model, as `isolayer train` writes it, at 'my.onnx', got no file; check"),
        (b"no model", "--model: expected an ONNX model, got 'my.onnx'; give what `isolayer train` wrote"),
        (whole[:-500], "--model: expected "),
        (nameless.SerializeToString(), "--model: expected a model that stores its columns, as `isolayer train` writes"),
    ):
        if content is not None:
            Path("my.onnx").write_bytes(content)
        with pytest.raises(InputError) as error:
            scored("my.onnx", log())
        assert str(error.value).startswith(message)
    Path("my.onnx").write_bytes(whole)  # taken out of its folder it still knows its columns
    assert scored("my.onnx", log())[0]["click_prob"].equals(scored(model, log())[0]["click_prob"])


def test_a_damaged_or_foreign_model_beside_a_manifest_is_refused(model, trained, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in model.parent.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    copy = folder / "serving.onnx"
    scored(copy, log())
    whole, random = copy.read_bytes(), np.random.default_rng(0)
    for _ in range(20):
        place = int(random.integers(len(whole)))
        copy.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(InputError, match=r"serving.onnx: expected the file that was written together with"):
            scored(copy, log())


def test_a_column_of_lists_is_read_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = log()
    vectors = pa.array(np.column_stack([plain[name] for name in ("price", "age")]).tolist())
    table = plain.append_column("vector", vectors)
    pq.write_table(table, "day.parquet")
    ranker = DualHead(torch.nn.Linear(2, 4), width=4, tasks=("click",), contexts={"position": 4})
    fit = Fit(epochs=1, progress=False, batch_size=64)
    done = train(ranker, "day.parquet", features="vector", tasks=["click"], contexts=["position"], folder="m", fit=fit)
    found, _ = scored(done.serving, table)
    expected = done.model.serving()(torch.tensor(vectors.to_pylist()))["click_prob"].numpy()
    np.testing.assert_allclose(found["click_prob"], expected, atol=1e-5)
    ragged = pa.array([[1.0], [1.0, 2.0, 3.0]] * 300)  # of 1,200 numbers too
    for column in (pa.array([[1.0]] * 600), ragged, plain["note"]):
        with pytest.raises(InputError, match="column vector: expected lists of 2 numbers, got "):
            scored(done.serving, plain.append_column("vector", column))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"price": np.r_[1e30, np.zeros(599)]}, "features: expected finite numbers up to 1e+18, got 1e+30 in 'price'"),
        ({"click": pa.nulls(600, pa.int8())}, "column 'click': expected labels, got nulls only; check what wrote"),
        ({"click": np.ones(600)}, "column 'click': expected both labels 0 and 1, got 1 in every row; use more rows"),
    ],
)
def test_training_on_unusable_columns_leaves_the_old_model(trained, tmp_path, column, message):
    (name, values), folder = next(iter(column.items())), trained / "model"
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    table = log()
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), tmp_path / "bad.parquet")
    with pytest.raises(InputError) as error:
        run("train", tmp_path / "bad.parquet", *TRAIN, "--out", folder)
    assert str(error.value).startswith(message)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("features", ["*", "price,click", "price,position"])
def test_labels_and_contexts_are_no_features(trained, features):
    with pytest.raises(InputError, match="features: expected no labels, contexts, weights or lists among them, got"):
        run("train", trained / "log.parquet", *TRAIN[2:], "--features", features, "--out", trained / "other")


def test_the_metadata_is_plain_json(model):
    (entry,) = onnx.load(model).metadata_props
    assert entry.key == "isolayer"
    known = json.loads(entry.value)
    assert known["features"] == ["price", "age", "size"]
    assert known["contexts"] == {"position": 4}


def test_loss_weights_per_task_reach_the_model(trained, model):
    pq.write_table(log(), "log.parquet")
    for name, alpha in (("number", "10"), ("mapping", "click:10")):
        run("train", "log.parquet", *TRAIN, "--anchor", "joint", "--alpha", alpha, "--out", name)
    plain, _ = scored(model, log())
    found = [scored(f"{name}/serving.onnx", log())[0]["click_relevance"] for name in ("number", "mapping")]
    assert found[0].equals(found[1])
    assert not found[0].equals(plain["click_relevance"])
    for given, message in (
        ("much", "--alpha: expected a number, or task:number for each task, got 'much'; try 0.25, or name every task"),
        ("click:0.1,2", "--alpha: expected a number, or task:number for each task, got 'click:0.1,2'; try"),
        ("like:1", "alpha: expected a number for each of ['click'], got ['like']; name them all"),
    ):
        with pytest.raises(InputError) as error:
            run("train", "log.parquet", *TRAIN, "--alpha", given)
        assert str(error.value).startswith(message)
