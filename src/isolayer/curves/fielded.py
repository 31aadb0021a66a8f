"""Curves with fields: the base curves are kept, and terms are fitted to what they leave unexplained.

The rows are needed once, when the terms are fitted; serving needs the terms only. Terms are defined in
:mod:`isolayer.fitting.terms` and fitted in :mod:`isolayer.fitting.fields`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Floats
from isolayer.errors import InputError
from isolayer.fitting.columns import same_length
from isolayer.fitting.combinations import Interactions, Name
from isolayer.fitting.field_updates import update
from isolayer.fitting.fields import data_of, fit_fields
from isolayer.fitting.histogram import LEAST_WEIGHT
from isolayer.fitting.terms import Terms
from isolayer.settings import listed, shown

_MOST_VALUES = 10_000  # most values of a context that gets a term


class LabelledRows(NamedTuple):
    """Rows to fit.

    Args:
        logit: Raw scores as logits, shape ``[n]``.
        label: Labels in [0, 1], shape ``[n]``.
        columns: Context and field columns by name, each of shape ``[n]``.
        weight: How often each row counts, shape ``[n]``; None for once.
        rate: Share of the negatives that was kept when rows were sampled: one number, or one per row.
    """

    logit: Floats
    label: Floats
    columns: Mapping[str, Any]
    weight: Floats | None = None
    rate: Floats | float = 1.0

    def base_of(self, curves: Curves) -> Floats:
        """Calibrated logit of each row by the curves alone."""
        rows = curves.rows_of(self.columns if curves.contexts else None, len(self.logit))
        return curves.evaluate(rows, self.logit)

    def weighing(self, fields: Sequence[str]) -> LabelledRows:
        """The rows with a positive weight; the lengths of the field columns are checked."""
        for name in fields:
            same_length(f"field {name}", len(self.columns[name]), len(self.logit))
        if self.weight is None or (self.weight >= LEAST_WEIGHT).all():
            return self
        kept = np.flatnonzero(self.weight >= LEAST_WEIGHT)
        columns = {name: taken(values, kept) for name, values in self.columns.items()}
        rate = self.rate if isinstance(self.rate, float) else self.rate[kept]
        return LabelledRows(self.logit[kept], self.label[kept], columns, self.weight[kept], rate)


def with_fields(
    curves: Curves,
    rows: LabelledRows,
    fields: Sequence[str],
    *,
    interactions: Interactions = "auto",
    without: Sequence[Name] = (),
    structure: Terms | None = None,
) -> Curves:
    """The curves with terms of some fields, fitted to rows.

    Contexts have terms too. Their curves were fitted without the fields: if a field is distributed differently in
    different contexts, its effect is already in their curves, and must be removed from them when the field gets a term.

    Args:
        curves: The base curves.
        rows: The rows; those without weight are left out.
        fields: Names of the field columns.
        interactions: How many combinations of fields to find at most, or which to add.
        without: Fields and combinations to leave out.
        structure: Terms of an earlier fit, whose levels and combinations are kept.

    >>> from isolayer.grid import Grid
    >>> rows = LabelledRows(np.zeros(400), np.tile([0.0, 0.0, 0.0, 1.0], 100), {"device": ["tv", "web"] * 200})
    >>> curves = with_fields(Curves.identity(Grid()), rows, ["device"])
    >>> curves.predict_proba([0.0, 0.0], {"device": ["tv", "web"]}).round(1).tolist()
    [0.0, 0.5]
    """
    together = tuple(dict.fromkeys([*fields, *_corrected_contexts(curves)]))
    rows = rows.weighing(together)
    terms = fit_fields(
        rows.base_of(curves),
        rows.label,
        {name: rows.columns[name] for name in together},
        rows.weight,
        rate=rows.rate,
        interactions=interactions,
        without=without,
        structure=structure,
    )
    return replace(curves, terms=terms, settings={**curves.settings, "fields": list(fields)})


def _corrected_contexts(curves: Curves) -> list[str]:
    """Contexts that get terms besides the fields: all except very fine ones."""
    values = {
        name: len(np.unique(keys[-1].astype(str))) for name, keys in zip(curves.contexts, curves.keys[1:], strict=True)
    }
    return [name for name, found in values.items() if 1 < found <= _MOST_VALUES]


def with_updated_fields(curves: Curves, rows: LabelledRows, terms: Terms, *, kept: float = 1.0) -> Curves:
    """The curves with the terms of earlier rows, updated by new rows; see :mod:`isolayer.fitting.field_updates`.

    Args:
        curves: The base curves.
        rows: New rows.
        terms: The terms of earlier rows.
        kept: Weight of the earlier rows.
    """
    rows = rows.weighing(terms.columns)
    weight = np.ones(len(rows.logit)) if rows.weight is None else rows.weight
    data = data_of(terms, rows.base_of(curves), rows.label, rows.columns, weight, rows.rate)
    fields = {"fields": [name for name in terms.columns if name not in curves.contexts]}
    return replace(curves, terms=update(terms, data, kept=kept), settings={**curves.settings, **fields})


def taken(values: Any, kept: Any) -> Any:
    """Some entries of a column of any kind, by their indices.

    >>> taken(["a", "b", "c"], np.array([0, 2]))
    ['a', 'c']
    """
    if isinstance(values, list | tuple):
        return [values[place] for place in kept.tolist()]
    if hasattr(values, "iloc"):
        return values.iloc[kept]
    return values.take(kept) if hasattr(values, "take") and not hasattr(values, "gather") else values[kept]


def field_names(fields: Sequence[str] | str, columns: Sequence[str] | None, used: Sequence[str]) -> tuple[str, ...]:
    """The field columns that a setting selects.

    Args:
        fields: Names, or ``"all"``.
        columns: Columns of the frame; None if there is no frame.
        used: Columns with another meaning.

    >>> field_names("all", ["score", "device", "hour"], ["score"])
    ('device', 'hour')
    """
    if isinstance(fields, str):
        if fields != "all":
            raise InputError(f'fields: expected "all" or names in a tuple, got {fields!r}; use ({fields!r},)')
        return tuple(name for name in columns or () if name not in used)
    names = listed(fields)
    if names is None:
        raise InputError(f'fields: expected "all" or names of columns, got {shown(fields)}; name each column')
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f"fields: expected names of columns, got {names}; name each column")
    if len(set(names)) < len(names):
        raise InputError(f"fields: expected every name once, got {names}; name each column once")
    return names
