"""The sections of the page as HTML: words and numbers around the charts. Text from the log is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from isolayer.metrics import Multicalibration
from isolayer.report.advice import Advice
from isolayer.report.bias import Bias
from isolayer.report.evidence import LEAST_ROWS, Daily, Evidence, Figure, Reliability
from isolayer.report.explained import why
from isolayer.report.intervals import Estimate
from isolayer.report.theme import RATIO_NAMES, RATIO_STEPS
from isolayer.report.words import joined, readable, readables

_NOTES = {
    "Log loss": "mean cross-entropy in nats; lower is better",
    "Normalised entropy": "log loss relative to always predicting the mean label; below 1 is better than that",
    "ECE": "mean gap between predicted and observed rate, in 15 bins of equal weight",
    "Observed / expected": "observed events divided by predicted events; 1 is right",
}
_DIGITS = {"Log loss": 4, "Normalised entropy": 4, "ECE": 4, "Observed / expected": 3}


def section(name: str, heading: str, lead: str, body: str) -> str:
    """One section of the page; ``lead`` is HTML."""
    title = f'<h2 id="{name}-title">{heading}</h2>\n<p>{lead}</p>'
    return f'<section id="{name}" aria-labelledby="{name}-title">\n{title}\n{body}\n</section>'


def chart(name: str, words: str, caption: str = "") -> str:
    """A place for a chart, with the text that a screen reader says instead."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    drawn = f'<div class="chart" id="{name}" role="img" aria-label="{escape(words)}"></div>'
    return f"<figure>{why(name)}{drawn}{below}</figure>"


def data_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The numbers behind a chart, in a table that opens on demand."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<details><summary>The same as a table</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def figures_section(evidence: Evidence) -> str:
    """Headline figures, before and after."""
    found = [_card(figure, evidence) for figure in evidence.figures]
    if evidence.worst_group is not None:
        found.append(_group_card(*evidence.worst_group))
    lead = f"The raw score in grey, the calibrated score in colour. {_clusters(evidence.clusters)}"
    return section("figures", "Before and after", lead, f'<div class="cards">{"".join(found)}</div>')


def _clusters(clusters: tuple[str, int] | None) -> str:
    """A sentence on what the intervals assume."""
    if clusters is None:
        return (
            "Intervals assume independent rows. If the rows of a user, a query or a day vary together, the true "
            "intervals are wider."
        )
    name = escape(readable(clusters[0]))
    return f"Intervals account for {clusters[1]:,} clusters by {name}: the rows of a cluster vary together."


def _card(figure: Figure, evidence: Evidence) -> str:
    digits = _DIGITS[figure.name]
    change = ""
    if figure.change is not None:
        change = f", <b>{_signed(figure.change.value)}</b>"
    note = _NOTES[figure.name]
    if figure.name == "ECE":
        note += f"; perfect probabilities would show {evidence.ece_floor[1]:.{digits}f} on these rows"
    after, before = (f"{part.value:.{digits}f}" for part in (figure.after, figure.before))
    interval = f"{figure.after.lower:.{digits}f} to {figure.after.upper:.{digits}f}"
    was = f"{figure.before.lower:.{digits}f} to {figure.before.upper:.{digits}f}"
    return (
        f'<div class="card">{why(figure.name)}<h3>{figure.name}</h3><p class="after">{after}</p>'
        f'<p class="before">was {before}{change}</p>{_interval_picture(figure)}'
        f'<p class="note">after {interval}<br>before {was}</p><p class="note">{note}</p></div>'
    )


