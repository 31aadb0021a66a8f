"""A description of a fit in sentences: rows, curves, and whether the rate rises with the score at all."""

from __future__ import annotations

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.fitting.monotone_test import Falling, words

LEVEL = 0.05  # a rate that never falls is called falling at most this often


def summary(curves: Curves) -> str:
    """A few lines about the fit.

    >>> from isolayer.grid import Grid
    >>> print(summary(Curves.identity(Grid())))
    1 monotone curve with 126 knots from -17 to 8.
    """
    grid, kind = curves.grid, "monotone" if curves.monotone else "unconstrained"
    size = f"{len(curves.values):,} {kind} curve{'s' if len(curves.values) > 1 else ''}"
    knots = f"{grid.buckets} knots from {grid.lower:g} to {grid.upper:g}"
    by = f" by {', '.join(curves.contexts)}" if curves.contexts else ""
    lines = [f"{size}{by} with {knots}."]
    rows = curves.source.get("rows")
    if rows is not None:
        lines.append(f"Fitted to {rows:,.0f} rows.")
    return "\n".join([*lines, *([] if (fall := falling(curves)) is None else [fall])])


def falling(curves: Curves, *, level: float = LEVEL) -> str | None:
    """A sentence on where the rate falls as the score rises, and what to do; None if there is no evidence that it does.

    Args:
        curves: Fitted curves; the curves of a layer do not store the evidence, and give None.
        level: How often a rate that never falls may be called falling.
    """
    found = curves.settings.get("clearest_fall")
    if found is None or not found["p_value"] < level:
        return None
    remedy = "No monotone curve can correct this; retrain the model, or fit with monotone=False."
    if not curves.monotone:
        remedy = "These curves are not monotone and follow the fall, but it is better to retrain the model."
    shown = prob_of if curves.scale == "prob" else float
    return f"{words(Falling(**found), shown)} {remedy}"
