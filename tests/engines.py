"""Every way to ask curves, behind one signature, and what must come out: for ``test_engines.py`` and its campaign.

An engine takes curves and a table with the columns ``id``, ``score`` and the contexts, and gives one probability per
row in the order of ``id``: NaN where the score cannot be used. It raises `Refused` where the columns have a type it
refuses, and `Unheld` where it has no such values at all. `answers` asks an engine about many cases, in one statement
where a statement is slow.
"""

import tempfile
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from servers import Failed

from isolayer.curves.curves import Curves
from isolayer.curves.export.onnx import predict, session, to_onnx
from isolayer.curves.export.sql import to_sql
from isolayer.errors import InputError
from isolayer.tables.apply import apply_table

Answer = np.ndarray
Engine = Callable[[Curves, pa.Table], Answer]
Case = tuple[Curves, pa.Table]

PROB = "isolayer_test_prob"  # the name of the new column, which no table has


class Refused(Exception):
    """An engine refused the columns it was given."""


class Unheld(Exception):
    """An engine cannot hold such values."""


def oracle(curves: Curves, table: pa.Table) -> Answer:
    """What the contract says, row by row, without any of the code that is tested."""
    found = {}
    for depth, keys in enumerate(curves.keys):
        for place in range(len(keys[0]) if keys else 1):
            path = tuple(canonical(key[place]) for key in keys)
            found[path] = curves.starts[depth] + place
    columns = [table[name].to_pylist() for name in curves.contexts]
    answers = []
    for place, score in enumerate(table["score"].to_pylist()):
        path, row = (), 0
        for column in columns:
            path = (*path, canonical(column[place]))
            if path not in found:
                break
            row = found[path]
        answers.append(probability(curves, row, score))
    return np.array(answers, np.float64)


def canonical(value: Any) -> Any:
    """A context's value with its type: whole numbers are integers, NaN is missing, True is not 1."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value != value:
        return None
    if isinstance(value, float | Decimal) and abs(value) < 2**64 and value == int(value):
        value = int(value)
    return type(value).__name__, value


def probability(curves: Curves, row: int, score: Any) -> float:
    """The calibrated probability of one score; NaN if it cannot be used."""
    x = float("nan") if score is None else float(score)
    if not np.isfinite(x) or (curves.scale == "prob" and not 0 <= x <= 1):
        return float("nan")
    if curves.scale == "prob":
        x = min(max(x, 1e-15), 1 - 1e-15)
        x = float(np.log(x / (1 - x)))
    grid = curves.grid
    y = float(np.interp(x, grid.knots[1:], curves.values[row]))
    if curves.extrapolation == "extend":
        y += min(x - grid.lower, 0.0) + max(x - grid.upper, 0.0)
    return float(1 / (1 + np.exp(-min(max(y, -700.0), 36.0))))


def usable(curves: Curves, table: pa.Table) -> np.ndarray:
    """Which scores can be used."""
    score = np.array([np.nan if value is None else float(value) for value in table["score"].to_pylist()])
    return np.isfinite(score) & ((score >= 0) & (score <= 1) if curves.scale == "prob" else True)


def contexts(curves: Curves, table: pa.Table) -> dict[str, Any] | None:
    return {name: table[name] for name in curves.contexts} or None


def python(curves: Curves, table: pa.Table) -> Answer:
    """Numpy, which refuses a column with a score that cannot be used, and is then asked about the others."""
    good = usable(curves, table)
    if not good.all():
        try:
            curves.predict_proba(table["score"], contexts(curves, table))
        except InputError:
            pass
        else:
            raise AssertionError("numpy took a score that cannot be used")
    kept = table.filter(pa.array(good))
    return spread(good, refusing(InputError, lambda: curves.predict_proba(kept["score"], contexts(curves, kept))))


def frames(curves: Curves, table: pa.Table) -> Answer:
    """Numpy, asked by pandas and by polars, which must agree."""
    import polars as pl

    kept = table.filter(pa.array(usable(curves, table)))
    some = [name for name in curves.contexts if pa.types.is_null(table[name].type)]
    if some:
        raise Unheld("frames have no type for nothing")
    answers = [
        refusing(InputError, lambda frame=frame: curves.predict_proba(frame["score"], frame))
        for frame in (kept.to_pandas(integer_object_nulls=True), pl.from_arrow(kept))
    ]
    np.testing.assert_array_equal(*answers)
    return spread(usable(curves, table), answers[0])


def ibis_frame(curves: Curves, table: pa.Table) -> Answer:
    return in_order(refusing((InputError, duckdb.Error), lambda: apply_table(curves, table, prob=PROB).to_pyarrow()))


def ibis_parquet(curves: Curves, table: pa.Table) -> Answer:
    """A file, of whose columns DuckDB knows the least and the largest value."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(table, path)
        return in_order(refusing((InputError, duckdb.Error), lambda: apply_table(curves, path, prob=PROB).to_pyarrow()))


