"""The command that shows what a calibrator or a file of sums stores about its fit."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli import visible
from isolayer.cli.days import names_and_files
from isolayer.cli.document import plain
from isolayer.cli.logs import Json
from isolayer.cli.output import show as show_figures
from isolayer.curves.curves import Curves
from isolayer.curves.verified_file import read_verified
from isolayer.fitting.combinations import written
from isolayer.fitting.histogram import Histogram

_SEGMENTS = 10  # how many segments of fields are explained


def show(
    file: Annotated[Path, typer.Argument(help="A calibrator or sums, as `fit` and `update` wrote them.")],
    json: Json = False,
) -> None:
    """Show what a calibrator, or a file of sums, was made from and how.

    Prints the columns it was read from, the scale of the scores, the share of negatives that was kept, the grid of
    knots, the number of rows and curves, the fields with the segments that they correct most clearly, the first and the
    last day by the column of --date, how many files and which named days it holds, the version of isolayer that wrote
    it, and its settings. --json also lists the files, each with its size and a digest of its content.

    Example: isolayer show curves.parquet
    """
    with read_verified(file, None) as (_, facts):
        content, version = facts["content"], facts["library"]
    figures = _of_curves(Curves.load(file)) if content == "curves" else _of_sums(Histogram.load(file))
    kind = "calibrator" if content == "curves" else "sums"
    figures = {"content": kind, **figures, "version": version}
    segments = [] if json else figures.pop("corrects", [])
    show_figures(figures if json else {name: _text(name, value) for name, value in figures.items()}, as_json=json)
    for segment in segments:
        print(f"corrects  {visible(segment)}")


def _of_curves(curves: Curves) -> dict[str, Any]:
    names = {"score": curves.score_name, "label": curves.label_name}
    return {
        **_columns({**curves.source, **names, "scale": curves.scale}, curves.contexts),
        "fields": list(curves.fields),
        "audit_only": list(curves.settings.get("audit_only", [])),
        **_terms(curves),
        "grid": _grid(curves),
        "rows": curves.source.get("rows"),
        "curves": len(curves.values),
        "monotone": curves.monotone,
        "extrapolation": curves.extrapolation,
        **_days(curves.source),
        "holdout": curves.source.get("holdout"),
        "settings": dict(curves.settings),
    }


def _terms(curves: Curves) -> dict[str, list[str]]:
    """The fields and combinations that correct the score, and what they correct most clearly, in sentences."""
    if curves.terms is None:
        return {}
    names = [
        written(name) + " (frozen)" * term.frozen
        for name, term in zip(curves.terms.names, curves.terms.terms, strict=True)
    ]
    return {"terms": names, "corrects": [str(one) for one in curves.terms.segments(_SEGMENTS)]}


def _of_sums(sums: Histogram) -> dict[str, Any]:
    columns = _columns(sums.source, sums.contexts)
    figures = {"grid": _grid(sums), "rows": sums.rows, "weight_of_rows": float(sums.weight.sum())}
    return {**columns, **figures, **_days(sums.source)}


def _columns(source: Any, contexts: tuple[str, ...]) -> dict[str, Any]:
    """How the rows were read."""
    read = {name: source.get(name) for name in ("score", "label", "weight", "weight_kind")}
    return {
        **read,
        "contexts": list(contexts),
        "scale": source.get("scale"),
        "negative_rate": source.get("negative_rate"),
        "date": source.get("date"),
        "cluster": source.get("cluster"),
        "on_bad_rows": source.get("on_bad_rows", "error"),
        "missing": source.get("missing", "error"),
    }


def _days(source: Any) -> dict[str, Any]:
    """Which rows were fitted."""
    names, files = names_and_files(source)
    return {"period": source.get("period"), "files": files, "days": names}


def _grid(fitted: Curves | Histogram) -> dict[str, float]:
    grid = fitted.grid
    return {"lower": grid.lower, "upper": grid.upper, "step": grid.step}


def _text(name: str, value: Any) -> Any:
    """A value for people: files as their number, other lists as their entries, groups of settings as JSON."""
    if isinstance(value, dict):
        return json_text.dumps(plain(value))
    if isinstance(value, list):
        if name == "period":
            return " to ".join(map(str, value))
        return len(value) if name == "files" else ", ".join(map(str, value)) or None
    return value
