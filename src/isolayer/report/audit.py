"""The page's part about segments: where a score is off, drawn as O/E by segment, and what the fields correct."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from isolayer.auditing import Audit, Finding
from isolayer.fitting.combinations import written
from isolayer.fitting.sentences import percents
from isolayer.fitting.terms import Segment, Terms
from isolayer.report.sections import data_table, section
from isolayer.report.words import readable

_SHOWN = 30  # segments that are drawn
_TOLD = 12  # sentences about what fields correct
_CLEAR = 2.0  # standard deviations
_SMALL, _LARGE = 3.0, 11.0  # radius of the fewest and of the most rows, in pixels
_LINES = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)  # of O/E


def audit_section(audit: Audit, repair: str | None = None) -> str:
    """Segments that are off, each as a sentence and a picture.

    Args:
        audit: What was found.
        repair: The command that repairs it.
    """
    found = audit.ranked or audit.suspects
    lead = " ".join(escape(one[0].upper() + one[1:] + ".") for one in audit.reasons())
    if not audit.findings and found:
        lead += " The segment below comes closest to being off, but is within chance."
    if audit.clusters is not None:
        lead += f" Intervals and p-values account for {audit.clusters:,} clusters of rows that vary together."
    body = _picture(found[:_SHOWN]) + _table(found) + _overall(audit)
    if repair is not None:
        body += f"<p>To repair it:</p><pre><code>{escape(repair)}</code></pre>"
    return section("audit-part", "Where the score is off", lead, body)


def terms_section(terms: Terms) -> str:
    """What the fields correct: for each term, the segment where one curve for all rows is most clearly off."""
    lead = (
        "The values of each field, and combinations of fields, correct the curve. For each correction, the table shows "
        "the segment where the curve alone is most clearly off: what it predicts there, and what was observed in the "
        "rows that were fitted."
    )
    clearest = [(name, terms.segments(1, term=place)) for place, name in enumerate(terms.names)]
    ranked = sorted(clearest, key=lambda one: -one[1][0].deviations if one[1] else 0.0)
    rows = "".join(_term_row(written(name), found[0] if found else None) for name, found in ranked)
    where = '<th scope="col" style="text-align:left">where the curve is most clearly off</th>'
    rest = "".join(f'<th scope="col">{heading}</th>' for heading in ("rows", "predicted by the curve", "observed"))
    head = f'<th scope="col">term</th>{where}{rest}'
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Terms of fields"><table><caption>Terms of fields, '
        f"the clearest first</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    items = "".join(f"<li>{escape(readable_sentence(str(one)))}</li>" for one in terms.segments(_TOLD))
    told = f"<p>In words:</p><ul>{items}</ul>" if items else ""
    return section("terms-part", "What fields correct", lead, table + told)


def _term_row(name: str, found: Segment | None) -> str:
    where, cells = "nowhere", ["", "", ""]
    if found is not None and found.deviations > _CLEAR:
        where = readable_sentence(found.where)
        cells = [f"{found.rows:,.0f}", *percents(found.predicted, found.observed)]
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    named = escape(readable_sentence(name))
    return f'<tr><th scope="row">{named}</th><td style="text-align:left">{escape(where)}</td>{data}</tr>'


def readable_sentence(words: str) -> str:
    """A sentence about a segment, with invisible characters of its values escaped; it is not shortened.

    >>> readable_sentence("device tv: predicted 4.1%")
    'device tv: predicted 4.1%'
    """
    return " ".join(readable(word) for word in words.split(" "))


def _picture(found: Sequence[Finding]) -> str:
    """A list of segments, each with its interval of O/E on one logarithmic axis; circles grow with rows."""
    if not found:
        return ""
    ends = [end for one in found for end in (one.lower, one.upper) if np.isfinite(end) and end > 0]
    low, high = min(0.9, *ends), max(1.1, *ends)
    low, high = max(low, 0.1), min(high, 10.0)
    most = max(one.rows for one in found)
    items = "".join(
        f'<li><span class="where">{escape(readable_sentence(str(one)))}</span>{_row(one, low, high, most)}</li>'
        for one in found
    )
    lines = ", ".join(f"{line:g}" for line in _LINES if low <= line <= high)
    return (
        f'<ol class="segments">{items}</ol><p class="note">O/E of each segment with its interval, adjusted for all '
        f"segments that were tested. Larger circles have more rows. Thin lines are at {lines}; the bold line is at 1. "
        "To the right of it the score predicts too little.</p>"
    )


def _row(one: Finding, low: float, high: float, most: float) -> str:
    def place(value: float) -> str:
        inside = min(max(value, low), high) if np.isfinite(value) else high
        return f"{2 + 96 * np.log(inside / low) / np.log(high / low):.2f}%"

    lines = "".join(
        f'<line x1="{place(line)}" x2="{place(line)}" y1="0" y2="26" '
        f'style="stroke:var(--{"muted" if line == 1 else "rule"});stroke-width:{2 if line == 1 else 1}"/>'
        for line in _LINES
        if low <= line <= high
    )
    colour = "raw" if not one.off else "series2" if one.o_over_e > 1 else "accent"
    radius = _SMALL + (_LARGE - _SMALL) * float(np.sqrt(one.rows / most))
    ends = f'x1="{place(one.lower)}" x2="{place(one.upper)}" y1="13" y2="13"'
    bar = f'<line {ends} style="stroke:var(--{colour});stroke-width:2"/>'
    dot = f'<circle cx="{place(one.o_over_e)}" cy="13" r="{radius:.1f}" style="fill:var(--{colour})"/>'
    words = f"O/E {one.o_over_e:.2f}, {one.lower:.2f} to {one.upper:.2f}"
    return f'<svg role="img" aria-label="{escape(words)}">{lines}{bar}{dot}</svg><span class="oe">{words}</span>'


def _table(found: Sequence[Finding]) -> str:
    headings = [
        "segment",
        "rows",
        "predicted",
        "expected",
        "observed",
        "O/E",
        "from",
        "to",
        "p-value",
        "log loss saved",
    ]
    rows = [
        [
            readable_sentence(one.segment),
            f"{one.rows:,.0f}",
            *(percents(rate)[0] for rate in (one.predicted, one.expected, one.observed)),
            *(f"{value:.3f}" for value in (one.o_over_e, one.lower, one.upper)),
            f"{one.p_value:.2g}",
            f"{one.loss_saved:.2g}",
        ]
        for one in found
    ]
    return data_table("Segments by evidence", headings, rows) if rows else ""


def _overall(audit: Audit) -> str:
    error = audit.multicalibration
    words = (
        f"All rows: {readable_sentence(str(audit.overall)).partition(': ')[2]}. Multicalibration error "
        f"{error.error:.4f} over {len(error.group):,} groups, p-value {error.p_value:.2g}; the smallest detectable "
        f"error is {error.minimum_detectable_error:.4f}."
    )
    return f"<p>{escape(words)}</p>"
