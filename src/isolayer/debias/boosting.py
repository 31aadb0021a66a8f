r"""Boosted trees without position bias: `BoostedRanker`, LightGBM or XGBoost through frozen bias curves.

The trees give relevance :math:`r(x)`, and the log is explained by a monotone curve over it per context,
:math:`\hat y = \sigma(f_c(r))`, as in `DualHead`. The curves are learned first (see `curve_learners`) and stay as they
are while the trees grow along the gradient :math:`(p - y)\,s` with Hessian :math:`p (1 - p) \max(s^2, .05)`, where
:math:`s \in [.1, 4]` is the slope of the curve. What is served is the plain booster and one more curve.

A click is a noisy label, and through a curve even more so. The network that learned the curves also has an estimate for
each row, so the trees are trained on a mixture of the two, :math:`y' = (1 - t)\,y + t\,\hat y_{network}`, which is
distillation.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.curves.evaluation import prob_of
from isolayer.debias.boosters import (
    ENGINES,
    FILES,
    LEAF_ROWS,
    Floats,
    Objective,
    Trees,
    raw_scores,
    read_booster,
    width,
)
from isolayer.debias.curve_learners import TASK, Ids, centred, network_relevance, out_of_fold_curves
from isolayer.errors import InputError
from isolayer.fitting.columns import numbers, some, whole
from isolayer.fitting.histogram import Histogram
from isolayer.grid import Grid, Spread
from isolayer.metrics import rows
from isolayer.nn.inputs import context_sizes
from isolayer.settings import choice, count, mapping, number
from isolayer.settings import path as checked_path
from isolayer.settings import seed as checked_seed
from isolayer.storage import read_set, whole_files

_SLOPES = (0.1, 4.0)  # bounds of a curve's slope in the gradient
_LEAST_SQUARE = 0.05  # least squared slope in the Hessian, so that steps of leaves stay bounded where a curve is flat
_LEAST_ROWS = 3 * LEAF_ROWS  # two thirds of these rows, from which each fold is learned, are enough for two leaves
_NEAR = 0.05  # half the distance over which a slope is measured
_CHUNK = 1 << 15  # rows whose gradients are computed together, so that what is in between stays in cache
_TEACHER = "0.5 is usual, 0 is labels alone"
_SERVED, _BIAS, _MANIFEST = "served.parquet", "bias.parquet", "manifest.json"


class BoostedRanker:
    """Boosted trees that rank by relevance, learned from biased clicks.

    Args:
        contexts: Name and number of ids of each bias feature.
        engine: ``"lightgbm"`` or ``"xgboost"``.
        curves: Where the bias curves come from: ``"network"``, a small `DualHead` over the same features; ``"trees"``,
            trees with intercepts in folds, and then an exact fit; or `Curves` that are known, such as those of a
            `DualHead` of your own.
        teacher: Share of the network's probability in the labels that the trees learn from; the rest is the label
            itself. By default 0.5 with ``curves="network"``, and 0 with others, which have no network. 0 learns from
            labels alone: use it if trees predict your log better than networks do.
        rounds: Number of trees.
        learning_rate: Step of each tree.
        leaves: Most leaves of a tree.
        l2: Penalty on the values of leaves, in units of the Hessian; clicks through curves are noisy, so it is large.
        seed: Seed of the network, the folds and the booster.

    Attributes:
        booster: The `lightgbm.Booster` or `xgboost.Booster`; its raw scores are relevance.

    >>> from isolayer.simulate import debias_feed
    >>> log = debias_feed("position").log(300, seed=1)
    >>> context = {"position": log["position"], "device": log["device"]}
    >>> ranker = BoostedRanker({"position": 10, "device": 3}, rounds=5)
    >>> relevance = ranker.fit(log["features"], log["click"], context).predict(log["features"])
    >>> relevance.shape, ranker.predict_proba(log["features"]).shape
    ((3000,), (3000, 2))
    """

    booster: Any

    def __init__(
        self,
        contexts: Mapping[str, int],
        *,
        engine: Literal["lightgbm", "xgboost"] = "lightgbm",
        curves: Literal["network", "trees"] | Curves = "network",
        teacher: float | None = None,
        rounds: int = 200,
        learning_rate: float = 0.1,
        leaves: int = 15,
        l2: float = 100.0,
        seed: int = 0,
    ) -> None:
        self.contexts = context_sizes(contexts)
        if not self.contexts:
            raise InputError("contexts: expected at least one feature, got none; without bias use the engine itself")
        self.engine = choice("engine", engine, list(ENGINES))
        self.learned = curves if isinstance(curves, Curves) else choice("curves", curves, ("network", "trees"))
        self.teacher = self._checked_teacher(teacher)
        self.trees = Trees(
            count("rounds", rounds, advice="200 is usual"),
            number("learning_rate", learning_rate, 0, 1, ends="(]", advice="0.1 is usual"),
            count("leaves", leaves, 2, advice="15 is usual"),
            number("l2", l2, 0, ends="[)", advice="100 is usual"),
            checked_seed("seed", seed),
        )

    def _checked_teacher(self, teacher: float | None) -> float:
        usual = 0.5 if self.learned == "network" else 0.0
        share = usual if teacher is None else number("teacher", teacher, 0, 1, ends="[]", advice=_TEACHER)
        if share and not usual:
            raise InputError(
                f"teacher: expected curves='network', since others have no network to learn from, got {share}; leave "
                "it out"
            )
        return share

    def fit(
        self, features: Any, label: Any, context: Mapping[str, Any], *, lists: Any = None, weight: Any = None
    ) -> Self:
        """Learn the curves, then the trees through them, then the curve of the served probability.

        Args:
            features: What relevance may depend on, ``[n, features]``.
            label: 0 or 1, ``[n]``.
            context: Ids ``[n]`` of each bias feature.
            lists: The list of each row, ``[n]``: with ``curves="trees"`` a list is in one fold. By default each row is
                a list.
            weight: Weight of each row, ``[n]``.
        """
        y = some("label", rows.labels(label))
        x = numbers("features", features, len(y), dims=2)
        if len(y) < _LEAST_ROWS:
            raise InputError(f"label: expected at least {_LEAST_ROWS} rows, got {len(y)}; use more rows")
        if not np.ptp(x, axis=0).any():
            raise InputError("features: expected at least one that varies, got constants only; check the columns")
        ids, w = self._ids(context, len(y)), rows.weights(weight, len(y))
        rows.both_classes(float(w @ y), float(w.sum()), "fit")
        together = np.arange(len(y)) if lists is None else rows.codes("lists", lists, len(y))[0]
        found, relevance = self._learn(x, y, ids, w, together)
        at = found.rows_of(_columns_of(found, ids), len(y))
        self._bias = centred(found, at, y, w)
        target = y
        if relevance is not None:
            target = (1 - self.teacher) * y + self.teacher * prob_of(found.evaluate(at, relevance))
        grown = ENGINES[self.engine](x, self.trees)
        grown.grow(through(self._bias, at, target, w), self.trees.rounds)
        self.booster = grown.booster
        relevance = grown.raw_of_own()
        grid = Grid.covering(Spread.of(relevance, w))
        self._served = Curves.from_histogram(Histogram.from_arrays(relevance, y, weight=w, grid=grid), strict=False)
        return self

    def _learn(
        self, x: Floats, y: Floats, ids: Mapping[str, Ids], w: Floats, lists: Ids
    ) -> tuple[Curves, Floats | None]:
        """The bias curves, and the relevance of each row according to the network, if there is one."""
        if isinstance(self.learned, Curves):
            return self.learned, None
        if self.learned == "network":
            return network_relevance(x, y, ids, self.contexts, w, self.trees.seed)
        return out_of_fold_curves(x, y, ids, w, lists, self.engine, self.trees), None

    def _ids(self, context: Mapping[str, Any], length: int) -> dict[str, Ids]:
        given = mapping("context", context, advice="give ids of each feature")
        for name in self.contexts:
            if name not in given:
                raise InputError(f"context: expected ids for {name!r}, got keys {sorted(given)}; add them")
        return {name: whole(f"context {name!r}", given[name], size, length) for name, size in self.contexts.items()}

    def predict(self, features: Any) -> Floats:
        """Relevance of each row, ``[n]``, to rank by: a logit, 0 for the average item."""
        x = numbers("features", features, dims=2)
        wanted = width(self._fitted())
        if x.shape[1] != wanted:
            raise InputError(
                f"features: expected {wanted} columns, as in fit, got {x.shape[1]}; give the same features"
            )
        return raw_scores(self.booster, x)

    def predict_proba(self, features: Any) -> Floats:
        """Probabilities of no event and of an event on logged traffic, not knowing the context, ``[n, 2]``."""
        prob = self.curves("calibration").predict_proba(self.predict(features))
        return np.column_stack([1 - prob, prob])

    def curves(self, kind: Literal["bias", "calibration"] = "bias") -> Curves:
        """Curves over relevance: ``"bias"``, to what was observed in each context; ``"calibration"``, what is served.

        >>> from isolayer.simulate import debias_feed
        >>> log = debias_feed("position").log(300, seed=1)
        >>> ranker = BoostedRanker({"position": 10}, rounds=5, curves="trees")
        >>> ranker.fit(log["features"], log["click"], {"position": log["position"]}).curves().contexts
        ('position',)
        """
        choice("kind", kind, ("bias", "calibration"))
        self._fitted()
        return self._bias if kind == "bias" else self._served

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the booster as its engine does, ``booster.txt`` or ``.json``, and both curves, all or nothing."""
        booster, at = self._fitted(), Path(checked_path("folder", folder))
        at.mkdir(parents=True, exist_ok=True)
        names = (FILES[self.engine], _SERVED, _BIAS)
        with whole_files(*(at / name for name in names), manifest=at / _MANIFEST, name="folder") as parts:
            # XGBoost chooses the format by the name of the file, which is temporary here.
            if self.engine == "lightgbm":
                parts[0].write_text(booster.model_to_string())
            else:
                parts[0].write_bytes(bytes(booster.save_raw("json")))
            self._served.save(parts[1])
            self._bias.save(parts[2])

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> BoostedRanker:
        """Read what `save` wrote: it predicts the same, and can be fitted again with the default settings."""
        at = Path(checked_path("folder", folder))
        content = read_set(at / _MANIFEST)
        engine: Any = next((name for name, file in FILES.items() if file in content), None)
        if engine is None:
            raise InputError(f"folder: expected a booster in {str(at)!r}, got {sorted(content)}; save it again")
        bias = Curves.load(at / _BIAS)
        sizes = {
            name: int(np.max(bias.keys[-1][place])) + 1 for place, name in enumerate(bias.contexts) if name != "task"
        }
        ranker = cls(sizes, engine=engine)
        ranker.booster = read_booster(engine, at / FILES[engine])
        ranker._bias, ranker._served = bias, Curves.load(at / _SERVED)
        return ranker

    def _fitted(self) -> Any:
        if not hasattr(self, "booster"):
            raise InputError("ranker: expected a fitted one, got one without trees; call fit first")
        return self.booster


