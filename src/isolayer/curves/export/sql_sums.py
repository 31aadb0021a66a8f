"""Statements that fit the corrections of fields inside an engine: sums by level, and leave-one-out logits of rows.

Rows must be usable, with their raw logit, label, weight and kept share of negatives in columns named by
:class:`RowColumns`. One statement scans the table once, and returns the sums of every term by GROUPING SETS.
:mod:`isolayer.fitting.field_refit` uses these sums; how a statement reads rows and finds levels is in
:mod:`isolayer.curves.export.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from isolayer.curves.curves import Curves
from isolayer.curves.export.dialects import double
from isolayer.curves.export.sql import _Statement, statement_of, written
from isolayer.curves.export.sql_terms import TermParts
from isolayer.fitting.backfitting import LEAST_WEIGHT
from isolayer.fitting.field_guard import LEAST_LEFT
from isolayer.fitting.terms import Term


class RowColumns(NamedTuple):
    """Names of the columns of usable rows."""

    logit: str
    label: str
    weight: str
    rate: str


class _OwnJoins(TermParts):
    """Every term has its own join, and its cell is a column."""

    def _is_main(self, term: Term) -> bool:
        return False

    def chain(self) -> list[tuple[str, str]]:
        """The expressions from the base logit to the joined terms, without their sum."""
        return super().chain()[:-1]

    def _join(self) -> str:
        head, rest = super()._join().split("\n  FROM ", 1)
        cells = [f"COALESCE({self.cell(term)}, -1) AS {self.own}_cell_{j}" for j, term in self._joined]
        return ",\n    ".join([head, *cells]) + f"\n  FROM {rest}"


class _WithVariances(_OwnJoins):
    """As above, with the variance of the sum of all terms as a further column."""

    def _table(self, term: Term) -> str:
        columns: dict[str, tuple[str, Sequence[Any]]] = {"cell": ("i", term.cells.tolist())}
        for name, values in zip("ab", term.values.T, strict=False):
            columns[name] = ("d", values.tolist())
        for name, (i, j) in self._spreads(term).items():
            columns[name] = ("d", term.covariance[:, i, j].tolist())
        return self.dialect.table(columns)

    def _join(self) -> str:
        head, rest = super()._join().split("\n  FROM ", 1)
        place, parts = self.place.replace(f"{self.own}_base", f"r.{self.own}_base"), ["0E0"]
        for j, term in self._joined:
            for name, factor in (("va", "1E0"), ("vc", f"2E0 * {place}"), ("vb", f"{place} * {place}")):
                if name in self._spreads(term):
                    parts.append(f"COALESCE(t{j}.{name}, 0E0) * {factor}")
        return f"{head},\n    GREATEST({' + '.join(parts)}, 0E0) AS {self.own}_variance\n  FROM {rest}"

    def _spreads(self, term: Term) -> dict[str, tuple[int, int]]:
        return {"va": (0, 0), "vc": (0, 1), "vb": (1, 1)} if term.values.shape[1] == 2 else {"va": (0, 0)}


def sums_query(curves: Curves, dialect: str, *, table: str, rows: RowColumns) -> str:
    """Sums of every free term by its cells, in columns ``cell_0`` and so on.

    In each row of the result, only the cell of the term that it belongs to is not NULL. The row in which all cells are
    NULL has the sums of all rows. The cell -1 has the rows that a term does not correct.
    """
    steps = _steps(curves, dialect, table, rows, _OwnJoins)
    steps.add(t=steps.place)
    steps.add(z="{own}_base + {own}_offset + {own}_tilt * {own}_t + {shift}", zb="{own}_base + {shift}")
    steps.add(p=_sigmoid("{own}_z"), pb=_sigmoid("{own}_zb"))
    steps.add(r="{weight} * ({label} - {own}_p)", h=f"{{weight}} * {_information('{own}_p')}")
    loss = "{weight} * (GREATEST({own}_z, 0E0) + LN(1E0 + EXP(-ABS({own}_z))) - {label} * {own}_z)"
    told = {
        "weights": "{weight}",
        "observed": "{weight} * {label}",
        "expected": "{weight} * {own}_pb",
        "gradient": "{own}_r",
        "tilted": "{own}_r * {own}_t",
        "hessian": "{own}_h",
        "crossed": "{own}_h * {own}_t",
        "squared": "{own}_h * {own}_t * {own}_t",
        "loss": loss,
    }
    free = [j for j, term in enumerate(steps.terms.terms) if not term.frozen]
    columns = [f"{{own}}_cell_{j} AS cell_{k}" for k, j in enumerate(free)]
    columns += [f"SUM({value}) AS {name}" for name, value in told.items()]
    sets = ", ".join([*(f"({{own}}_cell_{j})" for j in free), "()"])
    return steps.ended(columns, f"\nGROUP BY GROUPING SETS ({sets})")


def left_out_query(curves: Curves, dialect: str, *, table: str, rows: RowColumns) -> str:
    """Every row with its leave-one-out corrected logit: ``logit``, ``label``, ``weight``, ``rate``.

    The same as :func:`isolayer.fitting.field_guard.left_out`.
    """
    steps = _steps(curves, dialect, table, rows, _WithVariances)
    least = double(-steps.terms.width)
    steps.add(z=f"{{own}}_base + {{own}}_offset + GREATEST({{own}}_tilt, {least}) * {steps.place}")
    steps.add(p=_sigmoid("{own}_z + {shift}"), leverage=f"{double(steps.terms.share)} * {{own}}_variance")
    steps.add(h=_information("{own}_p"))
    back = f"({{label}} - {{own}}_p) * {{own}}_leverage / GREATEST(1E0 - {{own}}_h * {{own}}_leverage, {LEAST_LEFT}E0)"
    columns = [f"{{own}}_z - {back} AS logit", "{label} AS label", "{weight} AS weight", "{rate} AS rate"]
    return steps.ended(columns)


class _Steps:
    """A statement that is built expression by expression; ``{own}`` and names of columns are filled in."""

    def __init__(self, statement: _Statement, table: str, rows: RowColumns) -> None:
        parts = statement.terms
        assert parts is not None
        self.terms, self.place = parts.terms, parts.place.replace(statement.own, "{own}")
        names = {name: statement.dialect.name(column) for name, column in rows._asdict().items()}
        self._names = {"own": statement.own, "shift": f"-LN({names['rate']})", **names}
        self._parts, self._own = statement.parts(table, rows.logit), statement.own

    def add(self, **columns: str) -> None:
        """Add an expression with some generated columns."""
        told = ", ".join(f"{value} AS {{own}}_{name}" for name, value in columns.items()).format_map(self._names)
        source = list(self._parts)[-1]
        self._parts[f"{self._own}_step_{len(self._parts)}"] = f"\n  SELECT *, {told}\n  FROM {source}\n"

    def ended(self, columns: Sequence[str], end: str = "") -> str:
        """The whole statement."""
        told = ",\n  ".join(columns).format_map(self._names)
        source = list(self._parts)[-1]
        return f"{written(self._parts)}\nSELECT\n  {told}\nFROM {source}{end.format_map(self._names)}"


def _steps(curves: Curves, dialect: str, table: str, rows: RowColumns, parts: type[TermParts]) -> _Steps:
    """Rows with their base logit and joined terms, without the last curve of the terms."""
    assert curves.terms is not None
    plain = replace(curves.on_logits, terms=replace(curves.terms, last=None))
    settings: dict[str, Any] = {"table": table, "score": rows.logit, "prob": "prob", "term_parts": parts}
    return _Steps(statement_of(plain, dialect, keep=rows[1:], **settings), table, rows)


def _sigmoid(logit: str) -> str:
    return f"1E0 / (1E0 + EXP(-LEAST(GREATEST({logit}, -40E0), 40E0)))"


def _information(prob: str) -> str:
    return f"GREATEST({prob} * (1E0 - {prob}), {double(LEAST_WEIGHT)})"
