from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import poisson

from isolayer import Curves, Grid, Histogram, InputError
from isolayer.metrics.families import decide
from isolayer.monitor import check
from isolayer.monitor.groups import LogRows, errors_by_depth, groupings_of


def log(seed, rows=40_000, shift=None):
    """Scores that are logits distorted by device; ``shift`` moves the truth of one device."""
    random = np.random.default_rng(seed)
    truth = random.normal(-1, 1.2, rows)
    device = random.integers(0, 4, rows)
    if shift is not None:
        truth = truth + shift * (device == 2)
    label = random.random(rows) < 1 / (1 + np.exp(-truth))
    score = truth - (0 if shift is None else shift * (device == 2)) + np.array([0.5, -0.3, 0.0, 1.0])[device]
    return Histogram.from_arrays(score, label.astype(float), {"device": device})


CURVES = Curves.from_histogram(log(0))


def test_a_calibrator_that_still_holds_is_left_alone():
    alarms = [not check(CURVES, log(seed)).holds for seed in range(1, 21)]
    assert sum(alarms) <= 3


def test_without_the_tolerance_false_alarms_stay_at_their_level():
    alarms = [not check(CURVES, log(seed), tolerance=0.0).holds for seed in range(1, 41)]
    assert sum(alarms) <= 6


def test_it_names_the_context_that_moved():
    result = check(CURVES, log(1, shift=0.5))
    assert not result.holds
    assert result.context["device"][result.drifted & (result.context["device"] != None)].tolist() == [2]  # noqa: E711
    worst = int(np.argmax(result.ratio))
    assert result.context["device"][worst] == 2
    assert result.lower[worst] > 1.1
    assert result.lower[worst] < result.ratio[worst] < result.upper[worst]


def test_the_first_entry_is_everything():
    today = log(2)
    result = check(CURVES, today)
    assert result.context["device"][0] is None
    assert result.weight[0] == today.rows == result.weight[1:].sum()
    assert result.log_loss[1] < result.log_loss[0]


def test_an_uncertain_calibrator_is_not_blamed_for_its_uncertainty():
    """Fitted on 3,000 rows, its curves are off by more than the labels of 40,000 allow; that is no drift."""
    alarms = [not check(Curves.from_histogram(log(100 + seed, rows=3000)), log(seed)).holds for seed in range(20)]
    assert sum(alarms) <= 4


def test_tolerance_and_level_matter():
    today = log(3, shift=0.2)
    assert not check(CURVES, today, tolerance=0.0).holds
    assert check(CURVES, today, tolerance=0.5).holds
    assert check(CURVES, today, tolerance=0.0, level=1e-12).holds


