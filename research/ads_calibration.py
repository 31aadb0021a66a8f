"""The ads papers' bench of calibration, on whichever of its data sets are here: Avazu, AliCCP, Criteo, KuaiRand.

A DeepFM learns on the first 60% of the rows, calibrators on the next 20%, and the last 20% judge them: AUC, GAUC, ECE
of 100 equal bins, F-RCE by the calibration field, MF-RCE over several fields, PCOC and log loss. Data are looked for
where `data.data_path` looks, under these names, as published:

    avazu      train.csv or train.gz
    aliccp     sample_skeleton_train.csv and common_features_train.csv
    criteo     train.txt
    kuairand   the whole set; kuairand_pure, a slice of it, stands in

KuaiRand is no ads log; the author of a video plays the advertiser: some 5,600 in the slice, most with a few rows. The
model under *kuairand by author* sees neither the author nor the video nor its sound, each of which all but names the
author, so that there is something for the field to add; elsewhere, as in the papers' bench, the field is a feature of
the model too. *kuairand by tab* is the coarse counterpart, by the 15 surfaces of the app. Most of F-RCE by author is
the chance in a handful of test rows each, which is in every method alike: differences are what counts.

A value that is new or has too few rows gets what is fitted to all rows together from the calibrators by field, and from
the layer a curve near the one of all rows. How few is too few is chosen for each of the others by log loss on the last
fifth of the rows it is fitted on, out of `LEAST_ROWS`, and it is then fitted to all of them.

Blocks of isotonic regression are smoothed by half an event, without which the constant that keeps its rates from 0
would decide much of its log loss. Intervals are over resampled users (rows, where there are none) and over base models
of other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from research import datasets
from research.calibrators import MonotoneNetworkCalibrator, PlattCalibrator, SmoothedPavaCalibrator
from research.charts import intervals, records
from research.data import data_path, kuairand_path
from research.deepfm import field_ids, fitted_logits
from research.kuairand_calibration import LEAST_ROWS, SMOOTHED, chosen_on
from research.resampling import difference, draws
from research.result import Finished, Numbers, Part, Result, Row, Unit, units_of

CLAIM = "Swapping in the embedding of a field, such as the advertiser, calibrates every one of its values."
PAPER = "sections 1.4 and 6; published on Avazu (UMC): ECE .0413 raw, .0033; F-RCE .421 raw, .117"
SEEDS = 3
MOST_ROWS, QUICK_ROWS = 4_000_000, 60_000
MODEL_SHARE, FITTED_SHARE = 0.6, 0.8
CHOOSING_SHARE = 0.2  # of the rows to fit, the last ones
FEW = 50  # rows to fit of a value that the note calls one of few rows
RAW, PLATT, PAVA = "raw model", "Platt", "isotonic"
PLATT_PER_FIELD, ISOTONIC_PER_FIELD = "Platt by field", "isotonic by field"
NETWORK, EXACT = "monotone network by field", "layer by field"
BY_FIELD = {
    PLATT_PER_FIELD: PlattCalibrator,
    ISOTONIC_PER_FIELD: SmoothedPavaCalibrator,
    NETWORK: MonotoneNetworkCalibrator,
}
METHODS = (RAW, PLATT, PAVA, PLATT_PER_FIELD, ISOTONIC_PER_FIELD, NETWORK, EXACT)
METRICS = {
    "log loss": "log loss",
    "ece": "ECE, 100 bins of equal width",
    "f-rce": "F-RCE",
    "mf-rce": "MF-RCE",
    "pcoc": "PCOC",
    "auc": "AUC",
    "gauc": "GAUC",
}
JUDGED = ("log loss", "ece", "f-rce")
PUBLISHED = {("avazu", RAW, "ece"): ".0413", ("avazu", PAVA, "ece"): ".0088", ("avazu", RAW, "f-rce"): ".421"} | {
    ("avazu", PAVA, "f-rce"): ".231",
    ("avazu", EXACT, "ece"): ".0033 (UMC)",
    ("avazu", EXACT, "f-rce"): ".117 (UMC)",
}
Columns = dict[str, NDArray[Any]]


class Study(NamedTuple):
    """How a data set is used.

    Args:
        load: The first so many rows from a path, in order of time.
        label: What is predicted.
        field: What is calibrated by, and F-RCE is of.
        several: Fields of MF-RCE.
        user: Group of GAUC and of resampling; empty where there is none.
        unused: Columns that are no features: outcomes, and what tells the row.
    """

    load: Callable[[Path, int], Columns]
    label: str
    field: str
    several: tuple[str, ...]
    user: str = ""
    unused: tuple[str, ...] = ()


def _avazu(path: Path, rows: int) -> Columns:
    file = path / "train.csv" if (path / "train.csv").exists() else path / "train.gz"
    columns = datasets.avazu(file, rows=rows)
    return {**columns, "hour": columns["hour"] % 100}


def _criteo(path: Path, rows: int) -> Columns:
    return datasets.criteo(path / "train.txt", rows=rows)


def _aliccp(path: Path, rows: int) -> Columns:
    return datasets.aliccp(path, rows=rows)


def _kuairand(path: Path, rows: int) -> Columns:
    columns = datasets.kuairand(path)
    order = np.argsort(columns["time_ms"], kind="stable")[:rows]
    columns = {name: column[order] for name, column in columns.items()}
    return {**columns, "hourmin": columns["hourmin"] // 100}


_KUAIRAND_UNUSED = (
    *("date", "time_ms", "duration_ms", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view"),
    *("play_time_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter", "is_rand"),
)
_KUAIRAND_MAKER = ("author_id", "video_id", "music_id")  # most authors have one video here, and most videos their sound
STUDIES = {
    "avazu": Study(_avazu, "click", "site_id", ("site_id", "app_id", "site_category", "banner_pos"), "device_ip"),
    "aliccp": Study(
        _aliccp, "click", "field_206", ("field_206", "field_301", "field_121"), "field_101", ("conversion",)
    ),
    "criteo": Study(_criteo, "click", "category_2", ("category_2", "category_6", "category_14", "category_17")),
    "kuairand by author": Study(
        _kuairand,
        "is_click",
        "author_id",
        ("author_id", "user_active_degree", "upload_type", "tag"),
        "user_id",
        (*_KUAIRAND_UNUSED, *_KUAIRAND_MAKER),
    ),
    "kuairand by tab": Study(
        _kuairand,
        "is_click",
        "tab",
        ("tab", "user_active_degree", "upload_type", "tag"),
        "user_id",
        _KUAIRAND_UNUSED,
    ),
}


def place(name: str) -> Path:
    """Where a data set is, or would be."""
    return kuairand_path() if name.startswith("kuairand") else data_path(name)


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """The data sets that are here, under every seed; all of them when none is, so that each says what it misses."""
    found = [name for name in STUDIES if place(name).exists()]
    return units_of(found or list(STUDIES), quick=quick, seeds=seeds or SEEDS, cost=3.0 if quick else 30.0)


def run_unit(unit: Unit) -> Numbers:
    """Train the base model, calibrate it in every way, judge on the last rows and on resamples of them."""
    study = STUDIES[unit.setting]
    columns = study.load(place(unit.setting), QUICK_ROWS if unit.quick else MOST_ROWS)
    label = columns[study.label].astype(np.int64)
    features = [column for name, column in columns.items() if name not in (study.label, *study.unused)]
    model_rows, fitted_rows = (int(share * len(label)) for share in (MODEL_SHARE, FITTED_SHARE))
    logit = fitted_logits(features, label, model_rows, seed=unit.seed)
    field = field_ids(columns[study.field])[0]
    fitted, tested = slice(model_rows, fitted_rows), slice(fitted_rows, None)
    test = {name: field_ids(columns[name])[0][tested] for name in study.several}
    user = columns[study.user][tested] if study.user else None
    rows = len(label[tested])
    weight = draws(np.arange(rows) if user is None else user, _resamples(rows, quick=unit.quick))
    known = np.bincount(field[fitted], minlength=field.max() + 1)[field[tested]]
    numbers: Numbers = {"rows": rows, "positive rate": float(label[tested].mean())}
    numbers |= {"new values": float((known == 0).mean()), "few rows": float((known < FEW).mean())}
    for name in METHODS:
        prob = calibrated(name, logit[fitted], field[fitted], label[fitted], logit[tested], field[tested])
        for key, values in judged(prob, label[tested], field[tested], test, user, weight).items():
            numbers |= {f"{name} {key}": values[0], f"{name} {key} draws": values[1:]}
    return numbers


def _resamples(rows: int, *, quick: bool) -> int:
    return 4 if quick else 40 if rows < 200_000 else 10


def calibrated(
    name: str,
    logit: NDArray[np.float64],
    field: NDArray[np.int64],
    label: NDArray[np.int64],
    test_logit: NDArray[np.float64],
    test_field: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Test probabilities of one method fitted on the rows between."""
    if name == RAW:
        return prob_of(test_logit)
    before, after = {"score": logit, "field": field}, {"score": test_logit, "field": test_field}
    model: Any
    if name in BY_FIELD:
        model = BY_FIELD[name](("field",), minimum=least_rows(name, before, label))
    else:
        model = {PLATT: PlattCalibrator(), PAVA: SmoothedPavaCalibrator(), EXACT: IsotonicCalibrator(("field",))}[name]
    if not model.contexts:
        before, after = {"score": logit}, {"score": test_logit}
    return np.asarray(model.fit(before, label).predict_proba(after)[:, 1])


