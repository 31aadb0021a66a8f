"""The advised loss weight: verdicts that can come out either way, and worlds that it was not set on."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_numbers import done, lost

from research import advised_alpha, debias_benchmark, real_tasks
from research.result import Finished, Unit


def test_advised_alpha_verdict_goes_either_way():
    def good(setting, key):
        return 0.5 if key == "advised alpha" else 0.9 if key == f"ndcg {advised_alpha.OURS}" else 0.95

    assert advised_alpha.summarise(done(advised_alpha, good)).held == "held"
    bad = lost(advised_alpha.summarise(done(advised_alpha, lambda s, k: 0.92 if "advice" in k else good(s, k))))
    assert len(bad) == 1  # in the one world of a quick run that it was not set on; the best of the others is naive
    assert all("the advice costs" in says and "best of the others, naive" in says for says in bad)
    weight = lost(advised_alpha.summarise(done(advised_alpha, lambda s, k: 0.9 if "alpha 0.25" in k else good(s, k))))
    assert weight
    assert all("the paper's alpha" in says for says in weight)


def advice(alpha, ranks):
    """The verdict on an advice that is the same under every seed; models rank at .9 but for those given."""
    numbers = {f"ndcg {name}": 0.9 for name in (*advised_alpha.MODELS, advised_alpha.ADVISED)}
    numbers |= {f"ndcg naive, setting {number}": 0.9 - 0.01 * number for number in range(6)}
    numbers |= {"advised alpha": alpha} | {f"ndcg {name}": value for name, value in ranks.items()}
    return advised_alpha.summarise([Finished(unit, numbers) for unit in advised_alpha.units(True, 2)]).parts


def test_a_weight_is_compared_with_the_others_and_never_with_itself():
    followed = advice(0.25, {"joint alpha 0.25": 0.95, advised_alpha.ADVISED: 0.95})
    assert [part.estimate.value for part in followed] == pytest.approx([-0.05] * 4)
    assert sum("naive" in part.says and "the advice" in part.says for part in followed) == 1  # which is the best, too
    assert any("against the default" in part.says for part in followed)
    quiet = advice(0.0, {advised_alpha.OURS: 0.95, advised_alpha.ADVISED: 0.95})
    own = [part for part in quiet if "the advice" in part.says]
    assert not any("against the default" in part.says for part in own)  # which is what was followed
    assert [part.estimate.value for part in own] == pytest.approx([-0.05])


def test_the_naive_model_has_the_setting_that_ranks_best_in_a_world():
    parts = advice(0.25, {"naive, setting 4": 0.93})
    against = [part for part in parts if "against naive" in part.says or "the best of the others, naive" in part.says]
    assert against
    assert [part.estimate.value for part in against] == pytest.approx([0.03] * len(against))


def told(*tasks):
    """What the verdict says of tasks on which ours is the best."""
    numbers = {"rows": 60_000} | {
        f"{name} {metric}": value
        for name, value in ((real_tasks.OURS, 0.1), ("Platt", 0.2))
        for metric in real_tasks.METRICS
    }
    return real_tasks.summarise([Finished(Unit(0, task), numbers) for task in tasks]).note


def test_advised_alpha_is_judged_in_no_world_that_it_was_set_on():
    assert not set(advised_alpha.JUDGED) & (set(debias_benchmark.SETTINGS) | set(advised_alpha.SET_ON))
    parts = advised_alpha.summarise(done(advised_alpha, lambda setting, key: 0.9)).parts
    assert {part.says.partition(" (")[2][:-1] for part in parts if "advice" in part.says} == {
        "mixture, half informed, deterministic"
    }
    half = advised_alpha.WORLDS["PBM, half informed"](0).log(3_000, seed=1)
    place, spurious = half["position"], half["features"]
    told = [abs(np.corrcoef(column, place)[0, 1]) for column in (half["grade"], *spurious.T)]
    assert told[0] > 0.3  # by relevance
    assert max(told[1:]) > 0.3  # and by a feature


def test_the_logs_of_a_setting_are_those_of_its_feed():
    for setting in ("trust, spurious, deterministic", "contextual, spurious"):
        bias, logger, deterministic = debias_benchmark.SETTINGS[setting]
        feed = debias_benchmark.debias_feed(bias, logger, deterministic=deterministic, seed=4)
        one, other = debias_benchmark.draw(setting, 4, 50), debias_benchmark.drawn(feed, 4, 50)
        assert one.train.contexts == other.train.contexts
        assert ("query_length" in one.train.contexts) == setting.startswith("contextual")
        for mine, theirs in zip(one, other, strict=True):
            assert all(np.array_equal(mine.columns[name], theirs.columns[name]) for name in mine.columns)
