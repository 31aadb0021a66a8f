"""From a histogram to the curves of every level: all rows first, then each level, shrunk towards its fixed parents.

The global curve is shrunk towards the line that calibrates all rows best, and that line weakly towards the identity.
The curve of a context is shrunk towards its parent's curve plus the deviation that the contexts of its level share. The
less is known about a context, the less of the shared deviation it gets: a context without rows has exactly its parent's
curve. How one level is fitted is in :mod:`isolayer.fitting.level`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.fitting.binned_rows import BinnedRows
from isolayer.fitting.chunk import Above
from isolayer.fitting.evidence import evidence
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.level import LevelFit, Table, fit_level
from isolayer.fitting.line import Line, shrunk_line
from isolayer.fitting.packed_level import Parts, is_large, packs
from isolayer.fitting.prior import LEAST, MOST, Frame, Strength
from isolayer.fitting.shrinkage import USUAL, USUAL_BELOW, Choice, Level, choose

Floats = NDArray[np.float64]
Shrinkage = Literal["auto"] | float | Sequence[float] | Sequence[Sequence[float]]

FLOOR = 1e-3  # least slope of a strictly increasing curve, relative to that of the line of all rows
_NARROWEST = 0.25  # least spread of the scores in units of calibrated logit
_MOST_VALUES = 1 << 32  # most knot values of all curves together: about 6 GB when packed
_SAMPLE, _SAMPLE_ROWS = (256, 1024), 200_000  # total weight of the contexts from which strengths are chosen


class Levels(NamedTuple):
    """Fitted curves of all levels, global first, then those of each level in the order of its keys.

    Args:
        keys: For each level one array per context column, shape ``[curves of the level]``.
        table: Knot values with their variances and weights, one row per curve.
        rows: Number of rows of each curve.
        strengths: The strengths used, one per level.
        line: The line on which the global curve is centred.
        residual: The largest KKT residual of all curves.
        converged: Whether the choice of strengths converged at every level.
    """

    keys: tuple[tuple[NDArray[Any], ...], ...]
    table: Table
    rows: Floats
    strengths: tuple[Strength, ...]
    line: Line
    residual: float
    converged: bool


def fit_levels(
    histogram: Histogram, *, shrinkage: Shrinkage = "auto", floor: float = FLOOR, clip: bool = False
) -> Levels:
    """Fit the curves of every level.

    Args:
        histogram: The rows; folds are ignored.
        shrinkage: ``"auto"``, or the strengths: one number for level, slope and curve of all levels, or those three
            (see :class:`isolayer.fitting.prior.Strength`), or three for each level, global first. 0 is none.
        floor: Least slope of a curve, relative to that of the line of all rows; minus infinity for none.
        clip: Whether rows beyond the grid count as rows at its ends; otherwise curves continue there with slope 1.

    >>> histogram = Histogram.from_arrays([-1.0, 0.0, 1.0], [0, 0, 1], {"device": ["tv", "tv", "web"]})
    >>> fit_levels(histogram).table.values.shape
    (3, 126)
    """
    depths = range(len(histogram.contexts) + 1)
    given = strengths_of(shrinkage, len(depths))
    histogram = _clipped(histogram) if clip else histogram
    parts = [evidence(histogram.level(depth).folded()) for depth in depths]
    total, knots = sum(part.groups for part in parts), histogram.grid.buckets
    _refuse_size(total, knots)
    growing, count, start = _Growing.of(total, knots), np.empty(total), 0
    centre = Centre.of(parts[0], given[0])
    above = Above(centre.line.at(histogram.grid.knots[None, 1:]), np.zeros((1, knots)), np.zeros(1, np.int64))
    choices, worst = list[Choice](), 0.0
    for depth, part in enumerate(parts):
        mean = centre.mean if depth == 0 else np.zeros(2)
        choice = _choice(part, above, given[depth], centre, mean)
        residual = growing.add(start, LevelFit(part, above, choice, centre.frame, mean, floor))
        _refuse_overflow(part, residual)
        worst, start = max(worst, residual), start + part.groups
        count[start - part.groups : start] = np.bincount(part.group, part.count, minlength=part.groups)
        choices.append(choice)
        if depth < len(parts) - 1:
            above = growing.above(start - part.groups, parts[depth + 1].parents(depth)[0])
    keys, strengths = tuple(part.keys for part in parts), tuple(choice.strength for choice in choices)
    converged = all(choice.converged for choice in choices)
    return Levels(keys, growing.table(), count, strengths, centre.line, worst, converged)


class _Growing(NamedTuple):
    """The table of all levels while it is filled: dense, or packed if it is large."""

    dense: Table | None
    parts: Parts

    @classmethod
    def of(cls, curves: int, knots: int) -> _Growing:
        dense = None if is_large(curves, knots) else Table.empty(curves, knots)
        return cls(dense, Parts.of((curves, knots)))

    def add(self, start: int, level: LevelFit) -> float:
        """Fit a level whose first row is ``start``. Returns the largest residual."""
        groups, knots = level.part.groups, level.part.grid.buckets
        if self.dense is None and packs(groups):
            return self.parts.add(start, level)
        out = Table.empty(groups, knots) if self.dense is None else self.dense.rows(start, start + groups)
        if self.dense is None:
            self.parts.dense.append((start, out))
        residual = fit_level(level, out)
        return residual if all(np.isfinite(column).all() for column in out) else np.inf

    def above(self, start: int, parent: NDArray[np.int64]) -> Above:
        """The level whose first row is ``start``, as the parent of the next one."""
        table = self.table()
        return Above(table.values, table.variance, start + parent)

    def table(self) -> Table:
        """The whole table."""
        return self.parts.table() if self.dense is None else self.dense


class Centre(NamedTuple):
    """The line on which the global curve is centred, and the unit of logits that it defines.

    Args:
        line: The line of all rows.
        frame: The knots in units of calibrated logit.
        mean: Mean of the prior's line in this frame, shape ``[2]``.
        strengths: Its strengths in this frame, shape ``[2]``.
    """

    line: Line
    frame: Frame
    mean: Floats
    strengths: Floats

    @classmethod
    def of(cls, everything: Histogram, given: Strength | None) -> Centre:
        """The line of all rows, shrunk by ``given`` strengths, or by a prior that suits any unit of the score."""
        knots, rows = everything.grid.knots[1:], BinnedRows.of(everything)
        line = shrunk_line(rows, knots, None if given is None else np.array(given[:2]))
        unit = max(line.slope, _NARROWEST / (line.spread + everything.grid.step))  # logits per unit of score
        ratio = np.array([1.0, unit / line.slope])
        return cls(line, Frame.at(unit * (knots - line.anchor)), line.mean / ratio, line.precision * ratio**2)


def strengths_of(shrinkage: Shrinkage, levels: int) -> list[Strength | None]:
    """The strengths of a setting, one per level; None if they are to be chosen.

    >>> strengths_of([1, 2, 3], 1)
    [Strength(level=1.0, slope=2.0, curve=3.0)]
    """
    if isinstance(shrinkage, str):
        if shrinkage == "auto":
            return [None] * levels
        raise _bad_shrinkage(shrinkage, levels)
    given = _numbers(shrinkage)
    if given.shape not in ((), (3,), (levels, 3)) or not (np.isfinite(given).all() and (given >= 0).all()):
        raise _bad_shrinkage(shrinkage, levels)
    return [Strength(*row) for row in np.broadcast_to(given, (levels, 3)).tolist()]


def _numbers(shrinkage: object) -> Floats:
    """Strengths as an array; NaN for anything that is not a number, including booleans."""
    try:
        found = np.asarray(shrinkage)
    except ValueError:  # rows of different lengths
        return np.array(np.nan)
    return found.astype(np.float64) if found.dtype.kind in "iuf" else np.array(np.nan)


def _bad_shrinkage(shrinkage: object, levels: int) -> InputError:
    return InputError(
        f'shrinkage: expected "auto", a number >= 0, three of them or {levels} times three, got {shrinkage!r}; '
        'use "auto"'
    )


def _choice(part: Histogram, above: Above, given: Strength | None, centre: Centre, mean: Floats) -> Choice:
    if given is not None:
        return Choice(given, np.zeros(part.grid.buckets), given)
    kept = _sample(part)
    curves = np.ascontiguousarray(above.curves[above.parent[kept]].T)
    line = [np.nan, np.nan] if part.contexts else np.clip(centre.strengths, LEAST, MOST).tolist()
    level = Level(BinnedRows.sampled(part, kept), curves, centre.frame, mean, np.array([*line, np.nan]))
    if part.contexts:
        return choose(level, USUAL if len(part.contexts) == 1 else USUAL_BELOW, share=True)
    return choose(level, USUAL, share=False)


def _sample(part: Histogram) -> NDArray[np.bool_]:
    """The contexts from which strengths are chosen: all, or a sample with the largest ones and others spread evenly."""
    weight = np.bincount(part.group, part.weight, minlength=part.groups)
    size = int(np.clip(_SAMPLE_ROWS * part.groups / max(weight.sum(), 1.0), *_SAMPLE))
    kept = np.ones(part.groups, bool)
    if size < part.groups:
        order = np.argsort(-weight, kind="stable")
        kept[order[size // 2 :]] = False
        kept[order[np.linspace(size // 2, part.groups - 1, size // 2).astype(np.int64)]] = True
    return kept


def _clipped(histogram: Histogram) -> Histogram:
    grid, weight = histogram.grid, histogram.weight
    return replace(histogram, logit=np.clip(histogram.logit / weight, grid.lower, grid.upper) * weight)


def _refuse_size(curves: int, knots: int) -> None:
    if curves * knots > _MOST_VALUES:
        raise InputError(
            f"curves: expected at most {_MOST_VALUES:,} knot values, got {curves:,} curves of {knots:,} knots each; "
            "use a grid with a larger step or fewer contexts"
        )


def _refuse_overflow(part: Histogram, residual: float) -> None:
    if not np.isfinite(residual):
        lightest, heaviest = part.weight.min(initial=np.inf), part.weight.max(initial=0.0)
        raise InputError(
            f"weight: expected weights that do not overflow the solver, got sums from {lightest:g} to {heaviest:g} in "
            "a bin; rescale them to mean 1"
        )
