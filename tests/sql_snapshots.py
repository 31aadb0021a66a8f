"""The SQL that users' engines get, kept as files so that a change of it is seen: ``python tests/sql_snapshots.py``."""

from pathlib import Path

import ibis
import numpy as np

from isolayer.curves.curves import Curves
from isolayer.curves.export.dialects import DIALECTS
from isolayer.curves.export.sql import to_sql
from isolayer.grid import Grid
from isolayer.tables.histogram_query import ColumnSpec, grouped

FOLDER = Path(__file__).parent / "sql"
COLUMNS = {"score": "float64", "label": "int8", "weight": "float64", "device": "string", "position": "int64"}


def curves() -> Curves:
    """Three knots, two devices, one of them with a position of its own: all numbers exact in binary."""
    values = np.array([[-2.0, 0.5, 2.0], [-3.0, 0.0, 1.5], [-2.5, 0.25, 2.5], [-1.0, 0.75, 4.0]])
    keys = ((), (np.array(["tv", "web"]),), (np.array(["web"]), np.array([0])))
    some = np.ones_like(values)
    return Curves(Grid(lower=-2, upper=2, step=2), ("device", "position"), keys, values, some, some, some[:, 0])


def statements() -> dict[str, str]:
    """Every statement by the name of its file."""
    rows = ibis.table(COLUMNS, name="logs")
    reading = ColumnSpec(("device", "position"), weight="weight", scale="prob", folds=5)
    found = {}
    for dialect in DIALECTS:
        if dialect != "spark":  # Ibis needs a running Spark for that; tests/test_spark.py has one
            found[f"fit.{dialect}.sql"] = f"{ibis.to_sql(grouped(rows, reading), dialect=dialect)}\n"
        found[f"apply.{dialect}.sql"] = f"{to_sql(curves(), dialect, table='logs', keep=['id'])}\n"
    return found


if __name__ == "__main__":
    for name, statement in statements().items():
        (FOLDER / name).write_text(statement)
