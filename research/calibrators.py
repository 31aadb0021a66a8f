"""Calibrators to compare with: Platt, temperature, isotonic regression and a monotone network, under one contract.

Each takes what :class:`~isolayer.calibrator.IsotonicCalibrator` takes. With ``contexts`` there is one fit for each
combination of their values; a combination that is new, too small or of one class only gets the fit of all rows
together. Nothing here is meant for production.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.isotonic import IsotonicRegression, isotonic_regression
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from isolayer.curves.evaluation import Scale, logit_of, prob_of
from isolayer.errors import InputError, need
from isolayer.fitting.categories import combine, encode, lookup
from isolayer.fitting.frames import read_rows

Column = NDArray[np.float64]
Codes = NDArray[np.int64]
_EDGE = 1e-6  # how near 0 and 1 isotonic regression may come: beyond, one surprise costs an infinite log loss
_STEEPEST = 50.0  # largest slope of a temperature or Platt fit
_NEWTON_STEPS = 60
_QUADRATURE = 8  # Gauss-Legendre nodes of the network's integral
_RATE = 5e-3  # the network's first learning rate, falling to 0 as a cosine
_TABLE_RATE = 5e-2  # that of what a context owns, seen so much less often
_HIDDEN_SHARE = 0.1  # of its training rows, those that train the fallback
_PREDICT = 1 << 15  # rows it evaluates together


@dataclass(frozen=True)
class _Rows:
    """Rows to fit: group 0 falls back to the fit of all rows, groups ``1 .. groups`` have a fit of their own."""

    logit: Column
    label: Column
    weight: Column
    group: Codes
    groups: int


class _ByContext(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Context grouping, fallback and the estimator's contract; a subclass fits rows and evaluates logits."""

    def __init__(self, contexts: Sequence[str] = (), *, scale: Scale = "logit", minimum: float = 200) -> None:
        self.contexts = contexts
        self.scale = scale
        self.minimum = minimum

    @abstractmethod
    def _fit(self, rows: _Rows) -> None:
        """Learn one map for all rows and one for each group, into attributes that end in an underscore."""

    @abstractmethod
    def _logit(self, logit: Column, group: Codes) -> Column:
        """Calibrated logit of each row, shape ``[n]``."""

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit scores ``X`` (an array, or a table with the context columns) to binary labels ``y``."""
        logit, context = self._read(X)
        self.classes_, label = np.unique(np.asarray(y), return_inverse=True)
        if len(self.classes_) != 2 or len(label) != len(logit):
            raise InputError(
                f"y: expected {len(logit)} labels of two classes, got {len(label)} of {len(self.classes_)}; "
                "calibration needs both outcomes"
            )
        weight = np.ones(len(logit)) if sample_weight is None else np.asarray(sample_weight, float)
        if weight.shape != logit.shape or not (np.isfinite(weight) & (weight >= 0)).all():
            raise InputError(f"sample_weight: expected {len(logit)} finite numbers >= 0, got others; check the column")
        coded = [encode(context[name], name) for name in self.contexts]
        self._vocabularies = [vocabulary for vocabulary, _ in coded]
        parts, combined = combine([codes for _, codes in coded], [len(v) for v in self._vocabularies], len(logit))
        self._combinations = parts
        positive = np.bincount(combined, weight * label)
        total = np.bincount(combined, weight)
        kept = (total >= self.minimum) & (positive > 0) & (positive < total) & bool(self.contexts)
        self._group = np.where(kept, np.cumsum(kept), 0)  # [combinations]: 0 falls back
        self._fit(_Rows(logit, label.astype(float), weight, self._group[combined], int(kept.sum())))
        return self

    def decision_function(self, X: Any) -> Column:
        """Calibrated logits, shape ``[n]``."""
        check_is_fitted(self, "classes_")
        logit, context = self._read(X)
        return self._logit(logit, self._groups_of(context, len(logit)))

    def predict_proba(self, X: Any) -> Column:
        """Probabilities of the two classes, shape ``[n, 2]``."""
        prob = prob_of(self.decision_function(X))
        return np.stack([1 - prob, prob], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The likelier class of each row, shape ``[n]``."""
        return np.asarray(self.classes_[(self.decision_function(X) > 0).astype(int)])

    def _read(self, X: Any) -> tuple[Column, Mapping[str, Any]]:
        """Logits and context columns."""
        rows = read_rows(X, self.contexts, scale=self.scale)
        return (rows.score if self.scale == "logit" else logit_of(rows.score)), rows.context

    def _groups_of(self, context: Mapping[str, Any], rows: int) -> Codes:
        if not self.contexts:
            return np.zeros(rows, np.int64)
        codes = [lookup(context[n], v, n) for n, v in zip(self.contexts, self._vocabularies, strict=True)]
        known, asked = np.zeros(len(self._group), np.int64), np.zeros(rows, np.int64)
        new = np.zeros(rows, bool)
        for part, code, vocabulary in zip(self._combinations, codes, self._vocabularies, strict=True):
            known, asked = known * len(vocabulary) + part, asked * len(vocabulary) + code.clip(0)
            new |= code < 0
        place = np.searchsorted(known, asked).clip(max=len(known) - 1)
        return np.where(new | (known[place] != asked), 0, self._group[place])


