"""Incremental updates of terms: new rows are added without reading the earlier rows again.

The information of earlier rows about a level is stored as the posterior of its values, a mean and a covariance. It is
the prior for the fit of new rows. Fields, levels and combinations do not change; a new category has no level. This is
an approximation, unlike the sums of the base curves: the loss of earlier rows is replaced by its quadratic expansion,
in which terms are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Backfit, Block, Sums
from isolayer.fitting.field_data import Data
from isolayer.fitting.terms import Term, Terms
from isolayer.fitting.threads import one_thread

Floats = NDArray[np.float64]

_SWEEPS, _STILL = 12, 1e-3


@dataclass
class _Continued(Block):
    """A block whose prior is the posterior of earlier rows, ``centre`` and ``precision`` by level."""

    centre: Floats | None = None
    precision: Floats | None = None

    def step(self, sums: Sums, *, choose: bool) -> Floats:
        """One Newton step; the strengths of the earlier fit are part of its posterior."""
        assert self.centre is not None
        assert self.precision is not None
        self.covariance = np.asarray(np.linalg.inv(sums.hessian + self.precision), np.float64)
        pull = np.einsum("lij,lj->li", self.precision, self.values - self.centre)
        return np.asarray(np.einsum("lij,lj->li", self.covariance, sums.gradient - pull))


@one_thread
def update(terms: Terms, data: Data, *, kept: float = 1.0) -> Terms:
    """Terms of earlier rows and new ones.

    Args:
        terms: The terms of earlier rows.
        data: New rows, with the levels of these terms.
        kept: Weight of the earlier rows: 0.5 counts them half.
    """
    fit = Backfit(data.rows, data.base + data.shift)
    totals = terms.totals_of_levels(data.levels, len(data))
    fit.logit += totals.offset + totals.tilt * data.rows.tilt
    fit.blocks = [_continued(term, data, kept) for term in terms.terms]
    free = [block for block, term in zip(fit.blocks, terms.terms, strict=True) if not term.frozen]
    for _ in range(_SWEEPS):
        if max((fit.update(block) for block in free), default=0.0) < _STILL:
            break
    moved = [_merged(term, block, data, kept) for term, block in zip(terms.terms, fit.blocks, strict=True)]
    return replace(terms, terms=tuple(moved))


def _continued(term: Term, data: Data, kept: float) -> _Continued:
    precision = kept * np.asarray(np.linalg.inv(term.covariance), np.float64)
    size = term.values.shape[1]
    strengths = np.ones(size)
    return _Continued(
        term.rows_of(data.levels),
        term.values.copy(),
        None,
        strengths,
        strengths,
        term.covariance,
        centre=term.values,
        precision=precision,
    )


def _merged(term: Term, block: Block, data: Data, kept: float) -> Term:
    if term.frozen:
        return term
    new = vars(data.tally(block.level, len(term.cells)))
    tally = {name: kept * getattr(term, name) + found for name, found in new.items()}
    return replace(term, values=block.values, covariance=block.covariance, **tally)
