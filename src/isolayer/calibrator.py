"""IsotonicCalibrator: the scikit-learn contract over histogram, solver and curves.

What an estimator must know is here: spec frames and arrays, labels, weights, forgetting. The fit itself is
:meth:`isolayer.curves.curves.Curves.from_histogram`, evaluation is :class:`isolayer.curves.curves.Curves`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from isolayer.curves.curves import Curves, Scale, logit_of
from isolayer.errors import InputError, offered
from isolayer.fitting.categories import context_names
from isolayer.fitting.frames import column, column_names, numbers, refuse_missing, shares, times
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

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the curves, forgetting whatever was fitted before.

        Args:
            X: Scores ``[n]`` or ``[n, 1]``, or a frame with the score and the context columns.
            y: Labels of two classes: integers, booleans or strings; the greater is the positive one.
            sample_weight: How often each row counts.
        """
        self._check_settings()
        rows = self._rows(X, reset=True)
        labels = self._labels(y, None, len(rows.logit))
        self.histogram_, self._latest = self._histogram(rows, labels, sample_weight, latest=None)
        _refuse_one_class(self.histogram_)
        return self._refit()

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Add rows: the same curves as a fit of all rows so far in one go.

        Args:
            X: As in :meth:`fit`.
            y: As in :meth:`fit`; may hold one class only when ``classes`` are known.
            classes: The two labels; needed at the first call only if its rows hold one of them.
            sample_weight: As in :meth:`fit`.
        """
        self._check_settings()
        first = not hasattr(self, "histogram_")
        rows = self._rows(X, reset=first)
        labels = self._labels(y, classes if first else self.classes_, len(rows.logit))
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
        return self.fit_histogram(histogram)

    def apply_table(self, table: Any, score: str = "score", *, prob: str = "calibrated_prob") -> Any:
        """A table with one more column, the calibrated probability; see :meth:`Curves.apply_table`."""
        check_is_fitted(self, "curves_")
        return self.curves_.apply_table(table, score=score, prob=prob)

    def predict_proba(self, X: Any) -> Floats:
        """Probability of each class, shape ``[n, 2]``, strictly inside (0, 1)."""
        check_is_fitted(self, "curves_")
        rows = self._rows(X, reset=False)
        positive = self._curves_on_logits.predict_proba(rows.logit, rows.context)
        return np.column_stack([1 - positive, positive])

    def decision_function(self, X: Any) -> Floats:
        """Calibrated logit of the positive class, shape ``[n]``."""
        check_is_fitted(self, "curves_")
        rows = self._rows(X, reset=False)
        return self._curves_on_logits.decision_function(rows.logit, rows.context)

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
        rows = self._rows(X, reset=False)
        return self._curves_on_logits.band(level, rows.logit, rows.context)

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

    def _rows(self, X: Any, *, reset: bool) -> _Rows:
        """Read X; at a fit (``reset``) remember its columns, otherwise hold it against those."""
        names = column_names(X)
        if names is None:
            if self._named():
                raise InputError(
                    f"X: expected a frame with the columns {self._named()}, got an array; give a frame or a dict"
                )
            scores = self._scores(X, reset=reset)
        else:
            scores = numbers("score", column(X, self._score_name(names)))
            if reset:
                self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        context = {name: column(X, name) for name in self.contexts}
        if self.missing == "error":
            refuse_missing(context)
        return _Rows(self._logits(scores), context, X if names is not None else {})

    def _scores(self, X: Any, *, reset: bool) -> Floats:
        """Scores of an array ``[n]`` or ``[n, 1]``."""
        array = check_array(X, accept_sparse=False, ensure_2d=False, dtype=np.float64, input_name="X", estimator=self)
        if array.ndim != 1 and array.shape[1:] != (1,):
            raise InputError(f"X: expected scores of shape [n] or [n, 1], got {array.shape}; give one column of scores")
        if reset:
            self.n_features_in_ = 1
            self.__dict__.pop("feature_names_in_", None)
        return np.asarray(array.reshape(-1))

    def _named(self) -> list[str]:
        """Columns with a meaning of their own; the score is none of these."""
        rate, life = self.negative_rate, self.half_life
        return [
            *self.contexts,
            *([rate] if isinstance(rate, str) else []),
            *([life[0]] if isinstance(life, tuple) else []),
        ]

    def _score_name(self, names: list[str]) -> str:
        rest = [name for name in names if name not in self._named()]
        if "score" in rest or len(rest) == 1:
            return "score" if "score" in rest else rest[0]
        raise InputError(
            f"X: expected one column besides {self._named()}, or one called 'score', got {rest}; select the columns"
        )

    def _logits(self, scores: Floats) -> Floats:
        if self.scale == "logit":
            return scores
        good = (scores >= 0) & (scores <= 1)
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise InputError(
                f'score: expected probabilities in [0, 1], got {scores[row]} in row {row}; for logits use scale="logit"'
            )
        return logit_of(scores)

    def _labels(self, y: ArrayLike, classes: ArrayLike | None, rows: int) -> Floats:
        """1 where y is the positive class; sets ``classes_``."""
        labels = column_or_1d(y, warn=True)
        check_consistent_length(np.empty(rows), labels)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        found = np.unique(labels)
        known = found if classes is None else np.unique(np.asarray(classes))
        if len(known) > 2:
            raise InputError(
                f"y: expected two classes, got {len(known)}: {known[:5].tolist()}; fit one calibrator a class. "
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
        self, rows: _Rows, labels: Floats, sample_weight: ArrayLike | None, *, latest: float | None
    ) -> tuple[Histogram, float | None]:
        """Sums of new rows, weighted and aged, and the latest time seen so far."""
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, labels, dtype=np.float64)
        if self.negative_rate is not None:
            weight = np.where(labels == 0, 1 / self._rate(rows), 1.0) * (1.0 if weight is None else weight)
        if self.half_life is not None:
            age, latest = self._ages(rows, latest)
            weight = np.exp2(-age) * (1.0 if weight is None else weight)
        grid = self.grid or Grid()
        return Histogram.from_arrays(rows.logit, labels, rows.context, weight, grid=grid), latest

    def _rate(self, rows: _Rows) -> Floats:
        """Kept share of the negatives, one number or one a row."""
        rate = self.negative_rate
        values = numbers(rate, column(rows.frame, rate)) if isinstance(rate, str) else np.array([rate], np.float64)
        return shares("negative_rate", values)

    def _ages(self, rows: _Rows, latest: float | None) -> tuple[Floats, float | None]:
        """Age of each new row in half-lives, and the latest time seen so far (None when age counts rows)."""
        if not isinstance(self.half_life, tuple):
            return np.arange(len(rows.logit) - 1, -1, -1) / float(self.half_life or np.inf), None
        when, half_life = times(rows.frame, *self.half_life)
        newest = max(float(when.max(initial=-np.inf)), -np.inf if latest is None else latest)
        return (newest - when) / half_life, newest

    def _aged(self, rows: _Rows, latest: float | None) -> Histogram:
        """What was seen before, as old as the new rows make it."""
        if self.half_life is None:
            return self.histogram_
        if isinstance(self.half_life, tuple):
            _, half_life = times(rows.frame, *self.half_life)
            age = 0.0 if latest is None or self._latest is None else (self._latest - latest) / half_life
        else:
            age = len(rows.logit) / self.half_life
        return self.histogram_.scaled(max(float(np.exp2(-age)), LEAST_WEIGHT))


class _Rows(NamedTuple):
    """Rows as they were read: logits ``[n]``, context columns by name, and the frame for whatever else is in it."""

    logit: Floats
    context: Mapping[str, Any]
    frame: Any


def _refuse_one_class(histogram: Histogram) -> None:
    """Raise when the rows that weigh anything are of one class."""
    positive, weight = histogram.positive.sum(), histogram.weight.sum()
    if not 0 < positive < weight:
        raise InputError("sample_weight: expected rows of each class to weigh something, got one class only; check it")
