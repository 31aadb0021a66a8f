"""Curves as lasting SQL: the statement of :mod:`isolayer.curves.export.sql` as a view or as a dbt model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from isolayer.curves.curves import Curves
from isolayer.curves.export.sql import to_sql
from isolayer.errors import InputError
from isolayer.settings import choice, text

FORMS = ("select", "view", "dbt")
_JINJA = ("{{", "{%", "{#")


def statement(
    curves: Curves,
    dialect: str = "duckdb",
    *,
    form: str = "select",
    name: str = "calibrated",
    table: str = "scores",
    score: str = "score",
    prob: str = "calibrated_prob",
    keep: Sequence[str] = (),
) -> str:
    """SQL that calibrates a table: a statement, a view of that name, or a dbt model.

    Args:
        curves: The fitted curves.
        dialect: As for :func:`isolayer.curves.export.sql.to_sql`.
        form: ``"select"``; ``"view"``, which creates or replaces a view; or ``"dbt"``, a file for a folder of models.
        name: Name of the view, as it is written in SQL.
        table: The table to read. For dbt the name of a model, or that of a source and its table: ``raw.logs``.
        score: Its score column.
        prob: Name of the new column.
        keep: Further columns to keep.

    >>> from isolayer.grid import Grid
    >>> model = statement(Curves.identity(Grid()), form="dbt", table="raw.logs")
    >>> "FROM {{ source('raw', 'logs') }}" in model
    True
    """
    choice("form", form, FORMS)
    columns: dict[str, Any] = {"score": score, "prob": prob, "keep": tuple(keep)}
    if form != "dbt":
        text("name", name, advice="name the view")
        body = to_sql(curves, dialect, table=table, **columns)
        return body if form == "select" else f"CREATE OR REPLACE VIEW {name} AS\n{body}"
    reference = _reference(table)
    body = to_sql(curves, dialect, table=reference, **columns)
    before, _, after = body.partition(reference)
    return f"{_literal(before)}{reference}{_literal(after)}"


def _reference(table: str) -> str:
    """A table as a reference of dbt: a model of the project, or a table of a source.

    >>> _reference("logs"), _reference("raw.logs")
    ("{{ ref('logs') }}", "{{ source('raw', 'logs') }}")
    """
    parts = table.split(".")
    if len(parts) > 2 or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise InputError(f"table: expected a model of dbt, or SOURCE.TABLE, got {table!r}; name one of the project")
    if len(parts) == 1:
        return f"{{{{ ref('{table}') }}}}"
    return f"{{{{ source('{parts[0]}', '{parts[1]}') }}}}"


def _literal(sql: str) -> str:
    """SQL that Jinja leaves unchanged, since names may contain braces.

    >>> _literal('SELECT "{{ x }}"'), _literal("SELECT 1")
    ('{% raw %}SELECT "{{ x }}"{% endraw %}', 'SELECT 1')
    """
    return f"{{% raw %}}{sql}{{% endraw %}}" if any(mark in sql for mark in _JINJA) else sql
