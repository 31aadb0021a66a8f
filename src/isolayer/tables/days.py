"""How days sort: which values of a column are days, in an order that is that of time.

Dates, times and numbers sort as they are. Text sorts in time only if its largest unit comes first and all of it is
written alike.
"""

from __future__ import annotations

from typing import Any

import ibis

from isolayer.errors import InputError
from isolayer.tables.sources import Table, Value, finite

Day = int | float | str  # as it is kept with the curves

_MONTH, _DAY = "(0[1-9]|1[0-2])", "(0[1-9]|[12][0-9]|3[01])"
_FORMS = (*(f"{mark}{_MONTH}({mark}{_DAY})?" for mark in ("-", "/", "[.]")), _MONTH + _DAY, "-?W[0-5][0-9](-?[1-7])?")
_WRITTEN = f"^([0-9]{{4}}({'|'.join(_FORMS)}))([T ][0-9][0-9].*)?$"
_ADVICE = "write days as 2026-09-25, or as numbers"


def labels(values: Value) -> Value:
    """A column as names of days or clusters, in no order: days of timestamps, whole numbers, anything else as text."""
    values = values.date() if values.type().is_timestamp() else values
    if values.type().is_date():  # not by a cast, which DuckDB answers with the text of a CSV file, in any format
        return values.strftime("%Y-%m-%d")
    return values if values.type().is_integer() else values.cast("string")


def sorted_days(table: Table, name: str) -> Value:
    """A column as days that sort in time: numbers or text, NULL where there is none; an error if text does not sort.

    >>> from isolayer.tables.sources import as_table
    >>> table = as_table({"day": ["25 Sep 2026", "1 Oct 2026"]})
    >>> sorted_days(table, "day")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: days: expected text that sorts in time in 'day', such as 2026-09-25, got '1 Oct 2026';
    write days as 2026-09-25, or as numbers
    """
    values = table[name]
    if values.type().is_floating() or values.type().is_decimal():  # whole numbers too, if pandas had to leave one out
        return finite(values).ifelse(values.cast("float64"), ibis.null("float64"))
    if values.type().is_timestamp() or values.type().is_date() or values.type().is_integer():
        return labels(values)
    text = values.cast("string")
    days = text.re_extract(_WRITTEN, 1)
    _refuse_unsorted(table.select(day=text, form=days.re_replace("[0-9]", "0")), name)
    return text.isnull().ifelse(ibis.null("string"), days)


def as_kept(day: Any) -> Any:
    """A day that was fetched, as it is kept and said: whole numbers without a fraction.

    >>> as_kept(1039.0), as_kept("2026-09-25"), as_kept(None)
    (1039, '2026-09-25', None)
    """
    return int(day) if isinstance(day, float) and day.is_integer() else day


def from_day(table: Table, name: str, first: Day) -> Value:
    """Whether rows are of a day or of a later one; those without a day are not."""
    days = sorted_days(table, name)
    if isinstance(first, str) != days.type().is_string():
        kind = "text" if days.type().is_string() else "numbers"
        raise InputError(f"days: expected days such as {first!r} in {name!r}, as in the fit, got {kind}; fit again")
    if isinstance(first, str) and not table[name].type().is_temporal():
        _refuse_unsorted(table.select(day=days, form=days.re_replace("[0-9]", "0")), name, first)
    return (days >= first).fill_null(False)


def _refuse_unsorted(written: Table, name: str, first: str | None = None) -> None:
    """Raise unless all days are written as text that sorts, and alike: as ``first`` if it is given."""
    written = written.filter(written.day.notnull())
    found = written.group_by("form").agg(day=written.day.min()).to_pyarrow().to_pylist()
    examples = {row["form"]: row["day"] for row in sorted(found, key=lambda row: row["form"])}
    if "" in examples:
        raise InputError(
            f"days: expected text that sorts in time in {name!r}, such as 2026-09-25, got {examples['']!r}; {_ADVICE}"
        )
    if first is not None:
        examples |= {"".join("0" if sign.isdigit() else sign for sign in first): first}
    if len(examples) > 1:
        one, two, *_ = examples.values()
        raise InputError(
            f"days: expected days that are all written alike in {name!r}, got {one!r} and {two!r}; {_ADVICE}"
        )
