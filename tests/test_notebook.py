"""How fitted things show themselves: short in a terminal, a chart and a table in a notebook, text never as markup."""

from itertools import pairwise

import numpy as np
import pytest

from isolayer import Histogram, IsotonicCalibrator


@pytest.fixture(scope="module")
def calibrator():
    random = np.random.default_rng(0)
    score, device = random.normal(-1, 1, 3000), random.choice(["<b>tv</b>", "web"], 3000)
    return IsotonicCalibrator(("device",)).fit({"score": score, "device": device}, random.random(3000) < 0.2)


def test_reprs_are_one_short_line(calibrator):
    assert repr(calibrator.curves_) == "<Curves: curves 3, contexts device, rows 3,000, scale logit, score score>"
    histogram = Histogram.from_arrays([0.0, 1.0, 1.0], [0, 1, 1])
    assert repr(histogram).startswith("<Histogram: rows 3, contexts none, groups 1, cells ")
    assert repr(calibrator) == "IsotonicCalibrator(contexts=('device',))"


def test_notebooks_get_a_chart_and_a_table(calibrator):
    for shown in (calibrator.curves_._repr_html_(), calibrator._repr_mimebundle_()["text/html"]):
        assert shown.count("<polyline") == 3  # two devices, and the line that changes nothing
        assert "<th" in shown
        assert "<b>tv" not in shown
        assert "&lt;b&gt;tv" in shown
    assert "not yet" in IsotonicCalibrator()._repr_html_()


def test_the_curves_in_the_chart_never_fall(calibrator):
    for line in calibrator.curves_._repr_html_().split('points="')[1:]:
        heights = [float(point.split(",")[1]) for point in line.split('"')[0].split()]
        assert all(after <= before + 0.11 for before, after in pairwise(heights))  # up is less
