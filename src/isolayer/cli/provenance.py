"""What a calibrator stores about the rows that it was fitted on, and whether a log contains some of these rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.columns import column, fitted_column
from isolayer.cli.days import ids_of
from isolayer.cli.output import note
from isolayer.cli.sums import Rows, histogram_of_log, spec_of
from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram

HeldOut = Annotated[
    bool, typer.Option("--held-out", help="Judge on the rows that `fit --holdout` left out of this log.")
]
IN_SAMPLE = "the calibrator was fitted on these rows, so they cannot judge it; use a later log, or `fit --holdout`"


def remembered(histogram: Histogram, **facts: Any) -> Histogram:
    """The sums with facts about their rows, which are passed on to calibrators fitted to them; None is not stored."""
    known = {name: value for name, value in facts.items() if value is not None}
    return replace(histogram, source={**histogram.source, **known})


def period_of(table: Any, date: str | None) -> list[Any] | None:
    """The first and the last day of a log, by its column of days; None without one, or if its days do not sort."""
    if date is None:
        return None
    from isolayer.tables.days import as_kept, sorted_days

    name = column(date, "--date", (), table.columns)
    try:
        values = sorted_days(table, name)
    except InputError as error:
        note(f"the first and the last day are not kept; {error}")
        return None
    found = table.aggregate(first=values.min(), last=values.max()).to_pyarrow().to_pylist()[0]
    return None if found["first"] is None else [as_kept(found["first"]), as_kept(found["last"])]


def as_fitted(rows: Rows, curves: Curves) -> Rows:
    """The rows of a log, read with the options of the calibrator's fit unless other options are given."""
    source, columns = curves.source, list(rows.table.columns)
    rate = source.get("negative_rate")
    return replace(
        rows,
        score=fitted_column(rows.score, "--score", curves.score_name, columns),
        label=fitted_column(rows.label, "--label", curves.label_name, columns),
        weight=fitted_column(rows.weight, "--weight", source.get("weight"), columns, optional=True),
        negative_rate=rows.negative_rate if rows.negative_rate is not None or rate is None else str(rate),
        scale=curves.scale,
        on_bad_rows=rows.on_bad_rows or source.get("on_bad_rows"),
        missing=rows.missing or source.get("missing"),
        weight_kind=source.get("weight_kind", "frequency"),
        grid=curves.grid,
    )


def choices(rows: Rows) -> dict[str, str | None]:
    """The options of a fit that say how to treat unusual rows, if they are not the default; None is not stored."""
    return {
        "on_bad_rows": "drop" if rows.on_bad_rows == "drop" else None,
        "missing": "own" if rows.missing == "own" else None,
    }


def note_replaced(out: Path, new: Curves) -> None:
    """Print which calibrator is about to be replaced, unless it has the same rows and settings as the new one."""
    if not out.is_file():
        return
    try:
        old = Curves.load(out)
    except InputError:
        note(f"replaced: {out}, which was not a readable calibrator")
        return
    if _told(old) != _told(new) or old.source.get("data") != new.source.get("data"):
        note(
            f"replaced: {out} was a calibrator of {_told(old)}; the new one is of {_told(new)}. Give another --out to "
            "keep both"
        )


def _told(curves: Curves) -> str:
    """What a calibrator was fitted to, in words."""
    by = f"by {', '.join(curves.contexts)}" if curves.contexts else "without contexts"
    fields = f" and with the fields {', '.join(curves.fields)}" if curves.fields else ""
    return f"{float(curves.source.get('rows', 0)):,.0f} rows, {by}{fields}"


def clusters_as_fitted(
    cluster: str | None, date: str | None, curves: Curves, columns: Sequence[str]
) -> tuple[str | None, str | None]:
    """The columns of clusters and of days: those that options name, or else those of the fit if the log has them."""
    known = {name: curves.source.get(name) for name in ("cluster", "date")}
    both = [
        known[name] if given is None and known[name] in columns else given or None
        for name, given in (("cluster", cluster), ("date", date))
    ]
    return both[0], both[1]


def fitted_on(curves: Curves, log: Sequence[str], histogram: Histogram | None = None) -> bool:
    """Whether a log has rows that the curves were fitted on: one of its files, or the same sums.

    Args:
        curves: The calibrator.
        log: The files of the log.
        histogram: Its sums, if they are known.
    """
    same = histogram is not None and curves.source.get("data") == histogram.folded().fingerprint()
    return same or bool(set(curves.source.get("files", ())) & set(ids_of(log)))


def usable(rows: Rows, curves: Curves, log: Sequence[str]) -> tuple[Rows, bool]:
    """The usable rows of a log, and whether the curves were fitted on some of them.

    Rows that cannot be used are left out or are an error, as the options say.

    Args:
        rows: The log, read as the calibrator was fitted.
        curves: The calibrator.
        log: The files of the log.
    """
    from isolayer.tables.field_rows import Usable

    contexts = tuple(name for name in curves.contexts if name in rows.table.columns)
    histogram, _ = histogram_of_log(rows, contexts)
    seen = fitted_on(curves, log, histogram if contexts == curves.contexts else None)
    dropping = rows.on_bad_rows == "drop"
    return replace(rows, table=Usable(spec_of(rows, contexts), ()).kept(rows.table) if dropping else rows.table), seen


def judged_on(held_out: bool, seen: bool) -> str:
    """How the rows are related to the fit of the calibrator, in words.

    >>> judged_on(True, False), judged_on(False, True), judged_on(False, False)
    ('held out', 'in sample', 'other rows')
    """
    return "held out" if held_out else "in sample" if seen else "other rows"


def about_rows(kind: str, rows: int, log: str, curves: Path) -> str:
    """A sentence on the rows that a calibrator is judged on.

    Args:
        kind: How they are related to the fit, as :func:`judged_on` returns it.
        rows: Their number.
        log: Their files.
        curves: The calibrator.

    >>> about_rows("held out", 851, "churn.csv", Path("curves.parquet"))
    'Judged on the 851 rows of churn.csv that were left out of the fit of curves.parquet.'
    """
    if kind == "held out":
        return f"Judged on the {rows:,} rows of {log} that were left out of the fit of {curves}."
    if kind == "in sample":
        return f"Shown on the {rows:,} rows of {log}; {curves} was fitted to some or all of them."
    return f"Judged on the {rows:,} rows of {log}, a log that {curves} was not fitted to."


def judged_rows(table: Any, curves: Curves, wanted: bool) -> Any:
    """The table, or the rows of it that were left out of the fit if those are wanted."""
    if not wanted:
        return table
    from isolayer.tables.holdout import held_out

    rule = curves.source.get("holdout")
    if rule is None:
        raise InputError(
            "--held-out: expected a calibrator of `fit --holdout`, got one that left out no rows; fit it with --holdout"
        )
    return held_out(table, rule)
