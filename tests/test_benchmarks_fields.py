"""The bench with many fields: peers keep their promises, groups and inversions are counted right."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.fields import _parse, inversions, peers, tasks
from benchmarks.fields.scale import planted
from benchmarks.fields.units import groups
from benchmarks.real.judge import Judge
from benchmarks.real.lines import prob_of
from benchmarks.real.tasks import Rows
from isolayer.errors import InputError


def table(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Rows to fit and to test whose rate depends on a category, a number and the score."""
    rng = np.random.default_rng(seed)
    device, age, score = rng.choice(["tv", "web", "ios"], n), rng.integers(18, 80, n).astype(float), rng.normal(0, 1, n)
    logit = score + 1.5 * (device == "tv") - np.where(age > 50, 1.0, 0.0)
    age[rng.random(n) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "device": pd.Series(device, dtype="string"),
            "age": age,
            "score": score,
            "label": (rng.random(n) < prob_of(logit)).astype(np.int64),
            "cluster": rng.integers(0, 400, n),
            "part": np.where(np.arange(n) < n // 2, "fit", "test"),
        }
    )


def test_fields_are_everything_but_score_label_cluster_and_part():
    task = tasks._task("tiny", table(), ("device",))
    assert list(task.fit.frame) == ["device", "age"]
    assert tasks.categorical(task.fit.frame) == ["device"]
    assert len(task.fit) == len(task.test) == 1500
    assert (task.fit[np.array([3])].frame["age"].item(),) == (task.fit.frame["age"].iloc[3],)


def test_unseen_users_are_in_no_row_to_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "table_of", lambda name: tmp_path / "tiny.parquet")
    table().assign(tab="1", user_active_degree="high").to_parquet(tmp_path / "tiny.parquet")
    everyone, unseen = tasks.load("kuairand is_click"), tasks.load("kuairand is_click, unseen users")
    known = set(everyone.fit.rows.cluster)
    assert len(unseen.fit) == len(everyone.fit)
    assert len(unseen.test) == sum(one not in known for one in everyone.test.rows.cluster)
    assert not set(unseen.test.rows.cluster) & known


def test_boosted_trees_use_the_fields_and_never_fall_with_the_score():
    task = tasks._task("tiny", table(), ("device",))
    judge = Judge(task.test.rows, 0)
    prob = peers.boosted(task.fit, task.test)
    assert judge(prob)["log_loss"][0] < judge(peers.by_hand(task.fit, task.test))["log_loss"][0]
    one = task.test[np.repeat(np.arange(20), 30)]
    score = np.tile(np.linspace(-4, 4, 30), 20)
    rows = Rows(score, one.rows.label, one.rows.segments, one.rows.segment, one.rows.cluster)
    assert inversions(peers.boosted(task.fit, tasks.Part(rows, one.frame)).reshape(20, 30)) == 0


def test_groups_put_missing_values_together_and_numbers_in_ten_bins():
    frame = pd.DataFrame(
        {"age": [*range(100), np.nan], "device": pd.Series(["tv", None] * 50 + ["tv"], dtype="string")}
    )
    found = groups(frame)
    assert set(found["device"]) == {"tv", "missing"}
    assert len(set(found["age"])) == 11
    assert found["age"][-1] not in set(found["age"][:-1])


def test_options_of_the_bench_with_fields():
    assert _parse(["--tasks=income", "--quick"]) == ("income", True, False)
    with pytest.raises(InputError, match="expected --tasks=PART, --quick or --docs"):
        _parse(["--report"])


def test_planted_pairs_are_off_by_their_factor_and_a_clean_log_is_calibrated():
    frame, pairs = planted(seed=1)
    expected = prob_of(frame["score"].to_numpy())
    for pair in pairs:
        rows = np.logical_and.reduce([frame[name] == value for name, value in pair.items()])
        assert 1.1 < frame["label"][rows].sum() / expected[rows].sum() < 1.4
    clean, none = planted(seed=1, off=0)
    assert not none
    assert clean["label"].sum() == pytest.approx(prob_of(clean["score"].to_numpy()).sum(), rel=0.02)
