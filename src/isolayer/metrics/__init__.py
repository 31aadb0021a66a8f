"""Metrics of labels and probabilities, each with its definition, and the sums behind them, which merge.

Pure functions of ``(label, prob, weight)`` over columns of length ``n``, in the order of scikit-learn's metrics; those
that take logits or scores instead say so in their names or parameters. Weights are frequencies: a row of weight 2
counts as two rows, in every metric. ``Sums``, ``SegmentSums``, ``BinSums`` and ``MeanSums`` add across batches,
processes and tables. No fitting belongs here, no plotting, and nothing beyond numpy.

>>> from isolayer import metrics
>>> metrics.auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
0.75
"""

from isolayer.metrics.bins import BinSums, BrierParts
from isolayer.metrics.calibration import ece, ece_at_k, pcoc, smooth_ece
from isolayer.metrics.loss import (
    brier,
    brier_decomposition,
    delta_ne_percent,
    log_loss,
    log_loss_of_logit,
    normalised_entropy,
    normalised_entropy_of_logit,
)
from isolayer.metrics.multicalibration import Multicalibration, multicalibration_error
from isolayer.metrics.ranking import (
    auc,
    delta_auc_percent,
    delta_auc_percent_by_task,
    gauc,
    gauc_sums,
    ndcg,
    ndcg_sums,
)
from isolayer.metrics.segments import (
    DailyScores,
    ObservedOverExpected,
    SegmentedNE,
    daily_scores,
    daily_scores_of,
    f_rce,
    f_rce_of,
    mf_rce,
    observed_over_expected,
    ratio_table,
    segmented_ne,
    segmented_ne_of,
)
from isolayer.metrics.sums import MeanSums, SegmentSums, Sums

__all__ = [
    "BinSums",
    "BrierParts",
    "DailyScores",
    "MeanSums",
    "Multicalibration",
    "ObservedOverExpected",
    "SegmentSums",
    "SegmentedNE",
    "Sums",
    "auc",
    "brier",
    "brier_decomposition",
    "daily_scores",
    "daily_scores_of",
    "delta_auc_percent",
    "delta_auc_percent_by_task",
    "delta_ne_percent",
    "ece",
    "ece_at_k",
    "f_rce",
    "f_rce_of",
    "gauc",
    "gauc_sums",
    "log_loss",
    "log_loss_of_logit",
    "mf_rce",
    "multicalibration_error",
    "ndcg",
    "ndcg_sums",
    "normalised_entropy",
    "normalised_entropy_of_logit",
    "observed_over_expected",
    "pcoc",
    "ratio_table",
    "segmented_ne",
    "segmented_ne_of",
    "smooth_ece",
]
