"""The sums of a log whose columns the options describe. Every command that fits or judges starts from these sums."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isolayer.cli import as_typed
from isolayer.cli.columns import LABELS, SCORES, column, refuse_text_scores, scale_of
from isolayer.cli.columns import Scale as ScoreScale
from isolayer.cli.output import note
from isolayer.curves.curves import Curves
from isolayer.curves.field_log import FieldLog
from isolayer.curves.fit_checks import ScoresLookLikeProbs, ScoresLookReversed
from isolayer.errors import InputError
from isolayer.fitting.evidence import WeightsAreNotCounts
from isolayer.fitting.field_leaks import FieldKnowsLabel
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid

if TYPE_CHECKING:
    from isolayer.tables.histogram_query import ColumnSpec

CurvesFile = Annotated[Path, typer.Option("--curves", help="The calibrator, as `fit` wrote it.")]
Score = Annotated[str | None, typer.Option(help="Column of scores; guessed if one has a usual name, such as prob.")]
Label = Annotated[
    str | None,
    typer.Option(
        help="Column of labels, 0 or 1 or between, or yes and no; guessed if one has a usual name, such as click."
    ),
]
Weight = Annotated[str | None, typer.Option(help="Column of weights; --weight-kind says what they mean.")]
WeightKind = Annotated[
    str,
    typer.Option(
        help="Meaning of weights: frequency (2 is the row twice) or importance (how much a row should represent)."
    ),
]
Contexts = Annotated[
    list[str] | None,
    typer.Option(help="Context columns, coarse to fine: comma-separated, a JSON list, or the option given repeatedly."),
]
Scale = Annotated[
    str | None,
    typer.Option(help="Scale of the scores: logit or prob; guessed from the column's name, never from values."),
]
Rate = Annotated[
    str | None,
    typer.Option(help="Share of negatives that was kept, if they were down-sampled: a number in (0, 1], or a column."),
]
GridOption = Annotated[
    str,
    typer.Option(
        "--grid",
        help="Where the knots of the curves are, in logits: auto, by the spread of the scores, or LOWER,UPPER,STEP.",
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(
        help="Missing context values: error, or own for their own curve; by default as in the fit, if there was one.",
        show_default="error",
    ),
]
BadRows = Annotated[
    str | None,
    typer.Option(
        help="What to do with rows that cannot be used: error or drop; by default as in the fit, if there was one.",
        show_default="error",
    ),
]


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
    on_bad_rows: str | None  # as the options say, or as in the fit
    missing: str | None = "own"
    weight_kind: str = "frequency"
    clusters: str | None = None  # the column of `with_clusters`
    grid: Grid | Literal["auto"] = "auto"


def spec_of(rows: Rows, contexts: tuple[str, ...]) -> ColumnSpec:
    """The meaning of the columns of a log, from the options."""
    from isolayer.tables.field_log import GROUPS
    from isolayer.tables.histogram_query import ColumnSpec

    missing = "error" if rows.missing is None else rows.missing
    if rows.on_bad_rows not in (None, "error", "drop"):
        raise InputError(f"--on-bad-rows: expected error or drop, got {rows.on_bad_rows!r}; choose one")
    if missing not in ("error", "own"):
        raise InputError(f"--missing: expected error or own, got {missing!r}; choose one")
    columns = list(rows.table.columns)
    for name in contexts:
        column(name, "contexts", (), columns)
    score = column(rows.score, "--score", SCORES, columns, rows.log)
    label = column(rows.label, "--label", LABELS, columns)
    weight = None if rows.weight is None else column(rows.weight, "--weight", (), columns)
    refuse_text_scores(rows.table, score)
    rate, scale = rate_of(rows.negative_rate, columns), scale_of(rows.scale, score)
    kind: Any = rows.weight_kind
    if kind not in ("frequency", "importance"):
        raise InputError(f"--weight-kind: expected frequency or importance, got {kind!r}; choose one")
    settings: dict[str, Any] = {"negative_rate": rate, "missing": missing, "weight_kind": kind}
    settings |= {"folds": None if rows.clusters is None else (GROUPS, rows.clusters)}
    return ColumnSpec(contexts, score, label, weight, scale, rows.grid, **settings)


def histogram_of_log(rows: Rows, contexts: tuple[str, ...]) -> tuple[Histogram, ScoreScale]:
    """Sums of a log, and the scale of its scores."""
    from isolayer.tables.histogram_query import RowsDropped, histogram_of

    spec = spec_of(rows, contexts)
    on_bad_rows: Literal["error", "drop"] = "drop" if rows.on_bad_rows == "drop" else "error"
    try:
        with noted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RowsDropped)  # printed below
            histogram, dropped = histogram_of(rows.table, spec, on_bad_rows=on_bad_rows)
    except InputError as error:
        raise InputError(_as_typed(str(error), rows.log)) from error
    for reason, count in dropped.items():
        note(f"left out: {count} {reason}")
    return histogram, spec.scale


@contextmanager
def noted() -> Iterator[None]:
    """Print warnings about rows, scores and weights as notes, with the names of options instead of arguments."""
    from isolayer.tables.histogram_query import RowsDropped

    kinds = (WeightsAreNotCounts, ScoresLookLikeProbs, FieldKnowsLabel, RowsDropped)
    with warnings.catch_warnings(record=True) as found:
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.simplefilter("ignore", ScoresLookReversed)  # `fit` itself says where the rate falls
        yield
    for warning in found:
        if issubclass(warning.category, kinds):
            note(_as_typed(str(warning.message), ""))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _as_typed(message: str, log: str) -> str:
    """A message about a table, with the names of options instead of arguments.

    >>> _as_typed('leave them out by on_bad_rows="drop". To see some: SELECT 1', "-")
    'leave them out by --on-bad-rows drop'
    """
    # A pipe cannot be read again, so the query that shows such rows would not work.
    return as_typed(message if log != "-" else message.partition(". To see some:")[0])


def grid_of(given: str) -> Grid | Literal["auto"]:
    """The grid that an option describes.

    >>> grid_of("-12,6,0.25")
    Grid(lower=-12.0, upper=6.0, step=0.25)
    """
    if given == "auto":
        return "auto"
    try:
        lower, upper, step = (float(part) for part in given.split(","))
    except ValueError:
        raise InputError(f"--grid: expected auto or LOWER,UPPER,STEP, got {given!r}; try --grid=-12,6,0.2") from None
    return Grid(lower, upper, step)


def rate_of(given: str | None, columns: list[str]) -> float | str | None:
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


def quality(curves: Curves, log: Histogram | FieldLog, rows: float | None = None) -> dict[str, Any]:
    """The size of a fit, and its log loss on the rows it was fitted to, or on one day of them."""
    from isolayer.monitor import log_losses

    before, after = log_losses(curves, log)
    day = "" if rows is None else "day_"
    held = (log if isinstance(log, Histogram) else log.raw).rows if rows is None else rows
    return {"rows": held, **sizes(curves), f"{day}log_loss_before": before, f"{day}log_loss_after": after}


def sizes(curves: Curves) -> dict[str, int]:
    """Number of contexts, and number of curves, which are those of the contexts and of all their ancestors."""
    return {"contexts": len(curves.keys[-1][0]) if curves.contexts else 0, "curves": len(curves.values)}
