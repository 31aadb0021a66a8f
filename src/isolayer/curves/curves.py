"""Curves: the one fitted artefact. A table of monotone curves, one a context, evaluated on numpy arrays.

The functions at the top are the whole mathematics of evaluation; the class says which curve belongs to which context.
How curves are fitted is the business of :mod:`isolayer.fitting.hierarchy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError, need, offered
from isolayer.fitting.categories import Codes, encode, lookup
from isolayer.fitting.columns import numbers, probs, same_length
from isolayer.fitting.frames import columns
from isolayer.fitting.hierarchy import FLOOR, Shrinkage, fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

if TYPE_CHECKING:
    from isolayer.nn.context import ContextIsotonicLayer
    from isolayer.nn.isotonic import IsotonicLayer

Floats = NDArray[np.float64]
Scale = Literal["logit", "prob"]

NEAR = 1e-15  # a probability is taken to be at least this far from 0 and 1 before its logit
_CHUNK = 1 << 15  # rows evaluated together, so that what is gathered stays in cache
_DENSE = 1 << 22  # up to so many combinations of codes a table finds a curve, beyond it a search


def logit_of(prob: Floats) -> Floats:
    """Logit of a probability; 0 and 1 count as ``NEAR`` and ``1 - NEAR``.

    >>> logit_of(np.array([0.5, 0.0])).round(2).tolist()
    [0.0, -34.54]
    """
    inside = np.clip(prob, NEAR, 1 - NEAR)
    return np.asarray(np.log(inside / (1 - inside)))


def prob_of(logit: Floats) -> Floats:
    """Probability of a logit, always inside (0, 1): logits beyond -700 and 36 count as those.

    >>> prob_of(np.array([0.0, 1e9])).tolist()
    [0.5, 0.9999999999999998]
    """
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -700.0, 36.0))))


def evaluate(values: Floats, row: Codes, logit: Floats, grid: Grid) -> Floats:
    r"""Curve ``values[row]`` at each logit: :math:`v_j + f (v_{j+1} - v_j)`, and with slope 1 outside the grid.

    Args:
        values: Knot values at ``grid.knots[1:]``, shape ``[curves, grid.buckets]``.
        row: Which curve, shape ``[n]``.
        logit: Where, shape ``[n]``.
        grid: Where the knots are.

    >>> evaluate(np.array([[0.0, 2.0]]), np.array([0, 0]), np.array([0.5, 3.0]), Grid(lower=0, upper=1, step=1))
    array([1., 4.])
    """
    out = np.empty(len(logit))
    flat, knots = values.reshape(-1), grid.buckets
    for start in range(0, len(logit), _CHUNK):
        part = slice(start, start + _CHUNK)
        x = logit[part]
        inside = np.clip(x, grid.lower, grid.upper)
        place = (inside - grid.lower) * (1 / grid.step)
        left = np.minimum(place.astype(np.int64), knots - 2)
        at = row[part] * knots + left
        below = flat.take(at)
        above = flat.take(at + 1)
        out[part] = below + (place - left) * (above - below) + (x - inside)
    return out


def invert(values: Floats, row: Codes, logit: Floats, grid: Grid) -> Floats:
    """The logit at which curve ``values[row]`` takes each value: the inverse of :func:`evaluate`.

    On a flat piece, where several would do, the largest.

    >>> invert(np.array([[0.0, 2.0]]), np.array([0, 0]), np.array([1.0, 4.0]), Grid(lower=0, upper=1, step=1))
    array([0.5, 3. ])
    """
    flat, knots = values.reshape(-1), grid.buckets
    first, left, right = row * knots, np.zeros(len(logit), np.int64), np.full(len(logit), knots - 1)
    for _ in range(int(knots).bit_length()):  # binary search for the last knot at or below, in all rows at once
        middle = (left + right + 1) // 2
        lower = flat.take(first + middle) <= logit
        left, right = np.where(lower, middle, left), np.where(lower, right, np.maximum(middle - 1, left))
    left = np.minimum(left, knots - 2)
    below, above = flat.take(first + left), flat.take(first + left + 1)
    rise = above - below
    fraction = np.clip((logit - below) / np.where(rise > 0, rise, 1.0), 0.0, 1.0)
    fraction = np.where((rise <= 0) & (logit >= above), 1.0, fraction)
    outside = np.minimum(logit - flat.take(first), 0) + np.maximum(logit - flat.take(first + knots - 1), 0)
    return np.asarray(grid.lower + (left + fraction) * grid.step + outside)


@dataclass(frozen=True, eq=False)
class Curves:
    """One monotone curve a context, and what is known of each.

    Curves of all levels stand in one table: first the global curve (level 0), then one a value of the first context
    column (level 1), then one a combination of the first two, and so on. A context that is not in the table has the
    curve of its deepest ancestor that is.

    Args:
        grid: Where the knots are; a curve has values at ``grid.knots[1:]``, that is from ``lower`` to ``upper``.
        contexts: Names of the context columns, coarse to fine.
        keys: For each level, one array of values a context column, shape ``[curves of the level]``; level 0 has none.
        values: Calibrated logits at the knots, non-decreasing, shape ``[curves, knots]``.
        variance: Posterior variance of each value, shape ``[curves, knots]``.
        mass: Weight of the rows around each knot, shape ``[curves, knots]``.
        count: Number of rows of each curve, shape ``[curves]``.
        scale: Whether scores are logits or probabilities.
        settings: How the curves were made: plain values only.

    >>> curves = Curves.identity(Grid(lower=-2, upper=2, step=1), scale="prob")
    >>> curves.predict_proba(np.array([0.25, 0.5])).round(6).tolist()
    [0.25, 0.5]
    """

    grid: Grid
    contexts: tuple[str, ...]
    keys: tuple[tuple[NDArray[Any], ...], ...]
    values: Floats
    variance: NDArray[np.floating[Any]]
    mass: NDArray[np.floating[Any]]
    count: Floats
    scale: Scale = "logit"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def identity(cls, grid: Grid, *, scale: Scale = "logit") -> Curves:
        """The curve that changes nothing."""
        knots = grid.knots[None, 1:].copy()
        return cls(grid, (), ((),), knots, np.zeros_like(knots), np.zeros_like(knots), np.zeros(1), scale)

    @classmethod
    def from_histogram(
        cls, histogram: Histogram, *, shrinkage: Shrinkage = "auto", strict: bool = True, scale: Scale = "logit"
    ) -> Curves:
        """Fit the curves of a histogram: the exact optimum.

        Args:
            histogram: The rows.
            shrinkage: How strongly a curve is drawn to its parent: ``"auto"``, or as in
                :func:`isolayer.fitting.hierarchy.fit_levels`.
            strict: Whether every curve increases strictly (its slope is at least ``FLOOR``), or may be flat.
            scale: The scale of the scores that will be asked about.

        >>> histogram = Histogram.from_arrays([-1.0, 0.0, 1.0], [0, 0, 1], {"device": ["tv", "tv", "web"]})
        >>> Curves.from_histogram(histogram).predict_proba([0.0, 0.5], {"device": ["tv", "unseen"]}).shape
        (2,)
        """
        if histogram.rows == 0:
            raise InputError("histogram: expected at least one row, got none; add rows")
        levels = fit_levels(histogram, shrinkage=shrinkage, floor=FLOOR if strict else 0.0)
        settings = {
            "shrinkage": [list(strength) for strength in levels.strengths],
            "chosen": isinstance(shrinkage, str),
            "strict": strict,
            "residual": levels.residual,
            "data": histogram.fingerprint(),
        }
        grid, contexts = histogram.grid, histogram.contexts
        table = (levels.values, levels.variance, levels.mass, levels.rows)
        return cls(grid, contexts, levels.keys, *table, scale=scale, settings=settings)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each level in the table, and at the end the number of rows."""
        sizes = [1, *(len(keys[0]) for keys in self.keys[1:])]
        return (0, *np.cumsum(sizes).tolist())

    def predict_proba(self, score: ArrayLike, context: Mapping[str, Any] | Any = None) -> Floats:
        """Calibrated probability of each score.

        Args:
            score: Scores on this artefact's ``scale``, shape ``[n]``.
            context: Context columns by name (a mapping or a frame), each of shape ``[n]``; without it, the global
                curve.
        """
        return prob_of(self.decision_function(score, context))

    def decision_function(self, score: ArrayLike, context: Mapping[str, Any] | Any = None) -> Floats:
        """Calibrated logit of each score."""
        logit = self._logit(score)
        return evaluate(self.values, self.rows_of(context, len(logit)), logit, self.grid)

    def inverse(self, prob: ArrayLike, context: Mapping[str, Any] | Any = None) -> Floats:
        """The score, on this artefact's ``scale``, that is calibrated to each probability.

        >>> Curves.identity(Grid()).inverse([0.5]).tolist()
        [0.0]
        """
        logit = logit_of(probs("prob", prob))
        raw = invert(self.values, self.rows_of(context, len(logit)), logit, self.grid)
        return raw if self.scale == "logit" else prob_of(raw)

    def band(
        self, level: float = 0.95, score: ArrayLike | None = None, context: Mapping[str, Any] | Any = None
    ) -> tuple[Floats, Floats]:
        """Pointwise interval of the calibrated probability.

        Args:
            level: Share of such intervals that hold the truth.
            score: Where to give the interval, shape ``[n]``; by default at the knots of every curve.
            context: Context columns of the scores.

        Returns:
            Lower and upper ends, shape ``[n]``, or ``[curves, knots]`` without scores.
        """
        if not 0 < level < 1:
            raise InputError(f"level: expected a number in (0, 1), got {level}; try 0.95")
        width = NormalDist().inv_cdf(0.5 + level / 2)
        if score is None:
            middle, deviation = self.values, np.sqrt(self.variance.astype(np.float64))
        else:
            logit = self._logit(score)
            row = self.rows_of(context, len(logit))
            middle = evaluate(self.values, row, logit, self.grid)
            inside = np.clip(logit, self.grid.lower, self.grid.upper)
            deviation = np.sqrt(evaluate(self.variance.astype(np.float64), row, inside, self.grid))
        return prob_of(middle - width * deviation), prob_of(middle + width * deviation)

    def compare(self, other: Curves) -> dict[str, NDArray[Any]]:
        """How far another release moves the probabilities of each context.

        Changes are measured at the knots where either release has rows of the context (its mass), each release with
        the curve it would serve: a context that only one of them has is served by its ancestor in the other.

        Returns:
            Columns, one entry a context of either: ``level``, the context columns (None above their level),
            ``largest`` and ``average`` (weighted by mass) change in probability, and ``weight``.

        >>> one = Curves.identity(Grid())
        >>> one.compare(one)["largest"].tolist()
        [0.0]
        """
        if (self.contexts, self.scale, self.grid) != (other.contexts, other.scale, other.grid):
            raise InputError(
                "compare: expected curves with the same contexts, scale and grid, got "
                f"{self.contexts}, {self.scale}, {self.grid} and {other.contexts}, {other.scale}, {other.grid}; "
                "refit one of them"
            )
        tables = [_compare_level(self, other, level) for level in range(len(self.contexts) + 1)]
        return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}

    def apply_table(self, table: Any, *, score: str = "score", prob: str = "calibrated_prob") -> Any:
        """A table with one more column, lazily, in its own engine; see :func:`isolayer.tables.apply.apply_table`."""
        return offered("apply_table")(self, table, score=score, prob=prob)

    def to_sql(self, dialect: str = "duckdb", *, table: str = "scores", score: str = "score") -> str:
        """One statement that calibrates a table; see :func:`isolayer.tables.apply.to_sql`, which has more options."""
        return str(offered("to_sql")(self, dialect, table=table, score=score))

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write an ONNX model, compared before it is kept; see :func:`isolayer.curves.export.onnx.to_onnx`."""
        need("isolayer.curves.export.onnx").to_onnx(self, path)

    def to_layer(self) -> IsotonicLayer | ContextIsotonicLayer:
        """A layer in double precision that does the same; see :func:`isolayer.nn.convert.to_layer`."""
        return cast("IsotonicLayer | ContextIsotonicLayer", offered("to_layer")(self))

    @classmethod
    def from_layer(cls, layer: IsotonicLayer | ContextIsotonicLayer, *, like: Curves | None = None) -> Curves:
        """The curves of a layer; see :func:`isolayer.nn.convert.from_layer`, which has more options."""
        return cast("Curves", offered("from_layer")(layer, like=like))

    def plot(self, context: Mapping[str, Any] | None = None, *, level: float = 0.95) -> Any:
        """Raw to calibrated probability with bands, an Altair chart; see :func:`isolayer.report.plot_curves`."""
        return offered("plot_curves")(self, context, level=level)

    def save(self, path: str | PathLike[str]) -> None:
        """Write one Parquet file, a row a curve, in one step; see :mod:`isolayer.curves.parquet_io`."""
        from isolayer.curves.parquet_io import save_curves

        save_curves(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Curves:
        """Read what :meth:`save` wrote, the same to the bit."""
        from isolayer.curves.parquet_io import load_curves

        return load_curves(path)

    def rows_of(self, context: Mapping[str, Any] | Any, rows: int, *, depth: int | None = None) -> Codes:
        """Row of the table that serves each context, shape ``[rows]``: its own, or its deepest ancestor's.

        Args:
            context: Context columns by name; None for the global curve.
            rows: How many rows the columns have.
            depth: How many context columns to look at; by default all.
        """
        row = at = np.zeros(rows, np.int64)
        if context is None:
            return row
        for level, (name, values) in enumerate(columns(context, self.contexts[:depth]).items(), start=1):
            vocabulary, finder = self._finders[level - 1]
            codes = lookup(values, vocabulary, name)
            same_length(f"context {name}", len(codes), rows)
            at = finder.find(at, codes)
            row = np.where(at >= 0, self.starts[level] + at, row)
        return row

    @cached_property
    def _finders(self) -> tuple[tuple[NDArray[Any], _Finder], ...]:
        """For each context column its vocabulary, and where the curves of its level are."""
        finders = list[tuple[NDArray[Any], _Finder]]()
        for keys in self.keys[1:]:
            parent = np.zeros(len(keys[0]), np.int64)
            for (vocabulary, finder), key in zip(finders, keys, strict=False):
                parent = finder.find(parent, lookup(key, vocabulary))
            if (parent < 0).any():
                raise InputError("curves: expected the parent of every context, got a context without; add its curve")
            vocabulary, code = encode(keys[-1], self.contexts[len(finders)])
            finders.append((vocabulary, _Finder(parent, code, len(vocabulary))))
        return tuple(finders)

    @cached_property
    def on_logits(self) -> Curves:
        """The same curves, asked about logits."""
        return replace(self, scale="logit")

    def _logit(self, score: ArrayLike) -> Floats:
        if self.scale == "logit":
            return numbers("score", score)
        return logit_of(probs("score", score, advice='for logits use scale="logit"'))


class _Finder:
    """Where in its level stands the child with a given code of a given parent; -1 where there is none."""

    def __init__(self, parent: Codes, code: Codes, codes: int) -> None:
        self.codes, key = codes, parent * codes + code
        self.place = np.argsort(key, kind="stable")
        self.key = key[self.place]
        size = (int(parent.max(initial=0)) + 1) * codes
        self.table = np.full(size + 1, -1) if size <= _DENSE else None  # one more, so that place -1 holds -1
        if self.table is not None:
            self.table[key] = np.arange(len(key))

    def find(self, parent: Codes, code: Codes) -> Codes:
        key = np.where((parent < 0) | (code < 0), -1, parent * self.codes + code)
        if self.table is not None:
            return np.asarray(self.table[np.minimum(key, len(self.table) - 1)])
        guess = np.searchsorted(self.key, key).clip(max=len(self.key) - 1)
        return np.where(self.key[guess] == key, self.place[guess], -1)


def _compare_level(one: Curves, two: Curves, level: int) -> dict[str, NDArray[Any]]:
    """The part of :meth:`Curves.compare` about one level: every context that either release has there."""
    theirs = dict(zip(two.contexts, two.keys[level], strict=False))
    rows = two.starts[level + 1] - two.starts[level]
    new = one.rows_of(theirs, rows, depth=level) < one.starts[level]  # contexts that only the other has
    union = {
        name: np.array([*mine.tolist(), *key[new].tolist()], dtype=object)
        for mine, (name, key) in zip(one.keys[level], theirs.items(), strict=True)
    }
    rows = one.starts[level + 1] - one.starts[level] + int(new.sum())
    rows_one, rows_two = one.rows_of(union, rows, depth=level), two.rows_of(union, rows, depth=level)
    own = [np.where(row >= curves.starts[level], 1.0, 0.0) for curves, row in ((one, rows_one), (two, rows_two))]
    mass = one.mass[rows_one] * own[0][:, None] + two.mass[rows_two] * own[1][:, None]
    change = np.abs(prob_of(one.values[rows_one]) - prob_of(two.values[rows_two]))
    weight = mass.sum(1)
    deeper = {name: np.full(rows, None, dtype=object) for name in one.contexts[level:]}
    return {
        "level": np.full(rows, level),
        **union,
        **deeper,
        "largest": np.where(mass > 0, change, 0.0).max(1),
        "average": (mass * change).sum(1) / np.where(weight > 0, weight, 1.0),
        "weight": weight,
    }
