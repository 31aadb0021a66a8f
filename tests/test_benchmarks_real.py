"""The bench on real tasks: peers against independent implementations, metrics against formulas, the split of tasks."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from benchmarks import Row, real
from benchmarks.__main__ import main, names_of
from benchmarks.coverage import simulated
from benchmarks.real import draws, parse, peers, tables, units
from benchmarks.real.judge import Judge
from benchmarks.real.lines import fit_lines, hierarchical_platt, platt, prob_of, smoothed
from benchmarks.real.tasks import Rows, Task, catalogue, half_of, scored
from benchmarks.real.tasks import _task as task_of
from isolayer import metrics
from isolayer.errors import InputError


def rows(n: int = 2000, seed: int = 0, segments: int = 5) -> Rows:
    rng = np.random.default_rng(seed)
    segment = rng.integers(0, segments, n)
    score = rng.normal(-0.5, 1.5, n)
    label = (rng.random(n) < prob_of(0.3 + 0.7 * score + 0.5 * (segment - 2))).astype(np.int64)
    return Rows(score, label, {"segment": segment}, segment, np.arange(n))


def test_platt_is_the_logistic_regression_of_smoothed_labels():
    fit, test = rows(), rows(seed=1)
    target = smoothed(fit.label)
    both = np.concatenate([fit.score, fit.score])[:, None]
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    model.fit(both, np.repeat([1, 0], len(fit)), np.concatenate([target, 1 - target]))
    assert platt(fit, test) == pytest.approx(model.predict_proba(test.score[:, None])[:, 1], abs=1e-5)


def test_lines_of_segments_minimise_the_penalised_loss():
    fit = rows(300, segments=3)
    ridges = (2.0, 5.0)

    def loss(x: np.ndarray) -> float:
        own = x[2:].reshape(3, 2)[fit.segment]
        logit = x[0] + own[:, 0] + (x[1] + own[:, 1]) * fit.score
        penalty = (np.array(ridges) * x[2:].reshape(3, 2) ** 2).sum() / 2 + 1e-4 * (x[:2] ** 2).sum() / 2
        return float((np.logaddexp(0, logit) - fit.label * logit).sum() + penalty)

    expected = minimize(loss, np.zeros(8), method="BFGS", options={"gtol": 1e-6}).x
    found = fit_lines(fit.score, fit.label.astype(float), fit.segment, ridges)
    assert np.concatenate([found.line, found.own.ravel()]) == pytest.approx(expected, abs=1e-4)


def test_hierarchical_platt_gains_where_segments_differ_and_knows_new_ones():
    fit, test = rows(), rows(seed=1, segments=6)
    judge = Judge(test, 0)
    assert judge(hierarchical_platt(fit, test))["log_loss"] < judge(platt(fit, test))["log_loss"]


def test_temperature_and_beta_match_direct_optimisation():
    fit, test = rows(), rows(seed=1)

    def loss(logit: np.ndarray) -> float:
        return float((np.logaddexp(0, logit) - fit.label * logit).mean())

    factor = minimize(lambda x: loss(x[0] * fit.score), [1.0], method="Nelder-Mead", options={"xatol": 1e-8}).x[0]
    assert peers.temperature(fit, test) == pytest.approx(prob_of(factor * test.score), abs=1e-3)

    def beta(x: np.ndarray, score: np.ndarray) -> np.ndarray:
        return x[0] * np.log(prob_of(score)) - x[1] * np.log1p(-prob_of(score)) + x[2]

    best = minimize(lambda x: loss(beta(x, fit.score)), [1, 1, 0], bounds=[(0, None), (0, None), (None, None)]).x
    assert peers.beta(fit, test) == pytest.approx(prob_of(beta(best, test.score)), abs=1e-3)


def test_beta_never_decreases_in_the_score():
    falling = rows()
    falling = Rows(-falling.score, falling.label, falling.segments, falling.segment, falling.cluster)
    assert np.ptp(peers.beta(falling, falling)) == pytest.approx(0)


def test_isotonic_is_scikit_learns_and_per_segment_falls_back_below_200_rows():
    fit, test = rows(), rows(seed=1)
    expected = IsotonicRegression(out_of_bounds="clip").fit(fit.score, fit.label).predict(test.score)
    assert peers.isotonic(fit, test) == pytest.approx(expected.clip(1 / 4000, 1 - 1 / 4000))
    few = fit[(fit.segment != 0) | (np.arange(len(fit)) < 500)]  # about 100 rows of segment 0
    together, apart = peers.isotonic(few, test), peers.PEERS["isotonic per segment"](few, test)
    assert (together == apart)[test.segment == 0].all()
    own = few.segment == 3
    alone = IsotonicRegression(out_of_bounds="clip").fit(few.score[own], few.label[own])
    edge = 0.5 / own.sum()
    asked = test.segment == 3
    assert apart[asked] == pytest.approx(alone.predict(test.score[asked]).clip(edge, 1 - edge))


@pytest.mark.parametrize("name", ["LightGBM", "LightGBM, monotone"])
def test_trees_use_the_segment_and_only_the_constrained_ones_never_fall(name):
    fit = rows(4000)
    bump = fit.score * np.where(fit.score > 0.5, -1, 1)  # the rate falls above 0.5
    label = (np.random.default_rng(3).random(len(fit)) < prob_of(2 * bump + fit.segment - 2)).astype(np.int64)
    fit = Rows(fit.score, label, fit.segments, fit.segment, fit.cluster)
    score, segment = np.tile(np.linspace(-3, 3, 50), 2), np.repeat([0, 4], 50)
    grid = Rows(score, np.zeros(100, np.int64), {"segment": segment}, segment, np.arange(100))
    prob = peers.PEERS[name](fit, grid).reshape(2, 50)
    assert (prob[1] > prob[0]).mean() > 0.9
    assert (np.diff(prob, axis=1).min() >= 0) == (name == "LightGBM, monotone")


def test_metrics_are_those_of_the_package_and_of_the_formulas():
    test = rows()
    prob = prob_of(test.score).round(2)  # ties
    found = {name: value[0] for name, value in Judge(test, 3)(prob).items()}
    rate = test.label.mean()
    assert found["log_loss"] == pytest.approx(metrics.log_loss(prob=prob, label=test.label), rel=1e-5)
    assert found["ne"] == pytest.approx(metrics.normalised_entropy(prob=prob, label=test.label), rel=1e-5)
    assert found["ne"] * -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)) == pytest.approx(found["log_loss"])
    assert found["brier"] == pytest.approx(((prob - test.label) ** 2).mean(), rel=1e-5)
    assert found["ece"] == pytest.approx(metrics.ece(prob=prob, label=test.label), abs=2e-3)
    table = pd.DataFrame({"s": test.segment, "y": test.label, "p": prob}).groupby("s").sum()
    assert found["oe"] == pytest.approx((table["y"] / table["p"] - 1).abs().mean(), rel=1e-5)


def test_resamples_draw_whole_clusters():
    test = rows(400)
    test = Rows(test.score, test.label, test.segments, test.segment, np.arange(400) // 100)
    weight = Judge(test, 5).weight[1:].reshape(5, 4, 100)
    assert (np.ptp(weight, axis=2) == 0).all()


def test_segments_without_events_enough_do_not_count():
    test = rows(2000)
    label = np.where(test.segment == 0, 0, test.label)
    changed = Rows(test.score, label, test.segments, test.segment, test.cluster)
    prob = np.where(test.segment == 0, 0.9, 0.5)
    other = np.where(test.segment == 0, 0.1, 0.5)
    assert Judge(changed, 0)(prob)["oe"] == Judge(changed, 0)(other)["oe"]


def test_halves_are_disjoint_fixed_and_together_everything():
    choose, report = catalogue("choose"), catalogue("report")
    assert not choose.keys() & report.keys()
    assert choose.keys() | report.keys() == catalogue().keys()
    assert len(catalogue()) >= 20
    assert min(len(choose), len(report)) >= 10
    assert half_of("kuairand is_click by tab") == "report"
    assert half_of("kuairand is_hate by tab") == "choose"


def test_draws_are_the_same_for_every_method_and_have_both_classes():
    task = Task("tiny", rows(2000), rows(500, seed=1))
    one, again, other = (draws.drawn(task, draws.Unit(200, draw)) for draw in (0, 0, 1))
    assert (one.score == again.score).all()
    assert not (one.score == other.score).all()
    assert len(one) == 200
    assert draws.drawn(task, draws.Unit(200, 0, "x 3 - 1")).score == pytest.approx(one.score * 3 - 1)
    assert not draws.possible(task.fit, 2000)
    assert draws.possible(task.fit, 200)


def test_a_table_keeps_codes_that_mean_the_same_in_both_parts():
    fit = np.array([True, True, True, False, False])
    segments = {"device": np.array(["tv", "web", "tv", "web", "radio"])}
    table = scored([0.0, 1, 2, 3, 4], [0, 1, 0, 1, 0], segments, np.arange(5), fit=fit, test=~fit)
    task = task_of("tiny", table, ("device",))
    assert task.contexts == ("device",)
    assert len(task.fit) == 3
    web = task.fit.segments["device"][task.fit.score == 1]
    assert (task.test.segments["device"][task.test.score == 3] == web).all()
    assert set(task.test.segments["device"]) - set(task.fit.segments["device"])


def fake(values: list[float], resampled: list[float]) -> units.Found:
    draws = {f"200/{i}/": {"log_loss": [value]} for i, value in enumerate(values)}
    return {"0/0/": {"log_loss": [values[0], *resampled], "seconds": 1.0}, **draws}


def test_best_peer_is_found_on_the_test_rows_and_a_loss_needs_its_interval():
    results = {
        "a": {"isolayer": fake([0.5, 0.6], [0.5, 0.51, 0.49]), "Platt": fake([0.4, 0.5], [0.4, 0.41, 0.39])},
        "b": {"isolayer": fake([0.5, 0.6], [0.5, 0.9, 0.1]), "Platt": fake([0.49, 0.7], [0.5, 0.5, 0.5])},
    }
    first, second = tables.differences(results, "log_loss")
    assert (first.task, first.peer, first.lost) == ("a", "Platt", True)
    assert first.difference == pytest.approx(0.1)
    assert (second.task, second.lost) == ("b", False)
    few = tables.against(results, "b", "Platt", "log_loss", 200)
    gap = np.array([0.01, -0.1])
    assert few.difference == pytest.approx(gap.mean())
    assert few.upper - few.difference == pytest.approx(12.7062 * gap.std(ddof=1) / 2**0.5, rel=1e-4)
    assert tables.mean_ranks(results, "log_loss") == {"isolayer": 2.0, "Platt": 1.0}
    assert "+1000.00 *" in tables.losses_text([first, second])


def test_options_are_read_and_others_refused(capsys):
    assert "real" in names_of()
    assert parse(["--report", "--quick"])[:2] == ("report", 3)
    assert parse([]).half == "choose"
    assert parse(["--tasks=flights", "--minutes=20"]).part == "flights"
    with pytest.raises(InputError, match="expected --choose"):
        parse(["--jobs=x"])
    assert main(["calibration", "--report"]) == 2
    assert "only after one of audit, coverage, fields, monitor, negatives, real" in capsys.readouterr().err


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A task of its own folder: its methods are Platt scaling under two names."""
    monkeypatch.setenv("ISOLAYER_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(units, "table_of", lambda name: tmp_path / f"{name}-12345678.parquet")
    task = Task("tiny", rows(1500), rows(500, seed=1))
    monkeypatch.setattr(units, "_loaded", lambda name, few: (task, Judge(task.test, 0 if few else 5)))
    monkeypatch.setattr(units, "METHODS", {units.OURS: peers.PEERS["Platt"], "Platt": peers.PEERS["Platt"]})
    monkeypatch.setattr(real, "_there", lambda name: True)
    units.version.cache_clear()
    yield tmp_path
    units.version.cache_clear()


def test_finished_units_are_not_run_again(tiny, monkeypatch):
    asked = [unit for size in (0, 200, 1000, 5000) for unit in units.units_of("Platt", size, 3)]
    found = units.run_method("tiny", "Platt", asked)
    assert {key.split("/")[0] for key in found} == {"0", "200", "1000"}
    monkeypatch.setattr(units, "_loaded", lambda *_: pytest.fail("loaded again"))
    assert units.run_method("tiny", "Platt", asked) == found
    [file] = (tiny / "real" / "units").iterdir()
    assert json.loads(file.read_text()).items() >= found.items()


def test_a_run_that_is_over_shows_what_is_finished_and_the_next_one_goes_on_from_there(tiny, monkeypatch, capsys):
    stages, asked = [(0, "one"), (200, "one"), (0, "two")], real.Options(draws=2)
    assert list(real._finished(stages, asked, end=-np.inf)) == []
    assert "3 of 3 are left for the next run" in capsys.readouterr().err
    finished = real.measure(["one"], asked)
    assert {key.split("/")[0] for key in finished["one"][units.OURS]} == {"0", "200", "1000"}
    assert len(finished["one"][units.OURS]) == 4 + 2 * 4 + 2  # four scales on all rows and on two draws of 200
    monkeypatch.setattr(units, "_loaded", lambda *_: pytest.fail("loaded again"))
    assert real.measure(["one"], asked) == finished


def test_the_figures_go_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    mark = "<!-- figures: written by `python -m benchmarks real --report --docs` -->"
    page.write_text(f"before\n{mark}\nold\n<!-- /figures -->\nafter\n")
    found = {"0/0/": {metric: [0.1] for metric in ("log_loss", "ece", "oe")}}
    real.write_docs([Row("a figure", "<= 1", "0.5", True)], {"task": {units.OURS: found, "Platt": found}}, page)
    text = page.read_text()
    assert "| a figure | <= 1 | 0.5 |" in text
    assert "| Platt | 1.50 | 1.50 | 1.50 |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize("truth", ["same", "line", "bend"])
def test_simulated_truth_has_its_rate_and_rises_with_the_score_in_every_context(truth):
    columns = simulated(0.05, 8, truth, seed=1, rows=50_000)
    assert columns["true"].mean() == pytest.approx(0.05, rel=0.5)
    assert columns["label"].mean() == pytest.approx(columns["true"].mean(), rel=0.1)
    order = np.lexsort((columns["score"], columns["context"]))
    rise = np.diff(columns["true"][order])[np.diff(columns["context"][order]) == 0]
    assert (rise >= 0).all()
    apart = pd.Series(columns["true"]).groupby(columns["context"]).mean()
    assert (np.ptp(apart) > 0.01) == (truth != "same")
