import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolayer.debias import em_propensity, harvest
from isolayer.errors import InputError

TRUE = np.array([0.9, 0.6, 0.3, 0.15])


def log(rows=60_000, items=3000, seed=0):
    """A position-based log whose logger puts better items higher."""
    rng = np.random.default_rng(seed)
    quality = rng.standard_normal(items)
    item = rng.integers(0, items, rows)
    position = np.digitize(-(quality[item] + rng.standard_normal(rows)), [-1, 0, 1])
    click = rng.random(rows) < TRUE[position] / (1 + np.exp(-quality[item]))
    return item, position, click.astype(int), quality[item][:, None]


def test_harvesting_recovers_examination_where_the_click_rate_does_not():
    item, position, click, _ = log()
    harvested = harvest(item, position, click)
    rate = np.bincount(position, click) / np.bincount(position)
    assert harvested.connected
    assert harvested.examination(4) == pytest.approx(TRUE / TRUE[0], rel=0.08)
    assert abs(rate[3] / rate[0] - TRUE[3] / TRUE[0]) > 0.05  # confounded


def test_em_recovers_examination():
    _, position, click, features = log()
    assert em_propensity(features, position, click, positions=4) == pytest.approx(TRUE / TRUE[0], rel=0.08)


def test_two_positions_have_a_closed_form():
    # matched rates 3/4 and 1/4 of the same item: examination is their ratio
    harvested = harvest([1] * 8, [0] * 4 + [1] * 4, [1, 1, 1, 0, 1, 0, 0, 0])
    assert harvested.ratio == pytest.approx([1.0, 1 / 3])
    # two Poisson counts, 3 and 1: the variance of the logarithm of their ratio is the sum of both inverses
    assert harvested.log_error == pytest.approx([0.0, np.sqrt(1 / 3 + 1)])


def test_items_at_one_position_count_for_nothing():
    item, position, click, _ = log(rows=2000, items=100)
    alone = [np.r_[item, 10_000 + np.arange(50)], np.r_[position, np.zeros(50, int)], np.r_[click, np.ones(50, int)]]
    assert harvest(*alone).ratio == pytest.approx(harvest(item, position, click).ratio)


def test_a_position_no_item_joins_is_not_estimable():
    harvested = harvest([1, 1, 2, 2], [0, 1, 2, 3], [1, 1, 1, 1])
    assert not harvested.connected
    assert np.isfinite(harvested.ratio).tolist() == [True, True, False, False]
    assert np.isfinite(harvested.examination(6)).tolist() == [True, True, False, False, False, False]
    with pytest.raises(InputError, match="position: expected integers from 0 to 2, got 3 in row 3; number them from 0"):
        harvested.examination(3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_order_and_names_do_not_matter(seed):
    item, position, click, features = log(rows=600, items=20, seed=seed)
    order = np.random.default_rng(seed).permutation(600)
    named = np.array([f"item {number}" for number in item])
    one = harvest(item, position, click)
    other = harvest(named[order], position[order], click[order])
    assert one.ratio == pytest.approx(other.ratio, nan_ok=True)
    assert em_propensity(features, position, click, positions=4, rounds=5) == pytest.approx(
        em_propensity(features[order], position[order], click[order], positions=4, rounds=5)
    )


def test_weight_two_is_the_row_twice():
    item, position, click, features = log(rows=3000, items=100)
    weight = np.ones(3000)
    weight[:500] = 2
    twice = np.r_[np.arange(3000), np.arange(500)]
    columns = item[twice], position[twice], click[twice]
    assert harvest(item, position, click, weight=weight).ratio == pytest.approx(harvest(*columns).ratio)
    assert em_propensity(features, position, click, positions=4, weight=weight) == pytest.approx(
        em_propensity(features[twice], position[twice], click[twice], positions=4)
    )


def test_rounds_of_em_change_the_result():
    _, position, click, features = log(rows=3000)
    one, other = (em_propensity(features, position, click, positions=4, rounds=n) for n in (2, 20))
    assert np.abs(one - other).max() > 0.01


@pytest.mark.parametrize(
    ("columns", "weight", "text"),
    [
        (([1], [0, 1], [0, 1]), None, "unit: expected 2 rows like the other columns, got 1; align the columns"),
        (([], [], []), None, "label: expected at least one row, got 0; check the filter that made this table"),
        (
            ([1, 1], [0, 1], [0, 2]),
            None,
            "label: expected labels in [0, 1], got 2.0 in row 1; give 0 and 1, or a soft label between them",
        ),
        (
            ([1, 1], [0, 1], [0, 1]),
            [1, -1],
            "weight: expected numbers >= 0, got -1.0 in row 1; drop those rows or clip their weights",
        ),
    ],
)
def test_bad_columns_of_a_harvest_are_refused(columns, weight, text):
    with pytest.raises(InputError) as caught:
        harvest(*columns, weight=weight)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (([[np.nan], [1.0]], [0, 1], [0, 1]), "features: expected finite numbers, got nan at [0, 0]; drop or repair"),
        (([[0.0]], [0, 1], [0, 1]), "features: expected 2 rows, as position has, got 1; align them"),
        (([[0.0], [1.0]], [0, 2], [0, 1]), "position: expected integers from 0 to 1, got 2 in row 1; number them from"),
        (([[0.0], [1.0]], [0, 1], [0, 0.5]), "label: expected 0 or 1, got soft labels; a propensity is estimated from"),
    ],
)
def test_bad_columns_of_em_are_refused(columns, text):
    with pytest.raises(InputError) as caught:
        em_propensity(*columns, positions=2)
    assert str(caught.value).startswith(text)
