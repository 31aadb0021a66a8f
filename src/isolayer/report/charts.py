"""Charts from numbers, by Altair: those of the page, and the ones a notebook asks for.

A chart saves itself as PNG, SVG or HTML by ``chart.save(path)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves, logit_of, prob_of
from isolayer.errors import InputError, need
from isolayer.metrics import BinSums, observed_over_expected
from isolayer.metrics.rows import labels, probs, weights
from isolayer.report.bias import Bias
from isolayer.report.evidence import BINS, ContextTable, Daily, Density, Reliability, certain_distance, reliability
from isolayer.report.rows import texts
from isolayer.report.theme import COLOUR, RATIO_COLOURS, RATIO_STEPS, SERIES, prob_x, prob_y, series, styled

if TYPE_CHECKING:
    import altair as alt
else:
    alt = need("altair")

Floats = NDArray[np.float64]
Records = list[dict[str, Any]]
Span = tuple[float, float]

BEFORE, AFTER = "raw", "calibrated"
_PAIR = [COLOUR["raw"], COLOUR["accent"]]


def records(**columns: Any) -> Records:
    """Columns of one length as a list of rows of plain values.

    >>> records(x=np.array([1.0]), name=["a"])
    [{'x': 1.0, 'name': 'a'}]
    """
    plain = [np.asarray(column).tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]


def inline(values: Records, name: str | None = None) -> Any:
    """Rows as the data of a chart; a page replaces those that have a name."""
    return alt.InlineData(values=values, name=name) if name else alt.InlineData(values=values)


def reliability_chart(parts: Mapping[str, Reliability], colours: list[str]) -> Any:
    """Observed rate against predicted probability, with bands; both axes in logits, so that small rates show."""
    values = [row for name, part in parts.items() for row in _reliability_records(name, part)]
    span = _span([part.prob for part in parts.values()] + [part.rate for part in parts.values()])
    for row in values:
        row.update({name: float(np.clip(row[name], *span)) for name in ("y", "low", "high")})
    base = alt.Chart(inline(values))
    colour = series(list(parts), colours)
    x = prob_x("x", "predicted probability", span)
    tips = [alt.Tooltip("series:N"), alt.Tooltip("prob:Q", format=".4~p", title="predicted")]
    tips += [alt.Tooltip("rate:Q", format=".4~p", title="observed"), alt.Tooltip("rows:Q", format=",.0f")]
    band = base.mark_area(opacity=0.16).encode(x=x, y=prob_y("low", "observed rate", span), y2="high:Q", color=colour)
    line = base.mark_line(strokeWidth=1.6).encode(x=x, y="y:Q", color=colour)
    points = base.mark_circle(size=42, opacity=1).encode(x=x, y="y:Q", color=colour, tooltip=tips)
    return alt.layer(_diagonal(span), band, line, points)


def _reliability_records(name: str, part: Reliability) -> Records:
    found = records(
        x=logit_of(part.prob),
        y=logit_of(part.rate),
        low=logit_of(part.lower),
        high=logit_of(part.upper),
        prob=part.prob,
        rate=part.rate,
        rows=part.weight,
    )
    return [{"series": name, **row} for row in found]


def density_chart(density: Density) -> Any:
    """How the scores are spread, before and after."""
    middles = (density.edge[1:] + density.edge[:-1]) / 2
    values = [
        {"series": name, **row}
        for name, share in ((BEFORE, density.before), (AFTER, density.after))
        for row in records(x=middles, share=share)
    ]
    span = (float(density.edge[0]), float(density.edge[-1]))
    y = alt.Y("share:Q", axis=alt.Axis(title="share of rows", format=".0%", tickCount=3), stack=None)
    colour = series([BEFORE, AFTER], _PAIR)
    return (
        alt.Chart(inline(values))
        .mark_area(opacity=0.28, line={"strokeWidth": 1.6}, interpolate="monotone")
        .encode(x=prob_x("x", "score", span), y=y, color=colour)
    )


def heat_chart(table: ContextTable, when: str) -> Any:
    """O/E by two context columns, ``when`` before or after."""
    part = table.before if when == BEFORE else table.after
    rows, columns = sorted(range(2), key=lambda place: len(set(table.keys[place].tolist())))  # the longer goes across
    values = records(
        down=texts(table.keys[rows]),
        across=texts(table.keys[columns]),
        ratio=part.ratio,
        lower=part.lower,
        upper=part.upper,
        rows=part.weight,
    )
    order = [_sorted_texts(table.keys[place]) for place in (columns, rows)]
    bare: Any = {"domain": False, "ticks": False, "labelOverlap": True, "labelAngle": 0}
    x = alt.X("across:O", sort=order[0], axis=alt.Axis(title=table.names[columns], **bare))
    y = alt.Y("down:O", sort=order[1], axis=alt.Axis(title=table.names[rows], **bare))
    scale = alt.Scale(type="threshold", domain=RATIO_STEPS, range=RATIO_COLOURS)
    tips = [
        alt.Tooltip("across:N", title=table.names[columns]),
        alt.Tooltip("down:N", title=table.names[rows]),
        *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("ratio", "lower", "upper")),
        alt.Tooltip("rows:Q", format=",.0f"),
    ]
    base = alt.Chart(inline(values)).encode(x=x, y=y)
    cells = base.mark_rect(stroke=COLOUR["paper"], strokeWidth=1.5).encode(
        color=alt.Color("ratio:Q", scale=scale, legend=None), tooltip=tips
    )
    strong = "datum.ratio >= 1.5 || datum.ratio < 0.67"
    text = base.mark_text(fontSize=10, tooltip=None).encode(
        text=alt.Text("ratio:Q", format=".2f"),
        color=alt.condition(strong, alt.value(COLOUR["paper"]), alt.value(COLOUR["ink"])),
    )
    crowded = len(order[0]) > 14
    return cells if crowded else alt.layer(cells, text)


def daily_chart(daily: Daily) -> Any:
    """Mean score before and after, against the label rate and its band, by day."""
    dated = daily.day.dtype.kind == "M"
    day = daily.day.astype(str).tolist() if dated else daily.day
    kind, axis = ("T", alt.Axis(title=None, format="%-d %b", tickCount=6)) if dated else ("Q", alt.Axis(title="day"))
    x = alt.X(f"day:{kind}", axis=axis)
    colour = series(["observed", BEFORE, AFTER], [COLOUR["ink"], *_PAIR])
    lines = [
        {"series": name, **row}
        for name, column in (("observed", daily.rate), (BEFORE, daily.before), (AFTER, daily.after))
        for row in records(day=day, rate=column, rows=daily.weight)
    ]
    y = alt.Y("rate:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title="mean", format=".2~%", tickCount=5))
    tips = [alt.Tooltip("series:N"), alt.Tooltip(f"day:{kind}")]
    tips += [alt.Tooltip("rate:Q", format=".4~p"), alt.Tooltip("rows:Q", format=",.0f")]
    band = (
        alt.Chart(inline(records(day=day, low=daily.lower, high=daily.upper)))
        .mark_area(opacity=0.12, color=COLOUR["ink"])
        .encode(x=x, y=alt.Y("low:Q", title="mean"), y2="high:Q")
    )
    base = alt.Chart(inline(lines)).encode(x=x, y=y, color=colour)
    return alt.layer(band, base.mark_line(strokeWidth=1.8), base.mark_circle(size=34, opacity=1).encode(tooltip=tips))


def bias_chart(bias: Bias, task: str) -> Any:
    """The curves of one task: what is logged for an item of given relevance, by value of the bias feature."""
    place = bias.tasks.index(task)
    values: Records = [
        {"value": str(value), "rank": rank, "x": float(x), "y": float(y)}
        for rank, value in enumerate(bias.values.tolist())
        for x, y in zip(bias.relevance, bias.observed[place, rank], strict=True)
        if np.isfinite(y)
    ]
    spans = _span([prob_of(bias.relevance)]), _span([prob_of(bias.observed[place])], room=0.12)
    last = max(1, len(bias.values) - 1)
    fade = alt.Opacity("rank:Q", scale=alt.Scale(domain=[0, last], range=[1, 0.3]), legend=None)
    x, y = prob_x("x", "relevance, as probability", spans[0]), prob_y("y", f"chance of {task} as logged", spans[1])
    base = alt.Chart(inline(values)).encode(x=x, y=y, detail="rank:Q")
    tips = [alt.Tooltip("value:N", title=bias.feature)]
    lines = base.mark_line(strokeWidth=1.8, color=COLOUR["accent"]).encode(opacity=fade, tooltip=tips)
    ends = [row | {"name": f"{bias.feature} {row['value']}"} for row in values if row["rank"] in (0, last)]
    top = max(ends, key=lambda row: (row["x"], row["y"]))
    bottom = min(ends, key=lambda row: (row["x"], row["y"]))
    above = alt.Chart(inline([top])).mark_text(align="right", dy=-8, color=COLOUR["muted"])
    below = alt.Chart(inline([bottom])).mark_text(align="left", dx=6, dy=14, color=COLOUR["muted"])
    return alt.layer(lines, *(text.encode(x=x, y=y, text="name:N") for text in (above, below)))


def relative_bias_chart(bias: Bias) -> Any:
    """Chance of each task's label by value of the bias feature, over that at the first, at middling relevance."""
    values = [
        {"series": task, "value": value, "relative": float(relative)}
        for place, task in enumerate(bias.tasks)
        for value, relative in zip(bias.values.tolist(), bias.relative[place], strict=True)
        if np.isfinite(relative)
    ]
    kind = "Q" if bias.values.dtype.kind in "iuf" else "O"
    x = alt.X(f"value:{kind}", axis=alt.Axis(title=bias.feature, tickMinStep=1, labelAngle=0))
    y = alt.Y("relative:Q", axis=alt.Axis(title=f"against {bias.feature} {bias.values[0]}", format=".2~f"))
    colours = [SERIES[place % len(SERIES)] for place in range(len(bias.tasks))]
    base = alt.Chart(inline(values)).encode(x=x, y=y, color=series(list(bias.tasks), colours))
    tips = ["series:N", alt.Tooltip("value:N", title=bias.feature), alt.Tooltip("relative:Q", format=".3f")]
    return alt.layer(base.mark_line(strokeWidth=1.8), base.mark_circle(size=34, opacity=1).encode(tooltip=tips))


