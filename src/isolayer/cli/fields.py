"""The options of `fit` that name fields, and the terms that are fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isolayer.cli.columns import column, distinct, names
from isolayer.cli.output import note
from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram

_SHOWN = 5  # segments that are printed


def field_options(
    fields: Sequence[str] | None,
    exclude: Sequence[str] | None,
    columns: list[str],
    sums: Histogram,
    contexts: Sequence[str],
    audit_only: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Names of the field columns that --fields and --exclude mean; all are without those of --audit-only.

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
        raise InputError(f"--exclude: expected it with --fields all, got {', '.join(left_out)}; leave it out")
    for name in distinct(asked, "--fields"):
        column(name, "--fields", (), columns)
    return asked


def with_terms(curves: Curves, table: Any, sums: Histogram, fields: tuple[str, ...], missing: str) -> Curves:
    """The curves with terms of fields, fitted to the rows of a table; the clearest segments are printed."""
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
    fitted, scans, sample = fit_table_fields(curves, table, spec, fields)
    if sample < 0.9 * sums.rows:
        note(f"fields: chosen on a sample of {sample:,} of {sums.rows:,} rows, fitted to all in {scans} scans")
    for segment in fitted.terms.segments(_SHOWN) if fitted.terms else []:
        note(f"off: {segment}")
    return fitted


def terms_figures(curves: Curves) -> dict[str, int]:
    """Number of fields and of combinations, if there are any."""
    if curves.terms is None:
        return {}
    crossed = sum(len(term.views) > 1 for term in curves.terms.terms)
    return {"fields": len(curves.terms.fields), "combinations": crossed}
