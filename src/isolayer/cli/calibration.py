"""Commands that make and use calibrators: fit, update, apply, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from isolayer.cli.columns import SCORES, column, distinct, names
from isolayer.cli.files import check_output, save_all
from isolayer.cli.logs import Json, Log, read
from isolayer.cli.output import show
from isolayer.cli.sums import (
    BadRows,
    Contexts,
    CurvesFile,
    Label,
    Missing,
    Rate,
    Rows,
    Scale,
    Score,
    Weight,
    histogram_of_log,
    load,
    quality,
    sizes,
)
from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.storage import locked, whole_file


def fit(
    log: Log,
    out: Annotated[Path, typer.Option(help="Where to write the calibrator.")] = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    contexts: Contexts = None,
    weight: Weight = None,
    scale: Scale = None,
    negative_rate: Rate = None,
    sums: Annotated[
        Path | None, typer.Option(help="Also write the sums of this log, to which `update` adds days.")
    ] = None,
    on_bad_rows: BadRows = "error",
    missing: Missing = "error",
    json: Json = False,
) -> None:
    """Fit a calibrator to a log of scores and labels. One monotone curve per context, fitted exactly; nothing to tune.

    Only sums leave the engine that reads the log. Without --contexts there is one curve for all rows. With --contexts
    platform,position there is one curve per platform, shrunk towards that of all rows, and one per position on each
    platform, shrunk towards that of the platform.

    For a log without scores, run `isolayer train` and `isolayer score` first. Afterwards, `isolayer report` shows the
    fit, `isolayer apply` and `isolayer export` use it, and `isolayer check` watches it.

    Example: isolayer fit 'logs/*.parquet' --score prob --label click --contexts platform,position
    """
    from isolayer.calibrator import IsotonicCalibrator

    files = {"--out": out} if sums is None else {"--out": out, "--sums": sums}
    for option, path in files.items():
        check_output(path, option, log)
    if sums is not None and sums.resolve() == out.resolve():
        raise InputError(f"--sums: expected another file than --out, got {str(sums)!r} for both; rename one")
    table = read(log)
    by = distinct(names(contexts, table.columns), "--contexts")
    histogram, used = histogram_of_log(
        Rows(log, table, score, label, weight, scale, negative_rate, on_bad_rows, missing), by
    )
    _refuse_one_class(histogram)
    curves = IsotonicCalibrator(by, scale=used).fit_histogram(histogram).curves_
    figures = {**quality(curves, histogram), "written": out}
    save_all(dict(zip(files.values(), (curves, histogram), strict=False)))
    show(figures, as_json=json)


def apply(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    out: Annotated[Path, typer.Option(help="Where to write the rows, as Parquet.")] = Path("calibrated.parquet"),
    score: Score = None,
    column_name: Annotated[str, typer.Option("--column", help="Name of the new column.")] = "calibrated_prob",
    json: Json = False,
) -> None:
    """Add a column of calibrated probabilities to a log. Rows never leave the engine that reads them.

    Example: isolayer apply 'today/*.parquet' --curves curves.parquet --score prob --out calibrated.parquet
    """
    check_output(out, "--out", log, curves)
    table, fitted = read(log), load(curves)
    name = column(score, "--score", SCORES, table.columns, log)
    rows = fitted.apply_table(table, score=name, prob=column_name)
    count = table.count().to_pyarrow().as_py()
    with whole_file(out) as part:
        rows.to_parquet(part)
    show({"rows": count, "column": column_name, "written": out}, as_json=json)


def update(
    sums: Annotated[Path, typer.Argument(help="Sums of the days so far, as `fit --sums` wrote them.")],
    log: Annotated[str, typer.Argument(help="The new day's log.")],
    curves: CurvesFile = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    negative_rate: Rate = None,
    keep: Annotated[float, typer.Option(help="Weight of the days so far: 0.5 counts them half.")] = 1.0,
    remove: Annotated[bool, typer.Option("--remove", help="Take the day out again instead.")] = False,
    on_bad_rows: BadRows = "error",
    missing: Missing = "error",
    json: Json = False,
) -> None:
    """Add a day to a calibrator. The result is the fit of all days, without reading the earlier ones again.

    Both files, the sums and the calibrator, are replaced together; if something is wrong, neither is. Two updates of
    the same files wait for each other. Give the day the same --weight and --negative-rate as the days before.

    Example: isolayer update sums.parquet today.parquet --curves curves.parquet --keep 0.9
    """
    from isolayer.calibrator import IsotonicCalibrator

    if not 0 < keep < np.inf:
        raise InputError(f"--keep: expected a positive number, got {keep}; 1 keeps the days so far, 0.5 forgets half")
    for path, option in ((sums, "SUMS"), (curves, "--curves")):
        check_output(path, option, log)
    table = read(log)
    with locked(sums, curves):
        old, before = Histogram.load(sums), load(curves)
        _refuse_strangers(old, before, curves)
        before.check_sums(old)
        day, _ = histogram_of_log(
            Rows(log, table, score, label, weight, before.scale, negative_rate, on_bad_rows, missing), old.contexts
        )
        kept = old if keep == 1 else old.scaled(keep)
        total = kept.subtract(day) if remove else kept.merge(day)
        calibrator = IsotonicCalibrator(old.contexts, scale=before.scale)
        fitted = calibrator.fit_histogram(total).curves_
        change = float(np.max(before.compare(fitted)["largest"]))
        figures = {**quality(fitted, total), "largest_change": change, "written": curves}
        save_all({sums: total, curves: fitted})
    show(figures, as_json=json)


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
    fitted, kind = load(curves, "curves"), Path(out).suffix
    if out == "-":
        print(fitted.to_sql(dialect))
        return
    if kind not in (".onnx", ".sql", ".parquet"):
        raise InputError(f"--out: expected a name ending in .onnx, .sql or .parquet, got {out!r}; rename it")
    check_output(Path(out), "--out", curves)
    if kind == ".onnx":
        fitted.to_onnx(out)
    elif kind == ".sql":
        statement = fitted.to_sql(dialect) + "\n"
        with whole_file(out) as part:
            part.write_text(statement)
    else:
        fitted.save(out)
    show({**sizes(fitted), "written": out}, as_json=json)


def _refuse_strangers(sums: Histogram, curves: Curves, path: Path) -> None:
    """Raise unless the calibrator is the one of the sums."""
    if sums.contexts != curves.contexts:
        raise InputError(
            f"--curves: expected the calibrator of the sums, by {_listed(sums.contexts)}, got one by "
            f"{_listed(curves.contexts)} in {str(path)!r}; give the one that `isolayer fit --sums` wrote with them"
        )


def _refuse_one_class(histogram: Histogram) -> None:
    positive, weight = float(histogram.positive.sum()), float(histogram.weight.sum())
    if not 0 < positive < weight:
        only = "no rows" if weight == 0 else "0 only" if positive == 0 else "1 only"
        raise InputError(f"--label: expected labels of both classes in rows that weigh something, got {only}; check it")


def _listed(contexts: tuple[str, ...]) -> str:
    return ",".join(contexts) or "no contexts"
