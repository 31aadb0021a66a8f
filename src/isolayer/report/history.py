"""The page's part about past checks: O/E, log loss and alarms, check by check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from isolayer.errors import need
from isolayer.report.charts import AFTER, BEFORE, NEAR, inline, records
from isolayer.report.sections import chart, data_table, section
from isolayer.report.theme import COLOUR, by_place, named, series
from isolayer.report.words import readables

if TYPE_CHECKING:
    import altair as alt
else:
    alt = need("altair")

ALARM, SEEN = "drifted", "in sample"


def history_section(history: pa.Table) -> str:
    """Two charts and a table of past checks."""
    alarms = history["verdict"].to_pylist().count(ALARM)
    seen = sum(map(bool, history["in_sample"].to_pylist()))
    lead = f"{len(history):,} checks, {alarms:,} of which found a drift, marked in orange."
    lead += f" In {seen:,}, drawn in grey, the rows had been fitted before, so they prove nothing." if seen else ""
    columns = ("o_over_e", "o_over_e_from", "o_over_e_to", "slope", "log_loss_before", "log_loss_after")
    rows = [
        [str(row["day"]), *(_number(row[name]) for name in columns), f"{row['rows'] or 0:,.0f}", _verdict(row)]
        for row in history.to_pylist()
    ]
    headings = ["day", "O/E", "from", "to", "slope", "log loss raw", "log loss calibrated", "rows", "verdict"]
    ratio = f"Observed over expected by check, with its interval; {alarms} alarms."
    body = (
        f'<div class="pair">{chart("history-ratio", ratio, "O/E of each check, with its interval.")}'
        f"{chart('history-loss', 'Log loss by check, raw and calibrated.', 'Log loss, raw and calibrated.')}</div>"
    )
    return section("history-part", "Past checks", lead, body + data_table("By check", headings, rows))


def ratio_chart(history: pa.Table) -> Any:
    """O/E with its interval, one mark per check; checks that found a drift or were in sample have other colours."""
    rows = history.to_pylist()
    values = records(
        day=np.arange(len(rows)),
        ratio=_column(history, "o_over_e"),
        low=_column(history, "o_over_e_from"),
        high=_column(history, "o_over_e_to"),
        series=[2 if row["in_sample"] else int(row["verdict"] == ALARM) for row in rows],
        rows=_column(history, "rows"),
    )
    values = [row for row in values if np.isfinite(row["ratio"])]
    kinds = ["holds", ALARM, SEEN] if any(row["in_sample"] for row in rows) else ["holds", ALARM]
    base = alt.Chart(inline(values)).encode(
        x=_days(), color=series([COLOUR[name] for name in ("accent", "series2", "raw")[: len(kinds)]])
    )
    scale, axis = alt.Scale(zero=False), alt.Axis(title="O/E", tickCount=5)
    bars = base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q", scale=scale, axis=axis), y2="high:Q")
    tips = [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("ratio", "low", "high")]
    points = base.mark_circle(size=44, opacity=1).encode(
        y=alt.Y("ratio:Q", scale=scale, axis=axis), tooltip=[*tips, alt.Tooltip("rows:Q", format=",.0f")]
    )
    one = alt.Chart(inline([{"one": 1.0}])).mark_rule(color=COLOUR["rule"], strokeDash=[4, 4]).encode(y="one:Q")
    return named(alt.layer(one, bars, points), series=kinds, day=readables(history["day"].to_pylist()))


def loss_chart(history: pa.Table) -> Any:
    """Log loss before and after calibration, by check."""
    values = [
        {"series": place, **row}
        for place, name in enumerate(("log_loss_before", "log_loss_after"))
        for row in records(day=np.arange(len(history)), loss=_column(history, name))
    ]
    y = alt.Y("loss:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title="log loss", tickCount=5))
    base = alt.Chart(inline(values)).encode(x=_days(), y=y, color=series([COLOUR["raw"], COLOUR["accent"]]))
    points = base.mark_circle(size=34, opacity=1)
    near = base.mark_circle(size=NEAR, opacity=0).encode(tooltip=[alt.Tooltip("loss:Q", format=".5f")])
    days = readables(history["day"].to_pylist())
    return named(alt.layer(base.mark_line(strokeWidth=1.8), points, near), series=[BEFORE, AFTER], day=days)


def _days() -> Any:
    return by_place("day", alt.X, None, labelOverlap=True, labelAngle=0)


def _column(history: pa.Table, name: str) -> Any:
    return np.array([np.nan if value is None else value for value in history[name].to_pylist()], np.float64)


def _verdict(row: dict[str, Any]) -> str:
    return f"{ALARM}, {SEEN}" if row["in_sample"] and row["verdict"] == ALARM else str(row["verdict"])


def _number(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.4f}"
