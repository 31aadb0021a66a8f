"""Diagnostics of a log before training, and of a model after it; every result prints as plain sentences.

    overlap          whether the log identifies the effect of position
    after_training   whether the model is calibrated where items were shown, whether its curves agree with the log,
                     whether the logger was better informed than the features, and which alpha to try

Pure functions of numpy columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.curves.curves import Curves
from isolayer.debias.informed_logger_test import LoggerTest, logger_test
from isolayer.debias.intervention_harvesting import (
    Harvested,
    components,
    effective_rows,
    harvest,
    harvest_table,
    unit_table,
)
from isolayer.debias.logger_score import logger_score, quantile_buckets
from isolayer.errors import InputError
from isolayer.metrics import ObservedOverExpected, observed_over_expected
from isolayer.metrics.rows import Floats, codes, finite, probs
from isolayer.settings import choice, count, instance, mapping

_PRECISE = 0.2  # an effect of position is estimable when its relative standard error is at most this


@dataclass(frozen=True)
class Overlap:
    """Whether a log identifies the effect of position; columns ``[positions]``.

    Args:
        by: What was compared across positions: ``"items"`` or ``"feature cells"``.
        units: Number of items or cells.
        shared_units: Number of those that were shown at several positions.
        shared_rows: Share of the rows that belong to them.
        rows: Number of rows at each position.
        effective_rows: Number of comparisons of each position, see `intervention_harvesting.effective_rows`.
        part: Connected component of each position; within one, units connect the positions.
        harvested: The effect of position, estimated from the shared units.
    """

    by: str
    units: int
    shared_units: int
    shared_rows: float
    rows: Floats
    effective_rows: Floats
    part: NDArray[np.intp]
    harvested: Harvested

    @property
    def connected(self) -> bool:
        """Whether units connect all positions."""
        return bool((self.part == 0).all())

    @property
    def estimable(self) -> bool:
        """Whether the effect of every position has a relative standard error of at most 20%."""
        return self.connected and bool((self.harvested.log_error <= _PRECISE).all())

    def __str__(self) -> str:
        weakest = int(self.effective_rows.argmin())
        position = self.harvested.position
        shared = f"{self.shared_units:,} of {self.units:,} {self.by} were shown at more than one position"
        least = f"Position {position[weakest]} has the fewest comparisons: its {self.rows[weakest]:,.0f} rows"
        lines = [
            f"{shared}: {self.shared_rows:.0%} of the rows.",
            f"{least} count as {self.effective_rows[weakest]:,.0f}.",
        ]
        if not self.connected:
            apart = ", ".join(str(key) for key in position[self.part != 0])
            lines.append(
                f"Nothing connects positions {apart} to position {position[0]}: their effects cannot be compared. "
                "Shuffle a share of the traffic, or give coarser features."
            )
        elif not self.estimable:
            vague = ", ".join(str(key) for key in position[self.harvested.log_error > _PRECISE])
            lines.append(f"The standard errors at positions {vague} are above {_PRECISE:.0%}: use more rows.")
        else:
            low, high = self.harvested.interval()
            lines.append(
                f"The effect of position can be estimated from this log: the rate at position {position[-1]} is "
                f"{self.harvested.ratio[-1]:.3f} of that at position {position[0]} ({low[-1]:.3f} to {high[-1]:.3f})."
            )
        return "\n".join(lines)


def overlap(
    position: Any, label: Any, *, item: Any = None, features: Any = None, cells: int = 200, cluster: Any = None
) -> Overlap:
    """Whether items, or rows with similar features, were shown at several positions, and what follows from it.

    Args:
        position: Where each row was shown, ``[n]``.
        label: 0 or 1, ``[n]``.
        item: What was shown, ``[n]``; or give ``features``.
        features: Shape ``[n, features]``: rows are compared within quantiles of the logger's score, as far as the
            features predict it.
        cells: Number of those quantiles.
        cluster: What rows that vary together share, such as a user or a day, ``[n]``; by default rows are independent.

    >>> result = overlap([0, 1, 2, 2] * 50, [1, 0, 1, 0] * 50, item=["a", "a", "b", "b"] * 50)
    >>> result.connected, result.effective_rows.tolist()
    (False, [25.0, 25.0, 0.0])
    """
    if (item is None) == (features is None):
        raise InputError("overlap: expected item or features, got both or neither; name one column to compare by")
    cells = count("cells", cells, advice="try 200")
    unit = item
    if features is not None:
        score = logger_score(features, position)
        places = len(codes("position", position, len(score))[1])
        unit = quantile_buckets(score, min(cells, max(1, len(score) // (4 * places))))
    shown, events, keys = unit_table(unit, position, label, name="item")
    shared = (shown > 0).sum(1) > 1
    return Overlap(
        "items" if features is None else "feature cells",
        len(shown),
        int(shared.sum()),
        float(shown[shared].sum() / shown.sum()),
        shown.sum(0),
        effective_rows(shown),
        components(shown),
        harvest_table(shown, events, keys) if cluster is None else harvest(unit, position, label, cluster=cluster),
    )


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a trained model on a log.

    Args:
        by_context: Observed over expected by context and score bucket; intervals hold simultaneously.
        by_position: The same by position alone.
        learned: The model's effect of position, rate over that of the first, ``[positions]``; or None.
        harvested: The effect of position harvested from the log, see `overlap`; or None.
        logger: Whether the logger was better informed than the features; None where lists are not known.
        by_combination: Observed over expected by combination of the contexts; None with a single context feature.
        alone: The same by each context feature alone.
    """

    by_context: ObservedOverExpected
    by_position: ObservedOverExpected
    learned: Floats | None
    harvested: Harvested | None
    logger: LoggerTest | None
    by_combination: ObservedOverExpected | None = None
    alone: Mapping[str, ObservedOverExpected] = field(default_factory=dict)

    @property
    def sums_fail(self) -> bool:
        """Whether combinations of contexts differ from 1 although no context alone does: sums cannot express that."""
        if self.by_combination is None or any(_off(table).any() for table in self.alone.values()):
            return False
        return bool(_off(self.by_combination).any())

    @property
    def miscalibrated(self) -> NDArray[np.bool_]:
        """Contexts and score buckets where observed over expected differs from 1, ``[contexts]``."""
        return _off(self.by_context)

    @property
    def curve_differs(self) -> NDArray[np.bool_]:
        """Positions where learned and harvested effect differ by 10% and three standard errors, ``[positions]``."""
        if self.learned is None or self.harvested is None:
            return np.zeros(0, dtype=np.bool_)
        gap = np.abs(np.log(np.maximum(self.learned, 1e-300)) - np.log(self.harvested.ratio))
        return np.asarray((gap > np.maximum(np.log(1.1), 3 * self.harvested.log_error)) & np.isfinite(gap))

    @property
    def alpha(self) -> float:
        """The joint alpha to try: 0 where debiasing is safe."""
        return 0.0 if self.logger is None else self.logger.alpha

    def __str__(self) -> str:
        ratio, off = self.by_context.ratio, self.miscalibrated
        low, high = self.by_position.ratio.min(), self.by_position.ratio.max()
        lines = [f"Observed over expected by position: {low:.2f} to {high:.2f}."]
        if off.any():
            worst = int(np.argmax(np.where(off, np.abs(np.log(np.maximum(ratio, 1e-9))), -1)))
            where = ", ".join(f"{name} {column[worst]}" for name, column in self.by_context.context.items())
            lines.append(
                f"{off.sum()} of {len(off)} contexts and score buckets differ from 1; the worst is {where}: "
                f"{ratio[worst]:.2f} ({self.by_context.lower[worst]:.2f} to {self.by_context.upper[worst]:.2f})."
            )
        else:
            lines.append(f"None of {len(off)} contexts and score buckets differs from 1.")
        if self.sums_fail:
            lines.append(
                "Combinations of contexts differ from 1 although each context alone does not: train with mode='cross'."
            )
        if self.learned is not None and self.harvested is not None:
            names = ", ".join(str(key) for key in self.harvested.position[self.curve_differs])
            lines.append(
                f"The learned effect of position differs from the harvested one at positions {names}: train longer, or "
                "check that curves learn at ten times the backbone's rate."
                if names
                else "The learned effect of position agrees with the one harvested from the log."
            )
        lines.append("No lists were given, so the logger was not tested." if self.logger is None else str(self.logger))
        return "\n".join(lines)


