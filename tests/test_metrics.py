"""Laws and oracles for every metric: weights are frequencies, sums merge, and a formula or scikit-learn agrees."""

from __future__ import annotations

import inspect
import math
from dataclasses import astuple, fields, is_dataclass
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from isolayer import InputError, metrics
from isolayer.metrics import BinSums, MeanSums, SegmentSums, Sums
from isolayer.metrics.multicalibration import brownian_range_quantile, brownian_range_tail

seeds = st.integers(0, 2**32 - 1)


def rows(seed, n=60, levels=20, groups=6):
    """Probabilities with ties, ends included; labels; groups; integer weights from 0, every group with both classes."""
    rng = np.random.default_rng(seed)
    prob = rng.integers(0, levels + 1, n) / levels
    label = (rng.random(n) < 0.2 + 0.5 * prob).astype(int)
    group = np.arange(n) % groups
    label[:groups], label[groups : 2 * groups] = 0, 1
    weight = rng.integers(0, 4, n)
    weight[: 2 * groups] = rng.integers(1, 4, 2 * groups)
    return prob, label, group, weight


def calibrated(n, seed=0):
    rng = np.random.default_rng(seed)
    prob = rng.beta(1, 9, n)
    return prob, (rng.random(n) < prob).astype(int)


def flat(result):
    """Every number in a result, in order."""
    if is_dataclass(result):
        result = [getattr(result, f.name) for f in fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, tuple | list):
        return np.concatenate([flat(part) for part in result])
    column = np.atleast_1d(np.asarray(result))
    return column.astype(float) if column.dtype.kind in "biuf" else np.zeros(0)


# name -> metric of (prob, label, group, weight). Those of BY_QUERY take one weight per query.
BY_ROW = {
    "BinSums.from_rows": lambda p, y, g, w: BinSums.from_rows(y, p, w),
    "SegmentSums.from_rows": lambda p, y, g, w: SegmentSums.from_rows(y, p, g, w),
    "Sums.from_logits": lambda p, y, g, w: Sums.from_logits(y, 8 * p - 4, w),
    "Sums.from_rows": lambda p, y, g, w: Sums.from_rows(y, p, w),
    "auc": lambda p, y, g, w: metrics.auc(y, p, w),
    "brier": lambda p, y, g, w: metrics.brier(y, p, w),
    "brier_decomposition": lambda p, y, g, w: metrics.brier_decomposition(y, p, w, bins=4),
    "daily_scores": lambda p, y, g, w: metrics.daily_scores(y, p, g, w),
    "delta_auc_percent": lambda p, y, g, w: metrics.delta_auc_percent(y, p, p**2 - p, w),
    "delta_auc_percent_by_task": lambda p, y, g, w: metrics.delta_auc_percent_by_task(
        {"like": y}, {"like": p}, {"like": p**2 - p}, w
    ),
    "delta_ne_percent": lambda p, y, g, w: metrics.delta_ne_percent(y, 0.1 + p / 2, p, w),
    "ece": lambda p, y, g, w: metrics.ece(y, p, w, bins=4),
    "ece, debiased": lambda p, y, g, w: metrics.ece(y, p, w, bins=4, debiased=True),
    "ece, l2": lambda p, y, g, w: metrics.ece(y, p, w, bins=4, norm="l2", debiased=True),
    "ece, width": lambda p, y, g, w: metrics.ece(y, p, w, bins=4, binning="width"),
    "f_rce": lambda p, y, g, w: metrics.f_rce(y, p, g, w),
    "gauc": lambda p, y, g, w: metrics.gauc(y, p, g, w),
    "gauc_sums": lambda p, y, g, w: metrics.gauc_sums(y, p, g, w),
    "log_loss": lambda p, y, g, w: metrics.log_loss(y, p, w),
    "log_loss_of_logit": lambda p, y, g, w: metrics.log_loss_of_logit(y, 9 * p - 5, w),
    "mf_rce": lambda p, y, g, w: metrics.mf_rce(y, p, {"one": g, "two": g % 2}, w),
    "multicalibration_error": lambda p, y, g, w: metrics.multicalibration_error(y, p, g, w),
    "normalised_entropy": lambda p, y, g, w: metrics.normalised_entropy(y, p, w),
    "normalised_entropy_of_logit": lambda p, y, g, w: metrics.normalised_entropy_of_logit(y, 9 * p - 5, w),
    "observed_over_expected": lambda p, y, g, w: metrics.observed_over_expected(y, p, g, w),
    "observed_over_expected, crossed": lambda p, y, g, w: metrics.observed_over_expected(
        y, p, {"one": g % 2, "two": g % 3}, w
    ),
    "pcoc": lambda p, y, g, w: metrics.pcoc(y, p, w),
    "segmented_ne": lambda p, y, g, w: metrics.segmented_ne(y, p, g, w),
    "segmented_ne, mean": lambda p, y, g, w: metrics.segmented_ne(y, p, g, w).mean,
    "smooth_ece": lambda p, y, g, w: metrics.smooth_ece(y, p, w),
}
BY_QUERY = {
    "ece_at_k": lambda p, y, g, w: metrics.ece_at_k(y, p, g, w, k=3, bins=3),
    "ndcg": lambda p, y, g, w: metrics.ndcg(y, p, g, w, k=3),
    "ndcg_sums": lambda p, y, g, w: metrics.ndcg_sums(y, p, g, w, k=3),
}


