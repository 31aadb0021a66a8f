"""What a calibrator remembers of the rows that it was fitted on, and whether a log has some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.storage import content_id, files_of

HeldOut = Annotated[
    bool, typer.Option("--held-out", help="Judge on the rows that `fit --holdout` left out of this log.")
]
IN_SAMPLE = "the calibrator was fitted on these rows, so they cannot judge it; use a later log, or `fit --holdout`"
Id = Annotated[str | None, typer.Option("--id", help="Name of the day, such as 2026-11-16; it is added once only.")]
_MOST_FILES = 1000  # remembered at most; logs of more files are known by their sums only
_ID = "id:"  # before the names that --id gave
_UNNAMED = "unnamed"  # remembered for a log that nothing identifies, such as a pipe


def remembered(curves: Curves, *, files: list[str], holdout: dict[str, Any] | None = None) -> Curves:
    """The curves with what is to be remembered of their fit.

    Args:
        curves: The curves.
        files: What identifies the contents of the files that they were fitted on; the latest are kept.
        holdout: The rule by which rows were left out, if some were.
    """
    kept = list(dict.fromkeys(files or [_UNNAMED]))[-_MOST_FILES:]
    rule = {} if holdout is None else {"holdout": holdout}
    return replace(curves, source={**curves.source, "files": kept, **rule})


def ids_of(log: str) -> list[str]:
    """What identifies the files of a log on this machine; nothing for pipes and addresses."""
    return list(_identities(log, None))


def days_with(curves: Curves, log: str, name: str | None) -> list[str]:
    """What the curves remember, and the day of this log; an error if they hold the day already.

    Args:
        curves: The calibrator before the day is added.
        log: The day's log.
        name: What ``--id`` called the day, if it was given.
    """
    held, day = _held(curves), _identities(log, name)
    for identity, called in day.items():
        if identity in held:
            raise InputError(
                f"update: expected a day that the sums do not hold yet, got {called}, which was added before; "
                "take it out with --remove first, or go on to the next day"
            )
    return [*held, *(day or [_UNNAMED])]


def days_without(curves: Curves, log: str, name: str | None) -> list[str]:
    """What the curves remember without the day of this log; an error if they are known not to hold the day.

    Args:
        curves: The calibrator before the day is removed.
        log: The day's log.
        name: What ``--id`` called the day, if it was given; it then decides alone.
    """
    held, day = _held(curves), _identities(log, name)
    all_known = _UNNAMED not in held and len(held) < _MOST_FILES
    for identity, called in day.items():
        decides = name is None or identity.startswith(_ID)
        if all_known and decides and identity not in held:
            raise InputError(
                f"--remove: expected a day that the sums hold, got {called}, which was not added; "
                "give the file, or the --id, that was added"
            )
    return [one for one in held if one not in day]


def files_and_names(curves: Curves) -> tuple[list[str], list[str]]:
    """What identifies the files that curves were fitted on, and the names that ``--id`` gave to days."""
    held = list(curves.source.get("files", ()))
    return [one for one in held if not one.startswith(_ID)], [one[len(_ID) :] for one in held if one.startswith(_ID)]


def _held(curves: Curves) -> list[str]:
    """What curves remember of the days they hold; those fitted elsewhere hold a day that nothing identifies."""
    return list(curves.source.get("files") or [_UNNAMED])


def _identities(log: str, name: str | None) -> dict[str, str]:
    """What identifies a day, by content and by name, and how to call each in an error."""
    files = [path for path in files_of(log) if path.is_file()]
    found = {content_id(path): repr(str(path)) for path in files} if len(files) <= _MOST_FILES else {}
    return found if name is None else {_ID + name: f"--id {name}", **found}


def fitted_on(curves: Curves, log: str, histogram: Histogram | None = None) -> bool:
    """Whether a log has rows that the curves were fitted on: one of its files, or the same sums.

    Args:
        curves: The calibrator.
        log: The name of the log.
        histogram: Its sums, if they are at hand.
    """
    same = histogram is not None and curves.source.get("data") == histogram.folded().fingerprint()
    return same or bool(set(curves.source.get("files", ())) & set(ids_of(log)))


def judged_rows(table: Any, curves: Curves, wanted: bool) -> Any:
    """The table, or the rows of it that were left out of the fit if those are wanted."""
    if not wanted:
        return table
    from isolayer.tables.holdout import held_out

    rule = curves.source.get("holdout")
    if rule is None:
        raise InputError(
            "--held-out: expected a calibrator of `fit --holdout`, got one that left out nothing; fit it so"
        )
    return held_out(table, rule)
