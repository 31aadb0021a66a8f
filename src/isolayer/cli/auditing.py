"""The command that finds where a score is wrong, and its verdict in words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.clusters import INDEPENDENT, Cluster, Date
from isolayer.cli.columns import LABELS, SCORES, column, distinct, names, refuse_text_scores, scale_of
from isolayer.cli.files import check_output
from isolayer.cli.judgement import Judgement, pronounce
from isolayer.cli.logs import Json, Log, name_of, read
from isolayer.cli.output import note, text
from isolayer.cli.provenance import IN_SAMPLE, as_fitted, clusters_as_fitted, fitted_on
from isolayer.cli.repairing import repair, what_it_does
from isolayer.cli.sums import BadRows, Label, Rate, Rows, Scale, Score, Weight, WeightKind, load, noted, rate_of
from isolayer.curves.curves import Curves
from isolayer.curves.export.sql import own_name
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram

AuditOnly = Annotated[
    list[str] | None,
    typer.Option(help="Columns that are audited but never used for correction, such as protected ones."),
]


def audit(
    log: Log,
    score: Score = None,
    label: Label = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(help="Columns to test: comma-separated, or all (the default) for every other column."),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Columns to leave out.")] = None,
    audit_only: AuditOnly = None,
    curves: Annotated[
        Path | None, typer.Option(help="Audit the output of this calibrator instead of the score itself.")
    ] = None,
    scale: Scale = None,
    weight: Weight = None,
    weight_kind: WeightKind = "frequency",
    negative_rate: Rate = None,
    cluster: Cluster = None,
    date: Date = None,
    depth: Annotated[int, typer.Option(min=1, max=3, help="How many columns a segment combines at most.")] = 3,
    level: Annotated[float, typer.Option(help="How often a score that is right may be called off.")] = 0.05,
    top: Annotated[int, typer.Option(min=1, help="How many segments to find at most.")] = 15,
    out: Annotated[Path | None, typer.Option(help="Also write a page with a picture.")] = None,
    on_bad_rows: BadRows = None,
    json: Json = False,
) -> None:
    """Find where a score is wrong. Ends with code 1 if it is off beyond chance.

    Tests every value of every column, ranges of numbers, and combinations of two and three columns. A segment is listed
    for what the score and the segments found before it do not explain: expected is the rate after those are corrected,
    and o over e is the observed rate divided by it. P-values are adjusted for all segments that were tested, and an
    interval excludes 1 exactly if its p-value is at most --level. Saved is the reduction of log loss, per row of the
    log, from correcting the segment, measured on rows that the correction was not fitted to. The score may come from
    any model.

    Example: isolayer audit today.parquet --score prob --label click --cluster user

    Example: isolayer audit today.parquet --score prob --label click --fields device,hour,country
    """
    from isolayer.auditing import audit as find

    if out is not None:
        check_output(out, "--out", *log, *([curves] if curves else []))
    table, fitted = read(log), None if curves is None else load(curves)
    columns = list(table.columns)
    prob = own_name(columns, "prob")
    rows = Rows(name_of(log), table, score, label, weight, scale, negative_rate, on_bad_rows, weight_kind=weight_kind)
    if fitted is not None:
        kind = weight_kind if weight else fitted.source.get("weight_kind", "frequency")
        rows = replace(as_fitted(rows, fitted), weight_kind=kind)
        cluster, date = clusters_as_fitted(cluster, date, fitted, columns)
    raw = column(rows.score, "--score", SCORES, columns, name_of(log))
    label = column(rows.label, "--label", LABELS, columns)
    refuse_text_scores(table, raw)
    given: Any = scale_of(rows.scale, raw)
    if fitted is not None:
        table = fitted.apply_table(table, score=raw, prob=prob)
    cluster, date = _one(cluster, "--cluster", columns), _one(date, "--date", columns)
    rate = rate_of(rows.negative_rate, columns)
    asked: dict[str, Any] = {"weight": _one(rows.weight, "--weight", columns), "negative_rate": rate}
    asked |= {"cluster": cluster or date, "weight_kind": rows.weight_kind, "on_bad_rows": rows.on_bad_rows or "error"}
    used = {raw, label, date, asked["weight"], rate, asked["cluster"]}
    only = _checked(audit_only, "--audit-only", columns) or tuple(_remembered(fitted, columns))
    with noted():
        found = find(
            table,
            raw if fitted is None else prob,
            label,
            fields=_fields(fields, exclude, columns, used),
            audit_only=only,
            scale=given if fitted is None else "prob",
            depth=depth,
            level=level,
            most=top,
            **asked,
        )
    settings: dict[str, Any] = {"log": list(log), "score": raw, "label": label, "scale": given, "curves": curves}
    settings |= {**asked, "cluster": cluster, "date": date, "clusters": asked["cluster"]}
    settings |= {"fields": list(found.fields), "audit_only": list(only), "level": level, "depth": depth}
    command = repair(found, settings, fitted)
    advice = [*what_it_does(command, settings, fitted), *([] if command is None else [f"to repair: {command}"])]
    verdict = audit_judgement(found, settings, advice, in_sample=fitted is not None and fitted_on(fitted, log))
    if out is not None:
        from isolayer.report import write_audit

        write_audit(out, found, repair=command)
        note(f"written: {out}")
    pronounce(verdict if json else _short(verdict), as_json=json, most=top)


def _fields(listed: list[str] | None, exclude: list[str] | None, columns: list[str], used: set[Any]) -> tuple[str, ...]:
    """Columns to test: those that were named, or else all columns that no other option uses."""
    chosen, left_out = names(listed, columns), _checked(exclude, "--exclude", columns)
    if not chosen or (chosen == ("all",) and "all" not in columns):
        return tuple(name for name in columns if name not in used and name not in left_out)
    return tuple(name for name in _checked(list(chosen), "--fields", columns) if name not in left_out)


def _one(given: str | None, option: str, columns: list[str]) -> str | None:
    return None if given is None else column(given, option, (), columns)


def audit_judgement(
    found: Any, settings: dict[str, Any], advice: Sequence[str] = (), *, in_sample: bool = False
) -> Judgement:
    """The verdict of an audit."""
    holds = found.holds
    sentences = [str(one) for one in found.ranked]
    return Judgement(
        holds=holds,
        verdict="off" if not holds else "in sample" if in_sample else "holds",
        reasons=[
            *sentences,
            *found.reasons(),
            *([IN_SAMPLE] if in_sample else []),
            *advice,
        ],
        notes=_notes(found, settings),
        figures=_figures(found),
        entries=found.columns(),
        settings=settings,
    )


def _short(verdict: Judgement) -> Judgement:
    """The verdict with the columns that a terminal has room for."""
    shown = (
        "segment",
        "rows",
        "predicted",
        "expected",
        "observed",
        "o_over_e",
        "lower",
        "upper",
        "p_value",
        "loss_saved",
    )
    table = {name: list(verdict.entries[name]) for name in shown}
    for name in ("predicted", "expected", "observed"):
        table[name] = [f"{100 * rate:.3g}%" for rate in table[name]]
    table["rows"] = [f"{rows:,.0f}" for rows in table["rows"]]
    for name in ("o_over_e", "lower", "upper"):
        table[name] = [f"{value:.3f}" for value in table[name]]
    table["p_value"] = ["<1e-9" if value < 1e-9 else text(value) for value in table["p_value"]]
    named = {"lower": "from", "upper": "to", "loss_saved": "saved"}
    return Judgement(
        verdict.holds,
        verdict.verdict,
        verdict.reasons,
        verdict.notes,
        entries={named.get(name, name): values for name, values in table.items()},
    )


def _figures(found: Any) -> dict[str, Any]:
    overall, error = found.overall, found.multicalibration
    return {
        "rows": overall.rows,
        "predicted": overall.predicted,
        "observed": overall.observed,
        "o_over_e": overall.observed / overall.predicted if overall.predicted else None,
        "log_loss": found.log_loss,
        "loss_saved": found.loss_saved,
        "segments_tested": found.tests,
        "segments_off": len(found.findings),
        "off_everywhere": float(overall.off),
        "multicalibration_error": error.error,
        "multicalibration_noise": error.minimum_detectable_error,
        "multicalibration_p_value": error.p_value,
        "clusters": found.clusters,
    }


def _notes(found: Any, settings: dict[str, Any]) -> list[str]:
    notes = list[str]()
    if found.rows < found.total:
        notes.append(f"a sample of {found.rows:,} of {found.total:,} rows was audited")
    if found.skipped:
        notes.append(f"not tested, because their type is not supported: {', '.join(found.skipped)}")
    if found.clusters is None:
        notes.append(INDEPENDENT)
    if not found.findings and found.suspects:
        notes.append("the table shows the segment that comes closest to being off; it is within chance")
    error, chance = found.multicalibration, "beyond chance" if found.unlike_noise else "within chance"
    if not found.worst_has_events:
        chance = "not reliable with so few events in the worst group, and not part of the verdict"
    if found.clusters is None:
        notes.append(
            f"multicalibration error {error.error:.4f} over {len(error.group):,} groups (p-value {error.p_value:.2g}, "
            f"{chance}; the smallest detectable error is {error.minimum_detectable_error:.4f})"
        )
    return notes


def _checked(listed: list[str] | None, option: str, columns: list[str]) -> tuple[str, ...]:
    """Columns of the log that an option names."""
    given = distinct(names(listed, columns), option)
    for name in given:
        column(name, option, (), columns)
    return given


def _remembered(curves: Any, columns: list[str]) -> list[str]:
    """Fields that the calibrator was fitted with as --audit-only, if the log has them."""
    return [] if curves is None else [name for name in curves.settings.get("audit_only", []) if name in columns]


def audit_columns(listed: list[str] | None, used: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of --audit-only.

    Args:
        listed: The option.
        used: Columns that correct the score.
        columns: Those of the log.

    >>> audit_columns(["age"], ["age"], ["score", "age"])
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: --audit-only: expected columns that do not correct the score, got 'age', which does;
    leave it out of --fields and --contexts
    """
    only = _checked(listed, "--audit-only", list(columns))
    for name in only:
        if name in used:
            raise InputError(
                f"--audit-only: expected columns that do not correct the score, got {name!r}, which does; leave it out "
                "of --fields and --contexts"
            )
    return only


