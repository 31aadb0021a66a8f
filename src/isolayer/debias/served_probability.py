"""The served probability of a debiasing model: one monotone curve per task from its relevance to the observed labels.

Relevance is for ranking; its scale is that of a reference context, of perfect examination, or none at all, depending on
the model. The curve maps it to the probability of the label on traffic like that of the log, given the features and not
the context. It is fitted as the last step of training, and cannot change the ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isolayer.curves.curves import Curves
from isolayer.debias.loss import Labels, NegativeRate, sampled, stacked_labels
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid
from isolayer.nn.frozen import FrozenCurves
from isolayer.nn.isotonic import IsotonicLayer
from isolayer.settings import choice, instance, mapping

FINE = Grid(step=0.05)  # grid of the served curve of each task


def unfitted_curve(tasks: int) -> FrozenCurves:
    """The identity for each task: what is served before `ServedProbability.refit_served`, with nothing to learn.

    >>> unfitted_curve(1)(torch.tensor([[0.5]]))
    tensor([[0.5000]])
    """
    knots = torch.as_tensor(FINE.knots[1:], dtype=torch.get_default_dtype())
    return FrozenCurves(knots.repeat(tasks, 1), grid=FINE, extrapolation="extend")


class ServedProbability(nn.Module):
    """A model with a relevance logit per task and a curve over it that gives the served probability.

    Subclasses have ``tasks``, ``backbone``, ``relevance``, ``sign`` and ``served_curve``: an `IsotonicLayer` if it is
    trained too, or else what `unfitted_curve` returns.
    """

    tasks: tuple[str, ...]
    backbone: nn.Module
    relevance: nn.Module
    sign: Tensor
    served_curve: IsotonicLayer | FrozenCurves

    def refit_served(
        self,
        features: Tensor,
        labels: Labels,
        mask: Mapping[str, Tensor] | None = None,
        weight: Tensor | None = None,
        *,
        negative_rate: NegativeRate | None = None,
    ) -> Self:
        """Fit the served curve exactly to these rows, as the last step of training; relevance does not change.

        The curve may be flat in places, so rank by the relevance logit, which has no ties. Trained by gradient descent,
        as that of `DualHead` is, it lags behind relevance, which changes until the end.

        Args:
            features: Whatever the backbone takes, of logged traffic; the training rows are fine.
            labels: Labels in [0, 1] of each task, ``[batch]``.
            mask: For some tasks, which rows have a label.
            weight: Weight of each row, ``[batch]``.
            negative_rate: Share of the negatives that was kept when the log was sampled, as in the loss of `DualHead`.
        """
        return self.fit_served(self.served_sums(features, labels, mask, weight, negative_rate=negative_rate))

    @torch.no_grad()
    def served_sums(
        self,
        features: Tensor,
        labels: Labels,
        mask: Mapping[str, Tensor] | None = None,
        weight: Tensor | None = None,
        *,
        negative_rate: NegativeRate | None = None,
    ) -> dict[str, Histogram]:
        """The sums of these rows that `fit_served` needs, one histogram per labelled task; batches can be merged."""
        training = self.training
        event = self.eval().relevance(self._served_backbone()(features)) * self.sign
        self.train(training)
        label, weights = stacked_labels(self.tasks, labels, mask, weight, event.cpu())
        weights = weights.expand_as(label)
        shift = sampled(torch.zeros_like(label).double(), self.tasks, negative_rate)
        logit, y, w, rate = (part.double().cpu().numpy() for part in (event, label, weights, (-shift).exp()))
        sums = {}
        for unit, task in enumerate(self.tasks):
            rows = w[:, unit] > 0
            if rows.any():
                column = w[rows, unit]
                kept = rate[rows, unit].clip(max=1.0)  # rounding can make it larger
                sums[task] = Histogram.from_arrays(
                    logit[rows, unit], y[rows, unit], weight=column, negative_rate=kept, grid=FINE
                )
        return sums

    @torch.no_grad()
    def fit_served(self, sums: Mapping[str, Histogram]) -> Self:
        """Fit the served curves exactly to the sums of `served_sums`; a task without sums keeps its curve."""
        for task, histogram in mapping("sums", sums, advice="use served_sums").items():
            choice("sums", task, self.tasks, advice="name tasks of the model")
            instance(f"sums {task!r}", histogram, Histogram, advice="use served_sums")
        values = knot_values(self.served_curve, len(self.tasks))
        for unit, task in enumerate(self.tasks):
            if task in sums:
                # Not strict: where labels become rarer as relevance rises, only a flat curve is calibrated.
                values[unit] = Curves.from_histogram(sums[task], strict=False).values[0]
        if isinstance(self.served_curve, IsotonicLayer):
            self.served_curve.set_values(torch.from_numpy(values))
        else:
            fitted = FrozenCurves(torch.from_numpy(values).to(self.sign), grid=FINE, extrapolation="extend")
            self.served_curve.load_state_dict(fitted.state_dict())
        return self

    def _served_backbone(self) -> nn.Module:
        """Features to the input of the relevance head, as it is served."""
        return self.backbone

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights from before such models had a served curve leave it as it is."""
        if isinstance(self.served_curve, FrozenCurves):
            for name, value in self.served_curve.state_dict(prefix=f"{prefix}served_curve.").items():
                state_dict.setdefault(name, value)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def knot_values(curve: IsotonicLayer | FrozenCurves, tasks: int) -> NDArray[np.float64]:
    """Values of a served curve at the knots from lower to upper, ``[tasks, buckets]``."""
    if isinstance(curve, IsotonicLayer):
        own: NDArray[np.float64] = curve.knot_values()[:, 1:].detach().double().cpu().numpy()
        return own
    knots = torch.as_tensor(FINE.knots[1:], dtype=curve.slope.dtype, device=curve.slope.device)
    values: NDArray[np.float64] = curve(knots.unsqueeze(1).expand(-1, tasks)).T.double().cpu().numpy()
    return values
