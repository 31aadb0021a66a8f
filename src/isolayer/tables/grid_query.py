"""Places a grid for the scores of a table, by one cheap aggregate that an engine runs.

If there are outliers, another pass without them follows, as in :meth:`isolayer.grid.Spread.of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ibis

from isolayer.grid import LARGEST, OUTLIERS, PASSES, Grid, Spread
from isolayer.tables.sources import Table, Value, collect, double

_CANCELLED = 1e-6  # variance, relative to the squared mean, below which a sum of squares has lost too many digits


class Scores(NamedTuple):
    """Expressions over a table: whether a row can be used, its logit, and its weight if there are weights."""

    good: Value
    logit: Value
    weight: Value | None


def grid_for(source: Any, scores: Callable[[Table], Scores]) -> Grid:
    """A grid for the scores of a table.

    Args:
        source: What :func:`isolayer.tables.sources.collect` takes.
        scores: The expressions of a table.

    >>> import ibis
    >>> def read(table):
    ...     return Scores(table["score"].notnull(), table["score"], None)
    >>> grid_for({"score": [20.0, 20.1, 20.2] * 30}, read)
    Grid(lower=19.83, upper=20.37, step=0.01)
    """
    found, centre = Spread.empty(), 0.0
    near: Spread | None = None
    for _ in range(PASSES):
        answer = _asked(source, scores, near, centre)
        if answer is None:
            break
        found, cancelled = answer
        if cancelled and centre != found.mean:
            centre = found.mean  # query again, with squares of the distance from the mean
            continue
        if not found.has_outliers:
            break
        near, centre = found, found.mean
    return Grid.covering(found)


def _asked(
    source: Any, scores: Callable[[Table], Scores], near: Spread | None, centre: float
) -> tuple[Spread, bool] | None:
    """The spread of the usable scores near the earlier ones, and whether digits were lost; None without scores."""

    def aggregate(table: Table) -> Table:
        good, logit, weight = scores(table)
        rows = table.select(good=good, logit=logit, **({} if weight is None else {"weight": weight}))
        rows = rows.filter(rows["good"])
        rows = rows if weight is None else rows.filter(rows["weight"] > double(0))
        if near is not None:
            rows = rows.filter((rows["logit"] - double(near.mean)).abs() <= double(OUTLIERS * near.deviation))
        far = [(rows["logit"] > double(LARGEST), double(LARGEST)), (rows["logit"] < double(-LARGEST), double(-LARGEST))]
        score = ibis.cases(*far, else_=rows["logit"])  # in DuckDB cheaper than the least and the greatest of two
        away = score - double(centre) if centre else score
        first, second = away, away * away
        if weight is not None:
            first, second = rows["weight"] * away, rows["weight"] * away * away
        return rows.agg(
            weight=rows.count() if weight is None else rows["weight"].sum(),
            first=first.sum(),
            second=second.sum(),
            least=score.min(),
            most=score.max(),
        )

    row = collect(source, aggregate).to_pylist()[0]
    if not row["weight"]:
        return None
    row = {name: float(value) for name, value in row.items()}  # DuckDB reads the weight 1.0 of a relation as a decimal
    mean, square = row["first"] / row["weight"], row["second"] / row["weight"]
    variance = max(square - mean * mean, 0.0)
    spread = Spread(centre + mean, math.sqrt(variance), row["least"], row["most"])
    return spread, variance <= _CANCELLED * mean * mean and row["least"] < row["most"]
