"""The LOG argument: Parquet, CSV or NDJSON, a glob, an address DuckDB knows, or - for stdin; and its columns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from isolayer.cli.output import note
from isolayer.errors import InputError, need

SCORES = ("score", "logit", "prob", "probability", "prediction", "pred")
LABELS = ("label", "click", "is_click", "clicked", "y", "target", "outcome")
SCALES = {"logit": "logit", "prob": "prob", "probability": "prob"}
Scale = Literal["logit", "prob"]


def read(log: str) -> Any:
    """The log as a table that DuckDB holds; nothing is read before it is asked for.

    >>> read("nowhere.csv")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: log: expected a file at 'nowhere.csv', got none; check the path
    """
    ibis = need("ibis", "data")
    if log == "-":
        log = _standard_input()
    kind = Path(log.split("?")[0]).suffix.lower()
    remote = "://" in log
    if not remote and not any(sign in log for sign in "*?[") and not Path(log).exists():
        raise InputError(f"log: expected a file at {log!r}, got none; check the path")
    if kind in (".csv", ".tsv"):
        return ibis.read_csv(log)
    if kind in (".json", ".ndjson", ".jsonl"):
        return ibis.read_json(log)
    if remote:
        return ibis.read_parquet(log)
    return need("isolayer.sources", "data").as_table(log)


def _standard_input() -> str:
    """Standard input as a file, its format told by its first byte."""
    data = sys.stdin.buffer.read()
    if not data.strip():
        raise InputError("log: expected rows on standard input, got nothing; pipe CSV, NDJSON or Parquet into it")
    suffix = ".parquet" if data[:4] == b"PAR1" else ".ndjson" if data.lstrip()[:1] in b"{[" else ".csv"
    with tempfile.NamedTemporaryFile(suffix=suffix, delete=False) as file:
        file.write(data)
    return file.name


def column(given: str | None, option: str, usual: Sequence[str], columns: Sequence[str]) -> str:
    """The column an option names, or the one usual name that the log has; a guess is printed.

    >>> column(None, "--label", LABELS, ["score", "click"])
    'click'
    >>> column(None, "--label", LABELS, ["score", "click", "label"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --label: expected one obvious column, got label, click; name it
    """
    if given is not None:
        if given not in columns:
            raise InputError(f"{option}: expected a column of the log, got {given!r}; it has {', '.join(columns)}")
        return given
    found = [name for name in usual if name in columns]
    if len(found) == 1:
        note(f"guessed: {option} {found[0]}")
        return found[0]
    got = ", ".join(found) if found else f"none among {', '.join(columns)}"
    raise InputError(f"{option}: expected one obvious column, got {got}; name it")


def scale_of(given: str | None, score: str) -> Scale:
    """The scale of the scores: as told, or as the column's name says; never from its values.

    >>> scale_of(None, "prob")
    'prob'
    >>> scale_of(None, "score")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --scale: expected logit or prob for the column 'score', got nothing; say which it is
    """
    if given is None and score in SCALES:
        note(f"guessed: --scale {SCALES[score]}")
        return cast("Scale", SCALES[score])
    if given not in ("logit", "prob"):
        got = repr(given) if given else "nothing"
        raise InputError(f"--scale: expected logit or prob for the column {score!r}, got {got}; say which it is")
    return cast("Scale", given)


def names(listed: str | None) -> tuple[str, ...]:
    """Names in a comma-separated list.

    >>> names("platform, position"), names(None)
    (('platform', 'position'), ())
    """
    return tuple(name.strip() for name in (listed or "").split(",") if name.strip())
