r"""Counterfactual evaluation: the clicks that a new ranking of logged lists would get, by `evaluate`.

The learned curves say how likely an item of relevance r is clicked at every position, :math:`P_k(r) = \sigma(f_k(r))`,
so a policy that places it at position k with probability :math:`\pi_k` expects :math:`E_\pi(r) = \sum_k \pi_k P_k(r)`
clicks from it. Clicks that were logged under the old policy count for the new one by the ratio
:math:`w = E_{new}(r) / E_{old}(r)`. Under position bias relevance cancels in it; under trust bias it does not, which is
why the curves and not one number per position are the propensities.

Weights are ratios of the same expectations, so a correction by the curves (doubly robust) would cancel exactly. The
clicks that the curves alone expect are reported next to the value, as a check: if they are outside its interval,
there is a warning, `EstimatesDisagree`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from isolayer.curves.curves import Curves
from isolayer.debias.boosters import Floats
from isolayer.debias.curve_learners import Ids, network_relevance
from isolayer.errors import InputError
from isolayer.fitting.columns import array_of, numbers, same_length, some, whole
from isolayer.metrics.rows import codes, labels, summed
from isolayer.settings import confidence, instance, mapping, names, number, text
from isolayer.settings import seed as checked_seed

_LEAST_LISTS, _TO_LEARN = 20, 100  # least number of lists, with known curves and with curves that are learned
_MOST_POSITIONS = 1000  # for which curves are learned: the value of every row at each of them is kept
_FEW_PERCENT = 0.05  # learned curves err by as much, however large the log is


class EstimatesDisagree(UserWarning):
    """The value of a new ranking and the clicks that the curves alone expect differ beyond chance; one is wrong."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    r"""Expected clicks per list of a new ranking, and how much information the log has about it.

    Args:
        value: Clicks per list, by weighting the logged clicks.
        modelled: Clicks per list that the curves alone expect; far from ``value`` if curves or relevance are wrong,
            or if the new ranking knows more about relevance than they do.
        logged: Clicks per list that were logged.
        standard_error: Standard error of ``value``, from the variation between lists; the curves are treated as known.
        effective_rows: Number of rows of equal weight with as much information, :math:`(\sum w)^2 / \sum w^2`.
        rows: Number of logged rows.
        lists: Number of logged lists.
    """

    value: float
    modelled: float
    logged: float
    standard_error: float
    effective_rows: float
    rows: int
    lists: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the value, from the variation between lists."""
        reach = NormalDist().inv_cdf((1 + confidence(level)) / 2) * self.standard_error
        return self.value - reach, self.value + reach

    def __str__(self) -> str:
        low, high = self.interval()
        return (
            f"{self.value:.3f} clicks per list ({low:.3f} to {high:.3f}), logged {self.logged:.3f}: "
            f"{self.value / self.logged - 1:+.1%}. {self.effective_rows:,.0f} effective of {self.rows:,} rows; "
            f"the curves alone expect {self.modelled:.3f}."
        )


