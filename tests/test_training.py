"""Training: logs are streamed, runs resume to the bit, days follow one another, and torchrun is the same command."""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isolayer import InputError, simulate
from isolayer.debias import DualHead
from isolayer.debias.baselines import Naive
from isolayer.debias.diagnose import position_effect
from isolayer.training import log_check
from isolayer.training.columns import Batch, Columns
from isolayer.training.log_check import check_log
from isolayer.training.parquet_batches import LogBatches, ParquetLogs, RowGroup
from isolayer.training.train import Fit, load_weights, train

COLUMNS = {"features": "features", "tasks": ["click"], "contexts": ["position", "device"]}


def write(path, log, rows=None, row_group=2_000):
    take = slice(rows)
    width = log["features"].shape[1]
    features = pa.FixedSizeListArray.from_arrays(pa.array(log["features"][take].ravel()), width)
    table = pa.table({"features": features} | {name: log[name][take] for name in ("click", "position", "device")})
    pq.write_table(table, path, row_group_size=row_group)
    return path


@pytest.fixture(scope="module")
def log_file(tmp_path_factory):
    log = simulate.debias_feed("position", "spurious").log(1_000)
    return write(tmp_path_factory.mktemp("logs") / "day.parquet", log)


def dual_head(seed=0, **options):
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
    contexts = {"position": 10, "device": 3}
    return DualHead(backbone, width=16, tasks=("click",), contexts=contexts, **options)


def numbered(path, groups, rows=50):
    """A log whose one feature is the number of the row."""
    number = np.arange(groups * rows)
    table = pa.table({"x": number.astype(np.float32), "y": number % 2, "k": number % 3})
    pq.write_table(table, path, row_group_size=rows)
    return path


def read(logs, **options):
    batches = list(LogBatches(logs, **options))
    return [int(x) for batch in batches for x in batch.features[:, 0]], [len(batch.features) for batch in batches]


@pytest.mark.parametrize(
    ("options", "unseen"),
    [
        ({"reference": {"position": 9}}, "position 9"),
        ({"reference": {"position": 9, "device": 2}, "mode": "cross"}, "position 9, device 2"),
        ({"reference": {"position": 9}, "anchor": "joint"}, None),  # the served logit ties relevance to a scale
        ({"reference": {"position": 8}}, None),
        ({}, None),
    ],
    ids=str,
)
def test_a_reference_that_never_occurs_is_told(tmp_path, options, unseen):
    log = simulate.debias_feed("position").log(300)
    log = {name: column[log["position"] < 9] for name, column in log.items()}
    told = "reference: expected ids that occur in the log, got {}, which does not; relevance has no scale then"
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        found = train(
            dual_head(**options), write(tmp_path / "log.parquet", log), **COLUMNS, folder=tmp_path, fit=Fit(epochs=1)
        ).warnings
    found = [text for text in found if text.startswith("reference")]
    assert [text.partition(":")[0] for text in found] == (["reference"] if unseen else [])
    assert not unseen or found[0].startswith(told.format(unseen))


