r"""Tests whether the rate is monotone in the score at all, at a stated level, and finds where it falls. numpy only.

The scores are cut into blocks of about equal information, and neighbouring runs of 1, 2, 4, 8 and 16 blocks are
compared. If the rate of every context never falls as the score rises, then, given the events of both runs together, the
lower run has at most its share of them: per context a hypergeometric number. The numbers of events in the lower run are
added over contexts, and their distribution is taken as the binomial with the same mean and variance. Comparing within
contexts matters: contexts with different rates can make a pooled rate fall although the rate of no context falls. The
p-value is the smallest of all comparisons times their number (Bonferroni), so false alarms are at most as frequent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.fitting.categories import present_codes
from isolayer.fitting.evidence import evidence
from isolayer.fitting.histogram import Histogram
from isolayer.fitting.negative_rates import distinct_rates
from isolayer.fitting.sampling import real_traffic

Floats = NDArray[np.float64]

BLOCKS = 32
_CONTEXTS = 2_000  # how many contexts are tested, those with the most rows
_LEAST = 5.0  # least events, and least rows without an event, of a comparison


class Falling(NamedTuple):
    """The clearest fall of the rate, and its p-value if the rate never falls.

    Args:
        p_value: Chance of a fall as clear as this, if the rate of no context falls; corrected for the search.
        start: Where the lower run of scores begins, as a raw logit.
        turn: Where it ends and the upper run begins.
        end: Where the upper run ends.
        rate_below: Rate of the event in the lower run.
        rate_above: Rate of the event in the upper run.
    """

    p_value: float
    start: float
    turn: float
    end: float
    rate_below: float
    rate_above: float

    def plain(self) -> dict[str, float]:
        """The same as a mapping of plain values."""
        return {name: float(value) for name, value in self._asdict().items()}


def clearest_fall(histogram: Histogram, prob: Floats) -> Falling | None:
    """The clearest fall of the rate as the score rises; None if there are too few rows for any comparison.

    Args:
        histogram: The rows, without folds.
        prob: Probability of the event in each cell by the fitted global curve, shape ``[cells]``. It determines the
            information, so that blocks do not depend on single labels.

    >>> score = np.repeat([-1.0, 0.0, 1.0], 1000)
    >>> label = np.r_[np.arange(1000) < 100, np.arange(1000) < 500, np.arange(1000) < 300]
    >>> fall = clearest_fall(Histogram.from_arrays(score, label), np.full(3, 0.3))
    >>> fall.p_value < 1e-6, round(fall.turn, 2), fall.rate_below, fall.rate_above
    (True, 0.5, 0.5, 0.3)
    """
    kept = looked_at(histogram)
    sums, prob = evidence(histogram).only_cells(kept), prob[kept]
    block, edges = _blocks(sums, prob)
    blocks = len(edges) - 1
    if blocks < 2:
        return None
    rates, code = distinct_rates(sums.negative_rate)
    stratum = present_codes(sums.group * len(rates) + code, sums.groups * len(rates))[1]
    rows, events = (_table(stratum, block, column, blocks) for column in (sums.weight, sums.positive))
    found = [_compared(rows, events, length) for length in (1, 2, 4, 8, 16) if 2 * length <= blocks]
    tests = sum(len(p) for p in found)
    best = min(range(len(found)), key=lambda place: float(found[place].min()))
    length, first = 2**best, int(found[best].argmin())
    start, turn, end = (float(edges[first + k * length]) for k in range(3))
    below, above = _rates(sums, block, first, length)
    return Falling(min(1.0, float(found[best].min()) * tests), start, turn, end, below, above)


def words(found: Falling, shown: Callable[[Any], Any] = float) -> str:
    """The finding in a sentence.

    Args:
        found: What was found.
        shown: From a raw logit to the score on the user's scale.

    >>> words(Falling(1e-9, 0.4, 0.5, 2.0, 0.2, 0.1))
    'Above 0.4 the event becomes rarer as the score rises (20% of the rows scored 0.4 to 0.5, 10% of those scored 0.5 to
    2): the model, not its calibration, is wrong there.'
    """
    start, turn, end = (f"{float(shown(at)):.3g}" for at in (found.start, found.turn, found.end))
    rates = f"{100 * found.rate_below:.3g}% of the rows scored {start} to {turn}, {100 * found.rate_above:.3g}%"
    within = "" if found.rate_above < found.rate_below else ", and fewer than that within contexts"
    return (
        f"Above {start} the event becomes rarer as the score rises ({rates} of those scored {turn} to {end}{within}): "
        "the model, not its calibration, is wrong there."
    )


def looked_at(histogram: Histogram) -> NDArray[np.bool_] | slice:
    """Which cells :func:`clearest_fall` uses: those of the contexts with the most rows.

    >>> looked_at(Histogram.from_arrays([0.1], [1]))
    slice(None, None, None)
    """
    if histogram.groups <= _CONTEXTS:
        return slice(None)
    sums = evidence(histogram)
    weight = np.bincount(sums.group, sums.weight, minlength=sums.groups)
    kept = np.zeros(sums.groups, bool)
    kept[np.argsort(-weight, kind="stable")[:_CONTEXTS]] = True  # the first of those with equally many
    return np.asarray(kept[sums.group])


def _blocks(sums: Histogram, prob: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Block of each cell, and the raw logits at which blocks begin and end, ``[blocks + 1]``."""
    size = int(sums.bin.max()) + 1
    information = np.bincount(sums.bin, sums.weight * prob * (1 - prob), minlength=size)
    before = (np.cumsum(information) - information / 2) / information.sum()
    used, block = np.unique(np.floor(before * BLOCKS).astype(np.int64)[sums.bin], return_inverse=True)
    mean = sums.logit / sums.weight
    low = np.full(len(used), np.inf)
    high = np.full(len(used), -np.inf)
    np.minimum.at(low, block, mean)
    np.maximum.at(high, block, mean)
    return block, np.concatenate([low[:1], (high[:-1] + low[1:]) / 2, high[-1:]])