def explorer_charts(span: Span) -> tuple[Any, Any]:
    """The curve explorer and the density beneath it, without data: the page fills ``curve``, ``dots`` and ``mass``."""
    x = prob_x("x", "raw probability", span)
    colour = alt.Color("colour:N", scale=None)
    tips = [alt.Tooltip("name:N", title="context")]
    tips += [alt.Tooltip(f"{name}:Q", format=".4~p") for name in ("raw", "calibrated", "lower", "upper")]
    curve = alt.Chart(alt.NamedData(name="curve"))
    low, y = (prob_y(field, "calibrated probability", span) for field in ("low", "y"))
    band = curve.mark_area(opacity=0.15, clip=True).encode(x=x, y=low, y2="high:Q", color=colour, detail="name:N")
    line = curve.mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour, detail="name:N")
    hover = curve.mark_point(size=60, opacity=0, clip=True).encode(x=x, y=y, tooltip=tips)
    dots = alt.Chart(alt.NamedData(name="dots")).mark_point(size=36, filled=False, strokeWidth=1.4, clip=True)
    seen = [tips[0], *(alt.Tooltip(f"{name}:Q", format=".4~p") for name in ("raw", "observed"))]
    main = alt.layer(_diagonal(span), band, line, hover, dots.encode(x=x, y=y, color=colour, tooltip=seen))
    mass = alt.Chart(inline([{"x": span[0], "share": 0.0, "colour": "none", "name": ""}], "mass")).mark_area(
        opacity=0.28, line={"strokeWidth": 1.4}, clip=True
    )
    share = alt.Y("share:Q", stack=None, axis=alt.Axis(title="share of rows", format=".0%", tickCount=2))
    return main, mass.encode(x=x, y=share, color=colour, detail="name:N")


