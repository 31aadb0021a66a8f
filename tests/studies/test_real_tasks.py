"""Many real tasks: ranks against scipy's, and what the verdict says that tasks share."""

from __future__ import annotations

import numpy as np
import pytest

from research import real_tasks
from research.result import Finished, Unit, estimate


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


def judged(losses):
    """Tasks with the loss of ours, by name; that of Platt scaling is 0.2 on all of them."""
    return real_tasks.summarise(
        [
            Finished(
                Unit(0, task),
                {"rows": 60_000}
                | {f"{real_tasks.OURS} {metric}": ours for metric in real_tasks.METRICS}
                | {f"Platt {metric}": 0.2 for metric in real_tasks.METRICS},
            )
            for task, ours in losses.items()
        ]
    )


def told(*tasks):
    """What the verdict says of tasks on which ours is the best."""
    return judged(dict.fromkeys(tasks, 0.1)).note


def test_sources_count_alike_however_many_tasks_they_have():
    kuairand = {f"kuairand {label} by tab": 0.1 for label in ("is_click", "is_like", "is_hate", "is_comment")}
    found = judged(kuairand | {"census good by education": 0.3, "flights late good by tailnum": 0.2})
    part = next(
        part for part in found.parts if part.says == "isolayer ranks before Platt by log loss, over the sources"
    )
    assert part.estimate == estimate([-1.0, 1.0, 0.0])  # of sources; of tasks the mean is -0.5
    rank = next(row for row in found.rows if (row.name, row.metric) == (real_tasks.OURS, "mean rank by log loss"))
    assert rank.ours == estimate([1.0, 2.0, 1.5])
    assert {row.name: row.ours.value for row in found.rows if row.metric == "number"} == {"tasks": 6, "sources": 3}
    survey = judged({"kuairand is_click by tab": 0.1, "census good by education": 0.3, "income good by education": 0.2})
    assert survey.parts[0].estimate.value == pytest.approx((-1.0 + (1.0 + 0.0) / 2) / 2)  # one survey, so one source
    both = judged({"kuairand is_click by tab": 0.1, "kuairand is_hate by tab": 0.3, "census good by education": 0.1})
    assert both.parts[0].estimate.value == pytest.approx((0.0 - 1.0) / 2)  # averaged within a source first


def test_one_source_alone_has_an_interval_over_its_tasks_and_the_verdict_says_so():
    found = judged({"kuairand is_click by tab": 0.1, "kuairand is_hate by tab": 0.3})
    assert found.parts[0].estimate == estimate([-1.0, 1.0])
    assert "There is one source only, so intervals are over its tasks" in found.note


def test_the_verdict_on_real_tasks_says_what_tasks_share():
    note = told("kuairand is_click by tab", "kuairand is_hate by tab x activity")
    assert "on 2 tasks of 1 source (kuairand), judged on 60,000 test rows in 1 set. There is one source only" in note
    assert "the test rows of 2 of these tasks are in the choosing half" in note
    assert "with the same label and scores for kuairand is_hate. Ours" in note  # by tab, it is in the other half
    note = told("kuairand is_click by tab", "census good by education")
    assert "2 sources (kuairand, census), judged on 120,000 test rows in 2 sets. Ranks are averaged within" in note
    assert "intervals are over the 2 sources" in note
    assert "by other segments. Ours" in note
    assert "in 2 sets, which overlap." in told("flights late good by tailnum", "flights cancelled good by tailnum")


def test_the_note_says_that_peers_per_segment_may_be_better_than_shown():
    from benchmarks.real.peers import LEAST_ROWS

    note = told("kuairand is_click by tab", "census good by education")
    assert f"per segment need {LEAST_ROWS} rows with both classes" in note
    assert "kept from 0 and 1 by half a row" in note
    assert "So these peers may be better than shown." in note


def test_the_rows_of_a_task_do_not_depend_on_its_label_or_score():
    from benchmarks.real.tasks import catalogue, scored, table_name

    rng, row = np.random.default_rng(0), np.arange(500)
    fit = rng.random(500) < 0.5
    one, other = (
        scored(rng.normal(size=500), rng.integers(0, 2, 500), {"row": row}, row, fit=fit, test=~fit) for _ in range(2)
    )
    assert one["row"].equals(other["row"])
    assert all(table_name(name) == source.name for name, (_, source, _) in catalogue().items())
