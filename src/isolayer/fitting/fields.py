"""From rows with any number of fields to terms: main effects, interactions by evidence, and a guard for small sets.

The rows come with the calibrated logit of their base curve. Main effects of all fields are fitted first, on a sample if
there are very many rows, then on all; then the interactions with the most evidence are added, a few at a time. Where
rows are few, the same is done on folds, and the terms are shrunk towards the base curve by the amount that fits the
rows left out best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Backfit, Block, Rows
from isolayer.fitting.categories import Column
from isolayer.fitting.combinations import Choice, Interactions, Name, choice_of, left
from isolayer.fitting.field_data import Data
from isolayer.fitting.field_guard import guard, last_curve, left_out
from isolayer.fitting.field_leaks import check_leaks
from isolayer.fitting.field_levels import BINS, Field, fields_of, kind_of, levels_of, number_of, refuse_infinite
from isolayer.fitting.field_refit import GUARDED, RowSums, refit, share_for
from isolayer.fitting.field_search import Added, search
from isolayer.fitting.interactions import View
from isolayer.fitting.terms import Term, Terms
from isolayer.fitting.threads import one_thread

Floats = NDArray[np.float64]

_SWEEPS, _STILL = 12, 0.01  # sweeps of the main effects, and the change that ends them
_LAST_SWEEPS = 6  # sweeps of all terms, while the strengths of interactions converge
_WARM = 2  # sweeps before the strengths are chosen
_SAMPLE = 100_000  # rows on which the first sweeps run
_QUANTILES = (0.03, 0.97)  # quantiles of the base logit between which tilts act
_ROWS_PER_BIN, _LEAST_BINS = 30, 16  # bins of a number if there are few rows
_NARROW = 1e-3  # a range of base logits below this has no tilts


@one_thread
def fit_fields(
    base: Floats,
    label: Floats,
    columns: Mapping[str, Column],
    weight: Floats | None = None,
    *,
    rate: Floats | float = 1.0,
    interactions: Interactions = "auto",
    without: Sequence[Name] = (),
    structure: Terms | None = None,
) -> Terms:
    """Fit the terms of all fields, and the last curve over their sum.

    Args:
        base: Calibrated logit of the base curve, shape ``[n]``.
        label: Labels in [0, 1], shape ``[n]``.
        columns: The fields by name, each of shape ``[n]``.
        weight: How often each row counts, shape ``[n]``; by default 1.
        rate: Share of the negatives that was kept when rows were sampled.
        interactions: How many combinations of fields to find at most; ``"auto"`` is up to 40. Or which to add: tuples
            of names, with a number or ``"auto"`` among them to also find others.
        without: Fields and combinations to leave out; combinations that contain these are left out too.
        structure: Terms of an earlier fit, whose levels and combinations are kept, and the values of frozen terms.

    >>> rng = np.random.default_rng(0)
    >>> device, base = rng.choice(["tv", "web"], 4000), rng.normal(0, 1, 4000)
    >>> label = (rng.random(4000) < 1 / (1 + np.exp(-base - (device == "tv")))).astype(float)
    >>> terms = fit_fields(base, label, {"device": device})
    >>> bool(0.7 < np.ptp(terms.terms[0].values[:, 0]) < 1.2)
    True
    """
    weight = np.ones(len(base)) if weight is None else weight
    for name, values in columns.items():
        if kind_of(name, values) == "number":
            refuse_infinite(name, int(np.isinf(number_of(name, values, None)).sum()))
    if structure is None:
        fields = fields_of(columns, weight, bins=int(np.clip(weight.sum() // _ROWS_PER_BIN, _LEAST_BINS, BINS)))
        outline = Terms(left(fields, without), (), *_range(base, weight))
    else:
        outline = replace(structure.without(*without), last=None)
    if not outline.fields:
        return outline
    data = data_of(outline, base, label, columns, weight, rate)
    if structure is None:
        check_leaks(data, outline.fields)
    choice = choice_of(interactions, without, outline.fields) if structure is None else Choice(0)
    terms = _fit(data, outline, choice) if structure is None else structure_values(data, outline)
    if structure is None and len(data) <= GUARDED:
        terms = terms.kept(guard(data, outline, lambda some: _fit(some, outline, choice)))
    return terms if terms.share == 0 else replace(terms, last=last_curve(left_out(data, terms, rate)))


def data_of(
    outline: Terms, base: Floats, label: Floats, columns: Mapping[str, Column], weight: Floats, rate: Floats | float
) -> Data:
    """Rows with the levels that the fields of some terms have; arguments as in :func:`fit_fields`."""
    rows = Rows(label, weight, outline.place(base))
    return Data(rows, base, np.zeros(len(base)) - np.log(rate), levels_of(outline.fields, columns))


def structure_values(data: Data, structure: Terms) -> Terms:
    """The terms of a structure fitted to these rows; frozen terms keep their values."""
    return refit(structure, RowSums(data, structure), share=share_for(structure, len(data))).terms


def _range(base: Floats, weight: Floats) -> tuple[float, float]:
    """Two quantiles of the base logit, slightly apart even if all base logits are equal."""
    order = np.argsort(base)
    mass = np.cumsum(weight[order])
    at = np.searchsorted(mass, np.array(_QUANTILES) * mass[-1]).clip(max=len(base) - 1)
    lower, upper = base[order[at]].tolist()
    return (lower, upper) if upper - lower > _NARROW else (lower - 0.5, lower + 0.5)


def _fit(data: Data, outline: Terms, choice: Choice) -> Terms:
    """Main effects and interactions of these rows: strengths by sweeps, then all values together."""
    fields = outline.fields
    fit = _main_effects(data, fields)
    chosen = search(fit, data, fields, choice)
    for _ in range(_LAST_SWEEPS if chosen else 0):
        if fit.sweep() < _STILL:
            break
    main = [Added((View(i, np.arange(one.size), one.size),), np.arange(one.size), 0.0) for i, one in enumerate(fields)]
    terms = tuple(_term(one, block) for one, block in zip([*main, *chosen], fit.blocks, strict=True))
    shared = float(fit.shared.values[0, 0]), float(fit.shared.values[0, 1])
    found = replace(outline, terms=terms, shared=shared)
    return refit(found, RowSums(data, found)).terms


def _term(added: Added, block: Block) -> Term:
    cells, nothing = added.cells.astype(np.int64), np.zeros(len(added.cells))
    told = nothing, nothing, nothing  # counted by the refit
    return Term(added.views, cells, block.values, block.covariance, *told, added.evidence, strengths=block.strengths)


def _blocks(data: Data, fields: Sequence[Field]) -> list[Block]:
    blocks = list[Block]()
    for one, level in zip(fields, data.levels, strict=True):
        placed = np.where(level < 0, one.size, level)
        blocks.append(Block.of(placed, one.size, tilts=True, linked=one.linked if one.kind == "number" else None))
    return blocks


def _main_effects(data: Data, fields: Sequence[Field]) -> Backfit:
    """The blocks of all fields, fitted to all rows; strengths are chosen on a sample first if rows are very many."""
    fit = Backfit(data.rows, data.base + data.shift)
    fit.blocks = _blocks(data, fields)
    if len(data) > 2 * _SAMPLE:
        kept = np.sort(np.random.default_rng(0).choice(len(data), _SAMPLE, replace=False))
        start = _main_effects(data.only(kept), fields)
        fit.start_from(start)
        _run(fit, warm=0)
    else:
        _run(fit, warm=_WARM)
    return fit


def _run(fit: Backfit, *, warm: int) -> None:
    for sweep in range(_SWEEPS):
        if fit.sweep(choose=sweep >= warm) < _STILL and sweep >= warm:
            return
