"""The verdict of a command, with its reasons: printed as a table, or as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from isolayer.cli.document import document, plain
from isolayer.cli.output import note, show_table
from isolayer.curves.verified_file import library_version


@dataclass(frozen=True)
class Judgement:
    """A verdict of a command.

    Args:
        holds: Whether the answer is yes; if not, the command ends with code 1.
        verdict: The verdict in one word.
        reasons: The reasons, in sentences; at least one if the verdict does not hold.
        notes: Further notes, in sentences, such as assumptions and rows that were not tested.
        figures: Numbers about all rows together.
        entries: Columns of a table, one entry per context.
        settings: The options with the values that were used.
    """

    holds: bool
    verdict: str
    reasons: Sequence[str]
    notes: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON document; its schema is ``docs/verdict.schema.json``."""
        return document(
            self.figures,
            verdict=self.verdict,
            holds=self.holds,
            reasons=self.reasons,
            notes=self.notes,
            entries=self.entries,
            settings=self.settings,
        )

    def row(self) -> dict[str, Any]:
        """The verdict and its figures as one row of a history."""
        return {**plain(dict(self.figures)), "verdict": self.verdict, "version": library_version()}


def pronounce(judgement: Judgement, *, as_json: bool, most: int) -> None:
    """Print a verdict: results on stdout, notes for people on stderr. End with code 1 if it does not hold.

    Args:
        judgement: The verdict.
        as_json: Print one JSON document, with all entries.
        most: How many entries to show to people.
    """
    if as_json:
        print(json.dumps(judgement.document()))
    else:
        show_table(judgement.entries, as_json=False, most=most)
    for text in [*judgement.notes, *judgement.reasons]:
        note(text)
    if not judgement.holds:
        raise typer.Exit(1)
