"""The sums of a log, as the options describe its columns: what every command that fits or judges starts from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from isolayer.cli.columns import LABELS, SCORES, column, scale_of
from isolayer.cli.columns import Scale as ScoreScale
from isolayer.cli.output import note
from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram

CurvesFile = Annotated[Path, typer.Option("--curves", help="The calibrator, as `fit` wrote it.")]
Score = Annotated[str | None, typer.Option(help="Column of scores; guessed if one has a usual name, such as prob.")]
Label = Annotated[
    str | None,
    typer.Option(help="Column of labels, 0 or 1 or between; guessed if one has a usual name, such as click."),
]
Weight = Annotated[str | None, typer.Option(help="Column of weights: a weight of 2 counts as two equal rows.")]
Contexts = Annotated[
    list[str] | None,
    typer.Option(help="Context columns, coarse to fine: comma-separated, a JSON list, or the option given repeatedly."),
]
Scale = Annotated[
    str | None, typer.Option(help="What scores are: logit or prob; guessed from the column's name, never from values.")
]
Rate = Annotated[
    str | None,
    typer.Option(help="Share of negatives that was kept, if they were down-sampled: a number in (0, 1], or a column."),
]
Missing = Annotated[str, typer.Option(help="Missing context values: error, or own for a curve of their own.")]
BadRows = Annotated[str, typer.Option(help="What to do with rows that cannot be used: error or drop.")]


def load(path: Path, what: str = "--curves") -> Curves:
    """The curves of a file, or an error that names the option."""
    if not path.exists():
        raise InputError(f"{what}: expected a calibrator at {str(path)!r}, got none; make one with `isolayer fit`")
    return Curves.load(path)


@dataclass(frozen=True)
class Rows:
    """A log and the options that describe its columns."""

    log: str
    table: Any
    score: str | None
    label: str | None
    weight: str | None
    scale: str | None
    negative_rate: str | None
    on_bad_rows: str
    missing: str = "own"


def histogram_of_log(rows: Rows, contexts: tuple[str, ...]) -> tuple[Histogram, ScoreScale]:
    """Sums of a log, and the scale of its scores."""
    from isolayer.tables.histogram_query import ColumnSpec, RowsDropped, histogram_of

    if rows.on_bad_rows not in ("error", "drop"):
        raise InputError(f"--on-bad-rows: expected error or drop, got {rows.on_bad_rows!r}; choose one")
    on_bad_rows: Literal["error", "drop"] = "drop" if rows.on_bad_rows == "drop" else "error"
    if rows.missing not in ("error", "own"):
        raise InputError(f"--missing: expected error or own, got {rows.missing!r}; choose one")
    table, columns = rows.table, list(rows.table.columns)
    for name in contexts:
        column(name, "contexts", (), columns)
    score = column(rows.score, "--score", SCORES, columns, rows.log)
    label = column(rows.label, "--label", LABELS, columns)
    weight = None if rows.weight is None else column(rows.weight, "--weight", (), columns)
    rate, scale = _rate(rows.negative_rate, columns), scale_of(rows.scale, score)
    spec = ColumnSpec(contexts, score, label, weight, scale=scale, negative_rate=rate, missing=rows.missing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RowsDropped)  # printed below
            histogram, dropped = histogram_of(table, spec, on_bad_rows=on_bad_rows)
    except InputError as error:
        raise InputError(_as_typed(str(error), rows.log)) from error
    for kind, count in dropped.items():
        note(f"left out: {count} {kind}")
    return histogram, scale


def _as_typed(message: str, log: str) -> str:
    """A message about a table in the words of the command line.

    >>> _as_typed('leave them out by on_bad_rows="drop". To see some: SELECT 1', "log.csv")
    'leave them out by --on-bad-rows drop. To see some: SELECT 1'
    """
    message = message.replace('on_bad_rows="drop"', "--on-bad-rows drop").replace('missing="own"', "--missing own")
    return message if log != "-" else message.partition(". To see some:")[0]  # what was piped in cannot be asked again


def _rate(given: str | None, columns: list[str]) -> float | str | None:
    """The kept share of negatives, or the column that has it."""
    if given is None:
        return None
    try:
        share = float(given)
    except ValueError:
        return column(given, "--negative-rate", (), columns)
    if not 0 < share <= 1:
        raise InputError(
            f"--negative-rate: expected a share in (0, 1] or a column, got {given}; give the kept share of negatives"
        )
    return share


def quality(curves: Curves, histogram: Histogram) -> dict[str, Any]:
    """The size and the log loss of a fit, on the rows it was fitted to."""
    from isolayer.monitor import check

    before, after = check(curves, histogram).log_loss
    return {"rows": histogram.rows, **sizes(curves), "log_loss_before": before, "log_loss_after": after}


def sizes(curves: Curves) -> dict[str, int]:
    """Number of contexts, and of curves: those of the contexts and of all their ancestors."""
    return {"contexts": len(curves.keys[-1][0]) if curves.contexts else 0, "curves": len(curves.values)}
