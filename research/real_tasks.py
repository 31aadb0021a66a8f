"""Calibrators on many real tasks: the tasks of ``benchmarks.real`` that are not used for choosing, all rows of each.

The design, stated before any run but for the interval. Tasks are scored rows with a binary outcome and one or two
segment columns, from short videos (KuaiRand), flights and surveys; the base models did not see the segments. A hash of
a task's name puts it in one of two halves: whatever was chosen for the calibrator was chosen on the other half. Halves
are of tasks, not of rows: tasks of one source are judged on the same test rows with other labels or by other segments,
in both halves, and the verdict says for how many tasks that is so. Every calibrator is fitted to the same rows and
judged on the same test rows by log loss, ECE and the error of observed over expected by segment, and for each task
methods are ranked.

Tasks of one source are not independent of each other, and two sources that were drawn from the same survey in the same
years (census and income, both from the Current Population Survey around 1994) count as one. So ranks are averaged over
the tasks of each source first, and what counts is their mean over the sources, with a t-interval over the sources. The
first reports had an interval over the tasks, as if they were independent. Where there is one source only, the interval
is over its tasks, which describes how much these differ and is no test. Nothing is fetched here: flights and surveys
lie inside packages on PyPI, and tasks whose tables were not built from them before (`benchmarks.real.tasks.load` does
so, online) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import need
from research.charts import intervals
from research.data import kuairand_path
from research.datasets import DataAbsent
from research.result import Finished, Numbers, Part, Result, Row, Unit, certain, estimate

CLAIM = "One layer with a context does the work of the calibrators that would be fitted to each segment and task."
PAPER = "sections 1.4 and 4, no public data"
METRICS = {"log_loss": "log loss", "ece": "ECE", "oe": "O/E error by segment"}
OURS = "isolayer"
LOADS = ("benchmarks.real.flights", "benchmarks.real.kuairand", "benchmarks.real.surveys")  # by the list of tasks
QUICK_TASKS = 2
SLOW = ("MCGrad",)  # left to the benchmark
SAME_SURVEY = {"income": "census"}  # both from the Current Population Survey around 1994, so they may share respondents


def units(quick: bool, seeds: int | None = None) -> list[Unit]:
    """One unit per task; nothing is drawn, so there is one seed."""
    tasks = list(need("benchmarks.real.tasks").catalogue("report"))
    if quick:
        tasks = [task for task in tasks if task.startswith("kuairand")][:QUICK_TASKS]
    return [Unit(0, task, quick, cost=2.0 if quick else 5.0) for task in tasks]


def run_unit(unit: Unit) -> Numbers:
    """Every metric of every method on one task."""
    if not there(unit.setting):
        raise DataAbsent(
            f"{unit.setting}: expected its table, got nothing there; to get it: python -m benchmarks real, online, or "
            "KuaiRand's files in $ISOLAYER_DATA (licence CC BY-SA 4.0)"
        )
    task = need("benchmarks.real.tasks").load(unit.setting)
    fit, test = (rows[:3_000] if unit.quick else rows for rows in (task.fit, task.test))
    judge = need("benchmarks.real.judge").Judge(test, 0)
    numbers: Numbers = {"rows": len(test)}
    for name, method in need("benchmarks.real.units").METHODS.items():
        if name not in SLOW:
            found = judge(np.asarray(method(fit, test), float))
            numbers |= {f"{name} {metric}": found[metric][0] for metric in METRICS}
    return numbers


def there(task: str) -> bool:
    """Whether a task's rows can be had without fetching anything: built before, or from KuaiRand's files."""
    built: bool = need("benchmarks.real.tasks").table_of(task).exists()
    return built or (task.startswith("kuairand") and kuairand_path().exists())


def methods_of(finished: Sequence[Finished]) -> list[str]:
    """The methods that every task has, ours first."""
    names = [key.removesuffix(" log_loss") for key in finished[0].numbers if key.endswith(" log_loss")]
    return [name for name in names if all(f"{name} log_loss" in one.numbers for one in finished)]


def ranks(finished: Sequence[Finished], metric: str) -> dict[str, NDArray[np.float64]]:
    """The rank of every method on each task, 1 for the best, ties shared; ``[tasks]`` each.

    >>> done = [Finished(Unit(0), {"a log_loss": 0.5, "b log_loss": 0.4, "c log_loss": 0.5})]
    >>> {name: rank.tolist() for name, rank in ranks(done, "log_loss").items()}
    {'a': [2.5], 'b': [1.0], 'c': [2.5]}
    """
    names = methods_of(finished)
    table = np.array([[one.numbers[f"{name} {metric}"] for name in names] for one in finished])  # [tasks, methods]
    below = (table[:, :, None] > table[:, None, :]).sum(2)
    equal = (table[:, :, None] == table[:, None, :]).sum(2)
    placed = 1 + below + (equal - 1) / 2
    return dict(zip(names, placed.T, strict=True))


def source_of(task: str) -> str:
    """Where a task's rows are from: one study, log or survey, whatever the label, the scores and the segments.

    >>> source_of("flights cancelled poor by dest")
    'flights'
    """
    name: str = need("benchmarks.real.tasks").judged_on(task)
    return SAME_SURVEY.get(first := name.split()[0], first)


def by_source(sources: Sequence[str], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the tasks of each source, ``[sources]``; with one source the values of its tasks.

    Args:
        sources: That of each task.
        values: Of each task, ``[tasks]``.

    >>> by_source(["b", "a", "a", "c"], np.array([5.0, 1.0, 3.0, 4.0])).tolist()
    [2.0, 5.0, 4.0]
    """
    names, code = np.unique(np.asarray(sources), return_inverse=True)
    return values if len(names) == 1 else np.bincount(code, values) / np.bincount(code)


