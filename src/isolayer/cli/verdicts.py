"""Commands that judge calibrators: check, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.columns import LABELS, SCORES, column
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json, Log, read
from isolayer.cli.output import note, show, show_table
from isolayer.cli.sums import BadRows, CurvesFile, Label, Rate, Rows, Score, Weight, histogram_of_log, load
from isolayer.errors import InputError

REFIT = "refit with `isolayer fit`, or add the day with `isolayer update`"


def check(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    negative_rate: Rate = None,
    tolerance: Annotated[float, typer.Option(help="Relative error that is of no consequence.")] = 0.05,
    level: Annotated[float, typer.Option(help="How often a calibrator that holds may be called drifted.")] = 0.05,
    top: Annotated[int, typer.Option(min=1, help="How many contexts to show, most significant first.")] = 15,
    on_bad_rows: BadRows = "error",
    json: Json = False,
) -> None:
    """Tell whether a calibrator still holds on a new log. Ends with code 1 if some context drifted.

    Shows observed over expected (o over e), by context: above 1 the calibrator predicts too little. A context drifted
    if that is further from 1 than --tolerance and than chance allows.

    Example: isolayer check today.parquet --curves curves.parquet --score prob --label click
    """
    from isolayer import monitor

    if not 0 < level < 1:
        raise InputError(f"--level: expected a number between 0 and 1, got {level}; try 0.05")
    _refuse_negative(tolerance, "--tolerance")
    fitted = load(curves)
    rows = Rows(log, read(log), score, label, weight, fitted.scale, negative_rate, on_bad_rows)
    histogram, _ = histogram_of_log(rows, fitted.contexts)
    result = monitor.check(fitted, histogram, level=level, tolerance=tolerance)
    order = [0, *(1 + np.argsort(result.p_value[1:], kind="stable")).tolist()]
    table: dict[str, Any] = {name: ["(all)", *(values[order[1:]])] for name, values in result.context.items()}
    columns = {"rows": "weight", "o_over_e": "ratio", "from": "lower", "to": "upper", "p_value": "p_value"}
    table |= {name: getattr(result, field)[order] for name, field in columns.items()}
    show_table(table | {"drifted": result.drifted[order]}, as_json=json, most=top + 1)
    note("the calibrator holds" if result.holds else f"drifted: {_drifted(result.drifted)}; {REFIT}")
    if not result.holds:
        raise typer.Exit(1)


def compare(
    old: Annotated[Path, typer.Argument(help="The calibrator in service.")],
    new: Annotated[Path, typer.Argument(help="The one to release.")],
    most: Annotated[
        float | None, typer.Option(help="Largest change in probability allowed; beyond it, code 1.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many contexts to show, largest change first.")] = 15,
    json: Json = False,
) -> None:
    """How far a new release moves probabilities, by context. With --most, ends with code 1 beyond it.

    Example: isolayer compare yesterday.parquet today.parquet --most 0.02
    """
    if most is not None:
        _refuse_negative(most, "--most")
    change = load(old, "old").compare(load(new, "new"))
    order = np.argsort(-np.asarray(change["largest"], np.float64), kind="stable")
    show_table({name: list(values[order]) for name, values in change.items()}, as_json=json, most=top)
    largest = float(np.nanmax(np.asarray(change["largest"], np.float64)))
    note(f"largest change: {largest:.4g}")
    if most is not None and largest > most:
        note(f"beyond --most {most}")
        raise typer.Exit(1)


def report(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    date: Annotated[str | None, typer.Option(help="Column of days, for the picture over time.")] = None,
    bias: Annotated[Path | None, typer.Option(help="Curves of a debiased model, as `train` wrote them.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: Json = False,
) -> None:
    """Write one page that shows a calibrator on a log. Before and after, by context, curve by curve.

    The page needs no server and no network.

    Example: isolayer report today.parquet --curves curves.parquet --score prob --label click --out report.html
    """
    from isolayer.report import write

    check_output(out, "--out", log, curves, *([bias] if bias else []))
    table, fitted = read(log), load(curves)
    score_name = column(score, "--score", SCORES, table.columns, log)
    label_name = column(label, "--label", LABELS, table.columns)
    write(
        out,
        table,
        fitted,
        score=score_name,
        label=label_name,
        weight=None if weight is None else column(weight, "--weight", (), table.columns),
        date=None if date is None else column(date, "--date", (), table.columns),
        bias=None if bias is None else load(bias, "--bias"),
        title=title,
    )
    show({"rows": table.count().to_pyarrow().as_py(), "written": out}, as_json=json)


def _refuse_negative(value: float, option: str) -> None:
    if not value >= 0:
        raise InputError(f"{option}: expected a number of at least 0, got {value}; try 0.05")


def _drifted(drifted: Any) -> str:
    """Which drifted, of flags of which the first is of all rows and the others, if any, of contexts.

    >>> _drifted(np.array([True])), _drifted(np.array([False, True, False]))
    ('all rows together', '1 of 2 contexts')
    """
    count = int(drifted[1:].sum())
    parts = [f"{count} of {len(drifted) - 1} contexts"] * (count > 0) + ["all rows together"] * bool(drifted[0])
    return " and ".join(parts)
