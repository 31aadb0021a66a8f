"""Commands that judge calibrators: check, compare, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.auditing import audit_of
from isolayer.cli.checking import judgement_of
from isolayer.cli.clusters import Cluster, Date, latest_day, several_clusters, with_clusters
from isolayer.cli.columns import LABELS, SCORES, column
from isolayer.cli.fields import paired_rows, with_fields
from isolayer.cli.files import check_output
from isolayer.cli.judgement import pronounce
from isolayer.cli.logs import Json, Log, name_of, read
from isolayer.cli.output import note, show
from isolayer.cli.prometheus import write_metrics
from isolayer.cli.provenance import (
    IN_SAMPLE,
    HeldOut,
    about_rows,
    as_fitted,
    clusters_as_fitted,
    fitted_on,
    judged_on,
    judged_rows,
    usable,
)
from isolayer.cli.releasing import release_judgement
from isolayer.cli.sums import BadRows, CurvesFile, Label, Rate, Rows, Score, Weight, histogram_of_log, load
from isolayer.errors import InputError


def check(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    negative_rate: Rate = None,
    cluster: Cluster = None,
    date: Date = None,
    held_out: HeldOut = False,
    tolerance: Annotated[float, typer.Option(help="Relative error that is too small to matter.")] = 0.05,
    level: Annotated[float, typer.Option(help="How often a calibrator that holds may be called drifted.")] = 0.05,
    history: Annotated[
        Path | None, typer.Option(help="Also add the figures to this history, which `report --history` draws.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="Also write the figures to this file for Prometheus, such as isolayer.prom.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many contexts to show, most significant first.")] = 15,
    on_bad_rows: BadRows = None,
    json: Json = False,
) -> None:
    """Tell whether a calibrator still holds on a new log. Ends with code 1 if it drifted.

    Shows observed over expected (o over e) for all rows, each group of contexts and each context: above 1 the
    calibrator predicts too little. The slope is that of the labels over the predictions: below 1 predictions are too
    extreme. Something drifted if one of the two is further from 1 than --tolerance and than chance allows. P-values are
    adjusted for the number of tests, and an interval excludes 1 exactly if its p-value is at most --level. The verdict
    of a line is level if observed over expected is off, slope if only the slope is off, and holds otherwise. Contexts
    that were not in the fit are marked as new, and are not judged.

    So a calibrator holds if there are as many events as it predicts. Whether it is better than the raw score is another
    question, which `report` answers; if the raw score has the lower log loss on this log, a note says so.

    If the calibrator was meanwhile fitted on the day, the verdict is in sample; in --history it does not replace an
    earlier check of the same day, from before that fit.

    Example: isolayer check today.parquet --curves curves.parquet --score prob --label click --cluster user
    """
    from isolayer.metrics.history import append_check
    from isolayer.monitor import check as judge

    if not 0 < level < 1:
        raise InputError(f"--level: expected a number between 0 and 1, got {level}; try 0.05")
    _refuse_negative(tolerance, "--tolerance")
    for option, path in (("--history", history), ("--metrics", metrics)):
        if path is not None:
            check_output(path, option, *log, curves)
    fitted = load(curves)
    table = read(log)
    cluster, date = clusters_as_fitted(cluster, date, fitted, table.columns)
    table, clusters, own = with_clusters(judged_rows(table, fitted, held_out), cluster, date)
    rows = Rows(name_of(log), table, score, label, weight, None, negative_rate, on_bad_rows)
    rows = replace(as_fitted(rows, fitted), clusters=own)
    histogram, _ = histogram_of_log(rows, fitted.contexts)
    judged = with_fields(rows, fitted, histogram)
    result = judge(fitted, judged, level=level, tolerance=tolerance, clustered=several_clusters(histogram))
    settings = {"log": name_of(log), "curves": curves, "level": level, "tolerance": tolerance, "clusters": clusters}
    settings |= {"held_out": held_out}
    seen = not held_out and fitted_on(fitted, log, histogram)
    judgement = judgement_of(result, settings, None if json else top, seen)
    if fitted.fields and not result.holds:
        where = f"to see which fields are off: isolayer audit {name_of(log)} --curves {curves}"
        judgement = replace(judgement, notes=[*judgement.notes, where])
    if history is not None:
        day = {"day": latest_day(table, date), "log": name_of(log)}
        kept = append_check(history, {**day, **judgement.row(), "in_sample": seen}).to_pylist()
        if seen and not all(one["in_sample"] for one in kept if (one["day"], one["log"]) == tuple(day.values())):
            note(f"the history keeps the check of {day['day']} from before its rows were fitted")
    if metrics is not None:
        write_metrics(judgement, curves, metrics)
    pronounce(judgement, as_json=json, most=top + 1)


def compare(
    old: Annotated[Path, typer.Argument(help="The calibrator in service.")],
    new: Annotated[Path, typer.Argument(help="The one to release.")],
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="A log that neither was fitted on: is the new one better there? Repeat it for several files."
        ),
    ] = None,
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    negative_rate: Rate = None,
    cluster: Cluster = None,
    date: Date = None,
    most: Annotated[
        float | None,
        typer.Option(
            help="Largest allowed change in probability where there are rows; changes within the bands do not count."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many contexts to show, largest change first.")] = 15,
    on_bad_rows: BadRows = None,
    json: Json = False,
) -> None:
    """Compare two calibrators: how far probabilities move, by context, and whether the new one is better on a log.

    Changes are measured where there are rows. A change is certain if the bands of the two calibrators do not overlap.
    With --most, the command ends with code 1 if a certain change is larger than that. With --log, it shows log loss and
    observed over expected of both, with intervals of the paired difference, and ends with code 1 if the new one is
    worse beyond chance.

    Example: isolayer compare yesterday.parquet today.parquet --most 0.02

    Example: isolayer compare old.parquet new.parquet --log today.parquet --cluster user
    """
    from isolayer.curves.comparison import compare_on_rows
    from isolayer.monitor import compare_on_log

    if most is not None:
        _refuse_negative(most, "--most")
    one, two = load(old, "old"), load(new, "new")
    settings: dict[str, Any] = {"old": old, "new": new, "log": log and name_of(log), "most": most, "clusters": None}
    found, paired = None, None
    fielded = bool(one.fields or two.fields)
    if fielded and not log:
        raise InputError(
            f"--log: expected a log, since calibrators with fields ({', '.join(one.fields or two.fields)}) are "
            "compared on rows, got none; give a log that neither was fitted on, such as --log today.parquet"
        )
    if log:
        if one.scale != two.scale:
            raise InputError(f"compare: expected one scale of scores, got {one.scale} and {two.scale}; refit one")
        table = read(log)
        table, settings["clusters"], own = with_clusters(table, *clusters_as_fitted(cluster, date, one, table.columns))
        rows = as_fitted(Rows(name_of(log), table, score, label, weight, None, negative_rate, on_bad_rows), one)
        contexts = tuple(dict.fromkeys([*one.contexts, *two.contexts]))
        rows = replace(rows, clusters=own)
        histogram, _ = histogram_of_log(rows, contexts)
        paired = paired_rows(rows, one, two) if fielded else None
        found = compare_on_log(one, two, paired or histogram, clustered=several_clusters(histogram))
    alike = one.contexts == two.contexts
    change = one.compare(two) if not fielded and (alike or not log or most is not None) else None
    change = change if paired is None else compare_on_rows(one, two, paired.rows)
    seen = bool(log) and (fitted_on(one, log or ()) or fitted_on(two, log or ()))
    pronounce(release_judgement(change, found, settings, seen), as_json=json, most=top)


def report(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    date: Annotated[
        str | None, typer.Option(help="Column of days, for the picture over time; a day counts as a cluster.")
    ] = None,
    cluster: Cluster = None,
    held_out: HeldOut = False,
    bias: Annotated[Path | None, typer.Option(help="Curves of a debiased model, as `train` wrote them.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="A history of checks, as `check --history` keeps it, to draw by day.")
    ] = None,
    audit: Annotated[
        list[str] | None,
        typer.Option(help="Also show where the calibrated score is off, by these columns, or all of them."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    on_bad_rows: BadRows = None,
    json: Json = False,
) -> None:
    """Write one page that shows a calibrator on a log. Before and after, by context, curve by curve.

    The page needs no server and no network. It says on which rows the calibrator is judged: rows held out of the fit,
    other rows, or the fitted rows themselves (in sample), which cannot judge it.

    Example: isolayer report today.parquet --curves curves.parquet --score prob --label click --out report.html
    """
    from isolayer.report import write

    check_output(out, "--out", *log, curves, *([bias] if bias else []))
    fitted = load(curves)
    table = read(log)
    cluster, date = clusters_as_fitted(cluster, date, fitted, table.columns)
    table = judged_rows(table, fitted, held_out)
    rows = as_fitted(Rows(name_of(log), table, score, label, weight, None, None, on_bad_rows), fitted)
    score_name = column(rows.score, "--score", SCORES, table.columns, name_of(log))
    label_name = column(rows.label, "--label", LABELS, table.columns)
    rows, seen = usable(replace(rows, score=score_name, label=label_name), fitted, log)
    kind = judged_on(held_out, seen)
    count = rows.table.count().to_pyarrow().as_py()
    write(
        out,
        rows.table,
        fitted,
        score=score_name,
        label=label_name,
        weight=None if rows.weight is None else column(rows.weight, "--weight", (), table.columns),
        date=None if date is None else column(date, "--date", (), table.columns),
        cluster=None if cluster is None else column(cluster, "--cluster", (), table.columns),
        bias=None if bias is None else load(bias, "--bias"),
        title=title,
        in_sample=kind == "in sample",
        about=about_rows(kind, count, name_of(log), curves),
        history=history,
        audit=audit_of(audit, fitted, rows.table, rows, cluster or date),
    )
    if kind == "in sample":
        note(IN_SAMPLE)
    show({"rows": count, "judged_on": kind, "written": out}, as_json=json)


def _refuse_negative(value: float, option: str) -> None:
    if not value >= 0:
        raise InputError(f"{option}: expected a number of at least 0, got {value}; try 0.05")
