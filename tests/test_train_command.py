"""`isolayer train` on the logs that people have: text, 1-based positions, CSV, several directions, leaks, processes."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isolayer import Curves, simulate
from isolayer.cli.app import app
from isolayer.errors import InputError
from isolayer.report.bias import learned_bias

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
DEVICES = np.array(["app", "tv", "web"])


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def feed():
    """A day of a simulated feed as engineers have it: positions from 1, devices by name, truth kept aside."""
    return simulate.debias_feed("position", "spurious").log(3_000, seed=1)


def table(feed):
    columns = {f"f{i}": feed["features"][:, i] for i in range(feed["features"].shape[1])}
    seen = {"session": feed["session"], "position": feed["position"] + 1, "device": DEVICES[feed["device"]]}
    labels = {"click": feed["click"].astype(np.int8)}
    # Whoever does not care skips.
    random = np.random.default_rng(0)
    skip = random.random(len(feed["click"])) < 0.6 / (
        1 + np.exp(2 * feed["prob_click"] / feed["prob_click"].mean() - 2)
    )
    return pa.table(columns | seen | labels | {"skip": (skip & (labels["click"] == 0)).astype(np.int8)})


OPTIONS = ("--features", "f*", "--epochs", "3", "--lr", "0.003", "--batch-size", "512", "--hidden", "16")


@pytest.fixture(scope="module")
def trained(feed, tmp_path_factory):
    """A model of both tasks, trained from CSV, with skip declared decreasing."""
    folder = tmp_path_factory.mktemp("trained")
    pyarrow.csv.write_csv(table(feed), folder / "log.csv")
    pq.write_table(table(feed), folder / "log.parquet")
    result = run(
        *("train", folder / "log.csv", *OPTIONS, "--tasks", "click,skip", "--decreasing", "skip"),
        *("--list", "session", "--out", folder / "model"),
    )
    assert "warning" not in result.stderr
    return folder


def scored(folder, log="log.parquet", model="model"):
    run("score", folder / log, "--model", folder / model, "--out", folder / "scored.parquet")
    return pq.read_table(folder / "scored.parquet")


def test_relevance_of_every_task_rises_with_relevance(trained):
    found = scored(trained)
    click, skip = (found[f"{task}_relevance"].to_numpy() for task in ("click", "skip"))
    assert np.corrcoef(click, skip)[0, 1] > 0.2
    assert np.corrcoef(skip, found["skip_prob"].to_numpy())[0, 1] < 0  # the probability of a skip falls


def test_an_undeclared_direction_and_a_wrong_one_are_named(trained, tmp_path):
    for declared, tasks, message in (
        ((), "click,skip", "warning: task 'skip' falls where 'click' rises (correlation -"),
        (
            ("--decreasing", "again"),
            "click,again",
            "warning: task 'again' was declared decreasing, but rises where 'click'",
        ),
    ):
        day = pq.read_table(trained / "log.parquet")
        pq.write_table(day.append_column("again", day["click"]), tmp_path / "log.parquet")
        result = run("train", tmp_path / "log.parquet", *OPTIONS, "--tasks", tasks, *declared, "--out", tmp_path / "m")
        assert message in result.stderr


def test_served_probabilities_are_within_one_percent_of_the_rate(trained):
    found = scored(trained)
    for task in ("click", "skip"):
        assert found[f"{task}_prob"].to_numpy().mean() == pytest.approx(found[task].to_numpy().mean(), rel=0.01)


def test_values_are_stored_with_the_model(trained):
    known = json.loads((trained / "model" / "model.json").read_text())
    assert known["vocabularies"] == {"position": list(range(1, 11)), "device": DEVICES.tolist()}
    assert known["decreasing"] == ["skip"]
    curves = Curves.load(trained / "model" / "curves.parquet")
    assert sorted(set(curves.keys[3][2].tolist())) == DEVICES.tolist()
    assert curves.predict_proba([0.0], {"task": ["click"], "position": [10], "device": ["web"]})[0] < 0.5


def test_the_learned_bias_is_that_of_diagnose(trained, feed):
    result = run("diagnose", trained / "log.parquet", "--model", trained / "model", "--list", "session", "--json")
    found = json.loads(result.stdout)["figures"]
    bias = learned_bias(Curves.load(trained / "model" / "curves.parquet"))
    assert bias.averaged
    np.testing.assert_allclose(bias.relative[0], found["learned"], rtol=0.02)
    seen = np.array([feed["examination"][feed["position"] == place].mean() for place in range(10)])
    assert np.abs(np.log(found["learned"] / (seen / seen[0]))).mean() < 0.3
    assert set(found) >= {"alpha", "mode", "harvested", "observed_over_expected"}
    said = run("diagnose", trained / "log.parquet", "--model", trained / "model").stdout
    assert "position 10: learned 0." in said
    with pytest.raises(InputError, match="--label: expected a task of the model in the log, got 'like'"):
        run("diagnose", trained / "log.parquet", "--model", trained / "model", "--label", "like")


def test_text_features_are_embedded_and_unseen_values_are_unknown(trained, tmp_path):
    day = pq.read_table(trained / "log.parquet")
    random = np.random.default_rng(1)
    kind = np.where(
        day["click"].to_numpy() == 1,
        random.choice(["a", "b"], len(day), p=[0.8, 0.2]),
        random.choice(["a", "b"], len(day)),
    )
    day = day.append_column("kind", pa.array(kind)).append_column("maker", pa.array(random.integers(70, 75, len(day))))
    pq.write_table(day, tmp_path / "log.parquet")
    run(
        *("train", tmp_path / "log.parquet", *OPTIONS[2:], "--features", "f0,kind,maker", "--categories", "maker"),
        *("--out", tmp_path / "model"),
    )
    known = json.loads((tmp_path / "model" / "model.json").read_text())
    assert known["vocabularies"]["kind"] == ["a", "b"]
    assert known["vocabularies"]["maker"] == [70, 71, 72, 73, 74]
    found = scored(tmp_path)
    by_kind = [found["click_relevance"].to_numpy()[kind == one].mean() for one in ("a", "b")]
    assert by_kind[0] > by_kind[1] + 0.3
    place = day.column_names.index("kind")
    pq.write_table(day.set_column(place, "kind", pa.array(["new"] * len(day))), tmp_path / "new.parquet")
    unknown = scored(tmp_path, "new.parquet")["click_relevance"].to_numpy()
    assert np.isfinite(unknown).all()
    pq.write_table(day.set_column(place, "kind", pa.nulls(len(day), pa.string())), tmp_path / "null.parquet")
    assert scored(tmp_path, "null.parquet")["click_relevance"].to_numpy().tolist() == unknown.tolist()


def test_the_next_day_keeps_the_ids_of_the_first(trained, tmp_path):
    day = pq.read_table(trained / "log.parquet")
    fewer = day.filter(pa.compute.not_equal(day["device"], "app"))
    pq.write_table(fewer, tmp_path / "next.parquet")
    run(
        *("train", tmp_path / "next.parquet", *OPTIONS, "--tasks", "click,skip", "--decreasing", "skip"),
        *("--start-from", trained / "model" / "last.ckpt", "--out", tmp_path / "model"),
    )
    assert json.loads((tmp_path / "model" / "model.json").read_text())["vocabularies"]["device"] == DEVICES.tolist()


@pytest.mark.parametrize(
    ("leak", "why"),
    [
        (lambda click, random: click * random.uniform(1, 60, len(click)), "area under its ROC curve 1.000"),
        (
            lambda click, random: click * (random.random(len(click)) < 0.5),
            "of the positives have values that no negative",
        ),
    ],
    ids=["dwell time", "another label"],
)
def test_features_that_tell_the_label_are_refused(trained, tmp_path, leak, why):
    day = pq.read_table(trained / "log.parquet")
    column = leak(day["click"].to_numpy(), np.random.default_rng(0)).astype(np.float64)
    pq.write_table(day.append_column("f_leak", pa.array(column)), tmp_path / "log.parquet")
    arguments = ("train", tmp_path / "log.parquet", *OPTIONS, "--out", tmp_path / "model")
    with pytest.raises(InputError) as error:
        run(*arguments)
    assert str(error.value).startswith(
        "features: expected columns that are known before the label, got 'f_leak', which gives 'click' away ("
    )
    assert why in str(error.value)
    assert not (tmp_path / "model").exists()
    result = run(*arguments, "--allow-leaks", "--epochs", "6")
    if "ROC" in why:
        assert "which is too good to be true" in result.stderr


def test_mode_reaches_the_model(trained, tmp_path):
    run("train", trained / "log.parquet", *OPTIONS[:2], "--epochs", "1", "--mode", "cross", "--out", tmp_path / "model")
    with pytest.raises(InputError, match="mode: expected 'sum' or 'cross', got 'product'"):
        run("train", trained / "log.parquet", *OPTIONS[:2], "--mode", "product", "--out", tmp_path / "other")


def test_under_torchrun_one_process_speaks_and_the_steps_stay(trained, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "isolayer"]
    arguments = ["train", trained / "log.parquet", *OPTIONS[:2], "--epochs", "1", "--batch-size", "512"]
    losses = {}
    for name, start in (("one", [sys.executable, "-m", "isolayer"]), ("two", command)):
        done = subprocess.run(
            [*start, *map(str, arguments), "--out", str(tmp_path / name)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert len(re.findall("held out loss", done.stdout)) == 1
        assert done.stderr.count("next: isolayer score") == 1
        losses[name] = float(re.findall(r"held out loss +(\S+)", done.stdout)[0])
        for banner in ("GPU available", "distributed_backend", "💡", "LOCAL_RANK", "litlogger"):
            assert banner not in done.stdout + done.stderr
        steps = np.genfromtxt(tmp_path / name / "csv" / "version_0" / "metrics.csv", delimiter=",", names=True)["step"]
        assert int(np.nanmax(steps)) == 27_000 // 512 - 1
    assert losses["two"] == pytest.approx(losses["one"], rel=0.02)


def test_a_loss_over_lists_is_trained_from_lists_and_serves_the_click_rate(feed, tmp_path):
    pq.write_table(table(feed), tmp_path / "log.parquet")
    where = (tmp_path / "log.parquet", *OPTIONS, "--loss", "pairwise")
    with pytest.raises(InputError, match="--list: expected a column of lists, since --loss pairwise compares lists"):
        run("train", *where)
    with pytest.raises(InputError, match="loss: expected 'pointwise', 'listwise', "):
        run("train", *where[:-1], "hinge", "--list", "session")
    run("train", *where, "--list", "session", "--out", tmp_path / "model")
    out = tmp_path / "scored.parquet"
    run("score", tmp_path / "log.parquet", "--model", tmp_path / "model" / "serving.onnx", "--out", out)
    scored = pq.read_table(out)
    assert scored["click_prob"].to_numpy().mean() == pytest.approx(feed["click"].mean(), rel=0.01)
    assert np.corrcoef(scored["click_relevance"].to_numpy(), feed["relevance_click"])[0, 1] > 0.4