def through(curves: Curves, at: Ids, label: Floats, weight: Floats) -> Objective:
    """The log loss of trees through frozen curves.

    Args:
        curves: Bias curves.
        at: Row of their table for each row, ``[n]``.
        label: Labels, ``[n]``.
        weight: Weights, ``[n]``.
    """

    def objective(raw: Floats) -> tuple[Floats, Floats]:
        gradient, hessian = np.empty(len(raw)), np.empty(len(raw))
        for start in range(0, len(raw), _CHUNK):
            part = slice(start, start + _CHUNK)
            row, x, w = at[part], raw[part], weight[part]
            prob = prob_of(curves.evaluate(row, x))
            slope = curves.evaluate(row, x + _NEAR)
            slope -= curves.evaluate(row, x - _NEAR)
            slope /= 2 * _NEAR
            np.clip(slope, *_SLOPES, out=slope)
            gradient[part] = w * (prob - label[part]) * slope
            hessian[part] = w * prob * (1 - prob) * np.maximum(slope**2, _LEAST_SQUARE)
        return gradient, hessian

    return objective


def _columns_of(curves: Curves, ids: Mapping[str, Ids]) -> dict[str, Any]:
    """The context columns of the curves; curves of a model also have the task."""
    length = len(next(iter(ids.values())))
    missing = [name for name in curves.contexts if name not in ids and name != "task"]
    if missing:
        raise InputError(f"curves: expected contexts among {sorted(ids)}, got {missing} too; add them to contexts")
    task = curves.keys[1][0][0] if "task" in curves.contexts else TASK
    return {name: np.repeat(task, length) if name == "task" else ids[name] for name in curves.contexts}