def summarise(finished: Sequence[Finished]) -> Result:
    """Mean ranks over the sources, and by how much ours is above or below each peer."""
    found = {metric: ranks(finished, metric) for metric in METRICS}
    names, sources = methods_of(finished), [source_of(one.unit.setting) for one in finished]
    counts = {"tasks": len(finished), "sources": len(set(sources))}
    means = {
        (name, f"mean rank by {what}"): estimate(by_source(sources, found[metric][name]))
        for metric, what in METRICS.items()
        for name in names
    }
    rows = [
        *(Row(name, what, mean, digits=2) for (name, what), mean in means.items()),
        *(Row(name, "number", certain(count), digits=0) for name, count in counts.items()),
    ]
    parts = [
        Part(
            f"{OURS} ranks before {name} by {what}, over the {'sources' if counts['sources'] > 1 else 'tasks'}",
            estimate(by_source(sources, found[metric][OURS] - found[metric][name])),
            below=0,
        )
        for metric, what in METRICS.items()
        for name in names
        if name != OURS
    ]
    series = [{"method": name, "metric": what, **mean._asdict()} for (name, what), mean in means.items()]
    return Result(tuple(rows), tuple(parts), {"rows": series}, _note(finished, found["log_loss"]))


def _note(finished: Sequence[Finished], by_loss: dict[str, NDArray[np.float64]]) -> str:
    lost = [one.unit.setting for one, rank in zip(finished, by_loss[OURS], strict=True) if rank > 1]
    return (
        f"Real data: {len(by_loss)} calibrators on {_judged(finished)} {_chosen_too(finished)} Ours is not the best by "
        f"log loss on {len(lost)}: {', '.join(lost) or 'none'}. {_peers()}"
    )


def _peers() -> str:
    """Where peers were given less care than in other studies."""
    least = need("benchmarks.real.peers").LEAST_ROWS
    return (
        f"Platt scaling and isotonic regression per segment need {least} rows with both classes in a segment, and "
        "isotonic regression is kept from 0 and 1 by half a row. In the studies of KuaiRand's clicks by tab the "
        "number of rows was chosen, and steps of isotonic regression were smoothed, which helps it. So these peers may "
        "be better than shown."
    )


def _judged(finished: Sequence[Finished]) -> str:
    """How many tasks, sources and different test rows there are, and what intervals are over."""
    judged_on = need("benchmarks.real.tasks").judged_on
    sets: dict[str, int] = {}
    for one in finished:
        sets[judged_on(one.unit.setting)] = max(int(one.numbers["rows"]), sets.get(judged_on(one.unit.setting), 0))
    sources = list(dict.fromkeys(source_of(one.unit.setting) for one in finished))
    sentence = (
        f"{len(finished)} tasks of {len(sources)} {'source' if len(sources) == 1 else 'sources'} "
        f"({', '.join(sources)}), judged on {sum(sets.values()):,} test rows in {len(sets)} "
        + ("set." if len(sets) == 1 else "sets." if len(sets) == len(sources) else "sets, which overlap.")
    )
    if len(sources) == 1:
        return (
            f"{sentence} There is one source only, so intervals are over its tasks; these are not independent of each "
            "other, so the intervals describe how much they differ and are no tests."
        )
    return (
        f"{sentence} Ranks are averaged within each source first, since its tasks are not independent of each other, "
        f"and intervals are over the {len(sources)} sources."
    )


def _chosen_too(finished: Sequence[Finished]) -> str:
    """Which tasks share test rows, or label and scores too, with tasks of the half that settings were chosen on."""
    tasks = need("benchmarks.real.tasks")
    names = [one.unit.setting for one in finished]
    rows, tables = ({of(name) for name in tasks.catalogue("choose")} for of in (tasks.judged_on, tasks.table_name))
    shared = sum(tasks.judged_on(name) in rows for name in names)
    known = list(dict.fromkeys(tasks.table_name(name) for name in names if tasks.table_name(name) in tables))
    return (
        "Settings were chosen on other tasks, but not on other rows: the test rows of "
        f"{shared} of these tasks are in the choosing half with another label or by other segments"
        + (f", with the same label and scores for {', '.join(known)}." if known else ".")
    )


def chart(series: dict[str, Any]) -> Any:
    """Mean rank of every method with its interval over sources."""
    order = list(dict.fromkeys(row["method"] for row in series["rows"]))
    return intervals(series["rows"], y="method", panel="metric", order=order, columns=3, ours=OURS)