def after_training(
    label: Any,
    observed_prob: Any,
    relevance_logit: Any,
    context: Mapping[str, Any],
    *,
    session: Any = None,
    features: Any = None,
    learned: Any = None,
    buckets: int = 5,
    cluster: Any = None,
) -> Diagnosis:
    """Diagnose one task of a trained model, preferably on rows it was not trained on.

    Args:
        label: 0 or 1, ``[n]``.
        observed_prob: The model's probability of the label in the context it was shown in, ``[n]``.
        relevance_logit: The logit that the model ranks by, ``[n]``.
        context: Columns ``[n]`` of each context feature, ``"position"`` among them.
        session: The list that each row belongs to, ``[n]``, to test the logger.
        features: The model's features, ``[n, features]``, to test the logger and to harvest the effect of position.
        learned: The model's effect of position, see `position_effect`, to compare with the harvested one.
        buckets: Quantiles of the relevance logit by which observed over expected is shown.
        cluster: What rows that vary together share, such as a user or a day, ``[n]``; by default rows are independent.
    """
    prob, position = probs(observed_prob, "observed_prob"), _position(context)
    buckets = count("buckets", buckets, advice="5 is usual")
    learned = None if learned is None else finite("learned", learned)
    crossed = dict(context) | {"score_bucket": quantile_buckets(finite("relevance_logit", relevance_logit), buckets)}
    seen = overlap(position, label, features=features, cluster=cluster).harvested if features is not None else None
    if learned is not None and seen is not None and len(learned) != len(seen.position):
        raise InputError(f"learned: expected {len(seen.position)} positions, got {len(learned)}; align them")
    return Diagnosis(
        _at_once(label, prob, crossed, cluster),
        observed_over_expected(label, prob, position, cluster=cluster),
        learned,
        seen,
        None
        if session is None
        else logger_test(label, prob, relevance_logit, position, session, features=features, cluster=cluster),
        _at_once(label, prob, context, cluster) if len(context) > 1 else None,
        {name: _at_once(label, prob, {name: ids}, cluster) for name, ids in context.items()},
    )


