"""The charts of the page, by Altair, from the numbers of the evidence. Those for notebooks are in ``plots``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.evaluation import logit_of, prob_of
from isolayer.errors import need
from isolayer.report.bias import Bias
from isolayer.report.evidence import ContextTable, Daily, Density, Reliability
from isolayer.report.theme import (
    COLOUR,
    RATIO_COLOURS,
    RATIO_STEPS,
    SERIES,
    by_place,
    named,
    prob_x,
    prob_y,
    series,
)
from isolayer.report.words import readable, readables

if TYPE_CHECKING:
    import altair as alt
else:
    alt = need("altair")

Floats = NDArray[np.float64]
Records = list[dict[str, Any]]
Span = tuple[float, float]

BEFORE, AFTER = "raw", "calibrated"
NEAR = 700  # area in square pixels around a point in which its tooltip shows
_PAIR = [COLOUR["raw"], COLOUR["accent"]]


def records(**columns: Any) -> Records:
    """Columns of one length as a list of rows of plain values.

    >>> records(x=np.array([1.0]), name=["a"])
    [{'x': 1.0, 'name': 'a'}]
    """
    plain = [np.asarray(column).tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]


def inline(values: Records, name: str | None = None) -> Any:
    """Rows as the data of a chart; the page replaces named data by its own."""
    return alt.InlineData(values=values, name=name) if name else alt.InlineData(values=values)


def reliability_chart(parts: Mapping[str, Reliability], colours: list[str]) -> Any:
    """Observed rate against predicted probability, with bands; both axes in logits, so that small rates show."""
    names = readables(list(parts))
    values = [
        {"series": place, "name": names[place], **row}
        for place, part in enumerate(parts.values())
        for row in _reliability_records(part)
    ]
    span = span_of([part.prob for part in parts.values()] + [part.rate for part in parts.values()])
    for row in values:
        row.update({name: float(np.clip(row[name], *span)) for name in ("y", "low", "high")})
    base = alt.Chart(inline(values))
    colour = series(colours)
    x = prob_x("x", "predicted probability", span)
    tips = [alt.Tooltip("name:N", title="score"), alt.Tooltip("prob:Q", format=".4~p", title="predicted")]
    tips += [alt.Tooltip("rate:Q", format=".4~p", title="observed"), alt.Tooltip("rows:Q", format=",.0f")]
    band = base.mark_area(opacity=0.16).encode(x=x, y=prob_y("low", "observed rate", span), y2="high:Q", color=colour)
    line = base.mark_line(strokeWidth=1.6).encode(x=x, y="y:Q", color=colour)
    points = base.mark_circle(size=42, opacity=1).encode(x=x, y="y:Q", color=colour)
    near = base.mark_circle(size=NEAR, opacity=0).encode(x=x, y="y:Q", tooltip=tips)
    return named(alt.layer(diagonal(span), band, line, points, near), series=names)


def _reliability_records(part: Reliability) -> Records:
    return records(
        x=logit_of(part.prob),
        y=logit_of(part.rate),
        low=logit_of(part.lower),
        high=logit_of(part.upper),
        prob=part.prob,
        rate=part.rate,
        rows=part.weight,
    )


def density_chart(density: Density, weight: float) -> Any:
    """Distribution of the scores before and after; ``weight`` is the total weight of the rows."""
    middles = (density.edge[1:] + density.edge[:-1]) / 2
    values = [
        {"series": place, **row}
        for place, share in enumerate((density.before, density.after))
        for row in records(x=middles, share=share)
    ]
    span = (float(density.edge[0]), float(density.edge[-1]))
    y = alt.Y("share:Q", axis=alt.Axis(title="share of rows", format=".0%", tickCount=3), stack=None)
    area = alt.Chart(inline(values)).mark_area(opacity=0.28, line={"strokeWidth": 1.6}, interpolate="monotone")
    x, drawn = prob_x("x", "score", span), area.encode(x=prob_x("x", "score", span), y=y, color=series(_PAIR))
    most = np.full(len(middles), max(density.before.max(), density.after.max(), 1e-9))
    rows = {"before": density.before * weight, "after": density.after * weight}
    counts = records(x=middles, prob=prob_of(middles), top=most, **rows)
    tips = [alt.Tooltip("prob:Q", format=".3~p", title="score")]
    tips += [alt.Tooltip(f"{name}:Q", format=",.0f", title=f"rows {name}") for name in ("before", "after")]
    wide = alt.Chart(inline(counts)).mark_rule(strokeWidth=14, opacity=0)
    near = wide.encode(x=x, y=alt.Y("top:Q"), y2=alt.datum(0), tooltip=tips)
    return named(alt.layer(drawn, near), series=[BEFORE, AFTER])


def heat_chart(table: ContextTable, when: str) -> Any:
    """O/E by two context columns, ``when`` before or after."""
    part = table.before if when == BEFORE else table.after
    rows, columns = sorted(range(2), key=lambda side: len(set(table.keys[side].tolist())))  # the longer goes across
    down, down_names = _places(table.keys[rows])
    across, across_names = _places(table.keys[columns])
    values = records(
        down=down,
        across=across,
        context=[table.label(row) for row in range(len(down))],
        ratio=part.ratio,
        lower=part.lower,
        upper=part.upper,
        rows=part.weight,
    )
    x, y = (
        by_place(field, channel, f"by {readable(table.names[side])}", labelOverlap=True, labelAngle=0)
        for field, channel, side in (("across", alt.X, columns), ("down", alt.Y, rows))
    )
    scale = alt.Scale(type="threshold", domain=RATIO_STEPS, range=RATIO_COLOURS)
    tips = [
        alt.Tooltip("context:N"),
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
    crowded = len(across_names) > 14
    return named(cells if crowded else alt.layer(cells, text), across=across_names, down=down_names)


def daily_chart(daily: Daily) -> Any:
    """Mean score before and after, against the label rate and its band, by day."""
    dated = daily.day.dtype.kind == "M"
    day = daily.day.astype(str).tolist() if dated else daily.day
    x = _day_axis(daily.day) if dated else alt.X("day:Q", axis=alt.Axis(title="day", tickMinStep=1))
    names = ["observed", BEFORE, AFTER]
    colour = series([COLOUR["ink"], *_PAIR])
    lines = [
        {"series": place, "name": names[place], **row}
        for place, column in enumerate((daily.rate, daily.before, daily.after))
        for row in records(day=day, date=daily.day.astype(str), rate=column, rows=daily.weight)
    ]
    y = alt.Y("rate:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title="mean", format=".2~%", tickCount=5))
    tips = [alt.Tooltip("name:N", title="mean"), alt.Tooltip("date:N", title="day")]
    tips += [alt.Tooltip("rate:Q", format=".4~p"), alt.Tooltip("rows:Q", format=",.0f")]
    band = (
        alt.Chart(inline(records(day=day, low=daily.lower, high=daily.upper)))
        .mark_area(opacity=0.12, color=COLOUR["ink"])
        .encode(x=x, y=alt.Y("low:Q", title="mean"), y2="high:Q")
    )
    base = alt.Chart(inline(lines)).encode(x=x, y=y, color=colour)
    points = base.mark_circle(size=34, opacity=1)
    near = alt.Chart(inline(lines)).mark_circle(size=NEAR, opacity=0).encode(x=x, y=y, tooltip=tips)
    return named(alt.layer(band, base.mark_line(strokeWidth=1.8), points, near), series=names)


def _day_axis(day: NDArray[Any]) -> Any:
    """The x channel of dates: about seven ticks, each on a day, independent of the reader's time zone."""
    span = int((day[-1] - day[0]).astype(int)) + 1
    interval: Any = {"interval": "day", "step": -(-span // 7)} if span <= 60 else {"interval": "month", "step": 1}
    axis = alt.Axis(title=None, format="%-d %b", tickCount=interval, labelOverlap=True)
    return alt.X("day:T", scale=alt.Scale(type="utc"), axis=axis)


def bias_chart(bias: Bias, task: str) -> Any:
    """The curves of one task: the observed probability for an item of given relevance, by value of the bias feature."""
    row, feature, names = bias.tasks.index(task), readable(bias.feature), readables(bias.values)
    values: Records = [
        {"name": f"{feature} {names[rank]}", "rank": rank, "x": float(x), "y": float(y)}
        for rank in range(len(names))
        for x, y in zip(bias.relevance, bias.observed[row, rank], strict=True)
        if np.isfinite(y)
    ]
    spans = span_of([prob_of(bias.relevance)]), span_of([prob_of(bias.observed[row])], margin=0.12)
    last = max(1, len(bias.values) - 1)
    fade = alt.Opacity("rank:Q", scale=alt.Scale(domain=[0, last], range=[1, 0.3]), legend=None)
    x, y = (
        prob_x("x", "relevance, as probability", spans[0]),
        prob_y("y", f"probability of {readable(task)} as logged", spans[1]),
    )
    base = alt.Chart(inline(values)).encode(x=x, y=y, detail="rank:Q")
    tips = [alt.Tooltip("name:N", title="curve")]
    lines = base.mark_line(strokeWidth=1.8, color=COLOUR["accent"]).encode(opacity=fade)
    near = base.mark_line(strokeWidth=16, opacity=0).encode(tooltip=tips)
    ends = [row for row in values if row["rank"] in (0, last)]
    top = max(ends, key=lambda row: (row["x"], row["y"]))
    bottom = min(ends, key=lambda row: (row["x"], row["y"]))
    above = alt.Chart(inline([top])).mark_text(align="right", dy=-8, color=COLOUR["muted"])
    below = alt.Chart(inline([bottom])).mark_text(align="left", dx=6, dy=14, color=COLOUR["muted"])
    return alt.layer(lines, *(text.encode(x=x, y=y, text="name:N") for text in (above, below)), near)


def relative_bias_chart(bias: Bias) -> Any:
    """Probability of each task's label by value of the bias feature, relative to the first, at medium relevance."""
    tasks, names, feature = readables(bias.tasks), readables(bias.values), readable(bias.feature)
    numeric = bias.values.dtype.kind in "iuf"
    values = [
        {"series": task, "name": tasks[task], "value": value if numeric else at, "at": names[at], "relative": relative}
        for task in range(len(tasks))
        for at, (value, relative) in enumerate(zip(bias.values.tolist(), bias.relative[task].tolist(), strict=True))
        if np.isfinite(relative)
    ]
    steps: Any = alt.X("value:Q", axis=alt.Axis(title=f"by {feature}", tickMinStep=1, labelAngle=0))
    x = steps if numeric else by_place("value", alt.X, f"by {feature}", labelAngle=0)
    y = alt.Y("relative:Q", axis=alt.Axis(title=f"against {feature} {names[0]}", format=".2~f"))
    base = alt.Chart(inline(values)).encode(x=x, y=y, color=series(series_colours(len(tasks))))
    tips = [alt.Tooltip("name:N", title="task"), alt.Tooltip("at:N", title="value")]
    near = base.mark_circle(size=NEAR, opacity=0).encode(tooltip=[*tips, alt.Tooltip("relative:Q", format=".3f")])
    layers = alt.layer(base.mark_line(strokeWidth=1.8), base.mark_circle(size=34, opacity=1), near)
    return named(layers, series=tasks, value=names)


def explorer_charts(span: Span) -> tuple[Any, Any]:
    """The curve explorer and the density beneath it, without data: the page fills ``curve``, ``dots`` and ``mass``."""
    x = prob_x("x", "raw probability", span)
    colour = alt.Color("colour:N", scale=None)
    tips = [alt.Tooltip("name:N", title="context")]
    tips += [alt.Tooltip(f"{name}:Q", format=".4~p") for name in ("raw", "calibrated", "lower", "upper")]
    tips += [alt.Tooltip("rows:Q", format=",.0f", title="rows about here")]
    curve = alt.Chart(alt.NamedData(name="curve"))
    low, y = (prob_y(field, "calibrated probability", span) for field in ("low", "y"))
    band = curve.mark_area(opacity=0.15, clip=True).encode(x=x, y=low, y2="high:Q", color=colour, detail="curve:N")
    line = curve.mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour, detail="curve:N")
    hover = curve.mark_circle(size=NEAR, opacity=0, clip=True).encode(x=x, y=y, tooltip=tips)
    dots = alt.Chart(alt.NamedData(name="dots")).mark_point(size=36, filled=False, strokeWidth=1.4, clip=True)
    seen = [tips[0], *(alt.Tooltip(f"{name}:Q", format=".4~p") for name in ("raw", "observed"))]
    rings = dots.encode(x=x, y=y, color=colour)
    around = alt.Chart(alt.NamedData(name="dots")).mark_circle(size=NEAR // 4, opacity=0, clip=True)
    main = alt.layer(diagonal(span), band, line, rings, hover, around.encode(x=x, y=y, tooltip=seen))
    mass = alt.Chart(inline([{"x": span[0], "share": 0.0, "colour": "none", "curve": 0}], "mass")).mark_area(
        opacity=0.28, line={"strokeWidth": 1.4}, clip=True
    )
    share = alt.Y("share:Q", stack=None, axis=alt.Axis(title="share of rows", format=".0%", tickCount=2))
    return main, mass.encode(x=x, y=share, color=colour, detail="curve:N")


def diagonal(span: Span) -> Any:
    """The dashed line of perfect calibration."""
    ends = inline([{"x": edge, "y": edge} for edge in span])
    return alt.Chart(ends).mark_line(color=COLOUR["muted"], strokeDash=[3, 3], strokeWidth=1).encode(x="x:Q", y="y:Q")


def span_of(columns: list[Floats], margin: float = 0.04) -> Span:
    """A range of logits that contains all probabilities except 0 and 1, with a margin."""
    both = np.concatenate([np.ravel(column) for column in columns])
    logit = logit_of(both[(both > 0) & (both < 1)])
    if not len(logit):
        return -1.0, 1.0
    low, high = float(logit.min()), float(logit.max())
    more = margin * (high - low) + 0.05
    return low - more, high + more


def _places(key: NDArray[Any]) -> tuple[list[int], list[str]]:
    """The index of each value among the distinct ones, sorted with missing last, and these values as text."""
    column = key.tolist()
    found = sorted({value for value in column if value is not None})
    place = {value: rank for rank, value in enumerate([*found, None])}
    return [place[value] for value in column], readables([*found, *([None] if None in column else [])])


def series_colours(count: int) -> list[str]:
    """A list of ``count`` colours; after the last colour of the palette the first is used again."""
    return [SERIES[place % len(SERIES)] for place in range(count)]