def left_for_audits(only: tuple[str, ...], curves: Curves, table: Any, sums: Histogram) -> Curves:
    """The curves with the names of the --audit-only columns stored; where the curves are off on these is printed.

    Args:
        only: The columns of --audit-only.
        curves: The calibrator.
        table: The rows that it was fitted to.
        sums: The sums of these rows.
    """
    from isolayer.auditing import audit as find

    if not only:
        return curves
    told = sums.source
    asked: dict[str, Any] = {name: told[name] for name in ("weight", "weight_kind", "negative_rate")}
    asked |= {"cluster": told.get("cluster") or told.get("date"), "on_bad_rows": "drop"}
    prob = own_name(table.columns, "prob")
    table = curves.apply_table(table, score=told["score"], prob=prob)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rows that were left out; the fit has reported them
        found = find(table, prob, told["label"], fields=only, audit_only=only, scale="prob", **asked)
    for one in found.ranked:
        note(f"off: {one}")
    if not found.findings:
        note(f"audit only: {', '.join(only)}: nothing is off beyond chance on the fitted rows")
    return replace(curves, settings={**curves.settings, "audit_only": list(only)})


def audit_of(listed: list[str] | None, curves: Curves, table: Any, rows: Rows, cluster: str | None) -> Any:
    """The audit of a calibrator on the rows of a table, by the columns that an option names; None if it names none."""
    from isolayer.auditing import audit as find

    if not listed:
        return None
    columns = list(table.columns)
    rate = rate_of(rows.negative_rate, columns)
    asked: dict[str, Any] = {"weight": rows.weight, "negative_rate": rate, "cluster": cluster}
    used = {rows.score, rows.label, *(name for name in asked.values() if isinstance(name, str))}
    kind: Any = rows.weight_kind
    prob = own_name(columns, "prob")
    return find(
        curves.apply_table(table, score=str(rows.score), prob=prob),
        prob,
        str(rows.label),
        fields=_fields(listed, None, columns, used),
        audit_only=_remembered(curves, columns),
        scale="prob",
        weight_kind=kind,
        **asked,
    )