def test_every_weighted_metric_is_under_the_law():
    named = {name.split(",")[0].split(".")[0] for name in (*BY_ROW, *BY_QUERY)}
    weighted = {
        name
        for name in metrics.__all__
        if hasattr(getattr(metrics, name), "from_rows")
        or (
            inspect.isfunction(getattr(metrics, name))
            and "weight" in inspect.signature(getattr(metrics, name)).parameters
        )
    }
    assert weighted - named == set()


def test_names_are_sorted_and_exist():
    functions = [name for name in metrics.__all__ if name.islower()]
    assert functions == sorted(functions)
    assert all(hasattr(metrics, name) for name in metrics.__all__)


@pytest.mark.parametrize("name", BY_ROW)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_weight_two_is_the_row_twice_and_weight_zero_is_no_row(name, seed):
    p, y, g, w = rows(seed)
    again = np.repeat(np.arange(len(p)), w)
    weighted = flat(BY_ROW[name](p, y, g, w))
    repeated = flat(BY_ROW[name](p[again], y[again], g[again], None))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-9, atol=1e-9)


def test_labels_come_first_everywhere():
    """A metric of the other order would be a silent wrong answer to anyone used to scikit-learn."""
    functions = [getattr(metrics, name) for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))]
    makers = [Sums.from_rows, Sums.from_logits, SegmentSums.from_rows, BinSums.from_rows, BinSums.of_distinct]
    orders = [list(inspect.signature(one).parameters)[:2] for one in (*functions, *makers)]
    assert {tuple(order) for order in orders if order[0] != "sums"} == {
        ("label", "prob"),
        ("label", "logit"),
        ("label", "score"),
        ("grade", "score"),
    }


