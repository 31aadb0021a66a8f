"""The learned bias of a debiased model: its curves by task and by value of the first bias feature."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.errors import InputError

Floats = NDArray[np.float64]

RANGE = (-5.0, 2.0)  # relevance logits shown when there is no log
_POINTS = 41


class Bias(NamedTuple):
    """Curves by task and value of a bias feature, such as position.

    Args:
        feature: Name of the bias feature.
        tasks: Names of the tasks, ``[tasks]``.
        values: Values of the feature, ``[values]``.
        relevance: Logits of relevance, ``[points]``.
        observed: Logit of the logged label for an item of this relevance, ``[tasks, values, points]``; NaN where there
            is no curve.
        relative: Probability of the label, divided by that at the first value, ``[tasks, values]``.
        averaged: If true, ``relative`` compares mean rates over the training rows, each shown with the value, as
            `isolayer.debias.position_effect` does; otherwise it is for an item of medium relevance.
    """

    feature: str
    tasks: tuple[str, ...]
    values: NDArray[Any]
    relevance: Floats
    observed: Floats
    relative: Floats
    averaged: bool = False


def learned_bias(curves: Curves, span: tuple[float, float] = RANGE) -> Bias:
    """The bias in curves whose first context is the task and whose second is the bias feature.

    Args:
        curves: As ``DualHead.curves()`` gives them.
        span: Lowest and highest relevance logit to show, within the grid.

    >>> from isolayer.grid import Grid
    >>> grid = Grid(lower=-2, upper=2, step=1)
    >>> keys = ((), (np.array(["click"]),), (np.array(["click", "click"]), np.array([0, 1])))
    >>> values = grid.knots[1:] - np.array([[0.0], [0.0], [0.0], [1.0]])
    >>> nothing = np.zeros_like(values)
    >>> curves = Curves(grid, ("task", "position"), keys, values, nothing, nothing, np.zeros(4))
    >>> learned_bias(curves, (-1, 1)).relative.round(2).tolist()
    [[1.0, 0.54]]
    """
    if len(curves.contexts) < 2 or curves.contexts[0] != "task":
        raise InputError(
            f"bias: expected curves over ('task', a bias feature, ...), got {curves.contexts}; use DualHead.curves()"
        )
    task, value = curves.keys[2]
    tasks = list(dict.fromkeys(task.tolist()))
    values, code = np.unique(value, return_inverse=True)
    relevance = np.linspace(max(span[0], curves.grid.lower), min(span[1], curves.grid.upper), _POINTS)
    rows = np.arange(curves.starts[2], curves.starts[3])
    flat = curves.evaluate(np.repeat(rows, _POINTS), np.tile(relevance, len(rows)))
    observed = np.full((len(tasks), len(values), _POINTS), np.nan)
    observed[[tasks.index(name) for name in task.tolist()], code] = flat.reshape(len(rows), _POINTS)
    mean = _mean_effect(curves, tasks, len(values))
    middle = prob_of(observed[:, :, _POINTS // 2])
    relative = middle / middle[:, :1] if mean is None else mean
    return Bias(curves.contexts[1], tuple(tasks), values, relevance, observed, relative, mean is not None)


def _mean_effect(curves: Curves, tasks: list[str], values: int) -> Floats | None:
    """The mean effects that training stored with the curves, ``[tasks, values]``; None if there are none."""
    effects = curves.source.get("effects") or {}
    rows = [(effects.get(task) or {}).get(curves.contexts[1]) or [] for task in tasks]
    return np.array(rows, dtype=np.float64) if all(len(row) == values for row in rows) else None
