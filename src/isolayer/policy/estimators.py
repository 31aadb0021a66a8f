r"""Policy values from columns of logged rows, each an `Estimate` with intervals.

reward [n]       what was observed
weight [n]       target over logging probability of the logged action (importance_weight)
logged_hat [n]   a model's reward for the logged action
target_hat [n]   the model's reward under the target policy, sum_a target(a) model(a) (expected_reward)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError
from isolayer.fitting.columns import numbers, some, weights
from isolayer.settings import confidence, count, number
from isolayer.settings import seed as checked_seed

Column = NDArray[np.float64]
_NOT_LOGITS = "pass probabilities, not logits"
CHUNK = 2**22  # most numbers of a temporary array


@dataclass(frozen=True)
class Estimate:
    r"""A policy value: the ratio of two means over logged rows, :math:`\bar g / \bar m`.

    Args:
        gain: Contribution of each row, shape ``[n]``.
        mass: Weight of each row in the denominator, shape ``[n]``: ones, or the weights of a self-normalised estimator.

    >>> estimate = ipw([1, 0, 1, 0], [2.0, 0.5, 0.5, 1.0])
    >>> estimate.value
    0.625
    >>> [round(bound, 3) for bound in estimate.normal()]
    [-0.303, 1.553]
    """

    gain: Column
    mass: Column

    def __post_init__(self) -> None:
        gain, mass = columns(gain=self.gain, mass=self.mass)
        object.__setattr__(self, "gain", gain)
        object.__setattr__(self, "mass", mass)

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
        reach = NormalDist().inv_cdf((1 + confidence(level)) / 2) * self.standard_error
        return self.value - reach, self.value + reach

    def bootstrap(self, level: float = 0.95, *, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """Percentile interval over rows drawn with replacement."""
        level, resamples = confidence(level), count("resamples", resamples, advice="1000 is usual")
        rng, rows = np.random.default_rng(checked_seed("seed", seed)), len(self.gain)
        values = []
        for start in range(0, resamples, step := max(1, CHUNK // rows)):
            drawn = rng.integers(0, rows, (min(step, resamples - start), rows))
            values.append(self.gain[drawn].sum(1) / self.mass[drawn].sum(1))
        lower, upper = np.quantile(np.concatenate(values), [(1 - level) / 2, (1 + level) / 2])
        return float(lower), float(upper)


def importance_weight(target_prob: ArrayLike, logging_prob: ArrayLike, *, clip: float = math.inf) -> Column:
    """Ratio of target to logging probability of what was logged, at most ``clip``, shape ``[n]``.

    >>> importance_weight([0.5, 0.1], [0.25, 0.2]).tolist()
    [2.0, 0.5]
    """
    clip = number("clip", clip, 0, ends="(]", advice="leave it out to clip nothing")
    target, logging = columns(target_prob=target_prob, logging_prob=logging_prob)
    require("target_prob", target, (target >= 0) & (target <= 1), "probabilities in [0, 1]", _NOT_LOGITS)
    require("logging_prob", logging, logging > 0, "probabilities in (0, 1]", "drop rows the logger cannot produce")
    require("logging_prob", logging, logging <= 1, "probabilities in (0, 1]", _NOT_LOGITS)
    return np.minimum(target / logging, clip)


def effective_sample_size(weight: ArrayLike) -> float:
    r"""Number of unweighted rows that carry as much information, :math:`(\sum w)^2 / \sum w^2`.

    >>> effective_sample_size([1, 1, 1, 1]), effective_sample_size([4, 0, 0, 0])
    (4.0, 1.0)
    """
    (w,) = columns(weight=weight)
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0


def expected_reward(target_prob: ArrayLike, reward_hat: ArrayLike) -> Column:
    """A model's reward under a policy, ``sum_a target(a) model(a)``: ``[n, actions]`` twice to ``[n]``.

    >>> expected_reward([[0.5, 0.5]], [[0.2, 0.4]]).round(3).tolist()
    [0.3]
    """
    target, reward = numbers("target_prob", target_prob, dims=2), numbers("reward_hat", reward_hat, dims=2)
    require("target_prob", target, (target >= 0) & (target <= 1), "probabilities in [0, 1]", _NOT_LOGITS)
    if target.shape != reward.shape:
        raise InputError(
            f"reward_hat: expected the shape of target_prob, {list(target.shape)}, got {list(reward.shape)}; "
            "give [n, actions] twice"
        )
    return np.asarray((target * reward).sum(1))


def ipw(reward: ArrayLike, weight: ArrayLike) -> Estimate:
    """Inverse propensity weighting, ``mean(w r)``: unbiased, with a variance that grows with the weights.

    >>> ipw([1, 0], [0.5, 2.0]).value
    0.25
    """
    r, w = columns(reward=reward, weight=weight)
    return Estimate(w * r, np.ones_like(r))


def snipw(reward: ArrayLike, weight: ArrayLike) -> Estimate:
    """Self-normalised weighting, ``sum(w r) / sum(w)``: slightly biased, always within the range of the rewards.

    >>> snipw([1, 0], [0.5, 2.0]).value
    0.2
    """
    r, w = columns(reward=reward, weight=weight)
    if not w.any():
        raise InputError(
            "weight: expected a positive number, got zeros only; the target policy never takes the logged actions"
        )
    return Estimate(w * r, w)


def dm(target_hat: ArrayLike) -> Estimate:
    """Direct method, ``mean(target_hat)``: as biased as the model, with no variance from the weights.

    >>> dm([0.25, 0.75]).value
    0.5
    """
    (hat,) = columns(target_hat=target_hat)
    return Estimate(hat, np.ones_like(hat))


def dr(reward: ArrayLike, weight: ArrayLike, logged_hat: ArrayLike, target_hat: ArrayLike) -> Estimate:
    """Doubly robust, ``mean(target_hat + w (r - logged_hat))``: unbiased if either the model or the weights are right.

    >>> dr([1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5]).value
    0.375
    """
    r, w, q, hat = columns(reward=reward, weight=weight, logged_hat=logged_hat, target_hat=target_hat)
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

    ``"auto"`` chooses the quantile of the weights with the smallest estimated mean squared error.

    >>> switch_dr([1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5], threshold=1).value
    0.625
    """
    r, w, q, hat = columns(reward=reward, weight=weight, logged_hat=logged_hat, target_hat=target_hat)
    if isinstance(threshold, str) and threshold == "auto":
        choices = np.unique(np.quantile(w, np.linspace(0, 1, 21)))
        return _least_error([np.where(w <= choice, w, 0.0) for choice in choices], w, r - q, hat)
    threshold = number("threshold", threshold, 0, ends="[]", advice='or "auto"')
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

    0 is the direct method and infinity doubly robust; ``"auto"`` minimises the estimated mean squared error.

    >>> args = [1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5]
    >>> dros(*args, shrinkage=0).value, round(dros(*args, shrinkage=1e9).value, 6)
    (0.5, 0.375)
    """
    r, w, q, hat = columns(reward=reward, weight=weight, logged_hat=logged_hat, target_hat=target_hat)
    if isinstance(shrinkage, str) and shrinkage == "auto":
        largest = max(float(w.max(initial=0.0)) ** 2, 1e-12)
        return _least_error([_shrunk(w, choice) for choice in largest * np.geomspace(1e-4, 1e4, 33)], w, r - q, hat)
    shrinkage = number("shrinkage", shrinkage, 0, ends="[]", advice='or "auto"')
    return Estimate(hat + _shrunk(w, shrinkage) * (r - q), np.ones_like(r))


def estimates(
    reward: ArrayLike, weight: ArrayLike, logged_hat: ArrayLike, target_hat: ArrayLike
) -> dict[str, Estimate]:
    """Every estimator on the same log, by name.

    >>> sorted(estimates([1, 0], [0.5, 2.0], [0.5, 0.25], [0.5, 0.5]))
    ['dm', 'dr', 'dros', 'ipw', 'snipw', 'switch_dr']
    """
    log = (reward, weight, logged_hat, target_hat)
    alone = {"dm": dm(target_hat), "ipw": ipw(reward, weight), "snipw": snipw(reward, weight)}
    return alone | {"dr": dr(*log), "switch_dr": switch_dr(*log), "dros": dros(*log)}


def _shrunk(weight: Column, shrinkage: float) -> Column:
    return np.zeros_like(weight) if shrinkage == 0 else weight / (1 + weight**2 / shrinkage)


def _least_error(choices: list[Column], weight: Column, residual: Column, target_hat: Column) -> Estimate:
    rows = len(residual)

    def error(changed: Column) -> float:
        # The mean of this is the bias; the square of the mean overstates it by the variance of the mean.
        taken = (weight - changed) * residual
        bias = max(0.0, float(taken.mean() ** 2 - taken.var() / rows))
        return bias + float((target_hat + changed * residual).var()) / rows

    return Estimate(target_hat + min(choices, key=error) * residual, np.ones_like(residual))


def require(name: str, column: Column, holds: NDArray[np.bool_], rule: str, advice: str) -> None:
    """Raise unless the condition holds for every value.

    >>> require("weight", np.array([1.0, -1.0]), np.array([True, False]), "numbers >= 0", "check the propensities")
    Traceback (most recent call last):
        ...
    isolayer.errors.InputError: weight: expected numbers >= 0, got -1; check the propensities
    """
    if not holds.all():
        raise InputError(f"{name}: expected {rule}, got {column[~holds][0]:g}; {advice}")


def columns(**given: ArrayLike) -> list[Column]:
    """Columns of numbers by name, all of one length and finite, weights non-negative; rewards may be booleans.

    >>> columns(reward=[True, False], weight=[0.5, 2])[0].tolist()
    [1.0, 0.0]
    """
    found, rows = list[Column](), None
    for name, values in given.items():
        read = (
            weights(name, values, rows) if name == "weight" else numbers(name, values, rows, booleans=name == "reward")
        )
        rows = some(name, read).size
        found.append(read)
    return found
