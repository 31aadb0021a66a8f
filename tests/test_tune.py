"""`isolayer tune`: trials by held-out loss or by the truth, saved one by one, continued after an interruption."""

import json
import shlex
from dataclasses import replace
from inspect import signature

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from isolayer.cli import debiasing, tuning
from isolayer.cli.app import app
from isolayer.errors import InputError
from isolayer.training import tune as search
from isolayer.training.search_facts import claim, search_facts
from isolayer.training.train import Fit

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    run("simulate", "--sessions", "300", "--truth", "--out", path)
    return path


def test_a_search_is_saved_and_continued(log, tmp_path, monkeypatch):
    arguments = ("tune", log, "--features", "feature_*", "--epochs", "1", "--hidden", "8", "--batch-size", "256")
    arguments = (
        *arguments,
        "--lr",
        "0.00001,0.01",
        "--decay",
        "0.2",
        "--dropout",
        "0",
        "--alpha",
        "0.25",
        "--out",
        tmp_path / "t",
        "--json",
    )
    calls, real = [], search.train

    def interrupted(*given, **options):
        if calls:
            raise KeyboardInterrupt
        calls.append(options["fit"])
        return real(*given, **options)

    monkeypatch.setattr(search, "train", interrupted)
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code != 0
    assert len((tmp_path / "t" / "trials.jsonl").read_text().splitlines()) == 1
    assert calls[0].decay == 0.2
    done = []
    monkeypatch.setattr(search, "train", lambda *given, **options: (done.append(1), real(*given, **options))[1])
    result = run(*arguments)
    assert len(done) == 1  # the first trial is not repeated
    found = json.loads(result.stdout)["figures"]["trials"]
    assert [trial["lr"] for trial in found] == [0.01, 0.00001]  # the best first
    assert found[0]["held_out_loss"] < found[1]["held_out_loss"]
    assert "next: isolayer train" in result.stderr
    assert "--lr 0.01" in result.stderr


def test_the_truth_decides_where_it_is_known(log, tmp_path):
    arguments = (
        "tune",
        log,
        "--features",
        "feature_*",
        "--epochs",
        "1",
        "--hidden",
        "8",
        "--trials",
        "2",
        "--alpha",
        "0",
    )
    with pytest.raises(InputError, match="--list: expected a column of lists"):
        run(*arguments, "--truth", "grade", "--out", tmp_path)
    result = run(*arguments, "--truth", "grade", "--list", "session", "--out", tmp_path, "--json")
    found = json.loads(result.stdout)["figures"]["trials"]
    assert len(found) == 2
    assert 0.5 < found[1]["ndcg"] <= found[0]["ndcg"] <= 1


@pytest.mark.parametrize("given", ["", "much"])
def test_values_that_are_no_numbers_are_refused(log, tmp_path, given):
    with pytest.raises(InputError, match=r"--alpha: expected numbers such as 0.25,0, got"):
        run("tune", log, "--features", "feature_*", "--alpha", given, "--out", tmp_path)


def test_every_setting_is_checked_before_the_first_trial(tmp_path):
    with pytest.raises(InputError, match="decay: expected a number from 0 to below 1 / lr, got nan"):
        search.tune(
            lambda settings: pytest.fail("trained"), "x", {"decay": [0, float("nan")]}, folder=tmp_path, columns={}
        )


QUICK = ("--features", "feature_*", "--epochs", "1", "--hidden", "8", "--dropout", "0", "--decay", "0", "--alpha", "0")


def losses(*arguments):
    found = json.loads(run("tune", *arguments, "--json").stdout)["figures"]["trials"]
    return {trial["lr"]: trial["held_out_loss"] for trial in found}


def test_another_setting_never_continues_the_checkpoint_of_another(log, tmp_path):
    first = losses(log, *QUICK, "--lr", "0.001", "--out", tmp_path / "a")
    both = losses(log, *QUICK, "--lr", "0.01,0.001", "--out", tmp_path / "a")
    assert both[0.001] == first[0.001]
    assert both == losses(log, *QUICK, "--lr", "0.01,0.001", "--out", tmp_path / "b")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--tasks", "click,skip"), r"tasks \['click'\] instead of \['click', 'skip'\]"),
        (("--epochs", "2"), "epochs 1 instead of 2"),
        (("--truth", "grade", "--list", "session"), "truth None instead of grade, list_id None instead of session"),
        (("--seed", "3"), "seed 0 instead of 3"),
        (("--decreasing", "click"), r"decreasing \[\] instead of \['click'\]"),
        (("--hidden", "4"), r"hidden \[8\] instead of \[4\]"),
        (("--contexts", "position:20"), "contexts"),
    ],
)
def test_a_folder_holds_one_search(log, searched, more, message):
    with pytest.raises(InputError, match=f"folder: expected the same search in .*{message}.*; name another folder"):
        run("tune", log, *QUICK, "--trials", "1", *more, "--out", searched)


