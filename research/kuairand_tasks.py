"""KuaiRand, eight tasks at once: one network for click, long view, like, profile, comment, follow, forward and hate.

The network, blind to the tab, learns on the first April days; calibrators are fitted on the next and judged on May.
Some tasks have a few dozen events by then, and tabs differ in their rates by a factor of six: one calibrator per task
does not know the tab, one per task and tab has little to learn from, one layer has both.

    ne   mean over tasks of normalised entropy
    oe   mean of abs(O/E - 1) over every (task, tab) with 20 events or more in the days that calibrators are fitted on

Both are also reported of the two tasks alone that no default of the layer was chosen on. How many rows a tab needs for
a calibrator of its own is chosen for each baseline on the last of the days it is fitted on, by the mean NE over tasks.
Blocks of isotonic regression are smoothed by half an event, without which the constant that keeps its rates from 0
would decide much of its NE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isolayer import metrics
from isolayer.calibrator import IsotonicCalibrator
from isolayer.curves.evaluation import prob_of
from isolayer.debias.baselines import Naive
from isolayer.debias.loss import Heads, stacked_labels, weighted_bce
from isolayer.nn.context import ContextIsotonicLayer
from research.calibrators import PlattCalibrator, SmoothedPavaCalibrator
from research.charts import intervals, records
from research.data import kuairand_path
from research.datasets import kuairand
from research.kuairand_calibration import (
    FITTED_FROM,
    LEAST_ROWS,
    SMALLEST_TAB,
    SMOOTHED,
    TESTED_FROM,
    chosen_on,
    features,
)
from research.loop import WIDTH, Log, network, train
from research.resampling import difference, draws
from research.result import Finished, Numbers, Part, Result, Row, Unit, units_of

CLAIM = "One layer calibrates every task and surface at once; one calibrator per task averages over surfaces."
PAPER = "sections 1.4 and 4, no public data"
SEEDS = 4
TASKS = (
    *("is_click", "long_view", "is_like", "is_profile_enter"),
    *("is_comment", "is_follow", "is_forward", "is_hate"),
)
UNCHOSEN = ("is_click", "is_like")  # the labels that no default of the layer was chosen on
TABS = 15
LEAST_EVENTS = 20  # in the days that calibrators are fitted on, of a task and tab whose O/E counts
OF_ALL, OF_UNCHOSEN = "", ", not chosen on"  # ends of the names of metrics
RAW, PLATT, PAVA = "raw model", "Platt, one per task", "isotonic, one per task"
PER_SEGMENT = ("Platt, one per task and tab", "isotonic, one per task and tab")
EXACT, LEARNED = "layer, exact", "layer, by gradient"
METHODS = (RAW, PLATT, PAVA, *PER_SEGMENT, EXACT, LEARNED)
Columns = dict[str, NDArray[Any]]
Table = NDArray[np.float64]  # [rows, tasks]


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One network a seed."""
    return units_of(["all"], quick=quick, seeds=seeds or SEEDS, cost=7.0 if quick else 12.0)


def run_unit(unit: Unit) -> Numbers:
    """Train the network, calibrate it in every way, judge on all test rows and on resampled users."""
    torch.manual_seed(unit.seed)
    columns = kuairand(kuairand_path())
    day, tab = columns["date"], columns["tab"].astype(np.int64).clip(0, TABS - 1)
    label = np.stack([columns[task] for task in TASKS], axis=1).astype(np.int64)
    logit = task_logits(features(columns), label, day < FITTED_FROM, seed=unit.seed, epochs=3 if unit.quick else 8)
    fitted, tested = (day >= FITTED_FROM) & (day < TESTED_FROM), day >= TESTED_FROM
    weight = draws(columns["user_id"][tested], 30 if unit.quick else 200)
    numbers: Numbers = {"rows": int(tested.sum())}
    cells = judged_cells(label[fitted], tab[fitted], tab[tested])
    known, asked = Rows(logit[fitted], tab[fitted], label[fitted], day[fitted]), (logit[tested], tab[tested])
    for name in METHODS:
        judge = _Judge(calibrated(name, known, *asked), label[tested], tab[tested], cells)
        for key, found in judge(weight).items():
            numbers |= {f"{name} {key}": found[0], f"{name} {key} draws": found[1:]}
    return numbers


