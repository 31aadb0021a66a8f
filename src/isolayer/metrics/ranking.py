"""How well scores rank rows: AUC, its change against a baseline, GAUC, nDCG. Only the order of scores counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from isolayer.errors import InputError
from isolayer.metrics.bins import auc_of_ties
from isolayer.metrics.rows import (
    Codes,
    Floats,
    codes,
    finite,
    refuse_swapped,
    same_length,
    scored_rows,
    summed,
    weights,
)
from isolayer.metrics.sums import MeanSums, over
from isolayer.settings import choice, count, mapping


def auc(label: Any, score: Any, weight: Any = None) -> float:
    r"""Area under the ROC curve: the chance that a positive outscores a negative, ties counting one half.

    :math:`\sum_{i: y=1} \sum_{j: y=0} w_i w_j ([s_i > s_j] + [s_i = s_j]/2) / (W_1 W_0)`. A soft label counts
    as that share of a positive row and the rest of a negative. Needs both classes.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    y, s, w = scored_rows(label, finite("score", score), weight)
    order = np.argsort(s)
    s = s[order]
    positive = (w * y)[order]
    negative = w[order] - positive
    start = np.flatnonzero(np.r_[True, s[1:] != s[:-1]])
    if len(start) < len(s):
        positive, negative = np.add.reduceat(positive, start), np.add.reduceat(negative, start)
    return auc_of_ties(positive, negative)


def delta_auc_percent(
    label: Any, score: Any, baseline_score: Any, weight: Any = None, *, against: Literal["auc", "chance"] = "auc"
) -> float:
    """Change of AUC against a baseline in percent.

    ``against="auc"``: ``100 (AUC / AUC_baseline - 1)``, the paper's tables. ``against="chance"``: RelaImpr of ads
    papers, ``100 ((AUC - .5) / (AUC_baseline - .5) - 1)``, which is larger.

    >>> delta_auc_percent([0, 0, 1, 1], [1, 2, 3, 4], [1, 3, 2, 4])
    33.33333333333333
    >>> delta_auc_percent([0, 0, 1, 1], [1, 2, 3, 4], [1, 3, 2, 4], against="chance")
    100.0
    """
    floor = {"auc": 0.0, "chance": 0.5}[choice("against", against, ("auc", "chance"))]
    base = auc(label, baseline_score, weight) - floor
    if base <= 0:
        raise InputError(
            f"baseline AUC: expected above {floor}, got {base + floor}; a relative change needs a baseline"
        )
    return 100 * ((auc(label, score, weight) - floor) / base - 1)


def delta_auc_percent_by_task(
    label: Mapping[str, Any], score: Mapping[str, Any], baseline_score: Mapping[str, Any], weight: Any = None
) -> dict[str, float]:
    """``delta_auc_percent`` of every task in ``score``.

    >>> delta_auc_percent_by_task({"like": [0, 1]}, {"like": [0, 1]}, {"like": [0, 0]})
    {'like': 100.0}
    """
    given = {"score": score, "baseline_score": baseline_score, "label": label}
    for name, columns in given.items():
        mapping(name, columns, advice="give a column for each task")
        missing = sorted(set(score) - set(columns))
        if missing:
            raise InputError(f"{name}: expected every task of score, got none for {missing}; add these columns")
    return {task: delta_auc_percent(label[task], score[task], baseline_score[task], weight) for task in score}


def gauc(label: Any, score: Any, group: Any, weight: Any = None) -> float:
    r"""GAUC: AUC within each group (user, query), averaged by the group's weight (Zhu et al. 2017, Zhou et al. 2018).

    :math:`\sum_g W_g AUC_g / \sum_g W_g` over the groups that hold both classes, :math:`W_g` their impressions. Some
    papers weight by clicks instead.

    >>> gauc([0, 1, 0, 1], [0.1, 0.9, 0.5, 0.4], ["ann", "ann", "bob", "bob"])
    0.5
    """
    return gauc_sums(label, score, group, weight).mean


def gauc_sums(label: Any, score: Any, group: Any, weight: Any = None) -> MeanSums:
    """The mergeable sums of :func:`gauc`, for batches that hold whole groups.

    >>> (gauc_sums([0, 1], [0, 1], [0, 0]) + gauc_sums([0, 1], [1, 0], [7, 7])).mean
    0.5
    """
    y, s, w = scored_rows(label, finite("score", score), weight)
    code, key = codes("group", group, len(s))
    order = np.lexsort((s, code))
    s, code = s[order], code[order]
    positive = (w * y)[order]
    negative = w[order] - positive
    start = _starts(code, s)
    owner, groups = code[start], len(key)
    positive, negative = np.add.reduceat(positive, start), np.add.reduceat(negative, start)
    all_positive, all_negative = (summed(owner, column, groups) for column in (positive, negative))
    before = np.cumsum(all_negative) - all_negative  # negatives of earlier groups
    below = np.cumsum(negative) - 0.5 * negative - before[owner]
    pairs = all_positive * all_negative
    group_auc = over(summed(owner, positive * below, groups), pairs)
    total = np.where(pairs > 0, all_positive + all_negative, 0.0)
    return MeanSums(float(np.nansum(group_auc * total)), float(total.sum()))


