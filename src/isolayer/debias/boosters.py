"""LightGBM and XGBoost behind one interface: a function of gradients and Hessians decides how trees grow.

The treatment of bias is in `boosting`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import need

Floats = NDArray[np.float64]
Objective = Callable[[Floats], tuple[Floats, Floats]]  # raw scores [n] to gradients [n] and Hessians [n]
LEAF_ROWS = 100  # fewest rows of a leaf
_LEAF_HESSIAN = 10.0  # XGBoost bounds the sum of Hessians instead of the number of rows: about the same
_BINS = 255


class Trees(NamedTuple):
    """The settings of trees that both engines have."""

    rounds: int
    learning_rate: float
    leaves: int
    l2: float
    seed: int


class Engine(Protocol):
    """A booster that is being grown; ``booster`` is the engine's own object."""

    booster: Any

    def grow(self, objective: Objective, rounds: int) -> None:
        """Add trees, each along the gradient at the scores so far."""

    def raw(self, features: Floats) -> Floats:
        """Sum of the trees, ``[n]``."""

    def raw_of_own(self) -> Floats:
        """Sum of the trees for the rows they grew on, ``[n]``, which the engine has kept."""


class LightGBM:
    """A LightGBM booster that starts at zero."""

    def __init__(self, features: Floats, trees: Trees) -> None:
        lightgbm = need("lightgbm")
        settings = {
            "objective": "none",
            "learning_rate": trees.learning_rate,
            "num_leaves": trees.leaves,
            "lambda_l2": trees.l2,
            "min_child_samples": LEAF_ROWS,
            "max_bin": _BINS,
            "feature_pre_filter": False,
            "seed": trees.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }
        self.booster = lightgbm.Booster(settings, lightgbm.Dataset(features, np.zeros(len(features)), params=settings))

    def grow(self, objective: Objective, rounds: int) -> None:
        """Add trees, each along the gradient at the scores so far."""
        for _ in range(rounds):
            if self.booster.update(fobj=lambda raw, _: objective(np.asarray(raw, np.float64))):
                break  # no split is left

    def raw(self, features: Floats) -> Floats:
        """Sum of the trees, ``[n]``."""
        return raw_scores(self.booster, features)

    def raw_of_own(self) -> Floats:
        """Sum of the trees for the rows they grew on, ``[n]``, which the engine has kept."""
        kept = list[Floats]()

        def keep(raw: Any, _: Any) -> tuple[str, float, bool]:
            kept.append(np.array(raw, np.float64))  # the engine reuses its own
            return "", 0.0, True

        self.booster.eval_train(keep)
        return kept[0]


class XGBoost:
    """An XGBoost booster that starts at zero."""

    def __init__(self, features: Floats, trees: Trees) -> None:
        xgboost = need("xgboost")
        settings = {
            "objective": "reg:squarederror",
            "base_score": 0.0,
            "eta": trees.learning_rate,
            "max_leaves": trees.leaves,
            "max_depth": 0,
            "grow_policy": "lossguide",
            "tree_method": "hist",
            "reg_lambda": trees.l2,
            "min_child_weight": _LEAF_HESSIAN,
            "max_bin": _BINS,
            "seed": trees.seed,
            "verbosity": 0,
        }
        self._rows = xgboost.DMatrix(features, np.zeros(len(features)))
        self.booster = xgboost.Booster(settings, [self._rows])

    def grow(self, objective: Objective, rounds: int) -> None:
        """Add trees, each along the gradient at the scores so far."""
        for _ in range(rounds):
            self.booster.update(
                self._rows,
                self.booster.num_boosted_rounds(),
                fobj=lambda raw, _: objective(np.asarray(raw, np.float64)),
            )

    def raw(self, features: Floats) -> Floats:
        """Sum of the trees, ``[n]``."""
        return raw_scores(self.booster, features)

    def raw_of_own(self) -> Floats:
        """Sum of the trees for the rows they grew on, ``[n]``, which the engine has kept."""
        return np.asarray(self.booster.predict(self._rows, output_margin=True), np.float64)


ENGINES: dict[str, type[LightGBM] | type[XGBoost]] = {"lightgbm": LightGBM, "xgboost": XGBoost}
FILES = {"lightgbm": "booster.txt", "xgboost": "booster.json"}  # file names that the engines' own tools can read


def raw_scores(booster: Any, features: Floats) -> Floats:
    """Sum of the trees of a booster of either engine, ``[n]``."""
    if type(booster).__module__.startswith("lightgbm"):
        return np.asarray(booster.predict(features, raw_score=True), np.float64)
    return np.asarray(booster.predict(need("xgboost").DMatrix(features), output_margin=True), np.float64)


def width(booster: Any) -> int:
    """Number of features of a booster of either engine."""
    return int(booster.num_feature() if type(booster).__module__.startswith("lightgbm") else booster.num_features())


def read_booster(engine: str, path: Path) -> Any:
    """The booster of a file."""
    if engine == "lightgbm":
        return need("lightgbm").Booster(model_file=str(path))
    booster = need("xgboost").Booster()
    booster.load_model(path)
    return booster
