"""RowReader: checks the settings of a calibrator, and reads frames, weights and ages into rows and sums."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Scale, logit_of
from isolayer.curves.fielded import LabelledRows, field_names
from isolayer.errors import InputError
from isolayer.fitting.categories import context_names
from isolayer.fitting.columns import weights
from isolayer.fitting.combinations import Interactions, Name, check_interactions, check_without
from isolayer.fitting.evidence import WeightKind, WeightsAreNotCounts, checked_kind, doubtful_counts
from isolayer.fitting.forgetting import HalfLife, ages, check_half_life, kept_share
from isolayer.fitting.frames import Rows, column_names, read_rows, refuse_missing
from isolayer.fitting.histogram import LEAST_WEIGHT, Histogram
from isolayer.fitting.negative_rates import checked_rates
from isolayer.fitting.terms import Terms
from isolayer.grid import Grid, Spread
from isolayer.settings import choice, flag, number, shown, text
from isolayer.settings import names as checked_names

Floats = NDArray[np.float64]


class RowReader:
    """The part of :class:`isolayer.IsotonicCalibrator` that reads rows; its settings are the calibrator's."""

    contexts: Sequence[str]
    fields: Sequence[str] | str
    interactions: Interactions
    without: Sequence[Name]
    audit_only: Sequence[str]
    structure: Curves | Terms | None
    scale: Scale
    grid: Grid | Literal["auto"]
    missing: str
    negative_rate: float | str | None
    weight_kind: WeightKind
    half_life: HalfLife | None
    fields_: tuple[str, ...]
    histogram_: Histogram
    score_name_: str | None
    _latest: float | None

    def _check_settings(self) -> None:
        """Raise unless every setting is valid."""
        context_names(self.contexts)
        field_names(self.fields, None, ())
        self._check_terms()
        self._check_audit_only()
        checked_kind(self.weight_kind)
        choice("scale", self.scale, ("logit", "prob"))
        choice("missing", self.missing, ("error", "own"))
        for name in ("strict", "monotone"):
            flag(name, getattr(self, name))
        if not isinstance(self.grid, Grid) and not (isinstance(self.grid, str) and self.grid == "auto"):
            raise InputError(
                f'grid: expected "auto" or a Grid, got {shown(self.grid)}; try Grid(lower=-10, upper=10, step=0.2)'
            )
        if self.negative_rate is not None and not isinstance(self.negative_rate, str):
            advice = "give the share of the negatives that was kept"
            number("negative_rate", self.negative_rate, 0, 1, ends="(]", advice=advice)
        check_half_life(self.half_life)

    def _check_terms(self) -> None:
        """Raise unless the settings about the terms of fields are valid."""
        check_interactions(self.interactions)
        check_without(self.without)
        if self.structure is None:
            return
        given: object = self.structure
        if not isinstance(given, Curves | Terms):
            got = f"expected Curves or their terms, got {shown(given)}"
            raise InputError(f"structure: {got}; give the curves_ of a fit with fields")
        if self.interactions != "auto":
            asked = f"expected none with a structure, which has its own, got {shown(self.interactions)}"
            raise InputError(f"interactions: {asked}; leave out one")

    def _term_settings(self) -> dict[str, Any]:
        """Which terms to fit, as arguments of :func:`isolayer.curves.fielded.with_fields`."""
        if self.structure is not None:
            return {"structure": self._structure_terms()}
        return {"interactions": self.interactions, "without": tuple(self.without)}

    def _structure_terms(self) -> Terms:
        """The terms of the structure, without those that are left out."""
        found = self.structure.terms if isinstance(self.structure, Curves) else self.structure
        if found is None or not found.terms:
            raise InputError(
                "structure: expected curves fitted with fields, got curves without; fit them with fields first"
            )
        return found.without(*self.without)

    def _labelled(self, rows: Rows, labels: Floats, weight: Floats | None) -> LabelledRows:
        """Rows as the terms of fields are fitted to them."""
        if weight is not None and self.weight_kind == "importance":
            weight = weight * (weight.sum() / (weight**2).sum())
        return LabelledRows(rows.score, labels, {**rows.context, **rows.other}, weight, self._rate(rows))

    def _choose_fields(self, X: Any, score: str | None) -> str | None:
        """Decide which columns are fields. Returns the score column, which must be known if all others are fields."""
        names = column_names(X)
        if score is not None:
            text("score", score, advice="name the score column")
        if self.fields == "all" and names is not None:
            score = score or "score"
        used = [score or "", *self.contexts, *self._other_columns()]
        self._settle_fields(field_names(self.fields, names, used))
        return score

    def _settle_fields(self, found: tuple[str, ...]) -> None:
        """Set the fields of a fit: those found, without those that are only audited, or those of the structure."""
        self.fields_ = self._correcting(found)
        if self.structure is not None:
            self.fields_ = self._structured_fields(self._structure_terms())

    def _forget_left_out(self) -> None:
        """After a fit, drop fields that were left out, since predictions do not need them."""
        self.fields_ = tuple(name for name in self.fields_ if name not in self.without)

    def _check_audit_only(self) -> None:
        """Raise unless the columns of ``audit_only`` are names that are used for nothing else."""
        only = checked_names("audit_only", self.audit_only, advice="name columns that do not correct the score")
        named = [] if isinstance(self.fields, str) else list(self.fields)
        for name in only:
            if name in (*self.contexts, *named):
                raise InputError(
                    f"audit_only: expected columns that do not correct the score, got {name!r}, which is also a field "
                    "or a context; leave it out of one"
                )

    def _correcting(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Fields without those that may only be audited."""
        return tuple(name for name in fields if name not in self.audit_only)

    def _remembering(self, curves: Curves) -> Curves:
        """The curves with the names of the columns that may only be audited."""
        only = list(self.audit_only)
        return replace(curves, settings={**curves.settings, "audit_only": only}) if only else curves

    def _structured_fields(self, structure: Terms) -> tuple[str, ...]:
        """The fields of an earlier fit, which have to be among those of this one."""
        own = tuple(name for name in structure.columns if name not in self.contexts)
        if set(own) - set(self.fields_):
            raise InputError(
                f"structure: expected curves fitted with fields among {list(self.fields_)}, got "
                f"{list(own)}; name the same fields"
            )
        return own

    def _rows_to_fit(self, X: Any, score: str | None, *, first: bool) -> Rows:
        """Read X for a fit; the first fit decides which columns there are."""
        names, other = column_names(X), self._other_columns()
        if not first and score is None and names is not None:
            score = self.score_name_
        rows = self._read(X, score, [*other, *self.fields_])
        if first:
            self._remember(rows.names, rows.score_name)
        return rows

    def _rows(self, X: Any) -> Rows:
        """Read X for a prediction; from a frame, the columns that were fitted."""
        names = column_names(X)
        if names is None:
            return self._read(X, None, self.fields_)
        other = [name for name in self._other_columns() if name in names]
        rows = self._read(X, self.score_name_, [*other, *self.fields_])
        return rows._replace(context={**rows.context, **{name: rows.other[name] for name in self.fields_}})

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

    def _weights(
        self, rows: Rows, sample_weight: ArrayLike | None, *, latest: float | None
    ) -> tuple[Floats | None, float | None]:
        """Weights of new rows, reduced by their age, and the latest time seen so far."""
        weight = None
        if sample_weight is not None:
            weight = weights("sample_weight", sample_weight, len(rows.score))
            self._warn_of_weights(weight)
        if self.half_life is not None:
            age, latest = ages(self.half_life, rows.other, len(rows.score), latest)
            weight = np.exp2(-age) * (1.0 if weight is None else weight)
        return weight, latest

    def _aged(self, rows: Rows, before: float | None) -> Histogram:
        """The sums of earlier rows, reduced by their age relative to the new rows."""
        if self.half_life is None:
            return self.histogram_
        share = kept_share(self.half_life, rows.other, len(rows.score), before, self._latest)
        return self.histogram_.scaled(share)

    def _histogram(self, rows: Rows, labels: Floats, weight: Floats | None, *, placed: Grid | None) -> Histogram:
        """Sums of new rows, on the grid already placed, if any."""
        grid = self.grid
        if isinstance(grid, str):
            grid = placed or Grid.covering(Spread.of(rows.score, weight))
        histogram = Histogram.from_arrays(
            rows.score, labels, rows.context, weight, negative_rate=self._rate(rows), grid=grid
        )
        known = {} if rows.score_name is None else {"score": rows.score_name}
        return replace(histogram, source={"scale": self.scale, "weight_kind": self.weight_kind, **known})

    def _rate(self, rows: Rows) -> Any:
        """Kept share of the negatives: one number, or a column."""
        rate = 1.0 if self.negative_rate is None else self.negative_rate
        return checked_rates(rows.other[rate] if isinstance(rate, str) else rate, len(rows.score))

    def _warn_of_weights(self, weight: Floats) -> None:
        """Warn about frequency weights that cannot be counts."""
        used = weight[weight >= LEAST_WEIGHT]
        why = doubtful_counts(used, used**2, len(used)) if self.weight_kind == "frequency" else None
        if why is not None:
            warnings.warn(why, WeightsAreNotCounts, stacklevel=4)
