"""Sums and rows of a log for curves with fields: the input of every verdict on such curves.

Sums by the raw score are enough for curves without fields, but do not contain what fields add. So the rows are also
summed by the corrected logit. :mod:`isolayer.tables.field_log` computes these sums from a table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import Floats
from isolayer.curves.export.sql import own_name
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError, offered
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.terms import LAST_GRID

RAW_STEP = 0.02  # width of the bins of raw logits in the sums of a fit
MOST_BINS = 2.0**40  # raw logits beyond this share a bin


class FieldLog(NamedTuple):
    """A log for :func:`isolayer.monitor.check` of curves with fields; :meth:`from_table` makes one.

    Attributes:
        raw: Sums by the raw score, on the grid of the curves.
        corrected: Sums of the same rows by their corrected logit.
        rows: The rows themselves, or a sample of them, for the distribution of the fields in each context.
    """

    raw: Histogram
    corrected: Histogram
    rows: LabelledRows

    @classmethod
    def from_table(cls, curves: Curves, table: Any, **columns: Any) -> FieldLog:
        """The sums of a table in its own engine; see :func:`isolayer.tables.field_log.field_log_of`.

        Args:
            curves: The calibrator in service.
            table: An Ibis table, a Parquet or CSV path, a DuckDB relation or a frame.
            columns: ``label``, ``score``, ``weight``, ``negative_rate`` and ``cluster``, by default those of the fit.
        """
        found: FieldLog = offered("field_log_of")(curves, table, **columns)
        return found


class PairedLog(NamedTuple):
    """A log for :func:`isolayer.monitor.compare_on_log` of two calibrators, with fields or without.

    A cell has the rows of one class whose two calibrated logits are in the same two bins; each logit is the mean.

    Attributes:
        logits: Mean calibrated logits of the cells, by the old calibrator and by the new one, shape ``[cells]`` each.
        weight: Sum of weights, shape ``[cells]``.
        positive: Weight of the positives, shape ``[cells]``.
        rate: Share of the negatives that was kept when the rows were sampled, shape ``[cells]``.
        fold: Cluster of each cell, shape ``[cells]``.
        rows: The rows themselves, or a sample of them, with the columns of both calibrators.
    """

    logits: tuple[Floats, Floats]
    weight: Floats
    positive: Floats
    rate: Floats
    fold: Any
    rows: LabelledRows

    @classmethod
    def from_table(cls, old: Curves, new: Curves, table: Any, **columns: Any) -> PairedLog:
        """The sums of a table in its own engine; see :func:`isolayer.tables.field_log.paired_log_of`.

        Args:
            old: The calibrator in service.
            new: The one to release.
            table: An Ibis table, a Parquet or CSV path, a DuckDB relation or a frame.
            columns: As in :meth:`FieldLog.from_table`, by default those of the old calibrator.
        """
        found: PairedLog = offered("paired_log_of")(old, new, table, **columns)
        return found

    @property
    def traffic(self) -> tuple[Floats, Floats]:
        """Weight of the positives and of the negatives of real traffic that the rows of each cell represent."""
        return self.positive.clip(min=0.0), (self.weight - self.positive).clip(min=0.0) / self.rate


def fitted_sums(curves: Curves, rows: LabelledRows) -> Histogram:
    """Sums of rows by context, raw logit and corrected logit, which a fitted calibrator keeps for its report.

    The raw logit, as a whole number of ``RAW_STEP``, is a further context, the finest one.

    >>> import numpy as np
    >>> from isolayer.grid import Grid
    >>> rows = LabelledRows(np.array([0.5, 0.5, 1.0]), np.array([0.0, 1.0, 1.0]), {})
    >>> sums = fitted_sums(Curves.identity(Grid()), rows)
    >>> sums.contexts, (sums.keys[-1] * RAW_STEP).tolist(), sums.weight.tolist()
    (('isolayer_raw',), [0.5, 1.0], [2.0, 1.0])
    """
    raw = (rows.logit / RAW_STEP).round().clip(-MOST_BINS, MOST_BINS)
    context = {name: rows.columns[name] for name in curves.contexts} | {raw_name(curves): raw}
    corrected = curves.on_logits.decision_function(rows.logit, rows.columns)
    return Histogram.from_arrays(corrected, rows.label, context, rows.weight, negative_rate=rows.rate, grid=LAST_GRID)


def raw_name(curves: Curves) -> str:
    """Name of the context of raw logits in the sums of a fit; it differs from all contexts and fields."""
    return own_name([*curves.contexts, *curves.fields], "raw")


def refuse_sums(curves: Curves, what: str, remedy: str) -> None:
    """Raise for curves with fields, for which sums by the score are not enough.

    >>> from isolayer.grid import Grid
    >>> refuse_sums(Curves.identity(Grid()), "check", "")
    """
    if curves.terms is not None:
        raise InputError(
            f"{what}: expected rows with the fields {', '.join(curves.fields)}, got sums without them; {remedy}"
        )