def test_another_log_is_another_search(log, searched, tmp_path):
    run("simulate", "--sessions", "300", "--truth", "--seed", "1", "--out", tmp_path / "log.parquet")
    with pytest.raises(InputError, match="got one with another log; name another folder"):
        run("tune", tmp_path / "log.parquet", *QUICK, "--trials", "1", "--out", searched)


def test_labels_that_changed_without_changing_the_size_of_the_log_are_another_log(tmp_path):
    rng, path, found = np.random.default_rng(0), tmp_path / "log.parquet", []
    features, click = rng.normal(size=(40_000, 10)), rng.random(40_000) < 0.1
    columns = {"features": [f"f{i}" for i in range(10)], "tasks": ["click"], "contexts": []}
    for _ in range(2):
        table = pyarrow.table({**{f"f{i}": features[:, i] for i in range(10)}, "click": click})
        pyarrow.parquet.write_table(table, path, compression="none", row_group_size=8_000)
        found.append(search_facts(path, columns, Fit(), None, {}))
        click[12_000:14_000] = click[12_000:14_000][::-1].copy()
    claim(tmp_path / "search", found[0], trials=False)
    with pytest.raises(InputError, match="got one with another log"):
        claim(tmp_path / "search", found[1], trials=True)


def test_trials_that_say_nothing_of_their_log_are_not_reused(log, searched, tmp_path):
    (tmp_path / "trials.jsonl").write_bytes((searched / "trials.jsonl").read_bytes())
    with pytest.raises(InputError, match=r"got trials without search.json, which says what"):
        run("tune", log, *QUICK, "--trials", "1", "--out", tmp_path)


def test_a_search_of_a_csv_log_is_continued(log, tmp_path, monkeypatch):
    table = tmp_path / "log.csv"
    pyarrow.csv.write_csv(pyarrow.parquet.read_table(log), table)
    options = (table, *QUICK, "--trials", "1", "--out", tmp_path / "t")
    first = losses(*options)
    monkeypatch.setattr(search, "train", lambda *given, **more: pytest.fail("trained again"))
    assert losses(*options) == first


@pytest.fixture(scope="module")
def searched(log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    run("tune", log, *QUICK, "--trials", "1", "--out", folder)
    return folder


def test_the_next_command_trains_the_best_trial(log, tmp_path):
    options = ["--tasks", "click,skip", "--decreasing", "skip", "--contexts", "position:10", "--list", "session"]
    options += ["--loss", "listwise", "--mode", "cross", "--hidden", "8,4", "--epochs", "1", "--batch-size", "500"]
    options += ["--anchor", "joint", "--seed", "3", "--lr", "0.00123456789", "--features", "feature_*", "--trials", "1"]
    spaced = tmp_path / "a log.parquet"
    spaced.write_bytes(log.read_bytes())
    result = run("tune", spaced, *options, "--out", tmp_path / "t", "--json")
    (best,) = json.loads(result.stdout)["figures"]["trials"]
    said = next(line for line in result.stderr.splitlines() if line.startswith("next: "))
    words = shlex.split(said.removeprefix("next: isolayer "))
    assert words[:2] == ["train", str(spaced)]
    trained = json.loads(run(*words, "--out", tmp_path / "m", "--json").stdout)["figures"]
    assert trained["held_out_loss"] == best["held_out_loss"]


def test_the_options_of_both_commands_have_the_same_defaults():
    both = signature(tuning.tune).parameters.keys() & signature(debiasing.train).parameters.keys()
    for name in both - {*tuning._SEARCHED, "out"}:
        assert signature(tuning.tune).parameters[name].default == signature(debiasing.train).parameters[name].default, (
            name
        )


def test_warnings_of_trials_are_shown_once_also_when_the_search_is_continued(log, tmp_path, monkeypatch):
    real, doubts = search.train, iter(("odd by 0.1", "odd by 0.2"))
    doubtful = lambda *given, **more: replace(real(*given, **more), warnings=(next(doubts),))  # noqa: E731
    monkeypatch.setattr(search, "train", doubtful)
    for _ in range(2):
        result = run("tune", log, *QUICK, "--lr", "0.01,0.001", "--out", tmp_path)
        assert [line for line in result.stderr.splitlines() if "odd" in line] in (
            ["warning: odd by 0.1"],
            ["warning: odd by 0.2"],
        )