def least_rows(name: str, columns: Mapping[str, NDArray[Any]], label: NDArray[np.int64]) -> float:
    """How many rows a value needs for a fit of its own, by log loss on the last of these rows, which are in time."""
    cut = int((1 - CHOOSING_SHARE) * len(label))
    first, last = ({key: column[rows] for key, column in columns.items()} for rows in (slice(cut), slice(cut, None)))
    losses = {
        least: metrics.log_loss(
            label[cut:], BY_FIELD[name](("field",), minimum=least).fit(first, label[:cut]).predict_proba(last)[:, 1]
        )
        for least in LEAST_ROWS
    }
    return min(losses, key=lambda least: losses[least])


def judged(
    prob: NDArray[np.float64],
    label: NDArray[np.int64],
    field: NDArray[np.int64],
    several: Mapping[str, NDArray[np.int64]],
    user: NDArray[Any] | None,
    weight: NDArray[np.float32],
) -> dict[str, list[float]]:
    """Every metric on all rows, then on each resample."""
    found: dict[str, list[float]] = {}
    for counts in (None, *weight):
        kept = slice(None) if counts is None else counts > 0
        w = None if counts is None else counts[kept]
        p, y = prob[kept], label[kept]
        numbers = {
            "log loss": metrics.log_loss(y, p, w),
            "ece": metrics.ece(y, p, w, bins=100, binning="width"),
            "f-rce": metrics.f_rce(y, p, field[kept], w, epsilon=0),
            "mf-rce": metrics.mf_rce(y, p, {name: column[kept] for name, column in several.items()}, w, epsilon=0),
            "pcoc": metrics.pcoc(y, p, w),
            "auc": metrics.auc(y, p, w),
        }
        if user is not None:
            numbers["gauc"] = metrics.gauc(y, p, user[kept], w)
        for key, value in numbers.items():
            found.setdefault(key, []).append(value)
    return found


