"""Calibrators that are given every field: MCGrad, LightGBM from the score on, and ours."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.fields.tasks import Part, categorical
from benchmarks.real.lines import platt, prob_of
from isolayer.calibrator import IsotonicCalibrator

Column = NDArray[np.float64]
Method = Callable[[Part, Part], Column]
SETTINGS = (  # of LightGBM; the best on a fifth of the rows is fitted to all
    {"num_leaves": 7, "min_data_in_leaf": 50},
    {"num_leaves": 15, "min_data_in_leaf": 100, "lambda_l2": 5.0},
    {"num_leaves": 31, "min_data_in_leaf": 20, "feature_fraction": 0.7},
)
MOST_TREES = 1_000


def ours(fit: Part, test: Part) -> Column:
    """Ours, given every field."""
    model = IsotonicCalibrator(fields="all").fit(_with_score(fit), fit.rows.label)
    return np.asarray(model.predict_proba(_with_score(test))[:, 1])


def global_curve(fit: Part, test: Part) -> Column:
    """Ours, given the score only."""
    return np.asarray(IsotonicCalibrator().fit(fit.rows.score, fit.rows.label).predict_proba(test.rows.score)[:, 1])


def by_hand(fit: Part, test: Part) -> Column:
    """Ours, given two contexts chosen by hand."""
    model = IsotonicCalibrator(tuple(fit.rows.segments)).fit(fit.rows.frame(), fit.rows.label)
    return np.asarray(model.predict_proba(test.rows.frame())[:, 1])


def mcgrad(fit: Part, test: Part) -> Column:
    """MCGrad with its defaults."""
    from mcgrad.methods import MCGrad

    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    text = categorical(fit.frame)
    names: dict[str, Any] = {
        "categorical_feature_column_names": text,
        "numerical_feature_column_names": [name for name in fit.frame if name not in text],
    }

    def table(part: Part) -> pd.DataFrame:
        filled = {name: part.frame[name].astype(object).where(part.frame[name].notna(), "missing") for name in text}
        return part.frame.assign(**filled, p=prob_of(part.rows.score), label=part.rows.label)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MCGrad().fit(table(fit), "p", "label", **names)
        return np.asarray(model.predict(table(test).drop(columns="label"), "p", **names))


def boosted(fit: Part, test: Part) -> Column:
    """LightGBM that starts from Platt's line through the score and never falls with it, best of three settings."""
    start, held_start = (_logit(platt(fit.rows, part.rows)) for part in (fit, test))
    table, asked = _coded(fit, test)
    constraint = [1, *([0] * (table.shape[1] - 1))]
    held = np.random.default_rng(0).permutation(len(fit)) % 5 == 0

    def data(rows: NDArray[np.bool_]) -> Any:
        return lightgbm.Dataset(table[rows], fit.rows.label[rows], init_score=start[rows], free_raw_data=False)

    tried = []
    for setting in SETTINGS:
        params = {"objective": "binary", "learning_rate": 0.05, "monotone_constraints": constraint, **setting}
        params |= {"num_threads": 1, "seed": 0, "verbose": -1}
        stop = lightgbm.early_stopping(30, verbose=False)
        model = lightgbm.train(params, data(~held), MOST_TREES, [data(held)], callbacks=[stop])
        tried.append((model.best_score["valid_0"]["binary_logloss"], params, max(model.best_iteration, 1)))
    _, params, trees = min(tried, key=lambda one: one[0])
    model = lightgbm.train(params, data(np.ones(len(fit), bool)), trees)
    return prob_of(held_start + model.predict(asked, raw_score=True))


METHODS: dict[str, Method] = {
    "isolayer": ours,
    "isolayer, score only": global_curve,
    "isolayer, two contexts": by_hand,
    "LightGBM, init score, monotone": boosted,
    **({"MCGrad": mcgrad} if find_spec("mcgrad") else {}),
}


def _with_score(part: Part) -> pd.DataFrame:
    return part.frame.assign(score=part.rows.score)


def _coded(fit: Part, test: Part) -> tuple[pd.DataFrame, pd.DataFrame]:
    # the score first, text as the categories of the rows to fit; others are missing
    tables = []
    for part in (fit, test):
        kinds = {name: pd.CategoricalDtype(fit.frame[name].dropna().unique()) for name in categorical(fit.frame)}
        table = part.frame.astype(kinds)
        table.insert(0, "score", part.rows.score)
        tables.append(table)
    return tables[0], tables[1]


def _logit(prob: Column) -> Column:
    return np.asarray(np.log(prob / (1 - prob)))
