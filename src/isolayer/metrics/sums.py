"""Sums over rows, which add across batches, processes and tables, and the metrics that are functions of them alone.

``Sums`` has the sums of one population, ``SegmentSums`` of many at once, ``MeanSums`` those of a weighted mean. Every
field is a plain sum, so ``a + b`` has the sums of both sets of rows, and a warehouse can compute them with
``SUM(...) GROUP BY``. Metrics that need the distribution of scores (AUC, ECE) are in ``bins.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError, offered
from isolayer.metrics.rows import PROB_FLOOR, Floats, both_classes, codes, finite, prob_rows, scored_rows, summed
from isolayer.settings import instance


def row_loss(label: Floats, prob: Floats) -> Floats:
    """Log loss of each row in nats, with ``prob`` clipped to ``[PROB_FLOOR, 1 - PROB_FLOOR]``.

    >>> row_loss(np.array([1.0, 1.0]), np.array([0.5, 0.0])).round(2).tolist()
    [0.69, 36.04]
    """
    inside = np.clip(prob, PROB_FLOOR, 1 - PROB_FLOOR)
    return np.asarray(-(label * np.log(inside) + (1 - label) * np.log1p(-inside)))


def entropy(rate: Any) -> Any:
    """Entropy of a coin in nats, ``-(r log r + (1 - r) log(1 - r))``, 0 at 0 and 1.

    >>> round(float(entropy(0.5)), 4), float(entropy(0.0))
    (0.6931, 0.0)
    """
    inside = np.clip(rate, PROB_FLOOR, 1 - PROB_FLOOR)
    exact = -(inside * np.log(inside) + (1 - inside) * np.log1p(-inside))
    return np.where((rate > 0) & (rate < 1), exact, 0.0)


def sigmoid(logit: Floats) -> Floats:
    """The probability of a logit, without overflow at either end.

    >>> sigmoid(np.array([-800.0, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(logit))
    return np.asarray(np.where(logit >= 0, 1.0, small) / (1 + small))


def logit_loss(label: Floats, logit: Floats) -> Floats:
    """Log loss of each row straight from its logit, ``log(1 + exp(z)) - y z``, without clipping.

    >>> logit_loss(np.array([1.0]), np.array([-800.0])).tolist()
    [800.0]
    """
    return np.asarray(np.maximum(logit, 0) - label * logit + np.log1p(np.exp(-np.abs(logit))))


@dataclass(frozen=True)
class Sums:
    r"""Sums over the rows of one population.

    Args:
        weight: :math:`\sum w`.
        positive: :math:`\sum w y`, the observed events.
        expected: :math:`\sum w p`, the predicted events.
        loss: :math:`\sum w \ell`, the log loss in nats.
        squared_error: :math:`\sum w (p - y)^2`.

    >>> half = Sums.from_rows([0, 1], [0.5, 0.5])
    >>> (half + half).weight, (half + half).normalised_entropy
    (4.0, 1.0)
    """

    weight: float
    positive: float
    expected: float
    loss: float
    squared_error: float

    @classmethod
    def from_rows(cls, label: Any, prob: Any, weight: Any = None) -> Sums:
        """Sums of a batch of probabilities, labels and weights, each ``[n]``."""
        y, p, w = prob_rows(label, prob, weight)
        return cls(*(float(column @ w) for column in _columns(y, p, row_loss(y, p))))

    @classmethod
    def from_logits(cls, label: Any, logit: Any, weight: Any = None) -> Sums:
        """Sums of a batch of logits; the loss is exact however large a logit is."""
        y, z, w = scored_rows(label, finite("logit", logit), weight, name="logit")
        return cls(*(float(column @ w) for column in _columns(y, sigmoid(z), logit_loss(y, z))))

    @classmethod
    def from_table(cls, table: Any, *, label: str = "label", prob: str = "prob", weight: str | None = None) -> Sums:
        """The same sums of a table, computed by the engine that holds it.

        Args:
            table: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
            label: Column of labels in [0, 1].
            prob: Column of predicted probabilities.
            weight: Column of weights, or None.
        """
        return cast("Sums", offered("sums_of")(table, label=label, prob=prob, weight=weight))

    def merge(self, other: Sums) -> Sums:
        """The sums of both sets of rows; ``a + b`` is the same."""
        instance("other", other, Sums, advice="merge sums of the same kind")
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    __add__ = merge

    @property
    def background_rate(self) -> float:
        """Mean label, which normalised metrics are relative to."""
        return self.positive / self.weight

    @property
    def mean_prob(self) -> float:
        """Mean prediction."""
        return self.expected / self.weight

    @property
    def log_loss(self) -> float:
        """See :func:`isolayer.metrics.log_loss`."""
        return self.loss / self.weight

    @property
    def normalised_entropy(self) -> float:
        """See :func:`isolayer.metrics.normalised_entropy`."""
        both_classes(self.positive, self.weight, "normalised entropy")
        return self.log_loss / float(entropy(self.background_rate))

    @property
    def brier(self) -> float:
        """See :func:`isolayer.metrics.brier`."""
        return self.squared_error / self.weight

    @property
    def pcoc(self) -> float:
        """See :func:`isolayer.metrics.pcoc`."""
        if self.positive <= 0:
            raise InputError("label: expected an event for PCOC, got none; use more rows, or observed_over_expected")
        return self.expected / self.positive

    @property
    def observed_over_expected(self) -> float:
        """Observed events over predicted ones, the inverse of PCOC; infinite when nothing was predicted."""
        return self.positive / self.expected if self.expected > 0 else float("inf")


@dataclass(frozen=True)
class SegmentSums:
    """``Sums`` of many segments at once, each field ``[segments]``, with the segments sorted in ``key``.

    >>> one = SegmentSums.from_rows([0, 1], [0.5, 0.5], ["web", "ios"])
    >>> two = SegmentSums.from_rows([1], [0.5], ["tv"])
    >>> (one + two).key.tolist(), (one + two).positive.tolist()
    (['ios', 'tv', 'web'], [1.0, 1.0, 0.0])
    """

    key: NDArray[Any]
    weight: Floats
    positive: Floats
    expected: Floats
    loss: Floats
    squared_error: Floats

    @classmethod
    def from_rows(cls, label: Any, prob: Any, segment: Any, weight: Any = None) -> SegmentSums:
        """Sums of a batch by segment; ``segment`` is a column of integers, strings or dates, ``[n]``."""
        y, p, w = prob_rows(label, prob, weight)
        code, key = codes("segment", segment, len(p))
        sums = (summed(code, column * w, len(key)) for column in _columns(y, p, row_loss(y, p)))
        return cls(key, *sums)

    @classmethod
    def from_table(
        cls, table: Any, *, label: str = "label", prob: str = "prob", segment: str, weight: str | None = None
    ) -> SegmentSums:
        """The same sums of a table, by one of its columns, computed by the engine that holds it.

        Args:
            table: An Ibis table, a Parquet path or glob, a DuckDB relation or a frame.
            label: Column of labels in [0, 1].
            prob: Column of predicted probabilities.
            segment: Column of segments.
            weight: Column of weights, or None.
        """
        sums = offered("segment_sums_of")(table, label=label, prob=prob, segment=segment, weight=weight)
        return cast("SegmentSums", sums)

    def merge(self, other: SegmentSums) -> SegmentSums:
        """The sums of both sets of rows, over the segments of either; ``a + b`` is the same."""
        instance("other", other, SegmentSums, advice="merge sums of the same kind")
        if (self.key.dtype.kind == "U") != (other.key.dtype.kind == "U"):  # numpy would turn numbers into text
            raise InputError(
                f"other: expected segments of type {self.key.dtype}, got {other.key.dtype}; convert one of the columns"
            )
        both = np.concatenate([self.key, other.key])
        key, code = np.unique(both, return_inverse=True)
        names = [f.name for f in fields(self) if f.name != "key"]
        stacked = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in names)
        return SegmentSums(key, *(summed(code, column, len(key)) for column in stacked))

    __add__ = merge

    @property
    def total(self) -> Sums:
        """The sums of all segments together."""
        return Sums(*(float(getattr(self, f.name).sum()) for f in fields(self) if f.name != "key"))

    @property
    def background_rate(self) -> Floats:
        """Mean label of each segment; NaN where a segment has no weight."""
        return over(self.positive, self.weight)

    @property
    def mean_prob(self) -> Floats:
        """Mean prediction of each segment; NaN where a segment has no weight."""
        return over(self.expected, self.weight)

    @property
    def normalised_entropy(self) -> Floats:
        """Log loss of each segment over the entropy of its own rate; NaN where it has one class."""
        rate = entropy(self.background_rate)
        return over(over(self.loss, self.weight), np.where(rate > 0, rate, 0.0))


@dataclass(frozen=True)
class MeanSums:
    """Sum of a weighted quantity and of its weights: a mean that merges, for nDCG by query or GAUC by user.

    All rows of a query (or user) must be in one batch.

    >>> (MeanSums(total=1.0, weight=2.0) + MeanSums(total=2.0, weight=2.0)).mean
    0.75
    """

    total: float
    weight: float

    def merge(self, other: MeanSums) -> MeanSums:
        """The sums of both sets; ``a + b`` is the same."""
        instance("other", other, MeanSums, advice="merge sums of the same kind")
        return MeanSums(self.total + other.total, self.weight + other.weight)

    __add__ = merge

    @property
    def mean(self) -> float:
        """The weighted mean; an error if nothing was counted."""
        if self.weight <= 0:
            raise InputError("rows: expected a query or group that the metric is defined on, got none; use more rows")
        return self.total / self.weight


def over(numerator: Floats, denominator: Floats) -> Floats:
    """Elementwise ratio, NaN where the denominator is 0.

    >>> over(np.array([1.0, 1.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    ratio: Floats = np.divide(numerator, denominator, out=np.full(np.shape(numerator), np.nan), where=denominator > 0)
    return ratio


def _columns(label: Floats, prob: Floats, loss: Floats) -> tuple[Floats, ...]:
    # In the order of the fields of Sums.
    return np.ones_like(prob), label, prob, loss, (prob - label) ** 2
