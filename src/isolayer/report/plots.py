"""Charts for notebooks, by Altair. A chart saves itself as PNG, SVG or HTML by ``chart.save(path)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.errors import InputError, need
from isolayer.fitting.columns import array_of, same_length, shaped
from isolayer.metrics import BinSums, observed_over_expected
from isolayer.metrics.rows import labels, probs, weights
from isolayer.report.charts import diagonal, inline, records, reliability_chart, series_colours, span_of
from isolayer.report.evidence import BINS, certain_distance, reliability
from isolayer.report.theme import COLOUR, by_place, named, prob_x, prob_y, series, styled
from isolayer.report.words import readables
from isolayer.settings import mapping

if TYPE_CHECKING:
    import altair as alt
else:
    alt = need("altair")

Floats = NDArray[np.float64]


def plot_reliability(label: Any, prob: Any, weight: Any = None, *, bins: int = BINS) -> Any:
    """Reliability diagram with 95% bands, and below it the distribution of the scores.

    Args:
        label: Labels in [0, 1], ``[n]``.
        prob: Probabilities ``[n]``, or a mapping of names to such columns to compare.
        weight: Frequency weights, ``[n]``.
        bins: Number of bins of equal weight.

    >>> chart = plot_reliability([0, 1], {"old": [0.2, 0.6], "new": [0.1, 0.8]}, bins=2)
    >>> type(chart).__name__
    'VConcatChart'
    """
    compared = prob if isinstance(prob, Mapping) else {"score": prob}
    columns = {str(name): probs(column) for name, column in compared.items()}
    parts = {name: reliability(BinSums.of_distinct(label, column, weight), bins) for name, column in columns.items()}
    colours = series_colours(len(parts))
    diagram = reliability_chart(parts, colours).properties(width=420, height=320)
    counts = _histogram(columns, labels(label, len(next(iter(columns.values())))), weight, colours)
    return styled(alt.vconcat(diagram, counts.properties(width=420, height=80)))


def _histogram(columns: Mapping[str, Floats], label: Floats, weight: Any, colours: list[str]) -> Any:
    span = span_of(list(columns.values()))
    edge = np.linspace(*span, 41)
    w = weights(weight, len(label))
    values = [
        {"series": place, **row}
        for place, column in enumerate(columns.values())
        for row in records(x=(edge[1:] + edge[:-1]) / 2, rows=np.histogram(logit_of(column), edge, weights=w)[0])
    ]
    y = alt.Y("rows:Q", stack=None, axis=alt.Axis(title="rows", format="~s", tickCount=3))
    chart = alt.Chart(inline(values)).mark_area(opacity=0.28, line={"strokeWidth": 1.4})
    return chart.encode(x=prob_x("x", "predicted probability", span), y=y, color=series(colours))


def plot_observed_over_expected(label: Any, prob: Any, context: Any, weight: Any = None, *, top: int = 30) -> Any:
    """O/E of the contexts whose 95% intervals lie furthest from 1.

    Args:
        label: Labels in [0, 1], ``[n]``.
        prob: Probabilities ``[n]``.
        context: A column ``[n]``, or a mapping of columns whose combinations are the contexts.
        weight: Frequency weights, ``[n]``.
        top: How many contexts to show.

    >>> chart = plot_observed_over_expected([1, 1, 1, 0], [0.5] * 4, ["web", "web", "tv", "tv"])
    >>> type(chart).__name__
    'LayerChart'
    """
    table = observed_over_expected(label, prob, context, weight)
    columns = table.context.values() if isinstance(table.context, Mapping) else [table.context]
    names = [" · ".join(row) for row in zip(*(readables(column) for column in columns), strict=True)]
    order = np.lexsort([-table.weight, -certain_distance(table)])[:top]
    least = 0.5 * table.upper[order].min()  # an interval from 0 has no place on a logarithmic axis
    values = records(
        place=range(len(order)),
        context=[names[row] for row in order],
        ratio=np.maximum(table.ratio, least)[order],
        lower=np.maximum(table.lower, least)[order],
        upper=table.upper[order],
        rows=table.weight[order],
    )
    x, low = (
        alt.X(f"{name}:Q", scale=alt.Scale(type="log"), title="observed / expected") for name in ("ratio", "lower")
    )
    y = by_place("place", alt.Y, None)
    tips = ["context:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("ratio", "lower", "upper"))]
    tips.append(alt.Tooltip("rows:Q", format=",.0f"))
    base = alt.Chart(inline(values))
    rule = base.mark_rule(color=COLOUR["accent"], strokeWidth=1.6).encode(x=low, x2="upper:Q", y=y)
    point = base.mark_circle(color=COLOUR["accent"], size=48, opacity=1).encode(x=x, y=y, tooltip=tips)
    one = alt.Chart(inline([{"one": 1}])).mark_rule(color=COLOUR["muted"], strokeDash=[3, 3]).encode(x="one:Q")
    layers = alt.layer(one, rule, point).properties(width=420, height=alt.Step(20))
    return styled(named(layers, place=[names[row] for row in order]))


def plot_curves(curves: Curves, context: Mapping[str, Any] | None = None, *, level: float = 0.95, most: int = 6) -> Any:
    """Raw to calibrated probability with bands, and below it the distribution of each curve's rows.

    Args:
        curves: The curves.
        context: Context columns by name, one entry per curve to draw; by default the curves with the most rows.
        level: Confidence level of the bands.
        most: How many curves to draw by default.

    >>> from isolayer.grid import Grid
    >>> type(plot_curves(Curves.identity(Grid()))).__name__
    'VConcatChart'
    """
    rows, names = _chosen(curves, context, most)
    knots = curves.grid.knots[1:]
    occupied = curves.knot_weight[rows] > 0
    shown = occupied | ~occupied.any(1, keepdims=True) & (np.abs(knots) < 6)
    lower, upper = (logit_of(edge[rows]) for edge in curves.band(level=level))
    values = [
        {"series": place, **row}
        for place in range(len(names))
        for row in records(
            x=knots[shown[place]],
            y=curves.values[rows[place], shown[place]],
            low=lower[place, shown[place]],
            high=upper[place, shown[place]],
            rows=curves.knot_weight[rows[place], shown[place]],
        )
    ]
    span = span_of([prob_of(np.array([row[name] for row in values])) for name in ("x", "y")])
    x, colour = prob_x("x", "raw probability", span), series(series_colours(len(names)))
    base = alt.Chart(inline(values)).encode(x=x, color=colour)
    band = base.mark_area(opacity=0.15, clip=True).encode(y=prob_y("low", "calibrated probability", span), y2="high:Q")
    line = base.mark_line(strokeWidth=2, clip=True).encode(y="y:Q")
    mass = base.mark_area(opacity=0.28, line={"strokeWidth": 1.4}).encode(
        y=alt.Y("rows:Q", stack=None, axis=alt.Axis(title="rows", format="~s", tickCount=3))
    )
    main = alt.layer(diagonal(span), band, line).properties(width=420, height=320)
    return styled(named(alt.vconcat(main, mass.properties(width=420, height=80)), series=names))


def _chosen(curves: Curves, context: Mapping[str, Any] | None, most: int) -> tuple[NDArray[np.int64], list[str]]:
    """Rows of the curves to draw, and a name for each."""
    if context is not None:
        mapping("context", context, advice="give a column for each context")
        present = [name for name in curves.contexts if name in context]
        columns = [shaped(f"context {name}", array_of(f"context {name}", context[name])).tolist() for name in present]
        for name, column in zip(present, columns, strict=True):
            same_length(f"context {name}", len(column), len(columns[0]))
        if not columns:
            raise InputError(f"context: expected columns of {curves.contexts}, got {list(context)}; use these names")
        names = [" · ".join(readables(row)) for row in zip(*columns, strict=True)]
        return curves.rows_of(context, len(names), depth=len(columns)), names
    start, end = curves.starts[-2:]
    rows = start + np.argsort(-curves.count[start:end], kind="stable")[:most]
    keys = [readables(key[rows - start]) for key in curves.keys[-1]]
    return rows, [" · ".join(row) for row in zip(*keys, strict=True)] if keys else ["all rows"]
