"""The LOG argument: Parquet, CSV or NDJSON, a glob, an address DuckDB knows, or - for stdin; and its columns."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from isolayer.cli.output import note
from isolayer.errors import InputError, need

SCORES = ("score", "logit", "prob", "probability", "prediction", "pred")
LABELS = ("label", "click", "is_click", "clicked", "y", "target", "outcome")
SCALES = {"logit": "logit", "prob": "prob", "probability": "prob"}
Scale = Literal["logit", "prob"]
Log = Annotated[str, typer.Argument(help="Parquet, CSV or NDJSON: a path, glob, s3:// address, or - for stdin.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Features = Annotated[str, typer.Option(help="Feature columns, with commas between; name* for all that begin so.")]


def read(log: str) -> Any:
    """The log as a table that DuckDB holds; nothing is read before it is asked for.

    >>> read("nowhere.csv")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: log: expected a file at 'nowhere.csv', got none; check the path
    """
    if log == "-":
        return _standard_input()
    remote = "://" in log
    if not remote and not _exists(log):
        raise InputError(f"log: expected a file at {log!r}, got none; check the path")
    return _table(log, Path(log.split("?")[0] if remote else log).suffix.lower(), remote=remote)


def _exists(pattern: str) -> bool:
    """Whether a path exists, or some path that a glob means."""
    path = Path(pattern)
    return path.exists() or next(Path(path.anchor or ".").glob(pattern.removeprefix(path.anchor)), None) is not None


def _table(log: str, kind: str, *, remote: bool = False) -> Any:
    ibis = need("ibis")
    if kind in (".csv", ".tsv"):
        return ibis.read_csv(log)
    if kind in (".json", ".ndjson", ".jsonl"):
        return ibis.read_json(log)
    if remote:
        return ibis.read_parquet(log)
    return need("isolayer.tables.sources").as_table(log)


def _standard_input() -> Any:
    """Standard input as a table in memory, its format told by its first byte."""
    data = sys.stdin.buffer.read()
    if not data.strip():
        raise InputError("log: expected rows on standard input, got nothing; pipe CSV, NDJSON or Parquet into it")
    kind = ".parquet" if data[:4] == b"PAR1" else ".ndjson" if data.lstrip()[:1] in b"{[" else ".csv"
    with tempfile.TemporaryDirectory(prefix="isolayer-") as folder:  # DuckDB reads files, and this one must not stay
        file = Path(folder) / f"stdin{kind}"
        file.write_bytes(data)
        rows = _table(str(file), kind).to_pyarrow()
    return need("ibis").memtable(rows)


def column(given: str | None, option: str, usual: Sequence[str], columns: Sequence[str], log: str = "LOG") -> str:
    """The column an option names, or the one usual name that the log has; a guess is printed.

    >>> column(None, "--label", LABELS, ["score", "click"])
    'click'
    >>> column(None, "--label", LABELS, ["score", "click", "label"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --label: expected one obvious column, got label, click; name it: --label label
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
    raise InputError(f"{option}: expected one obvious column, got {got}; {_remedy(option, found, columns, log)}")


def _remedy(option: str, found: Sequence[str], columns: Sequence[str], log: str) -> str:
    """What to type: a column's name or, in a log that nothing has scored, the commands that score it."""
    if found:
        return f"name it: {option} {found[0]}"
    if option != "--score":
        return f"name it: {option} COLUMN"
    features = "'feature_*'" if any(name.startswith("feature_") for name in columns) else "COLUMNS"
    log = "LOG" if log == "-" else shlex.quote(log)
    steps = " && ".join(f"isolayer {step} {log} --features {features}" for step in ("train", "score"))
    return f"name it: --score COLUMN --scale prob, or have a ranker make scores: {steps}"


def scale_of(given: str | None, score: str) -> Scale:
    """The scale of the scores: as told, or as the column's name says; never from its values.

    >>> scale_of(None, "prob"), scale_of(None, "click_prob")
    ('prob', 'prob')
    >>> scale_of(None, "score")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --scale: expected logit or prob for the column 'score', got nothing; say which it is
    """
    said = SCALES.get(score.rpartition("_")[2])
    if given is None and said:
        note(f"guessed: --scale {said}")
        return cast("Scale", said)
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


def distinct(given: Sequence[str], option: str) -> tuple[str, ...]:
    """The names, none of which may be there twice.

    >>> distinct(names("device,device"), "--contexts")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --contexts: expected each name once, got 'device' twice; leave one out
    """
    for place, name in enumerate(given):
        if name in given[:place]:
            raise InputError(f"{option}: expected each name once, got {name!r} twice; leave one out")
    return tuple(given)


def matching(listed: str, columns: list[str]) -> list[str]:
    """Columns by name, or by the beginning of their names where a star stands at the end.

    >>> matching("age,feature_*", ["age", "feature_0", "feature_1", "click"])
    ['age', 'feature_0', 'feature_1']
    """
    found: list[str] = []
    for name in names(listed):
        some = [one for one in columns if one.startswith(name[:-1])] if name.endswith("*") else [name]
        if not some or not set(some) <= set(columns):
            raise InputError(f"--features: expected columns of the log, got {name!r}; it has {', '.join(columns)}")
        found += some
    if not found:
        raise InputError(f"--features: expected at least one column, got {listed!r}; it has {', '.join(columns)}")
    return list(dict.fromkeys(found))


def refuse_text(table: Any, columns: Sequence[str]) -> None:
    """Raise unless the columns of a table hold numbers."""
    for name, kind in table.schema().items():
        if name in columns and not need("isolayer.tables.sources").is_number(kind):
            raise InputError(f"column {name}: expected numbers, got {kind}; convert it")


def next_step(*words: object) -> None:
    """Say which command goes on from here, as it can be typed.

    >>> next_step("fit", "scored.parquet")
    """
    note(f"next: {shlex.join(['isolayer', *map(str, words)])}")
