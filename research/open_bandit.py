"""Open Bandit: what Thompson sampling would have earned, estimated from the log of a random policy, and what it did.

The paper leaves off-policy evaluation to future work; this is the ground it would have to hold. Every estimator of
`isolayer.policy` values the other policy from the random policy's log, and its relative error is that to the click rate
the other policy had in its own log. Intervals are as wide as errors on resampled logs spread. Beside the error on the
log itself stands the mean error over resamples, which is what the field's benchmark reports.

The reward model is a logistic regression per position, and the same with its logits calibrated by one isotonic curve
per position. Each row's reward is told by a regression that saw the other half of the rows (copies of a row stay in its
half); the curves see the labels of all rows, through three shrunk curves. Propensities of the target policy are drawn
from its published Beta prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer import policy
from isolayer.calibrator import IsotonicCalibrator
from isolayer.errors import need
from research.charts import records
from research.data import data_path
from research.datasets import open_bandit, open_bandit_items, open_bandit_prior
from research.result import (
    Estimate,
    Finished,
    Numbers,
    Part,
    Result,
    Row,
    Unit,
    certain,
    estimate,
    units_of,
)

CLAIM = "Utility and position bias learned by the layer could serve robust off-policy evaluation."
PAPER = "section 6, future work; the field's figures on this sample: DM .157, IPW .311, SNIPW .312, DR .292, DRos .160"
WHEEL = "obp-0.4.1-py3-none-any.whl"  # as pip saves it; a folder called open_bandit goes before it
SEEDS = 10
POSITIONS = 3
ESTIMATORS = ("ipw", "snipw", "dm", "dr", "switch_dr", "dros")
NAMES = {"ipw": "IPW", "snipw": "SNIPW", "dm": "DM", "dr": "DR", "switch_dr": "switch DR", "dros": "DRos"}
MODELLED = ("dm", "dr", "switch_dr", "dros")
FIELD = {"ipw": ".311", "snipw": ".312", "dm": ".157", "dr": ".292", "dros": ".160"}
REWARDS = ("logistic", "isotonic")
MARGIN = 0.02
Table = NDArray[np.float64]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Resamples of the log, some per seed."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=1.0 if quick else 2.5)


def run_unit(unit: Unit) -> Numbers:
    """Relative error of every estimator on the random policy's log, and on some resamples of it."""
    named = data_path("open_bandit")
    path = named if named.exists() else data_path(WHEEL)
    log, items, prior = open_bandit(path), open_bandit_items(path), open_bandit_prior(path)
    truth = open_bandit(path, policy="bts")["click"]
    target = thompson_prob(prior["alpha"], prior["beta"], draws=20_000 if unit.quick else 100_000)
    rng, rows = np.random.default_rng(unit.seed), len(log["click"])
    log["half"] = np.random.default_rng(0).random(rows) < 0.5
    samples = [np.arange(rows), *(np.sort(rng.integers(0, rows, rows)) for _ in range(2 if unit.quick else 5))]
    errors = [
        relative_errors({name: column[chosen] for name, column in log.items()}, item_table(items), target, truth.mean())
        for chosen in samples
    ]
    numbers: Numbers = {"true value": float(truth.mean()), "true events": int(truth.sum())}
    for key, value in errors[0].items():
        numbers |= {key: value, f"{key} resampled": [one[key] for one in errors[1:]]}
    return numbers


def thompson_prob(alpha: Table, beta: Table, *, draws: int, seed: int = 12345) -> Table:
    """Chance that Thompson sampling puts each item at each position, ``[items, positions]``, by Monte Carlo.

    >>> thompson_prob(np.array([1e6, 1.0, 1.0]), np.array([1.0, 1.0, 1.0]), draws=100)[0].tolist()
    [1.0, 0.0, 0.0]
    """
    drawn = np.random.default_rng(seed).beta(alpha, beta, (draws, len(alpha)))
    top = np.argsort(-drawn, axis=1)[:, :POSITIONS]
    return np.stack([np.bincount(top[:, k], minlength=len(alpha)) / draws for k in range(POSITIONS)], axis=1)


def item_table(items: dict[str, NDArray[Any]]) -> Table:
    """Features of items as numbers, ``[items, features]``: codes count as they do in the field's benchmark."""
    return np.stack([items[name].astype(float) for name in sorted(items)], axis=1)


def relative_errors(log: dict[str, NDArray[Any]], items: Table, target: Table, truth: float) -> Numbers:
    """``abs(estimate - truth) / truth`` of every estimator with either reward model."""
    action, position = log["action"], log["position"]
    weight = policy.importance_weight(target[action, position], log["propensity"])
    found: Numbers = {}
    for reward, table in reward_models(log, items).items():  # [rows, items]: reward at the row's position
        logged = table[np.arange(len(action)), action]
        expected = policy.expected_reward(target.T[position], table)
        for name, value in policy.estimates(log["click"], weight, logged, expected).items():
            found[f"{reward} {name}"] = abs(value.value - truth) / truth
    return found


