r"""Corrections of fields in SQL: the level of every field, one join per term, and the corrected logit.

The level of a number is found by a CASE over its edges, that of a category by a join with its values, which also
returns the values of the category's own term. Every other term is one join on an integer, the combined level of its
fields. A missing level adds nothing. The statement as a whole is described in :mod:`isolayer.curves.export.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from isolayer.curves.export.dialects import Dialect, double
from isolayer.fitting.categories import KINDS, typed
from isolayer.fitting.field_levels import Field
from isolayer.fitting.interactions import View
from isolayer.fitting.terms import Term, Terms


class TermParts(NamedTuple):
    """The parts of a statement that correct a logit. Generated columns begin with ``own``."""

    terms: Terms
    dialect: Dialect
    own: str

    def columns(self, source: str) -> list[str]:
        """The fields as generated columns; an error if a field has another type than in the fit."""
        return [f"{self._read(one, source)} AS {self.own}_field_{i}" for i, one in enumerate(self.terms.fields)]

    def _read(self, one: Field, source: str) -> str:
        d, column = self.dialect, f"{source}.{self.dialect.name(one.column)}"
        if one.part is not None:
            return d.part_of(column, one.part)
        if one.kind == "number":
            rule = f"field {one.column}: expected numbers as when fitted"
            number = d.checked(column, "n", rule, "convert the column")
            return f"CAST(1E0 * {number} AS {d.types['d']})"
        kind = _kind(one)
        rule = f"field {one.column}: expected {KINDS.get(kind)} as when fitted"
        found = d.checked(column, kind, rule, "convert the column")
        return found if kind not in d.accepted else f"CAST({found} AS {d.types[kind]})"  # never that of the words

    def tables(self) -> dict[str, str]:
        """The common table expressions that contain values, by name."""
        found = {f"{self.own}_words_{i}": self._words(i) for i in self._categories}
        return found | {f"{self.own}_term_{j}": self._table(term) for j, term in self._joined}

    def chain(self) -> list[tuple[str, str]]:
        """The expressions from ``based``, which has the base logit, to ``summed``, which has the corrected one."""
        steps = {"viewed": self._viewed, "worded": self._worded, "joined": self._join, "summed": self._sum}
        return [(name, written()) for name, written in steps.items()]

    @property
    def _categories(self) -> list[int]:
        """Categories that some term uses."""
        used = {view.field for term in self.terms.terms for view in term.views}
        return [i for i, one in enumerate(self.terms.fields) if one.kind == "category" and i in used and _keys(one)]

    @property
    def _joined(self) -> list[tuple[int, Term]]:
        """Terms with their own join: all except those of a single category."""
        return [(j, term) for j, term in enumerate(self.terms.terms) if not self._is_main(term)]

    def _is_main(self, term: Term) -> bool:
        return len(term.views) == 1 and self.terms.fields[term.views[0].field].kind == "category"

    def _main(self, field: int) -> tuple[Any, Any]:
        """Offset and tilt of every level of a category; 0 if it has no term."""
        out = np.zeros((self.terms.fields[field].size, 2))
        for term in self.terms.terms:
            if self._is_main(term) and term.views[0].field == field:
                out[term.cells, : term.values.shape[1]] = term.values
        return out[:, 0], out[:, 1]

    def _words(self, field: int) -> str:
        one = self.terms.fields[field]
        keys, (offset, tilt) = _keys(one), self._main(field)
        size = len(keys)
        columns: dict[str, tuple[str, Sequence[Any]]] = {"k": (_kind(one), keys), "lv": ("i", range(size))}
        return self.dialect.table(columns | {"a": ("d", offset[:size].tolist()), "b": ("d", tilt[:size].tolist())})

    def _table(self, term: Term) -> str:
        columns: dict[str, tuple[str, Sequence[Any]]] = {"cell": ("i", term.cells.tolist())}
        names = zip("ab", term.values.T, strict=False)
        return self.dialect.table(columns | {name: ("d", values.tolist()) for name, values in names})

    def _viewed(self) -> str:
        """Levels of numbers at every resolution that a term uses."""
        columns = [f"{self._level(view)} AS {name}" for name, view in self._views.items() if self._ordered(view)]
        return self._select(columns, f"{self.own}_based")

    @property
    def _views(self) -> dict[str, View]:
        """Every view that a term uses, by the name of its column."""
        return {self._name(view): view for _, term in self._joined for view in term.views}

    def _ordered(self, view: View) -> bool:
        return self.terms.fields[view.field].kind == "number"

    def _name(self, view: View) -> str:
        return f"{self.own}_view_{view.field}_{view.size}"

    def _level(self, view: View) -> str:
        one, number = self.terms.fields[view.field], f"{self.own}_field_{view.field}"
        cuts = np.flatnonzero(np.diff(view.level[:-1]))  # the edges at which the level changes
        found = _bisected(number, [double(edge) for edge in one.edges[cuts].tolist()], 0, len(cuts))
        gap = f"{number} IS NULL OR {self.dialect.nan(number)}"
        return f"CASE WHEN {gap} THEN {int(view.level[-1])} ELSE {found} END"

    def _worded(self) -> str:
        """Levels of categories, and the sums of the terms of single categories."""
        own, joins, sums = self.own, "", {"a": [double(self.terms.shared[0])], "b": [double(self.terms.shared[1])]}
        levels = list[str]()
        for i in self._categories:
            one, alias = self.terms.fields[i], f"w{i}"
            joins += f"\n  LEFT JOIN {own}_words_{i} AS {alias} ON {alias}.k = r.{own}_field_{i}"
            for name, values in zip("ab", self._main(i), strict=True):
                value = f"COALESCE({alias}.{name}, 0E0)"
                sums[name].append(self._or_missing(i, value, double(float(values[one.missing]))))
            level = self._or_missing(i, f"{alias}.lv", str(one.missing))
            levels += [f"{level} AS {name}" for name, view in self._views.items() if view.field == i]
        columns = [*levels, *(f"{' + '.join(sums[name])} AS {own}_{name}" for name in "ab")]
        return f"SELECT\n    {_list(['r.*', *columns])}\n  FROM {own}_viewed AS r{joins}"

    def _or_missing(self, field: int, value: str, missing: str) -> str:
        if self.terms.fields[field].missing < 0:
            return value
        return f"CASE WHEN r.{self.own}_field_{field} IS NULL THEN {missing} ELSE {value} END"

    def _join(self) -> str:
        """Sums of all terms."""
        own, joins, sums = self.own, "", {"a": [f"r.{self.own}_a"], "b": [f"r.{self.own}_b"]}
        for j, term in self._joined:
            joins += f"\n  LEFT JOIN {own}_term_{j} AS t{j} ON t{j}.cell = {self.cell(term)}"
            for name in "ab"[: term.values.shape[1]]:
                sums[name].append(f"COALESCE(t{j}.{name}, 0E0)")
        columns = [f"{' + '.join(sums[name])} AS {own}_{long}" for name, long in (("a", "offset"), ("b", "tilt"))]
        return f"SELECT\n    {_list(['r.*', *columns])}\n  FROM {own}_worded AS r{joins}"

    def cell(self, term: Term) -> str:
        """The combined level of a row in a term with its own join; NULL if a field has no level."""
        cell = f"r.{self._name(term.views[0])}"
        for view in term.views[1:]:
            cell = f"({cell}) * {view.size} + r.{self._name(view)}"
        return cell

    @property
    def place(self) -> str:
        """Position of the base logit in the range of the tilts, in [-1/2, 1/2]."""
        place = f"({self.own}_base - {double(self.terms.lower)}) * {double(1 / self.terms.width)}"
        return f"(LEAST(GREATEST({place}, 0E0), 1E0) - 0.5E0)"

    def _sum(self) -> str:
        """The corrected logit: the slope of all terms together is clamped at zero."""
        tilt = f"GREATEST({self.own}_tilt, {double(-self.terms.width)})"
        corrected = f"{self.own}_base + {self.own}_offset + {tilt} * {self.place}"
        return self._select([f"{corrected} AS {self.own}_sum"], f"{self.own}_joined")

    def _select(self, columns: list[str], source: str) -> str:
        return f"SELECT\n    {_list(['*', *columns])}\n  FROM {source}"


def _bisected(number: str, edges: Sequence[str], first: int, last: int) -> str:
    """The number of edges at or below a number, between ``first`` and ``last``, by bisection.

    >>> _bisected("x", ["1.5E0"], 0, 1)
    'CASE WHEN x < 1.5E0 THEN 0 ELSE 1 END'
    """
    if first == last:
        return str(first)
    middle = (first + last) // 2
    low, high = _bisected(number, edges, first, middle), _bisected(number, edges, middle + 1, last)
    return f"CASE WHEN {number} < {edges[middle]} THEN {low} ELSE {high} END"


def _keys(one: Field) -> list[Any]:
    """The values of a category without the missing one."""
    known: list[Any] = typed(one.words)[0].tolist()
    return known


def _kind(one: Field) -> str:
    return "b" if _keys(one) and isinstance(_keys(one)[0], bool) else "U"


def _list(columns: Sequence[str]) -> str:
    return ",\n    ".join(columns)