def ndcg(
    grade: Any,
    score: Any,
    query: Any,
    weight: Any = None,
    *,
    k: int | None = 10,
    gain: Literal["exponential", "linear"] = "exponential",
    empty: Literal["skip", "zero", "one"] = "skip",
) -> float:
    r"""Mean over queries of nDCG@k: DCG of the ranking by score over DCG of the ideal one.

    :math:`DCG@k = \sum_{r=0}^{k-1} g(y_r) / \log_2(r + 2)` with gain :math:`2^y - 1` (Burges et al. 2005) or
    :math:`y` (Järvelin and Kekäläinen 2002). Tied scores share their mean gain, as if shuffled. A query without a
    relevant document has no ideal: ``empty`` skips it, or counts it as 0 or 1; papers differ. ``weight`` is a weight
    per query, the same on all its rows; ``k=None`` takes whole lists.

    >>> round(ndcg([0, 1, 0], [3, 2, 1], ["q", "q", "q"]), 4)
    0.6309
    """
    return ndcg_sums(grade, score, query, weight, k=k, gain=gain, empty=empty).mean


def ndcg_sums(
    grade: Any,
    score: Any,
    query: Any,
    weight: Any = None,
    *,
    k: int | None = 10,
    gain: Literal["exponential", "linear"] = "exponential",
    empty: Literal["skip", "zero", "one"] = "skip",
) -> MeanSums:
    """The mergeable sums of :func:`ndcg`, for batches that hold whole queries.

    >>> (ndcg_sums([1, 0], [2, 1], [0, 0]) + ndcg_sums([0, 0], [2, 1], [1, 1], empty="zero")).mean
    0.5
    """
    choice("gain", gain, ("exponential", "linear"))
    choice("empty", empty, ("skip", "zero", "one"))
    if k is not None:
        k = count("k", k, advice="or None for whole lists")
    y, s = finite("grade", grade, booleans=True), finite("score", score)
    same_length("grade", y, len(s))
    if gain == "exponential":
        refuse_swapped("grade", y, "score", s, largest=4)
    if y.min() < 0:
        raise InputError(f"grade: expected values >= 0, got {y.min()}; shift the grades so that 0 is irrelevant")
    code, key = codes("query", query, len(s))
    of_query = query_weight(code, len(key), weights(weight, len(s)))
    gains = np.exp2(y) - 1 if gain == "exponential" else y
    ideal = _dcg(gains, gains, code, len(key), k)
    value = over(_dcg(s, gains, code, len(key), k), ideal)
    if empty == "skip":
        of_query = np.where(ideal > 0, of_query, 0.0)
    value = np.where(ideal > 0, value, 1.0 if empty == "one" else 0.0)
    return MeanSums(float(value @ of_query), float(of_query.sum()))


def ranks(score: Floats, code: Codes) -> tuple[Codes, Codes]:
    """Order of rows by query and falling score, and the 0-based rank of each row in that order.

    >>> order, rank = ranks(np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1]))
    >>> order.tolist(), rank.tolist()
    ([1, 0, 2], [0, 1, 0])
    """
    order = np.lexsort((-score, code))
    ordered = code[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[first, len(ordered)])
    return order, np.arange(len(ordered)) - np.repeat(first, sizes)


def query_weight(code: Codes, queries: int, weight: Floats) -> Floats:
    """Weight of each query, ``[queries]``; refused when it differs between the rows of one query."""
    of_query = np.zeros(queries)
    of_query[code] = weight
    if (of_query[code] != weight).any():
        row = int(np.argmax(of_query[code] != weight))
        raise InputError(f"weight: expected one weight per query, got another at row {row}; weight queries, not rows")
    return of_query


def _dcg(score: Floats, gains: Floats, code: Codes, queries: int, k: int | None) -> Floats:
    order, rank = ranks(score, code)
    discount = 1 / np.log2(rank + 2)
    if k is not None:
        discount[rank >= k] = 0.0
    start = _starts(code[order], score[order])  # ties: each row gets the mean gain of its block
    sizes = np.diff(np.r_[start, len(order)])
    block = np.add.reduceat(gains[order], start) / sizes * np.add.reduceat(discount, start)
    return summed(code[order][start], block, queries)


def _starts(code: Codes, score: Floats) -> Codes:
    # First row of every run of one group and one score.
    return np.flatnonzero(np.r_[True, (code[1:] != code[:-1]) | (score[1:] != score[:-1])])
