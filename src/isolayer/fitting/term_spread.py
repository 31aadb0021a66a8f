r"""The error of the values of a term, which bands show.

The posterior covariance of a term is :math:`V = (H + P)^{-1}`, with the information H of its rows and the penalty P.
It is the sum of the noise of the labels, :math:`V H V`, and of the bias by the penalty, which is :math:`V P V` if the
truth is as rough as the penalty expects. Often the truth is smoother: a linear effect under a penalty of differences,
or a field without effect. The energy of the values, :math:`\beta' P \beta`, shows how rough the truth is: on average it
is :math:`\mathrm{tr}(P V H V)` if there is only noise, and :math:`\mathrm{tr}(H V)` if the penalty is right. Its
position between the two is a share :math:`\rho`, and the covariance of the error is :math:`V H V + \rho\, V P V`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DOUBT = 1.0  # prior degrees of freedom in favour of the penalty
_ROUGHEST = 2.0
_TILTED = 1 / 12  # information of a tilt relative to an offset: the mean square of positions in [-1/2, 1/2]


def spread_of(
    values: Floats, covariance: Floats, strengths: Floats, information: Floats, linked: NDArray[np.bool_] | None
) -> Floats:
    """Covariance of the error of each level's values.

    Args:
        values: Offsets, and tilts if there are any, shape ``[levels, columns]``.
        covariance: Their posterior covariance, shape ``[levels, columns, columns]``.
        strengths: Strength of each column, then of its differences if levels are linked; empty if unknown.
        information: Information about the offset of each level, shape ``[levels]``: weight times p (1 - p).
        linked: Which neighbouring levels are smoothed together, ``[levels - 1]``; None if levels have no order.

    >>> flat, posterior = np.zeros((50, 1)), np.full((50, 1, 1), 0.5)  # one row's worth of information, and of penalty
    >>> spread_of(flat, posterior, np.ones(1), np.ones(50), None)[0].round(2).tolist()
    [[0.27]]
    """
    columns = values.shape[1]
    if not len(strengths) or not len(values):
        return covariance
    if linked is None or len(strengths) == columns:
        return _unlinked(values, covariance, strengths[:columns])
    difference = np.diff(np.eye(len(values)), axis=0)[linked]
    roughness, parts = difference.T @ difference, list[Floats]()
    for j in range(columns):
        penalty = strengths[j] * np.eye(len(values)) + strengths[columns + j] * roughness
        parts.append(_factor(values[:, j], penalty, information * (_TILTED if j else 1.0)))
    factor = np.sqrt(np.stack(parts, axis=1))
    return np.asarray(covariance * factor[:, :, None] * factor[:, None, :])


def _unlinked(values: Floats, covariance: Floats, penalty: Floats) -> Floats:
    """Levels without order: each has its own small system, and all share the roughness of each column."""
    spent = np.einsum("ljj,j->j", covariance, penalty)  # tr(P V), by column
    taken = np.einsum("lij,j,ljk->lik", covariance, penalty, covariance)
    noise = spent - np.einsum("ljj,j->j", taken, penalty)
    energy = (values**2).sum(0) * penalty
    rho = [_roughness(*one) for one in zip(energy, noise, len(values) - spent, strict=True)]
    return np.asarray(covariance - np.einsum("lij,j,ljk->lik", covariance, penalty * (1 - np.array(rho)), covariance))


def _factor(values: Floats, penalty: Floats, information: Floats) -> Floats:
    """Ratio of the error variance of each level of an ordered field to its posterior variance."""
    posterior = np.linalg.inv(penalty + np.diag(information))
    own = np.diag(posterior)
    taken = posterior @ penalty @ posterior
    noise = float(np.sum(penalty * (posterior - taken)))
    rho = _roughness(float(values @ penalty @ values), noise, float(information @ own))
    return np.asarray(1 - (1 - rho) * np.diag(taken) / own)


def _roughness(energy: float, noise: float, expected: float) -> float:
    """Roughness of the truth relative to what the penalty expects, from the energy of the values."""
    share = (max(energy - noise, 0.0) + _DOUBT) / (max(expected - noise, 0.0) + _DOUBT)
    return min(share, _ROUGHEST)
