"""Commands that fit, apply, watch and hand on calibrators."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.files import save_all, writable
from isolayer.cli.logs import LABELS, SCORES, Json, Log, column, distinct, names, read, scale_of
from isolayer.cli.output import note, show, show_table
from isolayer.errors import InputError, need

CurvesFile = Annotated[Path, typer.Option("--curves", help="The calibrator, as `fit` wrote it.")]
Score = Annotated[str | None, typer.Option(help="Column of scores; guessed if one has a usual name, such as prob.")]
Label = Annotated[
    str | None,
    typer.Option(help="Column of labels, 0 or 1 or between; guessed if one has a usual name, such as click."),
]
Weight = Annotated[str | None, typer.Option(help="Column of weights: 2 counts as the row twice.")]
Contexts = Annotated[str | None, typer.Option(help="Context columns, coarse to fine, with commas between.")]
Scale = Annotated[
    str | None, typer.Option(help="What scores are: logit or prob; guessed from the column's name, never from values.")
]
Rate = Annotated[
    str | None,
    typer.Option(help="Share of negatives that was kept, if they were sampled: a number in (0, 1], or a column."),
]
BadRows = Annotated[str, typer.Option(help="Rows that cannot be used: error ends the command, drop leaves them out.")]

REFIT = "refit with `isolayer fit`, or add the day with `isolayer update`"


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
    files = {"--out": out} if sums is None else {"--out": out, "--sums": sums}
    for option, path in files.items():
        writable(path, option)
    if sums is not None and sums.resolve() == out.resolve():
        raise InputError(f"--sums: expected another file than --out, got {str(sums)!r} for both; rename one")
    by = distinct(names(contexts), "--contexts")
    histogram, used = _histogram(_Rows(log, score, label, weight, scale, negative_rate, on_bad_rows), by)
    _refuse_one_class(histogram)
    curves = need("isolayer.calibrator").IsotonicCalibrator(by, scale=used).fit_histogram(histogram).curves_
    figures = {**_quality(curves, histogram), "written": out}
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
    table, fitted = read(log), _load(curves)
    name = column(score, "--score", SCORES, table.columns, log)
    rows = need("isolayer.tables.apply").apply_table(fitted, table, score=name, prob=column_name)
    count = table.count().to_pyarrow().as_py()
    with need("isolayer.curves.parquet_io").whole_file(out) as part:
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
    """Add a day to a calibrator. The result is the fit of all days, without spec the earlier ones again.

    Both files, the sums and the calibrator, are replaced; if something is wrong, neither is. Give the day the same
    --weight and --negative-rate as the days before.

    Example: isolayer update sums.parquet today.parquet --curves curves.parquet --keep 0.9
    """
    if not 0 < keep < np.inf:
        raise InputError(f"--keep: expected a positive number, got {keep}; 1 keeps the days so far, 0.5 forgets half")
    old, before = need("isolayer.fitting.histogram").Histogram.load(sums), _load(curves)
    if old.contexts != before.contexts:
        raise InputError(
            f"--curves: expected the calibrator of the sums, by {_listed(old.contexts)}, got one by "
            f"{_listed(before.contexts)} in {str(curves)!r}; give the one that `isolayer fit --sums` wrote with them"
        )
    day, _ = _histogram(_Rows(log, score, label, weight, before.scale, negative_rate, on_bad_rows), old.contexts)
    kept = old if keep == 1 else old.scaled(keep)
    total = kept.subtract(day) if remove else kept.merge(day)
    calibrator = need("isolayer.calibrator").IsotonicCalibrator(old.contexts, scale=before.scale)
    fitted = calibrator.fit_histogram(total).curves_
    change = float(np.max(before.compare(fitted)["largest"]))
    figures = {**_quality(fitted, total), "largest_change": change, "written": curves}
    save_all({sums: total, curves: fitted})
    show(figures, as_json=json)


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
    if not 0 < level < 1:
        raise InputError(f"--level: expected a number between 0 and 1, got {level}; try 0.05")
    _refuse_negative(tolerance, "--tolerance")
    fitted = _load(curves)
    rows = _Rows(log, score, label, weight, fitted.scale, negative_rate, on_bad_rows)
    histogram, _ = _histogram(rows, fitted.contexts)
    result = need("isolayer.monitor").check(fitted, histogram, level=level, tolerance=tolerance)
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
    change = _load(old, "old").compare(_load(new, "new"))
    order = np.argsort(-np.asarray(change["largest"], np.float64), kind="stable")
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
    fitted, kind = _load(curves, "curves"), Path(out).suffix
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
        with need("isolayer.curves.parquet_io").whole_file(out) as part:
            part.write_text(statement)
    else:
        fitted.save(out)
    show({**_sizes(fitted), "written": out}, as_json=json)


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
    writable(out, "--out")
    table, fitted = read(log), _load(curves)
    score_name = column(score, "--score", SCORES, table.columns, log)
    label_name = column(label, "--label", LABELS, table.columns)
    need("isolayer.report").write(
        out,
        table,
        fitted,
        score=score_name,
        label=label_name,
        weight=None if weight is None else column(weight, "--weight", (), table.columns),
        date=None if date is None else column(date, "--date", (), table.columns),
        bias=None if bias is None else _load(bias, "--bias"),
        title=title,
    )
    show({"rows": table.count().to_pyarrow().as_py(), "written": out}, as_json=json)


def _load(path: Path, what: str = "--curves") -> Any:
    if not path.exists():
        raise InputError(f"{what}: expected a calibrator at {str(path)!r}, got none; make one with `isolayer fit`")
    return need("isolayer.curves.curves").Curves.load(path)


@dataclass(frozen=True)
class _Rows:
    """What the options say of the rows of a log."""

    log: str
    score: str | None
    label: str | None
    weight: str | None
    scale: str | None
    negative_rate: str | None
    on_bad_rows: str


def _histogram(rows: _Rows, contexts: tuple[str, ...]) -> tuple[Any, str]:
    """Sums of a log, and the scale of its scores."""
    if rows.on_bad_rows not in ("error", "drop"):
        raise InputError(f"--on-bad-rows: expected error or drop, got {rows.on_bad_rows!r}; choose one")
    table = read(rows.log)
    tables, columns = need("isolayer.tables.histogram_query"), list(table.columns)
    for name in contexts:
        column(name, "contexts", (), columns)
    score = column(rows.score, "--score", SCORES, columns, rows.log)
    label = column(rows.label, "--label", LABELS, columns)
    weight = None if rows.weight is None else column(rows.weight, "--weight", (), columns)
    rate, scale = _rate(rows.negative_rate, columns), scale_of(rows.scale, score)
    spec = tables.ColumnSpec(contexts, score, label, weight, scale=scale, negative_rate=rate, missing="own")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tables.RowsDropped)  # said below
            histogram, dropped = tables.histogram_of(table, spec, on_bad_rows=rows.on_bad_rows)
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
    message = message.replace('on_bad_rows="drop"', "--on-bad-rows drop")
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


def _refuse_negative(value: float, option: str) -> None:
    if not value >= 0:
        raise InputError(f"{option}: expected a number of at least 0, got {value}; try 0.05")


def _refuse_one_class(histogram: Any) -> None:
    positive, weight = float(histogram.positive.sum()), float(histogram.weight.sum())
    if not 0 < positive < weight:
        only = "no rows" if weight == 0 else "0 only" if positive == 0 else "1 only"
        raise InputError(f"--label: expected labels of both classes in rows that weigh something, got {only}; check it")


def _listed(contexts: tuple[str, ...]) -> str:
    return ",".join(contexts) or "no contexts"


def _drifted(drifted: Any) -> str:
    """Which drifted, of flags of which the first is of all rows and the others, if any, of contexts.

    >>> _drifted(np.array([True])), _drifted(np.array([False, True, False]))
    ('all rows together', '1 of 2 contexts')
    """
    count = int(drifted[1:].sum())
    parts = [f"{count} of {len(drifted) - 1} contexts"] * (count > 0) + ["all rows together"] * bool(drifted[0])
    return " and ".join(parts)


def _sizes(curves: Any) -> dict[str, int]:
    """How many contexts are told apart, and how many curves that takes with those of their ancestors."""
    return {"contexts": len(curves.keys[-1][0]) if curves.contexts else 0, "curves": len(curves.values)}


def _quality(curves: Any, histogram: Any) -> dict[str, Any]:
    """What a fit came to, on the rows it was fitted to."""
    before, after = need("isolayer.monitor").check(curves, histogram).log_loss
    return {"rows": histogram.rows, **_sizes(curves), "log_loss_before": before, "log_loss_after": after}
