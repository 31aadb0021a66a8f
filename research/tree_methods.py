"""Boosted trees that rank from clicks: ours, and what LightGBM and XGBoost have of their own.

    naive                 LightGBM, log loss of clicks
    LightGBM position     lambdarank with a bias of each position (`position=`)
    XGBoost unbiased      lambdarank with `lambdarank_unbiased`
    ours, network         `BoostedRanker`: curves by a small dual head, frozen
    ours, trees           curves by trees out of fold, frozen
    true curves           `BoostedRanker` through curves that are given

All grow as many trees at the same rate, and may have the same settings of leaves and L2 (`TRIED`, the first is the
default). `debias_tuning` chooses among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer import Curves
from isolayer.debias import BoostedRanker
from isolayer.errors import need
from research.debias_methods import LENGTH, Setting

NAIVE, LIGHT, XGB, TRUE = "naive", "LightGBM position", "XGBoost unbiased", "true curves"
OURS, TREES = "ours, network", "ours, trees"
METHODS = (NAIVE, LIGHT, XGB, OURS, TREES, TRUE)
LEARNING_RATE = 0.1
TRIED: tuple[Setting, ...] = tuple({"leaves": leaves, "l2": l2} for leaves in (15, 7, 31) for l2 in (100, 10))
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClickLog:
    """Clicks on lists of `LENGTH` documents, lists one after the other and each in order of position."""

    features: NDArray[np.float32]  # [rows, features]
    click: NDArray[Any]
    context: dict[str, NDArray[Any]]  # ids of each bias feature, position among them

    @property
    def lists(self) -> NDArray[np.int64]:
        """The list of each row."""
        return np.arange(len(self.click)) // LENGTH

    @cached_property
    def binned(self) -> Any:
        """The rows as a `lightgbm.Dataset`, which takes long to make, so both methods of LightGBM share it."""
        lists = np.full(len(self.click) // LENGTH, LENGTH)
        return need("lightgbm").Dataset(self.features, self.click, group=lists, position=self.context["position"])


def rank(
    method: str,
    log: ClickLog,
    features: NDArray[np.float32],
    setting: Setting,
    *,
    rounds: int,
    seed: int,
    curves: Curves | None = None,
) -> Floats:
    """Scores of documents by a method that has learned from a log.

    Args:
        method: One of `METHODS`.
        log: What was shown and clicked.
        features: The documents to score, ``[documents, features]``.
        setting: Leaves and L2 of the trees.
        rounds: Number of trees.
        seed: Seed of engine, network and folds.
        curves: By position, for `TRUE`.
    """
    if method in (NAIVE, LIGHT):
        return _lightgbm(log, features, setting, rounds, seed, by_position=method == LIGHT)
    if method == XGB:
        return _xgboost(log, features, setting, rounds, seed)
    context = log.context if curves is None else {"position": log.context["position"]}
    sizes = {name: int(ids.max()) + 1 for name, ids in context.items()}
    how: Any = method.removeprefix("ours, ") if curves is None else curves
    ranker = BoostedRanker(sizes, curves=how, rounds=rounds, leaves=int(setting["leaves"]), l2=setting["l2"], seed=seed)
    return ranker.fit(log.features, log.click, context, lists=log.lists).predict(features)


def _lightgbm(
    log: ClickLog, features: NDArray[np.float32], setting: Setting, rounds: int, seed: int, *, by_position: bool
) -> Floats:
    given: dict[str, Any] = {
        "num_leaves": int(setting["leaves"]),
        "lambda_l2": setting["l2"],
        "min_child_samples": 100,
        "learning_rate": LEARNING_RATE,
        "objective": "lambdarank" if by_position else "binary",
    }
    given |= {"verbose": -1, "seed": seed, "num_threads": 1}
    return np.asarray(need("lightgbm").train(given, log.binned, rounds).predict(features, raw_score=True))


def _xgboost(log: ClickLog, features: NDArray[np.float32], setting: Setting, rounds: int, seed: int) -> Floats:
    package = need("xgboost")
    given = {"objective": "rank:ndcg", "lambdarank_unbiased": True, "lambdarank_pair_method": "topk", "nthread": 1}
    given |= {"eta": LEARNING_RATE, "grow_policy": "lossguide", "max_depth": 0, "seed": seed}
    given |= {"max_leaves": int(setting["leaves"]), "lambda": setting["l2"] / 10}
    data = package.DMatrix(log.features, log.click, qid=log.lists)  # rows are in order of position
    return np.asarray(package.train(given, data, rounds).predict(package.DMatrix(features)))