@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("world", [1, 2])
def test_every_row_is_read_once_by_one_process(tmp_path, groups, world):
    columns = Columns(["x"], ["y"], ["k"])
    logs = ParquetLogs(numbered(tmp_path / "log.parquet", groups), columns, held_out=0.2, buffer=60)
    seen = {}
    for training in (True, False):
        parts = [
            read(logs, batch_size=1, train=training, place=lambda rank=rank: (rank, world)) for rank in range(world)
        ]
        assert len({len(rows) for rows, _ in parts}) == 1  # a process that had more batches would wait for ever
        seen[training] = [row for rows, _ in parts for row in rows]
        assert len(set(seen[training])) == len(seen[training])
    assert len(seen[False]) == groups * 50 * 0.2
    assert sorted(seen[True] + seen[False]) == list(range(groups * 50))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=14),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.booleans(),
)
def test_processes_share_row_groups_of_any_sizes_equally(sizes, world, held_out, training):
    """Row groups of alternating sizes, say: a process with fewer rows would make the others leave out theirs."""
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"x": np.arange(sum(sizes)), "y": np.zeros(sum(sizes)), "k": np.zeros(sum(sizes), int)})
        with pq.ParquetWriter(f"{folder}/log.parquet", table.schema) as writer:
            for end, size in zip(np.cumsum(sizes), sizes, strict=True):
                writer.write_table(table.slice(end - size, size))
        logs = ParquetLogs(f"{folder}/log.parquet", Columns(["x"], ["y"], ["k"]), held_out=held_out)
        read_by = [
            np.concatenate([np.zeros(0), *(logs.read(*part)["x"].to_numpy() for part in shared)])
            for shared in (logs.share(train=training, rank=rank, world=world) for rank in range(world))
        ]
        parts = [logs.read(*part)["x"].to_numpy() for part in logs.share(train=training)]
    assert max(map(len, read_by)) - min(map(len, read_by)) <= 1
    assert sorted(np.concatenate(read_by)) == sorted(np.concatenate([np.zeros(0), *parts]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=14) | st.lists(st.integers(1, 5), min_size=1, max_size=80),
    st.floats(0, 0.99),
    st.integers(0, 9),
)
def test_the_held_out_share_is_that_of_the_whole_log(sizes, held_out, seed):
    """However small the row groups are: each would round its share to none."""
    logs = ParquetLogs("log", Columns(["x"], ["y"], ["k"]), held_out=held_out, seed=seed)
    groups = [RowGroup("log", place, rows, place) for place, rows in enumerate(sizes)]
    logs.__dict__["row_groups"] = groups
    parts = {part: [len(logs.rows_of(group, train=part)) for group in groups] for part in (True, False)}
    assert [sum(both) for both in zip(parts[True], parts[False], strict=True)] == sizes
    assert abs(sum(parts[False]) - held_out * sum(sizes)) < 1
    for found, rows in zip(parts[False], sizes, strict=True):
        assert abs(found - held_out * rows) < 1 + 1e-9
    if len(sizes) == 1:
        assert sum(parts[False]) == round(held_out * sizes[0])


def test_a_log_of_single_rows_holds_out_other_rows_with_another_seed():
    found = set()
    for seed in range(3):
        logs = ParquetLogs("log", Columns(["x"], ["y"], ["k"]), seed=seed)
        logs.__dict__["row_groups"] = [RowGroup("log", place, 1, place) for place in range(200)]
        found.add(tuple(group.number for group, _ in logs.share(train=False)))
    assert len(found) == 3
    assert {len(rows) for rows in found} == {20}


def test_orders_differ_by_epoch_and_rows_held_out_do_not(tmp_path):
    logs = ParquetLogs(numbered(tmp_path / "log.parquet", 12), Columns(["x"], ["y"], ["k"]), buffer=120)
    one, sizes = read(logs, batch_size=50, train=True, epoch=lambda: 0)
    two, _ = read(logs, batch_size=50, train=True, epoch=lambda: 1)
    assert sizes == [50] * 10  # whole batches only: what is left over differs by epoch
    assert one == read(logs, batch_size=50, train=True, epoch=lambda: 0)[0]
    assert one != two
    assert one != sorted(one)
    held, sizes = read(logs, batch_size=25, train=False, epoch=lambda: 0)
    assert sizes == [25, 25, 10]
    assert held == sorted(held) == read(logs, batch_size=25, train=False, epoch=lambda: 1)[0]
    other = ParquetLogs(logs.paths, logs.columns, seed=1)
    assert held != read(other, batch_size=25, train=False)[0]


def test_no_more_is_read_than_the_buffer_asks_for(tmp_path):
    class Counted(ParquetLogs):
        def read(self, group, rows=None):
            pieces.append(group.rows)
            return super().read(group, rows)

    pieces = []
    logs = Counted(numbered(tmp_path / "log.parquet", 40), Columns(["x"], ["y"], ["k"]), held_out=0.0, buffer=100)
    batches = iter(LogBatches(logs, batch_size=20, train=True))
    for _ in range(5):
        next(batches)
    assert sum(pieces) == 100  # two row groups of forty
    next(batches)
    assert sum(pieces) == 200


