"""IsotonicCalibrator: the scikit-learn contract over histogram, solver and curves.

What an estimator must know is here: spec frames and arrays, labels, weights, forgetting. The fit itself is
:meth:`isolayer.curves.curves.Curves.from_histogram`, evaluation is :class:`isolayer.curves.curves.Curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    check_is_fitted,
    column_or_1d,
)

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Scale, logit_of
from isolayer.errors import InputError, offered
from isolayer.fitting.categories import context_names
from isolayer.fitting.columns import array_of, numbers, same_length, weights
from isolayer.fitting.frames import Rows, column_names, read_rows, refuse_missing, shares, times
from isolayer.fitting.hierarchy import Shrinkage
from isolayer.fitting.histogram import LEAST_WEIGHT, Histogram
from isolayer.grid import Grid

Floats = NDArray[np.float64]


class IsotonicCalibrator(TransformerMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrate scores by one monotone curve a context: exact, in seconds, with nothing to tune.

    Args:
        contexts: Names of the context columns, coarse to fine. Each level of contexts is drawn to the one above it and
            the global curve to the identity; a context never seen has the curve of its nearest ancestor.
        scale: Whether scores are logits (``"logit"``, any real number) or probabilities (``"prob"``).
        grid: Where the knots of the curves are, on the logit scale; by default ``Grid()``.
        shrinkage: ``"auto"`` chooses how strongly curves are drawn to their parent; numbers fix it (see
            :func:`isolayer.fitting.hierarchy.fit_levels`).
        strict: Curves increase strictly, so that no two scores tie; False allows flats.
        missing: ``"error"`` refuses missing context values, ``"own"`` makes missing a context of its own.
        negative_rate: Share of the negatives that was kept when rows were sampled, a number in (0, 1] or the name of a
            column of such; the same as weighting negatives by its inverse.
        half_life: How fast old rows are forgotten: a number of rows, or a pair of a time column and a half-life in its
            units (a ``timedelta`` for datetimes). None forgets nothing.

    A frame (pandas, polars, pyarrow, or a dict of columns) has the context columns and one column more, the score; if
    there are others, the score is the one called ``score``. An array, ``[n]`` or ``[n, 1]``, is scores only.

    Attributes:
        curves_: The fitted :class:`Curves`.
        histogram_: The sums of all rows seen; all that :meth:`partial_fit` keeps.
        classes_: The two labels, the positive one last.

    >>> frame = {"score": [-1.0, 0.0, 1.0] * 100, "device": ["tv", "tv", "web"] * 100}
    >>> calibrator = IsotonicCalibrator(contexts=("device",)).fit(frame, [0, 1, 1, 0, 0, 1] * 50)
    >>> calibrator.predict_proba({"score": [0.0], "device": ["radio"]}).round(1).tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self,
        contexts: Sequence[str] = (),
        *,
        scale: Scale = "logit",
        grid: Grid | None = None,
        shrinkage: Shrinkage = "auto",
        strict: bool = True,
        missing: str = "error",
        negative_rate: float | str | None = None,
        half_life: float | tuple[str, float | timedelta] | None = None,
    ) -> None:
        self.contexts = contexts
        self.scale = scale
        self.grid = grid
        self.shrinkage = shrinkage
        self.strict = strict
        self.missing = missing
        self.negative_rate = negative_rate
        self.half_life = half_life

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, *, score: str | None = None) -> Self:
        """Fit the curves, forgetting whatever was fitted before.

        Args:
            X: Scores ``[n]`` or ``[n, 1]``, or a frame with the score and the context columns.
            y: Labels of two classes: integers, booleans or strings; the greater is the positive one. Fractions between
                0 and 1 are soft labels: that much of a positive row and the rest of a negative one.
            sample_weight: How often each row counts.
            score: The score column of a frame; by default the one called ``score``, or else the only one left.
        """
        self._check_settings()
        rows = self._rows_to_fit(X, score, first=True)
        labels = self._labels(y, None, len(rows.score))
        self.histogram_, self._latest = self._histogram(rows, labels, sample_weight, latest=None)
        _refuse_one_class(self.histogram_)
        return self._refit()

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        score: str | None = None,
    ) -> Self:
        """Add rows: the same curves as one fit of all rows so far.

        Args:
            X: As in :meth:`fit`.
            y: As in :meth:`fit`; may hold one class only when ``classes`` are known.
            classes: The two labels; needed at the first call only if its rows hold one of them.
            sample_weight: As in :meth:`fit`.
            score: As in :meth:`fit`; later calls read the same column.
        """
        self._check_settings()
        first = not hasattr(self, "histogram_")
        rows = self._rows_to_fit(X, score, first=first)
        labels = self._labels(y, classes if first else self.classes_, len(rows.score))
        latest = None if first else self._latest
        new, self._latest = self._histogram(rows, labels, sample_weight, latest=latest)
        self.histogram_ = new if first else self._aged(rows, latest).merge(new)
        return self._refit()

    def fit_histogram(self, histogram: Histogram, classes: ArrayLike = (0, 1)) -> Self:
        """Fit the curves of a histogram made elsewhere, which may come from soft labels.

        Args:
            histogram: Sums over the context columns of this estimator, logits on its grid.
            classes: The two labels, the positive one last.
        """
        self._check_settings()
        expected = (tuple(self.contexts), self.grid or Grid())
        if (histogram.contexts, histogram.grid) != expected:
            raise InputError(
                f"histogram: expected contexts {expected[0]} on {expected[1]}, got {histogram.contexts} on "
                f"{histogram.grid}; make it with the settings of the calibrator"
            )
        self.classes_ = np.asarray(classes)
        self._remember(None, None)
        self.n_features_in_ = 1 + len(histogram.contexts)
        self.histogram_, self._latest = histogram, None
        return self._refit()

    def fit_table(
        self,
        table: Any,
        score: str = "score",
        label: str = "label",
        weight: str | None = None,
        *,
        on_bad_rows: Literal["error", "drop"] = "error",
    ) -> Self:
        """Fit the curves of a table in the engine that holds it: only the histogram leaves it.

        The same curves as :meth:`fit` on the same rows. Labels are numbers in [0, 1] or booleans.

        Args:
            table: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
            score: The score column.
            label: The label column.
            weight: A column of weights.
            on_bad_rows: Whether rows that cannot be used are an error that counts them, or are left out with a
                warning; ``dropped_rows_`` says how many of each kind.
        """
        self._check_settings()
        from isolayer.tables.histogram_query import ColumnSpec, histogram_of

        if self.half_life is not None and not isinstance(self.half_life, tuple):
            raise InputError(
                f"half_life: expected a time column and a length, got {self.half_life} rows; a table has no order"
            )
        spec = ColumnSpec(
            tuple(self.contexts),
            score,
            label,
            weight,
            self.scale,
            self.grid or Grid(),
            missing=self.missing,
            negative_rate=self.negative_rate,
            half_life=self.half_life,
        )
        histogram, self.dropped_rows_ = histogram_of(table, spec, on_bad_rows=on_bad_rows)
        if histogram.rows == 0:
            raise InputError("table: expected at least one row that weighs something, got no rows; check what made it")
        _refuse_one_class(histogram)
        self.fit_histogram(histogram).score_name_ = score
        return self

    def apply_table(self, table: Any, score: str | None = None, *, prob: str = "calibrated_prob") -> Any:
        """A table with one more column, the calibrated probability; see :meth:`Curves.apply_table`.

        Args:
            table: As in :meth:`fit_table`.
            score: The score column; by default the one that was fitted.
            prob: What to call the new column.
        """
        check_is_fitted(self, "curves_")
        return self.curves_.apply_table(table, score=score or self.score_name_ or "score", prob=prob)

    def predict_proba(self, X: Any) -> Floats:
        """Probability of each class, shape ``[n, 2]``, strictly inside (0, 1)."""
        check_is_fitted(self, "curves_")
        rows = self._rows(X)
        positive = self._curves_on_logits.predict_proba(rows.score, rows.context)
        return np.column_stack([1 - positive, positive])

    def decision_function(self, X: Any) -> Floats:
        """Calibrated logit of the positive class, shape ``[n]``."""
        check_is_fitted(self, "curves_")
        rows = self._rows(X)
        return self._curves_on_logits.decision_function(rows.score, rows.context)

    def predict(self, X: Any) -> NDArray[Any]:
        """The more probable class of each row, shape ``[n]``."""
        positive = self.decision_function(X) > 0
        return np.asarray(self.classes_[positive.astype(np.int64)])

    def transform(self, X: Any) -> Floats:
        """Probability of the positive class as one column, shape ``[n, 1]``."""
        return self.predict_proba(X)[:, 1:]

    def get_feature_names_out(self, input_features: object = None) -> NDArray[Any]:
        """Name of the column that :meth:`transform` makes."""
        check_is_fitted(self, "curves_")
        return np.array(["calibrated_prob"], dtype=object)

    def band(self, X: Any, level: float = 0.95) -> tuple[Floats, Floats]:
        """Pointwise interval of each row's calibrated probability: lower and upper ends, each of shape ``[n]``."""
        check_is_fitted(self, "curves_")
        rows = self._rows(X)
        return self._curves_on_logits.band(rows.score, rows.context, level=level)

    def report(self, path: str | PathLike[str], *, title: str | None = None) -> Path:
        """Write a page about the fit on its own rows; :func:`isolayer.report.write` judges it on others."""
        check_is_fitted(self, "curves_")
        return Path(offered("write_fitted")(path, self.histogram_, self.curves_, title=title))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False  # of two dimensions, one column at most
        return tags

    @property
    def _curves_on_logits(self) -> Curves:
        """The curves, asked about the logits that rows were read into."""
        curves: Curves = self.curves_
        return curves if curves.scale == "logit" else curves.on_logits

    def _check_settings(self) -> None:
        context_names(self.contexts)
        for name, allowed in (("scale", ("logit", "prob")), ("missing", ("error", "own"))):
            if getattr(self, name) not in allowed:
                choices = " or ".join(f'"{choice}"' for choice in allowed)
                raise InputError(f"{name}: expected {choices}, got {getattr(self, name)!r}; choose one")
        rate, life = self.negative_rate, self.half_life
        if isinstance(rate, int | float) and not 0 < rate <= 1:
            raise InputError(f"negative_rate: expected a share in (0, 1], got {rate}; give the kept share of negatives")
        length = life[1] if isinstance(life, tuple) else life
        if isinstance(length, timedelta):
            length = length.total_seconds()
        if length is not None and not length > 0:
            raise InputError(f"half_life: expected a positive length, got {length}; None forgets nothing")

    def _refit(self) -> Self:
        self.curves_ = Curves.from_histogram(
            self.histogram_, shrinkage=self.shrinkage, strict=self.strict, scale=self.scale
        )
        return self

    def _rows_to_fit(self, X: Any, score: str | None, *, first: bool) -> Rows:
        """Read X for a fit; the first one says which columns there are."""
        if not first and score is None and column_names(X) is not None:
            score = self.score_name_
        rows = self._read(X, score, self._other_columns())
        if first:
            self._remember(rows.names, rows.score_name)
        return rows

    def _rows(self, X: Any) -> Rows:
        """Read X for a prediction; of a frame, the columns that were fitted."""
        names = column_names(X)
        if names is None:
            return self._read(X, None, [])
        other = [name for name in self._other_columns() if name in names]
        return self._read(X, self.score_name_, other)

    def _read(self, X: Any, score: str | None, other: Sequence[str]) -> Rows:
        """Read X, its scores as logits."""
        rows = read_rows(X, self.contexts, scale=self.scale, score=score, other=other)
        if self.missing == "error":
            refuse_missing(rows.context)
        return rows if self.scale == "logit" else rows._replace(score=logit_of(rows.score))

    def _remember(self, names: Sequence[str] | None, score: str | None) -> None:
        self.n_features_in_, self.score_name_ = 1 if names is None else len(names), score
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _other_columns(self) -> list[str]:
        """Columns that are neither a context nor the score."""
        rate, life = self.negative_rate, self.half_life
        return [*([rate] if isinstance(rate, str) else []), *([life[0]] if isinstance(life, tuple) else [])]

    def _labels(self, y: ArrayLike, classes: ArrayLike | None, rows: int) -> Floats:
        """The positive class as 1 and the negative as 0, or soft labels between; sets ``classes_``."""
        labels = column_or_1d(_unmasked_labels(y), warn=True)
        same_length("y", len(labels), rows)
        assert_all_finite(labels, input_name="y")
        if _are_soft(labels) and (classes is None or np.unique(np.asarray(classes)).tolist() == [0, 1]):
            self.classes_ = np.array([0, 1])
            return np.asarray(labels, np.float64)
        check_classification_targets(labels)
        found = np.unique(labels)
        known = found if classes is None else np.unique(np.asarray(classes))
        if len(known) > 2:
            raise InputError(
                f"y: expected two classes, got {len(known)}: {known[:5].tolist()}; fit one calibrator per class. "
                f"Only binary classification is supported. The type of the target is {type_of_target(labels)}."
            )
        if len(known) < 2:
            raise InputError(
                f"y: expected two classes, got one class only: {known.tolist()}; collect rows of both, or give "
                "partial_fit its classes"
            )
        if not np.isin(found, known).all():
            raise InputError(f"y: expected the classes {known.tolist()}, got {found.tolist()}; fit anew for others")
        self.classes_ = known
        return np.asarray(labels == known[1], np.float64)

    def _histogram(
        self, rows: Rows, labels: Floats, sample_weight: ArrayLike | None, *, latest: float | None
    ) -> tuple[Histogram, float | None]:
        """Sums of new rows, weighted and aged, and the latest time seen so far."""
        weight = None
        if sample_weight is not None:
            weight = weights("sample_weight", sample_weight, len(labels))
        if self.negative_rate is not None:
            weight = np.where(labels == 0, 1 / self._rate(rows), 1.0) * (1.0 if weight is None else weight)
        if self.half_life is not None:
            age, latest = self._ages(rows, latest)
            weight = np.exp2(-age) * (1.0 if weight is None else weight)
        grid = self.grid or Grid()
        histogram = Histogram.from_arrays(rows.score, labels, rows.context, weight, grid=grid)
        known = {} if rows.score_name is None else {"score": rows.score_name}
        return replace(histogram, source={"scale": self.scale, **known}), latest

    def _rate(self, rows: Rows) -> Floats:
        """Kept share of the negatives, one number or one a row."""
        rate = self.negative_rate
        values = numbers(rate, rows.other[rate]) if isinstance(rate, str) else np.array([rate], np.float64)
        return shares("negative_rate", values)

    def _ages(self, rows: Rows, latest: float | None) -> tuple[Floats, float | None]:
        """Age of each new row in half-lives, and the latest time seen so far (None when age counts rows)."""
        if not isinstance(self.half_life, tuple):
            return np.arange(len(rows.score) - 1, -1, -1) / float(self.half_life or np.inf), None
        when, half_life = times(self.half_life[0], rows.other[self.half_life[0]], self.half_life[1])
        newest = max(float(when.max(initial=-np.inf)), -np.inf if latest is None else latest)
        return (newest - when) / half_life, newest

    def _aged(self, rows: Rows, latest: float | None) -> Histogram:
        """What was seen before, as old as the new rows make it."""
        if self.half_life is None:
            return self.histogram_
        if isinstance(self.half_life, tuple):
            _, half_life = times(self.half_life[0], rows.other[self.half_life[0]], self.half_life[1])
            age = 0.0 if latest is None or self._latest is None else (self._latest - latest) / half_life
        else:
            age = len(rows.score) / self.half_life
        return self.histogram_.scaled(max(float(np.exp2(-age)), LEAST_WEIGHT))


def _unmasked_labels(y: Any) -> NDArray[Any]:
    """Labels of any type that can be a class: not masked, and neither dates nor complex numbers."""
    if y is None:
        raise InputError("y: expected labels, got None; fit requires y to be passed, but the target y is None")
    labels = array_of("y", y)
    if labels.dtype.kind not in "biufUO":
        raise InputError(f"y: expected integers, booleans or strings, got {labels.dtype}; convert the labels")
    return labels


def _are_soft(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind == "f" and bool(((labels >= 0) & (labels <= 1)).all() and (labels % 1 > 0).any())


def _refuse_one_class(histogram: Histogram) -> None:
    """Raise when the rows that weigh anything are of one class."""
    positive, weight = histogram.positive.sum(), histogram.weight.sum()
    if not 0 < positive < weight:
        raise InputError(
            "y: expected both classes among the rows whose weight is not zero, got one only; collect rows of both"
        )
