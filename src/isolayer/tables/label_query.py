"""Labels of a table as numbers: numbers and booleans as they are, text by :mod:`isolayer.fitting.label_words`."""

from __future__ import annotations

from typing import Any

import ibis

from isolayer.fitting.label_words import NO, YES, refuse_words
from isolayer.tables.sources import Value, collect, double, is_number, schema_of

_MOST = 20  # most distinct words that are fetched


def can_be_labels(kind: Any) -> bool:
    """Whether a column of this type can be labels: numbers, booleans or words."""
    return bool(is_number(kind) or kind.is_string())


def label_numbers(column: Value) -> Value:
    """A column of labels as numbers or booleans; words that are not labels become NULL.

    >>> import pyarrow as pa
    >>> label_numbers(ibis.memtable(pa.table({"bought": ["Yes", "n", "?"]})).bought).to_pyarrow().to_pylist()
    [1.0, 0.0, None]
    """
    if not column.type().is_string():
        return column
    word = column.strip().lower()
    return ibis.cases((word.isin(YES), double(1)), (word.isin(NO), double(0)))


def refuse_other_words(source: Any, name: str, on_bad_rows: str = "error") -> None:
    """Raise if a column of labels has words that are not labels; with ``"drop"``, only if it has no others."""
    columns = schema_of(source)
    if name not in columns or not columns[name].is_string():
        return
    words = collect(source, lambda table: _words(table[name].name("word").as_table())).to_pylist()
    unread = [row["word"] for row in words if row["number"] is None and row["word"] is not None]
    if on_bad_rows == "error" or all(row["number"] is None for row in words):
        refuse_words(f"column {name}", unread)


def _words(table: Any) -> Any:
    known = table.mutate(number=label_numbers(table["word"])).distinct()
    return known.order_by(known["number"].isnull(), known["word"]).limit(_MOST)