def _group_card(before: Multicalibration, after: Multicalibration) -> str:
    worst = int(np.argmax(after.group_sigma))
    name = "all rows" if worst == 0 else f"{readable(after.field[worst])} {after.group[worst]}"
    seen = "within chance" if after.p_value > 0.05 else f"largest in {name}"
    return (
        f'<div class="card">{why("Worst group")}<h3>Worst group</h3><p class="after">{after.error:.4f}</p>'
        f'<p class="before">was {before.error:.4f}</p>{_two_bars(before.error, after.error)}'
        f'<p class="note">{escape(seen)}; the smallest detectable error is {after.minimum_detectable_error:.4f}</p>'
        '<p class="note">largest calibration error over all values of all contexts (multicalibration error)</p></div>'
    )


def _percent(prob: float) -> str:
    return f"{np.format_float_positional(100 * prob, precision=3, fractional=False, trim='-')}%"


def _signed(percent: float) -> str:
    return f"{percent:+.1f}%".replace("-", "−")


def _interval_picture(figure: Figure) -> str:
    """Both intervals on one axis: grey before, accent after."""
    one = [1.0] if figure.name == "Observed / expected" else []
    edges = [*figure.before[1:], *figure.after[1:], *one]
    low, high = min(edges), max(edges)
    wide = (high - low) or 1.0

    def place(value: float) -> str:
        return f"{2 + 96 * (value - low) / wide:.1f}%"

    def bar(part: Estimate, y: int, colour: str) -> str:
        ends = f'x1="{place(part.lower)}" x2="{place(part.upper)}" y1="{y}" y2="{y}"'
        line = f'<line {ends} style="stroke:var(--{colour});stroke-width:2"/>'
        return line + f'<circle cx="{place(part.value)}" cy="{y}" r="4" style="fill:var(--{colour})"/>'

    ends = [f'x1="{place(value)}" x2="{place(value)}" y1="0" y2="26"' for value in one]
    target = "".join(f'<line {end} style="stroke:var(--rule)"/>' for end in ends)
    return f'<svg aria-hidden="true">{target}{bar(figure.before, 7, "raw")}{bar(figure.after, 19, "accent")}</svg>'


def _two_bars(before: float, after: float) -> str:
    most = max(before, after) or 1.0
    bars = (
        f'<rect x="0" y="{y}" width="{98 * value / most:.1f}%" height="5" rx="2" style="fill:var(--{colour})"/>'
        for value, y, colour in ((before, 4, "raw"), (after, 16, "accent"))
    )
    return f'<svg aria-hidden="true">{"".join(bars)}</svg>'


def advice_section(advice: Sequence[Advice]) -> str:
    """The suggestions, as a list."""
    names = {"good": "Good: ", "act": "To do: ", "note": "Note: "}
    items = (
        f'<li class="{each.kind}"><span class="hidden">{names[each.kind]}</span>{escape(each.text)}</li>'
        for each in advice
    )
    lead = "What these numbers suggest."
    return section("next", "What to do next", lead, f'<ul class="advice">{"".join(items)}</ul>')


def reliability_section(evidence: Evidence) -> str:
    """Reliability diagram and the distribution of the scores."""
    before, after = evidence.reliability
    per = evidence.weight / max(1, len(after.prob))
    words = f"Reliability diagram. Calibrated: {_gap_words(after)}. Raw: {_gap_words(before)}."
    body = (
        '<div class="pair">'
        + chart("reliability", words, f"Each point is about {per:,.0f} rows. Bands are 95% intervals of the rate.")
        + chart("density", "Distribution of raw and calibrated scores.", "How many rows have each score.")
        + "</div>"
    )
    rows = [
        [name, *(f"{value:.3%}" for value in (prob, rate, lower, upper)), f"{weight:,.0f}"]
        for name, part in (("raw", before), ("calibrated", after))
        for prob, rate, lower, upper, weight in zip(*part, strict=True)
    ]
    table = data_table("Reliability by bin", ["score", "predicted", "observed", "from", "to", "rows"], rows)
    lead = "Do events with a predicted probability of 5% happen 5% of the time? On the dashed line they do."
    return section("reliability-part", "Reliability", lead, body + table)


