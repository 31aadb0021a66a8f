"""Banded algebra against dense algebra."""

import numpy as np
import pytest

from isolayer.fitting.banded import Bands, factorise, gram, inverse_bands, solve


def dense(bands, column):
    diagonal, first, second = (band[:, column if band.shape[1] > 1 else 0] for band in bands)
    n = len(diagonal)
    upper = (np.diag(first, 1) if n > 1 else 0) + (np.diag(second, 2) if n > 2 else np.zeros((n, n)))
    return np.diag(diagonal) + upper + upper.T


@pytest.fixture(params=[1, 2, 3, 4, 9])
def bands(request):
    rng, n = np.random.default_rng(request.param), request.param
    return Bands(rng.uniform(5, 6, (n, 4)), rng.normal(size=(n - 1, 4)), rng.normal(size=(max(n - 2, 0), 4)))


def test_solving_inverting_and_multiplying(bands):
    right = np.random.default_rng(0).normal(size=bands.diagonal.shape)
    factor = factorise(bands)
    solution, inverse, product = solve(factor, right), inverse_bands(factor), bands.apply(right)
    for column in range(4):
        matrix = dense(bands, column)
        np.testing.assert_allclose(solution[:, column], np.linalg.solve(matrix, right[:, column]))
        np.testing.assert_allclose(product[:, column], matrix @ right[:, column])
        for offset, band in enumerate(inverse):
            np.testing.assert_allclose(band[:, column], np.diag(np.linalg.inv(matrix), offset))


def test_several_right_hand_sides_at_once(bands):
    right = np.random.default_rng(0).normal(size=(len(bands.diagonal), 3, 4))
    factor = factorise(bands)
    together = solve(factor, right)
    for k in range(3):
        np.testing.assert_allclose(together[:, k], solve(factor, right[:, k]))


def test_traces_of_products(bands):
    other = gram(1, len(bands.diagonal))
    expected = [np.trace(dense(bands, column) @ dense(other, column)) for column in range(4)]
    np.testing.assert_allclose(bands.inner(other), expected)


@pytest.mark.parametrize("order", [1, 2])
def test_gram_is_the_sum_of_squared_differences(order):
    x = np.random.default_rng(0).normal(size=(8, 1))
    assert float((x * gram(order, 8).apply(x)).sum()) == pytest.approx(float((np.diff(x, n=order, axis=0) ** 2).sum()))