def standardised(table: Table, train_rows: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Columns with mean 0 and deviation 1 over the training rows, large counts tamed by ``asinh``, missing ones 0."""
    tamed = np.arcsinh(table)
    mean, spread = np.nanmean(tamed[train_rows], axis=0), np.nanstd(tamed[train_rows], axis=0)
    return np.asarray(np.nan_to_num((tamed - mean) / np.maximum(spread, 1e-6)).clip(-6, 6), dtype=np.float32)


def task_logits(
    table: Table, label: NDArray[np.int64], train_rows: NDArray[np.bool_], *, seed: int, epochs: int
) -> Table:
    """Logits of all tasks for all rows, ``[rows, tasks]``, by one network trained on some of them."""
    x = torch.from_numpy(standardised(table, train_rows))
    rows = torch.from_numpy(np.flatnonzero(train_rows))
    labels = {task: torch.from_numpy(label[:, i]).float() for i, task in enumerate(TASKS)}
    log = Log(x, {}, labels, {}).rows(rows)
    model = train(Naive(network(x.shape[1]), width=WIDTH, tasks=TASKS), log, epochs=epochs, lr=2e-3, seed=seed)
    with torch.no_grad():
        heads = model(x, {})
    return torch.stack([heads[task].observed_logit for task in TASKS], dim=1).double().numpy()


class _Layer(torch.nn.Module):
    # The layer over frozen logits, as something the loop can train.
    def __init__(self) -> None:
        super().__init__()
        self.layer = ContextIsotonicLayer({"tab": TABS}, units=len(TASKS), constraint="softplus")

    def forward(self, features: torch.Tensor, context: dict[str, torch.Tensor]) -> dict[str, Heads]:
        columns = self.layer(features, context).unbind(1)
        return {task: Heads(one, one, one) for task, one in zip(TASKS, columns, strict=True)}

    def loss(self, outputs: Any, labels: Any, mask: Any = None) -> torch.Tensor:
        logit = torch.stack([outputs[task].observed_logit for task in TASKS], dim=1)
        return weighted_bce(logit, *stacked_labels(TASKS, labels, mask, None, logit)).sum()


class Rows(NamedTuple):
    """What calibrators are fitted to: logits and labels of all tasks, ``[rows, tasks]``, and each row's tab and day."""

    logit: Table
    tab: NDArray[np.int64]
    label: NDArray[np.int64]
    day: NDArray[np.int64]

    def part(self, kept: NDArray[np.bool_]) -> Rows:
        """Some of the rows."""
        return Rows(self.logit[kept], self.tab[kept], self.label[kept], self.day[kept])


def calibrated(name: str, rows: Rows, test_logit: Table, test_tab: NDArray[np.int64]) -> Table:
    """Test probabilities ``[rows, tasks]`` of one method fitted on the rows between."""
    if name == RAW:
        return prob_of(test_logit)
    if name == LEARNED:
        return _by_gradient(rows, test_logit, test_tab)
    if name == EXACT:
        model = IsotonicCalibrator(("task", "tab")).fit(_stacked(rows.logit, rows.tab), rows.label.T.ravel())
        found = model.predict_proba(_stacked(test_logit, test_tab))[:, 1]
        return np.asarray(found.reshape(len(TASKS), -1).T)
    least = least_rows(name, rows) if name in PER_SEGMENT else LEAST_ROWS[0]
    return _one_by_one(name, rows, test_logit, test_tab, least)


def least_rows(name: str, rows: Rows) -> float:
    """How many rows a tab needs for a calibrator of its own, by the mean NE over tasks on the last of the days."""
    last = rows.day == rows.day.max()
    first, held = rows.part(~last), rows.part(last)
    tasks = [i for i, events in enumerate(held.label.sum(0)) if 0 < events < len(held.label)]

    def error(least: float) -> float:
        prob = _one_by_one(name, first, held.logit, held.tab, least)
        return float(np.mean([metrics.normalised_entropy(held.label[:, i], prob[:, i]) for i in tasks]))

    return min(LEAST_ROWS, key=error)


def _one_by_one(name: str, rows: Rows, test_logit: Table, test_tab: NDArray[np.int64], least: float) -> Table:
    make: Any = PlattCalibrator if name.startswith("Platt") else SmoothedPavaCalibrator
    contexts = ("tab",) if name in PER_SEGMENT else ()
    kept = ("score", *contexts)
    out = []
    for i in range(len(TASKS)):
        before, after = {"score": rows.logit[:, i], "tab": rows.tab}, {"score": test_logit[:, i], "tab": test_tab}
        fitted = make(contexts, minimum=least).fit({key: before[key] for key in kept}, rows.label[:, i])
        out.append(fitted.predict_proba({key: after[key] for key in kept})[:, 1])
    return np.stack(out, axis=1)


def _by_gradient(rows: Rows, test_logit: Table, test_tab: NDArray[np.int64]) -> Table:
    labels = {task: torch.from_numpy(rows.label[:, i]).float() for i, task in enumerate(TASKS)}
    log = Log(torch.from_numpy(rows.logit).float(), {"tab": torch.from_numpy(rows.tab)}, labels, {})
    model = train(_Layer(), log, epochs=6, lr=3e-4)
    with torch.no_grad():
        found = model.layer.prob(torch.from_numpy(test_logit).float(), {"tab": torch.from_numpy(test_tab)})
    return found.double().numpy()


def _stacked(logit: Table, tab: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    task = np.repeat(np.array(TASKS), len(logit))
    return {"score": logit.T.ravel(), "task": task, "tab": np.tile(tab, len(TASKS))}


def judged_cells(label: NDArray[np.int64], tab: NDArray[np.int64], test_tab: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The tasks and tabs whose O/E counts, ``[tasks, tabs]``: by events in the fitted days, and by rows in the test."""
    events = np.stack([np.bincount(tab, column, TABS) for column in label.T])
    return np.asarray((events >= LEAST_EVENTS) & (np.bincount(test_tab, minlength=TABS) >= SMALLEST_TAB))


class _Judge:
    """Both metrics of one method, of all tasks and of those not chosen on: on all rows, then on each resample."""

    def __init__(self, prob: Table, label: NDArray[np.int64], tab: NDArray[np.int64], cells: NDArray[np.bool_]) -> None:
        clipped = prob.clip(1e-15, 1 - 1e-15)
        self.label = label.astype(np.float32)
        self.loss = np.where(label == 1, -np.log(clipped), -np.log1p(-clipped)).astype(np.float32)
        self.prob, self.tab = prob.astype(np.float32), np.eye(TABS, dtype=np.float32)[tab]  # [rows, tabs]
        self.cells = cells  # [tasks, tabs]

    def __call__(self, weight: NDArray[np.float32]) -> dict[str, list[float]]:
        all_rows = np.ones((1, len(self.label)), np.float32)
        weight = np.concatenate([all_rows, weight])  # [1 + resamples, rows]
        total = weight.sum(1, keepdims=True)
        rate, loss = (weight @ self.label) / total, (weight @ self.loss) / total  # [draws, tasks]
        rate = rate.clip(1e-9, 1 - 1e-9)
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        errors = []
        for task, cells in enumerate(self.cells):
            observed, expected = (weight @ (self.tab * c[:, [task]]) for c in (self.label, self.prob))
            errors.append(np.abs(observed[:, cells] / expected[:, cells] - 1))
        found = {}
        for suffix, tasks in ((OF_ALL, range(len(TASKS))), (OF_UNCHOSEN, [TASKS.index(task) for task in UNCHOSEN])):
            found[f"ne{suffix}"] = (loss / entropy)[:, list(tasks)].mean(1).tolist()
            found[f"oe{suffix}"] = np.concatenate([errors[task] for task in tasks], axis=1).mean(1).tolist()
        return found


def summarise(finished: Sequence[Finished]) -> Result:
    """Both metrics of every method, and differences paired by seed and resample."""
    told = (
        ("ne", f"mean NE of {len(TASKS)} tasks"),
        ("oe", "mean abs(O/E - 1) by task and tab"),
        (f"ne{OF_UNCHOSEN}", f"mean NE of {' and '.join(UNCHOSEN)}"),
        (f"oe{OF_UNCHOSEN}", f"mean abs(O/E - 1) of {' and '.join(UNCHOSEN)} by tab"),
    )
    rows = [
        Row(name, what, difference(finished, "all", f"{name} {key}"), digits=4)
        for key, what in told
        for name in METHODS
    ]
    parts = [
        Part(
            f"{ours} has lower {what} than {other}",
            difference(finished, "all", f"{ours} {key}", f"{other} {key}"),
            below=0,
        )
        for ours in (EXACT, LEARNED)
        for other in (PLATT, PAVA, *PER_SEGMENT)
        for key, what in (("ne", "NE"), ("oe", "O/E error"))
    ]
    return Result(tuple(rows), tuple(parts), _series(finished), _note(finished))


def _note(finished: Sequence[Finished]) -> str:
    rows = finished[0].numbers["rows"]
    gaps = [difference(finished, "all", f"{EXACT} ne{OF_UNCHOSEN}", f"{name} ne{OF_UNCHOSEN}") for name in PER_SEGMENT]
    told = " and ".join(
        f"{abs(gap.value):.4f} {'below' if gap.value < 0 else 'above'} that of {name} [{gap.lower:+.4f}, "
        f"{gap.upper:+.4f}]"
        for name, gap in zip(PER_SEGMENT, gaps, strict=True)
    )
    return (
        f"Real data: {rows:,} test rows of May; intervals over resampled users and over networks of other seeds. "
        f"{chosen_on()} On these two alone the exact layer's mean NE is {told}. {SMOOTHED}"
    )


def _series(finished: Sequence[Finished]) -> dict[str, Any]:
    found = {(name, key): difference(finished, "all", f"{name} {key}") for key in ("ne", "oe") for name in METHODS}
    return {
        "method": [name for name, _ in found],
        "metric": ["mean NE" if key == "ne" else "mean abs(O/E - 1)" for _, key in found],
        **{key: [getattr(one, key) for one in found.values()] for key in ("value", "lower", "upper")},
    }


def chart(series: dict[str, Any]) -> Any:
    """Both metrics of every method with intervals."""
    return intervals(records(series), y="method", panel="metric", order=METHODS, ours=EXACT)
