"""IsotonicCalibrator: the scikit-learn contract over histogram, solver and curves.

How its settings read rows is in :mod:`isolayer.calibrator_rows`. The fit itself is
:meth:`isolayer.curves.curves.Curves.from_histogram`, evaluation is :class:`isolayer.curves.curves.Curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from isolayer.calibrator_rows import RowReader
from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Scale
from isolayer.curves.field_log import fitted_sums
from isolayer.curves.fielded import with_fields, with_updated_fields
from isolayer.curves.fit_checks import (
    refuse_beyond_grid,
    refuse_worse_than_constant,
    warn_of_probs,
    warn_of_reversal,
)
from isolayer.curves.notebook import CalibratorForm
from isolayer.errors import InputError, offered
from isolayer.fitting.combinations import Interactions, Name
from isolayer.fitting.evidence import WeightKind
from isolayer.fitting.forgetting import HalfLife
from isolayer.fitting.frames import Rows
from isolayer.fitting.hierarchy import Shrinkage
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.labels import refuse_one_class, two_classes, two_labels
from isolayer.fitting.terms import Terms
from isolayer.grid import Grid
from isolayer.settings import instance

Floats = NDArray[np.float64]


class IsotonicCalibrator(CalibratorForm, RowReader, TransformerMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrate scores by one monotone curve per context: exact, in seconds, with nothing to tune.

    Args:
        contexts: Names of the context columns, coarse to fine. Each curve is shrunk towards the curve of its parent,
            and the global curve towards the identity; a context never seen has the curve of its nearest ancestor.
        fields: Names of further columns, or ``"all"`` for every column of the frame that has no other meaning. They are
            crossed, not nested: the value of each corrects the logit of the curve, and combinations are added if the
            data give evidence for them. Numbers, text, booleans, dates and missing values are handled by their type.
        interactions: How many combinations of fields to find at most: ``"auto"``, 0 for none, or a number. Or a list of
            those to add, whatever their evidence: ``[("hour", "device")]``; with ``"auto"`` or a number in it, others
            are searched for.
        without: Fields and combinations to leave out: fields by their name, and combinations as tuples, such as
            ``[("hour", "device")]``, with every combination that contains them.
        audit_only: Columns that must be audited but never used for correction, such as protected ones: ``fields="all"``
            leaves them out, and the curves remember them for :func:`isolayer.audit`.
        structure: Curves of an earlier fit with fields, or their ``terms``. Their fields, bins and combinations are
            kept, and so are the values of frozen terms, as in ``structure=curves.terms.freeze("hour")``; all other
            values are fitted to the new rows.
        scale: Whether scores are logits (``"logit"``, any real number) or probabilities (``"prob"``).
        grid: Where the knots of the curves are, on the logit scale. ``"auto"`` places them at round numbers, from two
            standard deviations below the smallest score of the first fit to two above the largest; ``curves_.grid``
            says where. Outside it probabilities stay as at its ends; outside a given grid curves continue with slope 1.
        shrinkage: ``"auto"`` chooses how strongly curves are shrunk towards their parent; numbers fix it (see
            :func:`isolayer.fitting.hierarchy.fit_levels`).
        strict: Whether curves increase strictly, so that no two scores tie; False allows flat parts.
        monotone: Whether curves never decrease. False fits general piecewise-linear curves, for scores whose rate falls
            over some range: the model is wrong there, and :meth:`summary` says where.
        missing: ``"error"`` refuses missing context values, ``"own"`` makes missing a context of its own.
        negative_rate: Share of the negatives that was kept when rows were sampled: a number in (0, 1], or a column with
            at most 100 distinct rates. The curves and bands are those of the kept rows, shifted by log(rate).
        weight_kind: Meaning of sample weights. ``"frequency"``: a weight of 2 is the row twice, as in an aggregated
            log. ``"importance"``: how much a row should represent; each context then counts as its effective number of
            rows, (sum w)^2 / sum w^2, and multiplying all weights by a constant changes nothing.
        half_life: How fast old rows are forgotten: a number of rows, or a pair of a time column and a half-life in its
            units (a ``timedelta`` for datetimes). None forgets nothing.

    A frame (pandas, polars, pyarrow, or a dict of columns) contains the context columns and the score, which is the
    column called ``score`` if there are others. An array, ``[n]`` or ``[n, 1]``, contains scores only.

    Attributes:
        curves_: The fitted :class:`Curves`.
        histogram_: The sums of all rows seen; all that :meth:`partial_fit` keeps.
        classes_: The two labels, the positive one last.
        fields_: Names of the field columns.

    >>> frame = {"score": [-1.0, 0.0, 1.0] * 100, "device": ["tv", "tv", "web"] * 100}
    >>> calibrator = IsotonicCalibrator(contexts=("device",)).fit(frame, [0, 1, 1, 0, 0, 1] * 50)
    >>> calibrator.predict_proba({"score": [0.0], "device": ["radio"]}).round(1).tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self,
        contexts: Sequence[str] = (),
        *,
        fields: Sequence[str] | str = (),
        interactions: Interactions = "auto",
        without: Sequence[Name] = (),
        audit_only: Sequence[str] = (),
        structure: Curves | Terms | None = None,
        scale: Scale = "logit",
        grid: Grid | Literal["auto"] = "auto",
        shrinkage: Shrinkage = "auto",
        strict: bool = True,
        monotone: bool = True,
        missing: str = "error",
        negative_rate: float | str | None = None,
        weight_kind: WeightKind = "frequency",
        half_life: HalfLife | None = None,
    ) -> None:
        self.contexts = contexts
        self.fields = fields
        self.interactions = interactions
        self.without = without
        self.audit_only = audit_only
        self.structure = structure
        self.scale = scale
        self.grid = grid
        self.shrinkage = shrinkage
        self.strict = strict
        self.monotone = monotone
        self.missing = missing
        self.negative_rate = negative_rate
        self.weight_kind = weight_kind
        self.half_life = half_life

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, *, score: str | None = None) -> Self:
        """Fit the curves, forgetting whatever was fitted before.

        Args:
            X: Scores ``[n]`` or ``[n, 1]``, or a frame with the score and the context columns.
            y: Labels of two classes: integers, booleans or strings; the greater one is the positive class. Fractions
                between 0 and 1 are soft labels: that share of a positive row and the rest of a negative one.
            sample_weight: Weight of each row; ``weight_kind`` says what weights mean.
            score: The score column of a frame; by default the one called ``score``, or else the only one left.
        """
        self._check_settings()
        rows = self._rows_to_fit(X, self._choose_fields(X, score), first=True)
        labels, self.classes_ = two_classes(y, None, len(rows.score))
        weight, self._latest = self._weights(rows, sample_weight, latest=None)
        self.histogram_ = self._histogram(rows, labels, weight, placed=None)
        refuse_one_class(self.histogram_)
        return self._refit()._fit_fields(rows, labels, weight)

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        score: str | None = None,
    ) -> Self:
        """Add rows; the curves are the same as after one fit of all rows so far.

        With fields, the curves are those of all rows, and the fields, their bins and the combinations are those of the
        first call; new rows update the terms from where earlier rows left them (see
        :mod:`isolayer.fitting.field_updates`).

        Args:
            X: As in :meth:`fit`.
            y: As in :meth:`fit`; may hold one class only when ``classes`` are known.
            classes: The two labels; needed at the first call only if its rows hold one of them.
            sample_weight: As in :meth:`fit`.
            score: As in :meth:`fit`; later calls read the same column.
        """
        self._check_settings()
        first = not hasattr(self, "histogram_")
        score = self._choose_fields(X, score) if first else score
        rows = self._rows_to_fit(X, score, first=first)
        labels, self.classes_ = two_classes(y, classes if first else self.classes_, len(rows.score))
        latest = None if first else self._latest
        weight, self._latest = self._weights(rows, sample_weight, latest=latest)
        new = self._histogram(rows, labels, weight, placed=None if first else self.histogram_.grid)
        if first:
            self.histogram_ = new
            return self._refit()._fit_fields(rows, labels, weight)
        before, aged = self.curves_, self._aged(rows, latest)
        kept = float(aged.weight.sum() / self.histogram_.weight.sum())
        self.histogram_ = aged.merge(new)
        return self._refit()._update_fields(before, rows, labels, weight, kept)

    def fit_histogram(self, histogram: Histogram, classes: ArrayLike = (0, 1)) -> Self:
        """Fit the curves of a histogram made elsewhere, which may come from soft labels.

        Args:
            histogram: Sums over the context columns of this estimator, logits on its grid.
            classes: The two labels, the positive one last.
        """
        self._check_settings()
        if len(self.fields):
            raise InputError(f"fields: expected none, since a histogram has no fields, got {self.fields!r}; use fit")
        instance("histogram", histogram, Histogram, advice="make it with Histogram.from_arrays or from_table")
        expected = (tuple(self.contexts), histogram.grid if isinstance(self.grid, str) else self.grid)
        if (histogram.contexts, histogram.grid) != expected:
            raise InputError(
                f"histogram: expected contexts {expected[0]} on {expected[1]}, got {histogram.contexts} on "
                f"{histogram.grid}; make it with the settings of the calibrator"
            )
        kind = histogram.source.get("weight_kind", self.weight_kind)
        if kind != self.weight_kind:
            kinds = f"expected that of the calibrator, {self.weight_kind!r}, got a histogram of {kind!r} weights"
            raise InputError(f"weight_kind: {kinds}; use the same for both")
        two_labels(classes)
        return self._fit_sums(replace(histogram, source={**histogram.source, "weight_kind": kind}), classes)

    def fit_table(
        self,
        table: Any,
        score: str = "score",
        label: str = "label",
        weight: str | None = None,
        *,
        on_bad_rows: Literal["error", "drop"] = "error",
    ) -> Self:
        """Fit the curves to a table inside the engine that holds it; only the histogram leaves the engine.

        The curves are the same as those of :meth:`fit` on the same rows. Labels are numbers in [0, 1] or booleans. With
        fields, a sample of at most about 300,000 rows leaves the engine to choose the terms (none if there is a
        ``structure``), and sums over all rows fit them (see :mod:`isolayer.tables.field_fit`). ``scans_`` says how
        often the table was scanned.

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
        from isolayer.tables.sources import Scans

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
            self.grid,
            missing=self.missing,
            negative_rate=self.negative_rate,
            half_life=self.half_life,
            weight_kind=self.weight_kind,
        )
        with Scans() as scans:
            histogram, self.dropped_rows_ = histogram_of(table, spec, on_bad_rows=on_bad_rows)
            if histogram.rows == 0:
                raise InputError("table: expected a row with a positive weight, got none; check how it was made")
            refuse_one_class(histogram)
            self._fit_sums(histogram).score_name_ = score
            if len(self.fields):
                self._fit_table_fields(table, spec)
        self.scans_ = scans.count
        return self

    def _fit_table_fields(self, table: Any, spec: Any) -> None:
        """Add the terms of the fields of a table to the curves."""
        from isolayer.tables.field_fit import fit_table_fields
        from isolayer.tables.field_log import table_sums
        from isolayer.tables.field_rows import field_columns

        self._settle_fields(field_columns(table, spec, self.fields))
        if self.fields_:
            settings = self._term_settings()
            self.curves_: Curves = fit_table_fields(self.curves_, table, spec, self.fields_, **settings).curves
            self._forget_left_out()
            self._corrected = table_sums(self.curves_, table, replace(spec, grid=self.curves_.grid))

    def apply_table(self, table: Any, score: str | None = None, *, prob: str = "calibrated_prob") -> Any:
        """A table with one more column, the calibrated probability; see :meth:`Curves.apply_table`.

        Args:
            table: As in :meth:`fit_table`.
            score: The score column; by default the one that was fitted.
            prob: What to call the new column.
        """
        check_is_fitted(self, "curves_")
        named = (self.score_name_ or "score") if score is None else score
        return self.curves_.apply_table(table, score=named, prob=prob)

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

    def summary(self) -> str:
        """A description of the fit, and a test of whether the rate rises with the score at all.

        >>> score = np.linspace(-2, 2, 4000)
        >>> label = np.random.default_rng(0).random(4000) < 0.5 - 0.2 * np.abs(score)  # rare at both ends
        >>> "the event becomes rarer as the score rises" in IsotonicCalibrator().fit(score, label).summary()
        True
        """
        check_is_fitted(self, "curves_")
        return str(self.curves_.summary())

    def report(self, path: str | PathLike[str], *, title: str | None = None) -> Path:
        """Write a page about the fit on its own rows; :func:`isolayer.report.write` judges it on others.

        With fields after :meth:`partial_fit`, the page is about the rows of the latest call, because the sums of
        earlier rows do not include the fields.

        Args:
            path: The file to write.
            title: Heading of the page.
        """
        check_is_fitted(self, "curves_")
        sums = self.histogram_ if self.curves_.terms is None else self._corrected
        return Path(offered("write_fitted")(path, sums, self.curves_, title=title))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False  # apart from [n, 1]
        return tags

    @property
    def _curves_on_logits(self) -> Curves:
        """The curves as functions of logits, into which the scores of all rows are converted."""
        curves: Curves = self.curves_
        return curves if curves.scale == "logit" else curves.on_logits

    def _fit_sums(self, histogram: Histogram, classes: ArrayLike = (0, 1)) -> Self:
        """Fit the curves of sums, without fields."""
        self.classes_, self.fields_ = np.asarray(classes), tuple[str, ...]()
        self._remember(None, None)
        self.n_features_in_ = 1 + len(histogram.contexts)
        self.histogram_, self._latest = histogram, None
        return self._refit()

    def _refit(self) -> Self:
        settings: dict[str, Any] = {"strict": self.strict, "monotone": self.monotone, "scale": self.scale}
        settings["extrapolation"] = "clip" if isinstance(self.grid, str) else "extend"
        curves = Curves.from_histogram(self.histogram_, shrinkage=self.shrinkage, **settings)
        if self.scale == "logit":
            warn_of_probs(self.histogram_, stacklevel=3)
        refuse_beyond_grid(self.histogram_)
        warn_of_reversal(curves, stacklevel=3)
        if isinstance(self.shrinkage, str):  # with fixed numbers, the user decides how far curves follow the data
            refuse_worse_than_constant(curves, self.histogram_)
        self.curves_ = self._remembering(curves)
        return self

    def _fit_fields(self, rows: Rows, labels: Floats, weight: Floats | None) -> Self:
        """Add the terms of the fields to the curves."""
        if self.fields_:
            given = self._labelled(rows, labels, weight)
            self.curves_ = with_fields(self.curves_, given, self.fields_, **self._term_settings())
            self._forget_left_out()
            self._corrected = fitted_sums(self.curves_, given._replace(weight=weight))
        return self

    def _update_fields(self, before: Curves, rows: Rows, labels: Floats, weight: Floats | None, kept: float) -> Self:
        """Update the terms of the earlier curves with new rows."""
        if before.terms is not None:
            given = self._labelled(rows, labels, weight)
            self.curves_ = with_updated_fields(self.curves_, given, before.terms, kept=kept)
            self._corrected = fitted_sums(self.curves_, given._replace(weight=weight))
        return self
