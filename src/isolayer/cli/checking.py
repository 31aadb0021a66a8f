"""The verdict of `check` in words and as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.cli.clusters import INDEPENDENT
from isolayer.cli.judgement import Judgement
from isolayer.cli.provenance import IN_SAMPLE
from isolayer.monitor import Check

MOST_INTERVALS = 2000  # entries of a JSON document that have intervals; less significant ones have none
REFIT = (
    "if the log is right, refit with `isolayer fit` or add the day with `isolayer update`; if it is broken, repair it"
)
_NAMED = 3  # how many contexts a reason names


def judgement_of(result: Check, settings: dict[str, Any], most: int | None, in_sample: bool = False) -> Judgement:
    """The verdict of a check.

    Args:
        result: What was found.
        settings: The options of the command.
        most: How many entries to list after that of all rows, most significant first. None lists all of them, of which
            only the first have intervals.
        in_sample: Whether the calibrator was fitted on these rows.
    """
    significance = np.fmin(result.p_value[1:], result.slope_p_value[1:])
    order = np.concatenate([[0], 1 + np.lexsort([result.new[1:], np.nan_to_num(significance, nan=2.0)])])
    listed = order[: MOST_INTERVALS if most is None else most + 1]
    holds = result.holds
    return Judgement(
        holds=holds,
        verdict="drifted" if not holds else "in sample" if in_sample else "holds",
        reasons=_verdict(result, in_sample),
        notes=_notes(result, settings),
        figures=_figures(result),
        entries=_entries(result, order, listed),
        settings=settings,
    )


def _verdict(result: Check, in_sample: bool) -> list[str]:
    if not result.holds:
        return [f"drifted: {'; '.join(_reasons(result))}; {REFIT}", *([IN_SAMPLE] if in_sample else [])]
    return [IN_SAMPLE if in_sample else "the calibrator holds"]


def _entries(result: Check, order: Any, listed: Any) -> dict[str, list[Any]]:
    """Columns of the table; only listed entries have intervals, because these take time to compute."""
    lower, upper = (np.full(len(result.ratio), np.nan) for _ in range(2))
    lower[listed], upper[listed] = result.interval(listed)
    table: dict[str, list[Any]] = {
        name: [
            "(all)" if depth <= place else value
            for value, depth in zip(values[order], result.depth[order], strict=True)
        ]
        for place, (name, values) in enumerate(result.context.items())
    }
    columns = {
        "rows": result.weight,
        "o_over_e": result.ratio,
        "from": lower,
        "to": upper,
        "p_value": result.p_value,
        "slope": result.slope,
        "slope_p_value": result.slope_p_value,
        "verdict": result.status,
    }
    return table | {name: list(values[order]) for name, values in columns.items()}


def _figures(result: Check) -> dict[str, Any]:
    (lower,), (upper,) = result.interval(np.zeros(1, np.int64))
    before, after = result.log_loss
    tested = (result.depth == result.depth.max()) & ~result.new
    return {
        "rows": float(result.weight[0]),
        "o_over_e": result.ratio[0],
        "o_over_e_from": lower,
        "o_over_e_to": upper,
        "slope": result.slope[0],
        "log_loss_before": before,
        "log_loss_after": after,
        "contexts": int(tested.sum()) if result.context else 0,
        "drifted_contexts": int((result.drifted & tested).sum()) if result.context else 0,
        "new_contexts": int(result.new.sum()),
        "new_rows": float(result.weight[result.new].sum()),
        "clusters": result.clusters,
    }


def _reasons(result: Check) -> list[str]:
    """What drifted: all rows together first, then groups, then contexts."""
    found = list[str]()
    if result.new[1:].all() and len(result.new) > 1:
        found.append("none of the contexts was in the fit")
    if result.moved[0]:
        found.append(f"all rows together, observed over expected {result.ratio[0]:.3g}")
    if result.bent[0]:
        found.append(f"all rows together, slope {result.slope[0]:.3g}")
    names = list(result.context)
    for depth in range(1, len(names) + 1):
        at = (result.depth == depth) & ~result.new
        for flags, what in ((result.moved, ""), (result.bent & ~result.moved, " in slope")):
            off = np.flatnonzero(flags & at)
            if len(off):
                kind = "contexts" if depth == len(names) else f"groups of {', '.join(names[:depth])}"
                found.append(f"{len(off)} of {int(at.sum())} {kind}{what} ({_worst(result, off, depth, bool(what))})")
    return found


def _worst(result: Check, off: NDArray[np.intp], depth: int, by_slope: bool) -> str:
    """The contexts that drifted most clearly, by name."""
    value, p_value = (result.slope, result.slope_p_value) if by_slope else (result.ratio, result.p_value)
    shown = off[np.argsort(p_value[off], kind="stable")][:_NAMED]
    columns = list(result.context.items())[:depth]
    words = [
        " ".join(f"{name} {values[place]}" for name, values in columns)
        + f": {'slope' if by_slope else 'observed over expected'} {value[place]:.3g}"
        for place in shown
    ]
    return ", ".join(words) + (f", and {len(off) - len(shown)} more" if len(off) > len(shown) else "")


def _notes(result: Check, settings: dict[str, Any]) -> list[str]:
    found = list[str]()
    if result.clusters is None:
        only = f"{settings['clusters']} has one value: " if settings.get("clusters") else ""
        found.append(only + INDEPENDENT)
    before, after = result.log_loss
    if after > before:
        found.append(
            f"the raw score has a lower log loss on these rows than the calibrated score, {before:.4g} against "
            f"{after:.4g}. The verdict does not compare the two: it says whether there are as many events as the "
            "calibrator predicts. `isolayer report` says whether the difference is beyond chance"
        )
    if result.new.any():
        share = result.weight[result.new].sum() / (result.weight[result.new].sum() + result.weight[0])
        count = int(result.new.sum())
        who = f"{count} contexts ({share:.1%} of rows) were" if count > 1 else f"1 context ({share:.1%} of rows) was"
        found.append(f"new: {who} not in the fit and not tested; the curve of the parent context is used there")
    return found
