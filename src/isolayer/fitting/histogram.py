"""The histogram: everything that the exact fit needs from the rows, as sums per context, fold, bin and rate.

Sums can be added, subtracted and scaled. So fitting in batches, forgetting, removing a day and cross-validation are
exact, and an engine that can GROUP BY can make the same object as :meth:`Histogram.from_arrays`. Bins are a quarter of
a knot step wide and keep the mean logit of their rows. Rows whose negatives were sampled at different rates are in
separate cells, because the fit shifts each by its own rate. Curves do not belong here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from os import PathLike
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError, offered
from isolayer.fitting import columns
from isolayer.fitting.adding import add_up, rounded_sums, sums_by_place
from isolayer.fitting.agreement import agreed, joined_keys
from isolayer.fitting.categories import Codes, combine, context_names, encode
from isolayer.fitting.negative_rates import checked_rates, distinct_rates
from isolayer.fitting.notebook import HistogramForm
from isolayer.fitting.part_ids import scaled_parts, without_parts
from isolayer.grid import Grid, grid_or
from isolayer.settings import count, instance, mapping, number

Sums = NDArray[np.float64]

BINS_PER_STEP = 4
LEAST_WEIGHT, MOST_WEIGHT = 1e-200, 1e100  # smaller weights count as zero; the range keeps squares finite
_SUMS = ("count", "weight", "weight_squared", "positive", "logit")
Place = tuple[Codes, NDArray[Any], NDArray[Any], Sums | float]  # group, fold, bin and negative rate, [cells] or [rows]


def bins(grid: Grid) -> int:
    """Number of bins: ``BINS_PER_STEP`` per bucket, one below the grid (bin 0) and one at and above its upper end.

    >>> bins(Grid(lower=0, upper=1, step=0.5))
    10
    """
    return BINS_PER_STEP * (grid.buckets - 1) + 2


def bin_of(logit: NDArray[np.floating[Any]], grid: Grid) -> NDArray[np.int64]:
    """Bin of each logit: ``floor((logit - lower) * (BINS_PER_STEP / step)) + 1``, clipped to ``0 .. bins - 1``.

    The formula is double arithmetic that any SQL engine repeats to the bit.

    >>> bin_of(np.array([-9.0, 0.0, 0.3, 1.0]), Grid(lower=0, upper=1, step=0.5)).tolist()
    [0, 1, 3, 9]
    """
    near = np.clip(np.asarray(logit, np.float64), grid.lower - grid.step, grid.upper + grid.step)  # no overflow
    place = np.floor((near - grid.lower) * (BINS_PER_STEP / grid.step))
    return np.asarray(place.clip(-1, bins(grid) - 2).astype(np.int64) + 1)


@dataclass(frozen=True, eq=False, repr=False)
class Histogram(HistogramForm):
    """Sums of the rows of each (group, fold, bin, negative rate) that has rows.

    A *group* is a combination of context values; groups are numbered in the lexicographic order of their keys, missing
    last, and cells are sorted by (group, fold, bin, negative rate). Make one by :meth:`from_arrays`.

    Args:
        grid: Where the knots, and so the bins, are.
        contexts: Names of the context columns, coarse to fine.
        keys: One array per context column: its value in each group, shape ``[groups]``.
        group: Group of each cell, shape ``[cells]``.
        fold: Fold of each cell; zeros when there are no folds.
        bin: Bin of each cell, in the numbering of :func:`bin_of`.
        negative_rate: Share of the negatives that was kept when the rows of the cell were sampled; 1 if all were.
        count: How many rows fell into the cell.
        weight: Sum of their weights.
        weight_squared: Sum of the squares of their weights, for the effective number of rows.
        positive: Weighted sum of their labels.
        logit: Weighted sum of their logits.
        source: Facts about the rows, as plain values if known: the names of the ``score`` and ``label`` columns, the
            ``scale`` of the scores, the ``negative_rate``, the ``weight_kind``, the ids of merged ``parts``. Only
            histograms whose sources agree, and whose parts differ, can be merged.

    >>> histogram = Histogram.from_arrays([0.1, 0.2, 9.0], [0, 1, 1], {"device": ["tv", "tv", "web"]})
    >>> histogram.keys[0].tolist(), histogram.group.tolist(), histogram.count.tolist(), histogram.positive.tolist()
    (['tv', 'web'], [0, 0, 1], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    """

    grid: Grid
    contexts: tuple[str, ...]
    keys: tuple[NDArray[Any], ...]
    group: Codes
    fold: NDArray[np.int8]
    bin: NDArray[np.int32]
    negative_rate: Sums
    count: Sums
    weight: Sums
    weight_squared: Sums
    positive: Sums
    logit: Sums
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        logit: ArrayLike,
        label: ArrayLike,
        context: Mapping[str, Any] | None = None,
        weight: ArrayLike | None = None,
        fold: ArrayLike | None = None,
        *,
        negative_rate: ArrayLike | float = 1.0,
        grid: Grid | None = None,
    ) -> Histogram:
        """Sum rows given as columns.

        Args:
            logit: Scores on the logit scale, shape ``[n]``.
            label: Labels in [0, 1], shape ``[n]``; soft labels are allowed.
            context: Context columns by name, coarse to fine: strings, integers or booleans, shape ``[n]``.
            weight: Weights from 0 to ``MOST_WEIGHT``; by default 1. Weights below ``LEAST_WEIGHT`` count as zero.
            fold: Fold of each row, 0 to 126; by default all in fold 0.
            negative_rate: Share of the negatives that was kept when rows were sampled, in (0, 1]: one number, or one
                per row, with few distinct values.
            grid: Where the knots are; by default ``Grid()``.
        """
        grid, context = grid_or(grid), mapping("context", {} if context is None else context, advice="name columns")
        logits, labels, weights = _checked_rows(logit, label, weight)
        folds = np.zeros(len(logits), np.int64) if fold is None else columns.whole("fold", fold, 127, len(logits))
        rate = checked_rates(negative_rate, len(logits))
        coded = {name: encode(column, name) for name, column in context.items()}
        for name, (_, codes) in coded.items():
            columns.same_length(f"context {name}", len(codes), len(logits))
        if weights is not None and not (weights >= LEAST_WEIGHT).all():
            used = np.flatnonzero(weights >= LEAST_WEIGHT)
            logits, labels, weights, folds = logits[used], labels[used], weights[used], folds[used]
            rate = rate if isinstance(rate, float) else rate[used]
            coded = {name: (vocabulary, codes[used]) for name, (vocabulary, codes) in coded.items()}
        sizes = [len(vocabulary) for vocabulary, _ in coded.values()]
        parts, group = combine([codes for _, codes in coded.values()], sizes, len(logits))
        keys = tuple(vocabulary[part] for (vocabulary, _), part in zip(coded.values(), parts, strict=True))
        sums = _sums_of_rows(logits, labels, weights)
        return cls._gather(grid, tuple(context), keys, (group, folds, bin_of(logits, grid), rate), sums)

    @classmethod
    def from_table(
        cls,
        table: Any,
        contexts: Sequence[str] = (),
        *,
        score: str = "score",
        label: str = "label",
        weight: str | None = None,
        scale: Literal["logit", "prob"] = "logit",
        grid: Grid | None = None,
        folds: int | tuple[int, str] | None = None,
        on_bad_rows: Literal["error", "drop"] = "error",
    ) -> Histogram:
        """Sum the rows of a table in the engine that holds it; see :mod:`isolayer.tables.histogram_query`.

        Args:
            table: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
            contexts: Context columns, coarse to fine; NULL is a context of its own.
            score: The score column.
            label: The label column.
            weight: A column of weights.
            scale: Whether scores are logits or probabilities.
            grid: Where the knots are; by default ``Grid()``.
            folds: Number of folds, by a hash of the score, or that and the column to hash.
            on_bad_rows: Whether rows that cannot be used are an error, or are left out with a warning.
        """
        columns = (context_names(contexts), score, label, weight, scale, grid_or(grid), folds)
        histogram = offered("histogram_from_table")(table, *columns, on_bad_rows=on_bad_rows)
        return cast("Histogram", histogram)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Histogram:
        """Read what :meth:`save` wrote."""
        return cast("Histogram", offered("load_histogram")(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write one Parquet file, one row per cell, in one step."""
        offered("save_histogram")(self, path)

    def fingerprint(self) -> str:
        """A short digest of the rows that were summed; it does not depend on the engine.

        >>> one, two = Histogram.from_arrays([0.1, 0.2], [0, 1]), Histogram.from_arrays([0.2, 0.1], [1, 0])
        >>> one.fingerprint() == two.fingerprint()
        True
        """
        digest = sha256("\0".join(self.contexts).encode())
        for part in (key[first : first + (1 << 16)] for key in self.keys for first in range(0, len(key) or 1, 1 << 16)):
            digest.update("\0".join(["", *map(str, part.tolist())] if len(part) else ["", ""]).encode())
        rates, code = distinct_rates(self.negative_rate)
        rate = np.broadcast_to(code, len(self.group))
        digest.update(rates.tobytes())
        for place, places in ((self.group, self.groups), (self.bin, bins(self.grid)), (rate, len(rates))):
            for sums in rounded_sums(place, places, (self.count, self.weight, self.positive)):
                digest.update(sums)
        return digest.hexdigest()[:32]

    @classmethod
    def _gather(
        cls,
        grid: Grid,
        contexts: tuple[str, ...],
        keys: tuple[NDArray[Any], ...],
        place: Place,
        sums: list[Sums | None],
        source: Mapping[str, Any] | None = None,
    ) -> Histogram:
        """Sum rows of the same cell; ``sums`` are in the order of `_SUMS`, and None repeats the previous column."""
        group, fold, at, rate = place
        rates, code = distinct_rates(rate)
        sizes = (len(keys[0]) if keys else 1, int(fold.max(initial=0)) + 1, bins(grid), len(rates))
        cell = ((group * sizes[1] + fold) * sizes[2] + at) * sizes[3] + code
        cells, totals = add_up(cell, math.prod(sizes), sums)
        cells, code = np.divmod(cells, sizes[3])
        cells, at = np.divmod(cells, sizes[2])
        group, fold = np.divmod(cells, sizes[1])
        columns = {"negative_rate": rates[code], **dict(zip(_SUMS, totals, strict=True))}
        folds, places, facts = fold.astype(np.int8), at.astype(np.int32), source or {}
        return cls(grid, contexts, keys, group, folds, places, **columns, source=facts)

    @property
    def groups(self) -> int:
        """Number of distinct combinations of context values; 1 without context columns."""
        return len(self.keys[0]) if self.keys else 1

    @property
    def rows(self) -> float:
        """Number of rows that were summed."""
        return float(self.count.sum())

    def merge(self, other: Histogram) -> Histogram:
        """The histogram of both sets of rows.

        >>> one = Histogram.from_arrays([0.1], [1], {"device": ["tv"]})
        >>> two = Histogram.from_arrays([0.1], [0], {"device": ["web"]})
        >>> one.merge(two).keys[0].tolist()
        ['tv', 'web']
        """
        return self._plus(other, 1.0)

    def subtract(self, other: Histogram) -> Histogram:
        """The histogram without the rows of another, which must all have been part of it.

        >>> day = Histogram.from_arrays([0.1], [1], {"device": ["tv"]})
        >>> both = day.merge(Histogram.from_arrays([0.1], [0], {"device": ["web"]}))
        >>> both.subtract(day).keys[0].tolist()
        ['web']
        """
        rest = self._plus(other, -1.0)
        if (rest.count < -0.5).any():
            raise InputError(
                f"subtract: expected rows that are part of this histogram, got {int(-rest.count.min())} more in one "
                "cell than it has; subtract only what was merged"
            )
        # All cells of the other are cells of this one, so the cells of the rest are in the same order.
        noise, gone = 1e-9 * self.weight + 1e-14 * self.weight.max(initial=0.0), rest.count < 0.5
        strange = (rest.positive < -noise) | (rest.positive > rest.weight + noise)
        if (strange | (rest.weight < -noise) | (gone & (rest.weight > noise))).any():
            raise InputError(
                "subtract: expected rows with the weights and labels they have in this histogram, got something else; "
                "subtract rows scaled the same way"
            )
        squares, positive = np.maximum(rest.weight_squared, 0), np.clip(rest.positive, 0, rest.weight)
        rest = replace(rest, weight_squared=squares, positive=positive)
        kept = ~gone & (rest.weight > 1e-12 * self.weight)  # smaller weights are rounding errors
        return replace(rest.cells_where(kept), source=rest.source)

    def scaled(self, factor: float) -> Histogram:
        """The same rows with every weight multiplied by a positive factor: how old rows are forgotten.

        Cells whose weight is then below ``LEAST_WEIGHT`` are removed.

        >>> Histogram.from_arrays([0.1], [1]).scaled(0.5).weight.tolist()
        [0.5]
        """
        factor = number("factor", factor, 0, advice="use one in (0, 1] to forget")
        if factor == 1:
            return self
        factors = {"weight": factor, "weight_squared": factor**2, "positive": factor, "logit": factor}
        part = replace(self, **{name: getattr(self, name) * by for name, by in factors.items()})
        return replace(part.cells_where(part.weight >= LEAST_WEIGHT), source=scaled_parts(self.source, factor))

    def level(self, depth: int) -> Histogram:
        """The histogram of the first ``depth`` context columns, folds kept; depth 0 is all rows together.

        >>> histogram = Histogram.from_arrays([0.1, 0.1], [0, 1], {"device": ["tv", "web"]})
        >>> histogram.level(0).count.tolist()
        [2.0]
        """
        if count("depth", depth, 0, len(self.contexts), advice="0 is all rows together") == len(self.contexts):
            return self
        if depth == 0 and not self.fold.any() and isinstance(distinct_rates(self.negative_rate)[1], int):
            return self._together()
        parent, first = self.parents(depth)
        keys = tuple(key[first] for key in self.keys[:depth])
        place = parent[self.group], self.fold, self.bin, self.negative_rate
        return self._gather(self.grid, self.contexts[:depth], keys, place, [*self._sums()], self.source)

    def _together(self) -> Histogram:
        """All rows together, if there are no folds and one negative rate."""
        size = bins(self.grid)
        totals, last = dict[str, Sums](), None
        for name, column in zip(_SUMS, self._sums(), strict=True):
            totals[name] = (
                totals[last] if last and column is getattr(self, last) else sums_by_place(self.bin, size, column)
            )
            last = name
        occupied = np.zeros(size, bool)
        occupied[self.bin] = True
        at = np.flatnonzero(occupied)
        zeros, rate = np.zeros(len(at), np.int64), np.repeat(self.negative_rate[:1], len(at))
        sums = {name: column[at] for name, column in totals.items()}
        fold, place = zeros.astype(np.int8), at.astype(np.int32)
        return Histogram(self.grid, (), (), zeros, fold, place, rate, **sums, source=self.source)

    def parents(self, depth: int) -> tuple[Codes, Codes]:
        """Group at level ``depth`` that each group belongs to, shape ``[groups]``, and the first group of each."""
        starts = np.zeros(self.groups, bool)
        starts[:1] = True
        for key in self.keys[:depth]:
            starts[1:] |= key[1:] != key[:-1]
        return np.cumsum(starts) - 1, np.flatnonzero(starts)

    def folded(self) -> Histogram:
        """The same rows with no folds."""
        return replace(self, fold=np.zeros_like(self.fold)).merged_cells() if self.fold.any() else self

    def merged_cells(self) -> Histogram:
        """The same rows, with equal cells merged."""
        place = self.group, self.fold, self.bin, self.negative_rate
        return self._gather(self.grid, self.contexts, self.keys, place, [*self._sums()], self.source)

    def split(self, fold: int) -> tuple[Histogram, Histogram]:
        """The rows outside one fold, and the rows in it; groups keep their numbers, and may be empty."""
        inside = self.fold == count("fold", fold, 0, 126, advice="folds are numbered from 0")
        return self.only_cells(~inside).folded(), self.only_cells(inside).folded()

    def _sums(self) -> tuple[Sums, ...]:
        return tuple(getattr(self, name) for name in _SUMS)

    def only_cells(self, kept: NDArray[np.bool_] | Codes | slice) -> Histogram:
        """The cells that are kept, ``[cells]``; groups keep their numbers, and may be empty."""
        part = {name: getattr(self, name)[kept] for name in ("group", "fold", "bin", "negative_rate", *_SUMS)}
        return replace(self, **part, source=without_parts(self.source))

    def cells_where(self, kept: NDArray[np.bool_]) -> Histogram:
        """Only some cells, and only the groups that still have one."""
        if kept.all():
            return self
        part = self.only_cells(kept)
        alive = np.zeros(self.groups, bool)
        alive[part.group] = True
        alive[:1] |= not self.keys  # without context columns there is always the one group
        keys = tuple(key[alive] for key in self.keys)
        return replace(part, keys=keys, group=(np.cumsum(alive) - 1)[part.group])

    def _plus(self, other: Histogram, sign: float) -> Histogram:
        instance("other", other, Histogram, advice="make it with Histogram.from_arrays or from_table")
        if self.grid != other.grid or self.contexts != other.contexts:
            raise InputError(
                f"histograms: expected the same grid and contexts, got {self.grid}, {self.contexts} and {other.grid}, "
                f"{other.contexts}; make both with the same settings"
            )
        source = agreed(self, other, sign)
        coded = [
            encode(joined_keys(mine, theirs, name), name)
            for mine, theirs, name in zip(self.keys, other.keys, self.contexts, strict=True)
        ]
        groups = self.groups + other.groups
        parts, place = combine([codes for _, codes in coded], [len(words) for words, _ in coded], groups)
        keys = tuple(words[part] for (words, _), part in zip(coded, parts, strict=True))
        group = np.concatenate([place[self.group], place[self.groups :][other.group]])
        fold, at = np.concatenate([self.fold, other.fold]), np.concatenate([self.bin, other.bin])
        rate = np.concatenate([self.negative_rate, other.negative_rate])
        sums = [np.concatenate([a, sign * b]) for a, b in zip(self._sums(), other._sums(), strict=True)]
        return self._gather(self.grid, self.contexts, keys, (group, fold, at, rate), [*sums], source)


def _sums_of_rows(logit: Sums, label: Sums, weight: Sums | None) -> list[Sums | None]:
    if weight is None:
        return [None, None, None, label, logit]
    return [None, weight, weight**2, weight * label, weight * logit]


def _checked_rows(logit: ArrayLike, label: ArrayLike, weight: ArrayLike | None) -> tuple[Sums, Sums, Sums | None]:
    """The columns as doubles, or an InputError that names the first unusable value and its column."""
    logits = columns.numbers("logit", logit)
    labels = columns.labels("label", label, len(logits))
    weights = None if weight is None else columns.weights("weight", weight, len(logits))
    if weights is not None and not (small := weights <= MOST_WEIGHT).all():
        columns.refuse("weight", weights, small, f"numbers from 0 to {MOST_WEIGHT}", "rescale the weights to mean 1")
    return logits, labels, weights
