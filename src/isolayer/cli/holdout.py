"""`fit --holdout`: rows that are left out of a fit, and the judgement of the fit on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from isolayer.cli.clusters import INDEPENDENT, several_clusters, with_clusters
from isolayer.cli.columns import SCORES, column
from isolayer.cli.fields import paired_rows
from isolayer.cli.output import note
from isolayer.cli.sums import Rows, histogram_of_log
from isolayer.curves.curves import Curves
from isolayer.errors import InputError


@dataclass(frozen=True)
class Part:
    """A log in two parts.

    Args:
        fitted: The rows to fit.
        held_out: The rows to judge on.
        rule: The rule that separates them, as plain values.
        clusters: The options that name the clusters for intervals.
    """

    fitted: Any
    held_out: Any
    rule: dict[str, Any]
    clusters: tuple[str | None, str | None]

    @classmethod
    def of(cls, rows: Rows, share: float, cluster: str | None, date: str | None) -> Part:
        """Split a log: by time if there is a date, else by cluster, else by a hash of the score."""
        from isolayer.tables import holdout

        columns = list(rows.table.columns)
        if not 0 < share < 1:
            raise InputError(f"--holdout: expected a share between 0 and 1, got {share}; try 0.2")
        named = {"cluster": cluster, "date": date}
        given = {name: column(value, f"--{name}", (), columns) for name, value in named.items() if value is not None}
        score = column(rows.score, "--score", SCORES, columns, rows.log)
        rule = holdout.rule_of(rows.table, share, score=score, **given)
        if date is not None:
            first, last, held, undated = holdout.days_held_out(rows.table, rule)
            note(f"held out: from {first} to {last} ({held:,} rows)")
            if undated:
                note(f"without a day in {rule['column']}: {undated:,} rows, which are in the fit")
        parts = (holdout.fitted(rows.table, rule), holdout.held_out(rows.table, rule))
        return cls(*parts, rule, (cluster, date))

    def judged(self, rows: Rows, curves: Curves) -> dict[str, Any]:
        """Figures of the calibrator on the rows that were left out, compared with the raw score."""
        from isolayer.monitor import compare_on_log

        table, _, own = with_clusters(self.held_out, *self.clusters)
        rows = replace(rows, table=table, clusters=own, scale=curves.scale, grid=curves.grid)
        histogram, _ = histogram_of_log(rows, curves.contexts)
        raw = Curves.identity(curves.grid, scale=curves.scale)
        paired = paired_rows(rows, raw, curves) if curves.fields else None
        found = compare_on_log(raw, curves, paired or histogram, clustered=several_clusters(histogram))
        if found.clusters is None:
            note(INDEPENDENT)
        loss, ratio = found.log_loss, found.o_over_e
        words = {"better": "calibration helps", "worse": "calibration harms"}
        return {
            "held_out_rows": found.rows,
            "held_out_log_loss_before": loss.old,
            "held_out_log_loss_after": loss.new,
            "held_out_change_from": loss.lower,
            "held_out_change_to": loss.upper,
            "held_out_o_over_e": ratio.new,
            "held_out_verdict": words.get(found.verdict, found.verdict),
        }
