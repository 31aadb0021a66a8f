"""The options of `fit` that choose the corrections of fields: found, asked for, left out, kept or frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.columns import names
from isolayer.cli.sums import load
from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.combinations import Name, named
from isolayer.fitting.terms import Terms

Structure = Annotated[
    Path | None,
    typer.Option(help="A calibrator with fields, as `fit` wrote it, whose fields and combinations to keep."),
]
Interactions = Annotated[
    list[str] | None,
    typer.Option(
        help="How many combinations of fields to find at most: auto, 0 or a number; or which to add: 'hour x device'.",
        show_default="auto",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(help="Fields and combinations to leave out of the corrections, as in 'hour x device,country'."),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(help="Fields and combinations of --structure that keep their values, or all of them."),
]


@dataclass(frozen=True)
class TermOptions:
    """The options as typed."""

    structure: Path | None = None
    interactions: Sequence[str] | None = None
    without: Sequence[str] | None = None
    freeze: Sequence[str] | None = None

    def earlier(self, fields: Sequence[str] | None) -> Curves | None:
        """The calibrator whose structure is kept, without the terms of --without, and with those of --freeze frozen."""
        self._refuse_strays(fields)
        if self.structure is None:
            return None
        earlier = load(self.structure, "--structure")
        if earlier.terms is None:
            raise InputError(
                f"--structure: expected a calibrator with fields, got {str(self.structure)!r} without; give another"
            )
        return replace(earlier, terms=self._changed(earlier.terms))

    def asked(self, columns: Sequence[str], earlier: Curves | None) -> dict[str, Any]:
        """The options as arguments of :func:`isolayer.tables.field_fit.fit_table_fields`.

        >>> TermOptions(interactions=["auto, hour x device"], without=["user"]).asked(["hour", "device", "user"], None)
        {'interactions': ['auto', ('hour', 'device')], 'without': ['user']}
        """
        if earlier is not None:
            return {"structure": earlier.terms}
        read = [_interaction(one) for one in names(self.interactions, columns)] or ["auto"]
        single = len(read) == 1 and not isinstance(read[0], tuple)
        return {"interactions": read[0] if single else read, "without": _terms(self.without, columns)}

    def _refuse_strays(self, fields: Sequence[str] | None) -> None:
        """Raise if an option is given without the option that it needs, or with one that it contradicts."""
        if self.structure is not None:
            for option, given in (("--fields", fields), ("--interactions", self.interactions)):
                if given:
                    what = option.removeprefix("--")
                    raise InputError(
                        f"--structure: expected no {option}, since the structure has its own {what}, got both; leave "
                        "out one"
                    )
        elif self.freeze:
            raise InputError("--freeze: expected --structure, since it keeps values of that, got none; add it")
        for option, given in (("--interactions", self.interactions), ("--without", self.without)):
            if given and not fields and self.structure is None:
                raise InputError(f"{option}: expected --fields with it, got none; add --fields")

    def _changed(self, terms: Terms) -> Terms:
        """The terms of a structure without some, and with others frozen."""
        known = [name for name in terms.names if isinstance(name, str)]
        left = _named(terms.without, _terms(self.without, known), "--without")
        if not left.terms:
            raise InputError("--without: expected at least one field to remain, got all of them; omit --structure too")
        frozen = _terms(self.freeze, known)
        if not frozen:
            return left
        everything = frozen == ["all"] and "all" not in known
        return _named(left.freeze, [] if everything else frozen, "--freeze")


def _terms(given: Sequence[str] | None, known: Sequence[str]) -> list[Name]:
    return [named(one, known) for one in names(given, known)]


def _named(change: Callable[..., Terms], asked: Sequence[Name], option: str) -> Terms:
    """Terms after a change that names some of them."""
    try:
        return change(*asked)
    except InputError as error:
        raise InputError(f"{option}: {str(error).removeprefix('term: ')}") from error


def _interaction(given: str) -> Name | int:
    """One entry of --interactions.

    >>> _interaction("3"), _interaction("hour x device")
    (3, ('hour', 'device'))
    """
    found = named(given)
    if given == "auto" or not isinstance(found, str):
        return found
    if not given.isdigit():
        rule = "expected auto, a number or a combination of fields"
        raise InputError(f"--interactions: {rule}, got {given!r}; try 'hour x device'")
    return int(given)
