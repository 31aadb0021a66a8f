r"""The uncertainty that the terms of fields add to the mean logit and the slope of the groups of a log.

If the values of the fields are distributed in a group as they were in the fit, terms add no uncertainty: the common
part of all values is in the base curve, whose error is counted in :mod:`isolayer.monitor.uncertainty`. A group with
another distribution has the errors of the values that it has more or less of. Let :math:`f_c` be the change of the
group's expected events with the correction of the value c of a term, :math:`C_c` the posterior covariance of that
correction, and :math:`s_c` the share of the value in the rows of the fit. Then the expected events of the group have
the variance :math:`\sum_c (f_c - s_c F)' C_c (f_c - s_c F)` with :math:`F = \sum_c f_c`. The errors of different terms
are independent. Neighbouring bins of a number share one error within each degree of freedom of the term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.curves.fielded import LabelledRows
from isolayer.fitting.field_levels import levels_of
from isolayer.fitting.frames import columns
from isolayer.fitting.terms import Term, Terms
from isolayer.monitor.groups import Grouping
from isolayer.monitor.uncertainty import Errors, ratio, total

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


class TermErrors(NamedTuple):
    """What terms add to the variances of the groups of a depth, shape ``[groups]`` each.

    Args:
        level: Variance of the mean logit of the group.
        slope: Variance of the slope of the labels over the predictions.
        widened: Variance of the predicted logits with fields, divided by that of the base curve alone.
        flattened: Square of the change of the expected events with the mean logit, divided by that of the base curve.
    """

    level: Floats
    slope: Floats
    widened: Floats
    flattened: Floats


def with_terms(error: Errors, variance: Floats, more: TermErrors) -> tuple[Errors, Floats]:
    """Errors of curves, and the variance of expected events, with those of terms added."""
    level = error.level + more.level
    expected = variance * more.flattened * np.where(error.level > 0, ratio(level, error.level), 1.0)
    return Errors(level, error.slope / more.widened + more.slope, error.information), expected


def term_errors(curves: Curves, terms: Terms, rows: LabelledRows, groupings: list[Grouping]) -> list[TermErrors]:
    """Uncertainty of the terms for the groups of every depth, all rows first.

    Args:
        curves: The calibrator.
        terms: Its terms.
        rows: Rows of the log, or a sample of them.
        groupings: The groups of each depth.
    """
    read = _Read.of(curves, terms, rows)
    groups = [_groups(curves, rows, grouping, depth) for depth, grouping in enumerate(groupings)]
    return [read.errors(group, grouping.groups) for group, grouping in zip(groups, groupings, strict=True)]


@dataclass(frozen=True, eq=False)
class _Errors:
    """The errors of one term.

    Args:
        of_row: Index of the error of each row, shape ``[n]``; the last index means no error.
        covariance: Covariance of offset and tilt, shape ``[m + 1, 2, 2]``.
        share: Share of the rows of the fit, shape ``[m + 1]``.
    """

    of_row: Codes
    covariance: Floats
    share: Floats

    def variance(self, group: Codes, groups: int, force: Floats) -> Floats:
        """Variance of the expected events of each group, for forces on offset and tilt of the rows, ``[n, 2]``."""
        size = len(self.share)
        keys, at = np.unique(group * size + self.of_row, return_inverse=True)
        owner, place = np.divmod(keys, size)
        pushed = np.stack([total(at, column, len(keys)) for column in force.T], axis=1)  # [pairs, 2]
        whole = _by_group(owner, pushed, groups)
        errors = np.einsum("pij,pj->pi", self.covariance[place], pushed)
        crossed = (_by_group(owner, errors * self.share[place, None], groups) * whole).sum(1)
        middle = np.einsum("c,cij->ij", self.share**2, self.covariance)
        own = total(owner, (pushed * errors).sum(1), groups)
        return np.asarray(np.maximum(own - 2 * crossed + np.einsum("gi,ij,gj->g", whole, middle, whole), 0.0))


@dataclass(frozen=True, eq=False)
class _Read:
    """Rows of a log: calibrated logits, the change of expected events with these, and the errors of every term."""

    base: Floats
    logit: Floats
    pull: Floats
    base_pull: Floats
    place: Floats
    errors_of_terms: list[_Errors]

    @classmethod
    def of(cls, curves: Curves, terms: Terms, rows: LabelledRows) -> _Read:
        base, shift = rows.base_of(curves), np.log(rows.rate)
        logit = curves.on_logits.decision_function(rows.logit, rows.columns) - shift
        weight = 1.0 if rows.weight is None else rows.weight
        pull, base_pull = (weight * prob_of(one) * (1 - prob_of(one)) for one in (logit, base - shift))
        levels = levels_of(terms.fields, columns(rows.columns, terms.columns))
        own = [term for term in terms.terms if not _of_context(curves, terms, term)]
        errors = [_errors(terms, term, np.asarray(term.rows_of(levels), np.int64)) for term in own]
        return cls(base - shift, logit, pull, base_pull, terms.place(base), errors)

    def errors(self, group: Codes, groups: int) -> TermErrors:
        """The errors of groups; rows of group -1 belong to none."""
        inside = np.flatnonzero(group >= 0)
        group, pull, place = group[inside], self.pull[inside], self.place[inside]
        force = total(group, pull, groups)
        lean, leverage = _lean(self.logit[inside], pull, group, groups, force)
        _, before = _lean(self.base[inside], pull, group, groups, force)
        level, slope = np.zeros(groups), np.zeros(groups)
        for one in self.errors_of_terms:
            part = _Errors(one.of_row[inside], one.covariance, one.share)
            level += part.variance(group, groups, np.stack([pull, pull * place], axis=1))
            slope += part.variance(group, groups, np.stack([pull * lean, pull * lean * place], axis=1))
        widened = np.where(before > 0, ratio(leverage, before), 1.0)
        flattened = ratio(force, total(group, self.base_pull[inside], groups)) ** 2
        found = ratio(level, force**2), ratio(slope, leverage**2)
        return TermErrors(*found, np.where(widened > 0, widened, 1.0), np.where(flattened > 0, flattened, 1.0))


def _lean(logit: Floats, pull: Floats, group: Codes, groups: int, force: Floats) -> tuple[Floats, Floats]:
    """Distance of each logit from the mean of its group, and the weighted sum of squares by group."""
    lean = logit - ratio(total(group, pull * logit, groups), force)[group]
    return lean, total(group, pull * lean**2, groups)


def _groups(curves: Curves, rows: LabelledRows, grouping: Grouping, depth: int) -> Codes:
    """Group of each row; -1 for rows of new contexts, and of contexts that the grouping does not have."""
    n, context = len(rows.logit), rows.columns if curves.contexts else None
    known = curves.rows_of(context, n) >= curves.starts[len(curves.contexts)]
    place = np.full(len(curves.values), -1, np.int64)
    place[grouping.row[~grouping.new]] = np.flatnonzero(~grouping.new)
    return np.where(known, place[curves.rows_of(context, n, depth=depth)], -1)


def _of_context(curves: Curves, terms: Terms, term: Term) -> bool:
    """Whether a term is about a context column alone: it corrects the context's curve, whose error is already in."""
    return len(term.views) == 1 and terms.fields[term.fields[0]].column in curves.contexts


