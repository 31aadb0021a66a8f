"""What commands print: results on stdout, as a table or as JSON, and everything else on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from isolayer.cli import visible
from isolayer.cli.document import document, plain, running


def note(text: str) -> None:
    """Print a line for people on stderr, each text once; the JSON document of the command repeats it.

    >>> note("guessed: --label click")
    """
    if text in running().notes:
        return
    running().notes.append(text)
    Console(stderr=True, highlight=False, soft_wrap=True).print(visible(text), markup=False)


def show(numbers: dict[str, Any], *, as_json: bool, verdict: str = "done") -> None:
    """Print named figures, one per line, or the JSON document of the command, which also has the verdict.

    >>> show({"rows": 3}, as_json=False)
    rows  3
    """
    if as_json:
        print(json.dumps(document(numbers, verdict=verdict)))
        return
    width = max(len(name) for name in numbers)
    for name, value in numbers.items():
        print(f"{name.replace('_', ' '):<{width}}  {text(value)}")


def show_table(
    columns: Mapping[str, Sequence[Any]], *, as_json: bool, most: int | None = None, title: str = ""
) -> None:
    """Print the first ``most`` rows of columns as a table, or all rows as JSON, one per line.

    >>> show_table({"device": ["tv"], "ratio": [1.25]}, as_json=True)
    {"device": "tv", "ratio": 1.25}
    """
    rows = list(zip(*columns.values(), strict=True))
    if as_json:
        for row in rows:
            print(json.dumps(plain(dict(zip(columns, row, strict=True)))))
        return
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name, values in columns.items():
        numeric = all(isinstance(value, int | float | np.number) for value in values)
        table.add_column(visible(name.replace("_", " ")), justify="right" if numeric else "left")
    for row in rows[:most]:
        table.add_row(*(text(value) for value in row))
    # A pipe has no width, so rows are not wrapped there.
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table, markup=False)
    if most is not None and len(rows) > most:
        note(f"{len(rows) - most} more rows; --json prints them all")


def text(value: Any) -> str:
    """A value as people read it.

    >>> text(0.123456), text(1234567), text(None), text(float("nan"))
    ('0.1235', '1,234,567', '-', '-')
    """
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        number = float(value)
        return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    return visible(str(value))


class _TimeLeft(TimeRemainingColumn):
    # The time left that the worker reports, or else an estimate from the pace so far.
    def render(self, task: Task) -> Text:
        left = task.fields.get("seconds_left")
        return super().render(task) if left is None else Text(f"{timedelta(seconds=round(left))} left")


@contextmanager
def progress_bar(title: str, *, every: float = 60.0) -> Iterator[Any]:
    """Progress on stderr; call the function it yields with (done, total, current task, seconds left).

    On a terminal it is a bar. Elsewhere, as in the log of a scheduler, it is one line every so many seconds.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    shown = _bar(title, console) if console.is_terminal else _lines(title, console, every)
    with shown as advance:
        yield advance


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _TimeLeft(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int, what: str = "", seconds_left: float | None = None) -> None:
            description = f"{title} {what}".rstrip()
            bar.update(task, completed=done, total=total, description=description, seconds_left=seconds_left)

        yield advance


@contextmanager
def _lines(title: str, console: Console, every: float) -> Iterator[Any]:
    last = time.monotonic()

    def advance(done: int, total: int, what: str = "", seconds_left: float | None = None) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            left = "" if seconds_left is None else f", about {timedelta(seconds=round(seconds_left))} left"
            console.print(f"{title} {what}".rstrip() + f": {done} of {total}{left}", markup=False)

    yield advance
