r"""Position Action Prediction: predict where an item would be shown, and serve the probability averaged over positions.

Relevance is for ranking: it is the logit of a label in a reference context, not in the context an item will be shown
in. A separate tower predicts the distribution of contexts, :math:`P(c \mid x)`, and the served probability
averages over it, without position or device as an input. Two things can be averaged:

    probabilities   :math:`\hat y(x) = \sum_c P(c \mid x)\, \sigma(f_c(r(x)))`, the probability of the label on such
                    traffic, by the law of total probability
    embeddings      :math:`\hat y(x) = \sigma(f_{\bar e}(r(x)))` with :math:`\bar e = \sum_c P(c \mid x)\, e_c`: the
                    paper's soft attention over the embeddings of positions, which are bucket weights; one curve per row
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isolayer.debias.heads import DualHead
from isolayer.debias.loss import Heads, Labels
from isolayer.debias.serving import PooledCurves, Serving
from isolayer.errors import InputError
from isolayer.nn.context_ids import checked_ids
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.inputs import module
from isolayer.nn.whole_batch import shared_total
from isolayer.settings import choice, count, instance, number

_MOST_CONTEXTS = 4096
Given = Literal["features", "relevance"]
Pool = Literal["probabilities", "embeddings"]


class PooledHeads(dict[str, Heads]):
    """`Heads` of every task, the tower's prediction of the context, and the context itself."""

    of_model: Mapping[str, Heads]  # as the model gave them
    context_logits: Tensor  # [batch, contexts]
    context_id: Tensor  # [batch]; -1 if a part of it is unknown


class PositionPredictor(nn.Module):
    """A `DualHead` and a tower that predicts the context an item is shown in; they are trained and served together.

    The tower shares no parameters with the model and reads relevance without a gradient: the ranking is the model's.

    Args:
        model: The model that relates relevance to the labels.
        tower: Features to ``[batch, width]``; with ``given="relevance"``, relevance logits ``[batch, tasks]`` to that.
        width: Width of the tower's output.
        given: Input of the tower: ``"features"``, or ``"relevance"``, which averages over :math:`P(c | r)` alone.
        gamma: Weight of the tower's loss relative to the model's.
        pool: What is averaged at serving, ``"probabilities"`` or ``"embeddings"``.

    >>> dual = DualHead(nn.Linear(4, 8), width=8, tasks=("click",), contexts={"position": 10})
    >>> model = PositionPredictor(dual, nn.Linear(4, 8), width=8)
    >>> {name: list(value.shape) for name, value in model.serving()(torch.zeros(5, 4)).items()}
    {'click': [5], 'click_prob': [5]}
    """

    def __init__(
        self,
        model: DualHead,
        tower: nn.Module,
        *,
        width: int,
        given: Given = "features",
        gamma: float = 1.0,
        pool: Pool = "probabilities",
    ) -> None:
        super().__init__()
        instance("model", model, DualHead, advice="build a DualHead first")
        choice("given", given, ("features", "relevance"))
        self.pool = choice("pool", pool, ("probabilities", "embeddings"), advice="the paper's is 'embeddings'")
        gamma = number("gamma", gamma, 0, advice="at 0 the tower would not be trained")
        self.sizes = list(model.context_curves.contexts.values())
        combinations = math.prod(self.sizes)
        if combinations > _MOST_CONTEXTS:
            raise InputError(
                f"contexts: expected at most {_MOST_CONTEXTS} combinations to pool over, got {combinations}; "
                "use fewer context features"
            )
        if model.wiring != "curve":
            raise InputError("wiring: expected 'curve', got 'parallel'; its curves do not read relevance")
        self.model, self.tower, self.given, self.gamma = model, module("tower", tower), given, gamma
        self.predict = nn.Linear(count("width", width, advice="give the width of the tower's output"), combinations)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.model.tasks

    @property
    def needs_lists(self) -> bool:
        """Whether the model's loss compares the rows of a list."""
        return self.model.needs_lists

    @property
    def group(self) -> str:
        """The key of the context that holds the list of each row."""
        return self.model.group

    def forward(self, features: Tensor, context: Mapping[str, Tensor]) -> PooledHeads:
        """Logits of every task, and of the contexts, for features and ids ``[batch]`` of each context feature."""
        of_model = self.model(features, context)
        outputs = PooledHeads(of_model)
        outputs.of_model = of_model
        read = features
        if self.given == "relevance":
            read = torch.stack([outputs[task].relevance_logit for task in self.tasks], dim=1).detach()
        outputs.context_logits = self.predict(self.tower(read))
        outputs.context_id = self._combination(context)
        return outputs

    def _combination(self, context: Mapping[str, Tensor]) -> Tensor:
        """One number for each combination of context ids, ``[batch]``; -1 if any of them is unknown."""
        contexts = self.model.context_curves.contexts
        ids = [checked_ids(context, name, size, training=self.training) for name, size in contexts.items()]
        combination = torch.zeros_like(ids[0])
        for size, key in zip(contexts.values(), ids, strict=True):
            combination = combination * size + key
        return torch.where((torch.stack(ids) < 0).any(0), -1, combination)

    def loss(
        self,
        outputs: PooledHeads,
        labels: Labels,
        mask: Mapping[str, Tensor] | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The model's loss, and gamma times the log loss of the contexts that are known."""
        instance("outputs", outputs, PooledHeads, advice="pass what forward returned")
        total = self.model.loss(outputs.of_model, labels, mask, weight)
        known = outputs.context_id >= 0
        share = known.to(outputs.context_logits.dtype) if weight is None else weight * known
        each = cross_entropy(outputs.context_logits, outputs.context_id, reduction="none", ignore_index=-1)
        missed = (each * share).sum() / shared_total(share.sum())
        return total + self.gamma * missed

    def serving(self) -> Serving:
        """A copy that takes features alone; its probabilities are averaged over the contexts it expects."""
        model = self.model
        curves = model.context_curves
        return Serving(
            model.backbone,
            model.relevance,
            tasks=model.tasks,
            decreasing=model.decreasing,
            curve=PooledCurves(curves) if self.pool == "embeddings" else FrozenCurves.from_layer(curves),
            shares=nn.Sequential(self.tower, self.predict, nn.Softmax(dim=1)),
            shares_given=self.given,
        )
