"""The command that writes a calibrator for other engines: ONNX, Parquet, or SQL: a statement, a view, a dbt model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.columns import names
from isolayer.cli.files import check_output
from isolayer.cli.logs import Json
from isolayer.cli.output import show
from isolayer.cli.sums import load, sizes
from isolayer.curves.curves import Curves
from isolayer.curves.export.statements import FORMS, statement
from isolayer.errors import InputError
from isolayer.storage import whole_file


def export(
    curves: Annotated[Path, typer.Argument(help="The calibrator, as `fit` wrote it.")],
    out: Annotated[str, typer.Option(help="Where to write it: .onnx, .sql or .parquet; - prints SQL.")] = "-",
    sql: Annotated[bool, typer.Option("--sql", help="Write SQL, whatever --out is called.")] = False,
    dialect: Annotated[
        str, typer.Option(help="SQL dialect: duckdb, spark, bigquery, snowflake, trino, postgres.")
    ] = "duckdb",
    table: Annotated[
        str, typer.Option(help="SQL: the table to read, as in a FROM clause; for dbt a model, or SOURCE.TABLE.")
    ] = "scores",
    score: Annotated[
        str | None, typer.Option(help="SQL: the score column of that table; by default the one of the fit.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="SQL: further columns to keep besides the score and the contexts, comma-separated."),
    ] = None,
    column: Annotated[str, typer.Option("--column", help="SQL: name of the new column.")] = "calibrated_prob",
    form: Annotated[
        str, typer.Option("--as", help="SQL: select for a statement, view for CREATE VIEW, dbt for a dbt model.")
    ] = "select",
    name: Annotated[str, typer.Option(help="SQL: name of the view.")] = "calibrated",
    json: Json = False,
) -> None:
    """Write a calibrator as ONNX, as one SQL statement or as Parquet.

    The statement can be run unchanged on the table that --table names, if its columns have the same names as in the
    fit.

    Example: isolayer export curves.parquet --out curves.onnx

    Example: isolayer export curves.parquet --sql --dialect postgres --table logs.today --keep id --as view
    """
    fitted, kind = load(curves, "curves"), ".sql" if sql or out == "-" else Path(out).suffix
    if form not in FORMS:
        raise InputError(f"--as: expected {', '.join(FORMS)}, got {form!r}; choose one")
    if kind not in (".onnx", ".sql", ".parquet"):
        raise InputError(f"--out: expected a name ending in .onnx, .sql or .parquet, got {out!r}; rename it")
    if out != "-":
        check_output(Path(out), "--out", curves)
    if kind == ".sql":
        fields: dict[str, Any] = {"score": score or fitted.score_name or "score", "prob": column, "keep": names(keep)}
        _write_sql(statement(fitted, dialect, form=form, name=name, table=table, **fields), out, fitted, json)
        return
    if kind == ".onnx":
        fitted.to_onnx(out)
    else:
        fitted.save(out)
    show({**sizes(fitted), "written": out}, as_json=json)


def _write_sql(text: str, out: str, fitted: Curves, json: bool) -> None:
    """Print a statement, in the document if there is one, or write it to a file."""
    if out == "-":
        if json:
            show({**sizes(fitted), "sql": text}, as_json=True)
        else:
            print(text)
        return
    with whole_file(out) as part:
        part.write_text(text + "\n")
    show({**sizes(fitted), "written": out}, as_json=json)