SWAPPED = {
    name: metric
    for name, metric in (BY_ROW | BY_QUERY).items()
    if "logit" not in name and not name.startswith(("delta", "ndcg"))
} | {
    "Sums.from_logits": lambda p, y, g, w: Sums.from_logits(y, p, w),
    "delta_ne_percent": lambda p, y, g, w: metrics.delta_ne_percent(y, p, p, w),
    "delta_auc_percent": lambda p, y, g, w: metrics.delta_auc_percent(y, p, p, w),
    "log_loss_of_logit": lambda p, y, g, w: metrics.log_loss_of_logit(y, p, w),
    "ndcg": lambda p, y, g, w: metrics.ndcg(y, p, g),
    "ndcg, grades up to 4": lambda p, y, g, w: metrics.ndcg_sums(y, 4 * p, g),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_labels_and_scores_that_were_swapped_are_refused(name):
    p, y, g, _ = rows(0)
    with pytest.raises(InputError, match=r"the two look swapped: pass (label|grade) first"):
        SWAPPED[name](y, p, g, None)


def test_hard_predictions_beside_soft_labels_are_no_mistake():
    assert metrics.brier([0.25, 0.75], [1, 1]) == metrics.brier([0.25, 0.75], [0, 0]) == 0.3125
    assert metrics.auc([0.25, 0.75], [0, 3]) == 0.75


@pytest.mark.parametrize("name", BY_QUERY)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_weight_two_is_the_query_twice(name, seed):
    p, y, g, _ = rows(seed)
    w = np.array([1, 2, 3, 1, 2, 1])[g]
    again = np.repeat(np.arange(len(p)), w)
    copy = np.concatenate([np.arange(times) for times in w])
    weighted = flat(BY_QUERY[name](p, y, g, w))
    repeated = flat(BY_QUERY[name](p[again], y[again], g[again] + 10 * copy, None))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", BY_ROW)
@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_the_order_of_rows_is_nothing(name, seed):
    p, y, g, w = rows(seed)
    shuffled = np.random.default_rng(seed).permutation(len(p))
    before, after = flat(BY_ROW[name](p, y, g, w)), flat(BY_ROW[name](*(column[shuffled] for column in (p, y, g, w))))
    np.testing.assert_allclose(before, after, rtol=1e-9, atol=1e-9)


@given(seed=seeds, cut=st.integers(1, 59))
@settings(max_examples=25, deadline=None)
def test_merge_of_halves_is_the_whole(seed, cut):
    p, y, g, w = rows(seed)
    one, two = slice(None, cut), slice(cut, None)
    w = np.maximum(w, 1)
    for name in ("Sums.from_rows", "Sums.from_logits", "SegmentSums.from_rows", "BinSums.from_rows"):
        parts = [BY_ROW[name](p[part], y[part], g[part], w[part]) for part in (one, two)]
        whole = BY_ROW[name](p, y, g, w)
        np.testing.assert_allclose(flat(parts[0] + parts[1]), flat(whole), rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(flat(parts[1].merge(parts[0])), flat(whole), rtol=1e-12, atol=1e-9)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_means_over_queries_and_groups_merge(seed):
    p, y, g, _ = rows(seed)
    first = g < 2
    for sums in (metrics.gauc_sums, metrics.ndcg_sums):
        merged = sums(y[first], p[first], g[first]) + sums(y[~first], p[~first], g[~first])
        assert merged.mean == pytest.approx(sums(y, p, g).mean)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_properties_of_sums_are_the_metrics(seed):
    p, y, g, w = rows(seed)
    sums = Sums.from_rows(y, p, w)
    assert sums.log_loss == metrics.log_loss(y, p, w)
    assert sums.mean_prob == pytest.approx(np.average(p, weights=w))
    assert sums.observed_over_expected == pytest.approx(1 / metrics.pcoc(y, p, w))
    by_group = SegmentSums.from_rows(y, p, g, w)
    np.testing.assert_allclose(astuple(by_group.total), astuple(sums))
    assert metrics.f_rce_of(by_group) == metrics.f_rce(y, p, g, w)
    assert metrics.segmented_ne_of(by_group).mean == metrics.segmented_ne(y, p, g, w).mean
    assert metrics.daily_scores_of(by_group).variance == metrics.daily_scores(y, p, g, w).variance
    np.testing.assert_array_equal(metrics.ratio_table(by_group).upper, metrics.observed_over_expected(y, p, g, w).upper)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_scikit_learn_agrees(seed):
    p, y, g, w = rows(seed)
    assert metrics.log_loss(y, p, w) == pytest.approx(sk.log_loss(y, p, sample_weight=w))
    assert metrics.auc(y, p, w) == pytest.approx(sk.roc_auc_score(y, p, sample_weight=w))
    assert metrics.brier(y, p, w) == pytest.approx(sk.brier_score_loss(y, p, sample_weight=w))
    groups = range(6)
    sizes = [w[g == i].sum() for i in groups]
    each = [sk.roc_auc_score(y[g == i], p[g == i], sample_weight=w[g == i]) for i in groups]
    assert metrics.gauc(y, p, g, w) == pytest.approx(np.average(each, weights=sizes))


@given(seed=seeds, k=st.sampled_from([1, 3, 10, None]))
@settings(max_examples=25, deadline=None)
def test_ndcg_is_scikit_learn_s_query_by_query(seed, k):
    rng = np.random.default_rng(seed)
    score, query = rng.integers(0, 6, 60) / 5, rng.permutation(np.arange(60) % 6)
    grade = rng.integers(0, 5, 60)
    lists = [query == i for i in range(6)]
    for gain, gains in (("exponential", 2.0**grade - 1), ("linear", grade)):
        each = [sk.ndcg_score([gains[part]], [score[part]], k=k) for part in lists if grade[part].any()]
        assert metrics.ndcg(grade, score, query, k=k, gain=gain) == pytest.approx(np.mean(each))


def test_ndcg_counts_queries_without_relevance_as_asked():
    score, grade, query = [2, 1, 2, 1], [1, 0, 0, 0], [0, 0, 1, 1]
    values = {empty: metrics.ndcg(grade, score, query, empty=empty) for empty in ("skip", "zero", "one")}
    assert values == {"skip": 1.0, "zero": 0.5, "one": 1.0}


def test_soft_label_is_a_positive_and_a_negative_row():
    soft = metrics.auc([0.25, 0.5, 1], [0.3, 0.6, 0.9])
    hard = metrics.auc([1, 0, 1, 0, 1], [0.3, 0.3, 0.6, 0.6, 0.9], [1, 3, 2, 2, 4])
    assert soft == pytest.approx(hard)


def test_groups_of_one_class_do_not_count_in_gauc():
    assert metrics.gauc([0, 1, 1, 1], [1, 2, 1, 2], ["a", "a", "b", "b"]) == 1.0


def test_ne_is_log_loss_over_entropy_of_the_rate():
    p, y, _, w = rows(3)
    rate = np.average(y, weights=w)
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert metrics.normalised_entropy(y, p, w) == pytest.approx(sk.log_loss(y, p, sample_weight=w) / entropy)
    logit = 9 * p - 5
    prob = 1 / (1 + np.exp(-logit))
    assert metrics.normalised_entropy_of_logit(y, logit, w) == pytest.approx(metrics.normalised_entropy(y, prob, w))


def test_probabilities_of_zero_and_one_are_clipped_for_the_logarithm_only():
    floor = np.finfo(float).eps
    assert metrics.log_loss([1, 0], [0, 1]) == pytest.approx(-math.log(floor))
    assert metrics.log_loss([0, 1], [0, 1]) == pytest.approx(0, abs=1e-15)
    assert metrics.brier([1, 0], [0, 1]) == 1
    assert metrics.ece([0, 1], [0, 1]) == 0
    assert metrics.smooth_ece([0, 1], [0, 1]) < 1e-9
    assert metrics.ece([0, 1], [0, 1], binning="width") == 0
    assert BinSums.from_rows([0, 1], [0, 1]).auc == 1


def loop_ece(p, y, bins):
    parts = [part for part in np.array_split(np.argsort(p), bins) if len(part)]
    return sum(len(part) * abs(y[part].mean() - p[part].mean()) for part in parts) / len(p)


def test_ece_of_equal_mass_is_the_loop_over_quantiles():
    p, y = calibrated(600)
    assert metrics.ece(y, p, bins=12) == pytest.approx(loop_ece(p, y, 12))


def test_ece_of_equal_width_is_the_loop_over_bins():
    p, y = calibrated(500)
    code = np.minimum((p * 10).astype(int), 9)
    gaps = [abs((y - p)[code == b].sum()) for b in range(10)]
    assert metrics.ece(y, p, bins=10, binning="width") == pytest.approx(sum(gaps) / len(p))


def test_debiasing_takes_the_noise_out_of_ece():
    squares, plain, debiased = [], [], []
    for seed in range(200):
        p, y = calibrated(1000, seed)
        sums = BinSums.of_distinct(y, p).grouped(10, "mass")
        rate, mean = sums.positive / sums.weight, sums.expected / sums.weight
        squares.append(np.mean((rate - mean) ** 2 - rate * (1 - rate) / (sums.weight - 1)))
        plain.append(metrics.ece(y, p, bins=10))
        debiased.append(metrics.ece(y, p, bins=10, debiased=True))
        expected = math.sqrt(max(0, squares[-1]))
        assert metrics.ece(y, p, bins=10, norm="l2", debiased=True) == pytest.approx(expected)
    assert abs(np.mean(squares)) < 4 * np.std(squares) / math.sqrt(200)  # the square has no bias
    assert np.mean(debiased) < 0.8 * np.mean(plain)


def test_debiasing_leaves_a_real_gap():
    p, y = calibrated(100_000)
    assert metrics.ece(y, p / 2, debiased=True) == pytest.approx(metrics.ece(y, p / 2), rel=0.01)
    assert metrics.ece(y, p / 2, norm="l2") > metrics.ece(y, p / 2)


def direct_smooth_ece(p, y):
    """The definition, integrated on a grid of its own, with images of the kernel beyond 0 and 1."""
    t = (np.arange(2000) + 0.5) / 2000

    def gap(width):
        images = np.concatenate([2 * k + sign * p for k in range(-2, 3) for sign in (1, -1)])
        kernel = np.exp(-((t[:, None] - images) ** 2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi))
        return np.abs(kernel @ np.tile(y - p, 10) / len(p)).mean()

    low, high = 1e-3, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if gap(middle) > middle else (low, middle)
    return high


def test_smooth_ece_is_its_definition():
    p, y = calibrated(150)
    for prob in (p, p / 2, np.sqrt(p)):
        assert metrics.smooth_ece(y, prob) == pytest.approx(direct_smooth_ece(prob, y), abs=5e-4)


@given(seed=seeds, bins=st.integers(1, 8), binning=st.sampled_from(["mass", "width"]))
@settings(max_examples=25, deadline=None)
def test_brier_parts_add_up_and_are_murphy_s(seed, bins, binning):
    p, y, _, w = rows(seed)
    parts = metrics.brier_decomposition(y, p, w, bins=bins, binning=binning)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bin
    assert total == pytest.approx(metrics.brier(y, p, w))
    if binning == "width":
        code = np.minimum((p * bins).astype(int), bins - 1)
        within = 0.0
        for b in np.unique(code[w > 0]):
            own = code == b
            dp = p[own] - np.average(p[own], weights=w[own])
            dy = y[own] - np.average(y[own], weights=w[own])
            within += (w[own] * (dp**2 - 2 * dp * dy)).sum() / w.sum()
        assert parts.within_bin == pytest.approx(within, abs=1e-9)


@pytest.mark.parametrize("bins", [3, 5, 10, 15])
def test_a_probability_at_an_edge_is_in_the_bin_above(bins):
    edges = np.arange(bins) / bins
    for weight in (0.1, 1 / 3, 0.7, 1.1):
        sums = BinSums.of_distinct(np.zeros(3 * bins), np.repeat(edges, 3), np.full(3 * bins, weight))
        np.testing.assert_allclose(sums.grouped(bins, "width").weight, 3 * weight)


@given(seed=seeds, bins=st.sampled_from([8, 64, 4096]))
@settings(max_examples=25, deadline=None)
def test_binned_auc_is_within_its_bound(seed, bins):
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 5, 300)
    y = (rng.random(300) < p).astype(int)
    y[:2] = 0, 1
    sums = BinSums.from_rows(y, p, bins=bins)
    assert abs(sums.auc - metrics.auc(y, p)) <= sums.auc_bound + 1e-12


@pytest.mark.parametrize("label", [0, 1])
def test_the_bound_needs_both_classes_as_auc_does(label):
    sums = BinSums.from_rows([label, label], [0.2, 0.7])
    for name in ("auc", "auc_bound"):
        with pytest.raises(InputError, match=f"label: expected both classes for AUC, got only {label}; use more rows"):
            getattr(sums, name)


def test_binned_ece_and_smooth_ece_come_near_those_of_the_rows():
    p, y = calibrated(50_000)
    halves = BinSums.from_rows(y[:20_000], p[:20_000]) + BinSums.from_rows(y[20_000:], p[20_000:])
    assert halves.ece() == pytest.approx(metrics.ece(y, p), abs=2e-4)
    assert halves.smooth_ece() == pytest.approx(metrics.smooth_ece(y, p), abs=2e-4)
    assert halves.auc_bound < 2e-3


def test_ece_at_k_looks_at_the_top_of_each_query_only():
    p, y = calibrated(2000)
    query = np.repeat(np.arange(200), 10)
    top = np.concatenate([q * 10 + np.argsort(-p[q * 10 : q * 10 + 10], kind="stable")[:2] for q in range(200)])
    assert metrics.ece_at_k(y, p, query, k=2, bins=5) == pytest.approx(metrics.ece(y[top], p[top], bins=5))
    assert metrics.ece_at_k(y, p, query, k=10, bins=5) == pytest.approx(metrics.ece(y, p, bins=5))


def test_field_errors_are_their_formula():
    p, y, g, w = rows(11)
    total = 0.0
    for i in range(6):
        own = g == i
        gap = abs((w[own] * (y[own] - p[own])).sum())
        total += w[own].sum() * gap / (w[own] * (y[own] + 0.01)).sum()
    assert metrics.f_rce(y, p, g, w) == pytest.approx(total / w.sum())
    other = metrics.f_rce(y, p, g % 2, w)
    assert metrics.mf_rce(y, p, {"a": g, "b": g % 2}, w) == pytest.approx((total / w.sum() + other) / 2)
    assert metrics.f_rce(y, p, g, w, epsilon=0.5) < metrics.f_rce(y, p, g, w)


def test_without_epsilon_fields_without_events_are_left_out():
    p, y, g, w = rows(12)
    y = np.where(g == 2, 0, y)
    kept = g != 2
    relative = [
        (w[g == i].sum(), abs(np.average(p[g == i], weights=w[g == i]) / np.average(y[g == i], weights=w[g == i]) - 1))
        for i in np.unique(g[kept])
    ]
    weight, gap = np.array(relative).T
    assert metrics.f_rce(y, p, g, w, epsilon=0) == pytest.approx(np.average(gap, weights=weight))
    assert metrics.f_rce(y, p, g, w, epsilon=0) == pytest.approx(
        metrics.f_rce(y[kept], p[kept], g[kept], w[kept], epsilon=0)
    )


def test_intervals_of_observed_over_expected_are_wilson_s_and_cover():
    z = NormalDist().inv_cdf(0.975)
    table = metrics.observed_over_expected([1] * 15 + [0] * 35, [0.2] * 50, [0] * 50)
    root = z * math.sqrt(0.3 * 0.7 / 50 + z * z / (4 * 50**2))
    for end, sign in ((table.lower, -1), (table.upper, 1)):
        assert end[0] == pytest.approx((0.3 + z * z / 100 + sign * root) / (1 + z * z / 50) / 0.2)
    p, y = calibrated(400_000)
    many = metrics.observed_over_expected(y, p, np.arange(400_000) % 2000)
    assert np.mean((many.lower <= 1) & (many.upper >= 1)) == pytest.approx(0.95, abs=0.025)
    narrow = metrics.observed_over_expected(y, p, np.arange(400_000) % 2000, level=0.5)
    assert np.mean((narrow.lower <= 1) & (narrow.upper >= 1)) == pytest.approx(0.5, abs=0.05)


def test_observed_over_expected_without_events_still_has_an_interval():
    table = metrics.observed_over_expected([0] * 20, [0.1] * 20, ["web"] * 20)
    assert table.ratio[0] == table.lower[0] == 0
    assert 0.5 < table.upper[0] < 3


def test_contexts_cross():
    table = metrics.observed_over_expected(
        [1, 0, 1, 1], [0.5] * 4, {"position": [0, 0, 1, 1], "device": ["web", "web", "ios", "web"]}
    )
    assert table.context["position"].tolist() == [0, 1, 1]
    assert table.context["device"].tolist() == ["web", "ios", "web"]
    assert table.ratio.tolist() == [1.0, 2.0, 2.0]


def test_segmented_ne_gives_no_credit_for_the_segment_s_rate():
    y = np.array([0] * 9 + [1] + [1] * 9 + [0])
    segment = np.repeat([0, 1], 10)
    p = np.where(segment == 0, 0.1, 0.9)
    assert metrics.normalised_entropy(y, p) < 0.5
    np.testing.assert_allclose(metrics.segmented_ne(y, p, segment).normalised_entropy, 1)
    assert math.isnan(metrics.segmented_ne([0, 1, 1], [0.5, 0.5, 0.5], [0, 0, 1]).normalised_entropy[1])


def feller_cdf(x):
    """The range's distribution by its other series, in theta functions."""
    k = np.arange(200) + 0.5
    return ((8 / x**2 + 2 / (k * math.pi) ** 2) * np.exp(-2 * (k * math.pi / x) ** 2)).sum()


@pytest.mark.parametrize("x", [0.5, 0.81, 1.0, 1.6, 2.5, 4.0])
def test_two_series_for_the_range_of_brownian_motion_agree(x):
    assert brownian_range_tail(np.array([x]))[0] == pytest.approx(1 - feller_cdf(x), abs=1e-6)


@pytest.mark.parametrize("tail", [0.5, 0.05, 1e-8])
def test_quantile_inverts_the_tail(tail):
    assert brownian_range_tail(np.array([brownian_range_quantile(tail)]))[0] == pytest.approx(tail, rel=1e-6)


def test_group_errors_are_ranges_of_cumulative_gaps():
    p, y = calibrated(300)
    g = np.arange(300) % 3
    result = metrics.multicalibration_error(y, p, {"third": g})
    assert result.field.tolist() == ["all", "third", "third", "third"]
    for i in range(3):
        own = np.flatnonzero(g == i)
        own = own[np.argsort(p[own])]
        path = np.r_[0, np.cumsum(y[own] - p[own])] / len(own)
        assert result.group_error[i + 1] == pytest.approx(np.ptp(path))
        sigma = math.sqrt((p[own] * (1 - p[own])).sum()) / len(own)
        assert result.group_sigma[i + 1] == pytest.approx(np.ptp(path) / sigma)


def test_p_values_of_a_calibrated_model_are_rarely_small():
    small = []
    for seed in range(200):
        p, y = calibrated(3000, seed)
        small.append(metrics.multicalibration_error(y, p, np.arange(3000) % 5).p_value < 0.05)
    assert np.mean(small) < 0.09


def test_error_passes_the_minimum_detectable_one_exactly_when_significant():
    for shift in np.linspace(0.9, 1.4, 11):
        p, y = calibrated(20_000, 1)
        result = metrics.multicalibration_error(y, p * shift, np.arange(20_000) % 4)
        assert (result.error > result.minimum_detectable_error) == (result.p_value < 0.05)
    strict = metrics.multicalibration_error(y, p, np.arange(20_000) % 4, level=0.999)
    assert strict.minimum_detectable_error > result.minimum_detectable_error


def test_one_bad_group_among_many_is_found():
    p, y = calibrated(50_000)
    g = np.arange(50_000) % 50
    prob = np.where(g == 17, p * 1.8, p).clip(0, 1)
    result = metrics.multicalibration_error(y, prob, g)
    assert result.group[np.argmax(result.group_sigma)] == "17"
    assert result.p_value < 0.01


def test_multicalibration_from_a_binned_table_comes_near_that_of_the_rows():
    p, y = calibrated(30_000)
    g = np.arange(30_000) % 3
    cell = g * 400 + np.minimum((p * 400).astype(int), 399)
    sums = SegmentSums.from_rows(y, p, cell)
    table = metrics.multicalibration_error(sums.background_rate, sums.mean_prob, sums.key // 400, sums.weight)
    exact = metrics.multicalibration_error(y, p, g)
    assert (table.group_error <= exact.group_error + 1e-12)[1:].all()  # of a group: its bins are in order
    np.testing.assert_allclose(table.group_sigma, exact.group_sigma, rtol=0.1)


def test_certain_predictions_that_fail_are_significant():
    result = metrics.multicalibration_error([0] * 10, [1.0] * 10, [0] * 10)
    assert result.p_value == 0
    assert result.error == 1


def test_delta_by_task_and_against_chance():
    p, y, _, _ = rows(5)
    noisy = np.round(p, 1) + 0.3 * np.cos(np.arange(len(p)))
    one, two = sk.roc_auc_score(y, p), sk.roc_auc_score(y, noisy)
    assert metrics.delta_auc_percent(y, p, noisy) == pytest.approx(100 * (one / two - 1))
    chance = metrics.delta_auc_percent(y, p, noisy, against="chance")
    assert chance == pytest.approx(100 * ((one - 0.5) / (two - 0.5) - 1))
    ne, base = metrics.normalised_entropy(y, p * 0.8 + 0.1), metrics.normalised_entropy(y, p * 0.5 + 0.2)
    assert metrics.delta_ne_percent(y, p * 0.8 + 0.1, p * 0.5 + 0.2) == pytest.approx(100 * (ne / base - 1))


def test_segments_may_be_strings_large_numbers_or_dates():
    days = np.array(["2026-01-02", "2026-01-01", "2026-01-02"], dtype="datetime64[D]")
    for key in (["b", "a", "b"], [10**12, -5, 10**12], days, np.array(["b", "a", "b"], dtype=object)):
        assert SegmentSums.from_rows([0, 1, 1], [0.5, 0.5, 0.5], key).weight.tolist() == [1, 2]


ERRORS = {
    "prob: expected probabilities in [0, 1], got 1.5 in row 1; for logits, take the sigmoid first": (
        lambda: metrics.log_loss([0, 1], [0.5, 1.5])
    ),
    "prob: expected finite numbers, got nan in row 0; drop or repair those rows": (
        lambda: metrics.brier([0, 1], [math.nan, 0.5])
    ),
    "logit: expected finite numbers, got inf in row 0; drop or repair those rows": (
        lambda: metrics.log_loss_of_logit([1], [math.inf])
    ),
    "prob: expected at least one row, got 0; check the filter that made this table": lambda: metrics.ece([], []),
    "prob: expected one dimension, got shape (1, 2); give one column, shape [n]": (
        lambda: metrics.ece([0, 1], [[0.5, 0.5]])
    ),
    "prob: expected a column of numbers, got text; convert it to numbers": lambda: metrics.ece([1], ["high"]),
    "label: expected labels in [0, 1], got 2.0 in row 1; give 0 and 1, or a soft label between them": (
        lambda: metrics.auc([0, 2], [0.5, 0.5])
    ),
    "label: expected 2 rows like the other columns, got 1; align the columns": lambda: metrics.auc([0], [0.5, 0.5]),
    "label: expected both classes for AUC, got only 1; use more rows": lambda: metrics.auc([1, 1], [0.5, 0.6]),
    "label: expected both classes for normalised entropy, got only 0; use more rows": (
        lambda: metrics.normalised_entropy([0], [0.5])
    ),
    "label: expected an event for PCOC, got none; use more rows, or observed_over_expected": (
        lambda: metrics.pcoc([0], [0.5])
    ),
    "weight: expected numbers >= 0, got -1.0 in row 1; drop those rows or clip their weights": (
        lambda: metrics.ece([0, 1], [0.5, 0.5], [1, -1])
    ),
    "weight: expected a positive sum, got 0.0; give some row a weight": lambda: metrics.ece([0], [0.5], [0]),
    "weight: expected one weight per query, got another at row 0; weight queries, not rows": (
        lambda: metrics.ndcg([0, 1], [1, 2], [0, 0], [1, 2])
    ),
    "segment: expected no nulls, got nan in row 1; replace missing values by a value of their own": (
        lambda: metrics.segmented_ne([0, 1], [0.5, 0.5], [1.0, math.nan])
    ),
    "segment: expected no nulls, got None in row 0; replace missing values by a value of their own": (
        lambda: metrics.segmented_ne([0, 1], [0.5, 0.5], [None, "web"])
    ),
    "segment: expected values of one type, got a mixture; cast the column to strings": (
        lambda: metrics.segmented_ne([0, 1], [0.5, 0.5], np.array([1, "web"], dtype=object))
    ),
    "segment: expected 2 rows like the other columns, got 1; align the columns": (
        lambda: metrics.segmented_ne([0, 1], [0.5, 0.5], [1])
    ),
    "label: expected a segment with both classes, got none; use more rows": (
        lambda: metrics.segmented_ne([1], [0.5], [0]).mean
    ),
    "rows: expected a query or group that the metric is defined on, got none; use more rows": (
        lambda: metrics.gauc([1], [0.5], [0])
    ),
    "grade: expected values >= 0, got -1.0; shift the grades so that 0 is irrelevant": (
        lambda: metrics.ndcg([-1], [1], [0])
    ),
    "k: expected a positive integer, got 0; or None for whole lists": lambda: metrics.ndcg([1], [1], [0], k=0),
    "bins: expected an integer from 1 to 16777216, got 2.5; 15 is usual": lambda: metrics.ece([1], [0.5], bins=2.5),
    "bins: expected the same bins on both sides, got 8 and 9; use from_rows": (
        lambda: BinSums.from_rows([1], [0.5], bins=8) + BinSums.from_rows([1], [0.5], bins=9)
    ),
    "binning: expected 'mass' or 'width', got 'depth'; choose one": (lambda: metrics.ece([1], [0.5], binning="depth")),
    "norm: expected 'l1' or 'l2', got 'l3'; choose one": lambda: metrics.ece([1], [0.5], norm="l3"),
    "gain: expected 'exponential' or 'linear', got 'cubic'; choose one": (
        lambda: metrics.ndcg([1], [1], [0], gain="cubic")
    ),
    "empty: expected 'skip', 'zero' or 'one', got 'nan'; choose one": lambda: metrics.ndcg([1], [1], [0], empty="nan"),
    "against: expected 'auc' or 'chance', got 'ne'; choose one": (
        lambda: metrics.delta_auc_percent([0, 1], [0, 1], [0, 1], against="ne")
    ),
    "baseline AUC: expected above 0.5, got 0.5; a relative change needs a baseline": (
        lambda: metrics.delta_auc_percent([0, 1], [0, 1], [0, 0], against="chance")
    ),
    "label: expected every task of score, got none for ['like']; add these columns": (
        lambda: metrics.delta_auc_percent_by_task({}, {"like": [0, 1]}, {"like": [0, 1]})
    ),
    "level: expected a number in (0, 1), got 95; try 0.95": (
        lambda: metrics.observed_over_expected([1], [0.5], [0], level=95)
    ),
    "level: expected a number in (0, 1), got 5; try 0.95": (
        lambda: metrics.multicalibration_error([1], [0.5], [0], level=5)
    ),
    "epsilon: expected a number >= 0, got -1; the papers use 0.01 or 0": (
        lambda: metrics.f_rce([1], [0.5], [0], epsilon=-1)
    ),
    "label: expected a segment with an event, got none; use more rows or an epsilon above 0": (
        lambda: metrics.f_rce([0], [0.5], [0], epsilon=0)
    ),
    "fields: expected at least one column, got none; name a column": lambda: metrics.mf_rce([1], [0.5], {}),
    "context: expected at least one column, got none; name a column": (
        lambda: metrics.observed_over_expected([1], [0.5], {})
    ),
    "day: expected at least 2 days, got 1; a variance needs two": (
        lambda: metrics.daily_scores([1], [0.5], [0]).variance
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_a_mistake_is_answered_with_the_rule_the_value_and_what_to_do(message):
    with pytest.raises(InputError) as caught:
        ERRORS[message]()
    assert str(caught.value) == message


def test_an_empty_mean_is_refused():
    with pytest.raises(InputError, match="got none"):
        _ = MeanSums(0.0, 0.0).mean
