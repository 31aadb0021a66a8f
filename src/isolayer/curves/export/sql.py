r"""Curves as one SQL statement in plain text, for six dialects. Writing it needs no optional dependency.

The statement is a chain of common table expressions. The curves are written in two kinds of tables: the levels of
:mod:`isolayer.curves.export.levels`, which lead from a context to a curve, and *cells*, each with the value at the
start of a few buckets and the increase in each of them. Then come the rows, the position of their scores on the grid,
the curve of each row, and the probability.

Engines differ in how they compare, order and convert NULL and NaN, and in what they convert silently. The statement
does not depend on any of this. A score that cannot be used is flagged first and counts as 0 until the end, so that all
arithmetic is on finite numbers. A missing context has a flag, so that every join is an equality. If an engine would
compare a string with a number, the statement checks the type of the column and raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import NEAR, Floats
from isolayer.curves.export.dialects import DIALECTS, Dialect
from isolayer.curves.export.dialects import double as _double
from isolayer.curves.export.levels import Level, levels
from isolayer.curves.export.sql_terms import TermParts
from isolayer.errors import InputError
from isolayer.fitting.categories import KINDS
from isolayer.fitting.terms import LAST_GRID
from isolayer.grid import Grid
from isolayer.settings import choice, text

_PACK = 5  # buckets per cell; the number and value of a cell take about twenty characters
_FILLERS = {"i": 0, "b": False, "U": "", None: False}  # placeholders for a missing key, which also has a flag


def to_sql(
    curves: Curves,
    dialect: str = "duckdb",
    *,
    table: str = "scores",
    score: str = "score",
    prob: str = "calibrated_prob",
    keep: Sequence[str] = (),
) -> str:
    """One statement that calibrates a table, with the curves written inside it.

    Its length grows by about 2 kB per curve; for very many curves use :func:`isolayer.tables.apply.apply_table`.

    Args:
        curves: The fitted curves.
        dialect: ``"duckdb"``, ``"spark"``, ``"bigquery"``, ``"snowflake"``, ``"trino"`` or ``"postgres"``.
        table: The table to read, as it is written in a FROM clause.
        score: Its score column. Column names are quoted exactly as they are given, and DuckDB is asked for that exact
            spelling, including upper and lower case.
        prob: Name of the new column, NULL where a score cannot be used.
        keep: Further columns to keep, besides the score and the contexts.

    >>> from isolayer.grid import Grid
    >>> to_sql(Curves.identity(Grid()), "postgres", table="logs").splitlines()[-1]
    'INNER JOIN isolayer_cells AS c ON c.cell = r.isolayer_cell'
    """
    statement = statement_of(curves, dialect, table=table, score=score, prob=prob, keep=keep)
    return f"{written(statement.parts(table, score))}\n{statement.answer(prob)}"


def statement_of(
    curves: Curves,
    dialect: str,
    *,
    table: str,
    score: str,
    prob: str,
    keep: Sequence[str] = (),
    term_parts: type[TermParts] = TermParts,
) -> _Statement:
    """The parts of a statement, its names checked; arguments as in :func:`to_sql`."""
    choice("dialect", dialect, list(DIALECTS))
    text("table", table, advice="write it as in a FROM clause")
    for name, column in {"score": score, "prob": prob}.items():
        text(name, column, advice="name a column")
    columns = list(dict.fromkeys([*keep, score, *curves.contexts, *curves.fields]))
    _check_names(columns, prob, dialect)
    own = own_prefix([*columns, prob], table)
    return _Statement(curves, levels(curves), DIALECTS[dialect], own, columns, term_parts)


def written(parts: Mapping[str, str]) -> str:
    """Common table expressions as the beginning of a statement.

    >>> written({"one": "SELECT 1"})
    'WITH one AS (SELECT 1)'
    """
    return "WITH " + ",\n".join(f"{name} AS ({body})" for name, body in parts.items())


def cells_of(values: Floats, pack: int) -> tuple[Floats, Floats]:
    """Curves cut into cells of several buckets each: the value at the start of each cell, and the rise in each bucket.

    Args:
        values: Values at the knots, shape ``[curves, knots]``.
        pack: Buckets per cell; the last cell of a curve may have fewer, and rises of 0.

    Returns:
        Starts ``[curves * cells]`` and rises ``[curves * cells, pack]``.

    >>> start, rise = cells_of(np.array([[0.0, 1.0, 3.0, 3.5]]), pack=2)
    >>> start.tolist(), rise.tolist()
    ([0.0, 3.0], [[1.0, 2.0], [0.5, 0.0]])
    """
    rows, knots = values.shape
    width = -(-(knots - 1) // pack)
    rise = np.zeros((rows, width * pack))
    rise[:, : knots - 1] = np.diff(values)
    return values[:, : knots - 1 : pack].reshape(-1), rise.reshape(-1, pack)


def own_prefix(columns: Iterable[str], table: str = "") -> str:
    """A prefix for generated names, so that none of them is a column or a table of the user.

    >>> own_prefix(["score"]), own_prefix(["score", "Isolayer_v"])
    ('isolayer', 'isolayer2')
    """
    taken, number = " ".join([*columns, table]).casefold(), 1
    while f"isolayer{number if number > 1 else ''}_" in taken:
        number += 1
    return f"isolayer{number if number > 1 else ''}"


def own_name(columns: Iterable[str], name: str) -> str:
    """A name for a generated column that differs from all columns of the user.

    >>> own_name(["score"], "fold"), own_name(["score", "isolayer_fold"], "fold")
    ('isolayer_fold', 'isolayer2_fold')
    """
    return f"{own_prefix(columns)}_{name}"


def _check_names(columns: Sequence[str], prob: str, dialect: str) -> None:
    seen = dict[str, str]()
    for name in (*columns, prob):
        folded = name.casefold() if DIALECTS[dialect].folds else name
        if folded in seen:
            raise InputError(
                f"columns: expected names that differ in {dialect}, got {seen[folded]!r} and {name!r}; rename one, "
                "or choose another prob"
            )
        seen[folded] = name
        if DIALECTS[dialect].variables and "${" in name:
            raise InputError(f"columns: expected no ${{ in a name, which {dialect} replaces, got {name!r}; rename it")


class _Statement(NamedTuple):
    """The parts of a statement. Generated columns begin with ``own`` if they occur next to columns of the user."""

    curves: Curves
    walk: list[Level]
    dialect: Dialect
    own: str
    columns: list[str]
    term_parts: type[TermParts] = TermParts

    def grid(self, last: str = "") -> Grid:
        """The grid of the base curves, or of the last curve."""
        return LAST_GRID if last else self.curves.grid

    def pack(self, last: str = "") -> int:
        """Buckets per cell."""
        return min(_PACK, self.grid(last).buckets - 1)

    def width(self, last: str = "") -> int:
        """Cells per curve."""
        return -(-(self.grid(last).buckets - 1) // self.pack(last))

    def parts(self, table: str, score: str) -> dict[str, str]:
        """The common table expressions by their names, in order."""
        own, written = self.own, {f"{self.own}_cells": self.cells(np.asarray(self.curves.values))}
        written |= {f"{own}_level_{depth}": self.level(depth) for depth in range(1, len(self.walk) + 1)}
        chain = [("rows", self.rows(table, score)), ("marked", self.marked())]
        if self.curves.scale == "prob":
            chain.append(("logits", self.logits()))
        chain += [("placed", self.placed(chain[-1][0])), ("grouped", self.grouped()), ("found", self.found())]
        if (terms := self.terms) is not None:
            written |= terms.tables()
            chain += [("based", self.based()), *terms.chain()]
            if terms.terms.last is not None:
                written[f"{own}_last"] = self.cells(terms.terms.last[None], "last_")
                chain += [("ended", self.ended("summed")), ("last_grouped", self.last_grouped())]
        return written | {f"{own}_{name}": f"\n  {body}\n" for name, body in chain}

    @property
    def terms(self) -> TermParts | None:
        """The parts of the terms, if there are any."""
        return None if self.curves.terms is None else self.term_parts(self.curves.terms, self.dialect, self.own)

    def cells(self, values: Floats, last: str = "") -> str:
        start, rise = cells_of(values, self.pack(last))
        columns = {"cell": ("i", range(len(start))), "v": ("d", start.tolist())}
        return self.dialect.table(columns | {f"r{k}": ("d", rise[:, k].tolist()) for k in range(self.pack(last))})

    def level(self, depth: int) -> str:
        level = self.walk[depth - 1]
        columns: dict[str, tuple[str, Sequence[Any]]] = {"curve": ("i", level.rows.tolist())}
        if depth > 1:
            columns["parent"] = ("i", level.parent.tolist())
        if level.kind is not None:
            columns["k"] = (level.kind, [_FILLERS[level.kind] if key is None else key for key in level.keys])
        if level.has_missing:
            columns["gap"] = ("i", [int(key is None) for key in level.keys])
        return self.dialect.table(columns)

    def rows(self, table: str, score: str) -> str:
        """The table's columns, the score as a double, and the contexts; an error if a context has another type."""
        d, own = self.dialect, self.own
        columns = [f"{own}_source.{d.name(name)}" for name in self.columns]
        number = d.checked(f"{own}_source.{d.name(score)}", "n", f"column {score}: expected numbers", "convert it")
        columns.append(f"CAST(1E0 * {number} AS {d.types['d']}) AS {own}_score")
        for depth, level in enumerate(self.walk, start=1):
            rule = f"context {level.context}: expected {KINDS.get(level.kind or '')} as when fitted"
            largest = max((abs(key) for key in level.words), default=0) if level.kind == "i" else 0
            context = f"{own}_source.{d.name(level.context)}"
            if level.kind is not None:
                context = d.checked(context, level.kind, rule, "convert the column", largest)
            columns.append(f"{context} AS {own}_context_{depth}")
        if self.terms is not None:
            columns += self.terms.columns(f"{own}_source")
        return f"SELECT\n    {_list(columns)}\n  FROM {d.source(table, self.columns)} AS {own}_source"

    def marked(self) -> str:
        """Flags for usable scores and missing contexts; unusable scores are 0 from here on."""
        own, score = self.own, f"{self.own}_score"
        good = f"{score} - {score} = 0E0"  # false for NaN and infinity in every engine
        if self.curves.scale == "prob":
            good += f" AND {score} >= 0E0 AND {score} <= 1E0"
        columns = [f"CASE WHEN {good} THEN 1 ELSE 0 END AS {own}_usable"]
        columns.append(f"CASE WHEN {good} THEN {score} ELSE 0E0 END AS {own}_{self.curves.scale}")
        for depth, level in enumerate(self.walk, start=1):
            if level.has_missing:
                columns += self.gap(depth, level)
        return self.select(columns, "rows")

    def gap(self, depth: int, level: Level) -> list[str]:
        context = f"{self.own}_context_{depth}"
        gap = f"{context} IS NULL"
        if level.kind == "i":
            gap += f" OR {self.dialect.nan(context)}"
        mark = f"CASE WHEN {gap} THEN 1 ELSE 0 END AS {self.own}_gap_{depth}"
        filler = self.dialect.literal(_FILLERS[level.kind])
        key = f"CASE WHEN {gap} THEN {filler} ELSE {context} END AS {self.own}_key_{depth}"
        return [mark] if level.kind is None else [mark, key]

    def logits(self) -> str:
        inside = _clip(f"{self.own}_prob", NEAR, 1 - NEAR)
        return self.select([f"LN({inside} / (1E0 - {inside})) AS {self.own}_logit"], "marked")

    def placed(self, source: str) -> str:
        """Distance from the lower end of the grid in steps, and distance outside the grid for curves that extend."""
        return self.select(self.place("logit", "", extend=self.curves.extrapolation == "extend"), source)

    def place(self, logit: str, last: str, *, extend: bool) -> list[str]:
        grid, logit = self.grid(last), f"{self.own}_{logit}"
        inside = _clip(logit, grid.lower, grid.upper)
        place = f"({inside} - {_double(grid.lower)}) * {_double(1 / grid.step)} AS {self.own}_{last}place"
        outside = f"{logit} - {inside}" if extend else "0E0"
        return [place, f"{outside} AS {self.own}_{last}outside"]

    def grouped(self) -> str:
        """The cell of the curve in which a logit lies."""
        return self.select([self.group("")], "placed")

    def group(self, last: str) -> str:
        place = f"LEAST({self.own}_{last}place / {_double(self.pack(last))}, {_double(self.width(last) - 0.5)})"
        return f"CAST(FLOOR({place}) AS {self.dialect.types['i']}) AS {self.own}_{last}group"

    def based(self) -> str:
        """The calibrated logit of the base curve."""
        own = self.own
        join = f"INNER JOIN {own}_cells AS c ON c.cell = r.{own}_cell"
        return f"SELECT r.*, {self.value('')} AS {own}_base\n  FROM {own}_found AS r\n  {join}"

    def ended(self, source: str) -> str:
        """The corrected logit on the grid of the last curve."""
        return self.select(self.place("sum", "last_", extend=True), source)

    def last_grouped(self) -> str:
        """The cell of the last curve in which a logit lies."""
        return self.select([self.group("last_")], "ended")

    def found(self) -> str:
        """The cell of the deepest curve that a row's context has."""
        own, joins = self.own, list[str]()
        for depth, level in enumerate(self.walk, start=1):
            alias, same = f"l{depth}", list[str]()
            key = f"r.{own}_{'key' if level.has_missing else 'context'}_{depth}"
            if level.kind is not None:
                same.append(f"{alias}.k = {key}")
            if level.kind == "i" and self.dialect.rounds:
                whole = f"r.{own}_context_{depth} % 1 = 0"
                same.append(f"(r.{own}_gap_{depth} = 1 OR {whole})" if level.has_missing else whole)
            if level.has_missing:
                same.append(f"{alias}.gap = r.{own}_gap_{depth}")
            if depth > 1:
                same.append(f"{alias}.parent = l{depth - 1}.curve")
            joins.append(f"\n  LEFT JOIN {own}_level_{depth} AS {alias} ON {' AND '.join(same)}")
        curve = ", ".join([*(f"l{depth}.curve" for depth in range(len(self.walk), 0, -1)), "0"])
        cell = f"COALESCE({curve}) * {self.width()} + r.{own}_group" if self.walk else f"r.{own}_group"
        return f"SELECT r.*, {cell} AS {own}_cell\n  FROM {own}_grouped AS r{''.join(joins)}"

    def answer(self, prob: str) -> str:
        """The last SELECT: the user's columns and the probability."""
        own, curves = self.own, self.curves
        source, value = f"{own}_found AS r\nINNER JOIN {own}_cells AS c ON c.cell = r.{own}_cell", self.value("")
        if curves.terms is not None and curves.terms.last is None:
            source, value = f"{own}_summed AS r", f"r.{own}_sum"
        elif curves.terms is not None:
            source = f"{own}_last_grouped AS r\nINNER JOIN {own}_last AS c ON c.cell = r.{own}_last_group"
            value = self.value("last_")
        value = _clip(value, -700, 36)
        columns = [f"r.{self.dialect.name(name)}" for name in self.columns]
        columns.append(
            f"CASE WHEN r.{own}_usable = 1 THEN 1E0 / (1E0 + EXP(-{value})) END AS {self.dialect.name(prob)}"
        )
        return f"SELECT\n  {_list(columns, 2)}\nFROM {source}"

    def value(self, last: str) -> str:
        """The value of a curve at a row's position in a cell."""
        own, pack = self.own, self.pack(last)
        value, into = "c.v", f"(r.{own}_{last}place - r.{own}_{last}group * {_double(pack)})"
        for k in range(pack):
            part = into if k == 0 else f"GREATEST({into} - {_double(k)}, 0E0)"
            value += f" + {part if k == pack - 1 else f'LEAST({part}, 1E0)'} * c.r{k}"
        return f"{value} + r.{own}_{last}outside"

    def select(self, columns: list[str], source: str) -> str:
        return f"SELECT\n    {_list(['*', *columns])}\n  FROM {self.own}_{source}"


def _list(columns: Iterable[str], indent: int = 4) -> str:
    return f",\n{' ' * indent}".join(columns)


def _clip(value: str, lower: float, upper: float) -> str:
    return f"LEAST(GREATEST({value}, {_double(lower)}), {_double(upper)})"
