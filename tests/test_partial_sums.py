"""Fitting past one machine: parts from many writers, and a year of daily updates."""

import random

import numpy as np
import pytest

from isolayer import Curves, Grid, Histogram, InputError
from isolayer.fitting.partial_sums import merge_parts

GRID = Grid(lower=-4, upper=3, step=0.5)


def rows(seed, size=40, contexts=6):
    rng = np.random.default_rng(seed)
    score, shop = rng.normal(0, 1.5, size), rng.integers(0, contexts, size)
    return score, (rng.random(size) < 1 / (1 + np.exp(-score - 0.2 * shop))).astype(float), shop


def sums(seed, weight=1.0):
    score, label, shop = rows(seed)
    return Histogram.from_arrays(score, label, {"shop": shop}, np.full(len(score), weight), grid=GRID)


def content(histogram):
    names = ("group", "fold", "bin", "negative_rate", "count", "weight", "weight_squared", "positive", "logit")
    return [key.tolist() for key in histogram.keys], [getattr(histogram, name).tobytes() for name in names]


def test_64_writers_with_duplicates_and_stragglers_give_the_same_sums_to_the_bit():
    parts = {f"part-{place:05}": sums(place) for place in range(64)}
    expected = merge_parts(parts.items())
    every = [rows(place) for place in range(64)]
    score, label, shop = (np.concatenate(column) for column in zip(*every, strict=True))
    whole = Histogram.from_arrays(score, label, {"shop": shop}, grid=GRID)
    np.testing.assert_array_equal(expected.count, whole.count)
    np.testing.assert_allclose(expected.logit, whole.logit, rtol=1e-12, atol=1e-12)
    for seed in range(5):
        draw = random.Random(seed)
        arrived = [*parts.items(), *draw.choices([*parts.items()], k=20)]  # what slow workers sent a second time
        draw.shuffle(arrived)
        assert content(merge_parts(arrived)) == content(expected)


def test_one_id_with_two_contents_is_refused():
    with pytest.raises(InputError, match="part a: expected the same rows each time"):
        merge_parts([("a", sums(0)), ("a", sums(1))])
    with pytest.raises(InputError, match="parts: expected at least one"):
        merge_parts([])
    with pytest.raises(InputError, match="id: expected"):
        merge_parts([(3, sums(0))])


def test_a_year_of_daily_updates_is_one_exact_fit():
    """Forgetting day by day, 365 times, against one fit of all rows with the weights they have at the end."""
    keep, total = 0.98, sums(0)
    for day in range(1, 365):
        total = total.scaled(keep).merge(sums(day))
    every = [rows(day) for day in range(365)]
    score, label, shop = (np.concatenate(column) for column in zip(*every, strict=True))
    weight = np.repeat(keep ** np.arange(364.0, -1, -1), 40)
    whole = Histogram.from_arrays(score, label, {"shop": shop}, weight, grid=GRID)
    for name in ("weight", "weight_squared", "positive", "logit"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-9, atol=1e-9)
    curves = [Curves.from_histogram(one, shrinkage=[4.0, 8.0, 16.0]) for one in (total, whole)]
    ask = np.linspace(-6, 5, 200), {"shop": np.arange(200) % 6}
    assert np.abs(curves[0].predict_proba(*ask) - curves[1].predict_proba(*ask)).max() <= 1e-9
