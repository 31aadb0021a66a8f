"""Clusters of rows that vary together: the column that names them, and the note that is printed without one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.columns import column
from isolayer.fitting.histogram import Histogram

Cluster = Annotated[
    str | None,
    typer.Option(help="Column whose rows vary together, such as a day, a user or a query; by default that of --date."),
]
Date = Annotated[str | None, typer.Option(help="Column of days; the rows of a day count as a cluster.")]

INDEPENDENT = "intervals assume independent rows; if rows of a user or day vary together, use --cluster or --date"


def with_clusters(table: Any, cluster: str | None, date: str | None) -> tuple[Any, str | None, str | None]:
    """The table with a column of clusters, the option that names it, and its name; None if neither option is given.

    Timestamps are reduced to their day; each other value is a cluster as it is.
    """
    if cluster is None and date is None:
        return table, None, None
    from isolayer.curves.export.sql import own_name
    from isolayer.tables.days import labels

    option, given = ("--cluster", cluster) if cluster is not None else ("--date", date)
    name = column(given, option, (), table.columns)
    own = own_name(table.columns, "cluster")
    return table.mutate(**{own: labels(table[name])}), f"{option} {name}", own


def several_clusters(histogram: Histogram) -> bool:
    """Whether the rows are from more than one cluster; an empty log has none."""
    return len(np.unique(histogram.fold)) > 1


def latest_day(table: Any, date: str | None) -> str:
    """The latest day of a log as text, by its column of days; today if there is none."""
    if date is None:
        return datetime.now(tz=UTC).date().isoformat()
    from isolayer.tables.days import as_kept, sorted_days

    days = sorted_days(table, column(date, "--date", (), table.columns))
    return str(as_kept(days.max().to_pyarrow().as_py()))