class PlattCalibrator(_ByContext):
    r"""Platt scaling: the calibrated logit is :math:`a + b z`, by regularised maximum likelihood, for each context.

    Labels are smoothed as Platt proposed, :math:`(n_+ + 1)/(n_+ + 2)` and :math:`1/(n_- + 2)`.

    Args:
        contexts: Names of the context columns; none fits all rows together.
        scale: What the scores are.
        minimum: Least total weight of a context with a fit of its own.

    >>> logit = np.linspace(-3, 3, 201)
    >>> PlattCalibrator().fit(logit, logit > 0).predict_proba([0.0]).round(1).tolist()
    [[0.5, 0.5]]
    """

    def _fit(self, rows: _Rows) -> None:
        self.line_ = _lines(rows, smooth=True)  # [1 + groups, 2]: offset and slope

    def _logit(self, logit: Column, group: Codes) -> Column:
        return np.asarray(self.line_[group, 0] + self.line_[group, 1] * logit)


class TemperatureCalibrator(PlattCalibrator):
    r"""Temperature scaling: the calibrated logit is :math:`z / T`, by maximum likelihood, for each context.

    >>> logit = np.array([-2.0, -2.0, -2.0, -2.0])
    >>> TemperatureCalibrator().fit(logit, [0, 0, 0, 1]).predict_proba([-2.0]).round(3).tolist()
    [[0.75, 0.25]]
    """

    def _fit(self, rows: _Rows) -> None:
        self.line_ = _lines(rows, smooth=False)


class PavaCalibrator(_ByContext):
    """Isotonic regression by scikit-learn, for each context; probabilities are kept 1e-6 away from 0 and 1.

    Args:
        contexts: Names of the context columns; none fits all rows together.
        scale: What the scores are.
        minimum: Least total weight of a context with a fit of its own.

    >>> PavaCalibrator().fit([0.0, 1.0, 2.0, 3.0], [0, 1, 0, 1]).predict_proba([1.5])[:, 1].tolist()
    [0.5]
    """

    def _fit(self, rows: _Rows) -> None:
        order = np.argsort(rows.group, kind="stable")
        starts = np.searchsorted(rows.group[order], np.arange(1, rows.groups + 2))
        parts = [np.arange(len(order)), *(order[a:b] for a, b in pairwise(starts))]
        self.steps_: list[tuple[Column, Column]] = []
        for part in parts:
            curve = IsotonicRegression().fit(rows.logit[part], rows.label[part], rows.weight[part])
            self.steps_.append((curve.X_thresholds_, curve.y_thresholds_))

    def _logit(self, logit: Column, group: Codes) -> Column:
        order = np.argsort(group, kind="stable")
        prob = np.empty(len(logit))
        starts = np.searchsorted(group[order], np.arange(len(self.steps_) + 1))
        for (x, y), a, b in zip(self.steps_, starts[:-1], starts[1:], strict=True):
            if a < b:
                prob[order[a:b]] = np.interp(logit[order[a:b]], x, y)
        return logit_of(prob.clip(_EDGE, 1 - _EDGE))


class SmoothedPavaCalibrator(PavaCalibrator):
    r"""Isotonic regression whose blocks are smoothed by half an event: the rate of each is :math:`(n_+ + 1/2)/(n + 1)`.

    Isotonic regression gives 0 below the lowest positive that it was fitted to, so that a positive there costs as much
    log loss as the constant allows that keeps it from 0. Smoothing takes the place of that constant, which helps it.
    Rates of small blocks that would then fall are pooled, as blocks are, so that the curve stays monotone. Half an
    event for every block is more events than there are, so the curve is then shifted on the scale of logits until it
    expects those there are: isotonic regression has the right total, and so has this.

    >>> SmoothedPavaCalibrator().fit([0.0, 1.0, 2.0, 3.0], [0, 1, 0, 1]).predict_proba([0.0, 1.5, 3.0])[:, 1].tolist()
    [0.25, 0.5, 0.75]
    """

    def _fit(self, rows: _Rows) -> None:
        super()._fit(rows)
        for group, (x, y) in enumerate(self.steps_):
            own = rows.group == group if group else slice(None)
            self.steps_[group] = (x, _smoothed(x, y, rows.logit[own], rows.label[own], rows.weight[own]))


