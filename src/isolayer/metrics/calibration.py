"""Do predicted probabilities equal observed rates? ECE in several forms, smooth ECE, PCOC."""

from __future__ import annotations

from typing import Any

from isolayer.metrics.bins import Binning, BinSums, Norm
from isolayer.metrics.ranking import query_weight, ranks
from isolayer.metrics.rows import codes, prob_rows
from isolayer.metrics.sums import Sums
from isolayer.settings import count


def pcoc(label: Any, prob: Any, weight: Any = None) -> float:
    r"""PCOC, predicted over observed: :math:`\sum w p / \sum w y` (ads papers). Above 1 over-predicts. Needs an event.

    This is expected over observed, the inverse of ``observed_over_expected``.

    >>> pcoc([0, 0, 0, 1], [0.5, 0.5, 0.5, 0.5])
    2.0
    """
    return Sums.from_rows(label, prob, weight).pcoc


def ece(
    label: Any,
    prob: Any,
    weight: Any = None,
    *,
    bins: int = 15,
    binning: Binning = "mass",
    norm: Norm = "l1",
    debiased: bool = False,
) -> float:
    r"""Expected calibration error of a binary prediction, :math:`\sum_b \frac{n_b}{N} |\bar y_b - \bar p_b|`.

    ``binning="mass"`` gives bins of equal weight (Nguyen and O'Connor 2015), with equal probabilities in one bin;
    ``"width"`` bins ``[0, 1]`` evenly (Naeini et al. 2015; ads papers use 100 bins). ``norm="l2"`` is the root of the
    mean squared gap. Plain ECE is above 0 even for perfect probabilities; ``debiased`` subtracts what sampling alone
    adds (Kumar, Liang and Ma 2019): for ``l2`` :math:`\bar y_b (1 - \bar y_b) / (n_b - 1)` per bin, which makes the
    square unbiased; for ``l1`` the excess of a folded normal with that variance, which removes part of the bias. The
    result is never below 0.

    >>> round(ece([0, 0, 0, 1], [0.2, 0.2, 0.8, 0.8], bins=2), 4)
    0.25
    """
    return BinSums.of_distinct(label, prob, weight).ece(bins=bins, binning=binning, norm=norm, debiased=debiased)


def ece_at_k(
    label: Any,
    prob: Any,
    query: Any,
    weight: Any = None,
    *,
    k: int = 10,
    bins: int = 15,
    binning: Binning = "mass",
    debiased: bool = False,
) -> float:
    """ECE of the rows that would be shown: the ``k`` highest probabilities of each query.

    Selecting the largest predictions selects overestimates, so a calibrated model can fail here (the winner's curse).
    For the ``k`` highest of all rows, give every row the same query. Ties at rank ``k`` go to the earlier row.
    ``weight`` is a weight per query, the same on all its rows.

    >>> ece_at_k([1, 0, 0, 1], [0.75, 0.1, 0.75, 0.2], [0, 0, 1, 1], k=1)
    0.25
    """
    k = count("k", k, advice="10 is usual")
    y, p, w = prob_rows(label, prob, weight)
    code, key = codes("query", query, len(p))
    query_weight(code, len(key), w)
    order, rank = ranks(p, code)
    top = order[rank < k]
    return ece(y[top], p[top], w[top], bins=bins, binning=binning, debiased=debiased)


def smooth_ece(label: Any, prob: Any, weight: Any = None) -> float:
    r"""Smooth ECE (Blasiok and Nakkiran 2024): residuals smoothed by a reflected Gaussian kernel, no bins to choose.

    :math:`\mathrm{smECE}_\sigma = \int_0^1 |\sum_i w_i (y_i - p_i) K_\sigma(t, p_i)| dt / \sum w`, at the one width
    where :math:`\mathrm{smECE}_\sigma = \sigma`. Evaluated on 4096 cells of the probability axis.

    >>> round(smooth_ece([1] * 10, [0.5] * 10), 2)
    0.5
    """
    return BinSums.of_distinct(label, prob, weight).smooth_ece()
