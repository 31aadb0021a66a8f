"""How charts look: the palette, the axis of probabilities, the configuration. No data belongs here.

Every colour has a name, a light and a dark form. Charts are made in the light ones; a page swaps them for CSS variables
of the same names, so that light, dark and print need no redrawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import need

if TYPE_CHECKING:
    import altair as alt
else:
    alt = need("altair")

PALETTE = {
    "ink": ("#1f2328", "#e9e7e2"),
    "muted": ("#646c75", "#a0a6ad"),
    "rule": ("#d5d9dd", "#41464d"),
    "grid": ("#eceef0", "#292d32"),
    "paper": ("#fdfcfa", "#15181b"),
    "raw": ("#8c949d", "#868e97"),
    "accent": ("#0b6e75", "#4fc3c7"),
    "series2": ("#b4540a", "#f0a35e"),
    "series3": ("#6b4fbb", "#b09af0"),
    "series4": ("#4d7c0f", "#a3cf62"),
    "series5": ("#be185d", "#f28ab2"),
    "series6": ("#475569", "#b6c0ce"),
    "low3": ("#4d9aa0", "#3d9599"),
    "low2": ("#8fc2c6", "#2f6b6f"),
    "low1": ("#cde4e5", "#26484b"),
    "even": ("#f0f1f2", "#2b2f34"),
    "high1": ("#f7dcc4", "#4d3a2a"),
    "high2": ("#eeb27f", "#7d5530"),
    "high3": ("#d9823b", "#b87b3f"),
}
COLOUR = {name: light for name, (light, _) in PALETTE.items()}
SERIES = [COLOUR["accent"], *(COLOUR[f"series{place}"] for place in range(2, 7))]
RATIO_STEPS = [0.5, 0.67, 0.8, 0.95, 1.05, 1.25, 1.5, 2.0]  # values of O/E where the colour of the heat map changes
RATIO_NAMES = ["accent", "low3", "low2", "low1", "even", "high1", "high2", "high3", "series2"]
RATIO_COLOURS = [COLOUR[name] for name in RATIO_NAMES]
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_TICKS = np.array([1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999])
_FINE_TICKS = np.array([1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997])
_FINEST_TICKS = np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, *np.arange(0.2, 0.96, 0.05)])


def ticks(low: float, high: float) -> list[float]:
    """Logits of round probabilities between two logits, at least four if there are that many.

    >>> [round(1 / (1 + float(np.exp(-tick))), 3) for tick in ticks(-5.0, 0.1)]
    [0.01, 0.03, 0.1, 0.25, 0.5]
    """
    inside: NDArray[np.float64] = np.zeros(0)
    for choice in (_TICKS, _FINE_TICKS, _FINEST_TICKS):
        logit = np.log(choice / (1 - choice))
        inside = logit[(logit >= low) & (logit <= high)]
        if len(inside) >= 4:
            break
    return [float(value) for value in inside]


def prob_axis(title: str, low: float, high: float) -> Any:
    """An axis of logits whose ticks are labelled as probabilities."""
    return alt.Axis(
        title=title, values=ticks(low, high), labelExpr="format(1 / (1 + exp(-datum.value)), '.3~p')", labelOverlap=True
    )


def prob_x(field: str, title: str, domain: tuple[float, float]) -> Any:
    """The x channel of a logit field shown as probability."""
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    return alt.X(f"{field}:Q", scale=scale, axis=prob_axis(title, *domain))


def prob_y(field: str, title: str, domain: tuple[float, float]) -> Any:
    """The y channel of a logit field shown as probability."""
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=prob_axis(title, *domain))


def series(colours: list[str]) -> Any:
    """The colour channel of the field ``series``, with its legend above the chart; see :func:`named`."""
    legend = alt.Legend(
        title=None,
        orient="top",
        symbolType="stroke",
        symbolStrokeWidth=3,
        labelFontSize=12,
        symbolOpacity=1,
        labelExpr="series_names[datum.value]",
    )
    domain = list(range(len(colours)))
    return alt.Color("series:O", scale=alt.Scale(domain=domain, range=colours), legend=legend, sort=None)


def by_place(field: str, channel: Any, title: str | None, **axis: Any) -> Any:
    """An x or y channel of a field that holds indices into a list of names; see :func:`named`."""
    shown = alt.Axis(title=title, domain=False, ticks=False, labelExpr=f"{field}_names[datum.value]", **axis)
    return channel(f"{field}:O", sort="ascending", axis=shown)


def named(chart: Any, **names: Sequence[str]) -> Any:
    """A chart with lists of names, as the parameters ``<field>_names``.

    Fields of a chart hold indices of names and never the names. Vega compiles sort orders, domains and titles of
    tooltips into expressions and keys of objects, where a line separator or a name such as "constructor" breaks the
    whole chart. Parameters are plain data. For the same reason a name is never the whole title of an axis.
    """
    return chart.add_params(*(alt.param(name=f"{field}_names", value=list(texts)) for field, texts in names.items()))


def styled(chart: Any, title: str | None = None) -> Any:
    """The chart in the common style: no frame, quiet grid, numbers in the text face."""
    chart = chart.properties(title=title) if title else chart
    axis = {
        "labelColor": COLOUR["muted"],
        "titleColor": COLOUR["muted"],
        "domainColor": COLOUR["rule"],
        "tickColor": COLOUR["rule"],
        "gridColor": COLOUR["grid"],
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    return (
        chart.configure(font=FONT, background="transparent", padding=2)
        .configure_view(stroke=None)
        .configure_axis(**axis)
        .configure_axisY(minExtent=48)
        .configure_legend(labelColor=COLOUR["muted"], titleColor=COLOUR["muted"])
        .configure_title(anchor="start", color=COLOUR["ink"], fontSize=13, fontWeight=600)
    )
