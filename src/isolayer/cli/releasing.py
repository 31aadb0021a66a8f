"""The verdict of `compare` in words and as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.cli.clusters import INDEPENDENT
from isolayer.cli.judgement import Judgement
from isolayer.cli.provenance import IN_SAMPLE
from isolayer.monitor import Release


def release_judgement(
    change: dict[str, NDArray[Any]] | None, found: Release | None, settings: dict[str, Any], in_sample: bool = False
) -> Judgement:
    """The verdict on a release.

    Args:
        change: The change by context, as :meth:`isolayer.Curves.compare` returns it; None if their contexts differ.
        found: The comparison on a log, if one was given.
        settings: The options of the command.
        in_sample: Whether one of the two was fitted on rows of the log.
    """
    moved, largest = _moved(change, settings["most"])
    worse = found is not None and found.verdict == "worse"
    passed = "allowed" if found is None else "in sample" if in_sample else found.verdict
    verdict = "worse" if worse else "moved" if moved else passed
    reasons = [*([] if found is None else [_on_log(found)]), *([] if change is None else [largest])]
    notes = [INDEPENDENT] if found is not None and found.clusters is None else []
    notes += [IN_SAMPLE] if in_sample else []
    return Judgement(
        holds=not (worse or moved),
        verdict=verdict,
        reasons=reasons,
        notes=notes,
        figures=_figures(change, found),
        entries={} if change is None else _entries(change),
        settings=settings,
    )


def _entries(change: dict[str, NDArray[Any]]) -> dict[str, list[Any]]:
    order = np.argsort(-np.asarray(change["largest"], np.float64), kind="stable")
    return {name: list(values[order]) for name, values in change.items()}


def _moved(change: dict[str, NDArray[Any]] | None, most: float | None) -> tuple[bool, str]:
    """Whether a change beyond both bands is larger than allowed, and the largest change in words."""
    if change is None:
        return False, ""
    largest, certain = (float(np.nanmax(np.asarray(change[name], np.float64))) for name in ("largest", "certain"))
    words = f"largest change: {largest:.4g}; largest beyond both bands: {certain:.4g}"
    if most is None:
        return False, words
    return certain > most, f"{words}, {'beyond' if certain > most else 'within'} --most {most:g}"


def _on_log(found: Release) -> str:
    loss, ratio = found.log_loss, found.o_over_e
    return (
        f"on the log, {found.verdict}: log loss {loss.old:.5f} to {loss.new:.5f}, change {loss.change:+.5f} "
        f"({loss.lower:+.5f} to {loss.upper:+.5f}); observed over expected {ratio.old:.4f} to {ratio.new:.4f}, change "
        f"{ratio.change:+.4f} ({ratio.lower:+.4f} to {ratio.upper:+.4f})"
    )


def _figures(change: dict[str, NDArray[Any]] | None, found: Release | None) -> dict[str, Any]:
    figures = dict[str, Any]()
    if change is not None:
        figures |= {f"{name}_change": float(np.nanmax(change[name])) for name in ("largest", "certain")}
        figures["average_change"] = float(change["average"][0])
    if found is not None:
        figures |= {"rows": found.rows, "clusters": found.clusters}
        for name in ("log_loss", "o_over_e"):
            figures |= {f"{name}_{part}": value for part, value in getattr(found, name)._asdict().items()}
    return figures
