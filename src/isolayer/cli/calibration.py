"""Commands that make and use calibrators: fit, update, apply, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from isolayer.cli.columns import SCORES, column, distinct, names
from isolayer.cli.files import save_all, writable
from isolayer.cli.logs import Json, Log, read
from isolayer.cli.output import show
from isolayer.cli.sums import (
    BadRows,
    Contexts,
    CurvesFile,
    Label,
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
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.storage import whole_file


def fit(
    log: Log,
    out: Annotated[Path, typer.Option(help="Where to write the calibrator.")] = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    contexts: Contexts = None,
    weight: Weight = None,
    scale: Scale = None,
    negative_rate: Rate = None,
    sums: Annotated[Path | None, typer.Option(help="Also write the sums, for `update` to add days to.")] = None,
    on_bad_rows: BadRows = "error",
    json: Json = False,
) -> None:
    """Fit a calibrator to a log of scores and labels. One monotone curve a context, exactly, with nothing to tune.

    Only sums leave the engine that reads the log. Without --contexts there is one curve for all rows; with
    --contexts platform,position each platform is drawn to all rows, and each position to its platform.

    A log without scores gets them by `isolayer train` and `isolayer score`. From here go on with `isolayer report`
    to look at the fit, `isolayer apply` or `isolayer export` to use it, and `isolayer check` to watch it.

    Example: isolayer fit 'logs/*.parquet' --score prob --label click --contexts platform,position
    """
    from isolayer.calibrator import IsotonicCalibrator

    files = {"--out": out} if sums is None else {"--out": out, "--sums": sums}
    for option, path in files.items():
        writable(path, option)
    if sums is not None and sums.resolve() == out.resolve():
        raise InputError(f"--sums: expected another file than --out, got {str(sums)!r} for both; rename one")
    table = read(log)
    by = distinct(names(contexts, table.columns), "--contexts")
    histogram, used = histogram_of_log(Rows(log, table, score, label, weight, scale, negative_rate, on_bad_rows), by)
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
    writable(out, "--out")
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
    keep: Annotated[float, typer.Option(help="What the days so far still count for: 0.5 forgets half.")] = 1.0,
    remove: Annotated[bool, typer.Option("--remove", help="Take the day out again instead.")] = False,
    on_bad_rows: BadRows = "error",
    json: Json = False,
) -> None:
    """Add a day to a calibrator. The result is the fit of all days, without reading the earlier ones again.

    Both files, the sums and the calibrator, are replaced; if something is wrong, neither is. Give the day the same
    --weight and --negative-rate as the days before.

    Example: isolayer update sums.parquet today.parquet --curves curves.parquet --keep 0.9
    """
    from isolayer.calibrator import IsotonicCalibrator

    if not 0 < keep < np.inf:
        raise InputError(f"--keep: expected a positive number, got {keep}; 1 keeps the days so far, 0.5 forgets half")
    old, before = Histogram.load(sums), load(curves)
    if old.contexts != before.contexts:
        raise InputError(
            f"--curves: expected the calibrator of the sums, by {_listed(old.contexts)}, got one by "
            f"{_listed(before.contexts)} in {str(curves)!r}; give the one that `isolayer fit --sums` wrote with them"
        )
    day, _ = histogram_of_log(
        Rows(log, read(log), score, label, weight, before.scale, negative_rate, on_bad_rows), old.contexts
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
    writable(Path(out), "--out")
    if kind == ".onnx":
        fitted.to_onnx(out)
    elif kind == ".sql":
        statement = fitted.to_sql(dialect) + "\n"
        with whole_file(out) as part:
            part.write_text(statement)
    else:
        fitted.save(out)
    show({**sizes(fitted), "written": out}, as_json=json)


def _refuse_one_class(histogram: Histogram) -> None:
    positive, weight = float(histogram.positive.sum()), float(histogram.weight.sum())
    if not 0 < positive < weight:
        only = "no rows" if weight == 0 else "0 only" if positive == 0 else "1 only"
        raise InputError(f"--label: expected labels of both classes in rows that weigh something, got {only}; check it")


def _listed(contexts: tuple[str, ...]) -> str:
    return ",".join(contexts) or "no contexts"
