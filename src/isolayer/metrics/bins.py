"""Sums by bin of the score, which merge, and the metrics that need the distribution of scores (AUC, ECE).

There are two ways to make them: fixed bins, uniform in logit, which merge across batches; or one bin for every distinct
probability, which is exact and is what ``calibration.py`` and ``ranking.py`` use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from isolayer.errors import InputError, offered
from isolayer.metrics.rows import Codes, Floats, both_classes, prob_rows, summed
from isolayer.metrics.sums import over
from isolayer.settings import choice, count, flag, instance

Binning = Literal["mass", "width"]
Norm = Literal["l1", "l2"]

LOGIT_LIMIT = 20.0  # fixed bins span [-20, 20] in logit; the end bins take the rest
MOST_BINS = 1 << 24  # most bins of one set of sums
_CELLS = 4096  # cells of the probability axis, for the kernel of smooth ECE


class BrierParts(NamedTuple):
    """Brier score = ``reliability - resolution + uncertainty + within_bin``, see :func:`brier_decomposition`."""

    reliability: float
    resolution: float
    uncertainty: float
    within_bin: float


@dataclass(frozen=True)
class BinSums:
    r"""Sums over the rows of each bin of the score, bins in increasing order, every field ``[bins]``.

    Args:
        weight: :math:`\sum w`.
        positive: :math:`\sum w y`.
        expected: :math:`\sum w p`.
        squared_error: :math:`\sum w (p - y)^2`.

    >>> half = BinSums.from_rows([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    >>> (half + half).auc
    0.75
    """

    weight: Floats
    positive: Floats
    expected: Floats
    squared_error: Floats

    @classmethod
    def from_rows(cls, label: Any, prob: Any, weight: Any = None, *, bins: int = 4096) -> BinSums:
        """Sums of a batch over ``bins`` fixed bins of equal width in logit on ``[-20, 20]``.

        Means within a bin are exact; the order of rows within a bin is lost. A bin is at most ``10 / bins`` wide in
        probability.
        """
        y, p, w = prob_rows(label, prob, weight)
        bins = count("bins", bins, 2, MOST_BINS, advice="4096 is usual")
        with np.errstate(divide="ignore"):
            logit = np.log(p) - np.log1p(-p)  # -inf and inf fall in the end bins
        place = (np.clip(logit, -LOGIT_LIMIT, LOGIT_LIMIT) + LOGIT_LIMIT) * (bins / (2 * LOGIT_LIMIT))
        return cls._of(np.minimum(place.astype(np.intp), bins - 1), bins, p, y, w)

    @classmethod
    def from_table(
        cls, table: Any, *, label: str = "label", prob: str = "prob", weight: str | None = None, bins: int = 4096
    ) -> BinSums:
        """The same sums of a table, computed by the engine that holds it.

        Args:
            table: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
            label: Column of labels in [0, 1].
            prob: Column of predicted probabilities.
            weight: Column of weights, or None.
            bins: How many bins.
        """
        sums = offered("bin_sums_of")(table, label=label, prob=prob, weight=weight, bins=bins)
        return cast("BinSums", sums)

    @classmethod
    def of_distinct(cls, label: Any, prob: Any, weight: Any = None) -> BinSums:
        """One bin for every distinct probability: exact for every metric, but two such sums do not merge."""
        y, p, w = prob_rows(label, prob, weight)
        order = np.argsort(p)
        p, y, w = p[order], y[order], w[order]
        code = np.cumsum(np.r_[False, p[1:] != p[:-1]])
        return cls._of(code, int(code[-1]) + 1, p, y, w)

    @classmethod
    def _of(cls, code: Codes, bins: int, p: Floats, y: Floats, w: Floats) -> BinSums:
        columns = (w, w * y, w * p, w * (p - y) ** 2)
        return cls(*(summed(code, column, bins) for column in columns))

    def merge(self, other: BinSums) -> BinSums:
        """The sums of both sets of rows, over the same fixed bins; ``a + b`` is the same."""
        instance("other", other, BinSums, advice="merge sums of the same kind")
        if self.weight.shape != other.weight.shape:
            mine, theirs = len(self.weight), len(other.weight)
            raise InputError(f"bins: expected the same bins on both sides, got {mine} and {theirs}; use from_rows")
        return BinSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    __add__ = merge

    @property
    def auc(self) -> float:
        """AUC with the rows of a bin counted as ties; at most ``auc_bound`` from the AUC of the rows."""
        return auc_of_ties(self.positive, self.weight - self.positive)

    @property
    def auc_bound(self) -> float:
        """Half the share of (positive, negative) pairs that fall in one bin: the largest error of ``auc``."""
        negative = self.weight - self.positive
        positives, negatives = float(self.positive.sum()), float(negative.sum())
        both_classes(positives, positives + negatives, "AUC")
        return float(0.5 * (self.positive @ negative) / (positives * negatives))

    def ece(self, *, bins: int = 15, binning: Binning = "mass", norm: Norm = "l1", debiased: bool = False) -> float:
        """See :func:`isolayer.metrics.ece`; its bins are unions of these bins, and given them it is exact."""
        norm, debiased = choice("norm", norm, ("l1", "l2")), flag("debiased", debiased)
        return calibration_gap(self.grouped(bins, binning), norm, debiased)

    def grouped(self, bins: int, binning: Binning) -> BinSums:
        """The same sums over ``bins`` wider bins, of equal mass or of equal width in probability."""
        bins = count("bins", bins, 1, MOST_BINS, advice="15 is usual")
        code = self._coarse(bins, choice("binning", binning, ("mass", "width")))
        return BinSums(*(summed(code, getattr(self, f.name), bins) for f in fields(self)))

    def _coarse(self, bins: int, binning: Binning) -> Codes:
        if binning == "mass":
            middle = np.cumsum(self.weight) - 0.5 * self.weight
            place = middle * (bins / self.weight.sum())
        else:  # slightly larger, so that 3 / 5 is not rounded below its edge
            place = np.nan_to_num(over(self.expected, self.weight)) * bins + 1e-9
        return np.asarray(np.clip(place, 0, bins - 1), dtype=np.intp)

    def smooth_ece(self) -> float:
        """See :func:`isolayer.metrics.smooth_ece`; residuals are placed at the mean of their bin."""
        return smooth_gap(over(self.expected, self.weight), self.positive - self.expected, float(self.weight.sum()))

    def brier_parts(self, *, bins: int = 15, binning: Binning = "mass") -> BrierParts:
        """See :func:`isolayer.metrics.brier_decomposition`."""
        grouped = self.grouped(bins, binning)
        share = grouped.weight / grouped.weight.sum()
        rate, mean = over(grouped.positive, grouped.weight), over(grouped.expected, grouped.weight)
        base = float(grouped.positive.sum() / grouped.weight.sum())
        reliability = float(np.nansum(share * (mean - rate) ** 2))
        resolution = float(np.nansum(share * (rate - base) ** 2))
        uncertainty = base * (1 - base)
        brier = float(self.squared_error.sum() / self.weight.sum())
        return BrierParts(reliability, resolution, uncertainty, brier - (reliability - resolution + uncertainty))


def auc_of_ties(positive: Floats, negative: Floats) -> float:
    """AUC from the weights of each class at each distinct score, in increasing order of score.

    >>> auc_of_ties(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    0.75
    """
    below = np.cumsum(negative) - 0.5 * negative
    positives, negatives = float(positive.sum()), float(negative.sum())
    both_classes(positives, positives + negatives, "AUC")
    return float(positive @ below / (positives * negatives))


def calibration_gap(bins: BinSums, norm: Norm, debiased: bool) -> float:
    """Mean over bins of ``|observed - expected|`` (``l1``), or root mean square (``l2``), as :func:`ece` defines it."""
    used = bins.weight > 0
    weight = bins.weight[used]
    rate, mean = bins.positive[used] / weight, bins.expected[used] / weight
    share, gap = weight / weight.sum(), np.abs(rate - mean)
    variance = rate * (1 - rate) / np.maximum(weight - 1, 1)
    if norm == "l2":
        square = share @ (gap**2 - variance) if debiased else share @ gap**2
        return math.sqrt(max(0.0, float(square)))
    if debiased:
        gap = gap - (_folded_mean(gap, np.sqrt(variance)) - gap)
    return max(0.0, float(share @ gap))


def _folded_mean(mean: Floats, spread: Floats) -> Floats:
    # E|N(mean, spread^2)| = spread sqrt(2 / pi) exp(-t^2 / 2) + mean erf(t / sqrt 2), t = mean / spread
    t = np.divide(mean, spread, out=np.full_like(mean, np.inf), where=spread > 0)
    erf = np.asarray(np.frompyfunc(math.erf, 1, 1)(t / math.sqrt(2)), dtype=np.float64)
    return np.asarray(spread * math.sqrt(2 / math.pi) * np.exp(-(np.minimum(t, 40) ** 2) / 2) + mean * erf)


def smooth_gap(prob: Floats, residual: Floats, weight: float) -> float:
    """Smooth ECE of residuals ``sum w (y - p)`` at ``prob``; the reflected kernel is applied to cosine modes."""
    cell = np.minimum((np.nan_to_num(prob) * _CELLS).astype(np.intp), _CELLS - 1)
    density = summed(cell, residual / weight, _CELLS)  # [cells], sums to the mean residual
    modes = np.fft.rfft(np.concatenate([density, density[::-1]]))  # even extension: reflection at 0 and 1
    frequency = math.pi * np.arange(len(modes))

    def gap(width: float) -> float:
        smooth = np.fft.irfft(modes * np.exp(-0.5 * (width * frequency) ** 2), 2 * _CELLS)[:_CELLS]
        return float(np.abs(smooth).sum())

    low, high = 0.0, 1.0  # gap falls as the kernel widens, so gap(width) = width has one root
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gap(middle) > middle else (low, middle)
    return high
