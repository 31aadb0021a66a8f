"""Coverage of 95% bands by simulation: ``python -m benchmarks coverage [--quick] [--rate=R] [--contexts=N]``.

``--truth=same``, ``line`` or ``bend`` takes one kind of truth. Every cell is a rate, a number of contexts and a kind of
truth; each of its logs has a seed of its own, so that a cell can be run alone and gives the same figure. A cell takes
some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row, progress, quick
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.errors import InputError

ROWS, ASKED = 100_000, 20_000  # rows of a simulated log, and those of them whose bands are looked at
REPEATS, QUICK_REPEATS = {8: 60, 100: 40, 1_000: 24}, 2  # few contexts share most of their error, and need more logs
LOWEST, HIGHEST = 0.92, 0.98
Column = NDArray[np.float64]


class Cells(NamedTuple):
    """Which rates, numbers of contexts and truths."""

    rates: tuple[float, ...] = (0.2, 0.05, 1e-3)
    contexts: tuple[int, ...] = (8, 100, 1_000)
    truths: tuple[str, ...] = ("same", "line", "bend")


def run(options: Sequence[str] = ()) -> list[Row]:
    """One row per kind of truth, with every rate and number of contexts."""
    small, cells = parse(options)
    return list(coverage_rows(quick=small, cells=cells))


def parse(options: Sequence[str]) -> tuple[bool, Cells]:
    """Whether quick, and which cells.

    >>> parse(["--rate=0.05", "--truth=line"])
    (False, Cells(rates=(0.05,), contexts=(8, 100, 1000), truths=('line',)))
    """
    small, cells = quick(), Cells()
    fields = {"rate": "rates", "contexts": "contexts", "truth": "truths"}
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        found = tuple(known for known in getattr(cells, fields.get(name, ""), ()) if str(known) == value)
        if not (name == "quick" or found):
            raise InputError(
                f"coverage: expected --quick, --rate, --contexts or --truth of {cells}, got {option}; choose"
            )
        small, cells = small or name == "quick", cells._replace(**{fields[name]: found}) if found else cells
    return small, cells


def coverage_rows(
    *, quick: bool = False, cells: Cells | None = None, kept: Callable[[str, Callable[[], Any]], Any] | None = None
) -> Iterator[Row]:
    """Coverage by truth; in brackets, its standard error over the simulated logs.

    Args:
        quick: Two logs of each cell.
        cells: Which cells; by default all.
        kept: Looks a result up by its name, or makes and keeps it; by default every cell is run.
    """
    rates, contexts, truths = cells or Cells()
    for truth in truths:
        found = {}
        for rate, many in product(rates, contexts):
            start = perf_counter()
            seeds = range(QUICK_REPEATS if quick else REPEATS[many])
            shares = _shares(rate, many, truth, seeds, kept)
            found[f"rate {rate}, {many:,}"] = shares
            text = f"coverage, truth {truth}, rate {rate}, {many:,} contexts: {np.mean(shares):.3f}"
            progress(f"{text} +- {_error(shares):.3f}, {perf_counter() - start:.1f} s")
        measured = "; ".join(f"{name}: {np.mean(s):.3f} ({_error(s):.3f})" for name, s in found.items())
        ok = all(LOWEST <= np.mean(shares) <= HIGHEST for shares in found.values())
        yield Row(f"coverage of 95% bands, truth {truth}, by rate and contexts", ".92 to .98", measured, ok)


def _shares(rate: float, many: int, truth: str, seeds: range, kept: Any) -> list[float]:
    def make() -> list[float]:
        return [coverage(rate, many, truth, seed) for seed in seeds]

    return make() if kept is None else list(kept(f"coverage {truth} {rate} {many} x {len(seeds)}", make))


def coverage(rate: float, contexts: int, truth: str, seed: int) -> float:
    """Share of rows of a simulated log whose true probability lies in the 95% band."""
    columns = simulated(rate, contexts, truth, seed)
    frame = {name: columns[name] for name in ("score", "context")}
    model = IsotonicCalibrator(("context",)).fit(frame, columns["label"])
    lower, upper = model.band({name: column[:ASKED] for name, column in frame.items()})
    true = columns["true"][:ASKED]
    return float(((lower <= true) & (true <= upper)).mean())


def simulated(rate: float, contexts: int, truth: str, seed: int, rows: int = ROWS) -> dict[str, Any]:
    r"""Scores of rows in contexts of uneven size, and the true probability, which rises with the score in each.

    With :math:`t \sim N(0, 1.2)` the true logit of context c is
    :math:`\mu + a_c + b_c (t + w \sin(1.2 t + \phi_c) / 1.2)`: for *same* :math:`a_c = 0, b_c = .8, w = 0` in all; for
    *line* :math:`a_c` has a deviation of .4 and :math:`\log b_c` of .2; for *bend* also :math:`w = .6`. The score is
    :math:`(\mu - .3) / .8 + t`, and :math:`\mu` sets the rate.

    >>> columns = simulated(0.05, 8, "bend", seed=0, rows=20_000)
    >>> bool(abs(columns["label"].mean() - 0.05) < 0.02)
    True
    """
    rng = np.random.default_rng([seed, contexts, int(rate * 1e6)])
    share = np.arange(1, contexts + 1) ** -0.7
    context = rng.choice(contexts, rows, p=share / share.sum())
    t = 1.2 * rng.standard_normal(rows)
    level, stretch, phase = rng.standard_normal((3, contexts)) * [[0.4], [0.2], [10.0]] * (truth != "same")
    wave = 0.6 * np.sin(1.2 * t + phase[context]) / 1.2 if truth == "bend" else 0.0
    middle = np.log(rate / (1 - rate)) - 0.4  # the mean of the logistic lies above its value at the mean
    logit = middle + level[context] + 0.8 * np.exp(stretch[context]) * (t + wave)
    true = prob_of(logit)
    label = (rng.random(rows) < true).astype(np.int64)
    return {"score": (middle - 0.3) / 0.8 + t, "context": context, "label": label, "true": true}


def _error(shares: Sequence[float]) -> float:
    return float(np.std(shares) / np.sqrt(max(len(shares) - 1, 1)))
