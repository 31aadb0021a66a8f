"""The one JSON document that every command prints with ``--json``; its schema is ``docs/verdict.schema.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from isolayer.curves.verified_file import library_version


@dataclass(frozen=True)
class Running:
    """The command that is running: its name, its options, and the notes that it has printed so far."""

    command: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


_running: ContextVar[Running] = ContextVar("running")


def running() -> Running:
    """The command that is running; it has no name if a function is called outside of the command line."""
    return _running.get(Running("isolayer"))


def recorded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, wrapped so that its name and options are known while it runs."""

    @wraps(command)
    def run(**options: Any) -> None:
        settings = {name: value for name, value in options.items() if name != "json"}
        token = _running.set(Running(command.__name__, settings))
        try:
            command(**options)
        finally:
            _running.reset(token)

    return run


def document(
    figures: Mapping[str, Any],
    *,
    verdict: str = "done",
    holds: bool = True,
    reasons: Iterable[str] = (),
    notes: Iterable[str] = (),
    entries: Mapping[str, Sequence[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of the command that is running, as plain values.

    Args:
        figures: What was found or done, by name.
        verdict: The verdict in a word; ``"done"`` for a command that does not judge.
        holds: Whether the answer is yes; if not, the command ends with code 1.
        reasons: The reasons for the verdict, in sentences.
        notes: Further notes, besides those that the command has printed already.
        entries: Columns of a table, one entry per context.
        settings: The options with the values that were used, if these include more than was typed.

    >>> document({"rows": 3})["figures"], document({})["verdict"]
    ({'rows': 3}, 'done')
    """
    command, columns = running(), entries or {}
    rows = zip(*columns.values(), strict=True)
    return {
        "command": command.command,
        "version": library_version(),
        "verdict": verdict,
        "holds": holds,
        "reasons": list(reasons),
        "notes": [*command.notes, *notes],
        "figures": plain(dict(figures)),
        "entries": [plain(dict(zip(columns, row, strict=True))) for row in rows],
        "settings": plain({**command.settings, **(settings or {})}),
    }


def plain(value: Any) -> Any:
    """A value that JSON can represent.

    >>> plain({"a": np.float64(1.5), "b": [np.int64(2)], "c": float("nan")})
    {'a': 1.5, 'b': [2], 'c': None}
    """
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
