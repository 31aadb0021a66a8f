"""Intervals for studies on real data: users drawn again with replacement, models trained again from other seeds.

Both kinds of chance count. Seeds share their draws, so that the mean over seeds of one draw is one resampled figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolayer.errors import InputError, need
from research.result import Estimate, Finished


def draws(group: ArrayLike, resamples: int, *, seed: int = 0) -> NDArray[np.float32]:
    """How often each row counts in each resample, ``[resamples, rows]``: a Poisson(1) number per group (user, query).

    >>> weight = draws([7, 7, 8], 50)
    >>> weight.shape, bool((weight[:, 0] == weight[:, 1]).all())
    ((50, 3), True)
    """
    keys, code = np.unique(np.asarray(group), return_inverse=True)
    counts = np.random.default_rng(seed).poisson(1.0, (resamples, len(keys))).astype(np.float32)
    return counts[:, code]


def pooled(values: ArrayLike, resampled: ArrayLike, *, level: float = 0.95) -> Estimate:
    r"""Mean over seeds, with the variance of both: :math:`s^2_{seeds} / n + s^2_{resamples}` of the mean over seeds.

    The interval is Student's, with the degrees of freedom of Satterthwaite: few seeds, few degrees where seeds matter.

    Args:
        values: On all rows, ``[seeds]``.
        resampled: On each resample, ``[seeds, resamples]``, the same draws for every seed.
        level: Of the interval.

    >>> found = pooled([1.0, 1.0], [[0.9, 1.1], [0.9, 1.1]])
    >>> found.value, round(found.upper - found.value, 3), found.seeds
    (1.0, 1.797, 2)
    """
    column, table = np.asarray(values, np.float64), np.asarray(resampled, np.float64)
    if table.ndim != 2 or len(table) != len(column) or table.shape[1] < 2 or len(column) < 2:
        raise InputError(
            f"resampled: expected [{len(column)}, 2 or more] and two seeds or more, got {table.shape}; draw again"
        )
    parts = np.array([column.var(ddof=1) / len(column), table.mean(0).var(ddof=1)])
    total, degrees = float(parts.sum()), np.array([len(column) - 1, table.shape[1] - 1])
    freedom = total**2 / float((parts**2 / degrees).sum()) if total > 0 else 1.0
    half = float(need("scipy.special").stdtrit(freedom, 0.5 + level / 2)) * total**0.5
    mean = float(column.mean())
    return Estimate(mean, mean - half, mean + half, len(column))


def difference(finished: Sequence[Finished], setting: str, one: str, other: str | None = None) -> Estimate:
    """The number ``one``, or ``one - other`` paired by seed and draw, whose resampled values are under ``<key> draws``.

    >>> from research.result import Unit
    >>> done = [Finished(Unit(seed), {"a": 2.0, "a draws": [1, 3], "b": 1.0, "b draws": [0, 2]}) for seed in (0, 1)]
    >>> difference(done, "all", "a", "b")
    Estimate(value=1.0, lower=1.0, upper=1.0, seeds=2)
    """
    own: list[dict[str, Any]] = [one_.numbers for one_ in finished if one_.unit.setting == setting]
    value, table = np.array([n[one] for n in own], float), np.array([n[f"{one} draws"] for n in own], float)
    if other is not None:
        value = value - [n[other] for n in own]
        table = table - [n[f"{other} draws"] for n in own]
    return pooled(value, table)