@pytest.mark.parametrize(("train", "held_out"), [(False, 0.02), (True, 0.98)])
def test_rows_that_are_not_wanted_are_not_kept(tmp_path, monkeypatch, train, held_out):
    kept, joined = [], Batch.joined.__func__
    monkeypatch.setattr(Batch, "joined", classmethod(lambda cls, parts: (kept.append(parts), joined(cls, parts))[1]))
    number = np.arange(20_000)
    pq.write_table(
        pa.table({"x": number * 1.0, "y": number % 2, "k": number % 5}), tmp_path / "l.parquet", row_group_size=500
    )
    logs = ParquetLogs(tmp_path / "l.parquet", Columns(["x"], ["y"], ["k"]), held_out=held_out)
    rows = np.concatenate([batch.features[:, 0].numpy() for batch in LogBatches(logs, batch_size=10, train=train)])
    assert len(np.unique(rows)) == len(rows) > 300
    assert sum(len(part.features) for parts in kept for part in parts) < 2 * len(rows)


@pytest.mark.parametrize(
    "labels",
    [[True, None, False], ["yes", None, "no"], pa.array(["yes", None, "no"]).dictionary_encode(), [1, None, 0]],
)
def test_a_missing_label_is_known_whatever_labels_are(labels):
    batch = Columns(["x"], ["y"], ["k"]).batch(pa.table({"x": [1.0, 2.0, 3.0], "y": labels, "k": [0, 1, 2]}))
    assert batch.mask["y"].tolist() == [True, False, True]
    assert batch.labels["y"][batch.mask["y"]].tolist() == [1, 0]


def test_lists_of_other_lengths_are_refused_even_if_their_sum_fits():
    table = pa.table({"v": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], "y": [0, 1, 0], "k": [0, 1, 2]})
    with pytest.raises(InputError, match="column 'v': expected lists of one length, got 1 and 2; pad or split"):
        Columns("v", ["y"], ["k"]).batch(table)


