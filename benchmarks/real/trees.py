"""Boosted trees as calibrators: LightGBM on the score and the segment columns, and MCGrad with its defaults.

Both learn a model of the label from the same columns that the calibrator sees. LightGBM chooses its number of trees on
a fifth of the rows and is then fitted to all of them.
"""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.real.tasks import Rows

Column = NDArray[np.float64]
MOST_TREES = 500


def lightgbm_free(fit: Rows, test: Rows) -> Column:
    """LightGBM on (score, segments), no constraint."""
    return _lightgbm(fit, test, monotone=0)


def lightgbm_monotone(fit: Rows, test: Rows) -> Column:
    """LightGBM on (score, segments), never decreasing in the score."""
    return _lightgbm(fit, test, monotone=1)


def _lightgbm(fit: Rows, test: Rows, *, monotone: int) -> Column:
    contexts = list(fit.segments)
    settings: dict[str, Any] = {
        "objective": "binary",
        "learning_rate": 0.05,
        "num_leaves": 15,
        "monotone_constraints": [monotone, *([0] * len(contexts))],
        "num_threads": 1,
        "seed": 0,
        "verbose": -1,
    }

    def data(rows: Rows) -> Any:
        return lightgbm.Dataset(_table(rows), rows.label, categorical_feature=contexts, free_raw_data=False)

    held = np.random.default_rng(0).permutation(len(fit)) % 5 == 0
    stop = lightgbm.early_stopping(20, verbose=False)
    first = lightgbm.train(settings, data(fit[~held]), MOST_TREES, [data(fit[held])], callbacks=[stop])
    model = lightgbm.train(settings, data(fit), max(first.best_iteration, 1))
    return np.asarray(model.predict(_table(test)))


def _table(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame({"score": rows.score, **rows.segments})
