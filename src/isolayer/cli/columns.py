"""The columns that options name: guessed from usual names, listed, matched by prefix, and checked against the log."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import typer

from isolayer.cli.output import note
from isolayer.errors import InputError

SCORES = ("score", "logit", "prob", "proba", "probability", "prediction", "pred", "pctr", "pcvr")
LABELS = ("label", "click", "is_click", "clicked", "y", "target", "outcome")
SCALES = {"logit": "logit"} | dict.fromkeys(("prob", "proba", "probability", "chance", "pctr", "pcvr"), "prob")
Scale = Literal["logit", "prob"]
Features = Annotated[
    str,
    typer.Option(help="Feature columns, comma-separated or as a JSON list; a trailing * matches a prefix."),
]


def column(given: str | None, option: str, usual: Sequence[str], columns: Sequence[str], log: str = "LOG") -> str:
    """The column an option names, or the one usual name that the log has; a guess is printed.

    >>> column(None, "--label", LABELS, ["score", "click"]), column(None, "--score", SCORES, ["model_score", "Click"])
    ('click', 'model_score')
    >>> column(None, "--label", LABELS, ["score", "click", "label"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --label: expected one obvious column, got label, click; name it: --label label
    """
    if given is not None:
        if given not in columns:
            raise InputError(f"{option}: expected a column of the log, got {given!r}; it has {', '.join(columns)}")
        return given
    found = [name for name in usual if name in columns] or _nearly(option, usual, columns)
    if len(found) == 1:
        note(f"guessed: {option} {found[0]}")
        return found[0]
    got = ", ".join(found) if found else f"none among {', '.join(columns)}"
    raise InputError(f"{option}: expected one obvious column, got {got}; {_remedy(option, found, columns, log)}")


def _nearly(option: str, usual: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Columns with a usual name in other capitals; for scores also a usual name as the ending, such as model_score."""
    ends = option == "--score"
    return [name for name in columns if (name.lower().rpartition("_")[2] if ends else name.lower()) in usual]


def fitted_column(
    given: str | None, option: str, fitted: str | None, columns: Sequence[str], *, optional: bool = False
) -> str | None:
    """The column that an option names, or else the one that the calibrator was fitted on, if it is stored.

    Args:
        given: What was typed; if the column is optional, an empty text means no column.
        option: The option.
        fitted: The column of the fit.
        columns: Those of the log.
        optional: Whether there may be none.

    >>> fitted_column(None, "--score", "model_prob", ["score", "model_prob"])
    'model_prob'
    >>> fitted_column("", "--weight", "rows", ["score"], optional=True)
    """
    if optional and given == "":
        return None
    if given is not None or fitted is None:
        return given
    if fitted not in columns:
        raise InputError(
            f"{option}: expected the column of the fit, {fitted!r}, got a log with {', '.join(columns)}; if it has "
            f"another name here, give that: {option} {columns[0] if columns else 'NAME'}"
            + (f", or {option} '' for none" if optional else "")
        )
    return fitted


def _remedy(option: str, found: Sequence[str], columns: Sequence[str], log: str) -> str:
    """What to type: the name of a column or, in a log without scores, the commands that add them."""
    if found:
        return f"name it: {option} {found[0]}"
    if option != "--score":
        return f"name it: {option} COLUMN"
    features = "'feature_*'" if any(name.startswith("feature_") for name in columns) else "COLUMNS"
    log = "LOG" if log == "-" else shlex.quote(log)
    steps = f"isolayer train {log} --features {features} && isolayer score {log}"
    return f"name it: --score COLUMN --scale prob, or train a ranker that makes scores: {steps}"


def scale_of(given: str | None, score: str) -> Scale:
    """The scale of the scores: the one given, or the one that the column's name says; never guessed from values.

    >>> scale_of(None, "prob"), scale_of(None, "click_prob"), scale_of(None, "prob_of_rain")
    ('prob', 'prob', 'prob')
    >>> scale_of(None, "score")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --scale: expected logit or prob for the column 'score', got nothing; add --scale prob if
    the scores are probabilities from 0 to 1 (divide percentages by 100), --scale logit if they are any numbers
    """
    said = _said_scale(score)
    if given is None and said:
        note(f"guessed: --scale {said}")
        return cast("Scale", said)
    if given not in ("logit", "prob"):
        got = repr(given) if given else "nothing"
        raise InputError(
            f"--scale: expected logit or prob for the column {score!r}, got {got}; add --scale prob if the scores are "
            "probabilities from 0 to 1 (divide percentages by 100), --scale logit if they are any numbers"
        )
    return cast("Scale", given)


def _said_scale(score: str) -> str | None:
    """The scale that the name of a column says by its last word, or before "of"; None if other words say otherwise.

    >>> [_said_scale(name) for name in ("model_Prob", "prob_of_rain", "logit_to_prob_v2", "prob_rank", "log_prob")]
    ['prob', 'prob', None, None, None]
    """
    words = score.lower().split("_")
    named = words[0] if words[1:2] == ["of"] else words[-1]
    scales = {SCALES[word] for word in words if word in SCALES}
    return SCALES.get(named) if len(scales) == 1 and "log" not in words else None


def names(listed: str | Sequence[str] | None, columns: Sequence[str] = ()) -> tuple[str, ...]:
    """Column names out of an option that may be given several times.

    Each value is the name of a column if the log has it, or else a JSON list, or else a comma-separated list. So
    names with commas or spaces can be given, and are never split.

    >>> names("platform, position"), names(None)
    (('platform', 'position'), ())
    >>> names(["a,b", "c"], columns=["a,b", "c"]), names('["a,b", "c"]')
    (('a,b', 'c'), ('a,b', 'c'))
    """
    given = [listed] if isinstance(listed, str) else listed or []
    return tuple(name for value in given for name in _split(value, columns))


def _split(value: str, columns: Sequence[str]) -> list[str]:
    if value in columns:
        return [value]
    if value.lstrip().startswith("["):
        try:
            listed = json.loads(value)
        except json.JSONDecodeError:
            listed = None
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            return listed
    return [name.strip() for name in value.split(",") if name.strip()]


def distinct(given: Sequence[str], option: str) -> tuple[str, ...]:
    """The names, each of which may be given only once.

    >>> distinct(names("device,device"), "--contexts")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --contexts: expected each name once, got 'device' twice; leave one out
    """
    for place, name in enumerate(given):
        if name in given[:place]:
            raise InputError(f"{option}: expected each name once, got {name!r} twice; leave one out")
    return tuple(given)


def matching(listed: str, columns: list[str], option: str = "--features") -> list[str]:
    """Columns by name; a trailing star matches a prefix.

    >>> matching("age,feature_*", ["age", "feature_0", "feature_1", "click"])
    ['age', 'feature_0', 'feature_1']
    """
    found: list[str] = []
    for name in names(listed, columns):
        some = (
            [one for one in columns if one.startswith(name[:-1])]
            if name.endswith("*") and name not in columns
            else [name]
        )
        if not some or not set(some) <= set(columns):
            raise InputError(f"{option}: expected columns of the log, got {name!r}; it has {', '.join(columns)}")
        found += some
    if not found:
        raise InputError(f"{option}: expected at least one column, got {listed!r}; it has {', '.join(columns)}")
    return list(dict.fromkeys(found))


def refuse_text(table: Any, columns: Sequence[str]) -> None:
    """Raise unless the columns of a table hold numbers."""
    from isolayer.tables.sources import is_number

    for name, kind in table.schema().items():
        if name in columns and not is_number(kind):
            raise InputError(f"column {name}: expected numbers, got {kind}; convert them")


def refuse_text_scores(table: Any, score: str) -> None:
    """Raise if the scores are text; the error shows one of them."""
    kind = table.schema()[score]
    if not kind.is_string():
        return
    (value,) = table.filter(table[score].notnull()).select(value=table[score]).limit(1).to_pyarrow()["value"] or (None,)
    example = repr(None if value is None else value.as_py())
    remedy = "write 35% as 0.35" if "%" in example else "write numbers, with a point for decimals"
    if re.fullmatch(r"'-?\d+,\d+'", example):
        remedy += "; in Python: pandas.read_csv(FILE, sep=None, engine='python', decimal=',').to_csv(NEW, index=False)"
    raise InputError(f"--score: expected a column of numbers, got text in {score!r}, such as {example}; {remedy}")


def next_step(*words: object) -> None:
    """Print the command to run next, quoted for the shell.

    >>> next_step("fit", "scored.parquet")
    """
    note(f"next: {shlex.join(['isolayer', *map(str, words)])}")
