"""MCGrad 0.1.5 with its defaults, given the score's probability and the segment columns; slow, so on all rows only."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.real.lines import prob_of
from benchmarks.real.tasks import Rows


def mcgrad(fit: Rows, test: Rows) -> NDArray[np.float64]:
    """MCGrad's probabilities of the test rows."""
    from mcgrad.methods import MCGrad

    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    fields = list(fit.segments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MCGrad().fit(_table(fit).assign(label=fit.label), "p", "label", categorical_feature_column_names=fields)
        return np.asarray(model.predict(_table(test), "p", categorical_feature_column_names=fields))


def _table(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame({"p": prob_of(rows.score), **{name: code.astype(str) for name, code in rows.segments.items()}})
