r"""Terms: what fields add to a calibrated logit. Tables of corrections by level, and how they are summed.

A base logit y, an offset A and a tilt B, both summed over all terms, give

.. math:: z = y + A + \max(B, -w)\,t(y), \qquad t(y) = \mathrm{clip}((y - l) / w, 0, 1) - 1/2

on the range from l to l + w. The slopes of all terms are summed and the total slope :math:`1 + B/w` is clamped at zero,
so z never falls while y rises, whatever the fields are. Terms are fitted in :mod:`isolayer.fitting.fields`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.categories import Column
from isolayer.fitting.field_levels import Field, levels_of
from isolayer.fitting.interactions import Candidate, cells_of, coarser
from isolayer.fitting.sentences import sentence
from isolayer.fitting.term_spread import spread_of
from isolayer.grid import Grid

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]
Variance = Literal["posterior", "error"]

LAST_GRID = Grid()  # knots of the last curve over corrected logits
_DENSE = 1 << 20  # with up to this many cells a table is used, with more a search
_CHUNK = 1 << 15  # rows summed together, so that they stay in cache
_TOLD_BINS = 16  # most bins of a number in sentences about it


@dataclass(frozen=True, eq=False)
class Term:
    """One table of corrections: by the levels of a field, or of a combination of fields.

    Args:
        views: Which fields, at which resolution.
        cells: Combined level of each row of the table, ascending, with the last view varying fastest; shape ``[m]``.
        values: Offset of each, and tilt if the term has tilts, shape ``[m, 1]`` or ``[m, 2]``.
        covariance: Posterior covariance of these, shape ``[m, 1, 1]`` or ``[m, 2, 2]``.
        count: Weight of the rows that it was fitted to, shape ``[m]``.
        observed: Weight of the positive ones, shape ``[m]``.
        expected: The weight of positives that the base curve predicts, shape ``[m]``.
        evidence: Increase of the log probability of the labels by the term, in nats.
        frozen: Whether later fits keep the values.
        strengths: How strongly the values of each column are shrunk towards 0, then towards their neighbours if levels
            are linked. They are part of the structure: a later fit with it does not choose them again.
    """

    views: Candidate
    cells: NDArray[np.int64]
    values: Floats
    covariance: Floats
    count: Floats
    observed: Floats
    expected: Floats
    evidence: float = 0.0
    frozen: bool = False
    strengths: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def fields(self) -> tuple[int, ...]:
        """Indices of its fields."""
        return tuple(view.field for view in self.views)

    def rows_of(self, levels: Sequence[Levels]) -> Levels:
        """Row of the table for each row of data; one beyond the last if there is none."""
        cell = cells_of(self.views, levels)
        if self._row_of_cell is not None:
            return self._row_of_cell.take(cell)  # cell -1 is the last entry, which is never one of the cells
        place = np.searchsorted(self.cells, cell).clip(max=len(self.cells) - 1)
        return np.where(self.cells[place] == cell, place, len(self.cells))

    @cached_property
    def _row_of_cell(self) -> Levels | None:
        """Row of every cell, if cells are few enough for a table."""
        span = int(np.prod([view.size for view in self.views]))
        if span > _DENSE:
            return None
        table = np.full(span + 1, len(self.cells), np.intp)
        table[self.cells] = np.arange(len(self.cells))
        return table

    @cached_property
    def padded(self) -> tuple[Floats, ...]:
        """Columns of values, each with a 0 for rows that have no cell."""
        return tuple(np.append(column, 0.0) for column in self.values.T)

    @property
    def information(self) -> Floats:
        """Information about the offset of each row of the table, the inverse of a variance, shape ``[m]``."""
        rate = np.divide(self.observed, self.count, out=np.zeros_like(self.count), where=self.count > 0).clip(0.0, 1.0)
        return np.asarray(np.maximum(self.count, 0.0) * rate * (1 - rate))


class Segment(NamedTuple):
    """A level or a combination of levels, with the rate that the base curve predicts there and the observed rate.

    >>> print(Segment("hour 22 to 24 and device phone", 0.041, 0.056, 12300.0, 8.4))
    hour 22 to 24 and device phone: predicted 4.1%, observed 5.6%, 12,300 rows
    """

    where: str
    predicted: float
    observed: float
    rows: float
    deviations: float

    def __str__(self) -> str:
        return sentence(self.where, self.predicted, self.observed, self.rows)


class Totals(NamedTuple):
    """Sums over all terms for each row, shape ``[n]``: offset, tilt and, if asked for, their variances."""

    offset: Floats
    tilt: Floats
    variance: tuple[Floats, ...] = ()


@dataclass(frozen=True, eq=False)
class Terms:
    """Fields and their terms.

    Args:
        fields: The fields, in the order of their levels.
        terms: The terms, main effects first.
        lower: Base logit at which tilts begin.
        upper: Base logit at which tilts end.
        shared: Offset and tilt of every row.
        last: Values of the curve over the corrected logit, at the knots of ``LAST_GRID``; None for the identity.
        share: Share of the terms that the guard kept, in [0, 1]; the values include it.
    """

    fields: tuple[Field, ...]
    terms: tuple[Term, ...]
    lower: float
    upper: float
    shared: tuple[float, float] = (0.0, 0.0)
    last: Floats | None = None
    share: float = 1.0

    @property
    def width(self) -> float:
        """Length of the range in which tilts act."""
        return self.upper - self.lower

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the fields are read from, each once."""
        return tuple(dict.fromkeys(one.column for one in self.fields))

    def place(self, base: Floats) -> Floats:
        """Position of base logits between ``lower`` and ``upper``, in [-1/2, 1/2].

        >>> Terms((), (), -1.0, 1.0).place(np.array([-5.0, 0.0, 0.5])).tolist()
        [-0.5, 0.0, 0.25]
        """
        return np.asarray(np.clip((base - self.lower) * (1 / self.width), 0.0, 1.0) - 0.5)

    def totals(self, columns: Mapping[str, Column], rows: int, *, variance: Variance | None = None) -> Totals:
        """Sums over all terms for some rows of columns.

        Args:
            columns: The columns of the fields.
            rows: How many rows they have.
            variance: Which variances to sum: ``"posterior"``, which says how much a row of the fit moves its own
                prediction; or ``"error"``, that of the prediction's error (:mod:`isolayer.fitting.term_spread`).
        """
        return self.totals_of_levels(levels_of(self.fields, columns), rows, variance=variance)

    def totals_of_levels(self, levels: Sequence[Levels], n: int, *, variance: Variance | None = None) -> Totals:
        """The same for ``n`` rows whose levels are known, one array ``[n]`` per field."""
        variances = self._variances(variance) if variance else [()] * len(self.terms)
        offset, tilt = np.full(n, self.shared[0]), np.full(n, self.shared[1])
        spread = (np.zeros(n), np.zeros(n), np.zeros(n)) if variance else ()
        for start in range(0, n, _CHUNK):
            part = slice(start, start + _CHUNK)
            some = [level[part] for level in levels]
            for place, term in enumerate(self.terms):
                row = term.rows_of(some)
                for out, column in zip((offset, tilt), term.padded, strict=False):
                    out[part] += column.take(row)
                for out, column in zip(spread, variances[place], strict=False):
                    out[part] += column.take(row)
        return Totals(offset, tilt, spread)

    def spread(self, term: Term) -> Floats:
        """Covariance of the errors of the values of a term; see :mod:`isolayer.fitting.term_spread`."""
        one = self.fields[term.fields[0]]
        ordered = len(term.views) == 1 and one.kind == "number"
        linked = np.append(one.linked, False)[term.cells[:-1]] & (np.diff(term.cells) == 1) if ordered else None
        return spread_of(term.values, term.covariance, term.strengths, term.information, linked)

    def _variances(self, kind: Variance) -> list[tuple[Floats, ...]]:
        """Variances and the covariance of each term, each with a 0 for rows that have no cell."""
        if kind not in self._kept_variances:
            found = [term.covariance if kind == "posterior" else self.spread(term) for term in self.terms]
            places = [((0, 0), (0, 1), (1, 1)) if one.shape[1] == 2 else ((0, 0),) for one in found]
            self._kept_variances[kind] = [
                tuple(np.append(one[:, i, j], 0.0) for i, j in at) for one, at in zip(found, places, strict=True)
            ]
        return self._kept_variances[kind]

    @cached_property
    def _kept_variances(self) -> dict[Variance, list[tuple[Floats, ...]]]:
        return {}

    def correct(self, base: Floats, totals: Totals) -> Floats:
        """Corrected logits: never falling with the base logit, for any totals.

        >>> steep = Totals(np.zeros(3), np.full(3, -9.0))
        >>> Terms((), (), -1.0, 1.0).correct(np.array([-2.0, 0.0, 2.0]), steep).tolist()
        [-1.0, 0.0, 1.0]
        """
        return np.asarray(base + totals.offset + np.maximum(totals.tilt, -self.width) * self.place(base))

    def deviation(self, base: Floats, base_deviation: Floats, totals: Totals) -> Floats:
        """Standard deviation of the corrected logit: that of the base times the slope, and that of the terms."""
        if not totals.variance:
            raise ValueError("totals were summed without variance")
        place = self.place(base)
        inside = (base > self.lower) & (base < self.upper)
        slope = 1 + np.where(inside, np.maximum(totals.tilt, -self.width) / self.width, 0.0)
        own, cross, tilted = totals.variance
        return np.sqrt((slope * base_deviation) ** 2 + np.maximum(own + 2 * place * cross + place**2 * tilted, 0.0))

    def base_of(self, logit: Floats, totals: Totals) -> Floats:
        """The smallest base logit whose correction reaches each logit: the inverse of :meth:`correct`."""
        tilt = np.maximum(totals.tilt, -self.width)
        left, right = self.lower + totals.offset - tilt / 2, self.upper + totals.offset + tilt / 2
        rise = right - left
        inner = self.lower + np.where(rise > 0, (logit - left) / np.where(rise > 0, rise, 1.0), 0.0) * self.width
        out = np.where(logit <= left, logit - totals.offset + tilt / 2, np.clip(inner, self.lower, self.upper))
        return np.where(logit > right, logit - totals.offset - tilt / 2, out)

    def kept(self, share: float) -> Terms:
        """The terms times a share, except frozen ones: how the guard shrinks them towards the base curve."""
        factor = share / self.share if self.share > 0 else 0.0
        terms = tuple(t if t.frozen else replace(t, values=t.values * factor) for t in self.terms)
        shared = self.shared[0] * factor, self.shared[1] * factor
        return replace(self, terms=terms, shared=shared, share=share)

    def without(self, *names: str | Sequence[str]) -> Terms:
        """The terms without some: a field or a combination, and every combination that contains it.

        A field without any remaining term is removed too, so that its column is no longer needed.

        >>> Terms((Field("hour", "number"),), (), -1.0, 1.0).without("day")
        Traceback (most recent call last):
            ...
        isolayer.errors.InputError: term: expected a field or a combination of these terms, got 'day'; they have []
        """
        gone = {place for name in names for place in self._places(name, partly=True)}
        terms = [term for place, term in enumerate(self.terms) if place not in gone]
        used = sorted({place for term in terms for place in term.fields})
        at = {place: number for number, place in enumerate(used)}
        moved = (tuple(view._replace(field=at[view.field]) for view in term.views) for term in terms)
        kept = tuple(replace(term, views=views) for term, views in zip(terms, moved, strict=True))
        return replace(self, fields=tuple(self.fields[place] for place in used), terms=kept)

    def freeze(self, *names: str | Sequence[str]) -> Terms:
        """The terms with some of them, by default all, frozen: a later fit with this structure keeps their values."""
        kept = {place for name in names for place in self._places(name)} if names else range(len(self.terms))
        terms = tuple(replace(term, frozen=term.frozen or place in kept) for place, term in enumerate(self.terms))
        return replace(self, terms=terms)

    @property
    def names(self) -> list[str | tuple[str, ...]]:
        """The name of each term: that of its field, or a tuple of those of its combination."""
        found = [tuple(self.fields[place].name for place in term.fields) for term in self.terms]
        return [own[0] if len(own) == 1 else own for own in found]

    def _places(self, name: str | Sequence[str], *, partly: bool = False) -> list[int]:
        """Indices of the terms with a name; also of combinations that contain it, if ``partly``."""
        wanted = {name} if isinstance(name, str) else set(name)
        own = [{found} if isinstance(found, str) else set(found) for found in self.names]
        places = [i for i, one in enumerate(own) if one == wanted or (partly and wanted < one)]
        if not places:
            raise InputError(
                f"term: expected a field or a combination of these terms, got {name!r}; they have {self.names}"
            )
        return places

    def segments(self, most: int = 20, *, rows: float = 100.0, term: int | None = None) -> list[Segment]:
        """Segments where the base curve is most clearly off on the rows that the terms were fitted to.

        Args:
            most: How many to return.
            rows: Least weight of the rows of a segment.
            term: Index of the term whose segments to return; by default those of all terms.
        """
        places = range(len(self.terms)) if term is None else [term]
        found = [one for place in places for one in self._off(self._told(place), most, rows)]
        return sorted(found, key=lambda one: -one.deviations)[:most]

    def words(self, place: int, row: int) -> str:
        """A row of a term in words.

        >>> device = Field("device", "category", words=np.array(["tv", "web"]))
        >>> from isolayer.fitting.interactions import View
        >>> one = np.ones(2)
        >>> term = Term((View(0, np.arange(2), 2),), np.arange(2), one[:, None], one[:, None, None], one, one, one)
        >>> Terms((device,), (term,), -1.0, 1.0).words(0, 1)
        'device web'
        """
        return self._words(self.terms[place], row)

    def _told(self, place: int) -> Term:
        """A term as it is described: a number with very many bins is reduced to fewer, so that its ranges have rows."""
        term = self.terms[place]
        one = self.fields[term.fields[0]]
        if len(term.views) > 1 or one.kind != "number" or one.size - 1 <= 2 * _TOLD_BINS:
            return term
        whole = np.bincount(term.cells, term.count.clip(min=0.0), one.size).astype(np.float64)
        view = coarser(term.fields[0], one, whole, _TOLD_BINS)
        sums = np.stack([term.count, term.observed, term.expected])
        count, observed, expected = np.stack([np.bincount(view.level[term.cells], one, view.size) for one in sums])
        told = replace(term, count=count, observed=observed, expected=expected)
        return replace(told, views=(view,), cells=np.arange(view.size))

    def _off(self, term: Term, most: int, rows: float) -> list[Segment]:
        """Rows of a term where the base curve was off, the clearest first."""
        spread = np.sqrt(np.maximum(term.expected * (1 - term.expected / np.maximum(term.count, 1e-300)), 1e-300))
        score = np.where(term.count >= rows, np.abs(term.observed - term.expected) / spread, 0.0)
        found = list[Segment]()
        for row in np.argsort(-score, kind="stable")[:most].tolist():
            if score[row] > 0:
                rates = float(term.expected[row] / term.count[row]), float(term.observed[row] / term.count[row])
                found.append(Segment(self._words(term, row), *rates, float(term.count[row]), score[row]))
        return found

    def _words(self, term: Term, row: int) -> str:
        cell, parts = int(term.cells[row]), list[str]()
        for view in reversed(term.views):
            cell, level = divmod(cell, view.size)
            own = np.flatnonzero(view.level == level)
            one = self.fields[view.field]
            parts.insert(0, f"{one.name} {one.word(int(own[0]), int(own[-1]))}")
        return " and ".join(parts)