def evaluate(
    log: Mapping[str, Any],
    old: Any,
    new: Any,
    *,
    curves: Curves | None = None,
    relevance: str = "relevance",
    contexts: Sequence[str] = ("position",),
    label: str = "click",
    session: str = "session",
    least_share: float = 0.05,
    seed: int = 0,
) -> Evaluation:
    """Expected clicks per list if the logged lists had been ranked by a new policy, from the clicks of the old one.

    The new ranking must not know more about relevance than the features, or the relevance logits, of the log. If it
    does, the items at its top are more relevant than the model expects, and under trust bias the weights of their
    clicks are wrong, by several percent for a ranking by true relevance. There is a warning, `EstimatesDisagree`, if
    the clicks that the curves alone expect are outside the 95% interval of the value, and differ from it by more than
    5%. Intervals treat the curves as known; the study of off-policy evaluation shows how often those of learned curves
    cover the truth.

    Args:
        log: Columns of logged rows: the label, the list, the contexts, and either relevance logits that belong to
            ``curves`` or ``features`` ``[n, features]``, from which both are learned.
        old: Where the logging policy puts each row: 0-based positions ``[n]`` as logged, or, if it draws lists,
            probabilities of every position ``[n, positions]``, which make weights smaller; see
            `isolayer.policy.placement_prob`.
        new: Where the new policy puts each row, likewise; `isolayer.policy.ranked_positions` sorts lists by a score.
        curves: Bias curves by position, such as those of `DualHead.curves`; by default they are learned from the log.
        relevance: Column of relevance logits; read only if ``curves`` are given.
        contexts: Columns of the bias features, ``"position"`` first; read only if ``curves`` are not given.
        label: Column of clicks.
        session: Column of lists.
        least_share: Refuse if the effective rows are a smaller share of the rows.
        seed: Seed of the network that learns curves.

    Raises:
        InputError: If the log does not determine the clicks of the new ranking: too few effective rows, or positions
            that the curves do not have.

    >>> from isolayer.policy import ranked_positions
    >>> from isolayer.simulate import debias_feed
    >>> log = debias_feed("position").log(500, seed=1)
    >>> new = ranked_positions(log["features"][:, 11], log["session"])
    >>> result = evaluate(log, log["position"], new)
    >>> low, high = result.interval()
    >>> low < result.value < high
    True
    """
    given = mapping("log", log, advice="give columns by name")
    clicked = some("label", labels(_column(given, text("label", label, advice="name the column of clicks"))))
    list_, lists = codes(
        session, _column(given, text("session", session, advice="name the column of lists")), len(clicked)
    )
    least_share = number("least_share", least_share, 0, 1, ends="[)", advice="0.05 is usual")
    least = _TO_LEARN if curves is None else _LEAST_LISTS
    if len(lists) < least:
        raise InputError(f"log: expected at least {least} lists, got {len(lists)}; use more rows")
    if not clicked.any():
        raise InputError(f"{label}: expected some clicks, got none; check the column, or use more rows")
    learned = curves is None
    if curves is None:
        curves, score = _learned(given, clicked, contexts, checked_seed("seed", seed))
    else:
        instance("curves", curves, Curves, advice="use DualHead.curves, or leave it out to learn them")
        score = numbers(relevance, _column(given, text("relevance", relevance, advice="name a column")), len(clicked))
    prob = click_probs(curves, score, given, len(clicked))
    was, will_be = (_placement(name, places, *prob.shape) for name, places in (("old", old), ("new", new)))
    _check_old(old, given)
    if learned:
        _refuse_unseen(given["position"], will_be)
    before, after = (was * prob).sum(1), (will_be * prob).sum(1)
    found = _estimate(clicked, before, after, list_, len(lists), least_share)
    if doubt := _doubt(found):
        warnings.warn(doubt, EstimatesDisagree, stacklevel=2)
    return found


def _doubt(found: Evaluation) -> str | None:
    """Why the value may be wrong, in words; None if the two estimates agree."""
    low, high = found.interval()
    if low <= found.modelled <= high or math.isclose(found.value, found.modelled, rel_tol=_FEW_PERCENT):
        return None
    return (
        f"evaluate: the curves alone expect {found.modelled:.3f} clicks per list, which is outside the 95% interval of "
        f"the value, {low:.3f} to {high:.3f}, so at least one of the two is wrong. Most often the new ranking knows "
        "more about relevance than the features of the log: add what it uses to the features, or evaluate a ranking by "
        "the features. Otherwise rely on an A/B test"
    )


def _estimate(clicked: Floats, before: Floats, after: Floats, list_: Any, lists: int, least_share: float) -> Evaluation:
    weight = after / before
    effective = float(weight.sum() ** 2 / (weight**2).sum())
    if effective < least_share * len(clicked):
        raise InputError(
            f"overlap: expected enough effective rows to evaluate the new ranking, got {effective:,.0f} of "
            f"{len(clicked):,} rows, less than the least share of {least_share:.0%}; the new policy shows items at the "
            "top that the old one hid: try a ranking that is closer to the logged one, or randomise some traffic first"
        )
    gain = summed(list_, weight * clicked, lists)
    return Evaluation(
        value=float(gain.mean()),
        modelled=float(after.sum() / lists),
        logged=float(clicked.sum() / lists),
        standard_error=float(gain.std(ddof=1) / math.sqrt(lists)),
        effective_rows=effective,
        rows=len(clicked),
        lists=lists,
    )


