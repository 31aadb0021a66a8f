"""Where is a score wrong? A log in, segments with their evidence out; nothing is corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from isolayer.auditing.findings import Audit, Finding, ratio
from isolayer.auditing.groups import LEAST_ROWS, mcgrad_groups
from isolayer.auditing.rows import AuditRows, usable
from isolayer.auditing.search import OVERALL, Discovery, Search
from isolayer.auditing.testing import Judged
from isolayer.curves.evaluation import prob_of
from isolayer.curves.fielded import LabelledRows
from isolayer.errors import InputError
from isolayer.fitting.evidence import WeightKind
from isolayer.metrics import log_loss, multicalibration_error
from isolayer.settings import count, number, text
from isolayer.settings import names as checked_names

MOST = 50


def audit(
    log: Any,
    score: str = "score",
    label: str = "label",
    *,
    fields: Sequence[str] | str = "all",
    exclude: Sequence[str] = (),
    audit_only: Sequence[str] = (),
    scale: Literal["logit", "prob"] = "logit",
    weight: str | None = None,
    weight_kind: WeightKind = "frequency",
    negative_rate: float | str | None = None,
    cluster: str | None = None,
    depth: int = 3,
    most: int = MOST,
    level: float = 0.05,
    on_bad_rows: Literal["error", "drop"] = "error",
) -> Audit:
    """Find where a score is wrong: single values, ranges of numbers, and combinations of two or three fields.

    The score may come from any model. Each segment is compared with the score after one curve for all rows and all
    earlier segments were corrected, so that it is reported only for what nothing else explains. P-values are accurate
    for few events, and adjusted for every segment that could have been reported.

    Args:
        log: An Ibis table, a path of Parquet or CSV, a DuckDB relation or a frame; if it has more than 300,000 rows a
            sample is taken.
        score: The score column.
        label: The label column: 0, 1 or between.
        fields: Columns to audit, or ``"all"`` for every other column.
        exclude: Columns to leave out of ``"all"``.
        audit_only: Fields that must be audited but may not be used for correction, such as protected ones.
        scale: Whether scores are logits or probabilities.
        weight: A column of weights.
        weight_kind: What weights mean, as in :class:`isolayer.IsotonicCalibrator`.
        negative_rate: Share of the negatives that was kept, or a column with it.
        cluster: A column whose rows vary together, such as a user or a day; for a column of times, its day.
        depth: How many fields a segment combines at most, 1 to 3.
        most: How many segments to find at most.
        level: How often a score that is right may be called off.
        on_bad_rows: Whether rows that cannot be used are an error or are left out.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> log = {"prob": rng.uniform(0.1, 0.3, 40_000), "device": rng.choice(["phone", "tv"], 40_000)}
    >>> log["hour"] = rng.integers(0, 24, 40_000)
    >>> late = (log["hour"] >= 22) & (log["device"] == "phone")
    >>> log["label"] = (rng.random(40_000) < log["prob"] * np.where(late, 1.5, 1.0)).astype(int)
    >>> for one in audit(log, "prob", scale="prob").findings:
    ...     print(one)
    device phone and hour 22-23: predicted 20%, observed 31%, 1,646 rows
    """
    depth, most = count("depth", depth, 1, 3, advice="1 to 3"), count("most", most)
    level = number("level", level, 0, 1, ends="()", advice="try 0.05")
    if negative_rate is not None and not isinstance(negative_rate, str):
        number("negative_rate", negative_rate, 0, 1, ends="(]", advice="give the share of the negatives that was kept")
    asked: dict[str, Any] = {"score": score, "label": label, "weight": weight, "scale": scale}
    asked |= {"weight_kind": weight_kind, "negative_rate": negative_rate, "on_bad_rows": on_bad_rows}
    given, total = _read(log, asked, fields, (exclude, audit_only), cluster)
    own = [name for name in given.columns if name != cluster]
    kept, skipped = usable({name: given.columns[name] for name in own}) if fields == "all" else (own, [])
    rows = AuditRows.of(given, kept, cluster)
    search = Search.of(rows, depth=depth, level=level)
    found = search.discoveries(most)
    nearest = None if found else search.next()
    suspects = [] if nearest is None else [nearest]
    telling = _Telling(rows, tuple(audit_only), level)
    prob = prob_of(rows.raw + rows.shift)
    return Audit(
        findings=tuple(telling.finding(one, off=True) for one in found),
        suspects=tuple(telling.finding(one, off=False) for one in suspects),
        overall=telling.overall(search),
        multicalibration=multicalibration_error(
            rows.label, prob, mcgrad_groups(rows.fields, given.columns), rows.weight, min_rows=LEAST_ROWS
        ),
        rows=len(rows),
        total=total,
        tests=search.tests,
        clusters=None if search.clusters is None else search.clusters.count,
        log_loss=log_loss(rows.label, prob, rows.weight),
        fields=tuple(kept),
        audit_only=tuple(audit_only),
        skipped=tuple(skipped),
        level=level,
        complete=search.complete,
    )


def _read(
    log: Any,
    asked: dict[str, Any],
    fields: Sequence[str] | str,
    others: tuple[Sequence[str], Sequence[str]],
    cluster: str | None,
) -> tuple[LabelledRows, int]:
    """Rows with the columns of their fields and clusters, and how many rows of the log can be used."""
    from isolayer.tables.field_rows import field_columns, labelled_rows
    from isolayer.tables.histogram_query import ColumnSpec, histogram_of

    on_bad_rows = asked.pop("on_bad_rows")
    spec = ColumnSpec((), **asked)
    usable_rows = int(histogram_of(log, spec, on_bad_rows=on_bad_rows)[0].rows)  # one scan, which finds the others too
    if not usable_rows:
        raise InputError("log: expected at least one row with a positive weight, got none; check how it was made")
    names = field_columns(log, spec, fields)
    present = field_columns(log, spec, "all")
    exclude, audit_only = (
        checked_names(what, value, present, advice="name columns of the log")
        for what, value in zip(("exclude", "audit_only"), others, strict=True)
    )
    if cluster is not None and text("cluster", cluster, advice="name a column of the log") not in present:
        raise InputError(f"cluster: expected a column of the log, got {cluster!r}; it has {list(present)}")
    names = tuple(dict.fromkeys([*(name for name in names if name not in {*exclude, cluster}), *audit_only]))
    if not names:
        raise InputError("fields: expected at least one column to audit, got none; name some")
    return labelled_rows(log, spec, [*names, *([] if cluster is None else [cluster])])[0], usable_rows


class _Telling:
    """Turns discoveries of the search into findings."""

    def __init__(self, rows: AuditRows, audit_only: tuple[str, ...], level: float) -> None:
        self.rows, self.audit_only, self.level = rows, audit_only, level
        self.weight = float(rows.weight.sum())

    def finding(self, one: Discovery, *, off: bool) -> Finding:
        """The finding that reports a discovery."""
        names = tuple(dict.fromkeys(self.rows.fields[place].column for place in one.segment.fields))
        told = self._told(one.segment.words(self.rows), one.tested, one.threshold)
        return replace(
            told,
            fields=names,
            p_value=one.p_value,
            loss_saved=one.saved / self.weight,
            off=off,
            audit_only=tuple(name for name in names if name in self.audit_only),
        )

    def overall(self, search: Search) -> Finding:
        """The finding about all rows, compared with the uncorrected score."""
        told = self._told("all rows", search.all_rows, OVERALL * self.level)
        return replace(told, p_value=min(1.0, search.all_rows.p_value / OVERALL), off=search.everywhere)

    def _told(self, where: str, tested: Judged, threshold: float) -> Finding:
        lower, upper = tested.interval(threshold)
        return Finding(
            segment=where,
            fields=(),
            rows=tested.count,
            predicted=tested.predicted / tested.count,
            expected=tested.expected / tested.count,
            observed=tested.observed / tested.count,
            o_over_e=ratio(tested.observed, tested.expected),
            lower=lower,
            upper=upper,
            p_value=tested.p_value,
            evidence=tested.evidence,
            loss_saved=0.0,
            off=False,
        )
