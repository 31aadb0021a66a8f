"""`ShardedContextIsotonicLayer`: a `ContextIsotonicLayer` whose tables are distributed over processes by TorchRec.

Every process holds a part of the rows of each table, with bias b(c) and bucket weights in a row, and requests the rows
of its batch from the others. Their gradients are sent back in the same way and applied where the rows are, by FBGEMM's
fused row-wise optimiser: no process ever holds a gradient or a moment of a whole table. The base curve is an ordinary
parameter, replicated like the rest of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from isolayer.curves.evaluation import Extrapolation
from isolayer.errors import InputError, need
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.isotonic import Constraint
from isolayer.settings import choice, instance, number

_FEATURE, _TABLE = "context", "table"
_OPTIMISERS = {"rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD", "sgd": "EXACT_SGD"}


class _ShardedTable(nn.Module):
    """The table of a `ContextIsotonicLayer`, one row per id, with the rows distributed over the processes."""

    def __init__(self, size: int, units: int, buckets: int, optimiser: str, learning_rate: float) -> None:
        super().__init__()
        torchrec = need("torchrec")
        self.split = [units, units * buckets]
        width = -(-sum(self.split) // 4) * 4  # FBGEMM's rows are multiples of four floats
        config = torchrec.EmbeddingConfig(
            name=_TABLE, embedding_dim=width, num_embeddings=size + 1, feature_names=[_FEATURE], init_fn=_zeros
        )
        self.table = _sharded(torchrec.EmbeddingCollection(tables=[config]), optimiser, learning_rate)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Bias ``[n, units]`` and bucket weights ``[n, units * buckets]`` of ids ``[n]``; id -1 has zeros."""
        jagged = need("torchrec").KeyedJaggedTensor.from_lengths_sync(
            [_FEATURE], ids.long() + 1, torch.ones(len(ids), dtype=torch.int32, device=ids.device)
        )
        rows = self.table(jagged).wait()[_FEATURE].values()[:, : sum(self.split)]
        rows = rows * (ids >= 0).unsqueeze(1)  # row 0 is id -1: it stays zero and gets no gradient
        bias, weight = rows.split(self.split, dim=1)
        return bias, weight


class ShardedContextIsotonicLayer(ContextIsotonicLayer):
    """A `ContextIsotonicLayer` with tables distributed over processes, for more contexts than fit in one.

    Make it after ``torch.distributed.init_process_group``, with the same arguments in every process. The tables train
    by themselves, in the backward pass; an optimiser gets the other parameters, `dense_parameters`. Gradients count as
    under `DistributedDataParallel`: the loss of a process is a mean over its rows, and processes are averaged. Every
    process must call the layer equally often, also in evaluation.

    Args:
        contexts: Name and number of ids of each context feature.
        units: Number of curves per context.
        grid: Bounds and bucket width.
        mode: ``"sum"`` or ``"cross"``, as in `ContextIsotonicLayer`.
        hash_buckets: As in `ContextIsotonicLayer`.
        constraint: As in `ContextIsotonicLayer`.
        init: Slope of every bucket at the start.
        extrapolation: As in `ContextIsotonicLayer`.
        leaky_gradient: As in `ContextIsotonicLayer`.
        optimiser: ``"rowwise_adagrad"`` (one moment per row) or ``"sgd"``.
        learning_rate: Learning rate of the tables.
    """

    def __init__(
        self,
        contexts: Mapping[str, int],
        *,
        units: int = 1,
        grid: Grid | None = None,
        mode: Literal["sum", "cross"] = "sum",
        hash_buckets: int | None = None,
        constraint: Constraint = "relu",
        init: float = 1.0,
        extrapolation: Extrapolation = "clip",
        leaky_gradient: bool = True,
        optimiser: Literal["rowwise_adagrad", "sgd"] = "rowwise_adagrad",
        learning_rate: float = 0.01,
    ) -> None:
        self.optimiser = choice("optimiser", optimiser, list(_OPTIMISERS))
        self.learning_rate = number("learning_rate", learning_rate, 0, advice="use 0.01")
        super().__init__(
            contexts,
            units=units,
            grid=grid,
            mode=mode,
            hash_buckets=hash_buckets,
            constraint=constraint,
            init=init,
            extrapolation=extrapolation,
            leaky_gradient=leaky_gradient,
        )

    def _table_of(self, size: int) -> nn.Module:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "process group: expected one, got none; call torch.distributed.init_process_group, under torchrun"
            )
        return _ShardedTable(size, self.units, self.grid.buckets, self.optimiser, self.learning_rate)

    def dense_parameters(self) -> list[nn.Parameter]:
        """The parameters that every process holds completely, for an optimiser: those of the base curve."""
        return list(self.base.parameters())

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the layer and the moments of its tables; each process writes its part. Any number can load it."""
        need("torch.distributed.checkpoint").save(self._state(), checkpoint_id=folder)

    def load(self, folder: str | PathLike[str]) -> None:
        """Read what :meth:`save` wrote, with any number of processes; each takes its own rows."""
        state = self._state()
        need("torch.distributed.checkpoint").load(state, checkpoint_id=folder)
        self.load_state_dict(state["layer"])
        for optimiser, moments in zip(self._optimisers(), state["moments"].values(), strict=True):
            optimiser.load_state_dict(moments)

    def _state(self) -> dict[str, Any]:
        moments = {str(place): optimiser.state_dict() for place, optimiser in enumerate(self._optimisers())}
        return {"layer": self.state_dict(), "moments": moments}

    def _optimisers(self) -> list[Any]:
        """The fused optimiser of each table."""
        return [table.table.fused_optimizer for table in self.tables if isinstance(table, _ShardedTable)]


def data_parallel(model: nn.Module) -> nn.parallel.DistributedDataParallel:
    """A model under `DistributedDataParallel`, which ignores its sharded tables.

    Args:
        model: A module, some parts of which may be `ShardedContextIsotonicLayer`.
    """
    instance("model", model, nn.Module, advice="give a module")
    sharded = [prefix for prefix, part in model.named_modules() if isinstance(part, _ShardedTable)]
    named = [*model.named_parameters(), *model.named_buffers()]
    ignored = [name for name, _ in named if any(name.startswith(f"{prefix}.") for prefix in sharded)]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return nn.parallel.DistributedDataParallel(model)


def _zeros(weight: Tensor) -> Tensor:
    """All contexts start on the base curve."""
    return nn.init.zeros_(weight)


def _sharded(collection: Any, optimiser: str, learning_rate: float) -> Any:
    """A collection of one table, with its rows distributed evenly over all processes."""
    configs, kernels = need("fbgemm_gpu.split_embedding_configs"), need("torchrec.distributed.embedding_types")
    plans, types = need("torchrec.distributed.sharding_plan"), need("torchrec.distributed.types")
    fused = {"learning_rate": learning_rate, "optimizer": getattr(configs.EmbOptimType, _OPTIMISERS[optimiser])}
    sharder = need("torchrec.distributed.embedding").EmbeddingCollectionSharder(fused_params={**fused, "eps": 1e-8})
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    world = dist.get_world_size()
    plan = plans.construct_module_sharding_plan(
        collection,
        {_TABLE: plans.row_wise(compute_kernel=kernels.EmbeddingComputeKernel.FUSED.value)},
        sharder=sharder,
        local_size=world,
        world_size=world,
        device_type=device.type,
    )
    env = types.ShardingEnv.from_process_group(dist.group.WORLD)
    return need("torchrec.distributed.shard").shard(collection, plan, env=env, device=device, sharder=sharder)
