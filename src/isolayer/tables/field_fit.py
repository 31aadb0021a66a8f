"""Corrections of fields fitted inside an engine: a sample decides which there are, sums over all rows fit them.

A small table is fitted in memory. From a larger one, a sample of rows leaves the engine to choose the structure:
fields, levels, combinations and strengths. After that no row leaves the engine: each step of the solver is one scan
that returns sums by level, and one more scan is made for the last curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ibis
import ibis.expr.operations as ops
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.export.sql_sums import left_out_query, sums_query
from isolayer.curves.fielded import with_fields
from isolayer.fitting.backfitting import Block, Sums
from isolayer.fitting.combinations import Interactions, Name
from isolayer.fitting.field_data import Tally
from isolayer.fitting.field_guard import last_curve
from isolayer.fitting.field_levels import refuse_infinite
from isolayer.fitting.field_refit import blocks_of, refit, share_for
from isolayer.fitting.field_solver import Scan
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.terms import LAST_GRID, Term, Terms
from isolayer.tables.apply_fields import as_fitted, dialect_of
from isolayer.tables.field_rows import MOST_ROWS, Usable, labelled_rows
from isolayer.tables.histogram_query import ColumnSpec, histogram_of, latest
from isolayer.tables.resident import resident
from isolayer.tables.sources import (
    ROWS,
    Scans,
    as_table,
    backend_of,
    collect,
    infinite,
    is_relation,
    note_scan,
    relation_query,
    schema_of,
    unbound,
)

Floats = NDArray[np.float64]


class TableFit(NamedTuple):
    """Curves with terms, the number of scans of the table, and the number of sampled rows (0 without a sample)."""

    curves: Curves
    scans: int
    sample: int


def fit_table_fields(
    curves: Curves,
    source: Any,
    spec: ColumnSpec,
    fields: Sequence[str],
    *,
    interactions: Interactions = "auto",
    without: Sequence[Name] = (),
    structure: Terms | None = None,
    most: int = MOST_ROWS,
) -> TableFit:
    """The curves with terms of some fields, fitted to the rows of a table.

    Args:
        curves: The base curves of the same table.
        source: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
        spec: What its columns mean.
        fields: Names of the field columns.
        interactions: How many combinations of fields to find at most, or which to add.
        without: Fields and combinations that are left out.
        structure: Terms of an earlier fit, whose structure is kept; then no row leaves the engine.
        most: Tables with more rows are sampled to choose the terms, and fitted by sums.

    >>> from isolayer.grid import Grid
    >>> log = {"score": [0.0] * 400, "label": [0, 0, 0, 1] * 100, "device": ["tv", "web"] * 200}
    >>> first = fit_table_fields(Curves.identity(Grid()), log, ColumnSpec(()), ["device"])
    >>> again = fit_table_fields(first.curves, log, ColumnSpec(()), ["device"], structure=first.curves.terms)
    >>> again.sample, again.curves.predict_proba([0.0, 0.0], {"device": ["tv", "web"]}).round(1).tolist()
    (0, [0.0, 0.5])
    """
    with Scans() as scans:
        sample = 0
        if structure is None:
            rows, total = labelled_rows(source, spec, fields, most=most)
            if total > most:
                _refuse_infinite(source, spec, fields)
            curves = with_fields(curves, rows, fields, interactions=interactions, without=without)
            sample = len(rows.logit)
            structure = curves.terms if total > most else None
        else:
            structure = structure.without(*without)
            source = as_fitted(source, structure)
            _refuse_infinite(source, spec, fields)
        if structure is not None and structure.fields:
            curves = _by_sums(curves, source, spec, fields, structure)
    return TableFit(curves, scans.count, sample)


def _refuse_infinite(source: Any, spec: ColumnSpec, fields: Sequence[str]) -> None:
    """Raise if a field has infinite values in rows that can be used."""
    kinds = schema_of(source)
    numbers = [name for name in fields if kinds[name].is_floating()]
    usable = Usable(spec, fields, latest(source, spec))

    def counts(table: Any) -> Any:
        rows = usable(table)
        return rows.aggregate(**{f"count_{place}": infinite(rows[name]).sum() for place, name in enumerate(numbers)})

    told = collect(source, counts) if numbers else pa.table({})
    for name, column in zip(numbers, told.columns, strict=True):
        refuse_infinite(name, int(column[0].as_py() or 0))


def _by_sums(curves: Curves, source: Any, spec: ColumnSpec, fields: Sequence[str], structure: Terms) -> Curves:
    """The curves with the terms of a structure, their values from sums over all rows."""
    engine = _Engine(source, Usable(spec, fields, latest(source, spec), _factor(source, spec)))
    curves = replace(curves, terms=replace(structure, last=None))
    found = refit(structure, _EngineSums(engine, curves, structure), share=share_for(structure, float(curves.count[0])))
    terms = replace(found.terms, last=None)
    if terms.share > 0:
        terms = replace(terms, last=last_curve(engine.left_out(replace(curves, terms=terms))))
    return replace(curves, terms=terms, settings={**curves.settings, "fields": list(fields)})


def _factor(source: Any, spec: ColumnSpec) -> float:
    """The factor that scales importance weights to their effective number of rows."""
    if spec.weight_kind != "importance" or (spec.weight is None and spec.half_life is None):
        return 1.0
    newest = latest(source, spec)

    usable = Usable(spec, (), newest)

    def totals(table: Any) -> Any:
        rows = usable(table)
        weight = rows[usable.own.weight]
        return rows.aggregate(total=weight.sum(), squared=(weight * weight).sum())

    told = collect(source, totals)
    return float(told["total"][0].as_py() / told["squared"][0].as_py())


class _Engine:
    """Usable rows inside their engine, and statements that run there."""

    def __init__(self, source: Any, usable: Usable) -> None:
        self.usable = usable
        if is_relation(source):
            self.rows = relation_query(source, usable(unbound(source)))
            self.dialect = "duckdb"
            return
        table = as_table(source)
        backend = backend_of(table)
        if table.op().find(ops.InMemoryTable):  # a statement in text cannot name what has no name
            table = resident(backend, table.to_pyarrow())
        self.rows, self.dialect = usable(table), dialect_of(backend)
        if self.dialect == "duckdb":  # Ibis would parse every statement, which takes longer than running it
            self._held = self.rows
            self.rows = backend.con.sql(str(ibis.to_sql(self.rows, dialect="duckdb")))

    def ask(self, statement: str, schema: dict[str, str]) -> Any:
        """The result of a statement over ``ROWS``: a DuckDB relation, or an Ibis table."""
        if is_relation(self.rows):
            return self.rows.query(ROWS, statement)
        return ops.SQLStringView(parent=self.rows.alias(ROWS), query=statement, schema=ibis.schema(schema)).to_expr()

    def sums(self, curves: Curves) -> pa.Table:
        """Sums of every free term by its cells."""
        note_scan()
        statement = sums_query(curves, self.dialect, table=ROWS, rows=self.usable.own)
        if self.dialect == "spark":
            rows = str(ibis.to_sql(self.rows, dialect="pyspark"))
            return backend_of(self.rows).raw_sql(statement.replace("WITH ", f"WITH {ROWS} AS ({rows}),\n", 1)).toArrow()
        free = sum(not term.frozen for term in curves.terms.terms) if curves.terms else 0
        schema = {f"cell_{k}": "int64" for k in range(free)} | dict.fromkeys(_SUMS, "float64")
        asked = self.ask(statement, schema)
        return asked.to_arrow_table() if is_relation(asked) else backend_of(asked).to_pyarrow(asked)

    def left_out(self, curves: Curves) -> Histogram:
        """All rows by their leave-one-out corrected logits."""
        statement = left_out_query(curves, self.dialect, table=ROWS, rows=self.usable.own)
        asked = self.ask(statement, dict.fromkeys(self.usable.own._fields, "float64"))
        rate, weight = self.usable.spec.negative_rate, "weight" if self.usable.weighted else None
        spec = ColumnSpec(
            (),
            "logit",
            weight=weight,
            grid=LAST_GRID,
            negative_rate="rate" if isinstance(rate, str) else rate,
            weight_kind="importance",  # no warning about these weights
        )
        return replace(histogram_of(asked, spec)[0], source={})


_SUMS = ("weights", "observed", "expected", "gradient", "tilted", "hessian", "crossed", "squared", "loss")


class _EngineSums:
    """A table as a source of sums for the terms of curves; every call is one scan."""

    def __init__(self, engine: _Engine, curves: Curves, terms: Terms) -> None:
        self._engine, self._curves, self._terms = engine, curves, terms.kept(1.0)
        self.blocks: list[Block] = blocks_of(terms)
        self._tallies = list[Tally]()

    def scan(self, values: list[Floats]) -> Scan:
        """Run one statement, and sort its result into blocks."""
        told = self._engine.sums(replace(self._curves, terms=self._at(values)))
        columns = {name: np.asarray(told[name].cast(pa.float64()).to_numpy()) for name in _SUMS}
        whole, sums, self._tallies = np.ones(len(told), bool), list[Sums](), list[Tally]()
        for k, term in enumerate(term for term in self._terms.terms if not term.frozen):
            cell = told[f"cell_{k}"].cast(pa.int64())
            own = np.asarray(cell.is_valid().to_numpy())
            whole &= ~own
            level = _places(np.asarray(cell.drop_null().to_numpy()), term)
            some = {name: _spread(column[own], level, len(term.cells)) for name, column in columns.items()}
            sums.append(_sums(some, term.values.shape[1]))
            self._tallies.append(Tally(some["weights"], some["observed"], some["expected"]))
        total = {name: column[whole] for name, column in columns.items()}
        return Scan([_sums(total, 2), *sums], float(total["loss"][0]))

    def tallies(self) -> list[Tally]:
        """The tallies of the last scan; they are the same in every scan."""
        return self._tallies

    def _at(self, values: list[Floats]) -> Terms:
        rest = iter(values[1:])
        terms = tuple(term if term.frozen else replace(term, values=next(rest)) for term in self._terms.terms)
        return replace(self._terms, terms=terms, shared=(float(values[0][0, 0]), float(values[0][0, 1])))


def _places(cell: NDArray[np.int64], term: Term) -> NDArray[np.intp]:
    """Index of each cell in a term; the number of cells if it is not in the term."""
    place = np.searchsorted(term.cells, cell).clip(max=len(term.cells) - 1)
    return np.where(term.cells[place] == cell, place, len(term.cells))


def _spread(values: Floats, level: NDArray[np.intp], size: int) -> Floats:
    """Values at their levels; 0 at levels without a value."""
    return np.bincount(level, values, size + 1)[:size].astype(np.float64, copy=False)


def _sums(told: dict[str, Floats], columns: int) -> Sums:
    """Gradient and Hessian by level."""
    if columns == 1:
        return Sums(told["gradient"][:, None], told["hessian"][:, None, None])
    hessian = np.stack([told["hessian"], told["crossed"], told["crossed"], told["squared"]], axis=1)
    return Sums(np.stack([told["gradient"], told["tilted"]], axis=1), hessian.reshape(-1, 2, 2))
