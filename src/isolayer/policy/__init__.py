"""Off-policy evaluation: the reward that another policy would have earned, estimated from the log of the current one.

    estimators   values with intervals, from columns of logged rows   Estimate, ipw, snipw, dm, dr, switch_dr, dros
    rankings     propensities and values of ranked slates             placement_prob, exposure, position_based, ...

Only numpy is needed. Policies and reward models belong to the caller.
"""

from isolayer.policy.estimators import (
    Estimate,
    dm,
    dr,
    dros,
    effective_sample_size,
    estimates,
    expected_reward,
    importance_weight,
    ipw,
    snipw,
    switch_dr,
)
from isolayer.policy.rankings import (
    curve_examination,
    exposure,
    item_position,
    placement_prob,
    position_based,
    ranked_positions,
    ranking_propensity,
    softmax_propensity,
)

__all__ = [
    "Estimate",
    "curve_examination",
    "dm",
    "dr",
    "dros",
    "effective_sample_size",
    "estimates",
    "expected_reward",
    "exposure",
    "importance_weight",
    "ipw",
    "item_position",
    "placement_prob",
    "position_based",
    "ranked_positions",
    "ranking_propensity",
    "snipw",
    "softmax_propensity",
    "switch_dr",
]