def _gap_words(part: Reliability) -> str:
    inside = int(((part.lower <= part.prob) & (part.prob <= part.upper)).sum())
    return f"in {inside} of {len(part.prob)} bins the interval of the observed rate contains the prediction"


def contexts_section(evidence: Evidence) -> str:
    """The table of contexts; the script fills in its rows."""
    options = "".join(
        f'<option value="{place}">{escape(joined(table.names))} ({table.total:,})</option>'
        for place, table in enumerate(evidence.tables)
    )
    choice = (
        f'<div class="field"><label for="context-table">By</label><select id="context-table">{options}</select></div>'
    )
    first = evidence.tables[0]
    example = f"{readable(first.names[0])}={readable(first.keys[0].tolist()[0])}"
    headings = (
        ("context", "Context", ""),
        ("weight", "Rows", "desk-only"),
        ("rate", "Rate", "desk-only"),
        ("before", "O/E before", ""),
        ("after", "O/E after", ""),
        ("off", "Off beyond chance", "desk-only"),
    )
    head = "".join(
        f'<th scope="col" class="{style}"><button type="button" data-key="{key}">{text}</button></th>'
        for key, text, style in headings
    )
    search = (
        '<div class="field wide"><label for="context-search">Find a context</label>'
        '<input type="search" id="context-search" autocomplete="off" '
        f'placeholder="any words, or {escape(example)}"></div>'
    )
    body = (
        f'<div id="contexts"><div class="controls">{search}{choice if len(evidence.tables) > 1 else ""}</div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Observed over expected by context"><table>'
        "<caption>Sorted by the distance from 1 of the interval of O/E after calibration. Intervals are adjusted for "
        f"testing {first.judged:,} contexts. Contexts with fewer than {LEAST_ROWS} rows are not tested. Select a "
        "column to sort by it."
        '<span class="wide-only"> The picture shows O/E from 0.5 to 2, before in grey.</span></caption>'
        f'<thead><tr>{head}<th scope="col" class="wide-only">0.5 – 1 – 2</th>'
        '<th scope="col"><span class="hidden">Curve</span></th></tr></thead>'
        '<tbody></tbody></table></div><div class="pager"><p class="status" role="status"></p>'
        '<button type="button" data-go="-1">Previous</button>'
        '<button type="button" data-go="1">Next</button></div></div>'
    )
    lead = "Observed over expected by context, worst first."
    return section("contexts-part", "Contexts", lead, body)


def explorer_section(evidence: Evidence, readout: Sequence[float], left_out: int, fields: Sequence[str] = ()) -> str:
    """The curve explorer; the script draws its curves. If there are fields, they correct the curves afterwards."""
    search = (
        '<div class="controls"><div class="field wide"><label for="curve-search">Add a context</label>'
        '<input type="text" '
        'id="curve-search" role="combobox" aria-autocomplete="list" aria-expanded="false" '
        'aria-controls="curve-options" autocomplete="off" placeholder="type to search">'
        '<ul id="curve-options" class="options" role="listbox" aria-label="Contexts" hidden></ul></div></div>'
        if evidence.tables
        else ""
    )
    head = "".join(f'<th scope="col">{_percent(1 / (1 + float(np.exp(-logit))))}</th>' for logit in readout)
    rest = f" This page has the curves with the most data; the calibrator has {left_out:,} more." if left_out else ""
    caption = (
        "Lines map raw to calibrated probability, with 95% bands. Rings are rates observed in this log. The chart "
        f"below shows the scores of the rows that each curve was fitted to.{rest}"
    )
    body = (
        f'<div id="explorer">{search}<ul class="chips" aria-label="Curves shown"></ul><p class="hidden" role="status">'
        f"</p>{chart('explorer-curves', 'Curves of the chosen contexts; their values are in the table below.')}"
        f"{chart('explorer-mass', 'Where the rows of each curve are.', caption)}"
        '<div class="readout scroll" tabindex="0" role="region" aria-label="Calibrated probability by raw score">'
        "<table><caption>Calibrated probability, with its band, at a raw probability of</caption><thead><tr>"
        f'<th scope="col">context</th>{head}</tr></thead><tbody></tbody></table></div></div>'
    )
    lead = "What the calibrator does to a score, and how certain it is."
    if fields:
        lead = (
            "What the curves do to a score, and how certain they are, before the fields correct it. Rings are the "
            f"rates observed over all values of {escape(joined(fields, ' and '))}."
        )
    return section("explorer-part", "Curves", lead, body)


