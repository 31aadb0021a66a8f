"""KuaiRand by tab: a click model that is right on the whole and wrong on every surface, repaired by each calibrator.

A gradient-boosted model, blind to the tab, learns clicks on the first half of the April days; calibrators are fitted by
tab on the second half and judged on May, with intervals by resampling users:

    log_loss, ne    of all rows
    ece             of all rows: tabs that err in opposite directions cancel
    ece_by_tab      within each tab, averaged by rows: nothing cancels
    oe_error        mean over tabs of abs(O/E - 1)

The claim that one layer with a context does what one calibrator per segment does, is judged on paired
differences over the same resampled users. Blocks of isotonic regression are smoothed by half an event, without which
the constant that keeps its rates from 0 would decide much of its log loss. How many rows a tab needs for a calibrator
of its own is chosen for each baseline on the last of the days it is fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.errors import MissingExtra, need
from research.calibrators import (
    MonotoneNetworkCalibrator,
    PlattCalibrator,
    SmoothedPavaCalibrator,
    TemperatureCalibrator,
)
from research.charts import intervals
from research.data import kuairand_path
from research.datasets import kuairand
from research.resampling import draws
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit

Column = NDArray[np.float64]
FITTED_FROM, TESTED_FROM = 20220428, 20220501  # days: the model before, the calibrators between, the test after
SMALLEST_TAB = 200  # test rows of a tab whose O/E counts
BINS = 15
LEAST_ROWS = (20, 50, 200, 1000)  # of a tab with a calibrator of its own: tried for every baseline

CLAIM = "One set of curves by context calibrates at least as well as separately fitted calibrators of each surface."
PAPER = "section 4, no public data"
NAMES = {"log_loss": "log loss", "ne": "NE", "ece": "ECE", "ece_by_tab": "ECE by tab", "oe_error": "mean abs(O/E - 1)"}
SMOOTHED = "Blocks of isotonic regression are smoothed by half an event, which helps it."  # for notes
_SLACK = 5e-4  # how much worse, in log loss or ECE, still counts as no worse
_PRIOR_ROWS = 10  # how many rows of the mean rate a past rate starts from
_NUMBERS = (
    *("register_days", "follow_user_num", "fans_user_num", "friend_user_num"),
    *("is_lowactive_period", "is_live_streamer", "is_video_author"),
    *("video_duration", "server_width", "server_height", "music_type"),
    *(f"onehot_feat{i}" for i in range(18)),
)
_CODES = ("user_active_degree", "video_type", "upload_type", "tag", "upload_dt")


def run(path: str | Path, *, resamples: int = 200, seed: int = 0) -> dict[str, Any]:
    """The whole study on the KuaiRand files under ``path``.

    Returns:
        ``methods``: the metrics of each, with intervals, and O/E by tab; ``ours_minus``: paired differences with
        intervals.
    """
    columns = kuairand(path)
    day, tab, label = columns["date"], columns["tab"].astype(np.int64), columns["is_click"].astype(np.int64)
    model, fitted, tested = day < FITTED_FROM, (day >= FITTED_FROM) & (day < TESTED_FROM), day >= TESTED_FROM
    logit = click_logit(features(columns), label, model, seed=seed)
    probs = calibrated(logit, tab, label, day, fitted, tested)
    judged = judge(probs, label[tested], tab[tested], columns["user_id"][tested], resamples=resamples, seed=seed)
    counts = {"model": int(model.sum()), "fitted": int(fitted.sum()), "tested": int(tested.sum())}
    return {"rows": counts, "auc": metrics.auc(label[tested], logit[tested]), "seed": seed, **judged}


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One: the intervals come from resampled users, not from seeds."""
    return [Unit(0, quick=quick, cost=15 if quick else 25)]


def run_unit(unit: Unit) -> Numbers:
    """The study on the files under the data folder."""
    return run(kuairand_path(), resamples=50 if unit.quick else 200, seed=unit.seed)


