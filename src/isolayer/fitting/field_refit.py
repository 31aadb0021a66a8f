"""Terms of a known structure: their values are fitted to sums, which may come from rows in memory or from an engine.

The structure is the fields, levels, combinations and strengths, and the share that the guard kept. Given this, the fit
is one convex problem (:mod:`isolayer.fitting.field_solver`). So the same rows give the same values in memory and in an
engine, and terms that are fitted again to their own rows do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.backfitting import Block, shared_block
from isolayer.fitting.field_data import Data, Tally
from isolayer.fitting.field_solver import MOST_SCANS, STILL, Scan, solve
from isolayer.fitting.terms import Term, Terms
from isolayer.fitting.threads import one_thread

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]

GUARDED = 30_000  # with up to this many rows, the guard uses folds
_NOWHERE = np.empty(0, np.intp)


class SumSource(Protocol):
    """A source of sums over rows: sums at given values, and tallies of every free term."""

    blocks: list[Block]

    def scan(self, values: list[Floats]) -> Scan:
        """Sums by level of every block, the shared one first, at some values of these blocks."""

    def tallies(self) -> list[Tally]:
        """Rows, observed and expected events of every level of every free term."""


class Refit(NamedTuple):
    """Terms fitted to some rows, and the number of scans of the rows."""

    terms: Terms
    scans: int


class RowSums:
    """Rows in memory as a source of sums for some terms."""

    def __init__(self, data: Data, terms: Terms) -> None:
        self._data, self._offset = data, data.base + data.shift
        self.blocks = blocks_of(terms, data.levels, len(data))
        for term in (one for one in terms.terms if one.frozen):
            block = _block(terms, term, term.rows_of(data.levels))
            self._offset = self._offset + block.correction(term.values, data.rows.tilt)

    def scan(self, values: list[Floats]) -> Scan:
        """One pass over the rows."""
        return self._data.scan(self.blocks, self._offset, values)

    def tallies(self) -> list[Tally]:
        """Rows, observed and expected events of every level of every free term."""
        return [self._data.tally(block.level, len(block.values)) for block in self.blocks[1:]]


@one_thread
def refit(
    terms: Terms, source: SumSource, *, share: float = 1.0, most: int = MOST_SCANS, still: float = STILL
) -> Refit:
    """The same terms fitted to other rows; frozen terms keep their values.

    Args:
        terms: The structure; the search starts from its values.
        source: Sums of the rows, by the blocks of these terms.
        share: How much of the values to keep.
        most: Largest number of scans.
        still: Tolerance: no block alone would still move a value by more than this, in logits.
    """
    solved = solve(source.blocks, source.scan, most=most, still=still)
    free, moved = (term for term in terms.terms if not term.frozen), list[Term]()
    for term, values, block, tally in zip(free, solved.values[1:], source.blocks[1:], source.tallies(), strict=True):
        own = replace(term, values=values, covariance=block.covariance, strengths=block.strengths)
        moved.append(replace(own, **vars(tally)))
    shared = float(solved.values[0][0, 0]), float(solved.values[0][0, 1])
    rest = iter(moved)
    everything = tuple(term if term.frozen else next(rest) for term in terms.terms)
    return Refit(replace(terms, terms=everything, shared=shared, share=1.0).kept(share), solved.scans)


def share_for(structure: Terms, rows: float) -> float:
    """The share of the terms to keep: 1 if there are many rows, otherwise the share that the guard kept."""
    return 1.0 if rows > GUARDED else structure.share


def blocks_of(terms: Terms, levels: Sequence[Levels] | None = None, rows: int = 0) -> list[Block]:
    """Blocks of the free terms with their values, the shared one first; without levels if rows are in an engine."""
    whole = terms.kept(1.0)
    shared = shared_block(rows)
    shared.values = np.array([whole.shared])
    blocks = [shared]
    for term in (one for one in whole.terms if not one.frozen):
        block = _block(whole, term, _NOWHERE if levels is None else term.rows_of(levels))
        block.values = term.values
        blocks.append(block)
    return blocks


def _block(terms: Terms, term: Term, level: Levels) -> Block:
    size, one = len(term.cells), terms.fields[term.views[0].field]
    if term.values.shape[1] == 1:
        block = Block.cells(level, size)
    else:
        ordered = len(term.views) == 1 and one.kind == "number"
        block = Block.of(level, size, tilts=True, linked=one.linked if ordered else None)
    if len(term.strengths):
        block.strengths = term.strengths
    return block
