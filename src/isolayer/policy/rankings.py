r"""Ranked slates: the probability that a policy places an item at a position, and clicks under another policy.

Propensities come from the log itself, or from the utilities of a Plackett-Luce policy and learned bias curves by the
functions below. Axes are always ``[slates, items, positions]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.curves.curves import Curves
from isolayer.errors import InputError
from isolayer.fitting.columns import array_of, numbers, some, whole
from isolayer.metrics.rows import codes
from isolayer.policy.estimators import CHUNK, Column, Estimate, columns, importance_weight, require
from isolayer.settings import count, instance, number

_LOG_TIME_STEP = 0.3  # step of the quadrature over arrival times; its error is about exp(-pi^2 / step) = 5e-15
_EARLIEST, _LATEST = 1e-13, 35.0  # integration bounds: share of the first mean arrival, and multiple of the last
_MOST_SPREAD = 700.0  # largest spread of utilities in a slate; beyond it the smallest rate is zero in float64


def softmax_propensity(utility_logit: ArrayLike, *, temperature: float = 1.0) -> Column:
    """Probability of each action under a softmax policy, over the last axis.

    >>> softmax_propensity([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """
    u = _utility(utility_logit, temperature)
    e = np.exp(u - u.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def ranking_propensity(utility_logit: ArrayLike, ranking: ArrayLike, *, temperature: float = 1.0) -> Column:
    """Probability that Plackett-Luce, drawing by utility without replacement, produces each logged ranking.

    Args:
        utility_logit: Latent utility of every candidate, shape ``[slates, items]``.
        ranking: Indices of the items shown, top first, shape ``[slates, positions]``.
        temperature: Divides the utilities; as it approaches 0, the policy sorts by utility.

    >>> ranking_propensity([[0.0, 0.0, 0.0]], [[2, 0]]).round(4).tolist()
    [0.1667]
    """
    u = np.atleast_2d(_utility(utility_logit, temperature))
    shown = _checked_ranking(ranking, u)
    left, slates, log_prob = u.copy(), np.arange(len(u)), np.zeros(len(u))
    for item in shown.T:
        top = left.max(-1)
        log_prob += u[slates, item] - top - np.log(np.exp(left - top[:, None]).sum(-1))
        left[slates, item] = -np.inf
    return np.minimum(np.exp(log_prob), 1.0)


def placement_prob(utility_logit: ArrayLike, positions: int, *, temperature: float = 1.0) -> Column:
    r"""Probability of every item at every position under Plackett-Luce, by quadrature: no sampling noise.

    Plackett-Luce ranks independent exponential arrivals of rates :math:`e^u`, so item i is at position k when
    exactly k others came before it: :math:`\int e^{u_i - e^{u_i} t}\, P(k \text{ others before } t)\, dt`.

    Args:
        utility_logit: Latent utility of every candidate, shape ``[slates, items]``.
        positions: How many positions are shown.
        temperature: Divides the utilities; towards 0 the policy sorts.

    Returns:
        Shape ``[slates, items, positions]``; over items each position sums to 1.

    >>> placement_prob([[np.log(3), 0.0]], 2).round(4).tolist()
    [[[0.75, 0.25], [0.25, 0.75]]]
    """
    u = np.atleast_2d(_utility(utility_logit, temperature))
    positions = count("positions", positions, 1, u.shape[1], advice="show at most all items")
    spread = float(np.ptp(u, axis=-1).max())
    if spread > _MOST_SPREAD:
        raise InputError(
            f"utility_logit: expected utilities within {_MOST_SPREAD:g} of each other, got {spread:g}; "
            "raise the temperature"
        )
    rate = np.exp(u - u.max(-1, keepdims=True))
    ends = np.log(_EARLIEST / rate.shape[1]), np.log(_LATEST / rate.min())
    time = np.exp(np.arange(ends[0], ends[1] + _LOG_TIME_STEP, _LOG_TIME_STEP))  # [times]
    step = max(1, CHUNK // (len(time) * rate.shape[1] * positions))
    parts = [_placement(r, time, positions) for r in np.split(rate, range(step, len(rate), step))]
    placement = np.concatenate(parts)
    # A sum of non-negative numbers is at least each of them, so the quotient is never above 1, however it is rounded.
    return np.asarray(placement / placement.sum(1, keepdims=True))


def ranked_positions(score: ArrayLike, session: ArrayLike) -> NDArray[np.int64]:
    """Position of each row when its list is sorted by score, 0 for the highest; ties keep their order, ``[n]``.

    >>> ranked_positions([0.1, 0.9, 0.5, 0.2], ["a", "a", "b", "b"]).tolist()
    [1, 0, 0, 1]
    """
    value = some("score", numbers("score", score))
    list_, lists = codes("session", session, len(value))
    order = np.lexsort((-value, list_))
    size = np.bincount(list_, minlength=len(lists))
    position = np.empty(len(value), np.int64)
    position[order] = np.arange(len(value)) - (np.cumsum(size) - size)[list_[order]]
    return position


def exposure(placement: ArrayLike, examination: ArrayLike) -> Column:
    """Expected exposure of every item, ``sum_k P(item at k) examination_k``: the propensity of its clicks.

    Args:
        placement: Probability of every item at every position, shape ``[..., items, positions]``.
        examination: Examination of each position, shape ``[positions]``; or, where it depends on the item as under
            trust bias, ``[items, positions]`` or the shape of ``placement``. See `curve_examination`.

    Returns:
        Shape ``[..., items]``.

    >>> exposure([[[0.75, 0.25], [0.25, 0.75]]], [1.0, 0.5]).tolist()
    [[0.875, 0.625]]
    >>> exposure([[0.75, 0.25], [0.25, 0.75]], [[1.0, 0.5], [1.0, 0.1]]).tolist()
    [0.875, 0.325]
    """
    shares, seen = numbers("placement", placement, dims=None), numbers("examination", examination, dims=None)
    for name, values in (("placement", shares), ("examination", seen)):
        require(name, values, values >= 0, "numbers >= 0", "check the probabilities")
    shapes = [shares.shape[axis:] for axis in range(shares.ndim - 1, -1, -1)]  # by position, by item, by slate
    if seen.shape not in shapes:
        known = " or ".join(str(list(shape)) for shape in shapes)
        raise InputError(
            f"examination: expected shape {known}, got {list(seen.shape)}; give one number per position, or one for "
            "each item at each position"
        )
    return np.asarray((shares * seen).sum(-1))


def curve_examination(curves: Curves, relevance_logit: ArrayLike, context: Any, reference: Any) -> Column:
    """Examination of each row from position-bias curves: its observed probability divided by its reference probability.

    Under trust bias it depends on relevance, which no single number per position can express.

    Args:
        curves: Position-bias curves, one per position: relevance to observed probability.
        relevance_logit: Relevance of each row, shape ``[n]``.
        context: Context of each row (its position), as :meth:`Curves.predict_proba` takes it.
        reference: Context of full exposure for each row (the top position), likewise.

    Returns:
        Positive ratios, shape ``[n]``; 1 at the reference.
    """
    score = numbers("relevance_logit", relevance_logit)
    instance("curves", curves, Curves, advice="use DualHead.curves, or load them")
    return np.asarray(curves.predict_proba(score, context) / curves.predict_proba(score, reference))


def item_position(click: ArrayLike, target_placement: ArrayLike, logging_placement: ArrayLike) -> Estimate:
    """Clicks per slate, each shown item weighted by its ratio of placement probabilities.

    It is unbiased for any effect of position, and as noisy as these ratios.

    Args:
        click: Clicks, shape ``[slates, positions]``.
        target_placement: Probability of the item shown at its position under the target policy, same shape.
        logging_placement: The same under the logging policy.

    >>> item_position([[1, 0]], [[0.5, 0.5]], [[0.25, 0.5]]).value
    2.0
    """
    target, logging = _flat("target_placement", target_placement), _flat("logging_placement", logging_placement)
    return _slate(click, importance_weight(target, logging))


def position_based(click: ArrayLike, target_exposure: ArrayLike, logging_exposure: ArrayLike) -> Estimate:
    """Clicks per slate under the position-based model: each shown item weighted by its ratio of expected exposures.

    An item's clicks at one position represent its clicks at the others, so weights are much smaller than those of
    `item_position`. Under trust bias, use exposures from an examination that depends on the item.

    Args:
        click: Clicks, shape ``[slates, positions]``.
        target_exposure: `exposure` of the item shown, under the target policy, same shape.
        logging_exposure: The same under the logging policy.

    >>> position_based([[1, 0]], [[0.75, 0.25]], [[0.5, 0.5]]).value
    1.5
    """
    target, logging = _flat("target_exposure", target_exposure), _flat("logging_exposure", logging_exposure)
    columns(target_exposure=target, logging_exposure=logging)
    require("target_exposure", target, target >= 0, "numbers >= 0", "use exposure() of the target policy")
    require("logging_exposure", logging, logging > 0, "positive numbers", "drop items the logger could not show")
    return _slate(click, target / logging)


def _slate(click: ArrayLike, weight: Column) -> Estimate:
    c = np.atleast_2d(numbers("click", click, dims=None, booleans=True))
    require("click", c, c >= 0, "numbers >= 0", "give 0 and 1, or how often each was clicked")
    if c.size != weight.size:
        raise InputError(
            f"weights: expected one for each of the {c.size} clicks, got {weight.size}; give [slates, positions]"
        )
    return Estimate((c * weight.reshape(c.shape)).sum(1), np.ones(len(c)))


def _flat(name: str, values: ArrayLike) -> Column:
    """The numbers of all slates, one after the other."""
    return numbers(name, values, dims=None).reshape(-1)


def _placement(rate: Column, time: Column, positions: int) -> Column:
    come = -np.expm1(-rate[:, None, :] * time[:, None])  # [slates, times, items]: has arrived
    before = np.zeros((*come.shape, positions))  # [slates, times, items, k]: exactly k of the others have arrived
    before[..., 0] = 1.0
    for other in range(rate.shape[1]):
        p = come[:, :, other, None, None]
        after = before * (1 - p)
        after[..., 1:] += before[..., :-1] * p
        after[:, :, other] = before[:, :, other]
        before = after
    density = rate[:, None, :] * np.exp(-rate[:, None, :] * time[:, None]) * (time * _LOG_TIME_STEP)[:, None]
    return np.asarray(np.einsum("sti,stik->sik", density, before))


def _checked_ranking(ranking: ArrayLike, utility: Column) -> NDArray[np.int64]:
    slates, items = utility.shape
    shown = whole("ranking", np.atleast_2d(array_of("ranking", ranking)), items, dims=2)
    if len(shown) != slates:
        raise InputError(f"ranking: expected one for each of the {slates} slates, got {len(shown)}; align them")
    if (np.diff(np.sort(shown)) == 0).any():
        raise InputError("ranking: expected different items, got one twice in a slate; an item is shown once")
    return shown


def _utility(utility_logit: ArrayLike, temperature: float) -> Column:
    temperature = number("temperature", temperature, 0, advice="towards 0 the policy sorts")
    return some("utility_logit", numbers("utility_logit", utility_logit, dims=None)) / temperature