def summarise(finished: Sequence[Finished]) -> Result:
    """Every metric of every method, and ours minus each calibrator by tab over the same resampled users."""
    found = finished[0].numbers
    rows = tuple(
        Row(method, name, _estimate(measured[metric], measured["interval"][metric]), digits=4)
        for metric, name in NAMES.items()
        for method, measured in found["methods"].items()
    )
    parts = tuple(
        Part(f"{NAMES[metric]} no worse than {method}", _minus(found, method, metric), below=_SLACK)
        for metric in ("log_loss", "ece_by_tab", "oe_error")
        for method in found["ours_minus"]
        if method.endswith("by tab")
    )
    note = (
        f"Real data: {found['rows']['tested']:,} test rows of May; intervals over resampled users. {SMOOTHED} "
        f"{chosen_on()}"
    )
    return Result(rows, parts, {"rows": _by_method(found)}, note)


def chosen_on() -> str:
    """What a verdict on these rows owes the reader: which of their labels the defaults of the layer were chosen on.

    >>> chosen_on().partition(" (")[0]
    'Defaults of the layer were chosen on these days, fields and test rows of KuaiRand with 6 of its labels'
    """
    chosen, other = _labels_chosen_on()
    return (
        f"Defaults of the layer were chosen on these days, fields and test rows of KuaiRand with {len(chosen)} of its "
        f"labels ({', '.join(chosen)}), so that the rows are not new to it; {' and '.join(other)} were not chosen on."
    )


def _labels_chosen_on() -> tuple[list[str], list[str]]:
    """The labels of KuaiRand that are in the choosing half of the real tasks, and those that are not."""
    half_of = need("benchmarks.real.tasks").half_of
    found: tuple[list[str], list[str]] = ([], [])
    for source in need("benchmarks.real.kuairand").SOURCES:
        halves = {half_of(f"{source.name} by {' x '.join(segments)}") for segments in source.segmentations}
        found["choose" not in halves].append(source.name.removeprefix("kuairand "))
    return found


def _minus(found: Numbers, method: str, metric: str) -> Estimate:
    one, other = (found["methods"][name][metric] for name in ("ours", method))
    return _estimate(one - other, found["ours_minus"][method][metric])


def _estimate(value: float, interval: Sequence[float]) -> Estimate:
    lower, upper = interval
    return Estimate(value, lower, upper, 1)


def _by_method(found: Numbers) -> list[dict[str, Any]]:
    return [
        {"method": method, "metric": NAMES[metric], "value": one[metric], "lower": low, "upper": high}
        for method, one in found["methods"].items()
        if method != "raw"
        for metric, (low, high) in one["interval"].items()
    ]


def chart(series: dict[str, Any]) -> Any:
    """Every metric of every calibrator with its interval; the raw model is off the scale and left out."""
    order = list(dict.fromkeys(row["method"] for row in series["rows"]))
    return intervals(series["rows"], y="method", panel="metric", order=order, columns=3, ours="ours")


