"""Proper losses: log loss, normalised entropy, and the Brier score with its decomposition."""

from __future__ import annotations

from typing import Any

from isolayer.metrics.bins import Binning, BinSums, BrierParts
from isolayer.metrics.sums import Sums


def log_loss(label: Any, prob: Any, weight: Any = None) -> float:
    r"""Mean cross-entropy in nats, :math:`-\sum w [y \log p + (1-y) \log(1-p)] / \sum w`.

    ``prob`` is clipped to ``[2.2e-16, 1 - 2.2e-16]`` for the logarithm only.

    >>> round(log_loss([0, 1], [0.5, 0.5]), 4)
    0.6931
    """
    return Sums.from_rows(label, prob, weight).log_loss


def log_loss_of_logit(label: Any, logit: Any, weight: Any = None) -> float:
    r"""Log loss from logits, :math:`\sum w [\log(1 + e^z) - y z] / \sum w`: nothing is clipped.

    >>> log_loss_of_logit([1], [-800.0])
    800.0
    """
    return Sums.from_logits(label, logit, weight).log_loss


def normalised_entropy(label: Any, prob: Any, weight: Any = None) -> float:
    r"""NE: log loss over that of always predicting the background rate :math:`\bar y` (He et al. 2014).

    :math:`NE = \mathrm{logloss} / [-\bar y \log \bar y - (1 - \bar y) \log (1 - \bar y)]`, with :math:`\bar y` the mean
    label of the same rows. Below 1 is better than the constant. Needs both classes.

    >>> normalised_entropy([0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25])
    1.0
    """
    return Sums.from_rows(label, prob, weight).normalised_entropy


def normalised_entropy_of_logit(label: Any, logit: Any, weight: Any = None) -> float:
    """Normalised entropy from logits, with the unclipped loss.

    >>> normalised_entropy_of_logit([0, 1], [0.0, 0.0])
    1.0
    """
    return Sums.from_logits(label, logit, weight).normalised_entropy


def delta_ne_percent(label: Any, prob: Any, baseline_prob: Any, weight: Any = None) -> float:
    """Change of NE against a baseline in percent, ``100 (NE / NE_baseline - 1)``: below 0 is better.

    >>> round(delta_ne_percent([0, 1], [0.1, 0.9], [0.5, 0.5]), 1)
    -84.8
    """
    base = normalised_entropy(label, baseline_prob, weight)
    return 100 * (normalised_entropy(label, prob, weight) / base - 1)


def brier(label: Any, prob: Any, weight: Any = None) -> float:
    r"""Brier score (1950), :math:`\sum w (p - y)^2 / \sum w`.

    >>> brier([0, 1], [0.5, 1.0])
    0.125
    """
    return Sums.from_rows(label, prob, weight).brier


def brier_decomposition(
    label: Any, prob: Any, weight: Any = None, *, bins: int = 15, binning: Binning = "mass"
) -> BrierParts:
    r"""Brier score as reliability - resolution + uncertainty (Murphy 1973), and the part within bins (Stephenson 2008).

    With :math:`n_b, \bar p_b, \bar y_b` of bin b and :math:`N = \sum n_b`: reliability
    :math:`\sum n_b (\bar p_b - \bar y_b)^2 / N`, resolution :math:`\sum n_b (\bar y_b - \bar y)^2 / N`, uncertainty
    :math:`\bar y (1 - \bar y)`, and ``within_bin``
    :math:`\sum w [(p - \bar p_b)^2 - 2 (y - \bar y_b)(p - \bar p_b)] / N` (less
    :math:`\sum w y (1 - y) / N` when labels are soft): the four add up to the Brier score exactly, for any bins.

    >>> parts = brier_decomposition([0, 0, 0, 1], [0.2, 0.2, 0.8, 0.8], bins=2)
    >>> [round(part, 4) for part in parts]
    [0.065, 0.0625, 0.1875, 0.0]
    """
    return BinSums.of_distinct(label, prob, weight).brier_parts(bins=bins, binning=binning)