@pytest.mark.parametrize("listed", [False, True])
def test_rows_keep_together_through_shuffles_and_leftovers(tmp_path, listed):
    """Every column of a row says its number, so that columns that came apart would be seen."""
    rows = 1200
    number = np.arange(rows)
    label = pa.array([None if 300 < row < 400 or row % 7 == 0 else float(row % 2) for row in number])
    columns = {"x": number.astype(float), "z": -number.astype(float), "k": number % 5, "w": number + 1.0}
    table = pa.table(columns | {"y": label, "list": number // 6})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=90)
    known = Columns(["x", "z"], ["y"], ["k"], "w", "list" if listed else None)
    logs = ParquetLogs(tmp_path / "log.parquet", known, buffer=200)
    for training in (True, False):
        batches = list(LogBatches(logs, batch_size=42, train=training))
        seen = np.concatenate([batch.features[:, 0].numpy() for batch in batches]).astype(int)
        assert len(set(seen.tolist())) == len(seen) >= (1000 if training else 100)
        for batch in batches:
            row = batch.features[:, 0].long()
            assert torch.equal(batch.features[:, 1], -row.float())
            assert torch.equal(batch.context["k"], row % 5)
            assert torch.equal(batch.weight, row + 1.0)
            there = ~(((row > 300) & (row < 400)) | (row % 7 == 0))
            assert torch.equal(batch.known("y"), there)
            assert torch.equal(batch.labels["y"][there], (row % 2)[there].float())
            if listed:
                assert torch.equal(torch.unique_consecutive(row // 6, return_inverse=True)[1], batch.lists)
                assert len(torch.unique(row // 6)) * 6 == len(row)


def test_columns_become_tensors(tmp_path):
    table = pa.table(
        {
            "lists": pa.array([[1.0, 2.0], [3.0, 4.0]]),
            "a": pa.array([1, 3], pa.int16()),
            "b": pa.array([2.0, 4.0]),
            "like": pa.array([1, None]),
            "click": pa.array([True, False]),
            "position": pa.array([4, -1], pa.int8()),
            "weight": pa.array([0.5, 2.0]),
        }
    )
    one = Columns("lists", ["like", "click"], ["position"], "weight").batch(table)
    two = Columns(["a", "b"], ["like", "click"], ["position"]).batch(table)
    assert torch.equal(one.features, two.features)
    assert one.features.tolist() == [[1, 2], [3, 4]]
    assert one.labels["click"].tolist() == [1, 0]
    assert one.mask["like"].tolist() == [True, False]
    assert set(one.mask) == {"like"}
    assert one.context["position"].tolist() == [4, -1]
    assert one.weight.tolist() == [0.5, 2]
    assert two.weight is None
    for columns, message in (
        (
            Columns(["like"], ["click"], []),
            "column 'like': expected no nulls, got 1; fill them, and unknown ids with -1",
        ),
        (Columns(["a"], ["click"], ["b"]), "column 'b': expected int64, got double; cast the column"),
    ):
        with pytest.raises(InputError) as error:
            columns.batch(table)
        assert str(error.value) == message
    ragged = pa.table({"lists": pa.array([[1.0], [1.0, 2.0]])})
    with pytest.raises(InputError, match="expected lists of one length"):
        Columns("lists", [], []).batch(ragged)
    for value in (float("nan"), float("-inf"), 1e30):
        with pytest.raises(
            InputError,
            match=rf"features: expected finite numbers up to 1e\+18, got {value:g} in 'y'".replace("+30", r"\+30"),
        ):
            Columns(["x", "y"], [], []).batch(pa.table({"x": [0.0], "y": [value]}))
    with pytest.raises(InputError, match=r"got nan in 'v\[1\]'; repair the rows, or rescale the column"):
        Columns("v", [], []).batch(pa.table({"v": [[0.0, float("nan")]]}))


def test_a_run_leaves_what_it_says(log_file, tmp_path, capsys):
    fit = Fit(epochs=3, batch_size=256, lr=3e-3)
    model = dual_head(alpha=0, beta=1)
    done = train(model, log_file, **COLUMNS, folder=tmp_path / "run", fit=fit)
    assert "Epoch 2" in "".join(capsys.readouterr())  # a progress bar
    assert done.model is model
    assert done.epochs == 3
    assert done.checkpoint.is_file()
    (metrics,) = (tmp_path / "run" / "csv").glob("version_*/metrics.csv")
    with metrics.open() as file:
        losses = [float(row["held_out_loss"]) for row in csv.DictReader(file) if row["held_out_loss"]]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert done.held_out_loss == pytest.approx(min(losses), rel=1e-5)
    written = {"best.ckpt", "csv", "curves.parquet", "last.ckpt", "manifest.json", "model.json"}
    written |= {"model.safetensors", "served.parquet", "serving.onnx"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == written
    again = load_weights(dual_head(seed=9, alpha=0, beta=1), tmp_path / "run")
    for one, two in zip(again.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_resumed_equals_uninterrupted_to_the_bit(log_file, tmp_path):
    def run(folder, epochs, **options):
        fit = Fit(epochs=epochs, patience=9, batch_size=512, progress=False)
        return train(dual_head(), log_file, **COLUMNS, folder=tmp_path / folder, fit=fit, **options)

    whole = run("whole", 4)
    run("cut", 2, start="resume")  # nothing to resume yet: a new run
    cut = run("cut", 4, start="resume")
    assert cut.epochs == 4
    for one, two in zip(whole.model.state_dict().values(), cut.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_stops_early_and_keeps_the_best(log_file, tmp_path):
    fit = Fit(epochs=30, patience=1, batch_size=256, lr=0.1, progress=False)
    done = train(dual_head(), log_file, **COLUMNS, folder=tmp_path, fit=fit)
    assert done.epochs < 30
    last = torch.load(done.checkpoint, weights_only=True)["state_dict"]
    best = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    # The served curve is fitted afterwards, see below.
    kept = {name: value for name, value in done.model.state_dict().items() if not name.startswith("served_curve")}
    assert all(torch.equal(kept[name], best[f"model.{name}"]) for name in kept)
    assert not all(torch.equal(kept[name], last[f"model.{name}"]) for name in kept)


def test_served_probabilities_are_calibrated_by_the_end_of_training(tmp_path):
    # Without an alpha loss nothing but the exact fit at the end trains the served curve.
    feed = simulate.debias_feed("position", "spurious")
    path = write(tmp_path / "day.parquet", feed.log(3_000))
    fit = Fit(epochs=2, batch_size=512, progress=False)
    done = train(dual_head(alpha=0), path, **COLUMNS, folder=tmp_path / "run", fit=fit)
    fresh = feed.log(3_000, seed=9)
    features, click = torch.from_numpy(fresh["features"]), fresh["click"]
    served = done.model.serving()(features)
    prob = served["click_prob"].double().numpy()
    third = np.digitize(prob, np.quantile(prob, [1 / 3, 2 / 3]))
    for part in range(3):
        assert prob[third == part].mean() == pytest.approx(click[third == part].mean(), rel=0.1)
    assert torch.sigmoid(served["click"]).mean() > 1.5 * click.mean()  # relevance is that of the top position


def test_without_rows_held_out_every_epoch_is_run(log_file, tmp_path):
    done = train(dual_head(), log_file, **COLUMNS, folder=tmp_path, fit=Fit(epochs=2, held_out=0, progress=False))
    assert done.held_out_loss is None
    assert done.epochs == 2
    assert done.checkpoint.is_file()


def test_options_change_the_result(log_file, tmp_path):
    def weights(folder, **options):
        fit = Fit(**({"epochs": 1, "batch_size": 512, "progress": False} | options))
        return train(dual_head(), log_file, **COLUMNS, folder=tmp_path / folder, fit=fit).model.relevance.weight

    base = weights("base")
    changes = [{"lr": 1e-2}, {"curve_lr": 1.0}, {"batch_size": 256}, {"seed": 1}, {"held_out": 0.3}, {"decay": 1.0}]
    changes += [{"epochs": 2}, {"weight": "position"}]
    assert torch.equal(base, weights("same"))
    for number, change in enumerate(changes):
        assert not torch.equal(base, weights(str(number), **change)), change


def test_the_next_day_has_its_own_decay(log_file, tmp_path):
    fit = Fit(epochs=1, batch_size=512, progress=False)
    first = train(dual_head(), log_file, **COLUMNS, folder=tmp_path / "first", fit=fit)

    def next_day(decay):
        given = {"folder": tmp_path / str(decay), "fit": replace(fit, decay=decay), "start": first.checkpoint}
        return train(dual_head(), log_file, **COLUMNS, **given).model.relevance.weight

    assert not torch.equal(next_day(0.0), next_day(1.0))


def test_any_model_with_the_interface(log_file, tmp_path):
    torch.manual_seed(0)
    model = Naive(nn.Linear(12, 4), width=4, tasks=("click",))
    done = train(model, [log_file, log_file], **COLUMNS, folder=tmp_path, fit=Fit(epochs=1, lr=1e-2, progress=False))
    assert done.held_out_loss < 0.7


def test_curves_follow_a_drift_over_days_each_read_once(tmp_path):
    # Bias grows by a third a day; each day's log is deleted before the next day is trained.
    # Each day is a new process's: nothing but the checkpoint is handed on.
    drift, checkpoint, learned, truth = 0.3, None, [], []
    for day in range(5):
        model = dual_head(seed=day, alpha=0, beta=1)
        eta = 0.4 * np.exp(drift * day)
        feed = simulate.Feed(
            population=simulate.Population(seed=1, items=50_000, hidden=0.1),
            logger=simulate.Logger(relevance=0.3, spurious=0.7, temperature=1.0),
            behaviour=simulate.PositionBased(examination=None, eta=eta),
            tasks=(),
        )
        log = feed.log(10_000, seed=day)
        path = write(tmp_path / f"{day}.parquet", log)
        fit = Fit(epochs=6 if checkpoint is None else 3, batch_size=1024, lr=1e-3, progress=False)
        folder = tmp_path / f"run{day}"
        checkpoint = train(model, path, **COLUMNS, folder=folder, fit=fit, start=checkpoint).checkpoint
        path.unlink()
        with torch.no_grad():
            logit = model.serving()(torch.from_numpy(log["features"]))["click"].numpy()
        context = {"position": log["position"], "device": log["device"]}
        learned.append(position_effect(model.curves(), logit, context)[1:])
        truth.append((1 / np.arange(2, 11)) ** eta)
    error = np.abs(np.log(learned) - np.log(truth)).mean(1)
    stale = np.abs(np.log(learned[0]) - np.log(truth)).mean(1)
    assert error.max() < 0.35  # of the logarithm of the effect, at positions where it goes down to 0.05
    assert error[-1] < 0.25 < 1.0 < stale[-1]


SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
import torch
from torch import nn
from isolayer.debias import DualHead
from isolayer.training.train import Fit, train

torch.manual_seed(int(os.environ.get("RANK", "0")))
backbone = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
contexts = {"position": 10, "device": 3}
model = DualHead(backbone, width=16, tasks=("click",), contexts=contexts, anchor="detached", alpha=0)
done = train(
    model, sys.argv[1], features="features", tasks=["click"], contexts=["position", "device"], folder=sys.argv[2],
    fit=Fit(epochs=2, batch_size=256, progress=False),
)
total = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
out = {"rank": os.environ.get("RANK", "0"), "loss": done.held_out_loss, "total": total, "epochs": done.epochs}
print("RESULT " + json.dumps(out), flush=True)
"""


def test_the_same_command_under_torchrun(log_file, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(log_file), str(tmp_path / "run")], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(found) for found in re.findall(r"RESULT (\{.*?\})", done.stdout)]  # ranks may share a line
    assert sorted(result["rank"] for result in results) == ["0", "1"]
    assert results[0]["total"] == results[1]["total"]  # one model, started from rank 0's and kept the same
    assert results[0]["loss"] == results[1]["loss"] < 0.5
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logs": "nowhere"}, "logs: expected a Parquet file or a folder of them, got 'nowhere'; check the path"),
        (
            {"tasks": ["like"]},
            "logs: expected columns ['like'], got ['features', 'click', 'position', 'device']; rename",
        ),
        (
            {"start": "nowhere.ckpt"},
            "start: expected a checkpoint of an earlier run at 'nowhere.ckpt', got no file; check the path",
        ),
        (
            {"features": ["click"]},
            "features: expected no labels, contexts, weights or lists among them, got ['click']; leave them out",
        ),
        ({"features": []}, "features: expected at least one column, got none; name some"),
        ({"tasks": []}, "tasks: expected at least one label column, got none; name some"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(log_file, tmp_path, options, message):
    arguments = COLUMNS | {"logs": log_file, "folder": tmp_path / "run"} | options
    with pytest.raises(InputError) as error:
        train(dual_head(), **arguments)
    assert str(error.value).startswith(message)
    assert not Path(tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", "another model"], ids=["empty", "garbage", "other widths"])
def test_a_start_that_is_no_checkpoint_of_this_model_is_refused(log_file, tmp_path, content):
    start = tmp_path / "last.ckpt"
    if isinstance(content, bytes):
        start.write_bytes(content)
    else:
        weights = {f"model.{name}": torch.zeros(3) for name in dual_head().state_dict()}
        known = {"features": "features", "tasks": ["click"], "contexts": {"position": 10, "device": 3}}
        torch.save({"state_dict": weights, "optimizer_states": [{}], "isolayer_columns": known}, start)
    with pytest.raises(
        InputError, match=r"start: expected a checkpoint of the same model at '.*last.ckpt', got .*; give"
    ):
        train(dual_head(), **COLUMNS, logs=log_file, folder=tmp_path / "run", start=start)


def test_small_and_empty_logs(tmp_path):
    log = simulate.debias_feed("position", "spurious").log(1)
    few = write(tmp_path / "few.parquet", log, rows=3)
    with pytest.raises(InputError, match="expected rows to train on and to hold out, got 3 rows; use more rows"):
        train(dual_head(), few, **COLUMNS, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    empty = write(tmp_path / "empty.parquet", log, rows=0)
    with pytest.raises(InputError, match="expected at least one row, got empty files"):
        train(dual_head(), empty, **COLUMNS, folder=tmp_path / "run")


def test_fewer_rows_held_out_than_processes(tmp_path, monkeypatch):
    log = simulate.debias_feed("position", "spurious").log(2)
    few = write(tmp_path / "few.parquet", log, rows=12)
    monkeypatch.setattr("isolayer.training.train._joined", lambda: (0, 2))
    with pytest.raises(InputError, match="to hold out, got 12 rows for 2 processes; use more rows"):
        train(dual_head(), few, **COLUMNS, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fit(epochs=0), "epochs: expected at least 1, got 0; raise it"),
        (lambda: Fit(lr=0), "lr: expected a positive number up to 1e+06, got 0; choose another"),
        (lambda: Fit(curve_lr=1e38), "curve_lr: expected a positive number up to 1e+06, got 1e+38; choose another"),
        (lambda: Fit(decay=-1), "decay: expected a number from 0 to below 1 / lr, got -1; try 0.1"),
        (lambda: Fit(lr=1, decay=1), "decay: expected a number from 0 to below 1 / lr, got 1; try 0.1"),
        (
            lambda: ParquetLogs("x", Columns([], [], []), held_out=1),
            "held_out: expected a share from 0 to below 1, got 1; try 0.1",
        ),
        (
            lambda: ParquetLogs("x", Columns([], [], []), buffer=0),
            "buffer: expected at least 1 row, got 0; try 65536",
        ),
        (
            lambda: LogBatches(ParquetLogs("x", Columns([], [], [])), batch_size=0, train=True),
            "batch_size: expected at least 1, got 0; try 1024",
        ),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message


def test_what_processes_see_of_a_log_adds_up_to_the_whole(tmp_path):
    rng = np.random.default_rng(0)
    columns = {f"f{i}": 1e3 + rng.standard_normal(900) for i in range(2)}
    table = pa.table({**columns, "click": (rng.random(900) < 0.3).astype(float), "position": rng.integers(0, 3, 900)})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=130)
    logs = ParquetLogs(tmp_path / "log.parquet", Columns(["f0", "f1"], ["click"], ["position"]))
    references = [{"position": 1}, {"position": 3}]
    alone = check_log(logs, references=references)
    assert alone.unseen == ({"position": 3},)
    for world in (2, 3, 20):  # more processes than row groups: some see nothing
        whole = log_check._Seen(logs.columns, references)
        for rank in range(world):
            whole.merge(log_check._seen(logs, {}, references, rank, world, allow_leaks=False), logs.columns)
        found = whole.summary(logs)
        assert found.unseen == alone.unseen
        assert found.rows == alone.rows == 900
        assert found.mean == pytest.approx(alone.mean, rel=1e-12)
        assert found.std == pytest.approx(alone.std, rel=1e-6)
        assert found.rates == pytest.approx(alone.rates)


@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_leak_is_found_by_any_number_of_processes(tmp_path, monkeypatch, world):
    """140 positives are enough for all processes together, and for none of several."""
    rng = np.random.default_rng(0)
    click = (np.arange(1_000) % 50 < 7).astype(float)
    features = {"f": rng.standard_normal(1_000), "dwell": click * rng.uniform(1, 60, 1_000)}
    table = pa.table(features | {"click": click, "position": np.zeros(1_000, int)})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=100)
    logs = ParquetLogs(tmp_path / "log.parquet", Columns(["f", "dwell"], ["click"], ["position"]))

    def gather(parts, mine):
        parts[:] = [log_check._seen(logs, {}, (), rank, world, allow_leaks=False) for rank in range(world)]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    with pytest.raises(InputError, match="got 'dwell', which gives 'click' away"):
        check_log(logs, world=world)
    monkeypatch.setattr(log_check, "ROWS", 250)  # too few rows to judge by, in whichever processes
    monkeypatch.setattr("isolayer.training.leaks.ROWS", 250)
    assert check_log(logs, world=world).rows == 1_000


def test_the_number_of_batches_is_counted_as_they_are_drawn(tmp_path):
    table = pa.table({"f": np.arange(1000.0), "click": np.tile([0.0, 1.0], 500), "position": np.zeros(1000, int)})
    for size in (60, 400):  # many row groups, and few
        pq.write_table(table, tmp_path / "log.parquet", row_group_size=size)
        logs = ParquetLogs(tmp_path / "log.parquet", Columns(["f"], ["click"], ["position"]), held_out=0.13)
        for world in (1, 2, 3):
            for part in (True, False):
                rows = [sum(len(r) for _, r in logs.share(train=part, rank=k, world=world)) for k in range(world)]
                expected = min(rows) // 10 if part else -(-min(rows) // 10)
                assert logs.batches(batch_size=10, train=part, world=world) == expected
