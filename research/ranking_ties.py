"""Section 2: the steps of isotonic regression make scores tie. How many, and what does that cost in ranking?

Scores are logits whose probabilities are off by a smooth monotone distortion. Calibrators are fitted to some rows and
judged on others by the share of pairs of rows that they give the same score, and by AUC, in which a tied pair counts
half. Isotonic regression appears as the staircase that the algorithm (PAVA) gives, and as scikit-learn predicts with
it, linear between the edges of its steps. The layer appears as fitted exactly, with strictly rising curves, and as the
paper trains it: by gradient, with slopes kept from falling by ReLU, which may end at exactly zero.

The true chance rises with the score, so that the raw score has the best order there is. A monotone calibrator can only
tie pairs of it, which costs expected AUC by construction. Parts are therefore about size: more than 0.1% of pairs tied,
and more than 0.1% of AUC lost for isotonic regression, less than that for the layer as the paper trains it. The bound
on AUC is what the paper calls negligible (section 5.7, on distilling). First reports judged whether steps cost AUC at
all, and compared the layer with the steps, which said nearly the same twice. The bound on AUC, and both for the layer,
were set after these; the seeds reported now are others.

A curve that rises strictly keeps the order of the scores, so that the layer as fitted exactly has the ties and the AUC
of the raw score by construction. No part of the verdict is about it: that it ties less and ranks better than the steps
would say once more that the steps tie and cost AUC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.errors import need
from isolayer.grid import Grid
from isolayer.nn.isotonic import IsotonicLayer
from research.charts import intervals
from research.result import Estimate, Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of
from research.stated_numbers import LISTED, LOWER, UPPER

CLAIM = "Isotonic regression (PAVA) produces staircase mappings that degrade ranking resolution."
PAPER = "section 2, no figures"
SEEDS = 10
SEEN = 100  # seeds that were reported before the bounds were set
SIZES = {"1,000 rows": 1_000, "10,000 rows": 10_000, "100,000 rows": 100_000}
TEST_ROWS = 20_000
RAW, STAIRS, SKLEARN = "raw score", "isotonic regression, steps", "isotonic regression, scikit-learn"
EXACT, RELU = "layer, exact", "layer, ReLU by gradient"
METHODS = (RAW, STAIRS, SKLEARN, EXACT, RELU)
STEPS, BATCH = 300, 5_000
FEW = 0.1  # % of tied pairs that would hardly matter
SLIGHT = 0.1  # % of AUC whose loss the paper calls negligible
Column = NDArray[np.float64]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every number of rows under every seed."""
    return units_of(list(SIZES), quick=quick, seeds=seeds or SEEDS, cost=2.0, seen=SEEN)


def drawn(rows: int, rng: np.random.Generator) -> tuple[Column, NDArray[np.int64]]:
    """Scores and labels; the true logit is a smooth rising function of the score."""
    score = rng.normal(-2.0, 1.0, rows)
    logit = 1.3 * score + 0.4 * np.sin(2 * score)
    return score, (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)


