"""Commands that make and use calibrators: fit, update, apply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isolayer.cli.auditing import AuditOnly, audit_columns, left_for_audits
from isolayer.cli.clusters import Cluster, Date
from isolayer.cli.columns import SCORES, column, distinct, fitted_column, names
from isolayer.cli.days import Id, first_files, holds_day, ids_of, names_and_files, refuse_empty, with_day, without_day
from isolayer.cli.fields import (
    advice_for_held,
    field_options,
    largest_change,
    refuse_taking_out,
    terms_figures,
    updated_fields,
    with_fields,
    with_terms,
)
from isolayer.cli.files import check_output, save_all
from isolayer.cli.holdout import Part
from isolayer.cli.logs import Json, Log, as_files, name_of, read, read_spelled
from isolayer.cli.output import note, show
from isolayer.cli.provenance import as_fitted, choices, clusters_as_fitted, note_replaced, period_of, remembered
from isolayer.cli.rows import check_rows_output, counts, write
from isolayer.cli.spelling import is_csv
from isolayer.cli.sums import (
    BadRows,
    Contexts,
    CurvesFile,
    GridOption,
    Label,
    Missing,
    Rate,
    Rows,
    Scale,
    Score,
    Weight,
    WeightKind,
    grid_of,
    histogram_of_log,
    load,
    noted,
    quality,
    sizes,
)
from isolayer.cli.term_options import Freeze, Interactions, Structure, TermOptions, Without
from isolayer.curves.curves import Curves
from isolayer.curves.summary import falling
from isolayer.errors import InputError
from isolayer.fitting.histogram import Histogram
from isolayer.storage import locked

ALREADY = "the sums already contain this day: nothing was written"


def fit(
    log: Log,
    out: Annotated[Path, typer.Option(help="Where to write the calibrator.")] = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    contexts: Contexts = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns that correct the score by their values: comma-separated, or all for every other column."
        ),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Columns to leave out of --fields all.")] = None,
    interactions: Interactions = None,
    without: Without = None,
    structure: Structure = None,
    freeze: Freeze = None,
    audit_only: AuditOnly = None,
    weight: Weight = None,
    weight_kind: WeightKind = "frequency",
    monotone: Annotated[
        bool, typer.Option(help="Curves never decrease; --no-monotone is for scores whose rate falls over some range.")
    ] = True,
    scale: Scale = None,
    negative_rate: Rate = None,
    grid: GridOption = "auto",
    sums: Annotated[
        Path | None, typer.Option(help="Also write the sums of this log, to which `update` adds days.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="Share of the rows to hold out and judge on: the latest days with --date, else clusters."),
    ] = None,
    cluster: Cluster = None,
    date: Date = None,
    on_bad_rows: BadRows = None,
    missing: Missing = None,
    json: Json = False,
) -> None:
    """Fit a calibrator to a log of scores and labels. One monotone curve per context, fitted exactly; nothing to tune.

    Only sums leave the engine that reads the log. Without --contexts there is one curve for all rows. With --contexts
    platform,position there is one curve per platform, shrunk towards that of all rows, and one per position on each
    platform, shrunk towards that of the platform.

    With --fields device,hour,country each of these columns corrects the curve according to its value, and combinations
    of them are added where the data give evidence for them; text, numbers, dates and missing values are handled by
    their type. The corrections are fitted to all rows; if there are very many rows, a sample decides which corrections
    there are. Columns of --audit-only, such as protected ones, correct nothing; the command prints where the calibrator
    is off on their values, and `isolayer audit --curves` tests them again.

    --interactions 0 adds no combinations. --interactions 'hour x device' adds this one whatever its evidence, and with
    auto in the list others are searched for too. --without 'hour x device' never adds it.

    With --structure curves.parquet the fields, their bins and the combinations are those of an earlier fit, and so are
    the columns that no option names. Only their values are fitted to this log, except those of the terms named by
    --freeze.

    With --holdout 0.2 a fifth of the rows is left out, and the calibrator is judged on them: the latest days if --date
    is given, otherwise whole clusters of --cluster, otherwise rows chosen by a hash of their score. `isolayer report
    --held-out` shows the calibrator on the same rows later.

    For a log without scores, run `isolayer train` and `isolayer score` first. After the fit, `isolayer report` shows
    it, `isolayer apply` and `isolayer export` use it, and `isolayer check` monitors it.

    Example: isolayer fit 'logs/*.parquet' --score prob --label click --contexts platform,position
    """
    from isolayer.calibrator import IsotonicCalibrator

    files = {"--out": out} if sums is None else {"--out": out, "--sums": sums}
    for option, path in files.items():
        check_output(path, option, *log)
    if sums is not None and sums.resolve() == out.resolve():
        raise InputError(f"--sums: expected another file than --out, got {str(sums)!r} for both; rename one")
    table = read(log)
    options = TermOptions(structure, interactions, without, freeze)
    earlier = options.earlier(fields)
    by = distinct(names(contexts, table.columns), "--contexts") or (earlier.contexts if earlier else ())
    correcting = earlier.fields if earlier else names(fields, table.columns)
    audited = audit_columns(audit_only, (*by, *correcting), table.columns)
    rows = Rows(name_of(log), table, score, label, weight, scale, negative_rate, on_bad_rows, missing, weight_kind)
    rows = replace(rows if earlier is None else as_fitted(rows, earlier), grid=grid_of(grid))
    part = None if holdout is None else Part.of(rows, holdout, cluster, date)
    fitted = table if part is None else part.fitted
    histogram, used = histogram_of_log(replace(rows, table=fitted), by)
    _refuse_one_class(histogram)
    facts: dict[str, Any] = {"files": first_files(log), "holdout": None if part is None else part.rule}
    facts |= {"cluster": cluster, "date": date, "period": period_of(fitted, date)}
    facts |= choices(rows)
    histogram = remembered(histogram, **facts)
    kind = histogram.source["weight_kind"]
    calibrator = IsotonicCalibrator(by, scale=used, weight_kind=kind, monotone=monotone)
    with noted():
        curves = calibrator.fit_histogram(histogram).curves_
    _note_fall(curves)
    _note_percentages(histogram, used)
    chosen = list(earlier.fields) if earlier else fields
    crossed = field_options(chosen, exclude, list(table.columns), histogram, by, audit_only)
    if crossed:
        curves = with_terms(
            curves, fitted, histogram, crossed, rows.missing or "error", options.asked(table.columns, earlier)
        )
    curves = left_for_audits(audited, curves, fitted, histogram)
    judged = {} if part is None else part.judged(rows, curves)
    rows = replace(rows, table=fitted, scale=used, grid=curves.grid)
    told = quality(curves, with_fields(rows, curves, histogram))
    figures = {**told, **terms_figures(curves), **judged, "written": out}
    note_replaced(out, curves)
    save_all(dict(zip(files.values(), (curves, histogram), strict=False)))
    show(figures, as_json=json)


def apply(
    log: Log,
    curves: CurvesFile = Path("curves.parquet"),
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write the rows: a name ending in .parquet, .csv, .csv.gz or .ndjson; - prints them as CSV."
        ),
    ] = Path("calibrated.parquet"),
    score: Score = None,
    column_name: Annotated[str, typer.Option("--column", help="Name of the new column.")] = "calibrated_prob",
    allow_nulls: Annotated[
        bool, typer.Option("--allow-nulls", help="Also write rows that get no probability, with a null.")
    ] = False,
    json: Json = False,
) -> None:
    """Add a column of calibrated probabilities to a log. Rows never leave the engine that reads them.

    A row whose score is missing or not finite, or outside [0, 1] if scores are probabilities, gets no probability. If
    there are such rows, nothing is written and the command ends with code 2, unless --allow-nulls is given.

    From CSV to CSV, the values of all other columns stay as they were written, such as 007 or 25/09/2026. The file
    around them is written anew: with commas, quotes where they are needed, and one newline per row. Of several columns
    with the same name, the later ones get a number.

    Example: isolayer apply 'today/*.parquet' --curves curves.parquet --score prob --out calibrated.parquet
    """
    check_rows_output(out, json, *log, curves)
    with as_files(log) as files:
        table, fitted = read(files), load(curves)
        given = fitted_column(score, "--score", fitted.score_name, table.columns)
        name = column(given, "--score", SCORES, table.columns, name_of(log))
        used = [one for one in (name, *fitted.contexts, *fitted.fields) if one in table.columns]
        kept = read_spelled(files, table, used) if is_csv(out) else None
        rows = fitted.apply_table(table if kept is None else kept.table, score=name, prob=column_name)
        rows = rows if kept is None else kept.restored(rows, column_name)
        count, nulls = counts(rows, column_name)
        if nulls and not allow_nulls:
            raise InputError(
                f"log: expected usable scores in {name!r}, got {nulls} of {count} rows without a probability; correct "
                "these scores, or write such rows with a null by --allow-nulls"
            )
        write(rows, out)
    if str(out) == "-":
        return
    show({"rows": count, "nulls": nulls, "column": column_name, "written": out}, as_json=json)


def update(
    sums: Annotated[Path, typer.Argument(help="Sums of the days so far, as `fit --sums` wrote them.")],
    log: Annotated[list[str], typer.Argument(help="The new day's log: one or several files.")],
    curves: CurvesFile = Path("curves.parquet"),
    score: Score = None,
    label: Label = None,
    weight: Weight = None,
    negative_rate: Rate = None,
    keep: Annotated[float, typer.Option(help="Weight of the days so far, in (0, 1]: 0.5 counts them half.")] = 1.0,
    remove: Annotated[bool, typer.Option("--remove", help="Take the day out again instead of adding it.")] = False,
    replace_day: Annotated[
        bool, typer.Option("--replace", help="If a day with this --id was added before, replace it.")
    ] = False,
    if_new: Annotated[
        bool, typer.Option("--if-new", help="If the day was added before, change nothing and end with code 0.")
    ] = False,
    day_id: Id = None,
    date: Date = None,
    on_bad_rows: BadRows = None,
    missing: Missing = None,
    json: Json = False,
) -> None:
    """Add a day to a calibrator. The result is the fit of all days, without reading the earlier ones again.

    The sums and the calibrator are replaced together; if something is wrong, neither is. If two updates of the same
    files run at once, one waits for the other. Columns and the share of negatives are those of the fit.

    With fields, the curves are those of all days. The corrections of the fields keep their structure and continue from
    where the earlier days left them: a close approximation, from which no day can be taken out again. For other
    combinations, or to leave out a day, fit again: `isolayer fit LOGS --structure curves.parquet`.

    A day is added once: the sums remember the content of its files, and the --id if there is one. A day that comes
    again is refused with code 2, so that a job can be repeated. With --if-new nothing is done in that case, with code 0
    and the verdict "already added". With --replace the latest 14 days that were named by --id can be replaced by other
    rows, with the weight that the day has by now; a day without a name, recognised by its content, stays as it is. A
    day without usable rows is refused.

    Example: isolayer update sums.parquet today.parquet --id 2026-11-16 --replace --keep 0.9
    """
    if not 0 < keep <= 1:
        raise InputError(f"--keep: expected a share in (0, 1], got {keep}; 1 keeps the days so far, 0.5 forgets half")
    if day_id == "":
        raise InputError("--id: expected a name, got ''; give the day, such as 2026-11-16, or leave out --id")
    if remove and replace_day:
        raise InputError("--replace: expected --replace or --remove, got both; choose one")
    if if_new and (remove or replace_day):
        raise InputError("--if-new: expected neither --replace nor --remove with it, got both; choose one")
    for path, option in ((sums, "SUMS"), (curves, "--curves")):
        check_output(path, option, *log)
    table = read(log)
    with locked(sums, curves):
        old, before = Histogram.load(sums), load(curves)
        if if_new and holds_day(old, log, day_id):
            note(ALREADY)
            show({"rows": old.rows, **sizes(before)}, as_json=json, verdict="already added")
            return
        _refuse_strangers(old, before, curves)
        before.check_sums(old)
        days_held, files_held = names_and_files(old.source)
        held = replace_day and day_id in days_held
        again = held and before.terms is not None and set(ids_of(log)) <= set(files_held)
        refuse_taking_out(before, "--remove" if remove else "--replace" if held and not again else None, curves)
        rows = Rows(name_of(log), table, score, label, weight, None, negative_rate, on_bad_rows, missing)
        rows = as_fitted(rows, before)
        day, _ = histogram_of_log(rows, old.contexts)
        refuse_empty(day, log)
        _, days = clusters_as_fitted(None, date, before, table.columns)
        day = remembered(day, period=period_of(table, days))
        if remove:
            total: Histogram | None = without_day(old if keep == 1 else old.scaled(keep), day, log, day_id)
        else:
            advice = advice_for_held(before, curves, sums)
            total = None if again else with_day(old, day, log, day_id, keep=keep, replaced=replace_day, advice=advice)
        fitted = before if total is None else updated_fields(rows, _refitted(total, before), before, keep)
        change = largest_change(rows, before, fitted)
        told = quality(fitted, total or old) if fitted.terms is None else _day_quality(rows, fitted, day, total or old)
        figures = {**told, "largest_change": change}
        if total is None:
            note(ALREADY)
        else:
            save_all({sums: total, curves: fitted})
            figures["written"] = curves
    _note_fall(fitted)
    show(figures, as_json=json, verdict="already added" if total is None else "done")


def _refitted(total: Histogram, before: Curves) -> Curves:
    """The calibrator of the sums, fitted with the settings of the earlier one."""
    from isolayer.calibrator import IsotonicCalibrator

    kind = total.source.get("weight_kind", "frequency")
    calibrator = IsotonicCalibrator(total.contexts, scale=before.scale, weight_kind=kind, monotone=before.monotone)
    with noted():
        return calibrator.fit_histogram(total).curves_


def _day_quality(rows: Rows, fitted: Curves, day: Histogram, held: Histogram) -> dict[str, Any]:
    """The size of a calibrator with fields, and its log loss on the added day only, since sums have no fields."""
    return quality(fitted, with_fields(rows, fitted, day), held.rows)


def _note_fall(curves: Curves) -> None:
    """Print where the rate falls as the score rises, if it does."""
    found = falling(curves)
    if found is not None:
        note(found.replace("monotone=False", "--no-monotone"))


def _note_percentages(histogram: Histogram, scale: str) -> None:
    """Say so if scores that were given as logits look like percentages."""
    used = histogram.weight > 0
    mean = histogram.logit[used] / histogram.weight[used]
    if scale == "logit" and mean.min() >= 0 and 20 < mean.max() <= 100:
        note(
            f"the scores run from about {mean.min():.3g} to {mean.max():.3g}: if they are percentages, divide them by "
            "100 and use --scale prob; as logits, figures of the score before calibration mean nothing"
        )


def _refuse_strangers(sums: Histogram, curves: Curves, path: Path) -> None:
    """Raise unless the calibrator was fitted to the sums."""
    if sums.contexts != curves.contexts:
        raise InputError(
            f"--curves: expected the calibrator of the sums, by {_listed(sums.contexts)}, got one by "
            f"{_listed(curves.contexts)} in {str(path)!r}; give the one that `isolayer fit --sums` wrote with them"
        )


def _refuse_one_class(histogram: Histogram) -> None:
    positive, weight = float(histogram.positive.sum()), float(histogram.weight.sum())
    if not 0 < positive < weight:
        only = "no rows" if weight == 0 else "only 0" if positive == 0 else "only 1"
        rows = f"{histogram.rows:,.0f} row{'' if histogram.rows == 1 else 's'}"
        raise InputError(
            f"--label: expected labels of both classes, got {only} in {rows}; add rows, or check the column"
        )


def _listed(contexts: tuple[str, ...]) -> str:
    return ",".join(contexts) or "no contexts"
