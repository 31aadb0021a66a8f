"""The days that a file of sums contains. Each day is added once; a day with a name can be replaced.

The sums of days that ``--id`` named are stored separately, as folds of the histogram. Such a day can be removed
exactly, even if its file has changed or earlier days were given a smaller weight since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isolayer.cli.logs import name_of
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.part_ids import PARTS, without_parts
from isolayer.storage import content_id, files_of

Id = Annotated[str | None, typer.Option("--id", help="Name of the day, such as 2026-11-16; it is added once only.")]
MOST_NAMED = 14  # named days that are stored separately; older ones are added to the rest
MOST_FILES = 1000  # most files that `update` remembers, the latest; a log of more files is recognised by its sums only
_ID = "id:"  # prefix of the names that --id gave
_UNNAMED = "unnamed"  # stands for a log that nothing identifies, such as a pipe


def ids_of(log: Sequence[str]) -> list[str]:
    """Identities of the files of a log on this machine; none for pipes and addresses."""
    return list(_identities(log, None))


def first_files(log: Sequence[str]) -> list[str]:
    """Identities of the files of the first log, which the sums remember."""
    return ids_of(log) or [_UNNAMED]


def names_and_files(source: Any) -> tuple[list[str], list[str]]:
    """The names that ``--id`` gave to days, and the identities of the files that were fitted."""
    held = _held_in(source)
    return [one[len(_ID) :] for one in held if one.startswith(_ID)], [one for one in held if not one.startswith(_ID)]


def known_by(sums: Histogram, path: Path) -> tuple[str, ...]:
    """The identity of sums: the files and days that they contain, or else the name of their own file."""
    return tuple(sorted(one for one in _held(sums) if one != _UNNAMED)) or (_ID + path.stem,)


def with_day(
    sums: Histogram, day: Histogram, log: Sequence[str], name: str | None, *, keep: float, replaced: bool, advice: str
) -> Histogram | None:
    """The sums with a day added; an error if they already contain it.

    Args:
        sums: The days so far.
        day: The sums of the day.
        log: Its files.
        name: What ``--id`` called it, if it was given.
        keep: Weight of the days so far.
        replaced: Whether the new rows replace those of the same day, if the sums contain it.
        advice: What to do about a day that the sums already contain.

    Returns:
        The sums, or None if they already contain exactly these files and nothing is to be replaced.
    """
    identities, held = _identities(log, name), _held(sums)
    known = [called for identity, called in identities.items() if identity in held]
    if replaced and name is not None and _ID + name in held:
        return _replaced(sums, day, identities, name)
    if replaced and name is None and known and len(known) == len(identities):
        return None
    if known:
        raise InputError(
            f"update: expected a day that the sums do not contain yet, got {known[0]}, which was added before; "
            f"continue with the next day, {advice}"
        )
    days = [{**one, "weight": one["weight"] * keep} for one in _named(sums)]
    kept, fold = sums if keep == 1 else sums.scaled(keep), 0
    if name is not None:
        kept, days = _with_free_fold(kept, days)
        fold = min(set(range(1, MOST_NAMED + 1)) - {one["fold"] for one in days})
        days = [*days, {"name": name, "fold": fold, "weight": 1.0, "files": list(identities)}]
    total = kept.merge(_as_fold(day, fold))
    return _remembering(total, [*held, *(identities or [_UNNAMED])], days, sums, day)


def holds_day(sums: Histogram, log: Sequence[str], name: str | None) -> bool:
    """Whether sums contain a day: by the name that ``--id`` gave it, or by the content of all of its files."""
    held, identities = {*_held(sums)}, _identities(log, name)
    return (name is not None and _ID + name in held) or (bool(identities) and {*identities} <= held)


def without_day(sums: Histogram, day: Histogram, log: Sequence[str], name: str | None) -> Histogram:
    """The sums without a day; an error if they are known not to contain it.

    Args:
        sums: The days so far.
        day: The sums of the day.
        log: Its files.
        name: What ``--id`` called it. If it is given, files are not compared.
    """
    held, identities = _held(sums), _identities(log, name)
    all_known = _UNNAMED not in held and len(held) < MOST_FILES
    for identity, called in identities.items():
        decides = name is None or identity.startswith(_ID)
        if all_known and decides and identity not in held:
            raise InputError(
                f"--remove: expected a day that the sums contain, got {called}, which was not added; "
                "give the file, or the --id, that was added"
            )
    apart = [one for one in _named(sums) if one["name"] == name or (name is None and set(one["files"]) & {*identities})]
    if apart:
        total = _without_fold(sums, apart[0]["fold"])
        gone = {*identities, *apart[0]["files"]}
    else:
        total, gone = sums.subtract(_as_fold(day, 0)), {*identities}
    days = [one for one in _named(sums) if one not in apart[:1]]
    return _remembering(total, [one for one in held if one not in gone], days, sums, None)


def _replaced(sums: Histogram, day: Histogram, identities: dict[str, str], name: str) -> Histogram:
    """The sums with the rows of a named day replaced; the new rows get the weight of the old ones."""
    old = next((one for one in _named(sums) if one["name"] == name), None)
    if old is None:
        raise InputError(
            f"--replace: expected one of the last {MOST_NAMED} days that --id named, got {name}, whose sums are no "
            "longer stored separately; remove it by --remove with the file that was added, then add the new one"
        )
    others = [one for one in _held(sums) if one not in old["files"]]
    for identity, called in identities.items():
        if identity in others:
            raise InputError(f"--replace: expected files of one day, got {called}, which is in another day; check it")
    part = _as_fold(day if old["weight"] == 1 else day.scaled(old["weight"]), old["fold"])
    total = _without_fold(sums, old["fold"]).merge(part)
    days = [{**one, "files": list(identities)} if one is old else one for one in _named(sums)]
    return _remembering(total, [*others, *identities], days, sums, day)


def _as_fold(day: Histogram, fold: int) -> Histogram:
    """The sums of a day as one fold, without its period, since that differs between days."""
    source = {name: value for name, value in day.source.items() if name != "period"}
    return replace(day, fold=np.full_like(day.fold, fold), source=source)


def _with_free_fold(sums: Histogram, days: list[dict[str, Any]]) -> tuple[Histogram, list[dict[str, Any]]]:
    """Sums with a free fold for a further day: if all are in use, the oldest day is added to the rest."""
    if len(days) < MOST_NAMED:
        return sums, days
    fold = np.where(sums.fold == days[0]["fold"], np.int8(0), sums.fold)
    return replace(sums, fold=fold).merged_cells(), days[1:]


def _without_fold(sums: Histogram, fold: int) -> Histogram:
    """The sums without one separately stored day, and without the contexts that only it had."""
    return sums.cells_where(sums.fold != fold)


def _remembering(
    total: Histogram, files: list[str], days: list[dict[str, Any]], sums: Histogram, day: Histogram | None
) -> Histogram:
    """Sums with the facts about their days stored."""
    source = {**without_parts(total.source), "files": list(dict.fromkeys(files))[-MOST_FILES:], "days": days}
    if day is not None:
        source |= {"negative_rate": day.source.get("negative_rate"), "period": period_of_both(sums, day)}
    return replace(total, source=source)


def period_of_both(one: Histogram, two: Histogram) -> list[Any] | None:
    """The first and the last day of both together; None if one of the periods is unknown."""
    periods = [each.source.get("period") for each in (one, two)]
    if None in periods or len({type(end) for period in periods if period for end in period}) != 1:
        return None
    return [min(period[0] for period in periods if period), max(period[1] for period in periods if period)]


def _held(sums: Histogram) -> list[str]:
    """The identities of the days in the sums; sums made elsewhere have one day that nothing identifies."""
    return _held_in(sums.source) or [_UNNAMED]


def _held_in(source: Mapping[str, Any]) -> list[str]:
    """The identities of files and of named days; the parts that `merge_parts` counted are named days too."""
    return [*source.get("files", ()), *(_ID + name for name in source.get(PARTS, ()))]


def _named(sums: Histogram) -> list[dict[str, Any]]:
    """The days that are stored separately, oldest first."""
    return list(sums.source.get("days", ()))


def _identities(log: Sequence[str], name: str | None) -> dict[str, str]:
    """The identities of a day, by name and by content, and the words for each in an error."""
    files = [path for one in log for path in files_of(one) if path.is_file()]
    found = {content_id(path): repr(str(path)) for path in files} if len(files) <= MOST_FILES else {}
    return found if name is None else {_ID + name: f"--id {name}", **found}


def refuse_empty(day: Histogram, log: Sequence[str]) -> None:
    """Raise for a day without usable rows."""
    if day.rows == 0:
        raise InputError(f"log: expected usable rows, got none in {name_of(log)!r}; check that the day was written")