def _errors(terms: Terms, term: Term, row: Codes) -> _Errors:
    """The errors of a term; neighbouring bins of a number share one error within each degree of freedom."""
    information, spread = term.information, terms.spread(term)
    alike = _alike(terms, term, information * term.covariance[:, 0, 0])
    size = int(alike[-1]) + 1 if len(alike) else 0
    weight = total(alike, information, size) if size else np.zeros(0)
    part = np.where(weight[alike] > 0, ratio(information, weight[alike]), 1.0)
    covariance = np.zeros((size + 1, 2, 2))
    width = term.values.shape[1]
    for i in range(width):
        for j in range(width):
            covariance[:size, i, j] = total(alike, part * spread[:, i, j], size)
    share = np.append(ratio(weight, np.full(size, weight.sum())), 0.0)
    return _Errors(np.append(alike, size)[row], covariance, share)


def _alike(terms: Terms, term: Term, freedom: Floats) -> Codes:
    """Which values of a term share an error, as ascending codes, shape ``[m]``."""
    one = terms.fields[term.views[0].field]
    if len(term.views) > 1 or one.kind != "number":
        return np.arange(len(freedom), dtype=np.int64)
    linked = np.append(one.linked, False)[term.cells[:-1]] & (np.diff(term.cells) == 1)
    spent = np.floor(np.cumsum(freedom) + 1e-9)
    return np.concatenate([[0], np.cumsum(~linked | (np.diff(spent) > 0))]).astype(np.int64)


def _by_group(owner: Codes, values: Floats, groups: int) -> Floats:
    return np.stack([total(owner, column, groups) for column in values.T], axis=1)
