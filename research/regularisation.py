"""Section 3.5: does the constraint of a layer of one input regularise it? The same layer with and without it.

The design, stated before any run of the reported seeds. Scores are normal, and the true logit is a line in the score
plus a sine. With a small sine the truth rises everywhere, which is where the constraint should help; with a large one
it falls over more than a third of the scores, which is where it must cost. The layer has the paper's range and buckets
of .2, starts as the identity, and is trained by Adam on all rows at once: with slopes kept from falling by ReLU, which
is the paper's (with the leaky gradient that is this package's default), by softplus, or not at all. It is judged by its
expected log loss above that of the truth on fresh scores, which is exact, since the true probability of each is known.

The comparisons differ in what rate and number of steps the layers have. *Same training* gives all three `SAME`, without
any other guard against over-fitting. *Each tuned* gives each the best of one small grid (`RATES`, `STEPS`) for each
number of rows, so that stopping early, which regularises too, is open to the layer without the constraint. The best has
the lowest mean loss over seeds 500 to 599; it was found by `choose` and stands in `CHOSEN`. Reported seeds are others.
Where the best of a layer with the constraint and of the layer without it differ, a difference in loss may be one of
settings, so both are compared at equal settings too: *both as tuned without it* and *both as tuned with it*. A
comparison that is the same as one before it is left out. (Slopes learn more slowly through softplus, so that equal
settings are not quite equal training. Settings were chosen on ten seeds at first: with 1,000 rows they gave ReLU
another rate than the layer without the constraint, and it lost by it. That was seen in a run of the reported seeds,
after which the choice was made anew and the last two comparisons added.)

Isotonic regression and the exact calibrator are fitted to the same rows as references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.grid import Grid
from isolayer.nn.isotonic import Constraint, IsotonicLayer
from research.calibrators import PavaCalibrator
from research.charts import intervals
from research.result import Finished, Numbers, Part, Result, Row, Unit, by_seed, estimate, units_of
from research.stated_numbers import LISTED, LOWER, UPPER

CLAIM = "The constraint acts as an implicit regulariser: it prevents local over-fitting even where data are sparse."
PAPER = "section 3.5, no figures"
SEEDS = 10
FALLS = "10,000 rows, truth falls"
SETTINGS = {"100 rows": 100, "300 rows": 300, "1,000 rows": 1_000, "10,000 rows": 10_000, FALLS: 10_000}
RISING, FALLING = 0.3, 1.0  # heights of the sine; beyond .35 the truth falls somewhere
FRESH_ROWS = 20_000
GRID = Grid(LOWER, UPPER, LISTED)
KNOTS = GRID.knots[1:]
RELU, SOFTPLUS, FREE = "layer, ReLU", "layer, softplus", "layer, no constraint"
LAYERS: Final[dict[str, Constraint]] = {RELU: "relu", SOFTPLUS: "softplus", FREE: None}
PAVA, EXACT = "isotonic regression", "exact calibrator"
SAME_TRAINING, TUNED = "same training", "each tuned"
AS_FREE, AS_BOUND = "both as tuned without it", "both as tuned with it"
Recipe = tuple[float, int]
RATES, STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (20, 60, 200)
SAME: Final[Recipe] = (0.1, 200)
CHOSEN: Final[dict[str, dict[str, Recipe]]] = {
    "100 rows": {RELU: (0.01, 60), SOFTPLUS: (0.03, 20), FREE: (0.01, 60)},
    "300 rows": {RELU: (0.003, 200), SOFTPLUS: (0.03, 60), FREE: (0.003, 200)},
    "1,000 rows": {RELU: (0.01, 200), SOFTPLUS: (0.03, 200), FREE: (0.01, 200)},
    "10,000 rows": {RELU: (0.03, 200), SOFTPLUS: (0.1, 200), FREE: (0.03, 200)},
    FALLS: {RELU: (0.1, 200), SOFTPLUS: (0.3, 200), FREE: (0.1, 200)},
}
TUNING_SEEDS = range(500, 600)
Column = NDArray[np.float64]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """Every number of rows under every seed."""
    return units_of(list(SETTINGS), quick=quick, seeds=seeds or SEEDS, cost=0.3 if quick else 1.0)


def true_logit(score: Column, setting: str) -> Column:
    """The logit that labels are drawn from: a line plus a sine, small but where the truth is to fall."""
    height = FALLING if setting == FALLS else RISING
    return np.asarray(-1 + 0.7 * (score + 2) + height * np.sin(2 * (score + 2)))


def drawn(setting: str, rows: int, seed: int) -> tuple[Column, NDArray[np.int64], Column]:
    """Scores and labels to fit, and fresh scores."""
    rng = np.random.default_rng([seed, list(SETTINGS).index(setting)])
    score = rng.normal(-2.0, 1.5, rows)
    label = (rng.random(rows) < prob_of(true_logit(score, setting))).astype(np.int64)
    return score, label, rng.normal(-2.0, 1.5, FRESH_ROWS)


def run_unit(unit: Unit) -> Numbers:
    """Expected log loss above the truth's of every method, and the share of scores at which each layer falls."""
    small = 5 if unit.quick else 1
    score, label, fresh = drawn(unit.setting, SETTINGS[unit.setting] // small, unit.seed)
    truth = true_logit(fresh, unit.setting)
    numbers: Numbers = {}
    for name, constraint in LAYERS.items():
        for rate, steps in sorted({SAME, *CHOSEN[unit.setting].values()}):
            (values,) = trained(score[:, None], label[:, None], constraint, rate, [steps // small])
            method = layer_at(name, (rate, steps))
            numbers[f"{method} loss"] = excess(truth, np.interp(fresh, KNOTS, values[0]))
            numbers[f"{method} falls"] = falling(values[0], fresh)
    references: dict[str, Any] = {PAVA: PavaCalibrator(), EXACT: IsotonicCalibrator()}
    for name, model in references.items():
        numbers[f"{name} loss"] = excess(truth, model.fit(score, label).decision_function(fresh))
    return numbers


def layer_at(name: str, recipe: Recipe) -> str:
    """A layer with its rate and number of steps, as its numbers are called.

    >>> layer_at(RELU, SAME)
    'layer, ReLU, rate 0.1, 200 steps'
    """
    rate, steps = recipe
    return f"{name}, rate {rate:g}, {steps} steps"


def trained(
    score: Column, label: NDArray[np.int64], constraint: Constraint, rate: float, steps: Sequence[int]
) -> list[Column]:
    """Values at the knots after so many steps each, ``[units, knots]``, of layers that learn side by side.

    Args:
        score: Scores, ``[rows, units]``; units do not touch each other.
        label: Labels, ``[rows, units]``.
        constraint: Of the layer.
        rate: Of Adam.
        steps: When to take the values, rising.
    """
    layer = IsotonicLayer(score.shape[1], grid=GRID, constraint=constraint).double()
    logit, target = torch.from_numpy(score), torch.from_numpy(label).double()
    optimiser = torch.optim.Adam(layer.parameters(), lr=rate)
    taken = []
    for step in range(1, steps[-1] + 1):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(layer(logit), target, reduction="sum") / len(logit)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in steps:
            taken.append(layer.curve()[1].numpy().copy())
    return taken


def excess(truth: Column, logit: Column) -> float:
    """Mean expected log loss of logits above that of the true ones.

    >>> excess(np.array([0.3]), np.array([0.3])), round(excess(np.array([0.0]), np.array([1.0])), 4)
    (0.0, 0.1201)
    """
    prob = prob_of(truth)

    def loss(of: Column) -> Column:
        return np.asarray(np.logaddexp(0, of) - prob * of)

    return float((loss(logit) - loss(truth)).mean())


def falling(values: Column, score: Column) -> float:
    """Share of the scores at which a curve with these values at the knots falls.

    >>> falling(np.where(KNOTS > 0, -KNOTS, KNOTS), np.array([-1.0, 1.0, 2.0, 3.0]))
    0.75
    """
    bucket = np.clip(np.searchsorted(KNOTS, score, side="right") - 1, 0, len(KNOTS) - 2)
    return float((np.diff(values)[bucket] < 0).mean())


def choose(setting: str, name: str) -> Recipe:
    """The rate and number of steps of the grid with the least mean loss over seeds that are not reported."""
    seeds = [drawn(setting, SETTINGS[setting], seed) for seed in TUNING_SEEDS]
    score, label = np.stack([one[0] for one in seeds], axis=1), np.stack([one[1] for one in seeds], axis=1)
    found: dict[Recipe, float] = {}
    for rate in RATES:
        for steps, values in zip(STEPS, trained(score, label, LAYERS[name], rate, STEPS), strict=True):
            losses = [
                excess(true_logit(fresh, setting), np.interp(fresh, KNOTS, curve))
                for (_, _, fresh), curve in zip(seeds, values, strict=True)
            ]
            found[rate, steps] = float(np.mean(losses))
    return min(found, key=lambda one: found[one])


def recipes(setting: str, name: str, comparison: str) -> tuple[Recipe, Recipe]:
    """The rate and number of steps of a layer with a constraint, and those of the layer without it."""
    own, free = CHOSEN[setting][name], CHOSEN[setting][FREE]
    return {SAME_TRAINING: (SAME, SAME), TUNED: (own, free), AS_FREE: (free, free), AS_BOUND: (own, own)}[comparison]


def comparisons(setting: str, name: str) -> list[str]:
    """Those whose settings differ from those of every one before.

    >>> [len(comparisons("100 rows", name)) for name in (RELU, SOFTPLUS)]
    [2, 4]
    """
    by_recipes: dict[tuple[Recipe, Recipe], str] = {}
    for comparison in (SAME_TRAINING, TUNED, AS_FREE, AS_BOUND):
        by_recipes.setdefault(recipes(setting, name, comparison), comparison)
    return list(by_recipes.values())


def minus_free(finished: Sequence[Finished], setting: str, name: str, comparison: str) -> NDArray[np.float64]:
    """The loss with a constraint minus that without it, on the same rows, in 1e-4; one per seed."""
    own, free = recipes(setting, name, comparison)
    losses = [
        by_seed(finished, setting, f"{layer_at(one, recipe)} loss") for one, recipe in ((name, own), (FREE, free))
    ]
    return np.asarray(1e4 * (losses[0] - losses[1]))


def summarise(finished: Sequence[Finished]) -> Result:
    """Losses of every method, and each constraint against none on the same rows."""
    rows, parts, series = list[Row](), list[Part](), list[dict[str, Any]]()
    for setting in SETTINGS:
        layers = {
            f"{name}, {says}": layer_at(name, recipe)
            for says, of in ((SAME_TRAINING, dict.fromkeys(LAYERS, SAME)), (TUNED, CHOSEN[setting]))
            for name, recipe in of.items()
        }
        for method, key in {**layers, PAVA: PAVA, EXACT: EXACT}.items():
            loss = estimate(1e4 * by_seed(finished, setting, f"{key} loss"))
            rows.append(Row(f"{setting}: {method}", "log loss above the truth's, x1e4", loss, digits=1))
            series.append({"method": method, "panel": f"{setting}: log loss above the truth's, x1e4", **loss._asdict()})
        for method in (f"{FREE}, {SAME_TRAINING}", f"{FREE}, {TUNED}"):
            falls = estimate(100 * by_seed(finished, setting, f"{layers[method]} falls"))
            rows.append(Row(f"{setting}: {method}", "scores at which it falls", falls, digits=1, unit="%"))
        parts += [
            _part(finished, setting, name, comparison)
            for name in (RELU, SOFTPLUS)
            for comparison in comparisons(setting, name)
        ]
    methods = [*layers, PAVA, EXACT]
    return Result(tuple(rows), tuple(parts), {"rows": series, "methods": methods}, _note(finished))


def _part(finished: Sequence[Finished], setting: str, name: str, comparison: str) -> Part:
    found = estimate(minus_free(finished, setting, name, comparison))
    if setting == FALLS:
        return Part(f"{comparison}: {name}, costs log loss ({setting})", found, above=0, unit=" x1e-4")
    says = f"{comparison}: {name}, has a lower log loss than without the constraint ({setting})"
    return Part(says, found, below=0, unit=" x1e-4")


def _note(finished: Sequence[Finished]) -> str:
    """Where the tuned layers with and without ReLU have the same settings, and where they are the same curve."""
    shared = [setting for setting in SETTINGS if CHOSEN[setting][RELU] == CHOSEN[setting][FREE]]
    same = [setting for setting in SETTINGS if not minus_free(finished, setting, RELU, TUNED).any()]
    told = []
    if shared:
        where = "every number of rows" if shared == list(SETTINGS) else " and ".join(shared)
        told.append(
            f"Tuned, ReLU and no constraint have the same settings with {where}, so that they differ in the constraint "
            "alone."
        )
    if same:
        told.append(
            f"ReLU changes nothing with {' and '.join(same)}: both layers stop before any slope has reached zero, so "
            "that they are the same curve and the difference is exactly 0."
        )
    told += [
        f"Softplus and no constraint, {comparison}: where the truth rises, the loss with softplus is lower beyond "
        f"chance for {lower} of {count} numbers of rows, and higher for {higher}."
        for comparison, lower, higher, count in _beyond_chance(finished)
    ]
    return " ".join(told)


def _beyond_chance(finished: Sequence[Finished]) -> list[tuple[str, int, int, int]]:
    """How often softplus is beyond chance below and above no constraint, at each kind of equal settings."""
    counted = []
    for comparison in (AS_FREE, AS_BOUND):
        found = [
            estimate(minus_free(finished, setting, SOFTPLUS, comparison)) for setting in SETTINGS if setting != FALLS
        ]
        lower, higher = sum(one.upper < 0 for one in found), sum(one.lower > 0 for one in found)
        counted.append((comparison, lower, higher, len(found)))
    return counted


def chart(series: dict[str, Any]) -> Any:
    """Loss of every method by the number of rows; isotonic regression is off the scale and left out."""
    shown = [row for row in series["rows"] if row["method"] != PAVA]
    order = [method for method in series["methods"] if method != PAVA]
    return intervals(shown, y="method", panel="panel", order=order, ours=f"{RELU}, {SAME_TRAINING}")
