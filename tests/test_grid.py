import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isolayer import Grid, InputError
from isolayer.grid import Spread

grids = st.builds(
    lambda lower, step, steps: Grid(lower, lower + steps * step, step),
    st.integers(-20, 5).map(float),
    st.sampled_from([0.05, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.5, 1.0]),
    st.integers(1, 300),
)


@given(grids)
def test_there_is_one_more_bucket_than_steps_and_one_more_knot_than_buckets(grid):
    assert grid.buckets == round((grid.upper - grid.lower) / grid.step) + 1
    assert len(grid.knots) == grid.buckets + 1
    np.testing.assert_allclose(np.diff(grid.knots), grid.step, rtol=1e-9)
    assert grid.knots[-1] == grid.upper
    assert grid.knots[1] == grid.lower


@given(grids, st.lists(st.floats(-60, 60), min_size=1, max_size=20))
def test_bucket_and_fraction_give_the_clipped_value_back(grid, values):
    x = np.array(values)
    bucket, fraction = grid.locate(x)
    assert bucket.min() >= 1
    assert bucket.max() <= grid.buckets - 1
    assert (fraction >= 0).all()
    assert (fraction <= 1).all()
    back = grid.lower + grid.step * (bucket - 1 + fraction)
    np.testing.assert_allclose(back, x.clip(grid.lower, grid.upper), atol=1e-11)


@given(grids, st.lists(st.floats(-60, 60), min_size=1, max_size=20))
def test_numpy_and_torch_agree(grid, values):
    x = np.array(values)
    bucket, fraction = grid.locate(x)
    bucket_, fraction_ = grid.locate(torch.from_numpy(x))
    np.testing.assert_allclose(bucket_.numpy() + fraction_.numpy(), bucket + fraction, atol=1e-11)


def test_nan_stays_nan_and_infinities_clip():
    for x in (np.array([np.nan, np.inf, -np.inf]), torch.tensor([np.nan, np.inf, -np.inf])):
        bucket, fraction = Grid().locate(x)
        assert bucket.tolist() == [1, 125, 1]
        assert np.isnan(float(fraction[0]))
        assert float(fraction[1]) == pytest.approx(1, abs=1e-4)
        assert fraction[2] == 0


def test_the_inputs_are_not_changed():
    for x in (np.array([0.5, 100.0]), torch.tensor([0.5, 100.0])):
        Grid().locate(x)
        assert x.tolist() == [0.5, 100.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0, 0.1), "grid bounds: expected lower < upper, got lower=1.0 and upper=0.0; swap them"),
        ((0, 0, 0.1), "grid bounds: expected lower < upper, got lower=0.0 and upper=0.0; swap them"),
        ((0, 1, -1), "grid step: expected a positive number, got -1.0; try 0.2"),
        ((0, float("nan"), 1), "grid upper: expected a finite number, got nan; give a float"),
        (("0", 1, 1), "grid lower: expected a finite number, got '0'; give a float"),
        (
            (0, 1, 0.3),
            (
                "grid: expected upper - lower to be a whole number of steps, got 3.33333 steps of 0.3; "
                "use upper=0.9 or upper=1.2, or step=0.333333"
            ),
        ),
        (
            (0, 1, 5),
            "grid: expected upper - lower to be a whole number of steps, got 0.2 steps of 5.0; use upper=5, or step=1",
        ),
    ],
)
def test_a_grid_that_cannot_be_says_what_would(arguments, message):
    with pytest.raises(InputError) as error:
        Grid(*arguments)
    assert str(error.value) == message


def test_a_grid_too_fine_to_be_served_is_refused():
    with pytest.raises(InputError) as error:
        Grid(step=1e-9)
    assert str(error.value) == (
        "grid: expected at most 65,536 buckets, got 25,000,000,000 steps of 1e-09; use step=0.025 or larger"
    )
    assert Grid(step=0.025).buckets == 1001


def test_the_grids_it_proposes_are_grids():
    assert Grid(0, 0.9, 0.3).buckets == 4
    assert Grid(0, 1, 0.333333333).buckets == 4


@given(
    st.integers(0, 10**6), st.floats(-50, 50), st.floats(-8, 8).map(lambda log: 10.0**log), st.sampled_from([2, 9, 400])
)
def test_a_grid_placed_by_the_scores_covers_them_with_round_steps(seed, mean, width, n):
    score = width * (mean + np.random.default_rng(seed).normal(size=n))
    grid = Grid.covering(Spread.of(score))
    inside = (score >= grid.lower) & (score <= grid.upper)
    assert inside.all()
    assert float(f"{grid.step:.0e}") == grid.step
    assert grid.step <= 0.3 * np.std(score)
    assert grid.buckets <= 200


@pytest.mark.parametrize("value", [0.0, -999.0, 1e300])
def test_outliers_and_equal_scores_still_have_a_grid(value):
    score = np.append(np.random.default_rng(0).normal(-3, 1, 1000), value)
    assert Grid.covering(Spread.of(score)).step == 0.1
    assert Grid.covering(Spread.of(np.full(10, min(value, 1e6)))).buckets > 10


def test_no_scores_have_the_usual_grid():
    assert Grid.covering(Spread.of(np.array([]))) == Grid()
