"""Boosted trees that rank from clicks: ours, and what LightGBM and XGBoost have of their own.

    naive                 LightGBM, log loss of clicks
    LightGBM position     lambdarank with a bias for each position (`position=`), or for each combination of contexts
    XGBoost unbiased      lambdarank with `lambdarank_unbiased`, which can only correct for the position
    ours, labels alone    `BoostedRanker` with `teacher=0`: curves by a small dual head, frozen; trees learn from clicks
    ours, with a teacher  `BoostedRanker` as it is by default: the same, but trees learn from a mixture of clicks and
                          the probabilities of the network that learned the curves, which is distillation
    true curves           `BoostedRanker` through curves that are given; trees learn from clicks

Only the method with a teacher learns from anything but clicks. What our curves do is therefore judged by the method
that learns from labels alone, as the engines and the trees through the true curves do.

Where examination depends on more than the position, LightGBM is told as much as our curves are: it accepts any ids as
positions, so it gets one for each combination of position, device and query length (`ClickLog.position_ids`). XGBoost
reads the position off the order of the rows of a list, so its correction cannot depend on anything else.

All grow as many trees at the same rate. Each has six settings to choose from (`TRIED`, the first is the default), those
of the engines over what corrects bias in them too; `tree_tuning` chooses among them. Both engines can have their
gradients normalised, as they do by default, or not (`lambdarank_norm` in LightGBM); each is tried both ways, and at
three or more strengths of L2 without. The log loss of the uncorrected trees has no such option.

Before the tuning, more of what the engines offer was looked at on its first seed, so that their six settings are near
their best. XGBoost ranked much better there without normalised gradients and with the least regularisation of the bias,
and no better with other objectives. LightGBM ranked a little worse without normalised gradients in all that was looked
at: L2 from 1 to 1,000, fewer leaves, more regularisation of the bias and a larger least sum of second derivatives in a
leaf; a regularisation of 1 or more undid the correction. Ours had no such look. LightGBM's settings without normalised
gradients were added after the studies had been reported without them.
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
LABELS, TAUGHT = "ours, labels alone", "ours, with a teacher"
METHODS = (NAIVE, LIGHT, XGB, LABELS, TAUGHT, TRUE)
ENGINES = (LIGHT, XGB)
KNOWN = ("PBM", "trust")  # click models whose curves are known; settings are chosen in these
LEARNING_RATE = 0.1
_SHAPES: tuple[Setting, ...] = tuple(
    {"leaves": leaves, "l2": l2} for leaves, l2 in ((15, 100), (15, 10), (15, 1000), (7, 100), (31, 100), (7, 1000))
)
_LIGHT: tuple[Setting, ...] = tuple(
    {"leaves": leaves, "l2": l2, "regularisation": weight, "normalised": normalised}
    for leaves, l2, weight, normalised in (
        (15, 100, 0, 1),  # the engine's own settings of the correction
        (7, 100, 0, 1),
        (15, 100, 0.001, 1),
        (15, 10, 0, 0),
        (15, 100, 0, 0),
        (15, 1000, 0, 0),
    )
)
_XGB: tuple[Setting, ...] = tuple(
    {"leaves": leaves, "l2": l2, "bias_norm": norm, "normalised": normalised, "mean_pairs": mean}
    for leaves, l2, norm, normalised, mean in (
        (15, 100, 1, 1, 0),  # the engine's own settings of the correction
        (15, 1000, 0, 0, 0),
        (15, 10_000, 0, 0, 0),
        (15, 100_000, 0, 0, 0),
        (7, 10_000, 0, 0, 0),
        (15, 10_000, 0, 0, 1),
    )
)
TRIED: dict[str, tuple[Setting, ...]] = {NAIVE: _SHAPES, LIGHT: _LIGHT, XGB: _XGB}
TRIED |= dict.fromkeys((LABELS, TAUGHT, TRUE), _SHAPES)
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClickLog:
    """Clicks on lists of `LENGTH` documents, lists one after the other and each in order of position."""

    features: NDArray[np.float32]  # [rows, features]
    click: NDArray[Any]
    context: dict[str, NDArray[Any]]  # ids of each bias feature, position among them
    examined_by: tuple[str, ...] = ("position",)  # the contexts that examination depends on

    @property
    def lists(self) -> NDArray[np.int64]:
        """The list of each row."""
        return np.arange(len(self.click)) // LENGTH

    @property
    def position_ids(self) -> NDArray[np.int64]:
        """An id of each row for the combination of the contexts that examination depends on, counted from 0.

        >>> context = {"position": np.array([0, 1, 0, 1]), "device": np.array([0, 0, 2, 2])}
        >>> log = ClickLog(np.zeros((4, 1), np.float32), np.zeros(4), context, examined_by=("position", "device"))
        >>> log.position_ids.tolist()
        [0, 2, 1, 3]
        """
        contexts = np.stack([self.context[name] for name in self.examined_by])  # [contexts, rows]
        return np.unique(contexts, axis=1, return_inverse=True)[1].ravel()

    @cached_property
    def binned(self) -> Any:
        """The rows as a `lightgbm.Dataset`, which takes long to make, so both methods of LightGBM share it."""
        lists = np.full(len(self.click) // LENGTH, LENGTH)
        return need("lightgbm").Dataset(self.features, self.click, group=lists, position=self.position_ids)


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
        setting: One of the method's `TRIED`.
        rounds: Number of trees.
        seed: Seed of engine, network and folds.
        curves: By position, for `TRUE`.
    """
    if method in (NAIVE, LIGHT):
        booster = lightgbm_booster(log, setting, rounds=rounds, seed=seed, by_position=method == LIGHT)
        return np.asarray(booster.predict(features, raw_score=True))
    if method == XGB:
        booster = xgboost_booster(log, setting, rounds=rounds, seed=seed)
        return np.asarray(booster.predict(need("xgboost").DMatrix(features)))
    context = log.context if curves is None else {"position": log.context["position"]}
    sizes = {name: int(ids.max()) + 1 for name, ids in context.items()}
    ranker = BoostedRanker(
        sizes,
        curves="network" if curves is None else curves,
        teacher=None if method == TAUGHT else 0.0,
        rounds=rounds,
        leaves=int(setting["leaves"]),
        l2=setting["l2"],
        seed=seed,
    )
    return ranker.fit(log.features, log.click, context, lists=log.lists).predict(features)


