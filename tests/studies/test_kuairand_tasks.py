"""KuaiRand, eight tasks: the judge against the metrics, and calibrators of a tab from few rows."""

from __future__ import annotations

import numpy as np
import pytest

from research import kuairand_tasks
from research.data import data_path
from research.result import Unit


def test_the_judge_of_kuairand_agrees_with_the_metrics():
    from isolayer import metrics

    rng = np.random.default_rng(0)
    prob = rng.uniform(0.05, 0.6, (4_000, len(kuairand_tasks.TASKS)))
    label, tab = (rng.random(prob.shape) < prob).astype(np.int64), rng.integers(0, 3, 4_000)
    cells = np.zeros((len(kuairand_tasks.TASKS), kuairand_tasks.TABS), bool)
    cells[:, :3] = True
    found = kuairand_tasks._Judge(prob, label, tab, cells)(np.full((1, 4_000), 2, np.float32))
    assert found["ne"][0] == pytest.approx(found["ne"][1], rel=1e-5)  # every row twice
    assert found["oe"][0] == pytest.approx(found["oe"][1], rel=1e-5)
    tasks = range(label.shape[1])
    ne = np.mean([metrics.normalised_entropy(label[:, i], prob[:, i]) for i in tasks])
    oe = np.mean([np.abs(metrics.observed_over_expected(label[:, i], prob[:, i], tab).ratio - 1) for i in tasks])
    assert found["ne"][0] == pytest.approx(ne, rel=1e-4)
    assert found["oe"][0] == pytest.approx(oe, rel=1e-3)
    two = [kuairand_tasks.TASKS.index(task) for task in ("is_click", "is_like")]
    ne = np.mean([metrics.normalised_entropy(label[:, i], prob[:, i]) for i in two])
    oe = np.mean([np.abs(metrics.observed_over_expected(label[:, i], prob[:, i], tab).ratio - 1) for i in two])
    assert found["ne, not chosen on"][0] == pytest.approx(ne, rel=1e-4)
    assert found["oe, not chosen on"][0] == pytest.approx(oe, rel=1e-3)


def test_cells_are_chosen_by_the_days_that_calibrators_are_fitted_on():
    tab, label = np.repeat([0, 1], 500), np.zeros((1_000, len(kuairand_tasks.TASKS)), np.int64)
    label[:20, 0] = label[:19, 1] = label[500:, 2] = 1
    cells = kuairand_tasks.judged_cells(label, tab, np.repeat([0, 1], [300, 50]))
    assert np.argwhere(cells).tolist() == [[0, 0]]  # 20 events; 19 are too few, and tab 1 has few rows in the test


@pytest.mark.parametrize(("shift", "own"), [(0.0, False), (3.0, True)])
def test_tabs_get_calibrators_of_their_own_from_as_few_rows_as_the_last_day_says(shift, own):
    rng = np.random.default_rng(1)
    count = 3_000
    tab, day = (
        rng.integers(0, kuairand_tasks.TABS, count),
        rng.integers(1, 4, count),
    )  # some 130 rows per tab and two days
    logit = rng.normal(0, 1, (count, len(kuairand_tasks.TASKS)))
    truth = 1 / (1 + np.exp(-logit - shift * (tab[:, None] % 2 * 2 - 1)))
    rows = kuairand_tasks.Rows(logit, tab, (rng.random(logit.shape) < truth).astype(np.int64), day)
    found = kuairand_tasks.least_rows(kuairand_tasks.PER_SEGMENT[0], rows)
    assert (found <= 50) == own


DATA = data_path("kuairand_pure")


@pytest.mark.skipif(
    not DATA.is_dir(), reason="the KuaiRand slice is not here: set ISOLAYER_DATA to the folder above it"
)
def test_on_kuairand_the_layer_beats_a_calibrator_a_task(monkeypatch):
    monkeypatch.setenv("ISOLAYER_DATA", str(DATA.parent))
    numbers = kuairand_tasks.run_unit(Unit(0, "all", quick=True))
    for key in ("ne", "oe"):
        for other in (kuairand_tasks.RAW, kuairand_tasks.PLATT, kuairand_tasks.PAVA):
            assert numbers[f"{kuairand_tasks.EXACT} {key}"] < numbers[f"{other} {key}"]