def relation(curves: Curves, table: pa.Table) -> Answer:
    with duckdb.connect() as connection:
        rows = connection.from_arrow(table)
        return in_order(
            refusing((InputError, duckdb.Error), lambda: apply_table(curves, rows, prob=PROB).to_arrow_table())
        )


def duckdb_text(curves: Curves, table: pa.Table) -> Answer:
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        path = Path(folder) / "rows.parquet"
        pq.write_table(table, path)
        answers = []
        for source in (f"'{path}'", "logs"):
            connection.register("logs", table)
            sql = to_sql(curves, "duckdb", table=source, prob=PROB, keep=["id"])
            answers.append(in_order(refusing(duckdb.Error, lambda sql=sql: connection.sql(sql).to_arrow_table())))
    np.testing.assert_array_equal(*answers)
    return answers[0]


def onnx(curves: Curves, table: pa.Table) -> Answer:
    """Onnxruntime, whose inputs are strings, integers or booleans of 64-bit scores."""
    context = {}
    for name in curves.contexts:
        context[name] = np.empty(len(table), dtype=object)
        context[name][:] = table[name].to_pylist()
    score = np.array([np.nan if value is None else float(value) for value in table["score"].to_pylist()])
    with tempfile.TemporaryDirectory() as folder:
        to_onnx(curves, Path(folder) / "curves.onnx")
        model = session(Path(folder) / "curves.onnx")
    return refusing((InputError, OverflowError), lambda: predict(model, score, context))