def reward_models(log: dict[str, NDArray[Any]], items: Table) -> dict[str, Table]:
    """Reward of every item for every row at its position, by both models, ``[rows, items]`` each."""
    linear = need("sklearn.linear_model")
    users = one_hot([log[name] for name in sorted(log) if name.startswith("user_feature")])
    action, position, click = log["action"], log["position"], log["click"]
    own = np.concatenate([users, items[action]], axis=1)
    raw, half = np.empty((len(click), len(items))), log["half"]
    for k in range(POSITIONS):
        here = position == k
        for fitted, told in ((here & half, here & ~half), (here & ~half, here & half)):
            model = linear.LogisticRegression(max_iter=10_000).fit(own[fitted], click[fitted])
            by_user, by_item = users[told] @ model.coef_[0, : users.shape[1]], items @ model.coef_[0, users.shape[1] :]
            raw[told] = by_user[:, None] + by_item + model.intercept_
    score = raw[np.arange(len(click)), action]  # of the logged action, by a regression that did not see the row
    curve = IsotonicCalibrator(("position",)).fit({"score": score, "position": position}, click)
    frame = {"score": raw.ravel(), "position": np.repeat(position, len(items))}
    isotonic = curve.predict_proba(frame)[:, 1].reshape(raw.shape)
    return {"logistic": 1 / (1 + np.exp(-raw)), "isotonic": isotonic}


def one_hot(codes: Sequence[NDArray[Any]]) -> Table:
    """Columns of every code but the first of each feature.

    >>> one_hot([np.array([0, 1, 2])]).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    return np.concatenate([np.eye(int(code.max()) + 1)[code][:, 1:] for code in codes], axis=1)


def summarise(finished: Sequence[Finished]) -> Result:
    """Relative error of every estimator and reward model, on the log and on average over resamples."""
    rows = [
        Row(_named(reward, name), what, told(finished, f"{reward} {name}"), _said(reward, name) if field else "")
        for what, told, field in (("relative error", _error, False), ("relative error, mean of resamples", _mean, True))
        for name in ESTIMATORS
        for reward in (REWARDS if name in MODELLED else REWARDS[:1])
    ]
    rows.append(Row("clicks behind the true value", "events", certain(finished[0].numbers["true events"]), digits=0))
    parts = [
        Part(
            f"{NAMES[name]} with the isotonic reward errs less than weighting alone",
            _error(finished, f"isotonic {name}", "logistic ipw"),
            below=0,
        )
        for name in ("dm", "dros")
    ]
    parts += [
        Part(
            f"{NAMES[name]} errs no more with the isotonic reward than with the logistic one (within {MARGIN})",
            _error(finished, f"isotonic {name}", f"logistic {name}"),
            below=MARGIN,
        )
        for name in MODELLED
    ]
    return Result(tuple(rows), tuple(parts), _series(finished), _note(finished))


def _named(reward: str, name: str) -> str:
    return f"{NAMES[name]}, {reward} reward" if name in MODELLED else NAMES[name]


def _error(finished: Sequence[Finished], key: str, other: str | None = None) -> Estimate:
    """The error on the log, or what it is above another, as sure as resampled logs make it."""
    value, spread = float(finished[0].numbers[key]), _resampled(finished, key)
    if other is not None:
        value, spread = value - float(finished[0].numbers[other]), spread - _resampled(finished, other)
    half = float(need("scipy.special").stdtrit(len(spread) - 1, 0.975)) * float(spread.std(ddof=1))
    return Estimate(value, value - half, value + half, len(finished))


def _resampled(finished: Sequence[Finished], key: str) -> Table:
    return np.concatenate([np.asarray(one.numbers[f"{key} resampled"], np.float64) for one in finished])


def _mean(finished: Sequence[Finished], key: str) -> Estimate:
    return estimate([np.mean(one.numbers[f"{key} resampled"]) for one in finished])


def _said(reward: str, name: str) -> str:
    return FIELD.get(name, "") if reward == "logistic" else ""


def _note(finished: Sequence[Finished]) -> str:
    events = finished[0].numbers["true events"]
    return (
        f"Real data. The true value itself rests on {events} clicks, a relative deviation of {events**-0.5:.2f}, so no "
        "error below that can be told from none. The figures in the paper's column are the field's, on the same sample."
    )


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    found = {(name, reward): _error(finished, f"{reward} {name}") for name in ESTIMATORS for reward in REWARDS}
    return {
        "estimator": [NAMES[name] for name, _ in found],
        "reward": [reward for _, reward in found],
        **{key: [getattr(one, key) for one in found.values()] for key in ("value", "lower", "upper")},
    }


def chart(series: dict[str, Any]) -> Any:
    """Relative error of every estimator with either reward model."""
    alt = need("altair")
    base = alt.Chart(alt.Data(values=records(series))).encode(
        y=alt.Y("estimator:N", sort=list(NAMES.values()), title=None),
        yOffset="reward:N",
        color=alt.Color("reward:N", title="reward model"),
    )
    interval = base.mark_rule().encode(x=alt.X("lower:Q", title="relative error"), x2="upper:Q")
    return (interval + base.mark_point(filled=True, size=60).encode(x="value:Q")).properties(width=380, height=220)
