"""`isolayer tune`: trials by held-out loss or by the truth, saved one by one, continued after an interruption."""

import json

import pytest
from typer.testing import CliRunner

from isolayer.cli.app import app
from isolayer.errors import InputError
from isolayer.training import tune as search

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
