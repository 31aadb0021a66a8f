"""Invariants of curves and of sums, checked when they are saved and when they are loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.terms_io import check_terms
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram, bins
from isolayer.fitting.packed import Packed

_ROUNDING = 1e-9  # by how much, relatively, a sum of labels may exceed the sum of weights


def check_curves(curves: Curves) -> None:
    """Raise unless every curve is finite, monotone curves never decrease, and every context has its parent.

    >>> from isolayer.grid import Grid
    >>> check_curves(Curves.identity(Grid()))
    """
    if len(curves.keys) != len(curves.contexts) + 1 or len(set(curves.contexts)) != len(curves.contexts):
        raise InputError(f"contexts: expected each once, with its keys, got {curves.contexts}; rename them")
    shape = (curves.starts[-1], curves.grid.buckets)
    for name in ("values", "variance", "knot_weight"):
        _refuse_shape(name, getattr(curves, name), shape)
    _refuse_shape("count", curves.count, shape[:1])
    if not isinstance(curves.monotone, bool):
        raise InputError(f"monotone: expected True or False, got {curves.monotone!r}; choose one")
    if isinstance(curves.values, Packed):
        _refuse_unless(
            "values", curves.values.check(curves.monotone), "finite and, unless monotone=False, never falling"
        )
    else:
        _refuse_unless("values", np.isfinite(curves.values), "finite")
        if curves.monotone:
            _refuse_unless("values", np.diff(curves.values, axis=1) >= 0, "never decreasing, or monotone=False")
    for name in ("variance", "knot_weight", "count"):
        column = getattr(curves, name)
        if isinstance(column, np.ndarray):  # the numbers of packed tables are checked when they are read
            _refuse_unless(name, np.isfinite(column) & (column >= 0), "finite and not negative")
    curves.check_keys()
    if curves.terms is not None:
        check_terms(curves.terms)


def check_histogram(histogram: Histogram) -> None:
    """Raise unless the cells are in order, each once, with sums that rows can have.

    >>> check_histogram(Histogram.from_arrays([0.1], [1]))
    """
    cells, end = (len(histogram.group),), bins(histogram.grid)
    for name in ("group", "fold", "bin", "count", "weight", "weight_squared", "positive", "logit", "negative_rate"):
        _refuse_shape(name, getattr(histogram, name), cells)
    for name, limit in (("group", histogram.groups), ("fold", 127), ("bin", end)):
        column = getattr(histogram, name)
        _refuse_unless(name, (column >= 0) & (column < limit), f"from 0 to {limit - 1}")
    place = (histogram.group.astype(np.int64) * 127 + histogram.fold) * end + histogram.bin
    rate = histogram.negative_rate
    _refuse_unless("negative_rate", (rate > 0) & (rate <= 1), "in (0, 1]")
    after = (np.diff(place) > 0) | ((np.diff(place) == 0) & (np.diff(rate) > 0))
    _refuse_unless("cells", after, "in order, each once")
    for name in ("count", "weight", "weight_squared", "positive"):
        column = getattr(histogram, name)
        _refuse_unless(name, np.isfinite(column) & (column >= 0), "finite and not negative")
    _refuse_unless("logit", np.isfinite(histogram.logit), "finite")
    _refuse_unless("positive", histogram.positive <= histogram.weight * (1 + _ROUNDING), "at most the weight")


def _refuse_shape(name: str, column: NDArray[Any], shape: tuple[int, ...]) -> None:
    if column.shape != shape:
        raise InputError(f"{name}: expected shape {shape}, got {column.shape}; give one entry per row and knot")


def _refuse_unless(name: str, good: NDArray[np.bool_], rule: str) -> None:
    if not good.all():
        bad = np.argwhere(~good)
        where = f"{len(bad)} entries that are not, first in row {bad[0][0]}"
        raise InputError(f"{name}: expected it {rule}, got {where}; make it again")
