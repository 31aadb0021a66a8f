"""The curves of a `DualHead` as `Curves`: bias curves by task and context, and served curves by task."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.debias.referenced_curves import ReferencedCurves
from isolayer.debias.served_probability import knot_values
from isolayer.grid import Grid
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.isotonic import IsotonicLayer

Floats = NDArray[np.float64]
MOST_CURVES = 100_000


@torch.no_grad()
def bias_curves(layer: ReferencedCurves, tasks: Sequence[str]) -> Curves:
    """Curves by task and context, from the event's logit by relevance to its logit in the context.

    A context that is partly unknown is the parent of the contexts it could be, and has the curve of id -1. Features
    that would make more than ``MOST_CURVES`` curves, and hashed ones, are unknown everywhere; a projected vector is
    zero.

    Args:
        layer: The context curves of a model.
        tasks: The name of each of its units.
    """
    sizes, order = _listed(layer, len(tasks)), np.argsort(np.array(tasks))
    names = list(sizes)
    keys, values = list[tuple[NDArray[Any], ...]]([()]), [layer.grid.knots[None, 1:]]  # over all tasks: the identity
    for depth in range(len(names) + 1):
        ids = list(itertools.product(*(range(size) for size in list(sizes.values())[:depth])))
        table = torch.tensor(ids, dtype=torch.long, device=layer.held.device).view(len(ids), depth)
        context = {name: table.new_full((len(ids),), -1) for name in layer.contexts}
        context |= dict(zip(names, table.unbind(1), strict=False))
        if layer.projection is not None:
            context["vector"] = torch.zeros(len(ids), layer.projection, device=layer.held.device)
        knots = layer.knot_values(context).transpose(0, 1)[..., 1:]  # [tasks, contexts, buckets]
        values.append(knots.double().cpu().numpy()[order].reshape(-1, layer.grid.buckets))
        task = np.repeat(np.array(tasks)[order], len(ids))
        keys.append((task, *(np.tile(column.cpu().numpy(), len(tasks)) for column in table.unbind(1))))
    return _table(layer.grid, ("task", *names), keys, values, kind="bias", extrapolation=layer.extrapolation)


def _listed(layer: ReferencedCurves, tasks: int) -> dict[str, int]:
    """The features that are few enough for a table of all combinations, in order."""
    found: dict[str, int] = {}
    for name, size in layer.contexts.items() if not layer.hash_buckets else ():
        if tasks * math.prod(found.values()) * size <= MOST_CURVES:
            found[name] = size
    return found


@torch.no_grad()
def served_curves(curve: IsotonicLayer | FrozenCurves, tasks: Sequence[str]) -> Curves:
    """Curves by task, from the event's logit by relevance to the logit that is served.

    Args:
        curve: The served curve of a model.
        tasks: The name of each of its units.
    """
    order = np.argsort(np.array(tasks))
    served = knot_values(curve, len(tasks))[order]
    keys = [(), (np.array(tasks)[order],)]
    identity = curve.grid.knots[None, 1:]
    return _table(curve.grid, ("task",), keys, [identity, served], kind="calibration", extrapolation="extend")


def _table(
    grid: Grid,
    contexts: tuple[str, ...],
    keys: Sequence[tuple[NDArray[Any], ...]],
    values: Sequence[Floats],
    **about: Any,
) -> Curves:
    table = np.concatenate(values)
    nothing = np.zeros_like(table)
    source = {"from": "DualHead", "tasks": keys[1][0].tolist()}
    return Curves(grid, contexts, tuple(keys), table, nothing, nothing, np.zeros(len(table)), source=source, **about)
