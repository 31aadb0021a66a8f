"""Rows left out of a fit, by a rule that finds the same rows again: the latest days, some clusters, some scores."""

from __future__ import annotations

import re
from typing import Any

from isolayer.curves.export.sql import own_name
from isolayer.errors import InputError
from isolayer.tables.folds import fold_expression
from isolayer.tables.sources import Table, Value

Rule = dict[str, Any]  # plain values, kept with the curves

_PARTS = 100


def rule_of(table: Table, share: float, *, score: str, cluster: str | None = None, date: str | None = None) -> Rule:
    """The rule that leaves out a share of the rows.

    Args:
        table: The log.
        share: How much to leave out, in (0, 1).
        score: Its score column; without clusters or dates, rows are left out by a hash of the score.
        cluster: Column whose equal values stay together.
        date: Column of days, of which the latest are left out; clusters are then not looked at.
    """
    if not 0 < share < 1:
        raise InputError(f"holdout: expected a share between 0 and 1, got {share}; try 0.2")
    if date is not None:
        return {"by": "date", "column": date, "from": _first_day(table, date, share)}
    column, by = (score, "score") if cluster is None else (cluster, "cluster")
    return {"by": by, "column": column, "share": share}


def held_out(table: Table, rule: Rule) -> Table:
    """The rows that a rule leaves out of the fit."""
    marked, key = _marked(table, rule)
    return marked.filter(marked[key]).drop(key)


def fitted(table: Table, rule: Rule) -> Table:
    """The rows that a rule leaves for the fit."""
    marked, key = _marked(table, rule)
    return marked.filter(~marked[key]).drop(key)


def _marked(table: Table, rule: Rule) -> tuple[Table, str]:
    """The table with a column that says whether a row is held out, and the name of that column."""
    name, key = rule["column"], own_name(table.columns, "held_out")
    if name not in table.columns:
        raise InputError(f"holdout: expected the column {name!r} in the log, got {list(table.columns)}; add it")
    if rule["by"] == "date":
        return table.mutate(**{key: (days(table[name]) >= rule["from"]).fill_null(False)}), key
    if rule["by"] == "score":
        fold = fold_expression(table, name, _PARTS)
    else:
        table = table.mutate(**{key: days(table[name])})
        fold = fold_expression(table, name, (_PARTS, key))
    return table.mutate(**{key: fold < round(rule["share"] * _PARTS)}), key


def days(values: Value) -> Value:
    """A column as days or clusters: days of timestamps, whole numbers as they are, anything else as text."""
    values = values.date() if values.type().is_timestamp() else values
    if values.type().is_date():  # not by a cast, which DuckDB answers with the text of a CSV file, in any format
        return values.strftime("%Y-%m-%d")
    return values if values.type().is_integer() else values.cast("string")


_YEAR_FIRST = re.compile(r"\d{4}([-/. ]|W|(0[1-9]|1[0-2])\d\d|$)")  # text that sorts as its days do


def _first_day(table: Table, date: str, share: float) -> int | str:
    counts = table.select(day=days(table[date])).group_by("day").agg(rows=lambda part: part.count()).to_pyarrow()
    pairs = zip(counts["day"].to_pylist(), counts["rows"].to_pylist(), strict=True)
    rows = {day: count for day, count in pairs if day is not None}
    if len(rows) < 2:
        raise InputError(f"holdout: expected at least two days in {date}, got {len(rows)}; hold out by cluster instead")
    unsorted = next((day for day in rows if isinstance(day, str) and not _YEAR_FIRST.match(day)), None)
    if unsorted is not None:
        raise InputError(
            f"holdout: expected dates, or text that sorts as they do, in {date}, got {unsorted!r}; write 2026-11-17"
        )
    later, total = 0, sum(rows.values())
    for day in sorted(rows, reverse=True):
        later += rows[day]
        if later >= share * total:
            break
    found: int | str = day if day != min(rows) else sorted(rows)[1]  # at least one day is fitted
    return found
