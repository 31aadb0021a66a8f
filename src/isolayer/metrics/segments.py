"""Calibration by segment: observed over expected with intervals, F-RCE and MF-RCE, NE and scores by day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import InputError
from isolayer.metrics.clusters import count_of, design_effect
from isolayer.metrics.rows import Floats, codes, labels, probs, weights
from isolayer.metrics.sums import SegmentSums, over
from isolayer.settings import confidence, instance, mapping, number

FIELD_EPSILON = 0.01  # F-RCE adds this to every label, so that a segment without events has a denominator


class ObservedOverExpected(NamedTuple):
    """One row per context, columns ``[contexts]``; ``context`` is a column, or a dict of columns when crossed."""

    context: Any
    weight: Floats
    observed: Floats
    expected: Floats
    ratio: Floats
    lower: Floats
    upper: Floats


def observed_over_expected(
    label: Any, prob: Any, context: Any, weight: Any = None, *, level: float = 0.95, cluster: Any = None
) -> ObservedOverExpected:
    r"""O/E by context: :math:`\sum w y / \sum w p` (the paper's appendix A). Above 1 under-predicts.

    The interval is Wilson's interval for the observed rate over :math:`n = \sum w` trials, divided by the mean
    prediction, which is taken as known. It is finite even without any events. If rows are clustered, n is their
    effective number.

    Args:
        label: What happened, ``[n]``: 0 or 1, or a fraction between them.
        prob: Predicted probabilities, ``[n]``.
        context: A column ``[n]``, or a mapping of columns whose combinations are the contexts.
        weight: Frequency weights, ``[n]``.
        level: Confidence level of the interval.
        cluster: What rows that vary together share, such as a user or a day, ``[n]``; by default rows are independent.

    >>> table = observed_over_expected([1, 1, 1, 0], [0.5] * 4, [0, 0, 1, 1])
    >>> table.context.tolist(), table.ratio.tolist()
    ([0, 1], [2.0, 1.0])
    """
    if isinstance(context, Mapping):
        crossed, columns = cross(context, len(probs(prob)))
        table = observed_over_expected(label, prob, crossed, weight, level=level, cluster=cluster)
        return table._replace(context=columns)
    sums = SegmentSums.from_rows(label, prob, context, weight)
    if cluster is None:
        return ratio_table(sums, level=level)
    effect = widened(label, prob, context, weight, cluster)
    columns = {name: getattr(sums, name) / effect for name in ("weight", "positive", "expected")}
    table = ratio_table(replace(sums, **columns), level=level)
    return table._replace(weight=sums.weight, observed=sums.positive, expected=sums.expected)


def widened(label: Any, prob: Any, context: Any, weight: Any, cluster: Any) -> Floats:
    """Factor, at least 1, by which clusters increase the variance of the events of each context, ``[contexts]``.

    >>> day = [0, 0, 1, 1]
    >>> widened([1, 1, 0, 0], [0.5] * 4, ["tv"] * 4, None, day).tolist()  # all of a day, or none
    [4.0]
    """
    p = probs(prob)
    y, w = labels(label, len(p)), weights(weight, len(p))
    group, keys = codes("segment", context, len(p))
    own, clusters = codes("cluster", cluster, len(p))
    count_of(clusters)
    information = w * p * (1 - p)
    return design_effect(w * (y - p), information, information, group, len(keys), own)


def ratio_table(sums: SegmentSums, *, level: float = 0.95) -> ObservedOverExpected:
    """:func:`observed_over_expected` from merged sums.

    >>> sums = SegmentSums.from_rows([1, 1], [0.5, 0.5], ["web", "web"])
    >>> ratio_table(sums + sums).ratio.tolist()
    [2.0]
    """
    _segment_sums(sums)
    z = NormalDist().inv_cdf(0.5 + confidence(level) / 2)
    n, rate = sums.weight, sums.background_rate
    centre = (rate + over(np.full_like(n, z * z / 2), n)) / (1 + over(np.full_like(n, z * z), n))
    spread = np.sqrt(rate * (1 - rate) * n + z * z / 4) * z / (n + z * z)
    mean = sums.mean_prob
    ratio, lower, upper = (over(value, mean) for value in (rate, np.maximum(centre - spread, 0), centre + spread))
    return ObservedOverExpected(sums.key, n, sums.positive, sums.expected, ratio, lower, np.maximum(upper, ratio))


def cross(columns: Mapping[str, Any], rows: int) -> tuple[NDArray[np.intp], dict[str, NDArray[Any]]]:
    """The combination of values in each row as one code, and the columns of the combinations that occur.

    >>> code, table = cross({"position": [0, 1, 0], "device": ["web", "web", "ios"]}, 3)
    >>> code.tolist(), table["device"].tolist()
    ([1, 2, 0], ['ios', 'web', 'web'])
    """
    if not columns:
        raise InputError("context: expected at least one column, got none; name a column")
    code, known = np.zeros(rows, dtype=np.intp), {}
    for name, values in columns.items():
        own, keys = codes(name, values, rows)
        code, _ = codes(name, code * len(keys) + own, rows)
        known[name] = np.asarray(values)
    _, first = np.unique(code, return_index=True)
    return code, {name: values[first] for name, values in known.items()}


def f_rce(label: Any, prob: Any, field: Any, weight: Any = None, *, epsilon: float = FIELD_EPSILON) -> float:
    r"""F-RCE, field-level relative calibration error (Pan et al. 2020), averaged over rows.

    :math:`\frac{1}{N} \sum_z N_z \frac{|\sum_{i \in z} (y_i - p_i)|}{\sum_{i \in z} (y_i + \epsilon)}`,
    with z the values of the field and :math:`\epsilon = 0.01` as in the paper, so the error of a segment
    without events is its predicted rate over .01. With ``epsilon=0`` such segments and their rows are left out, which
    is what the benchmark of ads calibration (UMC's tables on Avazu and AliCCP) calls F-RCE.

    >>> round(f_rce([1, 1, 1, 0], [0.5] * 4, ["a", "a", "b", "b"]), 4)
    0.2475
    >>> f_rce([1, 1, 0, 0], [0.5] * 4, ["a", "a", "b", "b"], epsilon=0)
    0.5
    """
    return f_rce_of(SegmentSums.from_rows(label, prob, field, weight), epsilon=epsilon)


def f_rce_of(sums: SegmentSums, *, epsilon: float = FIELD_EPSILON) -> float:
    """:func:`f_rce` from merged sums.

    >>> f_rce_of(SegmentSums.from_rows([0], [0.5], ["a"]))
    50.0
    """
    _segment_sums(sums)
    epsilon = number("epsilon", epsilon, 0, ends="[)", advice="the papers use 0.01 or 0")
    relative = over(np.abs(sums.positive - sums.expected), sums.positive + epsilon * sums.weight)
    known = np.isfinite(relative)
    if not known.any():
        raise InputError("label: expected a segment with an event, got none; use more rows or an epsilon above 0")
    return float(relative[known] @ sums.weight[known] / sums.weight[known].sum())


def mf_rce(
    label: Any, prob: Any, fields: Mapping[str, Any], weight: Any = None, *, epsilon: float = FIELD_EPSILON
) -> float:
    """MF-RCE: the plain mean of F-RCE over several fields, with the same ``epsilon``.

    >>> round(mf_rce([1, 1, 1, 0], [0.5] * 4, {"one": [0, 0, 0, 0], "two": [0, 0, 1, 1]}), 4)
    0.2882
    """
    if not mapping("fields", fields, advice="give columns by name"):
        raise InputError("fields: expected at least one column, got none; name a column")
    return float(np.mean([f_rce(label, prob, field, weight, epsilon=epsilon) for field in fields.values()]))


@dataclass(frozen=True)
class SegmentedNE:
    """Normalised entropy by segment, columns ``[segments]``; NaN where a segment has one class."""

    segment: NDArray[Any]
    weight: Floats
    normalised_entropy: Floats

    @property
    def mean(self) -> float:
        """Mean over the segments that have both classes, by weight."""
        known = np.isfinite(self.normalised_entropy)
        if not known.any():
            raise InputError("label: expected a segment with both classes, got none; use more rows")
        return float(np.average(self.normalised_entropy[known], weights=self.weight[known]))


def segmented_ne(label: Any, prob: Any, segment: Any, weight: Any = None) -> SegmentedNE:
    """Segmented NE: log loss within each segment over the entropy of that segment's own rate.

    Knowing only the rate of each segment does not improve this metric, while it improves plain NE.

    >>> segmented_ne([0, 1], [0.5, 0.5], ["a", "a"]).mean
    1.0
    """
    return segmented_ne_of(SegmentSums.from_rows(label, prob, segment, weight))


def segmented_ne_of(sums: SegmentSums) -> SegmentedNE:
    """:func:`segmented_ne` from merged sums."""
    _segment_sums(sums)
    return SegmentedNE(sums.key, sums.weight, sums.normalised_entropy)


@dataclass(frozen=True)
class DailyScores:
    """Mean prediction and mean label of each day, columns ``[days]``, and how stable they are."""

    day: NDArray[Any]
    weight: Floats
    mean_prob: Floats
    mean_label: Floats

    @property
    def variance(self) -> float:
        """Variance of the daily mean prediction, days counted equally, with ``days - 1`` in the denominator."""
        if len(self.day) < 2:
            raise InputError(f"day: expected at least 2 days, got {len(self.day)}; a variance needs two")
        return float(np.var(self.mean_prob, ddof=1))

    @property
    def distance(self) -> float:
        """Mean over days of ``|mean prediction - mean label|``."""
        return float(np.mean(np.abs(self.mean_prob - self.mean_label)))


def daily_scores(label: Any, prob: Any, day: Any, weight: Any = None) -> DailyScores:
    """Daily mean prediction beside the daily mean label (the paper's stability figure).

    >>> daily = daily_scores([0, 1, 1], [0.2, 0.4, 0.6], [1, 1, 2])
    >>> daily.mean_prob.round(2).tolist(), round(daily.variance, 3), round(daily.distance, 2)
    ([0.3, 0.6], 0.045, 0.3)
    """
    return daily_scores_of(SegmentSums.from_rows(label, prob, day, weight))


def daily_scores_of(sums: SegmentSums) -> DailyScores:
    """:func:`daily_scores` from merged sums, the segment being the day."""
    _segment_sums(sums)
    return DailyScores(sums.key, sums.weight, sums.mean_prob, sums.background_rate)


def _segment_sums(sums: SegmentSums) -> None:
    instance("sums", sums, SegmentSums, advice="use SegmentSums.from_rows or from_table")
