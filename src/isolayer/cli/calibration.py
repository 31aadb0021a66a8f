"""Commands that fit, apply, watch and hand on calibrators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.logs import LABELS, SCORES, column, names, read, scale_of
from isolayer.cli.output import note, show, show_table
from isolayer.errors import InputError, need

Log = Annotated[str, typer.Argument(help="Parquet, CSV or NDJSON: a path, glob, s3:// address, or - for stdin.")]
CurvesFile = Annotated[Path, typer.Option("--curves", help="The calibrator, as `fit` wrote it.")]
Score = Annotated[str | None, typer.Option(help="Column of scores.")]
Label = Annotated[str | None, typer.Option(help="Column of labels: 0 or 1, or anything between.")]
Weight = Annotated[str | None, typer.Option(help="Column of weights.")]
Contexts = Annotated[str | None, typer.Option(help="Context columns, coarse to fine, with commas between.")]
Scale = Annotated[str | None, typer.Option(help="What scores are: logit or prob. Never guessed from values.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BadRows = Annotated[str, typer.Option(help="Rows that cannot be used: error, or drop.")]


def fit(
    log: Log,
    out: Annotated[Path, typer.Option(help="Where to write the calibrator.")] = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    contexts: Contexts = None,
    weight: Weight = None,
    scale: Scale = None,
    negative_rate: Annotated[str | None, typer.Option(help="Kept share of negatives: a number or a column.")] = None,
    sums: Annotated[Path | None, typer.Option(help="Also write the sums, for `update` to add days to.")] = None,
    on_bad_rows: BadRows = "error",
    json: Json = False,
) -> None:
    """Fit a calibrator to a log: one monotone curve a context, exactly, with nothing to tune.

    Only sums leave the engine that reads the log. Without --contexts there is one curve for all rows; with
    --contexts platform,position each platform is drawn to all rows, and each position to its platform.

    Example: isolayer fit 'logs/*.parquet' --score prob --label click --contexts platform,position
    """
    table = read(log)
    histogram, used = _histogram(table, score, label, names(contexts), weight, scale, negative_rate, on_bad_rows)
    calibrator = need("isolayer.calibrator", "sklearn").IsotonicCalibrator(names(contexts), scale=used)
    curves = calibrator.fit_histogram(histogram).curves_
    curves.save(out)
    if sums is not None:
        histogram.save(sums)
    show({**_quality(curves, histogram), "written": out}, as_json=json)


def apply(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    out: Annotated[Path, typer.Option(help="Where to write the rows, as Parquet.")] = Path("calibrated.parquet"),
    score: Score = None,
    column_name: Annotated[str, typer.Option("--column", help="Name of the new column.")] = "calibrated_prob",
    json: Json = False,
) -> None:
    """Add a column of calibrated probabilities to a log, inside the engine that reads it.

    Example: isolayer apply 'today/*.parquet' --curves curves.parquet --score prob --out calibrated.parquet
    """
    table, fitted = read(log), _load(curves)
    name = column(score, "--score", SCORES, table.columns)
    rows = need("isolayer.export_sql", "data").apply_table(fitted, table, score=name, prob=column_name)
    part = out.with_name(out.name + ".part")
    rows.to_parquet(part)
    part.replace(out)
    show({"rows": table.count().to_pyarrow().as_py(), "column": column_name, "written": out}, as_json=json)


def update(
    sums: Annotated[Path, typer.Argument(help="Sums of the days so far, as `fit --sums` wrote them.")],
    log: Annotated[str, typer.Argument(help="The new day's log.")],
    curves: CurvesFile = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    keep: Annotated[float, typer.Option(help="What the days so far still count for: 0.5 forgets half.")] = 1.0,
    remove: Annotated[bool, typer.Option(help="Take the day out again instead.")] = False,
    on_bad_rows: BadRows = "error",
    json: Json = False,
) -> None:
    """Add a day to a calibrator without reading the earlier days again: exactly the fit of all of them.

    Example: isolayer update sums.parquet today.parquet --curves curves.parquet --keep 0.9
    """
    Histogram = need("isolayer.histogram", "data").Histogram
    old, before = Histogram.load(sums), _load(curves)
    day, _ = _histogram(read(log), score, label, old.contexts, weight, before.scale, None, on_bad_rows)
    kept = old if keep == 1 else old.scaled(keep)
    total = kept.subtract(day) if remove else kept.merge(day)
    calibrator = need("isolayer.calibrator", "sklearn").IsotonicCalibrator(old.contexts, scale=before.scale)
    fitted = calibrator.fit_histogram(total).curves_
    total.save(sums)
    fitted.save(curves)
    change = before.compare(fitted)
    show(
        {**_quality(fitted, total), "largest_change": float(np.max(change["largest"])), "written": curves},
        as_json=json,
    )


def check(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    tolerance: Annotated[float, typer.Option(help="Relative error that is of no consequence.")] = 0.05,
    level: Annotated[float, typer.Option(help="How often a calibrator that holds may be called drifted.")] = 0.05,
    top: Annotated[int, typer.Option(help="How many contexts to show, worst first.")] = 15,
    on_bad_rows: BadRows = "error",
    json: Json = False,
) -> None:
    """Does a calibrator still hold on a new log? Ends with code 1 if some context drifted.

    Example: isolayer check today.parquet --curves curves.parquet --score prob --label click
    """
    fitted = _load(curves)
    histogram, _ = _histogram(read(log), score, label, fitted.contexts, weight, fitted.scale, None, on_bad_rows)
    result = need("isolayer.monitor", "data").check(fitted, histogram, level=level, tolerance=tolerance)
    order = [0, *(1 + np.argsort(result.p_value[1:], kind="stable")).tolist()]
    table: dict[str, Any] = {name: ["(all)", *(values[order[1:]])] for name, values in result.context.items()}
    columns = {"rows": "weight", "o_over_e": "ratio", "from": "lower", "to": "upper", "p_value": "p_value"}
    table |= {name: getattr(result, field)[order] for name, field in columns.items()}
    show_table(table | {"drifted": result.drifted[order]}, as_json=json, most=top + 1)
    drifted = int(result.drifted[1:].sum())
    total = max(len(result.drifted) - 1, 1)
    note(
        "the calibrator holds"
        if result.holds
        else f"drifted: {drifted} of {total} contexts{' and all rows together' if result.drifted[0] else ''}; "
        "refit with `isolayer fit`, or add the day with `isolayer update`"
    )
    if not result.holds:
        raise typer.Exit(1)


def compare(
    old: Annotated[Path, typer.Argument(help="The calibrator in service.")],
    new: Annotated[Path, typer.Argument(help="The one to release.")],
    most: Annotated[
        float | None, typer.Option(help="Largest change in probability allowed; beyond it, code 1.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many contexts to show, largest change first.")] = 15,
    json: Json = False,
) -> None:
    """How far a new release moves probabilities, by context. With --most, ends with code 1 beyond it.

    Example: isolayer compare yesterday.parquet today.parquet --most 0.02
    """
    change = _load(old).compare(_load(new))
    order = np.argsort(-np.asarray(change["average"], np.float64), kind="stable")
    show_table({name: values[order] for name, values in change.items()}, as_json=json, most=top)
    largest = float(np.nanmax(np.asarray(change["largest"], np.float64)))
    note(f"largest change: {largest:.4g}")
    if most is not None and largest > most:
        note(f"beyond --most {most}")
        raise typer.Exit(1)


def export(
    curves: Annotated[Path, typer.Argument(help="The calibrator, as `fit` wrote it.")],
    out: Annotated[str, typer.Option(help="Where to write it: .onnx, .sql or .parquet; - prints SQL.")] = "-",
    dialect: Annotated[
        str, typer.Option(help="SQL dialect: duckdb, spark, bigquery, snowflake, trino, postgres.")
    ] = "duckdb",
    json: Json = False,
) -> None:
    """Write a calibrator as ONNX, as one SQL statement or as Parquet.

    Example: isolayer export curves.parquet --out curves.onnx
    """
    fitted, kind = _load(curves), Path(out).suffix
    if out == "-":
        print(fitted.to_sql(dialect))
        return
    if kind == ".onnx":
        fitted.to_onnx(out)
    elif kind == ".sql":
        Path(out).write_text(fitted.to_sql(dialect) + "\n")
    elif kind == ".parquet":
        fitted.save(out)
    else:
        raise InputError(f"--out: expected a name ending in .onnx, .sql or .parquet, got {out!r}; rename it")
    show({"contexts": len(fitted.values), "written": out}, as_json=json)


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
    """Write one page that shows a calibrator on a log: before and after, by context, curve by curve.

    The page needs no server and no network.

    Example: isolayer report today.parquet --curves curves.parquet --score prob --label click --out report.html
    """
    table, fitted = read(log), _load(curves)
    score_name = column(score, "--score", SCORES, table.columns)
    label_name = column(label, "--label", LABELS, table.columns)
    need("isolayer.report", "report").write(
        out,
        table,
        fitted,
        score=score_name,
        label=label_name,
        weight=weight,
        date=date,
        bias=None if bias is None else _load(bias),
        title=title,
    )
    show({"rows": table.count().to_pyarrow().as_py(), "written": out}, as_json=json)


def _load(path: Path) -> Any:
    if not path.exists():
        raise InputError(f"--curves: expected a calibrator at {str(path)!r}, got none; make one with `isolayer fit`")
    return need("isolayer.curves", "data").Curves.load(path)


def _histogram(
    table: Any,
    score: str | None,
    label: str | None,
    contexts: tuple[str, ...],
    weight: str | None,
    scale: str | None,
    negative_rate: str | None,
    on_bad_rows: str,
) -> tuple[Any, str]:
    """Sums of a log, and the scale of its scores."""
    tables = need("isolayer.tables", "data")
    columns = list(table.columns)
    score_name = column(score, "--score", SCORES, columns)
    label_name = column(label, "--label", LABELS, columns)
    used = scale_of(scale, score_name)
    try:
        rate: float | str | None = None if negative_rate is None else float(negative_rate)
    except ValueError:
        rate = negative_rate
    reading = tables.Reading(contexts, score_name, label_name, weight, scale=used, negative_rate=rate, missing="own")
    histogram, dropped = tables.histogram_of(table, reading, on_bad_rows=on_bad_rows)
    for kind, count in dropped.items():
        note(f"left out: {count} {kind}")
    return histogram, used


def _quality(curves: Any, histogram: Any) -> dict[str, Any]:
    """What a fit came to, on the rows it was fitted to."""
    result = need("isolayer.monitor", "data").check(curves, histogram)
    before, after = result.log_loss
    return {
        "rows": histogram.rows,
        "contexts": len(result.ratio) - 1 if curves.contexts else 0,
        "curves": len(curves.values),
        "log_loss_before": before,
        "log_loss_after": after,
    }