class Postgres:
    """A statement in Postgres."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask

    def __call__(self, curves: Curves, table: pa.Table) -> Answer:
        if self.unheld(table):
            raise Unheld(self.unheld(table))
        return self.together([(curves, table)])[0]

    def unheld(self, table: pa.Table) -> str | None:
        try:
            copied("logs", table)
        except Unheld as reason:
            return str(reason)
        return None

    def together(self, cases: list[Case]) -> list[Answer]:
        """Answers to all cases by one statement; it fails if any of them does."""
        sources = [f"logs_{place}" for place in range(len(cases))]
        self.ask("\n".join(copied(name, table) for name, (_, table) in zip(sources, cases, strict=True)))
        sql = united(
            [
                to_sql(case[0], "postgres", table=name, prob=PROB, keep=["id"])
                for case, name in zip(cases, sources, strict=True)
            ]
        )
        rows = refusing(Failed, lambda: self.ask(f"{sql} ORDER BY 1, 2"))
        found: list[list[float]] = [[] for _ in cases]
        for place, _, prob in rows:
            found[int(place)].append(float(prob) if prob else np.nan)
        return [np.array(one, np.float64) for one in found]


def copied(name: str, table: pa.Table) -> str:
    """Commands for psql that make a table and fill it."""
    columns = ", ".join(f"{quoted(field.name)} {postgres_type(field.type)}" for field in table.schema)
    rows = ["\t".join(postgres_text(value) for value in row.values()) + "\n" for row in table.to_pylist()]
    return (
        f"DROP TABLE IF EXISTS {name}; CREATE TABLE {name} ({columns});\nCOPY {name} FROM STDIN;\n{''.join(rows)}\\.\n"
    )


def united(statements: list[str]) -> str:
    """One statement for the answers of many, each row with the number of the one that it belongs to."""
    return " UNION ALL ".join(
        f"SELECT {place} AS place, id, {PROB} FROM ({one}) AS a{place}" for place, one in enumerate(statements)
    )


def postgres_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    names = {
        "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint", "uint8": "smallint",
        "uint16": "integer", "uint32": "bigint", "uint64": "numeric(20, 0)", "float": "real",
        "double": "double precision", "bool": "boolean", "string": "text", "date32[day]": "date", "binary": "bytea",
    }  # fmt: skip
    if str(kind) not in names:
        raise Unheld(f"Postgres has no {kind}")
    return names[str(kind)]


def postgres_text(value: Any) -> str:
    """A value as COPY reads it."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, str) and "\0" in value:
        raise Unheld("Postgres has no NUL")
    escapes = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    return repr(value) if isinstance(value, float) else str(value).translate(str.maketrans(escapes))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Spark:
    """A statement in Spark, or with a backend of Ibis `apply_table` there."""

    def __init__(self, spark: Any, backend: Any = None) -> None:
        self.spark, self.backend = spark, backend

    def __call__(self, curves: Curves, table: pa.Table) -> Answer:
        from pyspark.errors import PySparkException

        if any(pa.types.is_null(field.type) for field in table.schema):
            raise Unheld("Spark reads no Parquet of nothing")
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pq.write_table(table, Path(folder) / "rows.parquet")
            return in_order(
                refusing((InputError, PySparkException), lambda: self.answer(curves, f"{folder}/rows.parquet"))
            )

    def answer(self, curves: Curves, path: str) -> pa.Table:
        self.spark.read.parquet(path).createOrReplaceTempView("logs")
        if self.backend is not None:
            return apply_table(curves, self.backend.table("logs"), prob=PROB).select("id", PROB).to_pyarrow()
        sql = to_sql(curves, "spark", table="logs", prob=PROB, keep=["id"])
        rows = self.spark.sql(sql).select("id", PROB).collect()
        return pa.table({"id": [row[0] for row in rows], PROB: pa.array([row[1] for row in rows], pa.float64())})


EMBEDDED: dict[str, Engine] = {
    "numpy": python,
    "frames": frames,
    "ibis": ibis_frame,
    "ibis parquet": ibis_parquet,
    "relation": relation,
    "duckdb": duckdb_text,
    "onnx": onnx,
}


def answers(engine: Engine, cases: list[Case], *, most: int = 30) -> list[Answer | Exception]:
    """The answers of an engine to many cases, or why there is none."""
    if hasattr(engine, "together"):
        reasons = {place: engine.unheld(table) for place, (_, table) in enumerate(cases)}
        held = [case for place, case in enumerate(cases) if reasons[place] is None]
        parts = [_together(engine, held[start : start + most]) for start in range(0, len(held), most)]
        found = iter([answer for part in parts for answer in part])
        return [next(found) if reason is None else Unheld(reason) for reason in reasons.values()]
    return [_alone(engine, case) for case in cases]


def _together(engine: Any, cases: list[Case]) -> list[Answer | Exception]:
    """Answers by one statement; if it is refused, by one for each half."""
    if len(cases) < 2:
        return [_alone(engine, case) for case in cases]
    try:
        return list(engine.together(cases))
    except Refused:
        return _together(engine, cases[: len(cases) // 2]) + _together(engine, cases[len(cases) // 2 :])


def _alone(engine: Engine, case: Case) -> Answer | Exception:
    try:
        return engine(*case)
    except (Refused, Unheld) as reason:
        return reason


def refusing(errors: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except errors as error:
        raise Refused(str(error)) from error


def in_order(answer: pa.Table) -> Answer:
    column = answer.sort_by("id")[PROB]
    return pc.fill_null(column, np.nan).to_numpy()


def spread(good: np.ndarray, answer: Answer) -> Answer:
    """Answers of the rows that could be asked about among all rows."""
    out = np.full(len(good), np.nan)
    out[good] = answer
    return out