def share_of_teacher() -> float:
    """Share of the network's probability in the labels of `TAUGHT`."""
    return BoostedRanker({"position": LENGTH}).teacher


def lightgbm_booster(log: ClickLog, setting: Setting, *, rounds: int, seed: int, by_position: bool) -> Any:
    """LightGBM's own correction of position bias, or its log loss of clicks."""
    given: dict[str, Any] = {
        "num_leaves": int(setting["leaves"]),
        "lambda_l2": setting["l2"],
        "min_child_samples": 100,
        "learning_rate": LEARNING_RATE,
        "objective": "lambdarank" if by_position else "binary",
        "verbose": -1,
        "seed": seed,
        "num_threads": 1,
    }
    if by_position:
        given["lambdarank_position_bias_regularization"] = setting["regularisation"]
        given["lambdarank_norm"] = bool(setting["normalised"])
    return need("lightgbm").train(given, log.binned, rounds)


def xgboost_booster(log: ClickLog, setting: Setting, *, rounds: int, seed: int, unbiased: bool = True) -> Any:
    """XGBoost's own correction of position bias.

    Rows are in order of position, from which it knows positions; it cannot be told of any other context.
    """
    package = need("xgboost")
    given: dict[str, Any] = {
        "objective": "rank:ndcg",
        "lambdarank_unbiased": unbiased,
        "lambdarank_bias_norm": setting["bias_norm"],
        "lambdarank_normalization": bool(setting["normalised"]),
        "lambdarank_score_normalization": bool(setting["normalised"]),
        "lambdarank_pair_method": "mean" if setting["mean_pairs"] else "topk",
        "eta": LEARNING_RATE,
        "grow_policy": "lossguide",
        "max_depth": 0,
        "max_leaves": int(setting["leaves"]),
        "lambda": setting["l2"] / 10,
        "seed": seed,
        "nthread": 1,
    }
    return package.train(given, package.DMatrix(log.features, log.click, qid=log.lists), rounds)
