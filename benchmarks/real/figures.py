"""Figures of our calibrator alone: coverage of its bands by simulation, down-sampled negatives, KuaiRand by tab.

Each is kept by the version of the calibrator's sources, as the units are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Row, progress
from benchmarks.real.draws import Unit
from benchmarks.real.judge import Judge
from benchmarks.real.lines import prob_of
from benchmarks.real.tasks import catalogue, folder, load
from benchmarks.real.units import OURS, run_method, save, version
from isolayer.calibrator import IsotonicCalibrator

RATES, CONTEXTS, TRUTHS = (0.2, 0.05, 1e-3), (8, 100, 1_000), ("same", "line", "bend")
SIMULATED_ROWS, REPEATS, QUICK_REPEATS = 100_000, 8, 2
KEPT_NEGATIVES = 0.02
MOST_EVENTS = 0.25  # share of events of a task whose negatives are worth sampling
Column = NDArray[np.float64]


def figure_rows(tasks: Sequence[str], *, quick: bool = False) -> Iterator[Row]:
    """Every figure, with its target."""
    yield from _coverage_rows(QUICK_REPEATS if quick else REPEATS)
    yield from _negative_rows(tasks)
    yield from _tab_rows(tasks)


def simulated(rate: float, contexts: int, truth: str, seed: int, rows: int = SIMULATED_ROWS) -> dict[str, Any]:
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


def coverage(rate: float, contexts: int, truth: str, repeats: int) -> float:
    """Share of rows whose true probability lies in the 95% band, over several simulated logs."""
    inside = []
    for seed in range(repeats):
        columns = simulated(rate, contexts, truth, seed)
        frame = {name: columns[name] for name in ("score", "context")}
        model = IsotonicCalibrator(("context",)).fit(frame, columns["label"])
        some = {name: column[:20_000] for name, column in frame.items()}
        lower, upper = model.band(some)
        true = columns["true"][:20_000]
        inside.append(float(((lower <= true) & (true <= upper)).mean()))
    return float(np.mean(inside))


def negatives(task: str) -> dict[str, float]:
    """NE and mean width of the bands, in logits, with 2% of the negatives and ``negative_rate``.

    ``ratio_all`` is NE over that of all rows, ``ratio_shifted`` over that of the plain fit of the kept rows shifted by
    log(rate); ``width`` is the width of the bands over that of the plain fit.
    """
    loaded = load(task)
    judge = Judge(loaded.test, 0)
    rng = np.random.default_rng(0)
    kept = loaded.fit[(loaded.fit.label == 1) | (rng.random(len(loaded.fit)) < KEPT_NEGATIVES)]
    frame = loaded.test.frame()

    def fitted(rows: Any, **settings: Any) -> IsotonicCalibrator:
        return IsotonicCalibrator(loaded.contexts, **settings).fit(rows.frame(), rows.label)

    def width(model: IsotonicCalibrator) -> float:
        lower, upper = (np.clip(end, 1e-15, 1 - 1e-15) for end in model.band(frame))
        return float((np.log(upper / (1 - upper)) - np.log(lower / (1 - lower))).mean())

    whole, plain, ours = fitted(loaded.fit), fitted(kept), fitted(kept, negative_rate=KEPT_NEGATIVES)
    shifted = prob_of(plain.decision_function(frame) + np.log(KEPT_NEGATIVES))
    probs = (whole.predict_proba(frame)[:, 1], shifted, ours.predict_proba(frame)[:, 1])
    all_, shift, own = (judge(prob)["ne"][0] for prob in probs)
    return {"ratio_all": own / all_, "ratio_shifted": own / shift, "width": width(ours) / width(plain), "ne": own}


def _coverage_rows(repeats: int) -> Iterator[Row]:
    for truth in TRUTHS:
        found = {}
        for rate, contexts in product(RATES, CONTEXTS):
            key = f"coverage {rate} {contexts} {truth} {repeats}"
            found[f"rate {rate}, {contexts:,}"] = _kept(
                key, lambda r=rate, c=contexts, t=truth: coverage(r, c, t, repeats)
            )
        measured = "; ".join(f"{name}: {share:.3f}" for name, share in found.items())
        ok = all(0.92 <= share <= 0.98 for share in found.values())
        yield Row(f"coverage of 95% bands, truth {truth}, by rate and contexts", ".92 to .98", measured, ok)


def _negative_rows(tasks: Sequence[str]) -> Iterator[Row]:
    found = {}
    for task in tasks:
        if load(task).fit.label.mean() <= MOST_EVENTS:
            found[task] = _kept(f"negatives {task}", lambda t=task: negatives(t))
    for key, target, most in (("ratio_all", "<= 1.02", 1.02), ("ratio_shifted", "", None), ("width", "<= 1.3", 1.3)):
        name = {
            "ratio_all": "2% of negatives kept: NE over that of all rows",
            "ratio_shifted": "the same: NE over that of the plain fit, shifted",
            "width": "the same: width of bands over those of the plain fit",
        }[key]
        values = {task: one[key] for task, one in found.items()}
        worst = max(values, key=lambda task: values[task])
        measured = f"median {np.median(list(values.values())):.3f}, largest {values[worst]:.3f} ({worst})"
        yield Row(name, target, measured, None if most is None else values[worst] <= most)


def _tab_rows(tasks: Sequence[str]) -> Iterator[Row]:
    # all eight tasks on reporting, those of the choosing half while choosing
    eight = [task for task in catalogue() if task.startswith("kuairand") and task.endswith("by tab")]
    eight = [task for task in eight if task in tasks] if set(tasks) <= set(catalogue("choose")) else eight
    if not eight:
        return
    gaps = {}
    for task in eight:
        ours, platt = (run_method(task, name, asked=[Unit()])[Unit().key] for name in (OURS, "Platt per segment"))
        gaps[task] = ours["ne"][0] - platt["ne"][0]
    each = ", ".join(f"{task.split()[1]} {gap * 1e4:+.1f}" for task, gap in gaps.items())
    mean = float(np.mean(list(gaps.values())))
    name = f"KuaiRand by tab, {len(eight)} tasks: NE minus Platt by tab"
    yield Row(name, "<= 0 in the mean", f"{mean * 1e4:+.1f}e-4 ({each})", mean <= 0)


def _kept(key: str, make: Callable[[], Any]) -> Any:
    path = folder() / "units" / f"figures--{version(OURS)}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if key not in found:
        progress(key)
        found[key] = make()
        save(found, path)
    return found[key]
