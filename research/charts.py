"""What the pictures of several experiments share: columns as rows, and means with intervals, a panel a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isolayer.errors import need


def records(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Columns as rows.

    >>> records({"arm": ["a", "b"], "lift": [1, 2]})
    [{'arm': 'a', 'lift': 1}, {'arm': 'b', 'lift': 2}]
    """
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def intervals(
    rows: Sequence[Mapping[str, Any]],
    *,
    y: str,
    panel: str,
    order: Sequence[str],
    title: str | None = None,
    columns: int = 2,
    shared: bool = False,
    ours: str = "",
    zero: bool = False,
) -> Any:
    """Means (``value``) with intervals (``lower`` to ``upper``): lines by one column, panels by another.

    Args:
        rows: What to draw.
        y: Column of the lines.
        panel: Column of the panels.
        order: The lines from top to bottom.
        title: Of the horizontal axis.
        columns: Panels side by side.
        shared: Whether panels have one horizontal axis.
        ours: The line in another colour.
        zero: Whether to mark zero.
    """
    alt = need("altair")
    base = alt.Chart().encode(y=alt.Y(f"{y}:N", sort=list(order), title=None))
    axis = alt.X("lower:Q", title=title, scale=alt.Scale(zero=zero))
    colour = alt.condition(alt.datum[y] == ours, alt.value("#f0a30a"), alt.value("#2457c5"))
    layers = [
        base.mark_rule().encode(x=axis, x2="upper:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x="value:Q", color=colour),
    ]
    if zero:
        layers.append(alt.Chart().mark_rule(strokeDash=[3, 3]).encode(x=alt.datum(0)))
    size = {"width": 240, "height": 18 * len(order) + 20}
    facet = alt.Facet(f"{panel}:N", title=None, sort=list(dict.fromkeys(row[panel] for row in rows)))
    drawn = alt.layer(*layers, data=alt.Data(values=list(rows))).properties(**size).facet(facet, columns=columns)
    return drawn if shared else drawn.resolve_scale(x="independent")
