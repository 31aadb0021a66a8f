"""Learning rates: `parameter_groups`, the only place that makes some parameters learn faster than others.

No layer scales a parameter in its ``forward`` to make it learn faster. A module says what its parameters are, and the
optimiser's groups follow from that:

    is_curve = True                       its parameters are those of curves: ``curve_lr * lr``
    curve_lr_factors = {"bias": 10.0}     the named parameters (or submodules): 10 times the rate of curves

`RowAdam` is the optimiser that takes all of these groups, large tables with sparse gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from isolayer.errors import InputError
from isolayer.nn.inputs import module as checked_module
from isolayer.settings import number, shown


def parameter_groups(module: nn.Module, lr: float, *, curve_lr: float = 10, decay: float = 0) -> list[dict[str, Any]]:
    """Parameters of ``module`` for an optimiser: those of curves learn at ``curve_lr`` times ``lr``.

    A bucket weight is updated only by the inputs in its bucket. With the learning rate of the backbone, curves lag
    behind, and a comparison of models becomes a comparison of learning rates.

    Which parameters form a group does not depend on the numbers, so that an optimiser's state fits other rates too.
    Each group also says whether its gradients are ``"sparse"`` (tables with ``sparse=True``). `RowAdam` takes all
    groups, and so do `torch.optim.SGD` and `torch.optim.Adagrad`. `torch.optim.Adam` takes the dense groups only:
    with a sparse one its first step fails with "Adam does not support sparse gradients". Use `RowAdam` instead.

    Args:
        module: A model with isotonic layers anywhere inside it.
        lr: Learning rate of everything else.
        curve_lr: How many times faster curves learn.
        decay: Share of itself, times ``lr``, that every other parameter loses at each step, as in AdamW; for Adam and
            `RowAdam`. Curves and sparse tables keep what they have learned. A network that sees the same rows several
            times overfits less with it: try 0.1 to 0.3.

    >>> from isolayer import ContextIsotonicLayer
    >>> model = nn.Sequential(nn.Linear(3, 1), ContextIsotonicLayer({"item": 1_000}, sparse=True))
    >>> groups = parameter_groups(model, lr=0.001)
    >>> [(len(group["params"]), group["lr"], group["sparse"]) for group in groups]
    [(2, 0.001, False), (2, 0.01, False), (2, 0.01, True)]
    >>> optimiser = RowAdam(groups)
    """
    checked_module("module", module)
    lr = number("lr", lr, 0, advice="try 0.001")
    curve_lr = number("curve_lr", curve_lr, 0, advice="10 is usual")
    decay = number("decay", decay, 0, ends="[)", advice="try 0.1")
    factors, sparse = _curve_factors(module), _sparse(module)
    groups: dict[tuple[bool, bool, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        is_curve, is_sparse = id(parameter) in factors, id(parameter) in sparse
        groups.setdefault((is_sparse, is_curve, factors.get(id(parameter), 1.0)), []).append(parameter)
    return [
        {
            "params": params,
            "lr": lr * curve_lr * factor if is_curve else lr,
            "sparse": is_sparse,
            **_decaying(0.0 if is_curve or is_sparse else decay),
        }
        for (is_sparse, is_curve, factor), params in sorted(groups.items(), key=lambda item: item[0])
    ]


def _decaying(decay: float) -> dict[str, Any]:
    """Options of a group of Adam; nothing without a decay, so that any optimiser takes the group."""
    return {"weight_decay": decay, "decoupled_weight_decay": True} if decay else {}


def _curve_factors(module: nn.Module) -> dict[int, float]:
    """Multiples of the curves' rate, for the parameters that have one; inner modules override outer ones."""
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


class RowAdam(torch.optim.Adam):
    """Adam in which a table with sparse gradients is updated only in the rows of the batch, with a step count per row.

    The cost of a step therefore depends on its batch and not on the size of the tables. Each row keeps two running
    averages of its gradient, as in Adam, and the number of batches that contained it, which is used for the bias
    correction. A row that is in every batch is updated exactly as Adam does.

    Args:
        groups: What `parameter_groups` returns, or parameters.
        lr: Learning rate of groups that do not have one.
        betas: Decay of the averages of the gradient and of its square.
        eps: Added to the denominator.

    >>> table = nn.Embedding(1_000, 4, sparse=True)
    >>> optimiser = RowAdam(parameter_groups(table, lr=0.1))
    >>> before = table.weight.detach().clone()
    >>> table(torch.tensor([7])).sum().backward()
    >>> optimiser.step()
    >>> (table.weight != before).any(1).nonzero().flatten().tolist()
    [7]
    """

    def __init__(
        self, groups: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if isinstance(groups, str | Tensor) or not isinstance(groups, Iterable):
            raise InputError(
                f"groups: expected parameters, or groups of them, got {shown(groups)}; use parameter_groups"
            )
        lr, eps = number("lr", lr, 0, advice="try 0.001"), number("eps", eps, 0, advice="1e-8 is usual")
        if not (isinstance(betas, tuple) and len(betas) == 2 and all(0 <= one < 1 for one in betas)):
            raise InputError(f"betas: expected two numbers in [0, 1), got {shown(betas)}; (0.9, 0.999) is usual")
        super().__init__(groups, lr=lr, betas=betas, eps=eps)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all groups, for the parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held: list[tuple[nn.Parameter, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._step_rows(parameter, group)
                    held.append((parameter, parameter.grad))
                    parameter.grad = None
        super().step()
        for parameter, gradient in held:
            parameter.grad = gradient
        return loss

    def _step_rows(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        assert gradient is not None
        gradient = gradient.coalesce()
        rows, value = gradient.indices()[0], gradient.values()
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(len(parameter), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        # The rows of a large table are in no cache. ``index_select`` and ``index_copy_`` fetch several of them at once;
        # indexing and ``index_add_`` would take four times as long, one row after another.
        times, mean, square, weight = (
            table.index_select(0, rows) for table in (state["step"], state["exp_avg"], state["exp_avg_sq"], parameter)
        )
        one, two = group["betas"]
        state["step"].index_copy_(0, rows, times.add_(1))
        state["exp_avg"].index_copy_(0, rows, mean.lerp_(value, 1 - one))
        state["exp_avg_sq"].index_copy_(0, rows, square.lerp_(value.square(), 1 - two))
        times = times.unsqueeze(1)
        spread = square.div_(1 - two**times).sqrt_().add_(group["eps"])
        step = mean.div_(1 - one**times).div_(spread)
        parameter.index_copy_(0, rows, weight.add_(step, alpha=-group["lr"]))