def features(columns: dict[str, NDArray[Any]]) -> Column:
    """What the click model may see: user, video and hour, never the tab nor an outcome; shape ``[n, features]``."""
    codes = [np.unique(columns[name].astype(str), return_inverse=True)[1] for name in _CODES if name in columns]
    numbers = [columns[name] for name in _NUMBERS if name in columns]
    past = [past_rate(columns, name) for name in ("user_id", "video_id", "author_id")]
    return np.stack([*numbers, *codes, *past, columns["hourmin"] // 100], axis=1).astype(float)


def past_rate(columns: dict[str, NDArray[Any]], name: str) -> Column:
    """Click rate of each row's user, video or author on the days before it, as far as the model's days go; ``[n]``."""
    day, label = columns["date"], columns["is_click"].astype(float)
    keys, code = np.unique(columns[name], return_inverse=True)
    clicks, shown, rate = np.zeros(len(keys)), np.zeros(len(keys)), np.empty(len(day))
    mean = label[day < FITTED_FROM].mean()
    for one in np.unique(day):
        today = day == one
        rate[today] = ((clicks + _PRIOR_ROWS * mean) / (shown + _PRIOR_ROWS))[code[today]]
        if one < FITTED_FROM:
            clicks += np.bincount(code[today], label[today], len(keys))
            shown += np.bincount(code[today], minlength=len(keys))
    return rate


def click_logit(table: Column, label: NDArray[np.int64], train: NDArray[np.bool_], *, seed: int) -> Column:
    """Logits of a gradient-boosted model fitted on the rows of ``train``, for all rows."""
    try:
        lightgbm = need("lightgbm")
    except MissingExtra:
        ensemble = need("sklearn.ensemble")
        booster = ensemble.HistGradientBoostingClassifier(learning_rate=0.05, max_iter=200, random_state=seed)
        return np.asarray(booster.fit(table[train], label[train]).decision_function(table))
    booster = lightgbm.LGBMClassifier(learning_rate=0.05, n_estimators=200, random_state=seed, n_jobs=1, verbose=-1)
    booster.fit(table[train], label[train])
    return np.asarray(booster.predict(table, raw_score=True))


def calibrated(
    logit: Column,
    tab: NDArray[np.int64],
    label: NDArray[np.int64],
    day: NDArray[np.int64],
    fitted: NDArray[np.bool_],
    tested: NDArray[np.bool_],
) -> dict[str, Column]:
    """Test probabilities of the raw model, of every baseline over all rows and by tab, and of ours."""
    probs = {"raw": prob_of(logit[tested])}
    named: dict[str, Any] = {
        "temperature": TemperatureCalibrator,
        "platt": PlattCalibrator,
        "isotonic": SmoothedPavaCalibrator,
        "network": MonotoneNetworkCalibrator,
    }
    last = fitted & (day == day[fitted].max())
    models = {name: make() for name, make in named.items()}
    for name, make in named.items():
        tried = [make(("tab",), minimum=least) for least in LEAST_ROWS]
        losses = [metrics.log_loss(label[last], _fitted(m, logit, tab, label, fitted & ~last, last)) for m in tried]
        models[f"{name} by tab"] = tried[int(np.argmin(losses))]
    for name, model in {**models, "ours": IsotonicCalibrator(("tab",))}.items():
        probs[name] = _fitted(model, logit, tab, label, fitted, tested)
    return probs


def _fitted(
    model: Any,
    logit: Column,
    tab: NDArray[np.int64],
    label: NDArray[np.int64],
    fitted: NDArray[np.bool_],
    asked: NDArray[np.bool_],
) -> Column:
    # probabilities of the rows that are asked for, by a model fitted on others
    columns = {"score": logit, "tab": tab} if model.contexts else {"score": logit}
    model.fit({key: column[fitted] for key, column in columns.items()}, label[fitted])
    return np.asarray(model.predict_proba({key: column[asked] for key, column in columns.items()})[:, 1])


def judge(
    probs: dict[str, Column],
    label: NDArray[np.int64],
    tab: NDArray[np.int64],
    user: NDArray[Any],
    *,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Metrics of every method, and of ours minus each other one over the same resampled users, with intervals."""
    weight = draws(user, resamples, seed=seed)
    sampled = {name: _sampled(prob, label, tab, weight) for name, prob in probs.items()}
    methods: dict[str, Any] = {
        name: {
            "log_loss": metrics.log_loss(label, prob),
            "ne": metrics.normalised_entropy(label, prob),
            "ece": metrics.ece(label, prob, bins=BINS),
            "ece_by_tab": _ece_by_tab(prob, label, tab),
            "oe_error": _oe_error(prob, label, tab),
            "observed_over_expected": _by_tab(prob, label, tab),
        }
        for name, prob in probs.items()
    }
    for name, method in methods.items():
        method["interval"] = {metric: _interval(method[metric], values) for metric, values in sampled[name].items()}
    ours = methods["ours"]
    minus = {
        name: {
            metric: _interval(ours[metric] - methods[name][metric], sampled["ours"][metric] - values)
            for metric, values in sampled[name].items()
        }
        for name in probs
        if name != "ours"
    }
    return {"methods": methods, "ours_minus": minus}


def _sampled(
    prob: Column, label: NDArray[np.int64], tab: NDArray[np.int64], draws: NDArray[np.float32]
) -> dict[str, Column]:
    # every metric on every resample, [resamples]
    clipped, total = prob.clip(1e-15, 1 - 1e-15), draws.sum(1)
    loss = (draws @ np.where(label == 1, -np.log(clipped), -np.log1p(-clipped)).astype(np.float32)) / total
    rate = (draws @ label.astype(np.float32)) / total
    residual = (label - prob).astype(np.float32)
    together, by_tab = _mass_bins(prob, np.zeros_like(tab)), _mass_bins(prob, tab)
    observed, expected = _summed(draws, label.astype(np.float32), tab), _summed(draws, prob.astype(np.float32), tab)
    large = _large(tab)
    return {
        "log_loss": loss.astype(float),
        "ne": (loss / -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))).astype(float),
        "ece": np.abs(_summed(draws, residual, together)).sum(1) / total,
        "ece_by_tab": np.abs(_summed(draws, residual, by_tab)).sum(1) / total,
        "oe_error": np.abs(observed[:, large] / expected[:, large] - 1).mean(1),
    }


def _summed(draws: NDArray[np.float32], column: NDArray[np.float32], code: NDArray[np.int64]) -> Column:
    # sums of a column by code in every resample, [resamples, codes]
    onehot = np.zeros((len(code), int(code.max()) + 1), np.float32)
    onehot[np.arange(len(code)), code] = column
    return (draws @ onehot).astype(float)


def _mass_bins(prob: Column, tab: NDArray[np.int64]) -> NDArray[np.int64]:
    # bins of equal numbers of rows within each tab, numbered tab after tab; equal scores share one, as in metrics.ece
    order = np.lexsort((prob, tab))
    sizes = np.bincount(tab)
    first = np.cumsum(sizes) - sizes
    new = np.r_[True, (np.diff(prob[order]) != 0) | (np.diff(tab[order]) != 0)]
    start = np.flatnonzero(new)
    middle = (start + np.r_[start[1:], len(tab)]) / 2  # of the rows that share a score
    place = np.empty(len(tab))
    place[order] = middle[np.cumsum(new) - 1] - first[tab[order]]
    return np.asarray(tab * BINS + (place * BINS / sizes[tab]).astype(np.int64).clip(max=BINS - 1))


def _ece_by_tab(prob: Column, label: NDArray[np.int64], tab: NDArray[np.int64]) -> float:
    return float(np.abs(np.bincount(_mass_bins(prob, tab), label - prob)).sum() / len(label))


def _large(tab: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.flatnonzero(np.bincount(tab) >= SMALLEST_TAB)


def _oe_error(prob: Column, label: NDArray[np.int64], tab: NDArray[np.int64]) -> float:
    large, observed, expected = _large(tab), np.bincount(tab, label), np.bincount(tab, prob)
    return float(np.abs(observed[large] / expected[large] - 1).mean())


def _by_tab(prob: Column, label: NDArray[np.int64], tab: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    table = metrics.observed_over_expected(label, prob, tab)
    columns = zip(table.context.tolist(), table.weight, table.ratio, table.lower, table.upper, strict=True)
    return {
        str(key): {"rows": float(rows), "ratio": float(ratio), "lower": float(lower), "upper": float(upper)}
        for key, rows, ratio, lower, upper in columns
        if rows >= SMALLEST_TAB
    }


def _interval(value: float, resampled: Column) -> tuple[float, float]:
    # about the value, since errors that cannot be negative are larger on a resample than on the rows themselves
    half = 1.96 * float(resampled.std(ddof=1))
    return value - half, value + half
