"""Terms of fields as rows of a curves file: one row per level or cell, and plain facts about fields and terms.

A file with terms has further columns: ``term`` (0 for curves, then 1, 2, ...), ``cell``, ``level`` (the cell in words),
``offset`` and ``tilt``, their variances, and how many events were observed and expected there. Vocabularies and edges
are in the facts. The file itself is handled by :mod:`isolayer.curves.parquet_io`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.field_levels import Field
from isolayer.fitting.interactions import View
from isolayer.fitting.terms import LAST_GRID, Term, Terms

NUMBERS = ("offset", "tilt", "offset_variance", "covariance", "tilt_variance", "observed", "expected")
COLUMNS = ("term", "cell", "level", *NUMBERS)


def facts_of(terms: Terms) -> dict[str, Any]:
    """The facts about terms that are not in the rows of the table, as plain values.

    >>> facts_of(Terms((), (), -1.0, 1.0))["upper"]
    1.0
    """
    return {
        "fields": [_field_facts(one) for one in terms.fields],
        "terms": [_term_facts(term) for term in terms.terms],
        "lower": terms.lower,
        "upper": terms.upper,
        "shared": list(terms.shared),
        "last": None if terms.last is None else terms.last.tolist(),
        "share": terms.share,
    }


def columns_of(terms: Terms) -> dict[str, Any]:
    """Columns of the rows of all terms, the weight of their rows as ``count``."""
    parts = [_rows(terms, place) for place in range(len(terms.terms))]
    empty: dict[str, Any] = {name: np.empty(0) for name in (*NUMBERS, "count")}
    empty |= {"term": np.empty(0, np.int32), "cell": np.empty(0, np.int64), "level": np.empty(0, object)}
    return {name: np.concatenate([column, *(part[name] for part in parts)]) for name, column in empty.items()}


def arrays_of(terms: Terms) -> list[NDArray[Any]]:
    """Every number of the terms, for a digest."""
    columns = columns_of(terms)
    return [columns[name] for name in ("term", "cell", *NUMBERS, "count")]


def terms_of(facts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> Terms:
    """The terms that :func:`facts_of` and :func:`columns_of` describe; see :func:`check_terms`."""
    fields = tuple(_field(one) for one in facts["fields"])
    terms = list[Term]()
    for place, told in enumerate(facts["terms"], start=1):
        own = {name: column[columns["term"] == place] for name, column in columns.items() if name != "level"}
        size = 2 if told["tilts"] else 1
        spread = np.stack([own["offset_variance"], own["covariance"], own["covariance"], own["tilt_variance"]], axis=1)
        terms.append(
            Term(
                tuple(_view(view, fields) for view in told["views"]),
                own["cell"].astype(np.int64),
                np.stack([own["offset"], own["tilt"]], axis=1)[:, :size].copy(),
                spread.reshape(-1, 2, 2)[:, :size, :size].copy(),
                own["count"],
                own["observed"],
                own["expected"],
                float(told["evidence"]),
                bool(told["frozen"]),
                np.array(told.get("strengths", ()), np.float64),
            )
        )
    shared = float(facts["shared"][0]), float(facts["shared"][1])
    last = None if facts["last"] is None else np.array(facts["last"], np.float64)
    ends, share = (float(facts["lower"]), float(facts["upper"])), float(facts.get("share", 1.0))
    return Terms(fields, tuple(terms), *ends, shared, last, share)


def check_terms(terms: Terms) -> None:
    """Raise unless every term is finite, knows its fields, and has each cell once, in order.

    >>> check_terms(Terms((), (), -1.0, 1.0))
    """
    finite = np.isfinite([terms.lower, terms.upper, *terms.shared]).all() and 0 <= terms.share <= 1
    if not (finite and terms.upper > terms.lower):
        raise InputError("terms: expected a range and shared values that are finite, got something else; make it again")
    names = [one.name for one in terms.fields]
    if len(set(names)) < len(names):
        raise InputError(f"fields: expected every name once, got {names}; make it again")
    for one in terms.fields:
        if not (np.isfinite(one.edges).all() and (np.diff(one.edges) > 0).all()):
            raise InputError(f"field {one.name}: expected finite edges in order, got something else; make it again")
    for term in terms.terms:
        _check_term(term, len(terms.fields))
    knots = LAST_GRID.buckets
    if terms.last is not None and (
        terms.last.shape != (knots,) or not np.isfinite(terms.last).all() or (np.diff(terms.last) < 0).any()
    ):
        raise InputError(f"last: expected {knots} values that never decrease, got something else; make it again")


def _check_term(term: Term, fields: int) -> None:
    span = int(np.prod([view.size for view in term.views]))
    good = all(0 <= view.field < fields for view in term.views) and len(set(term.fields)) == len(term.views)
    inside = ((term.cells >= 0) & (term.cells < span)).all() and (np.diff(term.cells) > 0).all()
    numbers = (term.values, term.covariance, term.count, term.observed, term.expected, term.strengths)
    if not (good and inside and (term.strengths >= 0).all() and all(np.isfinite(column).all() for column in numbers)):
        raise InputError(
            "terms: expected finite values and each cell once, in order, got something else; make it again"
        )


def _rows(terms: Terms, place: int) -> dict[str, Any]:
    term = terms.terms[place]
    size, tilts = len(term.cells), term.values.shape[1] == 2
    nothing = np.zeros(size)
    return {
        "term": np.full(size, place + 1, np.int32),
        "cell": term.cells,
        "level": np.array([terms.words(place, row) for row in range(size)], dtype=object),
        "offset": term.values[:, 0],
        "tilt": term.values[:, 1] if tilts else nothing,
        "offset_variance": term.covariance[:, 0, 0],
        "covariance": term.covariance[:, 0, 1] if tilts else nothing,
        "tilt_variance": term.covariance[:, 1, 1] if tilts else nothing,
        "observed": term.observed,
        "expected": term.expected,
        "count": term.count,
    }


def _field_facts(one: Field) -> dict[str, Any]:
    return {
        "column": one.column,
        "kind": one.kind,
        "words": one.words.tolist(),
        "edges": one.edges.tolist(),
        "part": one.part,
        "spike": one.spike,
    }


def _field(told: Mapping[str, Any]) -> Field:
    words = told["words"]
    known = np.array(words, dtype=object if None in words or not words else None)
    if told["kind"] not in ("number", "category"):
        raise InputError(
            f"field {told['column']}: expected a number or a category, got {told['kind']!r}; write it again"
        )
    edges = np.array(told["edges"], np.float64)
    return Field(told["column"], told["kind"], known, edges, told["part"], int(told["spike"]))


def _term_facts(term: Term) -> dict[str, Any]:
    views = [{"field": v.field, "size": v.size, "level": _shortened(v)} for v in term.views]
    told = {"views": views, "tilts": term.values.shape[1] == 2, "evidence": term.evidence, "frozen": term.frozen}
    return told | {"strengths": term.strengths.tolist()}


def _shortened(view: View) -> list[int] | None:
    """Levels at a resolution; None if they are the same as those of the field."""
    return None if np.array_equal(view.level, np.arange(view.size)) else view.level.tolist()


def _view(told: Mapping[str, Any], fields: tuple[Field, ...]) -> View:
    place, size = int(told["field"]), int(told["size"])
    level = np.arange(size) if told["level"] is None else np.array(told["level"], np.intp)
    if not 0 <= place < len(fields) or len(level) != fields[place].size or level.max(initial=0) >= size:
        raise InputError("views: expected a level for every level of a field, got something else; write it again")
    return View(place, level, size)
