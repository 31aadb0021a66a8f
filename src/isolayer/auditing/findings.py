"""What an audit found: segments that are off, figures of all rows, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from isolayer.fitting.sentences import percents, sentence
from isolayer.metrics.multicalibration import Multicalibration

_MANY, _SHARE = 400.0, 0.1  # least variance of a group's events for its test, and the share of the level for it
_APART = 0.02  # relative difference of two rates above which both are shown


@dataclass(frozen=True)
class Finding:
    """A segment and how far the score is off there.

    Args:
        segment: The segment in words.
        fields: Columns that describe it.
        rows: Weight of its rows, in terms of real traffic if negatives were sampled.
        predicted: Rate that the score predicts.
        expected: Rate that is expected after the findings before this one are corrected, and after one curve for all
            rows if the score is off everywhere.
        observed: Rate that was observed.
        o_over_e: Observed over expected: what this segment alone explains.
        lower: Lower end of its interval, which excludes 1 exactly if the p-value is at most the level of the audit.
        upper: Upper end of its interval.
        p_value: Probability of such an excess or lack of events by chance, adjusted for all segments that were tested.
        evidence: Gain in log likelihood from correcting the segment, in nats.
        loss_saved: Reduction of log loss, per row of the log, on rows that the correction was not fitted to.
        off: Whether it is off beyond chance.
        audit_only: Which of its fields may not be used for correction.
    """

    segment: str
    fields: tuple[str, ...]
    rows: float
    predicted: float
    expected: float
    observed: float
    o_over_e: float
    lower: float
    upper: float
    p_value: float
    evidence: float
    loss_saved: float
    off: bool
    audit_only: tuple[str, ...] = ()

    def __str__(self) -> str:
        apart = abs(self.expected - self.predicted) > _APART * self.predicted
        told = sentence(self.segment, self.predicted, self.observed, self.rows, after=self.expected if apart else None)
        return f"{told} ({', '.join(self.audit_only)}: audit only)" if self.audit_only else told


@dataclass(frozen=True, eq=False)
class Audit:
    """What :func:`isolayer.audit` found.

    Args:
        findings: Segments that are off beyond chance, in the order in which they were found and corrected.
        suspects: If nothing is off, the segments that come closest to being off.
        overall: All rows together, compared with the uncorrected score.
        multicalibration: The multicalibration error, its noise level and its p-value.
        rows: Rows that were read.
        total: Rows of the log that can be used; more than ``rows`` if these are a sample.
        tests: Number of segments that were tested.
        clusters: Number of clusters; None if rows count as independent.
        log_loss: Log loss of the score.
        fields: Columns that were audited.
        audit_only: Those that may not be used for correction.
        skipped: Columns whose type cannot be a field.
        level: How often a score that is right may be called off.
        complete: Whether the search ended because nothing more was off, rather than at its limit.

    >>> import isolayer
    >>> log = {"prob": [0.5] * 4000, "label": [0, 1] * 1000 + [0, 1, 1, 1] * 500}
    >>> log["device"] = ["tv"] * 2000 + ["web"] * 2000
    >>> print(isolayer.audit(log, "prob", scale="prob"))
    device web: predicted 50%, observed 75%, 2,000 rows
    off: 1 of 2 segments; correcting what was found saves 0.065 of the log loss of 0.6931 per row
    the multicalibration error is ...%; the smallest detectable error is ...%
    """

    findings: tuple[Finding, ...]
    suspects: tuple[Finding, ...]
    overall: Finding
    multicalibration: Multicalibration
    rows: int
    total: int
    tests: int
    clusters: int | None
    log_loss: float
    fields: tuple[str, ...]
    audit_only: tuple[str, ...]
    skipped: tuple[str, ...]
    level: float
    complete: bool

    @property
    def holds(self) -> bool:
        """Whether the score is right everywhere, as far as these rows can tell."""
        return not self.findings and not self.overall.off and not self.unlike_noise

    @property
    def unlike_noise(self) -> bool:
        """Whether the multicalibration error is beyond chance.

        Its p-value is asymptotic: it holds for many events and independent rows. For clustered rows, and if the worst
        group has few events, this is False.
        """
        return self.worst_has_events and self.multicalibration.p_value <= _SHARE * self.level

    @property
    def worst_has_events(self) -> bool:
        """Whether rows are independent and the worst group has enough events for the asymptotic p-value."""
        error = self.multicalibration
        worst = int(np.argmax(error.group_sigma))
        spread = error.group_error[worst] / max(error.group_sigma[worst], 1e-300) * error.weight[worst]
        return bool(self.clusters is None and spread**2 >= _MANY)

    @property
    def ranked(self) -> tuple[Finding, ...]:
        """Findings by evidence, the clearest first."""
        return tuple(sorted(self.findings, key=lambda one: -one.evidence))

    @property
    def repair_fields(self) -> tuple[str, ...]:
        """Fields to fit with, in the order of their findings, without those that may only be audited."""
        named = [name for one in self.ranked for name in one.fields]
        return tuple(dict.fromkeys(name for name in named if name not in self.audit_only))

    @property
    def loss_saved(self) -> float:
        """Log loss per row that correcting all findings saves on rows that the corrections were not fitted to."""
        return float(sum(one.loss_saved for one in self.findings))

    def reasons(self) -> list[str]:
        """Sentences that say why the score holds or does not."""
        if self.holds:
            return [
                f"the score holds: none of {self.tests:,} segments of {len(self.fields)} fields is off beyond chance"
            ]
        found = list[str]()
        if self.overall.off and self.overall.p_value <= self.level:
            found.append(f"off everywhere: {self.overall}")
        elif self.overall.off:
            found.append(
                "off in shape: right on average, but too high for some scores and too low for others; one curve for "
                "all rows corrects this"
            )
        if self.findings:
            more = "" if self.complete else " or more"
            found.append(
                f"off: {len(self.findings)}{more} of {self.tests:,} segments; correcting what was found saves "
                f"{self.loss_saved:.2g} of the log loss of {self.log_loss:.4f} per row"
            )
        if self.unlike_noise:
            error, noise = percents(self.multicalibration.error, self.multicalibration.minimum_detectable_error)
            found.append(f"the multicalibration error is {error}; the smallest detectable error is {noise}")
        return found

    def columns(self) -> dict[str, list[Any]]:
        """Findings by evidence, or the suspects if there are none, as columns of a table."""
        return columns_of(self.ranked or self.suspects)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.ranked), *self.reasons()])


def columns_of(findings: Sequence[Finding]) -> dict[str, list[Any]]:
    """Findings as columns.

    >>> one = Finding("device tv", ("device",), 10, 0.1, 0.1, 0.2, 2.0, 1.1, 3.0, 0.01, 4.0, 0.001, True)
    >>> columns_of([one])["o_over_e"]
    [2.0]
    """
    return {each.name: [getattr(one, each.name) for one in findings] for each in fields(Finding)}


def ratio(top: float, bottom: float) -> float:
    """A quotient; NaN if the denominator is 0."""
    return top / bottom if bottom > 0 else np.nan
