"""Fields on the command line: which columns are fields, fitting their corrections, and reading logs with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isolayer.cli.columns import column, distinct, names
from isolayer.cli.output import note
from isolayer.cli.sums import Rows, spec_of
from isolayer.curves.curves import Curves
from isolayer.curves.field_log import FieldLog, PairedLog
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.combinations import written
from isolayer.fitting.histogram import Histogram

_SHOWN = 5  # how many segments are printed
_MOST_ROWS = 2_000_000  # most rows of an added day that are used; larger days are sampled


def field_options(
    fields: Sequence[str] | None,
    exclude: Sequence[str] | None,
    columns: list[str],
    sums: Histogram,
    contexts: Sequence[str],
    audit_only: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Names of the columns that --fields and --exclude select; ``all`` does not include those of --audit-only.

    >>> sums = Histogram.from_arrays([0.1], [1])
    >>> field_options(["all"], ["user"], ["score", "label", "user", "hour"], sums, ())
    ('score', 'label', 'hour')
    """
    asked, left_out = names(fields, columns), distinct(names(exclude, columns), "--exclude")
    for name in left_out:
        column(name, "--exclude", (), columns)
    if asked == ("all",) and "all" not in columns:
        told = sums.source
        used = {told.get(name) for name in ("score", "label", "weight", "negative_rate")}
        return tuple(name for name in columns if name not in {*used, *contexts, *left_out, *names(audit_only, columns)})
    if left_out:
        raise InputError(f"--exclude: expected --fields all with it, got {', '.join(left_out)}; leave it out")
    for name in distinct(asked, "--fields"):
        column(name, "--fields", (), columns)
    return asked


def with_terms(
    curves: Curves, table: Any, sums: Histogram, fields: tuple[str, ...], missing: str, asked: dict[str, Any]
) -> Curves:
    """The curves with the corrections of fields, fitted to the rows of a table; the clearest segments are printed."""
    from isolayer.tables.field_fit import fit_table_fields
    from isolayer.tables.histogram_query import ColumnSpec

    told = sums.source
    spec = ColumnSpec(
        sums.contexts,
        told["score"],
        told["label"],
        told["weight"],
        told["scale"],
        curves.grid,
        missing=missing,
        negative_rate=told["negative_rate"],
        weight_kind=told["weight_kind"],
    )
    fitted, scans, sample = fit_table_fields(curves, table, spec, fields, **asked)
    if "structure" not in asked and sample < 0.9 * sums.rows:
        note(f"fields: chosen on a sample of {sample:,} of {sums.rows:,} rows, fitted to all rows in {scans} scans")
    if fitted.terms is not None:
        crossed = [written(name) for name in fitted.terms.names if not isinstance(name, str)]
        note(f"combinations: {', '.join(crossed) or 'none'}")
        for segment in fitted.terms.segments(_SHOWN):
            note(f"off: {segment}")
    return fitted


def terms_figures(curves: Curves) -> dict[str, int]:
    """Number of fields and of combinations, if there are any."""
    if curves.terms is None:
        return {}
    crossed = sum(len(term.views) > 1 for term in curves.terms.terms)
    return {"fields": len(curves.terms.fields), "combinations": crossed}


def with_fields(rows: Rows, curves: Curves, histogram: Histogram) -> Histogram | FieldLog:
    """The sums of a log for a verdict on a calibrator; if the calibrator has fields, with their values."""
    if curves.terms is None:
        return histogram
    from isolayer.tables.field_log import with_corrected

    _refuse_absent(curves, rows)
    return with_corrected(curves, histogram, rows.table, spec_of(rows, curves.contexts))


def paired_rows(rows: Rows, old: Curves, new: Curves) -> PairedLog:
    """A log with the predictions of two calibrators, at least one of which has fields."""
    from isolayer.tables.field_log import paired

    for curves in (old, new):
        _refuse_absent(curves, rows)
    return paired(old, new, rows.table, spec_of(rows, ()))


def _refuse_absent(curves: Curves, rows: Rows) -> None:
    for name in curves.fields:
        column(name, "fields", (), list(rows.table.columns))


def advice_for_held(curves: Curves, path: Path, sums: Path) -> str:
    """What to do about a day that was added before, apart from continuing with the next day."""
    if curves.terms is None:
        return "replace the day of the same --id by --replace, or remove it by --remove"
    return f"or {_fit_again(path, str(sums))}"


def _fit_again(path: Path, sums: str) -> str:
    return f"fit the days that should count again: isolayer fit LOGS --structure {path} --out {path} --sums {sums}"


def refuse_taking_out(curves: Curves, option: str | None, path: Path) -> None:
    """Raise if a day is to be removed from a calibrator with fields, whose corrections do not store days separately."""
    if option is not None and curves.terms is not None:
        raise InputError(
            f"{option}: expected a calibrator without fields, got one with {', '.join(curves.fields)}, from whose "
            f"corrections no day can be removed; {_fit_again(path, 'SUMS')}"
        )


def updated_fields(rows: Rows, fitted: Curves, before: Curves, kept: float) -> Curves:
    """Curves fitted to all days, with the corrections of the earlier days updated by the rows of a new day."""
    if before.terms is None:
        return fitted
    from isolayer.curves.fielded import with_updated_fields

    _refuse_absent(before, rows)
    return with_updated_fields(fitted, _sampled_rows(rows, before), before.terms, kept=kept)


def largest_change(rows: Rows, before: Curves, after: Curves) -> float:
    """The largest change of a probability; for curves with fields, on the rows of a log."""
    from isolayer.curves.comparison import compare_on_rows

    if before.terms is None:
        return float(np.max(before.compare(after)["largest"]))
    return float(compare_on_rows(before, after, _sampled_rows(rows, before))["largest"][0])


def _sampled_rows(rows: Rows, curves: Curves) -> LabelledRows:
    """The rows of a log, or a weighted sample of them if there are very many."""
    from isolayer.tables.field_rows import labelled_rows

    found, total = labelled_rows(rows.table, spec_of(rows, curves.contexts), curves.fields, most=_MOST_ROWS)
    if total <= _MOST_ROWS:
        return found
    weight = np.ones(len(found.logit)) if found.weight is None else found.weight
    return found._replace(weight=weight * (total / len(found.logit)))
