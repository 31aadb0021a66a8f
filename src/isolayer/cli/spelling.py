"""CSV whose values are written exactly as they were read: ``007`` stays ``007``, and a date keeps its format.

DuckDB guesses the type of each column and does not keep the original text. Here every column is read as text; columns
that are needed as values, such as the score, are then converted from the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isolayer.curves.export.sql import own_prefix


class Spelled(NamedTuple):
    """Rows of a CSV file.

    Args:
        table: The rows; columns that are needed as values have their types, all others are text.
        columns: Names of all columns, in the order of the file.
        text: For each column that is needed as values, the name of the column with its text.
        row: The column of row numbers.
    """

    table: Any
    columns: tuple[str, ...]
    text: dict[str, str]
    row: str

    def restored(self, rows: Any, *added: str) -> Any:
        """The rows as text in their original order, with the added columns."""
        own = {name: rows[self.text.get(name, name)] for name in self.columns}
        return rows.order_by(rows[self.row]).select(**own, **{name: rows[name] for name in added})


def spelled(typed: Any, text: Any, files: str, used: Sequence[str]) -> Spelled | None:
    """Rows with the original text of the columns that are needed as values.

    Args:
        typed: The rows by the types that DuckDB guessed.
        text: The same as text.
        files: The files, for DuckDB.
        used: Columns that are needed as values.

    Returns:
        None if the two readings do not have the same columns.
    """
    if tuple(typed.columns) != tuple(text.columns):
        return None
    import ibis

    own = own_prefix(typed.columns)
    names = {name: f"{own}_text_{place}" for place, name in enumerate(dict.fromkeys(used))}
    formats = _formats(files)
    kept = {names[name]: text[name] for name in names}
    values = {name: _value(text[name], typed[name].type(), formats) for name in names}
    row = f"{own}_row"  # joins give rows in any order
    return Spelled(text.mutate(**kept, **values, **{row: ibis.row_number()}), tuple(typed.columns), names, row)


def _formats(files: str) -> tuple[str | None, str | None]:
    """How dates and times are written in the first of the files, as DuckDB guesses it."""
    from isolayer.tables.sources import engine

    ask = engine().con.execute
    ((file,),) = ask("SELECT file FROM glob(?) LIMIT 1", [files]).fetchall() or ((files,),)
    ((date, time),) = ask("SELECT DateFormat, TimestampFormat FROM sniff_csv(?)", [file]).fetchall()
    return date, time


def _value(text: Any, kind: Any, formats: tuple[str | None, str | None]) -> Any:
    """Text converted to its type; dates and times by the guessed format."""
    date, time = formats
    if kind.is_date() and date is not None:
        return text.as_date(date)
    if kind.is_timestamp() and time is not None:
        return text.as_timestamp(time).cast(kind)
    return text if kind.is_string() else text.cast(kind)


def is_csv(path: Path) -> bool:
    """Whether a file of this name is written as CSV; - is.

    >>> is_csv(Path("-")), is_csv(Path("a.CSV.gz")), is_csv(Path("a.parquet"))
    (True, True, False)
    """
    return str(path) == "-" or path.name.lower().endswith((".csv", ".csv.gz"))