def _settings(finished: Sequence[Finished]) -> list[str]:
    return list(dict.fromkeys(one.unit.setting for one in finished))


def summarise(finished: Sequence[Finished]) -> Result:
    """Every metric of every method, and differences paired by seed and resample."""
    rows, parts = [], []
    for setting in _settings(finished):
        known = next(one.numbers for one in finished if one.unit.setting == setting)
        for key, what in METRICS.items():
            if f"{RAW} {key}" in known:
                rows += [
                    Row(
                        f"{setting}: {name}",
                        what,
                        difference(finished, setting, f"{name} {key}"),
                        PUBLISHED.get((setting, name, key), ""),
                        digits=4,
                    )
                    for name in METHODS
                ]
        parts += [
            Part(
                f"{setting}: the layer has lower {METRICS[key]} than {other}",
                difference(finished, setting, f"{EXACT} {key}", f"{other} {key}"),
                below=0,
            )
            for other in METHODS
            if other != EXACT
            for key in JUDGED
        ]
    return Result(tuple(rows), tuple(parts), _series(finished), _note(finished))


def _note(finished: Sequence[Finished]) -> str:
    found = {one.unit.setting: one.numbers for one in finished}
    here = ", ".join(
        f"{name} {numbers['rows']:,} ({numbers['new values']:.1%} of them with a value that has no row to fit, "
        f"{numbers['few rows']:.0%} with one that has fewer than {FEW})"
        for name, numbers in found.items()
    )
    absent = [name for name in STUDIES if name not in found]
    told = [f"Real data; test rows: {here}.", f"Not here: {', '.join(absent)}." if absent else "", SMOOTHED]
    chosen = chosen_on() if any(name.startswith("kuairand") for name in found) else ""
    return " ".join(filter(None, [*told, chosen]))


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    found = {
        (setting, name, key): difference(finished, setting, f"{name} {key}")
        for setting in _settings(finished)
        for name in METHODS
        for key in JUDGED
    }
    return {
        "panel": [f"{setting}: {METRICS[key]}" for setting, _, key in found],
        "method": [name for _, name, _ in found],
        **{key: [getattr(one, key) for one in found.values()] for key in ("value", "lower", "upper")},
    }


def chart(series: dict[str, Any]) -> Any:
    """Log loss, ECE and F-RCE of every method with intervals."""
    return intervals(records(series), y="method", panel="panel", order=METHODS, columns=3, ours=METHODS[-1])