def plot_reliability(label: Any, prob: Any, weight: Any = None, *, bins: int = BINS) -> Any:
    """Reliability diagram with 95% bands, and below it how the scores are spread.

    Args:
        label: Labels in [0, 1], ``[n]``.
        prob: Probabilities ``[n]``, or a mapping of names to such columns to compare.
        weight: Frequency weights, ``[n]``.
        bins: Number of bins of equal mass.

    >>> chart = plot_reliability([0, 1], {"old": [0.2, 0.6], "new": [0.1, 0.8]}, bins=2)
    >>> type(chart).__name__
    'VConcatChart'
    """
    named = prob if isinstance(prob, Mapping) else {"score": prob}
    columns = {str(name): probs(column) for name, column in named.items()}
    parts = {name: reliability(BinSums.of_distinct(label, column, weight), bins) for name, column in columns.items()}
    colours = [SERIES[place % len(SERIES)] for place in range(len(parts))]
    diagram = reliability_chart(parts, colours).properties(width=420, height=320)
    counts = _histogram(columns, labels(label, len(next(iter(columns.values())))), weight, colours)
    return styled(alt.vconcat(diagram, counts.properties(width=420, height=80)))


def _histogram(columns: Mapping[str, Floats], label: Floats, weight: Any, colours: list[str]) -> Any:
    span = _span(list(columns.values()))
    edge = np.linspace(*span, 41)
    w = weights(weight, len(label))
    values = [
        {"series": name, **row}
        for name, column in columns.items()
        for row in records(x=(edge[1:] + edge[:-1]) / 2, rows=np.histogram(logit_of(column), edge, weights=w)[0])
    ]
    y = alt.Y("rows:Q", stack=None, axis=alt.Axis(title="rows", format="~s", tickCount=3))
    chart = alt.Chart(inline(values)).mark_area(opacity=0.28, line={"strokeWidth": 1.4})
    return chart.encode(x=prob_x("x", "predicted probability", span), y=y, color=series(list(columns), colours))


