"""Open Bandit: a policy that is its own target, and the study on a wheel that the test writes."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from research import open_bandit
from research.result import Unit


def test_a_policy_that_is_its_own_target_is_valued_without_error():
    rng, rows, items = np.random.default_rng(0), 6_000, 4
    log = {
        "action": rng.integers(0, items, rows),
        "position": rng.integers(0, 3, rows),
        "propensity": np.full(rows, 1 / items),
        "user_feature_0": rng.integers(0, 3, rows),
        "half": rng.random(rows) < 0.5,
    }
    log["click"] = (rng.random(rows) < 0.05 + 0.05 * log["action"]).astype(np.int64)
    features, target = np.arange(items, dtype=float)[:, None], np.full((items, 3), 1 / items)
    errors = open_bandit.relative_errors(log, features, target, float(log["click"].mean()))
    assert errors["logistic ipw"] == pytest.approx(0, abs=1e-9)
    assert all(error < 0.1 for error in errors.values())
    best_first = np.eye(items)[[-1, 0, 0]].T  # the best item at the top, the worst below it
    errors = open_bandit.relative_errors(log, features, best_first, (0.20 + 0.05 + 0.05) / 3)
    assert all(error < 0.2 for error in errors.values())


def test_thompson_sampling_fills_every_position():
    prob = open_bandit.thompson_prob(np.array([5.0, 3, 2, 1]), np.array([50.0, 50, 50, 50]), draws=5_000)
    np.testing.assert_allclose(prob.sum(0), 1)
    assert (np.diff(prob[:, 0]) < 0).all()


def test_open_bandit_runs_on_a_wheel(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    header = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0"
    lines = [
        f"{i},2019-11-24 00:00:{i % 60:02d}+00:00,{rng.integers(0, 4)},{1 + i % 3},{int(rng.random() < 0.2)},0.25,"
        f"{'ab'[i % 2]},0.0"
        for i in range(600)
    ]
    members = {
        "obp/dataset/obd/random/all/all.csv": "\n".join([header, *lines]),
        "obp/dataset/obd/bts/all/all.csv": "\n".join([header, *lines]),
        "obp/dataset/obd/random/all/item_context.csv": ",item_id,item_feature_0\n0,0,.1\n1,1,.2\n2,2,.3\n3,3,.4\n",
        "obp/policy/conf/prior_bts.yaml": "all:\n  alpha:\n" + "    - 2.0\n" * 4 + "  beta:\n" + "    - 9.0\n" * 4,
    }
    with zipfile.ZipFile(tmp_path / open_bandit.WHEEL, "w") as wheel:
        for name, text in members.items():
            wheel.writestr(name, text)
    monkeypatch.setenv("ISOLAYER_DATA", str(tmp_path))
    numbers = open_bandit.run_unit(Unit(0, quick=True))
    assert all(0 <= numbers[f"{reward} {name}"] < 1 for reward in open_bandit.REWARDS for name in open_bandit.MODELLED)
    assert len(numbers["isotonic dm resampled"]) == 2
    assert numbers["isotonic dm"] == open_bandit.run_unit(Unit(1, quick=True))["isotonic dm"]  # the log is the log
