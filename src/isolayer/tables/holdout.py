"""Rows that are left out of a fit, by a rule that can be applied again: the latest days, or some clusters or scores."""

from __future__ import annotations

from typing import Any

from isolayer.curves.export.sql import own_name
from isolayer.errors import InputError
from isolayer.tables.days import Day, as_kept, from_day, labels, sorted_days
from isolayer.tables.folds import fold_expression
from isolayer.tables.sources import Table

Rule = dict[str, Any]  # plain values, stored with the curves

_PARTS = 100


def rule_of(table: Table, share: float, *, score: str, cluster: str | None = None, date: str | None = None) -> Rule:
    """The rule that leaves out a share of the rows.

    Args:
        table: The log.
        share: How much to leave out, in (0, 1).
        score: Its score column; without clusters or dates, rows are left out by a hash of the score.
        cluster: Column whose equal values stay together.
        date: Column of days, of which the latest are left out; clusters are then ignored.
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


def days_held_out(table: Table, rule: Rule) -> tuple[Day, Day, int, int]:
    """The first and the last day that a rule by date leaves out, their rows, and how many rows have no day."""
    days = sorted_days(table, rule["column"])
    told = table.select(day=days).aggregate(
        last=lambda part: part.day.max(),
        rows=lambda part: (part.day >= rule["from"]).sum(),
        none=lambda part: part.day.isnull().sum(),
    )
    found = told.to_pyarrow().to_pylist()[0]
    return rule["from"], as_kept(found["last"]), found["rows"], found["none"]


def _marked(table: Table, rule: Rule) -> tuple[Table, str]:
    """The table with a column that says whether a row is held out, and the name of that column."""
    name, key = rule["column"], own_name(table.columns, "held_out")
    if name not in table.columns:
        raise InputError(f"holdout: expected the column {name!r} in the log, got {list(table.columns)}; add it")
    if rule["by"] == "date":
        return table.mutate(**{key: from_day(table, name, rule["from"])}), key
    if rule["by"] == "score":
        fold = fold_expression(table, name, _PARTS)
    else:
        table = table.mutate(**{key: labels(table[name])})
        fold = fold_expression(table, name, (_PARTS, key))
    return table.mutate(**{key: fold < round(rule["share"] * _PARTS)}), key


def _first_day(table: Table, date: str, share: float) -> Day:
    counts = table.select(day=sorted_days(table, date)).group_by("day").agg(rows=lambda part: part.count()).to_pyarrow()
    pairs = zip(counts["day"].to_pylist(), counts["rows"].to_pylist(), strict=True)
    rows = {day: count for day, count in pairs if day is not None}
    if len(rows) < 2:
        raise InputError(f"holdout: expected at least two days in {date}, got {len(rows)}; hold out by cluster instead")
    later, total = 0, sum(rows.values())
    for day in sorted(rows, reverse=True):
        later += rows[day]
        if later >= share * total:
            break
    found: Day = as_kept(day if day != min(rows) else sorted(rows)[1])  # at least one day is fitted
    return found
