"""Context curves measured from a reference context, so that relevance and the curves are identified together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from isolayer.debias.serving import BIAS_RATE
from isolayer.grid import Grid
from isolayer.nn.context import ContextIsotonicLayer
from isolayer.nn.context_ids import id_column
from isolayer.nn.functional import knot_values
from isolayer.nn.gate import Ids
from isolayer.nn.isotonic import slopes

POSITION = "position"  # the feature whose slopes learn at the full rate
BESIDE = 0.1  # rate of the slopes of features beside it


class ReferencedCurves(ContextIsotonicLayer):
    """Context curves measured from a reference context, whose curve is the base curve, or the identity if it is held.

    Relevance and curves explain the same labels: without a fixed point, any monotone map could be moved from one to the
    other. A held unit has its fixed point here: relevance is the logit that would be observed in the reference context.
    The ids of the reference mean "no deviation" (id -1), so this holds for any parameters. The bias of a curve learns
    ``BIAS_RATE`` times as fast as its slopes: as long as biases lag behind, the backbone absorbs their effect.

    Beside a context feature called ``position``, the slopes of the other features learn at ``BESIDE`` of its rate. A
    position changes the shape of curves, by trust; a device or a kind of query mostly shifts them, and where the log is
    sorted by a score, slopes of theirs that learn as fast explain by the device what is relevance.

    Args:
        contexts: Name and number of ids of each context feature.
        reference: The id of each feature that is the reference.
        held: For each unit, whether its reference curve is the identity.
        grid: Bounds and bucket width.
        mode: ``"sum"`` or ``"cross"``, as in `ContextIsotonicLayer`.
        rank: As in `ContextIsotonicLayer`, as are the following.
        hash_buckets: The reference ids are those before hashing.
        projection: The reference is the zero vector.
        sparse: Whether the tables have sparse gradients.

    >>> curves = ReferencedCurves({"position": 3}, reference={"position": 0}, held=[True])
    >>> _ = torch.nn.init.normal_(curves.base.weight)
    >>> curves(torch.tensor([0.5]), {"position": torch.tensor([0])}).detach()
    tensor([[0.5000]])
    """

    held: Tensor

    def __init__(
        self,
        contexts: Mapping[str, int],
        *,
        reference: Mapping[str, int],
        held: Sequence[bool],
        grid: Grid | None = None,
        mode: Literal["sum", "cross"] = "sum",
        rank: int | None = None,
        hash_buckets: int | None = None,
        projection: int | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__(
            contexts,
            units=len(held),
            grid=grid,
            mode=mode,
            rank=rank,
            hash_buckets=hash_buckets,
            projection=projection,
            sparse=sparse,
            extrapolation="extend",
        )
        self.reference = dict(reference)
        self.register_buffer("held", torch.tensor(list(held)), persistent=False)
        self.all_held = all(held)
        self.base.requires_grad_(not self.all_held)
        self.curve_lr_factors = {"base.bias": BIAS_RATE} | {
            f"tables.{i}.bias": BIAS_RATE for i in range(len(self.tables))
        }
        if mode == "sum" and POSITION in self.contexts:
            beside = [i for i, name in enumerate(self.contexts) if name != POSITION]
            self.curve_lr_factors |= {f"tables.{i}.rows": BESIDE for i in beside}

    def references(self) -> list[dict[str, int]]:
        """The contexts that tie relevance to a scale, by their ids: one per feature or, crossed, one of all features.

        >>> reference = {"position": 1, "device": 0}
        >>> ReferencedCurves({"position": 3, "device": 2}, reference=reference, held=[True]).references()
        [{'position': 1}, {'device': 0}]
        """
        if not self.reference or not self.held.any():
            return []
        return [self.reference] if self.mode == "cross" else [{name: key} for name, key in self.reference.items()]

    def _ids(self, context: Mapping[str, Tensor] | None, batch: int | None) -> list[Tensor]:
        """Ids of each feature, with those of the reference replaced by -1."""
        ids = super()._ids(context, batch)
        given = ids if not self.hash_buckets else [id_column(context, name, batch) for name in self.contexts]
        at = [key == self.reference[name] for name, key in zip(self.contexts, given, strict=True)]
        if self.mode == "cross" and ids:  # one table of combinations: only the whole reference has no deviation
            at = [torch.stack(at).all(0)] * len(ids)
        return [torch.where(here, -1, key) for here, key in zip(at, ids, strict=True)]

    def _knots(self, bias: Tensor, weight: Tensor, ids: Ids) -> Tensor:
        offset = weight.view(-1, self.units, self.grid.buckets)
        weight = offset + 1.0
        if not self.all_held:
            weight = torch.where(self.held.unsqueeze(1), weight, self.base.weight + offset)
            bias = torch.where(self.held, bias, self._base_bias() + bias)
        slope = slopes(weight, self.base.constraint, leaky_gradient=self.base.leaky_gradient, ids=ids)
        return knot_values(slope, bias, grid=self.grid)

    def _base_bias(self) -> Tensor:
        assert self.base.bias is not None  # as constructed above
        return self.base.bias