def heat_section(names: Sequence[str]) -> str:
    """Two heat maps, before and after, and what their colours mean."""
    pair = joined(names, " and ")
    maps = ""
    for place, when in enumerate(("Before", "After")):
        words = f"O/E by {pair}, {when.lower()}; the numbers are in the table of contexts."
        maps += f"<div><h3>{when}</h3>{chart(f'heat-{place}', words)}</div>"
    edges = [f"under {RATIO_STEPS[0]:g}", *(f"to {edge:g}" for edge in RATIO_STEPS[1:]), f"over {RATIO_STEPS[-1]:g}"]
    legend = "".join(
        f'<li><i style="background:var(--{name})"></i>{edge}</li>'
        for name, edge in zip(RATIO_NAMES, edges, strict=True)
    )
    lead = f"O/E by {escape(pair)}: pale is right, blue-green means predicted too high, orange too low."
    body = f'<div class="pair roomy">{maps}</div><ul class="legend" aria-label="O/E by colour">{legend}</ul>'
    return section("heat-part", escape(joined(names)), lead, body)


def daily_section(daily: Daily) -> str:
    """Mean score against label rate, by day."""
    words = f"Mean score and label rate over {len(daily.day)} days."
    rows = [
        [str(day), *(f"{value:.3%}" for value in (rate, before, after)), f"{ratio:.3f}", f"{weight:,.0f}"]
        for day, rate, before, after, ratio, weight in zip(
            daily.day, daily.rate, daily.before, daily.after, daily.ratio.ratio, daily.weight, strict=True
        )
    ]
    table = data_table("By day", ["day", "observed", "raw", "calibrated", "O/E after", "rows"], rows)
    gap = [float(np.mean(np.abs(column - daily.rate))) for column in (daily.before, daily.after)]
    lead = (
        f"Mean score against label rate. On an average day they are {100 * gap[1]:.2f} percentage points apart after "
        f"calibration, {100 * gap[0]:.2f} before."
    )
    body = chart("daily", words, "The grey band is the 95% interval of the day's label rate.") + table
    return section("daily-part", "Day by day", lead, body)


def bias_section(bias: Bias) -> str:
    """What a debiased model learned about each task and value of the bias feature."""
    feature, tasks = readable(bias.feature), readables(bias.tasks)
    plots = "".join(
        f"<div><h3>{escape(task)}</h3>{chart(f'bias-{place}', f'Learned curves of {task} by {feature}.')}</div>"
        for place, task in enumerate(tasks)
    )
    words = f"Probability of each label by {feature}."
    where = f"If every row were shown at one {feature}" if bias.averaged else "At medium relevance"
    relative = f"<div><h3>{escape(where)}</h3>{chart('bias-relative', words)}</div>"
    rows = [
        [value, *(f"{part:.3f}" for part in bias.relative[:, place])]
        for place, value in enumerate(readables(bias.values))
    ]
    table = data_table(
        f"Probability of each label relative to {feature} {readable(bias.values.tolist()[0])}", [feature, *tasks], rows
    )
    lead = (
        f"Observed probability of each label for an item of given relevance, by {escape(feature)}. These curves are "
        "not used in serving."
    )
    return section("bias-part", "Learned bias", lead, f'<div class="pair">{plots}{relative}</div>{table}')
