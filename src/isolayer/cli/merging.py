"""The command that adds up the sums of many writers and counts each part once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from isolayer.cli.days import known_by, period_of_both
from isolayer.cli.files import check_output, save_all
from isolayer.cli.logs import Json
from isolayer.cli.output import note, show
from isolayer.cli.provenance import remembered
from isolayer.cli.sums import noted, quality
from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.part_ids import PARTS, without_parts
from isolayer.fitting.partial_sums import merge_parts
from isolayer.storage import files_of, locked

_OF_DAYS = ("files", "days", "period", PARTS)  # facts that sums store about their own days


def merge(
    sums: Annotated[list[str], typer.Argument(help="Sums of parts of a log, as `fit --sums` wrote them; globs too.")],
    out: Annotated[Path, typer.Option(help="Where to write the sums of all parts.")] = Path("sums.parquet"),
    curves: Annotated[Path | None, typer.Option(help="Also write the calibrator of all parts.")] = None,
    json: Json = False,
) -> None:
    """Add up the sums of many writers. Whatever comes twice, late or in another order, the total is the same.

    A part is recognised by the content of the files that it was made from, by the days that --id named, and by the
    ids of merge_parts; sums that remember none of these are recognised by the name of their file. A part that comes
    again is counted once, with a note on stderr. If the same part comes with other rows, or two parts share a file,
    nothing is written and the code is 2.

    All parts need the same contexts and knots: give each writer the same --grid. With --curves the calibrator is also
    written, the same as that of one fit to all logs; `update` can add days to both files.

    Example: isolayer merge 'parts/*.parquet' --out sums.parquet --curves curves.parquet
    """
    files = [path for one in sums for path in files_of(one)]
    for option, path in (("--out", out), ("--curves", curves)):
        if path is not None:
            check_output(path, option, *sums)
    if curves is not None and curves.resolve() == out.resolve():
        raise InputError(f"--curves: expected another file than --out, got {str(out)!r} for both; rename one")
    parts = [_Part(path, known_by(found, path), found) for path in files for found in [Histogram.load(path)]]
    distinct = _distinct(parts)
    _refuse_others(distinct)
    total = _total(distinct)
    written: dict[Path, Histogram | Curves] = {out: total}
    figures = {"parts": len(distinct), "duplicates": len(parts) - len(distinct), "rows": total.rows}
    if curves is not None:
        fitted = _calibrator(total)
        written[curves] = fitted
        figures |= quality(fitted, total)
    with locked(*written):
        save_all(written)
    show({**figures, "written": out}, as_json=json)


class _Part(NamedTuple):
    """Sums, and their identities."""

    path: Path
    held: tuple[str, ...]
    sums: Histogram


def _distinct(parts: Sequence[_Part]) -> list[_Part]:
    """Every part once. A repeated part is noted, or refused if its rows are not the same."""
    owner, found = dict[str, _Part](), list[_Part]()
    for part in parts:
        first = next((owner[one] for one in part.held if one in owner), None)
        if first is None:
            found.append(part)
            owner |= dict.fromkeys(part.held, part)
        elif first.held != part.held:
            raise InputError(
                f"sums: expected parts of different files, got {str(first.path)!r} and {str(part.path)!r}, which have "
                "some files in common; leave out one, or make the sums of its other files again"
            )
        elif first.sums.folded().fingerprint() != part.sums.folded().fingerprint():
            raise InputError(
                f"sums: expected the same rows in {str(first.path)!r} and {str(part.path)!r}, since both are "
                f"{part.held[0].removeprefix('id:')!r}, got different ones ({first.sums.rows:g} and {part.sums.rows:g} "
                "rows); leave out the one that is wrong, or rename it if it is another part"
            )
        else:
            note(f"counted once: {part.path} has the rows of {first.path}")
    return found


def _refuse_others(parts: Sequence[_Part]) -> None:
    """Raise unless all parts have the same contexts and knots."""
    for part in parts[1:]:
        ours, theirs = ((one.sums.contexts, one.sums.grid) for one in (parts[0], part))
        if ours != theirs:
            raise InputError(
                f"sums: expected the same contexts and knots in all parts, got {ours} in {str(parts[0].path)!r} and "
                f"{theirs} in {str(part.path)!r}; give each writer the same --contexts and --grid"
            )


def _total(parts: Sequence[_Part]) -> Histogram:
    """The sums of all parts, with the facts that they store."""

    def told(part: _Part) -> Histogram:
        facts = {name: value for name, value in part.sums.source.items() if name not in _OF_DAYS}
        return replace(part.sums.folded(), source=facts)

    total = merge_parts((", ".join(part.held), told(part)) for part in parts)
    total = replace(total, source=without_parts(total.source))  # what they contain is stored as files and days
    held = sorted({one for part in parts for one in (*part.held, *part.sums.source.get("files", ()))})
    dated = reduce(lambda one, two: remembered(one, period=period_of_both(one, two)), (part.sums for part in parts))
    return remembered(total, files=held, period=dated.source.get("period"))


def _calibrator(total: Histogram) -> Curves:
    """The calibrator of sums, as `fit` makes it."""
    from isolayer.calibrator import IsotonicCalibrator

    source = total.source
    settings = {name: source[name] for name in ("scale", "weight_kind") if name in source}
    with noted():
        return IsotonicCalibrator(total.contexts, **settings).fit_histogram(total).curves_
