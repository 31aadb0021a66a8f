"""Sampled negatives on a real task: what is lost, and how wide the bands are.

All positives and 2% of the negatives are kept, and the calibrator is told by ``negative_rate``. Tasks with many events
are left out: nobody samples their negatives. Judged on the test rows, which are not sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks import Row
from benchmarks.real.judge import Judge
from benchmarks.real.tasks import load
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import logit_of, prob_of

KEPT = 0.02
MOST_EVENTS = 0.25  # share of events of a task whose negatives are worth sampling
SEEDS = 3
NAMES = {
    "ratio_all": ("NE over that of all rows", 1.02),
    "ratio_weighted": ("the same of a fit that weights negatives by 1 / rate", None),
    "width": ("width of bands over those of the unweighted fit of the kept rows", 1.3),
    "width_all": ("width of bands over those of all rows", None),
}


def negatives(task: str) -> dict[str, float]:
    """NE and mean width of the bands, in logits, with 2% of the negatives, relative to other fits; see ``NAMES``."""
    loaded = load(task)
    judge, frame = Judge(loaded.test, 0), loaded.test.frame()
    whole = IsotonicCalibrator(loaded.contexts).fit(loaded.fit.frame(), loaded.fit.label)
    every = [_sampled(loaded, judge, frame, whole, seed) for seed in range(SEEDS)]
    return {name: float(np.mean([one[name] for one in every])) for name in every[0]}


def _sampled(
    loaded: Any, judge: Judge, frame: dict[str, Any], whole: IsotonicCalibrator, seed: int
) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    kept = loaded.fit[(loaded.fit.label == 1) | (rng.random(len(loaded.fit)) < KEPT)]
    ours = IsotonicCalibrator(loaded.contexts, negative_rate=KEPT).fit(kept.frame(), kept.label)
    plain = IsotonicCalibrator(loaded.contexts).fit(kept.frame(), kept.label)
    shifted = plain.decision_function(frame) + np.log(KEPT)
    if not np.allclose(ours.decision_function(frame), shifted, atol=1e-9):
        raise RuntimeError("negative_rate: the fit is not that of the kept rows, moved by log(rate)")
    weight = np.where(kept.label == 1, 1.0, 1 / KEPT)
    weighted = IsotonicCalibrator(loaded.contexts).fit(kept.frame(), kept.label, sample_weight=weight)
    ne = {name: judge(prob_of(one.decision_function(frame)))["ne"][0] for name, one in _named(whole, ours, weighted)}
    return {
        "ratio_all": ne["ours"] / ne["whole"],
        "ratio_weighted": ne["weighted"] / ne["whole"],
        "width": _width(ours, frame) / _width(plain, frame),
        "width_all": _width(ours, frame) / _width(whole, frame),
    }


def _named(*models: IsotonicCalibrator) -> Iterator[tuple[str, IsotonicCalibrator]]:
    return zip(("whole", "ours", "weighted"), models, strict=True)


def _width(model: IsotonicCalibrator, frame: dict[str, Any]) -> float:
    """Mean width of the bands in logits."""
    lower, upper = (logit_of(end) for end in model.band(frame))
    return float((upper - lower).mean())


def negative_rows(found: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """One row per figure: its median and its largest over the tasks."""
    for key, (name, most) in NAMES.items() if found else ():
        values = {task: one[key] for task, one in found.items()}
        worst = max(values, key=lambda task: values[task])
        measured = f"median {np.median(list(values.values())):.3f}, largest {values[worst]:.3f} ({worst})"
        target = "" if most is None else f"<= {most}"
        yield Row(
            f"{KEPT:.0%} of negatives kept: {name}", target, measured, None if most is None else values[worst] <= most
        )