def _smoothed(x: Column, y: Column, logit: Column, label: Column, weight: Column) -> Column:
    # the smoothed rate at every edge of a block; edges have the same rate where they are of one block
    block = np.cumsum(np.r_[0, np.diff(y) != 0])  # [edges]
    of_row = block[(np.searchsorted(x, logit, side="right") - 1).clip(0)]
    events, total = np.bincount(of_row, weight * label), np.bincount(of_row, weight)
    rate = (events + 0.5) / (total + 1)
    smooth = logit_of(np.asarray(isotonic_regression(rate, sample_weight=total + 1)[block], float))

    def excess(shift: float) -> float:
        return float(weight @ np.interp(logit, x, prob_of(smooth + shift))) - float(events.sum())

    return prob_of(smooth + float(need("scipy.optimize").brentq(excess, -20, 20)))


class MonotoneNetworkCalibrator(_ByContext):
    r"""An unconstrained monotone network: :math:`a_c + \int_0^z \mathrm{softplus}\,h(t, e_c)\,dt`.

    ``h`` is a small network over the score and an embedding of the context; the integrand is positive whatever its
    weights (Wehenkel and Louppe, 2019). A share of the training rows has its context hidden: what the network learns
    from those is what a new context gets.

    Args:
        contexts: Names of the context columns; none fits all rows together.
        scale: What the scores are.
        minimum: Least total weight of a context with an embedding of its own.
        hidden: Width of the two hidden layers.
        epochs: Passes over the rows.
        batch: Rows a step.
        random_state: Seed of the initial weights, the order of rows and the contexts hidden.

    >>> logit = np.tile(np.linspace(-3, 3, 201), 20)
    >>> fitted = MonotoneNetworkCalibrator(batch=256).fit(logit, np.arange(len(logit)) % 5 == 0)
    >>> bool((np.diff(fitted.decision_function(np.linspace(-9, 9, 50))) > 0).all())
    True
    """

    def __init__(
        self,
        contexts: Sequence[str] = (),
        *,
        scale: Scale = "logit",
        minimum: float = 200,
        hidden: int = 32,
        epochs: int = 6,
        batch: int = 4096,
        random_state: int = 0,
    ) -> None:
        super().__init__(contexts, scale=scale, minimum=minimum)
        self.hidden = hidden
        self.epochs = epochs
        self.batch = batch
        self.random_state = random_state

    def _fit(self, rows: _Rows) -> None:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.random_state)
            middle, spread = rows.logit.mean(), max(rows.logit.std(), 1e-6)
            self.network_ = _MonotoneNetwork(rows.groups + 1, self.hidden, float(middle), float(spread))
            columns = (rows.logit, rows.label, rows.weight / rows.weight.mean())
            tensors = [
                *(torch.tensor(column, dtype=torch.float32) for column in columns),
                torch.as_tensor(rows.group),
            ]
            _train(self.network_, tensors, epochs=self.epochs, batch=self.batch)

    def _logit(self, logit: Column, group: Codes) -> Column:
        parts = np.array_split(np.arange(len(logit)), max(1, -(-len(logit) // _PREDICT)))
        with torch.no_grad():
            out = [self.network_(torch.tensor(logit[p], dtype=torch.float32), torch.as_tensor(group[p])) for p in parts]
        return torch.cat(out).double().numpy()


class _MonotoneNetwork(torch.nn.Module):
    """The integral by Gauss-Legendre quadrature on ``[0, z]``; the identity before training."""

    nodes: Tensor
    masses: Tensor

    def __init__(self, groups: int, hidden: int, middle: float, spread: float) -> None:
        super().__init__()
        nodes, masses = np.polynomial.legendre.leggauss(_QUADRATURE)
        self.register_buffer("nodes", torch.as_tensor((nodes + 1) / 2, dtype=torch.float32))
        self.register_buffer("masses", torch.as_tensor(masses / 2, dtype=torch.float32))
        self.middle, self.spread = middle, spread
        self.offset = torch.nn.Embedding(groups, 1)
        self.context = torch.nn.Embedding(groups, hidden)
        self.score = torch.nn.Linear(1, hidden)
        self.inner = torch.nn.Linear(hidden, hidden)
        self.outer = torch.nn.Linear(hidden, 1)
        for parameter in (self.offset.weight, self.context.weight, self.outer.weight):
            torch.nn.init.zeros_(parameter)
        torch.nn.init.constant_(self.outer.bias, math.log(math.e - 1))  # softplus of it is 1

    def forward(self, logit: Tensor, group: Tensor) -> Tensor:
        z = (logit - self.middle) / self.spread  # [n]
        at = (z[:, None] * self.nodes)[..., None]  # [n, nodes, 1]
        first = torch.nn.functional.silu(self.score(at) + self.context(group)[:, None])  # [n, nodes, hidden]
        slope = torch.nn.functional.softplus(self.outer(torch.nn.functional.silu(self.inner(first)))).squeeze(-1)
        rise = z * (slope @ self.masses) * self.spread
        calibrated: Tensor = rise + self.middle + self.offset(group).squeeze(-1)
        return calibrated


def _train(network: _MonotoneNetwork, tensors: list[Tensor], *, epochs: int, batch: int) -> None:
    rows = len(tensors[0])
    steps = epochs * -(-rows // batch)
    tables = [network.offset.weight, network.context.weight]
    rest = [*network.score.parameters(), *network.inner.parameters(), *network.outer.parameters()]
    groups = [{"params": rest, "lr": _RATE}, {"params": tables, "lr": _TABLE_RATE}]
    optimizer = torch.optim.Adam(groups, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for part in torch.split(torch.randperm(rows), batch):
            logit, label, weight, group = (column[part] for column in tensors)
            shown = group * (torch.rand(len(part)) >= _HIDDEN_SHARE)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(network(logit, shown), label, weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def _lines(rows: _Rows, *, smooth: bool) -> Column:
    # offset and slope of all rows together and of each group, [1 + groups, 2]; unsmoothed lines go through the origin
    own = rows.group > 0
    logit, label, weight, group = rows.logit, rows.label, rows.weight, rows.group
    everything = _newton(logit, label, weight, np.zeros_like(group), smooth=smooth)
    if not rows.groups:
        return everything
    return np.concatenate([everything, _newton(logit[own], label[own], weight[own], group[own] - 1, smooth=smooth)])


def _newton(logit: Column, label: Column, weight: Column, group: Codes, *, smooth: bool) -> Column:
    """Logistic regression of every group at once: Newton steps, halved in the groups whose loss rose."""

    def total(column: Column) -> Column:
        return np.bincount(group, column).astype(float, copy=False)

    positive, all_ = total(weight * label), total(weight)
    high, low = (positive + 1) / (positive + 2), 1 / (all_ - positive + 2)
    target = np.where(label == 1, high[group], low[group]) if smooth else label

    def loss(line: Column) -> Column:
        z = line[group, 0] + line[group, 1] * logit
        return total(weight * (np.logaddexp(0, z) - target * z))

    line = np.tile([0.0, 1.0], (len(all_), 1))
    lowest = loss(line)
    for _ in range(_NEWTON_STEPS):
        prob = prob_of(line[group, 0] + line[group, 1] * logit)
        slack, curvature = weight * (target - prob), weight * prob * (1 - prob)
        moments = [total(curvature * logit**power) for power in range(3)]
        step = _newton_step(total(slack), total(slack * logit), moments, offset=smooth)
        for _ in range(30):
            rose = loss(line + step) > lowest + 1e-12 * all_
            if not rose.any():
                break
            step[rose] /= 2
        line = line + step
        line[:, 1] = line[:, 1].clip(-_STEEPEST if smooth else 1 / _STEEPEST, _STEEPEST)
        lowest = loss(line)
        if np.abs(step).max() < 1e-8:
            break
    return line


def _newton_step(slack: Column, slack_logit: Column, moments: list[Column], *, offset: bool) -> Column:
    # [groups, 2]; moments are the sums of curvature times 1, logit and logit squared
    h0, h1, h2 = moments
    if not offset:
        return np.stack([np.zeros_like(slack), slack_logit / np.maximum(h2, 1e-12)], axis=1)
    ridge = 1e-9 * (h0 + h2) + 1e-12  # one score only leaves the slope open
    h0, h2 = h0 + ridge, h2 + ridge
    steps = np.stack([h2 * slack - h1 * slack_logit, h0 * slack_logit - h1 * slack], axis=1)
    return np.asarray(steps / (h0 * h2 - h1**2)[:, None])
