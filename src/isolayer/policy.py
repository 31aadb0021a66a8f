r"""Off-policy evaluation: what another policy would have earned, from the log of this one. numpy only.

Estimators take columns of logged rows and return an :class:`Estimate`; propensities come from the log, or from
relevance and position-bias curves by the functions at the end. Policies and reward models belong to the caller.

    reward [n]       what was observed
    weight [n]       target over logging probability of the logged action (importance_weight)
    logged_hat [n]   a model's reward for the logged action
    target_hat [n]   the model's reward under the target policy, sum_a target(a) model(a) (expected_reward)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.curves.curves import Curves
from isolayer.errors import InputError

Column = NDArray[np.float64]
_LOG_TIME_STEP = 0.3  # of the quadrature over arrival times; its error is about exp(-pi^2 / step) = 5e-15
_EARLIEST, _LATEST = 1e-13, 35.0  # share of the first mean arrival, and multiple of the last: what is integrated over
_CHUNK = 2**22  # numbers a temporary array may hold


@dataclass(frozen=True)
class Estimate:
    r"""A policy value: the ratio of two means over logged rows, :math:`\bar g / \bar m`.

    Args:
        gain: What each row adds, shape ``[n]``.
        mass: What each row counts for, shape ``[n]``: ones, or the weights of a self-normalised estimator.

    >>> estimate = ipw([1, 0, 1, 0], [2.0, 0.5, 0.5, 1.0])
    >>> estimate.value
    0.625
    >>> [round(bound, 3) for bound in estimate.normal()]
    [-0.303, 1.553]
    """

    gain: Column
    mass: Column

    @property
    def value(self) -> float:
        """The estimate itself."""
        return float(self.gain.mean() / self.mass.mean())

    @property
    def standard_error(self) -> float:
        """By the delta method: the deviation of ``gain - value * mass``, over ``mean(mass) * sqrt(n)``."""
        rest = self.gain - self.value * self.mass
        return float(rest.std(ddof=1) / abs(self.mass.mean()) / math.sqrt(len(rest)))

    def normal(self, level: float = 0.95) -> tuple[float, float]:
        """Interval from the normal approximation."""
        reach = NormalDist().inv_cdf((1 + level) / 2) * self.standard_error
        return self.value - reach, self.value + reach

    def bootstrap(self, level: float = 0.95, *, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """Percentile interval over rows drawn with replacement."""
        rng, rows = np.random.default_rng(seed), len(self.gain)
        values = []
        for start in range(0, resamples, step := max(1, _CHUNK // rows)):
            drawn = rng.integers(0, rows, (min(step, resamples - start), rows))
            values.append(self.gain[drawn].sum(1) / self.mass[drawn].sum(1))
        lower, upper = np.quantile(np.concatenate(values), [(1 - level) / 2, (1 + level) / 2])
        return float(lower), float(upper)


def importance_weight(target_prob: ArrayLike, logging_prob: ArrayLike, *, clip: float = math.inf) -> Column:
    """How much more often the target policy does what was logged: ``min(target / logging, clip)``, shape ``[n]``.

    >>> importance_weight([0.5, 0.1], [0.25, 0.2]).tolist()
    [2.0, 0.5]
    """
    target, logging = _columns(target_prob=target_prob, logging_prob=logging_prob)
    advice = "pass probabilities, not logits"
    _within("target_prob", target, (target >= 0) & (target <= 1), "probabilities in [0, 1]", advice)
    _within("logging_prob", logging, logging > 0, "probabilities in (0, 1]", "drop rows the logger could not make")
    _within("logging_prob", logging, logging <= 1, "probabilities in (0, 1]", advice)
    return np.minimum(target / logging, clip)


def effective_sample_size(weight: ArrayLike) -> float:
    r"""How many unweighted rows carry as much, :math:`(\sum w)^2 / \sum w^2`.

    >>> effective_sample_size([1, 1, 1, 1]), effective_sample_size([4, 0, 0, 0])
    (4.0, 1.0)
    """
    (w,) = _columns(weight=weight)
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0


def expected_reward(target_prob: ArrayLike, reward_hat: ArrayLike) -> Column:
    """A model's reward under a policy, ``sum_a target(a) model(a)``: ``[n, actions]`` twice to ``[n]``.

    >>> expected_reward([[0.5, 0.5]], [[0.2, 0.4]]).round(3).tolist()
    [0.3]
    """
    return np.asarray(np.einsum("na,na->n", np.asarray(target_prob, float), np.asarray(reward_hat, float)))


def ipw(reward: ArrayLike, weight: ArrayLike) -> Estimate:
    """Inverse propensity weighting, ``mean(w r)``: unbiased, and as noisy as the weights.

    >>> ipw([1, 0], [0.5, 2.0]).value
    0.25
    """
    r, w = _columns(reward=reward, weight=weight)
    return Estimate(w * r, np.ones_like(r))


def snipw(reward: ArrayLike, weight: ArrayLike) -> Estimate:
    """Self-normalised weighting, ``sum(w r) / sum(w)``: a little biased, never beyond the rewards seen.

    >>> snipw([1, 0], [0.5, 2.0]).value
    0.2
    """
    r, w = _columns(reward=reward, weight=weight)
    if not w.any():
        raise InputError(
            "weight: expected a positive one, got zeros only; the target policy never does what was logged"
        )
    return Estimate(w * r, w)


def dm(target_hat: ArrayLike) -> Estimate:
    """Direct method, ``mean(target_hat)``: as good as the model, with no variance from the policies.

    >>> dm([0.25, 0.75]).value
    0.5
    """
    (hat,) = _columns(target_hat=target_hat)
    return Estimate(hat, np.ones_like(hat))


def dr(reward: ArrayLike, weight: ArrayLike, logged_hat: ArrayLike, target_hat: ArrayLike) -> Estimate:
    """Doubly robust, ``mean(target_hat + w (r - logged_hat))``: unbiased if either the model or the weights are right.

    >>> dr([1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5]).value
    0.375
    """
    r, w, q, hat = _columns(reward=reward, weight=weight, logged_hat=logged_hat, target_hat=target_hat)
    return Estimate(hat + w * (r - q), np.ones_like(r))


def switch_dr(
    reward: ArrayLike,
    weight: ArrayLike,
    logged_hat: ArrayLike,
    target_hat: ArrayLike,
    *,
    threshold: float | Literal["auto"] = "auto",
) -> Estimate:
    """Doubly robust where the weight is at most ``threshold``, the model alone elsewhere.

    ``"auto"`` takes, among the quantiles of the weights, the threshold of the smallest estimated mean squared error.

    >>> switch_dr([1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5], threshold=1).value
    0.625
    """
    r, w, q, hat = _columns(reward=reward, weight=weight, logged_hat=logged_hat, target_hat=target_hat)
    if threshold == "auto":
        choices = np.unique(np.quantile(w, np.linspace(0, 1, 21)))
        return _least_error([np.where(w <= choice, w, 0.0) for choice in choices], w, r - q, hat)
    return Estimate(hat + np.where(w <= threshold, w, 0.0) * (r - q), np.ones_like(r))


def dros(
    reward: ArrayLike,
    weight: ArrayLike,
    logged_hat: ArrayLike,
    target_hat: ArrayLike,
    *,
    shrinkage: float | Literal["auto"] = "auto",
) -> Estimate:
    r"""Doubly robust with optimistic shrinkage: weights :math:`\lambda w / (w^2 + \lambda)` in place of ``w``.

    0 is the direct method and infinity doubly robust; ``"auto"`` takes the smallest estimated mean squared error.

    >>> args = [1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5]
    >>> dros(*args, shrinkage=0).value, round(dros(*args, shrinkage=1e9).value, 6)
    (0.5, 0.375)
    """
    r, w, q, hat = _columns(reward=reward, weight=weight, logged_hat=logged_hat, target_hat=target_hat)
    if shrinkage == "auto":
        largest = max(float(w.max(initial=0.0)) ** 2, 1e-12)
        return _least_error([_shrunk(w, choice) for choice in largest * np.geomspace(1e-4, 1e4, 33)], w, r - q, hat)
    return Estimate(hat + _shrunk(w, shrinkage) * (r - q), np.ones_like(r))


def estimates(
    reward: ArrayLike, weight: ArrayLike, logged_hat: ArrayLike, target_hat: ArrayLike
) -> dict[str, Estimate]:
    """Every estimator on the same log, by name.

    >>> sorted(estimates([1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5]))
    ['dm', 'dr', 'dros', 'ipw', 'snipw', 'switch_dr']
    """
    columns = (reward, weight, logged_hat, target_hat)
    alone = {"dm": dm(target_hat), "ipw": ipw(reward, weight), "snipw": snipw(reward, weight)}
    return alone | {"dr": dr(*columns), "switch_dr": switch_dr(*columns), "dros": dros(*columns)}


def softmax_propensity(utility_logit: ArrayLike, *, temperature: float = 1.0) -> Column:
    """Probability of each action under a softmax policy, over the last axis.

    >>> softmax_propensity([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """
    u = _utility(utility_logit, temperature)
    e = np.exp(u - u.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def ranking_propensity(utility_logit: ArrayLike, ranking: ArrayLike, *, temperature: float = 1.0) -> Column:
    """Probability that Plackett-Luce, drawing by utility without replacement, puts out each logged ranking.

    Args:
        utility_logit: Latent utility of every candidate, shape ``[slates, items]``.
        ranking: Indices of the items shown, top first, shape ``[slates, positions]``.
        temperature: Divides the utilities; towards 0 the policy sorts.

    >>> ranking_propensity([[0.0, 0.0, 0.0]], [[2, 0]]).round(4).tolist()
    [0.1667]
    """
    u, shown = np.atleast_2d(_utility(utility_logit, temperature)), np.atleast_2d(np.asarray(ranking, np.int64))
    left = np.exp(u - u.max(-1, keepdims=True))
    slates, prob = np.arange(len(u)), np.ones(len(u))
    for item in shown.T:
        prob *= left[slates, item] / left.sum(-1)
        left[slates, item] = 0.0
    return prob


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

    >>> placement_prob([[math.log(3), 0.0]], 2).round(4).tolist()
    [[[0.75, 0.25], [0.25, 0.75]]]
    """
    u = np.atleast_2d(_utility(utility_logit, temperature))
    if not 1 <= positions <= u.shape[1]:
        raise InputError(f"positions: expected 1 to {u.shape[1]} (the items), got {positions}; show fewer")
    rate = np.exp(u - u.max(-1, keepdims=True))
    ends = np.log(_EARLIEST / rate.shape[1]), np.log(_LATEST / rate.min())
    time = np.exp(np.arange(ends[0], ends[1] + _LOG_TIME_STEP, _LOG_TIME_STEP))  # [times]
    step = max(1, _CHUNK // (len(time) * rate.shape[1] * positions))
    return np.concatenate([_placement(r, time, positions) for r in np.split(rate, range(step, len(rate), step))])


def exposure(placement: ArrayLike, examination: ArrayLike) -> Column:
    """Expected exposure of every item, ``sum_k P(item at k) examination_k``: the propensity of its clicks.

    >>> exposure([[[0.75, 0.25], [0.25, 0.75]]], [1.0, 0.5]).tolist()
    [[0.875, 0.625]]
    """
    return np.asarray(np.asarray(placement, float) @ np.asarray(examination, float))


def curve_examination(curves: Curves, relevance_logit: ArrayLike, context: Any, reference: Any) -> Column:
    """Examination of each row read off position-bias curves: its observed over its reference probability.

    Under trust bias it depends on relevance, which no single number per position can express.

    Args:
        curves: Position-bias curves: relevance to observed probability, one a position.
        relevance_logit: Relevance of each row, shape ``[n]``.
        context: Context of each row (its position), as :meth:`Curves.predict_proba` takes it.
        reference: Context of full exposure for each row (the top position), likewise.

    Returns:
        Positive ratios, shape ``[n]``; 1 at the reference.
    """
    score = np.asarray(relevance_logit, float)
    return np.asarray(curves.predict_proba(score, context) / curves.predict_proba(score, reference))


def item_position(click: ArrayLike, target_placement: ArrayLike, logging_placement: ArrayLike) -> Estimate:
    """Clicks a slate, weighting each shown item by its placement probabilities: right whatever the position does.

    Args:
        click: Clicks, shape ``[slates, positions]``.
        target_placement: Probability of the item shown at its position under the target policy, same shape.
        logging_placement: The same under the logging policy.

    >>> item_position([[1, 0]], [[0.5, 0.5]], [[0.25, 0.5]]).value
    2.0
    """
    return _slate(click, importance_weight(np.ravel(target_placement), np.ravel(logging_placement)))


def position_based(click: ArrayLike, target_exposure: ArrayLike, logging_exposure: ArrayLike) -> Estimate:
    """Clicks a slate under the position-based model: each shown item weighted by its ratio of expected exposures.

    Clicks move between positions as examination says, so the weights are far smaller than ``item_position``'s.

    Args:
        click: Clicks, shape ``[slates, positions]``.
        target_exposure: ``exposure`` of the item shown, under the target policy, same shape.
        logging_exposure: The same under the logging policy.

    >>> position_based([[1, 0]], [[0.75, 0.25]], [[0.5, 0.5]]).value
    1.5
    """
    target, logging = _columns(target_exposure=np.ravel(target_exposure), logging_exposure=np.ravel(logging_exposure))
    _within("logging_exposure", logging, logging > 0, "positive numbers", "drop items the logger could not show")
    return _slate(click, target / logging)


def _slate(click: ArrayLike, weight: Column) -> Estimate:
    c = np.atleast_2d(np.asarray(click, float))
    if c.size != weight.size:
        raise InputError(
            f"weights: expected one for each of the {c.size} clicks, got {weight.size}; give [slates, positions]"
        )
    return Estimate((c * weight.reshape(c.shape)).sum(1), np.ones(len(c)))


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


def _shrunk(weight: Column, shrinkage: float) -> Column:
    return np.zeros_like(weight) if shrinkage == 0 else weight / (1 + weight**2 / shrinkage)


def _least_error(choices: list[Column], weight: Column, residual: Column, target_hat: Column) -> Estimate:
    rows = len(residual)

    def error(changed: Column) -> float:
        taken = (weight - changed) * residual  # its mean is the bias; its square overstates by the variance of the mean
        bias = max(0.0, float(taken.mean() ** 2 - taken.var() / rows))
        return bias + float((target_hat + changed * residual).var()) / rows

    return Estimate(target_hat + min(choices, key=error) * residual, np.ones_like(residual))


def _utility(utility_logit: ArrayLike, temperature: float) -> Column:
    if not temperature > 0:
        raise InputError(f"temperature: expected a positive number, got {temperature}; towards 0 the policy sorts")
    u = np.asarray(utility_logit, float)
    if not np.isfinite(u).all():
        raise InputError("utility_logit: expected finite numbers, got NaN or infinity; leave such items out")
    return u / temperature


def _within(name: str, column: Column, holds: NDArray[np.bool_], rule: str, advice: str) -> None:
    if not holds.all():
        raise InputError(f"{name}: expected {rule}, got {column[~holds][0]:g}; {advice}")


def _columns(**given: ArrayLike) -> list[Column]:
    columns = {name: np.asarray(value, float) for name, value in given.items()}
    first = next(iter(columns))
    for name, column in columns.items():
        if column.ndim != 1 or column.shape != columns[first].shape or not column.size:
            raise InputError(
                f"{name}: expected one number a row, as {first}, got shape {list(column.shape)} "
                f"against {list(columns[first].shape)}; give 1-d columns of equal length"
            )
        if not np.isfinite(column).all():
            raise InputError(f"{name}: expected finite numbers, got NaN or infinity; drop or repair those rows")
    if "weight" in columns:
        _within("weight", columns["weight"], columns["weight"] >= 0, "numbers >= 0", "check the propensities")
    return list(columns.values())
