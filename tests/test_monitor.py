import numpy as np
import pytest

from isolayer import Curves, Grid, Histogram, InputError
from isolayer.monitor import check


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
