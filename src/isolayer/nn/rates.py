"""Learning rates: `parameter_groups`, the only place that makes some parameters learn faster than others.

No layer multiplies a parameter in its ``forward`` in order to speed it up. A module says what its parameters are, and
the optimiser's groups follow from that:

    is_curve = True                       its parameters are those of curves: ``curve_lr * lr``
    curve_lr_factors = {"bias": 10.0}     the named parameters (or submodules): 10 times the rate of curves
"""

from __future__ import annotations

from typing import Any

from torch import nn

from isolayer.nn.inputs import module as checked_module
from isolayer.settings import number


def parameter_groups(module: nn.Module, lr: float, *, curve_lr: float = 10) -> list[dict[str, Any]]:
    """Parameters of ``module`` for an optimiser: those of curves learn at ``curve_lr`` times ``lr``.

    A bucket weight is touched only by the inputs that reach its bucket. At the rate of a backbone curves lag behind,
    and a comparison of models becomes one of learning rates.

    Each group also says whether its gradients are ``"sparse"`` (tables with ``sparse=True``). `torch.optim.SGD` and
    `torch.optim.Adagrad` take all groups. Adam does not take sparse gradients, so give it the dense groups and
    `torch.optim.SparseAdam` the sparse ones.

    Args:
        module: A model with isotonic layers anywhere inside it.
        lr: Learning rate of everything else.
        curve_lr: How many times faster curves learn.

    >>> import torch
    >>> from isolayer import ContextIsotonicLayer
    >>> model = nn.Sequential(nn.Linear(3, 1), ContextIsotonicLayer({"item": 1_000}, sparse=True))
    >>> groups = parameter_groups(model, lr=0.001)
    >>> [(len(group["params"]), group["lr"], group["sparse"]) for group in groups]
    [(2, 0.001, False), (2, 0.01, False), (2, 0.01, True)]
    >>> dense = torch.optim.Adam([group for group in groups if not group["sparse"]])
    >>> sparse = torch.optim.SparseAdam([group for group in groups if group["sparse"]])
    """
    checked_module("module", module)
    lr = number("lr", lr, 0, advice="try 0.001")
    curve_lr = number("curve_lr", curve_lr, 0, advice="10 is usual")
    factors, sparse = _curve_factors(module), _sparse(module)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        rate = lr * curve_lr * factors[id(parameter)] if id(parameter) in factors else lr
        groups.setdefault((rate, id(parameter) in sparse), []).append(parameter)
    ordered = sorted(groups.items(), key=lambda item: (item[0][1], item[0][0] != lr, item[0][0]))
    return [{"params": params, "lr": rate, "sparse": is_sparse} for (rate, is_sparse), params in ordered]


def _curve_factors(module: nn.Module) -> dict[int, float]:
    """Multiples of the curves' rate, for the parameters that learn at such; inner modules have the last word."""
    factors: dict[int, float] = {}
    for child in module.modules():
        named = dict(child.named_parameters())
        if getattr(child, "is_curve", False):
            factors |= {id(parameter): factors.get(id(parameter), 1.0) for parameter in named.values()}
        for prefix, factor in getattr(child, "curve_lr_factors", {}).items():
            factors |= {id(p): float(factor) for name, p in named.items() if f"{name}.".startswith(f"{prefix}.")}
    return factors


def _sparse(module: nn.Module) -> set[int]:
    """The parameters that will have sparse gradients."""
    tables = (child for child in module.modules() if isinstance(child, (nn.Embedding, nn.EmbeddingBag)))
    return {id(table.weight) for table in tables if table.sparse}