def run_unit(unit: Unit) -> Numbers:
    """Share of tied pairs and AUC of every calibrator on test rows."""
    rng = np.random.default_rng([unit.seed, SIZES[unit.setting]])
    score, label = drawn(SIZES[unit.setting] // (10 if unit.quick else 1), rng)
    test, truth = drawn(TEST_ROWS // (10 if unit.quick else 1), rng)
    numbers: Numbers = {}
    for name, column in calibrated(score, label, test).items():
        numbers[f"{name} ties"] = tied(column)
        numbers[f"{name} auc"] = metrics.auc(truth, column)
    return numbers


def calibrated(score: Column, label: NDArray[np.int64], test: Column) -> dict[str, Column]:
    """The test scores as each calibrator gives them."""
    isotonic = need("sklearn.isotonic").IsotonicRegression(out_of_bounds="clip").fit(score, label)
    order = np.argsort(score, kind="stable")
    steps = isotonic.predict(score[order])  # at training scores the fit is the staircase itself
    last = np.clip(np.searchsorted(score[order], test, side="right") - 1, 0, None)
    return {
        RAW: test,
        STAIRS: steps[last],
        SKLEARN: isotonic.predict(test),
        EXACT: IsotonicCalibrator().fit(score, label).predict_proba(test)[:, 1],
        RELU: by_gradient(score, label, test),
    }


def by_gradient(score: Column, label: NDArray[np.int64], test: Column) -> Column:
    """The test scores by the paper's layer, trained on batches; in double precision, so that none tie by rounding."""
    layer = IsotonicLayer(grid=Grid(LOWER, UPPER, LISTED), constraint="relu").double()
    logit, target = torch.from_numpy(score), torch.from_numpy(label).double()
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS, eta_min=1e-3)
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(logit)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(logit[rows])[:, 0], target[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return np.asarray(layer(torch.from_numpy(test))[:, 0].numpy())


def tied(column: Column) -> float:
    """Share of the pairs of rows whose scores are equal.

    >>> tied(np.array([1.0, 1.0, 2.0]))
    0.3333333333333333
    """
    _, count = np.unique(column, return_counts=True)
    return float((count * (count - 1)).sum() / (len(column) * (len(column) - 1)))


def summarise(finished: Sequence[Finished]) -> Result:
    """Ties and AUC of every method, AUC relative to that of the raw score of the same rows."""
    rows, parts, series = [], list[Part](), []
    for size in SIZES:
        for name in METHODS:
            ties = _times(finished, size, f"{name} ties", 100)
            change = _change(finished, size, name)
            rows.append(Row(f"{size}: {name}", "tied pairs", ties, digits=3, unit="%"))
            rows.append(Row(f"{size}: {name}", "AUC, change from the raw score", change, digits=4, unit="%"))
            series += [
                {"method": name, "panel": f"{size}: {what}", **one._asdict()}
                for what, one in (("tied pairs, %", ties), ("AUC, change from the raw score, %", change))
            ]
        parts += _parts(finished, size)
    return Result(tuple(rows), tuple(parts), {"rows": series}, _note(finished))


def _parts(finished: Sequence[Finished], size: str) -> list[Part]:
    """How much the steps tie and cost, and how little the layer does as the paper trains it."""
    steps, relu = (_times(finished, size, f"{name} ties", 100) for name in (STAIRS, RELU))
    pairs, auc = f"{FEW:g}% of pairs ({size})", f"{SLIGHT:g}% of AUC ({size})"
    costly = {
        STAIRS: "isotonic regression's steps cost",
        SKLEARN: "as scikit-learn predicts, isotonic regression costs",
    }
    return [
        Part(f"isotonic regression's steps tie more than {pairs}", steps, above=FEW, unit="%"),
        *(
            Part(f"{says} more than {auc}", _change(finished, size, name), below=-SLIGHT, unit="%")
            for name, says in costly.items()
        ),
        Part(f"{RELU}, ties fewer than {pairs}", relu, below=FEW, unit="%"),
        Part(f"{RELU}, costs less than {auc}", _change(finished, size, RELU), above=-SLIGHT, unit="%"),
    ]


def _note(finished: Sequence[Finished]) -> str:
    """What holds by construction; the layer as fitted exactly cannot differ from the raw score but by rounding."""
    far = {
        key: max(abs(one.numbers[f"{EXACT} {key}"] - one.numbers[f"{RAW} {key}"]) for one in finished)
        for key in ("auc", "ties")
    }
    return (
        "The true chance rises with the score, so that a monotone calibrator can only tie pairs, which costs expected "
        f"AUC by construction: only the size of that cost and the share of ties can fail. A cost below {SLIGHT:g}% of "
        "AUC counts as none, since the paper calls such a loss negligible (section 5.7). The layer as fitted exactly "
        "has the AUC and the ties of the raw score by construction, so no part is about it (largest differences "
        f"measured: {far['auc']:.1g} in AUC, {far['ties']:.1g} in the share of tied pairs)."
    )


def _times(finished: Sequence[Finished], size: str, key: str, times: float) -> Estimate:
    return estimate(times * by_seed(finished, size, key))


def _change(finished: Sequence[Finished], size: str, name: str) -> Estimate:
    """Of AUC from that of the raw score, in percent of it."""
    return estimate(100 * (by_seed(finished, size, f"{name} auc") / by_seed(finished, size, f"{RAW} auc") - 1))


def chart(series: dict[str, Any]) -> Any:
    """Tied pairs and AUC of every method, by the number of rows it was fitted to."""
    return intervals(series["rows"], y="method", panel="panel", order=METHODS, ours=EXACT)