def _table(stratum: NDArray[np.int64], block: NDArray[np.int64], column: Floats, blocks: int) -> Floats:
    """Sums before each block by stratum, shape ``[strata, blocks + 1]``."""
    strata = int(stratum.max()) + 1
    table = np.bincount(stratum * blocks + block, column, minlength=strata * blocks).reshape(strata, blocks)
    return np.concatenate([np.zeros((strata, 1)), np.cumsum(table, axis=1)], axis=1)


def _compared(rows: Floats, events: Floats, length: int) -> Floats:
    """P-values of all pairs of neighbouring runs of a length, ``[pairs]``; 1 if there are too few rows or events."""
    (low, both), (hits, total) = (_runs(table, length) for table in (rows, events))  # each [strata, pairs]
    usable = both > 1
    share = np.divide(low, both, out=np.zeros_like(low), where=usable)
    mean = (total * share).sum(0, where=usable)
    spread = total * (both - total) * share * (1 - share) / np.where(usable, both - 1, 1.0)
    variance = spread.sum(0, where=usable)
    enough = (total.sum(0) >= _LEAST) & ((both - total).sum(0) >= _LEAST) & (variance > 0)
    p = np.ones(len(mean))
    seen = hits.sum(0, where=usable)
    p[enough] = [_tail(*one) for one in np.stack([seen, mean, variance])[:, enough].T.tolist()]
    return p


def _runs(before: Floats, length: int) -> tuple[Floats, Floats]:
    """Sums over the lower run and over both runs of every pair, from sums before each block."""
    start, turn, end = before[:, : -2 * length], before[:, length:-length], before[:, 2 * length :]
    return turn - start, end - start


def _tail(seen: float, mean: float, variance: float) -> float:
    """Chance of at least ``seen`` under the binomial of a mean and a variance, by Peizer and Pratt's approximation.

    >>> round(_tail(15, 10.0, 5.0), 4)  # 20 draws, each with a chance of a half: exactly 0.0207
    0.0207
    """
    prob = min(max(1 - variance / mean, 1e-9), 1 - 1e-9)
    draws, rest, last = mean / prob, 1 - prob, seen - 1
    above, below = last + 0.5, draws - last - 0.5
    if above <= 0:
        return 1.0
    if below <= 0:  # all of them
        return math.exp(draws * math.log(prob))
    apart = above + 1 / 6 - (draws + 1 / 3) * prob
    apart += 0.02 * (rest / (last + 1) - prob / (below + 0.5) + (rest - 0.5) / (draws + 1))
    stretch = 1 + rest * _bent(above / (draws * prob)) + prob * _bent(below / (draws * rest))
    z = apart * math.sqrt(max(stretch, 0.0) / ((draws + 1 / 6) * prob * rest))
    return math.erfc(z / math.sqrt(2)) / 2


def _bent(ratio: float) -> float:
    """Peizer and Pratt's g, which is 0 at 1."""
    if abs(ratio - 1) < 1e-4:
        return (1 - ratio) / 3
    return (1 - ratio**2 + 2 * ratio * math.log(ratio)) / (1 - ratio) ** 2


def _rates(sums: Histogram, block: NDArray[np.int64], first: int, length: int) -> tuple[float, float]:
    """Rates of the event in real traffic, in the lower run and in the upper one."""
    rates = list[float]()
    for start in (first, first + length):
        part = real_traffic(sums.only_cells((block >= start) & (block < start + length)))
        rates.append(float(part.positive.sum() / part.weight.sum()))
    return rates[0], rates[1]