def plot_observed_over_expected(label: Any, prob: Any, context: Any, weight: Any = None, *, top: int = 30) -> Any:
    """O/E of the contexts that are surely furthest from 1, with 95% intervals.

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
    names = [" · ".join(row) for row in zip(*(texts(column) for column in columns), strict=True)]
    order = np.lexsort([-table.weight, -certain_distance(table)])[:top]
    least = 0.5 * table.upper[order].min()  # an interval from 0 has no place on a logarithmic axis
    values = records(
        context=[names[place] for place in order],
        ratio=np.maximum(table.ratio, least)[order],
        lower=np.maximum(table.lower, least)[order],
        upper=table.upper[order],
        rows=table.weight[order],
    )
    x, low = (
        alt.X(f"{name}:Q", scale=alt.Scale(type="log"), title="observed / expected") for name in ("ratio", "lower")
    )
    y = alt.Y("context:N", sort=None, axis=alt.Axis(title=None, domain=False, ticks=False))
    tips = ["context:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("ratio", "lower", "upper"))]
    base = alt.Chart(inline(values))
    rule = base.mark_rule(color=COLOUR["accent"], strokeWidth=1.6).encode(x=low, x2="upper:Q", y=y)
    point = base.mark_circle(color=COLOUR["accent"], size=48, opacity=1).encode(x=x, y=y, tooltip=tips)
    one = alt.Chart(inline([{"one": 1}])).mark_rule(color=COLOUR["muted"], strokeDash=[3, 3]).encode(x="one:Q")
    return styled(alt.layer(one, rule, point).properties(width=420, height=alt.Step(20)))


def plot_curves(curves: Curves, context: Mapping[str, Any] | None = None, *, level: float = 0.95, most: int = 6) -> Any:
    """Raw to calibrated probability with bands, and below it where the data of each curve are.

    Args:
        curves: The curves.
        context: Context columns by name, one entry a curve to draw; by default the curves with the most rows.
        level: Confidence of the bands.
        most: How many curves to draw by default.

    >>> from isolayer.grid import Grid
    >>> type(plot_curves(Curves.identity(Grid()))).__name__
    'VConcatChart'
    """
    rows, names = _chosen(curves, context, most)
    knots = curves.grid.knots[1:]
    occupied = curves.mass[rows] > 0
    shown = occupied | ~occupied.any(1, keepdims=True) & (np.abs(knots) < 6)
    lower, upper = (logit_of(edge[rows]) for edge in curves.band(level))
    colours = [SERIES[place % len(SERIES)] for place in range(len(rows))]
    values = [
        {"series": name, **row}
        for place, name in enumerate(names)
        for row in records(
            x=knots[shown[place]],
            y=curves.values[rows[place], shown[place]],
            low=lower[place, shown[place]],
            high=upper[place, shown[place]],
            rows=curves.mass[rows[place], shown[place]],
        )
    ]
    span = _span([prob_of(np.array([row[name] for row in values])) for name in ("x", "y")])
    x, colour = prob_x("x", "raw probability", span), series(names, colours)
    base = alt.Chart(inline(values)).encode(x=x, color=colour)
    band = base.mark_area(opacity=0.15, clip=True).encode(y=prob_y("low", "calibrated probability", span), y2="high:Q")
    line = base.mark_line(strokeWidth=2, clip=True).encode(y="y:Q")
    mass = base.mark_area(opacity=0.28, line={"strokeWidth": 1.4}).encode(
        y=alt.Y("rows:Q", stack=None, axis=alt.Axis(title="rows", format="~s", tickCount=3))
    )
    main = alt.layer(_diagonal(span), band, line).properties(width=420, height=320)
    return styled(alt.vconcat(main, mass.properties(width=420, height=80)))


def _chosen(curves: Curves, context: Mapping[str, Any] | None, most: int) -> tuple[NDArray[np.int64], list[str]]:
    """Rows of the curves to draw, and a name for each."""
    if context is not None:
        columns = [np.asarray(context[name]).tolist() for name in curves.contexts if name in context]
        if not columns:
            raise InputError(f"context: expected columns of {curves.contexts}, got {list(context)}; name them so")
        names = [" · ".join(map(str, row)) for row in zip(*columns, strict=True)]
        return curves.rows_of(context, len(names), depth=len(columns)), names
    start, end = curves.starts[-2:]
    rows = start + np.argsort(-curves.count[start:end], kind="stable")[:most]
    keys = [texts(key[rows - start]) for key in curves.keys[-1]]
    return rows, [" · ".join(row) for row in zip(*keys, strict=True)] if keys else ["all rows"]


def _diagonal(span: Span) -> Any:
    ends = inline([{"x": edge, "y": edge} for edge in span])
    return alt.Chart(ends).mark_line(color=COLOUR["muted"], strokeDash=[3, 3], strokeWidth=1).encode(x="x:Q", y="y:Q")


def _span(columns: list[Floats], room: float = 0.04) -> Span:
    """Logits that hold all probabilities but 0 and 1, with a little room."""
    both = np.concatenate([np.ravel(column) for column in columns])
    logit = logit_of(both[(both > 0) & (both < 1)])
    if not len(logit):
        return -1.0, 1.0
    low, high = float(logit.min()), float(logit.max())
    more = room * (high - low) + 0.05
    return low - more, high + more


def _sorted_texts(key: NDArray[Any]) -> list[str]:
    found = sorted({value for value in key.tolist() if value is not None})
    return [*map(str, found), *(["missing"] if None in key.tolist() else [])]
