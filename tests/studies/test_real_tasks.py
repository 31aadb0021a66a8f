"""Many real tasks: ranks against scipy's, and what the verdict says that tasks share."""

from __future__ import annotations

import numpy as np

from research import real_tasks
from research.result import Finished, Unit


def test_ranks_are_those_of_scipy():
    from scipy import stats

    rng = np.random.default_rng(0)
    table = rng.integers(0, 4, (6, 5)) / 10
    finished = [
        Finished(Unit(0, str(at)), {f"m{i} log_loss": value for i, value in enumerate(row)})
        for at, row in enumerate(table)
    ]
    found = np.stack(list(real_tasks.ranks(finished, "log_loss").values()), axis=1)
    np.testing.assert_array_equal(found, stats.rankdata(table, axis=1))


def told(*tasks):
    """What the verdict says of tasks on which ours is the best."""
    numbers = {"rows": 60_000} | {
        f"{name} {metric}": value
        for name, value in ((real_tasks.OURS, 0.1), ("Platt", 0.2))
        for metric in real_tasks.METRICS
    }
    return real_tasks.summarise([Finished(Unit(0, task), numbers) for task in tasks]).note


def test_the_verdict_on_real_tasks_says_what_tasks_share():
    note = told("kuairand is_click by tab", "kuairand is_hate by tab x activity")
    assert "on 2 tasks of 1 source (kuairand), judged on 60,000 test rows in 1 set. Tasks of one source are not" in note
    assert "the test rows of 2 of these tasks are in the choosing half" in note
    assert "with the same label and scores for kuairand is_hate. Ours" in note  # by tab, it is in the other half
    note = told("kuairand is_click by tab", "census good by education")
    assert "2 sources (kuairand, census), judged on 120,000 test rows in 2 sets. Settings" in note
    assert "by other segments. Ours" in note
    assert "in 2 sets, which overlap." in told("flights late good by tailnum", "flights cancelled good by tailnum")


def test_the_rows_of_a_task_do_not_depend_on_its_label_or_score():
    from benchmarks.real.tasks import catalogue, scored, table_name

    rng, row = np.random.default_rng(0), np.arange(500)
    fit = rng.random(500) < 0.5
    one, other = (
        scored(rng.normal(size=500), rng.integers(0, 2, 500), {"row": row}, row, fit=fit, test=~fit) for _ in range(2)
    )
    assert one["row"].equals(other["row"])
    assert all(table_name(name) == source.name for name, (_, source, _) in catalogue().items())