def _at_once(label: Any, prob: Floats, context: Mapping[str, Any], cluster: Any) -> ObservedOverExpected:
    """Observed over expected by context, with intervals that hold simultaneously."""
    cells = len(observed_over_expected(label, prob, context).ratio)
    return observed_over_expected(label, prob, context, level=1 - 0.05 / cells, cluster=cluster)


def _off(table: ObservedOverExpected) -> NDArray[np.bool_]:
    """Where observed over expected differs from 1."""
    return np.asarray((table.lower > 1) | (table.upper < 1))


def position_effect(curves: Curves, event_logit: Any, context: Mapping[str, Any], *, task: str = "click") -> Floats:
    """A model's effect of position: the mean rate if every row were shown at a position, over that at the first.

    Args:
        curves: The bias curves of a model, from `DualHead.curves`.
        event_logit: The relevance logit of each row (negated for a decreasing task), ``[n]``.
        context: Columns ``[n]`` of each context feature, ``"position"`` among them.
        task: Which of the curves.
    """
    logit = finite("event_logit", event_logit)
    instance("curves", curves, Curves, advice="use DualHead.curves")
    if curves.contexts[:1] == ("task",):
        choice("task", task, [str(name) for name in curves.keys[1][0]], advice="name a task of the model")
    rates = []
    for position in codes("position", _position(context), len(logit))[1]:
        moved = dict(context) | {"position": np.full(len(logit), position), "task": np.full(len(logit), task)}
        rates.append(float(curves.predict_proba(logit, moved).mean()))
    return np.asarray(rates) / rates[0]


def _position(context: Mapping[str, Any]) -> Any:
    """The column of positions."""
    if "position" not in mapping("context", context, advice="give columns by name, 'position' among them"):
        raise InputError(f"context: expected a column 'position', got {sorted(context)}; rename or add it")
    return context["position"]
