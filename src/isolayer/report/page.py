"""The page: one self-contained HTML file made from evidence and curves. It needs no network and no server."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pyarrow as pa

from isolayer.auditing import Audit
from isolayer.curves.curves import Curves
from isolayer.curves.summary import falling
from isolayer.curves.verified_file import library_version
from isolayer.errors import need
from isolayer.fitting.histogram import Histogram
from isolayer.metrics.history import read_history
from isolayer.report import charts, sections
from isolayer.report.advice import IN_SAMPLE, advise
from isolayer.report.audit import audit_section, terms_section
from isolayer.report.bias import Bias, learned_bias
from isolayer.report.evidence import Evidence, gather
from isolayer.report.history import history_section, loss_chart, ratio_chart
from isolayer.report.pack import Pack, add_curves, add_dots, add_table
from isolayer.report.rows import from_histogram, from_log
from isolayer.report.theme import COLOUR, PALETTE, SERIES, styled, ticks
from isolayer.report.words import joined, readable
from isolayer.settings import instance, text
from isolayer.storage import files_of, refuse_same_file, whole_file, writable

Span = tuple[float, float]


def write(
    path: str | os.PathLike[str],
    log: Any,
    curves: Curves,
    *,
    score: str = "score",
    label: str = "label",
    contexts: Sequence[str] | None = None,
    weight: str | None = None,
    date: str | None = None,
    cluster: str | None = None,
    bias: Curves | None = None,
    title: str | None = None,
    in_sample: bool = False,
    about: str | None = None,
    history: str | os.PathLike[str] | None = None,
    audit: Audit | None = None,
) -> Path:
    """Write the report of curves on a log.

    Args:
        path: The file to write; it is written completely or not at all.
        log: A dict of columns, a frame (pandas, polars, pyarrow), a Parquet path or glob, an Ibis table or a DuckDB
            relation.
        curves: The curves to judge.
        score: Column of raw scores, on the scale of the curves.
        label: Column of labels in [0, 1].
        contexts: Columns to report by; by default the contexts of the curves.
        weight: Column of frequency weights.
        date: Column of dates, or of whole numbers of days.
        cluster: Column whose rows vary together, such as a user or a query; by default the day, if there are several.
        bias: Curves of a debiased model, as ``DualHead.curves()`` returns them; by default ``curves``, if they have a
            task and a bias feature.
        title: Heading of the page.
        in_sample: Whether the curves were fitted to some of these rows; if they were fitted to all of them, this is
            detected. The page then says so in a banner.
        about: A sentence about the rows and the curves for the top of the page, such as where they come from.
        history: A history of checks, as ``isolayer check --history`` writes it, to draw by day.
        audit: An audit of the calibrated score, as :func:`isolayer.audit` returns it, to show on the page.

    Returns:
        The path that was written.
    """
    writable(path)
    if isinstance(log, str | os.PathLike):
        refuse_same_file(path, *files_of(os.fspath(log)), name="path")
    past = None if history is None else read_history(history)
    if audit is not None:
        instance("audit", audit, Audit, advice="make one with isolayer.audit, or leave it out")
    rows = from_log(log, curves, score=score, label=label, contexts=contexts, weight=weight, date=date, cluster=cluster)
    evidence = gather(replace(rows, in_sample=in_sample or rows.in_sample), curves)
    learned = None
    if bias is not None:
        learned = learned_bias(bias)
    elif curves.contexts[:1] == ("task",) and len(curves.contexts) > 1:
        learned = learned_bias(curves, _span(evidence))
    told = _about(about, log, evidence, curves)
    return _save(path, render(evidence, curves, bias=learned, title=title, about=told, history=past, audit=audit))


def _about(given: str | None, log: Any, evidence: Evidence, curves: Curves) -> str:
    """The sentence about the rows and the curves at the top of the page: the given one, or else what is known."""
    if given is not None:
        return text("about", given, advice="or None for what is known")
    read = f" from {os.fspath(log)}" if isinstance(log, str | os.PathLike) else ""
    if evidence.in_sample or "data" not in curves.source:
        return f"Judged on rows{read}." if read else ""
    return f"Judged on rows{read} that the curves were not fitted to."


def write_audit(
    path: str | os.PathLike[str], audit: Audit, *, title: str | None = None, repair: str | None = None
) -> Path:
    """Write a page about an audit: the segments where a score is off, with a picture of each.

    Args:
        path: The file to write; it is written completely or not at all.
        audit: What :func:`isolayer.audit` found.
        title: Heading of the page.
        repair: The command that corrects what was found, to print at the end.
    """
    writable(path)
    instance("audit", audit, Audit, advice="make one with isolayer.audit")
    title = "Where is the score wrong?" if title is None else text("title", title, advice="or None for the usual")
    repair = None if repair is None else text("repair", repair, advice="or None for no command")
    rows = f"{audit.rows:,} rows" + (f", a sample of {audit.total:,}" if audit.rows < audit.total else "")
    page = Template(_resource("audit.html")).substitute(
        title=escape(readable(title)),
        palette=_palette(),
        style=_resource("page.css"),
        lead=f"{rows}, {len(audit.fields):,} fields, {audit.tests:,} segments.",
        sections=audit_section(audit, repair),
        footer=f"Made by isolayer {library_version()}.",
    )
    return _save(path, page)


def write_fitted(
    path: str | os.PathLike[str], histogram: Histogram, curves: Curves, *, title: str | None = None
) -> Path:
    """Write the report of curves on the rows they were fitted to; a banner on the page says so.

    Args:
        path: The file to write; it is written completely or not at all.
        histogram: The rows, as ``IsotonicCalibrator.histogram_`` keeps them.
        curves: The curves.
        title: Heading of the page.
    """
    writable(path)
    return _save(path, render(gather(from_histogram(histogram, curves), curves), curves, title=title))


def render(
    evidence: Evidence,
    curves: Curves,
    *,
    bias: Bias | None = None,
    title: str | None = None,
    about: str = "",
    history: pa.Table | None = None,
    audit: Audit | None = None,
) -> str:
    """The page as text; ``history`` is a table of past checks, ``about`` a sentence for the top of the page."""
    title = "Calibration, before and after" if title is None else text("title", title, advice="or None for the usual")
    span = _span(evidence)
    readout = _readout(span)
    pack = Pack()
    packed = _packed(pack, evidence, curves, span)
    parts = _sections(evidence, curves, bias, readout, packed["curves"]["leftOut"])
    if curves.terms is not None:
        parts["Fields"] = terms_section(curves.terms)
    if audit is not None:
        parts["Where it is off"] = audit_section(audit)
    drawn = _charts(evidence, bias)
    if history is not None:
        parts["Past checks"] = history_section(history)
        drawn |= {"history-ratio": _spec(ratio_chart(history), 240), "history-loss": _spec(loss_chart(history), 240)}
    data = {
        **packed,
        "manifest": pack.manifest(),
        "palette": COLOUR,
        "series": [name for colour in SERIES for name, light in COLOUR.items() if light == colour],
        "readout": readout,
        "charts": [{"id": name, "spec": spec} for name, spec in drawn.items()],
        "explorer": _explorer(span),
    }
    template = Template(_resource("page.html"))
    return template.substitute(
        title=escape(readable(title)),
        palette=_palette(),
        style=_resource("page.css"),
        lead=f"{_lead(evidence)} {escape(readable(about, 400))}" if about else _lead(evidence),
        banner=_banner(evidence),
        links=_links(parts),
        sections="\n".join(parts.values()),
        footer=f"Made by isolayer {library_version()}.",
        evidence=_plain(data),
        columns=pack.text(),
        library=need("vl_convert").javascript_bundle().replace("</script", "<\\/script"),
        script=_resource("page.js"),
    )


def _sections(
    evidence: Evidence, curves: Curves, bias: Bias | None, readout: list[float], left_out: int
) -> dict[str, str]:
    """Sections in order; the keys are the texts of the links to them."""
    found = {
        "Figures": sections.figures_section(evidence),
        "What to do next": sections.advice_section(advise(evidence, bias, falling(curves))),
        "Reliability": sections.reliability_section(evidence),
    }
    if evidence.tables:
        found["Contexts"] = sections.contexts_section(evidence)
    found["Curves"] = sections.explorer_section(evidence, readout, left_out, curves.fields)
    if evidence.heat is not None:
        found[joined(evidence.heat.names)] = sections.heat_section(evidence.heat.names)
    if evidence.daily is not None:
        found["Day by day"] = sections.daily_section(evidence.daily)
    if bias is not None:
        found["Learned bias"] = sections.bias_section(bias)
    return found


def _charts(evidence: Evidence, bias: Bias | None) -> dict[str, Any]:
    """Specifications of the charts, by the id of the element that holds each."""
    parts = dict(zip((charts.BEFORE, charts.AFTER), evidence.reliability, strict=True))
    found = {
        "reliability": (charts.reliability_chart(parts, [COLOUR["raw"], COLOUR["accent"]]), 320),
        "density": (charts.density_chart(evidence.density, evidence.weight), 320),
    }
    if evidence.heat is not None:
        height = 36 * min(len(set(key.tolist())) for key in evidence.heat.keys)
        for place, when in enumerate((charts.BEFORE, charts.AFTER)):
            found[f"heat-{place}"] = (charts.heat_chart(evidence.heat, when), max(80, min(height, 520)))
    if evidence.daily is not None:
        found["daily"] = (charts.daily_chart(evidence.daily), 280)
    if bias is not None:
        found |= {f"bias-{place}": (charts.bias_chart(bias, task), 260) for place, task in enumerate(bias.tasks)}
        found["bias-relative"] = (charts.relative_bias_chart(bias), 260)
    return {name: _spec(chart, height) for name, (chart, height) in found.items()}


def _explorer(span: Span) -> dict[str, Any]:
    main, mass = charts.explorer_charts(span)
    return {"explorer-curves": _spec(main, 380), "explorer-mass": _spec(mass, 80)}


def _spec(chart: Any, height: int) -> Any:
    spec = styled(chart.properties(width="container", height=height)).to_dict(
        validate=False
    )  # charts are validated in the tests; here validation would take most of the time
    spec["config"]["aria"] = False  # the element around the chart has a label
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def _packed(pack: Pack, evidence: Evidence, curves: Curves, span: Span) -> dict[str, Any]:
    tables = [add_table(pack, f"table{place}", table) for place, table in enumerate(evidence.tables)]
    add_dots(pack, evidence.dots)
    wanted = np.unique(np.concatenate([[0], *(table.curve[table.curve >= 0] for table in evidence.tables)]))
    return {"tables": tables, "curves": add_curves(pack, curves, wanted, span)}


def _span(evidence: Evidence) -> Span:
    return float(evidence.density.edge[0]), float(evidence.density.edge[-1])


def _readout(span: Span) -> list[float]:
    """Logits at which the explorer lists the values of curves: at most four round probabilities."""
    found = ticks(*span)
    return [found[place] for place in np.unique(np.linspace(0, len(found) - 1, 4).astype(int))] if found else []


def _lead(evidence: Evidence) -> str:
    parts = [f"{evidence.weight:,.0f} rows", f"label rate {evidence.rate:.2%}"]
    if evidence.tables:
        parts.append(f"{evidence.tables[0].total:,} contexts of {escape(joined(evidence.tables[0].names))}")
    if evidence.daily is not None and len(evidence.daily.day) > 1:
        parts.append(f"{evidence.daily.day[0]} to {evidence.daily.day[-1]}")
    return ", ".join(parts) + "."


def _banner(evidence: Evidence) -> str:
    if not evidence.in_sample:
        return ""
    return f'<p class="notice" id="in-sample">{IN_SAMPLE}</p>'


def _links(parts: dict[str, str]) -> str:
    names = ((text, part.split('"', 2)[1]) for text, part in parts.items())  # a section opens with its id
    items = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for text, name in names)
    return f'<nav aria-label="On this page"><ul>{items}</ul></nav>'


def _palette() -> str:
    light, dark = ("".join(f"--{name}:{pair[place]};" for name, pair in PALETTE.items()) for place in (0, 1))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _plain(data: Any) -> str:
    """JSON that an HTML parser cannot mistake for markup."""
    return json.dumps(_rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _rounded(data: Any) -> Any:
    """Numbers to six significant digits, more than a screen shows; null where there is no finite number."""
    if isinstance(data, float):
        return float(f"{data:.6g}") if isfinite(data) else None
    if isinstance(data, dict):
        return {name: _rounded(value) for name, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list) else data


def _resource(name: str) -> str:
    return files("isolayer.report").joinpath(name).read_text(encoding="utf-8")


def _save(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file whole or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
    return Path(path)
