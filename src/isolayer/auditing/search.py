"""Find segments one after the other: the clearest first, then what is still unexplained once that one is corrected.

If the score is off everywhere, one curve for all rows is corrected as a step of its own. A segment is therefore
reported only for what the steps before it do not explain, whether these contain it, lie within it or overlap it. Tests
are adjusted for all segments that could have been chosen: within singles, pairs and triples of fields, the k-th
discovery among m segments is tested at k / m of the family's share of the level (a step-down procedure, Gavrilov,
Benjamini and Sarkar 2009), so that the share of false discoveries is controlled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.auditing.rows import AuditRows, State
from isolayer.auditing.segments import Segment, Table, tables, triples
from isolayer.auditing.testing import Clustering, Judged, log_losses, saved
from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.interactions import evidence
from isolayer.grid import Grid, Spread

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

SHARES = (0.35, 0.3, 0.15)  # shares of the level for single fields, pairs and triples
OVERALL = 0.1  # share of the level for all rows together; the multicalibration error has the same
_TRIED, _TRIED_CLUSTERED = 8, 60  # candidates that are tested exactly at each step
_ABOUT = 0.9  # share of the gain of the best segment that one curve for all rows must reach
_LEAST_GAIN = 12.0  # least gain of a curve for all rows, in nats; by chance a flexible curve can gain nearly as much
_UNLIKE = 1e-3  # p-value below which two parts of a segment differ too much to be reported as one
_EXTENDED, _TRIPLES = 8, 100  # how many pairs are extended by a third field, and how many triples there are at most


class Discovery(NamedTuple):
    """A segment and its test.

    Args:
        segment: The segment.
        tested: The test, against the score as corrected for the earlier discoveries.
        p_value: Adjusted for all segments of its family.
        threshold: The level at which its unadjusted p-value was tested, which is also that of its interval.
        saved: Log loss that a correction saves on rows it was not fitted to, summed; 0 until it is computed.
    """

    segment: Segment
    tested: Judged
    p_value: float
    threshold: float
    saved: float = 0.0


@dataclass(eq=False)
class Family:
    """All segments with a given number of fields.

    Args:
        tables: Their tables.
        tests: How many segments there are to test.
        share: Its share of the level.
        found: How many were discovered.
        adjusted: The largest adjusted p-value of these.
    """

    tables: list[Table]
    tests: int
    share: float
    found: int = 0
    adjusted: float = 0.0
    best: dict[int, list[tuple[float, Segment]]] = field(default_factory=dict)

    @property
    def price(self) -> float:
        """The factor that adjusts an unadjusted p-value."""
        return max(self.tests, 1) / (self.share * (self.found + 1))

    def clearest(self, most: int) -> list[tuple[float, Segment]]:
        """The clearest segments, by the logarithm of their likelihood ratio; only changed tables are computed again."""
        for place, table in enumerate(self.tables):
            if place not in self.best:
                self.best[place] = table.clearest(most)
        return [one for some in self.best.values() for one in some]


@dataclass(eq=False)
class Search:
    """The state of a search.

    Args:
        rows: The rows.
        state: Their logits as corrected so far, and the events expected from these.
        families: The segments, by the number of their fields.
        clusters: Rows that vary together; None if rows are independent.
        level: How often a score that is right may be called off.
        all_rows: The test of all rows against the score as it is.
        bent: Whether one curve for all rows was corrected.
        everywhere: Whether that was the first step: the score itself is off everywhere, not only after corrections.
        complete: Whether the search ended because nothing more was off.
    """

    rows: AuditRows
    state: State
    families: list[Family]
    clusters: Clustering | None
    level: float
    all_rows: Judged
    bent: bool = False
    everywhere: bool = False
    complete: bool = False

    @classmethod
    def of(cls, rows: AuditRows, *, depth: int, level: float) -> Search:
        """Before the first discovery."""
        state = State.of(rows)
        some = tables(rows, state, depth)
        families = [
            Family(tabled, sum(table.tests for table in tabled), share)
            for tabled, share in zip(some, SHARES, strict=False)
        ]
        if depth > 2 and len(rows.fields) > 2:
            found, tests = triples(rows, state, _extended(families[1].tables), _TRIPLES)
            families.append(Family(found, tests, SHARES[2]))
        clusters = Clustering.of(rows, state)
        return cls(rows, state, families, clusters, level, Judged.of(rows, state, np.arange(len(rows)), clusters))

    @property
    def tests(self) -> int:
        """How many segments are large enough to be tested."""
        return sum(family.tests for family in self.families)

    def discoveries(self, most: int) -> list[Discovery]:
        """Segments that are off beyond chance, in the order in which they are found and corrected; at most ``most``."""
        found = list[Discovery]()
        for _ in range(2 * most):
            if len(found) == most:
                break
            best = self.next()
            if not self.bent and self._bend(best):
                self.everywhere = not found
                continue
            if best is None or best.p_value > self.level:
                self.complete = True
                break
            best = best._replace(saved=self.saved(best))
            again = next((place for place, one in enumerate(found) if _same_rows(one, best)), None)
            if again is None:
                found.append(best)
                family = self.families[len(best.segment.views) - 1]
                family.found, family.adjusted = family.found + 1, best.p_value
            else:  # later corrections moved this segment again: correct it once more, but report it once
                found[again] = found[again]._replace(saved=found[again].saved + best.saved)
            self._move(best.tested.rows, best.tested.offset)
        return found

    def _bend(self, best: Discovery | None) -> bool:
        """Correct one curve for all rows, if it is off beyond chance and explains about as much as the best segment."""
        logit, label, weight = self.state.logit, self.rows.label, self.rows.weight
        if not 0 < weight @ label < weight.sum():
            return False
        grid = Grid.covering(Spread.of(logit, weight))
        curve = Curves.from_histogram(Histogram.from_arrays(logit, label, weight=weight, grid=grid))
        bent = curve.evaluate(np.zeros(len(logit), np.int64), logit)
        tested = Judged.of(self.rows, self.state, np.arange(len(logit)), self.clusters)
        gain = self._gain(tested.rows, bent - logit)
        if gain < _LEAST_GAIN * tested.effect or (
            best is not None and gain < _ABOUT * self._gain(best.tested.rows, best.tested.offset)
        ):
            return False
        self.bent = True
        self._move(tested.rows, bent - logit)
        return True

    def next(self) -> Discovery | None:
        """The segment that is most clearly off, significantly or not."""
        most = _TRIED if self.clusters is None else _TRIED_CLUSTERED
        candidates = [
            (depth - np.log(family.price), family, segment)
            for family in self.families
            for depth, segment in family.clearest(most)
        ]
        best: Discovery | None = None
        clearest = -np.inf
        for score, family, segment in sorted(candidates, key=lambda one: -one[0])[:most]:
            if score < clearest:
                break
            found = self._discovery(segment)
            clarity = found.tested.evidence - np.log(family.price)
            if best is None or (found.p_value, -clarity) < (best.p_value, -clearest):
                best, clearest = found, clarity
        return None if best is None else self._simplest(best)

    def saved(self, one: Discovery) -> float:
        """Log loss that a correction of a discovery saves on rows it was not fitted to, summed."""
        return saved(self.rows, self.state, one.tested.rows, self.clusters)

    def _discovery(self, segment: Segment) -> Discovery:
        """The test of a segment."""
        family = self.families[len(segment.views) - 1]
        tested = Judged.of(self.rows, self.state, segment.rows(self.rows), self.clusters)
        adjusted = max(min(1.0, tested.p_value * family.price), family.adjusted)
        return Discovery(segment, tested, adjusted, self.level / family.price)

    def _simplest(self, one: Discovery) -> Discovery:
        """The same discovery with fewer fields, if these explain it as well."""
        for parent in one.segment.parents:
            wider = self._discovery(parent)
            if wider.p_value <= self.level and self._explained(one, wider):
                return self._simplest(wider)
        return one

    def _explained(self, one: Discovery, wider: Discovery) -> bool:
        """Whether correcting a wider segment as a whole is enough: neither this part of it nor the rest is off then."""
        rest = np.setdiff1d(wider.tested.rows, one.tested.rows, assume_unique=True)
        if not len(rest):
            return True
        self.state.move(wider.tested.rows, wider.tested.offset)
        left = Judged.of(self.rows, self.state, one.tested.rows, self.clusters).p_value
        spoilt = Judged.of(self.rows, self.state, rest, self.clusters).p_value
        self.state.move(wider.tested.rows, -wider.tested.offset)
        return min(left, spoilt) > _UNLIKE

    def _gain(self, some: Codes, offset: float | Floats) -> float:
        """Log loss that a correction of some rows saves on these very rows."""
        logit, label = self.state.logit[some], self.rows.label[some]
        return float(self.rows.weight[some] @ (log_losses(logit, label) - log_losses(logit + offset, label)))

    def _move(self, some: Codes, offset: float | Floats) -> None:
        """Correct some rows and update all sums."""
        before = self.state.expected[some], self.state.variance[some]
        self.state.move(some, offset)
        expected, variance = self.state.expected[some] - before[0], self.state.variance[some] - before[1]
        for family in self.families:
            for table in family.tables:
                table.change(self.rows, some, expected, variance)
            family.best.clear()


def _same_rows(one: Discovery, other: Discovery) -> bool:
    """Whether two discoveries are about the same rows."""
    return np.array_equal(one.tested.rows, other.tested.rows)


def _extended(pairs: Sequence[Table]) -> list[Table]:
    """The pairs of fields with the most evidence, which are extended by a third."""
    gains = [evidence((table.observed - table.expected).ravel(), table.variance.ravel()) for table in pairs]
    order = sorted(range(len(pairs)), key=lambda place: -gains[place])
    return [pairs[place] for place in order[:_EXTENDED]]
