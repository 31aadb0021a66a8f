"""`Curves`: what a fit returns. A table of monotone curves, one per context, with facts about them.

The class knows which curve serves which context, and calibrates scores. A curve as a function is defined in
:mod:`isolayer.curves.evaluation`, the comparison of two releases in :mod:`isolayer.curves.comparison`, the file in
:mod:`isolayer.curves.parquet_io`. How curves are fitted is handled by :mod:`isolayer.fitting.hierarchy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.curves.correction import corrected, corrected_band, uncorrected
from isolayer.curves.evaluation import Extrapolation, Floats, Scale, evaluate, invert, logit_of, prob_of, prob_of_cells
from isolayer.curves.finder import Finder
from isolayer.curves.notebook import CurvesForm
from isolayer.errors import InputError, need, offered
from isolayer.fitting.categories import Codes, KnownValues, encode
from isolayer.fitting.columns import numbers, probs, same_length
from isolayer.fitting.frames import columns
from isolayer.fitting.hierarchy import FLOOR, Shrinkage, fit_levels
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.monotone_test import clearest_fall, looked_at
from isolayer.fitting.packed import Matrix, Packed
from isolayer.fitting.sampling import sampled_as_one
from isolayer.fitting.terms import Terms
from isolayer.grid import Grid
from isolayer.settings import choice, confidence, count, flag, instance

if TYPE_CHECKING:
    from isolayer.curves.scorer import Scorer
    from isolayer.nn.context import ContextIsotonicLayer
    from isolayer.nn.field_curves import FieldCurves
    from isolayer.nn.isotonic import IsotonicLayer

Kind = Literal["calibration", "bias"]


@dataclass(frozen=True, eq=False, repr=False)
class Curves(CurvesForm):
    """One curve per context, monotone by default, with counts and variances for each.

    All curves are in one table: first the global curve (depth 0), then one per value of the first context column (depth
    1), then one per combination of the first two (depth 2), and so on. A context that is not in the table is served by
    its deepest ancestor that is.

    Args:
        grid: Where the knots are; a curve has values at ``grid.knots[1:]``, that is from ``lower`` to ``upper``.
        contexts: Names of the context columns, coarse to fine.
        keys: For each depth, one array of values per context column, shape ``[curves of that depth]``; none at depth 0.
        values: Calibrated logits at the knots, non-decreasing if ``monotone``, ``[curves, knots]``; packed if many.
        variance: Posterior variance of each value, shape ``[curves, knots]``.
        knot_weight: Weight of the rows around each knot, shape ``[curves, knots]``.
        count: Number of rows of each curve, shape ``[curves]``.
        scale: Whether scores are logits or probabilities.
        extrapolation: Beyond the grid a curve continues with slope 1 (``"extend"``) or keeps its end value
            (``"clip"``).
        kind: ``"calibration"`` maps a score to the probability to serve; ``"bias"`` maps relevance to the probability
            that was observed, and is not for serving.
        monotone: Whether no curve ever decreases; if not, there is no inverse.
        score_name: Name of the score column, where known.
        label_name: Name of the label column, where known.
        source: Where the curves came from, as plain values: ``{"from": "fit", ...}``, ``{"from": "layer"}``.
        settings: How the curves were made, as plain values.
        terms: What fields add to the calibrated logit, if the curves were fitted with any; see
            :mod:`isolayer.fitting.terms`.

    >>> curves = Curves.identity(Grid(lower=-2, upper=2, step=1), scale="prob")
    >>> curves.predict_proba(np.array([0.25, 0.5])).round(6).tolist()
    [0.25, 0.5]
    """

    grid: Grid
    contexts: tuple[str, ...]
    keys: tuple[tuple[NDArray[Any], ...], ...]
    values: Matrix
    variance: Matrix
    knot_weight: Matrix
    count: Floats
    scale: Scale = "logit"
    extrapolation: Extrapolation = "extend"
    kind: Kind = "calibration"
    monotone: bool = True
    score_name: str | None = None
    label_name: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    terms: Terms | None = None

    def __post_init__(self) -> None:
        for name, choices in (("scale", Scale), ("extrapolation", Extrapolation), ("kind", Kind)):
            choice(name, getattr(self, name), get_args(choices))

    @classmethod
    def identity(cls, grid: Grid, *, scale: Scale = "logit") -> Curves:
        """The curve that changes nothing."""
        instance("grid", grid, Grid, advice="use Grid(lower=..., upper=..., step=...)")
        knots = grid.knots[None, 1:].copy()
        return cls(grid, (), ((),), knots, np.zeros_like(knots), np.zeros_like(knots), np.zeros(1), scale)

    @classmethod
    def from_histogram(
        cls,
        histogram: Histogram,
        *,
        shrinkage: Shrinkage = "auto",
        strict: bool = True,
        monotone: bool = True,
        scale: Scale | None = None,
        extrapolation: Extrapolation = "extend",
    ) -> Curves:
        """Fit the curves of a histogram: the exact optimum.

        Args:
            histogram: The rows.
            shrinkage: How strongly a curve is shrunk towards its parent: ``"auto"``, or as in
                :func:`isolayer.fitting.hierarchy.fit_levels`.
            strict: Whether every curve increases strictly (its slope is at least ``FLOOR``), or may be flat.
            monotone: Whether curves must not decrease. False is the paper's general piecewise-linear map, for scores
                whose rate is not monotone; ``strict`` then has no effect.
            scale: The scale of the scores to predict for; by default that of the histogram, if it is known.
            extrapolation: What curves do beyond the grid; see :class:`Curves`.

        >>> histogram = Histogram.from_arrays([-1.0, 0.0, 1.0], [0, 0, 1], {"device": ["tv", "tv", "web"]})
        >>> Curves.from_histogram(histogram).predict_proba([0.0, 0.5], {"device": ["tv", "unseen"]}).shape
        (2,)
        """
        instance("histogram", histogram, Histogram, advice="make it with Histogram.from_arrays or from_table")
        strict, monotone = flag("strict", strict), flag("monotone", monotone)
        choice("extrapolation", extrapolation, get_args(Extrapolation))
        if histogram.rows == 0:
            raise InputError("histogram: expected at least one row, got none; add rows")
        whole = histogram.folded()
        rows, shift = sampled_as_one(whole)
        floor = (FLOOR if strict else 0.0) if monotone else -np.inf
        levels = fit_levels(rows, shrinkage=shrinkage, floor=floor, clip=extrapolation == "clip")
        most = looked_at(whole)
        fall = clearest_fall(whole.only_cells(most), prob_of_cells(levels.table.values[0], rows.only_cells(most)))
        settings = {
            "shrinkage": [list(strength) for strength in levels.strengths],
            "chosen": isinstance(shrinkage, str),
            "strict": strict,
            "residual": levels.residual,
            "clearest_fall": None if fall is None else fall.plain(),
            "converged": levels.converged,
            "line": [levels.line.anchor, levels.line.level + shift, levels.line.slope],
        }
        read = histogram.source
        return cls(
            histogram.grid,
            histogram.contexts,
            levels.keys,
            levels.table.values.plus(shift) if isinstance(levels.table.values, Packed) else levels.table.values + shift,
            levels.table.variance,
            levels.table.knot_weight,
            levels.rows,
            scale=read.get("scale", "logit") if scale is None else scale,
            extrapolation=extrapolation,
            monotone=monotone,
            score_name=read.get("score"),
            label_name=read.get("label"),
            source={**read, "from": "fit", "rows": histogram.rows, "data": histogram.fingerprint()},
            settings=settings,
        )

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each depth in the table, and at the end the number of rows."""
        sizes = [1, *(len(keys[0]) for keys in self.keys[1:])]
        return (0, *np.cumsum(sizes).tolist())

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns of the fields that the terms need besides the contexts."""
        return tuple(name for name in (self.terms.columns if self.terms else ()) if name not in self.contexts)

    def predict_proba(self, score: ArrayLike, context: Mapping[str, Any] | Any = None) -> Floats:
        """Calibrated probability of each score.

        Args:
            score: Scores on the ``scale`` of these curves, shape ``[n]``.
            context: Context and field columns by name (a mapping or a frame), each of shape ``[n]``; without it, the
                global curve.
        """
        return prob_of(self.decision_function(score, context))

    def decision_function(self, score: ArrayLike, context: Mapping[str, Any] | Any = None) -> Floats:
        """Calibrated logit of each score."""
        logit = self._logit(score)
        base = self.evaluate(self.rows_of(context, len(logit)), logit)
        return base if self.terms is None or context is None else corrected(self.terms, base, context)

    def evaluate(self, row: Codes, logit: Floats) -> Floats:
        """Calibrated logit of raw logits, shape ``[n]``, by the curves in these rows of the table, shape ``[n]``.

        This is the base logit, before any terms of fields.
        """
        return evaluate(self.values, row, logit, self.grid, self.extrapolation)

    def deviation(self, row: Codes, logit: Floats) -> Floats:
        """Posterior standard deviation of the calibrated logit; beyond the grid, that at its end."""
        return np.sqrt(evaluate(self.variance, row, logit, self.grid, "clip"))

    def inverse(self, prob: ArrayLike, context: Mapping[str, Any] | Any = None) -> Floats:
        """The smallest score, on the ``scale`` of these curves, whose calibrated probability reaches each probability.

        So ``score >= curves.inverse(p)`` selects the rows with ``curves.predict_proba(score) >= p``. With
        ``extrapolation="clip"`` this holds for scores on the grid: clip them to it first.

        >>> Curves.identity(Grid()).inverse([0.5]).tolist()
        [0.0]
        """
        if not self.monotone:
            raise InputError("inverse: expected monotone curves, got curves that may decrease; fit with monotone=True")
        logit = logit_of(probs("prob", prob))
        if self.terms is not None and context is not None:
            logit = uncorrected(self.terms, logit, context)
        raw = invert(self.values, self.rows_of(context, len(logit)), logit, self.grid, self.extrapolation)
        return raw if self.scale == "logit" else prob_of(raw)

    def band(
        self, score: ArrayLike | None = None, context: Mapping[str, Any] | Any = None, *, level: float = 0.95
    ) -> tuple[Floats, Floats]:
        """Pointwise credible interval of the calibrated probability.

        Args:
            score: Where to give the interval, shape ``[n]``; by default at the knots of every curve.
            context: Context columns of the scores.
            level: Confidence level: the share of such intervals that should contain the true probability.

        Returns:
            Lower and upper ends, shape ``[n]``, or ``[curves, knots]`` without scores.
        """
        width = NormalDist().inv_cdf(0.5 + confidence(level) / 2)
        if score is None:
            middle, deviation = np.asarray(self.values), np.sqrt(np.asarray(self.variance, np.float64))
        else:
            logit = self._logit(score)
            row = self.rows_of(context, len(logit))
            middle, deviation = self.evaluate(row, logit), self.deviation(row, logit)
            if self.terms is not None and context is not None:
                ends = corrected_band(self.terms, middle, deviation, context, width)
                return prob_of(ends[0]), prob_of(ends[1])
        return prob_of(middle - width * deviation), prob_of(middle + width * deviation)

    def compare(self, other: Curves) -> dict[str, NDArray[Any]]:
        """By how much another release changes the probabilities of each context; see :mod:`isolayer.curves.comparison`.

        >>> one = Curves.identity(Grid())
        >>> one.compare(one)["largest"].tolist()
        [0.0]
        """
        from isolayer.curves.comparison import compare

        instance("other", other, Curves, advice="load or fit the other release")
        return compare(self, other)

    def check_sums(self, sums: Histogram) -> None:
        """Raise unless these curves were fitted to these sums, so that a day can be added to both.

        >>> day = Histogram.from_arrays([0.0, 1.0], [0, 1])
        >>> Curves.from_histogram(day).check_sums(day)
        """
        instance("sums", sums, Histogram, advice="load the sums that were written with the curves")
        theirs = {"contexts": sums.contexts, "grid": sums.grid, "scale": sums.source.get("scale", self.scale)}
        for name, value in {**theirs, "score_name": sums.source.get("score")}.items():
            if getattr(self, name) != value:
                raise InputError(
                    f"{name}: expected curves and sums of one fit, got {getattr(self, name)!r} in the curves and "
                    f"{value!r} in the sums; give the two that were written together"
                )
        if self.source.get("data") != sums.fingerprint():
            raise InputError(
                "sums: expected the sums that the curves were fitted to, got sums of other rows; give the two that "
                "were written together, or fit again"
            )

    def summary(self) -> str:
        """What was fitted, and whether the rate rises with the score at all; see :mod:`isolayer.curves.summary`."""
        from isolayer.curves.summary import summary

        return summary(self)

    def apply_table(self, table: Any, *, score: str = "score", prob: str = "calibrated_prob") -> Any:
        """A table with one more column, lazily, in its own engine; see :func:`isolayer.tables.apply.apply_table`."""
        return offered("apply_table")(self, table, score=score, prob=prob)

    def to_sql(self, dialect: str = "duckdb", *, table: str = "scores", score: str = "score") -> str:
        """One statement that calibrates a table; see :func:`isolayer.curves.export.sql.to_sql`, with more options."""
        from isolayer.curves.export.sql import to_sql

        return to_sql(self, dialect, table=table, score=score)

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write an ONNX model, compared before it is kept; see :func:`isolayer.curves.export.onnx.to_onnx`."""
        need("isolayer.curves.export.onnx").to_onnx(self, path)

    def to_layer(self) -> IsotonicLayer | ContextIsotonicLayer | FieldCurves:
        """A layer in double precision that computes the same function; see :func:`isolayer.nn.convert.to_layer`."""
        return cast("IsotonicLayer | ContextIsotonicLayer | FieldCurves", offered("to_layer")(self))

    @classmethod
    def from_layer(
        cls,
        layer: IsotonicLayer | ContextIsotonicLayer,
        *,
        like: Curves | None = None,
        names: Mapping[str, str] | None = None,
        vocabulary: Mapping[str, Sequence[Any]] | None = None,
        unit: int = 0,
    ) -> Curves:
        """The curves of a layer, with its contexts as columns; see :func:`isolayer.nn.convert.from_layer`."""
        curves = offered("from_layer")(layer, like=like, names=names, vocabulary=vocabulary, unit=unit)
        return cast("Curves", curves)

    def plot(self, context: Mapping[str, Any] | None = None, *, level: float = 0.95) -> Any:
        """Raw to calibrated probability with bands, an Altair chart; see :func:`isolayer.report.plot_curves`."""
        return offered("plot_curves")(self, context, level=level)

    def save(self, path: str | PathLike[str]) -> None:
        """Write one Parquet file, one row per curve, in one step; see :mod:`isolayer.curves.parquet_io`."""
        need("isolayer.curves.parquet_io").save_curves(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Curves:
        """Read what :meth:`save` wrote, the same to the bit."""
        return cast("Curves", need("isolayer.curves.parquet_io").load_curves(path))

    def scorer(self) -> Scorer:
        """A plain object that scores one row at a time, in microseconds; see :mod:`isolayer.curves.scorer`."""
        return cast("Scorer", need("isolayer.curves.scorer").Scorer(self))

    def rows_of(self, context: Mapping[str, Any] | Any, rows: int, *, depth: int | None = None) -> Codes:
        """Row of the table that serves each context, shape ``[rows]``: its own, or its deepest ancestor's.

        Args:
            context: Context columns by name; None for the global curve.
            rows: How many rows the columns have.
            depth: How many context columns to look at; by default all.
        """
        row = at = np.zeros(count("rows", rows, 0, advice="give the number of rows"), np.int64)
        if depth is not None:
            count("depth", depth, 0, len(self.contexts), advice="or None for all context columns")
        if context is None:
            return row
        for level, (name, values) in enumerate(columns(context, self.contexts[:depth]).items(), start=1):
            known, finder = self._finders[level - 1]
            codes = known.lookup(values, name)
            same_length(f"context {name}", len(codes), rows)
            at = finder.find(at, codes)
            row = np.where(at >= 0, self.starts[level] + at, row)
        return row

    def refuse_terms(self, what: str) -> None:
        """Raise if these curves have fields, for an operation ``what`` that does not support them."""
        if self.terms is not None:
            raise InputError(
                f"{what}: expected curves without fields, got terms of {list(self.terms.columns)}; fit without fields, "
                "or use predict_proba on rows"
            )

    def check_keys(self) -> None:
        """Raise unless every context is in the table once, and its parent too."""
        for depth, keys in enumerate(self.keys):
            if len(keys) != depth or len({len(key) for key in keys}) > 1:
                raise InputError(f"keys: expected {depth} equally long columns at depth {depth}, got others; add them")
        for _, finder in self._finders:
            if (np.diff(finder.key) == 0).any():
                raise InputError("curves: expected every context once, got one of them twice; drop one of its curves")

    @cached_property
    def _finders(self) -> tuple[tuple[KnownValues, Finder], ...]:
        """For each context column its values, and where the curves of its depth are."""
        finders = list[tuple[KnownValues, Finder]]()
        for keys in self.keys[1:]:
            parent = np.zeros(len(keys[0]), np.int64)
            for (known, finder), key in zip(finders, keys, strict=False):
                parent = finder.find(parent, known.lookup(key))
            if (parent < 0).any():
                raise InputError("curves: expected the parent of every context, got one without parent; add its curve")
            vocabulary, code = encode(keys[-1], self.contexts[len(finders)])
            finders.append((KnownValues(vocabulary), Finder(parent, code, len(vocabulary))))
        return tuple(finders)

    @cached_property
    def on_logits(self) -> Curves:
        """The same curves with logits as their scale."""
        return replace(self, scale="logit")

    def _logit(self, score: ArrayLike) -> Floats:
        if self.scale == "logit":
            return numbers("score", score)
        return logit_of(probs("score", score, advice='for logits use scale="logit"'))