@pytest.mark.parametrize(
    ("histogram", "message"),
    [
        (Histogram.from_arrays([0.1], [1]), "histogram: expected contexts ('device',) on"),
        (
            Histogram.from_arrays([0.1], [1], {"device": [1]}, grid=Grid(-1, 1, 1)),
            "make it with the settings of the curves",
        ),
        (
            Histogram.from_arrays([], [], {"device": []}),
            "histogram: expected at least one row, got none; check the log",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(histogram, message):
    with pytest.raises(InputError) as error:
        check(CURVES, histogram)
    assert message in str(error.value)


def test_a_log_with_a_day_taken_out_is_checked():
    """Sums of weights leave rounding errors, which are neither labels nor weights."""
    random = np.random.default_rng(0)
    days = [
        Histogram.from_arrays(random.normal(size=300), random.random(300) < 0.5, weight=random.random(300) ** 9)
        for _ in range(8)
    ]
    whole = days[0]
    for day in days[1:]:
        whole = whole.merge(day)
    for day in days[1:]:
        whole = whole.subtract(day)
    curves = Curves.from_histogram(days[0])
    result, alone = check(curves, whole), check(curves, days[0])
    np.testing.assert_allclose(result.ratio, alone.ratio, rtol=1e-6)


def day(logit, context, rows, seed, drift=0.0, slope=1.0):
    """The histogram of rows at ``logit [contexts, positions]``, as many at each, labels of which may have drifted."""
    random = np.random.default_rng(seed)
    contexts, positions = logit.shape
    place = np.repeat(np.arange(contexts * positions), rows // (contexts * positions))
    truth = (logit.mean() + slope * (logit - logit.mean()) + drift).reshape(-1)[place]
    label = random.random(len(place)) < 1 / (1 + np.exp(-truth))
    columns = {name: values[place // positions] for name, values in context.items()}
    return Histogram.from_arrays(logit.reshape(-1)[place], label, columns)


def many(contexts, positions=10, middle=-3.0):
    return np.broadcast_to(middle + np.linspace(-1.5, 1.5, positions), (contexts, positions)), {
        "ad": np.arange(contexts)
    }


def test_thousands_of_small_contexts_are_left_alone():
    """2,000 contexts of 50 rows: the normal approximation called a context with 49 rows and O/E 3.9 drifted."""
    world = many(2000)
    curves = Curves.from_histogram(day(*world, 400_000, 0))
    results = [check(curves, day(*world, 100_000, seed), tolerance=0.0) for seed in range(1, 9)]
    assert sum(not result.holds for result in results) <= 2
    assert max(result.ratio[1:].max() for result in results) > 3  # or the test could not tell


@pytest.mark.parametrize("contexts", [200, 2000])
def test_a_drift_of_all_contexts_together_is_found(contexts):
    """The errors of contexts were taken as one, so that the row of all never fired."""
    world = many(contexts)
    result = check(Curves.from_histogram(day(*world, 400_000, 0)), day(*world, 100_000, 1, drift=np.log(1.2)))
    assert result.drifted[0]
    assert 1.1 < result.lower[0] < result.ratio[0] < result.upper[0] < 1.3


@pytest.mark.parametrize("contexts", [2, 20, 400])
def test_many_contexts_are_together_as_certain_as_their_parent(contexts):
    """With the rows of the fit, the error of the total is that of as many labels, however many contexts they are in."""
    logit, context = many(contexts)
    levels = np.random.default_rng(0).normal(0.5, 0.5, (contexts, 1))
    today = day(logit, context, 40_000, 0, drift=levels, slope=0.7)
    curves = Curves.from_histogram(today)
    rows = LogRows.of(curves, today)
    (_, variance), *_ = errors_by_depth(curves, rows, groupings_of(curves, rows))
    prob = curves.predict_proba(today.logit / today.weight, {"ad": today.keys[0][today.group]})
    assert variance[0] == pytest.approx((today.weight * prob * (1 - prob)).sum(), rel=0.2)


def test_a_slope_that_changed_is_found_where_the_ratio_did_not():
    world = many(20)
    curves = Curves.from_histogram(day(*world, 400_000, 0))
    prob = 1 / (1 + np.exp(-world[0]))
    lean = world[0].mean() + 0.7 * (world[0] - world[0].mean())
    level = np.log(prob.mean() / (1 / (1 + np.exp(-lean))).mean())  # as many events
    result = check(curves, day(*world, 100_000, 1, drift=level, slope=0.7))
    assert result.ratio[0] == pytest.approx(1, abs=0.06)
    assert not result.moved[0]
    assert result.bent[0]
    assert result.slope[0] == pytest.approx(0.7, abs=0.1)
    assert result.status[0] == "slope"
    assert check(curves, day(*world, 100_000, 1)).slope[0] == pytest.approx(1, abs=0.1)


def test_contexts_that_were_not_in_the_fit_are_new_not_drifted():
    logit, context = many(20)
    curves = Curves.from_histogram(day(logit[:10], {"ad": np.arange(10)}, 100_000, 0))
    result = check(curves, day(logit, context, 100_000, 1, drift=2.0 * (np.arange(20) >= 10)[:, None]))
    assert result.new.tolist() == [False] * 11 + [True] * 10
    assert (result.status[11:] == "new").all()
    assert np.isnan(result.p_value[11:]).all()
    assert result.ratio[11:].min() > 3
    assert result.holds
    assert result.weight[0] == result.weight[1:11].sum()
    alone = check(curves, day(logit[10:], {"ad": np.arange(10, 20)}, 10_000, 1))
    assert not alone.holds  # of a log of new contexts nothing is known


def test_a_drift_is_found_at_the_depth_that_it_is_at():
    """One site of ten drifts, over 40 ads of few rows each: no ad shows it, all of the site's together do."""
    logit, _ = many(400)
    context = {"site": np.repeat(np.arange(10), 40), "ad": np.arange(400)}
    curves = Curves.from_histogram(day(logit, context, 400_000, 0))
    moved = 0.35 * (context["site"] == 3)[:, None]
    result = check(curves, day(logit, context, 100_000, 1, drift=moved))
    sites = result.depth == 1
    assert result.context["site"][sites][result.drifted[sites]].tolist() == [3]
    assert result.context["ad"][sites].tolist() == [None] * 10
    assert result.weight[0] == result.weight[sites].sum() == result.weight[result.depth == 2].sum()


def test_intervals_agree_with_the_verdict():
    world = many(60)
    curves = Curves.from_histogram(day(*world, 300_000, 0))
    for seed, drift in ((1, 0.0), (2, np.linspace(-1, 1, 60)[:, None])):
        result = check(curves, day(*world, 60_000, seed, drift=drift), tolerance=0.0)
        excluded = (result.lower > 1) | (result.upper < 1)
        assert excluded.tolist() == (result.p_value <= 0.05).tolist() == result.moved.tolist()
        assert excluded.sum() >= 20 * seed - 20
        some = np.array([3, 0, 17])
        np.testing.assert_allclose(result.interval(some), [result.lower[some], result.upper[some]], rtol=1e-6)


def clustered_day(seed, days=30, deviation=0.2):
    """30,000 rows of 30 days whose level varies from day to day; the fold is the day."""
    random = np.random.default_rng(seed)
    logit, when = random.normal(-1, 1, 30_000), random.integers(0, days, 30_000)
    truth = logit + random.normal(0, deviation, days)[when]
    return Histogram.from_arrays(logit, random.random(30_000) < 1 / (1 + np.exp(-truth)), fold=when)


def test_days_that_vary_are_no_drift_if_they_are_clusters():
    curves = Curves.identity(Grid())
    alone = [check(curves, clustered_day(seed), tolerance=0.02).holds for seed in range(40)]
    together = [check(curves, clustered_day(seed), tolerance=0.02, clustered=True) for seed in range(40)]
    assert sum(alone) < 28
    assert sum(result.holds for result in together) >= 34
    assert together[0].clusters == 30
    (lower,), (upper,) = check(curves, clustered_day(0)).interval(np.zeros(1, int))
    assert together[0].upper[0] - together[0].lower[0] > 1.2 * (upper - lower)


def test_one_cluster_is_refused():
    with pytest.raises(InputError, match="cluster: expected at least two clusters, got 1; name a column with more"):
        check(Curves.identity(Grid()), Histogram.from_arrays([0.0, 1.0], [0, 1]), clustered=True)


def test_importance_weights_count_by_their_effective_number():
    """Rows of weight 5 say as much as rows; as counts, five times as much."""
    random = np.random.default_rng(0)
    logit = random.normal(-1, 1, 2000)
    label = random.random(2000) < 1 / (1 + np.exp(-logit - 0.15))
    curves, weight = Curves.identity(Grid()), np.full(2000, 5.0)
    counts, one = Histogram.from_arrays(logit, label, weight=weight), check(curves, Histogram.from_arrays(logit, label))
    five = check(curves, replace(counts, source={"weight_kind": "importance"}))
    np.testing.assert_allclose([five.p_value, five.lower, five.slope], [one.p_value, one.lower, one.slope], rtol=1e-6)
    repeated = check(curves, Histogram.from_arrays(np.repeat(logit, 5), np.repeat(label, 5)))
    np.testing.assert_allclose(check(curves, counts).p_value, repeated.p_value, rtol=1e-6)


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_sampled_negatives_are_judged_as_the_rows_they_are(drift):
    """With a tenth of the negatives there are all of the events, and so nearly all of the certainty."""
    random = np.random.default_rng(1)
    logit = random.normal(-4, 0.8, 100_000)
    label = random.random(100_000) < 1 / (1 + np.exp(-logit - drift))
    kept = label | (random.random(100_000) < 0.1)
    curves = Curves.identity(Grid())
    whole = check(curves, Histogram.from_arrays(logit, label))
    part = check(curves, Histogram.from_arrays(logit[kept], label[kept], negative_rate=0.1))
    assert part.holds == whole.holds == (drift == 0)
    assert part.ratio[0] == pytest.approx(whole.ratio[0], rel=0.02)
    assert part.weight[0] == pytest.approx(whole.weight[0], rel=0.02)
    wide = [float(result.upper[0] - result.lower[0]) for result in (part, whole)]
    assert 0.9 < wide[0] / wide[1] < 1.3
    assert part.lower[0] < part.ratio[0] < part.upper[0]


def test_a_clustered_log_of_new_contexts_only_is_no_error():
    log = Histogram.from_arrays([0.0] * 4, [0, 1, 0, 1], {"device": [7, 7, 8, 8]}, fold=[0, 1, 2, 3])
    result = check(CURVES, log, clustered=True)
    assert result.status.tolist() == ["holds", "new", "new"]
    assert not result.holds


@pytest.mark.parametrize("typical", [0.05, 2.0])
def test_many_contexts_with_few_events_alarm_as_often_as_they_may(typical):
    """On days on which nothing drifted; counted as continuous tests they alarm much less often."""
    random = np.random.default_rng(0)
    expected = typical * np.exp(random.normal(0, 0.5, 300))
    events = random.poisson(expected, (500, 300))
    upper, lower = poisson.sf(events - 1, expected), poisson.cdf(events, expected)
    smaller = np.minimum(upper, lower) - poisson.pmf(events, expected) / 2
    one_sided = (upper <= lower) & (np.exp(-expected) / 2 > smaller)
    p_value = np.clip(np.where(one_sided, smaller, 2 * smaller), 0, 1)
    discrete = np.mean([(decide(day, 0.1, 1.0, expected).adjusted <= 0.1).any() for day in p_value])
    continuous = np.mean([(decide(day, 0.1, 1.0).adjusted <= 0.1).any() for day in p_value])
    assert 0.06 < discrete < 0.14
    assert continuous < discrete


def test_intervals_of_discrete_tests_agree_with_the_decision():
    p_value = np.array([1e-6, 3e-5, 2e-4, 0.01, 0.5])
    for expected in (np.full(5, np.inf), np.array([0.1, 0.1, 2.0, 30.0, 0.01])):
        family = decide(p_value, 0.05, 0.5, expected)
        assert ((p_value <= family.threshold) == (family.adjusted <= 0.05)).all()