def click_probs(curves: Curves, relevance_logit: Floats, columns: Mapping[str, Any], rows: int) -> Floats:
    """Probability of a click on each row at every position of the curves, ``[n, positions]``.

    Args:
        curves: Bias curves, with a context ``"position"``.
        relevance_logit: Relevance of each row, ``[n]``.
        columns: The other contexts of the curves.
        rows: Number of rows.
    """
    if "position" not in curves.contexts:
        raise InputError(f"curves: expected a context 'position', got {list(curves.contexts)}; fit them by position")
    depth = curves.contexts.index("position")
    places = np.unique(curves.keys[depth + 1][depth])
    if not np.array_equal(places, np.arange(len(places))):
        raise InputError("curves: expected positions 0, 1, 2, ..., got something else; number them from 0")
    context = {name: _context(curves, columns, name, rows) for name in curves.contexts if name != "position"}
    found = np.empty((rows, len(places)))
    for place in range(len(places)):
        at = {name: np.full(rows, place) if name == "position" else context[name] for name in curves.contexts}
        found[:, place] = curves.predict_proba(relevance_logit, at)
    return found


def _context(curves: Curves, columns: Mapping[str, Any], name: str, rows: int) -> Any:
    if name == "task":
        return np.repeat(curves.keys[1][0][0], rows)
    return array_of(name, _column(columns, name))


def _placement(name: str, places: Any, rows: int, positions: int) -> Floats:
    """Probability of every position for each row, ``[n, positions]``."""
    given = array_of(name, places)
    if given.ndim != 2:
        return np.eye(positions)[whole(name, given, positions, rows)]
    share = numbers(name, given, dims=2)
    same_length(name, len(share), rows)
    if share.shape[1] != positions or share.min() < 0 or np.abs(share.sum(1) - 1).max() > 1e-6:
        raise InputError(
            f"{name}: expected probabilities of {positions} positions that add up to 1 in each row, got an array of "
            f"shape {list(share.shape)}; use policy.placement_prob with all positions"
        )
    return share


def _check_old(old: Any, log: Mapping[str, Any]) -> None:
    """Raise if the logged positions are given and differ from those of the log, as when old and new are swapped."""
    given = array_of("old", old)
    if given.ndim == 1 and "position" in log and not np.array_equal(given, array_of("position", log["position"])):
        raise InputError(
            "old: expected the positions of the log, got others; give log['position'], or the probability of every "
            "position, and the new ranking after it"
        )


def _refuse_unseen(logged: Any, placement: Floats) -> None:
    """Raise if rows are placed at positions that no logged row has: nothing is learned about these."""
    unseen = np.setdiff1d(np.flatnonzero(placement.any(0)), array_of("position", logged))
    if len(unseen):
        raise InputError(
            f"new: expected positions of logged rows, got {unseen[0]}, at which none was logged; number positions "
            "without gaps, or give curves that have them all"
        )


def _learned(log: Mapping[str, Any], clicked: Floats, contexts: Any, seed: int) -> tuple[Curves, Floats]:
    wanted = names("contexts", contexts, advice="name columns of the log, 'position' among them")
    if "position" not in wanted:
        raise InputError(f"contexts: expected 'position' among them, got {list(wanted)}; add it")
    features = numbers("features", _column(log, "features"), len(clicked), dims=2)
    ids: dict[str, Ids] = {name: whole(name, _column(log, name), 1 << 20, len(clicked)) for name in wanted}
    highest = int(ids["position"].max())
    if highest >= _MOST_POSITIONS:
        raise InputError(
            f"position: expected at most {_MOST_POSITIONS} positions, got {highest}; number them from 0 without gaps"
        )
    sizes = {name: int(column.max()) + 1 for name, column in ids.items()}
    return network_relevance(features, clicked, ids, sizes, np.ones(len(clicked)), seed)


def _column(log: Mapping[str, Any], name: str) -> Any:
    if name not in log:
        raise InputError(f"log: expected a column {name!r}, got {sorted(map(str, log))}; add or rename it")
    return log[name]
